"""Checks of chapter 05: what is found again (5.1, 5.3). `caching_allocator`, `mended_pool`, `victims` have the rest.

A learner's cache is used beside a tiny model of the right behaviour, two dictionaries. Which call came last, and what
became of a key, decide what a wrong answer is called.

Knows behaviour: keys, blocks, answers. Never looks into a cache.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pagedkv_lab.course.checks.caching_allocator import caching_allocator
from pagedkv_lab.course.checks.mended_pool import mended_pool
from pagedkv_lab.course.checks.objects import ObjectCheck, Subject, smallest
from pagedkv_lab.course.checks.probe import Probe, Wrong, say, say_none, say_unwritten, short
from pagedkv_lab.course.checks.registry import Exercise
from pagedkv_lab.course.checks.report import UNWRITTEN, Report
from pagedkv_lab.course.checks.victims import choose_victim

# 5.1: from key to block, and the way back.


class Cache:
    """A learner's prefix cache beside the model: `block_of` and `key_of`. Every method makes one call and compares."""

    def __init__(self, probe: Probe, factory: Any, name: str = "cache"):
        self.subject = Subject(probe, factory, name)
        self.block_of: dict[Hashable, int] = {}
        self.key_of: dict[int, Hashable] = {}
        #: What became of keys that are not there any more: "forgotten", or "renamed" where the block got another key.
        self.fate: dict[Hashable, str] = {}
        self.ignored: set[tuple[Hashable, int]] = set()
        self.last = ""

    def insert(self, key: Hashable, block: int) -> None:
        self.last = "insert"
        value = self.subject.call_allowing(Exception, "insert", key, block)
        if isinstance(value, Exception):
            there = (
                " The key is there already: the first block stays, and nothing happens." if key in self.block_of else ""
            )
            message = f"`insert` raised {say(value)}.{there}"
            self._fail("insert_raises", message, "no error", type(value).__name__)
        if key in self.block_of:
            self.ignored.add((key, block))
            return
        self._drop(block, "renamed")
        self.block_of[key], self.key_of[block] = block, key
        self.fate.pop(key, None)

    def forget(self, block: int) -> None:
        self.last = f"forget {block}"
        if not callable(getattr(self.subject.object, "forget", None)):
            self.subject.lines.append(f"cache.forget({block})")
            message = (
                "It has no `forget`, as the article's has none. Blocks are handed out again, and then their old keys "
                "must go: without it, one user is answered from another's prompt."
            )
            self._fail("no_forget", message, "no error", "AttributeError", hint=2)
        value = self.subject.call_allowing(Exception, "forget", block)
        if isinstance(value, Exception):
            has_key = block in self.key_of
            message = f"`forget({block})` raised {say(value)}."
            if not has_key:
                message += (
                    " The engine asks it for every block that it hands out, and most have no key: leave them alone."
                )
            self._fail("forget_raises", message, "no error", type(value).__name__, hint=2)
        self._drop(block, "forgotten")

    def look(self, key: Hashable) -> None:
        """Look a key up and compare."""
        expected = self.block_of.get(key)
        before, self.last = self.last, "lookup"
        value = self.subject.call_allowing(Exception, "lookup", key)
        if isinstance(value, Exception):
            if expected is None:
                message = (
                    f"Nothing is there under this key, and `lookup` raised {say(value)}. A miss is no error, it "
                    "happens all the time: return None."
                )
                self._fail("miss_raises", message, "None", type(value).__name__)
            self._fail("raises", f"`lookup` raised {say(value)}.", _block(expected), type(value).__name__)
        if expected is None:
            self._must_be_a_miss(key, value)
        else:
            self._must_be(key, value, expected, before)

    # Inside

    def _must_be_a_miss(self, key: Hashable, value: Any) -> None:
        if value is None:
            return
        if value is False or (isinstance(value, int) and value < 0):
            message = (
                f"Nothing is there under this key, and `lookup` returned {value!r}. Python takes that for a number: "
                f"as an index, {int(value)} is a block. Return None."
            )
            self._fail("miss_is_not_none", message, "None", short(value))
        fate, got = self.fate.get(key), short(value)
        if fate == "forgotten":
            message = (
                f"`forget` said that block {got} is about to be overwritten, and its key still finds it. Whoever asks "
                "for this prefix would be answered from somebody else's."
            )
            self._fail("still_found", message, "None", got, hint=2)
        if fate == "renamed":
            message = f"Block {got} got another key since: what it holds has changed. Its old key must not find it."
            self._fail("two_keys", message, "None", got, hint=3)
        message = "Nothing was ever inserted under this key, and it was found."
        self._fail("found_too_much", message, "None", got)

    def _must_be(self, key: Hashable, value: Any, expected: int, before: str) -> None:
        wanted, got = _block(expected), short(value)
        if value is None:
            if before == "lookup":
                message = "The first `lookup` found it, the second did not. Looking must not take anything away."
                self._fail("lookup_removes", message, wanted, got)
            if before.startswith("forget"):
                message = (
                    f"`{before.replace(' ', '(')})` dropped a key that is not the block's own: {wanted} was inserted "
                    "under it."
                )
                self._fail("forgets_another", message, wanted, got, hint=2)
            if not key and key is not None:
                message = f"The key {key!r} is lost: `if key:` is false for it. Compare with None where you mean None."
                self._fail("falsy_key", message, wanted, got)
            if expected == 0:
                message = "Block 0 is lost: `if block:` is false for it. Compare with None: `if block is None:`."
                self._fail("block_0", message, wanted, got)
            self._fail("not_found", "It was inserted and nobody forgot it, and `lookup` does not find it.", wanted, got)
        if isinstance(value, bool | str | float | list | tuple | set | dict) or not hasattr(value, "__index__"):
            message = f"`lookup` returned {got}. Return the block's number alone."
            self._fail("wrong_type", message, wanted, got)
        if value == expected:
            return
        if (key, int(value)) in self.ignored:
            message = (
                "The second block under a key took the place of the first. Sequences share the first one already: it "
                "stays, and the second `insert` does nothing."
            )
            self._fail("overwrites", message, wanted, got, hint=2)
        self._fail("wrong_block", "`lookup` found another block than the one inserted under this key.", wanted, got)

    def _drop(self, block: int, fate: str) -> None:
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]
            self.fate[key] = fate

    def _fail(self, code: str, message: str, expected: str, got: str, hint: int = 1) -> None:
        self.subject.fail(code, message, expected=expected, got=got, hint=hint)


