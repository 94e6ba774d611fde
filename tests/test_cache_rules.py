"""The ten rules of the cache, each as tests that are named after what they promise.

Here are the rules as far as the block layer keeps them: who owns which block, and under which key it is
found. What only a running engine can break is in
tests/engine: test_rules_in_the_engine.py, test_recovery.py (rule 9) and test_token_equality.py (rule 10).
"""

import gc
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pagedkv_lab.blocks import BlockAllocator, BlockManager, BlockTable, PrefixCache, hash_block
from pagedkv_lab.errors import OutOfBlocks

BLOCK_SIZE = 4


@dataclass
class Seq:
    """A sequence as the block layer sees one."""

    seq_id: int
    token_ids: list[int]
    salt: str | None = None
    num_computed_tokens: int = 0
    block_keys: list = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"request {self.seq_id}"

    @property
    def extra_keys(self) -> tuple[tuple[str, str], ...]:
        return () if self.salt is None else (("cache_salt", self.salt),)


def pool(num_blocks: int, **parts) -> BlockManager:
    return BlockManager(num_blocks, BLOCK_SIZE, **parts)


def begin(manager: BlockManager, seq: Seq, num_tokens: int | None = None) -> range:
    """Let the sequence in with all its hits and compute so many tokens, or all. Returns what it writes."""
    seq.num_computed_tokens = manager.admit(seq, manager.lookup(seq))
    return go_on(manager, seq, num_tokens)


def go_on(manager: BlockManager, seq: Seq, num_tokens: int | None = None) -> range:
    num_tokens = len(seq.token_ids) - seq.num_computed_tokens if num_tokens is None else num_tokens
    writes = manager.append(seq, num_tokens)
    assert writes is not None, "no room"
    seq.num_computed_tokens += num_tokens
    return writes


def serve(manager: BlockManager, seq: Seq) -> list[int]:
    """Compute all of the sequence in a step of its own. Returns its blocks."""
    begin(manager, seq)
    manager.commit_step()
    return list(manager.block_table(seq))


def cache(manager: BlockManager, seq_id: int, token_ids: list[int], salt: str | None = None) -> list[int]:
    """Serve a sequence and let it go: its full blocks are free and findable. Returns the blocks it had."""
    seq = Seq(seq_id, token_ids, salt)
    blocks = serve(manager, seq)
    manager.free(seq)
    return blocks


def decode(manager: BlockManager, seq: Seq, token: int) -> range:
    seq.token_ids.append(token)
    return go_on(manager, seq)


def fork(manager: BlockManager, parent: Seq, seq_id: int) -> Seq:
    child = Seq(seq_id, list(parent.token_ids), parent.salt, parent.num_computed_tokens, list(parent.block_keys))
    manager.fork(parent, child)
    return child


def books(manager: BlockManager, *seqs: Seq) -> tuple:
    """All that a refused request must not have changed."""
    return (
        manager.counts(),
        [manager.allocator.ref_count(block) for block in range(manager.num_blocks)],
        manager.allocator.cached_blocks(),
        [list(manager.block_table(seq)) for seq in seqs],
        len(manager.prefix_cache),
        manager.used_slots,
    )


# Rule 1. Only full blocks are hashed; a key is H(parent key, token ids, extra keys), sha256, stable across
# processes; a salt enters the first block only, with a type tag.


def test_rule_1_only_full_blocks_are_hashed_and_found():
    hashed = []

    def listening_hash(parent, token_ids, extra=()):
        hashed.append(list(token_ids))
        return hash_block(parent, token_ids, extra)

    manager = pool(8, hash_block=listening_hash)
    cache(manager, 1, list(range(10)))
    assert hashed == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(manager.prefix_cache) == 2
    assert len(manager.lookup(Seq(2, list(range(10))))) == 2, "8 of its 10 tokens are found"
    assert len(manager.lookup(Seq(3, list(range(7))))) == 1, "4 of its 7 tokens are found"


def test_rule_1_a_block_that_a_chunk_or_a_decode_step_fills_is_hashed_when_it_is_full_and_not_before():
    manager = pool(8)
    seq = Seq(1, list(range(6)))
    found = []
    begin(manager, seq, 3)
    found.append(len(manager.prefix_cache))
    go_on(manager, seq, 3)
    found.append(len(manager.prefix_cache))
    for token in (6, 7, 8):
        decode(manager, seq, token)
        found.append(len(manager.prefix_cache))
    assert found == [0, 1, 1, 2, 2]


