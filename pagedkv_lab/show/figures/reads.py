"""What an attention read: the pool slot by slot, in reading order, with what was read twice, missed, or not its own.

Knows slot numbers and block tables. Does not know attention; `show.reads` records the slots.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Polygon, Rectangle

from pagedkv_lab.show.figures.page import WIDTH, clip, page, text_width, write
from pagedkv_lab.show.style import BLUE, INK, ORANGE, RED, Picture, text_on

_FIRST = "#CFE6F5"  # shade of what is read first; what is read last is BLUE
_MARGIN, _LABEL, _GAP = 0.04, 0.36, 0.16  # inches: of the page, of a block's number, between blocks
_SMALLEST, _LARGEST, _BETWEEN = 0.2, 0.3, 0.09  # a slot's pitch where there is a choice; between lines of blocks
_MOST_BLOCKS, _MOST_PANELS = 48, 6
_ALL_SHOWN = 16  # pools up to this size are shown whole


def attention_reads(
    reads: Sequence[Sequence[int]] | Mapping[str, Sequence[int]] | Sequence[int],
    block_tables: Sequence[Sequence[int]],
    context_lens: Sequence[int],
    *,
    block_size: int,
    num_blocks: int,
) -> Picture:
    """Which slots of the pool were read, in which order: a panel for each sequence.

    reads: slots (block x block_size + offset) in reading order, a list for each sequence, perhaps by name. One flat
        list is what was read for all sequences together, in one panel.
    block_tables, context_lens: as attention gets them: whose slots are whose.

    Shade and number are the order of a slot's first read. Ringed: read more than once. Dashed: belongs to the
    sequence and was not read. Red with dark corners: read, and not the sequence's.

    Raises ValueError for a slot or block outside of the pool, a table too short for its context, and for another
    number of lists than of sequences.
    """
    owned = [
        _slots(s, table, int(length), block_size, num_blocks)
        for s, (table, length) in enumerate(zip(block_tables, context_lens, strict=True), start=1)
    ]
    if not owned:
        raise ValueError("no sequence to draw: give at least one block table, with its context length")
    panels = []
    for name, slots, own in _by_name(reads, owned):
        outside = [slot for slot in slots if not 0 <= slot < num_blocks * block_size]
        if outside:
            raise ValueError(f"{name}: slot {outside[0]} is not in a pool of {num_blocks} blocks of {block_size}")
        panels.append(_Panel(name, slots, own, block_size, num_blocks))
    drawn, left_out = panels[:_MOST_PANELS], len(panels) - _MOST_PANELS
    says = " ".join(panel.sentence() for panel in panels)
    room = WIDTH - 2 * _MARGIN + _GAP
    cells = {columns: (room / columns - _LABEL - _GAP) / block_size for columns in (8, 4, 2, 1)}
    columns = next((columns for columns, cell in cells.items() if cell >= _SMALLEST), 1)
    cell = min(_LARGEST, cells[columns])
    pitch, line = room / columns, cell + _BETWEEN
    height = 0.34 + sum(0.36 + -(-len(panel.blocks) // columns) * line for panel in drawn) + 0.22 * (left_out > 0)
    with page(height, says) as (figure, axes):
        y = 0.0
        for panel in drawn:
            write(axes, _MARGIN, y + 0.14, clip(panel.title(), WIDTH - 0.1, 9.5, "bold"), weight="bold")
            for i, block in enumerate(panel.blocks):
                row, column = divmod(i, columns)
                _draw_block(axes, _MARGIN + column * pitch, y + 0.32 + row * line, cell, block, panel)
            y += 0.36 + -(-len(panel.blocks) // columns) * line
        if left_out > 0:
            write(axes, _MARGIN, y + 0.08, f"{left_out} more sequences are left out", style="italic")
            y += 0.22
        _draw_legend(axes, y + 0.1)
    return figure


@dataclass
class _Panel:
    """One sequence: what it read, what is its own, and which blocks to show."""

    name: str
    slots: list[int]
    own: set[int]
    block_size: int
    num_blocks: int

    def __post_init__(self):
        self.count = Counter(self.slots)
        self.order = {slot: i for i, slot in enumerate(self.count, start=1)}
        self.wrong = self.count.keys() - self.own
        self.missed = self.own - self.count.keys()
        self.twice = {slot for slot, times in self.count.items() if times > 1}
        touched = sorted({slot // self.block_size for slot in self.own | self.count.keys()})
        blocks = range(self.num_blocks) if self.num_blocks <= _ALL_SHOWN else touched
        self.blocks, self.left_out = blocks[:_MOST_BLOCKS], max(0, len(blocks) - _MOST_BLOCKS)

    def title(self) -> str:
        right = len(self.own & self.count.keys())
        parts = [f"{self.name}: {right} of {len(self.own)} slots read"]
        parts += [f"{len(self.twice)} more than once"] * bool(self.twice)
        parts += [f"{len(self.wrong)} that are not its own"] * bool(self.wrong)
        parts += [f"{self.left_out} blocks left out here"] * bool(self.left_out)
        return ", ".join(parts)

    def sentence(self) -> str:
        return (
            f"{self.name} reads {len(self.own & self.count.keys())} of its {len(self.own)} slots in {len(self.slots)} "
            f"reads: {len(self.twice)} more than once, {len(self.missed)} not at all, and {len(self.wrong)} slots "
            f"that are not its own{_some(self.wrong)}."
        )


def _by_name(reads: Any, owned: list[set[int]]) -> list[tuple[str, list[int], set[int]]]:
    """(name, slots read, own slots) for each panel."""
    if not isinstance(reads, Mapping):
        if all(hasattr(slot, "__index__") and getattr(slot, "ndim", 0) == 0 for slot in reads) and len(reads):
            name = "sequence 1" if len(owned) == 1 else f"the batch of {len(owned)} sequences"
            return [(name, [int(slot) for slot in reads], set().union(*owned))]
        reads = {f"sequence {s}": slots for s, slots in enumerate(reads, start=1)} or {"sequence 1": []}
    if len(reads) != len(owned):
        raise ValueError(f"{len(reads)} lists of reads and {len(owned)} sequences: give one list for each")
    return [(name, [int(s) for s in slots], own) for (name, slots), own in zip(reads.items(), owned, strict=True)]


def _slots(name: int, table: Sequence[int], length: int, block_size: int, num_blocks: int) -> set[int]:
    """The slots of the sequence's tokens."""
    blocks = [int(block) for block in table[: -(-length // block_size)]]
    if len(blocks) * block_size < length:
        raise ValueError(f"sequence {name}: {length} tokens don't fit into {len(blocks)} blocks of {block_size}")
    for block in blocks:
        if not 0 <= block < num_blocks:
            raise ValueError(f"sequence {name}: block {block} is not in a pool of {num_blocks} blocks")
    return {blocks[p // block_size] * block_size + p % block_size for p in range(length)}


def _some(slots: set[int]) -> str:
    if not slots:
        return ""
    first = ", ".join(map(str, sorted(slots)[:6]))
    return f" ({first}{', …' if len(slots) > 6 else ''})"


def _draw_block(axes: Axes, x: float, y: float, cell: float, block: int, panel: _Panel) -> None:
    write(axes, x + _LABEL - 0.07, y + cell / 2, str(block), size=8.5, ha="right")
    for offset in range(panel.block_size):
        slot = block * panel.block_size + offset
        number = panel.order.get(slot)
        if number is None:
            look = "missed" if slot in panel.missed else "none"
            _draw_slot(axes, x + _LABEL + offset * cell, y, cell, look)
            continue
        look = "wrong" if slot in panel.wrong else "twice" if slot in panel.twice else "read"
        shade = _shade((number - 1) / max(1, len(panel.order) - 1))
        _draw_slot(axes, x + _LABEL + offset * cell, y, cell, look, shade, str(number))


def _shade(share: float) -> str:
    """The colour of what was read after this share of all slots."""
    return to_hex([a + (b - a) * share for a, b in zip(to_rgb(_FIRST), to_rgb(BLUE), strict=True)])


def _draw_slot(axes: Axes, x: float, y: float, cell: float, look: str, shade: str = _FIRST, number: str = "") -> None:
    side = cell * 0.88
    if look == "none":
        axes.add_patch(Rectangle((x, y), side, side, fill=False, edgecolor=(INK, 0.35), linewidth=0.6))
        return
    if look == "missed":
        dashes = {"linestyle": (0, (2, 1.5)), "linewidth": 1.2}
        axes.add_patch(Rectangle((x, y), side, side, fill=False, edgecolor=BLUE, **dashes))
        return
    colour = RED if look == "wrong" else shade
    axes.add_patch(Rectangle((x, y), side, side, facecolor=colour, edgecolor="none"))
    ink = text_on(colour)
    if look == "wrong":
        for corner, inwards in ((x, 1), (x + side, -1)):
            points = [(corner, y), (corner + inwards * side * 0.36, y), (corner, y + side * 0.36)]
            axes.add_patch(Polygon(points, facecolor=ink, edgecolor="none"))
    if look == "twice":
        inset = side * 0.07
        ring = {"fill": False, "edgecolor": ORANGE, "linewidth": cell * 8}
        axes.add_patch(Rectangle((x + inset, y + inset), side - 2 * inset, side - 2 * inset, **ring))
    if cell >= 0.14 and number:
        size = min(cell * 30, side * 0.84 / max(0.01, text_width(number, 1)))
        write(axes, x + side / 2, y + side / 2, number, size=size, color=ink, ha="center")


def _draw_legend(axes: Axes, y: float) -> None:
    x = _MARGIN
    entries = (
        ("read, first to last", [("read", _shade(share)) for share in (0, 0.5, 1)]),
        ("more than once", [("twice", _shade(0.5))]),
        ("its own, not read", [("missed", _FIRST)]),
        ("not its own, read", [("wrong", RED)]),
        ("others", [("none", _FIRST)]),
    )
    for label, looks in entries:
        for look, shade in looks:
            _draw_slot(axes, x, y, 0.17, look, shade)
            x += 0.17
        write(axes, x + 0.05, y + 0.075, label)
        x += 0.05 + text_width(label, 9.5) + 0.24
