"""Checks of chapter 04: when two blocks are the same.

A key is right where it is equal exactly when it has to be. So nearly every question here is one of two: these two
calls must give the same key, those two must not. What a key looks like (bytes, a number, a text, a tuple) is free.
"""

import copy
import inspect
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import permutations, product
from types import FunctionType
from typing import Any, NamedTuple, NoReturn

from pagedkv_lab.blocks.hashing import hash_block as package_hash_block
from pagedkv_lab.course.checks.limits import call_with_limit
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.registry import Exercise
from pagedkv_lab.course.checks.report import UNWRITTEN, Report

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
        return f"{self.probe.name}({', '.join(_written(arg) for arg in args)})"

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
        if not _is_key(value):
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
            if outcome.value is not None and all(map(_is_key, outcome.value)):
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


def _written(arg: Any) -> str:
    return arg.name if isinstance(arg, Parent) else short(arg, 60)


def _is_key(value: Any) -> bool:
    """Whether a dictionary takes it."""
    try:
        hash(value)
    except TypeError:
        return False
    return value is not None


# hash_block


def examine_hash_block(function: Any) -> Report:
    probe = Probe("hash_block")
    try:
        keys = Keys(probe, function)
        _first_calls(keys)
        _long_enough(keys)
        _every_token_counts(keys)
        _the_parent_counts(keys)
        _extra_counts(keys)
        _not_pythons_hash(keys)
        bits = _no_small_collisions(keys)
        grows = _whole_prompts(keys)
    except Wrong as wrong:
        return Report(probe.name, probe.cases, diagnosis=wrong.diagnosis)
    notes = []
    if bits and bits < 120:
        notes.append(f"Your keys have about {bits} bits: enough against accidents, not against somebody who searches.")
    if grows:
        notes.append("Your keys grow with the prompt, because each one contains its parent. They are right; hashed, "
                     "they are 32 bytes however long the past is.")  # fmt: skip
    tried = (
        "every token",
        "their order",
        "the parent",
        "salts",
        "Python's `hash`",
        "4,096 small blocks",
        "chains",
    )
    return Report(probe.name, probe.cases, tried, tuple(notes))


def _first_calls(keys: Keys) -> None:
    block = [1, 2, 3, 4]
    try:
        keys.key(None, block, ())
    except Wrong as wrong:
        if wrong.diagnosis.code != "returns_none" or not _always_none(keys, (None, block), (None, [5, 6], SALT)):
            raise
        keys.probe.fail(UNWRITTEN, say_unwritten("`hash_block` returned None"), hint=1)
    keys.same(
        "not_deterministic",
        "Twice the same call, two keys. Then nothing is ever found again. No time, no random number, no counter and no "
        "`id` may go into a key.",
        (None, block),
        (None, block),
    )
    keys.same(
        "default_extra",
        "Without `extra` the key must be the one of an empty `extra`: both say that there is nothing else.",
        (None, block),
        (None, block, ()),
    )


def _always_none(keys: Keys, *calls: Sequence[Any]) -> bool:
    return all(call_with_limit(keys.function, copy.deepcopy(args)).value in (None, ...) for args in calls)


def _long_enough(keys: Keys) -> None:
    """Very short keys are often equal by accident: said first, or the accident would be taken for something else."""
    rng = random.Random(1)
    blocks = [[rng.randrange(49_152) for _ in range(4)] for _ in range(300)]
    found = keys.keys((None, block) for block in blocks)
    bits = max(map(_bits, found))
    if 1 < len(set(found)) < 290 or (0 < bits < SHORT and not isinstance(found[0], int)):
        _say_short(keys, bits, blocks[0], found[0])


def _say_short(keys: Keys, bits: int, block: list[int], key: Hashable) -> NoReturn:
    size = f"A key has {bits} bits: among 2 to the power of {bits // 2} blocks a pair is likely." if bits else ""
    message = f"Its keys are too short. A pool sees millions of blocks, and two would soon share a key. {size}".strip()
    keys.fail("short_key", message, (None, block), expected="16 bytes or more", got=short(key), hint=2)


