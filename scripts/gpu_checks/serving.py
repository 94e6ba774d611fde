"""Serving: the engine beside transformers' `generate` and beside contiguous reservation, and with and without graphs.

Knows workloads and whoever serves them. All share one model, run one after the other, and take turns round by round.
Every output is as long as asked, greedy, from prompts of random tokens that no earlier round had.

P: 16 requests that begin with the same 1,024 tokens and have 64 of their own, 64 tokens out. D: n requests of 128
tokens, 128 out. S: D with one request.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.workloads import Workload
from gpu_checks.device import Device
from gpu_checks.models import kv_bytes_per_token, random_model
from gpu_checks.record import Section
from gpu_checks.sizes import Sizes
from pagedkv_lab.engine import ContiguousEngine, Engine, LoadedModel, SamplingParams
from pagedkv_lab.measure.comparison import transformers_generate
from pagedkv_lab.sizing import blocks_for

OURS, GENERATE, CONTIGUOUS = "pagedkv", "generate", "contiguous, SDPA"
SPEEDUP = 5.0
ROUNDS, WARM_UP_TOKENS = 3, 4

Tokens = list[list[int]]
#: Prompts and output tokens a request, to the tokens.
Serve = Callable[[Tokens, int], Tokens]


def run(section: Section, device: Device, sizes: Sizes) -> None:
    """First whether the tokens are right, in float32, where they must be; then who is how fast."""
    with section.trying("float32 tokens"):
        check_tokens(section, device, sizes)
    model = big_model(device)
    servers: dict[str, Serve] = {}
    with section.trying("the engine starts"):
        servers[OURS] = serve_with(_paged_engine(section, model, device, sizes))
    servers[GENERATE] = lambda prompts, n: transformers_generate(model, prompts, n)[0]
    with section.trying("the contiguous engine starts"):
        servers[CONTIGUOUS] = serve_with(_contiguous_engine(section, model, device, sizes))
    section.facts |= {
        "model": model.name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_num_seqs": max(sizes.decode_batches),
        "tokens": "in 16 bits two ways to compute the same part at near ties, which random weights have many of",
    }
    race = Race(section, device, model, servers)
    goal_batch = sizes.decode_batches[0]
    try:
        race.run(workloads(sizes), 1 if device.dry_run else ROUNDS)
    finally:
        speedups = race.ratio(f"D {goal_batch}", GENERATE)
        section.goal(
            f"engine D at batch {goal_batch} at least {SPEEDUP:g} times transformers' generate",
            SPEEDUP,
            {} if speedups is None else {f"D {goal_batch}": speedups},
            1,
        )


def graphs(section: Section, device: Device, sizes: Sizes) -> None:
    """A decode step's time with CUDA graphs and without, tokens a second, and what recording the graphs took."""
    model = big_model(device)
    for name, eager in (("CUDA graphs", False), ("eager", True)):
        with section.trying(name):
            started = time.perf_counter()
            engine = make_engine(model, device, sizes, enforce_eager=eager, max_num_seqs=max(sizes.graph_batches))
            device.synchronize()
            start_s = time.perf_counter() - started
            if not eager:
                check_graphs(section, device, engine, name)
            for batch in section.in_time(sizes.graph_batches, lambda n, name=name: f"{name}, batch {n}"):
                workload = Workload(f"graphs {batch}", batch, 0, sizes.prompt_tokens, sizes.output_tokens)
                steps = decode_steps_s(engine, prompts_of(workload, name, model), sizes.output_tokens)
                section.measure(
                    "decode step",
                    case=f"batch {batch}",
                    peer=name,
                    step_ms=median(steps) * 1e3,
                    steps=len(steps),
                    tokens_per_s=batch / median(steps),
                    engine_start_s=start_s,
                )
            del engine
            device.empty_cache()


# The models and who serves them


def big_model(device: Device) -> LoadedModel:
    """TinyLlama's shape in 16 bits; the small one in a dry run."""
    if device.dry_run:
        return random_model("small", torch.float32, device.torch_device)
    return random_model("tinyllama", device.half_dtype, device.torch_device)


