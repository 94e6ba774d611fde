"""Checks of functions that return a tensor: held against a float64 reference, over examples from small to large.

As in functions.py, a known mistake is named by replaying it: it is the one that gives the learner's numbers, in as many
examples as any, and in the first wrong one for certain. Numbers are equal where they are as near as rounding lets them.

Knows tensors: type, shape, dtype, numbers. Does not know what is computed. Imports torch, so import it late.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Diagnosis, Report


@dataclass(frozen=True)
class Example:
    """One call. `scene` is what it is made from, for the mistakes to be replayed on.

    arguments: makes them anew for each call. names: of those that must be left as they are, by their place.
    expected: the right answer, float64. place: says in words what a row of the answer is.
    """

    label: str
    call: str
    scene: Any
    arguments: Callable[[], tuple[Any, ...]]
    expected: torch.Tensor
    options: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    place: Callable[[tuple[int, ...]], str] = lambda index: ""

    @property
    def tolerance(self) -> float:
        return 1e-3 if self.dtype == torch.float32 else 2e-2

    def same(self, answer: torch.Tensor | None, other: torch.Tensor | None) -> bool:
        """Whether two answers are equal but for rounding. NaN equals NaN."""
        if answer is None or other is None or answer.shape != other.shape:
            return False
        one, two = answer.cpu().double(), other.cpu().double()
        return torch.allclose(one, two, rtol=self.tolerance, atol=self.tolerance, equal_nan=True)

    def is_right(self, answer: torch.Tensor) -> bool:
        return self.same(answer, self.expected)


@dataclass(frozen=True)
class Mistake:
    """A known way to be wrong. `answers(scene)` is what it makes of an example, in one way or several."""

    code: str
    message: str
    answers: Callable[[Any], torch.Tensor] | tuple[Callable[[Any], torch.Tensor], ...]
    hint: int = 2

    def explains(self, example: Example, answer: torch.Tensor | None) -> bool:
        ways = self.answers if isinstance(self.answers, tuple) else (self.answers,)
        return any(example.same(answer, _replay(way, example.scene)) for way in ways)


class TensorCheck:
    """One check of the exercise `name` under way."""

    def __init__(self, name: str, mistakes: Sequence[Mistake], seconds: float | None = None):
        self.name, self.mistakes = name, mistakes
        self.probe = Probe(name) if seconds is None else Probe(name, seconds)

    def report(self, examine: Callable[[], None], tried: tuple[str, ...]) -> Report:
        """Run `examine`, and report what came of it."""
        try:
            examine()
        except Wrong as wrong:
            return Report(self.name, self.probe.cases, diagnosis=wrong.diagnosis)
        return Report(self.name, self.probe.cases, tried)

    def must_be_callable(self, function: Any) -> None:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            self.probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")

    def must_be_right(self, function: Callable[..., Any], examples: Sequence[Example]) -> None:
        """Raises Wrong for the first example that is not, with the name of the mistake."""
        answers: list[torch.Tensor | None] = []
        problems: list[Wrong | None] = []
        for example in examples:
            try:
                answers.append(self.answer(function, example))
                problems.append(None)
            except Wrong as wrong:
                answers.append(None)
                problems.append(_with_label(wrong, example))
                if wrong.diagnosis.code in ("endless", UNWRITTEN, "wrong_arguments"):
                    break  # the other examples would only say the same, and slowly
        if all(problem is not None and problem.diagnosis.code == "returns_none" for problem in problems):
            self.probe.fail(UNWRITTEN, say_unwritten(f"`{self.name}` returned None"), hint=1)
        for i, problem in enumerate(problems):
            if problem is not None:
                raise problem
            if not examples[i].is_right(answers[i]):
                raise _with_label(self._name_mistake(examples, answers, i), examples[i])

    def must_not_read(
        self, function: Callable[..., Any], examples: Sequence[Example], code: str, message: str, hint: int
    ) -> None:
        """The same examples with NaN in all places that mean nothing. Raises Wrong where that makes a difference."""
        for example in examples:
            try:
                answer = self.answer(function, example)
            except Wrong as wrong:
                raise _with_label(wrong, example) from None
            if not example.is_right(answer):
                self.probe.fail(code, message, hint=hint, **_first_difference(example, answer))

    def answer(self, function: Callable[..., Any], example: Example) -> torch.Tensor:
        """What it returns: a tensor of the right shape and dtype. Raises Wrong."""
        args = example.arguments()
        before = {i: args[i].clone() for i in example.names}
        rest: dict[str, Any] = {"call": example.call, "expected": _what(example.expected, example.dtype)}
        function = partial(function, **example.options) if example.options else function
        outcome = self.probe.call(function, *args, text=example.call, expected=rest["expected"])
        for i, name in example.names.items():
            if not torch.equal(before[i].nan_to_num(7.25), args[i].nan_to_num(7.25)):
                message = f"It changed its argument `{name}`, which belongs to the caller. Work on a copy."
                self.probe.fail("mutates", message, call=example.call, expected=f"{name} as it was", hint=2)
        value = outcome.value
        if value is None or value is Ellipsis:
            code, message = say_none(outcome.printed)
            self.probe.fail(code, message, got=short(value), printed=outcome.printed, hint=1, **rest)
        if not isinstance(value, torch.Tensor):
            message = f"It returned a {type(value).__name__}; a tensor is expected."
            self.probe.fail("wrong_type", message, got=short(value, 80), hint=1, **rest)
        rest["got"] = _what(value, value.dtype)
        if value.shape != example.expected.shape:
            message = f"Its result is of shape {tuple(value.shape)}, where {tuple(example.expected.shape)} is expected."
            self.probe.fail("wrong_shape", message, hint=2, **rest)
        if value.dtype != example.dtype:
            message = (
                f"Its result is of dtype {_short(value.dtype)}, where {_short(example.dtype)} is expected: the layer "
                "behind it computes in that, and refuses another one."
            )
            self.probe.fail("wrong_dtype", message, hint=2, **rest)
        return value.detach()

    def _name_mistake(self, examples: Sequence[Example], answers: Sequence[torch.Tensor | None], i: int) -> Wrong:
        """The mistake that explains example i and, of such, most others; or where the numbers differ."""
        rest = _first_difference(examples[i], answers[i])
        best, most = None, 0
        is_nan = answers[i].isnan().all()  # then it is no evidence that a mistake gives NaN here, too
        for mistake in () if all(a is None or a.isnan().all() for a in answers) else self.mistakes:
            if not mistake.explains(examples[i], answers[i]):
                continue
            count = sum(map(mistake.explains, examples, answers))
            if count > most and not (is_nan and count < len(answers)):
                best, most = mistake, count
        if best is not None:
            return Wrong(Diagnosis(best.code, best.message, hint=best.hint, **rest))
        if not answers[i].isfinite().all():
            return self._wrong("not_a_number", "Its result has NaN or ∞ in it: ∞ − ∞ or a ÷ 0 on the way.", rest)
        return self._wrong("wrong_answer", "Its numbers are not the expected ones.", rest)

    def _wrong(self, code: str, message: str, rest: Mapping[str, str]) -> Wrong:
        return Wrong(Diagnosis(code, message, hint=2, **rest))


def numbers(tensor: torch.Tensor, most: int = 4) -> str:
    """ "[0.5, -1.25, nan, ...]": a row as short text."""
    row = [f"{float(x):.3g}" for x in tensor.reshape(-1)[:most]]
    return f"[{', '.join(row)}{', ...' if tensor.numel() > most else ''}]"


def _replay(way: Callable[[Any], torch.Tensor], scene: Any) -> torch.Tensor | None:
    try:
        return way(scene)
    except (IndexError, RuntimeError, ArithmeticError):  # where the mistake ends in an error, it gives no answer
        return None


def _first_difference(example: Example, answer: torch.Tensor) -> dict[str, str]:
    """Call, expected and got, for the first row that differs."""
    got, expected = answer.cpu().double(), example.expected
    near = torch.isclose(got, expected, rtol=example.tolerance, atol=example.tolerance)
    index = tuple((~near).nonzero()[0, :-1].tolist())
    where = f"[{', '.join(map(str, index))}] = " if index else ""
    in_words = example.place(index)
    return {
        "call": example.call,
        "expected": where + numbers(expected[index]) + (f"   ({in_words})" if in_words else ""),
        "got": where + numbers(got[index]),
    }


def _what(tensor: torch.Tensor, dtype: torch.dtype) -> str:
    return f"{numbers(tensor)}, shape {tuple(tensor.shape)}, {_short(dtype)}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _with_label(wrong: Wrong, example: Example) -> Wrong:
    found = wrong.diagnosis
    if not example.label or found.code == UNWRITTEN:
        return wrong
    return Wrong(Diagnosis(**{**vars(found), "message": f"{found.message}\nThe case: {example.label}."}))
