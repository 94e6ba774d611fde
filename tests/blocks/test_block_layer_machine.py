"""Long random lives of many sequences in a small pool, held against a model that knows tokens only.

The model keeps a fake memory (slot -> token). Every sequence, read through its table, must read back its own
tokens after every step: a write into a shared block, a wrong hit, a stale key or a lost copy would show.
Beside that it keeps small books of its own: which prefixes can be found in which block, in which order the
free ones were let go, how many tokens each sequence has in its blocks.

The same lives are led by the article's skeletons with their bugs mended, behind the guards; and by two managers in
step, one of which takes no short cut: many blocks at once and one by one must leave the same pool.
"""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import ClassVar

from article_parts import manager_of
from fakes import FakeSequence
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pagedkv_lab.blocks import BlockAllocator, BlockManager, BlockTable, PrefixCache, hash_block
from pagedkv_lab.blocks.guards import GuardedPrefixCache

SALTS = st.sampled_from([None, None, None, "a", "b"])
MAX_SEQUENCES = 8
HALF_WRITTEN = "half-written"


class BlockLayerMachine(RuleBasedStateMachine):
    """Sequences are admitted, grow, fork, are preempted and finish; steps succeed or fail."""

    #: What happened, over all lives of a run: operations by name, and the events that a run must not miss.
    seen: ClassVar[Counter] = Counter()
    evicts_the_oldest_first = True

    @staticmethod
    def make_manager(num_blocks: int, block_size: int) -> BlockManager:
        return BlockManager(num_blocks, block_size)

    @initialize(num_blocks=st.integers(1, 12), block_size=st.sampled_from([1, 2, 3, 4, 4]))
    def start(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.manager = self.make_manager(num_blocks, block_size)
        self.memory: list = [None] * (num_blocks * block_size)
        self.last_id = 0
        self.prompts: list[list[int]] = []
        self.live: dict[int, FakeSequence] = {}
        self.waiting: list[FakeSequence] = []
        #: The open step: the positions that each sequence writes and how far it is computed then.
        self.step: dict[int, tuple[range, int]] = {}
        #: Tokens that lie in a sequence's blocks (a full hit has one more than are computed), and its full
        #: blocks that the cache was told of.
        self.filled: dict[int, int] = {}
        self.keyed: dict[int, int] = {}
        #: (salt, all tokens up to a block's end) -> the block that holds the last of them.
        self.findable: dict[tuple, int] = {}
        self.new_in_step: list[tuple] = []
        #: The free ones of these blocks, the one let go longest ago first.
        self.cached: list[int] = []

    # A sequence comes in

    @rule(
        start=st.sampled_from(["fresh", "again", "longer", "cut"]),
        earlier=st.integers(0, 99),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        salt=SALTS,
        chunk=st.integers(1, 12),
        asks_first=st.sampled_from([True, True, True, False]),
        twins=st.booleans(),
    )
    def arrive(self, start, earlier, tokens, salt, chunk, asks_first, twins):
        if self.prompts and start != "fresh":
            prompt = self.prompts[earlier % len(self.prompts)]
            whole_blocks = len(prompt) // self.block_size * self.block_size
            tokens = {"again": prompt, "longer": prompt + tokens, "cut": prompt[:whole_blocks] or tokens}[start]
        self.prompts.append(tokens)
        for _ in range(1 + twins):
            if len(self.live) < MAX_SEQUENCES:
                self.last_id += 1
                self.admit(FakeSequence(self.last_id, list(tokens), salt), chunk, asks_first)

    @precondition(lambda self: self.waiting)
    @rule(index=st.integers(0, 99), chunk=st.integers(1, 12), asks_first=st.booleans())
    def come_back(self, index, chunk, asks_first):
        if len(self.live) < MAX_SEQUENCES:
            self.admit(self.waiting.pop(index % len(self.waiting)), chunk, asks_first)

    def admit(self, seq, chunk, asks_first):
        before = self.books()
        hits = self.manager.lookup(seq)
        assert self.books() == before, "a lookup took something"
        assert hits == self.expected_hits(seq), "other hits than the cache can have"
        if asks_first and not self.manager.can_admit(seq, hits):
            assert self.blocks_needed(seq, hits) > before["free"]
            self.seen["refused"] += 1
            return
        if asks_first:
            assert self.blocks_needed(seq, hits) <= before["free"]
        used_before = self.used_blocks()
        seq.num_computed_tokens = self.manager.admit(seq, hits)
        num_hit = len(hits) * self.block_size
        assert seq.num_computed_tokens == min(num_hit, len(seq.token_ids) - 1)
        self.cached = [block for block in self.cached if block not in hits]
        self.live[seq.seq_id] = seq
        self.filled[seq.seq_id], self.keyed[seq.seq_id] = num_hit, len(hits)
        self.seen["hit"] += bool(hits)
        self.seen["full hit"] += num_hit == len(seq.token_ids)
        self.seen["hit on a free block"] += bool(set(hits) - used_before)
        self.seen["hit on what this step is to fill"] += any(self.findable[key] in hits for key in self.new_in_step)
        self.did("admit")
        got_room = self.append(seq, min(chunk, len(seq.token_ids) - seq.num_computed_tokens))
        assert got_room or not asks_first, "can_admit promised room for all tokens"

    def blocks_needed(self, seq, hits):
        """Blocks that must be free for all of the sequence: those that it lacks and those that it revives."""
        whole = -(-len(seq.token_ids) // self.block_size)
        return whole - len(hits) + len(set(hits) - self.used_blocks())

    def expected_hits(self, seq):
        hits = []
        for end in range(self.block_size, len(seq.token_ids) + 1, self.block_size):
            block = self.findable.get((seq.salt, tuple(seq.token_ids[:end])))
            if block is None:
                break
            hits.append(block)
        return hits

    # A sequence grows

    @precondition(lambda self: self.idle())
    @rule(index=st.integers(0, 99), chunk=st.integers(1, 8), token=st.integers(0, 1))
    def grow(self, index, chunk, token):
        self.grow_one(self.pick(index), chunk, token)

    @rule(token=st.integers(0, 1))
    def decode_all(self, token):
        """One token more for every sequence that is not in the step yet, each its own."""
        for seq in self.idle():
            if seq.seq_id in self.live:
                self.grow_one(seq, 1, (token + seq.seq_id) % 2)

    def grow_one(self, seq, chunk, token):
        if seq.num_computed_tokens == len(seq.token_ids):
            seq.token_ids.append(token)
        self.append(seq, min(chunk, len(seq.token_ids) - seq.num_computed_tokens))

    def append(self, seq, num_tokens) -> bool:
        """Append and compare with what must come of it. Without room the sequence is preempted."""
        before, filled = self.books(), self.filled[seq.seq_id]
        table = list(self.manager.block_table(seq))
        end = seq.num_computed_tokens + num_tokens
        must_copy = filled < end and filled % self.block_size and before["holders"][table[-1]] > 1
        needed = max(0, -(-end // self.block_size) - len(table)) + bool(must_copy)
        writes = self.manager.append(seq, num_tokens)
        if writes is None:
            assert needed > before["free"], "refused although there was room"
            assert self.books() == before, "refused, but something changed"
            self.seen["no room"] += 1
            self.did("append")
            self.release(seq)
            self.waiting.append(seq)
            return False
        assert needed <= before["free"]
        assert writes == range(filled, end) or (not writes and filled >= end)
        self.note_new_blocks(table, self.manager.block_table(seq), before["holders"])
        self.filled[seq.seq_id] = max(filled, end)
        for i in range(self.keyed[seq.seq_id], end // self.block_size):
            key = (seq.salt, tuple(seq.token_ids[: (i + 1) * self.block_size]))
            if key not in self.findable:
                self.findable[key] = self.manager.block_table(seq)[i]
                self.new_in_step.append(key)
        self.keyed[seq.seq_id] = max(self.keyed[seq.seq_id], end // self.block_size)
        self.step[seq.seq_id] = (writes, end)
        self.seen["copy on write"] += bool(must_copy)
        self.seen["computes and writes nothing"] += not writes
        self.did("append")
        holders = self.holders()
        assert all(holders[slot // self.block_size] == 1 for slot in self.manager.slots(seq, writes)), (
            "a shared block is to be written"
        )
        return True

    def note_new_blocks(self, before, after, holders):
        """The blocks that the table has now and had not: they were free, and what they held is gone."""
        taken = [block for i, block in enumerate(after) if i >= len(before) or block != before[i]]
        empty = self.num_blocks - len(+holders) - len(self.cached)
        for block in taken:
            assert holders[block] == 0, f"block {block} was handed out while a sequence held it"
            if block in self.cached:
                if self.evicts_the_oldest_first:
                    assert empty == 0, "a cached block was taken while an empty one was left"
                    assert block == self.cached[0], "not the one that was let go longest ago"
                self.cached.remove(block)
                self.findable = {key: b for key, b in self.findable.items() if b != block}
                self.seen["evicted"] += 1
            else:
                empty -= 1

    # Sequences part, and go

    @precondition(lambda self: self.live and len(self.live) < MAX_SEQUENCES)
    @rule(index=st.integers(0, 99), goes_on=st.booleans())
    def fork(self, index, goes_on):
        if self.step:
            self.commit()
        parent = self.pick(index)
        self.last_id += 1
        child = parent.fork(self.last_id)
        before = self.books()
        self.manager.fork(parent, child)
        self.live[child.seq_id] = child
        self.filled[child.seq_id] = self.filled[parent.seq_id]
        self.keyed[child.seq_id] = self.keyed[parent.seq_id]
        assert self.books()["free"] == before["free"], "a fork took a block"
        assert self.manager.block_table(child) == self.manager.block_table(parent)
        self.did("fork")
        if goes_on:
            self.grow_one(child, 1, 0)
            self.grow_one(parent, 1, 1)

    @precondition(lambda self: self.idle())
    @rule(index=st.integers(0, 99))
    def finish(self, index):
        self.release(self.pick(index))

    @precondition(lambda self: self.idle())
    @rule(index=st.integers(0, 99))
    def preempt(self, index):
        seq = self.pick(index)
        self.release(seq)
        self.waiting.append(seq)

    def release(self, seq):
        table = list(self.manager.block_table(seq))
        self.manager.free(seq)
        del self.live[seq.seq_id], self.filled[seq.seq_id], self.keyed[seq.seq_id]
        self.step.pop(seq.seq_id, None)
        seq.num_computed_tokens = 0
        still_held, findable = self.used_blocks(), set(self.findable.values())
        self.cached += [block for block in reversed(table) if block not in still_held and block in findable]
        self.did("free")

    # A step ends

    @precondition(lambda self: self.step)
    @rule()
    def commit(self):
        copies = self.manager.take_copies()
        assert self.manager.take_copies() == [], "the copies of a step are told once"
        self.copy(copies)
        for seq_id, (writes, _) in self.step.items():
            seq = self.live[seq_id]
            for position, slot in zip(writes, self.manager.slots(seq, writes), strict=True):
                self.memory[slot] = seq.token_ids[position]
        for seq_id, (_, end) in self.step.items():
            self.live[seq_id].num_computed_tokens = end
        self.step.clear()
        self.new_in_step.clear()
        self.manager.commit_step()
        self.did("commit_step")

    @precondition(lambda self: self.step)
    @rule(copied=st.booleans(), come_back=st.booleans())
    def fail(self, copied, come_back):
        """The model raises half-way: what was to be written holds anything now, and its sequences go."""
        if copied:
            self.copy(self.manager.take_copies())
        for seq_id, (writes, _) in self.step.items():
            for slot in self.manager.slots(self.live[seq_id], writes):
                self.memory[slot] = HALF_WRITTEN
        for key in self.new_in_step:
            del self.findable[key]
        self.new_in_step.clear()
        self.manager.abandon_step()
        self.did("abandon_step")
        for seq in [self.live[seq_id] for seq_id in self.step]:
            self.release(seq)
            if come_back:
                self.waiting.append(seq)

    def copy(self, copies):
        destinations = [destination for _, destination in copies]
        assert len(set(destinations)) == len(copies), "two copies into one block"
        size = self.block_size
        contents = [self.memory[source * size : (source + 1) * size] for source, _ in copies]
        for destination, block in zip(destinations, contents, strict=True):
            self.memory[destination * size : (destination + 1) * size] = block

    def teardown(self):
        if not hasattr(self, "manager"):
            return
        if self.step:
            self.commit()
        for seq in list(self.live.values()):
            self.release(seq)
        counts = self.manager.counts()
        assert (counts.used, self.manager.used_slots) == (0, 0), "everybody is gone and something is still held"

    # What must hold at every moment

    def did(self, operation):
        """An operation has just changed something: count it, and the pool again."""
        self.seen["operations"] += 1
        self.seen[operation] += 1
        self.manager.check_invariants()
        books = self.books()
        total, free, cached, used = books["counts"]
        assert free + cached + used == total == self.num_blocks
        assert used == len(+books["holders"])
        assert cached == len(self.cached) == self.manager.allocator.num_cached
        assert set(self.cached) == set(self.manager.allocator.cached_blocks())
        if self.evicts_the_oldest_first:
            assert self.cached == self.manager.allocator.cached_blocks()
        in_block = Counter()
        for seq_id, seq in self.live.items():
            table = self.manager.block_table(seq)
            assert len(table) == -(-self.filled[seq_id] // self.block_size), "more blocks than its tokens need"
            for i, block in enumerate(table):
                tokens = min(self.block_size, self.filled[seq_id] - i * self.block_size)
                in_block[block] = max(in_block[block], tokens)
        assert self.manager.used_slots == in_block.total()
        if not self.step:
            for seq in self.live.values():
                self.read_back(seq)

    def read_back(self, seq):
        slots = self.manager.slots(seq, range(seq.num_computed_tokens))
        read = [self.memory[slot] for slot in slots]
        assert read == seq.token_ids[: seq.num_computed_tokens], f"{seq.name} reads somebody else's tokens"

    # Looking at things

    def books(self):
        """All that an operation could have changed, counted from outside."""
        holders = self.holders()
        counts = self.manager.counts()
        for block in range(self.num_blocks):
            assert self.manager.allocator.ref_count(block) == holders[block]
        tables = {seq_id: list(self.manager.block_table(seq)) for seq_id, seq in self.live.items()}
        return {
            "counts": counts,
            "free": self.num_blocks - len(+holders),
            "holders": holders,
            "tables": tables,
            "slots": self.manager.used_slots,
            "cached": self.manager.allocator.cached_blocks(),
        }

    def holders(self) -> Counter:
        return Counter(block for seq in self.live.values() for block in self.manager.block_table(seq))

    def used_blocks(self) -> set[int]:
        return set(self.holders())

    def idle(self) -> list[FakeSequence]:
        """Sequences that are not in the open step. Those that are stay as they are until it ends."""
        return [seq for seq in self.live.values() if seq.seq_id not in self.step]

    def pick(self, index) -> FakeSequence:
        idle = self.idle()
        return idle[index % len(idle)]


class ArticlePartsMachine(BlockLayerMachine):
    """The same lives on the article's skeletons. Their free list is a plain stack: no order of eviction."""

    evicts_the_oldest_first = False

    @staticmethod
    def make_manager(num_blocks, block_size):
        return manager_of(num_blocks, block_size)


class PlainAllocator(BlockAllocator):
    """Asked for one block after the other, as everything is that isn't exactly the package's own."""


class PlainTable(BlockTable):
    """As `PlainAllocator`."""


class PlainManager(BlockManager):
    """Takes no short cut: one block at a time, each hashed by itself, no step of which the rest is known."""

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(
            num_blocks,
            block_size,
            allocator=PlainAllocator(num_blocks, block_size),
            block_table=PlainTable,
            prefix_cache=GuardedPrefixCache(PrefixCache(), num_blocks),
            hash_block=lambda *block: hash_block(*block),
        )

    def append(self, seq, num_tokens):
        self._holdings[seq.seq_id].in_place_until = 0
        return super().append(seq, num_tokens)


class Twins:
    """Two managers that are told the same. After every call they must agree in all that can be told of them.

    Each has sequences of its own, so that neither finds the other's keys there.
    """

    def __init__(self, num_blocks: int, block_size: int):
        self.first, self.second = BlockManager(num_blocks, block_size), PlainManager(num_blocks, block_size)
        self.twins: dict[int, FakeSequence] = {}

    def __getattr__(self, name):
        value = getattr(self.first, name)
        if not callable(value):
            return value

        def call(*args):
            answers = value(*args), getattr(self.second, name)(*map(self.twin_of, args))
            assert answers[0] == answers[1], f"{name} answers {answers[0]} and {answers[1]}"
            self.compare(arg for arg in args if isinstance(arg, FakeSequence))
            return answers[0]

        return call

    def twin_of(self, value):
        if not isinstance(value, FakeSequence):
            return value
        twin = self.twins.setdefault(value.seq_id, replace(value, block_keys=list(value.block_keys)))
        twin.token_ids, twin.num_computed_tokens = list(value.token_ids), value.num_computed_tokens
        return twin

    def compare(self, sequences):
        first, second = self.first, self.second
        assert first.counts() == second.counts()
        assert first.used_slots == second.used_slots
        assert free_queue(first.allocator) == free_queue(second.allocator)
        for seq in sequences:
            assert seq.block_keys == self.twins[seq.seq_id].block_keys
            assert first.room(seq) == second.room(seq)
            if first.room(seq):
                assert first.block_table(seq) == second.block_table(seq)


def free_queue(allocator) -> list[int]:
    """The free blocks in the order in which they would be handed out."""
    drained = deepcopy(allocator)
    return [drained.allocate() for _ in range(drained.num_free)]


class TwinMachine(BlockLayerMachine):
    """The same lives on two managers at once."""

    @staticmethod
    def make_manager(num_blocks, block_size):
        return Twins(num_blocks, block_size)


#: What must happen often for a run to be worth its name.
EVENTS = (
    "refused",
    "hit",
    "full hit",
    "hit on a free block",
    "hit on what this step is to fill",
    "computes and writes nothing",
    "no room",
    "evicted",
    "copy on write",
    "fork",
    "abandon_step",
)


def run(machine, *, lives: int, at_least: int) -> Counter:
    """Lead so many lives of 100 rules each. Every event must happen `at_least` so often."""
    machine.seen = Counter()
    run_state_machine_as_test(machine, settings=settings(max_examples=lives, stateful_step_count=100))
    rare = {event: machine.seen[event] for event in EVENTS if machine.seen[event] < at_least}
    assert not rare, f"too rare for the run to mean something: {rare} of {machine.seen['operations']} operations"
    return machine.seen


def test_random_lives_of_sequences_never_mix_their_tokens_and_never_lose_a_block():
    seen = run(BlockLayerMachine, lives=250, at_least=100)
    assert seen["operations"] >= 10_000, f"{seen['operations']} operations are too few"


def test_the_article_s_mended_skeletons_lead_the_same_lives():
    seen = run(ArticlePartsMachine, lives=120, at_least=30)
    assert seen["operations"] >= 4_000, f"{seen['operations']} operations are too few"


def test_many_blocks_at_once_lead_the_same_lives_as_one_by_one():
    seen = run(TwinMachine, lives=80, at_least=20)
    assert seen["operations"] >= 3_000, f"{seen['operations']} operations are too few"
