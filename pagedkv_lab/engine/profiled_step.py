"""How much GPU memory the engine needs beside weights and pool: one full step is run and measured.

Knows a GPU's memory counters, the largest step there can be, and graphs. Does not know how many blocks follow from it.

What a step computes in comes and goes, and is largest in the largest step: as many tokens as a step may have, and
logits for as many sequences as may run (vLLM plans from such a step too). Nobody has to know the model for that, and
what can't be computed from a formula, a library's own buffers, is in the number.
"""

import logging
from typing import NamedTuple

import numpy as np

from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.cuda_graphs import DecodeGraphs
from pagedkv_lab.engine.device import CudaDevice
from pagedkv_lab.engine.runner import ModelRunner, StepInput
from pagedkv_lab.sizing import blocks_for, human_bytes

logger = logging.getLogger(__name__)


class StepMemory(NamedTuple):
    """Bytes. step: what a full step computes in. graphs: what graphs for decode hold; None where they can't be had."""

    step: int
    graphs: int | None

    @property
    def total(self) -> int:
        return self.step + (self.graphs or 0)

    def __str__(self) -> str:
        graphs = f" and CUDA graphs of {human_bytes(self.graphs)}" if self.graphs else ""
        return f"free GPU memory after the weights, one full step of {human_bytes(self.step)}{graphs}"


def profile(runner: ModelRunner, config: EngineConfig) -> StepMemory:
    """Run the full step, and record two graphs, on a pool for one sequence. Leaves neither pool nor graphs behind."""
    gpu = runner.gpu
    step = full_step(config)
    num_seqs = len(step.query_lens)
    runner.allocate(int(step.block_tables.max()) + 1, config.block_size, config.kv_quantization, num_seqs)
    try:
        gpu.empty_cache()
        gpu.start_peak()
        runner.execute(step)
        peak = gpu.peak_reserved_bytes()
        gpu.empty_cache()
        # What is still there now is there for good, and not free any more: it must not be counted twice.
        step_bytes = peak - gpu.reserved_bytes()
        graphs = None if config.enforce_eager else runner.decode_graphs(config.max_num_seqs, config.max_model_len)
        graph_bytes = 0 if graphs is None else graph_memory(gpu, graphs)
        del graphs
    finally:
        runner.pool = None
        gpu.empty_cache()
    return StepMemory(step_bytes, graph_bytes)


def full_step(config: EngineConfig) -> StepInput:
    """The largest step: prompts as long as they may be, each in blocks of its own. What they say doesn't matter."""
    num_tokens = min(config.max_num_batched_tokens, config.max_num_seqs * config.max_model_len)
    longest = min(num_tokens, config.max_model_len)
    lengths = np.array([longest] * (num_tokens // longest) + [num_tokens % longest], np.int32)
    lengths = lengths[lengths > 0]
    positions = [np.arange(length, dtype=np.int64) for length in lengths]
    width = blocks_for(longest, config.block_size)
    first_slots = np.arange(len(lengths)) * width * config.block_size
    return StepInput(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=np.concatenate(positions),
        query_lens=lengths,
        context_lens=lengths,
        block_tables=np.arange(len(lengths) * width, dtype=np.int32).reshape(len(lengths), width),
        write_slots=np.concatenate([first + p for first, p in zip(first_slots, positions, strict=True)]),
        write_rows=None,
        sample_rows=np.arange(min(config.max_num_seqs, num_tokens), dtype=np.int64),
    )


def graph_memory(gpu: CudaDevice, graphs: DecodeGraphs) -> int | None:
    """Bytes that all of the graphs will hold, from two of them; None, and a warning, where they can't be recorded.

    The largest brings the memory that all share, and each further one its list of kernels. So the largest counts once,
    and the second one for itself and all that are left (vLLM estimates it likewise).
    """
    taken = []
    for bucket in reversed(graphs.buckets[-2:]):
        gpu.empty_cache()
        before = gpu.free_bytes()
        if not try_capture(graphs, [bucket]):
            return None
        gpu.empty_cache()
        taken.append(max(0, before - gpu.free_bytes()))
    return taken[0] + (len(graphs.buckets) - 1) * taken[-1]


def try_capture(graphs: DecodeGraphs, buckets: list[int] | None = None) -> bool:
    """Record the graphs. Where that fails the engine goes on without, so the reason is only logged."""
    try:
        graphs.capture(buckets)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        logger.warning("decode runs without CUDA graphs, which is slower: this model can't be captured (%s)", reason)
        return False
    return True
