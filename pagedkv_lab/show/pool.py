"""The block pool as a picture and as text: what each block is, who holds it, how full it is.

Knows `PoolSnapshot`, arrays by block number. Does not know the engine, the manager or any part.
"""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle
from matplotlib.textpath import TextPath

from pagedkv_lab.blocks.snapshot import CACHED, FREE, USED, PoolSnapshot
from pagedkv_lab.show.style import BLUE, GREY, INK, SEQUENCE_COLOURS, Picture, picture, sequence_colour, text_on

# All lengths in this file are inches on the page.
_WIDTH = 7.8
_PITCH = 0.36  # from one block to the next, where there is room
_SIDE = 0.84  # of a block, in pitches
_MARGIN = 0.04
_SWATCH = 0.14  # a block's side in the legend


def pool_counts(snapshot: PoolSnapshot) -> dict[str, int]:
    """Blocks by what they are. "shared" and "partly filled" are among those "in use"."""
    used = snapshot.state == USED
    return {
        "free": int((snapshot.state == FREE).sum()),
        "cached": int((snapshot.state == CACHED).sum()),
        "in use": int(used.sum()),
        "shared": int((snapshot.ref_count > 1).sum()),
        "partly filled": int((used & (snapshot.filled < snapshot.block_size)).sum()),
    }


def pool_sentence(snapshot: PoolSnapshot) -> str:
    """The pool in one sentence, for a screen reader or a log."""
    counts = pool_counts(snapshot)
    return (
        f"{snapshot.num_blocks} blocks of {snapshot.block_size} tokens: {counts['free']} free, {counts['cached']} "
        f"cached, {counts['in use']} in use ({counts['shared']} shared, {counts['partly filled']} partly filled)."
    )


def pool_text(snapshot: PoolSnapshot) -> str:
    """The pool as characters, one a block, for a terminal.

    A letter is a sequence (A is sequence 1), small where the block is partly filled; a digit is the number of
    sequences that share the block (9: nine or more).
    """
    cells = [_character(snapshot, block) for block in range(snapshot.num_blocks)]
    columns = 64 if snapshot.num_blocks > 256 else 32
    groups = ["".join(cells[i : i + 8]) for i in range(0, len(cells), 8)]
    per_row = columns // 8
    rows = [" ".join(groups[i : i + per_row]) for i in range(0, len(groups), per_row)]
    counts = pool_counts(snapshot)
    return "\n".join(
        [
            f"{snapshot.num_blocks} blocks x {snapshot.block_size} tokens, step {snapshot.step}",
            *rows,
            f". free {counts['free']}   : cached {counts['cached']}   letters, digits: in use {counts['in use']} "
            f"(shared {counts['shared']}, partly filled {counts['partly filled']})",
        ]
    )


def pool_picture(snapshot: PoolSnapshot) -> Picture:
    """The pool as a grid, block 0 at the top left, made for 16 to 4,096 blocks.

    An outline is a free block. Hatched: free, its contents still findable. Coloured: in use, the colour is the
    sequence (of several, the oldest), the height is how full it is. A ring and a number: shared by so many.
    """
    columns = _columns(snapshot.num_blocks)
    rows = -(-snapshot.num_blocks // columns)
    pitch = min(_PITCH, (_WIDTH - 2 * _MARGIN) / columns)
    legend = [_state_legend(snapshot)]
    owners = [int(owner) for owner in np.unique(snapshot.owner[snapshot.state == USED])]
    if 1 < len(owners) <= len(SEQUENCE_COLOURS):  # with more of them, colours repeat
        legend.append([(_Look(USED, sequence_colour(owner)), f"sequence {owner}") for owner in owners])

    above = 0.28
    height = above + rows * pitch + 0.06 + 0.24 * len(legend)
    with picture(_WIDTH, height, pool_sentence(snapshot)) as figure:
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(height, 0))
        axes.set_axis_off()
        axes.text(_MARGIN, 0.13, "KV pool", weight="bold", size=11, va="center_baseline")
        size = f"{snapshot.num_blocks:,} blocks × {snapshot.block_size} tokens"
        axes.text(_MARGIN + 0.78, 0.13, f"{size} · step {snapshot.step}", va="center_baseline")
        blocks = []
        for block in range(snapshot.num_blocks):
            row, column = divmod(block, columns)
            blocks.append((_MARGIN + column * pitch, above + row * pitch, _look(snapshot, block)))
        _draw_all(axes, blocks, pitch * _SIDE)
        for i, entries in enumerate(legend):
            _draw_legend(axes, above + rows * pitch + 0.08 + 0.24 * i, entries)
    return figure


@dataclass(frozen=True)
class _Look:
    """What one block looks like. share: how full, 0 to 1."""

    state: int
    colour: str = GREY
    share: float = 1.0
    holders: int = 1


