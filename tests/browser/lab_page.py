"""JupyterLab in a browser and a notebook open in it: run it, stop it, change the theme, look at a canvas.

Knows Lab's commands and the widget's canvas. Does not know how the server or the browser was started.
"""

import time
from collections.abc import Iterable
from typing import Any

import nbformat
from lab_server import JupyterServer, Kernel

#: Clicking a menu races with Lab's own start; a command that is given once all of this holds does not.
_READY = """path => {
    const widget = window.jupyterapp?.shell?.currentWidget;
    if (widget?.context?.path !== path || !widget.context.isReady || !widget.sessionContext.isReady) return false;
    const kernel = widget.sessionContext.session?.kernel;
    return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
#: Runs a command and remembers when what it began has ended.
_COMMAND = """([name, args]) => {
    window.commandDone = false;
    window.jupyterapp.commands.execute(name, args).finally(() => { window.commandDone = true; });
}"""
#: Lab covers the page while it loads a theme, and trips over a second change before the cover is off again.
_THEME_IS_ON = """light => document.body.dataset.jpThemeLight === light
    && !document.getElementById('jupyterlab-splash')"""
_FAILED = """() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells.flatMap(cell =>
    (cell.cell_type === 'code' ? cell.getOutputs() : []).filter(output => output.output_type === 'error')
        .map(output => `${output.ename}: ${output.evalue}`))"""

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


def notebook_of(*sources: str) -> nbformat.NotebookNode:
    """A notebook of these code cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


class LabPage:
    """JupyterLab in a page of playwright's. It takes seconds to load, so tests open their notebooks in the same one."""

    def __init__(self, page: Any, server: JupyterServer):
        self.page = page
        page.goto(f"{server.url}/lab?token={server.token}&reset", wait_until="domcontentloaded")
        page.wait_for_function("() => window.jupyterapp?.shell", timeout=60_000)
        page.evaluate("() => window.jupyterapp.restored.then(() => window.jupyterapp.shell.collapseLeft())")

    def open(self, path: str, kernel: Kernel) -> "Notebook":
        command(self.page, "docmanager:open", path=path, factory="Notebook")
        self.page.wait_for_function(_READY, arg=path, timeout=60_000)
        return Notebook(self.page, kernel)

    def close_all(self) -> None:
        """Close what is open without asking whether it should be saved, and go back to the light theme."""
        self.page.evaluate("() => [...window.jupyterapp.shell.widgets('main')].forEach(widget => widget.dispose())")
        set_theme(self.page, "light")


def command(page: Any, name: str, **arguments: Any) -> None:
    """Give one of Lab's commands and go on at once."""
    page.evaluate(_COMMAND, [name, arguments])


def set_theme(page: Any, theme: str) -> None:
    """theme: "light" or "dark"."""
    if page.evaluate(_THEME_IS_ON, str(theme == "light").lower()):
        return
    command(page, "apputils:change-theme", theme=THEMES[theme])
    page.wait_for_function(_THEME_IS_ON, arg=str(theme == "light").lower())


class Notebook:
    """One notebook, in front in Lab. `page` is playwright's, `kernel` a line of our own to its kernel."""

    def __init__(self, page: Any, kernel: Kernel):
        self.page, self.kernel = page, kernel

    # Cells

    def run_all(self, seconds: float = 60) -> None:
        """Run all cells and wait until the last is done; one that fails stops those below it, see `failed_cells`."""
        command(self.page, "notebook:run-all-cells")
        self.wait_until_done(seconds)

    def run_cell(self, index: int, seconds: float = 60) -> None:
        self.begin_cell(index)
        self.wait_until_done(seconds)

    def begin_cell(self, index: int) -> None:
        """Start a cell and go on at once."""
        self.page.evaluate("i => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = i; }", index)
        command(self.page, "notebook:run-cell")

    def wait_until_done(self, seconds: float = 60) -> None:
        self.page.wait_for_function("() => window.commandDone", timeout=seconds * 1000)

    def interrupt(self) -> None:
        """What the stop button does."""
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt()")

    def failed_cells(self) -> list[str]:
        return self.page.evaluate(_FAILED)

    # Looks

    def set_theme(self, theme: str) -> None:
        """theme: "light" or "dark"."""
        set_theme(self.page, theme)

    def wait_for(self, condition: str, arg: Any = None, seconds: float = 20) -> None:
        """Wait until a JavaScript function of `arg` says true."""
        self.page.wait_for_function(condition, arg=arg, timeout=seconds * 1000)


class Canvas:
    """A canvas on the page, in CSS pixels from its top left corner. `locator` is playwright's."""

    def __init__(self, locator: Any):
        self.locator = locator

    def pixel(self, x: float, y: float) -> tuple[int, int, int, int]:
        """Red, green, blue and alpha, 0 to 255, of what was drawn there."""
        return self.pixels([(x, y)])[0]

    def pixels(self, points: Iterable[tuple[float, float]]) -> list[tuple[int, int, int, int]]:
        """The same for many points, all of one moment."""
        read = """(canvas, points) => {
            const image = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            const across = canvas.width / canvas.clientWidth, down = canvas.height / canvas.clientHeight;
            return points.map(([x, y]) => {
                const i = 4 * (Math.floor(y * down) * canvas.width + Math.floor(x * across));
                return [...image.slice(i, i + 4)];
            });
        }"""
        return [tuple(pixel) for pixel in self.locator.evaluate(read, list(points))]

    def hover(self, x: float, y: float) -> None:
        self.locator.scroll_into_view_if_needed()
        self.locator.hover(position={"x": x, "y": y})

    def click(self, x: float, y: float) -> None:
        self.locator.click(position={"x": x, "y": y})


def settled(read, seconds: float = 5, quiet: float = 0.3) -> Any:
    """The value of `read()` once it has been the same for `quiet` seconds; AssertionError where it never is."""
    deadline = time.monotonic() + seconds
    value, since = read(), time.monotonic()
    while time.monotonic() - since < quiet:
        assert time.monotonic() < deadline, f"still changing after {seconds} s"
        time.sleep(0.05)
        if (new := read()) != value:
            value, since = new, time.monotonic()
    return value
