"""The live views in JupyterLab in Chromium, on an engine with a toy model: what they show is what the engine does."""

import re

import pytest
from live_view import LiveView

ENGINE = """
from pagedkv_lab import Engine, SamplingParams, load_model
from pagedkv_lab.show import Playground, PoolView, Recording, record, replay, watch
engine = Engine(load_model("toy"), num_gpu_blocks=256, max_model_len=512)
"""
LONG = "What is a block table, and who keeps one for every sequence?"
PLAYGROUND = f"""
playground = Playground(engine, prompts=[{LONG!r}], max_tokens=400)
playground
"""
#: Blocks by what they are.
BLOCKS = """{
    name: [int(block) for block in blocks.nonzero()[0]] for s in [engine.snapshot()] for name, blocks in {
        "free": s.state == 0, "cached": s.state == 1, "partial": (s.state == 2) & (s.filled < s.block_size),
        "full": (s.state == 2) & (s.filled == s.block_size) & (s.ref_count == 1), "shared": s.ref_count > 1,
    }.items()
}"""
#: Block tables by the name of their sequence.
TABLES = "{seq.name: engine.manager.block_table(seq) for r in engine.requests().values() for seq in r.sequences}"
BLUE, ORANGE = (0x00, 0x72, 0xB2, 255), (0xE6, 0x9F, 0x00, 255)  # sequences 1 and 2
NOTHING = (0, 0, 0, 0)


@pytest.fixture
def playground(open_notebook):
    """A notebook with a playground on the page, and its view: one request waits, nothing has run."""
    notebook = open_notebook(ENGINE, PLAYGROUND)
    notebook.run_all()
    assert notebook.failed_cells() == []
    return notebook, LiveView(notebook.page)


def test_step_runs_one_step_and_no_more(playground):
    notebook, view = playground
    assert view.step == 0
    for expected in (1, 2, 3):
        view.press("Step")
        view.wait_for_step(expected)
        assert view.settled_step() == expected
        assert notebook.kernel.ask("engine.stats().steps") == expected
    assert view.phase == "paused"


def test_run_goes_on_by_itself_until_pause(playground):
    notebook, view = playground
    view.press("Run")
    view.wait_for_step(4)
    assert view.phase == "running"
    view.press("Pause")
    view.wait_for_running(False)
    stopped_at = view.settled_step()
    notebook.page.wait_for_timeout(1000)
    assert view.step == stopped_at
    assert notebook.kernel.ask("engine.stats().steps") == stopped_at
    view.press("Run")
    view.wait_for_step(stopped_at + 2)


def test_a_prompt_that_is_added_while_it_runs_is_served(playground):
    notebook, view = playground
    view.press("Run")
    view.wait_for_step(2)
    view.add("Tell me about eviction.")
    card = view.card("request 2")
    card.get_by_text("Tell me about eviction.").wait_for()
    text = card.locator(".pkv-text")
    lengths = []
    for _ in range(3):
        longer = "([node, length]) => node.textContent.length > length"
        notebook.wait_for(longer, [text.element_handle(), lengths[-1] if lengths else 0])
        lengths.append(len(text.text_content()))
    assert lengths == sorted(set(lengths))
    view.press("Pause")
    view.wait_for_running(False)
    view.settled_step()
    said = notebook.kernel.ask("engine.model.decode(engine.requests()[2].sequences[0].output_token_ids)")
    assert said.startswith(text.text_content()[:5])


def test_run_ends_when_nothing_is_left_and_goes_on_with_a_new_prompt(open_notebook):
    notebook = open_notebook(ENGINE, "playground = Playground(engine, prompts=['Hello'], max_tokens=3)\nplayground")
    notebook.run_all()
    view = LiveView(notebook.page)
    view.press("Run")
    view.wait("root => root.dataset.phase === 'done'")
    first_end = view.settled_step()
    view.add("Hello again")
    view.wait_for_step(first_end + 1)
    view.wait("root => root.dataset.phase === 'done'")
    assert notebook.kernel.ask("engine.stats().finished") == 2


def test_hover_tells_what_the_engine_knows_of_a_block(playground):
    notebook, view = playground
    view.add("Another")
    view.card("request 2").wait_for()
    for _ in range(20):  # into the fifth block
        view.press("Step")
    view.wait_for_step(20)
    view.card("request 1").get_by_role("button", name="fork").click()
    view.card("request 3").wait_for()
    blocks = notebook.kernel.ask(BLOCKS)
    assert all(blocks[kind] for kind in ("free", "partial", "shared"))
    for block in {kind[0] for kind in blocks.values() if kind}:
        references, filled = notebook.kernel.ask(
            f"[int(a[{block}]) for s in [engine.snapshot()] for a in (s.ref_count, s.filled)]"
        )
        holders = [name for name, table in notebook.kernel.ask(TABLES).items() if block in table]
        tip = view.hover(block)
        assert view.block_at(block) == block
        assert re.search(rf"\bblock {block}\b", tip)
        assert re.search(rf"\breferences:?\s+{references}\b", tip)
        assert re.search(rf"\bfilled:?\s+{filled} of 16 slots", tip)
        assert [name for name in ("request 1", "request 2", "request 3") if name in tip] == sorted(holders)


