"""Checks of chapter 09: utilization (9.1), tokens a second (9.3), and the list of the chapter's exercises.

`measure_fairness` (9.2), `measure_flaws` (9.4) and `measure_interval` (9.5) have the rest.

Knows block tables and times. Does not know how a function finds its number.
"""

from collections.abc import Sequence
from statistics import mean

from pagedkv_lab.course.checks.floats import FloatCheck
from pagedkv_lab.course.checks.functions import Case, Mistake
from pagedkv_lab.course.checks.measure_fairness import fair_benchmark
from pagedkv_lab.course.checks.measure_flaws import what_is_wrong
from pagedkv_lab.course.checks.measure_interval import ratio_interval
from pagedkv_lab.course.checks.registry import Exercise
from pagedkv_lab.measure.records import RequestRecord
from pagedkv_lab.sizing import blocks_for

# 9.1 utilization

Tables = Sequence[Sequence[int]]


def reference_utilization(tables: Tables, num_tokens: Sequence[int], block_size: int) -> float:
    """Share of the reserved slots in which a token lies. A block in several tables is one block."""
    filled: dict[int, int] = {}
    for table, tokens in zip(tables, num_tokens, strict=True):
        for i, block in enumerate(table):
            here = min(max(tokens - i * block_size, 0), block_size)
            filled[block] = max(filled.get(block, 0), here)
    return sum(filled.values()) / (len(filled) * block_size) if filled else 1.0


def _blocks(tables: Tables) -> int:
    return len({block for table in tables for block in table})


def _each_by_itself(tables: Tables, num_tokens: Sequence[int], block_size: int) -> float:
    reserved = sum(map(len, tables)) * block_size
    return sum(num_tokens) / reserved if reserved else 1.0


def _tokens_twice(tables: Tables, num_tokens: Sequence[int], block_size: int) -> float:
    return sum(num_tokens) / (_blocks(tables) * block_size) if _blocks(tables) else 1.0


def _blocks_twice(tables: Tables, num_tokens: Sequence[int], block_size: int) -> float:
    reserved = sum(map(len, tables))
    return reference_utilization(tables, num_tokens, block_size) * _blocks(tables) / reserved if reserved else 1.0


def _mean_of_shares(tables: Tables, num_tokens: Sequence[int], block_size: int) -> float:
    shares = [n / (len(table) * block_size) for table, n in zip(tables, num_tokens, strict=True) if table]
    return mean(shares) if shares else 1.0


def _needed_blocks(tables: Tables, num_tokens: Sequence[int], block_size: int) -> float:
    needed = sum(blocks_for(n, block_size) for n in num_tokens) * block_size
    return sum(num_tokens) / needed if needed else 1.0


def _blocks_with_a_token(tables: Tables, num_tokens: Sequence[int], block_size: int) -> float:
    touched = {
        block for table, n in zip(tables, num_tokens, strict=True) for block in table[: blocks_for(n, block_size)]
    }
    return len(touched) / _blocks(tables) if _blocks(tables) else 1.0


def _zero_for_nothing(tables: Tables, num_tokens: Sequence[int], block_size: int) -> float:
    return reference_utilization(tables, num_tokens, block_size) if _blocks(tables) else 0.0


def _one_holder(last: bool):
    """Of those who hold a shared block, only the first or the last one's tokens count."""

    def wrong(tables: Tables, num_tokens: Sequence[int], block_size: int) -> float:
        filled: dict[int, int] = {}
        for table, tokens in zip(tables, num_tokens, strict=True):
            for i, block in enumerate(table):
                if last or block not in filled:
                    filled[block] = min(max(tokens - i * block_size, 0), block_size)
        return sum(filled.values()) / (len(filled) * block_size) if filled else 1.0

    return wrong


