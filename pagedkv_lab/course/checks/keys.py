"""A function that makes keys, called by a check; what a key may be.

Knows keys. Does not know which exercise asks.
"""

import copy
import inspect
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from pagedkv_lab.course.checks.limits import call_with_limit
from pagedkv_lab.course.checks.probe import Probe, say_none, short

#: Two of so many keys must not be equal; with 20 bits a key they nearly surely are.
SMALL_BLOCKS = [[a, b] for a in range(64) for b in range(64)]
#: Keys of fewer bits are refused.
SHORT = 48
#: What joins texts in people's code. A salt is text that a user chose, so it may contain any of them.
SEPARATORS = ("", ",", ";", ":", "|", "=", "/", "-", "_", "&", " ", "\n", "\0")
SALT = (("cache_salt", "a"),)


class Keys:
    """Calls a function that makes keys, and compares what comes back."""

    def __init__(self, probe: Probe, function: Any):
        self.probe, self.function = probe, function
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        self._given: list[Any] = []  # arguments stay alive, or a later one could have the address of an earlier one

    def text(self, *args: Any) -> str:
        return f"{self.probe.name}({', '.join(written(arg) for arg in args)})"

    def raw(self, *args: Any) -> Any:
        """What one call returns. Raises Wrong where it raises, hangs, returns None or changes its arguments."""
        args, text = [arg.key if isinstance(arg, Parent) else arg for arg in args], self.text(*args)
        given = copy.deepcopy(args)
        self._given.append(given)
        outcome = self.probe.call(self.function, *given, text=text)
        if given != args:
            message = "It changed its arguments, which belong to the caller. Work on a copy."
            self.probe.fail("mutates", message, call=text, got=", ".join(map(short, given)))
        if outcome.value is None or outcome.value is Ellipsis:
            code, message = say_none(outcome.printed)
            self.probe.fail(code, message, call=text, got=short(outcome.value), printed=outcome.printed, hint=1)
        return outcome.value

    def key(self, *args: Any) -> Hashable:
        """One key: something that a dictionary takes, and that says what it is made from by being equal."""
        value, text = self.raw(*args), self.text(*args)
        if inspect.isgenerator(value) or inspect.iscoroutine(value):
            value.close()
            message = "A call gives a generator or a coroutine. Write plain `def`, with `return` and no `yield`."
            self.probe.fail("wrong_type", message, call=text, got=type(value).__name__, hint=1)
        if hasattr(value, "hexdigest"):
            message = "It returned the sha256 object, and no two of them are equal. Its `.digest()` is the key."
            self.probe.fail("no_digest", message, call=text, got=short(value), hint=3)
        if not is_key(value):
            message = "A key must be something that a dictionary takes: bytes, a text, a number, or a tuple of those."
            self.probe.fail("unhashable", message, call=text, expected="bytes", got=short(value), hint=2)
        return value

    def keys(self, calls: Iterable[Sequence[Any]]) -> list[Hashable]:
        """One key a call, for many calls, with a time limit for each hundred."""
        found: list[Hashable] = []
        calls = list(calls)
        for start in range(0, len(calls), 100):
            some = calls[start : start + 100]
            outcome = call_with_limit(lambda some=some: [self.function(*copy.deepcopy(args)) for args in some])
            if outcome.value is not None and all(map(is_key, outcome.value)):
                found += outcome.value
                self.probe.cases += len(some)
            else:  # one by one: that names the one that goes wrong
                found += [self.key(*args) for args in some]
        return found

    def differ(self, code: str, message: str, first: Sequence[Any], second: Sequence[Any], hint: int = 1) -> None:
        """The two calls must give different keys. Raises Wrong with this code."""
        one, other = self.key(*first), self.key(*second)
        if one == other:
            got = f"the same key twice: {short(one, 60)}"
            self.fail(code, message, first, second, expected="two different keys", got=got, hint=hint)

    def same(self, code: str, message: str, first: Sequence[Any], second: Sequence[Any], hint: int = 1) -> None:
        """The two calls must give equal keys. Raises Wrong with this code."""
        one, other = self.key(*first), self.key(*second)
        if one != other:
            got = f"{short(one, 60)}\n{short(other, 60)}"
            self.fail(code, message, first, second, expected="the same key twice", got=got, hint=hint)

    def fail(self, code: str, message: str, *calls: Sequence[Any], **rest: Any) -> NoReturn:
        parents = dict.fromkeys(arg.text for args in calls for arg in args if isinstance(arg, Parent) and arg.text)
        self.probe.fail(code, message, call="\n".join([*parents, *(self.text(*args) for args in calls)]), **rest)


class Parent(NamedTuple):
    """A key that is an argument of the next call. `text` is the line that made it: "a = hash_block(None, [1, 2])"."""

    name: str
    key: Hashable
    text: str


def written(arg: Any) -> str:
    return arg.name if isinstance(arg, Parent) else short(arg, 60)


def is_key(value: Any) -> bool:
    """Whether a dictionary takes it."""
    try:
        hash(value)
    except TypeError:
        return False
    return value is not None


def always_none(keys: Keys, *calls: Sequence[Any]) -> bool:
    return all(call_with_limit(keys.function, copy.deepcopy(args)).value in (None, ...) for args in calls)
