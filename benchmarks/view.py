"""The suite `view`: what does it cost the engine that somebody looks on?

The same decode steps with a live view and without, in turn, in two places: in a notebook's kernel that nobody is
connected with but the benchmark, and in one whose notebook is open in JupyterLab in a browser that draws every frame
on the same cores. And what a frame takes in the kernel, by the size of the pool.

A turn is less than a second, since over a minute a machine's speed changes by more than what is measured here.

Knows which arms and places there are and what the comparison means. What a turn is, is in `peers/view_kernel.py`; how
it is run in a place, in `peers/view_ipykernel.py` and `peers/view_browser.py`.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from benchmarks.peers.view_protocol import ARMS, NO_VIEW, SHOWN
from benchmarks.workers import Worker, WorkerDied
from pagedkv_lab.bundled import BUNDLED_MODEL
from pagedkv_lab.measure.timing import Samples, num_threads

ROOT = Path(__file__).resolve().parents[1]
#: Of one arm in one cell: what `Rounds.decode` says of each turn.
Turns = list[dict[str, Any]]

START_TIMEOUT_S, CELL_TIMEOUT_S = 300.0, 120.0
#: A worker ends its kernel, its server and its browser when it is told to; killed, it would leave them behind.
PATIENCE_S = 60.0

KERNEL, BROWSER = "kernel", "browser"
NOTES = (
    "Ten frames a second, kept up: a view left alone waits for the end of a step besides, and pushes fewer.",
    "The browser is headless and draws without a GPU, on the cores that the engine computes on: a worst case.",
)


@dataclass(frozen=True)
class Size:
    """What is run. prompt_tokens: of each sequence. turns of so many steps for each arm in each of the cells, which
    begin with the same contexts. frame_costs: blocks in the pools."""

    model: str = BUNDLED_MODEL
    num_blocks: int = 4096
    num_seqs: int = 16
    prompt_tokens: int = 896
    cells: int = 8
    turns: int = 6
    steps: int = 8
    frame_costs: tuple[int, ...] = (512, 4096, 65_536)
    frames: int = 30


QUICK = Size(
    "toy", num_blocks=512, num_seqs=4, prompt_tokens=128, cells=1, turns=1, steps=256, frame_costs=(512,), frames=3
)


@dataclass(frozen=True)
class Place:
    """A kernel and what hangs on it. command: the worker's, less its argument. arms: what it is asked to run.

    pause_s: of rest before turns in which nothing is shown.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    arms: tuple[str, ...] = ARMS
    pause_s: float = 0.15
    frame_costs: bool = False


def _worker(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"benchmarks.peers.{module}")


PLACES = (
    Place(KERNEL, _worker("view_ipykernel"), ("ipykernel", "jupyter_client"), frame_costs=True),
    # After the last frame a page draws on for a second: the marks of what has just happened fade.
    Place(BROWSER, _worker("view_browser"), ("jupyterlab", "playwright"), (NO_VIEW, SHOWN), pause_s=1.2),
)


