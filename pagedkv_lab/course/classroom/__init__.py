"""The course in a class: handed out, graded, solutions swapped in and out, copies brought up to date, new chapters.

    notebooks.py    what of a notebook is its author's: compare, write
    copies.py       dated copies of what a learner wrote
    swap.py         exercises/: the stub, the solution, or the learner's own
    handout.py      which files a class gets, and what is in each
    release.py      a folder with these files
    update.py       the same files brought into a copy that somebody works in
    new_chapter.py  a chapter that builds, to be filled; its texts are in template.py
    grading.py      nbgrader with the folders of this course
    hidden.py       hidden tests: a check on cases that nobody has seen

Knows files, notebooks and checks. Knows nothing of the engine, and does not import torch.
"""