def _block(block: int | None) -> str:
    return "None" if block is None else f"{block}"


def is_written(probe: Probe, factory: Any) -> None:
    """A stub stores nothing and returns None."""
    subject = Subject(probe, factory, "cache")
    subject.call("insert", b"A", 3)
    value = subject.call("lookup", b"A", expected="3")
    stored = getattr(subject.object, "__dict__", None) or (hasattr(subject.object, "__len__") and len(subject.object))
    if value in (None, ...) and not stored:
        probe.fail(UNWRITTEN, say_unwritten(f"`{probe.name}` keeps nothing, and `lookup` returned None"), hint=1)


def one_key(probe: Probe, factory: Any) -> None:
    cache = Cache(probe, factory)
    cache.look(b"A")
    cache.insert(b"A", 3)
    cache.look(b"A")
    cache.look(b"A")
    cache.look(b"B")


def any_key_and_any_block(probe: Probe, factory: Any) -> None:
    cache = Cache(probe, factory)
    for block, key in enumerate((b"A", "A", ("parent", (1, 2)), b"", 0)):
        cache.insert(key, block)
        cache.look(key)


def forgotten(probe: Probe, factory: Any) -> None:
    cache = Cache(probe, factory)
    cache.forget(3)
    cache.insert(b"A", 3)
    cache.forget(5)
    cache.look(b"A")
    cache.forget(3)
    cache.look(b"A")
    cache.forget(3)
    cache.insert(b"A", 5)
    cache.look(b"A")


def forgotten_among_others(probe: Probe, factory: Any) -> None:
    for which in range(3):
        cache = Cache(probe, factory)
        for block, key in enumerate((b"A", b"B", b"C")):
            cache.insert(key, block)
        cache.forget(which)
        for key in (b"A", b"B", b"C"):
            cache.look(key)
        cache.insert(b"D", which)
        for key in (b"A", b"B", b"C", b"D"):
            cache.look(key)


def two_blocks_under_a_key(probe: Probe, factory: Any) -> None:
    cache = Cache(probe, factory)
    cache.insert(b"A", 1)
    cache.insert(b"A", 2)
    cache.look(b"A")
    cache.forget(2)
    cache.look(b"A")
    cache.forget(1)
    cache.look(b"A")


def another_key_for_a_block(probe: Probe, factory: Any) -> None:
    cache = Cache(probe, factory)
    cache.insert(b"A", 1)
    cache.insert(b"B", 1)
    cache.look(b"B")
    cache.look(b"A")
    cache.forget(1)
    cache.look(b"B")
    cache.look(b"A")


def two_caches(probe: Probe, factory: Any) -> None:
    one, other = Cache(probe, factory, "one"), Cache(probe, factory, "other")
    one.insert(b"A", 3)
    value = other.subject.call_allowing(Exception, "lookup", b"A")
    if value == 3:
        message = (
            "Two caches share their entries. Make the dictionaries in `__init__`, as `self. ...`, not in the class."
        )
        example = "\n".join((*one.subject.lines, *other.subject.lines))
        probe.fail("shared_between_caches", message, call=example, expected="None", got=short(value), hint=1)
    one.look(b"A")


