"""How many blocks the pool gets: the arithmetic, from every budget, and what is said where it doesn't work out."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from tiny_models import tiny_model

from pagedkv_lab import sizing
from pagedkv_lab.engine import ContiguousEngine, Engine, Parts
from pagedkv_lab.engine import plan as plan_module
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.plan import plan_pool
from pagedkv_lab.errors import PagedKVError, PartError
from pagedkv_lab.kv import KVPool, LayerShape

#: Two layers of 2 KV heads with 8 numbers each: 2 × 2 × 2 × 8 × 4 bytes a token in float32.
LAYERS = [LayerShape(2, 8, 8)] * 2
BYTES_PER_TOKEN = 256
BLOCK_BYTES = 16 * BYTES_PER_TOKEN


def plan(layers=LAYERS, *, dtype=torch.float32, parts=None, device="cpu", **options):
    config = EngineConfig(**options)
    config.resolve(256)
    return plan_pool(
        config, parts or Parts(), layers, model_name="a model", dtype=dtype, device=torch.device(device)
    )


def refusal(error, **options):
    with pytest.raises(error) as refused:
        plan(**options)
    return str(refused.value)


@pytest.fixture
def free_ram(monkeypatch):
    """Set how much RAM is free, in bytes."""

    def free_ram(num_bytes):
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=num_bytes))

    return free_ram


# Budgets


@pytest.mark.parametrize(("budget", "blocks"), [(BLOCK_BYTES, 1), (10 * BLOCK_BYTES - 1, 9), (10 * BLOCK_BYTES, 10)])
def test_a_budget_in_bytes_holds_as_many_whole_blocks_as_fit(budget, blocks):
    made = plan(kv_cache_memory_bytes=budget)
    assert (made.num_blocks, made.budget_bytes) == (blocks, budget)
    assert made.pool_bytes == blocks * BLOCK_BYTES <= budget


def test_a_number_of_blocks_is_taken_as_it_is():
    made = plan(num_gpu_blocks=7, block_size=4)
    assert (made.num_blocks, made.block_size, made.budget_bytes) == (7, 4, None)
    assert made.pool_bytes == 7 * 4 * BYTES_PER_TOKEN


def test_a_number_of_blocks_goes_before_a_budget_in_bytes():
    assert plan(num_gpu_blocks=7, kv_cache_memory_bytes=100 * BLOCK_BYTES).num_blocks == 7


def test_a_budget_in_bytes_goes_before_a_share_of_the_memory(free_ram):
    free_ram(1000 * BLOCK_BYTES)
    assert plan(kv_cache_memory_bytes=3 * BLOCK_BYTES, gpu_memory_utilization=0.5).num_blocks == 3


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_on_a_cpu_the_pool_takes_its_share_of_a_quarter_of_the_free_ram(free_ram, share):
    free_ram(4000 * BLOCK_BYTES)
    made = plan(gpu_memory_utilization=share)
    assert made.budget_bytes == int(1000 * BLOCK_BYTES * share)
    assert made.num_blocks == 1000 * share


def test_by_default_a_tenth_of_what_it_may_count_on_stays_free(free_ram):
    free_ram(4000 * BLOCK_BYTES)
    made = plan()
    assert made.num_blocks == 900
    assert "3.91 MiB (25% of the 15.6 MiB of free RAM) × 0.90 = 3.52 MiB; 400 KiB stays free" in str(made)


def test_on_a_gpu_the_pool_takes_its_share_of_what_is_free_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2000 * BLOCK_BYTES, 9000 * BLOCK_BYTES))
    made = plan(device="cuda")
    assert made.num_blocks == 1800
    assert "free GPU memory after the weights and one full step" in str(made)


# The text


def test_the_text_is_the_arithmetic_with_its_numbers():
    assert str(plan(kv_cache_memory_bytes=2**20, block_size=16)).splitlines() == [
        "KV pool for a model (float32, cpu)",
        "  one token  2 (key and value) × 2 layers × 2 KV heads × 8 numbers × 4 bytes = 256 bytes (256 B)",
        "  one block  16 tokens × 256 B = 4 KiB",
        "  budget     1 MiB, as asked (kv_cache_memory_bytes)",
        "  blocks     1 MiB / 4 KiB = 256, rounded down",
        "  holds      256 × 16 = 4,096 tokens: 16 sequences of max_model_len = 256, or more shorter ones",
    ]


def test_the_text_says_where_the_number_of_blocks_was_asked_for():
    text = str(plan(num_gpu_blocks=16, max_model_len=256))
    assert "blocks     16, as asked (num_gpu_blocks) = 64 KiB" in text
    assert "1 sequence of max_model_len = 256" in text
    assert "budget" not in text


@pytest.mark.parametrize(
    ("dtype", "bytes_per_token"), [(torch.float64, 512), (torch.float32, 256), (torch.float16, 128)]
)
def test_half_as_wide_numbers_make_twice_as_many_blocks(dtype, bytes_per_token):
    made = plan(dtype=dtype, kv_cache_memory_bytes=64 * BLOCK_BYTES)
    assert made.bytes_per_token == bytes_per_token
    assert made.num_blocks == 64 * BYTES_PER_TOKEN // bytes_per_token


# Layers that differ


@pytest.mark.parametrize(
    ("layers", "numbers"),
    [
        ([LayerShape(2, 8, 8), LayerShape(1, 8, 8)], 32 + 16),
        ([LayerShape(2, 8, 8), LayerShape(2, 16, 16)], 32 + 64),
        ([LayerShape(2, 12, 4)] * 2, 64),  # keys wider than values: the formula's factor 2 would be wrong
    ],
)
def test_layers_of_different_shapes_are_summed(layers, numbers):
    made = plan(layers, num_gpu_blocks=5)
    assert made.bytes_per_token == numbers * 4
    assert f"the sum over 2 layers of different shapes = {numbers * 4} bytes" in str(made)
    assert made.pool_bytes == KVPool(layers, 5, 16).nbytes


def test_the_formula_of_a_learner_is_not_asked_about_layers_that_it_can_not_describe():
    def asked(*shape):
        raise AssertionError("this shape has no single answer")

    assert plan([LayerShape(2, 12, 4)], num_gpu_blocks=5, parts=Parts(kv_bytes_per_token=asked)).num_blocks == 5


# What doesn't work out


def test_where_not_one_block_fits_the_numbers_are_said_and_what_to_do():
    message = refusal(PagedKVError, kv_cache_memory_bytes=1000)
    assert message.startswith("No block fits: one takes 4 KiB and the budget is 1000 B.")
    assert "Raise kv_cache_memory_bytes or gpu_memory_utilization, or lower block_size" in message


def test_where_not_one_block_fits_a_smaller_block_may():
    assert "No block fits" in refusal(PagedKVError, kv_cache_memory_bytes=1000, block_size=16)
    assert plan(kv_cache_memory_bytes=1000, block_size=1).num_blocks == 3


@pytest.mark.parametrize("forgets", ["the values", "the layers", "bytes a number"])
def test_a_wrong_number_of_bytes_a_token_is_held_against_the_pool_s_tensors(forgets):
    factor = {"the values": 2, "the layers": 2, "bytes a number": 4}[forgets]

    def wrong(*shape):
        return sizing.kv_bytes_per_token(*shape) // factor

    message = refusal(PartError, num_gpu_blocks=5, parts=Parts(kv_bytes_per_token=wrong))
    assert message == (
        f"Your kv_bytes_per_token broke in kv_bytes_per_token(2, 2, 8, 4): it says {256 // factor} bytes; one token "
        "of this pool's tensors weighs 256 bytes"
    )


def test_more_blocks_than_the_budget_holds_are_not_allocated():
    message = refusal(
        PartError,
        kv_cache_memory_bytes=10 * BLOCK_BYTES,
        parts=Parts(num_blocks_that_fit=lambda memory, block_size, bytes_per_token: memory // bytes_per_token),
    )
    assert message.startswith("Your num_blocks_that_fit broke in num_blocks_that_fit(40960, ...)")
    assert "it says 160 blocks, which take 640 KiB" in message


@pytest.mark.parametrize("name", ["kv_bytes_per_token", "num_blocks_that_fit"])
@pytest.mark.parametrize("answer", [None, "256", 0.5, -1, float("nan"), float("inf")])
def test_a_sizing_function_must_say_a_whole_number(name, answer):
    message = refusal(PartError, kv_cache_memory_bytes=10 * BLOCK_BYTES, parts=Parts(**{name: lambda *a: answer}))
    assert f"Your {name} broke in {name}: it returned {answer!r}, not a whole number" in message


@pytest.mark.parametrize("name", ["kv_bytes_per_token", "num_blocks_that_fit"])
def test_a_sizing_function_that_raises_is_named_with_what_it_raised(name):
    def broken(*args):
        raise ZeroDivisionError("division by zero")

    message = refusal(PartError, kv_cache_memory_bytes=10 * BLOCK_BYTES, parts=Parts(**{name: broken}))
    assert message.startswith(f"Your {name} broke in {name}(")
    assert message.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("as_type", [float, np.int64, np.float64])
def test_a_whole_number_of_any_type_will_do(as_type):
    parts = Parts(
        kv_bytes_per_token=lambda *shape: as_type(sizing.kv_bytes_per_token(*shape)),
        num_blocks_that_fit=lambda *sizes: as_type(sizing.num_blocks_that_fit(*sizes)),
    )
    made = plan(kv_cache_memory_bytes=10 * BLOCK_BYTES, parts=parts)
    assert (made.num_blocks, made.bytes_per_token) == (10, BYTES_PER_TOKEN)
    assert {type(made.num_blocks), type(made.bytes_per_token)} == {int}


# In an engine


def test_the_engine_s_pool_is_the_planned_one():
    engine = Engine(tiny_model("toy"), kv_cache_memory_bytes=100_000, block_size=8)
    assert engine.runner.pool.nbytes == engine.plan.pool_bytes <= 100_000 < engine.plan.pool_bytes + 8 * 512
    assert engine.num_gpu_blocks == engine.plan.num_blocks == engine.stats().pool.total == 24
    assert engine.runner.pool.num_blocks == 24


def test_without_any_number_the_engine_plans_from_the_free_ram(free_ram):
    free_ram(4 * 2**20)
    engine = Engine(tiny_model("toy"))
    assert engine.runner.pool.nbytes == 115 * 16 * 512 <= 0.9 * 2**20 < 116 * 16 * 512


def test_an_engine_that_gets_no_block_is_refused(free_ram):
    free_ram(1000)
    with pytest.raises(PagedKVError, match="No block fits: one takes 8 KiB and the budget is 225 B"):
        Engine(tiny_model("toy"))


def test_contiguous_rows_are_planned_with_the_same_arithmetic():
    engine = ContiguousEngine(tiny_model("toy"), max_model_len=64, kv_cache_memory_bytes=3 * 64 * 512 + 1)
    assert engine.num_gpu_blocks == 3
    assert "64 tokens × 512 B = 32 KiB" in str(engine.plan)
    assert "3 sequences of max_model_len = 64" in str(engine.plan)


def test_the_share_of_the_ram_is_the_stated_one():
    assert plan_module.CPU_SHARE_OF_FREE_RAM == 0.25
    assert "a quarter of the free RAM" in EngineConfig.__doc__.replace("\n        ", " ")
