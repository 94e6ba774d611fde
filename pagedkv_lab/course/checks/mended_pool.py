"""The check of exercise 5.4: a pool with its prefix cache in one, in the article's manner, and what has to be mended.

One scenario a mistake, from the smallest on, then a random life against the model: holders, keys, the order in which
blocks were freed. Among free blocks without a key any order is right, and so is a queue that takes no notice of keys.

Knows behaviour. Does not know the class that the learner's is made from.
"""

import inspect
import random
from collections.abc import Hashable, Sequence
from typing import Any

from pagedkv_lab.course.checks.objects import ObjectCheck, Subject, smallest
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report
from pagedkv_lab.errors import DoubleFree, OutOfBlocks


class Model:
    """A learner's pool beside the model. Every method makes one call on both and compares."""

    def __init__(self, probe: Probe, factory: Any, num_blocks: int):
        self.subject = Subject(probe, factory, "pool", num_blocks=num_blocks)
        self.probe = probe
        self.holders = [0] * num_blocks
        self.free_since: list[int] = list(range(num_blocks))  # the longest first
        self.block_of: dict[Hashable, int] = {}
        self.gone: dict[Hashable, int] = {}  # keys whose block was handed out since
        self.ignored: dict[int, Hashable] = {}  # blocks inserted under a key that was taken
        self.revived: set[int] = set()

    def allocate(self) -> int:
        expected = "a free block"
        value = self.subject.call_allowing(OutOfBlocks, "allocate")
        if isinstance(value, OutOfBlocks):
            message = (
                f"{len(self.free_since)} blocks are free, found by a key or not, and `allocate` says that none is."
            )
            self._fail("lost_block", message, expected, "OutOfBlocks", hint=2)
        block = self.probe.whole_number(value, self.subject.transcript, expected)
        if not 0 <= block < len(self.holders):
            self._fail("no_such_block", f"The pool has no block {block}.", expected, f"block {block}")
        if self.holders[block]:
            self._in_use(block, expected)
        keyed = set(self.block_of.values())
        if block in keyed and keyed >= set(self.free_since) and block != self.free_since[0]:
            self._out_of_turn(block)
        for key in [key for key, of in self.block_of.items() if of == block]:
            self.gone[key] = self.block_of.pop(key)
        self.ignored.pop(block, None)
        self.free_since.remove(block)
        self.revived.discard(block)
        self.holders[block] = 1
        return block

    def allocate_from_nothing(self) -> None:
        value = self.subject.call_allowing(OutOfBlocks, "allocate")
        if not isinstance(value, OutOfBlocks):
            if isinstance(value, int) and 0 <= value < len(self.holders):
                self._in_use(value, "OutOfBlocks is raised")
            message = f"All blocks are in use, and `allocate` returned {short(value)}."
            self._fail("no_error_when_empty", message, "OutOfBlocks is raised", short(value))

    def free(self, block: int) -> None:
        self.holders[block] -= 1
        self.subject.call("free", block)
        if self.holders[block] == 0:
            self.free_since.append(block)

    def free_too_often(self, block: int) -> None:
        value = self.subject.call_allowing(DoubleFree, "free", block)
        if not isinstance(value, DoubleFree):
            message = (
                f"Nobody holds block {block}, and `free` did not object. The count is at -1 now, or the block is free "
                "twice, and two users get it. Raise DoubleFree."
            )
            self._fail("double_free_unnoticed", message, "DoubleFree is raised", "no error", hint=1)

    def share(self, block: int) -> None:
        self.subject.call("share", block)
        if self.holders[block] == 0:
            self.free_since.remove(block)
            self.revived.add(block)
        self.holders[block] += 1

    def insert(self, key: Hashable, block: int) -> None:
        self.subject.call("insert", key, block)
        if key in self.block_of:
            if self.block_of[key] != block:
                self.ignored[block] = key
        else:
            self.block_of[key] = block
            self.gone.pop(key, None)

    def look(self, key: Hashable) -> None:
        expected = self.block_of.get(key)
        value = self.subject.call("lookup", key, expected=str(expected))
        if value == expected and not isinstance(value, bool):
            return
        rest = {"expected": str(expected), "got": short(value)}
        if expected is None and key in self.gone and value == self.gone[key]:
            message = (
                f"Block {value} was handed out again: it is about to hold somebody else's tokens, and the old key "
                "still finds it. This is how one user gets the other's answer."
            )
            self._fail("stale_entry", message, **rest, hint=2)
        if expected is not None and value is not None and self.ignored.get(value) == key:
            message = (
                "A second block came under the same key and took the first one's place. Sequences share the first: it "
                "stays."
            )
            self._fail("overwrites", message, **rest, hint=3)
        if expected is not None and value is None:
            if self.holders[expected] == 0:
                message = (
                    f"Block {expected} is free and was not handed out again: what it holds is still there, and must be "
                    "found."
                )
                self._fail("forgets_too_early", message, **rest, hint=2)
            message = f"Block {expected} was inserted under this key and is in use, and it is not found any more."
            self._fail("forgets_another", message, **rest, hint=3)
        self._fail("wrong_block", "`lookup` does not say what was inserted.", **rest, hint=3)

    # Inside

    def _in_use(self, block: int, expected: str) -> None:
        got = f"block {block}"
        if block in self.revived:
            message = (
                f"Block {block} was free, and somebody's prompt found it: `share`. It stayed among the free blocks, "
                "and was handed out under that somebody's feet."
            )
            self._fail("share_leaves_it_free", message, expected, got, hint=1)
        message = f"Block {block} was handed out while somebody holds it."
        self._fail("handed_out_in_use", message, expected, got)

    def _out_of_turn(self, block: int) -> None:
        expected, got = f"block {self.free_since[0]}, freed longest ago", f"block {block}"
        if block == self.free_since[-1]:
            message = (
                "What was freed last was overwritten first: a cache that forgets the newest finds next to nothing. "
                "Take free blocks from the other end."
            )
            self._fail("evicts_the_newest", message, expected, got, hint=3)
        self._fail(
            "out_of_turn",
            "Of free blocks that can be found, the one freed longest ago goes first.",
            expected,
            got,
            hint=3,
        )

    def _fail(self, code: str, message: str, expected: str, got: str, hint: int = 1) -> None:
        self.subject.fail(code, message, expected=expected, got=got, hint=hint)


