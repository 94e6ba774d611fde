"""The check of exercise 5.2: chapter 02's allocator, and which free block is handed out first.

Chapter 02's scenarios come first, those in which no block is findable. Then the model learns which blocks are, and in
which order they were freed. Among the empty blocks any order is right.

Knows behaviour: which block comes. Does not know how the free blocks are kept.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from pagedkv_lab.course.checks.allocator_protocol import (
    Pool,
    freed_twice,
    is_written,
    many_blocks,
    one_block,
    searches,
    two_holders,
    two_pools,
)
from pagedkv_lab.course.checks.objects import ObjectCheck, smallest
from pagedkv_lab.course.checks.probe import Probe, Wrong, say
from pagedkv_lab.errors import OutOfBlocks


class CachingPool(Pool):
    """Chapter 02's model, and with it `cached`: the free blocks that are findable, freed longest ago first."""

    def __init__(self, probe: Probe, factory: Any, num_blocks: int):
        super().__init__(probe, factory, num_blocks)
        self.findable: set[int] = set()
        self.cached: list[int] = []
        self.evicted: set[int] = set()  # were findable, and were handed out since
        self.unmarked: set[int] = set()  # by mark_findable(block, False)
        self.found_again: set[int] = set()

    def allocate(self) -> int:
        cached, empty = list(self.cached), self._empty()
        block = super().allocate()
        if block in cached:
            self._check_victim(block, cached, empty)
            self.cached.remove(block)
            self.evicted.add(block)
        self.findable.discard(block)
        for seen in (self.unmarked, self.found_again):
            seen.discard(block)
        return block

    def mark(self, block: int, findable: bool = True) -> None:
        """Say of a block in use whether it can be found."""
        arguments = (block,) if findable else (block, False)
        value = self.subject.call_allowing(Exception, "mark_findable", *arguments)
        if isinstance(value, Exception):
            message = f"Block {block} is in use, and `mark_findable` raised {say(value)}."
            self._fail("mark_refuses", message, "no error", type(value).__name__)
        if findable:
            self.findable.add(block)
            self.evicted.discard(block)
            self.unmarked.discard(block)
        elif block in self.findable:
            self.findable.discard(block)
            self.unmarked.add(block)

    def share(self, block: int) -> None:
        if block in self.cached:
            self.cached.remove(block)
            self.found_again.add(block)
        super().share(block)

    def free(self, block: int) -> None:
        super().free(block)
        if self.holders[block] == 0 and block in self.findable:
            self.cached.append(block)

    def look_at_num_free(self) -> None:
        try:
            super().look_at_num_free()
        except Wrong as wrong:
            found = wrong.diagnosis
            if self.cached and found.got == str(self.num_free - len(self.cached)):
                message = (
                    "A free block that is findable is free all the same, and must be counted: the engine lets a "
                    "request in where enough are free."
                )
                self._fail("cached_not_counted", message, found.expected, found.got, hint=2)
            raise

    # Inside

    def _empty(self) -> list[int]:
        return [block for block, count in enumerate(self.holders) if count == 0 and block not in self.cached]

    def _check_victim(self, block: int, cached: list[int], empty: list[int]) -> None:
        """`allocate` handed out a free block that was findable: was it the turn of it?"""
        got = f"block {block}"
        if empty:
            expected = f"block {empty[0]}, which holds nothing" if len(empty) == 1 else "one of the empty blocks"
            if reused := self.evicted & set(empty):
                message = (
                    f"Block {min(reused)} was findable in an earlier life. It was handed out since, and nobody marked "
                    f"it again: it is empty, and goes before block {block}. Handing a block out must drop its mark."
                )
                self._fail("mark_kept", message, expected, got, hint=3)
            if unmarked := self.unmarked & set(empty):
                message = f"`mark_findable({min(unmarked)}, False)` took the mark back: that block is empty."
                self._fail("mark_not_taken_back", message, expected, got, hint=2)
            message = (
                f"Block {block} can be found, and it was given away while an empty block was free. What it holds would "
                "have to be computed again."
            )
            self._fail("evicts_too_early", message, expected, got, hint=2)
        if block == cached[0]:
            return
        expected = f"block {cached[0]}, freed longest ago"
        if block in self.found_again:
            message = (
                f"Block {block} was found again and freed after the others: it is the newest now, and it went first. A "
                "block that comes back goes to the end of the queue again, and keeps its mark."
            )
            self._fail("found_again_goes_first", message, expected, got, hint=3)
        if block == cached[-1]:
            message = f"The newest went first. What was freed last is most likely to be asked for again: {expected}."
            self._fail("evicts_the_newest", message, expected, got, hint=2)
        message = "It went out of turn: of the findable blocks, the one freed longest ago goes first."
        self._fail("out_of_turn", message, expected, got, hint=2)

    def _says_empty(self, error: Exception) -> NoReturn:
        if isinstance(error, OutOfBlocks) and self.cached and not self._empty():
            message = (
                f"Block {self.cached[0]} is free: nobody holds it, it can only be found. `allocate` says that none is "
                "left. When no empty block is left, a findable one has to go."
            )
            self._fail("never_evicts", message, f"block {self.cached[0]}", "OutOfBlocks", hint=2)
        return super()._says_empty(error)


