"""How a step's attention is cut into pieces for the CPU kernels: everything is done, once, in pieces of a fair size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_lab.attention.work import (
    FIRST,
    FIRST_QUERY,
    LAST,
    LAST_QUERY,
    MAX_ROWS,
    MIN_ROWS,
    POSITION,
    ROW,
    SEQUENCE,
    TARGET,
    SharedPrefix,
    Work,
    cut,
)


def cut_up(lengths: list[tuple[int, int]], prefixes=(), window=None, group=3, kv_heads=3, threads=2) -> Work:
    """lengths: (context, queries) a sequence."""
    context_lens, query_lens = np.array(lengths, np.int64).reshape(-1, 2).T
    return cut(
        context_lens,
        query_lens,
        list(prefixes),
        sliding_window=window,
        group=group,
        num_kv_heads=kv_heads,
        num_threads=threads,
    )


def pieces_of(work: Work) -> np.ndarray:
    return np.concatenate([work.few_rows, work.many_rows])


LENGTHS = st.lists(
    st.tuples(st.integers(1, 700), st.integers(1, 200)).map(lambda pair: (max(pair), min(pair))), min_size=1, max_size=8
)


@given(
    LENGTHS,
    st.sampled_from([None, 1, 40, 300]),
    st.sampled_from([1, 3, 8, 16, 100]),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 2, 16]),
    st.data(),
)
def test_every_query_attends_to_each_token_that_it_sees_exactly_once(lengths, window, group, kv_heads, threads, data):
    prefixes = []
    decoding = [s for s, (context, queries) in enumerate(lengths) if queries == 1 and context > 1]
    if window is None and len(decoding) > 1 and data.draw(st.booleans()):
        num_tokens = data.draw(st.integers(1, min(lengths[s][0] for s in decoding) - 1))
        prefixes = [SharedPrefix(np.array(decoding), num_tokens)]
    work = cut_up(lengths, prefixes, window, group, kv_heads, threads)

    seen: dict[int, list[int]] = {}
    targets: dict[int, list[int]] = {}
    readers: dict[int, set[int]] = {}
    for piece in pieces_of(work):
        for query in work.queries[piece[FIRST_QUERY] : piece[LAST_QUERY]]:
            row = int(query[ROW])
            oldest = 0 if window is None else max(0, query[POSITION] - window + 1)
            tokens = range(max(piece[FIRST], oldest), min(piece[LAST], query[POSITION] + 1))
            seen.setdefault(row, []).extend(tokens)
            targets.setdefault(row, []).append(int(query[TARGET]))
            readers.setdefault(row, set()).add(int(piece[SEQUENCE]))

    row = 0
    for s, (context, queries) in enumerate(lengths):
        for position in range(context - queries, context):
            oldest = 0 if window is None else max(0, position - window + 1)
            assert sorted(seen[row]) == list(range(oldest, position + 1))
            allowed = {s} | {int(prefix.sequences[0]) for prefix in prefixes if s in prefix.sequences}
            assert readers[row] <= allowed
            row += 1
    assert len(seen) == row

    # A result has a row of the output to itself, and those of one query lie side by side for the merge.
    merges = {int(row): range(first, last) for row, first, last in work.merges}
    assert all(targets[row] == [row] for row in targets if row not in merges)
    assert all(sorted(targets[row]) == list(parts) and len(parts) > 1 for row, parts in merges.items())
    everywhere = [target for of_row in targets.values() for target in of_row]
    assert len(set(everywhere)) == len(everywhere)
    assert max(everywhere) < work.num_rows

    # No row more than a kernel takes, and none for the one that the other does faster.
    for piece in work.few_rows:
        assert piece[LAST_QUERY] - piece[FIRST_QUERY] == 1
        assert group < MIN_ROWS
    for piece in work.many_rows:
        assert (piece[LAST_QUERY] - piece[FIRST_QUERY]) * group <= max(MAX_ROWS, group)


@pytest.mark.parametrize("threads", [2, 4, 16])
def test_one_long_sequence_keeps_all_threads_busy(threads):
    work = cut_up([(8192, 1)], kv_heads=1, threads=threads)
    tokens = work.few_rows[:, LAST] - work.few_rows[:, FIRST]
    assert len(tokens) >= 4 * threads
    assert tokens.max() <= 1.5 * tokens.mean()


def test_a_long_sequence_beside_short_ones_is_no_larger_piece_than_a_thread_s_share():
    work = cut_up([(4096, 1), *[(100, 1)] * 8])
    tokens = work.few_rows[:, LAST] - work.few_rows[:, FIRST]
    assert tokens.max() * 8 <= tokens.sum() * 3 / 2 + 8 * 32  # 3 heads, 2 threads, 8 pieces for each
    assert (np.diff(tokens) <= 0).all(), "the largest come first"


def test_equal_sequences_enough_for_all_threads_are_not_cut():
    work = cut_up([(512, 1)] * 16)
    assert len(work.few_rows) == 16
    assert len(work.merges) == 0


def test_a_single_thread_has_no_use_for_parts():
    assert len(cut_up([(8192, 1), (10, 1)], threads=1).few_rows) == 2


def test_short_contexts_are_not_cut_into_crumbs():
    work = cut_up([(100, 1)], kv_heads=1, threads=64)
    assert len(work.few_rows) <= 2


def test_a_prompt_s_queries_come_in_equal_chunks():
    """Not 32 + 32 + 1, which would do the third piece for a single query."""
    work = cut_up([(65, 65)], group=3, threads=1)
    assert sorted(work.many_rows[:, LAST_QUERY] - work.many_rows[:, FIRST_QUERY]) == [21, 22, 22]


def test_a_step_without_sequences_is_no_work():
    work = cut_up([])
    assert len(pieces_of(work)) == len(work.merges) == work.num_rows == 0
