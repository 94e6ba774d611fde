"""Pictures of the sizing arithmetic: one function each, numbers in, a picture out.

Knows `sizing` and matplotlib. Does not know models, engines or tensors.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pagedkv_lab.show.style import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, SKY, Picture, picture, text_on
from pagedkv_lab.sizing import (
    ModelShape,
    block_table_bytes,
    blocks_for,
    contiguous_requests_that_fit,
    human_bytes,
    paged_requests_that_fit,
    utilization,
)

_WIDTH = 7.8  # inches


def bytes_per_token(shapes: Sequence[ModelShape], dtypes: Sequence[str] = ("float16",)) -> Picture:
    """What one token weighs in the cache: a bar for each model and dtype."""
    bars = [(shape, dtype, shape.kv_bytes_per_token(dtype)) for shape in shapes for dtype in dtypes]
    says = "Cache bytes a token: " + "; ".join(f"{s.name} in {d} {human_bytes(b)}" for s, d, b in bars) + "."
    with picture(_WIDTH, 0.35 + 0.29 * len(bars), says, layout="constrained") as figure:
        axes = figure.add_subplot()
        colours = dict(zip(dtypes, (BLUE, SKY, GREEN, PINK), strict=False))
        largest = max(size for *_, size in bars)
        # Bars of one model stand together, with a gap to the next one.
        gap = 0.5 if len(dtypes) > 1 else 0.0
        places = [i + gap * (i // len(dtypes)) for i in range(len(bars))]
        for place, (_, dtype, size) in zip(places, bars, strict=True):
            axes.barh(place, size, height=0.74, color=colours[dtype])
            label = human_bytes(size) + (f"  {dtype}" if len(dtypes) > 1 else "")
            axes.text(size + largest * 0.01, place, label, va="center_baseline")
        kinds = [_attention(shape) for shape in shapes]
        middle = [np.mean(places[i * len(dtypes) : (i + 1) * len(dtypes)]) for i in range(len(shapes))]
        axes.set_yticks(middle, [f"{s.name}\n{kind}" for s, kind in zip(shapes, kinds, strict=True)])
        room_for_labels = 1.4 if len(dtypes) > 1 else 1.2
        axes.set(xlim=(0, largest * room_for_labels), ylim=(max(places) + 0.6, -0.6), xticks=[])
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def contiguous_against_paged(lengths: Sequence[int], max_model_len: int, block_size: int) -> Picture:
    """What requests of these lengths (tokens) reserve, pre-allocated and paged, to the same scale."""
    used = sum(lengths)
    paged = [blocks_for(length, block_size) * block_size for length in lengths]
    contiguous = [max_model_len] * len(lengths)
    panels = (("contiguous", contiguous), (f"paged, blocks of {block_size}", paged))
    says = f"{len(lengths)} requests hold {used:,} tokens: " + "; ".join(
        f"{name} reserves {sum(slots):,} slots and fills {utilization(used, sum(slots)):.1%}" for name, slots in panels
    )
    with picture(_WIDTH, 0.75 + 0.17 * len(lengths), says + ".", layout="constrained") as figure:
        for axes, (name, slots) in zip(figure.subplots(1, 2, sharex=True, sharey=True), panels, strict=True):
            rows = range(len(lengths))
            axes.barh(rows, slots, height=0.72, color=GREY, alpha=0.3, label="reserved, empty")
            axes.barh(rows, lengths, height=0.72, color=BLUE, label="holds a token")
            axes.set_title(f"{name}: {sum(slots):,} slots, {utilization(used, sum(slots)):.1%} filled", weight="bold")
            axes.set(xlim=(0, max_model_len), ylim=(len(lengths) - 0.4, -0.6), yticks=[], xlabel="tokens")
            axes.spines["left"].set_visible(False)
            axes.tick_params(length=3)
        figure.axes[0].set_ylabel(f"{len(lengths)} requests")
        figure.axes[1].legend(loc="lower right")
    return figure


#: What takes memory, in the order in which bars stack it.
KINDS = {"weights": BLUE, "cache": ORANGE, "activations": GREEN, "kept free": GREY}


def memory_by_kind(bars: Mapping[str, Mapping[str, float]], capacity_bytes: float | None = None) -> Picture:
    """Stacked bars of memory by kind (keys of `KINDS`, bytes), and a line where the memory ends."""
    unknown = {kind for parts in bars.values() for kind in parts} - KINDS.keys()
    if unknown:
        raise ValueError(f"no such kind of memory: {', '.join(sorted(unknown))}; choose from {', '.join(KINDS)}")
    says = "Memory: " + "; ".join(
        f"{name}: " + ", ".join(f"{kind} {human_bytes(parts[kind])}" for kind in KINDS if parts.get(kind))
        for name, parts in bars.items()
    )
    most = max([sum(parts.values()) for parts in bars.values()] + [capacity_bytes or 0])
    with picture(_WIDTH, 1.05 + 0.34 * len(bars), says + ".", layout="constrained") as figure:
        axes = figure.add_subplot()
        for row, parts in enumerate(bars.values()):
            start = 0.0
            for kind in KINDS:
                size = parts.get(kind, 0)
                if size:
                    free = kind == "kept free"
                    look = {"color": KINDS[kind], "alpha": 0.3 if free else 1}
                    axes.barh(row, size / 1e9, left=start / 1e9, height=0.7, **look)
                    if size > most * 0.06:
                        ink = INK if free else text_on(KINDS[kind])
                        middle = (start + size / 2) / 1e9
                        axes.text(middle, row, f"{size / 1e9:.1f}", color=ink, ha="center", va="center_baseline")
                start += size
        if capacity_bytes is not None:
            end = capacity_bytes / 1e9
            axes.axvline(end, color=RED, linewidth=1.6)
            axes.text(end, -0.52, f"{end:.0f} GB of memory ", color=RED, ha="right", va="bottom")
        axes.set_yticks(range(len(bars)), list(bars))
        axes.set(xlim=(0, most / 1e9 * 1.04), ylim=(len(bars) - 0.4, -0.6), xlabel="GB (10⁹ bytes)")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        shown = [kind for kind in KINDS if any(parts.get(kind) for parts in bars.values())]
        handles = [axes.barh(-9, 0, color=KINDS[kind], alpha=0.3 if kind == "kept free" else 1) for kind in shown]
        figure.legend(handles, shown, loc="outside upper left", ncols=len(shown))
    return figure


def users_that_fit(
    memory_bytes: int, bytes_per_token: int, max_model_len: int, block_size: int, shared_tokens: int = 0
) -> Picture:
    """How many users fit, by how long their sequences really are: contiguous, paged, and with a shared prefix."""
    lengths = np.arange(max(block_size, shared_tokens), max_model_len + 1, block_size)
    contiguous = contiguous_requests_that_fit(memory_bytes, max_model_len, bytes_per_token)

    def paged(shared: int) -> list[int]:
        return [paged_requests_that_fit(memory_bytes, int(n), block_size, bytes_per_token, shared) for n in lengths]

    lines = [("contiguous", RED, [contiguous] * len(lengths)), ("paged", BLUE, paged(0))]
    if shared_tokens:
        lines.append((f"paged, {shared_tokens} tokens shared", GREEN, paged(shared_tokens)))
    says = f"Users that fit into {human_bytes(memory_bytes)}, for lengths of {lengths[0]} to {lengths[-1]} tokens: "
    says += "; ".join(f"{name} {counts[0]:,} to {counts[-1]:,}" for name, _, counts in lines) + "."
    with picture(_WIDTH, 2.9, says, layout="constrained") as figure:
        axes = figure.add_subplot()
        for name, colour, counts in lines:
            axes.plot(lengths, counts, color=colour, linewidth=2, label=name)
        axes.set(yscale="log", xlim=(0, max_model_len))
        axes.set(xlabel="tokens that a user really has", ylabel="users that fit at once")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(True, which="major", color=GREY, alpha=0.25, linewidth=0.7)
        axes.legend(loc="upper right")
    return figure


def waste_by_block_size(lengths: Sequence[int], block_sizes: Sequence[int]) -> Picture:
    """Two prices of a block size, for sequences of these lengths: empty slots, and entries in the block tables."""
    used = sum(lengths)
    empty = [1 - utilization(used, sum(blocks_for(n, size) * size for n in lengths)) for size in block_sizes]
    entries = [sum(block_table_bytes(n, size) for n in lengths) / 4 / len(lengths) for size in block_sizes]
    says = "By block size: " + "; ".join(
        f"{size}: {waste:.1%} of the slots empty, {count:.0f} table entries a sequence"
        for size, waste, count in zip(block_sizes, empty, entries, strict=True)
    )
    with picture(_WIDTH, 2.4, says + ".", layout="constrained") as figure:
        places = range(len(block_sizes))
        for axes, values, colour, title, label in zip(
            figure.subplots(1, 2),
            (empty, entries),
            (ORANGE, BLUE),
            ("reserved slots that stay empty", "block table entries a sequence"),
            ("{:.1%}", "{:.0f}"),
            strict=True,
        ):
            axes.bar(places, values, width=0.72, color=colour)
            for place, value in zip(places, values, strict=True):
                axes.text(place, value, label.format(value), ha="center", va="bottom", size=8.5)
            axes.set_title(title, weight="bold")
            axes.set_xticks(places, block_sizes)
            axes.set(xlabel="block size (tokens)", yticks=[], ylim=(0, max(values) * 1.14))
            axes.spines["left"].set_visible(False)
            axes.tick_params(length=0)
    return figure


def _attention(shape: ModelShape) -> str:
    factors = f"{shape.num_hidden_layers} layers × {shape.num_key_value_heads} KV heads × {shape.head_dim}"
    return f"{shape.attention_kind}, {factors}"
