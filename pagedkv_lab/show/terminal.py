"""The demo in a terminal: a bar of the pool while it runs, then a table and one line of verdict.

Knows reports and rich. Does not measure anything.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pagedkv_lab.engine import StepReport, load_model
from pagedkv_lab.measure.comparison import Comparison, Mode, compare
from pagedkv_lab.measure.workloads import shared_system_prompt
from pagedkv_lab.sizing import human_bytes


def demo(model_name: str | None, mode: Mode, json_file: Path | None) -> int:
    """`pagedkv demo`: run the comparison, show it, write its numbers. Returns the exit status: 1 if it went wrong.

    Raises OSError before anything runs where `json_file` can't be written.
    """
    if json_file:
        with json_file.open("a", encoding="utf-8"):
            pass
        if not json_file.stat().st_size:
            json_file.unlink()  # nothing is left behind where the run is refused
    console = Console()
    console.print(f"loading {model_name or 'the model'} ...", style="dim")
    model = load_model(model_name)
    display = DemoDisplay(console)
    with display.running():
        result = compare(
            model,
            shared_system_prompt(),
            mode=mode,
            on_step=display.on_step,
            on_transformers=display.on_transformers,
        )
    console.print(headline(result), highlight=False)
    console.print(comparison_table(result))
    console.print(result.verdict(), style="bold")
    if json_file:
        json_file.write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
    return 0 if result.tokens_equal_transformers and not result.blocks_leaked else 1


class DemoDisplay:
    """A live line a run: the pool as a bar, and how far the output is. Plain text where there is no terminal."""

    def __init__(self, console: Console):
        self.console = console
        self._lines: dict[str, RenderableType] = {}
        self._peaks: dict[str, int] = {}
        self._live: Live | None = None

    @contextmanager
    def running(self) -> Iterator["DemoDisplay"]:
        if not self.console.is_terminal:
            yield self
            return
        with Live(console=self.console, refresh_per_second=8) as self._live:
            yield self

    def on_step(self, name: str, report: StepReport, done: int, expected: int) -> None:
        if self._live is None:
            if name not in self._lines:
                self.console.print(f"running {name} ...")
            self._lines[name] = ""
            return
        pool = report.pool
        self._peaks[name] = max(self._peaks.get(name, 0), pool.used)
        line = Text(f"{name:<13}")
        line.append_text(pool_bar(pool.used, pool.cached, pool.total))
        line.append(f" {pool.used:>4} used (peak {self._peaks[name]:>3}) of {pool.total:<5}", "dim")
        line.append(f"{done:>4} of up to {expected} tokens")
        self._show(name, line)

    def on_transformers(self) -> None:
        if self._live is None:
            self.console.print("running transformers' generate ...")
        else:
            self._show("transformers", Text(f"{'transformers':<13}generate(), all requests in one padded batch ..."))

    def _show(self, name: str, line: RenderableType) -> None:
        self._lines[name] = line
        self._live.update(Group(*self._lines.values()))


def pool_bar(used: int, cached: int, total: int, width: int = 32) -> Text:
    """The pool as one line: in use, free but findable, empty. Letters of different height, not colour alone."""
    num_used = min(width, -(-used * width // total))
    num_cached = min(width - num_used, -(-cached * width // total))
    bar = Text()
    bar.append("█" * num_used, "blue")
    bar.append("▒" * num_cached, "cyan")
    bar.append("·" * (width - num_used - num_cached), "dim")
    return bar


def headline(result: Comparison) -> str:
    """What ran where, in two lines."""
    return (
        f"{result.model}, {result.dtype}, {result.device}, {result.threads} threads\n"
        f"{result.requests} requests: {result.prompt_tokens:,} prompt and {result.output_tokens:,} output tokens; "
        f"{result.mode}, pool of {human_bytes(result.pool_bytes)}"
    )


def comparison_table(result: Comparison) -> Table:
    """The runs as a table of 70 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column("KV cache", no_wrap=True)
    for heading in ("reserved", "used", "filled", "tokens/s", "TTFT", "hits", "preempted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in result.runs:
        table.add_row(
            run.name,
            human_bytes(run.kv_reserved_peak_bytes),
            human_bytes(run.kv_used_peak_bytes),
            f"{run.utilization:.0%}",
            f"{run.output_tokens_per_s:.1f}",
            f"{run.ttft_mean_s:.2f} s",
            f"{run.prefix_hit_rate:.0%}",
            str(run.preemptions),
        )
    table.add_row("transformers", "", "", "", f"{result.transformers_tokens_per_s:.1f}", "", "", "")
    return table