utilization = FloatCheck(
    name="utilization",
    parameters=("tables", "num_tokens", "block_size"),
    reference=reference_utilization,
    cases=(
        Case(([[3]], [4], 4), "a full block"),
        Case(([[3]], [1], 4)),
        Case(([[3, 1]], [5], 4), "a full block and one token in the next"),
        Case(([[5, 2], [7]], [8, 1], 4), "two requests"),
        Case(([[0], [1]], [300, 100], 2048), "contiguous: a row of max_model_len slots for each"),
        Case(([[3, 1, 8]], [2], 4), "blocks that were reserved ahead"),
        Case(([[3], [3]], [4, 4], 4), "one full block that two requests share"),
        Case(([[7, 1], [7, 2]], [6, 5], 4), "the first block is shared"),
        Case(([[3], [3]], [2, 2], 4), "a fork: both have the same two tokens"),
        Case(([[3], [3]], [1, 4], 4), "a shared block, of which one has computed less so far"),
        Case(([[3], [3]], [4, 1], 4), "a shared block, of which one has computed less so far"),
        Case(([], [], 4), "nothing is reserved, so nothing is wasted"),
        Case(([[], [6]], [0, 3], 4), "a request that waits and has no block yet"),
        Case(([[9, 4, 0, 2], [9, 4, 6], [9, 4, 5, 1]], [60, 33, 49], 16), "three with the same two blocks"),
        Case(([[2 * i, 2 * i + 1] for i in range(20)], [17] * 20, 16), "twenty with a nearly empty second block"),
    ),
    mistakes=(
        Mistake(
            "shared_twice",
            "It goes through the requests one by one, and a block that several of them share is counted once for each. "
            "In memory it is there once, with its tokens.",
            _each_by_itself,
            hint=2,
        ),
        Mistake(
            "tokens_twice",
            "It counts a shared block once and its tokens once for each request. With enough sharing that is more than "
            "100 %: the tokens of a shared block lie in memory once, too.",
            _tokens_twice,
            hint=2,
        ),
        Mistake(
            "blocks_twice",
            "It counts the tokens of a shared block once and the block once for each request. Count distinct blocks.",
            _blocks_twice,
            hint=2,
        ),
        Mistake(
            "mean_of_shares",
            "It is the mean over the requests, so a request with one block counts as much as one with a hundred. Add "
            "slots first, and divide once.",
            _mean_of_shares,
        ),
        Mistake(
            "needed_not_reserved",
            "It divides by the blocks that these tokens need. Count those that are in the tables: a request may hold "
            "more than it fills.",
            _needed_blocks,
        ),
        Mistake(
            "counts_blocks",
            "It counts blocks with a token in them. A block with one token is nearly empty: count slots.",
            _blocks_with_a_token,
            hint=2,
        ),
        Mistake(
            "inverse",
            "It is the wrong way round: filled over reserved, a number from 0 to 1.",
            lambda *args: 1 / reference_utilization(*args),
        ),
        Mistake(
            "wasted",
            "That is the share that is empty. The share that holds a token is wanted.",
            lambda *args: 1 - reference_utilization(*args),
        ),
        Mistake(
            "percent",
            "It is a hundred times too large: a share from 0 to 1 is wanted, not percent.",
            lambda *args: 100 * reference_utilization(*args),
        ),
        Mistake(
            "zero_for_nothing",
            "Where nothing is reserved, nothing is wasted: return 1.0. A 0 would look like the worst cache of all.",
            _zero_for_nothing,
            hint=3,
        ),
        Mistake(
            "one_holder",
            "Of a shared block it counts what one of its holders has there. A slot is filled if any of them has a "
            "token in it.",
            (_one_holder(last=True), _one_holder(last=False)),
            hint=2,
        ),
    ),
    tried=("contiguous rows", "blocks", "reserved ahead", "shared blocks", "nothing reserved"),
)  # fmt: skip

# 9.3 tokens_per_second

Records = Sequence[RequestRecord]


def reference_tokens_per_second(records: Records) -> float:
    """Output tokens over the time from the first arrival to the last finish."""
    return sum(one.output_tokens for one in records) / _whole_time(records)


def _whole_time(records: Records) -> float:
    return max(one.finish for one in records) - min(one.arrival for one in records)


def _output(records: Records) -> int:
    return sum(one.output_tokens for one in records)


def _case(*records: tuple[float, float, int, int], label: str = "") -> Case:
    return Case(([RequestRecord(*record) for record in records],), label)


