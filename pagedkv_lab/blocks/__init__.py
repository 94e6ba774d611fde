"""Who owns which block. No torch, no tensors, no model: blocks are integers here.

Read in this order: `hashing` (a key for a full block), `allocator` (the free blocks and the reference
counts), `table` (one sequence's blocks), `prefix_cache` (from key to block), `manager` (all of them).
"""

from pagedkv_lab.blocks.allocator import BlockAllocator
from pagedkv_lab.blocks.hashing import hash_block
from pagedkv_lab.blocks.manager import BlockManager
from pagedkv_lab.blocks.prefix_cache import PrefixCache
from pagedkv_lab.blocks.table import BlockTable

__all__ = ["BlockAllocator", "BlockManager", "BlockTable", "PrefixCache", "hash_block"]
