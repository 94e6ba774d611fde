"""How much a prefix cache finds, by how many blocks it may keep.

Knows points. Does not know caches, policies or traces.
"""

from collections.abc import Mapping

from pagedkv_lab.show.figures.page import WIDTH, escaped
from pagedkv_lab.show.style import GREY, INK, SEQUENCE_COLOURS, Picture, picture

_MARKERS = "os^Dv*"  # the second cue, beside the colour
_MOST_TICKS = 8  # capacities that are written out below the axis; of more, powers of ten


def hit_rate_by_capacity(
    lines: Mapping[str, Mapping[int, float]], no_limit: float | None = None, *, xlabel: str = "capacity (blocks)"
) -> Picture:
    """A line for each policy: its hit rate at the capacities that were tried.

    lines: by name, hit rate (0 to 1) by capacity in blocks (at least 1).
    no_limit: hit rate of a cache that never evicts, which no line can pass.

    Raises ValueError where there is nothing to draw, and for a rate or a capacity that can't be.
    """
    if not lines or not all(lines.values()):
        raise ValueError("no hit rates to draw: give at least one line, as name: {capacity in blocks: rate}")
    if len(lines) > len(_MARKERS):
        raise ValueError(f"{len(lines)} lines can't be told apart: give at most {len(_MARKERS)}")
    for name, points in [*lines.items(), *([("no_limit", {1: no_limit})] if no_limit is not None else [])]:
        for capacity, rate in points.items():
            if capacity < 1 or not 0 <= rate <= 1:
                raise ValueError(f"{name}: a rate is from 0 to 1, a capacity at least 1; not {rate:g} at {capacity}")
    lines = {name: dict(sorted(points.items())) for name, points in lines.items()}
    says = "Hit rate by capacity in blocks: " + "; ".join(
        f"{name} " + ", ".join(f"{rate:.1%} at {capacity:,}" for capacity, rate in points.items())
        for name, points in lines.items()
    )
    says += f"; no limit {no_limit:.1%}." if no_limit is not None else "."
    best = max([rate for points in lines.values() for rate in points.values()] + [no_limit or 0])
    with picture(WIDTH, 2.9, says, layout="constrained") as figure:
        axes = figure.add_subplot()
        for (name, points), colour, marker in zip(lines.items(), SEQUENCE_COLOURS, _MARKERS, strict=False):
            look = {"color": colour, "marker": marker, "linewidth": 2, "markersize": 6}
            axes.plot(points.keys(), points.values(), label=escaped(name), **look)
            for capacity, rate in points.items() if len(lines) == 1 and len(points) <= 10 else ():
                axes.annotate(f"{rate:.1%}", (capacity, rate), (4, -12), textcoords="offset points", size=8.5)
        if no_limit is not None:
            axes.axhline(no_limit, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(
                f"no limit: {no_limit:.1%}", (0, no_limit), (4, 3), xycoords=axes.get_yaxis_transform(),
                textcoords="offset points", ha="left",
            )  # fmt: skip
        axes.set(xscale="log", ylim=(0, min(1.05, best * 1.18) or 1), xlabel=xlabel, ylabel="found, of all looked up")
        capacities = sorted({capacity for points in lines.values() for capacity in points})
        if len(capacities) <= _MOST_TICKS:
            axes.set_xticks(capacities)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.xaxis.set_minor_formatter(lambda *_: "")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.margins(x=0.06)
        axes.grid(True, which="major", color=GREY, alpha=0.25, linewidth=0.7)
        if len(lines) > 1:
            axes.legend(loc="best")
        else:
            axes.set_title(escaped(next(iter(lines))), weight="bold")
    return figure
