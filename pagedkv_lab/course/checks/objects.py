"""Checks of classes: an object is made and used, call by call, and the calls so far are the example.

    allocator = BlockAllocator(num_blocks=2, block_size=16)
    allocator.allocate()   # 1
    allocator.free(1)
    allocator.free(1)

An exercise's check is a list of scenarios, from the smallest to the largest, so that the first that goes wrong is a
small example already. What comes from a long random life is made small by `smallest`: calls are left out for as long
as the same thing still goes wrong.

Knows objects, methods and what was called. Does not know any exercise.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from pagedkv_lab.course.checks.limits import call_with_limit
from pagedkv_lab.course.checks.probe import Probe, Wrong, line_of, say, say_none, say_unwritten, short, takes
from pagedkv_lab.course.checks.report import UNWRITTEN, Report

#: Calls shown of a long life: the last ones.
MOST_LINES = 12


@dataclass(frozen=True)
class Named:
    """An argument that the example calls by this name: `Named("allocator", BlockAllocator(4, 16))`."""

    name: str
    object: Any


class Subject:
    """An object of the learner's class, and every call that was made on it, as a learner would write it.

    name: the variable that it goes by in the example. Calls that the example need not show go through `quietly`.
    """

    def __init__(self, probe: Probe, factory: Any, name: str, **arguments: Any):
        self.probe, self.name, self.factory = probe, name, factory
        self.lines: list[str] = []
        if not callable(factory):
            extra = "" if factory is None else " Pass the class itself, without parentheses after its name."
            probe.fail("not_a_class", f"`check` was given {short(factory)} and not a class.{extra}")
        written = ", ".join(f"{key}={_variable(value) or short(value)}" for key, value in arguments.items())
        self.lines.append(f"{name} = {probe.name}({written})")
        if not takes(factory, len(arguments)):
            message = f"It can't be made from {len(arguments)} arguments. Keep the stub's first lines as they were."
            got = f"{getattr(factory, '__name__', 'it')} does not take them"
            self.fail("wrong_arguments", message, expected=f"{len(arguments)} arguments", got=got, hint=None)
        # By position: the learner may have renamed them.
        self.object = self._run(factory, [_raw(value) for value in arguments.values()])
        if self.object is None:
            self.fail(UNWRITTEN, say_unwritten(f"`{probe.name}` returned None"))

    def call(self, method: str, *args: Any, expected: str = "", hint: int | None = 1) -> Any:
        """What `object.method(*args)` returns. Raises Wrong where it raises, hangs, or doesn't exist."""
        return self._call(method, args, (), expected, hint)

    def call_allowing(self, errors: type[BaseException] | tuple[type[BaseException], ...], method: str, *args: Any):
        """The value of a call, or the error where it is one of these: for calls that ought to be refused."""
        return self._call(method, args, errors, "", 1)

    def get(self, *names: str, expected: str = "", hint: int | None = 1) -> Any:
        """The first of these attributes that exists, or what it returns where it is a method of no arguments."""
        for name in names:
            # The class is asked first: a property is found there without being run.
            if hasattr(type(self.object), name) or name in getattr(self.object, "__dict__", {}):
                value = self._run(lambda name=name: getattr(self.object, name), (), expected, hint)
                if callable(value):
                    return self._call(name, (), (), expected, hint)
                self.lines.append(f"{self.name}.{name}   # {short(value, 60)}")
                return value
        wanted = " or ".join(f"`{name}`" for name in names)
        return self.fail("no_attribute", f"It has no {wanted}.", expected=expected, hint=hint)

    def quietly(self, method: str, *args: Any) -> Any:
        """`call`, and the example does not show it."""
        length = len(self.lines)
        value = self.call(method, *args)
        del self.lines[length:]
        return value

    def fail(self, code: str, message: str, **rest: Any) -> NoReturn:
        """End the check with this diagnosis; the calls so far are its example."""
        self.probe.fail(code, message, **{"call": self.transcript, **rest})

    @property
    def transcript(self) -> str:
        """The calls so far; of a long life the first line and the last ones."""
        if len(self.lines) <= MOST_LINES:
            return "\n".join(self.lines)
        left_out = len(self.lines) - MOST_LINES
        return "\n".join([self.lines[0], f"...   # {left_out} calls", *self.lines[1 - MOST_LINES :]])

    def _call(self, method: str, args: Sequence[Any], allowed: Any, expected: str, hint: int | None) -> Any:
        function = getattr(self.object, method, None)
        written = f"{self.name}.{method}({', '.join(_variable(arg) or short(arg) for arg in args)})"
        self.lines.append(written)
        if not callable(function):
            rest = {"expected": f"a method `{method}`", "got": "none", "hint": hint}
            self.fail("no_method", f"It has no method `{method}`.", **rest)
        value = self._run(function, [_raw(arg) for arg in args], expected, hint, allowed, written)
        if isinstance(value, BaseException):
            self.lines[-1] = f"{written}   # {type(value).__name__}"
        elif value is not None:
            self.lines[-1] = f"{written}   # {short(value, 60)}"
        return value

    def _run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        expected: str = "",
        hint: int | None = 1,
        allowed: Any = (),
        written: str = "",
    ) -> Any:
        self.probe.cases += 1
        outcome = call_with_limit(function, args, seconds=self.probe.seconds)
        example = {"expected": expected, "printed": outcome.printed, "hint": hint}
        if outcome.timed_out:
            message = (
                f"`{written or self.lines[-1]}` did not come back within {self.probe.seconds:g} seconds. Look for a "
                "loop whose condition never becomes false, and for a call that waits."
            )
            self.fail("endless", message, got=f"still running after {self.probe.seconds:g} s", **example)
        error = outcome.error
        if error is None:
            if outcome.value is None and outcome.printed.strip() and expected:
                self.fail(*say_none(outcome.printed), got="None", **example)
            return outcome.value
        if isinstance(allowed, type | tuple) and isinstance(error, allowed):
            return error
        if isinstance(error, NotImplementedError):
            self.fail(UNWRITTEN, say_unwritten(f"`{self.probe.name}` raised NotImplementedError"), hint=hint)
        return self._fail_with_error(function, args, error, written, example)

    def _fail_with_error(
        self, function: Callable[..., Any], args: Sequence[Any], error: BaseException, written: str, example: Any
    ) -> NoReturn:
        code, message = "raises", f"It raised {say(error)}."
        if isinstance(error, TypeError) and not takes(function, len(args)):
            code = "wrong_arguments"
            message = f"`{written}` can't be called like this. Keep the first line of the stub's methods as it was."
        elif isinstance(error, RecursionError):
            code, message = "endless", "It calls itself without end: no call reaches a `return` of its own."
        elif isinstance(error, SystemExit):
            message = "It called `exit()`. Use `return`, or raise an error."
        elif isinstance(error, NameError):
            message = f"It uses a name that is not defined: {error}. Define it, or run the cell that does."
        self.fail(code, message, got=type(error).__name__, detail=line_of(self.factory, error), **example)


