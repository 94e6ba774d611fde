"""The check of exercise 9.2: a benchmark that gives both sides the same conditions.

The two functions that are timed only move the hands of a clock, and write down that they ran. So the machine can be
slow at first, get slower and slower, or be disturbed once, at will, and what comes out is known exactly.

Knows which side ran when, and for how long. Does not know how it was timed.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose
from statistics import mean, median
from typing import Any

from pagedkv_lab.course.checks.floats import number
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report


class Machine:
    """Two things to run, "a" and "b", and a clock that only they move.

    seconds: how long a run takes, from the side, which run of this side it is, and how many ran before it (from 0).
    """

    def __init__(self, seconds: Callable[[str, int, int], float]):
        self.seconds = seconds
        self.now, self.looked = 1000.0, 0
        self.order: list[str] = []
        self.took: dict[str, list[float]] = {"a": [], "b": []}

    def clock(self) -> float:
        self.looked += 1
        return self.now

    def run_a(self) -> str:
        return self._run("a")

    def run_b(self) -> str:
        return self._run("b")

    def _run(self, side: str) -> str:
        seconds = self.seconds(side, len(self.took[side]), len(self.order))
        self.now += seconds
        self.order.append(side)
        self.took[side].append(seconds)
        return f"what {side} returns"


@dataclass(frozen=True)
class Day:
    """One call of the benchmark, and the machine's mood meanwhile."""

    label: str
    repeats: int
    warmup: int
    seconds: Callable[[str, int, int], float]

    @property
    def call(self) -> str:
        return f"fair_benchmark(run_a, run_b, repeats={self.repeats}, warmup={self.warmup}, clock=clock)"


def _steady(a: float, b: float) -> Callable[[str, int, int], float]:
    return lambda side, nth, before: {"a": a, "b": b}[side]


def _listed(a: Sequence[float], b: Sequence[float]) -> Callable[[str, int, int], float]:
    """The n-th run of a side takes what the list says; whoever runs more often begins again."""
    lists = {"a": a, "b": b}
    return lambda side, nth, before: lists[side][nth % len(lists[side])]


def _slower_and_slower(a: float, b: float) -> Callable[[str, int, int], float]:
    return lambda side, nth, before: {"a": a, "b": b}[side] * (1 + before / 4)


def days() -> list[Day]:
    draw = random.Random(0)
    drawn = [[draw.uniform(1, 3) for _ in range(9)] for _ in range(4)]
    return [
        Day("one run each", 1, 0, _steady(2.0, 1.0)),
        Day("three runs each, all alike", 3, 0, _steady(3.0, 2.0)),
        Day("the first run of each is slow", 1, 1, _listed([9.0, 3.0], [20.0, 2.0])),
        Day("the first two runs of each are slow", 3, 2, _listed([9, 8, 3, 3, 3], [9, 2.5, 2, 2, 2])),
        Day("one run of each is disturbed", 5, 0, _listed([2, 2.5, 30, 2.25, 2], [1, 1, 1.25, 1.5, 8])),
        Day("an even number of runs", 4, 0, _listed([4, 3, 2, 5], [2, 1, 1.5, 1])),
        Day("the machine gets slower and slower", 5, 1, _slower_and_slower(2.0, 1.0)),
        Day("a machine of moods", 5, 1, _listed(drawn[0], drawn[1])),
        Day("a machine of moods", 7, 2, _listed(drawn[2], drawn[3])),
    ]


