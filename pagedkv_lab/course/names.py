"""A course's notebook read out of order: what a missing name, or an error of the package's own, looks like.

Knows IPython's hook for exceptions. In a plain Python, does nothing.
"""

import linecache
from types import TracebackType
from typing import Any

from pagedkv_lab.course import cards
from pagedkv_lab.course.checks.registry import exercises
from pagedkv_lab.course.keeping import kept
from pagedkv_lab.errors import PagedKVError

_RUN_ABOVE = "In JupyterLab: Run ▸ Run All Above Selected Cell."


def explain_missing_names() -> None:
    """From now on in this notebook, say which cell to run where a name is missing. Importing the course calls it."""
    shell = cards.shell()
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((NameError, PagedKVError), _show)


def sentence_for(error: NameError, top_level: bool) -> str | None:
    """What to say about a missing name; None where the error is not about cells that haven't run."""
    name = getattr(error, "name", None)
    if not name or isinstance(error, UnboundLocalError) or not top_level:
        return None
    if name in ("check", "examine", "mine", "progress", "require", "run_for_real"):
        return f"`{name}` is the course's: `from pagedkv_lab.course import {name}`."
    if name in exercises():
        exercise = exercises()[name]
        if exercise.slot and kept(name) is not None:
            return (
                f"`{name}` does not exist yet in this notebook, but you have passed it, and it is kept: "
                f"`{name} = mine().parts.{exercise.slot}` loads it. Or run the cell of exercise {exercise.number}."
            )
        return (
            f"`{name}` does not exist yet in this notebook: the cell of exercise {exercise.number} defines it. "
            f"Run that cell first. {_RUN_ABOVE}"
        )
    return (
        f"`{name}` does not exist yet in this notebook. If a cell above defines it, run that one first. {_RUN_ABOVE} "
        "Otherwise look for a typing error."
    )


def _show(
    shell: Any, etype: type[BaseException], error: BaseException, tb: TracebackType, tb_offset: Any = None
) -> None:
    """IPython's hook. Errors of the package say what to do by themselves, so they are shown without a traceback."""
    text: str | None = None
    if isinstance(error, PagedKVError):
        if not hasattr(error, "_render_traceback_"):
            line = _line_in_a_cell(error.__cause__, shell.user_ns)
            text = f"{etype.__name__}: {error}" + (f" (in your code, {line})" if line else "")
    elif isinstance(error, NameError):
        text = sentence_for(error, _raised_in_a_cell(tb, shell.user_ns))
    if text is not None:
        error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
    shell.showtraceback((etype, error, tb), tb_offset=tb_offset)


def _line_in_a_cell(error: BaseException | None, namespace: dict[str, Any]) -> str:
    """The last line of the notebook's own code that the error came through, as "line 3: ..."; "" if there is none."""
    found, tb = "", error.__traceback__ if error else None
    while tb is not None:
        if tb.tb_frame.f_globals is namespace:
            text = linecache.getline(tb.tb_frame.f_code.co_filename, tb.tb_lineno).strip()
            found = f"line {tb.tb_lineno}: {text}" if text else found
        tb = tb.tb_next
    return found


def _raised_in_a_cell(tb: TracebackType | None, namespace: dict[str, Any]) -> bool:
    """Whether the last frame is a cell's own top level, not a function that it calls."""
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb is not None and tb.tb_frame.f_globals is namespace and tb.tb_frame.f_code.co_name == "<module>"
