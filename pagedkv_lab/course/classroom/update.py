"""A copy of the course brought up to date: new lessons and exercises come in, edited exercises stay as they are.

From a newer folder (a handout, or a checkout), file by file:

    not there yet                      it comes in
    as it was handed out, or the same  the new one takes its place
    an exercise that was edited        stays, whatever the new one says
    anything else that was edited      a dated copy is kept, the new one takes its place

How a file was handed out stands in handout.json. Where it does not, a file that isn't the new one counts as edited.

Knows files and who may have changed them. A clone is updated by git, see update_clone.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pagedkv_lab.course.builder.plan import all_chapters
from pagedkv_lab.course.classroom import copies
from pagedkv_lab.course.classroom.handout import MANIFEST, contents, manifest, read_manifest
from pagedkv_lab.course.classroom.notebooks import fingerprint
from pagedkv_lab.course.classroom.update_clone import is_clone, update_clone
from pagedkv_lab.errors import PagedKVError

_NOTEBOOKS = ("notebooks", "exercises")
_INSTALLED_FROM = Path(__file__).parents[3]


def update(
    source: Path | None, dry_run: bool = False, start: Path | None = None, say: Callable[[str], None] = print
) -> None:
    """Bring the copy around `start` (the working directory) to the state of `source`, and say what became of each file.

    Without `source`, a clone is updated by git, and a copy from the checkout that the package is installed from. A
    dry run says the same and writes nothing. Raises PagedKVError.
    """
    root = find_copy(start or Path.cwd())
    if source is None and is_clone(root):
        update_clone(root, dry_run, say)
        return
    if source is None:
        source = _INSTALLED_FROM
        if not (source / "course").is_dir():
            raise PagedKVError("from where? Name a newer folder that was handed out, or a checkout, with --from.")
    source = source.resolve()
    if source == root:
        raise PagedKVError(f"{root} can't be brought up to date from itself: name a newer folder with --from.")
    files = read_course(source)
    handed_out = read_manifest(root)
    if handed_out is None:  # notebooks only: the package is installed elsewhere, and is none of this copy's files
        files = {path: content for path, content in files.items() if path.parts[0] in _NOTEBOOKS}
    changed = 0
    for path, content in sorted(files.items(), key=lambda item: (item[0].parts[0] not in _NOTEBOOKS, item[0])):
        step = plan_file(root, path, content, (handed_out or {}).get(path))
        if step.says:
            say(f"{path}: {_future(step.says) if dry_run else step.says}")
            changed += step.writes
        if not dry_run:
            if step.keeps:
                say(f"  yours is kept in {copies.keep(root, path)}")
            if step.writes:
                copies.replace(root / path, content)
    if not dry_run and handed_out is not None:
        chapters = sorted({path.parts[1] for path in files if path.parts[0] == "exercises"})
        copies.replace(root / MANIFEST, manifest(files, chapters))
    if not changed:
        say("Nothing is newer there.")
    elif handed_out is None:
        say(f"The package itself is not in this folder. It has to be as new as the lessons: install it from {source}.")
    else:
        say("Restart the kernels of open notebooks" + ("." if not dry_run else ", once this has been done."))


@dataclass(frozen=True)
class Step:
    """What is to happen to one file: what is said of it ("" where nothing happens), and what is done."""

    says: str = ""
    writes: bool = False
    keeps: bool = False


def plan_file(root: Path, path: PurePosixPath, content: bytes, handed_out: str | None) -> Step:
    """The step for one file. `handed_out` is its fingerprint as the learner got it, None where that isn't known."""
    file = root / path
    if not file.exists():
        return Step("new", writes=True)
    mine = fingerprint(file.read_bytes())
    if mine == fingerprint(content):
        return Step()
    if mine == handed_out:
        return Step("brought up to date", writes=True)
    if path.parts[0] == "exercises":
        if handed_out == fingerprint(content):
            return Step()  # edited, and there is nothing new
        return Step("edited by you, and left as it is; the exercise itself has changed")
    return Step("edited by you, and brought up to date", writes=True, keeps=True)


def find_copy(start: Path) -> Path:
    """The nearest folder, from `start` upward, that holds exercises/ or notebooks/. Raises PagedKVError."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if any((folder / name).is_dir() for name in _NOTEBOOKS):
            return folder
    raise PagedKVError(f"no exercises/ or notebooks/ in {start} or above it: run this in your copy of the course.")


def read_course(source: Path) -> dict[PurePosixPath, bytes]:
    """The files of a checkout as they would be handed out, or of a handout. Raises PagedKVError."""
    if (source / "course").is_dir():
        files = contents(source, all_chapters(source))
        return {path: content for path, content in files.items() if path != MANIFEST}
    listed = read_manifest(source)
    if listed is None:
        raise PagedKVError(f"{source} is neither a checkout of the course nor a folder that was handed out.")
    return {path: (source / path).read_bytes() for path in listed}


def _future(says: str) -> str:
    return {"new": "would be new", "brought up to date": "would be brought up to date"}.get(says, f"would be: {says}")
