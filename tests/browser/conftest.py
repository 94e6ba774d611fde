"""Fixtures of the browser tests: one JupyterLab in one Chromium, and one kernel, for all.

Each test opens a notebook of its own and leaves nothing behind; a page of Lab and a kernel that has loaded torch take
so long to start that every test shares them. `make browser` runs these tests; a plain `pytest` leaves them out.
"""

import re

import pytest
from chromium import Watch
from lab_page import LabPage, notebook_of
from lab_server import LAB, jupyter_server
from needs_browser import browser, pytest_terminal_summary

__all__ = ["browser", "pytest_terminal_summary"]  # pytest finds them here


@pytest.fixture(scope="session")
def lab(browser, tmp_path_factory):
    """The server. It comes after the browser: without one there is nothing to start."""
    with jupyter_server(tmp_path_factory.mktemp("lab"), LAB) as server:
        yield server


@pytest.fixture(scope="session")
def warm_kernel(lab):
    """One kernel for all tests, the course's modules loaded: a new one each would take seconds of every test."""
    kernel = lab.start_kernel()
    kernel.run("from pagedkv_lab.engine import load_model\nload_model('toy')")
    yield kernel
    kernel.close()


@pytest.fixture(scope="session")
def watched_context(browser, lab):
    """A browser context (playwright's), as good as a new profile, and the `Watch` over its pages."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
    context.set_default_timeout(20_000)
    return context, Watch(context, lab.url)


@pytest.fixture(scope="session")
def lab_page(lab, watched_context):
    return LabPage(watched_context[0].new_page(), lab)


@pytest.fixture
def watch(watched_context):
    """What the pages of this test do that they should not: whatever it looks at, it fails where there is any.

    A test that brings it about on purpose clears it.
    """
    _, watch = watched_context
    watch.clear()
    yield watch
    assert watch.errors == [], "errors on the browser's console"
    assert watch.foreign == [], "requests to other hosts"


@pytest.fixture
def open_notebook(request, watch, lab, lab_page, warm_kernel):
    """open_notebook(*cells) or open_notebook(path): a `Notebook` that is open in Lab, nothing run yet."""
    paths = []

    def opened(*cells):
        notebook = cells[0] if len(cells) == 1 and not isinstance(cells[0], str) else notebook_of(*cells)
        name = re.sub(r"\W+", "-", request.node.name)
        paths.append(lab.add_notebook(f"{name}-{len(paths)}", notebook, warm_kernel))
        return lab_page.open(paths[-1], warm_kernel)

    yield opened
    lab_page.close_all()
    for path in paths:
        lab.remove_notebook(path)
    lab.free(warm_kernel)
    warm_kernel.forget()
