"""The course's exercises: their names, numbers and checks, chapter by chapter.

Knows where each chapter's checks are. Does not run them.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from pagedkv_lab.course.checks.report import Report
from pagedkv_lab.errors import PagedKVError


@dataclass(frozen=True)
class Exercise:
    """One exercise. `name` is its keyword in `check(name=...)`, and where it is a part of the engine, the part's name.

    A stretch exercise is counted, but nobody is sent to it. `slot` is the slot of the engine that a solution fills,
    one of `Parts`, or "" where it fills none; of two exercises for one slot, the later one is what goes in.
    """

    name: str
    number: str
    title: str
    examine: Callable[[Any], Report]
    stretch: bool = False
    slot: str = ""


@dataclass(frozen=True)
class Chapter:
    """One chapter's exercises. `folder` is its name in exercises/, `module` the one of this package with its checks."""

    folder: str
    title: str
    module: str
    exercises: tuple[Exercise, ...]


#: Folder, title, module.
_CHAPTERS = (
    ("00_start_here", "Start here", "start_here"),
    ("01_kv_sizing", "KV cache sizing", "kv_sizing"),
    ("02_block_allocator", "Block allocator", "block_allocator"),
    ("03_block_table", "Block table", "block_table"),
    ("04_prefix_hashing", "Prefix hashing", "prefix_hashing"),
    ("05_prefix_cache", "Prefix cache", "prefix_cache"),
    ("06_copy_on_write", "Copy-on-write", "copy_on_write"),
    ("07_paged_attention", "Paged attention", "paged_attention"),
    ("08_scheduler", "Scheduler", "scheduler"),
    ("09_measure", "Measure", "measure"),
)


class UnknownExercise(PagedKVError):
    """`check` was called with a name that is not an exercise."""


@cache
def chapters() -> tuple[Chapter, ...]:
    """All chapters that have exercises, in order."""
    return tuple(
        Chapter(folder, title, module, import_module(f"pagedkv_lab.course.checks.{module}").EXERCISES)
        for folder, title, module in _CHAPTERS
    )


@cache
def exercises() -> Mapping[str, Exercise]:
    """All exercises by name, in order."""
    return {exercise.name: exercise for chapter in chapters() for exercise in chapter.exercises}


def find(name: str) -> Exercise:
    """The exercise of this name. Raises UnknownExercise, with the nearest name there is."""
    if name in exercises():
        return exercises()[name]
    close = difflib.get_close_matches(name, exercises(), n=1)
    meant = f" Did you mean {close[0]}?" if close else f" The exercises are {', '.join(exercises())}."
    raise UnknownExercise(f"There is no exercise called {name}.{meant}")
