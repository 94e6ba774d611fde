"""Looking at a picture: its texts, its pixels, and whether everything is on the page."""

import io

import matplotlib.image
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.text import Text


def texts(picture) -> list[str]:
    """What is written anywhere in the picture."""
    return [text.get_text() for text in picture.findobj(Text) if text.get_visible() and text.get_text()]


def pixels(picture) -> np.ndarray:
    """The picture as (height, width, 4) numbers from 0 to 1."""
    return matplotlib.image.imread(io.BytesIO(picture.png()))


def share_of(colour: str, picture) -> float:
    """The share of all pixels that have this colour, opaque."""
    image = pixels(picture)
    same = (np.abs(image[..., :3] - to_rgb(colour)).max(axis=-1) < 0.02) & (image[..., 3] > 0.98)
    return float(same.mean())


def is_on_the_page(picture) -> bool:
    """Whether nothing is drawn, or written, beyond the picture's edge."""
    picture.draw_without_rendering()
    drawn, (width, height) = picture.get_tightbbox(), picture.get_size_inches()
    slack = 1e-6
    return min(drawn.x0, drawn.y0) >= -slack and drawn.x1 <= width + slack and drawn.y1 <= height + slack
