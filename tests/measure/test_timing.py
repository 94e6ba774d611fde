"""Timing: whose turn it is, what stands for several runs, and that a machine and a bound are told as they are."""

import json
from dataclasses import asdict

import pytest

from pagedkv_lab.measure import timing
from pagedkv_lab.measure.timing import Machine, Samples, copy_bandwidth, in_turn, machine, num_threads, versions

# Turns


def runs(names, rounds, **options):
    """Who ran in which round, in order."""
    ran = []
    in_turn({name: lambda number, name=name: ran.append(f"{name}{number}") for name in names}, rounds, **options)
    return " ".join(ran)


def test_everybody_runs_once_before_anybody_runs_again_and_another_one_begins_each_round():
    assert runs("abc", 4) == "a0 b0 c0 b1 c1 a1 c2 a2 b2 a3 b3 c3"


def test_one_contestant_just_runs_again_and_again():
    assert runs("a", 3) == "a0 a1 a2"


def test_somebody_slow_may_run_in_fewer_rounds():
    assert runs("abc", {"a": 3, "b": 3, "c": 1}) == "a0 b0 c0 b1 a1 a2 b2"


def test_no_contestants_and_no_rounds_are_no_results():
    assert in_turn({}, 3) == {}
    assert in_turn({"a": lambda number: 1}, 0) == {"a": []}


def test_results_come_by_name_in_the_order_of_the_rounds():
    found = in_turn({"a": lambda number: number, "b": lambda number: 10 * number}, 3)
    assert found == {"a": [0, 1, 2], "b": [0, 10, 20]}


def test_each_run_is_announced_and_then_rested_before(monkeypatch):
    happened = []
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: happened.append(f"rest {seconds}"))
    in_turn(
        {"a": lambda number: happened.append("run")},
        2,
        pause_s=0.5,
        announce=lambda name, number: happened.append(f"{name}{number}"),
    )
    assert happened == ["a0", "rest 0.5", "run", "a1", "rest 0.5", "run"]


# Samples


def test_the_median_is_not_moved_by_one_disturbed_round():
    assert Samples((2.0, 90.0, 1.0)).median == 2.0
    assert Samples((2.0, 3.0)).median == 2.5


def test_the_spread_is_a_share_of_the_median():
    assert Samples((2.0, 3.0, 1.5)).spread == 0.75
    assert Samples((2.0,)).spread == 0.0


def test_all_single_values_are_kept_in_their_order():
    assert Samples((2.0, 90.0, 1.0)).as_dict() == {"median": 2.0, "values": [2.0, 90.0, 1.0]}
    assert str(Samples((2.0, 90.0, 1.0))) == "2 (1-90)"


# The machine


def test_this_machine_has_a_name_cores_memory_and_a_system():
    here = machine()
    assert here.cpu
    assert here.cores >= 1
    assert here.memory_bytes > 2**28
    assert here.system
    assert json.loads(json.dumps(asdict(here))) == asdict(here)


def test_a_machine_is_told_in_one_line():
    assert str(Machine("Some CPU", 1, 2**34, "Linux 6.1 x86_64")) == "1 core of Some CPU, 16 GiB RAM, Linux 6.1 x86_64"
    assert str(Machine("Some CPU", 8, 2**34, "Linux 6.1 x86_64")).startswith("8 cores of ")


def test_a_processor_without_a_name_is_called_by_its_architecture(monkeypatch):
    monkeypatch.setattr(timing.sys, "platform", "a system that gives no name")
    monkeypatch.setattr(timing.platform, "processor", lambda: "")
    monkeypatch.setattr(timing.platform, "machine", lambda: "riscv64")
    assert machine().cpu == "riscv64"


@pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("", 5), ("0", 5), ("2,1", 5)])
def test_threads_are_as_many_as_asked_for_or_one_a_core(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(timing, "machine", lambda: Machine("", 5, 0, ""))
    assert num_threads() == threads


def test_versions_are_of_what_is_installed():
    found = versions("numpy", "a-package-that-nobody-has")
    assert list(found) == ["python", "numpy"]


# The bound


def test_bandwidth_counts_bytes_read_and_bytes_written_and_takes_the_best_try(monkeypatch):
    clock = iter([0.0, 4.0, 10.0, 10.5, 20.0, 22.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert copy_bandwidth(num_bytes=1000, tries=3) == 2 * 1000 / 0.5
