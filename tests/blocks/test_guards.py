"""A learner's part gets what it leaves out, and where it breaks its promise it is told so by name."""

import inspect
from functools import partial

import pytest
from article_parts import (
    MendedAllocator,
    MendedPrefixCache,
    MendedTable,
    SkeletonAllocator,
    SkeletonPrefixCache,
    manager_of,
)
from fakes import FakeSequence, admit, compute, serve

from pagedkv_lab.blocks import BlockAllocator, BlockManager, BlockTable, PrefixCache, hash_block
from pagedkv_lab.blocks.guards import (
    GuardedAllocator,
    GuardedPrefixCache,
    GuardedTable,
    call_part,
    guard_hash,
)
from pagedkv_lab.errors import DoubleFree, OutOfBlocks, PagedKVError, PartError


def guarded(allocator) -> GuardedAllocator:
    return GuardedAllocator(allocator, num_blocks=4, block_size=2)


def broken(part: str, method: str, what: str):
    """Expect a PartError that names the part and the method, and says `what` (a regular expression)."""
    return pytest.raises(PartError, match=rf"^Your {part} broke in {method}.*: .*{what}")


# The article's skeletons, mended, run a manager


@pytest.mark.parametrize("part", [MendedAllocator, MendedTable, MendedPrefixCache])
def test_a_mended_skeleton_is_as_small_as_a_learner_would_write_it(part):
    assert len(inspect.getsource(part).splitlines()) <= 25


def test_mended_skeletons_serve_sequences_with_hits_forks_copies_and_eviction():
    manager = manager_of(num_blocks=4, block_size=2)
    one, two = FakeSequence(1, [1, 2, 3, 4, 5]), FakeSequence(2, [1, 2, 3, 4, 6])
    assert serve(manager, one) == []
    assert serve(manager, two) == manager.block_table(one)[:2]
    child = one.fork(3)
    manager.free(two)
    manager.fork(one, child)
    child.token_ids.append(7)
    compute(manager, child)
    manager.commit_step()
    assert manager.take_copies() == [(manager.block_table(one)[2], manager.block_table(child)[2])]
    assert manager.counts() == (4, 0, 0, 4)
    manager.free(one)
    manager.free(child)
    assert manager.counts().free == 1, "the partial block of the parent; the full ones stay findable"
    assert manager.counts().cached == 3
    filler = FakeSequence(4, list(range(10, 18)))
    serve(manager, filler)
    manager.free(filler)
    assert manager.lookup(FakeSequence(5, [1, 2, 3, 4])) == [], "evicted"
    manager.check_invariants()


def test_the_article_s_hash_with_its_arguments_the_other_way_round_is_a_hash_block():
    cache = MendedPrefixCache()
    key = guard_hash(lambda parent, token_ids: cache.compute_hash(token_ids, parent))
    assert key(None, [1, 2]) == cache.compute_hash([1, 2], None)
    assert key("abc", [1, 2]) == cache.compute_hash([1, 2], "abc")


def test_salts_keep_requests_apart_even_where_the_learner_s_hash_knows_no_salts():
    manager = manager_of(num_blocks=8, block_size=2)
    serve(manager, FakeSequence(1, [1, 2, 3, 4], salt="a"))
    assert manager.lookup(FakeSequence(2, [1, 2, 3, 4], salt="b")) == []
    assert manager.lookup(FakeSequence(3, [1, 2, 3, 4])) == []
    assert len(manager.lookup(FakeSequence(4, [1, 2, 3, 4], salt="a"))) == 2


# Parts with the article's mistakes: each is caught, in terms of the part


def test_the_published_share_leaves_a_revived_block_in_the_free_list_and_it_is_handed_out_twice():
    manager = manager_of(4, 2, allocator=SkeletonAllocator)
    first = FakeSequence(1, [1, 2])
    serve(manager, first)
    (block,) = manager.block_table(first)
    manager.free(first)
    assert admit(manager, FakeSequence(2, [1, 2, 3])) == [block]
    with broken("BlockAllocator", r"allocate\(\)", f"block {block} was handed out while 1 still held it.*share"):
        serve(manager, FakeSequence(3, [8, 9]))