def random_life(probe: Probe, factory: Any) -> None:
    draw = random.Random(0)
    keys = [b"A", b"B", b"C", b"D", b"E"]
    kinds = draw.choices(("insert", "forget", "look"), (4, 2, 3), k=200)
    life = [(kind, draw.choice(keys), draw.randrange(5)) for kind in kinds]

    def lead(steps: Sequence[tuple[str, bytes, int]]) -> None:
        cache = Cache(probe, factory)
        for kind, key, block in steps:
            # Not said: what becomes of a block's key where the block is inserted under a key that is taken.
            taken = key in cache.block_of and block in cache.key_of
            if kind == "insert" and not taken:
                cache.insert(key, block)
            elif kind == "forget":
                cache.forget(block)
            cache.look(key)

    smallest(life, lead)


SCENARIOS = (
    is_written, two_caches, one_key, any_key_and_any_block, forgotten, forgotten_among_others, two_blocks_under_a_key,
    another_key_for_a_block, random_life,
)  # fmt: skip
TRIED = ("hits and misses", "block 0", "keys of all kinds", "forgetting", "a key twice", "two caches", "a random life")

prefix_cache = ObjectCheck("PrefixCache", SCENARIOS, TRIED)


# 5.3: how much of a prompt is there already.

Answer = tuple[list[int], int]


def longest_prefix(
    lookup: Callable[[Any], int | None], keys: Sequence[Any], num_tokens: int, block_size: int
) -> Answer:
    """The right answer. The known mistakes below differ from it in one thing each."""
    blocks: list[int] = []
    for key in keys:
        block = lookup(key)
        if block is None:
            break
        blocks.append(block)
    return blocks, min(len(blocks) * block_size, num_tokens - 1)


def _past_the_miss(lookup, keys, num_tokens, block_size):
    blocks = [block for key in keys if (block := lookup(key)) is not None]
    return blocks, min(len(blocks) * block_size, num_tokens - 1)


def _hits_the_last_token(lookup, keys, num_tokens, block_size):
    blocks, _ = longest_prefix(lookup, keys, num_tokens, block_size)
    return blocks, len(blocks) * block_size


def _gives_the_last_block_up(lookup, keys, num_tokens, block_size):
    blocks, _ = longest_prefix(lookup, keys, num_tokens, block_size)
    if len(blocks) * block_size == num_tokens:
        del blocks[-1]
    return blocks, len(blocks) * block_size


def _always_one_less(lookup, keys, num_tokens, block_size):
    blocks, _ = longest_prefix(lookup, keys, num_tokens, block_size)
    return blocks, max(0, len(blocks) * block_size - 1)


def _counts_blocks(lookup, keys, num_tokens, block_size):
    blocks, _ = longest_prefix(lookup, keys, num_tokens, block_size)
    return blocks, len(blocks)


def _counts_the_rest(lookup, keys, num_tokens, block_size):
    blocks, computed = longest_prefix(lookup, keys, num_tokens, block_size)
    return blocks, num_tokens - computed


def _block_0_is_a_miss(lookup, keys, num_tokens, block_size):
    return longest_prefix(lambda key: lookup(key) or None, keys, num_tokens, block_size)


def _all_keys(lookup, keys, num_tokens, block_size):
    return longest_prefix(lookup, keys, num_tokens, block_size)[0], num_tokens - 1


#: (keys found, keys of the prompt, tokens, block size): the cached blocks by key, "a" the first.
CASES = (
    ({"a": 4}, "a", 20, 16),
    ({}, "a", 20, 16),
    ({"a": 4, "b": 7}, "abc", 60, 16),
    ({"a": 4}, "a", 16, 16),
    ({"a": 4, "c": 9}, "abc", 60, 16),
    ({"b": 7}, "ab", 40, 16),
    ({"a": 4, "b": 7, "c": 1}, "abc", 48, 16),
    ({"a": 0, "b": 7}, "ab", 40, 16),
    ({}, "", 3, 16),
    ({"a": 2}, "a", 1, 1),
    ({"a": 5, "b": 3, "d": 8}, "abcd", 17, 4),
)
#: Code, message, the wrong function, hint.
MISTAKES = (
    (
        "past_the_miss",
        "It went on after the first miss. A block holds keys and values that were computed with everything before it; "
        "with a gap in front, its positions are not even where the block table puts them.",
        _past_the_miss, 1,
    ),
    (
        "hits_the_last_token",
        "The whole prompt was found, and nothing is left to compute. But the next token comes out of the model's "
        "answer to the last token, and that answer is not in the cache. One token must be computed.",
        _hits_the_last_token, 2,
    ),
    (
        "gives_up_a_block",
        "On a full hit the last block was given up, so that all its tokens are computed again. Keep the block: only "
        "the last token needs computing, and it is written nowhere.",
        _gives_the_last_block_up, 2,
    ),
    (
        "always_one_less",
        "It leaves one token out of every hit. Only a prompt that was found completely has its last token computed "
        "again.",
        _always_one_less, 2,
    ),
    ("counts_blocks", "The second answer is the number of blocks. It should be tokens.", _counts_blocks, 3),
    (
        "counts_the_rest",
        "The second answer is how many tokens are left to compute. It should be how many are there already.",
        _counts_the_rest, 3,
    ),
    (
        "block_0",
        "Block 0 was taken for a miss: `if not block:` is true for 0. Compare with None: `if block is None:`.",
        _block_0_is_a_miss, 1,
    ),
    (
        "no_count",
        "The number of tokens does not depend on the blocks that were found. Each found block holds `block_size` "
        "tokens.",
        _all_keys, 3,
    ),
)  # fmt: skip


