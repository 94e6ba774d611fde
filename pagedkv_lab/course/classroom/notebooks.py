"""What of a notebook is its author's, and how it looks on the disk.

Running a notebook changes outputs and counts, and saving it may change metadata. None of that is anybody's work: two
notebooks with the same cells in the same order, text for text, are the same here.

Knows the format. Does not know files, nor whose a notebook is.
"""

import hashlib
import json

import nbformat
from nbformat import NotebookNode


def read(content: bytes) -> NotebookNode | None:
    """The notebook that a file holds, in the format's current version. None where it holds none."""
    try:
        return nbformat.reads(content.decode("utf-8"), as_version=4)
    except Exception:  # nbformat fails in many ways on what is no notebook
        return None


def written(notebook: NotebookNode) -> bytes:
    """The file of a notebook, as the builder writes it."""
    return (nbformat.writes(notebook) + "\n").encode("utf-8")


def text_of(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Type and text of each cell. Empty cells at the end, which JupyterLab puts there, are left out."""
    cells = [(cell.cell_type, cell.source.rstrip()) for cell in notebook.cells]
    while cells and not cells[-1][1]:
        cells.pop()
    return cells


def same_text(content: bytes, other: NotebookNode) -> bool:
    """Whether a file holds a notebook with the cells of `other`."""
    notebook = read(content)
    return notebook is not None and text_of(notebook) == text_of(other)


def fingerprint(content: bytes) -> str:
    """What tells an edited file from an untouched one: of a notebook its cells' texts, of anything else its bytes."""
    notebook = read(content) if content.lstrip().startswith(b"{") else None
    if notebook is not None:
        content = json.dumps(text_of(notebook)).encode()
    return hashlib.sha256(content).hexdigest()