#: Code, message, hint, and the answer that the mistake gives for the timed runs of a and b, and for all runs.
Times = list[float]
MISTAKES: tuple[tuple[str, str, int, Callable[[Times, Times, Times, Times], float]], ...] = (
    (
        "inverse",
        "It divides b by a. The time of a over the time of b: 2.0 says that b takes half as long.",
        1,
        lambda a, b, all_a, all_b: median(b) / median(a),
    ),
    (
        "mean",
        "It compares means. One disturbed run moves the mean as far as it likes; the median doesn't notice.",
        2,
        lambda a, b, all_a, all_b: mean(a) / mean(b),
    ),
    (
        "best_of_n",
        "It compares the best runs. The best run is the luckiest one, and luck is not a property of the code.",
        2,
        lambda a, b, all_a, all_b: min(a) / min(b),
    ),
    (
        "median_of_ratios",
        "It takes the median of the ratios, round by round. Take the median of each side's times first: a disturbed "
        "run then stays on its own side.",
        2,
        lambda a, b, all_a, all_b: median(x / y for x, y in zip(a, b, strict=True)),
    ),
    (
        "counts_the_warm_up",
        "Its medians include the warm-up runs. Those pay for what happens only once: run them, and forget their times.",
        2,
        lambda a, b, all_a, all_b: median(all_a) / median(all_b),
    ),
    (
        "drops_the_last_runs",
        "It drops runs at the end of its list. Those that warm up are the first.",
        2,
        lambda a, b, all_a, all_b: median(all_a[: len(a)]) / median(all_b[: len(b)]),
    ),
    (
        "not_sorted",
        "It takes the run in the middle of the list. The median is the middle of the sorted list.",
        2,
        lambda a, b, all_a, all_b: a[len(a) // 2] / b[len(b) // 2],
    ),
    (
        "upper_median",
        "With an even number of runs, the median is the mean of the two in the middle. `statistics.median` knows.",
        2,
        lambda a, b, all_a, all_b: sorted(a)[len(a) // 2] / sorted(b)[len(b) // 2],
    ),
    (
        "last_run",
        "It compares one run of each. Collect the times of all of them.",
        1,
        lambda a, b, all_a, all_b: a[-1] / b[-1],
    ),
    (
        "difference",
        "It subtracts. A ratio is wanted: it says the same on a faster machine.",
        1,
        lambda a, b, all_a, all_b: median(a) - median(b),
    ),
)


def fair_benchmark(function: Any) -> Report:
    """Check an implementation of `fair_benchmark(run_a, run_b, repeats, warmup, clock)`."""
    probe = Probe("fair_benchmark")
    try:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        seen = [(day, *_benchmark(probe, function, day)) for day in days()]
        for day, machine, answer in seen:
            if not isclose(answer, _right(day, machine), rel_tol=1e-6):
                _explain(probe, day, machine, answer, seen)
    except Wrong as wrong:
        return Report("fair_benchmark", probe.cases, diagnosis=wrong.diagnosis)
    tried = ("slow first runs", "disturbed runs", "a machine that gets slower", "odd and even numbers of runs")
    return Report("fair_benchmark", probe.cases, tried)


def _benchmark(probe: Probe, function: Any, day: Day) -> tuple[Machine, float]:
    """The answer for this day. Raises Wrong where there is none, or where it was not got in a fair way."""
    machine = Machine(day.seconds)
    expected = f"{day.warmup + day.repeats} runs each, and a ratio"
    outcome = probe.call(
        function, machine.run_a, machine.run_b, day.repeats, day.warmup, machine.clock, text=day.call, expected=expected
    )
    value = outcome.value
    if value is None or value is ...:
        if not machine.order and not outcome.printed.strip():
            probe.fail(UNWRITTEN, say_unwritten("`fair_benchmark` ran nothing and returned None"), hint=1)
        probe.fail(*say_none(outcome.printed), call=day.call, expected=expected, got="None", hint=1)
    _judge_runs(probe, day, machine)
    return machine, number(probe, value, day.call, expected)


def _judge_runs(probe: Probe, day: Day, machine: Machine) -> None:
    """Who ran, how often, in which order, and by whose clock."""
    ran_a, ran_b = len(machine.took["a"]), len(machine.took["b"])
    wanted = day.warmup + day.repeats
    order = " ".join(machine.order[:24]) + (" ..." if len(machine.order) > 24 else "")
    rest = {"call": day.call, "expected": f"{wanted} runs of a and {wanted} of b", "got": order or "no run"}
    if not ran_a or not ran_b:
        probe.fail("never_ran", "It never ran one of the two. `run_a()` runs a: with parentheses.", hint=1, **rest)
    if ran_a != ran_b:
        message = f"It ran a {ran_a} times and b {ran_b} times. Whatever one side gets, the other gets, too."
        probe.fail("not_the_same_number", message, hint=1, **rest)
    if ran_a == day.repeats and day.warmup:
        message = "It doesn't warm up: each side runs `warmup` times more, and those times don't count."
        probe.fail("no_warm_up", message, hint=2, **rest)
    if ran_a != wanted:
        message = (
            f"It ran each side {ran_a} times. {day.warmup} runs to warm up and {day.repeats} that count are {wanted}."
        )
        probe.fail("wrong_number_of_runs", message, hint=1, **rest)
    if not machine.looked:
        message = "It never looked at `clock`. Call it before and after a run: the difference is the run's time."
        probe.fail("own_clock", message, hint=1, **rest)
    timed, seen = [], {"a": 0, "b": 0}
    for side in machine.order:
        seen[side] += 1
        if seen[side] > day.warmup:
            timed.append(side)
    ahead = 0
    for side in timed:
        ahead += 1 if side == "a" else -1
        if abs(ahead) > 1:
            message = (
                "One side runs several times in a row. When the machine gets slower (heat, a neighbour), that hits "
                "whoever comes later. Let them take turns: one run of a, one of b, and again."
            )
            probe.fail("one_after_the_other", message, hint=3, **rest)


def _timed(day: Day, machine: Machine) -> tuple[Times, Times]:
    return machine.took["a"][day.warmup :], machine.took["b"][day.warmup :]


def _right(day: Day, machine: Machine) -> float:
    a, b = _timed(day, machine)
    return median(a) / median(b)


def _explain(probe: Probe, day: Day, machine: Machine, answer: float, seen: list) -> None:
    a, b = (", ".join(f"{seconds:.4g}" for seconds in machine.took[side]) for side in "ab")
    rest = {
        "call": f"{day.call}   # {day.label}\nseconds of a: {a}\nseconds of b: {b}",
        "expected": f"{_right(day, machine):.6g}",
        "got": f"{answer:.6g}",
    }
    for code, message, hint, wrong in MISTAKES:
        if all(
            isclose(said, wrong(*_timed(each, its), its.took["a"], its.took["b"]), rel_tol=1e-6)
            for each, its, said in seen
        ):
            probe.fail(code, message, hint=hint, **rest)
    message = "That is not the median time of a over the median time of b."
    probe.fail("wrong_ratio", message, hint=2, **rest)