def test_the_published_free_lets_the_count_go_below_zero():
    allocator = guarded(SkeletonAllocator(4, 2))
    block = allocator.allocate()
    allocator.free(block)
    with broken("BlockAllocator", rf"free\({block}\)", "nobody holds this block, and free did not object"):
        allocator.free(block)


def test_the_published_prefix_cache_can_not_forget():
    with broken("PrefixCache", "forget", r"it has no method forget\(\)"):
        manager_of(4, 2, prefix_cache=SkeletonPrefixCache)


def test_a_forget_that_forgets_nothing_is_caught_at_the_first_stale_hit():
    class ForgetsNothing(SkeletonPrefixCache):
        def forget(self, block_id):
            pass

    manager = manager_of(2, 2, prefix_cache=ForgetsNothing)
    for seq_id, prompt in ((1, [1, 2, 3, 4]), (2, [5, 6, 7, 8])):
        seq = FakeSequence(seq_id, prompt)
        serve(manager, seq)
        manager.free(seq)
    with broken("PrefixCache", "lookup", r"no longer has: its contents changed.*forget\(\d\).*must drop the key"):
        manager.lookup(FakeSequence(3, [1, 2, 3, 4]))


def test_a_forget_that_forgets_nothing_is_caught_before_the_block_has_a_new_key_too():
    part = PrefixCache()
    part.forget = lambda block: None
    cache = GuardedPrefixCache(part, num_blocks=4)
    cache.insert(b"key", 1)
    cache.forget(1)
    with broken("PrefixCache", "lookup", r"it returned block 1 for a key that the block no longer has"):
        cache.lookup(b"key")


# Allocators


@pytest.mark.parametrize("missing", ["allocate", "free", "share"])
def test_an_allocator_without_a_method_is_told_which(missing):
    methods = {name: lambda self: None for name in ("allocate", "free", "share") if name != missing}
    with broken("BlockAllocator", missing, rf"it has no method {missing}\(\)"):
        guarded(type("Mine", (), methods)())


@pytest.mark.parametrize("answer", [None, -1, 4, True, "0", 1.0])
def test_an_allocator_that_returns_no_block_is_told_what_it_returned(answer):
    part = MendedAllocator(4, 2)
    part.allocate = lambda: answer
    with broken("BlockAllocator", r"allocate\(\)", rf"it returned {answer!r}, not a block from 0 to 3"):
        guarded(part).allocate()


def test_an_allocator_that_hands_out_a_held_block_is_told_which_and_where_to_look():
    part = MendedAllocator(4, 2)
    part.allocate = lambda: 2
    allocator = guarded(part)
    assert allocator.allocate() == 2
    with broken("BlockAllocator", r"allocate\(\)", "block 2 was handed out while 1 still held it.*look at free"):
        allocator.allocate()


def test_an_exception_inside_a_part_names_the_call_and_keeps_its_cause():
    allocator = guarded(MendedAllocator(4, 2))
    with broken("BlockAllocator", r"free\(3\)", "RuntimeError: block 3 is free already") as caught:
        allocator.free(3)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert (caught.value.part, caught.value.method) == ("BlockAllocator", "free(3)")


def test_an_exception_without_a_message_is_named_by_its_type():
    def fails():
        raise KeyError

    with broken("Scheduler", r"schedule\(\)", "KeyError$"):
        call_part("Scheduler", "schedule", fails)


def test_long_arguments_are_cut_short_in_the_message():
    with pytest.raises(PartError) as caught:
        call_part("hash_block", "hash_block", lambda tokens: tokens.missing, list(range(1000)))
    assert "[0, 1, 2, 3" in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("error", [OutOfBlocks(), DoubleFree(3)])
def test_the_protocol_s_own_errors_pass_through_as_they_are(error):
    def fails():
        raise error

    with pytest.raises(PagedKVError) as caught:
        call_part("BlockAllocator", "allocate", fails)
    assert caught.value is error


def test_ctrl_c_inside_a_part_stays_ctrl_c():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_part("BlockAllocator", "allocate", interrupted)


