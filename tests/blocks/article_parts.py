"""The article's own skeletons (sections 4.2 and 4.3), as published and with only their bugs mended.

A learner who types the article off and mends what is wrong with it has these parts. They must run through the
guards as they are: no `fork`, no `mark_findable`, no copy-on-write of their own.
"""

import hashlib
from typing import Any

from pagedkv_lab.blocks import BlockManager
from pagedkv_lab.blocks.guards import GuardedAllocator, GuardedPrefixCache, GuardedTable, guard_hash

# As published


class PublishedAllocator:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.ref_count = [0] * num_blocks

    def allocate(self):
        if not self.free_blocks:
            raise RuntimeError("Out of blocks")
        block_id = self.free_blocks.pop()
        self.ref_count[block_id] = 1
        return block_id

    def free(self, block_id):
        self.ref_count[block_id] -= 1
        if self.ref_count[block_id] == 0:
            self.free_blocks.append(block_id)

    def share(self, block_id):
        self.ref_count[block_id] += 1


class PublishedTable:
    def __init__(self, allocator):
        self.allocator = allocator
        self.blocks = []

    def append_block(self):
        block_id = self.allocator.allocate()
        self.blocks.append(block_id)
        return block_id

    def free_all(self):
        for block_id in self.blocks:
            self.allocator.free(block_id)
        self.blocks = []


class PublishedPrefixCache:
    def __init__(self):
        self.cache = {}  # hash -> block_id

    def compute_hash(self, token_ids, prev_hash):
        data = str(prev_hash) + ":" + ",".join(map(str, token_ids))
        return hashlib.sha256(data.encode()).hexdigest()

    def lookup(self, block_hash):
        return self.cache.get(block_hash)

    def insert(self, block_hash, block_id):
        self.cache[block_hash] = block_id


# Mended


class MendedAllocator:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.ref_count = [0] * num_blocks

    def allocate(self):
        if not self.free_blocks:
            raise RuntimeError("Out of blocks")
        block_id = self.free_blocks.pop()
        self.ref_count[block_id] = 1
        return block_id

    def free(self, block_id):
        if self.ref_count[block_id] == 0:  # mended: a second free took the count below zero
            raise RuntimeError(f"block {block_id} is free already")
        self.ref_count[block_id] -= 1
        if self.ref_count[block_id] == 0:
            self.free_blocks.append(block_id)

    def share(self, block_id):
        if self.ref_count[block_id] == 0:  # mended: a revived block stayed in the free list
            self.free_blocks.remove(block_id)
        self.ref_count[block_id] += 1


#: The article's table has no bug of its own.
MendedTable = PublishedTable


class MendedPrefixCache:
    def __init__(self):
        self.cache = {}  # hash -> block_id
        self.hash_of = {}  # mended: block_id -> hash, the way back

    def compute_hash(self, token_ids, prev_hash):
        data = str(prev_hash) + ":" + ",".join(map(str, token_ids))
        return hashlib.sha256(data.encode()).hexdigest()

    def lookup(self, block_hash):
        return self.cache.get(block_hash)

    def insert(self, block_hash, block_id):
        self.cache[block_hash] = block_id
        self.hash_of[block_id] = block_hash

    def forget(self, block_id):  # mended: a block that was handed out again kept its old hash
        self.cache.pop(self.hash_of.pop(block_id, None), None)


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
