"""Which block holds the keys and values of which prefix: a dictionary, and the way back.

Knows keys and block numbers. Does not know whether a block is free or in use; forgetting a block that is
handed out again is the manager's duty, through `forget`.
"""

from collections.abc import Hashable, Sequence


class PrefixCache:
    """From a block's key to the block that holds it.

    Whatever can be found can also be forgotten, even if a Ctrl-C comes between two lines: an entry of `_block_of` is
    made after its way back in `_key_of`, and dropped before it.
    """

    def __init__(self) -> None:
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}

    def lookup(self, key: Hashable) -> int | None:
        """The block that holds this prefix, or None."""
        return self._block_of.get(key)

    def insert(self, key: Hashable, block: int) -> None:
        """Make `block` findable under `key`. The first block under a key stays; a later one is ignored."""
        if key not in self._block_of:
            self.forget(block)
            self._key_of[block] = key
            self._block_of[key] = block

    def forget(self, block: int) -> None:
        """The block's contents are about to change: drop its key. A block without a key is left alone."""
        key = self._key_of.get(block)
        if key is not None:
            self._block_of.pop(key, None)
            del self._key_of[block]

    def insert_many(self, keys: Sequence[Hashable], blocks: Sequence[int]) -> list[int]:
        """`insert` for each key and its block, in one call. Returns the blocks that were not ignored."""
        block_of, key_of = self._block_of, self._key_of
        inserted = []
        for key, block in zip(keys, blocks, strict=True):
            if key not in block_of:
                if block in key_of:
                    self.forget(block)
                key_of[block] = key
                block_of[key] = block
                inserted.append(block)
        return inserted

    def forget_many(self, blocks: Sequence[int]) -> None:
        """`forget` for each of these blocks, in one call."""
        block_of, key_of = self._block_of, self._key_of
        for block in blocks:
            key = key_of.get(block)
            if key is not None:
                block_of.pop(key, None)
                del key_of[block]

    def __len__(self) -> int:
        return len(self._block_of)
