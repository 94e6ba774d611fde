"""Checks of functions whose result is a number that need not be whole: a rate, a share.

As in functions.py, a known mistake is named by replaying it. Answers are compared to nine digits: in which order
somebody adds and divides makes no difference.

Knows numbers. Does not know any exercise.
"""

import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagedkv_lab.course.checks.functions import FunctionCheck, Mistake
from pagedkv_lab.course.checks.probe import Probe, Wrong, short
from pagedkv_lab.course.checks.report import Report


def number(probe: Probe, value: Any, text: str = "", expected: str = "", hint: int | None = 1) -> float:
    """`value` as a float: numbers of any kind, arrays of a single one among them. Raises Wrong for everything else."""
    found = _as_float(value)
    if found is None or not math.isfinite(found):
        probe.fail("wrong_type", _why_not(value), call=text, expected=expected, got=short(value), hint=hint)
    return found


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool | str | bytes | complex) or value is None or callable(value):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _why_not(value: Any) -> str:
    if isinstance(value, bool):
        return f"It returned {value}, which says yes or no. A number is expected."
    if isinstance(value, str):
        return f"It returned the text {short(value)}. Return the number itself, without quotes, a unit or rounding."
    if isinstance(value, numbers.Real):
        return f"It returned {value}, which is no number that can be used."
    if inspect.isgenerator(value):
        return "It has a `yield`, so a call makes a generator and not a number. Use `return`."
    return f"It returned {short(value)}. One number is expected."


def nine_digits(value: float) -> float:
    """Rounded, so that equal answers are equal."""
    return float(f"{value:.9g}")


@dataclass(frozen=True)
class FloatCheck(FunctionCheck):
    """Everything that is known about an exercise whose solution is one function with a float as its result."""

    def __call__(self, function: Any) -> Report:
        probe = _FloatProbe(self.name)
        try:
            self._rounded()._examine(probe, function)
        except Wrong as wrong:
            return Report(self.name, probe.cases, diagnosis=wrong.diagnosis)
        return Report(self.name, probe.cases, self.tried)

    def _rounded(self) -> "FloatCheck":
        """The same with answers of nine digits, those of the known mistakes too."""
        return replace(self, reference=_rounds(self.reference), mistakes=tuple(map(_rounds_mistake, self.mistakes)))

    def _factor(self, answers: Sequence[Any]) -> tuple[str, str, int] | None:
        """A wrong factor is a known mistake here, or none."""
        return None


class _FloatProbe(Probe):
    def whole_number(self, value: Any, text: str = "", expected: str = "", hint: int | None = 1) -> Any:
        return nine_digits(number(self, value, text, expected, hint))


def _rounds(function: Callable[..., Any]) -> Callable[..., float]:
    return lambda *args: nine_digits(function(*args))


def _rounds_mistake(mistake: Mistake) -> Mistake:
    ways = (mistake.answers,) if callable(mistake.answers) else mistake.answers
    return replace(mistake, answers=tuple(map(_rounds, ways)))
