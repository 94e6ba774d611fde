"""The manager: a sequence comes in, grows, forks, goes, and the pool's books are right at every moment.

The ten rules have their own file, tests/test_cache_rules.py; long random lives are in
test_block_layer_machine.py.
"""

import pytest
from fakes import FakeSequence, admit, compute, serve

from pagedkv_lab.blocks import BlockAllocator, BlockManager, BlockTable
from pagedkv_lab.errors import OutOfBlocks


@pytest.fixture
def manager() -> BlockManager:
    return BlockManager(num_blocks=8, block_size=4)


def test_a_fresh_pool_is_all_free(manager):
    assert manager.counts() == (8, 8, 0, 0)
    assert manager.used_slots == 0
    manager.check_invariants()


# A sequence comes in and grows


def test_a_sequence_takes_blocks_as_it_grows_and_not_before(manager):
    seq = FakeSequence(1, list(range(9)))
    admit(manager, seq)
    assert manager.counts().used == 0, "to be let in costs nothing"
    for num_tokens, blocks_now in ((3, 1), (1, 1), (1, 2), (4, 3)):
        compute(manager, seq, num_tokens)
        assert len(manager.block_table(seq)) == blocks_now
        assert manager.used_slots == seq.num_computed_tokens


def test_append_says_which_positions_are_written(manager):
    seq = FakeSequence(1, list(range(9)))
    admit(manager, seq)
    assert compute(manager, seq, 6) == range(6)
    assert compute(manager, seq, 3) == range(6, 9)


def test_slots_are_physical_block_times_block_size_plus_offset(manager):
    filler, seq = FakeSequence(1, [1, 2, 3]), FakeSequence(2, list(range(6)))
    serve(manager, filler)
    serve(manager, seq)
    first, second = manager.block_table(seq)
    assert manager.slots(seq, range(2, 6)) == [first * 4 + 2, first * 4 + 3, second * 4, second * 4 + 1]
    assert manager.slots(seq, range(0)) == []


def test_decoding_takes_a_new_block_only_at_a_block_boundary(manager):
    seq = FakeSequence(1, list(range(4)))
    serve(manager, seq)
    grew_at = []
    for token in range(9):
        seq.token_ids.append(token)
        before = len(manager.block_table(seq))
        compute(manager, seq)
        manager.commit_step()
        if len(manager.block_table(seq)) > before:
            grew_at.append(seq.num_computed_tokens - 1)
    assert grew_at == [4, 8, 12]


def test_whoever_may_come_in_finds_room_for_all_tokens_and_the_watermark():
    manager = BlockManager(num_blocks=4, block_size=4)
    for num_tokens, watermark, expected in ((16, 0, True), (17, 0, False), (12, 1, True), (13, 1, False)):
        seq = FakeSequence(1, list(range(num_tokens)))
        assert manager.can_admit(seq, [], watermark) is expected, (num_tokens, watermark)


def test_hits_in_use_cost_nothing_and_hits_in_the_free_queue_cost_their_blocks():
    manager = BlockManager(num_blocks=4, block_size=4)
    holder = FakeSequence(1, list(range(8)))
    serve(manager, holder)
    long = FakeSequence(2, [*range(8), *range(20, 28)])
    hits = manager.lookup(long)
    assert len(hits) == 2
    assert manager.can_admit(long, hits), "2 of its 4 blocks are held already, 2 are free"
    manager.free(holder)
    assert manager.can_admit(long, hits), "all 4 are free, 2 of them are its hits"
    assert not manager.can_admit(FakeSequence(3, [*range(8), *range(20, 29)]), hits), "5 blocks don't fit into 4"
    assert not manager.can_admit(long, hits, watermark=1)


def test_looking_up_takes_nothing_and_hashes_each_block_once():
    calls = []

    def counting_hash(parent, token_ids, extra=()):
        calls.append(token_ids)
        return (parent, *token_ids)

    manager = BlockManager(8, 4, hash_block=counting_hash)
    seq = FakeSequence(1, list(range(11)))
    serve(manager, seq)
    manager.free(seq)
    before = manager.counts()
    again = FakeSequence(2, list(range(11)))
    assert manager.lookup(again) == manager.lookup(again)
    assert manager.counts() == before
    assert calls == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2, "once a sequence: two blocks, two sequences"


def test_a_sequence_is_let_in_only_once(manager):
    seq = FakeSequence(1, [1, 2, 3])
    admit(manager, seq)
    with pytest.raises(AssertionError, match="request 1 has a table already"):
        manager.admit(seq, [])