def make_engine(model: LoadedModel, device: Device, sizes: Sizes, **options: object) -> Engine:
    """The paged engine, with room for every sequence of every workload at once."""
    num_seqs = max(sizes.decode_batches)
    tokens = max(num_seqs * (sizes.prompt_tokens + sizes.output_tokens + 16), 16 * 2 * sizes.max_model_len)
    options = {"max_num_seqs": num_seqs, "num_gpu_blocks": blocks_for(tokens, 16)} | options
    return Engine(model, max_model_len=sizes.max_model_len, attn_backend=backend(device), **options)


def backend(device: Device) -> str | None:
    """On a GPU what the engine chooses by itself; in a dry run Triton's kernels, interpreted."""
    return "triton_paged" if device.dry_run else None


def _paged_engine(section: Section, model: LoadedModel, device: Device, sizes: Sizes) -> Engine:
    """As it starts by itself; where recording its graphs fails, which is a failed check, without them."""
    engine = None
    with section.trying("the engine starts with CUDA graphs"):
        engine = make_engine(model, device, sizes)
        check_graphs(section, device, engine, "serving")
    engine = engine or make_engine(model, device, sizes, enforce_eager=True)
    section.facts["attn_backend"] = engine.attn_backend
    section.check("the engine runs on Triton's kernels", engine.attn_backend == "triton_paged")
    return engine


def check_graphs(section: Section, device: Device, engine: Engine, where: str) -> None:
    """The engine goes on without graphs where it can't record them, with a warning. Here that is a failure."""
    if not device.dry_run:
        recorded = engine.runner.graphs.captured if engine.runner.graphs is not None else []
        section.check(f"{where}: decode steps are recorded as CUDA graphs", bool(recorded), batch_sizes=recorded)


def _contiguous_engine(section: Section, model: LoadedModel, device: Device, sizes: Sizes) -> ContiguousEngine:
    """max_model_len slots for each request, and as many requests at once as half the free memory holds."""
    row_bytes = kv_bytes_per_token(model) * sizes.max_model_len
    rows = max(1, min(max(sizes.decode_batches), device.free_bytes() // 2 // row_bytes))
    section.facts["contiguous"] = {"rows": rows, "row_bytes": row_bytes, "attn_backend": "torch_paged"}
    return ContiguousEngine(
        model,
        max_model_len=sizes.max_model_len,
        num_gpu_blocks=rows,
        max_num_seqs=max(sizes.decode_batches),
        attn_backend="torch_paged",
    )


def serve_with(engine: Engine) -> Serve:
    def serve(prompts: Tokens, max_tokens: int) -> Tokens:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return [output.token_ids for output in engine.generate(prompts, params, use_tqdm=False)]

    return serve


# Workloads and measuring


def workloads(sizes: Sizes) -> list[Workload]:
    """The goal's first, then by how much they tell."""
    half = sizes.prompt_tokens // 2
    prefix = Workload("P", min(16, max(sizes.decode_batches)), sizes.shared_tokens, half, min(64, sizes.output_tokens))
    decode = [Workload(f"D {n}" if n > 1 else "S", n, 0, sizes.prompt_tokens, sizes.output_tokens)
              for n in sizes.decode_batches]  # fmt: skip
    return [decode[0], prefix, *decode[1:]]


def prompts_of(workload: Workload, round_name: int | str, model: LoadedModel) -> Tokens:
    """Always the same for a round, others for each."""
    vocab_size = model.hf.config.vocab_size
    return [[token % vocab_size for token in prompt] for prompt in workload.prompts(round_name)]


class Race:
    """Everybody serves every workload once, then everybody again, for as long as there is time."""

    def __init__(self, section: Section, device: Device, model: LoadedModel, servers: dict[str, Serve]):
        self.section, self.device, self.model, self.servers = section, device, model, servers
        self._seconds: dict[tuple[str, str], list[float]] = {}
        self._tokens: dict[tuple[str, str], list[Tokens]] = {}
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}

    def run(self, workloads: list[Workload], rounds: int) -> None:
        """The first round of each is named where it doesn't fit the time; further ones are a bonus."""
        entries = [(workload, name) for workload in workloads for name in self.servers]
        for workload, name in self.section.in_time(entries, lambda entry: f"{entry[0].name}: {entry[1]}"):
            with self.section.trying(f"{workload.name}: {name}"):
                # Kernels are chosen and memory is taken in the warm-up.
                self.servers[name](prompts_of(workload, f"warm-up {name}", self.model), WARM_UP_TOKENS)
                self._one(workload, name, 0)
        for number in range(1, rounds):
            for workload, name in entries:
                before = self._seconds.get((workload.name, name))
                if before and self.section.time_left() > before[0]:
                    with self.section.trying(f"{workload.name}: {name}, round {number + 1}"):
                        self._one(workload, name, number)

    def ratio(self, workload: str, other: str) -> float | None:
        """Our median tokens a second over theirs; None where one of us did not run."""
        ours, theirs = (self._seconds.get((workload, name)) for name in (OURS, other))
        return median(theirs) / median(ours) if ours and theirs else None

    def _one(self, workload: Workload, name: str, number: int) -> None:
        prompts = prompts_of(workload, number, self.model)
        self.device.synchronize()
        started = time.perf_counter()
        out = self.servers[name](prompts, workload.output_tokens)
        self.device.synchronize()
        seconds = time.perf_counter() - started
        lengths = sorted({len(output) for output in out})
        if lengths != [workload.output_tokens]:
            self.section.check(f"{workload.name}: {name} makes outputs as long as asked", False, lengths=lengths)
            return
        key = (workload.name, name)
        self._seconds.setdefault(key, []).append(seconds)
        self._tokens.setdefault(key, []).append(out)
        if key not in self._rows:
            self._rows[key] = self.section.measure("serving", case=workload.name, peer=name)
        self._rows[key] |= {
            "tokens_per_s": workload.requests * workload.output_tokens / median(self._seconds[key]),
            "seconds": list(self._seconds[key]),
            "rounds": len(self._seconds[key]),
            "ours_over": self.ratio(workload.name, name),
        }
        for peer in self.servers:
            if row := self._rows.get((workload.name, peer)):
                row["sequences_equal_to_generate"] = self._equal(workload.name, peer)
                row["ours_over"] = self.ratio(workload.name, peer)

    def _equal(self, workload: str, name: str) -> float | None:
        """The share of sequences with the same tokens as `generate` made of the same prompts, 0 to 1."""
        pairs = zip(self._tokens.get((workload, name), ()), self._tokens.get((workload, GENERATE), ()), strict=False)
        same = [a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)]
        return sum(same) / len(same) if same else None


