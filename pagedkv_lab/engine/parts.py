"""The parts an engine is put together from: the package's own, or anybody's.

Knows which slot takes what and how a part is called. Does not know how any part works inside.
"""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, fields
from numbers import Real
from typing import Any

from pagedkv_lab import sizing
from pagedkv_lab.attention import PagedAttention
from pagedkv_lab.blocks import BlockAllocator, BlockManager, BlockTable, PrefixCache, hash_block
from pagedkv_lab.blocks.guards import GuardedAllocator, GuardedPrefixCache, GuardedTable, call_part, guard_hash
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.guards import GuardedScheduler
from pagedkv_lab.engine.scheduler import Scheduler
from pagedkv_lab.errors import PartError


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Whose part is in which slot. What is left out is the package's own.

    hash_block: `(parent, token_ids, extra) -> key`. Without it, a PrefixCache that has its own
        `compute_hash(token_ids, prev_hash)` computes the keys.
    BlockAllocator: `(num_blocks, block_size) -> allocator`. BlockTable: `(allocator) -> table`.
    PrefixCache: `() -> cache`. Scheduler: `(config, manager) -> scheduler`.
    paged_attention: a backend, see `pagedkv_lab.attention.reference`; None takes `attn_backend`.
    kv_bytes_per_token, num_blocks_that_fit: the sizing functions that plan the pool.

    watch: a part that isn't the package's own is watched: what it breaks is said in terms of the part (PartError).
        False lets a broken allocator, table or prefix cache do its damage, to see what becomes of a model's text.
    """

    hash_block: Callable[..., Any] | None = None
    BlockAllocator: Callable[..., Any] = BlockAllocator
    BlockTable: Callable[..., Any] = BlockTable
    PrefixCache: Callable[..., Any] = PrefixCache
    paged_attention: PagedAttention | None = None
    Scheduler: Callable[..., Any] = Scheduler
    kv_bytes_per_token: Callable[..., int] = sizing.kv_bytes_per_token
    num_blocks_that_fit: Callable[..., int] = sizing.num_blocks_that_fit
    watch: InitVar[bool] = True  # no field: it is no part

    def __post_init__(self, watch: bool) -> None:
        object.__setattr__(self, "watch", watch)

    @property
    def names_of_others(self) -> list[str]:
        """The slots that don't hold the package's own part."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not f.default]

    def make_manager(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> BlockManager:
        """A block manager of these parts, over an empty pool. Raises PartError where a part can't be made."""
        # `type(...) is`, not isinstance: a learner may subclass our part and break what it inherits.
        allocator = self._make("BlockAllocator", num_blocks, block_size)
        if type(allocator) is not BlockAllocator:
            allocator = GuardedAllocator(allocator, num_blocks, block_size, self.watch)
        cache = self._make("PrefixCache")
        keys = self._keys(cache)
        if type(cache) is not PrefixCache:
            cache = GuardedPrefixCache(cache, num_blocks, self.watch)
        return BlockManager(
            num_blocks,
            block_size,
            enable_prefix_caching=enable_prefix_caching,
            allocator=allocator,
            prefix_cache=cache,
            block_table=BlockTable if self.BlockTable is BlockTable else self._make_table,
            hash_block=keys,
        )

    def make_scheduler(self, config: EngineConfig, manager: BlockManager) -> Scheduler | GuardedScheduler:
        """A scheduler without sequences. Raises PartError where it can't be made."""
        scheduler = self._make("Scheduler", config, manager)
        return scheduler if self.Scheduler is Scheduler else GuardedScheduler(scheduler, manager)

    def size(self, name: str, *args: Any) -> int:
        """Call one of the sizing functions; a learner's answer must be a whole number that isn't negative."""
        function = getattr(self, name)
        value = call_part(name, name, function, *args)
        if not isinstance(value, Real) or value != value // 1 or value < 0:
            raise PartError(name, name, f"it returned {value!r}, not a whole number")
        return int(value)

    def _keys(self, cache: Any) -> Callable[..., Any]:
        if self.hash_block is not None and self.hash_block is not hash_block:
            return guard_hash(self.hash_block)
        if self.hash_block is None and hasattr(cache, "compute_hash"):
            return guard_hash(lambda parent, token_ids: cache.compute_hash(token_ids, parent), "compute_hash")
        return hash_block

    def _make_table(self, allocator: Any) -> GuardedTable:
        return GuardedTable(self._make("BlockTable", allocator), allocator, self.watch)

    def _make(self, name: str, *args: Any) -> Any:
        return call_part(name, "__init__", getattr(self, name), *args)
