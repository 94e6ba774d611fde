"""A live view where nothing can be live: one SVG and one sentence, for GitHub, exported pages and terminals.

Knows what is in a frame. The colours are those of the other pictures: the background is transparent, and text is a grey
that stands out from a white page and from a dark one.
"""

import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from pagedkv_lab.blocks.snapshot import CACHED, FREE
from pagedkv_lab.show.style import BLUE, GREY, INK, sequence_colour, text_on
from pagedkv_lab.sizing import human_bytes

# All lengths are SVG units, a pixel each at 100 %.
_POOL_WIDTH, _CARD_WIDTH, _GAP = 560, 330, 24
_MAX_CELL, _MAX_HEIGHT = 34, 420
_TOP = 30
_MAX_CARDS, _LETTERS = 5, 52
_STATE, _REFS, _FILLED, _OWNER = range(4)
#: Beyond so many blocks, free ones are not outlined one by one.
_MANY = 8192


def sentence(frame: Any) -> str:
    """The frame in a sentence."""
    return _sentence(frame.step, frame.numbers)


def svg(frame: Any, meta: Mapping[str, Any], kind: str) -> str:
    """The frame as a picture; of kind "pool" without the sequences."""
    return _svg(frame.pool, meta, frame.step, frame.numbers, () if kind == "pool" else frame.sequences)


def sentence_of_recording(recording: Any) -> str:
    """A recording's frame with the most blocks in use, in a sentence."""
    if not len(recording):
        return "A recording without frames."
    frame = recording.frames[recording.busiest()]
    return f"A recording of {len(recording)} frames. {_sentence(frame['step'], frame['numbers'])}"


def svg_of_recording(recording: Any) -> str:
    """A recording's frame with the most blocks in use, as a picture."""
    if not len(recording):
        num_blocks = recording.meta["num_blocks"]
        numbers = {"free": num_blocks, "cached": 0, "used": 0, "shared": 0}
        return _svg(np.zeros((4, num_blocks), np.int32), recording.meta, 0, numbers, ())
    k = recording.busiest()
    frame = recording.frames[k]
    return _svg(recording.pool_at(k), recording.meta, frame["step"], frame["numbers"], recording.sequences_at(k))


def _sentence(step: int, numbers: Mapping[str, Any]) -> str:
    return (
        f"Step {step}: {numbers['used']} blocks in use ({numbers['shared']} shared), {numbers['cached']} cached, "
        f"{numbers['free']} free."
    )


