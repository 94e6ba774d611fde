"""Block tables: which physical block each logical one is, and what copy-on-write changes about it.

Knows tables and tokens, as plain structures. Does not know who keeps them.
"""

from collections.abc import Mapping, Sequence

from pagedkv_lab.show.figures.holders import (
    ENTRY,
    Tables,
    draw_arrows,
    draw_entries,
    draw_pool,
    entries_height,
    physical_rows,
    pool_height,
)
from pagedkv_lab.show.figures.page import WIDTH, clip, page, text_width, write
from pagedkv_lab.show.style import GREEN, RED, Picture

_MARGIN = 0.04
_MOST_ENTRIES, _MOST_IN_A_PANEL = 12, 5  # logical blocks of a sequence

#: Tables and tokens by sequence: physical blocks in order, and one text a token.
Moment = tuple[Mapping[str, Sequence[int]], Mapping[str, Sequence[str]]]


def block_table_arrows(
    tables: Mapping[str, Sequence[int]],
    tokens: Mapping[str, Sequence[str]],
    *,
    block_size: int,
    num_blocks: int | None = None,
) -> Picture:
    """Logical blocks with their tokens at the left, and arrows to where they really lie in the pool.

    tables: each sequence's physical blocks, in order. One or two sequences read best; six are the most.
    tokens: each sequence's tokens, as texts.
    num_blocks: size of the pool. A small pool is drawn whole, of a larger one the blocks in the tables.

    A shared block gets an arrow from each of its holders and a ring. A block is red where its holders should hold
    different tokens: somebody wrote into it.

    Raises ValueError where there is no block, or a table doesn't fit its tokens or the pool.
    """
    read = Tables.read(tables, tokens, block_size, num_blocks)
    shown = range(_MOST_ENTRIES)
    rows = physical_rows(sorted(read.used(shown)), num_blocks)
    left, right = entries_height(read, shown), pool_height(rows)
    above = 0.34
    says = f"Blocks of {block_size} tokens: {read.says()}."
    with page(above + max(left, right), says) as (figure, axes):
        wide, pool_x = 2.95, 5.15
        top = above + max(0, right - left) / 2
        write(axes, _MARGIN + 0.22, 0.13, "logical blocks", style="italic")
        write(axes, _MARGIN + wide + ENTRY / 2, 0.13, "block table", style="italic", ha="center")
        pool = "physical blocks" + (f", of {num_blocks:,}" if num_blocks is not None else "")
        write(axes, pool_x + 0.36, 0.13, pool, style="italic")
        starts = draw_entries(axes, read, _MARGIN, top, wide, shown)
        ends = draw_pool(axes, read, rows, pool_x, above + max(0, left - right) / 2, WIDTH - pool_x - _MARGIN)
        draw_arrows(axes, read, starts, ends)
    return figure