def run(*, quick: bool, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure everything. quick: the toy model in a small pool, one short turn.

    A place that does not come up, or not through, is left out, and the reason kept: a browser is not everywhere.
    """
    return measure(PLACES, QUICK if quick else Size(), say)


def measure(places: tuple[Place, ...], size: Size, say: Callable[[str], None]) -> dict[str, Any]:
    """All arms in all places, and the costs of frames. load_before: the system's load in the minute before."""
    result: dict[str, Any] = {
        "size": asdict(size),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "peers": {},
        "arms": [],
        "frames": [],
        "not_measured": [],
        "notes": list(NOTES),
    }
    for place in places:
        try:
            with ExitStack() as ends:
                worker = _start(place, size, say, ends)
                result["peers"][place.name] = worker.answer(START_TIMEOUT_S)
                result["arms"] += _arms(place, worker, size, say)
                if place.frame_costs:
                    result["frames"] += [_frame_costs(worker, n, size.frames, say) for n in size.frame_costs]
        except (WorkerDied, OSError) as error:
            say(f"{place.name} drops out: {error}")
            result["not_measured"].append({"peer": place.name, "why": str(error)})
    return result


def _start(place: Place, size: Size, say: Callable[[str], None], ends: ExitStack) -> Worker:
    for package in place.needs:
        if find_spec(package) is None:
            raise WorkerDied(f"{package} is not installed")
    say(f"{place.name}: starting, and computing the prompts")
    threads = num_threads()
    options = {
        "model": size.model,
        "num_blocks": size.num_blocks,
        "num_seqs": size.num_seqs,
        "prompt_tokens": size.prompt_tokens,
        "threads": threads,
    }
    env = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PAGEDKV_STATIC": "0"}
    worker = Worker([*place.command, json.dumps(options)], ROOT, env)
    ends.callback(worker.close, PATIENCE_S)
    return worker


def _arms(place: Place, worker: Worker, size: Size, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One summary an arm."""
    request = {"do": "decode", "arms": place.arms, "steps": size.steps, "pause_s": place.pause_s}
    say(f"{place.name}: warming up")
    worker.ask(request | {"turns": 1}, CELL_TIMEOUT_S)
    cells = []
    for number in range(size.cells):
        say(f"{place.name}: cell {number + 1} of {size.cells}, {', '.join(place.arms)} in turn")
        cells.append(worker.ask(request | {"turns": size.turns}, CELL_TIMEOUT_S))
    counts = {count: sum(cell[count] for cell in cells) for count in ("sent", "arrived")}
    return [
        {"place": place.name, "arm": arm, "blocks_in_use": max(cell["blocks_in_use"] for cell in cells)}
        | _summary([cell["turns"][arm] for cell in cells], [cell["turns"][NO_VIEW] for cell in cells], size)
        | (counts if arm == SHOWN else {})
        for arm in place.arms
    ]


def _summary(cells: list[Turns], without: list[Turns], size: Size) -> dict[str, Any]:
    """Of an arm's turns, cell by cell, and those without a view in the same cells.

    ratio: the arm's speed over that without a view. ratio_of_all_time: the same from the whole time, stalls of the
    machine included. push_share: of all the time, how much frames took the kernel's own thread; what else a view costs
    (a thread that sends, whoever draws) is in the ratio only. cores: busy ones, by who kept them so. Where others are
    busy, the figures are worth little.
    """
    turns = [turn for cell in cells for turn in cell]
    seconds = sum(turn["seconds"] for turn in turns)
    pushes = [ms for turn in turns for ms in turn["push_ms"]]
    all_without = [turn for cell in without for turn in cell]
    return {
        "tokens_per_s": 1e3 * size.num_seqs / step_ms(turns),
        "ratio": step_ms(all_without) / step_ms(turns),
        "ratio_of_cells": [step_ms(other) / step_ms(cell) for cell, other in zip(cells, without, strict=True)],
        "ratio_of_all_time": sum(turn["seconds"] for turn in all_without) / seconds,
        "frames_per_s": len(pushes) / seconds,
        "push_ms": median(pushes) if pushes else None,
        "push_share": sum(pushes) / 1e3 / seconds,
        "cores": {who: sum(turn["cpu_s"][who] for turn in turns) / seconds for who in turns[0]["cpu_s"]},
    }


def step_ms(turns: Turns) -> float:
    """Milliseconds a step: the median step, and the frames between the steps, spread over all of them.

    The median, since a neighbour on the same chip now and then makes a few steps twice as long.
    """
    steps = [ms for turn in turns for ms in turn["step_ms"]]
    return median(steps) + sum(ms for turn in turns for ms in turn["push_ms"]) / len(steps)


def _frame_costs(worker: Worker, num_blocks: int, num_frames: int, say: Callable[[str], None]) -> dict[str, Any]:
    say(f"frames of {num_blocks:,} blocks")
    found = worker.ask({"do": "frame_costs", "num_blocks": num_blocks, "num_frames": num_frames}, CELL_TIMEOUT_S)
    made, sent, num_bytes = (found.pop(what) for what in ("make_us", "send_us", "bytes"))
    whole = Samples(tuple(map(sum, zip(made, sent, strict=True))))
    return found | {
        "us": whole.as_dict(),
        "make_us": median(made),
        "send_us": median(sent),
        "bytes": int(median(num_bytes)),
    }


def by_arm(result: Mapping[str, Any], place: str) -> dict[str, dict[str, Any]]:
    """The summaries of a place, by arm; empty where it was not measured."""
    return {summary["arm"]: summary for summary in result["arms"] if summary["place"] == place}


# For a terminal


def table(result: dict[str, Any]) -> Group:
    """The result as two tables and the notes."""
    size = result["size"]
    title = (
        f"{size['model']}, {size['num_seqs']} sequences of {size['prompt_tokens']:,} tokens and more, "
        f"{size['num_blocks']:,} blocks"
    )
    columns = ("tok/s", "ratio", "from-to", "frames/s", "ms", "arrived", "browser", "others")
    shown = _table(title, ("where", "view"), columns)
    for row in result["arms"]:
        shown.add_row(
            row["place"],
            row["arm"],
            f"{row['tokens_per_s']:,.0f}",
            f"{row['ratio']:.3f}",
            f"{min(row['ratio_of_cells']):.2f}-{max(row['ratio_of_cells']):.2f}",
            f"{row['frames_per_s']:.1f}",
            f"{row['push_ms']:.1f}" if row["push_ms"] is not None else "",
            f"{row['arrived']}/{row['sent']}" if "sent" in row else "",
            f"{row['cores']['browser']:.2f}",
            f"{row['cores']['others']:.2f}",
        )
    frames = _table("a frame in the kernel", (), ("blocks", "in use", "µs", "to make", "to send", "bytes"))
    for row in result["frames"]:
        frames.add_row(
            f"{row['num_blocks']:,}",
            f"{row['blocks_in_use']:,}",
            f"{row['us']['median']:,.0f}",
            f"{row['make_us']:,.0f}",
            f"{row['send_us']:,.0f}",
            f"{row['bytes']:,}",
        )
    return Group(shown, frames, *result["notes"])


def _table(title: str, names: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title)
    for name in names:
        made.add_column(name, no_wrap=True)
    for number in numbers:
        made.add_column(number, justify="right", no_wrap=True)
    return made
