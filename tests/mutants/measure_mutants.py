"""Wrong and right implementations of the exercises of chapter 09, with the diagnosis each wrong one must get.

Each is written as a learner would write it, without a look at the check.
"""

import math
import time
from fractions import Fraction
from statistics import mean, median, quantiles

import numpy as np
from mutant_list import right, wrong

# 9.1 utilization


@right("utilization")
def dict_of_blocks(tables, num_tokens, block_size):
    """a dict from block to filled slots"""
    filled = {}
    for table, tokens in zip(tables, num_tokens, strict=True):
        for i, block in enumerate(table):
            filled[block] = max(filled.get(block, 0), max(0, min(block_size, tokens - i * block_size)))
    return sum(filled.values()) / (len(filled) * block_size) if filled else 1.0


@right("utilization")
def sets_of_slots(tables, num_tokens, block_size):
    """sets of slots, and a Fraction"""
    reserved = {block * block_size + i for table in tables for block in table for i in range(block_size)}
    filled = {
        table[p // block_size] * block_size + p % block_size
        for table, n in zip(tables, num_tokens, strict=True)
        for p in range(n)
    }
    return Fraction(len(filled), len(reserved)) if reserved else 1


@right("utilization")
def bitmap_of_slots(tables, num_tokens, block_size):
    """a numpy bitmap of the pool"""
    blocks = np.unique(np.array([block for table in tables for block in table], dtype=int))
    if not blocks.size:
        return np.float64(1)
    pool = np.zeros((blocks.max() + 1, block_size), dtype=bool)
    for table, n in zip(tables, num_tokens, strict=True):
        for i, block in enumerate(table):
            pool[block, : max(0, n - i * block_size)] = True
    return pool[blocks].mean()


wrong("utilization", "not_a_function", "a number in the place of a function", general=True)(0.9)


@wrong("utilization", "unwritten", general=True)
def stub_of_utilization(tables, num_tokens, block_size):
    """the stub"""


@wrong("utilization", "prints", general=True)
def prints_it(tables, num_tokens, block_size):
    """prints its answer"""
    print(dict_of_blocks(tables, num_tokens, block_size))


@wrong("utilization", "wrong_type", general=True)
def percent_sign(tables, num_tokens, block_size):
    """text with a percent sign"""
    return f"{dict_of_blocks(tables, num_tokens, block_size):.0%}"


@wrong("utilization", "wrong_type", "says yes or no", general=True)
def is_well_used(tables, num_tokens, block_size):
    return dict_of_blocks(tables, num_tokens, block_size) > 0.8


@wrong("utilization", "wrong_type", "nan where nothing is reserved", general=True)
def numpy_nan(tables, num_tokens, block_size):
    return dict_of_blocks(tables, num_tokens, block_size) if any(tables) else math.nan


@wrong("utilization", "wrong_type", "yields", general=True)
def yields_it(tables, num_tokens, block_size):
    yield dict_of_blocks(tables, num_tokens, block_size)


@wrong("utilization", "mutates", general=True)
def empties_the_tables(tables, num_tokens, block_size):
    """takes the blocks out of the caller's tables"""
    filled = {}
    for table, tokens in zip(tables, num_tokens, strict=True):
        while table:
            block = table.pop()
            filled[block] = max(filled.get(block, 0), max(0, min(block_size, tokens - len(table) * block_size)))
    return sum(filled.values()) / (len(filled) * block_size) if filled else 1.0


@wrong("utilization", "raises", "divides by 0 where nothing is reserved")
def divides_by_zero(tables, num_tokens, block_size):
    blocks = {block for table in tables for block in table}
    return dict_of_blocks(tables, num_tokens, block_size) * len(blocks) / len(blocks)


@wrong("utilization", "shared_twice")
def request_by_request(tables, num_tokens, block_size):
    """request by request, whoever shares"""
    reserved = sum(len(table) * block_size for table in tables)
    return sum(num_tokens) / reserved if reserved else 1.0


@wrong("utilization", "tokens_twice")
def all_tokens_over_distinct_blocks(tables, num_tokens, block_size):
    """all tokens over distinct blocks"""
    blocks = set().union(*tables)
    return sum(num_tokens) / (len(blocks) * block_size) if blocks else 1.0


@wrong("utilization", "blocks_twice")
def distinct_tokens_over_all_blocks(tables, num_tokens, block_size):
    """distinct tokens over all blocks of all tables"""
    filled = {}
    for table, tokens in zip(tables, num_tokens, strict=True):
        for i, block in enumerate(table):
            filled[block] = max(filled.get(block, 0), max(0, min(block_size, tokens - i * block_size)))
    reserved = sum(map(len, tables)) * block_size
    return sum(filled.values()) / reserved if reserved else 1.0


@wrong("utilization", "mean_of_shares")
def mean_over_requests(tables, num_tokens, block_size):
    """the mean over the requests"""
    shares = [n / (len(table) * block_size) for table, n in zip(tables, num_tokens, strict=True) if table]
    return mean(shares) if shares else 1.0


@wrong("utilization", "needed_not_reserved")
def blocks_that_are_needed(tables, num_tokens, block_size):
    """the blocks that the tokens need, not those in the tables"""
    slots = sum(math.ceil(n / block_size) for n in num_tokens) * block_size
    return sum(num_tokens) / slots if slots else 1.0


@wrong("utilization", "counts_blocks")
def blocks_with_tokens(tables, num_tokens, block_size):
    """blocks with a token over blocks"""
    touched, reserved = set(), set()
    for table, n in zip(tables, num_tokens, strict=True):
        reserved |= set(table)
        touched |= set(table[: math.ceil(n / block_size)])
    return len(touched) / len(reserved) if reserved else 1.0


@wrong("utilization", "inverse")
def reserved_over_filled(tables, num_tokens, block_size):
    """reserved over filled"""
    return 1 / dict_of_blocks(tables, num_tokens, block_size)


@wrong("utilization", "wasted")
def empty_share(tables, num_tokens, block_size):
    """the empty share"""
    return 1 - dict_of_blocks(tables, num_tokens, block_size)


@wrong("utilization", "percent")
def in_percent(tables, num_tokens, block_size):
    """percent"""
    return 100 * dict_of_blocks(tables, num_tokens, block_size)


@wrong("utilization", "zero_for_nothing")
def zero_where_nothing_is(tables, num_tokens, block_size):
    """0 where nothing is reserved"""
    return dict_of_blocks(tables, num_tokens, block_size) if any(tables) else 0.0


@wrong("utilization", "one_holder")
def last_holder_wins(tables, num_tokens, block_size):
    """the last holder's tokens count"""
    filled = {}
    for table, tokens in zip(tables, num_tokens, strict=True):
        for i, block in enumerate(table):
            filled[block] = max(0, min(block_size, tokens - i * block_size))
    return sum(filled.values()) / (len(filled) * block_size) if filled else 1.0


@wrong("utilization", "one_holder", "the first holder's tokens count")
def first_holder_wins(tables, num_tokens, block_size):
    seen, filled = set(), 0
    for table, tokens in zip(tables, num_tokens, strict=True):
        for i, block in enumerate(table):
            if block not in seen:
                seen.add(block)
                filled += max(0, min(block_size, tokens - i * block_size))
    return filled / (len(seen) * block_size) if seen else 1.0


@wrong("utilization", "wrong_answer")
def negative_slots(tables, num_tokens, block_size):
    """a block behind the tokens has fewer than 0 filled slots"""
    filled = {}
    for table, tokens in zip(tables, num_tokens, strict=True):
        for i, block in enumerate(table):
            filled[block] = max(filled.get(block, -block_size), min(block_size, tokens - i * block_size))
    return sum(filled.values()) / (len(filled) * block_size) if filled else 1.0


# 9.2 fair_benchmark


@right("fair_benchmark")
def two_lists(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """two lists"""
    for _ in range(warmup):
        run_a()
        run_b()
    a, b = [], []
    for _ in range(repeats):
        start = clock()
        run_a()
        middle = clock()
        run_b()
        a.append(middle - start)
        b.append(clock() - middle)
    return median(a) / median(b)


@right("fair_benchmark")
def there_and_back(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """a b, b a, a b: who begins changes; the warm-up one side after the other"""
    seconds = {run_a: [], run_b: []}
    for run in seconds:
        for _ in range(warmup):
            run()
    for number in range(repeats):
        for run in [run_a, run_b][:: 1 if number % 2 == 0 else -1]:
            start = clock()
            run()
            seconds[run].append(clock() - start)
    return np.median(seconds[run_a]) / np.median(seconds[run_b])


@right("fair_benchmark")
def times_all_and_slices(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """times the warm-up too, and slices it off; b first"""

    def timed(run):
        start = clock()
        run()
        return clock() - start

    b, a = zip(*[(timed(run_b), timed(run_a)) for _ in range(warmup + repeats)], strict=True)

    def middle(values):
        values = sorted(values[warmup:])
        half = len(values) // 2
        return (values[half] + values[~half]) / 2

    return middle(a) / middle(b)


wrong("fair_benchmark", "not_a_function", "a number in the place of a function", general=True)(2.0)


@wrong("fair_benchmark", "unwritten", general=True)
def stub_of_the_benchmark(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """the stub"""


@wrong("fair_benchmark", "returns_none", general=True)
def forgets_to_return(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """runs all and returns nothing"""
    two_lists(run_a, run_b, repeats, warmup, clock)


@wrong("fair_benchmark", "wrong_type", general=True)
def times_faster(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """text with an x"""
    return f"{two_lists(run_a, run_b, repeats, warmup, clock):.1f}x"


@wrong("fair_benchmark", "endless", general=True)
def until_it_is_quiet(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """waits for a clock that stands still"""
    ratio = two_lists(run_a, run_b, repeats, warmup, clock)
    end = clock() + 1
    while clock() < end:
        pass
    return ratio


@wrong("fair_benchmark", "never_ran")
def no_parentheses(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """run_a without parentheses"""
    start = clock()
    run_a  # noqa: B018
    middle = clock()
    run_b  # noqa: B018
    return (middle - start + 1) / (clock() - middle + 1)


@wrong("fair_benchmark", "not_the_same_number")
def warms_only_a(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """warms up with a alone"""
    for _ in range(warmup):
        run_a()
    return two_lists(run_a, run_b, repeats, 0, clock)


@wrong("fair_benchmark", "no_warm_up")
def cold(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """no warm-up"""
    return two_lists(run_a, run_b, repeats, 0, clock)


@wrong("fair_benchmark", "no_warm_up", "the warm-up is taken out of the repeats")
def warm_up_inside(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    return two_lists(run_a, run_b, max(1, repeats - warmup), min(warmup, repeats - 1), clock)


@wrong("fair_benchmark", "wrong_number_of_runs")
def one_warm_up(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """one run to warm up, whatever is asked"""
    return two_lists(run_a, run_b, repeats, 1, clock)


@wrong("fair_benchmark", "own_clock")
def real_clock(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """time.perf_counter in the place of the clock"""
    return two_lists(run_a, run_b, repeats, warmup, lambda: time.perf_counter() * 1e9)


@wrong("fair_benchmark", "one_after_the_other")
def all_of_a_first(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """all of a, then all of b"""

    def times(run):
        found = []
        for i in range(warmup + repeats):
            start = clock()
            run()
            if i >= warmup:
                found.append(clock() - start)
        return found

    return median(times(run_a)) / median(times(run_b))


@wrong("fair_benchmark", "one_after_the_other", "one look at the clock for all runs of a side")
def sum_of_runs(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    for _ in range(warmup):
        run_a(), run_b()
    looks = [clock()]
    for run in (run_a, run_b):
        for _ in range(repeats):
            run()
        looks.append(clock())
    return (looks[1] - looks[0]) / (looks[2] - looks[1])


def of_times(judge):
    """A benchmark that is fair, up to the judgement on the two lists of times."""

    def benchmark(run_a, run_b, repeats, warmup, clock=time.perf_counter):
        a, b = [], []
        for _ in range(warmup + repeats):
            for run, times in ((run_a, a), (run_b, b)):
                start = clock()
                run()
                times.append(clock() - start)
        return judge(a[warmup:], b[warmup:], a, b)

    return benchmark


wrong("fair_benchmark", "inverse", "b over a")(of_times(lambda a, b, *_: median(b) / median(a)))
wrong("fair_benchmark", "mean", "means")(of_times(lambda a, b, *_: mean(a) / mean(b)))
wrong("fair_benchmark", "mean", "the time of all over the time of all")(of_times(lambda a, b, *_: sum(a) / sum(b)))
wrong("fair_benchmark", "best_of_n", "the best of each")(of_times(lambda a, b, *_: min(a) / min(b)))
wrong("fair_benchmark", "median_of_ratios", "the median of the rounds' ratios")(
    of_times(lambda a, b, *_: median(x / y for x, y in zip(a, b, strict=True)))
)
wrong("fair_benchmark", "counts_the_warm_up", "the warm-up counts")(
    of_times(lambda a, b, all_a, all_b: median(all_a) / median(all_b))
)
wrong("fair_benchmark", "drops_the_last_runs", "drops as many runs, at the end")(
    of_times(lambda a, b, all_a, all_b: median(all_a[: len(a)]) / median(all_b[: len(b)]))
)
wrong("fair_benchmark", "not_sorted", "the run in the middle, not sorted")(
    of_times(lambda a, b, *_: a[len(a) // 2] / b[len(b) // 2])
)
wrong("fair_benchmark", "upper_median", "the upper one of the two in the middle")(
    of_times(lambda a, b, *_: sorted(a)[len(a) // 2] / sorted(b)[len(b) // 2])
)
wrong("fair_benchmark", "last_run", "the last run of each")(of_times(lambda a, b, *_: a[-1] / b[-1]))
wrong("fair_benchmark", "difference", "the difference")(of_times(lambda a, b, *_: median(a) - median(b)))
wrong("fair_benchmark", "wrong_ratio", "the best of a against the median of b")(
    of_times(lambda a, b, *_: min(a) / median(b))
)


# 9.3 tokens_per_second


@right("tokens_per_second")
def min_and_max(records):
    """min and max"""
    seconds = max(one.finish for one in records) - min(one.arrival for one in records)
    return sum(one.output_tokens for one in records) / seconds


@right("tokens_per_second")
def one_loop_over_records(records):
    """one loop"""
    first, last, tokens = float("inf"), float("-inf"), 0
    for record in records:
        first, last = min(first, record.arrival), max(last, record.finish)
        tokens += record.output_tokens
    return tokens / (last - first)


@right("tokens_per_second")
def with_arrays(records):
    """numpy"""
    table = np.array([(one.arrival, one.finish, one.output_tokens) for one in records])
    return table[:, 2].sum() / (table[:, 1].max() - table[:, 0].min())


@right("tokens_per_second")
def by_sorting(records):
    """sorted twice, a Fraction"""
    first = sorted(records, key=lambda one: one.arrival)[0]
    last = sorted(records, key=lambda one: one.finish)[-1]
    return Fraction(sum(one.output_tokens for one in records)) / Fraction(last.finish - first.arrival)


@wrong("tokens_per_second", "unwritten", general=True)
def stub_of_the_rate(records):
    """the stub"""


@wrong("tokens_per_second", "wrong_type", general=True)
def a_rate_for_each(records):
    """a list of rates"""
    return [one.output_tokens / (one.finish - one.arrival) for one in records]


@wrong("tokens_per_second", "mutates", general=True)
def sorts_in_place(records):
    """sorts the caller's list"""
    records.sort(key=lambda one: one.arrival)
    return min_and_max(records)


@wrong("tokens_per_second", "counts_prompt_tokens")
def all_tokens(records):
    """prompt and output tokens"""
    seconds = max(one.finish for one in records) - min(one.arrival for one in records)
    return sum(one.prompt_tokens + one.output_tokens for one in records) / seconds


@wrong("tokens_per_second", "sums_the_times")
def sum_over_sum(records):
    """the sum of the requests' times"""
    return sum(one.output_tokens for one in records) / sum(one.finish - one.arrival for one in records)


@wrong("tokens_per_second", "mean_of_rates")
def mean_of_the_rates(records):
    """the mean of the requests' rates"""
    return mean(one.output_tokens / (one.finish - one.arrival) for one in records)


@wrong("tokens_per_second", "sums_the_rates")
def sum_of_the_rates(records):
    """the sum of the requests' rates"""
    return sum(one.output_tokens / (one.finish - one.arrival) for one in records)


@wrong("tokens_per_second", "from_zero")
def until_the_end(records):
    """from the clock's 0"""
    return sum(one.output_tokens for one in records) / max(one.finish for one in records)


@wrong("tokens_per_second", "slowest_request")
def longest_request(records):
    """the time of the slowest request"""
    return sum(one.output_tokens for one in records) / max(one.finish - one.arrival for one in records)


@wrong("tokens_per_second", "order_of_the_list")
def first_and_last_of_the_list(records):
    """the first and the last of the list"""
    return sum(one.output_tokens for one in records) / (records[-1].finish - records[0].arrival)


@wrong("tokens_per_second", "order_of_the_list", "the first of the list came first")
def first_of_the_list(records):
    last = max(one.finish for one in records)
    return sum(one.output_tokens for one in records) / (last - records[0].arrival)


@wrong("tokens_per_second", "idle_time_left_out")
def merged_intervals(records):
    """only the time in which somebody was there"""
    busy, end = 0.0, None
    for one in sorted(records, key=lambda one: one.arrival):
        if end is None or one.arrival > end:
            busy, end = busy + one.finish - one.arrival, one.finish
        elif one.finish > end:
            busy, end = busy + one.finish - end, one.finish
    return sum(one.output_tokens for one in records) / busy


@wrong("tokens_per_second", "seconds_a_token")
def upside_down(records):
    """seconds a token"""
    return 1 / min_and_max(records)


@wrong("tokens_per_second", "requests_a_second")
def requests_per_second(records):
    """requests a second"""
    seconds = max(one.finish for one in records) - min(one.arrival for one in records)
    return len(records) / seconds


# 9.4 what_is_wrong


def flaws_of(report):
    """As the workbook solves it."""
    before, after = report.before, report.after
    flaws = set()
    for side in (before, after):
        if not side.warmup_runs:
            flaws.add("no_warm_up")
        if side.reported_seconds != median(side.seconds):
            flaws.add("not_the_median")
        if side.counted_tokens != sum(side.output_lens):
            flaws.add("counts_prompt_tokens")
    if (before.prompt_lens, before.output_lens) != (after.prompt_lens, after.output_lens):
        flaws.add("other_requests")
    if before.batch_size != after.batch_size:
        flaws.add("other_batch_size")
    if before.cached_tokens != after.cached_tokens:
        flaws.add("other_cache")
    if max(before.seconds) >= min(after.seconds) and max(after.seconds) >= min(before.seconds):
        flaws.add("within_the_spread")
    return flaws


right("what_is_wrong", "a set that grows")(flaws_of)


@right("what_is_wrong")
def a_dict_of_questions(report):
    """a dict of questions"""
    a, b = report.before, report.after
    low, high = sorted((a, b), key=lambda side: median(side.seconds))
    questions = {
        "no_warm_up": 0 in (a.warmup_runs, b.warmup_runs),
        "not_the_median": any(sorted(s.seconds)[len(s.seconds) // 2] != s.reported_seconds for s in (a, b)),
        "counts_prompt_tokens": any(s.counted_tokens > sum(s.output_lens) for s in (a, b)),
        "other_requests": list(zip(a.prompt_lens, a.output_lens, strict=False))
        != list(zip(b.prompt_lens, b.output_lens, strict=False)),
        "other_batch_size": len({a.batch_size, b.batch_size}) > 1,
        "other_cache": bool(a.cached_tokens - b.cached_tokens),
        "within_the_spread": any(fast >= slow for fast in low.seconds for slow in high.seconds),
    }
    return frozenset(name for name, yes in questions.items() if yes)


@right("what_is_wrong")
def a_list_of_names(report):
    """a list, with names twice"""
    a, b = report.before, report.after
    found = ["no_warm_up" for side in (a, b) if side.warmup_runs < 1]
    found += ["not_the_median" for side in (a, b) if not math.isclose(side.reported_seconds, np.median(side.seconds))]
    found += ["counts_prompt_tokens" for side in (a, b) if side.counted_tokens != sum(side.output_lens)]
    found += ["other_requests"] * (a.prompt_lens != b.prompt_lens) + ["other_requests"] * (
        a.output_lens != b.output_lens
    )
    found += ["other_batch_size"] * (a.batch_size != b.batch_size)
    found += ["other_cache"] * (a.cached_tokens != b.cached_tokens)
    apart = max(a.seconds) < min(b.seconds) or max(b.seconds) < min(a.seconds)
    return found + ["within_the_spread"] * (not apart)


wrong("what_is_wrong", "not_a_function", "a set in the place of a function", general=True)({"no_warm_up"})


@wrong("what_is_wrong", "unwritten", general=True)
def stub_of_the_reading(report):
    """the stub"""


@wrong("what_is_wrong", "prints", general=True)
def prints_the_flaws(report):
    """prints them"""
    print(flaws_of(report) or "nothing")


@wrong("what_is_wrong", "not_a_set")
def a_sentence(report):
    """a sentence"""
    return "This report has flaws: " + ", ".join(flaws_of(report))


@wrong("what_is_wrong", "not_a_set", "how many there are")
def number_of_flaws(report):
    return len(flaws_of(report))


@wrong("what_is_wrong", "unknown_flaw")
def other_names(report):
    """names with spaces"""
    return {name.replace("_", " ") for name in flaws_of(report)}


@wrong("what_is_wrong", "finds_nothing")
def all_is_well(report):
    """an empty set"""
    return set()


@wrong("what_is_wrong", "only_the_first")
def elif_chain(report):
    """returns at the first"""
    found = flaws_of(report)
    for name in ("no_warm_up", "other_batch_size", "other_cache", "other_requests", "counts_prompt_tokens"):
        if name in found:
            return {name}
    return set(sorted(found)[:1])


def without(*names):
    return lambda report: flaws_of(report) - set(names)


wrong("what_is_wrong", "misses_a_flaw", "no thought of the spread")(without("within_the_spread"))
wrong("what_is_wrong", "misses_a_flaw", "no thought of the cache")(without("other_cache"))
wrong("what_is_wrong", "misses_a_flaw", "no thought of the batch size")(without("other_batch_size"))


@wrong("what_is_wrong", "misses_a_flaw")
def catches_the_best_only(report):
    """not the median only where it is the best run"""
    found = flaws_of(report) - {"not_the_median"}
    best = any(side.reported_seconds == min(side.seconds) for side in (report.before, report.after))
    return found | {"not_the_median"} if best else found


@wrong("what_is_wrong", "misses_a_flaw", "lengths of outputs only")
def outputs_only(report):
    found = flaws_of(report) - {"other_requests"}
    return found | {"other_requests"} if report.before.output_lens != report.after.output_lens else found


@wrong("what_is_wrong", "one_side_only")
def new_side_only(report):
    """looks at the warm-up of one side"""
    found = flaws_of(report) - {"no_warm_up"}
    return found | {"no_warm_up"} if report.after.warmup_runs == 0 else found


@wrong("what_is_wrong", "one_side_only", "the median of the first side only")
def first_side_only(report):
    found = flaws_of(report) - {"not_the_median"}
    side = report.before
    return found | {"not_the_median"} if side.reported_seconds != median(side.seconds) else found


@wrong("what_is_wrong", "compares_sums")
def sums_of_lengths(report):
    """sums of lengths"""
    a, b = report.before, report.after
    other = sum(a.prompt_lens) != sum(b.prompt_lens) or sum(a.output_lens) != sum(b.output_lens)
    return flaws_of(report) - {"other_requests"} | ({"other_requests"} if other else set())


@wrong("what_is_wrong", "invents_a_flaw")
def mean_for_median(report):
    """the mean in the place of the median"""
    odd = any(not math.isclose(side.reported_seconds, mean(side.seconds)) for side in (report.before, report.after))
    return flaws_of(report) - {"not_the_median"} | ({"not_the_median"} if odd else set())


@wrong("what_is_wrong", "invents_a_flaw", "any cached token is a flaw")
def no_cache_at_all(report):
    warm = report.before.cached_tokens or report.after.cached_tokens
    return flaws_of(report) | ({"other_cache"} if warm else set())


@wrong("what_is_wrong", "invents_a_flaw", "as many warm-up runs on both sides")
def same_warm_up(report):
    other = report.before.warmup_runs != report.after.warmup_runs
    return flaws_of(report) | ({"no_warm_up"} if other else set())


@wrong("what_is_wrong", "invents_a_flaw", "the ranges overlap unless the second is the faster one")
def before_is_slower(report):
    found = flaws_of(report) - {"within_the_spread"}
    overlap = min(report.before.seconds) <= max(report.after.seconds)
    return found | {"within_the_spread"} if overlap else found


# 9.5 ratio_interval


@right("ratio_interval")
def choices_and_sorting(seconds_a, seconds_b, draws, rng):
    """choices, sorted, and two places"""
    ratios = sorted(
        median(rng.choices(seconds_a, k=len(seconds_a))) / median(rng.choices(seconds_b, k=len(seconds_b)))
        for _ in range(draws)
    )
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


@right("ratio_interval")
def numpy_percentiles(seconds_a, seconds_b, draws, rng):
    """numpy, seeded by rng, and percentiles in an array"""
    numpy_rng = np.random.default_rng(rng.getrandbits(32))
    a = np.median(numpy_rng.choice(seconds_a, (draws, len(seconds_a))), axis=1)
    b = np.median(numpy_rng.choice(seconds_b, (draws, len(seconds_b))), axis=1)
    return np.percentile(a / b, [2.5, 97.5])


@right("ratio_interval")
def by_quantiles(seconds_a, seconds_b, draws, rng):
    """randrange, and statistics.quantiles"""

    def again(values):
        return [values[rng.randrange(len(values))] for _ in values]

    ratios = [median(again(seconds_a)) / median(again(seconds_b)) for _ in range(draws)]
    ends = quantiles(ratios, n=40)
    return [ends[0], ends[-1]]


wrong("ratio_interval", "not_a_function", "a pair in the place of a function", general=True)((1.0, 2.0))


@wrong("ratio_interval", "unwritten", general=True)
def stub_of_the_interval(seconds_a, seconds_b, draws, rng):
    """the stub"""


@wrong("ratio_interval", "prints", general=True)
def prints_the_interval(seconds_a, seconds_b, draws, rng):
    """prints it"""
    print(choices_and_sorting(seconds_a, seconds_b, draws, rng))


@wrong("ratio_interval", "mutates", general=True)
def shuffles_in_place(seconds_a, seconds_b, draws, rng):
    """sorts the caller's times"""
    seconds_a.sort()
    return choices_and_sorting(seconds_a, seconds_b, draws, rng)


@wrong("ratio_interval", "not_a_pair", general=True)
def width_of_it(seconds_a, seconds_b, draws, rng):
    """how wide it is"""
    low, high = choices_and_sorting(seconds_a, seconds_b, draws, rng)
    return high - low


@wrong("ratio_interval", "swapped")
def high_first(seconds_a, seconds_b, draws, rng):
    """the high end first"""
    return choices_and_sorting(seconds_a, seconds_b, draws, rng)[::-1]


@wrong("ratio_interval", "without_replacement")
def sample_of_all(seconds_a, seconds_b, draws, rng):
    """rng.sample draws without replacement"""
    ratios = sorted(
        median(rng.sample(seconds_a, len(seconds_a))) / median(rng.sample(seconds_b, len(seconds_b)))
        for _ in range(draws)
    )
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


def interval(ratio, outside=0.025):
    """An interval of `ratio(a, b, rng)`."""

    def function(seconds_a, seconds_b, draws, rng):
        ratios = sorted(ratio(seconds_a, seconds_b, rng) for _ in range(draws))
        cut = int(outside * draws)
        return ratios[cut], ratios[-1 - cut]

    return function


def anew(values, rng, size=None):
    return rng.choices(values, k=size or len(values))


wrong("ratio_interval", "inverse", "b over a")(interval(lambda a, b, rng: median(anew(b, rng)) / median(anew(a, rng))))
wrong("ratio_interval", "single_runs", "one run of each a draw")(
    interval(lambda a, b, rng: rng.choice(a) / rng.choice(b))
)
wrong("ratio_interval", "draws_a_only", "draws from a only")(
    interval(lambda a, b, rng: median(anew(a, rng)) / median(b))
)
wrong("ratio_interval", "draws_b_only", "draws from b only")(
    interval(lambda a, b, rng: median(a) / median(anew(b, rng)))
)
wrong("ratio_interval", "ninety_percent", "5 % outside at each end")(
    interval(lambda a, b, rng: median(anew(a, rng)) / median(anew(b, rng)), outside=0.05)
)
wrong("ratio_interval", "range", "from the smallest to the largest ratio")(
    interval(lambda a, b, rng: median(anew(a, rng)) / median(anew(b, rng)), outside=0)
)
wrong("ratio_interval", "means", "means in the place of medians")(
    interval(lambda a, b, rng: mean(anew(a, rng)) / mean(anew(b, rng)))
)
wrong("ratio_interval", "not_around_the_ratio", "all runs in one pot")(
    interval(lambda a, b, rng: median(anew(a + b, rng, len(a))) / median(anew(a + b, rng, len(b))))
)
wrong("ratio_interval", "too_narrow", "draws ten times as many runs as there are")(
    interval(lambda a, b, rng: median(anew(a, rng, 10 * len(a))) / median(anew(b, rng, 10 * len(b))))
)
wrong("ratio_interval", "too_narrow", "half of the ratios inside")(
    interval(lambda a, b, rng: median(anew(a, rng)) / median(anew(b, rng)), outside=0.25)
)
wrong("ratio_interval", "too_wide", "draws three runs of each")(
    interval(lambda a, b, rng: median(anew(a, rng, 3)) / median(anew(b, rng, 3)))
)
