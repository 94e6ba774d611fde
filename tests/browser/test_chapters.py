"""Chapter 00 as a learner opens it: everything runs, the pool is drawn, and the buttons work."""

from pathlib import Path

from live_view import LiveView

#: Whether each card's status, as it is rendered, is what the page says that it is. Lab needs a moment to bring it back.
ALL_SEEN = """root => {
    const cards = [...root.querySelectorAll(".pkv-card .pkv-status")];
    return cards.length > 0 && cards.every((card) => card.textContent && card.innerText === card.textContent);
}"""

START_HERE = Path(__file__).resolve().parents[2] / "notebooks/00_start_here.ipynb"


def test_start_here_runs_and_its_pool_can_be_run_on(open_notebook):
    notebook = open_notebook(START_HERE)
    notebook.run_all(seconds=200)
    assert notebook.failed_cells() == []
    view = LiveView(notebook.page, kind="playground")
    view.canvas.locator.scroll_into_view_if_needed()
    rect = view.root.bounding_box()
    assert rect["width"] > 400
    shown = view.canvas.locator.evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value)"
    )
    assert shown, "the pool's canvas is empty"
    before = view.step
    view.press("Step")
    view.wait_for_step(before + 1)
    view.press("Run")
    view.wait_for_step(before + 3, seconds=60)
    view.press("Pause")
    view.wait_for_running(False)


def test_what_changed_off_the_screen_is_there_when_the_reader_scrolls_to_it(open_notebook):
    """A view draws while JupyterLab keeps it off the screen; its cards must not be left without their newest text."""
    notebook = open_notebook(START_HERE)
    notebook.run_all(seconds=200)
    for kind in ("watch", "replay", "playground"):
        view = LiveView(notebook.page, kind=kind)
        view.canvas.locator.scroll_into_view_if_needed()
        view.wait(ALL_SEEN)
