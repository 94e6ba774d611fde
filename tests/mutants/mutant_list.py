"""Wrong and right implementations of the exercises: the lists that the modules *_mutants.py add to.

    @wrong("BlockAllocator", "double_free_unnoticed")
    class FreesTwice:  # a docstring of one line says what is wrong with it: that goes into the table

    @right("BlockAllocator")
    class Deque:  # and here how it is written

Each is written as a learner would write it, without a look at the check.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

#: For tests of all implementations together: without Triton (on macOS, say) nobody can write a kernel, right or wrong.
#: In CI, where it must be there, they fail.
needs_all_mutants = pytest.mark.skipif(
    find_spec("triton") is None and os.environ.get("PAGEDKV_REQUIRE_TRITON") != "1",
    reason="the kernels among the mutants need Triton: pip install triton",
)


@dataclass(frozen=True)
class Mutant:
    """A wrong implementation of `exercise`, and the code of the diagnosis it must get.

    general: wrong in a way that has nothing to do with the exercise (an endless loop, a missing return).
    """

    exercise: str
    name: str
    implementation: Any
    diagnosis: str
    general: bool = False


@dataclass(frozen=True)
class Right:
    """A right implementation of `exercise`, written in its own way."""

    exercise: str
    name: str
    implementation: Any


_MUTANTS: list[Mutant] = []
_RIGHTS: list[Right] = []


def wrong(exercise: str, diagnosis: str, name: str = "", general: bool = False) -> Callable[[Any], Any]:
    """Add what is decorated to the wrong implementations. It goes by `name`, its docstring's first line, or its own."""

    def add(implementation: Any) -> Any:
        _MUTANTS.append(Mutant(exercise, name or _says(implementation), implementation, diagnosis, general))
        return implementation

    return add


def right(exercise: str, name: str = "") -> Callable[[Any], Any]:
    """Add what is decorated to the right implementations, by the same name."""

    def add(implementation: Any) -> Any:
        _RIGHTS.append(Right(exercise, name or _says(implementation), implementation))
        return implementation

    return add


@cache
def mutants() -> tuple[Mutant, ...]:
    """All wrong implementations of all modules."""
    _load()
    return tuple(_MUTANTS)


@cache
def rights() -> tuple[Right, ...]:
    """All right ones."""
    _load()
    return tuple(_RIGHTS)


def _load() -> None:
    for file in sorted(Path(__file__).parent.glob("*_mutants.py")):
        if not file.name.startswith("test_"):
            import_module(file.stem)


def _says(implementation: Any) -> str:
    """Its own docstring's first line, not one that a class inherits; else its name."""
    own = (
        implementation.__doc__
        if isinstance(implementation, FunctionType)
        else getattr(implementation, "__dict__", {}).get("__doc__")
    )
    line = own.strip().splitlines()[0].rstrip(".") if own and own.strip() else ""
    return line or getattr(implementation, "__name__", type(implementation).__name__)