def freed_twice(probe: Probe, factory: Any) -> None:
    pool = Model(probe, factory, 1)
    block = pool.allocate()
    pool.allocate_from_nothing()
    pool.free(block)
    pool.free_too_often(block)
    pool.allocate()
    pool.allocate_from_nothing()


def found_while_free(probe: Probe, factory: Any) -> None:
    pool = Model(probe, factory, 2)
    block = pool.allocate()
    pool.look(b"A")
    pool.insert(b"A", block)
    pool.look(b"A")
    pool.free(block)
    pool.look(b"A")
    pool.share(block)
    pool.allocate()
    pool.allocate_from_nothing()
    pool.look(b"A")
    pool.free(block)
    pool.free_too_often(block)


def handed_out_again(probe: Probe, factory: Any) -> None:
    pool = Model(probe, factory, 1)
    block = pool.allocate()
    pool.insert(b"A", block)
    pool.free(block)
    pool.allocate()
    pool.look(b"A")
    pool.insert(b"B", block)
    pool.look(b"B")
    pool.look(b"A")
    pool.free(block)
    pool.allocate()
    pool.look(b"B")


def two_under_a_key(probe: Probe, factory: Any) -> None:
    pool = Model(probe, factory, 2)
    one, other = pool.allocate(), pool.allocate()
    pool.insert(b"A", one)
    pool.insert(b"A", other)
    pool.look(b"A")
    pool.free(other)
    pool.allocate()
    pool.look(b"A")


def the_oldest_goes(probe: Probe, factory: Any) -> None:
    for order in ((0, 1), (1, 2, 0)):
        pool = Model(probe, factory, len(order))
        blocks = [pool.allocate() for _ in order]
        for key, block in zip((b"A", b"B", b"C"), blocks, strict=False):
            pool.insert(key, block)
        for which in order:
            pool.free(blocks[which])
        for _ in order:
            pool.allocate()
            for key in (b"A", b"B", b"C"):
                pool.look(key)


def random_life(probe: Probe, factory: Any) -> None:
    draw = random.Random(0)
    keys = [b"A", b"B", b"C", b"D", b"E", b"F"]
    kinds = draw.choices(("allocate", "share", "free", "insert"), (5, 3, 6, 4), k=150)
    life = [(kind, draw.randrange(4), draw.choice(keys)) for kind in kinds]

    def lead(steps: Sequence[tuple[str, int, bytes]]) -> None:
        pool = Model(probe, factory, 4)
        for kind, block, key in steps:
            keyed = set(pool.block_of.values())
            if kind == "allocate":
                if pool.free_since:
                    pool.allocate()
                else:
                    pool.allocate_from_nothing()
            elif kind == "share" and (pool.holders[block] or block in keyed):
                pool.share(block)
            elif kind == "free":
                (pool.free if pool.holders[block] else pool.free_too_often)(block)
            # A block gets its key once, when it is full.
            elif kind == "insert" and pool.holders[block] and block not in keyed:
                pool.insert(key, block)
            pool.look(key)

    smallest(life, lead)


SCENARIOS = (freed_twice, found_while_free, handed_out_again, two_under_a_key, the_oldest_goes, random_life)
TRIED = (
    "a double free", "a hit on a free block", "a block handed out again", "a key twice", "the oldest first",
    "a random life",
)  # fmt: skip

_examine = ObjectCheck("MendedPool", SCENARIOS, TRIED)


def mended_pool(implementation: Any) -> Report:
    """Check a pool. One that changes nothing of the class it is made from is the stub."""
    report = _examine(implementation)
    if report.passed or not inspect.isclass(implementation):
        return report
    changed = [name for name, value in vars(implementation).items() if callable(value) or isinstance(value, property)]
    if changed:
        return report
    try:
        Probe("MendedPool").fail(UNWRITTEN, say_unwritten("`MendedPool` changes nothing of `ArticlePool`"), hint=1)
    except Wrong as wrong:
        return Report("MendedPool", report.cases, diagnosis=wrong.diagnosis)
