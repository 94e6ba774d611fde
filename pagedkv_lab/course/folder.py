"""Where the course remembers: local files, nothing sent.

PAGEDKV_HOME, or .pagedkv/ next to the learner's notebooks

Knows folders and how to write a file whole or not at all. Does not know what is in the files.
"""

import os
from contextlib import suppress
from pathlib import Path


def home() -> Path:
    """The folder that remembers. Not made here.

    `PAGEDKV_HOME` if set; else `.pagedkv` in the nearest folder, from the current one upward, that holds
    exercises/, notebooks/ or the course's pyproject.toml; else the user's data folder. Work in the course's
    solutions/ is kept apart, in a subfolder: running a solution is not solving it.
    """
    if chosen := os.environ.get("PAGEDKV_HOME"):
        return Path(chosen).expanduser()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if any((folder / name).is_dir() for name in ("exercises", "notebooks")) or _is_the_course(folder):
            in_solutions = here.relative_to(folder).parts[:1] == ("solutions",)
            return folder / ".pagedkv" / ("solutions" if in_solutions else "")
    from platformdirs import user_data_path

    return user_data_path("pagedkv-lab", appauthor=False)


def write_whole(path: Path, text: str) -> None:
    """Atomically: a reader sees the old file or the new one, and a crash or a full disk leaves one of them.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _is_the_course(folder: Path) -> bool:
    try:
        return 'name = "pagedkv_lab"' in (folder / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
