"""Chromium for tests: where it is, how it is started, and what a page that should be quiet says or asks for.

Knows playwright. Does not know Jupyter.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = (
    "--no-sandbox",  # refuses to start as root with it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No name is looked up: what a page asks of another host fails, whether or not this machine has a network.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)

#: Said by Lab where a notebook is closed right after it was opened.
_LABS_OWN = "Could not restore the debugger state: Canceled future"

INSTALL = (
    "`make browser` installs playwright; a Chromium comes with `apt-get install chromium` or `playwright install "
    "chromium`, or is named by its path in PAGEDKV_CHROMIUM"
)


class NoBrowser(Exception):
    """There is no playwright or no Chromium here; the message says which."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A running headless Chromium (playwright's Browser). Raises NoBrowser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoBrowser("playwright is not installed") from None
    with sync_playwright() as playwright:
        path = _find(playwright.chromium.executable_path)
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def _find(playwrights_own: str) -> str:
    named = os.environ.get("PAGEDKV_CHROMIUM")
    if named:
        if not shutil.which(named):
            raise NoBrowser(f"PAGEDKV_CHROMIUM={named} is not a program")
        return named
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None and Path(playwrights_own).exists():
        found = playwrights_own
    if found is None:
        raise NoBrowser("no Chromium or Chrome was found")
    return found


class Watch:
    """What the pages of one browser context complained about, and which other hosts they asked for something.

    errors: errors on the console and uncaught ones, as text. foreign: URLs outside `url`'s host and port;
    data:, blob: and file: are no host.
    """

    def __init__(self, context: Any, url: str):
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self._home = urlsplit(url).netloc
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.errors.append(f"uncaught: {error.error}"))
        context.on("request", lambda request: self._on_request(request.url))
        context.on("page", lambda page: page.on("websocket", lambda socket: self._on_request(socket.url)))

    def clear(self) -> None:
        self.errors.clear()
        self.foreign.clear()

    def _on_console(self, message: Any) -> None:
        if message.type == "error" and not message.text.startswith(_LABS_OWN):
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _on_request(self, url: str) -> None:
        address = urlsplit(url)
        if address.scheme not in ("data", "blob", "file") and address.netloc != self._home:
            self.foreign.append(url)
