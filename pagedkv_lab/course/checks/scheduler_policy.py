"""The check of exercise 8.5: a policy with a shorter wait than first come, first served, in which nobody starves.

The policy is run on generated traffic, without a model. Two numbers count, summed over several seeds: the mean time to
the first token, and the longest. The shortest prompt first is best in the one and bad in the other.

Knows steps. Does not know how the policy chooses.
"""

from statistics import mean
from typing import Any

from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report

SEEDS = (0, 1, 2, 3, 4)
#: What is asked for, as shares of first come, first served: at most so long a mean, and at most so long a longest wait.
MEAN, LONGEST = 0.7, 1.6
#: The engine that they wait for.
OPTIONS = {"num_gpu_blocks": 400, "max_num_batched_tokens": 48, "max_num_seqs": 8}


def choose_next(function: Any) -> Report:
    """Check an implementation of `choose_next(waiting)`."""
    from pagedkv_lab.measure.dry_run import Waiting  # the engine brings torch: imported when the check runs

    probe = Probe("choose_next")
    try:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        small = [Waiting(prompt_len=300, waited=3), Waiting(prompt_len=20, waited=1)]
        _choose(probe, function, small)
        _choose(probe, function, small[:1])
        first_come = [_waits(lambda waiting: waiting[0], seed) for seed in SEEDS]
        own = [_waits(lambda waiting: _choose(probe, function, waiting), seed) for seed in SEEDS]
        note = _judge(probe, first_come, own)
    except Wrong as wrong:
        return Report("choose_next", probe.cases, diagnosis=wrong.diagnosis)
    return Report("choose_next", probe.cases, (f"{len(SEEDS)} generated workloads",), (note,))


def _choose(probe: Probe, function: Any, waiting: list[Any]) -> Any:
    """One choice. Raises Wrong where it isn't one of those that wait."""
    given = list(waiting)
    some = ", ".join(map(repr, waiting[:2])) + (", ..." if len(waiting) > 2 else "")
    text, expected = f"choose_next([{some}])", "one of these requests"
    outcome = probe.call(function, given, text=text, expected=expected)
    chosen = outcome.value
    if chosen is None or chosen is ...:
        if outcome.printed.strip():
            probe.fail(*say_none(outcome.printed), call=text, expected=expected, got="None", hint=1)
        probe.fail(UNWRITTEN, say_unwritten("`choose_next` returned None"), hint=1)
    if not any(chosen is one for one in waiting):
        message = f"It returned {short(chosen, 80)}. Return one of the requests in the list itself, not its place."
        probe.fail("not_one_of_them", message, call=text, expected=expected, got=short(chosen, 80), hint=1)
    if len(given) != len(waiting):
        message = "It changed the list of those that wait. Leave it as it is; whoever called lets the chosen one in."
        probe.fail("mutates", message, call=text, expected=expected, got=f"{len(given)} requests are left", hint=1)
    return chosen


def _waits(policy: Any, seed: int) -> list[int]:
    """Steps from arrival to the first token, request by request."""
    from pagedkv_lab.measure.dry_run import by_policy, dry_run, generated_arrivals, token_steps

    arrivals = generated_arrivals(seed)
    steps = token_steps(dry_run(arrivals, by_policy(policy), **OPTIONS))
    return [steps[number][0] - arrival.step for number, arrival in enumerate(arrivals, 1)]


def _judge(probe: Probe, first_come: list[list[int]], own: list[list[int]]) -> str:
    """Raises Wrong where the policy is not good enough. Returns what it reached, in words."""
    mean_before, mean_now = mean(map(mean, first_come)), mean(map(mean, own))
    worst_before, worst_now = mean(map(max, first_come)), mean(map(max, own))
    reached = f"mean {mean_now:.1f} steps, longest {worst_now:.1f}"
    wanted = f"mean at most {MEAN * mean_before:.1f} steps, longest at most {LONGEST * worst_before:.1f}"
    rest = {
        "call": f"dry_run(generated_arrivals(seed), by_policy(choose_next), ...)   # {len(SEEDS)} seeds, averaged",
        "expected": wanted,
        "got": reached,
    }
    if own == first_come:
        message = "It is first come, first served: everybody waits as long as before."
        probe.fail("is_first_come", message, hint=1, **rest)
    if mean_now > mean_before:
        message = "People wait longer for their first token than with first come, first served."
        probe.fail("worse_than_first_come", message, hint=1, **rest)
    if worst_now > LONGEST * worst_before:
        message = (
            f"Most wait less, and somebody starves: the longest wait grew from {worst_before:.1f} to {worst_now:.1f} "
            "steps. As long as something better keeps coming, a bad one never gets its turn."
        )
        probe.fail("starves_somebody", message, hint=2, **rest)
    if mean_now > MEAN * mean_before:
        message = (
            f"The mean wait went down to {mean_now / mean_before:.0%} of what it was, and {MEAN:.0%} is asked for."
        )
        probe.fail("too_little", message, hint=3, **rest)
    return (
        f"First come, first served → yours: mean {mean_before:.1f} → {mean_now:.1f} steps, "
        f"longest {worst_before:.1f} → {worst_now:.1f}."
    )
