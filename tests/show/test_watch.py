"""`watch` is `generate` with something to look at: same outputs, same books, nothing left behind however it ends."""

import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from runs import small_engine
from tiny_models import assert_all_back, own_tokens, random_prompt

from pagedkv_lab.engine import Engine, SamplingParams
from pagedkv_lab.errors import RequestTooLong
from pagedkv_lab.show import watch, watching

PROMPTS = [random_prompt(10), random_prompt(13), random_prompt(7, 1)]
PARAMS = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=6), SamplingParams(max_tokens=9, n=2)]


class Notebook:
    """Shows a view, and keeps its frames and what it was replaced by."""

    def __init__(self) -> None:
        self.frames, self.updates, self.view = [], [], None

    def display(self, view: Any, display_id: bool) -> "Notebook":
        assert display_id
        self.view = view
        self.frames.append(view.frame)
        view.observe(lambda change: self.frames.append(change["new"]), "frame")
        return self

    def update(self, view: Any) -> None:
        self.updates.append(view._repr_mimebundle_()[0])


@pytest.fixture
def notebook(monkeypatch) -> Notebook:
    shown = Notebook()
    monkeypatch.setattr(watching, "display", shown.display)
    monkeypatch.delenv("PAGEDKV_STATIC", raising=False)
    return shown


@pytest.fixture
def python_s_own_ctrl_c() -> Iterator[None]:
    """As in a terminal; a process in the background of a shell may have been told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def assert_nobody_listens(engine: Engine) -> None:
    assert engine.listeners == engine.manager.listeners == []


def press_stop_at(engine: Engine, step: int) -> None:
    """The stop button is pressed while the engine's step with this number computes."""
    execute = engine.runner.execute

    def interrupted(*args):
        if engine.stats().steps == step - 1:
            engine.runner.execute = execute
            signal.raise_signal(signal.SIGINT)
        return execute(*args)

    engine.runner.execute = interrupted


def plain(outputs: list) -> list:
    """Without the times, which differ from run to run."""
    return [(o.request_id, o.prompt, o.prompt_token_ids, o.outputs, o.num_cached_tokens) for o in outputs]


def test_it_returns_what_generate_returns(notebook):
    engine = small_engine()
    outputs = watch(engine, PROMPTS, PARAMS)
    assert plain(outputs) == plain(small_engine().generate(PROMPTS, PARAMS, use_tqdm=False))
    assert_nobody_listens(engine)
    assert_all_back(engine)


@pytest.mark.parametrize("prompts", ["abcdefgh", ["abcdefgh", "abcdab"], random_prompt(5)])
def test_prompts_can_be_what_they_can_be_for_generate(notebook, prompts):
    params = SamplingParams(max_tokens=3)
    assert plain(watch(small_engine(), prompts, params)) == plain(
        small_engine().generate(prompts, params, use_tqdm=False)
    )


def test_a_salt_keeps_prompts_apart_here_too(notebook):
    engine = small_engine()
    found = [watch(engine, [PROMPTS[0]], PARAMS[0], cache_salt=salt)[0].num_cached_tokens for salt in "aab"]
    assert found == [0, 8, 0]


def test_it_begins_with_the_pool_as_it_is_and_ends_with_the_last_step(notebook):
    engine = small_engine()
    watch(engine, PROMPTS, PARAMS)
    first, last = notebook.frames[0], notebook.frames[-1]
    assert (first["step"], first["sequences"]) == (0, [])
    assert (last["step"], last["phase"]) == (engine.stats().steps, "done")
    assert {row["status"] for row in last["sequences"]} == {"finished"}
    assert notebook.view.kind == "watch"


def test_in_between_frames_show_it_running(notebook, monkeypatch):
    monkeypatch.setattr(watching.WatchView, "push_if_due", lambda self, phase: self.push(phase))
    watch(small_engine(), PROMPTS, PARAMS)
    assert [(frame["step"], frame["phase"]) for frame in notebook.frames] == [
        (0, "idle"), *[(step, "running") for step in range(1, 10)], (9, "done"),
    ]  # fmt: skip


