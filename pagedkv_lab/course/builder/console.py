"""What `pagedkv course build` prints. Each function returns the command's exit status."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pagedkv_lab.course.builder.build import build_chapter
from pagedkv_lab.course.builder.pages import build_pages, stale_pages
from pagedkv_lab.course.builder.plan import Planned, find_root, plan_chapter, select_chapters
from pagedkv_lab.course.builder.stale import find_stale

#: Said in the place of a chapter: what is made of the whole course, and executes nothing. Every build makes it, too.
PAGES = "pages"


def build(names: list[str], start: Path | None = None) -> int:
    """Build the chapters that `names` mean (all if empty) of the course around `start` (the working directory)."""
    root = find_root(start or Path.cwd())
    chapters = _chapters(root, names)
    for chapter in chapters:  # a mistake in a source shows before minutes of execution, not after
        plan_chapter(root, chapter)

    console = Console()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cells"), TimeElapsedColumn(),
        console=console, transient=True,
    )  # fmt: skip
    tasks = {}

    def on_cell(planned: Planned, index: int) -> None:
        if planned.path not in tasks:
            tasks[planned.path] = bar.add_task(str(planned.path), total=len(planned.notebook.cells))
        bar.update(tasks[planned.path], completed=index + 1)

    if chapters:
        with bar:
            for chapter in chapters:
                for path in build_chapter(root, chapter, on_cell):
                    bar.console.print(f"built {path.relative_to(root).as_posix()}", highlight=False)
    for path in build_pages(root):
        console.print(f"built {path.relative_to(root).as_posix()}", highlight=False)
    return 0


def check(names: list[str], start: Path | None = None) -> int:
    """Say which of the built notebooks are stale, and how to mend them: 0 if none, else 1."""
    root = find_root(start or Path.cwd())
    chapters = _chapters(root, names)
    stale = find_stale(root, chapters)
    for problem in stale:
        print(f"{problem.path}: {problem.reason}")
    pages = stale_pages(root)
    for path in pages:
        print(f"{path}: is not what the lessons and the glossary make it.")
    rebuild = sorted({problem.chapter for problem in stale if problem.chapter}) or ([PAGES] if pages else [])
    if rebuild:
        print(f"Run: pagedkv course build {' '.join(rebuild)}")
    if not stale and not pages:
        print(f"The notebooks of {len(chapters)} chapter{'s' if len(chapters) > 1 else ''} are as their sources say.")
    return 1 if stale or pages else 0


def _chapters(root: Path, names: list[str]) -> list[str]:
    """The chapters that are named; none where only the pages are."""
    chapters = [name for name in names if name != PAGES]
    return [] if names and not chapters else select_chapters(root, chapters)
