"""A notebook open in JupyterLab, in a headless Chromium that draws the view on the cores that the engine runs on.

Knows the browser tests' driver. While a cell is against the clock, nothing is asked of the page: a question makes
it draw. Chromium has no GPU here, so it draws in software, which takes the cores' time: a worst case.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.view_protocol import DECODE, ROOT, SHOW, main, set_up
from pagedkv_lab.measure.timing import versions

sys.path.insert(0, str(ROOT / "tests" / "browser"))

from chromium import Watch, chromium
from lab_page import LabPage, Notebook, notebook_of
from lab_server import LAB, jupyter_server

TIMEOUT_S = 300
#: Seconds of rest before a cell is run, in which the page comes to rest, and after it, in which frames arrive.
SETTLE_S = 0.5

#: Notes the frames that the page draws: each drawing writes the frame's serial and its step to the view's root. One
#: that is drawn again was there before.
_NOTE_FRAMES = """root => {
    const name = () => `${root.dataset.step} ${root.dataset.serial}`;
    const before = name(), drawn = window.drawn = new Set();
    window.watchDrawing?.disconnect();
    window.watchDrawing = new MutationObserver(() => name() === before || drawn.add(name()));
    window.watchDrawing.observe(root, { attributeFilter: ["data-step", "data-serial"] });
}"""


class OpenNotebook:
    """A notebook open in a browser, with `rounds` made and their view put up."""

    def __init__(self, notebook: Notebook, watch: Watch, browser_version: str):
        self._notebook, self._page, self._kernel, self._watch = notebook, notebook.page, notebook.kernel, watch
        self.facts = {"versions": versions("jupyterlab", "playwright") | {"chromium": browser_version}}
        for cell in (0, 1):
            notebook.run_cell(cell, TIMEOUT_S)
        self._check()
        self._view = self._page.locator(".pkv")
        self._view.locator("canvas.pkv-pool").scroll_into_view_if_needed(timeout=30_000)

    def decode(self, arms: list[str], turns: int, steps: int, pause_s: float) -> dict[str, Any]:
        self._kernel.run(f"ask, result = ({arms!r}, {turns}, {steps}, {pause_s}), None")
        time.sleep(SETTLE_S)
        self._view.evaluate(_NOTE_FRAMES)
        self._notebook.begin_cell(2)
        while not self._kernel.ask("result is not None", TIMEOUT_S):  # once the cell runs, answered when it is over
            self._check()
            time.sleep(0.05)
        time.sleep(SETTLE_S)
        self._check()
        return self._kernel.ask("result") | {"arrived": self._page.evaluate("window.drawn.size")}

    def _check(self) -> None:
        for wrong in (self._notebook.failed_cells(), self._watch.errors):
            if wrong:
                raise RuntimeError(f"in the notebook: {wrong[0]}")


@contextmanager
def open_notebook(options: dict[str, Any]) -> Iterator[OpenNotebook]:
    """Raises NoBrowser where there is none."""
    with (
        chromium() as browser,
        tempfile.TemporaryDirectory() as folder,
        jupyter_server(Path(folder), LAB) as server,
    ):
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        watch = Watch(page.context, server.url)
        kernel = server.start_kernel()
        cells = notebook_of(set_up(options | {"worker": os.getpid()}), SHOW, DECODE)
        path = server.add_notebook("view", cells, kernel)
        yield OpenNotebook(LabPage(page, server).open(path, kernel), watch, browser.version)
        kernel.close()


if __name__ == "__main__":
    main(open_notebook)
