"""The suite `scaling`: does a step stay cheap as more sequences run, as they get longer, as more requests come?

Step overhead is what a step takes outside the model: scheduling, block ownership, laying out the batch, drawing
tokens. It is measured on an engine whose model is replaced by a stand-in that returns the same logits every time,
and what the stand-in takes is taken off. The stand-in's vocabulary is small unless a row says otherwise: to draw
from a large one, all its logits have to be read.

Knows the engine from outside, and the one method of the runner that calls the model. Measures nobody else.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import torch
from rich import box
from rich.console import Group
from rich.table import Table

from pagedkv_lab.engine import Engine, LoadedModel, SamplingParams, load_model
from pagedkv_lab.measure.timing import Samples, in_turn
from pagedkv_lab.sizing import blocks_for

ROUNDS = 3
BLOCK_SIZE = 16
TOY_VOCAB_SIZE, REAL_VOCAB_SIZE = 257, 49_152
#: Steps before the clock runs, and measured steps: a multiple of the block size, so that each sequence fills its
#: blocks equally often in them.
WARM_UP_STEPS, STEPS = 8, 64
#: (running sequences, context in tokens, vocabulary)
BY_SEQUENCES = tuple((2**i, 128, TOY_VOCAB_SIZE) for i in range(10))
BY_CONTEXT = tuple((32, context, TOY_VOCAB_SIZE) for context in (128, 512, 2048, 8192))
REAL_VOCABULARY = ((256, 128, REAL_VOCAB_SIZE),)
NUM_REQUESTS = (8, 16, 32, 64, 128, 256, 512, 1024)
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16


def run(*, quick: bool, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure everything. quick: a few sizes, one round, fewer steps."""
    rounds, steps = (1, 16) if quick else (ROUNDS, STEPS)
    by_sequences = BY_SEQUENCES[:7:3] if quick else BY_SEQUENCES + REAL_VOCABULARY
    by_context = BY_CONTEXT[:2] if quick else BY_CONTEXT
    model = _toy()
    return {
        "threads": torch.get_num_threads(),
        "steps": steps,
        "overhead_by_sequences": _overheads(model, by_sequences, steps, rounds, say),
        "overhead_by_context": _overheads(model, by_context, steps, rounds, say),
        "requests": _requests(model, NUM_REQUESTS[:4:3] if quick else NUM_REQUESTS, rounds, say),
    }


def _toy() -> LoadedModel:
    """The toy, told that it can take longer sequences, and without its tokenizer: tokens in, tokens out."""
    toy = load_model("toy", device="cpu")
    toy.hf.config.max_position_embeddings = 16_384
    return replace(toy, tokenizer=None)


# Step overhead


class Stopwatch:
    """A method that adds up the seconds spent in it: `Stopwatch(engine, "step")` takes the method's place."""

    def __init__(self, owner: Any, name: str):
        self.function, self.seconds = getattr(owner, name), 0.0
        setattr(owner, name, self)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        try:
            return self.function(*args, **keywords)
        finally:
            self.seconds += time.perf_counter() - started


