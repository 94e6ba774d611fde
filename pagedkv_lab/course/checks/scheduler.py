"""Checks of chapter 08: a step's budget (8.1), latency (8.4), and the list of the chapter's exercises.

`scheduler_victims` (8.2), `scheduler_steps` with `scheduler_differences` (8.3) and `scheduler_policy` (8.5) have the
rest.

Knows numbers of tokens and times. Does not know how a function finds them.
"""

import math
import numbers
import random
from collections.abc import Callable
from typing import Any

from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.registry import Exercise
from pagedkv_lab.course.checks.report import UNWRITTEN, Report
from pagedkv_lab.course.checks.scheduler_policy import choose_next
from pagedkv_lab.course.checks.scheduler_steps import scheduler
from pagedkv_lab.course.checks.scheduler_victims import make_room

# 8.1: a step's tokens.


def shares(left: list[int], budget: int, chunked: bool) -> list[int]:
    """The right answer. The known mistakes below differ from it in one thing each."""
    tokens, stopped = [], False
    for wanted in left:
        stopped = stopped or (wanted > budget and not chunked)
        tokens.append(0 if stopped else min(wanted, budget))
        budget -= tokens[-1]
    return tokens


def _gives_all(left, budget, chunked):
    return list(left)


def _everybody_up_to_the_budget(left, budget, chunked):
    return [min(wanted, budget) for wanted in left]