def test_hits_and_looked_up_tokens_are_counted(manager):
    serve(manager, FakeSequence(1, list(range(10))))
    assert (manager.queried_tokens, manager.hit_tokens) == (10, 0)
    serve(manager, FakeSequence(2, [*range(8), 99, 98]))
    assert (manager.queried_tokens, manager.hit_tokens) == (20, 8)
    serve(manager, FakeSequence(3, list(range(8))))
    assert (manager.queried_tokens, manager.hit_tokens) == (28, 15), "a full hit computes its last token"


def test_two_salts_share_nothing_and_one_salt_shares_with_itself(manager):
    prompt = list(range(8))
    serve(manager, FakeSequence(1, prompt, salt="a"))
    assert manager.lookup(FakeSequence(2, prompt, salt="b")) == []
    assert manager.lookup(FakeSequence(3, prompt)) == []
    assert len(manager.lookup(FakeSequence(4, prompt, salt="a"))) == 2


def test_without_prefix_caching_nothing_is_found_hashed_or_kept():
    def no_hash(*args):
        raise AssertionError("hashed although prefix caching is off")

    manager = BlockManager(8, 4, enable_prefix_caching=False, hash_block=no_hash)
    seq = FakeSequence(1, list(range(8)))
    serve(manager, seq)
    assert serve(manager, FakeSequence(2, list(range(8)))) == []
    manager.free(seq)
    assert manager.counts() == (8, 6, 0, 2)
    assert manager.queried_tokens == 0


# What a sequence generates is found too


