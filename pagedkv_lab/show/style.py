"""The look of every picture: colours, and a figure that reads well on a light page and on a dark one.

Knows matplotlib and how a notebook shows a picture. Does not know what is drawn.

A picture can't follow the notebook's theme once it is drawn. So its background is transparent, and nothing in
it is black or white except on top of a colour: text is a grey that stands out from both backgrounds.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

#: Okabe-Ito colours, told apart by people with any kind of colour blindness. Sequences take them in turn.
BLUE, ORANGE, GREEN, PINK, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
SEQUENCE_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED)

#: Text and lines: the same contrast, 4.3 to 1, on white and on JupyterLab's dark #111.
INK = "#787882"
#: Fills for what is empty or wasted; always used with transparency.
GREY = "#8c8c98"

#: Pixels an inch on the page; the stored picture has `SHARPNESS` times as many.
PIXELS_PER_INCH, SHARPNESS = 100, 2

_RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": "none",
    "figure.constrained_layout.w_pad": 0.07,
    "figure.constrained_layout.h_pad": 0.05,
    "savefig.facecolor": "none",
    "hatch.linewidth": 0.8,
}


class Picture(Figure):
    """A matplotlib figure that shows itself, sharp, in any notebook, and as one sentence where there is only text.

    says: that sentence: what there is to see, with the numbers.
    """

    says: str = ""

    def png(self) -> bytes:
        """The picture as PNG, the same bytes each time."""
        buffer = io.BytesIO()
        with mpl.rc_context(_RC):
            self.savefig(buffer, format="png", dpi=PIXELS_PER_INCH * SHARPNESS, metadata={"Software": None})
        return buffer.getvalue()

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = self.get_size_inches() * PIXELS_PER_INCH
        return self.png(), {"width": round(width), "height": round(height)}

    def __repr__(self) -> str:
        return self.says or super().__repr__()

    __str__ = __repr__


@contextmanager
def picture(width: float, height: float, says: str, **options) -> Iterator[Picture]:
    """A new picture of `width` x `height` inches, to be drawn on inside the `with`; nothing global changes."""
    with mpl.rc_context(_RC):
        figure = Picture(figsize=(width, height), dpi=PIXELS_PER_INCH, **options)
        figure.says = says
        yield figure
        # Each drawing would nudge the layout once more: settle it, so that the picture is the same each time.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    _prefer_our_png()


def sequence_colour(seq_id: int) -> str:
    """Colour of a sequence by its id, from 1."""
    return SEQUENCE_COLOURS[(seq_id - 1) % len(SEQUENCE_COLOURS)]


def text_on(colour: str) -> str:
    """Black or white, whichever is read more easily on `colour` (WCAG's relative luminance)."""
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour))
    luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b
    return "white" if 1.05 / (luminance + 0.05) >= (luminance + 0.05) / 0.05 else "black"


def _prefer_our_png() -> None:
    """In a notebook that draws with pyplot too, its formatter for all figures would win over ours: register ours."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        shell.display_formatter.formatters["image/png"].for_type(Picture, Picture._repr_png_)
