"""Hash chains: the blocks of several prompts with their keys, drawn together as far as they are the same.

Knows tokens and keys. Does not know how keys are made.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from pagedkv_lab.show.figures.page import WIDTH, arrow, box, clip, page, plural, printable, text_width, write
from pagedkv_lab.show.figures.prompts import Chain, chains_in_words, note_on, side_by_side
from pagedkv_lab.show.style import INK, RED, SEQUENCE_COLOURS, Picture, text_on

_MARGIN, _NAMES, _GAP = 0.04, 0.95, 0.3  # inches: of the page, of the names, between blocks
_SIDE, _PITCH = 0.72, 0.98  # a block's height, from row to row
_LINE, _SIZE = 0.155, 8.5  # of text in a block: height, points
_WEIGHTS = ("normal", "bold")
_MOST_COLUMNS, _MOST_ROWS = 5, 8


def hash_chains(
    prompts: Mapping[str, Sequence[str]], keys: Mapping[str, Sequence[Hashable]], *, block_size: int
) -> Picture:
    """Prompts as rows of blocks with their tokens and keys; what has the same key and the same past is drawn once.

    prompts: tokens as texts, by name. keys: the key of each full block, by name (bytes, numbers or texts).

    Where prompts part, the first token that differs is red. A block that isn't full has no key and a dashed edge.
    "same tokens, other key" is what a chain is for. "same key, other past" is a mistake: the block would be found by
    who must not have it.

    Raises ValueError for no prompt, an empty one, and another number of keys than of full blocks.
    """
    if not prompts or not all(len(tokens) for tokens in prompts.values()):
        raise ValueError("no prompt to draw: give at least one, with at least one token")
    for name, tokens in prompts.items():
        if isinstance(tokens, str):
            raise ValueError(f"{name} must be a list with one text a token, not one text")
        full = len(tokens) // block_size
        if len(keys.get(name, ())) != full:
            raise ValueError(
                f"{name} has {len(tokens)} tokens, {full} full blocks of {block_size}, and {len(keys.get(name, ()))} "
                "keys: each full block has one, and nothing else has"
            )
    chains = [
        Chain(name, [str(token) for token in tokens], list(keys[name]), block_size) for name, tokens in prompts.items()
    ]
    chains = side_by_side(chains)
    drawn, left_out = chains[:_MOST_ROWS], len(chains) - _MOST_ROWS
    columns = _columns(drawn)
    last_notes = any(note_on(block, len(drawn) - 1, drawn)[0] for block in range(drawn[-1].num_blocks))
    height = _PITCH * (len(drawn) - 1) + _SIDE + 0.16 + 0.18 * last_notes + 0.2 * (left_out > 0)
    with page(height, chains_in_words(chains, block_size)) as (figure, axes):
        narrow = 0.62
        num_narrow = sum(isinstance(column, range) for column in columns)
        room = WIDTH - _NAMES - 2 * _MARGIN - _GAP * (len(columns) - 1) - narrow * num_narrow
        wide = min(2.1, room / max(1, len(columns) - num_narrow))
        for row, chain in enumerate(drawn):
            middle = 0.08 + row * _PITCH + _SIDE / 2
            write(axes, _MARGIN, middle - 0.09, clip(chain.name, _NAMES - 0.1, 9.5, "bold"), weight="bold")
            write(axes, _MARGIN, middle + 0.1, f"{len(chain.tokens)} tokens", size=8.5)
        x = _MARGIN + _NAMES
        for column in columns:
            width = narrow if isinstance(column, range) else wide
            _draw_column(axes, x, width, column, drawn)
            x += width + _GAP
        if left_out > 0:
            write(axes, _MARGIN, height - 0.12, f"{left_out} more prompts are left out", style="italic")
    return figure


def _columns(chains: list[Chain]) -> list[int | range]:
    """Which block numbers to draw; a range stands for blocks that are left out.

    The first block is drawn, and where prompts part the blocks before and after, or only those after where there are
    too many; then what there is room for.
    """
    count = max(chain.num_blocks for chain in chains)
    parting = {chain.shared_with(following) for chain, following in pairwise(chains)} - {0, count}
    kept = {0} | parting | {place - 1 for place in parting}
    if len(_folded(kept, count)) > _MOST_COLUMNS + 1:
        kept = {0} | parting
    columns = _folded(kept, count)
    for block in (*range(max(kept) + 1, count), *range(count)):
        more = _folded(kept | {block}, count)
        if len(more) <= max(_MOST_COLUMNS, len(columns)):
            kept, columns = kept | {block}, more
    if len(columns) > _MOST_COLUMNS + 1:
        first = columns[_MOST_COLUMNS]
        columns[_MOST_COLUMNS:] = [range(first if isinstance(first, int) else first.start, count)]
    return columns


def _folded(kept: set[int], count: int) -> list[int | range]:
    """The kept numbers below `count`, and ranges for those between them; a range of one is that one."""
    columns: list[int | range] = []
    for before, block in pairwise([-1, *sorted(kept), count]):
        if block - before == 2:
            columns.append(before + 1)
        elif block - before > 2:
            columns.append(range(before + 1, block))
        columns += [block] * (block < count)
    return columns


def _draw_column(axes: Axes, x: float, width: float, column: int | range, chains: list[Chain]) -> None:
    """The blocks of one number, of all prompts, and the arrows that come in from the left."""
    block = column if isinstance(column, int) else column[0]
    row = 0
    while row < len(chains):
        chain, end = chains[row], row + 1
        if block >= chain.num_blocks:
            row += 1
            continue
        last = block if isinstance(column, int) else min(column.stop, chain.num_blocks) - 1
        while end < len(chains) and chains[row].shared_with(chains[end]) > last:
            end += 1
        top, height = 0.08 + row * _PITCH, (end - row - 1) * _PITCH + _SIDE
        if block:
            # Where several rows come from one block, this one hangs on the block's middle.
            parents = [i for i, other in enumerate(chains) if chain.shared_with(other) >= block] or [row]
            middle = 0.08 + (parents[0] + parents[-1]) / 2 * _PITCH + _SIDE / 2
            arrow(axes, (x - _GAP + 0.03, middle), (x - 0.02, top + height / 2), INK)
        if isinstance(column, range):
            blocks = min(column.stop, chain.num_blocks) - column.start
            box(axes, x, top, width, height, facecolor="none", edgecolor=(INK, 0.6), linewidth=0.8)
            words, noun = plural(blocks, "block").split()
            write(axes, x + width / 2, top + height / 2 - 0.08, f"{words} more", size=8.5, ha="center")
            write(axes, x + width / 2, top + height / 2 + 0.09, noun, size=8.5, ha="center")
        else:
            _draw_block(axes, x, top, width, height, block, row, end - row, chains)
        row = end


def _draw_block(
    axes: Axes,
    x: float,
    top: float,
    width: float,
    height: float,
    block: int,
    row: int,
    holders: int,
    chains: list[Chain],
) -> None:
    chain, colour = chains[row], SEQUENCE_COLOURS[row % len(SEQUENCE_COLOURS)]
    full = block < len(chain.keys)
    ink = text_on(colour) if full else INK
    if full:
        box(axes, x, top, width, height, facecolor=colour, edgecolor="none")
    else:
        edge = {"edgecolor": colour, "linestyle": (0, (3, 2)), "linewidth": 1.2}
        box(axes, x, top, width, height, facecolor=(colour, 0.15), **edge)
    if holders > 1:
        ring = {"fill": False, "edgecolor": ink, "linewidth": 1.2}
        box(axes, x + 0.035, top + 0.035, width - 0.07, height - 0.07, **ring)
    parting = _parting(chain, block, chains)
    _draw_words(axes, x + 0.09, top + height / 2 - 0.13, width - 0.17, chain.piece(block), parting, ink)
    key = _short(chain.keys[block]) if full else f"no key: {len(chain.piece(block))} of {chain.block_size}"
    style = {"family": "DejaVu Sans Mono", "size": 8.5} if full else {"size": 8.5, "style": "italic"}
    write(axes, x + 0.09, top + height / 2 + 0.24, key, color=ink, **style)
    if holders > 1:
        write(axes, x + width - 0.1, top + height / 2 + 0.24, f"× {holders}", color=ink, weight="bold", ha="right")
    note, _, wrong = note_on(block, row, chains)
    if note:
        note = clip(note, width + _GAP * 0.8, 8)
        write(axes, x, top + height + 0.12, note, size=8, color=RED if wrong else INK, style="italic")


def _parting(chain: Chain, block: int, chains: list[Chain]) -> set[int]:
    """Tokens of the block, by their place in it, at which the chain parts from another one."""
    places = {chain.parts_at(other) for other in chains if other is not chain}
    return {place - block * chain.block_size for place in places if 0 < place < len(chain.tokens)}


def _lines(tokens: list[str], red: set[int], width: float) -> list[list[tuple[str, bool]]]:
    """Tokens in at most two lines of runs (text, whether red); what doesn't fit is cut off with an ellipsis."""
    lines: list[list[tuple[str, bool]]] = [[]]
    used = 0.0
    for i, token in enumerate(tokens):
        is_red, text = i in red, printable(token)
        text = text if lines[-1] else text.lstrip(" ")
        wide = _wide(text, is_red)
        if used + wide > width and lines[-1] and len(lines) == 1:
            lines.append([])
            text, used = text.lstrip(" "), 0.0
            wide = _wide(text, is_red)
        is_last = i + 1 == len(tokens)
        if used + wide > width - (0 if is_last or len(lines) == 1 else 0.11):
            cut = clip(text + ("" if is_last else " "), width - used, _SIZE, _WEIGHTS[is_red])
            _add(lines[-1], cut if cut.endswith("…") else "…", is_red and len(cut) > 1)
            break
        _add(lines[-1], text, is_red)
        used += wide
    return lines


