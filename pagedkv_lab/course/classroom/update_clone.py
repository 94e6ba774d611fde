"""A clone brought up to date by git, where a learner works in it.

git refuses to pull over a file that differs, and a notebook differs as soon as it has been run. So what stands in the
way is set aside, git pulls, and edited exercises are put back as they were.

Knows git and the folders of notebooks. Does not know what is in a chapter.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from pagedkv_lab.course.classroom import copies
from pagedkv_lab.course.classroom.notebooks import fingerprint
from pagedkv_lab.errors import PagedKVError

_NOTEBOOKS = ("notebooks", "exercises", "solutions")


def is_clone(root: Path) -> bool:
    """Whether `root` is the top of a git checkout."""
    return (root / ".git").exists()


def update_clone(root: Path, dry_run: bool, say: Callable[[str], None]) -> None:
    """`git pull` where it can go forward, around notebooks that were run or edited. Raises PagedKVError."""
    _git(root, "fetch", "--quiet")
    upstream = _git(root, "rev-parse", "--abbrev-ref", "@{upstream}").strip()
    coming = [PurePosixPath(line) for line in _lines(_git(root, "diff", "--name-only", "-z", "HEAD...@{upstream}"))]
    if not coming:
        say(f"Nothing is newer in {upstream}.")
        return
    changed = _lines(_git(root, "diff", "--name-only", "-z", "--diff-filter=M", "HEAD", "--", *_NOTEBOOKS))
    in_the_way = [path for path in map(PurePosixPath, changed) if path in coming]
    edited = [path for path in in_the_way if _is_edited(root, path)]
    for path in coming:
        if path.parts[0] in _NOTEBOOKS:
            say(f"{path}: {_fate(path, edited, dry_run)}")
    others = sum(path.parts[0] not in _NOTEBOOKS for path in coming)
    if others:
        say(f"and {others} {'file' if others == 1 else 'files'} of the package and around it")
    if dry_run:
        return

    mine = {path: (root / path).read_bytes() for path in in_the_way}
    for path in edited:
        say(f"  yours is kept in {copies.keep(root, path)}")
    put_back = in_the_way
    try:
        if in_the_way:
            _git(root, "checkout", "--quiet", "HEAD", "--", *map(str, in_the_way))
        _git(root, "merge", "--quiet", "--ff-only", "@{upstream}")
        put_back = [path for path in edited if path.parts[0] == "exercises"]
    finally:  # git said no, or somebody pressed Ctrl-C: everything as it was
        for path in put_back:
            copies.replace(root / path, mine[path])
    say("Restart the kernels of open notebooks.")


def _fate(path: PurePosixPath, edited: list[PurePosixPath], dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    if path not in edited:
        return f"{would}brought up to date"
    if path.parts[0] == "exercises":
        return f"edited by you, and {would}left as it is; the exercise itself has changed"
    return f"edited by you, and {would}brought up to date"


def _is_edited(root: Path, path: PurePosixPath) -> bool:
    committed = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=root, capture_output=True, check=False).stdout
    return fingerprint(committed) != fingerprint((root / path).read_bytes())


def _lines(text: str) -> list[str]:
    """The paths of a git command that was given -z."""
    return [line for line in text.split("\0") if line]


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PagedKVError(f"{root} is a clone, and there is no git here: name a newer folder with --from.") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise PagedKVError(f"git {arguments[0]} said no, and your files are as they were: {said}")
    return done.stdout