def _every_token_counts(keys: Keys) -> None:
    for place in (3, 0, 1, 2):
        other = [1, 2, 3, 4]
        other[place] = 9
        message = f"The token at place {place} makes no difference to the key, so another text would be found."
        keys.differ("ignores_tokens", message, (None, [1, 2, 3, 4]), (None, other))
    for other in ([2, 1, 3, 4], [4, 3, 2, 1], [1, 3, 2, 4]):
        message = "The order of the tokens makes no difference to the key. “Dog bites man” would find “man bites dog”."
        keys.differ("ignores_order", message, (None, [1, 2, 3, 4]), (None, other))
    for one, other in (([1, 23], [12, 3]), ([11, 1], [1, 11]), ([1, 2, 34], [1, 23, 4]), ([1, 16], [17, 0])):
        message = (
            "The tokens run together: written without anything between them, these two blocks look the same. Write "
            "each token with its end marked, or each in the same number of bytes."
        )
        keys.differ("ambiguous", message, (None, one), (None, other), hint=2)
    for big in (256, 2**16, 2**17):
        message = (
            "Only a part of the token's number goes into the key. Vocabularies have up to 260,000 tokens: one byte or "
            "two are not enough."
        )
        keys.differ("truncates_tokens", message, (None, [1, 2, 3, 4]), (None, [1, 2, 3, 4 + big]), hint=2)


def _the_parent_counts(keys: Keys) -> None:
    block = [5, 6]
    a = _named(keys, "a", [1, 2])
    b = _named(keys, "b", [3, 4])
    message = (
        "`parent` makes no difference to the key. The keys and values of a token depend on all tokens before it: after "
        "another beginning, the same block holds other numbers."
    )
    keys.differ("ignores_parent", message, (a, block), (b, block))
    keys.differ("ignores_parent", message, (None, block), (a, block))
    message = (
        "The order of the blocks makes no difference: first a block and then another gives the key of the two "
        "exchanged. Hash parent and tokens together instead of combining two hashes."
    )
    ab = Parent("ab", keys.key(a, [3, 4]), f"ab = {keys.text(a, [3, 4])}")
    ba = Parent("ba", keys.key(b, [1, 2]), f"ba = {keys.text(b, [1, 2])}")
    if ab.key == ba.key:
        got = f"the same key twice: {short(ab.key, 60)}"
        call = "\n".join((a.text, b.text, ab.text, ba.text))
        keys.probe.fail("ignores_block_order", message, call=call, expected="two different keys", got=got, hint=1)
    _all_of_the_parent(keys, a)


def _named(keys: Keys, name: str, tokens: list[int]) -> Parent:
    return Parent(name, keys.key(None, tokens), f"{name} = {keys.text(None, tokens)}")


