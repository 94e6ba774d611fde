"""What the learner has done: which exercises passed, and which parts of the engine are theirs. Nothing is sent.

    PAGEDKV_HOME, or .pagedkv/ next to the learner's notebooks
        progress.json     {"version": 1, "passed": {exercise: {"at": when}}}
        parts/NAME.py     the source of an implementation that passed, see keeping.py

Knows which exercises there are. Does not know how one is checked, nor how an engine takes a part.
"""

import ast
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pagedkv_lab.course.checks.registry import Chapter, Exercise, chapters, exercises
from pagedkv_lab.course.folder import home, write_whole
from pagedkv_lab.course.keeping import keep, kept
from pagedkv_lab.course.standalone import CannotKeep

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


def remember(name: str, implementation: Any) -> str:
    """Note that the exercise `name` passed, and keep its source. Returns "" or a sentence for the learner.

    Never raises for a disk that is full or read-only, nor for a source that can't be had: a pass is a pass.
    """
    slot = exercises()[name].slot if name in exercises() else ""
    try:
        with _lock():
            passed, said = _read()
            if name not in passed:
                passed[name] = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
                write_whole(
                    home() / "progress.json", json.dumps({"version": _VERSION, "passed": passed}, indent=2) + "\n"
                )
    except Timeout:
        return f"This pass could not be remembered: another notebook has locked {home()}. Run the cell again."
    except OSError as error:
        return f"This pass could not be remembered in {_home_in_words()}: {error.strerror or error}."
    about_keeping = _keep_and_say(name, implementation)
    return " ".join(filter(None, (said, about_keeping if slot else "")))


def _keep_and_say(name: str, implementation: Any) -> str:
    """Keep the source of a part, and say what came of it."""
    try:
        keep(name, implementation)
        return "It is kept: `mine()` loads it in later chapters."
    except CannotKeep as why:
        before = " They go on with the version that you kept before." if kept(name) is not None else ""
        return f"It counts, but later chapters can't load it, because {why}.{before}"
    except (OSError, ValueError) as error:  # ValueError: text that no file can hold
        return f"It counts, but its source could not be kept: {getattr(error, 'strerror', None) or error}."


@dataclass(frozen=True, repr=False)
class Progress:
    """Where the learner stands. Shows itself in a notebook and as text.

    `passed` holds the names of the exercises that passed, `kept` those of them whose source is there to be loaded;
    `problem` is a sentence about an unreadable file, or "".
    """

    chapters: tuple[Chapter, ...]
    passed: frozenset[str]
    problem: str = ""
    parts: tuple[str, ...] = field(default=ENGINE_PARTS)
    kept: frozenset[str] = frozenset()

    @property
    def owned_parts(self) -> list[str]:
        """The engine's parts that the learner has written, in the engine's order."""
        owned = {exercise.slot for exercise in self._passed_parts()}
        return [part for part in self.parts if part in owned]

    @property
    def lost_parts(self) -> list[Exercise]:
        """Exercises that passed and fill a slot of the engine, and whose source is not there to be loaded."""
        return [exercise for exercise in self._passed_parts() if exercise.name not in self.kept]

    def _passed_parts(self) -> list[Exercise]:
        listed = (exercise for chapter in self.chapters for exercise in chapter.exercises)
        return [exercise for exercise in listed if exercise.slot and exercise.name in self.passed]

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
            "parts_kept": [e.name for e in self._passed_parts() if e.name in self.kept],
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
        verb = "is" if len(owned) == 1 else "are"
        of = f"{len(owned)} of {len(self.parts)} parts of this engine {verb} yours"
        sentences.append(f"{of}{': ' + ', '.join(owned) if owned else ''}.")
        if loadable := [e.name for e in self._passed_parts() if e.name in self.kept]:
            sentences.append(f"Kept for later chapters, where mine() loads them: {', '.join(loadable)}.")
        for exercise in self.lost_parts:
            sentences.append(
                f"{exercise.name} passed, but its source is not kept: open its notebook, and run the cells of exercise "
                f"{exercise.number} again."
            )
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
    known = frozenset(passed) & frozenset(exercises())
    return Progress(chapters(), known, problem, kept=frozenset(name for name in known if _could_load(name)))


def _could_load(name: str) -> bool:
    """Whether a kept source is there and is Python. What it does is seen only when it runs, and nothing runs here."""
    source = kept(name)
    try:
        return source is not None and bool(ast.parse(source).body)
    except (SyntaxError, ValueError):
        return False


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


def _home_in_words() -> str:
    try:
        return str(home())
    except OSError:
        return "a folder that is gone"
