"""Parts on disk: what passed goes to parts/NAME.py, and comes back from there in another notebook.

Knows files and modules. Does not know which part goes into which slot of an engine.
"""

import linecache
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pagedkv_lab.course.checks.limits import call_with_limit
from pagedkv_lab.course.checks.probe import say
from pagedkv_lab.course.checks.registry import Exercise, exercises
from pagedkv_lab.course.folder import home, write_whole
from pagedkv_lab.course.standalone import KEPT_PREFIX, CannotKeep, standalone

#: Seconds that a kept part may take to load: what it imports may be large.
LOAD_SECONDS = 30.0


class CannotLoad(Exception):
    """Why a kept part could not be loaded, as the rest of a sentence."""


def path_of(name: str) -> Path:
    """The file that a kept part is in, or would be."""
    return home() / "parts" / f"{name}.py"


def keep(name: str, implementation: Any) -> Path:
    """Write what makes `implementation` (a function or a class, mostly) to parts/NAME.py, so that it loads alone.

    It is loaded and checked once, without its notebook, before it takes the place of what was kept earlier.

    Raises CannotKeep, which says why it can't live without its notebook; OSError where it can't be written.
    """
    exercise = exercises().get(name)
    try:
        source = _heading(name, exercise) + standalone(name, implementation)
        loaded = load(name, source)
    except CannotLoad as why:
        raise CannotKeep(f"without its notebook it {why}") from None
    except (CannotKeep, OSError):
        raise
    except Exception as error:  # a learner's objects may raise wherever they are touched
        raise CannotKeep(f"looking at its source raised {say(error)}") from error
    if exercise and (found := exercise.examine(loaded).diagnosis):
        raise CannotKeep(f"without its notebook it is not right: {found.message.splitlines()[0]}")
    path = path_of(name)
    write_whole(path, source)
    return path


def kept(name: str) -> str | None:
    """The source that was kept for `name`; None where there is none, or it can't be read."""
    try:
        return path_of(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def load(name: str, source: str) -> Any:
    """Run a kept source as a module of its own, and return what it calls `name`.

    It is the learner's own code, from the learner's own disk, and runs as any cell of theirs does. Tracebacks show
    its lines. Raises CannotLoad.
    """
    path = str(path_of(name))
    module = ModuleType(KEPT_PREFIX + name)
    module.__file__ = path
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # a dataclass looks its module up there

    def run() -> None:
        exec(compile(source, path, "exec", dont_inherit=True), vars(module))

    outcome = call_with_limit(run, seconds=LOAD_SECONDS)
    problem = ""
    if outcome.timed_out:
        problem = f"did not load within {LOAD_SECONDS:g} seconds"
    elif isinstance(outcome.error, SyntaxError):
        problem = f"is not Python: {outcome.error.msg} (line {outcome.error.lineno})"
    elif outcome.error is not None:
        problem = f"does not load: {say(outcome.error)}"
    elif name not in vars(module):
        problem = f"does not define `{name}`"
    if problem:
        sys.modules.pop(module.__name__)
        if before is not None:
            sys.modules[module.__name__] = before
        raise CannotLoad(problem)
    return vars(module)[name]


def _heading(name: str, exercise: Exercise | None) -> str:
    number = f" in exercise {exercise.number}" if exercise else ""
    return (
        f"# `{name}`, as it passed its check{number}. Later chapters load it from here.\n"
        "# To change it, change it in its notebook and run its check again: that writes this file anew.\n\n"
    )
