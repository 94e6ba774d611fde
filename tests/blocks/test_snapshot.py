"""A snapshot is what a plain loop over all block tables finds; it can be looked at, and not written to."""

from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeSequence, serve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagedkv_lab.blocks import BlockManager
from pagedkv_lab.blocks.snapshot import CACHED, FREE, USED, take_snapshot

ARRAYS = ("state", "ref_count", "filled", "owner", "last_use")


@st.composite
def pools(draw):
    """(pool's size, block size, tables by sequence id, cached blocks, steps of the last uses).

    Tables share blocks from their start, as prefix hits and forks do. Of two that share a block, one may have more
    tokens in it. A sequence may have no block yet, or no token in its last ones.
    """
    num_blocks, block_size = draw(st.integers(1, 24)), draw(st.sampled_from([1, 2, 4, 16]))
    shuffled = draw(st.permutations(range(num_blocks)))
    num_used = draw(st.integers(0, num_blocks))
    free, unused = list(shuffled[:num_used]), list(shuffled[num_used:])
    tables = {}
    for seq_id in draw(st.lists(st.integers(1, 99), unique=True, max_size=6)):
        start = []
        if tables:
            of, _ = tables[draw(st.sampled_from(sorted(tables)))]
            start = of[: draw(st.integers(0, len(of)))]
        own = draw(st.integers(0, len(free)))
        blocks = start + free[:own]
        del free[:own]
        tables[seq_id] = blocks, draw(st.integers(0, len(blocks) * block_size))
    cached = unused[: draw(st.integers(0, len(unused)))]
    freed_at = draw(st.lists(st.integers(0, 50), min_size=num_blocks, max_size=num_blocks))
    return num_blocks, block_size, tables, cached, freed_at


def plainly(num_blocks, block_size, tables, cached, freed_at, step):
    """The same arrays, one entry of one table at a time."""
    rows = {name: [0] * num_blocks for name in ARRAYS} | {"last_use": list(freed_at)}
    for seq_id, (blocks, tokens) in tables.items():
        for i, block in enumerate(blocks):
            rows["state"][block] = USED
            rows["ref_count"][block] += 1
            here = min(block_size, max(0, tokens - i * block_size))
            rows["filled"][block] = max(rows["filled"][block], here)
            rows["owner"][block] = rows["owner"][block] or seq_id
            rows["last_use"][block] = step
    for block in cached:
        rows["state"][block] = CACHED
    return rows


@settings(max_examples=200)
@example((1, 1, {}, [], [0]))
@example((4, 2, {7: ([3, 1], 3), 2: ([3], 2)}, [0], [5, 0, 0, 0]))
@given(pools())
def test_a_snapshot_is_what_a_plain_loop_finds(pool):
    num_blocks, block_size, tables, cached, freed_at = pool
    manager = SimpleNamespace(
        num_blocks=num_blocks, block_size=block_size, step=51, allocator=SimpleNamespace(cached_blocks=lambda: cached)
    )
    snapshot = take_snapshot(manager, tables, freed_at)
    expected = plainly(num_blocks, block_size, tables, cached, freed_at, 51)
    assert {name: getattr(snapshot, name).tolist() for name in ARRAYS} == expected
    assert {i: table.tolist() for i, table in snapshot.tables.items()} == {i: b for i, (b, _) in tables.items()}
    assert all(table.dtype == np.int32 for table in snapshot.tables.values())
    assert snapshot.num_blocks == num_blocks


@pytest.fixture
def two_requests():
    """A manager of 6 blocks of 4 in which two requests share one, and a third has left one behind."""
    manager = BlockManager(6, 4)
    gone = FakeSequence(9, [9] * 5)
    serve(manager, gone)
    manager.free(gone)
    serve(manager, FakeSequence(1, [1, 2, 3, 4, 5]))
    serve(manager, FakeSequence(2, [1, 2, 3, 4, 6, 7]))
    return manager


def test_it_says_of_each_block_what_it_is(two_requests):
    snapshot = two_requests.snapshot()
    assert snapshot.tables[1].tolist() == [1, 2]
    assert snapshot.tables[2].tolist() == [1, 3]
    assert snapshot.state.tolist() == [CACHED, USED, USED, USED, FREE, FREE]
    assert snapshot.ref_count.tolist() == [0, 2, 1, 1, 0, 0]
    assert snapshot.filled.tolist() == [0, 4, 1, 2, 0, 0]
    assert snapshot.owner.tolist() == [0, 1, 1, 2, 0, 0]
    assert snapshot.last_use.tolist() == [1, 3, 3, 3, 0, 0], "block 0 was given back after the first step"
    assert snapshot.utilization == 7 / 12


def test_the_sequence_that_came_first_owns_a_shared_block_whatever_its_number():
    manager = BlockManager(4, 2)
    for seq_id in (8, 3, 5):
        serve(manager, FakeSequence(seq_id, [1, 2, seq_id]))
    snapshot = manager.snapshot()
    assert snapshot.ref_count[0] == 3
    assert snapshot.owner[0] == 8


def test_an_empty_pool_is_all_free_and_wastes_nothing():
    snapshot = BlockManager(3, 16).snapshot()
    assert snapshot.state.tolist() == [FREE] * 3
    assert not any(getattr(snapshot, name).any() for name in ARRAYS)
    assert snapshot.tables == {}
    assert snapshot.utilization == 1.0


def test_a_snapshot_can_not_be_written_to(two_requests):
    snapshot = two_requests.snapshot()
    for array in (*(getattr(snapshot, name) for name in ARRAYS), *snapshot.tables.values()):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_snapshot_stays_as_it_is_when_the_pool_changes(two_requests):
    snapshot = two_requests.snapshot()
    before = [getattr(snapshot, name).tolist() for name in ARRAYS], snapshot.tables[1].tolist()
    serve(two_requests, FakeSequence(3, [1, 2, 3, 4, 8, 8]))
    assert ([getattr(snapshot, name).tolist() for name in ARRAYS], snapshot.tables[1].tolist()) == before
