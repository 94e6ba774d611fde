"""Fixtures of the tests on Colab's old versions. `make test-colab-floor` runs them; a plain `pytest` leaves them out.

Colab's own page can't be had outside of Colab. What stands for it here is the classic notebook of the same years:
ipywidgets 7.7.1's own widget manager and anywidget 0.9.21's own JavaScript, in Chromium, with a kernel of Colab's
versions behind them.
"""

import re
import sys
from pathlib import Path

import pytest

# The browser tests' driver.
sys.path.append(str(Path(__file__).parents[1] / "browser"))

from chromium import Watch
from lab_page import notebook_of
from lab_server import CLASSIC, jupyter_server
from needs_browser import browser, pytest_terminal_summary

__all__ = ["browser", "pytest_terminal_summary"]  # pytest finds them here

#: The last is there once ipywidgets' extension has been loaded: widgets that come before it are not shown.
_READY = """() => window.Jupyter?.notebook?._fully_loaded && Jupyter.notebook.kernel?.is_connected()
    && 'jupyter.widget' in Jupyter.notebook.kernel.comm_manager.targets"""
_RUN_ALL = "() => { Jupyter.notebook.execute_all_cells(); }"
_IS_DONE = """() => !Jupyter.notebook.kernel_busy && Jupyter.notebook.get_cells()
    .every(cell => cell.cell_type !== 'code' || typeof cell.input_prompt_number === 'number')"""
_FAILED = """() => Jupyter.notebook.get_cells().flatMap(cell => (cell.output_area?.outputs ?? [])
    .filter(output => output.output_type === 'error').map(output => `${output.ename}: ${output.evalue}`))"""


class ClassicNotebook:
    """A notebook that is open in the classic notebook. `page` is playwright's, `kernel` a line of our own to it."""

    def __init__(self, page, kernel):
        self.page, self.kernel = page, kernel

    def run_all(self, seconds=60):
        """Run all cells and wait until the last is done; fails where one fails."""
        self.begin()
        self.page.wait_for_function(_IS_DONE, timeout=seconds * 1000)
        assert self.page.evaluate(_FAILED) == []

    def begin(self):
        """Run all cells and go on at once."""
        self.page.evaluate(_RUN_ALL)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with jupyter_server(tmp_path_factory.mktemp("classic"), CLASSIC) as server:
        yield server


@pytest.fixture(scope="session")
def kernel(server):
    kernel = server.start_kernel()
    kernel.run("from pagedkv_lab.engine import load_model\nload_model('toy')")
    yield kernel
    kernel.close()


@pytest.fixture
def open_notebook(request, browser, server, kernel):
    """open_notebook(*cells): a `ClassicNotebook`. A test fails where its page logs an error or asks another host."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
    context.set_default_timeout(20_000)
    watch = Watch(context, server.url)
    paths = []

    def opened(*cells):
        name = re.sub(r"\W+", "-", request.node.name)
        paths.append(server.add_notebook(f"{name}-{len(paths)}", notebook_of(*cells), kernel))
        page = context.new_page()
        page.goto(f"{server.url}/notebooks/{paths[-1]}?token={server.token}")
        page.wait_for_function(_READY)
        return ClassicNotebook(page, kernel)

    yield opened
    context.close()
    for path in paths:
        server.remove_notebook(path)
    server.free(kernel)
    kernel.forget()
    assert watch.errors == [], "errors on the browser's console"
    assert watch.foreign == [], "requests to other hosts"
