"""The whole engine on the Triton kernels, interpreted: the tokens are the model's own there, too."""

import sys
from pathlib import Path

import pytest
from tiny_models import assert_all_back, own_tokens, random_prompt, tiny_model

sys.path.append(str(Path(__file__).parents[1] / "attention"))
from interpreted import need_triton
from simulated_gpu import SimulatedGpu
from test_token_equality import assert_equal_to_generate, busy_scenario

from pagedkv_lab.engine import Engine, SamplingParams
from pagedkv_lab.engine import engine as engine_module

need_triton()


def test_rule_10_in_the_busy_scenario_the_triton_kernels_make_the_model_s_own_tokens():
    """Preemption, hits, copies and chunks."""
    scenario = busy_scenario()
    scenario.options |= {"attn_backend": "triton_paged"}
    assert_equal_to_generate(tiny_model("toy"), scenario)
    assert all(scenario.seen[what] for what in ("preempted", "hit", "copied", "chunked")), scenario.seen


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
def test_rule_10_block_sizes_and_forward_passes_change_nothing(block_size, model_impl):
    model = tiny_model("toy")
    prompts = [random_prompt(length, 0) for length in (1, 17, 16, 17)]
    engine = Engine(
        model, attn_backend="triton_paged", model_impl=model_impl, block_size=block_size, num_gpu_blocks=128,
        max_model_len=32,
    )  # fmt: skip
    assert engine.attn_backend == "triton_paged"
    outputs = engine.generate(prompts, SamplingParams(max_tokens=5), use_tqdm=False)
    assert [out.token_ids for out in outputs] == [own_tokens(model, prompt, 5) for prompt in prompts]
    assert_all_back(engine)


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "int4"])
def test_a_quantized_cache_makes_the_same_tokens_on_either_path(kv_cache_dtype):
    """Kernels that read it as it is, and torch that makes it plain first: blocks fill, are shared, hit and copied."""
    prompts = [random_prompt(40, 0), [*random_prompt(40, 0)[:33], 3, 4], random_prompt(7, 1)]
    tokens = {}
    for attn_backend in ("torch_paged", "triton_paged"):
        engine = Engine(
            tiny_model("toy"), attn_backend=attn_backend, kv_cache_dtype=kv_cache_dtype, block_size=16,
            num_gpu_blocks=24, max_model_len=80, max_num_batched_tokens=32,
        )  # fmt: skip
        outputs = engine.generate(prompts, SamplingParams(max_tokens=14, n=2, temperature=0.0), use_tqdm=False)
        outputs += engine.generate(prompts[:1], SamplingParams(max_tokens=4), use_tqdm=False)
        assert engine.stats().hit_tokens > 0
        assert engine.stats().copied_blocks > 0
        tokens[attn_backend] = [output.token_ids for out in outputs for output in out.outputs]
        assert_all_back(engine)
    assert tokens["triton_paged"] == tokens["torch_paged"]


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "int4"])
def test_decode_as_a_graph_makes_the_same_tokens(kv_cache_dtype, monkeypatch):
    """On a simulated GPU. Batches of 3, 2 and 1 in buckets of 4, 2 and 1: rows of padding, blocks that fill up, a
    prompt that hits completely and writes nothing."""
    monkeypatch.setattr(engine_module, "gpu_of", lambda device: SimulatedGpu())
    prompts = [random_prompt(14, 0), random_prompt(16, 1), random_prompt(5, 2)]
    params = [SamplingParams(max_tokens=tokens) for tokens in (7, 5, 3)]
    tokens, replays = {}, []
    for enforce_eager in (True, False):
        engine = Engine(
            tiny_model("toy"), attn_backend="triton_paged", model_impl="transformers", kv_cache_dtype=kv_cache_dtype,
            enforce_eager=enforce_eager, block_size=16, num_gpu_blocks=24, max_model_len=48, max_num_seqs=4,
        )  # fmt: skip
        if not enforce_eager:
            run = engine.runner.graphs.run
            monkeypatch.setattr(engine.runner.graphs, "run", lambda *a, run=run: replays.append(len(a[0])) or run(*a))
        outputs = engine.generate(prompts, params, use_tqdm=False)
        outputs += engine.generate(prompts[1], params[1], use_tqdm=False)
        assert engine.stats().hit_tokens > 0
        assert_all_back(engine)
        tokens[enforce_eager] = [out.token_ids for out in outputs]
    assert {1, 2, 3} <= set(replays)
    assert tokens[False] == tokens[True]


def test_a_model_whose_heads_the_kernels_don_t_take_is_refused_by_name():
    with pytest.raises(ValueError, match="heads of 8 numbers"):
        Engine(tiny_model("gpt2"), attn_backend="triton_paged", num_gpu_blocks=8)
