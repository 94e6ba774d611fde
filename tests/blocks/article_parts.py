"""Parts of the shape of the article's skeletons (sections 4.2 and 4.3): its names, its mistakes, our lines.

First with the mistakes, then with nothing but those mended. A learner who follows the article has such parts. They
must run through the guards as they are: no `fork`, no `mark_findable`, no copy-on-write of their own.
"""

import hashlib
from typing import Any

from pagedkv_lab.blocks import BlockManager
from pagedkv_lab.blocks.guards import GuardedAllocator, GuardedPrefixCache, GuardedTable, guard_hash

# With the article's mistakes


class SkeletonAllocator:
    """A list and counters. `share` leaves a revived block in the list; `free` lets a count go below zero."""

    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_blocks = [*range(num_blocks)]
        self.ref_count = num_blocks * [0]

    def allocate(self):
        if len(self.free_blocks) == 0:
            raise RuntimeError("no block left")
        taken = self.free_blocks.pop()
        self.ref_count[taken] += 1
        return taken

    def share(self, block):
        self.ref_count[block] += 1

    def free(self, block):
        self.ref_count[block] -= 1
        if not self.ref_count[block]:
            self.free_blocks.append(block)


class SkeletonTable:
    """Nothing is wrong with it."""

    def __init__(self, allocator):
        self.allocator, self.blocks = allocator, []

    def append_block(self):
        self.blocks.append(self.allocator.allocate())
        return self.blocks[-1]

    def free_all(self):
        for block in self.blocks:
            self.allocator.free(block)
        self.blocks.clear()


class SkeletonPrefixCache:
    """It never forgets: a block that was handed out again is still found under its old hash."""

    def __init__(self):
        self.cache = {}

    def compute_hash(self, token_ids, prev_hash):
        text = f"{prev_hash}|{' '.join(str(token) for token in token_ids)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def lookup(self, block_hash):
        return self.cache.get(block_hash)

    def insert(self, block_hash, block):
        self.cache[block_hash] = block


# Mended


class MendedAllocator(SkeletonAllocator):
    def share(self, block):
        if block in self.free_blocks:
            self.free_blocks.remove(block)
        super().share(block)

    def free(self, block):
        if self.ref_count[block] == 0:
            raise RuntimeError(f"block {block} is free already")
        super().free(block)


MendedTable = SkeletonTable


class MendedPrefixCache(SkeletonPrefixCache):
    def __init__(self):
        super().__init__()
        self.hash_of = {}

    def insert(self, block_hash, block):
        super().insert(block_hash, block)
        self.hash_of[block] = block_hash

    def forget(self, block):
        self.cache.pop(self.hash_of.pop(block, None), None)


def manager_of(
    num_blocks: int,
    block_size: int,
    *,
    allocator: Any = MendedAllocator,
    table: Any = MendedTable,
    prefix_cache: Any = MendedPrefixCache,
) -> BlockManager:
    """A manager that runs on these parts (classes), each behind its guard."""
    cache = prefix_cache()
    return BlockManager(
        num_blocks,
        block_size,
        allocator=GuardedAllocator(allocator(num_blocks, block_size), num_blocks, block_size),
        block_table=lambda allocator: GuardedTable(table(allocator), allocator),
        prefix_cache=GuardedPrefixCache(cache, num_blocks),
        hash_block=guard_hash(lambda parent, token_ids: cache.compute_hash(token_ids, parent)),
    )
