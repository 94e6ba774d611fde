"""Ask a model's own code how large it is and what it caches: build it on the meta device, without memory.

Knows transformers. Loads no weights, runs no code from the config's folder, downloads nothing.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pagedkv_lab.measure.model_size import KVLayers, ModelSize


def size_by_building(name: str, config: Mapping[str, Any]) -> ModelSize | None:
    """The size by building the model without memory and asking it for the cache of a short text.

    The model's own code says how many parameters it has and which layers keep how many keys: no field of the
    config has to be understood here. None where transformers or torch are missing, or can't build it.
    """
    try:
        import torch
        import transformers
        from transformers.models.auto import modeling_auto
    except (ImportError, OSError):
        return None
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        return None
    if kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        whole_class = transformers.AutoModelForCausalLM
    elif kind in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        whole_class = transformers.AutoModelForImageTextToText
    else:
        raise ValueError(f"{name} is not a decoder's config: {kind} models don't generate text")
    # Quantized weights are stored otherwise, but there are as many of them.
    fields = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    with _quiet():
        try:
            whole = transformers.AutoConfig.for_model(kind, **fields)
        except Exception:  # whatever a model's own code raises: the config's fields are the second way
            return None
        text = whole.get_text_config()
        for auto, part in ((whole_class, whole), (transformers.AutoModelForCausalLM, text)):
            try:
                with torch.device("meta"):
                    model = auto.from_config(part, attn_implementation="eager", dtype=torch.bfloat16)
                with torch.no_grad():
                    token = torch.zeros(1, 1, dtype=torch.long, device="meta")
                    output = model(input_ids=token, use_cache=True)
                layers = getattr(getattr(output, "past_key_values", None), "layers", [])
            except Exception:
                continue  # a model with eyes may need packages that its language part does without
            size = _by_cache(name, text, layers, sum(p.numel() for p in model.parameters()))
            if part is not whole:
                size = replace(size, notes=(*size.notes, "its language part alone is counted"))
            return size
    return None


def _by_cache(name: str, text_config: Any, layers: Sequence[Any], num_parameters: int) -> ModelSize:
    """The size that the layers of a filled transformers cache show."""
    kept = [layer for layer in layers if getattr(layer, "keys", None) is not None]
    if not kept:
        raise ValueError(f"{name} has no KV cache: {text_config.model_type} models keep no keys")
    # keys: [batch, kv_heads, tokens, key_dim]
    alike = Counter((layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in kept)
    notes = []
    if others := len(layers) - len(kept):
        notes.append(f"{others} of {len(layers)} layers keep no keys of their own and are not counted")
    window = getattr(text_config, "sliding_window", None)
    if window and (sliding := sum("Sliding" in type(layer).__name__ for layer in kept)):
        notes.append(
            f"{sliding} of {len(layers)} layers look at the last {window:,} tokens only; counted in full here"
        )
    lengths = (getattr(text_config, field, None) for field in ("max_position_embeddings", "max_seq_len"))
    longest = next((length for length in lengths if isinstance(length, int) and length > 0), None)
    if longest is None:
        longest = 2048
        notes.append("its config names no longest sequence: 2,048 tokens are assumed (--max-model-len)")
    return ModelSize(
        name=name,
        attention=_attention_kind(text_config, {heads for heads, _, _ in alike}),
        kv_layers=tuple(KVLayers(count, *dims) for dims, count in alike.items()),
        num_parameters=num_parameters,
        parameters_from="counted by building the model from its config, without memory",
        stored_bytes=None,
        max_model_len=longest,
        notes=tuple(notes),
    )


def _attention_kind(text_config: Any, kv_heads: set[int]) -> str:
    if getattr(text_config, "kv_lora_rank", None):
        return "MLA"  # multi-head latent attention: one compressed vector stands for all heads
    if kv_heads == {getattr(text_config, "num_attention_heads", None)}:
        return "MHA"
    return "MQA" if kv_heads == {1} else "GQA"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice that transformers prints on models one is going to run."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
