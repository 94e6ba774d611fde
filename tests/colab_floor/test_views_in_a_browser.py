"""The live views on Colab's versions, in a browser: drawn, stepped, added to, interrupted."""

import pytest
from live_view import LiveView

ENGINE = """
from pagedkv_lab import Engine, SamplingParams, load_model
from pagedkv_lab.show import Playground, PoolView, record, replay, watch
engine = Engine(load_model("toy"), num_gpu_blocks=256, max_model_len=512)
"""
PLAYGROUND = "playground = Playground(engine, prompts=['What is a block table?'], max_tokens=400)\nplayground"
BLUE = (0x00, 0x72, 0xB2, 255)


@pytest.fixture
def playground(open_notebook):
    notebook = open_notebook(ENGINE, PLAYGROUND)
    notebook.run_all()
    return notebook, LiveView(notebook.page)


def test_the_pool_is_drawn_and_step_advances_it(playground):
    notebook, view = playground
    view.press("Step")
    view.wait_for_step(1)
    assert view.settled_step() == notebook.kernel.ask("engine.stats().steps") == 1
    full = notebook.kernel.ask("[int(b) for s in [engine.snapshot()] for b in (s.filled == 16).nonzero()[0]]")
    assert set(view.cell(full[0]).lower) == {BLUE}


def test_run_pause_and_a_prompt_added_while_it_runs(playground):
    notebook, view = playground
    view.press("Run")
    view.wait_for_step(3)
    view.add("Tell me about eviction.")
    view.card("request 2").get_by_text("decoding").wait_for()
    view.press("Pause")
    view.wait_for_running(False)
    stopped_at = view.settled_step()
    notebook.page.wait_for_timeout(1000)
    assert view.step == notebook.kernel.ask("engine.stats().steps") == stopped_at


def test_hover_tells_what_the_engine_knows(playground):
    notebook, view = playground
    view.press("Step")
    view.wait_for_step(1)
    filled = notebook.kernel.ask("engine.snapshot().filled.tolist()")
    tip = view.hover(1)
    assert "block 1" in tip
    assert f"{filled[1]} of 16 slots" in tip


def test_a_pool_view_follows_the_engine(open_notebook):
    generate = "_ = engine.generate(['Hello'], SamplingParams(max_tokens=9, ignore_eos=True), use_tqdm=False)"
    notebook = open_notebook(ENGINE, "PoolView(engine)", generate)
    notebook.run_all()
    view = LiveView(notebook.page)
    view.wait_for_step(notebook.kernel.ask("engine.stats().steps"))


def test_watch_is_shown_while_the_cell_is_busy(open_notebook):
    params = "SamplingParams(max_tokens=450, ignore_eos=True)"
    notebook = open_notebook(ENGINE, f"outputs = watch(engine, ['Hello'] * 20, {params})")
    notebook.begin()
    view = LiveView(notebook.page)
    view.wait_for_step(5)
    assert view.phase == "running"
    notebook.page.evaluate("() => { Jupyter.notebook.kernel.interrupt(); }")
    view.wait("root => root.dataset.phase === 'stopped'")
    assert notebook.kernel.ask("engine.stats().pool.used") == 0


def test_a_recording_can_be_scrubbed(open_notebook):
    run = """
with record(engine) as recording:
    engine.generate(['Hello'], SamplingParams(max_tokens=30, ignore_eos=True), use_tqdm=False)
replay(recording)
"""
    notebook = open_notebook(ENGINE, run)
    notebook.run_all()
    view = LiveView(notebook.page)
    steps = notebook.kernel.ask("[frame['step'] for frame in recording.frames]")
    view.root.get_by_role("slider", name="frame").fill("12")
    view.wait("(root, step) => root.dataset.step === String(step)", steps[12])
