"""Runs a step through any Hugging Face causal LM, with our attention in the place of its own.

Knows the model, the pool's tensors, tables and slots. Does not know requests, scheduling or who owns what.
No model code of our own: transformers calls the attention function that is registered under a name, once a
layer, with queries, keys and values after the rotary embedding. Ours writes keys and values into the pool
and attends through the block tables. All sequences of a step go through the model as one flat row of tokens,
so no padding is computed, and prefill and decode mix freely.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface

from pagedkv_lab.attention import PagedAttention, Workspace
from pagedkv_lab.errors import UnsupportedModel
from pagedkv_lab.kv import KVPool, LayerShape

_NAME = "pagedkv_lab"  # absent from transformers' mask registry, so that no mask is built
_STEP = "pagedkv_step"  # the keyword that carries a step through the model's forward

#: Keywords that transformers hands to an attention function and that change nothing here.
_HARMLESS = {
    "dropout", "is_causal", "position_ids", "cache_position", "use_cache", "output_attentions", "return_dict",
    "output_hidden_states", "logits_to_keep", "position_embeddings", "head_mask", "past_key_values", "layer_idx",
}  # fmt: skip


@dataclass(frozen=True)
class StepInput:
    """One step as the runner sees it: a flat batch of T tokens of S sequences.

    token_ids, positions: T each. query_lens, context_lens: S each, tokens of each sequence in this step, and
    in the pool once this step is written. block_tables: S lists of physical blocks. write_slots: where tokens
    go in the pool; write_rows: which of the T tokens they are, None when it is all of them in order.
    sample_rows: the tokens whose logits are wanted. copies: block copies to do before anything is written.
    """

    token_ids: list[int]
    positions: list[int]
    query_lens: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    write_slots: list[int]
    write_rows: list[int] | None
    sample_rows: list[int]
    copies: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class _Step:
    """What the attention function needs, the same for each layer."""

    runner: "ModelRunner"
    block_tables: torch.Tensor
    query_lens: list[int]
    context_lens: list[int]
    write_slots: torch.Tensor
    write_rows: torch.Tensor | None


class ModelRunner:
    """An adapter from steps to a transformers model (`hf`, a causal LM in eval mode).

    attention: a backend, see `pagedkv_lab.attention`. `allocate` must be called before `execute`.

    Raises UnsupportedModel where the model doesn't let its attention be replaced, or asks its attention for
    something that a backend here can't do.
    """

    def __init__(self, hf: Any, name: str, attention: PagedAttention):
        self.hf, self.name, self.attention = hf, name, attention
        self.device: torch.device = hf.device
        self.workspace = Workspace()
        self.pool: KVPool | None = None
        self._own_attention: list[tuple[Any, str]] = []
        self._configs = {id(m.config): m.config for m in hf.modules() if hasattr(m, "config")}.values()
        self._keeps_logits = "logits_to_keep" in inspect.signature(hf.forward).parameters
        AttentionInterface.register(_NAME, _attention)
        try:
            self.layers = self._probe()
        finally:
            self.give_attention_back()  # once more: Ctrl-C may have come in the middle of it

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the pool's tensors."""
        self.pool = KVPool(self.layers, num_blocks, block_size, dtype=self.hf.dtype, device=self.device)

    @torch.inference_mode()
    def execute(self, step: StepInput) -> torch.Tensor:
        """Run the step. Returns the logits of `sample_rows`, (len(sample_rows), vocab), float32."""
        self.pool.copy_blocks(step.copies)
        self.workspace.begin_step()
        width = max(len(table) for table in step.block_tables)
        tables = torch.zeros(len(step.block_tables), width, dtype=torch.int32)
        for row, table in zip(tables, step.block_tables, strict=True):
            row[: len(table)] = torch.tensor(table, dtype=torch.int32)
        context = _Step(
            self,
            tables.to(self.device),
            step.query_lens,
            step.context_lens,
            self._tensor(step.write_slots),
            None if step.write_rows is None else self._tensor(step.write_rows),
        )
        with self._our_attention():
            return self._forward(
                self._tensor(step.token_ids)[None],
                self._tensor(step.positions)[None],
                self._tensor(step.sample_rows),
                **{_STEP: context},
            )

    def _forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, **extra: Any
    ) -> torch.Tensor:
        if self._keeps_logits:
            extra["logits_to_keep"] = rows
        logits = self.hf(input_ids=token_ids, position_ids=positions, use_cache=False, **extra).logits[0]
        return (logits if self._keeps_logits else logits[rows]).float()

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    @contextmanager
    def _our_attention(self) -> Iterator[None]:
        """The model's own attention comes back afterwards, so that the same model can still generate() by itself."""
        self._own_attention = [(config, config._attn_implementation) for config in self._configs]
        try:
            for config in self._configs:
                config._attn_implementation = _NAME
            yield
        finally:
            self.give_attention_back()

    def give_attention_back(self) -> None:
        """Give the model its own attention again. Twice does no harm: after a failure the engine makes sure."""
        for config, name in self._own_attention:
            config._attn_implementation = name
        self._own_attention = []

    # Finding out, before anything is served, whether this model can be

    @torch.inference_mode()
    def _probe(self) -> list[LayerShape]:
        """Run a few tokens, watch what each layer asks of its attention, and compare with the model's own result."""
        config = self.hf.config.get_text_config(decoder=True)
        kinds = set(getattr(config, "layer_types", None) or ())
        if odd := kinds - {"full_attention", "sliding_attention"}:
            raise self._refuse(f"it has layers of type {', '.join(sorted(odd))}")
        if not getattr(self.hf, "_supports_attention_backend", False):
            raise self._refuse("its class doesn't let its attention be replaced (transformers' attention backends)")

        vocab_size = self.hf.get_input_embeddings().weight.shape[0]
        token_ids = (torch.arange(8, device=self.device) * 7919 + 11)[None] % vocab_size
        positions = torch.arange(8, device=self.device)[None]
        rows = torch.tensor([3, 7], device=self.device)
        own = self._forward(token_ids, positions, rows)

        seen: list[tuple[Any, LayerShape]] = []
        try:
            with self._our_attention():
                ours = self._forward(token_ids, positions, rows, **{_STEP: seen})
        except UnsupportedModel as error:
            raise self._refuse(str(error)) from error
        layers = dict(seen)
        if sorted(layers) != list(range(config.num_hidden_layers)) or len(seen) != len(layers):
            raise self._refuse(
                f"{len(seen)} of its {config.num_hidden_layers} layers call the attention function with our step "
                "(layers without attention, or a model that doesn't pass its keywords on)"
            )
        error = ((own - ours).abs().max() / own.abs().max()).item()
        if not error < (1e-3 if self.hf.dtype == torch.float32 else 0.1):
            raise self._refuse(f"its logits differ from its own attention's by {error:.1%} of the largest one")
        return [layers[i] for i in range(config.num_hidden_layers)]

    def _refuse(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.name} ({type(self.hf).__name__}) can't be served from a paged cache: {why}. Models known to "
            "work: Llama, Mistral, Qwen2, Qwen3, Gemma, Phi, GPT-2, OPT."
        )