def test_a_block_looks_like_what_it_is(playground):
    notebook, view = playground
    # Request 2 comes to its end, and leaves what can be found again.
    notebook.kernel.run("playground.add('A prompt of its own, long enough for two blocks', max_tokens=2)")
    view.card("request 2").wait_for()
    for _ in range(4):
        view.press("Step")
    view.wait_for_step(4)
    view.card("request 2").get_by_text("finished").wait_for()
    blocks = notebook.kernel.ask(BLOCKS)
    assert blocks["shared"] == []
    full, cached, free = (view.cell(blocks[kind][0]) for kind in ("full", "cached", "free"))
    assert set(full.upper + full.lower) == {BLUE}
    # Hatched in the colour of who had it: neither empty nor full, and not the same everywhere.
    strengths = {pixel[3] for pixel in cached.lower}
    assert len(strengths) > 1
    assert min(strengths) > 0
    assert max(strengths) < 255
    strongest = max(cached.lower, key=lambda pixel: pixel[3])
    assert all(abs(is_ - should_be) < 8 for is_, should_be in zip(strongest[:3], ORANGE, strict=False))
    # An outline around nothing.
    assert set(free.upper + free.lower) == {NOTHING}
    assert free.edge[3] > 0


def test_a_block_fills_from_the_bottom(open_notebook):
    notebook = open_notebook(ENGINE, "playground = Playground(engine, prompts=[[72, 73]])\nplayground")
    notebook.run_all()
    view = LiveView(notebook.page)
    for step in range(1, 7):
        view.press("Step")
        view.wait_for_step(step)
    [block] = notebook.kernel.ask(BLOCKS)["partial"]
    assert notebook.kernel.ask(f"int(engine.snapshot().filled[{block}])") == 7
    cell = view.cell(block)
    assert set(cell.lower) == {BLUE}
    assert {pixel[3] < 255 for pixel in cell.upper} == {True}


def test_another_theme_repaints_what_is_there(playground):
    notebook, view = playground
    view.press("Step")
    view.wait_for_step(1)
    free = notebook.kernel.ask(BLOCKS)["free"][-1]
    background = "root => getComputedStyle(root.closest('.jp-Notebook')).backgroundColor"

    def look():
        return view.root.evaluate(background), view.cell(free).edge

    light = look()
    notebook.set_theme("dark")
    view.wait("root => root.dataset.theme === 'dark'")
    notebook.page.wait_for_timeout(100)
    dark = look()
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    notebook.set_theme("light")
    view.wait("root => root.dataset.theme === 'light'")
    notebook.page.wait_for_timeout(100)
    assert look() == light


def test_a_fork_shares_blocks_and_the_first_to_write_gets_a_copy(playground):
    notebook, view = playground
    for _ in range(2):
        view.press("Step")
    view.wait_for_step(2)
    table = notebook.kernel.ask(TABLES)["request 1"]
    view.card("request 1").get_by_role("button", name="fork").click()
    view.card("request 2").get_by_text("fork of request 1").wait_for()
    assert notebook.kernel.ask("engine.snapshot().ref_count.max().item()") == 2
    assert "shared by 2" in view.describe(table[0])
    view.press("Step")
    view.wait_for_step(3)
    copied = notebook.kernel.ask("engine.stats().copied_blocks")
    assert copied == 1
    assert "shared by 2" in view.describe(table[0])
    assert "shared" not in view.describe(table[-1])
    assert set(notebook.kernel.ask(BLOCKS)["shared"]) == set(table[:-1])


def test_stop_ends_a_request_and_its_blocks_are_back(playground):
    notebook, view = playground
    view.press("Step")
    view.wait_for_step(1)
    assert notebook.kernel.ask("engine.stats().pool.used") > 0
    view.card("request 1").get_by_role("button", name="stop").click()
    view.card("request 1").get_by_text("stopped").wait_for()
    assert notebook.kernel.ask("engine.stats().pool.used") == 0
    assert notebook.kernel.ask("engine.has_unfinished_requests()") is False


def test_another_block_size_builds_another_engine_with_the_same_prompts(playground):
    notebook, view = playground
    view.press("Step")
    view.wait_for_step(1)
    view.press("Settings")
    view.root.get_by_label("block size").select_option("32")
    view.press("Apply")
    view.root.get_by_text("256 blocks × 32 tokens").wait_for()
    assert notebook.kernel.ask("playground.engine.block_size") == 32
    assert notebook.kernel.ask("playground.engine is engine") is False
    view.press("Step")
    view.card("request 1").get_by_text("decoding").wait_for()
    assert "of 32 slots" in view.describe(0)


