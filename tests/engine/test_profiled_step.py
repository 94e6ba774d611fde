"""How much GPU memory stays free for a full step and for graphs, on a simulated GPU whose every byte is known."""

import numpy as np
import pytest
import static_backend
import torch
from simulated_gpu import SimulatedGpu
from tiny_models import own_tokens, random_prompt, tiny_model

from pagedkv_lab.engine import Engine, SamplingParams
from pagedkv_lab.engine import engine as engine_module
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.plan import plan_pool
from pagedkv_lab.engine.profiled_step import StepMemory, full_step, profile

MiB = 1 << 20


def config(max_len=64, **options) -> EngineConfig:
    config = EngineConfig(**{"max_num_seqs": 8, "block_size": 4} | options)
    config.resolve(max_len)
    return config


# The largest step


@pytest.mark.parametrize(
    ("options", "lengths", "num_logits"),
    [
        ({"max_num_batched_tokens": 40}, [40], 8),  # one prompt takes it all
        ({"max_num_batched_tokens": 150}, [64, 64, 22], 8),  # none may be longer than max_model_len
        ({"max_num_batched_tokens": 128}, [64, 64], 8),
        ({"max_num_batched_tokens": 5}, [5], 5),  # more sequences than tokens can't be sampled
        ({"max_num_batched_tokens": 2048}, [64] * 8, 8),  # so many tokens, so many sequences don't have
        ({}, [64] * 8, 8),
    ],
)
def test_the_largest_step_has_all_tokens_and_logits_for_all_sequences(options, lengths, num_logits):
    step = full_step(config(**options))
    assert step.query_lens.tolist() == step.context_lens.tolist() == lengths
    assert len(step.token_ids) == len(step.positions) == len(step.write_slots) == sum(lengths)
    assert len(set(step.sample_rows.tolist())) == len(step.sample_rows) == num_logits
    assert step.sample_rows.max() < sum(lengths)


