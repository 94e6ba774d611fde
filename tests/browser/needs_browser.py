"""The fixture `browser`, and what is said where there is none; for every conftest whose tests look at a page.

Without a browser those tests are skipped, and the last lines of the run say so; with PAGEDKV_REQUIRE_BROWSER=1 (CI)
they fail.
"""

import contextlib
import os

import pytest
from chromium import INSTALL, NoBrowser, chromium

_missing: list[str] = []


@pytest.fixture(scope="session")
def browser():
    """A running Chromium, playwright's Browser."""
    with contextlib.ExitStack() as stack:
        running, why = None, None
        try:
            running = stack.enter_context(chromium())
        except NoBrowser as error:
            why = str(error)
        if why is not None and os.environ.get("PAGEDKV_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{why}. {INSTALL}", pytrace=False)
        if why is not None:
            _missing[:] = [why]
            pytest.skip(why)
        yield running


def pytest_terminal_summary(terminalreporter):
    for why in _missing:
        skipped = len(terminalreporter.getreports("skipped"))
        style = {"red": True, "bold": True}
        terminalreporter.section("NOT TESTED IN A BROWSER", sep="!", **style)
        terminalreporter.write_line(f"{why}, so {skipped} tests were NOT run. To run them:", **style)
        terminalreporter.write_line(INSTALL, **style)
