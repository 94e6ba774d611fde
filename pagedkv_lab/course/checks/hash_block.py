"""The check of exercise 4.1: the key of a block, of its tokens and of all that came before.

Knows what must change a key and what must not. Does not know how a key is made.
"""

import copy
import inspect
import random
from collections.abc import Callable, Hashable
from itertools import product
from types import FunctionType
from typing import Any, NoReturn

from pagedkv_lab.course.checks.keys import SALT, SEPARATORS, SHORT, SMALL_BLOCKS, Keys, Parent, always_none
from pagedkv_lab.course.checks.limits import call_with_limit
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report


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
        if wrong.diagnosis.code != "returns_none" or not always_none(keys, (None, block), (None, [5, 6], SALT)):
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