def test_each_sequence_of_it_writes_where_its_table_says():
    step = full_step(config(max_num_batched_tokens=150))
    assert len(set(step.write_slots.tolist())) == 150
    starts = np.cumsum([0, *step.query_lens[:-1]])
    for table, start, length in zip(step.block_tables, starts, step.query_lens, strict=True):
        position = step.positions[start : start + length]
        assert position.tolist() == list(range(length))
        assert (step.write_slots[start : start + length] == table[position // 4] * 4 + position % 4).all()


# What is measured


class Graphs:
    """Graphs that can't be replayed: the first takes 100 bytes, each further one 7, and other memory for a while."""

    buckets = (1, 2, 4, 8, 12)

    def __init__(self, gpu: SimulatedGpu, fail: bool):
        self.gpu, self.fail, self.captured, self.held = gpu, fail, [], 0

    def capture(self, buckets) -> None:
        for bucket in buckets:
            self.gpu.take(40)
            if self.fail:
                raise RuntimeError("operation not permitted")
            self.gpu.give(40)
            self.gpu.take(7 if self.captured else 100)
            self.held += 7 if self.captured else 100
            self.captured.append(bucket)

    def __del__(self):
        self.gpu.give(self.held)


class Runner:
    """A runner whose step takes 1,000 bytes for a while, and 30 for good, as a library does at its first call."""

    def __init__(self, gpu: SimulatedGpu, *, can_capture: bool = True, has_graphs: bool = True):
        self.gpu, self.can_capture, self.has_graphs = gpu, can_capture, has_graphs
        self._pool, self.steps, self.graphs_made = None, [], []

    @property
    def pool(self):
        return self._pool

    @pool.setter
    def pool(self, pool):
        if self._pool is not None and pool is None:
            self.gpu.give(500)
        self._pool = pool

    def allocate(self, num_blocks, block_size, quantization, num_tails):
        self.gpu.take(500)
        self.pool = num_blocks, block_size

    def execute(self, step):
        self.steps.append(step)
        self.gpu.take(30)
        self.gpu.take(1000)
        self.gpu.give(1000)

    def decode_graphs(self, max_num_seqs, max_model_len):
        return Graphs(self.gpu, not self.can_capture) if self.has_graphs else None


def profiled(*, before=lambda gpu: None, options=None, **runner_options):
    """Profile on a GPU that holds 10,000 bytes of weights. Returns what was measured, and the GPU afterwards."""
    gpu = SimulatedGpu(total=100_000)
    gpu.take(10_000)
    before(gpu)
    runner = Runner(gpu, **runner_options)
    needs = profile(runner, config(**options or {}))
    assert runner.pool is None
    assert len(runner.steps) == 1
    return needs, gpu


def test_a_step_needs_what_it_took_at_its_peak_and_has_given_back():
    needs, gpu = profiled(has_graphs=False)
    assert needs == StepMemory(1000, 0)
    # The 30 bytes that stay are not free any more: they are in neither number twice.
    assert gpu.free_bytes() == 100_000 - 10_000 - 30


def test_what_the_allocator_keeps_for_later_from_before_does_not_hide_a_step_s_need():
    def load_and_drop(gpu):
        gpu.take(50_000)
        gpu.give(50_000)

    needs, gpu = profiled(before=load_and_drop, has_graphs=False)
    assert needs.step == 1000
    assert gpu.free_bytes() == 100_000 - 10_000 - 30


def test_graphs_need_the_largest_one_and_for_each_other_what_the_second_took():
    needs, gpu = profiled()
    assert needs == StepMemory(1000, 100 + 4 * 7)
    assert gpu.free_bytes() == 100_000 - 10_000 - 30  # they are not left behind
    assert gpu.cached == 0


def test_without_graphs_nothing_is_needed_for_them():
    assert profiled(options={"enforce_eager": True})[0] == StepMemory(1000, 0)


def test_where_a_model_can_not_be_captured_the_log_says_so_and_the_step_is_measured(caplog):
    needs, _ = profiled(can_capture=False)
    assert needs == StepMemory(1000, None)
    assert needs.total == 1000
    assert "runs without CUDA graphs" in caplog.text


def test_a_step_that_fails_leaves_no_pool_behind(monkeypatch):
    gpu = SimulatedGpu()
    runner = Runner(gpu)

    def fail(step):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(runner, "execute", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        profile(runner, config())
    assert runner.pool is None
    assert gpu.free_bytes() == gpu.total


def test_it_is_said_in_words_what_stays_free():
    assert str(StepMemory(3 * MiB, 2 * MiB)) == (
        "free GPU memory after the weights, one full step of 3 MiB and CUDA graphs of 2 MiB"
    )
    assert str(StepMemory(3 * MiB, None)) == "free GPU memory after the weights, one full step of 3 MiB"


# In the engine


@pytest.fixture
def gpu(monkeypatch):
    """A simulated GPU of 1 MiB under the engine; each graph takes 1,000 bytes and the largest 5,000."""
    gpu = SimulatedGpu(total=MiB, graph_bytes=lambda number: 1000 if number else 5000)
    monkeypatch.setattr(engine_module, "gpu_of", lambda device: gpu)
    monkeypatch.setattr(
        engine_module, "choose_backend", lambda name, device: ("triton_paged", static_backend.paged_attention)
    )
    return gpu


@pytest.fixture
def planned_from(monkeypatch):
    """What the engine tells the planner to be free: (bytes, where the number comes from)."""
    told = []

    def plan(*args, free=None, **options):
        told.append(free)
        return plan_pool(EngineConfigOfBlocks(args[0]), *args[1:], free=free, **options)

    monkeypatch.setattr(engine_module, "plan_pool", plan)
    return told


def EngineConfigOfBlocks(config: EngineConfig) -> EngineConfig:
    """The same options, with a pool that has a number of blocks."""
    config.num_gpu_blocks = 64
    return config


OPTIONS = {"max_model_len": 48, "max_num_seqs": 8, "block_size": 4, "model_impl": "transformers"}


def test_the_engine_plans_from_what_is_free_beside_a_step_and_its_graphs(gpu, planned_from):
    engine = Engine(tiny_model("llama"), **OPTIONS)
    ((free, source),) = planned_from
    # 1, 2, 4, 8: the largest, the second, and two like it. The two that were tried are still counted as taken here:
    # the simulated GPU doesn't see that they are dropped.
    assert free == MiB - (5000 + 1000) - (5000 + 3 * 1000)
    assert "CUDA graphs of 7.81 KiB" in source
    assert engine.runner.graphs.captured == [1, 2, 4, 8]
    prompt = random_prompt(7)
    (output,) = engine.generate(prompt, SamplingParams(max_tokens=6), use_tqdm=False)
    assert list(output.outputs[0].token_ids) == own_tokens(tiny_model("llama"), prompt, 6)


def test_the_pool_takes_its_share_of_what_is_free(gpu):
    engine = Engine(tiny_model("llama"), **OPTIONS)
    free = MiB - (5000 + 1000) - (5000 + 3 * 1000)
    assert engine.plan.budget_bytes == int(0.9 * free)
    assert 0 <= engine.plan.budget_bytes - engine.num_gpu_blocks * engine.plan.block_bytes < engine.plan.block_bytes
    assert "CUDA graphs of 7.81 KiB) × 0.90" in str(engine.plan)


def test_a_pool_of_a_given_size_is_not_measured_for(gpu, planned_from, monkeypatch):
    monkeypatch.setattr(engine_module, "profile", lambda *args: pytest.fail("a full step was run"))
    Engine(tiny_model("llama"), num_gpu_blocks=64, **OPTIONS)
    Engine(tiny_model("llama"), kv_cache_memory_bytes=100_000, **OPTIONS)
    assert planned_from == [None, None]


def test_more_than_there_is_counts_as_none(gpu, planned_from):
    gpu.take(MiB - 100)
    Engine(tiny_model("llama"), **OPTIONS)
    assert planned_from[0][0] == 0


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_quantized_pool_is_measured_too(gpu, planned_from, dtype):
    engine = Engine(tiny_model("llama"), kv_cache_dtype=dtype, **OPTIONS)
    assert planned_from[0][0] == MiB
    assert engine.runner.graphs is None
    assert engine.generate(random_prompt(7), SamplingParams(max_tokens=3), use_tqdm=False)


def test_a_model_that_can_not_be_captured_is_tried_once(gpu, planned_from, monkeypatch, caplog):
    def fail(function, pool):
        raise RuntimeError("not permitted")

    monkeypatch.setattr(gpu, "capture", fail)
    engine = Engine(tiny_model("llama"), **OPTIONS)
    assert engine.runner.graphs is None
    assert len([r for r in caplog.records if "without CUDA graphs" in r.message]) == 1


def test_on_a_cpu_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(engine_module, "profile", lambda *args: pytest.fail("a full step was run"))
    Engine(tiny_model("llama"), gpu_memory_utilization=1e-5, **OPTIONS)
    assert tiny_model("llama").device == torch.device("cpu")
