"""The check of exercise 4.2: the keys of a prompt, one for each full block.

Knows chains. Does not know how a single key is made.
"""

import inspect
import random
from collections.abc import Hashable, Sequence
from typing import Any

from pagedkv_lab.course.checks.keys import SALT, Keys, always_none, is_key
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report


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
            if key is not None and not is_key(key):
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
        if wrong.diagnosis.code != "returns_none" or not always_none(lists, ([1, 2], 2), ([], 4), ([1], 4)):
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