def _add(line: list[tuple[str, bool]], text: str, is_red: bool) -> None:
    """Put `text` behind the line's last run, or begin a new one."""
    if line and not line[-1][1] and not is_red:
        line[-1] = (line[-1][0] + text, False)
    else:
        line.append((text, is_red))


def _wide(text: str, is_red: bool) -> float:
    return text_width(text, _SIZE, _WEIGHTS[is_red])


def _draw_words(axes: Axes, x: float, y: float, width: float, tokens: list[str], red: set[int], ink: str) -> None:
    """Tokens in up to two lines around y; those in `red` stand on a red ground, bold."""
    lines = _lines(tokens, red, width)
    y -= (len(lines) - 1) * _LINE / 2
    for line in lines:
        at = x
        for text, is_red in line:
            lead = _wide(text, is_red) - _wide(text.lstrip(" "), is_red)
            rest = _wide(text, is_red) - lead
            if is_red:
                box(axes, at + lead - 0.015, y - 0.075, rest + 0.03, 0.15, facecolor=RED, edgecolor="none")
            style = {"size": _SIZE, "color": text_on(RED) if is_red else ink, "weight": _WEIGHTS[is_red]}
            write(axes, at + lead, y, text.lstrip(" "), **style)
            at += lead + rest
        y += _LINE


def _short(key: Hashable) -> str:
    """The first hexadecimal digits of a key."""
    if isinstance(key, bytes):
        return key.hex()[:6]
    return f"{key & 0xFFFFFFFF:08x}"[-6:] if isinstance(key, int) else str(key)[:6]
