"""What is done to many blocks at once leaves behind what the single steps would, to the order of the free queue."""

import copy
import sys

import pytest
from fakes import FakeSequence, serve
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedkv_lab.blocks import BlockAllocator, BlockManager, BlockTable, PrefixCache, hash_block
from pagedkv_lab.blocks.hashing import hash_blocks
from pagedkv_lab.errors import DoubleFree, NotAllocated, OutOfBlocks, PagedKVError

NUM_BLOCKS = 4


def state(allocator: BlockAllocator) -> tuple:
    """All that can be told of a pool: the counts, what is cached, and in which order blocks would be handed out."""
    drained = copy.deepcopy(allocator)
    order = [drained.allocate() for _ in range(drained.num_free)]
    counts = [allocator.ref_count(block) for block in range(allocator.num_blocks)]
    return counts, allocator.num_free, allocator.cached_blocks(), order


class OneByOne:
    """The calls for many, as loops over single ones."""

    def __init__(self, allocator: BlockAllocator):
        self.allocator = allocator

    def allocate_many(self, count):
        return [self.allocator.allocate() for _ in range(count)]

    def share_many(self, blocks):
        for block in blocks:
            self.allocator.share(block)

    def free_many(self, blocks):
        for block in blocks:
            self.allocator.free(block)


def outcome(call, *args):
    """What the call returns, or which error it raises."""
    try:
        return call(*args)
    except PagedKVError as error:
        return type(error)


some_blocks = st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=8)
calls = st.lists(
    st.tuples(st.just("allocate_many"), st.integers(0, NUM_BLOCKS))
    | st.tuples(st.sampled_from(["share_many", "free_many", "mark"]), some_blocks),
    max_size=20,
)


@settings(max_examples=400)
@given(calls)
def test_a_pool_asked_for_many_blocks_at_once_is_as_if_asked_one_by_one(calls):
    """Errors included: what is left is what the single calls before the one that failed leave."""
    at_once = BlockAllocator(NUM_BLOCKS, 16)
    allocator = BlockAllocator(NUM_BLOCKS, 16)
    one_by_one = OneByOne(allocator)
    for name, argument in calls:
        if name == "mark":
            for block in argument:
                assert outcome(at_once.mark_findable, block) == outcome(allocator.mark_findable, block)
        elif name == "allocate_many" and argument > at_once.num_free:
            before = state(at_once)
            with pytest.raises(OutOfBlocks):
                at_once.allocate_many(argument)
            assert state(at_once) == before, "all or nothing"
        else:
            assert outcome(getattr(at_once, name), argument) == outcome(getattr(one_by_one, name), argument)
        assert state(at_once) == state(allocator)


def test_blocks_come_from_the_stack_of_empty_ones_first_and_then_the_oldest_cached_ones():
    allocator = BlockAllocator(5, 16)
    first, second, third, fourth, fifth = allocator.allocate_many(5)
    for block in (first, second):
        allocator.mark_findable(block)
    allocator.free_many([third, first, fourth, second, fifth])
    assert allocator.allocate_many(4) == [fifth, fourth, third, first]
    assert allocator.cached_blocks() == [second]
    allocator.free_many([first, third])
    assert allocator.cached_blocks() == [second], "what the first held is gone"


def test_a_pool_that_has_fewer_blocks_than_asked_for_says_the_numbers_and_hands_out_none():
    allocator = BlockAllocator(4, 16)
    blocks = allocator.allocate_many(3)
    allocator.mark_findable(blocks[0])
    allocator.free(blocks[0])
    with pytest.raises(OutOfBlocks, match="Out of blocks: 3 needed, 1 free, 1 cached, 2 in use"):
        allocator.allocate_many(3)
    assert len(allocator.allocate_many(2)) == 2
    assert allocator.allocate_many(0) == []


def test_freeing_a_block_once_too_often_among_many_is_refused():
    allocator = BlockAllocator(4, 16)
    one, two = allocator.allocate_many(2)
    with pytest.raises(DoubleFree, match=f"Block {one} was freed once too often"):
        allocator.free_many([one, one, two])
    assert (allocator.ref_count(one), allocator.ref_count(two)) == (0, 1)


def test_a_block_whose_contents_are_gone_is_not_shared_among_many():
    allocator = BlockAllocator(4, 16)
    one, two = allocator.allocate_many(2)
    allocator.free(two)
    with pytest.raises(NotAllocated, match=f"Block {two} is not allocated"):
        allocator.share_many([one, two])


# Tables


class Plain(BlockTable):
    """Takes single steps only, as every table does that isn't exactly the package's own."""


@given(st.integers(1, 5), st.lists(st.integers(0, 7), max_size=6), st.data())
def test_tables_that_grow_and_go_at_once_are_as_those_that_do_it_block_by_block(block_size, counts, data):
    pools = BlockAllocator(12, block_size), BlockAllocator(12, block_size)
    tables: list[tuple[BlockTable, BlockTable]] = []
    for count in counts:
        if count > pools[0].num_free and tables:
            going = tables.pop(data.draw(st.integers(0, len(tables) - 1)))
            for table in going:
                table.free_all()
        else:
            count = min(count, pools[0].num_free)
            pair = BlockTable(pools[0]), Plain(pools[1])
            for table in pair:
                if tables and count % 2:
                    table.append_shared_blocks(tables[-1][0].blocks)
                table.append_blocks(count)
                for block in table.blocks[::2]:
                    table.allocator.mark_findable(block)
            tables.append(pair)
        for at_once, one_by_one in tables:
            assert at_once.blocks == one_by_one.blocks
            assert at_once.fork().blocks == one_by_one.fork().blocks
        assert state(pools[0]) == state(pools[1])


