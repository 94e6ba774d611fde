"""What a class gets: lessons and exercises without outputs, and the package with what sets it up.

Everything comes from the sources in course/, not from the built notebooks: what was never executed has no answers in
its outputs. The package holds a reference of each part, because the engine runs on it; solved workbooks, tests and
what grades are not in it.

    handout.json   the version, the chapters, and the fingerprint of each file, by which `update` knows what was edited

Knows which files, and what is in them. Does not write any.
"""

import json
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from pagedkv_lab.course.builder.header import exercise_minutes, read_header
from pagedkv_lab.course.builder.pages import GLOSSARY, plan_pages
from pagedkv_lab.course.builder.plan import plan_chapter
from pagedkv_lab.course.classroom.notebooks import fingerprint, written
from pagedkv_lab.errors import PagedKVError

MANIFEST = PurePosixPath("handout.json")

_SET_UP = (
    "LICENSE", "Makefile", "pyproject.toml", "constraints.txt", "environment.yml", "scripts/lab.sh",
    "scripts/unpack_model.py",
)  # fmt: skip
_PACKAGE = "pagedkv_lab"
_FOR_GRADING = {"pagedkv_lab/course/classroom/grading.py", "pagedkv_lab/course/classroom/hidden.py"}

_README = """\
# PagedKV Lab

A course in which you build a paged KV cache, piece by piece, and serve a real model from it.

On a machine with Python 3.11 or newer, `make` and `pip`:

```
make lab
```

The first call sets up `.venv`, which takes a few minutes; later calls start at once. It prints the address to open.
`.venv/bin/pagedkv doctor` says what is missing where something is.

{chapters}

`notebooks/` has the lessons: open one and run it from top to bottom. `exercises/` has the workbooks: write where the
comments say so, then run the check below; three hints are there to be opened. What passes is remembered in `.pagedkv/`,
on this machine only; `.venv/bin/pagedkv progress` shows it.

When there is a newer version of this folder, unpack it beside this one and run, here:

```
.venv/bin/pagedkv course update --from ../the-new-folder
```

Exercises that you have edited are left as they are.
"""


def contents(root: Path, chapters: list[str]) -> dict[PurePosixPath, bytes]:
    """All files of the handout of these chapters, by their paths in it. Raises PagedKVError, SourceError, OSError."""
    files = {PurePosixPath("README.md"): _readme(root, chapters).encode("utf-8")}
    for chapter in chapters:
        for planned in plan_chapter(root, chapter):
            if planned.path.parts[0] != "solutions":
                files[planned.path] = written(planned.notebook)
    files[GLOSSARY] = plan_pages(root)[GLOSSARY].encode("utf-8")
    for path in (*map(PurePosixPath, _SET_UP), *_package(root)):
        files[path] = (root / path).read_bytes()
    return files | {MANIFEST: manifest(files, chapters)}


def manifest(files: dict[PurePosixPath, bytes], chapters: list[str]) -> bytes:
    """The list of the files, as bytes of a JSON file."""
    listed = {str(path): fingerprint(content) for path, content in sorted(files.items())}
    about = {"course": version("pagedkv_lab"), "chapters": chapters, "files": listed}
    return (json.dumps(about, indent=1) + "\n").encode("utf-8")


def read_manifest(root: Path) -> dict[PurePosixPath, str] | None:
    """The fingerprint of each file that was handed out in `root`; None where nothing was. Raises PagedKVError."""
    try:
        files = json.loads((root / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {PurePosixPath(path): str(mark) for path, mark in files.items()}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PagedKVError(
            f"{root / MANIFEST} can't be read: {error}. Take the folder from where you had it."
        ) from None


def _package(root: Path) -> list[PurePosixPath]:
    paths = (
        PurePosixPath(path.relative_to(root).as_posix())
        for path in (root / _PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    )
    return sorted(path for path in paths if str(path) not in _FOR_GRADING)


def _readme(root: Path, chapters: list[str]) -> str:
    rows = ["| | lesson | minutes | exercises |", "|---|---|---|---|"]
    for chapter in chapters:
        planned = {one.path.parts[0]: one for one in plan_chapter(root, chapter)}
        title, minutes, exercises = chapter, "", ""
        if "notebooks" in planned:
            header = read_header(planned["notebooks"].source)
            name = header.title.partition(" · ")[2] or header.title
            title, minutes = f"[{name}]({planned['notebooks'].path})", str(header.minutes)
        if "exercises" in planned:
            exercises = f"[workbook]({planned['exercises'].path})"
            minutes += f" + {exercise_minutes(planned['exercises'].source)}"
        rows.append(f"| {chapter[:2]} | {title} | {minutes} | {exercises} |")
    return _README.format(chapters="\n".join(rows))