def copy_on_write(
    before: Moment,
    after: Moment,
    *,
    block_size: int,
    ref_counts: tuple[Mapping[int, int], Mapping[int, int]] | None = None,
) -> Picture:
    """Tables, pool and reference counts before a write and after it, with the block that was copied.

    before, after: (tables, tokens) by sequence, as for `block_table_arrows`.
    ref_counts: what the allocator counts, by block, before and after. A count that doesn't agree with the tables is
        red. Without them, the entries that point to a block are counted.

    Raises ValueError where tables and tokens don't belong together, and where a sequence is missing before or after.
    """
    counts = ref_counts or (None, None)
    first = Tables.read(*before, block_size, ref_counts=counts[0])
    second = Tables.read(*after, block_size, ref_counts=counts[1])
    if first.blocks.keys() != second.blocks.keys():
        raise ValueError(f"before there are {', '.join(first.blocks)}, after {', '.join(second.blocks)}: give the same")
    copies = _copies(first, second)
    written = {name: second.tokens[name][len(tokens) :] for name, tokens in first.tokens.items()}
    wrote = [f"{name} wrote “{''.join(new).strip(' ')}”" for name, new in written.items() if new]
    shown = _to_show(first, second)
    rows = physical_rows(sorted({*first.used(shown), *second.used(shown)}), None)
    left = max(entries_height(first, shown), entries_height(second, shown))
    right = pool_height(rows)
    above = 0.62
    says = f"Before: {first.says()}. After {' and '.join(wrote) or 'no write'}: {second.says()}; "
    says += "; ".join(f"block {source} was copied to block {to}" for source, to in copies) or "nothing was copied"
    with page(above + max(left, right) + 0.04, says + f". {_counts_in_words(first, second)}.") as (figure, axes):
        if shown.start:
            write(axes, 4.0 - 0.3, 0.13, f"logical blocks from {shown.start} on", size=8.5, ha="right", style="italic")
        for x, tables in ((_MARGIN, first), (4.0, second)):
            title = "before" if tables is first else f"after {' and '.join(wrote) or 'no write'}"
            if text_width(title, 10, "bold") > 3.6:  # who wrote matters more than what
                title = f"after {' and '.join(name for name, new in written.items() if new)} wrote"
            write(axes, x, 0.13, clip(title, 3.6, 10, "bold"), size=10, weight="bold")
            write(axes, x + 0.22 + ENTRY / 2, 0.42, "table", style="italic", ha="center")
            pool_x, width = x + 1.2, 1.9
            write(axes, pool_x + 0.36, 0.42, "pool", style="italic")
            write(axes, pool_x + width + 0.2, 0.42, "refs", style="italic", ha="center")
            starts = draw_entries(axes, tables, x, above + max(0, right - left) / 2, 0, shown)
            ends = draw_pool(axes, tables, rows, pool_x, above + max(0, left - right) / 2, width)
            draw_arrows(axes, tables, starts, ends)
            _draw_counts(axes, tables, ends, pool_x + width + 0.2)
            for source, to in copies if tables is second else ():
                _draw_copy(axes, pool_x + width + 0.42, ends[source][1], ends[to][1])
    return figure


def _copies(before: Tables, after: Tables) -> list[tuple[int, int]]:
    """(source, destination) where an entry has changed."""
    return [
        (old, new)
        for name, table in before.blocks.items()
        for old, new in zip(table, after.blocks[name], strict=False)
        if old != new
    ]


def _to_show(before: Tables, after: Tables) -> range:
    """The last few logical blocks, and from the first one on that has changed."""
    longest = max(len(table) for tables in (before, after) for table in tables.blocks.values())
    pairs = (zip(table, after.blocks[name], strict=False) for name, table in before.blocks.items())
    changed = [i for pair in pairs for i, (old, new) in enumerate(pair) if old != new]
    return range(max(0, min([longest - _MOST_IN_A_PANEL, *changed])), longest)


def _draw_counts(axes, tables: Tables, ends: Mapping, x: float) -> None:
    for block, (_, y) in ends.items():
        held = tables.count(block)
        counted = held if tables.ref_counts is None else tables.ref_counts.get(block, 0)
        if counted == held:
            write(axes, x, y, str(counted), ha="center", weight="bold" if counted > 1 else "normal")
        else:
            write(axes, x, y, f"{counted} ≠ {held}", ha="center", weight="bold", color=RED)


def _draw_copy(axes, x: float, source: float, destination: float) -> None:
    """A bracket with a head, from one block's right side to another's."""
    out = x + 0.12
    axes.plot([x, out, out, x + 0.02], [source, source, destination, destination], color=GREEN, linewidth=1.6)
    axes.plot(x + 0.02, destination, marker="<", color=GREEN, markersize=6, markeredgewidth=0)
    write(axes, out + 0.1, (source + destination) / 2, "copy", size=8.5, ha="center", va="center", rotation=90)


def _counts_in_words(before: Tables, after: Tables) -> str:
    changed = [
        f"block {block} {before.count(block)} → {after.count(block)}"
        for block in sorted({*before.used(), *after.used()})
        if before.count(block) != after.count(block)
    ]
    return "Reference counts: " + (", ".join(changed) or "unchanged")
