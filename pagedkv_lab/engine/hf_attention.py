"""What transformers calls in the place of a model's own attention, and how a model is tried out with it.

Knows transformers' attention interface. Does not know the pool: it hands queries, keys and values to the step
that comes along as a keyword.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from pagedkv_lab.attention import reference
from pagedkv_lab.errors import UnsupportedModel
from pagedkv_lab.kv import LayerShape

NAME = "pagedkv_lab"  # absent from transformers' mask registry, so that no mask is built
STEP = "pagedkv_step"  # the keyword that carries a step through the model's forward

#: Keywords that transformers hands to an attention function and that change nothing here.
_HARMLESS = {
    "dropout", "is_causal", "position_ids", "cache_position", "use_cache", "output_attentions", "return_dict",
    "output_hidden_states", "logits_to_keep", "position_embeddings", "head_mask", "past_key_values", "layer_idx",
}  # fmt: skip


@dataclass(frozen=True)
class LayerCall:
    """What one layer keeps for a token, its query heads, and what it asks of its attention: scale, sliding_window,
    softcap."""

    shape: LayerShape
    num_heads: int
    options: dict[str, Any]


class Probe:
    """A step of a few tokens that start a sequence, without a pool. Notes each layer's call, refuses what no backend
    here can honour."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, LayerCall]] = []

    def check(self, module: Any, attention_mask: torch.Tensor | None, keywords: dict, options: dict) -> None:
        """Raises UnsupportedModel, in words that name the module."""
        name = type(module).__name__
        if attention_mask is not None:
            raise UnsupportedModel(f"{name} brings a mask of its own, which a paged cache can't honour")
        if not getattr(module, "is_causal", True):
            raise UnsupportedModel(f"{name} is not causal: its tokens look ahead, so their keys can't be cached")
        for keyword, given in keywords.items():
            if given is not None and given is not False and keyword not in _HARMLESS:
                raise UnsupportedModel(f"{name} asks its attention for {keyword}, which no backend here honours")
        kinds = getattr(module.config, "layer_types", None)
        if kinds and kinds[module.layer_idx] == "sliding_attention" and options["sliding_window"] is None:
            raise UnsupportedModel(f"{name} has a sliding window and doesn't tell its attention how wide it is")

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """As a step's `attend`, over the probe's own tokens."""
        shape = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        self.calls.append((layer, LayerCall(shape, query.shape[1], options)))
        tables = torch.zeros(1, 1, dtype=torch.int32, device=query.device)
        # The tokens are a pool of one block: (1, T, Hkv, D).
        num_tokens = [len(query)]
        return reference.paged_attention(query, key[None], value[None], tables, num_tokens, num_tokens, **options)


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls once a layer. query: (1, Hq, T, D); key, value: (1, Hkv, T, D), heads not repeated.

    Returns (1, T, Hq, D) and no attention weights.
    """
    step = keywords.pop(STEP, None)
    if step is None:
        raise UnsupportedModel(f"{type(module).__name__} was called without the step: its model drops keywords")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    options = {"scale": scale, "sliding_window": sliding_window, "softcap": softcap}
    if isinstance(step, Probe):
        step.check(module, attention_mask, keywords, options)
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # (T, H, D)
    return step.attend(module.layer_idx, query, key, value, **options)[None], None


AttentionInterface.register(NAME, attention)