def decode_steps_s(engine: Engine, prompts: Tokens, max_tokens: int) -> list[float]:
    """Seconds of each step in which every sequence decoded, once the first ones are over."""
    for number in range(2):  # the first time is the warm-up
        params = SamplingParams(max_tokens=max_tokens if number else min(max_tokens, WARM_UP_TOKENS), ignore_eos=True)
        for prompt in prompts:
            engine.add_request([(token + number) % engine.model.hf.config.vocab_size for token in prompt], params)
        steps = []
        while engine.has_unfinished_requests():
            report = engine.step()
            if len(report.ran) == len(prompts) and all(kind == "decode" for *_, kind in report.ran):
                steps.append(report.seconds)
    return steps


def check_tokens(section: Section, device: Device, sizes: Sizes) -> None:
    """A small model in float32: every token equal to transformers' own, whatever the batch and the cache did."""
    model = random_model("small", torch.float32, device.torch_device)
    lengths = (5, 16, 17) if device.dry_run else (1, 15, 16, 17, 40, 100, 130, 257)
    new_tokens = 3 if device.dry_run else 32
    prompts = [prompts_of(Workload(f"tokens {n}", 1, 0, n, 1), 0, model)[0] for n in lengths]
    prompts += [prompts[-1][:-1] + prompts[0][:1]]  # begins as another one does: found in the cache
    expected = [transformers_generate(model, [prompt], new_tokens)[0][0] for prompt in prompts]
    options = {"float32, CUDA graphs": {}, "float32, eager": {"enforce_eager": True}}
    for name, more in options.items():
        engine = make_engine(model, device, sizes, max_num_seqs=16, **more)
        serve = serve_with(engine)
        for again in ("cold", "from the prefix cache"):
            got = serve(prompts, new_tokens)
            equal = sum(a == b for a, b in zip(got, expected, strict=True))
            on_triton = engine.attn_backend == "triton_paged"
            section.check(
                f"tokens equal to transformers' own, {name}, {again}",
                equal == len(prompts) and on_triton,
                equal=equal,
                of=len(prompts),
                attn_backend=engine.attn_backend,
            )
