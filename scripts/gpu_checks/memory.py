"""Peak memory for the set-up of the article's section 4.4: TinyLlama's shape, 8 requests, 2,048 tokens reserved.

Knows pools and counters. A pool is taken when an engine starts, so it has to be as large as what will be needed: for
contiguous reservation that is max_model_len slots a request; with paging, the blocks that these requests fill. All
three run without CUDA graphs; what those take is seen in a fourth run.

The requests begin with the same 512 tokens (a system prompt), have 64 of their own and get 64.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.workloads import Workload
from gpu_checks.device import Device
from gpu_checks.models import kv_bytes_per_token
from gpu_checks.record import Section
from gpu_checks.serving import backend, big_model, prompts_of
from gpu_checks.sizes import Sizes
from pagedkv_lab.engine import ContiguousEngine, Engine, LoadedModel, SamplingParams
from pagedkv_lab.sizing import blocks_for

BLOCK_SIZE = 16


def run(section: Section, device: Device, sizes: Sizes) -> None:
    model = big_model(device)
    shared, own, out = (16, 3, 2) if device.dry_run else (512, 64, 64)
    workload = Workload("4.4", sizes.memory_requests, shared, own, out)
    section.facts |= {
        "model": model.name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "requests": workload.requests,
        "shared_tokens": shared,
        "own_tokens": own,
        "output_tokens": out,
        "max_model_len": sizes.max_model_len,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": kv_bytes_per_token(model),
    }
    common: dict[str, Any] = {"max_model_len": sizes.max_model_len, "max_num_seqs": workload.requests}
    paged = common | {"attn_backend": backend(device), "block_size": BLOCK_SIZE}

    makers: dict[str, Callable[..., Engine]] = {
        "contiguous": partial(ContiguousEngine, model, attn_backend=backend(device), **common),
        "paged": partial(Engine, model, enable_prefix_caching=False, **paged),
        "paged + prefix": partial(Engine, model, **paged),
    }
    needed = {"contiguous": workload.requests} | blocks_needed(workload)
    for name, make in section.in_time(makers.items(), lambda item: item[0]):
        with section.trying(name):
            _measure(section, device, name, partial(make, num_gpu_blocks=needed[name], enforce_eager=True),
                     workload, model)  # fmt: skip
    for name in section.in_time(["paged + prefix, CUDA graphs"]):
        with section.trying(name):
            make = partial(makers["paged + prefix"], num_gpu_blocks=needed["paged + prefix"])
            _measure(section, device, name, make, workload, model)


def blocks_needed(workload: Workload) -> dict[str, int]:
    """Blocks with which all requests run at once to their end; that they did is checked."""
    own = blocks_for(workload.own_tokens + workload.output_tokens, BLOCK_SIZE)
    shared = workload.shared_tokens // BLOCK_SIZE
    alone = blocks_for(workload.shared_tokens + workload.own_tokens + workload.output_tokens, BLOCK_SIZE)
    exact = {"paged": workload.requests * alone, "paged + prefix": shared + workload.requests * own}
    # The watermark, a hundredth, stays free when a request is let in.
    return {name: blocks + 1 + blocks // 50 for name, blocks in exact.items()}


def _serve(engine: Engine, workload: Workload, model: LoadedModel) -> None:
    params = SamplingParams(max_tokens=workload.output_tokens, ignore_eos=True)
    engine.generate(prompts_of(workload, 0, model), params, use_tqdm=False)


def _measure(
    section: Section,
    device: Device,
    name: str,
    make: Callable[[], Engine],
    workload: Workload,
    model: LoadedModel,
) -> None:
    """One engine from its start to its last token, and the peaks of that time."""
    device.start_peak()
    engine = make()
    ran: list[int] = []
    engine.listeners.append(lambda report: ran.append(report.num_scheduled))
    _serve(engine, workload, model)
    memory = device.memory()
    stats = engine.stats()
    at_once = max(ran)
    section.check(
        f"{name}: all requests ran at once, to their end",
        at_once == workload.requests and stats.preemptions == 0,
        at_once=at_once,
        preemptions=stats.preemptions,
    )
    section.measure(
        "memory",
        case=name,
        pool_bytes=engine.runner.pool.nbytes,
        kv_used_peak_bytes=int(stats.peak_used_slots * engine.plan.bytes_per_token),
        hit_rate=stats.prefix_hit_rate,
        **memory,
    )
    del engine
    device.empty_cache()
