"""One sequence's block table: from logical block (the sequence's own count) to physical block (the pool's).

Knows its blocks and the allocator they come from. Does not know tokens or tensors; where a block's contents
must be copied, it says so and somebody else copies.
"""

from pagedkv_lab.blocks.allocator import BlockAllocator


class BlockTable:
    """`blocks[i]` is the physical block of positions i * block_size .. (i + 1) * block_size - 1."""

    def __init__(self, allocator: BlockAllocator):
        self.allocator = allocator
        self.blocks: list[int] = []

    def append_block(self) -> int:
        """Grow by one fresh block and return it. Raises OutOfBlocks, the table unchanged."""
        block = self.allocator.allocate()
        self.blocks.append(block)
        return block

    def append_shared(self, block: int) -> None:
        """Grow by a block that is already filled (a prefix hit): one more holder."""
        self.allocator.share(block)
        self.blocks.append(block)

    def fork(self) -> "BlockTable":
        """A second table of the same blocks, the partly filled last one too. Nothing is copied."""
        child = BlockTable(self.allocator)
        for block in self.blocks:
            child.append_shared(block)
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
        """Where the token at `position` lies in the pool: physical block x block_size + offset."""
        block_size = self.allocator.block_size
        return self.blocks[position // block_size] * block_size + position % block_size

    def free_all(self) -> None:
        """Give every block back, the tail first.

        The tail goes first so that it is also evicted first: a prefix is useful without its tail, a tail
        without its prefix is not.
        """
        while self.blocks:
            self.allocator.free(self.blocks.pop())

    def __len__(self) -> int:
        return len(self.blocks)
