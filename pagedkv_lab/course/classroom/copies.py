"""Dated copies of what a learner wrote, made before anything else takes its place.

    exercises/01_kv_sizing/01_kv_sizing.ipynb
    -> .pagedkv/copies/exercises/01_kv_sizing/01_kv_sizing.2026-11-30_071205.ipynb

They lie outside exercises/, which holds built notebooks and nothing else. Nothing here is ever deleted.

Knows files and the clock. Does not know notebooks.
"""

import re
from datetime import datetime
from pathlib import Path, PurePosixPath

from pagedkv_lab.errors import PagedKVError

_FOLDER = PurePosixPath(".pagedkv", "copies")


def keep(root: Path, path: PurePosixPath) -> PurePosixPath:
    """Copy the file at `path` (relative to the course's root), and return where the copy is. The file stays.

    Where the latest copy has the same content, that one is it. Raises OSError where it can't be written.
    """
    content = (root / path).read_bytes()
    latest = latest_copy(root, path)
    if latest is not None and (root / latest).read_bytes() == content:
        return latest
    date, number = datetime.now().strftime("%Y-%m-%d_%H%M%S"), 1
    while True:
        name = f"{path.stem}.{date}{f'-{number}' if number > 1 else ''}{path.suffix}"
        copy = _FOLDER / path.parent / name
        (root / copy).parent.mkdir(parents=True, exist_ok=True)
        try:
            with (root / copy).open("xb") as file:
                file.write(content)
            return copy
        except FileExistsError:
            number += 1


def latest_copy(root: Path, path: PurePosixPath) -> PurePosixPath | None:
    """The last copy of the file at `path` that was made; None where there is none."""
    copies = all_copies(root, path)
    return copies[-1] if copies else None


def all_copies(root: Path, path: PurePosixPath) -> list[PurePosixPath]:
    """All copies of the file at `path`, the oldest first."""
    name = re.compile(rf"{re.escape(path.stem)}\.(\d{{4}}-\d\d-\d\d_\d{{6}})(?:-(\d+))?{re.escape(path.suffix)}")
    folder = root / _FOLDER / path.parent
    found = [match for file in folder.iterdir() if (match := name.fullmatch(file.name))] if folder.is_dir() else []
    found.sort(key=lambda match: (match[1], int(match[2] or 1)))
    return [_FOLDER / path.parent / match[0] for match in found]


def replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises PagedKVError where that can't be done."""
    unfinished = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        raise PagedKVError(f"{path} can't be written: {error.strerror or error}.") from error
    finally:
        unfinished.unlink(missing_ok=True)
