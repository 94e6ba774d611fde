"""Checks of plain functions: against a reference, over cases from small to large, with names for known mistakes.

A mistake is named by replaying it: each known mistake is itself a small function, and the one that gives all of
the learner's answers, right ones too, is the one that was made. What no mistake explains is described: a constant,
an argument without effect, a factor.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pagedkv_lab.course.checks.limits import call_with_limit
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Diagnosis, Report


@dataclass(frozen=True)
class Case:
    """One call's arguments. `label` says in a few words what is special about it, where something is."""

    args: tuple[Any, ...]
    label: str = ""


@dataclass(frozen=True)
class Mistake:
    """A known way to be wrong.

    Recognized by `answers`, the wrong function itself (or a few ways to write it), or by `when(args, got)` on the
    first wrong answer.
    """

    code: str
    message: str
    answers: Callable[..., Any] | tuple[Callable[..., Any], ...] = ()
    when: Callable[[tuple[Any, ...], int], bool] | None = None
    hint: int = 1


@dataclass(frozen=True)
class FunctionCheck:
    """Everything that is known about an exercise whose solution is one function with a whole number as its result."""

    name: str
    parameters: tuple[str, ...]
    reference: Callable[..., int]
    cases: tuple[Case, ...]
    mistakes: tuple[Mistake, ...]
    tried: tuple[str, ...]

    def __call__(self, function: Any) -> Report:
        probe = Probe(self.name)
        try:
            notes = self._examine(probe, function)
        except Wrong as wrong:
            return Report(self.name, probe.cases, diagnosis=wrong.diagnosis)
        return Report(self.name, probe.cases, self.tried, notes)

    def _examine(self, probe: Probe, function: Any) -> tuple[str, ...]:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        answers: list[int | None] = []
        problems: list[Wrong | None] = []
        floats = ""
        for case in self.cases:
            try:
                value = self._answer(probe, function, case)
                answers.append(probe.whole_number(value, self.text(case), str(self.reference(*case.args))))
                problems.append(None)
                floats = floats or (f"{value!r}" if isinstance(value, float) else "")
            except Wrong as wrong:
                answers.append(None)
                problems.append(self._with_label(wrong, case))
                if wrong.diagnosis.code in ("endless", UNWRITTEN, "wrong_arguments"):
                    break  # the other cases would only say the same, and slowly
        if all(problem is not None and problem.diagnosis.code == "returns_none" for problem in problems):
            probe.fail(UNWRITTEN, say_unwritten(f"`{self.name}` returned None"), hint=1)
        for case, answer, problem in zip(self.cases, answers, problems, strict=False):
            if problem is not None:
                raise problem
            if answer != self.reference(*case.args):
                raise self._with_label(Wrong(self._diagnose(function, case, answer, answers)), case)
        if not floats:
            return ()
        return (f"Your answers are floats, such as {floats}. They are right here; ints stay exact at any size.",)

    def text(self, case: Case) -> str:
        """The call as a learner would write it."""
        pairs = zip(self.parameters, case.args, strict=True)
        return f"{self.name}({', '.join(f'{name}={short(value)}' for name, value in pairs)})"

    def _answer(self, probe: Probe, function: Callable[..., Any], case: Case) -> Any:
        """The function's raw answer to a case. Raises Wrong where there is none, or where it changed its arguments."""
        args = copy.deepcopy(case.args)
        text, expected = self.text(case), str(self.reference(*case.args))
        outcome = probe.call(function, *args, text=text, expected=expected)
        for name, before, after in zip(self.parameters, case.args, args, strict=True):
            if before != after:
                probe.fail(
                    "mutates",
                    f"It changed its argument `{name}`, which belongs to the caller. Work on a copy.",
                    call=text,
                    expected=f"{name} left as {short(before)}",
                    got=f"{name} is now {short(after)}",
                )
        if outcome.value is None or outcome.value is Ellipsis:
            code, message = say_none(outcome.printed)
            rest = {"expected": expected, "got": short(outcome.value), "printed": outcome.printed}
            probe.fail(code, message, call=text, hint=1, **rest)
        return outcome.value

    def _diagnose(self, function: Callable[..., Any], case: Case, got: int, answers: Sequence[int | None]) -> Diagnosis:
        expected = self.reference(*case.args)
        code, message, hint = self._explain(function, case, got, answers)
        return Diagnosis(code, message, self.text(case), f"{expected:,}", f"{got:,}", hint=hint)

    def _explain(
        self, function: Callable[..., Any], case: Case, got: int, answers: Sequence[int | None]
    ) -> tuple[str, str, int]:
        """Code, message and hint for a wrong number: the first explanation that fits all answers."""
        for mistake in self.mistakes:
            ways = (mistake.answers,) if callable(mistake.answers) else mistake.answers
            recognized = mistake.when is not None and mistake.when(case.args, got)
            if recognized or any(self._replays(way, answers) for way in ways):
                return mistake.code, mistake.message, mistake.hint
        if len(answers) > 2 and len(set(answers)) == 1:
            message = f"It returns {got:,} whatever the arguments. Compute the answer from the arguments."
            return "constant", message, 1
        most_common = max(set(answers), key=answers.count)
        if len(answers) >= 6 and answers.count(most_common) >= len(answers) - 2:
            message = "It knows the answer to a case or two and says the same to all others. Compute it instead."
            return "hard_coded", message, 1
        for i, name in enumerate(self.parameters):
            if self._has_no_effect(function, i):
                return "ignores_argument", f"`{name}` makes no difference to your answer, and it should.", 1
        return self._factor(answers) or ("wrong_answer", "Its answer is not the expected one.", 2)

    def _replays(self, wrong: Callable[..., Any], answers: Sequence[int | None]) -> bool:
        """Whether `wrong` gives all these answers, and none where there is none."""
        for case, answer in zip(self.cases, answers, strict=False):
            try:
                replayed = wrong(*copy.deepcopy(case.args))
            except ArithmeticError:
                replayed = None
            if replayed != answer:
                return False
        return True

    def _has_no_effect(self, function: Callable[..., Any], i: int) -> bool:
        """Whether the answer to every case stays when argument `i` is another case's, where the reference's doesn't.

        Every case, because one alone says little: where the answer is 0, no factor has an effect.
        """
        seen = False
        for case in self.cases:
            for other in self.cases:
                args = (*case.args[:i], other.args[i], *case.args[i + 1 :])
                if self.reference(*args) == self.reference(*case.args):
                    continue
                seen = True
                outcomes = [call_with_limit(function, copy.deepcopy(a)) for a in (case.args, args)]
                if any(o.error or o.timed_out for o in outcomes) or outcomes[0].value != outcomes[1].value:
                    return False
        return seen

    def _factor(self, answers: Sequence[int | None]) -> tuple[str, str, int] | None:
        """All answers off by the same number, or by the same argument."""
        pairs = [(case, got, self.reference(*case.args)) for case, got in zip(self.cases, answers, strict=False)]
        if any(got is None or (got == 0) != (expected == 0) for _, got, expected in pairs):
            return None
        ratios = [(case, Fraction(got, expected)) for case, got, expected in pairs if expected]
        if not ratios:
            return None
        if len({ratio for _, ratio in ratios}) == 1:
            return "constant_factor", f"Its answers are always {_times(ratios[0][1])}.", 2
        for i, name in enumerate(self.parameters):
            values = [case.args[i] for case, _ in ratios]
            if not all(isinstance(value, int | float) and value for value in values):
                continue
            exact = [Fraction(value) for value in values]
            if all(ratio == value for (_, ratio), value in zip(ratios, exact, strict=True)):
                return "extra_factor", f"Its answers are too large by the factor `{name}`.", 2
            if all(ratio * value == 1 for (_, ratio), value in zip(ratios, exact, strict=True)):
                return "missing_factor", f"Its answers are too small by the factor `{name}`.", 2
        return None

    def _with_label(self, wrong: Wrong, case: Case) -> Wrong:
        found = wrong.diagnosis
        if not case.label or found.code == UNWRITTEN:
            return wrong
        return Wrong(Diagnosis(**{**vars(found), "message": f"{found.message}\nThe case: {case.label}."}))


def _times(ratio: Fraction) -> str:
    if ratio < 0:
        return "of the wrong sign"
    bigger = ratio > 1
    ratio = ratio if bigger else 1 / ratio
    size = f"{ratio.numerator}" if ratio.denominator == 1 else f"{float(ratio):.4g}"
    return f"{size} times too {'large' if bigger else 'small'}"