def test_rule_1_a_key_is_the_sha256_of_the_parent_s_key_and_the_tokens_whatever_the_process():
    """No seed, address or time goes into a key: its bytes can be written down."""

    def number(n: int) -> bytes:
        return n.to_bytes(8, "little")

    seq = Seq(1, [5, 6, 7, 8, 9, 10, 11, 12])
    serve(pool(8), seq)
    first = hashlib.sha256(b"".join(map(number, [0, 4, 5, 6, 7, 8]))).digest()
    second = hashlib.sha256(number(32) + first + b"".join(map(number, [4, 9, 10, 11, 12]))).digest()
    assert seq.block_keys == [first, second]


def test_rule_1_a_salt_enters_the_first_block_only_with_its_tag_and_the_chain_carries_it_on():
    asked = []

    def listening_hash(parent, token_ids, extra=()):
        asked.append((parent, tuple(extra)))
        return hash_block(parent, token_ids, extra)

    manager = pool(8, hash_block=listening_hash)
    seq = Seq(1, list(range(12)), salt="team-7")
    serve(manager, seq)
    first, second, _ = seq.block_keys
    assert asked == [(None, (("cache_salt", "team-7"),)), (first, ()), (second, ())]
    assert manager.lookup(Seq(2, list(range(12)))) == []
    assert manager.lookup(Seq(3, list(range(12)), salt="team-8")) == []
    assert len(manager.lookup(Seq(4, list(range(12)), salt="team-7"))) == 3


# Rule 2. A lookup stops at the first miss. Hit blocks are referenced before anything is allocated.


def test_rule_2_a_lookup_stops_at_the_first_miss_though_later_blocks_are_still_there():
    manager = pool(8)
    blocks = cache(manager, 1, list(range(16)))
    manager.prefix_cache.forget(blocks[1])
    assert manager.lookup(Seq(2, list(range(16)))) == blocks[:1]
    manager.prefix_cache.forget(blocks[0])
    assert manager.lookup(Seq(3, list(range(16)))) == []


def test_rule_2_a_request_never_evicts_its_own_hits():
    """Its hits are next in line for eviction when it asks for the rest of its blocks."""
    manager = pool(4)
    hits = cache(manager, 1, list(range(8)))
    others = cache(manager, 2, list(range(50, 58)))
    assert manager.counts() == (4, 0, 4, 0)
    seq = Seq(3, [*range(8), *range(90, 98)])
    table = serve(manager, seq)
    assert table[:2] == hits
    assert set(table[2:]) == set(others)
    assert manager.lookup(Seq(4, list(range(8)))) == hits, "they still hold what they held"


def test_rule_2_free_hits_are_not_counted_as_room_for_the_rest_of_the_request():
    manager = pool(4)
    cache(manager, 1, list(range(8)))
    seq = Seq(2, [*range(8), *range(90, 99)])
    hits = manager.lookup(seq)
    assert len(hits) == 2
    assert manager.allocator.num_free == 4, "it lacks 3 blocks and 4 are free, but 2 of these are its hits"
    assert not manager.can_admit(seq, hits)
    seq.token_ids.pop()
    assert manager.can_admit(seq, hits)


# Rule 3. Allocation is all or nothing.


def test_rule_3_a_sequence_that_finds_too_few_blocks_takes_none():
    manager = pool(4)
    cache(manager, 1, list(range(8)))
    holder, seq = Seq(2, list(range(50, 54))), Seq(3, [*range(4), *range(70, 83)])
    serve(manager, holder)
    seq.num_computed_tokens = manager.admit(seq, manager.lookup(seq))
    before = books(manager, holder, seq)
    assert manager.allocator.num_free == 2
    assert manager.append(seq, 13) is None, "4 blocks are needed, 2 are free"
    assert books(manager, holder, seq) == before
    assert manager.append(seq, 9) is None, "3 blocks are needed"
    assert books(manager, holder, seq) == before
    assert manager.append(seq, 8) == range(4, 12), "2 blocks are needed"


def test_rule_3_a_copy_that_finds_no_room_changes_no_count():
    manager = pool(2)
    parent = Seq(1, list(range(6)))
    serve(manager, parent)
    child = fork(manager, parent, 2)
    child.token_ids.append(7)
    before = books(manager, parent, child)
    assert manager.append(child, 1) is None
    assert books(manager, parent, child) == before
    assert manager.take_copies() == []


