"""A pool view costs an engine nothing before it is shown and after it is closed; in between it shows the last step."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from IPython.core.events import EventManager, available_events
from IPython.core.formatters import DisplayFormatter
from runs import small_engine
from tiny_models import random_prompt

from pagedkv_lab.engine import Engine, SamplingParams
from pagedkv_lab.show import PoolView
from pagedkv_lab.show import view as view_module

GREEDY = SamplingParams(max_tokens=30)
WIDGET = "application/vnd.jupyter.widget-view+json"


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(view_module, "time", clock)
    return clock


class Notebook:
    """What IPython and its kernel are to a view: cells that run, and end."""

    def __init__(self) -> None:
        self.events = EventManager(self, available_events)
        self.kernel = self
        self._runs, self._cell = 0, None

    def begin(self, cell: str) -> None:
        self._runs, self._cell = self._runs + 1, cell

    def end(self) -> None:
        self.events.trigger("post_run_cell", None)

    def get_parent(self, channel: str) -> dict[str, Any]:
        return {"metadata": {"cellId": self._cell}, "header": {"msg_id": f"run {self._runs}"}}

    @property
    def listeners(self) -> list[Any]:
        return self.events.callbacks["post_run_cell"]


@pytest.fixture
def notebook(monkeypatch) -> Notebook:
    shell = Notebook()
    monkeypatch.setattr(view_module, "_shell", lambda: shell)
    monkeypatch.setattr(view_module, "_views_of_cells", {})
    return shell


@pytest.fixture
def engine() -> Engine:
    engine = small_engine()
    engine.add_request(random_prompt(10), GREEDY)
    return engine


def frames_of(view: PoolView) -> list[dict]:
    """Filled with each frame that the view sends from now on."""
    frames: list[dict] = []
    view.observe(lambda change: frames.append(change["new"]), "frame")
    return frames


def assert_nobody_follows(engine: Engine) -> None:
    assert engine.listeners == engine.manager.listeners == []


def show(view: PoolView) -> dict[str, Any]:
    data, _ = view._repr_mimebundle_()
    return data


# Who follows the engine, and when


def test_nothing_follows_the_engine_before_the_view_is_shown(engine, notebook):
    view = PoolView(engine)
    assert_nobody_follows(engine)
    assert notebook.listeners == []
    engine.step()
    assert view.frame["step"] == 0
    show(view)
    assert view.frame["step"] == 1, "and when it is, it shows the pool as it is now"
    assert len(engine.listeners) == 2


@pytest.mark.parametrize("end", ["stop", "close"])
def test_nothing_follows_it_afterwards(engine, notebook, end):
    view = PoolView(engine)
    show(view)
    show(view)
    getattr(view, end)()
    getattr(view, end)()
    assert_nobody_follows(engine)
    assert notebook.listeners == []
    frames = frames_of(view)
    engine.step()
    notebook.end()
    assert frames == []


def test_one_that_was_never_shown_can_be_closed(engine):
    PoolView(engine).close()
    assert_nobody_follows(engine)


def test_the_browser_says_when_the_last_view_is_gone_and_when_one_is_back(engine, notebook):
    view = PoolView(engine)
    show(view)
    view._handle_custom_msg({"do": "views", "count": 0}, [])
    assert_nobody_follows(engine)
    engine.step()
    assert view.frame["step"] == 0
    view._handle_custom_msg({"do": "views", "count": 1}, [])
    assert view.frame["step"] == 1
    view._handle_custom_msg({"do": "views", "count": 2}, [])
    assert len(engine.listeners) == 2


def test_a_cell_that_runs_again_closes_what_it_made_before(engine, notebook):
    notebook.begin("a")
    first, second = PoolView(engine), PoolView(engine)
    show(first)
    show(second)
    assert len(engine.listeners) == 4, "two views of one run of a cell live side by side"
    notebook.begin("b")
    show(PoolView(engine))
    assert len(engine.listeners) == 6
    notebook.begin("a")
    third = PoolView(engine)
    assert len(engine.listeners) == 2, "the other cell's"
    show(third)
    assert len(engine.listeners) == 4
    assert first.comm is None
    assert third.comm is not None


def test_outside_a_notebook_a_view_can_be_made_shown_and_closed(engine):
    view = PoolView(engine)
    show(view)
    engine.step()
    view.close()
    assert_nobody_follows(engine)


# Which frames come


def test_the_last_step_of_a_cell_is_shown_when_the_cell_has_run(engine, notebook, clock):
    view = PoolView(engine)
    show(view)
    frames = frames_of(view)
    for _ in range(5):
        engine.step()
    assert frames == [], "no time has passed"
    notebook.end()
    assert [(frame["step"], frame["phase"]) for frame in frames] == [(5, "paused")]
    notebook.end()
    assert len(frames) == 1, "a cell in which nothing happened sends nothing"
    while engine.has_unfinished_requests():
        engine.step()
    notebook.end()
    assert [(frame["step"], frame["phase"]) for frame in frames[1:]] == [(30, "idle")]


def test_at_most_ten_frames_a_second_come_whatever_the_engine_s_speed(engine, notebook, clock):
    view = PoolView(engine)
    show(view)
    frames = frames_of(view)
    for _ in range(25):
        clock.now += 0.02
        engine.step()
    assert 4 <= len(frames) <= 5
    for _ in range(4):
        clock.now += 3
        engine.step()
    assert [frame["step"] for frame in frames[-4:]] == [26, 27, 28, 29], "slow steps are shown one by one"
    assert frames[-1]["phase"] == "running"


def test_a_frame_that_takes_long_comes_less_often(engine, notebook, clock, monkeypatch):
    """One that takes 20 ms may come twice a second: 4 % of the time."""
    view = PoolView(engine)
    show(view)
    take = view._source.frame

    def take_long(phase):
        clock.now += 0.02
        return take(phase)

    monkeypatch.setattr(view._source, "frame", take_long)
    frames = frames_of(view)
    for _ in range(30):
        clock.now += 0.1
        engine.step()
    assert 5 <= len(frames) <= 6


# What a frame is on its way to the browser


def test_a_frame_s_traits_say_what_the_engine_says(engine):
    second = engine.add_request(random_prompt(14), GREEDY)
    view = PoolView(engine)
    show(view)
    for _ in range(3):
        engine.step()
    view.push("running")
    snapshot = engine.snapshot()
    pool = np.frombuffer(view.pool, np.int32).reshape(7, -1)
    assert pool[0].tolist() == snapshot.state.tolist()
    assert pool[1].tolist() == snapshot.ref_count.tolist()
    tables = np.frombuffer(view.tables, np.int32)
    for row in view.frame["sequences"]:
        offset, length = row["table"]
        assert tables[offset : offset + length].tolist() == snapshot.tables[row["id"]].tolist()
    assert sum(row["table"][1] for row in view.frame["sequences"]) == len(tables)
    assert np.frombuffer(view.history, np.int32).reshape(4, -1)[0].tolist() == [1, 2, 3]
    assert (view.kind, view.frame["phase"], view.frame["step"]) == ("pool", "running", 3)
    assert view.frame["numbers"]["running"] == 2
    assert view.frame["sequences"][-1]["request"] == second
    assert view.meta == {
        "model": "letters",
        "num_blocks": 24,
        "block_size": 4,
        "block_bytes": engine.plan.pool_bytes // 24,
        "max_model_len": 48,
        "caching": True,
        "parts": [],
    }


def test_no_two_frames_have_the_same_number(engine):
    view = PoolView(engine)
    frames = frames_of(view)
    show(view)
    view.push()
    view.stop()
    show(view)
    serials = [frame["serial"] for frame in frames]
    assert len(set(serials)) == len(serials) == 3


def test_what_lies_in_a_block_is_told_on_the_side_and_when_asked_for(engine):
    view, sent = PoolView(engine), []
    show(view)
    view.send = lambda content, buffers=None: sent.append(content)
    engine.step()
    view.push()
    [told] = sent
    assert told["kind"] == "details"
    assert set(told["blocks"]) == {"0", "1", "2"}
    view._handle_custom_msg({"do": "block", "block": 1}, [])
    assert sent[-1] == {"kind": "details", "asked": True, "blocks": {"1": told["blocks"]["1"]}}


# Where no browser runs it


def test_it_comes_with_a_widget_a_picture_and_a_sentence(engine, monkeypatch):
    monkeypatch.delenv("PAGEDKV_STATIC", raising=False)
    view = PoolView(engine)
    data = show(view)
    assert data[WIDGET]["model_id"] == view.model_id
    assert data["image/svg+xml"].startswith("<svg")
    assert data["text/plain"] == "Step 0: 0 blocks in use (0 shared), 0 cached, 24 free."
    engine.step()
    assert show(view)["text/plain"] == "Step 1: 3 blocks in use (0 shared), 0 cached, 21 free."


def test_a_notebook_shows_it_with_all_three(engine, monkeypatch):
    monkeypatch.delenv("PAGEDKV_STATIC", raising=False)
    formatter = DisplayFormatter()
    formatter.active_types = [*formatter.format_types, WIDGET]
    data, _ = formatter.format(PoolView(engine))
    assert {WIDGET, "image/svg+xml", "text/plain"} <= set(data)


def test_picture_and_sentence_are_the_same_each_time():
    def run() -> dict[str, Any]:
        engine = small_engine()
        view = PoolView(engine)
        show(view)
        engine.generate([random_prompt(10), random_prompt(14)], GREEDY, use_tqdm=False)
        data = show(view)
        view.close()
        return {name: data[name] for name in ("text/plain", "image/svg+xml")}

    assert run() == run()


@pytest.mark.parametrize(("value", "static"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_in_a_notebook_that_is_run_to_be_read_it_is_a_picture_alone(engine, monkeypatch, value, static):
    monkeypatch.setenv("PAGEDKV_STATIC", value)
    assert (WIDGET not in show(PoolView(engine))) == static


def test_the_pool_s_picture_has_no_cards(engine):
    engine.step()
    view = PoolView(engine)
    assert "request 1" not in show(view)["image/svg+xml"]


def test_several_engines_have_views_of_their_own():
    engines = [small_engine(num_gpu_blocks=size) for size in (8, 16)]
    views = [PoolView(engine) for engine in engines]
    for view in views:
        show(view)
    engines[0].generate([random_prompt(5)], SamplingParams(max_tokens=2), use_tqdm=False)
    for view in views:
        view.push()
    assert [view.frame["step"] for view in views] == [2, 0]
    assert [len(view.pool) for view in views] == [8 * 7 * 4, 16 * 7 * 4]
    assert SimpleNamespace(**views[1].meta).num_blocks == 16
