"""Block tables beside the pool's blocks, with an arrow from each entry to its block: what `tables` puts on a page.

Knows tables, tokens and reference counts, as plain structures. Does not know who keeps them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pagedkv_lab.show.figures.page import arrow, box, clip, plural, text_width, write
from pagedkv_lab.show.style import GREY, INK, RED, SEQUENCE_COLOURS, text_on
from pagedkv_lab.sizing import blocks_for

PITCH, SIDE = 0.33, 0.26  # inches: from row to row, height of a block
ENTRY = 0.4  # width of a table's entry
_DASHES = (None, (4, 1.6), (1.4, 1.2), (6, 1.5, 1.4, 1.5), (2.5, 1), (8, 2))  # the second cue, beside the colour
_FEW = 8  # blocks that are named one by one
_SHOWN_ALL = 12  # pools up to this size are drawn whole; of larger ones, the blocks in tables


@dataclass(frozen=True)
class Tables:
    """Who holds which blocks at one moment, checked.

    blocks: physical blocks by sequence. tokens: texts by sequence. ref_counts: what the allocator counts, if known.
    """

    blocks: dict[str, list[int]]
    tokens: dict[str, list[str]]
    block_size: int
    ref_counts: dict[int, int] | None = None

    @classmethod
    def read(
        cls,
        tables: Mapping[str, Sequence[int]],
        tokens: Mapping[str, Sequence[object]],
        block_size: int,
        num_blocks: int | None = None,
        ref_counts: Mapping[int, int] | None = None,
    ) -> "Tables":
        """Raises ValueError, in words, where tables and tokens don't belong together."""
        if not tables or not any(len(table) for table in tables.values()):
            raise ValueError("no block table to draw: give at least one, with at least one block")
        if len(tables) > len(SEQUENCE_COLOURS):
            raise ValueError(f"{len(tables)} tables can't be told apart: give at most {len(SEQUENCE_COLOURS)}")
        for name, table in tables.items():
            if name not in tokens or isinstance(tokens[name], str):
                raise ValueError(f"{name} needs its tokens, as a list with one text a token")
            needed = blocks_for(len(tokens[name]), block_size)
            if needed > len(table):
                raise ValueError(
                    f"{name} has {len(tokens[name])} tokens, which are {needed} blocks of {block_size}, and its "
                    f"table has {len(table)}"
                )
            for block in table:
                if block < 0 or (num_blocks is not None and block >= num_blocks):
                    pool = "any pool" if num_blocks is None else f"a pool of {num_blocks} blocks"
                    raise ValueError(f"{name}: block {block} is not in {pool}")
        return cls(
            {name: [int(block) for block in table] for name, table in tables.items()},
            {name: [str(token) for token in tokens[name]] for name in tables},
            block_size,
            dict(ref_counts) if ref_counts is not None else None,
        )

    def piece(self, name: str, i: int) -> list[str]:
        """The tokens in logical block `i` of a sequence."""
        return self.tokens[name][i * self.block_size : (i + 1) * self.block_size]

    def holders(self, block: int) -> list[tuple[str, int]]:
        """(sequence, logical block) for each entry that points to the block."""
        return [(name, i) for name, table in self.blocks.items() for i, b in enumerate(table) if b == block]

    def content(self, block: int) -> list[str]:
        """The block's tokens; where its holders should find different ones, all of them ("≠cat/dog")."""
        slots = zip_longest(*(self.piece(*holder) for holder in self.holders(block)))
        different = [list(dict.fromkeys(token for token in slot if token is not None)) for slot in slots]
        return [tokens[0] if len(tokens) == 1 else "≠" + "/".join(t.strip() for t in tokens) for tokens in different]

    def conflicts(self) -> list[int]:
        """Blocks whose holders don't agree on what is in them: somebody wrote into a shared block."""

        def disagree(block: int) -> bool:
            content = self.content(block)
            pieces = [self.piece(*holder) for holder in self.holders(block)]
            return any(content[: len(piece)] != piece for piece in pieces)

        return [block for block in self.used() if disagree(block)]

    def used(self, shown: range | None = None) -> list[int]:
        """Blocks in any table, ascending; with `shown`, those of these logical blocks only."""
        part = slice(shown.start, shown.stop) if shown else slice(None)
        return sorted({block for table in self.blocks.values() for block in table[part]})

    def count(self, block: int) -> int:
        """How many entries point to the block."""
        return len(self.holders(block))

    def says(self) -> str:
        """The tables and what is shared, in words."""
        parts = [f"{name} → {_listed(table)}" for name, table in self.blocks.items()]
        shared = [block for block in self.used() if self.count(block) > 1]
        if len(shared) > _FEW:
            parts.append(f"{len(shared)} blocks are shared")
        elif shared:
            parts.append("shared: " + ", ".join(f"block {block} by {self.count(block)}" for block in shared))
        parts += [f"block {block} should hold different tokens for its holders" for block in self.conflicts()]
        for block, counted in sorted((self.ref_counts or {}).items()):
            if counted != self.count(block):
                parts.append(f"block {block} is counted {counted} times and stands in tables {self.count(block)} times")
        return "; ".join(parts)