def test_a_contiguous_baseline_runs_beside_it(playground):
    _, view = playground
    view.press("Settings")
    view.root.get_by_label("contiguous baseline").check()
    view.press("Apply")
    view.root.get_by_text("contiguous, same memory: 8 rows of 512 slots").wait_for()
    view.press("Step")
    view.wait_for_step(1)
    assert view.root.locator("canvas:not(.pkv-pool):not(.pkv-swatch)").count() >= 2  # its rows, the history


def test_what_the_engine_refuses_is_said_on_the_page(playground):
    _, view = playground
    view.add("x" * 600)
    banner = view.root.get_by_role("alert")
    banner.get_by_text("512").wait_for()
    view.add("short")
    view.card("request 2").wait_for()
    banner.wait_for(state="hidden")


def test_two_views_of_a_playground_show_and_run_the_same(open_notebook):
    notebook = open_notebook(ENGINE, PLAYGROUND, "playground")
    notebook.run_all()
    one, other = LiveView(notebook.page, 0), LiveView(notebook.page, 1)
    one.press("Step")
    other.wait_for_step(1)
    other.press("Step")
    one.wait_for_step(2)
    assert notebook.kernel.ask("engine.stats().steps") == 2


def test_a_pool_view_follows_whoever_steps_the_engine(open_notebook):
    generate = "outputs = engine.generate(['Hello'], SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)"
    notebook = open_notebook(ENGINE, "PoolView(engine)", generate)
    notebook.run_cell(0)
    notebook.run_cell(1)
    view = LiveView(notebook.page)
    notebook.run_cell(2)
    steps = notebook.kernel.ask("engine.stats().steps")
    view.wait_for_step(steps)
    cached = notebook.kernel.ask(BLOCKS)["cached"][0]
    assert min(pixel[3] for pixel in view.cell(cached).lower) > 0
    assert "still findable" in view.describe(cached)


def test_watch_shows_the_run_while_the_cell_is_busy_and_stop_leaves_a_usable_engine(open_notebook):
    notebook = open_notebook(
        ENGINE,
        "outputs = watch(engine, ['Hello'] * 40, SamplingParams(max_tokens=450, ignore_eos=True))",
        "after = engine.generate(['Hello'], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)",
    )
    notebook.run_cell(0)
    notebook.begin_cell(1)
    view = LiveView(notebook.page)
    view.wait_for_step(5)
    assert view.phase == "running"
    notebook.interrupt()
    notebook.wait_until_done()
    assert notebook.failed_cells() == []
    assert notebook.kernel.ask("{o.finish_reason for r in outputs for o in r.outputs} >= {'abort'}") is True
    assert notebook.kernel.ask("engine.stats().pool.used") == 0
    view.wait("root => root.dataset.phase === 'stopped'")
    notebook.run_cell(2)
    assert notebook.kernel.ask("len(after[0].outputs[0].token_ids)") == 4


def test_a_recording_can_be_scrubbed(open_notebook):
    run = """
with record(engine) as recording:
    engine.generate(['Hello'], SamplingParams(max_tokens=30, ignore_eos=True), use_tqdm=False)
replay(recording, step=7)
"""
    notebook = open_notebook(ENGINE, run)
    notebook.run_all()
    view = LiveView(notebook.page)
    view.wait("root => root.dataset.step === '7'")
    frames = notebook.kernel.ask("len(recording)")
    assert frames > 20
    slider = view.root.get_by_role("slider", name="frame")
    steps = notebook.kernel.ask("[frame['step'] for frame in recording.frames]")
    for frame in (10, frames - 2, 3):
        slider.fill(str(frame))
        view.wait("(root, step) => root.dataset.step === String(step)", steps[frame])
        refs = notebook.kernel.ask(f"int((recording.pool_at({frame})[1] > 0).sum())")
        assert view.root.locator(".pkv-legend-entry", has_text="in use").locator("b").inner_text() == str(refs)
    view.press("play")
    view.wait_for_step(steps[3] + 2)


def test_an_exported_recording_is_a_page_that_needs_nothing_else(open_notebook, watched_context, tmp_path):
    run = f"""
with record(engine) as recording:
    engine.generate([{LONG!r}], SamplingParams(max_tokens=10, ignore_eos=True), use_tqdm=False)
recording.to_html({str(tmp_path / "run.html")!r})
"""
    notebook = open_notebook(ENGINE, run)
    notebook.run_all()
    assert notebook.failed_cells() == []
    context, _ = watched_context
    page = context.new_page()
    try:
        page.goto((tmp_path / "run.html").as_uri())
        view = LiveView(page)
        view.wait("root => root.dataset.step !== undefined")
        first = view.step
        view.press("next frame ( . )")
        view.wait_for_step(first + 1)
        assert view.cell(0).lower[0] == BLUE
    finally:
        page.close()
