"""What the learner has done: which exercises passed, and the source of what passed. Local files, nothing sent.

    PAGEDKV_HOME, or .pagedkv/ next to the learner's notebooks
        progress.json     {"version": 1, "passed": {exercise: {"at": when}}}
        parts/NAME.py     the source of an implementation that passed

Knows files. Does not know how an exercise is checked, nor how a kept source becomes a part again.
"""

import html
import inspect
import json
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pagedkv_lab.course.checks.registry import Chapter, Exercise, chapters, exercises

#: The parts that an engine is put together from, as `Parts` names them.
ENGINE_PARTS = (
    "kv_bytes_per_token",
    "num_blocks_that_fit",
    "hash_block",
    "BlockAllocator",
    "BlockTable",
    "PrefixCache",
    "paged_attention",
    "Scheduler",
)

_VERSION = 1
_LOCK_SECONDS = 5


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


def remember(name: str, implementation: Any) -> str:
    """Note that the exercise `name` passed, and keep its source. Returns "" or a sentence about what went wrong.

    Never raises for a disk that is full or read-only: a pass is a pass.
    """
    try:
        with _lock():
            passed, problem = _read()
            passed.setdefault(name, {"at": datetime.now(UTC).isoformat(timespec="seconds")})
            _write(home() / "progress.json", json.dumps({"version": _VERSION, "passed": passed}, indent=2) + "\n")
        keep(name, implementation)
        return problem
    except Timeout:
        return f"This pass could not be remembered: another notebook has locked {home()}. Run the cell again."
    except OSError as error:
        return f"This pass could not be remembered in {home()}: {error.strerror or error}."


def keep(name: str, implementation: Any) -> Path | None:
    """Write the source of `implementation` (a function, a class, or an object of one) to parts/NAME.py.

    Returns the file, or None where Python has no source for it. Raises OSError where it can't be written.
    """
    target = implementation
    if not (inspect.isroutine(target) or inspect.isclass(target)):
        target = type(target)
    try:
        source = textwrap.dedent(inspect.getsource(target))
    except (OSError, TypeError):
        return None
    path = home() / "parts" / f"{name}.py"
    _write(path, source if source.endswith("\n") else source + "\n")
    return path


