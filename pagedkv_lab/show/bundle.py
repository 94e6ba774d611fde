"""The browser's half of the live view, put together from the files in `web/`.

Knows their order. Does not know what they do: each opens with a comment that says so.
"""

from functools import cache
from importlib.resources import files

#: The scripts share one scope, so that no build step is needed; a later one may use what an earlier one defines.
SCRIPTS = (
    "theme.js",
    "surface.js",
    "block.js",
    "grid.js",
    "layer.js",
    "pool.js",
    "hover.js",
    "rows.js",
    "chart.js",
    "dom.js",
    "keys.js",
    "state.js",
    "player.js",
    "source.js",
    "replay_source.js",
    "pull.js",
    "chips.js",
    "cards.js",
    "log.js",
    "panels.js",
    "controls.js",
    "replay_bar.js",
    "view.js",
    "main.js",
)

STYLES = ("base.css", "controls.css", "panels.css", "cards.css", "tip.css")


@cache
def widget_module() -> str:
    """The ES module that anywidget loads."""
    return _scripts() + "\nexport default { initialize, render };\n"


@cache
def page_script() -> str:
    """The script of a page that shows a recording by itself."""
    return _scripts() + "\nshowPage();\n"


@cache
def style() -> str:
    """All CSS."""
    return "\n".join(read(name) for name in STYLES)


def read(name: str) -> str:
    """One file of `web/`."""
    return files("pagedkv_lab.show").joinpath("web", name).read_text(encoding="utf-8")


def _scripts() -> str:
    return "\n".join(read(name) for name in SCRIPTS)
