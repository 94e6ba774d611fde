"""Whose forward pass runs: our own where it fits and says the same, else transformers' modules, made faster.

That no choice changes the tokens is in test_token_equality.
"""

from typing import Any

import pytest
import torch
from tiny_models import own_tokens, random_model, random_prompt, tiny_model
from torch import nn
from transformers.models.llama.modeling_llama import LlamaAttention

from pagedkv_lab.engine import Engine, LoadedModel, SamplingParams, linear, load_model

LLAMA_SHAPED = ["toy", "llama", "mistral", "qwen2", "qwen3"]
OTHERS = ["gpt2", "gemma2", "phi", "opt"]

can_pack = pytest.mark.skipif(
    not linear.can_pack(torch.float32), reason="torch has no packed linears on this machine: nothing to choose from"
)


def make(model: LoadedModel, **options: Any) -> Engine:
    return Engine(model, num_gpu_blocks=16, max_model_len=64, **options)


def fresh_llama(**changes: Any) -> LoadedModel:
    """Not the shared one, so that it can be changed."""
    arguments = {
        "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.3, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    return LoadedModel(random_model("LlamaConfig", **arguments | changes), None, f"llama {changes}")


def generated(model: LoadedModel, prompt: list[int]) -> list[int]:
    """What the model itself generates now; `own_tokens` remembers what it generated once."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.hf.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
    return out[0, len(prompt) :].tolist()


def tokens(engine: Engine, prompt: list[int], count: int = 8) -> list[int]:
    return engine.generate([prompt], SamplingParams(max_tokens=count), use_tqdm=False)[0].token_ids


@can_pack
@pytest.mark.parametrize("name", LLAMA_SHAPED)
def test_models_shaped_like_a_llama_run_in_our_own_forward_pass(name):
    assert make(tiny_model(name)).runner.model_impl == "pagedkv_lab"


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_run_in_transformers_modules(name):
    assert make(tiny_model(name)).runner.model_impl == "transformers"


@pytest.mark.parametrize("name", LLAMA_SHAPED)
def test_transformers_modules_run_where_they_are_asked_for(name):
    assert make(tiny_model(name), model_impl="transformers").runner.model_impl == "transformers"


def test_an_implementation_that_does_not_exist_is_refused_by_name():
    with pytest.raises(ValueError, match="model_impl must be auto or transformers, not 'fast'"):
        make(tiny_model("toy"), model_impl="fast")


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
@pytest.mark.parametrize("name", LLAMA_SHAPED + OTHERS)
def test_the_logits_are_those_of_the_model_itself(name, model_impl):
    model = tiny_model(name)
    prompt = random_prompt(24)
    engine = make(model, model_impl=model_impl)
    seen = []
    execute = engine.runner.execute
    engine.runner.execute = lambda step: seen.append(execute(step)) or seen[-1]
    tokens(engine, prompt, 1)
    with torch.inference_mode():
        own = model.hf(input_ids=torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(seen[0][0], own, rtol=1e-3, atol=1e-3 * own.abs().max().item())


@can_pack
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
def test_bfloat16_logits_are_near_those_of_the_model_in_float32(name, model_impl):
    exact = tiny_model(name)
    prompt = random_prompt(24)
    hf = random_copy(exact).to(torch.bfloat16)
    engine = make(LoadedModel(hf, None, "bfloat16"), model_impl=model_impl)
    seen = []
    execute = engine.runner.execute
    engine.runner.execute = lambda step: seen.append(execute(step)) or seen[-1]
    tokens(engine, prompt, 1)
    with torch.inference_mode():
        own = exact.hf(input_ids=torch.tensor([prompt])).logits[0, -1]
    assert ((seen[0][0].float() - own).abs().max() / own.abs().max()).item() < 0.1


def random_copy(model: LoadedModel) -> Any:
    copy = type(model.hf)(model.hf.config).eval()
    copy.load_state_dict(model.hf.state_dict())
    return copy


# When our own doesn't fit


@pytest.mark.parametrize("changes", [{"hidden_act": "gelu"}, {"tie_word_embeddings": True}, {"attention_bias": True}])
def test_a_llama_with_a_difference_still_says_what_it_says_by_itself(changes):
    model = fresh_llama(**changes)
    prompt = random_prompt(20)
    assert tokens(make(model), prompt) == own_tokens(model, prompt, 8)


def test_a_llama_whose_layers_compute_something_else_falls_back_to_its_own_modules(monkeypatch):
    """The probe compares logits; what the class is called doesn't settle it."""
    model = fresh_llama()
    forward = LlamaAttention.forward

    def louder(self, *args, **keywords):
        output, weights = forward(self, *args, **keywords)
        return output * 1.5, weights

    monkeypatch.setattr(LlamaAttention, "forward", louder)
    engine = make(model)
    assert engine.runner.model_impl == "transformers"
    prompt = random_prompt(20)
    assert tokens(engine, prompt) == generated(model, prompt)


def test_somebody_who_watches_a_module_through_a_hook_sees_it_run():
    model = fresh_llama()
    seen = []
    model.hf.model.layers[0].mlp.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    engine = make(model)
    seen.clear()
    tokens(engine, random_prompt(5), 3)
    assert [shape[1] for shape in seen] == [5, 1, 1]


def test_a_linear_layer_that_is_not_torch_s_own_runs_itself():
    """An adapter, say: its forward is its own business."""

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = fresh_llama()
    old = model.hf.model.layers[0].mlp.down_proj
    new = Doubled(old.in_features, old.out_features, bias=False)
    new.weight = old.weight
    model.hf.model.layers[0].mlp.down_proj = new
    prompt = random_prompt(20)
    assert tokens(make(model), prompt) == generated(model, prompt)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_where_memory_for_a_packed_copy_is_short_the_weights_are_used_as_they_lie(name, monkeypatch):
    monkeypatch.setattr("pagedkv_lab.engine.llama.has_memory_for", lambda nbytes: False)
    monkeypatch.setattr("pagedkv_lab.engine.modules.has_memory_for", lambda nbytes: False)
    engine = make(tiny_model(name))
    assert engine.runner.model_impl == "transformers"
    assert not any(isinstance(forward, linear.PackedLinear) for _, forward in engine.runner._faster_modules)
    assert tokens(engine, random_prompt(9)) == own_tokens(tiny_model(name), random_prompt(9), 8)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_where_torch_has_no_packed_linears_everything_works_without(name, monkeypatch):
    for module in ("llama", "modules"):
        monkeypatch.setattr(f"pagedkv_lab.engine.{module}.can_pack", lambda dtype: False)
    engine = make(tiny_model(name))
    assert engine.runner.model_impl == "transformers"
    assert tokens(engine, random_prompt(9)) == own_tokens(tiny_model(name), random_prompt(9), 8)


def test_packed_linears_are_not_used_where_the_operators_are_missing(monkeypatch):
    class NoOperators:
        def __getattr__(self, name):
            raise AttributeError(f"no operator {name}")

    monkeypatch.setattr(linear.torch.ops, "mkldnn", NoOperators(), raising=False)
    assert linear.can_pack.__wrapped__(torch.float32) is False


# The model stays what it was


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_between_steps_every_module_runs_its_own_forward(name):
    model = tiny_model(name)
    engine = make(model)
    engine.add_request(random_prompt(9), SamplingParams(max_tokens=4))
    engine.step()
    assert engine.runner._faster_modules, "nothing was exchanged, so nothing is shown"
    assert not any("forward" in vars(module) for module in model.hf.modules())


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
def test_an_engine_made_after_a_weight_has_changed_computes_with_the_new_one(model_impl):
    model = fresh_llama()
    prompt = random_prompt(20)
    before = tokens(make(model, model_impl=model_impl), prompt)
    with torch.no_grad():
        model.hf.model.layers[1].mlp.down_proj.weight.mul_(-1)
    after = tokens(make(model, model_impl=model_impl), prompt)
    assert after == generated(model, prompt)
    assert after != before


@can_pack
def test_two_engines_on_one_model_share_its_packed_weights():
    model = tiny_model("llama")
    assert make(model).runner._llama is make(model).runner._llama


def test_auto_dtype_on_a_cpu_is_bfloat16_exactly_where_the_processor_computes_in_it():
    supported = torch.cpu.get_capabilities()
    wanted = torch.bfloat16 if supported.get("avx512_bf16") or supported.get("amx_bf16") else torch.float32
    assert load_model("toy", dtype="auto", device="cpu").dtype == wanted
