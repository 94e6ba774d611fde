"""The article's comparison (section 4.4) on a real model: contiguous, paged, paged with prefix cache.

Knows engines from outside: options in, outputs and counts out. Every run gets the same prompts and the same
greedy sampling, in a fresh engine; transformers' own `generate` says which tokens are right.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, Literal

import torch

from pagedkv_lab.engine import ContiguousEngine, Engine, LoadedModel, RequestOutput, SamplingParams, StepReport
from pagedkv_lab.engine.models import Prompt
from pagedkv_lab.sizing import blocks_for

Mode = Literal["same-concurrency", "same-memory"]
#: Called after each step with the run's name, the step's report, and output tokens done and expected.
OnStep = Callable[[str, StepReport, int, int], None]

#: Requests that the contiguous baseline can hold at once where all runs get the same memory.
ROWS_AT_SAME_MEMORY = 2


@dataclass(frozen=True)
class Run:
    """One engine's figures. Bytes are of the KV cache: blocks in use at the peak, and slots filled in them."""

    name: str
    kv_reserved_peak_bytes: int
    kv_used_peak_bytes: int
    utilization: float
    output_tokens_per_s: float
    ttft_mean_s: float
    prefix_hit_rate: float
    preemptions: int


@dataclass(frozen=True)
class Comparison:
    """All runs on one set of requests. `runs` are "contiguous", "paged" and "paged+prefix", in this order."""

    model: str
    dtype: str
    device: str
    threads: int
    requests: int
    mode: Mode
    pool_bytes: int
    max_model_len: int
    prompt_tokens: int
    output_tokens: int
    runs: tuple[Run, ...]
    transformers_tokens_per_s: float
    tokens_equal_transformers: bool
    blocks_leaked: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def run(self, name: str) -> Run:
        return next(run for run in self.runs if run.name == name)

    def verdict(self) -> str:
        """One line for people. Says so where tokens differ or blocks leaked: then no number counts."""
        if not self.tokens_equal_transformers:
            return "The tokens differ from transformers' own: nothing above counts."
        if self.blocks_leaked:
            return f"{self.blocks_leaked} blocks leaked: nothing above counts."
        base, best = self.run("contiguous"), self.run("paged+prefix")
        memory = best.kv_reserved_peak_bytes / base.kv_reserved_peak_bytes
        speed = best.output_tokens_per_s / base.output_tokens_per_s
        return (
            f"Paging with a prefix cache used {memory:.0%} of the cache memory that contiguous reservation took and "
            f"made {speed:.1f}× its output tokens a second. Same tokens as transformers, no block leaked."
        )


def compare(
    model: LoadedModel,
    prompts: Sequence[Prompt],
    *,
    mode: Mode = "same-concurrency",
    max_tokens: int = 32,
    max_model_len: int = 2048,
    on_step: OnStep | None = None,
    on_transformers: Callable[[], None] | None = None,
) -> Comparison:
    """Run the prompts four times: contiguous, paged, paged with prefix cache, and transformers' `generate`.

    mode: "same-concurrency" gives every engine a pool in which contiguous reservation holds all requests at
        once. "same-memory" gives every engine a pool in which it holds two.
    max_model_len: what contiguous reservation sets aside for each request, in tokens.
    on_step, on_transformers: for a live display.
    """
    max_model_len = min(max_model_len, model.max_model_len)
    rows = len(prompts) if mode == "same-concurrency" else min(ROWS_AT_SAME_MEMORY, len(prompts))
    params = SamplingParams(max_tokens=max_tokens)
    paged: dict[str, Any] = {"max_model_len": max_model_len, "num_gpu_blocks": rows * blocks_for(max_model_len, 16)}
    makers: dict[str, Callable[[], Engine]] = {
        "contiguous": lambda: ContiguousEngine(model, max_model_len=max_model_len, num_gpu_blocks=rows),
        "paged": lambda: Engine(model, enable_prefix_caching=False, **paged),
        "paged+prefix": lambda: Engine(model, **paged),
    }
    prompt_ids = [model.encode(prompt) for prompt in prompts]
    _warm_up(model, prompt_ids[0])

    runs, outputs, leaked, pool_bytes = [], [], 0, 0
    for name, make in makers.items():
        engine = make()
        pool_bytes = engine.runner.pool.nbytes
        run, tokens = _run(name, engine, prompt_ids, params, on_step)
        runs.append(run)
        outputs.append(tokens)
        counts = engine.stats().pool
        leaked += counts.total - counts.free - counts.cached
        del engine  # its pool goes before the next one comes

    if on_transformers is not None:
        on_transformers()
    own, seconds = transformers_generate(model, prompt_ids, max_tokens)
    return Comparison(
        model=model.name,
        dtype=str(model.dtype).removeprefix("torch."),
        device=model.device.type,
        threads=torch.get_num_threads(),
        requests=len(prompts),
        mode=mode,
        pool_bytes=pool_bytes,
        max_model_len=max_model_len,
        prompt_tokens=sum(map(len, prompt_ids)),
        output_tokens=sum(map(len, own)),
        runs=tuple(runs),
        transformers_tokens_per_s=sum(map(len, own)) / seconds,
        tokens_equal_transformers=all(tokens == own for tokens in outputs),
        blocks_leaked=leaked,
    )


def transformers_generate(
    model: LoadedModel, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[list[list[int]], float]:
    """The model's own greedy `generate`, all prompts in one left-padded batch. Returns output tokens and seconds."""
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    started = time.perf_counter()
    with torch.inference_mode():
        out = model.hf.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    rows = out[:, width:].tolist()
    seconds = time.perf_counter() - started
    return [_up_to_end(row, model.eos_token_ids) for row in rows], seconds


def _run(
    name: str, engine: Engine, prompts: Sequence[list[int]], params: SamplingParams, on_step: OnStep | None
) -> tuple[Run, list[list[int]]]:
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    done: dict[int, RequestOutput] = {}
    num_tokens = 0
    started = time.perf_counter()
    while engine.has_unfinished_requests():
        report = engine.step()
        num_tokens += len(report.tokens)
        done |= {output.request_id: output for output in report.finished}
        if on_step is not None:
            on_step(name, report, num_tokens, len(prompts) * params.max_tokens)
    seconds = time.perf_counter() - started
    stats, bytes_per_token = engine.stats(), engine.plan.bytes_per_token
    run = Run(
        name=name,
        kv_reserved_peak_bytes=stats.peak_used_blocks * engine.block_size * bytes_per_token,
        kv_used_peak_bytes=stats.peak_used_slots * bytes_per_token,
        utilization=stats.utilization,
        output_tokens_per_s=num_tokens / seconds,
        ttft_mean_s=mean(output.ttft_s for output in done.values()),
        prefix_hit_rate=stats.prefix_hit_rate,
        preemptions=stats.preemptions,
    )
    return run, [done[request_id].token_ids for request_id in ids]


def _warm_up(model: LoadedModel, prompt: list[int]) -> None:
    """First calls load weights from disk and pick kernels; none of that belongs to the first run's figures."""
    transformers_generate(model, [prompt[:64]], 2)
    engine = Engine(model, num_gpu_blocks=16, max_model_len=128)
    engine.generate([prompt[:64]], SamplingParams(max_tokens=2), use_tqdm=False)


def _up_to_end(tokens: list[int], eos_token_ids: frozenset[int]) -> list[int]:
    """Cut the padding that a batch puts behind a row's end token."""
    end = next((i for i, token in enumerate(tokens) if token in eos_token_ids), len(tokens) - 1)
    return tokens[: end + 1]
