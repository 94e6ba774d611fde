"""The one door between the scheduler and block ownership.

Knows sequences by their tokens and by how many of those are computed; puts allocator, tables, prefix cache
and hashing together so that the rules of the cache hold. Does not know tensors, models or scheduling policy.

The life of a sequence here: `lookup` (what is cached already), `admit` (take those blocks), `append` (room
for the tokens of one step), perhaps `fork`, then `free`. After each step the engine says `commit_step`, or
`abandon_step` where the step failed.

Blocks become findable when the step that fills them is scheduled, not when it has run: a second sequence
with the same prompt, scheduled in the same step, then shares them (the runner writes all keys and values of
a layer before it reads any). `abandon_step` takes back what a failed step never filled.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pagedkv_lab.blocks import hashing
from pagedkv_lab.blocks.allocator import BlockAllocator
from pagedkv_lab.blocks.events import BlockEvent
from pagedkv_lab.blocks.hashing import ExtraKeys
from pagedkv_lab.blocks.prefix_cache import PrefixCache
from pagedkv_lab.blocks.table import BlockTable
from pagedkv_lab.errors import OutOfBlocks
from pagedkv_lab.sizing import blocks_for


class SequenceLike(Protocol):
    """What the manager reads of a sequence. It writes to `block_keys` only: a memo, to hash no block twice.

    A fork has a `block_keys` of its own (a copy): its later keys are not its parent's.
    """

    seq_id: int  #: unique, from 1
    name: str  #: for messages: "request 3"
    token_ids: list[int]  #: prompt and output so far
    num_computed_tokens: int  #: the first so many tokens are through the model
    block_keys: list[Hashable]
    extra_keys: ExtraKeys  #: enter the key of the first block


class PoolCounts(NamedTuple):
    """How many blocks are empty, free but findable, and held. The three add up to `total`, always."""

    total: int
    free: int
    cached: int
    used: int


@dataclass(slots=True)
class _Holding:
    """What one sequence holds: its table, how many of its tokens lie there, how many blocks are keyed.

    in_place_until: tokens before this position go into the last block, which nobody shares.
    """

    seq: SequenceLike
    table: Any
    num_filled: int = 0
    num_keyed: int = 0
    in_place_until: int = 0


class BlockManager:
    """Owns the pool of `num_blocks` blocks of `block_size` tokens.

    The parts default to the package's own; `allocator` and `prefix_cache` are objects, `block_table` makes a
    table from an allocator, `hash_block` is a function.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        allocator: Any = None,
        prefix_cache: Any = None,
        block_table: Callable[[Any], Any] = BlockTable,
        hash_block: Callable[..., Hashable] = hashing.hash_block,
    ):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.allocator = allocator if allocator is not None else BlockAllocator(num_blocks, block_size)
        self.prefix_cache = prefix_cache if prefix_cache is not None else PrefixCache()
        self._block_table, self._hash_block = block_table, hash_block
        self._holdings: dict[int, _Holding] = {}
        self._keyed_this_step: list[int] = []
        self._copies: list[tuple[int, int]] = []
        self._freed_at = [0] * num_blocks
        #: Called with a BlockEvent for each thing that happens to blocks, as it happens. They must not raise.
        self.listeners: list[Callable[[BlockEvent], None]] = []
        self.step = 0
        #: Slots that hold a token of a living sequence; those of a shared block count once.
        self.used_slots = 0
        #: Tokens looked up and tokens found, over the manager's life.
        self.queried_tokens = self.hit_tokens = 0

    # A sequence comes in

    def lookup(self, seq: SequenceLike) -> list[int]:
        """The blocks that hold the longest cached prefix of the sequence's tokens. Takes nothing yet."""
        if not self.enable_prefix_caching:
            return []
        hits: list[int] = []
        lookup = self.prefix_cache.lookup
        for key in self._keys(seq, len(seq.token_ids) // self.block_size):
            block = lookup(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def can_admit(self, seq: SequenceLike, hits: Sequence[int], watermark: int = 0) -> bool:
        """Whether all tokens of the sequence fit with `watermark` blocks to spare, given its hits.

        A hit block that is free counts as free now and not after: it is subtracted.
        """
        revived = self._ref_counts(hits).count(0)
        needed = blocks_for(len(seq.token_ids), self.block_size) - len(hits)
        return needed + revived + watermark <= self.allocator.num_free

    def admit(self, seq: SequenceLike, hits: Sequence[int]) -> int:
        """Give the sequence a table that begins with its hit blocks. Returns how many tokens are computed.

        `hits` are what `lookup` has just said: nothing may be allocated in between. A full hit still leaves
        the last token to compute: its logits are what the next token comes from.
        """
        assert seq.seq_id not in self._holdings, f"{seq.name} has a table already"
        table = self._block_table(self.allocator)
        # Noted before it takes anything, so that `free` finds what it took if a part fails half-way.
        holding = self._holdings[seq.seq_id] = _Holding(seq, table)
        ref_counts = self._ref_counts(hits)
        try:
            table.append_shared_blocks(hits)
        finally:
            holding.num_keyed = len(table.blocks)
            holding.num_filled = holding.num_keyed * self.block_size
            self.used_slots += ref_counts[: holding.num_keyed].count(0) * self.block_size
        num_skipped = min(holding.num_filled, len(seq.token_ids) - 1)
        if self.enable_prefix_caching:
            self.queried_tokens += len(seq.token_ids)
            self.hit_tokens += num_skipped
        if hits and self.listeners:
            self._tell("hit", seq, hits, num_skipped)
        return num_skipped

    # A sequence grows

    def append(self, seq: SequenceLike, num_tokens: int) -> range | None:
        """Make room for the next `num_tokens` tokens. Returns the positions to be written, or None: no room.

        All or nothing: with None, no block and no reference count has changed. The range is empty where the
        tokens lie in hit blocks already (a full hit computes its last token and writes nothing). Should a
        part raise half-way, the table keeps what it took, for `free` to give back.
        """
        holding = self._holdings[seq.seq_id]
        start = seq.num_computed_tokens
        end = start + num_tokens
        if end <= holding.in_place_until and start == holding.num_filled:
            # Nearly every decode step: room in a block of its own, and no block to take or to copy.
            holding.num_filled = end
            self.used_slots += num_tokens
            if end == holding.in_place_until and self.enable_prefix_caching:
                self._make_findable(holding, end // self.block_size)
            return range(start, end)
        if start < holding.num_filled:
            start = min(end, holding.num_filled)
        return self._append(holding, start, end)

    def _append(self, holding: _Holding, start: int, end: int) -> range | None:
        """`append` where it isn't that easy: the positions from `start` on have no slot yet."""
        table = holding.table
        first, num_old, num_blocks = start // self.block_size, len(table.blocks), blocks_for(end, self.block_size)
        num_new = max(0, num_blocks - num_old)
        writes_into_old = start < end and first < num_old
        must_copy = writes_into_old and self.allocator.ref_count(table.blocks[first]) > 1
        needed = num_new + must_copy
        if needed and needed > self.allocator.num_free:
            return None
        if must_copy:
            copy = table.ensure_writable(first)
            self.prefix_cache.forget(copy[1])
            self._copies.append(copy)
            self.used_slots += start - first * self.block_size
            if self.listeners:
                self._tell("allocate", holding.seq, copy[1:])
                self._tell("copy", holding.seq, copy)
        if num_new == 1:  # as it is in decode
            self.prefix_cache.forget(table.append_block())
        elif num_new:
            try:
                table.append_blocks(num_new)
            finally:
                self.prefix_cache.forget_many(table.blocks[num_old:])
        if num_new and self.listeners:
            self._tell("allocate", holding.seq, table.blocks[num_old:])
        if start < end:
            self.used_slots += end - start
            holding.num_filled = end
            holding.in_place_until = num_blocks * self.block_size
        num_full = end // self.block_size
        if self.enable_prefix_caching and num_full > holding.num_keyed:
            self._make_findable(holding, num_full)
        return range(start, end)

    def take_copies(self) -> list[tuple[int, int]]:
        """The block copies (source, destination) to make before this step writes; asked for once a step."""
        copies, self._copies = self._copies, []
        return copies

    def commit_step(self) -> None:
        """The step ran: what it filled stays findable."""
        self._keyed_this_step.clear()
        self.step += 1

    def abandon_step(self) -> None:
        """The step failed: blocks that it was to fill must not be found. Then free its sequences: all that
        were admitted in it or got room in it.
        """
        for block in self._keyed_this_step:
            self.prefix_cache.forget(block)
            self.allocator.mark_findable(block, False)
        if self._keyed_this_step and self.listeners:
            self._tell("forget", None, self._keyed_this_step)
        # The step may have ended between taking a block and forgetting what it held before (Ctrl-C).
        for holding in self._holdings.values():
            self.prefix_cache.forget_many(holding.table.blocks[holding.num_keyed :])
        self._keyed_this_step.clear()
        self._copies.clear()
        self.step += 1

    # Sequences part, and go

    def fork(self, parent: SequenceLike, child: SequenceLike) -> None:
        """The child shares all blocks of the parent; whoever writes first copies.

        Only once the model has run and everything that the parent got room for is written.
        """
        assert child.seq_id not in self._holdings, f"{child.name} has a table already"
        of = self._holdings[parent.seq_id]
        of.in_place_until = 0  # whoever writes next must look whether it is alone
        self._holdings[child.seq_id] = _Holding(child, of.table.fork(), of.num_filled, of.num_keyed)
        if self.listeners:
            self._tell("fork", child, of.table.blocks)

    def free(self, seq: SequenceLike) -> None:
        """Take back every block of the sequence. One that holds nothing is left alone.

        A sequence that got room in a step stays until `commit_step` or `abandon_step`: others may count on
        what it is about to write.
        """
        holding = self._holdings.pop(seq.seq_id, None)
        if holding is None:
            return
        blocks = holding.table.blocks
        ref_counts = self._ref_counts(blocks)
        num_full, in_last = divmod(holding.num_filled, self.block_size)
        self.used_slots -= ref_counts[:num_full].count(1) * self.block_size
        self.used_slots -= ref_counts[num_full : num_full + 1].count(1) * in_last
        for block in blocks:
            self._freed_at[block] = self.step
        given_back = tuple(blocks) if self.listeners else ()
        holding.table.free_all()
        if self.listeners:
            self._tell("free", seq, given_back)

    # What the runner and the views see

    def block_table(self, seq: SequenceLike) -> list[int]:
        """The sequence's physical blocks, in order. From `admit` to `free` this is the same list, and grows."""
        return self._holdings[seq.seq_id].table.blocks

    def room(self, seq: SequenceLike) -> int:
        """Tokens that the sequence's blocks have room for; 0 where it holds none."""
        holding = self._holdings.get(seq.seq_id)
        return len(holding.table.blocks) * self.block_size if holding else 0

    def slots(self, seq: SequenceLike, positions: range) -> list[int]:
        """The pool's slots of these positions of the sequence (a range without gaps)."""
        return self._holdings[seq.seq_id].table.slots(positions)

    def counts(self) -> PoolCounts:
        """Blocks in total, empty, cached and used."""
        num_free, num_cached = self.allocator.num_free, self.allocator.num_cached
        return PoolCounts(self.num_blocks, num_free - num_cached, num_cached, self.num_blocks - num_free)

    def snapshot(self) -> "PoolSnapshot":  # noqa: F821 - numpy is imported only where a view asks
        """A read-only picture of the pool, arrays by block. Costs nothing when nobody asks."""
        from pagedkv_lab.blocks.snapshot import take_snapshot

        tables = {seq_id: (holding.table.blocks, holding.num_filled) for seq_id, holding in self._holdings.items()}
        return take_snapshot(self, tables, self._freed_at)

    def out_of_blocks(self, needed: int) -> OutOfBlocks:
        """The error to raise when nothing is left to preempt: the pool's numbers, three largest owners."""
        _, free, cached, used = self.counts()
        held = ((holding.seq.name, len(holding.table.blocks)) for holding in self._holdings.values())
        owners = sorted(held, key=lambda owner: -owner[1])[:3]
        return OutOfBlocks(needed, free=free, cached=cached, used=used, owners=owners)

    def check_invariants(self) -> None:
        """Count everything again from the tables. Raises AssertionError, in words, where it is off."""
        holders = [0] * self.num_blocks
        for holding in self._holdings.values():
            for block in holding.table.blocks:
                holders[block] += 1
        for block, expected in enumerate(holders):
            counted = self.allocator.ref_count(block)
            assert counted == expected, f"block {block}: {expected} tables hold it, it counts {counted}"
        counts = self.counts()
        assert counts.free + counts.cached + counts.used == counts.total, f"the counts don't add up: {counts}"
        assert min(counts) >= 0, f"a count is below zero: {counts}"
        in_use = sum(holder > 0 for holder in holders)
        assert counts.used == in_use, f"{in_use} blocks are in tables, {counts.used} are counted as used"
        filled: dict[int, int] = {}
        for block, tokens, _ in self._blocks_in_use():
            filled[block] = max(filled.get(block, 0), tokens)
        assert sum(filled.values()) == self.used_slots, (
            f"{sum(filled.values())} slots hold a token, {self.used_slots} are counted"
        )

    # Inside

    def _tell(self, kind: str, seq: SequenceLike | None, blocks: Sequence[int], num_tokens: int = 0) -> None:
        event = BlockEvent(kind, seq, tuple(blocks), num_tokens)
        for listener in self.listeners:
            listener(event)

    def _ref_counts(self, blocks: Sequence[int]) -> list[int]:
        return list(map(self.allocator.ref_count, blocks))

    def _keys(self, seq: SequenceLike, num_blocks: int) -> list[Hashable]:
        """Keys of at least the sequence's first `num_blocks` blocks, each hashed once and kept with the sequence."""
        keys, size = seq.block_keys, self.block_size
        while len(keys) < num_blocks:
            parent, extra = (keys[-1], ()) if keys else (None, seq.extra_keys)
            start, end = len(keys) * size, num_blocks * size
            if end - start > size and self._hash_block is hashing.hash_block:
                keys += hashing.hash_blocks(parent, seq.token_ids[start:end], size, extra)
            else:
                keys.append(self._hash_block(parent, seq.token_ids[start : start + size], extra))
        return keys

    def _make_findable(self, holding: _Holding, num_full: int) -> None:
        """Insert the keys of the sequence's blocks that have become full, up to block `num_full`."""
        num_keyed = holding.num_keyed
        keys, blocks = self._keys(holding.seq, num_full), holding.table.blocks
        # Noted before any is inserted, so that `abandon_step` finds them if a part fails half-way.
        if num_full == num_keyed + 1:  # as it is in decode
            key, block = keys[num_keyed], blocks[num_keyed]
            self._keyed_this_step.append(block)
            if self.prefix_cache.lookup(key) is None:
                self.prefix_cache.insert(key, block)
                self.allocator.mark_findable(block)
                if self.listeners:
                    self._tell("findable", holding.seq, (block,))
        else:
            full = blocks[num_keyed:num_full]
            self._keyed_this_step += full
            inserted = self.prefix_cache.insert_many(keys[num_keyed:num_full], full)
            for block in inserted:
                self.allocator.mark_findable(block)
            if inserted and self.listeners:
                self._tell("findable", holding.seq, inserted)
        holding.num_keyed = num_full

    def _blocks_in_use(self):
        """(block, tokens in it, sequence id) for every entry of every table."""
        for seq_id, holding in self._holdings.items():
            left = holding.num_filled
            for block in holding.table.blocks:
                yield block, min(left, self.block_size), seq_id
                left = max(0, left - self.block_size)
