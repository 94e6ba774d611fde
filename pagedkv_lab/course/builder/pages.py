"""What is made of the whole course, not of one chapter: the glossary's page, and the README's list of chapters.

    course/*/lesson.py, glossary.py             -> notebooks/glossary.ipynb
    course/*/{lesson,workbook}.py, outline.py   -> README.md, between the two comments of `_MARKS`

Nothing of it is executed, so it is made again with every build, and a check compares texts.

Knows files. What is in a page is made by `glossary_page` and `header`.
"""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import nbformat
from nbformat.v4 import new_notebook

from pagedkv_lab.course.builder.glossary_page import glossary_cells
from pagedkv_lab.course.builder.header import exercise_minutes, read_header
from pagedkv_lab.course.builder.plan import METADATA, all_chapters
from pagedkv_lab.course.builder.source import Source, read_source
from pagedkv_lab.course.glossary import PAGE
from pagedkv_lab.course.outline import COURSE, Chapter

GLOSSARY = PurePosixPath("notebooks", PAGE)
README = PurePosixPath("README.md")
_MARKS = ("<!-- chapters:start -->\n", "<!-- chapters:end -->")


def plan_pages(root: Path) -> dict[PurePosixPath, str]:
    """The text of each page, by its path. Raises SourceError where a lesson lacks what a page takes from it.

    README.md is among them where there is one that has the two comments.
    """
    lessons = _sources(root, "lesson.py")
    glossary = new_notebook(cells=glossary_cells(lessons), metadata=METADATA)
    pages = {GLOSSARY: nbformat.writes(glossary) + "\n"}
    readme = _read(root / README) or ""
    start, _, rest = readme.partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    if end:
        table = chapter_table(lessons, _sources(root, "workbook.py"))
        pages[README] = f"{start}{_MARKS[0]}{table}\n{end}{after}"
    return pages


def build_pages(root: Path) -> list[Path]:
    """Write the pages that have changed, and return their paths. Raises SourceError."""
    changed = stale_pages(root)
    pages = plan_pages(root)
    for path in changed:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        unfinished = root / path.with_name(f".{path.name}.part")
        unfinished.write_text(pages[path], encoding="utf-8")
        os.replace(unfinished, root / path)
    return [root / path for path in changed]


def stale_pages(root: Path) -> list[PurePosixPath]:
    """The pages that are missing or not as a build would make them. Raises SourceError."""
    return [path for path, text in plan_pages(root).items() if _read(root / path) != text]


def chapter_table(lessons: Mapping[str, Source], workbooks: Mapping[str, Source]) -> str:
    """All chapters of the outline as a Markdown table; minutes and difficulty are those of the lessons' headers."""
    head = ["| | chapter | the question | minutes | difficulty | parts of the engine that you write |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    return "\n".join([*head, *(_row(chapter, lessons, workbooks) for chapter in COURSE)])


def _row(chapter: Chapter, lessons: Mapping[str, Source], workbooks: Mapping[str, Source]) -> str:
    title, minutes, difficulty = chapter.title, "to come", ""
    if chapter.folder in lessons:
        header = read_header(lessons[chapter.folder])
        title = f"[{title}](notebooks/{chapter.folder}.ipynb)"
        minutes, difficulty = str(header.minutes), header.dots
        if chapter.folder in workbooks:
            minutes += f" + {exercise_minutes(workbooks[chapter.folder])}"
    parts = ", ".join(f"`{name}`" for name in chapter.builds)
    return f"| {chapter.number:02} | {title} | {chapter.question} | {minutes} | {difficulty} | {parts} |"


def _sources(root: Path, name: str) -> dict[str, Source]:
    """Each chapter's lesson or workbook, by its folder; a chapter that has none is left out."""
    paths = {chapter: PurePosixPath("course", chapter, name) for chapter in all_chapters(root)}
    return {
        chapter: read_source(root / path, shown_as=path) for chapter, path in paths.items() if (root / path).exists()
    }


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
