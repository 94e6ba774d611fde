"""Checks: what is wrong with an implementation, by name, with the smallest example that shows it.

    check(kv_bytes_per_token=kv_bytes_per_token)

limits.py    runs somebody else's code, but not for ever
probe.py     a call that goes wrong becomes a diagnosis
functions.py exercises whose solution is one function: a reference, cases, known mistakes
report.py    the diagnosis, how it is shown, the exception
registry.py  which exercises there are
start_here.py, kv_sizing.py, ...  the exercises, a module a chapter

Knows behaviour only: what comes back for which arguments. Never looks at an implementation's code or private fields.
"""

from dataclasses import replace
from typing import Any

from pagedkv_lab.course import cards
from pagedkv_lab.course.checks.registry import UnknownExercise, find
from pagedkv_lab.course.checks.report import UNWRITTEN, CheckFailed, Diagnosis, Report

__all__ = ["CheckFailed", "Diagnosis", "Report", "UnknownExercise", "check", "examine", "require"]


def examine(name: str, implementation: Any) -> Report:
    """Check an implementation of the exercise `name` and return what was found. Shows and remembers nothing.

    Raises UnknownExercise.
    """
    return find(name).examine(implementation)


def check(*functions: Any, **implementations: Any) -> None:
    """Check your implementation of an exercise: `check(exercise_name=your_function)`.

    Shows what was tried and remembers the pass, or shows what is wrong and raises CheckFailed. Several exercises
    can be checked at once.
    """
    from pagedkv_lab.course.progress import remember

    if functions or not implementations:
        given = getattr(functions[0], "__name__", "your_function") if functions else "your_function"
        raise UnknownExercise(f"Say which exercise it is: check({given}={given}).")
    failed = None
    for name, implementation in implementations.items():
        report = examine(name, implementation)
        if report.passed:
            problem = remember(name, implementation)
            report = replace(report, notes=(*report.notes, problem)) if problem else report
        else:
            failed = failed or report
        if report.passed or cards.in_notebook():
            cards.show(report)
    if failed:
        raise CheckFailed(failed)


def require(**implementations: Any) -> None:
    """Go on only with functions that pass: for cells that build on exercises. Raises CheckFailed."""
    for name, implementation in implementations.items():
        report = examine(name, implementation)
        if report.diagnosis is not None:
            unwritten = report.diagnosis.code == UNWRITTEN
            why = "is still the stub." if unwritten else f"is not right yet. {report.diagnosis.message.splitlines()[0]}"
            line = (
                f"This cell needs `{name}`, which {why} Finish exercise {find(name).number}, then run this cell again."
            )
            raise CheckFailed(replace(report, diagnosis=replace(report.diagnosis, message=line)), line)
