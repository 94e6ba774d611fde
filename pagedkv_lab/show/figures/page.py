"""A page for drawings that are no charts: lengths in inches from the top left, text that is measured and clipped.

Knows matplotlib and the font. Does not know what is drawn.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path
from matplotlib.text import Text

from pagedkv_lab.show.style import PIXELS_PER_INCH, SHARPNESS, Picture, picture

WIDTH = 7.8  # inches, of every picture
FONT = "DejaVu Sans"  # comes with matplotlib
_SHOWN_AS = {"\n": "↵", "\r": "↵", "\t": "⇥", "\u00a0": " "}


@contextmanager
def page(height: float, says: str, width: float = WIDTH) -> Iterator[tuple[Picture, Axes]]:
    """A picture that is one empty page, and the axes to draw on it: an inch is 1, y runs down."""
    with picture(width, height, says) as figure:
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        yield figure, axes


def write(axes: Axes, x: float, y: float, text: str, **style) -> Text:
    """Text centred on the line y. What tokens contain is written as it is: no formulas, no characters without shape."""
    style = {"size": 9.5, "va": "center_baseline"} | style
    return axes.text(x, y, printable(text), parse_math=False, **style)


def printable(text: str) -> str:
    """`text` in one line; what has no shape in the font, as a box."""
    return "".join(_SHOWN_AS.get(c, c if c in _SHOWN_AS or _has_shape(c) else "□") for c in text)


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Inches from the beginning of `text` at `size` points to where the next word would begin."""
    font = FontProperties(family=FONT, size=size, weight=weight)

    def ink(text: str) -> float:
        return _renderer().get_text_width_height_descent(text, font, ismath=False)[0] / _renderer().dpi

    # Ink alone leaves out spaces at both ends: measure between two strokes.
    return ink(f"|{printable(text)}|") - ink("||")


def clip(text: str, width: float, size: float, weight: str = "normal") -> str:
    """`text`, or as much of its beginning as fits into `width` inches, with an ellipsis."""
    text = printable(text)
    if text_width(text, size, weight) <= width:
        return text
    while text and text_width(text + "…", size, weight) > width:
        text = text[:-1]
    return text.rstrip() + "…" if text else ""


def escaped(text: str) -> str:
    """`text` for where matplotlib would read a formula between two dollars."""
    return printable(text).replace("$", r"\$")


def plural(count: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def box(axes: Axes, x: float, y: float, width: float, height: float, **style) -> FancyBboxPatch:
    """A box with slightly round corners."""
    shape = "round,pad=0,rounding_size=0.045"
    return axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, **style))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, dashes=None) -> None:
    """A curve that leaves to the right and comes in from the left, with a head."""
    (x0, y0), (x1, y1) = start, end
    head, bend = 0.09, (x1 - x0) * 0.45
    points = [(x0, y0), (x0 + bend, y0), (x1 - bend, y1), (x1 - head, y1)]
    line = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    style = {"linewidth": 1.3, "linestyle": (0, dashes) if dashes else "-"}
    axes.add_patch(PathPatch(line, fill=False, edgecolor=colour, **style))
    tip = [(x1, y1), (x1 - head, y1 - head * 0.45), (x1 - head, y1 + head * 0.45)]
    axes.add_patch(Polygon(tip, facecolor=colour, edgecolor="none"))


@cache
def _renderer() -> RendererAgg:
    """What the stored picture is drawn with: at another sharpness, hinting makes letters a little wider or narrower."""
    return RendererAgg(1, 1, PIXELS_PER_INCH * SHARPNESS)


@cache
def _has_shape(character: str) -> bool:
    return character == " " or bool(get_font(findfont(FontProperties(family=FONT))).get_char_index(ord(character)))
