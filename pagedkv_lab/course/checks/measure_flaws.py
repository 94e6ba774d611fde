"""The check of exercise 9.4: which flaws a benchmark report has.

Reports are drawn: a fair one with numbers by chance, and then spoilt in ways of which each is one known flaw. First one
at a time, then several at once.

Knows reports and how they are spoilt. Does not know how a function reads them.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report
from pagedkv_lab.measure.records import FLAWS, BenchmarkReport, Side

#: How many reports with several flaws are drawn.
MIXED = 60


def reference_flaws(report: BenchmarkReport) -> set[str]:
    """The right answer, flaw by flaw."""
    before, after = report.before, report.after
    sides = (before, after)
    found = {
        "no_warm_up": any(side.warmup_runs == 0 for side in sides),
        "not_the_median": any(side.reported_seconds != median(side.seconds) for side in sides),
        "counts_prompt_tokens": any(side.counted_tokens != sum(side.output_lens) for side in sides),
        "other_requests": (before.prompt_lens, before.output_lens) != (after.prompt_lens, after.output_lens),
        "other_batch_size": before.batch_size != after.batch_size,
        "other_cache": before.cached_tokens != after.cached_tokens,
        "within_the_spread": max(before.seconds) >= min(after.seconds) and max(after.seconds) >= min(before.seconds),
    }
    return {name for name, there in found.items() if there}


# Reports


def fair_report(draw: random.Random) -> BenchmarkReport:
    """Nothing is wrong with it. Which side is faster, and what both have in common, is drawn."""
    requests = draw.randint(2, 5)
    prompts = tuple(draw.randint(50, 900) for _ in range(requests))
    outputs = tuple(draw.randint(8, 90) for _ in range(requests))
    batch_size, cached = draw.choice([1, 2, 4, 8]), draw.choice([0, 0, 16, 48])
    repeats, slow = draw.choice([3, 5, 7]), draw.uniform(2, 9)

    def side(scale: float) -> Side:
        seconds = tuple(round(slow * scale * (1 + place / 50), 3) for place in draw.sample(range(10), repeats))
        warmup = draw.randint(1, 3)
        return Side(prompts, outputs, batch_size, cached, warmup, seconds, median(seconds), sum(outputs))

    sides = [side(1.0), side(draw.uniform(0.3, 0.7))]
    if draw.random() < 0.3:
        sides.reverse()
    return BenchmarkReport(*sides)


@dataclass(frozen=True)
class Spoil:
    """One way to spoil a side of a report: the flaw, which fields show it, and the change."""

    flaw: str
    fields: tuple[str, ...]
    change: Callable[[random.Random, Side, Side], Side]  # the side, and the other one


def _no_warm_up(draw: random.Random, side: Side, other: Side) -> Side:
    return replace(side, warmup_runs=0)


def _reports(choose: Callable[[Iterable[float]], float]) -> Callable[[random.Random, Side, Side], Side]:
    return lambda draw, side, other: replace(side, reported_seconds=choose(side.seconds))


def _counts_prompts(draw: random.Random, side: Side, other: Side) -> Side:
    return replace(side, counted_tokens=sum(side.prompt_lens) + sum(side.output_lens))


def _other_prompts(draw: random.Random, side: Side, other: Side) -> Side:
    first, *rest = side.prompt_lens
    return replace(side, prompt_lens=(first + draw.randint(1, 300), *rest))


def _other_outputs(draw: random.Random, side: Side, other: Side) -> Side:
    *rest, last = side.output_lens
    outputs = (*rest, last + draw.randint(1, 60))
    counted = side.counted_tokens + sum(outputs) - sum(side.output_lens)
    return replace(side, output_lens=outputs, counted_tokens=counted)


def _same_sum(draw: random.Random, side: Side, other: Side) -> Side:
    first, second, *rest = side.output_lens
    moved = draw.randint(1, 7)
    return replace(side, output_lens=(first - moved, second + moved, *rest))


def _other_batch_size(draw: random.Random, side: Side, other: Side) -> Side:
    return replace(side, batch_size=2 * other.batch_size)


def _other_cache(draw: random.Random, side: Side, other: Side) -> Side:
    return replace(side, cached_tokens=other.cached_tokens + 16 * draw.randint(1, 3))


def _overlaps(draw: random.Random, side: Side, other: Side) -> Side:
    """One run as the other side has one, and the median stays what it is reported to be."""
    fast = max(side.seconds) < min(other.seconds)
    at = side.seconds.index(max(side.seconds) if fast else min(side.seconds))
    seconds = list(side.seconds)
    seconds[at] = round(min(other.seconds) + 0.001 if fast else max(other.seconds) - 0.001, 3)
    return replace(side, seconds=tuple(seconds))


SPOILS = (
    Spoil("no_warm_up", ("warmup_runs",), _no_warm_up),
    Spoil("not_the_median", ("seconds", "reported_seconds"), _reports(min)),
    Spoil("not_the_median", ("seconds", "reported_seconds"), _reports(max)),
    Spoil("counts_prompt_tokens", ("prompt_lens", "output_lens", "counted_tokens"), _counts_prompts),
    Spoil("other_requests", ("output_lens",), _other_outputs),
    Spoil("other_requests", ("prompt_lens",), _other_prompts),
    Spoil("other_requests", ("output_lens",), _same_sum),
    Spoil("other_batch_size", ("batch_size",), _other_batch_size),
    Spoil("other_cache", ("cached_tokens",), _other_cache),
    Spoil("within_the_spread", ("seconds",), _overlaps),
)


def spoil(draw: random.Random, report: BenchmarkReport, way: Spoil, which: str) -> BenchmarkReport:
    """Spoil the side "before" or "after"."""
    other = "after" if which == "before" else "before"
    return replace(report, **{which: way.change(draw, getattr(report, which), getattr(report, other))})


@dataclass(frozen=True)
class Trial:
    """A report, and the fields that its flaws are in. which: the side that was spoilt, if it was one."""

    report: BenchmarkReport
    fields: tuple[str, ...] = ()
    which: str = ""

    @property
    def call(self) -> str:
        """The call, and the fields that show the flaws; all of them in a fair report."""
        lines = ["what_is_wrong(report)   # where"]
        for which in ("before", "after"):
            side = vars(getattr(self.report, which))
            values = ", ".join(f"{name}={side[name]!r}" for name in dict.fromkeys(self.fields or side))
            lines.append(f"report.{which}: {values}")
        return "\n".join(lines)

    @property
    def flaws(self) -> set[str]:
        return reference_flaws(self.report)


def trials() -> list[Trial]:
    draw = random.Random(0)
    found = [Trial(fair_report(draw)) for _ in range(4)]
    for way in SPOILS:
        for which in ("before", "after"):
            found.append(Trial(spoil(draw, fair_report(draw), way, which), way.fields, which))
    for _ in range(MIXED):
        report, fields = fair_report(draw), []
        for way in draw.sample(SPOILS, draw.randint(2, 4)):
            report = spoil(draw, report, way, draw.choice(["before", "after"]))
            fields += way.fields
        found.append(Trial(report, tuple(fields)))
    return found


# The check


def what_is_wrong(function: Any) -> Report:
    """Check an implementation of `what_is_wrong(report)`."""
    probe = Probe("what_is_wrong")
    try:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        said = [(trial, _read(probe, function, trial)) for trial in trials()]
        for trial, flaws in said:
            if flaws != trial.flaws:
                _explain(probe, trial, flaws, said)
    except Wrong as wrong:
        return Report("what_is_wrong", probe.cases, diagnosis=wrong.diagnosis)
    tried = ("fair reports", "each flaw on each side", "several at once")
    return Report("what_is_wrong", probe.cases, tried)


def _read(probe: Probe, function: Any, trial: Trial) -> set[str]:
    expected = _names(trial.flaws)
    outcome = probe.call(function, trial.report, text=trial.call, expected=expected)
    value = outcome.value
    if value is None or value is ...:
        if outcome.printed.strip():
            probe.fail(*say_none(outcome.printed), call=trial.call, expected=expected, got="None", hint=1)
        probe.fail(UNWRITTEN, say_unwritten("`what_is_wrong` returned None"), hint=1)
    rest = {"call": trial.call, "expected": expected, "got": short(value), "hint": 1}
    if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
        probe.fail("not_a_set", f"It returned {short(value)}. Return a set of names, empty for a fair report.", **rest)
    names = list(value)
    for name in names:
        if not isinstance(name, str) or name not in FLAWS:
            message = f"{short(name)} is not the name of a flaw. They are {', '.join(FLAWS)}."
            probe.fail("unknown_flaw", message, **rest)
    return set(names)


def _explain(probe: Probe, trial: Trial, flaws: set[str], said: list[tuple[Trial, set[str]]]) -> None:
    """Raises Wrong. Every wrong answer ends here, with the most that can be said about all of them."""
    rest = {"call": trial.call, "expected": _names(trial.flaws), "got": _names(flaws)}
    if not any(names for _, names in said):
        probe.fail("finds_nothing", "It finds nothing wrong with any report.", hint=1, **rest)
    if all(len(names) <= 1 and names <= each.flaws for each, names in said):
        message = "It stops at the first flaw that it finds. Collect them all: one often hides another."
        probe.fail("only_the_first", message, hint=1, **rest)
    if invented := sorted(flaws - trial.flaws):
        message = f"It accuses this report of `{invented[0]}`, and it has not got that. {FLAWS[invented[0]]}"
        probe.fail("invents_a_flaw", message, hint=3 if invented[0] == "within_the_spread" else 2, **rest)
    missed = min(trial.flaws - flaws)
    alone = [(each, names) for each, names in said if each.which and each.flaws == {missed}]
    blind = {each.which for each, names in alone if missed not in names}
    if (
        trial.which
        and blind == {trial.which}
        and all(missed in names for each, names in alone if each.which not in blind)
    ):
        message = f"It looks for `{missed}` on one side only. Either side may have it, this time `{trial.which}`."
        probe.fail("one_side_only", message, hint=2, **rest)
    before, after = trial.report.before, trial.report.after
    same_sums = all(sum(getattr(before, name)) == sum(getattr(after, name)) for name in ("prompt_lens", "output_lens"))
    if missed == "other_requests" and same_sums:
        message = (
            "It compares sums. These outputs add up to the same number and are not the same: a batch waits for its "
            "longest request. Compare the lengths themselves, of prompts and of outputs."
        )
        probe.fail("compares_sums", message, hint=2, **rest)
    hint = 3 if missed in ("within_the_spread", "not_the_median") else 2
    probe.fail("misses_a_flaw", f"It does not see `{missed}` here. {FLAWS[missed]}", hint=hint, **rest)


def _names(flaws: set[str]) -> str:
    return "{" + ", ".join(map(repr, sorted(flaws))) + "}" if flaws else "set()"