def _listed(table: Sequence[int]) -> str:
    if len(table) <= _FEW:
        return ", ".join(map(str, table)) or "nothing"
    return f"{', '.join(map(str, table[:3]))}, …, {table[-1]} ({len(table)} blocks)"


def physical_rows(used: Sequence[int], num_blocks: int | None) -> list[int | range]:
    """What to draw of the pool, from top to bottom: blocks, and ranges of blocks that are left out."""
    if num_blocks is not None and num_blocks <= _SHOWN_ALL:
        return list(range(num_blocks))
    rows: list[int | range] = []
    for before, block in pairwise([-1, *used]):
        if block - before > 1:
            rows.append(range(before + 1, block))
        rows.append(block)
    if num_blocks is not None and num_blocks - 1 > used[-1]:
        rows.append(range(used[-1] + 1, num_blocks))
    return rows


def draw_entries(axes: Axes, tables: Tables, x: float, y: float, wide: float, shown: range) -> dict:
    """Each sequence's table, one below the other, from (x, y). Returns where each entry's arrow begins.

    wide: inches for the logical blocks' tokens, left of the entries; 0 leaves them out.
    shown: logical blocks to draw; those that come before are dots, of those after, the number is written.
    """
    starts = {}
    for (name, table), colour in zip(tables.blocks.items(), SEQUENCE_COLOURS, strict=False):
        axes.add_patch(Rectangle((x, y + 0.05), 0.13, 0.13, facecolor=colour))
        title = f"{name}: {len(tables.tokens[name])} tokens" if wide else name
        write(axes, x + 0.2, y + 0.115, clip(title, 1.2 + wide, 9.5, "bold"), weight="bold")
        y += PITCH * 0.85
        if shown.start:
            write(axes, x + 0.22 + wide + ENTRY / 2, y + 0.04, "⋮", ha="center")
            y += PITCH * 0.5
        for i, block in list(enumerate(table))[shown.start : shown.stop]:
            write(axes, x + 0.14, y + SIDE / 2, str(i), size=8, ha="right")
            left = x + 0.22
            if wide:
                draw_tokens(axes, left, y, wide - 0.3, tables.piece(name, i), tables.block_size, colour)
                left = x + wide
            box(axes, left, y, ENTRY, SIDE, facecolor=(colour, 0.22), edgecolor=colour, linewidth=1)
            write(axes, left + ENTRY / 2, y + SIDE / 2, str(block), ha="center", weight="bold")
            starts[name, i] = (left + ENTRY, y + SIDE / 2)
            y += PITCH
        if (after := len(table) - shown.stop) > 0:
            write(axes, x + 0.22, y + 0.06, f"{plural(after, 'more block')}", size=8.5, style="italic")
            y += PITCH * 0.7
        y += PITCH * 0.35
    return starts