def test_a_count_that_is_off_is_told_what_it_should_be():
    class NeverCountsShares(MendedAllocator):
        def share(self, block_id):
            pass

    allocator = guarded(NeverCountsShares(4, 2))
    block = allocator.allocate()
    allocator.share(block)
    with broken("BlockAllocator", rf"ref_count\({block}\)", "it says 1 where 2 hold it: look at .*share"):
        allocator.ref_count(block)


def test_counts_may_be_a_list_or_a_method():
    for part in (MendedAllocator(4, 2), BlockAllocator(4, 2)):
        allocator = guarded(part)
        block = allocator.allocate()
        allocator.share(block)
        assert allocator.ref_count(block) == 2
        assert [allocator.ref_count(b) for b in range(4) if b != block] == [0, 0, 0]


def test_the_free_blocks_may_be_told_by_a_property_a_method_or_the_list_itself():
    with_property = BlockAllocator(4, 2)
    with_list = MendedAllocator(4, 2)
    with_method = MendedAllocator(4, 2)
    with_method.num_free = lambda: len(with_method.free_blocks)
    for part in (with_property, with_list, with_method):
        allocator = guarded(part)
        assert allocator.num_free == 4
        allocator.allocate()
        assert allocator.num_free == 3


def test_an_allocator_that_tells_neither_counts_nor_free_blocks_is_told_to():
    class TellsNothing:
        def allocate(self):
            return 0

        def free(self, block_id):
            pass

        share = free

    allocator = guarded(TellsNothing())
    with broken("BlockAllocator", "num_free", "it has neither num_free nor a list free_blocks"):
        _ = allocator.num_free
    with broken("BlockAllocator", r"ref_count\(0\)", "it has neither a method nor a list ref_count"):
        allocator.ref_count(0)


@pytest.mark.parametrize("answer", [-1, 5, None, 2.0])
def test_a_number_of_free_blocks_that_can_not_be_is_refused(answer):
    part = MendedAllocator(4, 2)
    part.num_free = answer
    with broken("BlockAllocator", "num_free", rf"{answer!r} is not a number of blocks from 0 to 4"):
        _ = guarded(part).num_free


def test_marks_reach_an_allocator_that_knows_them():
    part = BlockAllocator(4, 2)
    allocator = guarded(part)
    block = allocator.allocate()
    allocator.mark_findable(block)
    allocator.free(block)
    assert part.cached_blocks() == allocator.cached_blocks() == [block]
    allocator.share(block)
    allocator.mark_findable(block, False)
    allocator.free(block)
    assert part.num_cached == allocator.num_cached == 0


# Tables


def table_over(part_class, allocator=None) -> GuardedTable:
    allocator = allocator or BlockAllocator(4, 2)
    return GuardedTable(part_class(allocator), allocator)


class AppendsNothing(MendedTable):
    def append_block(self):
        return self.allocator.allocate()


class ReturnsNothing(MendedTable):
    def append_block(self):
        super().append_block()


class ReturnsAnother(MendedTable):
    def append_block(self):
        return super().append_block() + 1


@pytest.mark.parametrize(
    ("part", "what"),
    [
        (AppendsNothing, "the table had 0 blocks and now has 0"),
        (ReturnsNothing, "it returned None; return the new block's number"),
        (ReturnsAnother, "it returned block 1 and stored block 0 last"),
    ],
)
def test_a_table_that_grows_wrongly_is_told_how(part, what):
    with broken("BlockTable", r"append_block\(\)", what):
        table_over(part).append_block()


@pytest.mark.parametrize("missing", ["append_block", "free_all"])
def test_a_table_without_a_method_is_told_which(missing):
    present = "free_all" if missing == "append_block" else "append_block"
    part = type("Mine", (), {present: lambda self: None, "blocks": []})()
    with broken("BlockTable", missing, rf"it has no method {missing}\(\)"):
        GuardedTable(part, BlockAllocator(4, 2))


def test_a_table_must_keep_its_blocks_in_a_list_called_blocks():
    part = type("Mine", (), {"append_block": lambda self: 0, "free_all": lambda self: None})()
    with broken("BlockTable", "__init__", "it keeps no list called blocks"):
        GuardedTable(part, BlockAllocator(4, 2))


