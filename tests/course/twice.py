"""Runs a notebook from top to bottom, and then again in the same kernel.

A learner scrolls back and runs a cell once more; nothing may break on what the first run has left behind.
"""

import copy
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_notebook

from pagedkv_lab.course.builder.plan import Planned, all_chapters, plan_chapter

ROOT = Path(__file__).parents[2]


def notebooks_in(folder: str) -> dict[str, Planned]:
    """The executed notebooks of a folder ("notebooks", "solutions"), as they will be built, by path."""
    planned = (planned for chapter in all_chapters(ROOT) for planned in plan_chapter(ROOT, chapter))
    return {str(one.path): one for one in planned if one.executed and one.path.parts[0] == folder}


def run_twice(planned: Planned, folder: Path) -> None:
    """Fails the test with the cell that went wrong, and in which run."""
    code = [cell for cell in copy.deepcopy(planned.notebook.cells) if cell.cell_type == "code"]
    again = copy.deepcopy(code)
    for cell in again:
        cell.id = f"again-{cell.id}"[:64]
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        new_notebook(cells=[*code, *again]), kernel_name="python3", timeout=120, resources=resources
    )
    try:
        client.execute()
    except CellExecutionError as error:
        ran = sum(cell.execution_count is not None for cell in client.nb.cells)
        which = "first" if ran <= len(code) else "second"
        pytest.fail(f"{planned.path}, {which} run: {error}", pytrace=False)
