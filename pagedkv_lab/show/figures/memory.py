"""Memory while an engine works: what it is spent on, and what contiguous and paged engines reserve.

Knows series of numbers. Does not know where they were measured.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from pagedkv_lab.show.figures.page import WIDTH, escaped
from pagedkv_lab.show.style import BLUE, GREEN, GREY, INK, ORANGE, RED, Picture, picture
from pagedkv_lab.sizing import human_bytes, utilization

#: What memory is spent on, in the order in which areas are stacked: colour, opacity, hatch.
#: "reserved, empty": slots of blocks in use that hold no token. "findable": free blocks that the prefix cache finds.
KINDS_OVER_TIME = {
    "weights": (BLUE, 1.0, None),
    "filled": (ORANGE, 1.0, None),
    "reserved, empty": (ORANGE, 0.3, "...."),
    "findable": (GREY, 0.25, "////"),
    "other": (GREEN, 1.0, None),
    "free": (GREY, 0.12, None),
}


def memory_over_time(
    series: Mapping[str, Sequence[float]],
    x: Sequence[float] | None = None,
    *,
    capacity_bytes: float | None = None,
    xlabel: str = "step",
) -> Picture:
    """Stacked areas of memory by kind, step by step.

    series: bytes by kind (keys of `KINDS_OVER_TIME`), one number a step each.
    x: when, ascending; 1, 2, 3, ... if not given. A number holds until the next one.
    capacity_bytes: where the memory ends: a line.

    Raises ValueError for an unknown kind, no numbers, negative ones, and series of different lengths.
    """
    unknown = series.keys() - KINDS_OVER_TIME.keys()
    if unknown:
        names = ", ".join(f'"{kind}"' for kind in KINDS_OVER_TIME)
        raise ValueError(f"no such kind of memory: {', '.join(sorted(unknown))}; choose from {names}")
    kinds = [kind for kind in KINDS_OVER_TIME if kind in series]
    sizes = {kind: _numbers(kind, series[kind]) for kind in kinds}
    lengths = {kind: len(values) for kind, values in sizes.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"every kind needs one number a step, and these have different numbers of them: {lengths}")
    count = max(lengths.values(), default=0)
    if not count:
        raise ValueError("no memory to draw: give at least one kind, with at least one number")
    edges = _edges(x, count)
    says = f"Memory over {count} {xlabel}s: " if count > 1 and xlabel == "step" else "Memory over time: "
    says += "; ".join(f"{kind} {_range(values, edges, xlabel)}" for kind, values in sizes.items())
    says += f"; the memory ends at {human_bytes(capacity_bytes)}" if capacity_bytes is not None else ""
    total = sum(sizes.values())
    with picture(WIDTH, 2.9, says + ".", layout="constrained") as figure:
        axes = figure.add_subplot()
        unit, name = _unit(max(total.max(), capacity_bytes or 0))
        below = np.zeros(count)
        handles = []
        for kind, values in sizes.items():
            handles.append(_area(axes, edges, below / unit, (below + values) / unit, *KINDS_OVER_TIME[kind]))
            below = below + values
        top = total.max()
        if capacity_bytes is not None:
            top = max(top, capacity_bytes)
            axes.axhline(capacity_bytes / unit, color=RED, linewidth=1.6)
            label = f"{human_bytes(capacity_bytes)} of memory"
            axes.text(edges[-1], capacity_bytes / unit * 1.01, label, color=RED, ha="right", va="bottom")
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, top / unit * 1.1 or 1), xlabel=xlabel, ylabel=name)
        axes.locator_params(axis="x", integer=xlabel == "step")
        figure.legend(handles, kinds, loc="outside upper left", ncols=len(kinds), columnspacing=1.2)
    return figure


def footprint_over_time(
    runs: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, xlabel: str = "step"
) -> Picture:
    """What engines reserve and fill while they serve the same requests: a panel each, to the same scale.

    runs: by name, the slots reserved and the slots filled after each step. From step reports:
    `pool.used * block_size` and `used_slots`. Runs may be of different length.

    Raises ValueError for no runs, an empty one, and one that fills more than it reserves.
    """
    if not runs:
        raise ValueError("no run to draw: give at least one, as name: (slots reserved, slots filled)")
    read, parts = {}, []
    for name, (reserved, filled) in runs.items():
        reserved, filled = _numbers(f"{name}, reserved", reserved), _numbers(f"{name}, filled", filled)
        if not len(reserved) or len(reserved) != len(filled):
            raise ValueError(f"{name}: {len(reserved)} numbers of slots reserved and {len(filled)} of slots filled")
        if (filled > reserved).any():
            step = int(np.argmax(filled > reserved))
            raise ValueError(
                f"{name}: at step {step + 1}, {filled[step]:,.0f} slots are filled and {reserved[step]:,.0f} reserved"
            )
        peak = int(reserved.argmax())
        share = f"{utilization(filled[peak], reserved[peak]):.1%}"
        read[name] = (reserved, filled, share)
        parts.append(
            f"{name} reserves at most {reserved[peak]:,.0f} slots (step {peak + 1} of {len(reserved)}) "
            f"and fills {share} of them then"
        )
    with picture(WIDTH, 2.5 if len(read) <= 3 else 4.2, "; ".join(parts) + ".", layout="constrained") as figure:
        rows = -(-len(read) // 3)
        panels = figure.subplots(rows, -(-len(read) // rows), sharex=True, sharey=True, squeeze=False).flat
        for axes, (name, (reserved, filled, share)) in zip(panels, read.items(), strict=False):
            edges, nothing = _edges(None, len(reserved)), np.zeros(len(reserved))
            empty = _area(axes, edges, filled, reserved, GREY, 0.3, None)
            full = _area(axes, edges, nothing, filled, BLUE, 1.0, None)
            axes.stairs(reserved, edges, color=INK, linewidth=1)
            axes.set_title(f"{escaped(name)}\n", weight="bold")
            peak = f"peak {reserved.max():,.0f} slots, {share} filled"
            axes.text(0, 1.03, peak, transform=axes.transAxes, size=8.5)
            axes.tick_params(length=3)
        most = max(reserved.max() for reserved, *_ in read.values())
        figure.axes[0].set(xlim=(1, max(len(r) for r, *_ in read.values()) + 1), ylim=(0, most * 1.05 or 1))
        figure.axes[0].set_ylabel("slots")
        figure.axes[0].locator_params(axis="x", integer=True, nbins=6)
        figure.axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        for axes in figure.axes[len(read) :]:
            axes.set_axis_off()
        figure.supxlabel(xlabel, size=9.5)
        figure.legend([empty, full], ["reserved, empty", "holds a token"], loc="outside upper right", ncols=2)
    return figure


def _numbers(name: str, values: Sequence[float]) -> np.ndarray:
    numbers = np.asarray(values, float).reshape(-1)
    wrong = numbers[~np.isfinite(numbers) | (numbers < 0)]
    if len(wrong):
        raise ValueError(f"{name}: {wrong[0]:g} is no amount of memory")
    return numbers


def _edges(x: Sequence[float] | None, count: int) -> np.ndarray:
    """Where each number begins, and where the last one ends."""
    places = np.arange(1, count + 1, dtype=float) if x is None else np.asarray(x, float)
    if len(places) != count:
        raise ValueError(f"{count} numbers a kind, and {len(places)} values of x")
    if (np.diff(places) <= 0).any():
        raise ValueError("x must ascend: each moment later than the one before")
    return np.append(places, places[-1] + (np.median(np.diff(places)) if count > 1 else 1))


def _area(axes: Axes, edges, below, above, colour: str, alpha: float, hatch: str | None):
    face = (colour, alpha)
    line = (colour, 0.8) if hatch else "none"
    return axes.stairs(
        above, edges, baseline=below, fill=True, facecolor=face, edgecolor=line, hatch=hatch, linewidth=0
    )


def _range(values: np.ndarray, edges: np.ndarray, xlabel: str) -> str:
    low, high = human_bytes(values.min()), human_bytes(values.max())
    return high if low == high else f"{low} to {high}, most at {xlabel} {edges[values.argmax()]:g}"


def _unit(most: float) -> tuple[float, str]:
    """The unit of the axis that suits numbers up to `most`: binary, as `human_bytes` writes them."""
    for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if most >= size:
            return size, name
    return 1, "bytes"
