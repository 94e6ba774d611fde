"""The check of exercise 5.5: a policy that finds more than LRU on the generated trace.

The policy is replayed on traces with other seeds than the one that the workbook shows, and must beat LRU by a margin:
a policy that happens to fit one trace is none.

Knows hit rates. Does not know how the policy chooses.
"""

from typing import Any

from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report
from pagedkv_lab.measure.simulate import FreeBlock, generated_trace, replay

CAPACITY = 200
SEEDS = (1, 2, 3)
#: Percentage points by which the policy must beat LRU, averaged over the seeds.
MARGIN = 3.0

SMALL = [
    FreeBlock(last_used=4, hits=0, depth=1, found_before=0),
    FreeBlock(last_used=5, hits=2, depth=0, found_before=0),
]


def choose_victim(function: Any) -> Report:
    """Check an implementation of `choose_victim(blocks)`."""
    probe = Probe("choose_victim")
    try:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        _choose(probe, function, list(SMALL))
        _choose(probe, function, SMALL[:1])
        gained = [_replayed(probe, function, seed) for seed in SEEDS]
        _judge(probe, gained)
    except Wrong as wrong:
        return Report("choose_victim", probe.cases, diagnosis=wrong.diagnosis)
    rates = ", ".join(f"{lru:.1%} → {own:.1%}" for lru, own in gained)
    return Report("choose_victim", probe.cases, (f"{len(SEEDS)} generated traces",), (f"LRU → yours: {rates}.",))


def _choose(probe: Probe, function: Any, blocks: list[FreeBlock]) -> FreeBlock:
    """One choice. Raises Wrong where it isn't one of the blocks."""
    given = list(blocks)
    some = ", ".join(map(repr, blocks[:2])) + (", ..." if len(blocks) > 2 else "")
    text, expected = f"choose_victim([{some}])", "one of these blocks"
    outcome = probe.call(function, given, text=text, expected=expected)
    victim = outcome.value
    if victim is None or victim is ...:
        if outcome.printed.strip():
            probe.fail(*say_none(outcome.printed), call=text, expected=expected, got="None", hint=1)
        probe.fail(UNWRITTEN, say_unwritten("`choose_victim` returned None"), hint=1)
    if not any(victim is block for block in blocks):
        message = (
            f"It returned {short(victim, 80)}. Return one of the blocks in the list itself, not its place or a copy."
        )
        probe.fail("not_one_of_them", message, call=text, expected=expected, got=short(victim, 80), hint=1)
    if len(given) != len(blocks):
        message = "It changed the list of blocks. Leave it as it is; whoever called removes the victim."
        probe.fail("mutates", message, call=text, expected=expected, got=f"{len(given)} blocks are left", hint=1)
    return victim


def _replayed(probe: Probe, function: Any, seed: int) -> tuple[float, float]:
    """Hit rates of LRU and of the policy on one trace."""
    requests = generated_trace(seed)

    def policy(blocks: list[FreeBlock]) -> FreeBlock:
        return _choose(probe, function, blocks)

    lru, own = (replay(requests, CAPACITY, which, use_tqdm=False).hit_rate for which in ("lru", policy))
    return lru, own


def _judge(probe: Probe, gained: list[tuple[float, float]]) -> None:
    points = 100 * sum(own - lru for lru, own in gained) / len(gained)
    if points >= MARGIN:
        return
    lru, own = gained[0]
    text = f"replay(generated_trace(seed={SEEDS[0]}), {CAPACITY}, choose_victim).hit_rate"
    rest = {"call": text, "expected": f"LRU's {lru:.1%} and {MARGIN:g} points more", "got": f"{own:.1%}"}
    if abs(points) < 0.05:
        probe.fail("is_lru", "It finds exactly as much as LRU: it seems to choose the same blocks.", hint=1, **rest)
    if points < 0:
        message = (
            f"It finds less than LRU, by {-points:.1f} points on average. What does it throw away that comes again?"
        )
        probe.fail("worse_than_lru", message, hint=2, **rest)
    message = f"It beats LRU by {points:.1f} points on average over {len(SEEDS)} traces, and {MARGIN:g} are asked for."
    probe.fail("too_little", message, hint=3, **rest)
