"""A contiguous cache wastes what the paper says that it wastes, and a buddy allocator gives every slot once."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_lab.measure.reservation import BuddyMemory, serve_contiguously, serve_paged, shares

lengths = st.tuples(st.integers(1, 40), st.integers(1, 40))


def slots_of(piece):
    start, order = piece
    return set(range(start, start + (1 << order)))


@given(st.integers(1, 300), st.lists(st.tuples(st.booleans(), st.integers(1, 80)), max_size=40))
def test_pieces_are_large_enough_apart_and_inside_and_all_come_back(num_slots, life):
    memory, held = BuddyMemory(num_slots), []
    whole = [set(starts) for starts in memory.free]
    for takes, number in life:
        if takes and (piece := memory.take(number)):
            assert number <= len(slots_of(piece)) < 2 * number
            assert slots_of(piece) <= set(range(num_slots))
            assert not any(slots_of(piece) & slots_of(other) for other in held)
            held.append(piece)
        elif not takes and held:
            memory.give_back(held.pop(number % len(held)))
    for piece in held:
        memory.give_back(piece)
    assert memory.free == whole


def test_a_piece_is_refused_only_where_none_is_large_enough():
    memory = BuddyMemory(16)
    pieces = [memory.take(4) for _ in range(4)]
    assert memory.take(1) is None
    memory.give_back(pieces[0])
    memory.give_back(pieces[2])
    assert memory.take(5) is None, "8 slots are free, in two pieces"
    memory.give_back(pieces[1])
    assert memory.take(5) == (0, 3)


def test_what_is_reserved_filled_and_never_filled_by_hand():
    # One at a time: 8 slots, 3 for the prompt, 2 for the answer, and the next one waits.
    first, second, *_ = serve_contiguously([(3, 2), (3, 2)], lambda prompt, answer: 8, num_slots=8)
    assert first == (4, 1, 3, 1)
    assert second == (5, 0, 3, 1)


def test_whoever_knows_the_length_has_no_internal_fragmentation_but_holes():
    found = shares(serve_contiguously([(5, 4)] * 28, lambda prompt, answer: prompt + answer, 64), 64)
    assert found.internal == 0
    assert found.external == pytest.approx(1 - 4 * 9 / 64)  # 9 slots take a piece of 16


@given(st.lists(lengths, min_size=30, max_size=50), st.integers(128, 300))
def test_the_shares_are_all_of_the_memory(requests, num_slots):
    found = shares(serve_contiguously(requests, lambda prompt, answer: 80, num_slots), num_slots)
    assert sum(found[:4]) == pytest.approx(1)
    assert min(found[:4]) >= 0


@given(st.lists(lengths, min_size=30, max_size=50), st.integers(128, 300))
def test_in_blocks_less_than_one_of_each_request_is_not_filled(requests, num_slots):
    for moment in serve_paged(requests, num_slots, block_size=4):
        assert moment.filled + moment.never <= num_slots
        assert moment.never < 4 * max(1, moment.running)


def test_the_more_is_known_the_less_is_wasted_and_blocks_need_to_know_nothing():
    draw = random.Random(0)
    requests = [(draw.randint(1, 100), draw.randint(20, 200)) for _ in range(150)]
    ways = (
        serve_contiguously(requests, lambda prompt, answer: 512, 4096),
        serve_contiguously(requests, lambda prompt, answer: prompt + (1 << (answer - 1).bit_length()), 4096),
        serve_contiguously(requests, lambda prompt, answer: prompt + answer, 4096),
        serve_paged(requests, 4096),
    )
    longest, power_of_two, exact, paged = (shares(moments, 4096) for moments in ways)
    assert longest.tokens < power_of_two.tokens < exact.tokens < paged.tokens
    assert longest.running < power_of_two.running < exact.running < paged.running
    assert paged.tokens > 0.9


def test_a_request_that_can_never_fit_is_refused_in_words():
    with pytest.raises(ValueError, match="asks for 2048 slots in a row, and there are 1000"):
        serve_contiguously([(10, 10)], lambda prompt, answer: 2048, 1000)


def test_where_nobody_waits_there_is_nothing_to_share():
    with pytest.raises(ValueError, match="nobody waited"):
        shares(serve_paged([(4, 2), (4, 2)], 64), 64)