def _all_of_the_parent(keys: Keys, a: Parent) -> None:
    """Parents that differ in one byte, and parents of many different blocks."""
    message = "Only a part of `parent` goes into the key. All of it must, or many pasts have the same key."
    if isinstance(a.key, bytes | str) and a.key:
        for at in (0, len(a.key) // 2, -1):
            at %= len(a.key)
            new = bytes([a.key[at] ^ 1]) if isinstance(a.key, bytes) else ("0" if a.key[at] != "0" else "1")
            b = Parent("b", a.key[:at] + new + a.key[at + 1 :], f"b = a with another {at + 1}. of {len(a.key)} places")
            keys.differ("truncates_parent", message, (a, [5, 6]), (b, [5, 6]), hint=2)
    pasts = SMALL_BLOCKS[:1000]
    parents = keys.keys((None, past) for past in pasts)
    found: dict[Hashable, int] = {}
    for i, key in enumerate(keys.keys((parent, [5, 6]) for parent in parents)):
        first = found.setdefault(key, i)
        if first != i and parents[first] != parents[i]:
            a, b = (_named(keys, name, pasts[which]) for name, which in (("a", first), ("b", i)))
            keys.differ("truncates_parent", message, (a, [5, 6]), (b, [5, 6]), hint=2)
    if isinstance(a.key, int):
        one, other = Parent("17", 17, ""), Parent("174", 174, "")
        message = "Parent and tokens run together: written without anything between them, these two look the same."
        keys.differ("ambiguous", message, (one, [42, 5]), (other, [2, 5]), hint=2)


def _extra_counts(keys: Keys) -> None:
    block = [1, 2, 3, 4]
    message = (
        "`extra` makes no difference to the key. It holds the salt that keeps two customers apart: without it, one is "
        "given blocks of the other."
    )
    keys.differ("ignores_extra", message, (None, block), (None, block, SALT))
    keys.differ("ignores_extra", message, (None, block, SALT), (None, block, (("cache_salt", "b"),)))
    keys.differ("ignores_extra", message, (None, block, SALT), (None, block, (*SALT, ("lora_name", "b"))))
    message = "The tag makes no difference: a salt `a` and an adapter called `a` are different things."
    keys.differ("ignores_tag", message, (None, block, SALT), (None, block, (("lora_name", "a"),)))
    keys.differ("ignores_extra", message, (None, block, (("cache_salt", "Zürich"),)), (None, block, SALT))
    message = (
        "With a salt that is chosen for it, a user gets another user's key: tags and values run together. A salt is "
        "any text, separators included. Write each text with its length first, or in quotes as `repr` does."
    )
    keys.differ("ambiguous_extra", message, (None, block, (("ab", "c"),)), (None, block, (("a", "bc"),)), hint=2)
    both = (*SALT, ("lora_name", "b"))
    for between, inside in product(SEPARATORS, SEPARATORS):
        forged = (("cache_salt", f"a{between}lora_name{inside}b"),)
        keys.differ("ambiguous_extra", message, (None, block, both), (None, block, forged), hint=2)


def _not_pythons_hash(keys: Keys) -> None:
    for one, other in (([0, 1, 2, 3], [2**61 - 1, 1, 2, 3]), ([-1, 1, 2, 3], [-2, 1, 2, 3])):
        answers = [call_with_limit(keys.function, (None, list(block))) for block in (one, other)]
        if any(answer.error or answer.timed_out for answer in answers):
            continue  # these are no token ids; who refuses them is right
        if answers[0].value == answers[1].value:
            keys.fail(
                "python_hash",
                "Its keys come from Python's `hash`, which anybody can compute and steer: these two blocks have the "
                "same one. The lesson finds such a pair of real blocks in seconds, and one user is handed the other's "
                "cache. `hashlib.sha256` is made against that.",
                (None, one),
                (None, other),
                expected="two different keys",
                got=f"the same key twice: {short(answers[0].value, 60)}",
                hint=2,
            )
    elsewhere = _in_another_process(keys.function)
    for args in ((None, [1, 2, 3, 4], ()), (keys.key(None, [1, 2]), [3, 4], SALT)):
        here, there = keys.key(*args), call_with_limit(elsewhere, copy.deepcopy(args))
        if there.error is None and not there.timed_out and there.value != here:
            keys.fail(
                "python_hash",
                "Its keys come from Python's `hash`, which gives a text other numbers in every process: after a "
                "restart, or on a second server, nothing is found. `hashlib.sha256` is the same everywhere.",
                args,
                expected="the same key in every process",
                got="another key in another process",
                hint=2,
            )


def _in_another_process(function: Any) -> Callable[..., Any]:
    """The same function in a world where `hash` gives other numbers, as it does for texts in each Python process.

    Only the function's own module is moved there: plain functions, and those that they call by name.
    """
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return function
    world = {**function.__globals__, "hash": lambda value: hash(value) ^ 0x5EED}
    for name, other in function.__globals__.items():
        if isinstance(other, FunctionType) and other.__globals__ is function.__globals__:
            world[name] = _moved(other, world)
    return _moved(function, world)


def _moved(function: FunctionType, world: dict[str, Any]) -> FunctionType:
    moved = FunctionType(function.__code__, world, function.__name__, function.__defaults__, function.__closure__)
    moved.__kwdefaults__ = function.__kwdefaults__
    return moved


def _no_small_collisions(keys: Keys) -> int:
    """4,096 different blocks must have different keys. Returns how many bits a key has, 0 where that can't be said."""
    found: dict[Hashable, int] = {}
    all_keys = keys.keys((None, block) for block in SMALL_BLOCKS)
    bits = max(map(_bits, all_keys))
    for i, key in enumerate(all_keys):
        first = found.setdefault(key, i)
        if first != i:
            message = "Two of 4,096 small blocks have the same key, so one would be found in the other's place."
            keys.differ("collision", message, (None, SMALL_BLOCKS[first]), (None, SMALL_BLOCKS[i]), hint=2)
    numbers = [key for key in all_keys if isinstance(key, int)]
    if len(numbers) == len(all_keys) and len({numbers[64 + b] - numbers[b] for b in range(64)}) == 1:
        keys.fail(
            "linear",
            "Its keys are sums: one token more always adds the same number, whatever else is in the block. Who wants "
            "two blocks with one key solves an equation. Use a hash that is made against that, `hashlib.sha256`.",
            (None, [0, 5]),
            (None, [1, 5]),
            expected="keys that have nothing to do with each other",
            got=f"always {numbers[64] - numbers[0]} apart",
            hint=2,
        )
    if 0 < bits < SHORT:
        _say_short(keys, bits, SMALL_BLOCKS[0], all_keys[0])
    return bits


def _bits(key: Hashable) -> int:
    """How many bits a key has room for; 0 where nobody can tell."""
    if isinstance(key, bytes):
        return 8 * len(key)
    if isinstance(key, str):
        return 4 * len(key)
    return key.bit_length() if isinstance(key, int) else 0


def _whole_prompts(keys: Keys) -> bool:
    """Forty prompts that share beginnings, with and without salts. Returns whether a key grows with its past."""
    rng = random.Random(0)
    key_of: dict[Any, Hashable] = {}
    owner_of: dict[Hashable, Any] = {}
    prompts: list[list[tuple[int, ...]]] = [[]]
    for _ in range(40):
        whole = rng.choice(prompts)
        prompt = whole[: rng.randint(0, len(whole))]
        prompt += [tuple(rng.randrange(200_000) for _ in range(4)) for _ in range(rng.randint(1, 3))]
        prompts.append(prompt[:10])
        salt = rng.choice(((), SALT, (("cache_salt", "b"),)))
        parent = None
        for i, block in enumerate(prompt[:10]):
            parent = keys.key(parent, list(block), salt if i == 0 else ())
            past = (salt, *prompt[: i + 1])
            if key_of.setdefault(past, parent) != parent:
                message = "The same prompt with the same salt got another key later on. Nothing else may go in."
                call = f"the keys of {short(list(map(list, past[1:])))}, twice"
                keys.probe.fail("not_deterministic", message, call=call, expected="equal keys", got="others", hint=1)
            if owner_of.setdefault(parent, past) != past:
                message = "Two prompts that are not the same have the same key."
                call = "\n".join(short(p) for p in (owner_of[parent], past))
                got = short(parent, 60)
                keys.probe.fail("collision", message, call=call, expected="different keys", got=got, hint=2)
    parent = first = keys.key(None, [1, 2])
    for _ in range(8):
        parent = keys.key(parent, [1, 2])
    return isinstance(parent, tuple) or _bits(parent) > _bits(first) + 64


# block_keys


def examine_block_keys(function: Any) -> Report:
    probe = Probe("block_keys")
    try:
        lists = KeyLists(probe, function)
        _as_many_as_full_blocks(lists)
        _a_chain(lists)
        _salted_chains(lists)
    except Wrong as wrong:
        return Report(probe.name, probe.cases, diagnosis=wrong.diagnosis)
    tried = ("no full block", "exact multiples", "a rest", "shared beginnings", "every token", "salts", "long prompts")
    return Report(probe.name, probe.cases, tried)


class KeyLists(Keys):
    """Calls a function that gives one key a full block."""

    def list(self, *args: Any) -> list[Hashable]:
        value, text = self.raw(*args), self.text(*args)
        if not isinstance(value, list | tuple):
            if inspect.isgenerator(value) or inspect.iscoroutine(value):
                value.close()
            message = "It must return a list, with one key for each full block, in order."
            self.probe.fail("not_a_list", message, call=text, expected="a list", got=short(value), hint=1)
        for key in value:
            if key is not None and not _is_key(key):
                message = "One of its keys is nothing that a dictionary takes. Return what `hash_block` returned."
                self.probe.fail("unhashable", message, call=text, got=short(key), hint=2)
        return list(value)

    def expect(
        self, code: str, message: str, first: Sequence[Any], second: Sequence[Any], equal: Sequence[bool]
    ) -> None:
        """The first keys of two calls must be equal where `equal` says so, and different elsewhere."""
        one, other = self.list(*first), self.list(*second)
        same = [a == b for a, b in zip(one, other, strict=False)][: len(equal)]
        if same != list(equal):
            says = [" ".join("same" if yes else "different" for yes in answer) for answer in (equal, same)]
            self.fail(code, message, first, second, expected=f"block by block: {says[0]}", got=says[1], hint=2)


def _as_many_as_full_blocks(lists: KeyLists) -> None:
    try:
        lists.list([1, 2, 3, 4, 5], 4)
    except Wrong as wrong:
        if wrong.diagnosis.code != "returns_none" or not _always_none(lists, ([1, 2], 2), ([], 4), ([1], 4)):
            raise
        lists.probe.fail(UNWRITTEN, say_unwritten("`block_keys` returned None"), hint=1)
    for count in (5, 4, 8, 3, 0, 11, 12):
        tokens = list(range(1, count + 1))
        found = lists.list(tokens, 4)
        if None in found:
            lists.fail("none_in_list", "A key in its list is None.", (tokens, 4), got=short(found), hint=2)
        if len(found) == count // 4:
            continue
        rest = {"expected": f"{count // 4} keys", "got": f"{len(found)} keys", "hint": 2}
        if len(found) == -(-count // 4):
            message = (
                "The last block is not full and got a key. It will be written further, and its key would then stand "
                "for what is no longer there. Only full blocks have keys."
            )
            lists.fail("partial_block", message, (tokens, 4), **rest)
        if len(found) == count // 4 - 1:
            message = "The last block got no key, because nothing comes after it. It is full, so it can be shared."
            lists.fail("drops_last", message, (tokens, 4), **rest)
        lists.fail("wrong_length", "There is one key for each full block of `block_size` tokens.", (tokens, 4), **rest)


def _a_chain(lists: KeyLists) -> None:
    first, second, other = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]
    message = (
        "The same call gives other keys the second time. Each prompt begins anew: the first block's parent is None, "
        "and nothing is left over from the prompt before."
    )
    lists.expect("not_deterministic", message, ([*first, *second], 4), ([*first, *second], 4), (True, True))
    message = (
        "The first block's key changes with the token right after the block: a slice is one too long. Block i begins "
        "at i * block_size and ends before (i + 1) * block_size."
    )
    changed = [*first, 0, 6, 7, 8]
    if lists.list([*first, *second], 4)[0] == lists.list([*first, 5, 6, 7, 0], 4)[0]:
        lists.expect("off_by_one", message, ([*first, *second], 4), (changed, 4), (True, False))
    message = (
        "Tokens that come after a block change its key. Then only prompts that are equal to the end find anything: "
        "that was the article's 12 %. A block's key comes from its own tokens and from the key before it."
    )
    lists.expect("whole_sequence", message, ([*first, *second], 4), ([*first, *other], 4), (True, False))
    lists.expect("whole_sequence", message, ([*first, 5], 4), ([*first, 6, 7], 4), (True,))
    lists.expect("whole_sequence", message, (first, 4), ([*first, *second, *other], 4), (True,))
    message = (
        "After another beginning, the same block has the same key. Its keys and values are others, though: they depend "
        "on all tokens before. Hand each block's key to the next one as its parent."
    )
    lists.expect("no_chain", message, ([*first, *second], 4), ([*other, *second], 4), (False, False))
    twice = lists.list([*first, *first, *first], 4)
    if len(set(twice)) < 3:
        message = f"{message} Here the same four tokens come three times, each time with another past."
        lists.fail("no_chain", message, ([*first] * 3, 4), expected="three keys", got=short(twice, 60), hint=2)
    far = lists.list([*first, *second, *other], 4), lists.list([*other, *second, *other], 4)
    if far[0][2] == far[1][2]:
        message = "The chain is too short: a block's key depends on the block before it, and not on those before that."
        calls = ([*first, *second, *other], 4), ([*other, *second, *other], 4)
        lists.fail("no_chain", message, *calls, expected="different keys of block 2", got="the same", hint=2)
    tokens = [*first, *second]
    for place in range(8):
        changed = [*tokens[:place], 99, *tokens[place + 1 :]]
        message = f"The token at place {place} makes no difference to the key of its block: a slice leaves it out."
        equal = (False, False) if place < 4 else (True, False)
        lists.expect("ignores_tokens", message, (tokens, 4), (changed, 4), equal)


def _salted_chains(lists: KeyLists) -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    message = (
        "`extra` makes no difference. The salt goes into the key of the first block, and through the chain into all "
        "that follow; without it two customers share their blocks."
    )
    lists.expect("ignores_extra", message, (tokens, 4), (tokens, 4, SALT), (False, False))
    lists.expect("ignores_extra", message, (tokens, 4, (("cache_salt", "b"),)), (tokens, 4, SALT), (False, False))
    lists.expect("not_deterministic", "The same call, other keys.", (tokens, 4, SALT), (tokens, 4, SALT), (True, True))
    rng = random.Random(0)
    for size in (1, 3, 16):
        prompt = [rng.randrange(50_000) for _ in range(100)]
        for shared in (0, 1, size, 2 * size - 1, 50, 99):
            other = prompt[:shared] + [rng.randrange(50_000, 90_000) for _ in range(70)]
            count = min(len(prompt), len(other)) // size
            message = (
                f"Two prompts share {shared} tokens, which are {shared // size} full blocks of {size}. So many keys "
                "must be equal, from the first on, and no more."
            )
            equal = [block < shared // size for block in range(count)]
            one, two = lists.list(prompt, size), lists.list(other, size)
            same = [a == b for a, b in zip(one, two, strict=False)][:count]
            if same != equal or (len(one), len(two)) != (len(prompt) // size, len(other) // size):
                call = f"block_keys(prompt, {size})\nblock_keys(prompt[:{shared}] + other, {size})"
                rest = {"expected": f"{sum(equal)} of {count} keys equal", "got": f"{sum(same)} of {len(same)}"}
                lists.probe.fail("wrong_sharing", message, call=call, hint=2, **rest)


# extra_keys

#: A request like any other; the fields that are None are those that most requests don't set.
REQUEST: dict[str, Any] = {
    "request_id": "req-1",
    "arrival_time": 1764547200.25,
    "position": 0,
    "temperature": 0.7,
    "seed": None,
    "max_tokens": 64,
    "cache_salt": None,
    "lora_name": None,
    "image_hash": None,
}
#: Fields that must stay out, with another value and the reason.
OUT = {
    "request_id": ("req-2", "It is another one for each request, so no two requests would ever share a block."),
    "arrival_time": (1764547260.5, "No two requests come at the same moment, so nothing would ever be shared."),
    "position": (3, "Where a request stands in the queue has nothing to do with what its tokens' keys and values are."),
    "temperature": (0.0, "It is applied to the model's output, long after keys and values are computed."),
    "seed": (7, "It steers which token is drawn, not what the prompt's keys and values are."),
    "max_tokens": (256, "How long the answer may be changes nothing in the prompt."),
    "trace_id": (
        "4bf92f35",
        "Nobody thought of this field. Name the fields that belong in; all others stay out.",
    ),
}
#: Fields that must go in, with two values and what happens without them.
IN = {
    "cache_salt": ("team-7", "team-8", "Two customers who chose different salts would share blocks, and each could "
                   "find out by the time it takes what the other has asked."),
    "lora_name": ("legal", "medical", "Another adapter is another model: it computes other keys and values from the "
                  "same tokens."),
    "image_hash": ("9f2c", "77ab", "All images are the same placeholder tokens. Without it, a question about one "
                   "picture is answered from another."),
}  # fmt: skip


def examine_extra_keys(function: Any) -> Report:
    probe = Probe("extra_keys")
    try:
        requests = Requests(probe, function)
        _first_requests(requests)
        for field, (value, reason) in OUT.items():
            message = f"`{field}` goes into the key. {reason}"
            requests.compare("breaks_sharing", message, {}, {field: value}, same=True, hint=1)
        for field, (one, other, reason) in IN.items():
            message = f"`{field}` is missing from the key. {reason}"
            requests.compare("misses_field", message, {}, {field: one}, same=False, hint=1)
            requests.compare("misses_field", message, {field: one}, {field: other}, same=False, hint=1)
            message = f"A `{field}` called “None” is taken for none at all. Leave the pair out where the field is None."
            requests.compare("none_as_text", message, {}, {field: "None"}, same=False, hint=2)
        message = "Two different fields with the same text give the same pairs. The tag says which field it is."
        for one, other in (("cache_salt", "lora_name"), ("lora_name", "image_hash"), ("cache_salt", "image_hash")):
            requests.compare("confuses_fields", message, {one: "x"}, {other: "x"}, same=False, hint=2)
        message = "Where two of the three are set, one is lost."
        for one, other in permutations(IN, 2):
            requests.compare("misses_field", message, {one: "a", other: "b"}, {one: "a"}, same=False)
        message = "The order of a request's fields changes the pairs. Ask for them by name, in an order of your own."
        salted = {"cache_salt": "a", "lora_name": "b"}
        backwards = dict(reversed((REQUEST | salted).items()))
        if requests.pairs(salted) != requests.pairs(backwards, whole=True):
            got = f"{requests.pairs(salted)}\n{requests.pairs(backwards, whole=True)}"
            call = "the same request, its fields in two orders"
            probe.fail("depends_on_order", message, call=call, expected="the same pairs", got=got, hint=2)
    except Wrong as wrong:
        return Report(probe.name, probe.cases, diagnosis=wrong.diagnosis)
    tried = ("each field alone", "fields that are None", "an unknown field", "two at once")
    return Report(probe.name, probe.cases, tried)


class Requests(Keys):
    """Calls a function that picks pairs from a request."""

    def pairs(self, fields: Mapping[str, Any], whole: bool = False) -> tuple[tuple[str, str], ...]:
        """The pairs of the usual request with these fields, or of one that has these fields only."""
        request = dict(fields) if whole else {**REQUEST, **fields}
        text = _request_text(fields)
        given = dict(request)
        outcome = self.probe.call(self.function, given, text=text, expected="a tuple of (tag, value) pairs")
        rest = {"call": text, "expected": "a tuple of (tag, value) pairs of texts", "got": short(outcome.value)}
        if given != request:
            self.probe.fail(
                "mutates", "It changed the request, which belongs to the caller. Read from it only.", **rest
            )
        if outcome.value is None or outcome.value is Ellipsis:
            code, message = say_none(outcome.printed)
            self.probe.fail(code, message, printed=outcome.printed, hint=1, **rest)
        if inspect.iscoroutine(outcome.value):
            outcome.value.close()
        if not isinstance(outcome.value, tuple | list):
            self.probe.fail("not_pairs", "It must return a tuple of pairs; `()` where there are none.", hint=2, **rest)
        for pair in outcome.value:
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                message = f"{short(pair)} is no pair of a tag and a value, both of them text."
                self.probe.fail("not_pairs", message, hint=2, **rest)
        return tuple((str(tag), str(value)) for tag, value in outcome.value)

    def compare(
        self, code: str, message: str, one: Mapping[str, Any], other: Mapping[str, Any], *, same: bool, hint: int = 1
    ) -> None:
        """Two requests that differ in these fields must give the same pairs, or different ones."""
        first, second = self.pairs(one), self.pairs(other)
        if (first == second) != same:
            call = f"{_request_text(one)}\n{_request_text(other)}"
            expected = "the same pairs" if same else "different pairs"
            self.probe.fail(code, message, call=call, expected=expected, got=f"{first}\n{second}", hint=hint)


def _request_text(fields: Mapping[str, Any]) -> str:
    changes = ", ".join(f"{name!r}: {value!r}" for name, value in fields.items() if REQUEST.get(name) != value)
    return f"extra_keys(request | {{{changes}}})" if changes else "extra_keys(request)"


def _first_requests(requests: Requests) -> None:
    try:
        requests.pairs({})
    except Wrong as wrong:
        calls = [({**REQUEST, "cache_salt": "a"},), (dict(REQUEST),)]
        if wrong.diagnosis.code != "returns_none" or not _always_none(requests, *calls):
            raise
        requests.probe.fail(UNWRITTEN, say_unwritten("`extra_keys` returned None"), hint=1)


# find_a_collision

#: Token ids of the bundled model are below this.
VOCABULARY = 49_152
#: Far more than a birthday search over 20 bits needs (about 1,300), far fewer than hitting one key takes.
MOST_HASHES = 50_000
WEAK_BITS = 20


class TooMany(BaseException):
    """Ends a search that takes too many hashes. Not an Exception, so that no `except Exception` swallows it."""


class WeakHash:
    """A hash of blocks with few bits: sha256, cut off. Counts how often it is asked."""

    def __init__(self, seed: int, bits: int):
        self.seed, self.bits, self.asked = seed, bits, 0

    def __call__(self, token_ids: Sequence[int]) -> int:
        self.asked += 1
        if self.asked > MOST_HASHES:
            raise TooMany
        key = package_hash_block(bytes([self.seed]), [int(token) for token in token_ids])
        return int.from_bytes(key[:8], "little") >> (64 - self.bits)

    def __repr__(self) -> str:
        return f"a hash of {self.bits} bits"


def examine_find_a_collision(function: Any) -> Report:
    probe = Probe("find_a_collision")
    try:
        keys = Keys(probe, function)
        asked = [_examine_pair(keys, WeakHash(seed, bits)) for seed, bits in ((1, 4), (2, 12), (3, WEAK_BITS), (4, 20))]
    except Wrong as wrong:
        return Report(probe.name, probe.cases, diagnosis=wrong.diagnosis)
    note = f"A 20-bit hash has a million values, and {asked[-1]:,} tries were enough."
    return Report(probe.name, probe.cases, ("hashes of 4, 12 and 20 bits, two of the last",), (note,))


def _examine_pair(keys: Keys, weak_hash: WeakHash) -> int:
    text = "find_a_collision(weak_hash)"
    probe = keys.probe
    probe.cases += 1
    outcome = call_with_limit(keys.function, (weak_hash,), seconds=probe.seconds)
    rest = {"call": f"{text}   # {weak_hash!r}", "expected": "two blocks"}
    if isinstance(outcome.error, TooMany) or (outcome.timed_out and weak_hash.asked > 1000):
        probe.fail(
            "too_many_tries",
            f"It asked for {MOST_HASHES:,} hashes and found no pair. To hit *one* given key takes about a million "
            "tries, to find any two equal ones about a thousand. Keep all that you have seen, and look each key up.",
            got=f"{weak_hash.asked - 1:,} hashes, no pair",
            hint=1,
            **rest,
        )
    if outcome.error is not None or outcome.timed_out:
        probe.call(keys.function, weak_hash, text=text, expected="two blocks")  # says what went wrong
    pair = outcome.value
    if pair is None or pair is Ellipsis:
        if weak_hash.bits == 4 and not outcome.printed.strip() and not weak_hash.asked:
            probe.fail(UNWRITTEN, say_unwritten("`find_a_collision` returned None"), hint=1)
        code, message = say_none(outcome.printed)
        probe.fail(code, message, got=short(pair), printed=outcome.printed, hint=1, **rest)
    rest["got"] = short(pair, 120)
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(hasattr(block, "__len__") for block in pair):
        probe.fail("not_a_pair", "It must return two blocks: two lists of token ids.", hint=3, **rest)
    blocks = [[_as_token(token) for token in block] for block in pair]
    if not all(len(block) == 16 and None not in block for block in blocks):
        message = f"A block here is a list of 16 token ids, whole numbers from 0 to {VOCABULARY - 1:,}."
        probe.fail("not_blocks", message, hint=2, **rest)
    if blocks[0] == blocks[1]:
        message = "Both blocks are the same. That is no collision: find two *different* blocks with one key."
        probe.fail("same_block", message, hint=2, **rest)
    asked, weak_hash.asked = weak_hash.asked, 0
    one, other = map(weak_hash, blocks)
    if one != other:
        message = (
            "These two blocks have different keys. The hash is another one each time, so a pair must be searched for "
            "with the `weak_hash` that you are given."
        )
        probe.fail("no_collision", message, hint=2, **{**rest, "expected": "one key", "got": f"{one} and {other}"})
    return asked


def _as_token(token: Any) -> int | None:
    try:
        number = int(token)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == token and 0 <= number < VOCABULARY else None


EXERCISES = (
    Exercise("hash_block", "4.1", "The key of a block", examine_hash_block, slot="hash_block"),
    Exercise("block_keys", "4.2", "The keys of a prompt", examine_block_keys),
    Exercise("extra_keys", "4.3", "What belongs in a key", examine_extra_keys),
    Exercise("find_a_collision", "4.4", "Find a collision", examine_find_a_collision, stretch=True),
)