def _look(snapshot: PoolSnapshot, block: int) -> _Look:
    if snapshot.state[block] != USED:
        return _Look(int(snapshot.state[block]))
    share = float(snapshot.filled[block] / snapshot.block_size)
    return _Look(USED, sequence_colour(int(snapshot.owner[block])), share, int(snapshot.ref_count[block]))


def _draw_all(axes: Axes, blocks: list[tuple[float, float, _Look]], side: float) -> None:
    """Blocks of one size. What they have in common is drawn at once: 4,096 single patches would take seconds."""
    fine = side > 0.1  # smaller ones get no round corners and no numbers
    boxes, lines, tops = [], [], []
    for x, y, look in blocks:
        if look.state == FREE:
            boxes.append(_box(x, y, side, facecolor="none", edgecolor=(INK, 0.5), linewidth=0.7 if fine else 0.4))
        elif look.state == CACHED:
            boxes.append(_box(x, y, side, facecolor=(GREY, 0.25), edgecolor="none"))
            lines += _diagonals(x, y, side, 4 if fine else 1)
        elif look.share < 1:
            empty = side * (1 - look.share)
            back = _box(x, y, side, facecolor=(look.colour, 0.3), edgecolor="none")
            boxes.append(back)
            tops.append((Rectangle((x, y + empty), side, side - empty, facecolor=look.colour), x, y))
        else:
            boxes.append(_box(x, y, side, facecolor=look.colour, edgecolor="none"))
    axes.add_collection(PatchCollection(boxes, match_original=True))
    axes.add_collection(LineCollection(lines, colors=GREY, linewidths=1.2 if fine else 0.6, capstyle="butt"))
    for fill, x, y in tops:
        axes.add_patch(fill).set_clip_path(axes.add_patch(_box(x, y, side, facecolor="none", edgecolor="none")))
    for x, y, look in blocks:
        if look.holders > 1:
            _draw_holders(axes, x, y, side, look)


def _draw_holders(axes: Axes, x: float, y: float, side: float, look: _Look) -> None:
    """A ring, and how many sequences share the block."""
    inset, ink = side * 0.11, text_on(look.colour)
    ring = {"fill": False, "edgecolor": ink, "linewidth": max(0.6, side * 4.5)}
    axes.add_patch(_box(x + inset, y + inset, side - 2 * inset, **ring))
    if side > _SWATCH:
        centre = {"ha": "center", "va": "center_baseline"}
        axes.text(x + side / 2, y + side / 2, str(look.holders), color=ink, size=side * 34, weight="bold", **centre)


def _box(x: float, y: float, side: float, **style) -> Patch:
    if side <= 0.1:
        return Rectangle((x, y), side, side, **style)
    return FancyBboxPatch((x, y), side, side, boxstyle=f"round,pad=0,rounding_size={side * 0.14}", **style)


def _diagonals(x: float, y: float, side: float, count: int) -> list[list[tuple[float, float]]]:
    """`count` parallel lines from bottom left to top right, cut off at the block's sides, as pairs of points."""
    lines = []
    for i in range(count):
        reach = 2 * side * (i + 0.5) / count  # along the line, dx + dy = reach, both from the top left corner
        start, end = max(0.0, reach - side), min(side, reach)
        lines.append([(x + start, y + reach - start), (x + end, y + reach - end)])
    return lines


def _state_legend(snapshot: PoolSnapshot) -> list[tuple[_Look, str]]:
    """The five kinds of block with their counts."""
    counts = pool_counts(snapshot)
    looks = (_Look(FREE), _Look(CACHED), _Look(USED, BLUE), _Look(USED, BLUE, holders=2), _Look(USED, BLUE, share=0.5))
    names = ("free", "cached, free", "in use", "shared", "partly filled")
    return [(look, f"{name} {count}") for look, name, count in zip(looks, names, counts.values(), strict=True)]


def _draw_legend(axes: Axes, y: float, entries: list[tuple[_Look, str]]) -> None:
    x, size = _MARGIN, 9.5
    for look, label in entries:
        _draw_all(axes, [(x, y, look)], _SWATCH)
        axes.text(x + _SWATCH + 0.07, y + _SWATCH / 2, label, size=size, va="center_baseline")
        x += _SWATCH + 0.07 + TextPath((0, 0), label, size=size).get_extents().width / 72 + 0.26


def _columns(num_blocks: int) -> int:
    """A power of two that makes the grid wider than high, and at most four times as wide."""
    return 2 ** math.ceil(math.log2(math.sqrt(2 * num_blocks)))


def _character(snapshot: PoolSnapshot, block: int) -> str:
    if snapshot.state[block] == FREE:
        return "."
    if snapshot.state[block] == CACHED:
        return ":"
    if snapshot.ref_count[block] > 1:
        return str(min(9, snapshot.ref_count[block]))
    letter = chr(ord("A") + (int(snapshot.owner[block]) - 1) % 26)
    return letter if snapshot.filled[block] == snapshot.block_size else letter.lower()