def test_generated_tokens_are_found_once_they_fill_a_block(manager):
    seq = FakeSequence(1, [0, 1, 2])
    serve(manager, seq)
    for token in (3, 4, 5):
        seq.token_ids.append(token)
        compute(manager, seq)
        manager.commit_step()
    next_turn = FakeSequence(2, [0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert manager.lookup(next_turn) == manager.block_table(seq)[:1]


def test_of_two_blocks_with_equal_contents_one_is_kept_for_later(manager):
    """Neither prompt was full when the other came in, so both computed the block."""
    one, two = FakeSequence(1, [0, 1, 2]), FakeSequence(2, [0, 1, 2])
    serve(manager, one)
    serve(manager, two)
    for seq in (one, two):
        seq.token_ids.append(3)
        compute(manager, seq)
        manager.commit_step()
    manager.free(one)
    manager.free(two)
    assert manager.counts() == (8, 7, 1, 0)
    manager.check_invariants()


# Fork and copy


def fork(manager: BlockManager, parent: FakeSequence, seq_id: int) -> FakeSequence:
    child = parent.fork(seq_id)
    manager.fork(parent, child)
    return child


def test_slots_of_shared_blocks_count_once(manager):
    seq = FakeSequence(1, list(range(6)))
    serve(manager, seq)
    children = [fork(manager, seq, seq_id) for seq_id in (2, 3, 4)]
    assert manager.used_slots == 6
    manager.check_invariants()
    for child in children:
        child.token_ids.append(child.seq_id)
        compute(manager, child)
    assert manager.used_slots == 4 + 2 + 3 * 3, "the parent's partial block and three copies with one token more"
    manager.check_invariants()


def test_forks_of_different_lengths_go_in_any_order_and_leave_no_slot_counted(manager):
    seq = FakeSequence(1, list(range(6)))
    serve(manager, seq)
    child = fork(manager, seq, 2)
    for token in (50, 51, 52, 53, 54):
        child.token_ids.append(token)
        compute(manager, child)
    grandchild = fork(manager, child, 3)
    grandchild.token_ids.append(60)
    compute(manager, grandchild)
    manager.commit_step()
    for leaving in (child, seq, grandchild):
        manager.check_invariants()
        manager.free(leaving)
    assert (manager.used_slots, manager.counts().used) == (0, 0)


def test_a_copy_is_announced_once(manager):
    seq = FakeSequence(1, list(range(6)))
    serve(manager, seq)
    child = fork(manager, seq, 2)
    source = manager.block_table(child)[1]
    child.token_ids.append(7)
    compute(manager, child)
    assert manager.take_copies() == [(source, manager.block_table(child)[1])]
    assert manager.take_copies() == []


def test_an_abandoned_step_copies_nothing_later(manager):
    seq = FakeSequence(1, list(range(6)))
    serve(manager, seq)
    child = fork(manager, seq, 2)
    child.token_ids.append(7)
    compute(manager, child)
    manager.abandon_step()
    manager.free(child)
    assert manager.take_copies() == []
    manager.check_invariants()


def test_a_fork_of_a_full_last_block_copies_nothing_and_grows_by_itself(manager):
    seq = FakeSequence(1, list(range(8)))
    serve(manager, seq)
    child = fork(manager, seq, 2)
    for one in (seq, child):
        one.token_ids.append(one.seq_id)
        compute(manager, one)
    assert manager.take_copies() == []
    assert manager.block_table(seq)[:2] == manager.block_table(child)[:2]
    assert manager.block_table(seq)[2] != manager.block_table(child)[2]


def test_a_fork_that_asked_for_no_token_still_copies_before_its_first_one(manager):
    seq = FakeSequence(1, list(range(6)))
    serve(manager, seq)
    child = fork(manager, seq, 2)
    for one in (seq, child):
        assert list(manager.append(one, 0)) == []
    child.token_ids.append(7)
    compute(manager, child)
    assert manager.block_table(child)[1] != manager.block_table(seq)[1]
    assert len(manager.take_copies()) == 1


def test_a_fork_in_the_middle_of_a_block_stops_both_from_writing_there(manager):
    """Up to then the parent was alone in the block, and asked nobody before it wrote its next token."""
    seq = FakeSequence(1, list(range(5)))
    serve(manager, seq)
    seq.token_ids.append(5)
    compute(manager, seq)
    manager.commit_step()
    child = fork(manager, seq, 2)
    for one in (seq, child):
        one.token_ids.append(one.seq_id)
        compute(manager, one)
    assert manager.block_table(child)[1] != manager.block_table(seq)[1]
    assert manager.used_slots == 4 + 3 + 3
    manager.check_invariants()


def test_a_sequence_that_holds_a_table_can_not_be_forked_into(manager):
    one, two = FakeSequence(1, [1]), FakeSequence(2, [2])
    serve(manager, one)
    serve(manager, two)
    with pytest.raises(AssertionError, match="request 2 has a table already"):
        manager.fork(one, two)


# A sequence goes


def test_freeing_what_holds_nothing_is_harmless(manager):
    seq = FakeSequence(1, list(range(6)))
    manager.free(seq)
    serve(manager, seq)
    manager.free(seq)
    manager.free(seq)
    assert manager.counts() == (8, 7, 1, 0)
    manager.check_invariants()


def test_a_sequence_that_lost_its_blocks_finds_what_is_left_of_them_when_it_comes_back():
    manager = BlockManager(num_blocks=4, block_size=4)
    seq = FakeSequence(1, list(range(15)))
    serve(manager, seq)
    table = list(manager.block_table(seq))
    manager.free(seq)
    other = FakeSequence(2, [90, 91, 92, 93, 94])
    serve(manager, other)
    assert serve(manager, FakeSequence(3, list(range(8)))) == table[:2], "its tail was evicted, its head was not"


# A step fails


def test_what_an_abandoned_step_was_to_fill_is_not_found_and_what_earlier_steps_filled_is(manager):
    seq = FakeSequence(1, list(range(12)))
    admit(manager, seq)
    compute(manager, seq, 4)
    manager.commit_step()
    compute(manager, seq, 8)
    manager.abandon_step()
    manager.free(seq)
    assert manager.counts() == (8, 7, 1, 0)
    assert len(manager.lookup(FakeSequence(2, list(range(12))))) == 1
    manager.check_invariants()


class FailsAt(BlockAllocator):
    """An allocator whose n-th call of one method fails, as a part with a bug would."""

    def __init__(self, num_blocks, block_size, method, nth):
        super().__init__(num_blocks, block_size)
        self.method, self.left = method, nth

    def fail_if_it_is(self, method):
        self.left -= method == self.method
        if self.left == 0 and method == self.method:
            raise RuntimeError("a bug in the part")

    def allocate(self):
        self.fail_if_it_is("allocate")
        return super().allocate()

    def share(self, block):
        self.fail_if_it_is("share")
        super().share(block)

    def mark_findable(self, block, findable=True):
        if findable:
            self.fail_if_it_is("mark_findable")
        super().mark_findable(block, findable)


@pytest.mark.parametrize("method", ["allocate", "mark_findable"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_part_that_fails_while_a_sequence_grows_leaks_nothing(method, nth):
    manager = BlockManager(8, 4, allocator=FailsAt(8, 4, method, nth))
    seq = FakeSequence(1, list(range(12)))
    admit(manager, seq)
    with pytest.raises(RuntimeError, match="a bug in the part"):
        manager.append(seq, 12)
    manager.check_invariants()
    manager.abandon_step()
    manager.free(seq)
    manager.check_invariants()
    assert manager.counts() == (8, 8, 0, 0)
    assert manager.used_slots == 0
    assert manager.lookup(FakeSequence(2, list(range(12)))) == []


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_part_that_fails_while_hits_are_taken_leaks_nothing_and_loses_no_hit(nth):
    manager = BlockManager(8, 4, allocator=FailsAt(8, 4, "share", nth))
    first, second = FakeSequence(1, list(range(12))), FakeSequence(2, list(range(12)))
    serve(manager, first)
    manager.free(first)
    with pytest.raises(RuntimeError, match="a bug in the part"):
        admit(manager, second)
    manager.check_invariants()
    manager.abandon_step()
    manager.free(second)
    manager.check_invariants()
    assert manager.counts() == (8, 5, 3, 0)
    assert len(manager.lookup(FakeSequence(3, list(range(12))))) == 3


# What errors and views are told


def test_out_of_blocks_names_the_numbers_the_three_largest_owners_and_what_to_do(manager):
    for seq_id, num_tokens in ((1, 4), (2, 12), (3, 5), (4, 3)):
        serve(manager, FakeSequence(seq_id, list(range(100 * seq_id, 100 * seq_id + num_tokens))))
    error = manager.out_of_blocks(needed=3)
    assert isinstance(error, OutOfBlocks)
    assert (error.needed, error.free, error.cached, error.used) == (3, 1, 0, 7)
    assert error.owners == (("request 2", 3), ("request 3", 2), ("request 1", 1))
    assert str(error).startswith(
        "Out of blocks: 3 needed, 1 free, 0 cached, 7 in use. "
        "Largest owners: request 2 holds 3, request 3 holds 2, request 1 holds 1."
    )
    assert "free_all()" in str(error)
    assert "num_gpu_blocks" in str(error)


def test_out_of_blocks_of_an_idle_pool_names_nobody(manager):
    assert "Largest owners: nobody." in str(manager.out_of_blocks(9))


def test_a_snapshot_shows_each_block_once_with_state_holders_filling_owner_and_last_use(manager):
    gone, stays = FakeSequence(1, list(range(4))), FakeSequence(2, list(range(10, 16)))
    serve(manager, gone)  # step 0
    serve(manager, stays)  # step 1
    manager.free(gone)  # in step 2
    manager.commit_step()
    fork(manager, stays, 3)
    snapshot = manager.snapshot()
    (cached_block,) = manager.allocator.cached_blocks()
    full, partial = manager.block_table(stays)
    columns = ("state", "ref_count", "filled", "owner", "last_use")
    rows = {b: tuple(int(getattr(snapshot, c)[b]) for c in columns) for b in range(snapshot.num_blocks)}
    assert rows.pop(cached_block) == (1, 0, 0, 0, 2)
    assert rows.pop(full) == (2, 2, 4, 2, 3)
    assert rows.pop(partial) == (2, 2, 2, 2, 3)
    assert set(rows.values()) == {(0, 0, 0, 0, 0)}, "the other five were never touched"
    assert (snapshot.block_size, snapshot.step) == (4, 3)
    assert snapshot.utilization == 6 / 8
    assert snapshot.filled.sum() == manager.used_slots


def test_a_snapshot_is_a_picture_that_nobody_can_draw_on_and_that_does_not_move(manager):
    seq = FakeSequence(1, list(range(6)))
    serve(manager, seq)
    before = manager.snapshot()
    with pytest.raises(ValueError, match="read-only"):
        before.state[0] = 2
    manager.free(seq)
    assert before.ref_count.sum() == 2
    assert manager.snapshot().ref_count.sum() == 0


def test_a_snapshot_of_an_idle_pool_wastes_nothing(manager):
    assert manager.snapshot().utilization == 1.0


# The manager notices when its own books are wrong


def corrupt_a_count(manager, seq):
    manager.allocator.share(manager.block_table(seq)[0])


def corrupt_a_table(manager, seq):
    manager.block_table(seq).pop()


def corrupt_the_slots(manager, seq):
    manager.used_slots += 1


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (corrupt_a_count, "1 tables hold it, it counts 2"),
        (corrupt_a_table, "0 tables hold it, it counts 1"),
        (corrupt_the_slots, "6 slots hold a token, 7 are counted"),
    ],
)
def test_books_that_do_not_add_up_are_noticed(manager, corrupt, message):
    seq = FakeSequence(1, list(range(6)))
    serve(manager, seq)
    manager.check_invariants()
    corrupt(manager, seq)
    with pytest.raises(AssertionError, match=message):
        manager.check_invariants()


def test_the_manager_makes_its_tables_with_the_part_it_was_given():
    class MyTable(BlockTable):
        made = 0

        def __init__(self, allocator):
            super().__init__(allocator)
            MyTable.made += 1

    manager = BlockManager(8, 4, block_table=MyTable)
    serve(manager, FakeSequence(1, [1]))
    serve(manager, FakeSequence(2, [2]))
    assert MyTable.made == 2