tokens_per_second = FloatCheck(
    name="tokens_per_second",
    parameters=("records",),
    reference=reference_tokens_per_second,
    cases=(
        _case((0.0, 2.0, 5, 4), label="one request"),
        _case((0.0, 2.0, 500, 4), label="the same with a long prompt"),
        _case((0.0, 2.0, 5, 4), (2.0, 4.0, 5, 8), label="one after the other"),
        _case((0.0, 2.0, 5, 4), (0.0, 2.0, 5, 4), label="both at once"),
        _case((0.0, 4.0, 5, 8), (1.0, 3.0, 7, 4), label="the second is done before the first"),
        _case((100.0, 102.0, 5, 4), label="the clock did not begin at 0"),
        _case((50.0, 51.0, 9, 2), (53.0, 54.0, 9, 6), label="nobody is there between them: that time counts, too"),
        _case((7.0, 8.0, 3, 6), (4.0, 6.0, 3, 2), (5.0, 9.0, 3, 12), label="in no particular order"),
        _case((3.0, 3.5, 600, 1), (3.0, 5.0, 600, 31), (4.0, 7.0, 20, 64), (4.5, 6.0, 20, 16)),
    ),
    mistakes=(
        Mistake(
            "counts_prompt_tokens",
            "It counts the prompts' tokens, too. Nobody waits for those: they are read at once, and a long prompt "
            "would make any server look fast.",
            (
                lambda records: sum(one.prompt_tokens + one.output_tokens for one in records) / _whole_time(records),
                lambda records: sum(one.prompt_tokens for one in records) / _whole_time(records),
            ),
        ),
        Mistake(
            "sums_the_times",
            "It adds up the times of the requests. While they run at the same time, each second counts several times: "
            "serving many at once would look no faster than serving one by one.",
            lambda records: _output(records) / sum(one.finish - one.arrival for one in records),
            hint=2,
        ),
        Mistake(
            "mean_of_rates",
            "It is the mean of the requests' own rates: what one user sees. What the server makes is all tokens over "
            "the time of the whole.",
            lambda records: mean(one.output_tokens / (one.finish - one.arrival) for one in records),
            hint=2,
        ),
        Mistake(
            "sums_the_rates",
            "It adds up the requests' own rates, also of those that did not run at the same time.",
            lambda records: sum(one.output_tokens / (one.finish - one.arrival) for one in records),
            hint=2,
        ),
        Mistake(
            "from_zero",
            "It counts from the clock's 0. The run began when the first request arrived.",
            lambda records: _output(records) / max(one.finish for one in records),
            hint=3,
        ),
        Mistake(
            "slowest_request",
            "It takes the time of the slowest request for the time of the whole. They did not all arrive at once.",
            lambda records: _output(records) / max(one.finish - one.arrival for one in records),
            hint=2,
        ),
        Mistake(
            "order_of_the_list",
            "It takes the first and the last of the list. Who is first in it need not have come first, and who is last "
            "need not be done last.",
            (
                lambda records: _output(records) / (records[-1].finish - records[0].arrival),
                lambda records: _output(records) / (max(one.finish for one in records) - records[0].arrival),
                lambda records: _output(records) / (records[-1].finish - min(one.arrival for one in records)),
            ),
            hint=3,
        ),
        Mistake(
            "idle_time_left_out",
            "It leaves out the time in which nobody was there. The time of the whole goes from the first arrival to "
            "the last finish.",
            lambda records: _output(records) / _busy_time(records),
            hint=2,
        ),
        Mistake(
            "seconds_a_token",
            "It is the wrong way round: tokens over seconds.",
            lambda records: _whole_time(records) / _output(records),
        ),
        Mistake(
            "requests_a_second",
            "It counts requests. Count their output tokens.",
            lambda records: len(records) / _whole_time(records),
        ),
    ),
    tried=("long prompts", "requests at the same time", "late starts", "pauses", "any order"),
)  # fmt: skip


def _busy_time(records: Records) -> float:
    """Seconds in which at least one request was there."""
    busy, until = 0.0, float("-inf")
    for arrival, finish in sorted((one.arrival, one.finish) for one in records):
        busy += max(0.0, finish - max(arrival, until))
        until = max(until, finish)
    return busy


EXERCISES = (
    Exercise("utilization", "9.1", "Utilization", utilization),
    Exercise("fair_benchmark", "9.2", "A fair benchmark", fair_benchmark),
    Exercise("tokens_per_second", "9.3", "Tokens a second", tokens_per_second),
    Exercise("what_is_wrong", "9.4", "What is wrong with this report", what_is_wrong),
    Exercise("ratio_interval", "9.5", "How sure is the ratio", ratio_interval, stretch=True),
)
