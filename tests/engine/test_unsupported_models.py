"""Models that a paged cache can't serve are refused by name, before anything runs, and are left as they were.

Random weights, two layers: what is refused is the architecture.
"""

import re
from typing import Any

import pytest
import torch
from tiny_models import VOCAB_SIZE, own_tokens, random_model, random_prompt, tiny_model
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.mistral.modeling_mistral import MistralAttention

from pagedkv_lab.engine import Engine, LoadedModel, SamplingParams
from pagedkv_lab.errors import UnsupportedModel

_NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_SMALL: dict[str, Any] = _NO_SPECIAL_TOKENS | {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
_EXPERTS = _SMALL | {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
_NO_BACKENDS = "its class doesn't let its attention be replaced"

#: name: (configuration class, its arguments, how the refusal names it, the reason it gives)
REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "attention-sinks": ("GptOssConfig", _EXPERTS, "GptOss", "s_aux, which no backend here honours"),
    "stablelm": ("StableLmConfig", _SMALL | {"num_key_value_heads": 2}, "StableLmForCausalLM", _NO_BACKENDS),
    "bloom": (
        "BloomConfig",
        _NO_SPECIAL_TOKENS | {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "BloomForCausalLM",
        _NO_BACKENDS,
    ),
    "falcon": ("FalconConfig", _SMALL, "FalconForCausalLM", _NO_BACKENDS),
    "looks-ahead": ("BertConfig", _SMALL | {"pad_token_id": 0}, "Bert", "is not causal: its tokens look ahead"),
    "no-attention": (
        "MambaConfig",
        _NO_SPECIAL_TOKENS | {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "MambaForCausalLM",
        "layers of type linear_attention",
    ),
    "chunked-attention": (
        "Llama4TextConfig",
        _EXPERTS | {"num_hidden_layers": 4, "intermediate_size_mlp": 64, "attention_chunk_size": 4},
        "Llama4ForCausalLM",
        "layers of type chunked_attention",
    ),
}


def what_it_says_by_itself(hf: Any) -> list[int]:
    with torch.inference_mode():
        out = hf.generate(torch.tensor([random_prompt(6)]), max_new_tokens=3, do_sample=False, pad_token_id=0)
    return out[0].tolist()


def attention_of(hf: Any) -> set[str]:
    return {module.config._attn_implementation for module in hf.modules() if hasattr(module, "config")}


def refusal(hf: Any, name: str = "some-model") -> str:
    with pytest.raises(UnsupportedModel) as refused:
        Engine(LoadedModel(hf, None, name), num_gpu_blocks=8, max_model_len=32)
    return str(refused.value)


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_by_name_with_the_reason_and_says_the_same_by_itself_as_before(kind):
    config_class, arguments, name, reason = REFUSED[kind]
    hf = random_model(config_class, **arguments)
    before, attention = what_it_says_by_itself(hf), attention_of(hf)
    message = refusal(hf)
    assert name in message
    assert reason in message
    assert "\n" not in message
    assert attention_of(hf) == attention
    assert what_it_says_by_itself(hf) == before


def test_the_refusal_says_which_models_work():
    message = refusal(random_model("BloomConfig", **REFUSED["bloom"][1]), "bigscience/bloom-560m")
    assert message.startswith("bigscience/bloom-560m (BloomForCausalLM)")
    assert "Llama" in message.partition("work:")[2]


@pytest.fixture
def llama():
    """A model that is served well, as the test after each change to it shows."""
    hf = tiny_model("llama").hf
    engine = Engine(tiny_model("llama"), num_gpu_blocks=8, max_model_len=32)
    prompt = random_prompt(5)
    [output] = engine.generate([prompt], SamplingParams(max_tokens=4), use_tqdm=False)
    assert output.token_ids == own_tokens(tiny_model("llama"), prompt, 4)
    return hf


def hand_over(monkeypatch: pytest.MonkeyPatch, attention_class: type, **keywords: Any) -> None:
    """Every layer's attention is called with these keywords as well."""
    forward = attention_class.forward

    def with_keywords(self, *args, **others):
        return forward(self, *args, **others | keywords)

    monkeypatch.setattr(attention_class, "forward", with_keywords)


def test_a_keyword_that_nobody_here_knows_is_not_ignored(llama, monkeypatch):
    attention = attention_of(llama)
    hand_over(monkeypatch, LlamaAttention, score_bonus=0.5)
    assert re.search(r"LlamaAttention .*score_bonus", refusal(llama))
    assert attention_of(llama) == attention


@pytest.mark.parametrize("nothing", [None, False])
def test_a_keyword_that_asks_for_nothing_does_no_harm(llama, monkeypatch, nothing):
    hand_over(monkeypatch, LlamaAttention, score_bonus=nothing)
    Engine(tiny_model("llama"), num_gpu_blocks=8, max_model_len=32)


def test_a_mask_of_its_own_is_not_ignored(llama, monkeypatch):
    hand_over(monkeypatch, LlamaAttention, attention_mask=torch.zeros(1, 1, 8, 8))
    assert re.search(r"LlamaAttention brings a mask of its own", refusal(llama))


def test_a_sliding_window_whose_width_is_kept_secret_is_refused():
    """Its config says "sliding_attention"; what its attention isn't told, it can't honour."""
    hf = random_model("MistralConfig", **_SMALL, num_key_value_heads=2, sliding_window=4)
    hf.config.layer_types = ["sliding_attention"] * 2
    for layer in hf.model.layers:
        layer.self_attn.config = hf.config
    hf.config.sliding_window = None
    assert re.search(rf"{MistralAttention.__name__} has a sliding window and doesn't tell", refusal(hf))


def test_attention_that_the_interface_does_not_show_is_refused(llama, monkeypatch):
    """What a layer does to the scores behind our back shows in the logits."""
    forward = LlamaAttention.forward

    def louder_by_itself(self, *args, **keywords):
        output, weights = forward(self, *args, **keywords)
        return (output if "pagedkv_step" in keywords else output * 1.5), weights

    monkeypatch.setattr(LlamaAttention, "forward", louder_by_itself)
    assert "its logits differ from its own attention's" in refusal(llama)


def test_a_layer_that_calls_no_attention_is_refused(llama, monkeypatch):
    skipped = llama.model.layers[1].self_attn
    monkeypatch.setattr(skipped, "forward", lambda hidden_states, **keywords: (hidden_states, None))
    message = refusal(llama)
    assert "1 of its 2 layers call the attention function" in message


def test_an_error_in_the_probe_gives_the_model_its_attention_back(llama, monkeypatch):
    attention = attention_of(llama)

    def broken(self, *args, **keywords):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(LlamaAttention, "forward", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            Engine(tiny_model("llama"), num_gpu_blocks=8, max_model_len=32)
    assert attention_of(llama) == attention
    Engine(tiny_model("llama"), num_gpu_blocks=8, max_model_len=32)
