"""The check of exercise 9.5: a bootstrap interval for the ratio of two medians.

How often a resample's median is which of the values can be computed exactly (Efron 1979, "Bootstrap Methods: Another
Look at the Jackknife", Annals of Statistics 7, section 3): the k-th of n sorted values or a smaller one is the median
where more than half of n draws are at most the k-th. So the ends of the interval are known without a single draw, and
an answer may be off by no more than its number of draws explains.

Knows distributions. Does not know how a function draws.
"""

import random
from collections.abc import Callable, Sequence
from itertools import accumulate, product
from math import comb, isclose
from statistics import mean, median
from typing import Any

from pagedkv_lab.course.checks.floats import number
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report

#: Draws that are asked for, and how far an end's share of the ratios may be from 2.5 %: four standard errors and more.
DRAWS, TOLERANCE = 2000, 0.016

Weighted = list[tuple[float, float]]  # values, sorted, with the probability of each


def medians(values: Sequence[float]) -> Weighted:
    """What the median of a resample of these values can be: of an odd number of them."""
    n = len(values)

    def at_most(k: int) -> float:
        """How likely more than half of n draws are among the k smallest."""
        return sum(comb(n, j) * (k / n) ** j * (1 - k / n) ** (n - j) for j in range(n // 2 + 1, n + 1))

    return [(value, at_most(k) - at_most(k - 1)) for k, value in enumerate(sorted(values), 1)]


def singles(values: Sequence[float]) -> Weighted:
    return [(value, 1 / len(values)) for value in sorted(values)]


def ratios(a: Weighted, b: Weighted) -> Weighted:
    return sorted((x / y, p * q) for (x, p), (y, q) in product(a, b))


def quantile(weighted: Weighted, share: float) -> float:
    sums = accumulate(weight for _, weight in weighted)
    return next((value for (value, _), total in zip(weighted, sums, strict=True) if total >= share), weighted[-1][0])


def _agrees(interval: tuple[float, float], weighted: Weighted, outside: float = 0.025) -> bool:
    """Whether these ends leave `outside` of the ratios on each side, as exactly as DRAWS draws can tell."""
    tolerance = TOLERANCE * (outside / 0.025) ** 0.5
    return all(
        quantile(weighted, max(share - tolerance, 1e-6)) * (1 - 1e-9)
        <= end
        <= quantile(weighted, min(share + tolerance, 1 - 1e-9)) * (1 + 1e-9)
        for end, share in zip(interval, (outside, 1 - outside), strict=True)
    )


def samples() -> list[tuple[str, list[float], list[float]]]:
    draw = random.Random(0)

    def some(n: int, around: float, spread: float) -> list[float]:
        return [round(draw.lognormvariate(0, spread) * around, 4) for _ in range(n)]

    return [
        ("nine runs each", some(9, 2.0, 0.1), some(9, 1.0, 0.1)),
        ("a is quiet, b is not", some(11, 3.0, 0.02), some(11, 2.0, 0.3)),
        ("b is quiet, a is not", some(11, 3.0, 0.3), some(11, 2.0, 0.02)),
        ("one disturbed run", [*some(10, 1.5, 0.05), 40.0], some(11, 1.0, 0.05)),
        ("more runs of a than of b", some(25, 2.0, 0.2), some(7, 1.6, 0.2)),
    ]


#: Code, message, hint; and whether it explains an interval, from the two samples.
Interval = tuple[float, float]
MISTAKES: tuple[tuple[str, str, int, Callable[[Interval, list[float], list[float]], bool]], ...] = (
    (
        "inverse",
        "It is the interval of b over a. The ratio is the time of a over the time of b, as in 9.2.",
        1,
        lambda ends, a, b: _agrees(ends, ratios(medians(b), medians(a))),
    ),
    (
        "means",
        "It compares means. The ratio is that of the medians, as in 9.2: a disturbed run moves the mean.",
        1,
        lambda ends, a, b: _agrees(ends, _by_means(a, b)),
    ),
    (
        "single_runs",
        "It compares single runs, drawn by chance. Draw as many as there are, on each side, and take their median.",
        1,
        lambda ends, a, b: _agrees(ends, ratios(singles(a), singles(b))),
    ),
    (
        "draws_a_only",
        "It draws anew from a only. The runs of b are a sample, too.",
        2,
        lambda ends, a, b: _agrees(ends, ratios(medians(a), [(median(b), 1.0)])),
    ),
    (
        "draws_b_only",
        "It draws anew from b only. The runs of a are a sample, too.",
        2,
        lambda ends, a, b: _agrees(ends, ratios([(median(a), 1.0)], medians(b))),
    ),
    (
        "ninety_percent",
        "It leaves 5 % outside at each end, so 90 % are inside. 95 % inside leave 2.5 % at each end.",
        3,
        lambda ends, a, b: _agrees(ends, ratios(medians(a), medians(b)), 0.05),
    ),
    (
        "range",
        "It goes from the smallest to the largest ratio of all. The more draws, the wider that gets: cut off 2.5 % at "
        "each end.",
        3,
        lambda ends, a, b: _agrees_with_the_range(ends, ratios(medians(a), medians(b))),
    ),
)


def _agrees_with_the_range(ends: Interval, weighted: Weighted) -> bool:
    """Whether the ends can be the smallest and the largest of DRAWS draws: hardly anything lies beyond."""
    (low, high), often, never = ends, 6 / DRAWS, 0.01 / DRAWS
    return quantile(weighted, never) <= low <= quantile(weighted, often) and quantile(
        weighted, 1 - often
    ) <= high <= quantile(weighted, 1 - never)


def _by_means(a: list[float], b: list[float]) -> Weighted:
    """Ratios of means, drawn: what their distribution is has no simple formula."""
    draw, count = random.Random(2), 4000

    def one() -> float:
        return mean(draw.choices(a, k=len(a))) / mean(draw.choices(b, k=len(b)))

    return [(ratio, 1 / count) for ratio in sorted(one() for _ in range(count))]


def ratio_interval(function: Any) -> Report:
    """Check an implementation of `ratio_interval(seconds_a, seconds_b, draws, rng)`."""
    probe = Probe("ratio_interval")
    try:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        said = [(label, a, b, _interval(probe, function, a, b)) for label, a, b in samples()]
        for label, a, b, ends in said:
            if not _agrees(ends, ratios(medians(a), medians(b))):
                _explain(probe, label, a, b, ends, said)
    except Wrong as wrong:
        return Report("ratio_interval", probe.cases, diagnosis=wrong.diagnosis)
    return Report("ratio_interval", probe.cases, ("quiet and noisy sides", "a disturbed run", "other numbers of runs"))


def _call(a: Sequence[float], b: Sequence[float]) -> str:
    return f"ratio_interval({short(list(a), 90)}, {short(list(b), 90)}, {DRAWS}, random.Random(1))"


def _interval(probe: Probe, function: Any, a: list[float], b: list[float]) -> Interval:
    given_a, given_b, text = list(a), list(b), _call(a, b)
    expected = _say(_exact(a, b), "about ")
    outcome = probe.call(function, given_a, given_b, DRAWS, random.Random(1), text=text, expected=expected)
    value = outcome.value
    if value is None or value is ...:
        if outcome.printed.strip():
            probe.fail(*say_none(outcome.printed), call=text, expected=expected, got="None", hint=1)
        probe.fail(UNWRITTEN, say_unwritten("`ratio_interval` returned None"), hint=1)
    rest = {"call": text, "expected": expected, "got": short(value)}
    if given_a != a or given_b != b:
        probe.fail("mutates", "It changed the caller's list of times. Work on a copy.", hint=1, **rest)
    try:
        low, high = value
    except (TypeError, ValueError):
        probe.fail("not_a_pair", f"It returned {short(value)}. Return a pair: `return low, high`.", hint=1, **rest)
    ends = number(probe, low, text, expected), number(probe, high, text, expected)
    if ends[0] > ends[1]:
        probe.fail("swapped", "The first end is above the second one. Return the low end first.", hint=3, **rest)
    if isclose(*ends, rel_tol=1e-9):
        message = (
            "Both ends are the same: every draw gave the same ratio. Draw with replacement, so that a run may come "
            "twice and another one not at all (`rng.choices`)."
        )
        probe.fail("without_replacement", message, hint=2, **rest)
    return ends


def _exact(a: Sequence[float], b: Sequence[float]) -> Interval:
    weighted = ratios(medians(a), medians(b))
    return quantile(weighted, 0.025), quantile(weighted, 0.975)


def _say(ends: Interval, about: str = "") -> str:
    return f"{about}({ends[0]:.4g}, {ends[1]:.4g})"


def _explain(probe: Probe, label: str, a: list[float], b: list[float], ends: Interval, said: list) -> None:
    """Raises Wrong: the first mistake that explains all intervals, or which way this one is off."""
    right = _exact(a, b)
    rest = {"call": f"{_call(a, b)}   # {label}", "expected": _say(right, "about "), "got": _say(ends)}
    for code, message, hint, explains in MISTAKES:
        if all(explains(each, its_a, its_b) for _, its_a, its_b, each in said):
            probe.fail(code, message, hint=hint, **rest)
    width, right_width = ends[1] - ends[0], right[1] - right[0]
    middle = median(a) / median(b)
    if not ends[0] <= middle <= ends[1]:
        message = f"The ratio of the medians, {middle:.4g}, is not in it. Take the median on each side, then the ratio."
        probe.fail("not_around_the_ratio", message, hint=1, **rest)
    if width < right_width:
        message = (
            "It is too narrow: it claims to be surer than it is. Each draw has as many runs as there are, on each side "
            "by itself; and 2.5 % of the ratios lie outside at each end."
        )
        probe.fail("too_narrow", message, hint=2, **rest)
    message = (
        "It is too wide. Each draw has as many runs as there are, and the ratio is that of the medians; 2.5 % of the "
        "ratios lie outside at each end."
    )
    probe.fail("too_wide", message, hint=2, **rest)
