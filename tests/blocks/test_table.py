"""A block table says where each of a sequence's tokens lies, whoever shares the blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_lab.blocks import BlockAllocator, BlockTable
from pagedkv_lab.errors import NotAllocated, OutOfBlocks


@pytest.fixture
def allocator() -> BlockAllocator:
    return BlockAllocator(num_blocks=8, block_size=4)


def table_of(allocator: BlockAllocator, num_blocks: int) -> BlockTable:
    table = BlockTable(allocator)
    for _ in range(num_blocks):
        table.append_block()
    return table


def test_a_new_table_holds_nothing(allocator):
    table = BlockTable(allocator)
    assert (len(table), table.blocks, allocator.num_free) == (0, [], 8)


def test_growing_takes_one_block_at_a_time_from_the_pool(allocator):
    table = BlockTable(allocator)
    grown = [table.append_block() for _ in range(3)]
    assert table.blocks == grown
    assert len(table) == 3
    assert allocator.num_free == 5


def test_growing_in_an_empty_pool_raises_and_leaves_the_table_as_it_was(allocator):
    table = table_of(allocator, 8)
    before = list(table.blocks)
    with pytest.raises(OutOfBlocks):
        table.append_block()
    assert table.blocks == before


def test_the_slot_of_a_position_is_its_physical_block_times_block_size_plus_the_offset(allocator):
    table = BlockTable(allocator)
    table.blocks = [5, 0, 7]
    assert [table.slot(position) for position in range(12)] == [20, 21, 22, 23, 0, 1, 2, 3, 28, 29, 30, 31]


def test_a_position_beyond_the_table_has_no_slot(allocator):
    with pytest.raises(IndexError):
        table_of(allocator, 2).slot(8)


@given(st.integers(1, 9), st.integers(1, 6), st.randoms(use_true_random=False))
def test_no_two_positions_of_two_sequences_share_a_slot(block_size, num_blocks, random):
    allocator = BlockAllocator(2 * num_blocks, block_size)
    tables = [BlockTable(allocator), BlockTable(allocator)]
    for table in random.sample(tables * num_blocks, 2 * num_blocks):
        table.append_block()
    slots = [table.slot(position) for table in tables for position in range(num_blocks * block_size)]
    assert sorted(slots) == list(range(2 * num_blocks * block_size))


def test_a_block_of_somebody_else_can_be_appended_and_has_one_more_holder(allocator):
    owner = table_of(allocator, 1)
    guest = BlockTable(allocator)
    guest.append_shared(owner.blocks[0])
    assert guest.blocks == owner.blocks
    assert allocator.ref_count(owner.blocks[0]) == 2


def test_a_free_block_without_contents_can_not_be_appended_and_the_table_stays(allocator):
    table = BlockTable(allocator)
    with pytest.raises(NotAllocated):
        table.append_shared(3)
    assert table.blocks == []


def test_a_fork_has_the_same_blocks_in_a_table_of_its_own(allocator):
    parent = table_of(allocator, 3)
    child = parent.fork()
    assert child.blocks == parent.blocks
    assert [allocator.ref_count(block) for block in parent.blocks] == [2, 2, 2]
    child.append_block()
    assert len(parent) == 3, "a fork that grows leaves its parent's table alone"


def test_a_sole_owner_writes_in_place(allocator):
    table = table_of(allocator, 2)
    before = list(table.blocks)
    assert table.ensure_writable(1) is None
    assert table.blocks == before
    assert allocator.num_free == 6


def test_writing_into_a_shared_block_moves_the_writer_to_a_copy_and_says_what_to_copy(allocator):
    parent = table_of(allocator, 3)
    child = parent.fork()
    source, destination = child.ensure_writable(2)
    assert source == parent.blocks[2]
    assert destination == child.blocks[2]
    assert destination not in parent.blocks
    assert child.blocks[:2] == parent.blocks[:2], "only the block that is written is copied"
    assert (allocator.ref_count(source), allocator.ref_count(destination)) == (1, 1)
    assert parent.ensure_writable(2) is None, "the other holder is alone now and writes in place"


def test_a_copy_that_finds_no_free_block_changes_nothing(allocator):
    parent = table_of(allocator, 8)
    child = parent.fork()
    with pytest.raises(OutOfBlocks):
        child.ensure_writable(7)
    assert child.blocks == parent.blocks
    assert [allocator.ref_count(block) for block in parent.blocks] == [2] * 8


def test_giving_everything_back_leaves_an_empty_table_and_can_be_asked_for_twice(allocator):
    table = table_of(allocator, 3)
    table.free_all()
    table.free_all()
    assert table.blocks == []
    assert allocator.num_free == 8


def test_what_a_fork_gives_back_stays_with_its_parent(allocator):
    parent = table_of(allocator, 3)
    parent.fork().free_all()
    assert [allocator.ref_count(block) for block in parent.blocks] == [1, 1, 1]


def test_the_tail_of_a_sequence_is_given_back_first(allocator):
    table = table_of(allocator, 4)
    blocks = list(table.blocks)
    for block in blocks:
        allocator.mark_findable(block)
    table.free_all()
    assert allocator.cached_blocks() == blocks[::-1]
