"""The pool of blocks: which are free, and how many sequences hold each of the others.

Knows block numbers and reference counts. Does not know what is in a block, nor which key finds it.

The free blocks lie in a queue with two ends. Blocks whose contents nobody can find again are handed out
first, in last-in-first-out order; blocks that are still findable by their key wait behind them, the one
freed longest ago first (LRU). So a cached block dies only when every empty one is gone.

`allocate`, `share` and `free` are the protocol, and all that a part of somebody else's needs. A prompt takes
and gives back its blocks by the hundred: `allocate_many`, `share_many` and `free_many` leave behind exactly
what a loop of single calls would, in a fraction of the time, since the loop runs inside one call.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from pagedkv_lab.errors import DoubleFree, NotAllocated, OutOfBlocks


class BlockAllocator:
    """Hands out the numbers 0 .. num_blocks - 1 and counts who holds them. Every operation is O(1) a block.

    block_size: tokens a block, kept here for the tables that ask.
    """

    def __init__(self, num_blocks: int, block_size: int):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least 1 block of 1 token, not {num_blocks} of {block_size}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self._ref_counts = [0] * num_blocks
        self._findable = bytearray(num_blocks)
        # The free queue in two pieces, front first: a stack, and an ordered dict for O(1) removal from its
        # middle (a hit on a free block must not search). A plain dict keeps the order too, but finds its
        # first key by walking over the places of all that were removed before it: O(pool).
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    def allocate(self) -> int:
        """Take a free block, reference count 1. Its old contents are no longer findable.

        Raises OutOfBlocks where all blocks are in use.
        """
        if self._empty:
            block = self._empty.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._findable[block] = False
        else:
            raise OutOfBlocks(used=self.num_blocks)
        self._ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holder. A block that is free but still findable comes back to life.

        Raises NotAllocated for a block whose contents are gone, or that doesn't exist.
        """
        if not 0 <= block < self.num_blocks:
            raise NotAllocated(block, self.num_blocks, "the pool has no such block")
        if self._ref_counts[block] == 0:
            if block not in self._cached:
                raise NotAllocated(block, self.num_blocks)
            del self._cached[block]
        self._ref_counts[block] += 1

    def free(self, block: int) -> None:
        """One holder less. With the last one gone, the block is free: findable ones wait at the queue's tail.

        Raises DoubleFree where nobody holds the block, NotAllocated where it doesn't exist.
        """
        if not 0 <= block < self.num_blocks:
            raise NotAllocated(block, self.num_blocks, "the pool has no such block")
        if self._ref_counts[block] == 0:
            raise DoubleFree(block)
        self._ref_counts[block] -= 1
        if self._ref_counts[block] == 0:
            if self._findable[block]:
                self._cached[block] = None
            else:
                self._empty.append(block)

    def mark_findable(self, block: int, findable: bool = True) -> None:
        """Say whether the contents of a block in use can be found by a key, for the day it is freed."""
        if self._ref_counts[block] == 0:
            raise NotAllocated(block, self.num_blocks, "only a block in use can be marked findable")
        self._findable[block] = findable

    def allocate_many(self, count: int) -> list[int]:
        """`count` calls of `allocate`, all or nothing. Raises OutOfBlocks where fewer blocks are free."""
        if count > self.num_free:
            free, cached = len(self._empty), len(self._cached)
            raise OutOfBlocks(count, free=free, cached=cached, used=self.num_blocks - free - cached)
        top = max(0, len(self._empty) - count)
        blocks = self._empty[top:]
        blocks.reverse()  # the top of the stack comes first
        del self._empty[top:]
        evicted = list(islice(self._cached, count - len(blocks)))
        for block in evicted:
            del self._cached[block]
            self._findable[block] = False
        blocks += evicted
        ref_counts = self._ref_counts
        for block in blocks:
            ref_counts[block] = 1
        return blocks

    def share_many(self, blocks: Iterable[int]) -> None:
        """`share` for each of these, in this order. They are blocks of this pool."""
        ref_counts = self._ref_counts
        for block in blocks:
            if ref_counts[block]:
                ref_counts[block] += 1
            else:
                self.share(block)

    def free_many(self, blocks: Iterable[int]) -> None:
        """`free` for each of these, in this order. They are blocks of this pool."""
        ref_counts, findable, empty, cached = self._ref_counts, self._findable, self._empty, self._cached
        for block in blocks:
            count = ref_counts[block]
            if count == 0:
                raise DoubleFree(block)
            ref_counts[block] = count - 1
            if count == 1:
                if findable[block]:
                    cached[block] = None
                else:
                    empty.append(block)

    def ref_count(self, block: int) -> int:
        """Number of sequences that hold the block; 0 when it is free."""
        return self._ref_counts[block]

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, the findable ones included."""
        return len(self._empty) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Free blocks whose contents are still findable."""
        return len(self._cached)

    def cached_blocks(self) -> list[int]:
        """The free blocks that are still findable, next to be evicted first. O(their number): for views."""
        return list(self._cached)
