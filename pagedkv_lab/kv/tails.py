"""Where partly filled blocks of a quantized pool lie: each in a row of its own, in full precision.

Knows blocks by number, and which row holds which. Works on the host, once a step. Does not know tensors or sequences.

A scale for each channel of a block can be chosen only when all its tokens are there. Until then the block lies in a
**tail**, a row of full-precision slots. Nobody says when a block is given up, so a row is found again when its block
fills, when its block is written from the beginning anew, or, where rows run out, by asking whose block is still in use.

How many rows are enough (`KVQuantization.num_tails`): two for each sequence that may run. A block that is in use and
has a row is the last one of a sequence, or of several that share it. So before a step there is at most one for each
sequence, and after it, too. One whose tokens fill its block and begin the next needs both while the step runs: no two
blocks of a step have the same row, so that a kernel may write them in any order.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pagedkv_lab.errors import PagedKVError


class TouchedBlocks(NamedTuple):
    """What a step writes, by block: int32 arrays with one entry for each block that gets tokens.

    block: which. first: the offset of the first slot written. count: tokens written, 0 in an entry that is only
    padding. row: the first of them among the step's written keys and values. tail_row: the block's tail; -1 for one
    that is written whole in this step, and needs none. The block is full after the step where first + count is
    block_size, and is quantized then.
    """

    block: np.ndarray
    tail_row: np.ndarray
    first: np.ndarray
    count: np.ndarray
    row: np.ndarray


def touched_blocks(write_slots: np.ndarray, block_size: int) -> TouchedBlocks:
    """The blocks that these slots lie in; tail_row is -1 yet. write_slots: (T,), a block's in order and together."""
    block, offset = np.divmod(write_slots, block_size)
    begins = np.ones(len(block), bool)
    begins[1:] = block[1:] != block[:-1]
    row = np.flatnonzero(begins)
    count = np.diff(row, append=len(block))
    fields = block[row], np.full(len(row), -1), offset[row], count, row
    return TouchedBlocks(*(field.astype(np.int32) for field in fields))


class TailRows:
    """Hands out `num_tails` rows to blocks of `block_size` tokens.

    row_of: (num_blocks,) int32, the row of each block that is partly filled, -1 for the others.
    is_in_use: whether somebody holds a block; asked only where rows run out.
    """

    def __init__(self, num_blocks: int, num_tails: int, block_size: int):
        self.num_tails, self.block_size = num_tails, block_size
        self.row_of = np.full(num_blocks, -1, np.int32)
        self.is_in_use: Callable[[int], bool] = lambda block: True
        self.forget()

    def forget(self) -> None:
        """Nobody holds a block any more."""
        self.row_of.fill(-1)
        self._free = list(range(self.num_tails))

    def begin_step(
        self, copies: Sequence[tuple[int, int]], touched: TouchedBlocks
    ) -> tuple[TouchedBlocks, list[tuple[int, int]]]:
        """Rows for what a step copies (source, destination) and then writes.

        Returns `touched` with its tail rows, and the copies of rows that go with the copies of blocks, all of them
        read before any is written. Raises PagedKVError where more blocks are partly filled than there are rows.
        """
        # Looked up first: a source may be given up, and written anew, in the step that copies it.
        sources = [int(self.row_of[source]) for source, _ in copies]
        from_the_start = touched.first == 0
        self._give_back(touched.block[from_the_start])  # whoever had these blocks before
        self._give_back(np.array([destination for _, destination in copies], np.int32))
        row_copies = []
        for source, (_, destination) in zip(sources, copies, strict=True):
            if source >= 0:
                row_copies.append((source, self._take([destination])[0]))

        fills = touched.first + touched.count == self.block_size
        needs_one = ~(from_the_start & fills)
        self._take(touched.block[from_the_start & needs_one].tolist())
        tail_row = np.where(needs_one, self.row_of[touched.block], -1).astype(np.int32)
        lost = touched.block[needs_one & (tail_row < 0)]
        assert not len(lost), f"blocks {lost.tolist()} are written on, and their beginnings lie in no tail"
        # Full from now on. This step still reads their rows, and nobody gets one before the next step begins.
        self._give_back(touched.block[fills])
        return touched._replace(tail_row=tail_row), row_copies

    def of_last_blocks(self, block_tables: np.ndarray, context_lens: np.ndarray) -> np.ndarray:
        """(S,) int32: the row of each sequence's last block where that is partly filled, else -1."""
        last = np.maximum(context_lens - 1, 0) // self.block_size
        rows = self.row_of[block_tables[np.arange(len(last)), last]]
        partial = context_lens % self.block_size != 0
        assert (rows[partial] >= 0).all(), "a partly filled block has no tail"
        return np.where(partial, rows, -1).astype(np.int32)

    def _take(self, blocks: Sequence[int]) -> list[int]:
        """One free row for each block."""
        if len(blocks) > len(self._free):
            held = np.flatnonzero(self.row_of >= 0).tolist()
            self._give_back(np.array([block for block in held if not self.is_in_use(block)], np.int32))
        if len(blocks) > len(self._free):
            raise PagedKVError(
                f"{len(blocks)} more blocks are partly filled than the {self.num_tails} tails hold "
                f"({len(self._free)} free): more sequences run than max_num_seqs says"
            )
        rows = [self._free.pop() for _ in blocks]
        self.row_of[blocks] = rows
        return rows

    def _give_back(self, blocks: np.ndarray) -> None:
        rows = self.row_of[blocks]
        self._free += rows[rows >= 0].tolist()
        self.row_of[blocks] = -1