@pytest.mark.usefixtures("python_s_own_ctrl_c")
@pytest.mark.parametrize("step", [2, 5, 9])
def test_stopped_early_it_returns_what_there_was(notebook, step):
    """In step `step` the button is pressed; what the steps before it said is there, and not one token more or less."""
    engine = small_engine()
    press_stop_at(engine, step)
    outputs = watch(engine, PROMPTS, PARAMS)
    assert [output.request_id for output in outputs] == [1, 2, 3]
    for output, prompt, params in zip(outputs, PROMPTS, PARAMS, strict=True):
        said = min(step - 1, params.max_tokens)
        assert [one.token_ids for one in output.outputs] == [own_tokens(engine.model, prompt, said)] * params.n
        reason = "length" if said == params.max_tokens else "abort"
        assert {one.finish_reason for one in output.outputs} == {reason}
    assert notebook.frames[-1]["phase"] == "stopped"
    assert {row["status"] for row in notebook.frames[-1]["sequences"]} <= {"finished", "aborted"}
    assert_nobody_listens(engine)
    assert_all_back(engine)
    assert watch(engine, PROMPTS[:1], PARAMS[1])[0].token_ids == own_tokens(engine.model, PROMPTS[0], 6)


@pytest.mark.usefixtures("python_s_own_ctrl_c")
def test_stopped_in_its_first_step_it_returns_nothing_and_leaves_nothing(notebook):
    engine = small_engine()
    press_stop_at(engine, 1)
    assert watch(engine, PROMPTS, PARAMS) == []
    assert_nobody_listens(engine)
    assert_all_back(engine)


@pytest.mark.usefixtures("python_s_own_ctrl_c")
@pytest.mark.parametrize("stopped", [False, True])
def test_requests_that_were_there_before_stay(notebook, stopped):
    engine = small_engine()
    mine = engine.add_request(random_prompt(6, 2), SamplingParams(max_tokens=12))
    engine.step()
    if stopped:
        press_stop_at(engine, 4)
    outputs = watch(engine, PROMPTS[1:2], SamplingParams(max_tokens=4))
    assert [output.request_id for output in outputs] == [mine + 1]
    assert list(engine.requests()) == [mine]
    assert notebook.frames[-1]["phase"] == ("stopped" if stopped else "paused")
    [done] = _run(engine)
    assert (done.request_id, done.token_ids) == (mine, own_tokens(engine.model, random_prompt(6, 2), 12))
    assert_all_back(engine)


def _run(engine: Engine) -> list:
    finished = []
    while engine.has_unfinished_requests():
        finished += engine.step().finished
    return finished


def test_another_s_request_that_finishes_meanwhile_waits_for_whoever_asks(notebook):
    engine = small_engine()
    mine = engine.add_request(random_prompt(6, 2), SamplingParams(max_tokens=2))
    assert [output.request_id for output in watch(engine, PROMPTS[:1], PARAMS[1])] == [mine + 1]
    assert [output.request_id for output in engine.step().finished] == [mine]


def test_an_error_in_the_model_passes_through_and_leaves_nothing(notebook, monkeypatch):
    engine = small_engine()
    execute, calls = engine.runner.execute, []

    def fail(*args):
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("out of order")
        return execute(*args)

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "execute", fail)
        with pytest.raises(RuntimeError, match="out of order"):
            watch(engine, PROMPTS, PARAMS)
    assert_nobody_listens(engine)
    assert_all_back(engine)
    assert notebook.frames[-1]["step"] == 2


def test_a_request_that_can_t_run_is_refused_as_by_generate(notebook):
    engine = small_engine()
    with pytest.raises(RequestTooLong, match="max_model_len"):
        watch(engine, [PROMPTS[0], random_prompt(60)], SamplingParams(max_tokens=4))
    assert_nobody_listens(engine)
    assert_all_back(engine)


def test_a_view_that_fails_does_not_stop_what_is_generated(notebook, monkeypatch, caplog):
    def fail(self, phase):
        raise RuntimeError("can't draw")

    monkeypatch.setattr(watching.WatchView, "push_if_due", fail)
    engine = small_engine()
    outputs = watch(engine, PROMPTS, PARAMS)
    assert plain(outputs) == plain(small_engine().generate(PROMPTS, PARAMS, use_tqdm=False))
    assert "can't draw" in caplog.text
    assert_nobody_listens(engine)


def test_other_listeners_stay(notebook):
    engine = small_engine()
    heard = []
    engine.listeners.append(heard.append)
    watch(engine, PROMPTS, PARAMS)
    assert engine.listeners == [heard.append]
    assert [report.step for report in heard] == list(range(1, 10))