def kept(name: str) -> str | None:
    """The source that `keep` wrote for `name`, or None."""
    try:
        return (home() / "parts" / f"{name}.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, repr=False)
class Progress:
    """Where the learner stands. Shows itself in a notebook and as text.

    `passed` holds the names of the exercises that passed; `problem` is a sentence about an unreadable file, or "".
    """

    chapters: tuple[Chapter, ...]
    passed: frozenset[str]
    problem: str = ""
    parts: tuple[str, ...] = field(default=ENGINE_PARTS)

    @property
    def owned_parts(self) -> list[str]:
        """The engine's parts that are the learner's, in the engine's order."""
        return [part for part in self.parts if part in self.passed]

    @property
    def next_exercise(self) -> tuple[Chapter, Exercise] | None:
        """The first exercise that hasn't passed, stretch exercises aside; None where all have."""
        for chapter in self.chapters:
            for exercise in chapter.exercises:
                if exercise.name not in self.passed and not exercise.stretch:
                    return chapter, exercise
        return None

    def as_dict(self) -> dict[str, Any]:
        """The same for machines: passed exercises by chapter, the parts owned, what is next."""
        following = self.next_exercise
        return {
            "chapters": {
                chapter.folder: {exercise.name: exercise.name in self.passed for exercise in chapter.exercises}
                for chapter in self.chapters
            },
            "parts_owned": self.owned_parts,
            "parts_total": len(self.parts),
            "next": following[1].name if following else None,
        }

    def __str__(self) -> str:
        width = max(len(title) for title, _, _ in self._rows())
        marks_width = max(len(marks) for _, marks, _ in self._rows())
        lines = ["Exercises passed"]
        lines += [f"  {title:<{width}}  {marks:<{marks_width}}  {count}" for title, marks, count in self._rows()]
        return "\n".join([*lines, *self._sentences()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        padding = "padding: 0.15em 1.2em 0.15em 0; text-align: left"
        rows = "".join(
            f'<tr style="background: transparent"><td style="{padding}">{html.escape(title)}</td>'
            f'<td style="{padding}; letter-spacing: 0.15em; color: var(--jp-brand-color1, #1976d2)" '
            f'aria-hidden="true">{marks}</td><td style="{padding}">{count}</td></tr>'
            for title, marks, count in self._rows()
        )
        sentences = "".join(f"<div>{html.escape(sentence)}</div>" for sentence in self._sentences())
        return (
            '<div style="line-height: 1.6; color: var(--jp-content-font-color1, inherit)">'
            f'<strong>Exercises passed</strong><table style="margin: 0.3em 0; border: none">{rows}</table>'
            f"{sentences}</div>"
        )

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for chapter in self.chapters:
            counted = [e for e in chapter.exercises if not e.stretch]
            marks = "".join("●" if e.name in self.passed else "○" for e in counted)
            stretch = "".join("★" if e.name in self.passed else "☆" for e in chapter.exercises if e.stretch)
            count = f"{marks.count('●')} of {len(counted)}"
            if stretch:
                count += ", and the stretch" if "★" in stretch else ", stretch open"
            rows.append((f"{chapter.folder[:2]} {chapter.title}", f"{marks} {stretch}".rstrip(), count))
        return rows

    def _sentences(self) -> list[str]:
        owned, sentences = self.owned_parts, []
        verb = "part of this engine is yours" if len(owned) == 1 else "parts of this engine are yours"
        of = f"{len(owned)} of {len(self.parts)}"
        sentences.append(f"{of} {verb}{': ' + ', '.join(owned) if owned else ''}.")
        if following := self.next_exercise:
            chapter, exercise = following
            sentences.append(f"Next: exercise {exercise.number}, {exercise.title}, in exercises/{chapter.folder}.")
        else:
            sentences.append("Next: nothing is left here. The stretch exercises and the lessons remain.")
        if self.problem:
            sentences.append(self.problem)
        return sentences


def progress() -> Progress:
    """Where you stand: exercises passed by chapter, the parts of the engine that are yours, and what comes next."""
    passed, problem = {}, ""
    if (home() / "progress.json").exists():
        try:
            with _lock():
                passed, problem = _read()
        except (OSError, Timeout) as error:
            problem = f"The file in {home()} could not be read: {getattr(error, 'strerror', None) or error}."
    return Progress(chapters(), frozenset(passed) & frozenset(exercises()), problem)


def _lock() -> FileLock:
    home().mkdir(parents=True, exist_ok=True)
    return FileLock(home() / "progress.lock", timeout=_LOCK_SECONDS)


def _read() -> tuple[dict[str, Any], str]:
    """Passed exercises, and a sentence where the file was unreadable. Such a file is set aside, not overwritten."""
    path = home() / "progress.json"
    passed = _parse(path)
    if passed is not None:
        return passed, ""
    number = 1
    while (aside := path.with_name(f"progress-unreadable-{number}.json")).exists():
        number += 1
    path.replace(aside)
    return {}, f"progress.json could not be read. It was kept as {aside.name}, and a new one begun."


def _parse(path: Path) -> dict[str, Any] | None:
    """The "passed" of a progress file: empty where there is no file, None where it makes no sense."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        return None
    passed = content.get("passed") if isinstance(content, Mapping) else None
    return dict(passed) if isinstance(passed, Mapping) else None


def _write(path: Path, text: str) -> None:
    """Atomically: a reader sees the old file or the new one, and a crash leaves one of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _is_the_course(folder: Path) -> bool:
    try:
        return 'name = "pagedkv_lab"' in (folder / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