def _svg(
    pool: np.ndarray,
    meta: Mapping[str, Any],
    step: int,
    numbers: Mapping[str, Any],
    sequences: Sequence[Mapping[str, Any]],
) -> str:
    num_blocks = pool.shape[1]
    columns = _columns(num_blocks)
    pitch = min(_MAX_CELL, _POOL_WIDTH / columns)
    grid_height = -(-num_blocks // columns) * pitch
    shapes = _cells(pool, meta["block_size"], columns, pitch)
    shapes += _legend(_TOP + grid_height + 20, numbers)
    height = _TOP + grid_height + 34
    width = _POOL_WIDTH
    if sequences:
        cards, bottom = _cards(sequences)
        shapes += cards
        width, height = _POOL_WIDTH + _GAP + _CARD_WIDTH, max(height, bottom)
    size = f"{num_blocks:,} blocks × {meta['block_size']} tokens · {human_bytes(num_blocks * meta['block_bytes'])}"
    title = (
        f'<text x="0" y="16"><tspan font-weight="600" font-size="14">KV pool</tspan>'
        f'<tspan dx="10">{escape(size)} · {_text(meta["model"])} · step {step}</tspan></text>'
    )
    says = escape(_sentence(step, numbers), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" '
        f'height="{_n(height)}" role="img" aria-label="{says}" font-family="system-ui, sans-serif" font-size="12" '
        f'fill="{INK}"><title>{says}</title>{title}{"".join(shapes)}</svg>'
    )


def _columns(num_blocks: int) -> int:
    """A multiple of 8 that makes the grid at most `_MAX_HEIGHT` high, and about as wide as the page allows."""
    columns = max(16, 8 * math.ceil(np.sqrt(num_blocks * _POOL_WIDTH / _MAX_HEIGHT) / 8))
    return min(columns, -(-num_blocks // 8) * 8)


def _cells(pool: np.ndarray, block_size: int, columns: int, pitch: float) -> list[str]:
    """All blocks of one look are one path: 4,096 single rectangles would be a heavy page."""
    side = pitch * 0.86
    paths: dict[tuple[str, float], list[str]] = defaultdict(list)  # (colour, opacity) -> rectangles
    free, hatch, rings, counts = [], defaultdict(list), [], []
    for block in range(pool.shape[1]):
        row, column = divmod(block, columns)
        x, y = column * pitch, _TOP + row * pitch
        state, refs, filled, owner = (int(value) for value in pool[:4, block])
        if state == FREE:
            free.append(_square(x + 0.5, y + 0.5, side - 1))
            continue
        colour = sequence_colour(owner) if owner else GREY
        if state == CACHED:
            paths[colour, 0.25].append(_square(x, y, side))
            hatch[colour].append(f"M{_n(x)} {_n(y + side)}l{_n(side)} {_n(-side)}")
            continue
        full = side * filled / block_size
        if filled < block_size:
            paths[colour, 0.3].append(_square(x, y, side))
        paths[colour, 1].append(_square(x, y + side - full, side, full))
        if refs > 1:
            rings.append((_square(x + side * 0.12, y + side * 0.12, side * 0.76), text_on(colour)))
            if side > 12:
                counts.append(_count(x + side / 2, y + side / 2, side, refs, text_on(colour)))
    shapes = []
    if free and pool.shape[1] <= _MANY:
        shapes.append(f'<path d="{"".join(free)}" fill="none" stroke="{INK}" stroke-opacity=".45" stroke-width=".8"/>')
    for (colour, opacity), squares in paths.items():
        shapes.append(f'<path d="{"".join(squares)}" fill="{colour}" fill-opacity="{opacity}"/>')
    for colour, lines in hatch.items():
        shapes.append(f'<path d="{"".join(lines)}" stroke="{colour}" stroke-width="{_n(max(0.8, side * 0.09))}"/>')
    for ink in ("white", "black"):
        if squares := [square for square, colour in rings if colour == ink]:
            width = _n(max(0.8, side * 0.07))
            shapes.append(f'<path d="{"".join(squares)}" fill="none" stroke="{ink}" stroke-width="{width}"/>')
    return shapes + counts


def _count(x: float, y: float, side: float, refs: int, ink: str) -> str:
    return (
        f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(side * 0.5)}" font-weight="600" fill="{ink}" '
        f'text-anchor="middle" dominant-baseline="central">{refs}</text>'
    )


def _legend(y: float, numbers: Mapping[str, Any]) -> list[str]:
    square = _square(0, -9, 10)
    looks = {
        "free": f'<path d="{square}" fill="none" stroke="{INK}" stroke-opacity=".6"/>',
        "cached": f'<path d="{square}" fill="{BLUE}" fill-opacity=".25"/><path d="M0 1l10 -10" stroke="{BLUE}"/>',
        "used": f'<path d="{square}" fill="{BLUE}"/>',
        "shared": f'<path d="{square}" fill="{BLUE}"/><path d="{_square(1.5, -7.5, 7)}" fill="none" stroke="white"/>',
    }
    names = {"free": "free", "cached": "cached, free", "used": "in use", "shared": "shared"}
    shapes, x = [], 0.0
    for name, look in looks.items():
        label = f"{names[name]} {numbers[name]}"
        shapes.append(f'<g transform="translate({_n(x)} {_n(y)})">{look}<text x="16">{label}</text></g>')
        x += 16 + 6.6 * len(label) + 18
    return shapes


def _cards(sequences: Sequence[Mapping[str, Any]]) -> tuple[list[str], float]:
    """The first few sequences, with the end of their text. Returns the shapes and where they end."""
    x, y, shapes = _POOL_WIDTH + _GAP, _TOP, []
    for row in sequences[:_MAX_CARDS]:
        lines = textwrap.wrap(f"{row['prompt']} {row['text']}".strip(), _LETTERS)[-3:]
        height = 30 + 16 * len(lines)
        shapes.append(
            f'<rect x="{x}" y="{y}" width="4" height="{height - 8}" rx="2" fill="{sequence_colour(row["id"])}"/>'
            f'<text x="{x + 12}" y="{y + 11}"><tspan font-weight="600">{_text(row["name"])}</tspan>'
            f'<tspan dx="8" fill-opacity=".8">{escape(_status(row))}</tspan></text>'
        )
        shapes += [
            f'<text x="{x + 12}" y="{y + 28 + 16 * i}" font-size="11.5">{_text(line)}</text>'
            for i, line in enumerate(lines)
        ]
        y += height + 6
    if (more := len(sequences) - _MAX_CARDS) > 0:
        shapes.append(f'<text x="{x + 12}" y="{y + 11}">and {more} more</text>')
        y += 20
    return shapes, y


def _status(row: Mapping[str, Any]) -> str:
    if row["status"] == "prefill":
        # Output tokens, too, where it is computed again.
        return f"prefill {row['computed']} / {row['prompt_tokens'] + row['output_tokens']}"
    names = {"decode": "decoding", "finished": "finished", "aborted": "stopped"}
    return f"{names.get(row['status'], row['status'])} · {row['prompt_tokens'] + row['output_tokens']} tokens"


def _text(text: str) -> str:
    """Text as XML can hold it: it has no way to say a control character, and a model says anything."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def _square(x: float, y: float, width: float, height: float | None = None) -> str:
    height = width if height is None else height
    return f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h{_n(-width)}z"


def _n(value: float) -> str:
    """A number as short as it can be said."""
    return f"{value:.1f}".rstrip("0").rstrip(".")
