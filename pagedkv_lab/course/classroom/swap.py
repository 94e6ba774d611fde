"""Whose work is in a chapter's notebook in exercises/: the stub, the solution, or what the learner wrote.

Knows the three, and never lets go of the last. Does not know what is in a chapter.
"""

from pathlib import Path, PurePosixPath
from typing import Literal, get_args

from nbformat import NotebookNode

from pagedkv_lab.course.builder.plan import find_root, plan_chapter, select_chapters
from pagedkv_lab.course.classroom.copies import all_copies, keep, latest_copy, replace
from pagedkv_lab.course.classroom.notebooks import same_text, written
from pagedkv_lab.errors import PagedKVError

Kind = Literal["solution", "exercise", "mine"]

_RELOAD = "If it is open in JupyterLab: File ▸ Reload Notebook from Disk, before you save anything there."


def swap(name: str, to: Kind | str, start: Path | None = None) -> list[str]:
    """Put the solution, the stub or the learner's own work into the notebook of the chapter that `name` means.

    What the learner has edited is copied first. A notebook counts as edited where its cells differ from the stub's
    and from the solution's; outputs don't count. Returns what was done, in sentences. Raises PagedKVError.
    """
    if to not in get_args(Kind):
        raise PagedKVError(f"--to takes {', '.join(get_args(Kind)[:-1])} or {get_args(Kind)[-1]}, and not {to!r}.")
    root = find_root(start or Path.cwd())
    [chapter] = select_chapters(root, [name])
    built = {planned.path.parts[0]: planned for planned in plan_chapter(root, chapter)}
    if "exercises" not in built:
        raise PagedKVError(f"chapter {chapter} has no workbook.")
    path = built["exercises"].path
    stub, solution = built["exercises"].notebook, built["solutions"].notebook

    current = (root / path).read_bytes() if (root / path).exists() else None
    edited = current is not None and not same_text(current, stub) and not same_text(current, solution)
    if to == "mine":
        return _bring_back(root, path, edited)
    wanted, content = (stub, written(stub)) if to == "exercise" else (solution, _solved(root, chapter, solution))
    what = "the exercise, nothing written" if to == "exercise" else "the solution"
    if current is not None and same_text(current, wanted):
        if to == "exercise" and current != content:
            replace(root / path, content)
            return [f"{path} was {what}, already. Its outputs are gone now.", _RELOAD]
        return [f"{path} is {what}, already. Nothing was done."]
    said = []
    if edited:
        copy = keep(root, path)
        said.append(f"Your work is kept in {copy}: `pagedkv course swap {chapter[:2]} --to mine` brings it back.")
    replace(root / path, content)
    said += [f"{path} is {what} now.", _RELOAD]
    if to == "solution":
        said.append("Its checks, if you run them there, count as passed by you: solutions/ has the same, to look at.")
    return said


def _bring_back(root: Path, path: PurePosixPath, edited: bool) -> list[str]:
    """The latest copy, unless what is there is the learner's own."""
    if edited:
        return [f"{path} is your own work, already. Nothing was done."]
    copy = latest_copy(root, path)
    if copy is None:
        raise PagedKVError(
            f"nothing of yours is kept for {path}: it was never swapped while it had work of yours in it."
        )
    replace(root / path, (root / copy).read_bytes())
    older = len(all_copies(root, path)) - 1
    more = f" There {'is an older copy' if older == 1 else f'are {older} older copies'} beside it." if older else ""
    return [f"{path} is your own work again, from {copy}.{more}", _RELOAD]


def _solved(root: Path, chapter: str, solution: NotebookNode) -> bytes:
    """The built solution, with its outputs, where it is as its source says; else without."""
    file = root / "solutions" / chapter / f"{chapter}.ipynb"
    content = file.read_bytes() if file.exists() else b""
    return content if same_text(content, solution) else written(solution)