def _overheads(
    model: LoadedModel, sizes: tuple[tuple[int, int, int], ...], steps: int, rounds: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The sizes take turns, `rounds` times. Milliseconds: of a round the median step, of the rounds the median."""

    def name(size: tuple[int, int, int]) -> str:
        return f"{size[0]} sequences of {size[1]:,} tokens, vocabulary {size[2]:,}"

    found = in_turn(
        {name(size): lambda number, size=size: step_overhead(model, *size, steps, seed=number) for size in sizes},
        rounds,
        announce=lambda what, number: say(f"step overhead: round {number + 1} of {rounds}, {what}"),
    )
    rows = []
    for size in sizes:
        of_rounds = found[name(size)]
        rows.append(
            dict(zip(("sequences", "context", "vocabulary"), size, strict=True))
            | {"ms": Samples(tuple(parts["all"] for parts in of_rounds)).as_dict()}
            | {"parts_ms": {part: Samples(tuple(p[part] for p in of_rounds)).median for part in of_rounds[0]}}
        )
        del rows[-1]["parts_ms"]["all"]
    return rows


def step_overhead(
    model: LoadedModel, num_seqs: int, context: int, vocab_size: int, steps: int, seed: int = 0
) -> dict[str, float]:
    """Milliseconds a decode step takes outside the model, median of `steps` steps, and of what they consist.

    Prompts differ, and their lengths by up to a block: in each step about one sequence in BLOCK_SIZE fills a block.
    """
    longest = context + WARM_UP_STEPS + steps + 2 * BLOCK_SIZE
    engine = Engine(
        model,
        block_size=BLOCK_SIZE,
        max_model_len=longest,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=8192,
        num_gpu_blocks=int(1.1 * num_seqs * blocks_for(longest, BLOCK_SIZE)) + BLOCK_SIZE,
    )
    logits = torch.zeros(num_seqs, vocab_size)
    engine.runner._forward = lambda token_ids, positions, rows, **extra: logits[: len(rows)]
    random = Random(seed)
    for i in range(num_seqs):
        prompt = random.choices(range(TOY_VOCAB_SIZE - 1), k=context - i % BLOCK_SIZE)
        engine.add_request(prompt, SamplingParams(max_tokens=longest - context, ignore_eos=True))
    while engine.step().num_decode_tokens < num_seqs:
        pass  # prompts are still being computed
    for _ in range(WARM_UP_STEPS):
        engine.step()

    watches = {
        "step": Stopwatch(engine, "step"),
        "schedule": Stopwatch(engine.scheduler, "schedule"),
        "execute": Stopwatch(engine.runner, "execute"),
        "model": Stopwatch(engine.runner, "_forward"),
        "take tokens": Stopwatch(engine, "_take_tokens"),
    }
    seconds: dict[str, list[float]] = {"all": [], "schedule": [], "prepare": [], "take tokens": [], "rest": []}
    for _ in range(steps):
        for watch in watches.values():
            watch.seconds = 0.0
        engine.step()
        took = {what: watch.seconds for what, watch in watches.items()}
        seconds["all"].append(took["step"] - took["model"])
        seconds["schedule"].append(took["schedule"])
        seconds["prepare"].append(took["execute"] - took["model"])
        seconds["take tokens"].append(took["take tokens"])
        # Laying out the batch, and the report.
        seconds["rest"].append(took["step"] - took["schedule"] - took["execute"] - took["take tokens"])
    return {part: 1e3 * Samples(tuple(values)).median for part, values in seconds.items()}


# Time against the number of requests


def _requests(
    model: LoadedModel, numbers: tuple[int, ...], rounds: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The toy itself serves all requests at once: 64 run at a time, the others wait."""
    engine = Engine(model, num_gpu_blocks=1024, max_model_len=256)

    def serve(num_requests: int, number: int | str) -> float:
        random = Random(f"{num_requests} {number}")
        prompts = [random.choices(range(TOY_VOCAB_SIZE - 1), k=PROMPT_TOKENS) for _ in range(num_requests)]
        started = time.perf_counter()
        engine.generate(prompts, SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True), use_tqdm=False)
        return time.perf_counter() - started

    serve(numbers[0], "warm-up")
    found = in_turn(
        {f"{n} requests": lambda number, n=n: serve(n, number) for n in numbers},
        rounds,
        announce=lambda what, number: say(f"requests: round {number + 1} of {rounds}, {what}"),
    )
    rows = []
    for n in numbers:
        seconds = Samples(tuple(found[f"{n} requests"]))
        tokens_per_s = n * OUTPUT_TOKENS / seconds.median
        rows.append({"requests": n, "seconds": seconds.as_dict(), "tokens_per_s": tokens_per_s})
    return rows


# For a terminal


def table(result: dict[str, Any]) -> Group:
    """The result as three tables."""
    parts = list(result["overhead_by_sequences"][0]["parts_ms"])
    tables = []
    for key in ("overhead_by_sequences", "overhead_by_context"):
        columns = ("sequences", "context", "vocabulary", "all", *parts)
        shown = _table("milliseconds a decode step takes outside the model", columns)
        for row in result[key]:
            sizes = (f"{row[what]:,}" for what in ("sequences", "context", "vocabulary"))
            shown.add_row(*sizes, f"{row['ms']['median']:.2f}", *(f"{row['parts_ms'][part]:.2f}" for part in parts))
        tables.append(shown)
    columns = ("requests", "seconds", "from-to", "output tokens/s")
    shown = _table(f"the toy model, {PROMPT_TOKENS} tokens in and {OUTPUT_TOKENS} out a request", columns)
    for row in result["requests"]:
        seconds = row["seconds"]
        spread = f"{min(seconds['values']):.2f}-{max(seconds['values']):.2f}"
        shown.add_row(f"{row['requests']:,}", f"{seconds['median']:.2f}", spread, f"{row['tokens_per_s']:,.0f}")
    return Group(*tables, shown)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title)
    for column in columns:
        made.add_column(column, justify="right", no_wrap=True)
    return made
