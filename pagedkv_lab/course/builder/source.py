"""Reads a lesson or a workbook: a .py file in jupytext's percent format, cells headed by `# %%`.

What jupytext leaves open is settled here: cell ids (new random ones at each reading would make every rebuild a
change) and the line of the file that each cell comes from (so that a complaint can name it).
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import jupytext
import yaml
from nbformat import NotebookNode, ValidationError

from pagedkv_lab.errors import PagedKVError

_CELL_HEADER = re.compile(r"\s*#\s*%%+(\s|$)")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # nbformat's rule, and nbgrader's for grade_id

RESERVED_IDS = {"setup"}  # the generated first code cell


class SourceError(PagedKVError):
    """A lesson or a workbook can't be turned into a notebook; the message names the file, the cell and the line."""


@dataclass(frozen=True)
class Source:
    """A .py file as cells. `lines[i]` is the line of the file, from 1, in which the text of cell i begins."""

    path: Path
    cells: list[NotebookNode]
    lines: list[int]

    def error(self, index: int, message: str, line: int = 0) -> SourceError:
        """A complaint about line `line` (from 0) of the text of cell `index` (from 0)."""
        cell_id = self.cells[index].get("id")
        name = f"cell {index + 1}" + (f" ({cell_id})" if cell_id else "")
        return SourceError(f"{self.path}, {name}, line {self.lines[index] + line}: {message}")

    def index_of(self, cell_id: str) -> int | None:
        """The index of a cell by its id; None for a cell that the builder put in."""
        return next((index for index, cell in enumerate(self.cells) if cell.id == cell_id), None)


def read_source(path: Path, shown_as: Path | None = None) -> Source:
    """Read one file; messages call it `shown_as`. Raises SourceError, and OSError if it can't be read."""
    shown_as = shown_as or path
    text = path.read_text(encoding="utf-8")
    try:
        cells = jupytext.reads(text, fmt="py:percent").cells
    except (ValueError, ValidationError, yaml.YAMLError) as error:
        raise SourceError(f"{shown_as}: jupytext can't read it: {str(error).splitlines()[0]}") from error
    lines = _first_lines(text)
    if len(lines) != len(cells):
        raise SourceError(
            f"{shown_as}: {len(lines)} lines look like a cell header (# %%), and {len(cells)} cells were read: "
            "the file has text before its first header, or a # %% inside a string."
        )
    source = Source(shown_as, cells, lines)
    if not cells or cells[0].cell_type != "markdown" or not cells[0].source.startswith("# "):
        raise SourceError(f"{shown_as}: the first cell must be text (# %% [markdown]) that opens with a title (# ...).")
    _assign_ids(source)
    for cell in cells:
        cell.metadata.pop("lines_to_next_cell", None)  # jupytext's note to itself, for the way back to .py
    return source


def _first_lines(text: str) -> list[int]:
    """For each cell header, the number (from 1) of the first line with text below it."""
    lines = text.splitlines()
    starts = []
    for header in (number for number, line in enumerate(lines) if _CELL_HEADER.match(line)):
        first = header + 1
        while first < len(lines) and not lines[first].strip():
            first += 1
        starts.append(first + 1)
    return starts


def _assign_ids(source: Source) -> None:
    """Give each cell an id that depends on nothing but what its author wrote.

    First choice: `id="..."` in the header; second: nbgrader's grade_id; else a hash of the text, which changes
    only when the text does. Of cells with the same text the second gets -2, and so on.
    """
    taken = set(RESERVED_IDS)
    unnamed = []
    for index, cell in enumerate(source.cells):
        grading = cell.metadata.get("nbgrader", {})
        if not isinstance(grading, dict):
            raise source.error(index, 'nbgrader= in the header must be JSON, {"name": value, ...}.')
        cell_id = cell.metadata.pop("id", None) or grading.get("grade_id")
        cell.id = cell_id
        if cell_id is None:
            unnamed.append(cell)
            continue
        if not isinstance(cell_id, str) or not _ID.fullmatch(cell_id):
            raise source.error(index, "an id has 1 to 64 letters, digits, - and _, and nothing else.")
        if cell_id in taken:
            raise source.error(index, f"the id {cell_id!r} is taken by another cell, or by the builder.")
        taken.add(cell_id)

    for cell in unnamed:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:10]
        cell_id, occurrence = f"{cell.cell_type}-{digest}", 1
        while cell_id in taken:
            occurrence += 1
            cell_id = f"{cell.cell_type}-{digest}-{occurrence}"
        taken.add(cell_id)
        cell.id = cell_id
