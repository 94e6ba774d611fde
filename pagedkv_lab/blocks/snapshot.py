"""A read-only picture of the pool for views: arrays indexed by block number.

Knows counts and tables, through the manager. Does not know how they are drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
    tables: by sequence id, its block table: int32, shape (its blocks,).
    """

    block_size: int
    step: int
    state: np.ndarray
    ref_count: np.ndarray
    filled: np.ndarray
    owner: np.ndarray
    last_use: np.ndarray
    tables: Mapping[int, np.ndarray] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        return len(self.state)

    @property
    def utilization(self) -> float:
        """Filled slots over the slots of blocks in use; 1.0 when no block is in use."""
        used = int((self.state == USED).sum())
        return float(self.filled.sum() / (used * self.block_size)) if used else 1.0


def take_snapshot(
    manager: Any, tables: Mapping[int, tuple[Sequence[int], int]], freed_at: Sequence[int]
) -> PoolSnapshot:
    """Fill the arrays from the manager's tables; called by `BlockManager.snapshot`.

    tables: by sequence id, the blocks and how many tokens lie in them. All entries of all tables are dealt with at
    once: a view asks ten times a second, and one by one 4,096 blocks would take 4 ms.
    """
    num_blocks, block_size = manager.num_blocks, manager.block_size
    lengths = np.fromiter((len(blocks) for blocks, _ in tables.values()), np.int64, len(tables))
    entries = np.fromiter(chain.from_iterable(blocks for blocks, _ in tables.values()), np.int32, int(lengths.sum()))
    ends = lengths.cumsum()
    by_sequence = dict(zip(tables, np.split(entries, ends[:-1]) if len(tables) else (), strict=True))

    owners = np.repeat(np.fromiter(tables, np.int64, len(tables)), lengths)
    tokens = np.repeat(np.fromiter((filled for _, filled in tables.values()), np.int64, len(tables)), lengths)
    nth_of_its_table = np.arange(len(entries)) - np.repeat(ends - lengths, lengths)

    ref_count = np.bincount(entries, minlength=num_blocks).astype(np.int32)
    filled = np.zeros(num_blocks, np.int32)
    np.maximum.at(filled, entries, np.clip(tokens - nth_of_its_table * block_size, 0, block_size).astype(np.int32))
    owner = np.zeros(num_blocks, np.int64)
    owner[entries[::-1]] = owners[::-1]  # backwards: of several, the first one is written last
    last_use = np.array(freed_at, np.int64)
    last_use[entries] = manager.step
    state = np.where(ref_count > 0, USED, FREE).astype(np.uint8)
    state[manager.allocator.cached_blocks()] = CACHED
    for array in (state, ref_count, filled, owner, last_use, entries, *by_sequence.values()):
        array.flags.writeable = False
    return PoolSnapshot(block_size, manager.step, state, ref_count, filled, owner, last_use, by_sequence)