def test_rule_3_a_copy_and_new_blocks_are_had_together_or_not_at_all():
    manager = pool(4)
    parent = Seq(1, list(range(6)))
    serve(manager, parent)
    child = fork(manager, parent, 2)
    child.token_ids += list(range(70, 79))
    before = books(manager, parent, child)
    assert manager.append(child, 7) is None, "a copy and two new blocks are needed, two are free"
    assert books(manager, parent, child) == before
    assert manager.append(child, 6) == range(6, 12), "a copy and one new block"


# Rule 4. When the last reference goes, a hashed block stays findable at the tail of the free queue (LRU), an
# unhashed one goes to the front; a sequence frees its tail first. Reuse drops the old key. All in O(1).


def test_rule_4_a_hashed_block_stays_findable_after_its_last_reference_goes_and_comes_back_to_life_on_a_hit():
    manager = pool(4)
    blocks = cache(manager, 1, list(range(8)))
    assert manager.counts() == (4, 2, 2, 0)
    again = Seq(2, list(range(8)))
    begin(manager, again)
    assert manager.block_table(again) == blocks
    assert manager.counts() == (4, 2, 0, 2)
    manager.check_invariants()


def test_rule_4_a_block_is_free_only_when_its_last_reference_goes():
    manager = pool(4)
    one, two = Seq(1, list(range(8))), Seq(2, list(range(8)))
    serve(manager, one)
    serve(manager, two)
    manager.free(one)
    assert manager.counts() == (4, 2, 0, 2)
    manager.free(two)
    assert manager.counts() == (4, 2, 2, 0)


def test_rule_4_the_block_that_was_let_go_longest_ago_is_evicted_first():
    manager = pool(3)
    for seq_id, first in ((1, 10), (2, 20), (3, 30)):
        cache(manager, seq_id, list(range(first, first + 4)))
    serve(manager, renewed := Seq(4, list(range(10, 14))))
    manager.free(renewed)  # the first is now the one used last
    for seq_id, gone, left in ((5, 20, [10, 30]), (6, 30, [10]), (7, 10, [])):
        serve(manager, Seq(seq_id, list(range(100 * seq_id, 100 * seq_id + 4))))
        assert manager.lookup(Seq(99, list(range(gone, gone + 4)))) == []
        for first in left:
            assert manager.lookup(Seq(99, list(range(first, first + 4)))), f"{first} was evicted too early"


def test_rule_4_unhashed_blocks_are_reused_before_any_cached_one_is_evicted():
    manager = pool(6)
    cached = cache(manager, 1, list(range(8)))
    partly_filled = cache(manager, 2, [90, 91])
    assert serve(manager, Seq(3, [70, 71])) == partly_filled, "let go last, reused first"
    for seq_id in (4, 5, 6):
        assert not set(serve(manager, Seq(seq_id, [seq_id]))) & set(cached)
    assert manager.counts() == (6, 0, 2, 4)
    assert manager.lookup(Seq(7, list(range(8)))) == cached


def test_rule_4_a_sequence_loses_its_tail_before_its_head():
    manager = pool(4)
    blocks = cache(manager, 1, list(range(16)))
    for left in (3, 2, 1, 0):
        serve(manager, Seq(10 + left, [100 + left]))
        assert manager.lookup(Seq(2, list(range(16)))) == blocks[:left]


def test_rule_4_reuse_drops_the_old_key_so_that_nobody_finds_new_contents_by_it():
    manager = pool(1)
    (block,) = cache(manager, 1, [1, 2, 3, 4])
    assert cache(manager, 2, [5, 6, 7, 8]) == [block]
    assert manager.lookup(Seq(3, [1, 2, 3, 4])) == []
    assert manager.lookup(Seq(4, [5, 6, 7, 8])) == [block]
    assert len(manager.prefix_cache) == 1


class Watched(int):
    """A block number whose comparisons are calls that a trace sees: a search in a C list shows too."""

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    __hash__ = int.__hash__


class WatchedAllocator(BlockAllocator):
    def allocate(self) -> int:
        return Watched(super().allocate())


class SearchingAllocator(WatchedAllocator):
    """What must not be: the free blocks in a plain list, searched at each hit."""

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(num_blocks, block_size)
        self.queue = list(range(num_blocks))

    def share(self, block: int) -> None:
        self.queue.remove(block)
        super().share(block)