def one_findable_block(probe: Probe, factory: Any) -> None:
    pool = CachingPool(probe, factory, 1)
    block = pool.allocate()
    pool.mark(block)
    pool.look(block)
    pool.free(block)
    pool.look(block)
    pool.allocate()
    pool.look(block)
    pool.allocate_from_nothing()


def empty_ones_first(probe: Probe, factory: Any) -> None:
    for findable in range(3):
        pool = CachingPool(probe, factory, 3)
        blocks = [pool.allocate() for _ in range(3)]
        pool.mark(blocks[findable])
        for block in blocks:
            pool.free(block)
        for _ in range(3):
            pool.allocate()
        pool.allocate_from_nothing()


def longest_ago_first(probe: Probe, factory: Any) -> None:
    # Not the order of their numbers, up or down, nor that in which they were allocated: places among the sorted ones.
    for order in ((2, 0, 1), (0, 2, 1), (1, 2, 0), (2, 0, 3, 1)):
        pool = CachingPool(probe, factory, len(order))
        blocks = sorted(pool.allocate() for _ in order)
        for block in blocks:
            pool.mark(block)
        for which in order:
            pool.free(blocks[which])
        for _ in order:
            pool.allocate()
        pool.allocate_from_nothing()


def found_again(probe: Probe, factory: Any) -> None:
    """A hit on a free block: from any place in the queue, and to its end when it is freed again."""
    for which in range(3):
        pool = CachingPool(probe, factory, 3)
        blocks = [pool.allocate() for _ in range(3)]
        for block in blocks:
            pool.mark(block)
            pool.free(block)
        pool.share(blocks[which])
        pool.look(blocks[which])
        pool.allocate()
        pool.free(blocks[which])
        pool.look(blocks[which])
        pool.free_too_often(blocks[which])
        pool.allocate()
        pool.allocate()
        pool.allocate_from_nothing()


def shared_while_in_use(probe: Probe, factory: Any) -> None:
    pool = CachingPool(probe, factory, 2)
    block = pool.allocate()
    pool.mark(block)
    pool.share(block)
    pool.free(block)
    pool.look(block)
    pool.allocate()
    pool.allocate_from_nothing()
    pool.free(block)
    pool.look(block)
    pool.look(pool.allocate())


def mark_dropped(probe: Probe, factory: Any) -> None:
    """A block that was handed out anew is not findable until it is marked again."""
    pool = CachingPool(probe, factory, 2)
    for block in [pool.allocate(), pool.allocate()]:
        pool.mark(block)
        pool.free(block)
    pool.free(pool.allocate())
    pool.allocate()
    pool.allocate()


def mark_taken_back(probe: Probe, factory: Any) -> None:
    pool = CachingPool(probe, factory, 2)
    one, other = pool.allocate(), pool.allocate()
    pool.mark(one)
    pool.mark(other)
    pool.mark(other, False)
    pool.free(one)
    pool.free(other)
    pool.allocate()
    pool.allocate()


def random_life(probe: Probe, factory: Any) -> None:
    draw = random.Random(0)
    kinds = draw.choices(("allocate", "share", "free", "mark", "unmark"), (5, 3, 6, 4, 1), k=200)
    life = [(kind, draw.randrange(5)) for kind in kinds]

    def lead(steps: Sequence[tuple[str, int]]) -> None:
        pool = CachingPool(probe, factory, 5)
        for kind, block in steps:
            if kind == "allocate":
                if pool.num_free:
                    block = pool.allocate()
                else:
                    pool.allocate_from_nothing()
            elif kind == "share" and (pool.holders[block] or block in pool.cached):
                pool.share(block)
            elif kind == "free":
                (pool.free if pool.holders[block] else pool.free_too_often)(block)
            elif pool.holders[block]:
                pool.mark(block, kind == "mark")
            pool.look(block)

    smallest(life, lead)


def _of_chapter_02(scenario: Callable[..., None]) -> Callable[[Probe, Any], None]:
    return partial(scenario, lowest_first=False)


SCENARIOS = (
    *map(_of_chapter_02, (is_written, one_block, freed_twice, two_holders, many_blocks, two_pools)),
    one_findable_block, empty_ones_first, longest_ago_first, found_again, shared_while_in_use, mark_dropped,
    mark_taken_back, random_life,
)  # fmt: skip
TRIED = (
    "chapter 02's protocol", "a findable block", "empty blocks first", "the oldest first", "a hit on a free block",
    "marks that are dropped", "a random life",
)  # fmt: skip


def _searches(factory: Any) -> Sequence[str]:
    """Chapter 02's remark on a revival that searches, with every block findable."""

    def with_all_marked(num_blocks: int, block_size: int) -> Any:
        allocator = factory(num_blocks, block_size)
        blocks = [allocator.allocate() for _ in range(num_blocks)]
        for block in blocks:
            allocator.mark_findable(block)
        for block in blocks:
            allocator.free(block)
        for block in blocks:
            allocator.share(block)
        return _Marked(allocator, blocks)

    return searches(with_all_marked)


class _Marked:
    """An allocator whose blocks are all taken already, findable, and handed out in this order."""

    def __init__(self, allocator: Any, blocks: list[int]):
        self.share, self.free = allocator.share, allocator.free
        self.allocate = iter(blocks).__next__


caching_allocator = ObjectCheck("CachingAllocator", SCENARIOS, TRIED, _searches)
