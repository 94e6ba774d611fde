"""Which block holds the keys and values of which prefix: a dictionary, and the way back.

Knows keys and block numbers. Does not know whether a block is free or in use; forgetting a block that is
handed out again is the manager's duty, through `forget`.
"""

from collections.abc import Hashable


class PrefixCache:
    """From a block's key to the block that holds it."""

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
            self._block_of[key] = block
            self._key_of[block] = key

    def forget(self, block: int) -> None:
        """The block's contents are about to change: drop its key. A block without a key is left alone."""
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]

    def __len__(self) -> int:
        return len(self._block_of)
