"""Every wrong implementation gets the diagnosis it deserves; every right one passes, however it is written."""

import warnings
from collections import Counter

import pytest
from sizing_mutants import ARGUMENTS, MUTANTS, RIGHTS

from pagedkv_lab.course.checks import examine, probe
from pagedkv_lab.course.checks.registry import exercises


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    monkeypatch.setattr(probe, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(probe.Probe.__init__, "__defaults__", (0.2,))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.exercise}-{m.name}".replace(" ", "-"))
def test_a_wrong_implementation_gets_its_diagnosis(mutant):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = examine(mutant.exercise, mutant.function)
    assert report.diagnosis is not None, f"{mutant.exercise}: {mutant.name} passed"
    assert report.diagnosis.code == mutant.diagnosis, str(report)
    if mutant.diagnosis not in ("unwritten", "not_a_function"):
        assert report.diagnosis.call.startswith(f"{mutant.exercise}(")
        assert report.diagnosis.expected
    if mutant.diagnosis not in ("not_a_function", "wrong_arguments", "mutates"):  # these say it all themselves
        assert report.diagnosis.hint in (1, 2, 3)


@pytest.mark.parametrize("right", RIGHTS, ids=lambda r: f"{r.exercise}-{r.name}".replace(" ", "-"))
def test_a_right_implementation_passes(right):
    report = examine(right.exercise, right.function)
    assert report.passed, str(report)


def test_each_exercise_has_enough_wrong_and_right_implementations():
    assert set(ARGUMENTS) == set(exercises())
    own = Counter(mutant.exercise for mutant in MUTANTS[len(ARGUMENTS) * 21 :])
    rights = Counter(right.exercise for right in RIGHTS)
    for name in exercises():
        assert own[name] >= 8, name
        assert rights[name] >= 4, name


def test_every_known_mistake_is_shown_to_be_recognized():
    shown = {(mutant.exercise, mutant.diagnosis) for mutant in MUTANTS}
    for name, exercise in exercises().items():
        for mistake in exercise.examine.mistakes:
            assert (name, mistake.code) in shown, f"{name}: no mutant for {mistake.code}"


def test_the_smallest_example_comes_first():
    report = examine("kv_bytes_per_token", lambda L, h, d, b: L * h * d * b)
    assert report.diagnosis.call == ("kv_bytes_per_token(num_layers=1, num_kv_heads=1, head_dim=1, bytes_per_number=1)")
    assert (report.diagnosis.expected, report.diagnosis.got) == ("2", "1")
