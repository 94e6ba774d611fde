"""The pool hands out each block once, counts its holders, and gets it back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_lab.blocks import BlockAllocator
from pagedkv_lab.errors import DoubleFree, NotAllocated, OutOfBlocks, PagedKVError


def allocate_all(allocator: BlockAllocator) -> list[int]:
    return [allocator.allocate() for _ in range(allocator.num_free)]


def test_every_block_is_handed_out_exactly_once():
    allocator = BlockAllocator(num_blocks=7, block_size=16)
    assert sorted(allocate_all(allocator)) == list(range(7))
    assert allocator.num_free == 0


def test_a_fresh_block_has_one_holder():
    allocator = BlockAllocator(2, 16)
    assert allocator.ref_count(allocator.allocate()) == 1


def test_an_empty_pool_says_that_it_is_out_of_blocks_and_hands_out_nothing():
    allocator = BlockAllocator(3, 16)
    held = allocate_all(allocator)
    with pytest.raises(OutOfBlocks, match=r"Out of blocks: 1 needed, 0 free, 0 cached, 3 in use"):
        allocator.allocate()
    assert [allocator.ref_count(block) for block in held] == [1, 1, 1]
    allocator.free(held[0])
    assert allocator.allocate() == held[0], "a refused allocation must not cost a block"


def test_a_block_is_free_only_when_its_last_holder_lets_go():
    allocator = BlockAllocator(1, 16)
    block = allocator.allocate()
    allocator.share(block)
    allocator.share(block)
    for holders_left in (2, 1):
        allocator.free(block)
        assert (allocator.ref_count(block), allocator.num_free) == (holders_left, 0)
    allocator.free(block)
    assert (allocator.ref_count(block), allocator.num_free) == (0, 1)


def test_freeing_once_too_often_is_refused_and_changes_nothing():
    allocator = BlockAllocator(2, 16)
    block = allocator.allocate()
    allocator.free(block)
    with pytest.raises(DoubleFree, match=rf"Block {block} was freed once too often") as caught:
        allocator.free(block)
    assert caught.value.block == block
    assert allocator.num_free == 2
    assert sorted(allocate_all(allocator)) == [0, 1], "a double free must not put the block into the pool twice"


def test_a_block_that_was_never_handed_out_can_not_be_freed():
    with pytest.raises(DoubleFree, match="Block 1"):
        BlockAllocator(2, 16).free(1)


@pytest.mark.parametrize("operation", ["share", "free"])
@pytest.mark.parametrize("block", [-1, 4, 1000])
def test_a_block_that_the_pool_does_not_have_is_refused_by_its_number(operation, block):
    allocator = BlockAllocator(4, 16)
    allocate_all(allocator)
    with pytest.raises(NotAllocated, match=rf"Block {block} is not allocated: the pool has no such block.*0 to 3"):
        getattr(allocator, operation)(block)
    assert [allocator.ref_count(b) for b in range(4)] == [1, 1, 1, 1]


def test_a_free_block_whose_contents_are_gone_can_not_be_shared():
    allocator = BlockAllocator(2, 16)
    block = allocator.allocate()
    allocator.free(block)
    with pytest.raises(NotAllocated, match=rf"Block {block} is not allocated: nobody holds it"):
        allocator.share(block)
    assert sorted(allocate_all(allocator)) == [0, 1]


def test_a_free_block_that_is_still_findable_comes_back_to_life_and_is_not_handed_out_twice():
    allocator = BlockAllocator(3, 16)
    block = allocator.allocate()
    allocator.mark_findable(block)
    allocator.free(block)
    assert (allocator.num_free, allocator.num_cached, allocator.cached_blocks()) == (3, 1, [block])
    allocator.share(block)
    assert (allocator.ref_count(block), allocator.num_free, allocator.num_cached) == (1, 2, 0)
    assert block not in allocate_all(allocator)


def test_a_block_stays_findable_over_any_number_of_lives_until_it_is_handed_out_afresh():
    allocator = BlockAllocator(1, 16)
    block = allocator.allocate()
    allocator.mark_findable(block)
    for _ in range(3):
        allocator.free(block)
        allocator.share(block)
    allocator.free(block)
    assert allocator.allocate() == block
    allocator.free(block)
    with pytest.raises(NotAllocated):
        allocator.share(block)
    assert allocator.num_cached == 0


def test_a_mark_can_be_taken_back_while_the_block_is_in_use():
    allocator = BlockAllocator(1, 16)
    block = allocator.allocate()
    allocator.mark_findable(block)
    allocator.mark_findable(block, False)
    allocator.free(block)
    assert (allocator.num_free, allocator.num_cached) == (1, 0)


def test_only_a_block_in_use_can_be_marked():
    with pytest.raises(NotAllocated, match="only a block in use can be marked findable"):
        BlockAllocator(1, 16).mark_findable(0)


def test_cached_blocks_are_handed_out_last_and_the_one_freed_longest_ago_first():
    allocator = BlockAllocator(5, 16)
    blocks = allocate_all(allocator)
    for block in (blocks[3], blocks[0], blocks[4]):
        allocator.mark_findable(block)
        allocator.free(block)
    allocator.free(blocks[1])
    allocator.free(blocks[2])
    assert set(allocate_all(allocator)[:2]) == {blocks[1], blocks[2]}, "empty blocks go before cached ones"
    for block in blocks:
        allocator.free(block)
    assert allocator.num_cached == 0, "a block that was handed out is no longer findable"


def test_the_order_of_eviction_is_the_order_of_last_use():
    allocator = BlockAllocator(3, 16)
    first, second, third = allocate_all(allocator)
    for block in (first, second, third):
        allocator.mark_findable(block)
        allocator.free(block)
    allocator.share(first)
    allocator.free(first)
    assert allocator.cached_blocks() == [second, third, first]
    assert allocate_all(allocator) == [second, third, first]


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (-1, 16), (4, 0)])
def test_a_pool_without_a_block_or_a_slot_is_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match=f"not {num_blocks} of {block_size}"):
        BlockAllocator(num_blocks, block_size)


def test_all_errors_of_the_pool_can_be_caught_as_one():
    for error in (OutOfBlocks, DoubleFree, NotAllocated):
        assert issubclass(error, PagedKVError)


@given(st.lists(st.tuples(st.sampled_from(["allocate", "share", "free", "mark"]), st.integers(0, 4)), max_size=60))
def test_whatever_is_asked_the_counts_are_those_of_the_calls_that_succeeded(calls):
    allocator = BlockAllocator(5, 16)
    holders, findable = [0] * 5, [False] * 5
    for operation, block in calls:
        if operation == "allocate":
            if all(holders):
                with pytest.raises(OutOfBlocks):
                    allocator.allocate()
            else:
                block = allocator.allocate()
                assert holders[block] == 0, "a block in use was handed out"
                holders[block], findable[block] = 1, False
        elif operation == "share" and (holders[block] or findable[block]):
            allocator.share(block)
            holders[block] += 1
        elif operation == "free" and holders[block]:
            allocator.free(block)
            holders[block] -= 1
        elif operation == "mark" and holders[block]:
            allocator.mark_findable(block)
            findable[block] = True
        else:
            method = {"share": allocator.share, "free": allocator.free, "mark": allocator.mark_findable}[operation]
            with pytest.raises((NotAllocated, DoubleFree)):
                method(block)
        assert [allocator.ref_count(b) for b in range(5)] == holders
        assert allocator.num_free == holders.count(0)
        assert set(allocator.cached_blocks()) == {b for b in range(5) if findable[b] and not holders[b]}
