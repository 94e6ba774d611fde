"""The models that are measured: TinyLlama's exact shape with random weights, built on the spot, and a small one.

Knows transformers' configs. Random weights cost as much to run as trained ones. What they say is nonsense, and near
ties are common in it: in 16 bits, two ways to compute the same model part at one of those.
"""

from functools import cache
from typing import Any

import torch

from pagedkv_lab.engine import LoadedModel

#: TinyLlama-1.1B's config.
TINYLLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}

#: Small, and wide apart: weights far larger than usual, so that the likeliest token is never a near tie in float32.
SMALL = {
    "vocab_size": 259,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
}


@cache
def random_model(name: str, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """name: "tinyllama" or "small". The same weights in every process on the same kind of device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    # Nothing ends an output before its time.
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(**{"tinyllama": TINYLLAMA, "small": SMALL}[name], **tokens)
    torch.manual_seed(0)
    with torch.device(device):  # made where it will run: over a billion random numbers take a CPU half a minute
        hf: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    hf = hf.to(device).eval()
    hf.generation_config.eos_token_id = None
    return LoadedModel(hf, None, f"random weights, {name}'s shape")


def kv_bytes_per_token(model: LoadedModel) -> int:
    """Bytes of one token's keys and values in all layers, in the model's own dtype."""
    return model.shape.kv_bytes_per_token(str(model.dtype).removeprefix("torch."))
