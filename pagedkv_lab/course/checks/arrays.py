"""Checks of functions that return several whole numbers: a list or an array of them, or a table of rows.

As in functions.py, a known mistake is named by replaying it. Lists, tuples, ranges, numpy arrays and tensors are all
welcome; what counts is the numbers and, where an exercise asks for one, the type of an array.

Knows numbers in rows. Does not know any exercise.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pagedkv_lab.course.checks.functions import Case, FunctionCheck
from pagedkv_lab.course.checks.probe import Probe, Wrong, short
from pagedkv_lab.course.checks.report import Diagnosis, Report


class Numbers(tuple):
    """An answer that can be compared and hashed: a tuple of ints, or of such tuples. Written as lists, a row a line."""

    @classmethod
    def of(cls, values: Any) -> "Numbers":
        array = np.asarray(values)
        return cls(map(cls.of, array) if array.ndim > 1 else map(int, array))

    @property
    def shape(self) -> tuple[int, ...]:
        return np.asarray(self).shape

    def __str__(self) -> str:
        is_table = bool(self) and isinstance(self[0], Numbers)
        return "\n".join(map(str, self)) if is_table else str(list(self))


@dataclass(frozen=True)
class ArrayCheck(FunctionCheck):
    """Everything that is known about an exercise whose solution is one function with several whole numbers as result.

    reference, and the answers of mistakes: anything that numpy reads. dims: 1, or 2 for a table of rows.
    dtype: the name of the array's type, where the exercise asks for one ("int32"). what: what the numbers are.
    """

    dims: int = 1
    dtype: str = ""
    what: str = "numbers"

    def __call__(self, function: Any) -> Report:
        probe = _ArrayProbe(self.name, self.dims, self.dtype, self.what)
        compared = replace(self, reference=lambda *args: Numbers.of(self.reference(*args)))
        try:
            notes = compared._examine(probe, function)
        except Wrong as wrong:
            return Report(self.name, probe.cases, diagnosis=wrong.diagnosis)
        return Report(self.name, probe.cases, self.tried, notes)

    def _diagnose(self, function: Callable[..., Any], case: Case, got: Any, answers: Sequence[Any]) -> Diagnosis:
        code, message, hint = self._explain(function, case, got, answers)
        return Diagnosis(code, message, self.text(case), str(self.reference(*case.args)), str(got), hint=hint)

    def _explain(
        self, function: Callable[..., Any], case: Case, got: Any, answers: Sequence[Any]
    ) -> tuple[str, str, int]:
        """Code, message and hint for a wrong answer: the first known mistake that fits all answers, or the place."""
        for mistake in self.mistakes:
            ways = (mistake.answers,) if callable(mistake.answers) else mistake.answers
            if any(self._replays(way, answers) for way in ways):
                return mistake.code, mistake.message, mistake.hint
        if len(answers) > 2 and len(set(answers)) == 1:
            return "constant", "It returns the same whatever the arguments. Compute the answer from the arguments.", 1
        expected = self.reference(*case.args)
        if got.shape != expected.shape:
            if self.dims == 1:
                return "wrong_length", f"It returned {len(got)} {self.what} where {len(expected)} are expected.", 2
            return "wrong_shape", f"Its shape is {got.shape} where {expected.shape} is expected.", 2
        mine, theirs = np.asarray(got), np.asarray(expected)
        place = tuple(np.argwhere(mine != theirs)[0].tolist())
        where = f"[{', '.join(map(str, place))}]"
        return "wrong_answer", f"It goes wrong at {where}: {mine[place]} where {theirs[place]} is expected.", 2

    def _replays(self, wrong: Callable[..., Any], answers: Sequence[Any]) -> bool:
        """Whether `wrong` gives all these answers, and none where there is none."""
        for case, answer in zip(self.cases, answers, strict=False):
            try:
                replayed = Numbers.of(wrong(*case.args))
            except (ArithmeticError, LookupError, ValueError):
                replayed = None
            if replayed != answer:
                return False
        return True


class _ArrayProbe(Probe):
    """A probe that asks for several numbers where others ask for one."""

    def __init__(self, name: str, dims: int, dtype: str, what: str):
        super().__init__(name)
        self.dims, self.dtype = dims, dtype
        self.wanted = "a 2-D array, one row a sequence" if dims == 2 else f"a list or an array of {what}"

    def whole_number(self, value: Any, text: str = "", expected: str = "", hint: int | None = 1) -> Any:
        """`value` as `Numbers`. Raises Wrong where it is something else."""
        rest = {"call": text, "expected": expected, "got": short(value), "hint": hint}
        if inspect.iscoroutine(value):
            value.close()  # or Python complains that nobody awaited it
        if hasattr(value, "__next__") or callable(value) or inspect.iscoroutine(value) or isinstance(value, set | dict):
            self.fail("wrong_type", f"It returned a {type(value).__name__}; {self.wanted} is expected.", **rest)
        try:
            array = np.asarray(value)
        except (ValueError, TypeError):
            array = np.array([None])
        if array.dtype == object:
            self.fail("ragged", "Its rows are of different lengths, so they are no array.", **rest)
        if array.ndim != self.dims:
            what = f"one {type(value).__name__}" if array.ndim == 0 else f"something of shape {array.shape}"
            self.fail("wrong_type", f"It returned {what}; {self.wanted} is expected.", **rest)
        if array.size and array.dtype.kind not in "iu":
            kind = {"f": "floats", "b": "bools", "U": "texts"}.get(array.dtype.kind, array.dtype.name)
            self.fail("wrong_type", f"It returned {kind}; {self.wanted} is expected, whole numbers all.", **rest)
        if self.dtype and str(getattr(value, "dtype", "")).removeprefix("torch.") != self.dtype:
            has = f"Its type is {value.dtype}" if hasattr(value, "dtype") else f"It returned a {type(value).__name__}"
            self.fail("wrong_dtype", f"{has}; an array of {self.dtype} is expected.", **rest)
        return Numbers.of(array)