def _equal_parts(left, budget, chunked):
    return [min(wanted, budget // len(left)) for wanted in left] if left else []


def _always_in_pieces(left, budget, chunked):
    return shares(left, budget, True)


def _never_in_pieces(left, budget, chunked):
    return shares(left, budget, False)


def _overtakes(left, budget, chunked):
    tokens = []
    for wanted in left:
        tokens.append(min(wanted, budget) if chunked or wanted <= budget else 0)
        budget -= tokens[-1]
    return tokens


def _last_first(left, budget, chunked):
    return shares(left[::-1], budget, chunked)[::-1]


def _shortest_first(left, budget, chunked):
    order = sorted(range(len(left)), key=lambda i: left[i])
    tokens = shares([left[i] for i in order], budget, chunked)
    return [tokens[order.index(i)] for i in range(len(left))]


def _only_who_runs(left, budget, chunked):
    return [tokens for tokens in shares(left, budget, chunked) if tokens]


#: left, budget, chunked.
BUDGETS = (
    ([5], 8, True),
    ([1, 1, 5], 8, True),
    ([1, 17], 8, True),
    ([1, 6, 9, 2], 8, True),
    ([1, 7, 4], 8, True),
    ([1, 1, 1, 1], 3, True),
    ([], 8, True),
    ([1, 5, 2], 8, False),
    ([1, 6, 9, 1], 8, False),
    ([1, 9, 2], 8, False),
    ([1, 7, 1], 8, False),
    ([300, 1, 2000], 2048, True),
)
SHARING_MISTAKES = (
    ("gives_all", "It gives everybody all it wants, and the budget is not kept.", _gives_all, 1),
    (
        "budget_not_reduced",
        "Nobody gets more than the budget, but all together do. What one takes is gone for those behind it.",
        _everybody_up_to_the_budget,
        1,
    ),
    (
        "equal_parts",
        "It cuts the budget into equal parts. In the order of the list, each gets as much as is left: one token for "
        "each that generates, and the rest for the prompt behind them.",
        _equal_parts,
        1,
    ),
    (
        "always_in_pieces",
        "With `chunked` False a prompt must not be cut: it is computed whole or not in this step.",
        _always_in_pieces,
        2,
    ),
    ("never_in_pieces", "With `chunked` True a prompt that doesn't fit gets what is left.", _never_in_pieces, 2),
    (
        "overtakes",
        "Without chunks, the first that doesn't fit ends the step. Those behind it would overtake it, again and again.",
        _overtakes,
        2,
    ),
    (
        "last_first",
        "It serves the list from its end. The order is that of arrival: the first comes first.",
        _last_first,
        1,
    ),
    ("shortest_first", "It serves the shortest first. The order is that of the list.", _shortest_first, 1),
    (
        "leaves_out",
        "It leaves out those that get nothing. One number for each, 0 among them, so that one can tell whose it is.",
        _only_who_runs,
        3,
    ),
)


def _drawn_budgets(draw: random.Random) -> list[tuple]:
    """Steps that no table holds: a few that generate, prompts behind them, or any order."""
    cases = []
    for _ in range(12):
        left = [1] * draw.randint(0, 4) + [draw.randint(1, 60) for _ in range(draw.randint(0, 4))]
        if draw.random() < 0.3:
            draw.shuffle(left)
        cases.append((left, draw.randint(1, 64), draw.random() < 0.6))
    return cases


def split_budget(function: Any) -> Report:
    """Check an implementation of `split_budget(left, budget, chunked)`."""
    probe = Probe("split_budget")
    cases = [*BUDGETS, *_drawn_budgets(random.Random(0))]
    try:
        _is_a_function(probe, function)
        answers = [_shared(probe, function, case) for case in cases]
        for case, answer in zip(cases, answers, strict=True):
            if answer != shares(*case):
                _explain_shares(probe, case, cases, answers)
    except Wrong as wrong:
        return Report("split_budget", probe.cases, diagnosis=wrong.diagnosis)
    tried = ("prompts and decodes", "a long prompt", "a spent budget", "nobody", "chunked prefill off")
    return Report("split_budget", probe.cases, tried)


def _shared(probe: Probe, function: Callable[..., Any], case: tuple) -> list[int]:
    left, text, expected = list(case[0]), _call("split_budget", case), str(shares(*case))
    outcome = probe.call(function, left, *case[1:], text=text, expected=expected)
    value = outcome.value
    if value is None or value is ...:
        if outcome.printed.strip():
            probe.fail(*say_none(outcome.printed), call=text, expected=expected, got="None", hint=1)
        probe.fail(UNWRITTEN, say_unwritten("`split_budget` returned None"), hint=1)
    if left != case[0]:
        message = "It changed the list `left`, which belongs to the caller. Work on a copy."
        probe.fail("mutates", message, call=text, expected=f"left = {case[0]}", got=f"left = {left}", hint=3)
    try:
        return [probe.whole_number(tokens, text, expected, hint=3) for tokens in value]
    except TypeError:
        message = f"It returned {short(value)}. Return a list with one number for each sequence."
        probe.fail("no_list", message, call=text, expected=expected, got=short(value), hint=3)


def _explain_shares(probe: Probe, case: tuple, cases: list, answers: list) -> None:
    answer = answers[cases.index(case)]
    rest = {"call": _call("split_budget", case), "expected": str(shares(*case)), "got": str(answer)}
    for code, message, wrong, hint in SHARING_MISTAKES:
        if answers == [wrong(*each) for each in cases]:
            probe.fail(code, message, hint=hint, **rest)
    if sum(answer) > case[1]:
        probe.fail("exceeds", f"That is {sum(answer)} tokens, and the budget is {case[1]}.", hint=1, **rest)
    probe.fail("wrong_shares", "These are not the tokens that each one gets.", hint=2, **rest)


# 8.4: how long people wait.


def latency(arrival: float, token_times: list[float]) -> tuple[float, float | None]:
    """The right answer."""
    first, last = token_times[0], token_times[-1]
    return first - arrival, (last - first) / (len(token_times) - 1) if len(token_times) > 1 else None


#: When the request came, and when each of its tokens was there, in seconds. Binary fractions: no rounding.
TIMES = (
    (0.0, [0.5, 0.75, 1.0]),
    (10.0, [10.5, 10.75, 11.0]),
    (2.0, [2.25, 4.25]),
    (8.0, [9.0, 9.125, 10.25, 10.375, 10.5]),
    (3.0, [3.5]),
)
LATENCY_MISTAKES = (
    (
        "ignores_the_arrival",
        "The time to the first token begins when the request arrives, not when the clock does.",
        lambda arrival, times: (times[0], latency(arrival, times)[1]),
        1,
    ),
    (
        "divides_by_all_tokens",
        "Between 3 tokens there are 2 gaps. The first token's time is TTFT, so TPOT divides by the tokens after it.",
        lambda arrival, times: (times[0] - arrival, (times[-1] - times[0]) / len(times) if len(times) > 1 else None),
        2,
    ),
    (
        "counts_the_first_wait",
        "TPOT begins at the first token. The wait before it is TTFT, and would be counted twice.",
        (
            lambda arrival, times: (times[0] - arrival, (times[-1] - arrival) / len(times)),
            lambda arrival, times: (times[0] - arrival, (times[-1] - arrival) / len(times) if len(times) > 1 else None),
            lambda arrival, times: (
                times[0] - arrival,
                (times[-1] - arrival) / (len(times) - 1) if len(times) > 1 else None,
            ),
        ),
        2,
    ),
    (
        "swapped",
        "It returns them in the wrong order: TTFT comes first.",
        lambda arrival, times: latency(arrival, times)[::-1],
        1,
    ),
    (
        "not_divided",
        "TPOT is the time of one token: divide by their number.",
        lambda arrival, times: (times[0] - arrival, times[-1] - times[0] if len(times) > 1 else None),
        2,
    ),
    (
        "last_gap",
        "It takes one gap for all. TPOT is the mean over all of them.",
        (
            lambda arrival, times: (times[0] - arrival, times[-1] - times[-2] if len(times) > 1 else None),
            lambda arrival, times: (times[0] - arrival, times[1] - times[0] if len(times) > 1 else None),
        ),
        2,
    ),
    (
        "zero_for_none",
        "One token has no token after it: TPOT is None there. A 0 would pull every mean down.",
        lambda arrival, times: (times[0] - arrival, latency(arrival, times)[1] or 0),
        3,
    ),
)


def _drawn_times(draw: random.Random) -> list[tuple]:
    """Requests that no table holds, in eighths of a second: no rounding."""
    cases = []
    for _ in range(8):
        arrival = draw.randint(0, 400) / 8
        times = [arrival + draw.randint(1, 80) / 8]
        for _ in range(draw.choice([0, 1, 2, 4, 8])):
            times.append(times[-1] + draw.randint(1, 16) / 8)
        cases.append((arrival, times))
    return cases


def ttft_and_tpot(function: Any) -> Report:
    """Check an implementation of `ttft_and_tpot(arrival, token_times)`."""
    probe = Probe("ttft_and_tpot")
    cases = [*TIMES, *_drawn_times(random.Random(0))]
    try:
        _is_a_function(probe, function)
        answers = [_times(probe, function, case) for case in cases]
        for case, answer in zip(cases, answers, strict=True):
            if not _same(answer, latency(*case)):
                _explain_latency(probe, case, cases, answers)
    except Wrong as wrong:
        return Report("ttft_and_tpot", probe.cases, diagnosis=wrong.diagnosis)
    return Report("ttft_and_tpot", probe.cases, ("arrivals at other times than 0", "uneven gaps", "a single token"))


def _times(probe: Probe, function: Callable[..., Any], case: tuple) -> tuple:
    arrival, times = case
    text, expected, given = _call("ttft_and_tpot", case), str(latency(*case)), list(times)
    if len(times) == 1:
        outcome = _single(probe, function, arrival, given, text, expected)
    else:
        outcome = probe.call(function, arrival, given, text=text, expected=expected)
    value = outcome.value
    rest = {"call": text, "expected": expected, "got": short(value)}
    if value is None or value is ...:
        if outcome.printed.strip():
            probe.fail(*say_none(outcome.printed), hint=1, **rest)
        probe.fail(UNWRITTEN, say_unwritten("`ttft_and_tpot` returned None"), hint=1)
    if given != times:
        message = "It changed the list of times, which belongs to the caller."
        probe.fail("mutates", message, hint=3, **rest)
    if not isinstance(value, tuple | list) or len(value) != 2:
        probe.fail("not_a_pair", f"It returned {short(value)}. Return a pair: `return ttft, tpot`.", hint=1, **rest)
    for one in value:
        if one is not None and (isinstance(one, bool) or not isinstance(one, numbers.Real)):
            probe.fail("not_a_number", f"{short(one)} is not a number of seconds.", hint=1, **rest)
    return tuple(value)


def _single(probe: Probe, function: Any, arrival: float, times: list[float], text: str, expected: str) -> Any:
    """The case of one token, where many divide by 0."""
    try:
        return probe.call(function, arrival, times, text=text, expected=expected, hint=3)
    except Wrong as wrong:
        if wrong.diagnosis.got not in ("ZeroDivisionError", "StatisticsError"):
            raise
        message = "A single token has no token after it, and it divides by 0. TPOT is None there."
        rest = {"call": text, "expected": expected, "got": wrong.diagnosis.got, "detail": wrong.diagnosis.detail}
        probe.fail("divides_by_zero", message, hint=3, **rest)


def _same(answer: tuple, right: tuple) -> bool:
    return all(
        (one is None) == (other is None) and (one is None or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9))
        for one, other in zip(answer, right, strict=True)
    )


def _explain_latency(probe: Probe, case: tuple, cases: list, answers: list) -> None:
    answer = answers[cases.index(case)]
    rest = {"call": _call("ttft_and_tpot", case), "expected": str(latency(*case)), "got": str(answer)}
    for code, message, wrong, hint in LATENCY_MISTAKES:
        for way in (wrong,) if callable(wrong) else wrong:
            if all(_same(said, way(*each)) for said, each in zip(answers, cases, strict=True)):
                probe.fail(code, message, hint=hint, **rest)
    right = latency(*case)
    if _same(tuple(1000 * one if one is not None else None for one in right), answer):
        probe.fail(
            "milliseconds", "These are milliseconds. The times are in seconds, and so are the answers.", hint=1, **rest
        )
    if _same((answer[0],), (right[0],)):
        probe.fail(
            "wrong_tpot", "TTFT is right, TPOT is not: the mean time of a token after the first.", hint=2, **rest
        )
    probe.fail("wrong_ttft", "TTFT is the time from the arrival to the first token.", hint=1, **rest)


# Both


def _is_a_function(probe: Probe, function: Any) -> None:
    if not callable(function):
        extra = "" if function is None else " Pass the function itself, without parentheses after its name."
        probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")


def _call(name: str, args: tuple) -> str:
    return f"{name}({', '.join(map(repr, args))})"


EXERCISES = (
    Exercise("split_budget", "8.1", "A step's tokens", split_budget),
    Exercise("make_room", "8.2", "Who gives way", make_room),
    Exercise("Scheduler", "8.3", "Who runs in this step", scheduler, slot="Scheduler"),
    Exercise("ttft_and_tpot", "8.4", "How long people wait", ttft_and_tpot),
    Exercise("choose_next", "8.5", "Shorter waits, and nobody starves", choose_next, stretch=True),
)
