"""Models of two layers with random weights, and the tokens that they generate by themselves.

Their weights are drawn from a range ten times wider than real models are initialised with, so that the
likeliest token is never a near tie and depends on every token before it.
"""

from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from pagedkv_lab.engine import Engine, LoadedModel, load_model

VOCAB_SIZE = 128
#: The sliding window of the models that have one: shorter than most sequences in these tests.
WINDOW = 9

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GQA = _COMMON | {"num_key_value_heads": 2}

#: (configuration class, its arguments) by the name that the tests use.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GQA),
    "qwen2": ("Qwen2Config", _GQA),
    "qwen3": ("Qwen3Config", _GQA | {"head_dim": 16}),
    "mistral": ("MistralConfig", _GQA | {"sliding_window": WINDOW}),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCAB_SIZE,
            "n_positions": 256,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "initializer_range": 0.3,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
    # Sliding and full layers by turns, and capped scores that reach the cap.
    "gemma2": (
        "Gemma2Config",
        _GQA
        | {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": None,
        },
    ),
    "phi": ("PhiConfig", _COMMON),
    "opt": (
        "OPTConfig",
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
            "init_std": 0.3,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
}


def random_model(config_class: str, **arguments: Any) -> Any:
    """A transformers causal LM of this configuration, random weights, the same at every call."""
    config = getattr(transformers, config_class)(**arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


@cache
def tiny_model(name: str) -> LoadedModel:
    """The model `name` of CONFIGS, or "toy" (the package's own, with a tokenizer). Made once."""
    if name == "toy":
        return load_model("toy", device="cpu")
    config_class, arguments = CONFIGS[name]
    return LoadedModel(random_model(config_class, **arguments), None, name)


@cache
def letters_model() -> LoadedModel:
    """A tiny Llama whose tokens are two letters each, "ab" or "ha": its text can be read, and a string that is
    looked for may begin in the middle of a token."""
    tokens = [first + second for first in "abcdefghijklmnop" for second in "abcdefgh"]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="aa"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(".."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return LoadedModel(tiny_model("llama").hf, fast, "letters")


_generated: dict[tuple[str, tuple[int, ...]], tuple[int, list[int]]] = {}


def own_tokens(model: LoadedModel, prompt: list[int], max_tokens: int) -> list[int]:
    """What the model's own greedy `generate` makes of one prompt, nothing else in the batch.

    Remembered by prompt. Greedy tokens don't depend on how many are asked for, so a shorter answer is the
    beginning of a longer one.
    """
    key = (model.name, tuple(prompt))
    asked, tokens = _generated.get(key, (0, []))
    if asked < max_tokens:
        asked = max(max_tokens, 16)
        with torch.inference_mode():
            out = model.hf.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=asked,
                do_sample=False,
                pad_token_id=0,
            )
        tokens = out[0, len(prompt) :].tolist()
        _generated[key] = asked, tokens
    return tokens[:max_tokens]


def random_prompt(length: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> list[int]:
    """Token ids without any pattern; the same for the same arguments, and nested: a longer one begins with
    the shorter one."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(0, vocab_size, (256,), generator=generator)[:length].tolist()


def assert_all_back(engine: Engine) -> None:
    """Rule 9 with nobody left: the books are right and no block is in use."""
    engine.manager.check_invariants()
    assert not engine.has_unfinished_requests()
    counts = engine.stats().pool
    assert counts.used == 0, f"leaked: {counts}"
    assert counts.free + counts.cached == counts.total == engine.num_gpu_blocks
    assert engine.manager.used_slots == 0