def draw_pool(axes: Axes, tables: Tables, rows: Sequence[int | range], x: float, y: float, width: float) -> dict:
    """The pool's blocks from (x, y) on, each with its tokens. Returns where each block's arrows end."""
    ends = {}
    for row in rows:
        if isinstance(row, range):
            text = f"block {row[0]}" if len(row) == 1 else f"blocks {row[0]} to {row[-1]}"
            write(axes, x + 0.36, y + SIDE * 0.42, f"⋮  {text}", size=8)
            y += PITCH * 0.72
            continue
        write(axes, x + 0.28, y + SIDE / 2, str(row), size=8.5, ha="right")
        left, holders = x + 0.36, tables.holders(row)
        if holders:
            colour = RED if row in tables.conflicts() else SEQUENCE_COLOURS[list(tables.blocks).index(holders[0][0])]
            draw_tokens(axes, left, y, width - 0.36, tables.content(row), tables.block_size, colour)
            if len(holders) > 1:
                inset, ink = 0.025, text_on(colour)
                ring = {"fill": False, "edgecolor": ink, "linewidth": 1.2}
                box(axes, left + inset, y + inset, width - 0.36 - 2 * inset, SIDE - 2 * inset, **ring)
        else:
            box(axes, left, y, width - 0.36, SIDE, facecolor="none", edgecolor=(INK, 0.5), linewidth=0.8)
        ends[row] = (left - 0.12 - text_width(str(row), 8.5), y + SIDE / 2)
        y += PITCH
    return ends


def draw_arrows(axes: Axes, tables: Tables, starts: Mapping, ends: Mapping) -> None:
    """From each entry to its block; several to one block end a little apart."""
    for name, dashes, colour in zip(tables.blocks, _DASHES, SEQUENCE_COLOURS, strict=False):
        for i, block in enumerate(tables.blocks[name]):
            if (name, i) not in starts or block not in ends:
                continue
            holders = tables.holders(block)
            apart = (holders.index((name, i)) - (len(holders) - 1) / 2) * min(0.11, 0.24 / len(holders))
            x, y = ends[block]
            arrow(axes, starts[name, i], (x, y + apart), colour, dashes)


def draw_tokens(
    axes: Axes, x: float, y: float, width: float, tokens: Sequence[str], block_size: int, colour: str
) -> None:
    """A block with its tokens in slots from left to right; slots without a token are pale."""
    filled = width * len(tokens) / block_size
    back = box(axes, x, y, width, SIDE, facecolor=(GREY, 0.2), edgecolor=(colour, 0.6), linewidth=0.8)
    if not tokens:
        return
    axes.add_patch(Rectangle((x, y), filled, SIDE, facecolor=colour)).set_clip_path(back)
    ink, slot = text_on(colour), width / block_size
    if slot < 0.36:  # too narrow for a word: the text of the whole block
        shown = clip("".join(tokens).lstrip(" "), filled - 0.14, 8.5)
        write(axes, x + 0.07, y + SIDE / 2, shown, size=8.5, color=ink)
        return
    for i, token in enumerate(tokens):
        if i:
            axes.plot([x + i * slot] * 2, [y + 0.04, y + SIDE - 0.04], color=ink, linewidth=0.6, alpha=0.5)
        shown = clip(token.strip(" ") or "␣", slot - 0.05, 8.5)
        write(axes, x + (i + 0.5) * slot, y + SIDE / 2, shown, size=8.5, color=ink, ha="center")


def entries_height(tables: Tables, shown: range) -> float:
    """Inches that `draw_entries` takes, but for the gap at its end."""
    rows = [
        1.2 + len(table[shown.start : shown.stop]) + 0.5 * (shown.start > 0) + 0.7 * (len(table) > shown.stop)
        for table in tables.blocks.values()
    ]
    return PITCH * (sum(rows) - 0.35)


def pool_height(rows: Sequence[int | range]) -> float:
    """Inches that `draw_pool` takes."""
    return PITCH * sum(0.72 if isinstance(row, range) else 1 for row in rows)