@given(st.integers(1, 5), st.integers(0, 20), st.integers(0, 20))
def test_the_slots_of_a_range_are_those_of_its_positions(block_size, start, stop):
    table = BlockTable(BlockAllocator(20, block_size))
    table.append_blocks(20)
    table.blocks.reverse()
    table.blocks[3:9] = table.blocks[8:2:-1]
    assert table.slots(range(start, stop)) == [table.slot(position) for position in range(start, stop)]


@pytest.mark.parametrize("positions", [range(6, 9), range(8, 9), range(12, 20)])
def test_a_range_that_leaves_the_table_has_no_slots(positions):
    table = BlockTable(BlockAllocator(4, 4))
    table.append_blocks(2)
    with pytest.raises(IndexError):
        table.slots(positions)


def test_whoever_changes_a_single_step_is_asked_for_single_steps():
    class CountingAllocator(BlockAllocator):
        taken = 0

        def allocate(self):
            CountingAllocator.taken += 1
            return super().allocate()

    class TopHalf(BlockTable):
        def slot(self, position):
            return super().slot(position) + 1000

    table = BlockTable(CountingAllocator(8, 4))
    table.append_blocks(5)
    assert CountingAllocator.taken == 5
    moved = TopHalf(BlockAllocator(8, 4))
    moved.append_blocks(2)
    assert min(moved.slots(range(8))) >= 1000


# Prefix caches and keys


@given(st.lists(st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6))))
def test_a_prefix_cache_told_many_things_at_once_is_as_if_told_one_by_one(calls):
    at_once, one_by_one = PrefixCache(), PrefixCache()
    for inserts, pairs in calls:
        keys, blocks = [key for key, _ in pairs], [block for _, block in pairs]
        if inserts:
            expected = []
            for key, block in pairs:
                if one_by_one.lookup(key) is None:
                    expected.append(block)
                one_by_one.insert(key, block)
            assert at_once.insert_many(keys, blocks) == expected
        else:
            at_once.forget_many(blocks)
            for block in blocks:
                one_by_one.forget(block)
        assert [at_once.lookup(key) for key in range(5)] == [one_by_one.lookup(key) for key in range(5)]
        assert len(at_once) == len(one_by_one)


token = st.integers(-(2**63), 2**63 - 1)
extra_keys = st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=2)


@given(st.none() | st.binary(max_size=40), st.integers(1, 5), st.integers(1, 5), extra_keys, st.data())
def test_keys_hashed_in_a_row_are_the_keys_of_the_blocks_one_by_one(parent, block_size, num_blocks, extra, data):
    size = block_size * num_blocks
    token_ids = data.draw(st.lists(token, min_size=size, max_size=size))
    keys = [hash_block(parent, token_ids[:block_size], extra)]
    for at in range(block_size, size, block_size):
        keys.append(hash_block(keys[-1], token_ids[at : at + block_size]))
    assert hash_blocks(parent, token_ids, block_size, extra) == keys
    assert hash_blocks(parent, tuple(token_ids), block_size, extra) == keys


def test_a_block_that_is_not_full_has_no_key():
    with pytest.raises(AssertionError, match="7 tokens are no full blocks of 4"):
        hash_blocks(None, range(7), 4)


# Ctrl-C between two lines


def interrupt_at(nth: int, operation) -> bool:
    """Run the operation with a KeyboardInterrupt before its n-th line. Returns whether it came to that."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        if event == "line" and lines == nth:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        operation()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_whatever_an_interrupted_prefix_cache_still_finds_it_can_still_forget():
    def interrupted(nth):
        cache = PrefixCache()
        cache.insert_many(["a", "b", "c"], [0, 1, 2])

        def operation():
            cache.forget_many([0, 1])
            cache.insert_many(["d", "e", "a"], [0, 1, 2])

        came = interrupt_at(nth, operation)
        found = {key: cache.lookup(key) for key in "abcde"}
        for key, block in found.items():
            if block is not None:
                cache.forget(block)
                assert cache.lookup(key) is None, f"{key} was never forgotten after a Ctrl-C at line {nth}"
        return came

    moments = 1
    while interrupted(moments):
        moments += 1
    assert moments > 30


@pytest.mark.parametrize("num_tokens", [4, 12])
def test_after_a_ctrl_c_at_any_line_nothing_is_found_but_what_can_be_taken(num_tokens):
    """Unless the books are off: then the engine starts a new pool, and the manager can't be trusted."""
    trusted = moments = 0
    while True:
        moments += 1
        manager = BlockManager(num_blocks=4, block_size=4)
        old = FakeSequence(1, list(range(16)))
        serve(manager, old)
        manager.free(old)
        seq = FakeSequence(2, list(range(50, 50 + num_tokens)))

        def step(manager=manager, seq=seq):
            seq.num_computed_tokens = manager.admit(seq, [])
            manager.append(seq, len(seq.token_ids))

        came = interrupt_at(moments, step)
        if not came:
            break
        manager.abandon_step()
        manager.free(seq)
        if manager.counts().used == manager.used_slots == 0:
            trusted += 1
            for asked in (FakeSequence(3, old.token_ids), FakeSequence(4, seq.token_ids)):
                hits = manager.lookup(asked)
                assert set(hits) <= set(manager.allocator.cached_blocks()), f"after a Ctrl-C at line {moments}"
                manager.admit(asked, hits)
                manager.free(asked)
            assert manager.lookup(FakeSequence(5, seq.token_ids)) == [], "found, and never filled"
    assert moments > 40
    assert trusted > 10
