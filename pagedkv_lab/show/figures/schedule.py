"""Who ran in which step: a row for each sequence, a column for each step.

Knows step reports. Does not know the scheduler that made them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from pagedkv_lab.show.figures.page import WIDTH, plural, text_width
from pagedkv_lab.show.style import BLUE, GREEN, INK, RED, Picture, picture, text_on

if TYPE_CHECKING:  # the engine is not imported for a picture
    from pagedkv_lab.engine.report import StepReport

_MOST_ROWS = 32


def schedule_gantt(
    reports: Sequence["StepReport"], *, x: str = "steps", arrivals: Mapping[int, int] | None = None
) -> Picture:
    """A Gantt chart of what each step did for each request.

    reports: step reports in their order, from the first to be drawn.
    x: "steps", all of the same width, or "seconds", as wide as they took.
    arrivals: by request id, the number of the step (`StepReport.step`) that was the first it could run in. Without
        it, requests are drawn as waiting from the beginning.

    High bars are prefill, with the number of tokens where there is room; low ones decode; a dotted line is waiting; a
    cross is where a request lost its blocks, a tick where it finished. With n > 1 each output has its row. In seconds,
    every decode has a bar of its own, so that one sees how long each took.

    Raises ValueError for no reports and for another x.
    """
    if x not in ("steps", "seconds"):
        raise ValueError(f'x is "steps" or "seconds", not {x!r}')
    if not reports:
        raise ValueError("no steps to draw: collect the reports of engine.step() in a list")
    first = reports[0].step
    if x == "steps":
        edges = [first - 0.5 + i for i in range(len(reports) + 1)]
    else:
        edges = list(accumulate((report.seconds for report in reports), initial=0.0))
    rows = _rows(reports, {request: step - first for request, step in (arrivals or {}).items()})
    drawn, left_out = rows[:_MOST_ROWS], len(rows) - _MOST_ROWS
    pitch = 0.27 if len(drawn) <= 12 else 0.19
    with picture(WIDTH, 0.85 + pitch * max(3, len(drawn)), _says(reports, rows), layout="constrained") as figure:
        axes = figure.add_subplot()
        # Inches a unit of x: what the axes will have, about; it only decides which numbers are written.
        inches = (WIDTH - 1.0) / (edges[-1] - edges[0])
        for y, row in enumerate(drawn):
            _draw_row(axes, y, row, edges, inches, 8 if pitch > 0.2 else 6.5, one_by_one=x == "seconds")
        axes.set_yticks(range(len(drawn)), [row.label for row in drawn], size=9 if pitch > 0.2 else 8)
        label = "step" if x == "steps" else "seconds"
        more = f"      ({left_out} more rows are left out)" if left_out > 0 else ""
        axes.set(xlim=(edges[0], edges[-1]), ylim=(len(drawn) - 0.4, -0.6), xlabel=label + more, ylabel="request")
        axes.locator_params(axis="x", integer=x == "steps")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        handles = [
            axes.barh(-9, 0, color=BLUE),
            axes.plot([], [], color=GREEN, linewidth=4, solid_capstyle="butt")[0],
            axes.plot([], [], color=INK, linestyle=":", linewidth=1.2)[0],
            axes.plot([], [], color=RED, marker="X", linestyle="none", markersize=6)[0],
            axes.plot([], [], color=INK, marker="|", linestyle="none", markersize=10, markeredgewidth=2)[0],
        ]
        names = ["prefill (tokens)", "decode", "waiting", "preempted", "finished"]
        figure.legend(handles, names, loc="outside upper left", ncols=5, columnspacing=1.4)
    return figure


@dataclass
class _Row:
    """One sequence. Steps are counted from 0, the first report."""

    request: int
    output: int
    label: str = ""
    begins: int = 0
    ran: dict[int, tuple[str, int]] = field(default_factory=dict)  # step: what, tokens
    preempted: list[int] = field(default_factory=list)
    finished: int | None = None

    @property
    def prefill_tokens(self) -> int:
        return sum(tokens for kind, tokens in self.ran.values() if kind == "prefill")

    @property
    def decodes(self) -> int:
        return sum(kind == "decode" for kind, _ in self.ran.values())

    def waits(self, step: int) -> bool:
        return step >= self.begins and step not in self.ran and (self.finished is None or step < self.finished)


def _rows(reports: Sequence["StepReport"], arrivals: Mapping[int, int]) -> list[_Row]:
    """A row for each sequence that ran or arrived, by request and output."""
    rows: dict[tuple[int, int], _Row] = {(request, 0): _Row(request, 0) for request in arrivals}
    of_request: dict[int, list[_Row]] = defaultdict(list)
    for (request, _), row in rows.items():
        of_request[request].append(row)
    for step, report in enumerate(reports):
        for request, output, tokens, kind in report.ran:
            if (request, output) not in rows:
                # A fork begins where it first runs; the first output, where its request arrived.
                row = rows[request, output] = _Row(request, output, begins=step if output else 0)
                of_request[request].append(row)
            rows[request, output].ran[step] = (kind, tokens)
        for output in report.finished:
            for row in of_request[output.request_id]:
                row.finished = max(row.ran, default=step)
    for step, report in enumerate(reports):
        for request in set(report.preempted):
            for row in of_request[request]:
                # A report names the request; those of its sequences that did not run are the ones.
                if row.waits(step) and min(row.ran, default=step) < step:
                    row.preempted.append(step)
    for (request, output), row in rows.items():
        row.label = str(request) if len(of_request[request]) == 1 else f"{request} · {output}"
        if not output:
            row.begins = max(0, arrivals.get(request, 0))
    return [rows[key] for key in sorted(rows)]


def _draw_row(
    axes: Axes, y: int, row: _Row, edges: list[float], inches: float, size: float, *, one_by_one: bool
) -> None:
    num_steps = len(edges) - 1
    step = 0
    while step < num_steps:
        kind = row.ran.get(step, ("waiting" if row.waits(step) else None, 0))[0]
        end = step + 1
        # Prefill is drawn chunk by chunk; what else goes on for several steps is one bar, if one may not count them.
        apart = kind == "prefill" or (kind == "decode" and one_by_one)
        while not apart and end < num_steps:
            following = row.ran.get(end, ("waiting" if row.waits(end) else None, 0))[0]
            if following != kind:
                break
            end += 1
        left, width = edges[step], edges[end] - edges[step]
        gap = min(0.025 / inches, width * (0.25 if kind == "decode" else 0.1)) if apart else 0.0
        if kind == "prefill":
            axes.barh(y, width - gap, left=left, height=0.78, align="center", color=BLUE)
            label = str(row.ran[step][1])
            if text_width(label, size) < (width - gap) * inches - 0.04:
                axes.text(left + width / 2, y, label, color=text_on(BLUE), size=size, ha="center", va="center_baseline")
        elif kind == "decode":
            axes.barh(y, width - gap, left=left, height=0.34, color=GREEN)
        elif kind == "waiting":
            axes.plot([left, left + width], [y, y], color=INK, linestyle=":", linewidth=1.2, solid_capstyle="butt")
        step = end
    for step in row.preempted:
        axes.plot(edges[step], y, color=RED, marker="X", markersize=6 if size > 7 else 5, markeredgewidth=0, zorder=3)
    if row.finished is not None:
        end = edges[row.finished + 1]
        axes.plot([end, end], [y - 0.36, y + 0.36], color=INK, linewidth=2, zorder=3, clip_on=False)


def _says(reports: Sequence["StepReport"], rows: list[_Row]) -> str:
    seconds = sum(report.seconds for report in reports)
    preempted = sum(len(report.preempted) for report in reports)
    finished = sum(len(report.finished) for report in reports)
    says = (
        f"{plural(len(reports), 'step')}, {seconds:.3g} s: {plural(len({row.request for row in rows}), 'request')}, "
        f"{finished} finished, {plural(preempted, 'preemption')}."
    )
    details = [
        f"request {row.label}: prefill {plural(row.prefill_tokens, 'token')} in "
        f"{plural(sum(kind == 'prefill' for kind, _ in row.ran.values()), 'chunk')}, "
        f"{plural(row.decodes, 'decode step')}"
        + (f", preempted {plural(len(row.preempted), 'time')}" if row.preempted else "")
        for row in rows[:8]
    ]
    return says + " " + "; ".join(details) + ("; …" if len(rows) > 8 else ".") if details else says
