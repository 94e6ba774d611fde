"""A replayed trace finds what the real block manager would find, and the policies differ in the way they must."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pagedkv_lab.blocks import BlockManager
from pagedkv_lab.errors import PagedKVError
from pagedkv_lab.measure.simulate import (
    FreeBlock,
    TraceRequest,
    generated_trace,
    hit_rates,
    read_trace,
    replay,
)

REAL_TRACE = Path(__file__).parents[3] / "shared" / "traces" / "conversation_trace.jsonl"


def trace(*prompts):
    """Requests with these block ids: "abc" is a prompt of three blocks."""
    return [TraceRequest(at, len(prompt), 1, tuple(map(ord, prompt))) for at, prompt in enumerate(prompts)]


@pytest.mark.parametrize(
    ("prompts", "capacity", "found"),
    [
        (("abc", "abc"), None, 3),
        (("abc", "abd"), None, 2),
        (("abc", "xbc"), None, 0),  # behind the first miss nothing counts
        (("abc", "abcd", "abc"), 4, 6),
        (("abc", "xyz", "abc"), 3, 0),
        (("abc", "xy", "abc"), 4, 2),  # the tail went for x
        (("ab", "cd", "ab", "xy", "ab", "cd"), 4, 4),  # found again, a and b outlive c and d
    ],
)
def test_lru_finds_what_it_should(prompts, capacity, found):
    assert replay(trace(*prompts), capacity).found == found


def test_fifo_ignores_that_a_block_was_found_since():
    requests = trace("ab", "cd", "ab", "xy", "ab")
    assert replay(requests, 4, "lru").found == 4
    assert replay(requests, 4, "fifo").found == 2


def test_mru_evicts_what_was_used_last():
    assert replay(trace("ab", "cd", "xy", "ab"), 4, "mru").found == 2
    assert replay(trace("ab", "cd", "xy", "ab"), 4, "lru").found == 0


@pytest.mark.parametrize("policy", ["lru", "fifo", "mru"])
def test_what_a_request_found_is_not_evicted_for_its_own_rest(policy):
    result = replay(trace("abc", "abcdef"), 6, policy)
    assert (result.found, result.evicted) == (3, 0)
    result = replay(trace("abc", "xyz", "abcdef"), 6, policy)
    assert (result.found, result.evicted) == (3, 3)


def test_head_first_leaves_tails_that_nobody_can_find():
    requests = trace("abcd", "x", "abcd")
    assert replay(requests, 4).found == 3
    assert replay(requests, 4, tail_first=False).found == 0


def test_a_function_chooses_among_the_free_blocks():
    seen = []

    def oldest(blocks):
        seen.append(blocks)
        return min(blocks, key=lambda block: (block.last_used, -block.depth))

    requests = trace("ab", "abc", "xyz")
    assert replay(requests, 4, oldest) == replay(requests, 4, "lru")
    assert sorted(seen[0], key=lambda block: block.depth) == [
        FreeBlock(1, 1, 0, 0), FreeBlock(1, 1, 1, 0), FreeBlock(1, 0, 2, 2)
    ]  # fmt: skip


def test_a_function_that_is_lru_does_what_lru_does():
    requests = generated_trace(3, 20, 20)
    assert replay(requests, 80, lambda blocks: blocks[0]) == replay(requests, 80)


def test_a_function_must_return_one_of_the_blocks():
    with pytest.raises(ValueError, match="none of the 2 blocks"):
        replay(trace("ab", "cd"), 2, lambda blocks: FreeBlock(0, 0, 0, 0))


@pytest.mark.parametrize(
    ("options", "says"),
    [({"policy": "random"}, "lru, fifo, mru"), ({"capacity": 0}, "at least 1"), ({"capacity": 2}, "3 blocks")],
)
def test_what_makes_no_sense_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        replay(trace("abc"), **options)


@dataclass
class Sequence:
    """As much of a sequence as the block manager reads. One token fills one block."""

    seq_id: int
    token_ids: list
    name: str = "a request"
    num_computed_tokens: int = 0
    block_keys: list = field(default_factory=list)
    extra_keys: tuple = ()


@pytest.mark.parametrize("capacity", [60, 100, 250])
def test_the_real_block_manager_finds_as_much(capacity):
    requests = generated_trace(1, 20, 10)
    manager, found = BlockManager(capacity, block_size=1), 0
    for number, request in enumerate(requests, 1):
        seq = Sequence(number, list(request.hash_ids))
        hits = manager.lookup(seq)
        found += len(hits)
        seq.num_computed_tokens = manager.admit(seq, hits)
        assert manager.append(seq, len(seq.token_ids) - seq.num_computed_tokens) is not None
        manager.commit_step()
        manager.free(seq)
    assert found == replay(requests, capacity).found


def test_a_generated_trace_is_the_same_for_the_same_seed():
    requests = generated_trace(5)
    assert requests == generated_trace(5)
    assert requests != generated_trace(6)
    assert [request.timestamp for request in requests] == sorted(request.timestamp for request in requests)
    assert all(request.input_length // 64 == len(request.hash_ids) for request in requests)


def test_more_room_finds_more_on_the_generated_trace():
    requests = generated_trace()
    rates = hit_rates(requests, (60, 100, 200, 400, 800))
    assert list(rates.values()) == sorted(rates.values())
    assert rates[800] <= replay(requests).hit_rate


def test_read_trace_reads_the_form_and_says_which_line_is_not_of_it(tmp_path):
    file = tmp_path / "trace.jsonl"
    line = '{"timestamp": 7, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}\n'
    file.write_text(line)
    assert read_trace(file) == [TraceRequest(7, 600, 3, (0, 1))]
    for wrong in ("{", "[]", '{"timestamp": 1}'):
        file.write_text(line + wrong)
        with pytest.raises(PagedKVError, match="line 2"):
            read_trace(file)


@pytest.mark.skipif(not REAL_TRACE.exists(), reason=f"the real trace is not in {REAL_TRACE.parent.name}/")
def test_the_hit_rates_of_the_real_trace():
    """36.6, 21.1 and 4.5 % are of plain LRU, which touches a prompt's blocks from the first to the last."""
    requests = read_trace(REAL_TRACE)
    assert len(requests) == 12_031
    for capacity, rate in ((None, 0.366), (10_000, 0.211), (1_000, 0.0445)):
        assert replay(requests, capacity, tail_first=False).hit_rate == pytest.approx(rate, abs=0.0005)
        assert replay(requests, capacity).hit_rate == pytest.approx(rate, abs=0.001)
