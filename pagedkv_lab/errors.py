"""The errors that this package raises on purpose. Each says what happened, the numbers, and what to do.

Knows nothing but text; every floor may import it.
"""

from collections.abc import Sequence


class PagedKVError(Exception):
    """Base of all errors below: catch this one to catch them all."""


class OutOfBlocks(PagedKVError):
    """The pool has no block left to hand out.

    Attributes (all in blocks): `needed`, `free` (empty), `cached` (free, contents still findable),
    `used` (referenced by at least one sequence). `owners` are the largest holders as (name, blocks).
    """

    def __init__(
        self,
        needed: int = 1,
        *,
        free: int = 0,
        cached: int = 0,
        used: int = 0,
        owners: Sequence[tuple[str, int]] = (),
    ):
        self.needed, self.free, self.cached, self.used = needed, free, cached, used
        self.owners = tuple(owners)
        holders = ", ".join(f"{name} holds {count}" for name, count in self.owners) or "nobody"
        super().__init__(
            f"Out of blocks: {needed} needed, {free} free, {cached} cached, {used} in use. "
            f"Largest owners: {holders}. If the owners have finished, they leaked: check that every "
            "sequence ends in free_all(), also when it fails (try/finally). If they are at work, the pool "
            "is too small: raise num_gpu_blocks, or lower max_num_seqs."
        )


class DoubleFree(PagedKVError):
    """A block was freed more often than it was allocated and shared."""

    def __init__(self, block: int):
        self.block = block
        super().__init__(
            f"Block {block} was freed once too often: its reference count is already 0. Each allocate() and "
            "each share() allows exactly one free()."
        )


class NotAllocated(PagedKVError):
    """A block that nobody holds, or that doesn't exist, was shared or looked at as if it were in use."""

    def __init__(self, block: int, num_blocks: int, why: str = "nobody holds it and its contents are gone"):
        self.block, self.num_blocks = block, num_blocks
        super().__init__(
            f"Block {block} is not allocated: {why}. The pool has blocks 0 to {num_blocks - 1}; "
            "only a block that is in use, or free but still findable, can be shared."
        )


class RequestTooLong(PagedKVError):
    """A request that could never run was refused at the door, before it took anything."""


class UnsupportedModel(PagedKVError):
    """This model can't be served through a paged cache; the message names the reason."""


class ModelUnavailable(PagedKVError):
    """The model's files can't be had; the message ends with the command that mends it."""


class PartError(PagedKVError):
    """A part that was put into the engine broke the promise of its protocol.

    `part` is the part's name ("BlockAllocator"), `method` the call that failed.
    """

    def __init__(self, part: str, method: str, what: str):
        self.part, self.method = part, method
        super().__init__(f"Your {part} broke in {method}: {what}")
