"""Finds built notebooks that are not what their sources say, without executing anything.

Everything but the outputs is compared with a fresh plan. Of the outputs it is checked that they are there, that no
cell failed, and that they hold nothing that keeps others from seeing the notebook.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import nbformat
from nbformat import NotebookNode

from pagedkv_lab.course.builder.pages import GLOSSARY
from pagedkv_lab.course.builder.plan import BUILT_FOLDERS, Planned, added_only, all_chapters, plan_chapter


@dataclass(frozen=True)
class Stale:
    """One thing that is wrong with one file. `chapter` is to be rebuilt; None if the file is to be deleted."""

    path: PurePosixPath
    reason: str
    chapter: str | None


def find_stale(root: Path, chapters: list[str]) -> list[Stale]:
    """What is wrong with the built notebooks of `chapters`, and which ones belong to no chapter at all.

    Raises SourceError where a source doesn't make a notebook.
    """
    stale: list[Stale] = []
    for chapter in chapters:
        committed: dict[str, NotebookNode | None] = {}
        plan = plan_chapter(root, chapter)
        for planned in plan:
            notebook, problem = _read(root / planned.path)
            problems = [problem] if problem else list(_differences(notebook, planned))
            stale += [Stale(planned.path, reason, chapter) for reason in problems]
            committed[planned.path.parts[0]] = notebook
        if committed.get("exercises") and committed.get("solutions"):
            path = next(planned.path for planned in plan if planned.path.parts[0] == "exercises")
            broken = added_only(committed["exercises"], committed["solutions"])
            stale += [Stale(path, reason, chapter) for reason in broken]
    return stale + _orphans(root)


def _orphans(root: Path) -> list[Stale]:
    expected = {planned.path for chapter in all_chapters(root) for planned in plan_chapter(root, chapter)} | {GLOSSARY}
    found = {
        PurePosixPath(path.relative_to(root).as_posix())
        for folder in BUILT_FOLDERS
        for path in (root / folder).rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    }
    return [Stale(path, "comes from nothing in course/: delete it.", None) for path in sorted(found - expected)]


def _read(path: Path) -> tuple[NotebookNode | None, str | None]:
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=nbformat.NO_CONVERT)
        nbformat.validate(notebook)
    except FileNotFoundError:
        return None, "is missing."
    except Exception as error:  # nbformat fails in many ways on JSON that is no notebook
        return None, f"is not a notebook: {type(error).__name__}: {str(error).splitlines()[0]}"
    return notebook, None


def _differences(notebook: NotebookNode, planned: Planned) -> Iterator[str]:
    """How the committed notebook differs from the planned one, one reason for each cell at most."""
    if "widgets" in notebook.metadata:
        yield "carries widget state (metadata.widgets), with which GitHub refuses to show it."
    elif notebook.metadata != planned.notebook.metadata:
        yield "has other notebook metadata than the builder writes."
    if (notebook.nbformat, notebook.nbformat_minor) != (planned.notebook.nbformat, planned.notebook.nbformat_minor):
        yield "is in another version of the notebook format."

    ids = [cell.get("id") for cell in notebook.cells]
    if ids != [cell.id for cell in planned.notebook.cells]:
        yield _first_difference(ids, planned)
        return
    executions = 0
    for cell, wanted in zip(notebook.cells, planned.notebook.cells, strict=True):
        runs = planned.executed and _runs(wanted)
        executions += runs
        if cell.cell_type != wanted.cell_type:
            yield f"cell {cell.id!r} is {cell.cell_type}, in {planned.source.path} it is {wanted.cell_type}."
        elif cell.source != wanted.source:
            yield f"cell {cell.id!r} has other text than in {planned.source.path}."
        elif cell.metadata != wanted.metadata:
            yield f"cell {cell.id!r} has other metadata than in {planned.source.path}."
        elif cell.cell_type == "code":
            problem = _wrong_outputs(cell, executions if runs else None)
            if problem:
                yield f"cell {cell.id!r} {problem}"


def _runs(cell: NotebookNode) -> bool:
    """Whether executing a notebook executes this cell."""
    return cell.cell_type == "code" and bool(cell.source.strip()) and "skip-execution" not in _tags(cell)


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _wrong_outputs(cell: NotebookNode, execution: int | None) -> str | None:
    """`execution` is the count that the cell must have; None where it must not have been executed."""
    if cell.execution_count != execution:
        if execution is None:
            return "was executed; this one is handed out untouched."
        return f"was not executed in order: its count is {cell.execution_count}, not {execution}."
    if execution is None and cell.outputs:
        return "has outputs; this one is handed out untouched."
    if "raises-exception" not in _tags(cell) and any(output.output_type == "error" for output in cell.outputs):
        return "failed when it was executed, and is not tagged raises-exception."
    return None


def _first_difference(found: list[str | None], planned: Planned) -> str:
    """Where the cells' ids part. An id made of the cell's text changes with the text."""
    source = planned.source
    for place, (ours, cell) in enumerate(zip(found, planned.notebook.cells, strict=False), start=1):
        if ours != cell.id:
            index = source.index_of(cell.id)
            line = "the set-up cell" if index is None else f"line {source.lines[index]}"
            return f"cell {place} is not what {source.path} has in its place ({line})."
    return f"has {len(found)} cells, by {source.path} it has {len(planned.notebook.cells)}."