def test_a_free_all_that_keeps_blocks_or_drops_them_unfreed_is_caught():
    class KeepsTheList(MendedTable):
        def free_all(self):
            for block_id in self.blocks:
                self.allocator.free(block_id)

    class DropsTheList(MendedTable):
        def free_all(self):
            self.blocks = []

    for part, what in (
        (KeepsTheList, "the table still lists 2 of 2 blocks"),
        (DropsTheList, r"block 0 left the table without free\(0\): it leaked"),
    ):
        table = table_over(part)
        table.append_block()
        table.append_block()
        with broken("BlockTable", r"free_all\(\)", what):
            table.free_all()


def test_what_a_table_leaves_out_is_supplied():
    allocator = guarded(MendedAllocator(4, 2))
    table = table_over(MendedTable, allocator)
    for _ in range(2):
        table.append_block()
    assert [table.slot(p) for p in range(4)] == [2 * b + o for b in table.blocks for o in (0, 1)]
    child = table.fork()
    assert child.blocks == table.blocks
    assert child.blocks is not table.blocks
    source, destination = child.ensure_writable(1)
    assert (table.blocks[1], child.blocks[1]) == (source, destination)
    assert source != destination
    assert table.ensure_writable(1) is None
    table.free_all()
    child.free_all()
    assert allocator.num_free == 4


def test_a_table_that_has_everything_is_used_as_it_is():
    class Counts(BlockTable):
        asked: tuple[str, ...] = ()

        def __getattribute__(self, name):
            if name in ("append_shared", "fork", "ensure_writable", "slot"):
                Counts.asked += (name,)
            return super().__getattribute__(name)

    table = table_over(Counts)
    table.append_block()
    table.append_shared(table.blocks[0])
    table.fork()
    table.ensure_writable(0)
    table.slot(0)
    assert set(Counts.asked) == {"append_shared", "fork", "ensure_writable", "slot"}


def test_a_fork_with_other_blocks_is_told_both_lists():
    class ForksEmpty(MendedTable):
        def fork(self):
            return ForksEmpty(self.allocator)

    table = table_over(ForksEmpty)
    table.append_block()
    with broken("BlockTable", r"fork\(\)", r"the child has blocks \[\], the parent \[0\]"):
        table.fork()


def copies(table, i, *, answer):
    """A learner's ensure_writable that copies as it should and then answers something else."""
    BlockTable.ensure_writable(table, i)
    return answer


@pytest.mark.parametrize(
    ("ensure_writable", "what"),
    [
        (lambda table, i: None, "block 0 is shared and still in the table: it would be written in place"),
        (lambda table, i: (0, 0), "block 0 is shared and still in the table"),
        (partial(copies, answer=7), r"it returned 7; return None .* or the pair \(source, destination\)"),
        (partial(copies, answer=None), "the table went from block 0 to 1, but it returned None"),
        (partial(copies, answer=(1, 0)), r"the table went from block 0 to 1, but it returned \(1, 0\)"),
    ],
)
def test_a_copy_on_write_that_copies_nothing_or_says_it_wrongly_is_caught(ensure_writable, what):
    class Mine(MendedTable):
        pass

    Mine.ensure_writable = lambda self, i: ensure_writable(self, i)
    table = table_over(Mine)
    table.append_block()
    child = table.fork()
    with broken("BlockTable", r"ensure_writable\(0\)", what):
        child.ensure_writable(0)


def test_a_table_grows_by_many_blocks_in_the_learner_s_single_steps():
    allocator = guarded(MendedAllocator(4, 2))
    table = table_over(MendedTable, allocator)
    table.append_blocks(2)
    guest = table_over(MendedTable, allocator)
    guest.append_shared_blocks(table.blocks)
    assert guest.blocks == table.blocks
    assert [allocator.ref_count(block) for block in table.blocks] == [2, 2]
    assert table.slots(range(1, 4)) == [table.slot(position) for position in (1, 2, 3)]