def match_prefix(function: Any) -> Report:
    """Check an implementation of `match_prefix(lookup, keys, num_tokens, block_size)`."""
    probe = Probe("match_prefix")
    try:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        answers = [_matched(probe, function, case) for case in CASES]
        rights = [longest_prefix(cached.get, *rest) for cached, *rest in CASES]
        for case, answer, right in zip(CASES, answers, rights, strict=True):
            if answer != right:
                _explain(probe, case, answers, answer, right)
    except Wrong as wrong:
        return Report("match_prefix", probe.cases, diagnosis=wrong.diagnosis)
    tried = ("hits and misses", "a gap", "a full hit", "block 0", "no full block")
    return Report("match_prefix", probe.cases, tried)


def _text(case: tuple) -> str:
    cached, keys, num_tokens, block_size = case
    return (
        f"cached = {cached}\nmatch_prefix(cached.get, {list(keys)}, num_tokens={num_tokens}, block_size={block_size})"
    )


def _matched(probe: Probe, function: Callable[..., Any], case: tuple) -> Answer:
    """What the function says of a case, as a pair of a list and an int."""
    cached, names, num_tokens, block_size = case
    keys, text, expected = list(names), _text(case), str(longest_prefix(cached.get, *case[1:]))
    example = {"call": text, "expected": expected}
    outcome = probe.call(function, dict(cached).get, keys, num_tokens, block_size, text=text, expected=expected)
    value = outcome.value
    if value is None or value is ...:
        if outcome.printed.strip():
            probe.fail(*say_none(outcome.printed), got="None", printed=outcome.printed, hint=1, **example)
        probe.fail(UNWRITTEN, say_unwritten("`match_prefix` returned None"), hint=1)
    if keys != list(names):
        message = "It changed the list of keys, which belongs to the sequence. Leave it as it is."
        probe.fail("mutates", message, got=f"keys is now {short(keys)}", hint=3, **example)
    if not isinstance(value, tuple | list) or len(value) != 2:
        message = f"It returned {short(value)}. Return a pair: `return blocks, num_computed_tokens`."
        probe.fail("not_a_pair", message, got=short(value), hint=3, **example)
    blocks, computed = value
    try:
        blocks = [probe.whole_number(block, text, expected, hint=3) for block in blocks]
    except TypeError:
        message = f"The first of the pair is {short(blocks)}. It should be a list of blocks, in order."
        probe.fail("no_blocks", message, got=short(value), hint=3, **example)
    return blocks, probe.whole_number(computed, text, expected, hint=3)


def _explain(probe: Probe, case: tuple, answers: Sequence[Answer], answer: Answer, right: Answer) -> None:
    example = {"call": _text(case), "expected": str(right), "got": str(answer)}
    for code, message, wrong, hint in MISTAKES:
        if answers == [wrong(cached.get, *rest) for cached, *rest in CASES]:
            probe.fail(code, message, hint=hint, **example)
    if answer[0] != right[0]:
        # Two mistakes at once, or one of its own: what is seen.
        message = "These are not the blocks of the longest prefix that is there without a gap."
        probe.fail("wrong_blocks", message, hint=1, **example)
    message = f"{len(right[0])} blocks were found, and {right[1]} tokens of the prompt need no computing."
    probe.fail("wrong_count", message, hint=2, **example)


EXERCISES = (
    Exercise("PrefixCache", "5.1", "From key to block", prefix_cache, slot="PrefixCache"),
    Exercise("CachingAllocator", "5.2", "Who goes first", caching_allocator, slot="BlockAllocator"),
    Exercise("match_prefix", "5.3", "The longest prefix, and the full hit", match_prefix),
    Exercise("MendedPool", "5.4", "The article's pool, mended", mended_pool),
    Exercise("choose_victim", "5.5", "Better than LRU", choose_victim, stretch=True),
)
