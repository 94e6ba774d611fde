"""Which sequences attend to their first blocks together: those who have them in common, and enough of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_lab.attention import cascade
from pagedkv_lab.attention.cascade import shared_prefixes

BLOCK_SIZE = 16


def tables(*rows: list[int], width: int = 600) -> np.ndarray:
    """Block tables; behind a sequence's own blocks stands the same rubbish for all."""
    found = np.zeros((len(rows), width), np.int32)
    for table, blocks in zip(found, rows, strict=True):
        table[: len(blocks)] = blocks
    return found


def groups(block_tables, context_lens, query_lens=None, group=3) -> list[tuple[list[int], int]]:
    query_lens = np.ones(len(block_tables), np.int64) if query_lens is None else np.array(query_lens)
    found = shared_prefixes(block_tables, np.array(context_lens), query_lens, BLOCK_SIZE, group)
    return sorted((sorted(prefix.sequences.tolist()), prefix.num_tokens) for prefix in found)


def behind(prefix: range, *, count: int, own: int = 5, start: int = 10_000) -> list[list[int]]:
    """`count` tables that begin with the blocks of `prefix` and go on with `own` blocks each."""
    return [[*prefix, *range(start + i * own, start + (i + 1) * own)] for i in range(count)]


def test_sequences_behind_one_prompt_are_a_group():
    rows = behind(range(64), count=16)
    assert groups(tables(*rows), [69 * 16] * 16) == [(list(range(16)), 64 * 16)]


def test_the_order_of_the_sequences_does_not_matter_and_strangers_stay_out():
    rows = [*behind(range(64), count=8), *behind(range(500, 500), count=8, own=69, start=1000)]
    mixed = np.random.default_rng(0).permutation(16)
    expected = sorted(int(i) for i in np.flatnonzero(mixed < 8))
    assert groups(tables(*[rows[i] for i in mixed]), [69 * 16] * 16) == [(expected, 64 * 16)]


def test_several_groups_in_one_step():
    rows = [*behind(range(100), count=6), *behind(range(200, 500), count=4, start=20_000)]
    lengths = [105 * 16] * 6 + [305 * 16] * 4
    assert groups(tables(*rows), lengths) == [([0, 1, 2, 3, 4, 5], 1600), ([6, 7, 8, 9], 4800)]


def test_a_group_within_a_group_is_taken_where_it_saves_more():
    """All share 20 blocks, and half of them 200."""
    deep = behind(range(200), count=8)
    shallow = behind(range(20), count=8, own=185, start=30_000)
    assert groups(tables(*shallow, *deep), [205 * 16] * 16) == [(list(range(8, 16)), 3200)]
    # If the deeper one is deeper by little, all go together.
    deep, shallow = behind(range(30), count=3), behind(range(28), count=13, own=10, start=30_000)
    assert groups(tables(*deep, *shallow), [34 * 16] * 16) == [(list(range(16)), 28 * 16)]


def test_the_block_that_holds_the_query_is_never_shared():
    rows = [list(range(64))] * 16  # n samples of one prompt, before the first copy on write
    assert groups(tables(*rows), [1024] * 16) == [(list(range(16)), 63 * 16)]
    assert groups(tables(*rows), [1023] * 16) == [(list(range(16)), 63 * 16)]


def test_what_stands_behind_the_last_block_is_not_taken_for_a_common_block():
    rows = behind(range(0), count=16, own=20)
    assert groups(tables(*rows), [20 * 16] * 16) == []


def test_sequences_in_prefill_attend_by_themselves():
    rows = behind(range(64), count=16)
    queries = [1] * 8 + [64] * 8
    assert groups(tables(*rows), [69 * 16] * 16, queries) == [(list(range(8)), 1024)]


@pytest.mark.parametrize(
    ("count", "blocks", "group", "why"),
    [
        (16, 15, 3, "the prefix is too short"),
        (4, 64, 3, "too little is saved: 3 x 1,024 tokens"),
        (3, 500, 3, "9 rows leave the registers half empty"),
    ],
)
def test_what_does_not_pay_is_left_alone(count, blocks, group, why):
    rows = behind(range(blocks), count=count)
    assert groups(tables(*rows), [(blocks + 5) * 16] * count, group=group) == [], why


def test_more_heads_make_up_for_fewer_sequences():
    rows = behind(range(500), count=3)
    assert groups(tables(*rows), [505 * 16] * 3, group=4) == [([0, 1, 2], 8000)]


def test_a_block_in_the_same_place_does_not_make_a_common_prefix():
    """It can't be in a paged cache; but then attention must not be wrong for it."""
    rows = [[1000 * i, *range(1, 64)] for i in range(16)]
    assert groups(tables(*rows), [64 * 16] * 16) == []


def test_no_sequences_no_groups():
    assert groups(np.zeros((0, 4), np.int32), []) == []


@given(st.data())
def test_a_group_has_its_blocks_in_common_and_no_sequence_is_in_two(data):
    """Tables drawn from few prefixes, so that all kinds of agreement come up; limits low, so that most of it pays."""
    count = data.draw(st.integers(1, 12))
    stems = [data.draw(st.lists(st.integers(0, 3), min_size=12, max_size=12)) for _ in range(3)]
    rows, lengths, queries = [], [], []
    for _ in range(count):
        stem = stems[data.draw(st.integers(0, 2))]
        kept = data.draw(st.integers(0, 12))
        rows.append([*stem[:kept], *data.draw(st.lists(st.integers(4, 9), min_size=12 - kept, max_size=12 - kept))])
        lengths.append(data.draw(st.integers(1, 12 * BLOCK_SIZE)))
        queries.append(data.draw(st.sampled_from([1, 1, 1, lengths[-1]])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cascade, "MIN_SAVED", 32)
        patch.setattr(cascade, "MIN_TOKENS", 16)
        found = groups(tables(*rows, width=12), lengths, queries, group=6)
    members = [s for sequences, _ in found for s in sequences]
    assert len(set(members)) == len(members)
    for sequences, num_tokens in found:
        assert num_tokens % BLOCK_SIZE == 0
        assert num_tokens * (len(sequences) - 1) >= 32
        assert len(sequences) > 1
        num_blocks = num_tokens // BLOCK_SIZE
        assert {tuple(rows[s][:num_blocks]) for s in sequences} == {tuple(rows[sequences[0]][:num_blocks])}
        assert all(queries[s] == 1 and num_tokens < lengths[s] for s in sequences)
