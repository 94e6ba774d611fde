"""Llama-shaped models on a CPU, run by a forward pass of our own on weights taken from the loaded model.

Knows the layers of a Llama: norm, attention, norm, gated MLP. Does not know the cache: it hands queries, keys and
values to a function and gets the attention's output back.

Why own code where transformers has the model: on a small model a decode step is over so fast that Python and small
kernels cost as much as the arithmetic. So there are few of them here: packed weights (see `linear`), q, k and v in one
product, gate and up in one, both residuals added inside a product, a norm in one kernel, the gate in one (`glue`), a
rotation in one. Where the model isn't one of these, or its logits come out different, the runner goes on with
transformers' modules.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from pagedkv_lab.engine.glue import rms_norm, silu_times
from pagedkv_lab.engine.linear import PackedLinear, can_pack, has_memory_for, made_once

#: `attend(layer, query, key, value)`: (T, Hq, D), (T, Hkv, D), (T, Hkv, D) -> (T, Hq, D).
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

#: Classes of transformers whose layers are what `Llama` computes. The runner compares the logits all the same.
_SHAPED_ALIKE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class _Layer(NamedTuple):
    """One decoder layer's weights. query_norm, key_norm: Qwen3's norms over a head, else None."""

    attention_norm: torch.Tensor
    qkv: PackedLinear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: PackedLinear
    mlp_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear


class Llama:
    """The forward pass. Takes its weights from `hf`, a LlamaForCausalLM or one shaped like it, and packs them.

    The packed weights are a copy: they take the model's weight bytes once more, and don't follow later changes.
    """

    def __init__(self, hf: Any):
        config = hf.config
        first = hf.model.layers[0].self_attn
        self.head_dim = first.head_dim
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.eps = config.rms_norm_eps
        self.embedding, self.rotary = hf.model.embed_tokens, hf.model.rotary_emb
        self.layers = [self._take(layer) for layer in hf.model.layers]
        self.norm = hf.model.norm.weight.detach()
        self.head = PackedLinear(hf.lm_head.weight, hf.lm_head.bias)

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Logits (len(rows), vocab) of the tokens at `rows`. token_ids, positions: (T,) int64; rows: int64."""
        num_tokens, num_qk_heads = token_ids.shape[0], self.num_heads + self.num_kv_heads
        x = self.embedding(token_ids)  # (T, hidden)
        rotation = self._rotation(x, positions)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            qkv = layer.qkv(rms_norm(x, layer.attention_norm, self.eps)).view(num_tokens, -1, self.head_dim)
            query_key, value = qkv[:, :num_qk_heads], qkv[:, num_qk_heads:]  # (T, Hq + Hkv, D), (T, Hkv, D)
            if layer.query_norm is not None:
                query, key = query_key[:, : self.num_heads], query_key[:, self.num_heads :]
                norms = self._norm_heads(query, layer.query_norm), self._norm_heads(key, layer.key_norm)
                query_key = torch.cat(norms, dim=1)
            query_key = self._rotate(query_key, rotation)
            query, key = query_key[:, : self.num_heads], query_key[:, self.num_heads :]
            attended = attend(i, query, key, value).reshape(num_tokens, -1)  # (T, Hq * D)
            if i == last and len(rows) < num_tokens:
                # Behind the last layer's attention nobody looks at the other tokens any more.
                attended, x = attended[rows], x[rows]
            x = layer.output.plus(attended, x)
            x = layer.down.plus(silu_times(layer.gate_up(rms_norm(x, layer.mlp_norm, self.eps))), x)
        return self.head(rms_norm(x, self.norm, self.eps))

    def _norm_heads(self, heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(heads, weight.shape, weight, self.eps)

    def _rotation(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The rotary embedding as complex numbers, cos + i sin, (T, 1, D / 2); the model's own module has them."""
        cos, sin = self.rotary(x.float(), positions[None])  # (1, T, D), the second half repeats the first
        half = self.head_dim // 2
        return torch.complex(cos[0, :, None, :half], sin[0, :, None, :half])

    def _rotate(self, heads: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """Turn each pair of numbers of a head by its angle: one complex product. heads: (T, H, D)."""
        pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))  # (T, H, D / 2)
        return torch.view_as_real(pairs * rotation).flatten(-2).to(heads.dtype)

    def _take(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
        in_pairs = self._in_pairs
        weight = torch.cat([in_pairs(query.weight), in_pairs(key.weight), value.weight])
        bias = None if query.bias is None else torch.cat([in_pairs(query.bias), in_pairs(key.bias), value.bias])
        gate_up_bias = None if mlp.up_proj.bias is None else torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias])
        norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        return _Layer(
            layer.input_layernorm.weight.detach(),
            PackedLinear(weight, bias),
            *(None if norm is None else in_pairs(norm.weight) for norm in norms),
            PackedLinear(attention.o_proj.weight, attention.o_proj.bias),
            layer.post_attention_layernorm.weight.detach(),
            PackedLinear(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), gate_up_bias),
            PackedLinear(mlp.down_proj.weight, mlp.down_proj.bias),
        )

    def _in_pairs(self, numbers: torch.Tensor) -> torch.Tensor:
        """Reorder a head's numbers: transformers turns number i with number i + D / 2, here they become neighbours.

        Query and key are reordered alike, so no score changes. numbers: (H * D, ...).
        """
        halves = numbers.detach().unflatten(0, (-1, 2, self.head_dim // 2))  # (H, 2, D / 2, ...)
        return halves.transpose(1, 2).flatten(0, 2)


def make_llama(hf: Any) -> Llama | None:
    """`hf` in our own forward pass, or None where it isn't shaped like a Llama, or memory for the copy is short."""
    if not _is_llama(hf) or not has_memory_for(p.nbytes for p in hf.parameters()):
        return None
    return made_once(hf, lambda: Llama(hf))


def _is_llama(hf: Any) -> bool:
    if type(hf).__name__ not in _SHAPED_ALIKE or hf.device.type != "cpu" or not can_pack(hf.dtype):
        return False
    modules = list(hf.modules())
    if any(m._forward_hooks or m._forward_pre_hooks for m in modules):
        return False  # somebody watches the modules run
    layer = hf.model.layers[0]
    linears = [hf.lm_head, *(getattr(layer.self_attn, f"{name}_proj") for name in "qkvo"), layer.mlp.down_proj]
    return (
        all(type(linear) is nn.Linear for linear in linears)  # not quantized, no adapters
        and all(parameter.dtype == hf.dtype for parameter in hf.parameters())
        and hf.config.hidden_act == "silu"
        and len(hf.model.layers) == hf.config.num_hidden_layers
    )
