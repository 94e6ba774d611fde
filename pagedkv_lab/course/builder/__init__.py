"""From what authors write (`course/NN_topic/*.py`) to what learners open (`notebooks/`, `exercises/`, `solutions/`).

    source.py      one .py file in percent format -> cells with ids that stay the same
    regions.py     a solution cell -> the exercise's stub
    setup_cell.py  the first code cell of every notebook, and the badges
    plan.py        a chapter's sources -> its notebooks, not executed
    execute.py     a notebook -> the same notebook with outputs, made to come out the same each time
    scrub.py       what is taken out of outputs: addresses, paths, progress bars, widget ids
    build.py       plan, execute, write
    stale.py       plan, compare with what is committed
    header.py      what a lesson says about itself: minutes, difficulty, needs
    glossary_page.py  the glossary -> a notebook of text
    pages.py       that notebook and the README's list of chapters: made, compared
    console.py     what `pagedkv course build` prints

Knows notebooks and files. Knows nothing of the engine, and does not import torch.
"""