def test_what_lies_in_a_block_can_be_asked_when_it_has_run(notebook):
    engine = small_engine()
    watch(engine, ["abcdefghab"], SamplingParams(max_tokens=1))
    answers = []
    notebook.view.send = lambda content, buffers=None: answers.append(content)
    notebook.view._handle_custom_msg({"do": "block", "block": 0}, [])
    [[key, text]] = answers[0]["blocks"].values()
    assert text == "abcdefgh"
    assert len(key) == 8


# Requests that were added before


def test_without_prompts_it_runs_what_was_added_before(notebook):
    engine = small_engine()
    for prompt, params in zip(PROMPTS, PARAMS, strict=True):
        engine.add_request(prompt, params)
    outputs = watch(engine)
    expected = small_engine().generate(PROMPTS, PARAMS, use_tqdm=False)
    assert plain(sorted(outputs, key=lambda output: output.request_id)) == plain(expected)
    assert notebook.frames[-1]["phase"] == "done"
    assert_nobody_listens(engine)


def test_so_many_steps_and_then_it_can_go_on(notebook):
    engine = small_engine()
    for prompt, params in zip(PROMPTS, PARAMS, strict=True):
        engine.add_request(prompt, params)
    assert [output.request_id for output in watch(engine, steps=2)] == [1]
    assert (notebook.frames[-1]["step"], notebook.frames[-1]["phase"]) == (2, "paused")
    assert watch(engine, steps=0) == []
    assert [output.request_id for output in watch(engine)] == [2, 3]


@pytest.mark.usefixtures("python_s_own_ctrl_c")
def test_stopped_without_prompts_everything_stays_to_go_on(notebook):
    engine = small_engine()
    for prompt, params in zip(PROMPTS, PARAMS, strict=True):
        engine.add_request(prompt, params)
    press_stop_at(engine, 3)
    assert [output.request_id for output in watch(engine)] == [1]
    assert list(engine.requests()) == [2, 3]
    assert [output.token_ids for output in watch(engine)] == [
        own_tokens(engine.model, PROMPTS[1], 6), own_tokens(engine.model, PROMPTS[2], 9),
    ]  # fmt: skip
    assert_all_back(engine)


def test_prompts_and_steps_together_make_no_sense(notebook):
    engine = small_engine()
    with pytest.raises(ValueError, match="leave out either"):
        watch(engine, PROMPTS, steps=3)
    assert_nobody_listens(engine)


# Where nothing can be live


def test_live_the_page_is_not_replaced(notebook):
    watch(small_engine(), PROMPTS, PARAMS)
    assert notebook.updates == []


def test_a_notebook_that_is_run_to_be_read_ends_with_a_picture_of_the_fullest_moment(notebook, monkeypatch):
    monkeypatch.setenv("PAGEDKV_STATIC", "1")
    engine = small_engine()
    watch(engine, PROMPTS, PARAMS)
    [data] = notebook.updates
    assert "application/vnd.jupyter.widget-view+json" not in data
    assert data["image/svg+xml"].startswith("<svg")
    most = max(frame["numbers"]["used"] for frame in notebook.frames)
    assert f": {most} blocks in use" in data["text/plain"]
    assert most == engine.stats().peak_used_blocks

    other = Notebook()
    monkeypatch.setattr(watching, "display", other.display)
    watch(small_engine(), PROMPTS, PARAMS)
    assert other.updates == notebook.updates, "the same run gives the same picture"


def test_outside_a_notebook_it_prints_a_sentence_and_generates(capsys):
    engine = small_engine()
    outputs = watch(engine, PROMPTS[0], SamplingParams(max_tokens=4))
    assert outputs[0].token_ids == own_tokens(engine.model, PROMPTS[0], 4)
    assert capsys.readouterr().out == "Step 0: 0 blocks in use (0 shared), 0 cached, 24 free.\n"
    assert_nobody_listens(engine)


def test_tables_in_the_last_frame_are_those_of_who_still_runs(notebook):
    engine = small_engine()
    mine = engine.add_request(random_prompt(6, 2), SamplingParams(max_tokens=30))
    watch(engine, PROMPTS[:1], PARAMS[1])
    rows = {row["request"]: row for row in notebook.frames[-1]["sequences"]}
    offset, length = rows[mine]["table"]
    table = np.frombuffer(notebook.view.tables, np.int32)[offset : offset + length]
    assert table.tolist() == engine.manager.block_table(engine.requests()[mine].sequences[0])
    assert rows[mine + 1]["table"][1] == 0