def _attention(
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
    step = keywords.pop(_STEP, None)
    if step is None:
        raise UnsupportedModel(f"{type(module).__name__} was called without the step: its model drops keywords")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    options = {"scale": scale, "sliding_window": sliding_window, "softcap": softcap}
    if isinstance(step, list):
        return _probe_attention(step, module, query, key, value, attention_mask, keywords, options), None

    runner, layer = step.runner, module.layer_idx
    key, value = key[0].transpose(0, 1), value[0].transpose(0, 1)  # (T, Hkv, D)
    if step.write_rows is not None:
        key, value = key[step.write_rows], value[step.write_rows]
    runner.pool.write(layer, step.write_slots, key, value)
    output = runner.attention(
        query[0].transpose(0, 1),  # (T, Hq, D)
        runner.pool.keys[layer],
        runner.pool.values[layer],
        step.block_tables,
        step.context_lens,
        step.query_lens,
        **options,
        workspace=runner.workspace,
    )
    return output[None], None


def _probe_attention(
    seen: list,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    keywords: dict[str, Any],
    options: dict[str, Any],
) -> torch.Tensor:
    """Attention over the probe's own tokens, without a pool. Notes its shape, refuses what can't be honoured."""
    from pagedkv_lab.attention import reference

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

    seen.append((module.layer_idx, LayerShape(key.shape[1], key.shape[3], value.shape[3])))
    num_tokens = query.shape[2]
    return reference.paged_attention(
        query[0].transpose(0, 1),
        key.transpose(1, 2),  # (1, T, Hkv, D): a pool of one block
        value.transpose(1, 2),
        torch.zeros(1, 1, dtype=torch.int32, device=query.device),
        [num_tokens],
        [num_tokens],
        **options,
    )[None]