def test_of_many_blocks_the_one_that_breaks_is_named_and_those_before_it_stay():
    class BreaksAtTheThird(MendedTable):
        def append_block(self):
            assert len(self.blocks) < 2, "a bug"
            return super().append_block()

    table = table_over(BreaksAtTheThird)
    with broken("BlockTable", r"append_block\(\)", "AssertionError: a bug"):
        table.append_blocks(3)
    assert len(table.blocks) == 2
    with broken("BlockAllocator", r"share\(9\)", "IndexError"):
        table_over(MendedTable, guarded(MendedAllocator(4, 2))).append_shared_blocks([9])


# Prefix caches and hashes


def test_of_many_blocks_those_whose_key_has_a_block_already_are_left_out():
    """The article's own insert would put the later block in the earlier one's place."""
    cache = GuardedPrefixCache(MendedPrefixCache(), num_blocks=8)
    assert cache.insert_many(["a", "b", "a"], [1, 2, 3]) == [1, 2]
    assert cache.insert_many(["b", "c"], [4, 5]) == [5]
    assert [cache.lookup(key) for key in "abc"] == [1, 2, 5]
    cache.forget_many([1, 3, 5])
    assert [cache.lookup(key) for key in "abc"] == [None, 2, None]


@pytest.mark.parametrize("answer", [-1, 4, "0", (1, 2)])
def test_a_lookup_that_returns_no_block_is_told_what_it_returned(answer):
    part = PrefixCache()
    part.lookup = lambda key: answer
    cache = GuardedPrefixCache(part, num_blocks=4)
    with broken("PrefixCache", "lookup", "it returned .*; return a block from 0 to 3, None for a miss"):
        cache.lookup(b"key")


def test_a_lookup_that_finds_another_key_s_block_is_caught():
    part = PrefixCache()
    cache = GuardedPrefixCache(part, num_blocks=4)
    cache.insert(b"key", 1)
    assert cache.lookup(b"key") == 1
    assert cache.lookup(b"other") is None
    part.lookup = lambda key: 1
    with broken("PrefixCache", "lookup", "it returned block 1 for a key that the block no longer has"):
        cache.lookup(b"other")


@pytest.mark.parametrize("answer", [None, [1], {}])
def test_a_hash_that_can_not_be_a_key_is_refused(answer):
    with broken("hash_block", "hash_block", "nothing that can be a dictionary's key"):
        guard_hash(lambda parent, token_ids: answer)(None, [1])


def test_a_hash_that_fails_is_told_with_its_arguments():
    with broken("hash_block", r"hash_block\(None, \[1, 2\]\)", "TypeError"):
        guard_hash(lambda parent, token_ids: parent + b"x")(None, [1, 2])


def test_a_hash_that_takes_extra_keys_gets_them():
    salt = (("cache_salt", "a"),)
    assert guard_hash(hash_block)(None, [1], salt) == hash_block(None, [1], salt)
    assert guard_hash(hash_block)(b"p", [1]) == hash_block(b"p", [1])


def test_a_hash_without_extra_keys_still_gets_bytes_or_none_for_a_parent():
    seen = []

    def mine(parent, token_ids):
        seen.append(parent)
        return (parent or b"") + bytes(token_ids)

    keys = {guard_hash(mine)(None, [1], extra) for extra in ((), (("a", "b"),), (("a", "c"),), (("b", "b"),))}
    assert len(keys) == 4
    assert [type(parent) for parent in seen].count(bytes) == 3


def test_the_package_s_own_parts_pass_their_guards():
    manager = BlockManager(
        8,
        2,
        allocator=GuardedAllocator(BlockAllocator(8, 2), 8, 2),
        prefix_cache=GuardedPrefixCache(PrefixCache(), 8),
        block_table=lambda allocator: GuardedTable(BlockTable(allocator), allocator),
        hash_block=guard_hash(hash_block),
    )
    plain = BlockManager(8, 2)
    for books in (manager, plain):
        one, two = FakeSequence(1, [1, 2, 3]), FakeSequence(2, [1, 2, 3, 4], salt="s")
        serve(books, one)
        serve(books, two)
        child = one.fork(3)
        books.fork(one, child)
        child.token_ids.append(9)
        compute(books, child)
        books.commit_step()
        books.free(one)
        books.check_invariants()
    assert manager.counts() == plain.counts()
    assert manager.take_copies() == plain.take_copies()
    assert manager.allocator.cached_blocks() == plain.allocator.cached_blocks()
