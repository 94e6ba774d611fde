"""Builds chapters: plans their notebooks, executes them and puts them in their places."""

import os
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from pagedkv_lab.course.builder.execute import ExecutionFailed, execute, folder_names
from pagedkv_lab.course.builder.plan import Planned, plan_chapter
from pagedkv_lab.course.builder.source import SourceError
from pagedkv_lab.engine.compile_kernels import compile_kernels


def build_chapter(
    root: Path, chapter: str, on_cell: Callable[[Planned, int], None] = lambda planned, index: None
) -> list[Path]:
    """Build one chapter's notebooks and return their paths.

    `on_cell(planned, index)` is called before cell `index` of an executed notebook runs. Nothing is written until
    all of them have run. Raises SourceError, for a cell that fails too.
    """
    plan = plan_chapter(root, chapter)
    if any(planned.executed for planned in plan):
        compile_kernels()  # an output must not say that a compiler was at work
    for planned in plan:
        (root / planned.path).parent.mkdir(parents=True, exist_ok=True)
        if planned.executed:
            _execute(root, planned, on_cell)
    return [_write(planned.notebook, root / planned.path) for planned in plan]


def _execute(root: Path, planned: Planned, on_cell: Callable[[Planned, int], None]) -> None:
    try:
        execute(
            planned.notebook,
            (root / planned.path).parent,
            folder_names(root),
            on_cell=lambda index: on_cell(planned, index),
        )
    except ExecutionFailed as failure:
        if failure.index is None:
            raise SourceError(f"{planned.path}: {failure}") from failure
        cell = planned.notebook.cells[failure.index]
        index = planned.source.index_of(cell.id)
        if index is None:
            raise SourceError(f"{planned.path}, the set-up cell: {failure}") from failure
        raise planned.source.error(index, f"in {planned.path}: {failure}") from failure


def _write(notebook: NotebookNode, path: Path) -> Path:
    """Write in one go: someone who opens the file meanwhile sees the old notebook or the new one."""
    nbformat.validate(notebook)
    unfinished = path.with_name(f".{path.name}.part")
    try:
        unfinished.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
