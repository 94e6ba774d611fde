"""The check of exercise 4.4: two blocks with the same weak key.

Knows weak hashes, and how many calls a search may take.
"""

from collections.abc import Sequence
from typing import Any

from pagedkv_lab.blocks.hashing import hash_block as package_hash_block
from pagedkv_lab.course.checks.keys import Keys
from pagedkv_lab.course.checks.limits import call_with_limit
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report

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
