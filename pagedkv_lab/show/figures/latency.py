"""How long people wait: time to the first token (TTFT) and time a token after that (TPOT), request by request.

Knows seconds. Does not know engines.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes

from pagedkv_lab.show.figures.page import WIDTH, clip, escaped
from pagedkv_lab.show.style import INK, SEQUENCE_COLOURS, Picture, picture

#: A quantile is shown where so many samples are there that it isn't just the largest one.
_QUANTILES = ((0.5, "p50", 2), (0.9, "p90", 10), (0.99, "p99", 100))
_MARKERS = "osD^v*"  # the second cue, beside the colour


class HasLatency(Protocol):
    """A `RequestOutput`, or anything that says this much, in seconds; None where there was no such token."""

    ttft_s: float | None
    tpot_s: float | None


def latency_distributions(
    engines: Mapping[str, Sequence[HasLatency] | tuple[Sequence[float | None], Sequence[float | None]]],
) -> Picture:
    """A dot for each request, a row for each engine; TTFT left, TPOT right. Each row says its quantiles.

    engines: by name, request outputs, or a pair (TTFTs, TPOTs) in seconds.

    A quantile is one of the samples (nearest rank), not a point between two. p90 needs 10 samples and p99 needs
    100; with fewer, the largest sample is named instead.

    Raises ValueError for no engine, or one without any first token.
    """
    if not engines:
        raise ValueError("no latencies to draw: give at least one engine, as name: request outputs")
    rows = {name: _times(name, samples) for name, samples in engines.items()}
    parts = []
    for name, (ttft, tpot) in rows.items():
        parts.append(f"{name}: TTFT {_words(ttft)}; TPOT {_words(tpot)}")
    with picture(WIDTH, 0.75 + 0.62 * len(rows), ". ".join(parts) + ".", layout="constrained") as figure:
        panels = figure.subplots(1, 2, sharey=True)
        titles = ("time to first token (TTFT)", "time a token after it (TPOT)")
        for side, (axes, title) in enumerate(zip(panels, titles, strict=True)):
            largest = max(max(times[side], default=0) for times in rows.values())
            scale, unit = (1e3, "ms") if largest < 1 else (1, "s")
            for row, times in enumerate(rows.values()):
                _draw_row(axes, row, np.array(times[side]) * scale, unit)
            axes.set_title(title, weight="bold")
            axes.set(xlim=(0, largest * scale * 1.06 or 1), ylim=(len(rows) - 0.42, -0.72), xlabel=unit)
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
        names = [escaped(clip(name, 1.3, 9.5)) for name in rows]
        panels[0].set_yticks(range(len(rows)), names)
    return figure


def _times(name: str, samples: Iterable) -> tuple[list[float], list[float]]:
    """TTFTs and TPOTs in seconds, ascending, without those that don't exist."""
    if isinstance(samples, tuple) and len(samples) == 2 and not hasattr(samples[0], "ttft_s"):
        pairs = samples
    else:
        samples = list(samples)
        if not all(hasattr(sample, "ttft_s") for sample in samples):
            raise ValueError(f"{name}: give request outputs, or a pair of lists (TTFTs, TPOTs) in seconds")
        pairs = [output.ttft_s for output in samples], [output.tpot_s for output in samples]
    ttft, tpot = (sorted(float(time) for time in times if time is not None) for times in pairs)
    if not ttft:
        raise ValueError(f"{name}: no request has a first token, so there is no latency to draw")
    wrong = [time for time in ttft + tpot if not 0 <= time < float("inf")]
    if wrong:
        raise ValueError(f"{name}: {wrong[0]} is no time in seconds")
    return ttft, tpot


def _quantiles(times: Sequence[float]) -> dict[str, float]:
    """Quantiles by name, each of them one of the samples."""
    if len(times) == 1:
        return {"1 sample": times[0]}
    found = {
        name: float(np.quantile(times, share, method="inverted_cdf"))
        for share, name, needed in _QUANTILES
        if len(times) >= needed
    }
    return found if "p99" in found else found | {"max": float(max(times))} if len(times) else {}


def _words(times: Sequence[float]) -> str:
    if not times:
        return "of no request"
    return f"of {len(times):,}, " + ", ".join(f"{name} {_human(time)}" for name, time in _quantiles(times).items())


def _human(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _draw_row(axes: Axes, row: int, times: np.ndarray, unit: str) -> None:
    colour, marker = SEQUENCE_COLOURS[row % len(SEQUENCE_COLOURS)], _MARKERS[row % len(_MARKERS)]
    # Up and down by the golden ratio: neighbours stand apart, and it is the same each time.
    place = row + 0.14 + (np.arange(len(times)) * 0.618034 % 1 - 0.5) * 0.42 * (len(times) > 1)
    few = len(times) <= 60
    axes.scatter(times, place, s=20 if few else 7, color=colour, marker=marker, alpha=1 if few else 0.5, linewidths=0)
    quantiles = _quantiles(times)
    for value in quantiles.values() if len(times) > 1 else ():
        axes.plot([value, value], [row - 0.13, row + 0.41], color=INK, linewidth=1.4)
    label = "    ".join(f"{name} {value:.3g} {unit}" for name, value in quantiles.items()) or "no such token"
    axes.text(0, row - 0.32, label, va="center_baseline", size=8.5, transform=axes.get_yaxis_transform())
