"""One check under way: calls somebody else's code and turns whatever goes wrong in a call into a diagnosis.

Knows how calls go wrong: not written, endless, raising, the wrong type. Does not know any exercise.
"""

import inspect
import linecache
import numbers
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CodeType
from typing import Any, NoReturn

from pagedkv_lab.course.checks.limits import CALL_SECONDS, Outcome, call_with_limit
from pagedkv_lab.course.checks.report import UNWRITTEN, Diagnosis


class Wrong(Exception):
    """Ends a check with a diagnosis. Never leaves this package: `examine` turns it into a report."""

    def __init__(self, diagnosis: Diagnosis):
        self.diagnosis = diagnosis
        super().__init__(diagnosis.code)


class Probe:
    """Calls the implementation of the exercise `name`, case after case, and counts the cases."""

    def __init__(self, name: str, seconds: float = CALL_SECONDS):
        self.name, self.seconds = name, seconds
        self.cases = 0

    def call(
        self, function: Callable[..., Any], *args: Any, text: str = "", expected: str = "", hint: int | None = 1
    ) -> Outcome:
        """The outcome of `function(*args)`, which then is a value. Raises Wrong where it isn't.

        `text` is the call as the learner would write it, `expected` what should come of it.
        """
        self.cases += 1
        text = text or f"{self.name}({', '.join(map(short, args))})"
        outcome = call_with_limit(function, args, seconds=self.seconds)
        example = {"call": text, "expected": expected, "printed": outcome.printed}
        if outcome.timed_out:
            self.fail(
                "endless",
                f"It did not come back within {self.seconds:g} seconds. Look for a loop whose condition never "
                "becomes false.",
                got=f"still running after {self.seconds:g} s",
                hint=hint,
                **example,
            )
        if isinstance(outcome.error, NotImplementedError):
            self.fail(UNWRITTEN, say_unwritten(f"`{self.name}` raised NotImplementedError"), hint=hint)
        if outcome.error is not None:
            self._fail_with_error(function, args, outcome.error, hint, example)
        return outcome

    def whole_number(self, value: Any, text: str = "", expected: str = "", hint: int | None = 1) -> int:
        """`value` as an int: ints of any kind, and floats, Fractions and the like that are whole.

        Raises Wrong for everything else, None and bool among it.
        """
        whole = _as_whole(value)
        if whole is None:
            message = _why_not_whole(value)
            self.fail("wrong_type", message, call=text, expected=expected, got=short(value), hint=hint)
        return whole

    def fail(self, code: str, message: str, **rest: Any) -> NoReturn:
        """End the check: raises Wrong with this diagnosis."""
        raise Wrong(Diagnosis(code, message, **rest))

    def _fail_with_error(
        self, function: Callable[..., Any], args: Sequence[Any], error: BaseException, hint: int | None, example: Any
    ) -> NoReturn:
        code, message = "raises", f"It raised {say(error)}."
        if isinstance(error, TypeError) and not takes(function, len(args)):
            count = f"{len(args)} argument" + ("s" if len(args) != 1 else "")
            code, message = "wrong_arguments", f"It can't be called with {count}. Keep the stub's first line as it was."
            hint = None  # the message says it all
        elif isinstance(error, RecursionError):
            code, message = "endless", "It calls itself without end: no call reaches a `return` of its own."
        elif isinstance(error, SystemExit):
            message = "It called `exit()`. Use `return`."
        elif isinstance(error, NameError):
            message = f"It uses a name that is not defined: {error}. Define it, or run the cell that does."
        got = f"{type(error).__name__}"
        self.fail(code, message, got=got, detail=line_of(function, error), hint=hint, **example)


def say_unwritten(what: str) -> str:
    """The message for an exercise that nobody has begun; `what` is how one can tell."""
    return f"{what}. It's still the stub: write your lines below the comment, run that cell, then this one."


def say_none(printed: str) -> tuple[str, str]:
    """Code and message for a call that returned None and printed this."""
    if printed.strip():
        return "prints", "It prints its answer and returns None. Use `return` in the place of `print`."
    return "returns_none", "It returned None for this case: one way through it ends without a `return`."


def _as_whole(value: Any) -> int | None:
    """`value` as an int, or None where it isn't a single whole number."""
    if isinstance(value, bool | str) or callable(value):
        return None
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        whole = int(value)
        return whole if bool(whole == value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _why_not_whole(value: Any) -> str:
    if isinstance(value, bool):
        return f"It returned {value}, which says yes or no. A number is expected."
    if isinstance(value, str):
        return f"It returned the text {short(value)}. Return the number itself, without quotes or a unit."
    if inspect.iscoroutine(value):
        value.close()  # or Python complains that nobody awaited it
        return "It is an `async def`, so a call makes a coroutine and not a number. Write plain `def`."
    if inspect.isgenerator(value):
        return "It has a `yield`, so a call makes a generator and not a number. Use `return`."
    if callable(value):
        return "It returned a function, not a number. Perhaps the parentheses of a call are missing."
    if isinstance(value, numbers.Number):
        return f"It returned {short(value)}, which is not a whole number. `//` divides and rounds down."
    return f"It returned {_a(value)}, {short(value)}. One number is expected."


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with `count` positional arguments; True where nobody can tell."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def line_of(function: Any, error: BaseException) -> str:
    """The line of the learner's own code at which `error` was raised, as "line 3: ..."; "" where it isn't known.

    function: the function or the class that was checked. What else its file or cell defines is the learner's too.
    """
    files = {code.co_filename for code in _codes(inspect.unwrap(function))}
    found, traceback = "", error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file in files:
            text = linecache.getline(file, traceback.tb_lineno).strip()
            found = f"line {traceback.tb_lineno}: {text}" if text else ""
        traceback = traceback.tb_next
    return found


def _codes(function: Any) -> Iterator[CodeType]:
    """The code of a function, of the methods of a class and of its bases, or of a callable object."""
    if isinstance(function, partial):
        function = function.func
    if code := getattr(function, "__code__", None):
        yield code
    elif inspect.isclass(function):
        for member in (member for base in function.__mro__ for member in vars(base).values()):
            member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if code := getattr(inspect.unwrap(member), "__code__", None):
                yield code
    elif code := getattr(type(function).__call__, "__code__", None):
        yield code


def say(error: BaseException) -> str:
    """ "ZeroDivisionError: division by zero", without a full stop of its own at the end."""
    text = str(error).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def short(value: Any, limit: int = 200) -> str:
    """`repr(value)`, cut in the middle of nowhere rather than filling the page; a long list of equals as a product."""
    if isinstance(value, list) and len(value) > 6 and all(item == value[0] for item in value):
        return f"[{value[0]!r}] * {len(value)}"
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"
