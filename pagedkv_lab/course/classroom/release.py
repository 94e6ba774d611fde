"""A folder to hand out: `handout.contents`, written whole or not at all.

Knows folders. Does not know what is in the files.
"""

import shutil
import tempfile
from pathlib import Path

from pagedkv_lab.course.builder.plan import find_root, select_chapters
from pagedkv_lab.course.classroom.handout import contents
from pagedkv_lab.errors import PagedKVError


def release(folder: Path, names: list[str], start: Path | None = None) -> list[str]:
    """Write the handout of the chapters that `names` mean (all if empty) into `folder`, which must be empty or new.

    Returns what was done, in sentences. Raises PagedKVError.
    """
    root = find_root(start or Path.cwd())
    chapters = select_chapters(root, names)
    folder = folder.resolve()
    if folder.is_file():
        raise PagedKVError(f"{folder} is a file: name a folder that is empty or does not exist.")
    if folder.is_dir() and any(folder.iterdir()):
        raise PagedKVError(f"{folder} is not empty, and nothing in it was touched: name an empty folder, or a new one.")
    files = contents(root, chapters)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        whole = Path(scratch, folder.name)
        for path, content in files.items():
            (whole / path).parent.mkdir(parents=True, exist_ok=True)
            (whole / path).write_bytes(content)
        if folder.exists():
            folder.rmdir()
        shutil.move(whole, folder)
    return [
        f"{folder} has {len(files)} files: lessons and exercises of {', '.join(chapters)}, none of them executed, and "
        "the package.",
        "There are no solutions in it, and no tests. Hand out the folder, or an archive of it: its README.md says what "
        "to do with it.",
    ]