#: A scenario makes subjects from the class and uses them; what is wrong raises Wrong.
Scenario = Callable[[Probe, Any], None]


class ObjectCheck:
    """Everything that is known about an exercise whose solution is a class: its scenarios, smallest first.

    tried: what they try, in words. notes: asked after a pass for remarks on a right answer.
    """

    def __init__(
        self,
        name: str,
        scenarios: Sequence[Scenario],
        tried: tuple[str, ...],
        notes: Callable[[Any], Sequence[str]] | None = None,
    ):
        self.name, self.scenarios, self.tried, self.notes = name, tuple(scenarios), tried, notes

    def __call__(self, implementation: Any) -> Report:
        probe = Probe(self.name)
        try:
            for scenario in self.scenarios:
                scenario(probe, implementation)
        except Wrong as wrong:
            return Report(self.name, probe.cases, diagnosis=wrong.diagnosis)
        notes = tuple(self.notes(implementation)) if self.notes else ()
        return Report(self.name, probe.cases, self.tried, notes)


def smallest(life: Sequence[Any], lead: Callable[[Sequence[Any]], None]) -> None:
    """Lead a life (a list of steps) and, where it goes wrong, find a short one that goes wrong in the same way.

    `lead(steps)` makes its subjects afresh and raises Wrong. Steps that make no sense any more, because one before
    them was left out, must be passed over by it. Raises Wrong with the smallest example found.
    """
    try:
        lead(life)
        return
    except Wrong as wrong:
        found = wrong
    if found.diagnosis.code == "endless":  # each further attempt would take as long
        raise found
    life, size = list(life), max(1, len(life) // 2)
    while size:
        at = 0
        while at < len(life):
            shorter = life[:at] + life[at + size :]
            with suppress(Exception):  # a life without sense is no example
                try:
                    lead(shorter)
                except Wrong as wrong:
                    if wrong.diagnosis.code == found.diagnosis.code:
                        life, found = shorter, wrong
                        continue
            at += size
        size //= 2
    raise found


def _raw(value: Any) -> Any:
    """The object itself, where an argument is one with a name."""
    return value.object if isinstance(value, Subject | Named) else value


def _variable(value: Any) -> str:
    return value.name if isinstance(value, Subject | Named) else ""
