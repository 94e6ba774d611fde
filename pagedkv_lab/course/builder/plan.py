"""A chapter's sources as the notebooks that they stand for, not executed yet.

    course/NN_topic/lesson.py    -> notebooks/NN_topic.ipynb
    course/NN_topic/workbook.py  -> solutions/NN_topic/NN_topic.ipynb, exercises/NN_topic/NN_topic.ipynb

Building executes and writes the plan; checking compares it with what is committed. Neither knows how a notebook
comes about, so the two can't disagree.
"""

import copy
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from pagedkv_lab.course.builder.regions import (
    HIDDEN_TESTS,
    SOLUTION,
    RegionError,
    exercise_of,
    has_region,
    lines_not_in,
)
from pagedkv_lab.course.builder.setup_cell import add_badges, read_repository, setup_cell
from pagedkv_lab.course.builder.source import Source, SourceError, read_source
from pagedkv_lab.errors import PagedKVError

# The folders that hold built notebooks and nothing else.
BUILT_FOLDERS = ("notebooks", "solutions", "exercises")

# Fixed, so that a notebook does not change with the machine that executed it.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


@dataclass(frozen=True)
class Planned:
    """One notebook to be: where it goes (relative to the course's root), and what it comes from."""

    path: PurePosixPath
    source: Source
    notebook: NotebookNode
    executed: bool


def find_root(start: Path) -> Path:
    """The course's root: the nearest folder, from `start` upward, that holds course/. Raises PagedKVError."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "course").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise PagedKVError(f"no course/ folder in {start} or above it: run this inside the course's repository.")


def all_chapters(root: Path) -> list[str]:
    """The names of course/'s chapters, in order: folders named with two digits, an underscore and a topic."""
    folders = (root / "course").iterdir() if (root / "course").is_dir() else ()
    return sorted(f.name for f in folders if f.is_dir() and re.fullmatch(r"\d\d_\w+", f.name))


def select_chapters(root: Path, names: list[str]) -> list[str]:
    """The chapters that `names` mean, each a folder's name or its number; all of them if there are no names.

    Raises PagedKVError for a name that means none.
    """
    chapters = all_chapters(root)
    if not chapters:
        raise PagedKVError(f"{root / 'course'} has no chapter: one is a folder named like 00_start_here.")
    chosen = set()
    for name in names:
        number = f"{int(name):02d}_" if name.isdecimal() else None
        matches = [c for c in chapters if c == name or (number and c.startswith(number))]
        if not matches:
            raise PagedKVError(f"there is no chapter {name!r} in course/; there is {', '.join(chapters)}.")
        chosen.update(matches)
    return sorted(chosen) if names else chapters


def plan_chapter(root: Path, chapter: str) -> list[Planned]:
    """The notebooks of one chapter. Raises SourceError where its sources don't make any."""
    repository = read_repository(root)
    folder = PurePosixPath("course", chapter)
    planned = []
    if (root / folder / "lesson.py").exists():
        source = read_source(root / folder / "lesson.py", shown_as=folder / "lesson.py")
        _refuse_regions(source)
        path = PurePosixPath("notebooks", f"{chapter}.ipynb")
        planned.append(Planned(path, source, _notebook(source.cells, repository, path), executed=True))

    if (root / folder / "workbook.py").exists():
        source = read_source(root / folder / "workbook.py", shown_as=folder / "workbook.py")
        _validate_nbgrader(source)
        path = PurePosixPath("solutions", chapter, f"{chapter}.ipynb")
        solution = Planned(path, source, _notebook(source.cells, repository, path), executed=True)
        path = PurePosixPath("exercises", chapter, f"{chapter}.ipynb")
        exercise = Planned(path, source, _notebook(_exercise_cells(source), repository, path), executed=False)
        for difference in added_only(exercise.notebook, solution.notebook):
            raise SourceError(f"{source.path}: {difference}")
        planned += [solution, exercise]

    if not planned:
        raise SourceError(f"{folder} has neither a lesson.py nor a workbook.py.")
    return planned


def added_only(exercise: NotebookNode, solution: NotebookNode) -> list[str]:
    """What in the solution is not the exercise with lines added: empty if it is nothing else."""
    ids = [[cell.get("id") for cell in notebook.cells] for notebook in (exercise, solution)]
    if ids[0] != ids[1]:
        return ["the exercise and the solution don't have the same cells in the same order."]
    return [
        f"cell {ours.id!r}: the solution does not keep this line of its stub: {line.strip()!r}"
        for ours, theirs in zip(exercise.cells, solution.cells, strict=True)
        if ours.cell_type == "code"
        for line in lines_not_in(ours.source, theirs.source)
    ]


def _notebook(cells: list[NotebookNode], repository: str, path: PurePosixPath) -> NotebookNode:
    """Cells with the generated ones around them: badges in the title, the set-up cell below it."""
    title, *rest = copy.deepcopy(cells)
    title.source = add_badges(title.source, repository, path)
    return new_notebook(cells=[title, setup_cell(repository), *rest], metadata=copy.deepcopy(METADATA))


def _exercise_cells(source: Source) -> list[NotebookNode]:
    cells = copy.deepcopy(source.cells)
    for index, cell in enumerate(cells):
        if cell.cell_type == "code":
            try:
                cell.source = exercise_of(cell.source)
            except RegionError as error:
                raise source.error(index, str(error), error.line) from None
    return cells


def _refuse_regions(source: Source) -> None:
    for index, cell in enumerate(source.cells):
        if has_region(cell.source, SOLUTION) or has_region(cell.source, HIDDEN_TESTS):
            raise source.error(index, "a lesson has no solutions to hide; exercises belong in workbook.py.")


def _validate_nbgrader(source: Source) -> None:
    """What nbgrader would stumble over, or silently get wrong, when it makes an assignment of the solutions."""
    for index, cell in enumerate(source.cells):
        grading = cell.metadata.get("nbgrader", {})
        solves, hides = has_region(cell.source, SOLUTION), has_region(cell.source, HIDDEN_TESTS)
        if cell.cell_type != "code":
            if solves or hides:
                raise source.error(index, "a solution or hidden test in text: regions are cut from code cells only.")
            continue
        if grading and not isinstance(grading.get("grade_id"), str):
            raise source.error(index, "nbgrader needs a grade_id in the cell's header.")
        if solves and not grading.get("solution"):
            raise source.error(index, 'a solution in a cell whose header lacks nbgrader={"solution": true, ...}.')
        if grading.get("solution") and not solves:
            raise source.error(index, "nbgrader wipes a solution cell that has no ### BEGIN SOLUTION region.")
        if hides and not grading.get("grade"):
            raise source.error(index, 'a hidden test in a cell whose header lacks nbgrader={"grade": true, ...}.')
