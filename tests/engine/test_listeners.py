"""Whoever listens to an engine hears of every step; whatever listeners do, the engine and its caller lose nothing."""

import logging
import signal
from collections.abc import Iterator

import pytest
from tiny_models import assert_all_back, own_tokens, random_prompt, tiny_model

import pagedkv_lab.engine.engine as engine_module
from pagedkv_lab.blocks import BlockTable
from pagedkv_lab.engine import Engine, Parts, SamplingParams
from pagedkv_lab.errors import PartError

PROMPT = random_prompt(10)
GREEDY = SamplingParams(max_tokens=4)


@pytest.fixture
def engine() -> Engine:
    return Engine(tiny_model("toy"), block_size=4, num_gpu_blocks=24, max_model_len=32)


@pytest.fixture
def python_s_own_ctrl_c() -> Iterator[None]:
    """As in a terminal; a process in the background of a shell may have been told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def step_to_the_end(engine: Engine) -> list:
    reports = []
    while engine.has_unfinished_requests():
        reports.append(engine.step())
    return reports


def test_each_listener_hears_each_step_s_own_report_in_turn(engine):
    heard = []
    for name in ("first", "second"):
        engine.listeners.append(lambda report, name=name: heard.append((name, report)))
    engine.add_request(PROMPT, GREEDY)
    reports = step_to_the_end(engine)
    assert len(reports) == 4
    assert heard == [(name, report) for report in reports for name in ("first", "second")]


def test_when_a_listener_is_told_the_step_is_over(engine):
    request_id = engine.add_request(PROMPT, GREEDY)
    seen = []

    def look(report):
        engine.manager.check_invariants()
        stats = engine.stats()
        seen.append((report.step, stats.steps, stats.pool, request_id in engine.requests()))

    engine.listeners.append(look)
    reports = step_to_the_end(engine)
    assert seen == [(r.step, r.step, r.pool, not r.finished) for r in reports]


@pytest.mark.parametrize("how", ["generate", "stream"])
def test_generate_and_stream_are_heard_too(engine, how):
    heard = []
    engine.listeners.append(heard.append)
    if how == "generate":
        engine.generate([PROMPT], GREEDY, use_tqdm=False)
    else:
        list(engine.stream(PROMPT, GREEDY))
    assert [report.step for report in heard] == [1, 2, 3, 4]


def test_nobody_is_told_when_there_is_nobody(engine, monkeypatch):
    def refuse(self, report):
        raise AssertionError("somebody was told")

    monkeypatch.setattr(Engine, "_tell", refuse)
    assert engine.generate([PROMPT], GREEDY, use_tqdm=False)[0].token_ids == own_tokens(engine.model, PROMPT, 4)


def test_a_listener_that_fails_is_dropped_with_a_word_and_the_step_is_reported(engine, caplog):
    heard = []

    def fail(report):
        heard.append(("fails", report.step))
        raise RuntimeError("can't draw")

    def hear(report):
        heard.append(("hears", report.step))

    engine.listeners += [fail, hear]
    engine.add_request(PROMPT, GREEDY)
    with caplog.at_level(logging.ERROR, logger=engine_module.logger.name):
        report = engine.step()
    assert report.step == 1
    assert report.tokens
    assert engine.listeners == [hear]
    assert "is not called any more" in caplog.text
    assert "can't draw" in caplog.text
    engine.step()
    assert heard == [("fails", 1), ("hears", 1), ("hears", 2)]
    step_to_the_end(engine)
    assert_all_back(engine)


def test_a_listener_may_take_itself_and_others_away_and_bring_new_ones(engine):
    heard = []

    def once(report):
        engine.listeners.clear()
        engine.listeners.append(lambda report: heard.append(report.step))
        raise RuntimeError("it has gone already when it fails")

    engine.listeners.append(once)
    engine.add_request(PROMPT, GREEDY)
    step_to_the_end(engine)
    assert heard == [2, 3, 4]


def test_a_step_that_fails_is_not_told(engine, monkeypatch):
    heard = []
    engine.listeners.append(heard.append)
    engine.add_request(PROMPT, GREEDY)

    def fail(*args):
        raise RuntimeError("no step")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "execute", fail)
        with pytest.raises(RuntimeError, match="no step"):
            engine.step()
    assert heard == []
    assert [report.step for report in step_to_the_end(engine)] == [report.step for report in heard] == [1, 2, 3, 4]


def test_what_listeners_cost_is_not_in_the_step_s_seconds(engine, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(engine_module.time, "perf_counter", lambda: float(next(clock)))
    engine.listeners.append(lambda report: [next(clock) for _ in range(100)])
    engine.add_request(PROMPT, GREEDY)
    first, second = engine.step(), engine.step()
    assert first.seconds < 100
    assert second.seconds < 100
    assert engine.stats().seconds == first.seconds + second.seconds


@pytest.mark.usefixtures("python_s_own_ctrl_c")
def test_ctrl_c_while_a_listener_runs_waits_until_all_have_heard(engine):
    heard = []

    def interrupted(report):
        signal.raise_signal(signal.SIGINT)
        heard.append(("first", report.step))

    engine.listeners += [interrupted, lambda report: heard.append(("second", report.step))]
    engine.add_request(PROMPT, GREEDY)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert heard == [("first", 1), ("second", 1)]
    assert interrupted in engine.listeners, "it did nothing wrong"
    assert engine.stats().steps == 1
    assert engine.stats().preemptions == 0, "the step was over: nothing has to be computed again"
    engine.listeners.clear()
    [*_, last] = step_to_the_end(engine)
    assert last.finished[0].token_ids == own_tokens(engine.model, PROMPT, 4)
    assert_all_back(engine)


@pytest.mark.usefixtures("python_s_own_ctrl_c")
def test_what_had_finished_when_ctrl_c_came_to_a_listener_is_in_the_next_report(engine):
    first = engine.add_request(PROMPT, SamplingParams(max_tokens=1))
    second = engine.add_request(random_prompt(6, 1), SamplingParams(max_tokens=2))

    def interrupted(report):
        engine.listeners.clear()
        signal.raise_signal(signal.SIGINT)

    engine.listeners.append(interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.has_unfinished_requests()
    report = engine.step()
    assert [output.request_id for output in report.finished] == [first, second]
    assert not engine.has_unfinished_requests()


def test_what_finished_for_others_waits_for_a_step_that_is_theirs(engine):
    mine, theirs = (engine.add_request(random_prompt(9, i), SamplingParams(max_tokens=1)) for i in range(2))
    report = engine.step_for([mine])
    assert {output.request_id for output in report.finished} == {mine, theirs}, "a report says all that there was"
    assert engine.has_unfinished_requests()
    assert [output.request_id for output in engine.step().finished] == [theirs]


class TornTable(BlockTable):
    """Breaks at its third block, once."""

    torn = False

    def append_block(self):
        if len(self.blocks) == 3 and not TornTable.torn:
            TornTable.torn = True
            raise ValueError("torn")
        return super().append_block()


def test_who_listens_to_the_blocks_hears_of_the_new_pool_after_a_part_broke(monkeypatch):
    monkeypatch.setattr(TornTable, "torn", False)
    engine = Engine(
        tiny_model("toy"), parts=Parts(BlockTable=TornTable), block_size=4, num_gpu_blocks=24, max_model_len=32
    )
    before, heard = engine.manager, []
    engine.manager.listeners.append(lambda event: heard.append(event.kind))
    engine.add_request(PROMPT, GREEDY)
    engine.step()
    engine.step()
    engine.step()
    with pytest.raises(PartError, match="torn"):
        engine.step()
    assert engine.manager is not before
    heard.clear()
    engine.step()
    assert heard[0] == "allocate", "its blocks are taken again, from the new pool"
