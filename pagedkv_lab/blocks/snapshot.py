"""A read-only picture of the pool for views: arrays indexed by block number.

Knows counts and tables, through the manager. Does not know how they are drawn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Values of `PoolSnapshot.state`.
FREE, CACHED, USED = 0, 1, 2


@dataclass(frozen=True)
class PoolSnapshot:
    """The pool at one moment. Every array has shape (num_blocks,).

    state: uint8, FREE, CACHED (free, still findable) or USED.
    ref_count: int32, sequences that hold the block.
    filled: int32, slots that hold a token of a living sequence, 0 to block_size.
    owner: int64, id of the sequence that holds it (of several, the oldest); 0 where nobody does.
    last_use: int64, the step at which it was last in use.
    """

    block_size: int
    step: int
    state: np.ndarray
    ref_count: np.ndarray
    filled: np.ndarray
    owner: np.ndarray
    last_use: np.ndarray

    @property
    def num_blocks(self) -> int:
        return len(self.state)

    @property
    def utilization(self) -> float:
        """Filled slots over the slots of blocks in use; 1.0 when no block is in use."""
        used = int((self.state == USED).sum())
        return float(self.filled.sum() / (used * self.block_size)) if used else 1.0


def take_snapshot(
    manager: Any, blocks_in_use: Iterable[tuple[int, int, int]], freed_at: Sequence[int]
) -> PoolSnapshot:
    """Fill the arrays from the manager's tables; called by `BlockManager.snapshot`."""
    num_blocks = manager.num_blocks
    ref_count = np.zeros(num_blocks, np.int32)
    filled = np.zeros(num_blocks, np.int32)
    owner = np.zeros(num_blocks, np.int64)
    last_use = np.array(freed_at, np.int64)
    for block, tokens, seq_id in blocks_in_use:
        ref_count[block] += 1
        filled[block] = max(filled[block], tokens)
        owner[block] = owner[block] or seq_id
        last_use[block] = manager.step
    state = np.where(ref_count > 0, USED, FREE).astype(np.uint8)
    state[list(manager.allocator.cached_blocks())] = CACHED
    for array in (state, ref_count, filled, owner, last_use):
        array.flags.writeable = False
    return PoolSnapshot(manager.block_size, manager.step, state, ref_count, filled, owner, last_use)
