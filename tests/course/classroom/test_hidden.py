"""Hidden tests: whoever computes the answer passes, whoever looks it up does not."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pagedkv_lab.course.checks import CheckFailed, examine, probe
from pagedkv_lab.course.checks.functions import FunctionCheck
from pagedkv_lab.course.checks.registry import exercises
from pagedkv_lab.course.classroom import hidden
from pagedkv_lab.course.classroom.hidden import FRESH_CASES, examine_afresh, fresh_cases, hidden_test

sys.path.append(str(Path(__file__).parents[2] / "mutants"))
from mutant_list import needs_all_mutants, rights

#: Exercises whose check tries the same every time.
DRAW_NOTHING = {
    "leaked_blocks", "borrowed_blocks", "extra_keys", "find_a_collision", "match_prefix", "choose_victim",
    "write_token", "beam_step", "choose_next",
}  # fmt: skip

DRAWN_ANEW = [name for name in exercises() if name in {*hidden._INDEPENDENT, *hidden._TOGETHER}]


def looked_up(check):
    """The submission of somebody who has read the check: its answers, in a table."""
    table = {repr(case.args): right(check)(*case.args) for case in check.cases}
    return lambda *args: table[repr(args)]


def right(check):
    """The reference, with what it returns of the type that the exercise asks for."""
    dtype = getattr(check, "dtype", "")
    return (lambda *args: np.asarray(check.reference(*args), dtype)) if dtype else check.reference


@pytest.mark.parametrize("name", DRAWN_ANEW)
def test_answers_that_were_looked_up_pass_the_check_and_not_the_hidden_test(name):
    check = exercises()[name].examine
    assert examine(name, looked_up(check)).passed
    for seed in range(5):
        with pytest.raises(CheckFailed):
            hidden_test(seed, **{name: looked_up(check)})


@pytest.mark.parametrize("name", [name for name in DRAWN_ANEW if type(exercises()[name].examine) is FunctionCheck])
def test_a_default_for_what_is_not_in_the_table_does_not_help(name):
    check = exercises()[name].examine
    answers = {repr(case.args): check.reference(*case.args) for case in check.cases}
    for default in (0, 1, max(answers.values())):
        assert not examine_afresh(name, lambda *args, default=default: answers.get(repr(args), default), 7).passed


@pytest.mark.parametrize("name", DRAWN_ANEW)
def test_the_reference_is_right_on_many_draws(name):
    for seed in range(20):
        assert examine_afresh(name, right(exercises()[name].examine), seed).passed


@pytest.mark.parametrize("name", DRAWN_ANEW)
def test_fresh_cases_are_new_and_the_same_for_the_same_number(name):
    check = exercises()[name].examine
    fresh = fresh_cases(check, random.Random(3))
    assert len(fresh) >= min(FRESH_CASES, 8)
    assert not {repr(case.args) for case in fresh} & {repr(case.args) for case in check.cases}
    assert fresh == fresh_cases(check, random.Random(3))
    assert fresh != fresh_cases(check, random.Random(4))


@pytest.mark.parametrize(
    "right",
    [one for one in rights() if one.exercise in exercises()],
    ids=lambda r: f"{r.exercise}-{r.name}".replace(" ", "-"),
)
def test_every_right_implementation_passes_on_cases_that_nobody_has_seen(right, monkeypatch):
    monkeypatch.setattr(probe.Probe.__init__, "__defaults__", (0.5,))
    report = examine_afresh(right.exercise, right.implementation, 1234)
    assert report.passed, str(report)


@needs_all_mutants
def test_which_checks_draw_nothing_is_known():
    """Their hidden test is the check once more. A new check draws from `random`, or is added to hidden.py, or here."""
    solved = {right.exercise: right.implementation for right in rights()}
    drawn = []

    class Counting(random.Random):
        def __init__(self, seed=0):
            drawn.append(seed)
            super().__init__(seed)

    still = set()
    for name in set(exercises()) - set(DRAWN_ANEW):
        drawn.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(random, "Random", Counting)
            assert examine_afresh(name, solved[name], 98765).passed
        still |= set() if any(str(seed).startswith("98765") for seed in drawn) else {name}
    assert still == DRAW_NOTHING


@pytest.mark.parametrize("name", exercises())
def test_a_stub_fails(name):
    with pytest.raises(CheckFailed):
        hidden_test(1, **{name: lambda *args: None})


def test_a_check_that_draws_draws_something_else():
    """Drawn in a module of the checks, the way they all do it."""
    from pagedkv_lab.course.checks import prefix_cache as module

    drawn = []
    spy = replace(exercises()["PrefixCache"], examine=lambda _: drawn.append(module.random.Random(0).random()))
    for seed in (1, 1, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pagedkv_lab.course.classroom.hidden.find", lambda name: spy)
            examine_afresh("PrefixCache", None, seed)
    spy.examine(None)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3
    assert drawn[3] == random.Random(0).random()
    assert module.random is random


def test_it_says_nothing_where_all_is_right_and_which_one_is_wrong_where_not():
    right = exercises()["blocks_for"].examine.reference
    assert hidden_test(1, blocks_for=right) is None
    with pytest.raises(CheckFailed, match="paged_bytes") as failed:
        hidden_test(1, blocks_for=right, paged_bytes=lambda lengths, size, each: sum(lengths) * each)
    assert failed.value.line == "`paged_bytes` is not right on cases that its check doesn't show."
