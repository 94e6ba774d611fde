"""One sequence's block table: from logical block (the sequence's own count) to physical block (the pool's).

Knows its blocks and the allocator they come from. Does not know tokens or tensors; where a block's contents
must be copied, it says so and somebody else copies.

What is done to many blocks (`append_blocks`, `append_shared_blocks`, `free_all`, `slots`) is a loop over single
steps, and leaves that loop to the allocator where it can.
"""

from collections.abc import Sequence

from pagedkv_lab.blocks.allocator import BlockAllocator
from pagedkv_lab.sizing import blocks_for


class BlockTable:
    """`blocks[i]` is the physical block of positions i * block_size .. (i + 1) * block_size - 1."""

    def __init__(self, allocator: BlockAllocator):
        self.allocator = allocator
        self.blocks: list[int] = []
        # `type(...) is`, not isinstance: a subclass may do one of the single steps in its own way.
        self._at_once = type(self) is BlockTable and type(allocator) is BlockAllocator

    def append_block(self) -> int:
        """Grow by one fresh block and return it. Raises OutOfBlocks, the table unchanged."""
        block = self.allocator.allocate()
        self.blocks.append(block)
        return block

    def append_shared(self, block: int) -> None:
        """Grow by a block that is already filled (a prefix hit): one more holder."""
        self.allocator.share(block)
        self.blocks.append(block)

    def append_blocks(self, count: int) -> None:
        """Grow by so many fresh blocks. Raises OutOfBlocks where fewer are free; what was taken by then stays."""
        if self._at_once and count > 1:
            self.blocks += self.allocator.allocate_many(count)
        else:
            for _ in range(count):
                self.append_block()

    def append_shared_blocks(self, blocks: Sequence[int]) -> None:
        """Grow by blocks that are already filled, in this order: one more holder of each."""
        if self._at_once:
            self.allocator.share_many(blocks)
            self.blocks += blocks
        else:
            for block in blocks:
                self.append_shared(block)

    def fork(self) -> "BlockTable":
        """A second table of the same blocks, the partly filled last one too. Nothing is copied."""
        child = BlockTable(self.allocator)
        child.append_shared_blocks(self.blocks)
        return child

    def ensure_writable(self, i: int) -> tuple[int, int] | None:
        """Make logical block `i` this sequence's own before it writes there (copy-on-write).

        A sole owner gets None and writes in place. Otherwise the table now points to a fresh block, and the
        pair (source, destination) says which contents to copy there first. Raises OutOfBlocks, unchanged.
        """
        source = self.blocks[i]
        if self.allocator.ref_count(source) == 1:
            return None
        destination = self.allocator.allocate()
        self.blocks[i] = destination
        self.allocator.free(source)
        return source, destination

    def slot(self, position: int) -> int:
        """Where the token at `position` lies in the pool: physical block x block_size + offset.

        Raises IndexError where the table doesn't reach that far, and for a negative position.
        """
        if position < 0:
            raise IndexError(f"position {position} is before the sequence's first token")
        block_size = self.allocator.block_size
        return self.blocks[position // block_size] * block_size + position % block_size

    def slots(self, positions: range) -> list[int]:
        """`slot` of each of these positions (a range without gaps), whole blocks at a time."""
        if len(positions) < 2 or not self._at_once:
            return [self.slot(position) for position in positions]
        block_size = self.allocator.block_size
        first = positions.start // block_size
        slots: list[int] = []
        for i in range(first, blocks_for(positions.stop, block_size)):
            slot = self.blocks[i] * block_size
            slots += range(slot, slot + block_size)
        return slots[positions.start - first * block_size : positions.stop - first * block_size]

    def free_all(self) -> None:
        """Give every block back, the tail first.

        The tail goes first so that it is also evicted first: a prefix is useful without its tail, a tail
        without its prefix is not.
        """
        if self._at_once:
            self.allocator.free_many(reversed(self.blocks))
            self.blocks.clear()
        else:
            while self.blocks:
                self.allocator.free(self.blocks.pop())

    def __len__(self) -> int:
        return len(self.blocks)