def steps_of(operation: Callable[[], object]) -> int:
    """Lines executed and functions called by the operation, those called from C included."""
    steps = 0

    def trace(frame, event, arg):
        nonlocal steps
        steps += event in ("line", "call")
        return trace

    before = sys.gettrace()
    gc.disable()  # a collection in the middle would run others' callbacks, and count them
    sys.settrace(trace)
    try:
        operation()
    finally:
        sys.settrace(before)
        gc.enable()
    return steps


def steps_of_queue_operations(num_blocks: int, allocator_class: type[BlockAllocator]) -> dict[str, int]:
    """Each operation on the free queue in a pool where half of all blocks are cached and the rest in use."""
    allocator = allocator_class(num_blocks, BLOCK_SIZE)
    prefixes = PrefixCache()
    blocks = [allocator.allocate() for _ in range(num_blocks)]
    for block in blocks[: num_blocks // 2]:
        allocator.mark_findable(block)
        prefixes.insert(("key", int(block)), block)
        allocator.free(block)
    middle, in_use = blocks[num_blocks // 4], blocks[-1]

    def evict():
        prefixes.forget(allocator.allocate())

    return {
        "look up": steps_of(lambda: prefixes.lookup(("key", int(middle)))),
        "hit a free block": steps_of(lambda: allocator.share(middle)),
        "let a findable block go": steps_of(lambda: allocator.free(middle)),
        "share a block in use": steps_of(lambda: allocator.share(in_use)),
        "one holder less": steps_of(lambda: allocator.free(in_use)),
        "let an unhashed block go": steps_of(lambda: allocator.free(in_use)),
        "allocate an empty block": steps_of(allocator.allocate),
        "evict the oldest": steps_of(evict),
        "count": steps_of(lambda: (allocator.num_free, allocator.num_cached)),
    }


def test_rule_4_every_queue_operation_takes_as_many_steps_in_a_pool_of_64k_blocks_as_in_one_of_1k():
    small = steps_of_queue_operations(1 << 10, WatchedAllocator)
    large = steps_of_queue_operations(1 << 16, WatchedAllocator)
    assert large == small
    assert max(small.values()) < 30


def steps_of_many_at_once(num_blocks: int, allocator_class: type[BlockAllocator]) -> dict[str, int]:
    """The same for eight blocks at once, in a pool where half of all blocks are cached and the rest in use."""
    allocator = allocator_class(num_blocks, BLOCK_SIZE)
    prefixes = PrefixCache()
    blocks = [allocator.allocate() for _ in range(num_blocks)]
    for block in blocks[: num_blocks // 2]:
        allocator.mark_findable(block)
    prefixes.insert_many([("key", int(block)) for block in blocks], blocks)
    allocator.free_many(blocks[: num_blocks // 2])
    middle, in_use = blocks[num_blocks // 4 :][:8], blocks[-8:]

    def evict():
        prefixes.forget_many(allocator.allocate_many(8))

    return {
        "hit free blocks": steps_of(lambda: allocator.share_many(middle)),
        "let findable blocks go": steps_of(lambda: allocator.free_many(middle)),
        "let unhashed blocks go": steps_of(lambda: allocator.free_many(in_use)),
        "allocate empty blocks": steps_of(lambda: allocator.allocate_many(8)),
        "evict the oldest": steps_of(evict),
        "find new contents by new keys": steps_of(lambda: prefixes.insert_many([*"abcdefgh"], middle)),
    }


def test_rule_4_many_blocks_at_once_take_as_many_steps_in_a_pool_of_64k_blocks_as_in_one_of_1k():
    small = steps_of_many_at_once(1 << 10, WatchedAllocator)
    large = steps_of_many_at_once(1 << 16, WatchedAllocator)
    assert large == small
    assert max(small.values()) < 8 * 25


def test_rule_4_a_search_would_show_in_the_number_of_steps():
    """The measure of the test above is able to fail."""
    small = steps_of_queue_operations(1 << 10, SearchingAllocator)["hit a free block"]
    large = steps_of_queue_operations(1 << 16, SearchingAllocator)["hit a free block"]
    assert large > 32 * small > 0


@pytest.mark.parametrize("allocator_class", [WatchedAllocator, BlockAllocator])
def test_rule_4_a_request_that_hits_free_blocks_takes_no_more_steps_in_a_larger_pool(allocator_class):
    def steps(num_blocks: int) -> int:
        manager = BlockManager(num_blocks, BLOCK_SIZE, allocator=allocator_class(num_blocks, BLOCK_SIZE))
        for seq_id in range(num_blocks // 4):
            cache(manager, seq_id + 1, list(range(16 * seq_id, 16 * seq_id + 16)))
        middle = 16 * (num_blocks // 8)
        seq = Seq(99_999, list(range(middle, middle + 15)))
        taken = steps_of(lambda: (serve(manager, seq), manager.free(seq)))
        assert manager.hit_tokens == 12
        return taken

    assert steps(1 << 10) == steps(1 << 13)


def test_rule_4_decoding_takes_no_more_steps_after_a_longer_prompt():
    """Over whole blocks: those that are begun, those that are filled, and the tokens between. Nothing walks a table."""

    def steps(prompt_length: int) -> list[int]:
        manager = pool(4096)
        seq = Seq(1, list(range(prompt_length)))
        serve(manager, seq)
        return [
            steps_of(lambda: (decode(manager, seq, 5), manager.slots(seq, range(1, 2)), manager.commit_step()))
            for _ in range(3 * BLOCK_SIZE)
        ]

    assert steps(128) == steps(8192)


# Rule 5. A prompt that hits completely computes its last token only and writes nothing. (The block layer's
# half.)


def test_rule_5_a_full_hit_has_its_last_token_to_compute_and_takes_and_writes_nothing_for_it():
    manager = pool(4)
    blocks = cache(manager, 1, list(range(8)))
    seq = Seq(2, list(range(8)))
    seq.num_computed_tokens = manager.admit(seq, manager.lookup(seq))
    assert seq.num_computed_tokens == 7
    before = books(manager, seq)
    writes = manager.append(seq, 1)
    assert writes is not None
    assert list(writes) == []
    assert books(manager, seq) == before
    assert manager.take_copies() == []
    assert manager.block_table(seq) == blocks


def test_rule_5_the_first_token_after_a_full_hit_goes_into_a_block_of_its_own():
    manager = pool(4)
    blocks = cache(manager, 1, list(range(8)))
    seq = Seq(2, list(range(8)))
    assert len(begin(manager, seq)) == 0
    assert decode(manager, seq, 42) == range(8, 9)
    assert manager.block_table(seq)[:2] == blocks
    assert manager.block_table(seq)[2] not in blocks
    assert manager.take_copies() == []


# Rule 6. Two equal prompts in the same step share blocks. (The block layer's half.)


def test_rule_6_two_equal_prompts_in_the_same_step_share_all_full_blocks():
    manager = pool(8)
    one, two = Seq(1, list(range(10))), Seq(2, list(range(10)))
    assert begin(manager, one) == range(10)
    assert begin(manager, two) == range(8, 10), "the second writes only what is not in a full block"
    assert manager.block_table(one)[:2] == manager.block_table(two)[:2]
    assert manager.counts().used == 4
    manager.commit_step()
    manager.check_invariants()


def test_rule_6_a_prompt_shares_within_the_step_as_far_as_the_other_s_chunk_goes():
    manager = pool(8)
    one, two = Seq(1, list(range(12))), Seq(2, list(range(12)))
    begin(manager, one, 5)
    assert begin(manager, two) == range(4, 12)
    assert manager.block_table(one)[0] == manager.block_table(two)[0]


def test_rule_6_what_a_failed_step_was_to_fill_is_shared_with_nobody_afterwards():
    manager = pool(8)
    one, two = Seq(1, list(range(8))), Seq(2, list(range(8)))
    begin(manager, one)
    begin(manager, two)
    manager.abandon_step()
    manager.free(one)
    manager.free(two)
    assert manager.lookup(Seq(3, list(range(8)))) == []
    assert manager.counts() == (8, 8, 0, 0)


# Rule 7. Shared blocks are never written. Fork shares all blocks, the partial one too; the first writer
# copies, a sole owner writes in place.


def test_rule_7_a_fork_shares_every_block_the_partial_one_too_and_takes_none():
    manager = pool(8)
    parent = Seq(1, list(range(6)))
    serve(manager, parent)
    child = fork(manager, parent, 2)
    assert manager.block_table(child) == manager.block_table(parent)
    assert manager.counts().used == 2


def test_rule_7_the_first_writer_copies_the_partial_block_and_the_last_one_writes_in_place():
    manager = pool(8)
    parent = Seq(1, list(range(6)))
    full, partial = serve(manager, parent)
    children = [fork(manager, parent, seq_id) for seq_id in (2, 3)]
    written = []
    for seq in (parent, *children):
        decode(manager, seq, seq.seq_id)
        written.append(manager.block_table(seq)[1])
    assert manager.take_copies() == [(partial, written[0]), (partial, written[1])]
    assert written[2] == partial, "alone with the block by now"
    assert len(set(written)) == 3, "each writes into a block of its own"
    assert [manager.block_table(seq)[0] for seq in (parent, *children)] == [full] * 3


def test_rule_7_a_sole_owner_writes_in_place():
    manager = pool(8)
    seq = Seq(1, list(range(6)))
    blocks = serve(manager, seq)
    manager.free(fork(manager, seq, 2))
    decode(manager, seq, 7)
    assert manager.block_table(seq) == blocks
    assert manager.take_copies() == []


def test_rule_7_no_block_that_is_written_has_a_second_holder():
    manager = pool(16)
    cache(manager, 1, list(range(8)))
    one, two = Seq(2, list(range(8))), Seq(3, [*range(8), 50, 51])
    writes = [(one, begin(manager, one)), (two, begin(manager, two))]
    manager.commit_step()
    forks = [fork(manager, two, seq_id) for seq_id in (4, 5, 6)]
    for _ in range(6):
        for seq in (one, two, *forks):
            writes.append((seq, decode(manager, seq, seq.seq_id)))
            for position in writes[-1][1]:
                block = manager.block_table(seq)[position // BLOCK_SIZE]
                assert manager.allocator.ref_count(block) == 1, f"{seq.name} writes into a shared block"
        manager.commit_step()
        manager.check_invariants()
    assert sum(len(positions) for _, positions in writes) == 2 + 6 * 5


# Rule 9. Whatever happens, every block of a finished sequence is back: free + cached + used == total. (The
# block layer's half; tests/blocks/test_block_layer_machine.py asks it after each of thousands of operations.)


def all_back(manager: BlockManager) -> bool:
    manager.check_invariants()
    total, free, cached, used = manager.counts()
    return free + cached == total and used == 0 and manager.used_slots == 0


def test_rule_9_sequences_that_finish_in_any_state_give_every_block_back():
    manager = pool(8)
    admitted, half_way, decoding = Seq(1, list(range(8))), Seq(2, list(range(20, 30))), Seq(3, [5, 6])
    admitted.num_computed_tokens = manager.admit(admitted, manager.lookup(admitted))
    begin(manager, half_way, 5)
    begin(manager, decoding)
    manager.commit_step()
    decode(manager, decoding, 7)
    manager.commit_step()
    forked = fork(manager, decoding, 4)
    for seq in (half_way, decoding, admitted, forked):
        manager.free(seq)
        total, free, cached, used = manager.counts()
        assert free + cached + used == total
    assert all_back(manager)


def test_rule_9_a_failed_step_gives_every_block_back_and_the_pool_serves_on():
    manager = pool(4)
    for attempt in range(5):
        one, two = Seq(2 * attempt + 1, list(range(8))), Seq(2 * attempt + 2, list(range(8)))
        begin(manager, one)
        begin(manager, two)
        manager.abandon_step()
        manager.free(one)
        manager.free(two)
        assert all_back(manager)
    assert len(serve(manager, Seq(99, list(range(16))))) == 4, "the whole pool is there"


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_rule_9_an_exception_while_blocks_are_taken_leaves_nothing_behind(fails_at):
    class Fails(BlockAllocator):
        calls = 0

        def allocate(self):
            self.calls += 1
            if self.calls == fails_at:
                raise KeyboardInterrupt
            return super().allocate()

    manager = pool(4, allocator=Fails(4, BLOCK_SIZE))
    seq = Seq(1, list(range(12)))
    seq.num_computed_tokens = manager.admit(seq, [])
    with pytest.raises(KeyboardInterrupt):
        manager.append(seq, 12)
    manager.check_invariants()
    manager.abandon_step()
    manager.free(seq)
    assert all_back(manager)
    assert len(serve(manager, Seq(2, list(range(16))))) == 4


def test_rule_9_a_table_that_is_refused_a_block_still_gives_back_all_it_has():
    allocator = BlockAllocator(3, BLOCK_SIZE)
    table = BlockTable(allocator)
    for _ in range(3):
        table.append_block()
    with pytest.raises(OutOfBlocks):
        table.append_block()
    table.free_all()
    assert allocator.num_free == 3
