"""Runs a step through any Hugging Face causal LM, with our attention in the place of its own.

Knows the model, the pool's tensors, tables and slots. Does not know requests, scheduling or who owns what.
All sequences of a step go through the model as one flat row of tokens, so no padding is computed, and prefill and
decode mix freely. The forward pass is transformers' own, with our function registered as its attention (see
`hf_attention`), or `llama`'s where that is faster and gives the same logits.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch

from pagedkv_lab.attention import PagedAttention, Workspace
from pagedkv_lab.engine import hf_attention
from pagedkv_lab.engine.backend import kernels_of, quantized_kernels_of
from pagedkv_lab.engine.cuda_graphs import DecodeGraphs, DecodeInput
from pagedkv_lab.engine.device import CudaDevice
from pagedkv_lab.engine.hf_attention import LayerCall, Probe
from pagedkv_lab.engine.llama import make_llama
from pagedkv_lab.engine.modules import faster_modules
from pagedkv_lab.engine.staging import Staging
from pagedkv_lab.errors import UnsupportedModel
from pagedkv_lab.kv import KVPool, LayerShape, QuantizedKVPool
from pagedkv_lab.sizing import KVQuantization, blocks_for


@dataclass(frozen=True)
class StepInput:
    """One step as the runner sees it: a flat batch of T tokens of S sequences. All arrays are integers.

    token_ids, positions: (T,). query_lens, context_lens: (S,), tokens of each sequence in this step, and in the
    pool once this step is written. block_tables: (S, max_blocks) int32, row s begins with sequence s's physical
    blocks. write_slots: where tokens go in the pool; write_rows: which of the T tokens they are, None when it is
    all of them in order. sample_rows: the tokens whose logits are wanted. copies: block copies to do before
    anything is written.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    query_lens: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    write_slots: np.ndarray
    write_rows: np.ndarray | None
    sample_rows: np.ndarray
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def slot_of_each_token(self) -> np.ndarray:
        """(T,) int64: where each token goes in the pool, -1 for one that is written nowhere."""
        if self.write_rows is None:
            return self.write_slots
        slots = np.full(len(self.token_ids), -1, np.int64)
        slots[self.write_rows] = self.write_slots
        return slots


@dataclass
class _Step:
    """A step on its way through the layers: each one hands its queries, keys and values to `attend`.

    The lengths are None where the workspace holds metadata on the device for them. tail_rows, touched: see
    `ModelRunner._tails_of`.
    """

    runner: "ModelRunner"
    kernels: ModuleType | None
    workspace: Workspace
    block_tables: torch.Tensor
    query_lens: np.ndarray | None
    context_lens: np.ndarray | None
    write_slots: torch.Tensor
    write_rows: torch.Tensor | None
    tail_rows: torch.Tensor | None = None
    touched: torch.Tensor | None = None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """Write keys and values into the pool, then attend through the tables. (T, H, D) each; returns (T, Hq, Dv)."""
        pool, kernels = self.runner.pool, self.kernels
        lengths, options = (self.context_lens, self.query_lens), options | {"workspace": self.workspace}
        if kernels is not None and isinstance(pool, QuantizedKVPool):
            quantized = pool.layer(layer, self.tail_rows)
            if self.touched is None:
                kernels.write_tokens(key, value, quantized, self.write_slots)
            else:
                kernels.fill_blocks(key, value, quantized, self.touched)
            return kernels.paged_attention(query, quantized, self.block_tables, *lengths, **options)
        if kernels is not None:
            kernels.write_kv(key, value, pool.keys[layer], pool.values[layer], self.write_slots)
        else:
            if self.write_rows is not None:
                key, value = key[self.write_rows], value[self.write_rows]
            pool.write(layer, self.write_slots, key, value)
        keys, values, block_tables = pool.read(layer, self.block_tables)
        return self.runner.attention(query, keys, values, block_tables, *lengths, **options)


class ModelRunner:
    """An adapter from steps to a transformers model (`hf`, a causal LM in eval mode).

    attention: a backend, see `pagedkv_lab.attention`. On a quantized pool it attends over what the pool makes plain
    again, unless it brings kernels that read it as it is. model_impl: "transformers", or "auto" for our own forward
    pass where there is one for this model. gpu: what the model lies on; None on a CPU. `allocate` must be called
    before `execute`.

    Raises UnsupportedModel where the model doesn't let its attention be replaced, or asks its attention for
    something that a backend here can't do.
    """

    def __init__(
        self,
        hf: Any,
        name: str,
        attention: PagedAttention,
        model_impl: str = "auto",
        gpu: CudaDevice | None = None,
    ):
        self.hf, self.name, self.attention = hf, name, attention
        self.device: torch.device = hf.device
        self.gpu = gpu
        #: Decode steps that are recorded, or None: then every step runs as it comes.
        self.graphs: DecodeGraphs | None = None
        self._staging = None if gpu is None else Staging(gpu)
        self.workspace = Workspace()
        self.pool: KVPool | QuantizedKVPool | None = None
        self._own_attention: list[tuple[Any, str]] = []
        self._own_forward: list[Any] = []
        self._faster_modules: list[tuple[Any, Any]] = []
        self._configs = {id(m.config): m.config for m in hf.modules() if hasattr(m, "config")}.values()
        self._keeps_logits = "logits_to_keep" in inspect.signature(hf.forward).parameters
        self._llama = None
        try:
            self.calls, own_logits = self._probe()
            self._choose(model_impl, own_logits)
        finally:
            self.give_attention_back()  # once more: Ctrl-C may have come in the middle of it

    @property
    def model_impl(self) -> str:
        """Whose forward pass runs: "pagedkv_lab" or "transformers"."""
        return "transformers" if self._llama is None else "pagedkv_lab"

    @property
    def kernels(self) -> ModuleType | None:
        """The backend's module where it writes this pool with kernels of its own, and attends from static metadata."""
        of = quantized_kernels_of if isinstance(self.pool, QuantizedKVPool) else kernels_of
        return of(self.attention)

    @property
    def layers(self) -> list[LayerShape]:
        """What each layer keeps for a token."""
        return [call.shape for call in self.calls]

    def allocate(
        self, num_blocks: int, block_size: int, quantization: KVQuantization | None = None, num_tails: int = 0
    ) -> None:
        """Make the pool's tensors: in the model's dtype, or quantized, with so many tails for partly filled blocks."""
        self.graphs = None  # they have the old pool's addresses
        options: dict[str, Any] = {"dtype": self.hf.dtype, "device": self.device}
        if quantization is None:
            self.pool = KVPool(self.layers, num_blocks, block_size, **options)
        else:
            options["num_tails"] = num_tails
            self.pool = QuantizedKVPool(self.layers, num_blocks, block_size, quantization, **options)

    @torch.inference_mode()
    def execute(self, step: StepInput) -> torch.Tensor:
        """Run the step. Returns the logits of `sample_rows`, (len(sample_rows), vocab), in the model's dtype.

        The next step may overwrite them.
        """
        self.pool.begin_step(step.copies, step.write_slots, step.block_tables, step.context_lens)
        tails = self._tails_of(step)
        if self.graphs is not None and self.graphs.fit(step.token_ids, step.sample_rows, step.block_tables):
            rows = (step.token_ids, step.positions, step.slot_of_each_token, step.context_lens)
            return self.graphs.run(*rows, step.block_tables, *tails)
        self.workspace.begin_step()
        kernels = self.kernels
        writes = (step.write_slots, step.write_rows) if kernels is None else (step.slot_of_each_token, None)
        block_tables, write_slots, write_rows, token_ids, positions, sample_rows, *tails = self._to_device(
            step.block_tables, *writes, step.token_ids, step.positions, step.sample_rows, *tails
        )
        lengths = step.query_lens, step.context_lens
        context = _Step(self, kernels, self.workspace, block_tables, *lengths, write_slots, write_rows, *tails)
        with self._our_attention():
            return self._forward(token_ids[None], positions[None], sample_rows, **{hf_attention.STEP: context})

    def _tails_of(self, step: StepInput) -> tuple[np.ndarray | None, np.ndarray | None]:
        """What kernels must know of a quantized pool's tails; None, None where there are none, or no kernels.

        tail_rows: (S,) int32. touched: (5, n) int32, the fields of `TouchedBlocks`, whose rows are the step's tokens.
        """
        pool = self.pool
        if not isinstance(pool, QuantizedKVPool) or pool.tails is None or self.kernels is None:
            return None, None
        touched = pool.touched
        if step.write_rows is not None:
            touched = touched._replace(row=step.write_rows[touched.row].astype(np.int32))
        return pool.tail_rows, np.stack(touched)

    def decode_graphs(self, max_num_seqs: int, max_model_len: int) -> DecodeGraphs | None:
        """CUDA graphs for decode steps on this pool, none of them recorded yet.

        None where there can't be any: without a GPU, and with a backend that needs the lengths on the host.
        """
        if self.gpu is None or self.kernels is None:
            return None

        def make_decode(inputs: DecodeInput) -> Callable[[], torch.Tensor]:
            return self._decode_on(inputs, max_model_len)

        width = blocks_for(max_model_len, self.pool.block_size)
        with_tails = isinstance(self.pool, QuantizedKVPool) and self.pool.tails is not None
        return DecodeGraphs(
            self.gpu, self._staging, make_decode, max_num_seqs=max_num_seqs, table_width=width, with_tails=with_tails
        )

    def _decode_on(self, inputs: DecodeInput, longest: int) -> Callable[[], torch.Tensor]:
        """A function that runs a decode step on what stands in these tensors when it runs: nothing is the host's.

        longest: tokens of the longest context there may be, from which the number of splits follows for good.
        """
        kernels, plain = self.kernels, kernels_of(self.attention)
        metadata = plain.decode_metadata(inputs.block_tables, inputs.context_lens, longest=longest)
        rows = torch.arange(len(inputs.token_ids), device=self.device)

        def decode() -> torch.Tensor:
            # A workspace of its own: a buffer of the runner's may grow later, and a graph would keep the old address.
            workspace = Workspace()
            workspace.put(plain.METADATA, metadata)
            rest = inputs.tail_rows, inputs.touched
            step = _Step(self, kernels, workspace, inputs.block_tables, None, None, inputs.write_slots, None, *rest)
            with self._our_attention():
                return self._forward(inputs.token_ids[None], inputs.positions[None], rows, **{hf_attention.STEP: step})

        return decode

    def _forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, **extra: Any
    ) -> torch.Tensor:
        if self._llama is not None:
            step = extra[hf_attention.STEP]

            def attend(layer: int, *tensors: torch.Tensor) -> torch.Tensor:
                return step.attend(layer, *tensors, **self.calls[layer].options)

            return self._llama(token_ids[0], positions[0], rows, attend)
        if self._keeps_logits:
            extra["logits_to_keep"] = rows
        logits = self.hf(input_ids=token_ids, position_ids=positions, use_cache=False, **extra).logits[0]
        return logits if self._keeps_logits else logits[rows]

    def _to_device(self, *arrays: np.ndarray | None) -> Sequence[torch.Tensor | None]:
        """The arrays as tensors where the model is; on a GPU in one copy, and valid until the next step."""
        if self._staging is not None:
            return self._staging.upload(arrays)
        return [None if array is None else torch.from_numpy(array) for array in arrays]

    @contextmanager
    def _our_attention(self) -> Iterator[None]:
        """The model's own attention comes back afterwards, so that the same model can still generate() by itself."""
        if self._llama is not None:  # nothing of the model's own runs
            yield
            return
        self._own_attention = [(config, config._attn_implementation) for config in self._configs]
        self._own_forward = [module for module, _ in self._faster_modules]
        try:
            for config in self._configs:
                config._attn_implementation = hf_attention.NAME
            for module, forward in self._faster_modules:
                module.forward = forward
            yield
        finally:
            self.give_attention_back()

    def give_attention_back(self) -> None:
        """Give the model its own attention again. Twice does no harm: after a failure the engine makes sure."""
        for config, name in self._own_attention:
            config._attn_implementation = name
        for module in self._own_forward:
            vars(module).pop("forward", None)
        self._own_attention, self._own_forward = [], []

    # Finding out, before anything is served, whether this model can be

    @torch.inference_mode()
    def _probe(self) -> tuple[list[LayerCall], torch.Tensor]:
        """Run a few tokens, watch what each layer asks of its attention, and compare with the model's own result.

        Returns the layers' calls and the model's own logits, (2, vocab).
        """
        config = self.hf.config.get_text_config(decoder=True)
        kinds = set(getattr(config, "layer_types", None) or ())
        if odd := kinds - {"full_attention", "sliding_attention"}:
            raise self._refuse(f"it has layers of type {', '.join(sorted(odd))}")
        if not getattr(self.hf, "_supports_attention_backend", False):
            raise self._refuse("its class doesn't let its attention be replaced (transformers' attention backends)")

        own_logits = self._forward(*self._few_tokens())
        probe = Probe()
        try:
            with self._our_attention():
                error = self._difference(probe, own_logits)
        except UnsupportedModel as refusal:
            raise self._refuse(str(refusal)) from refusal
        calls = dict(probe.calls)
        if sorted(calls) != list(range(config.num_hidden_layers)) or len(probe.calls) != len(calls):
            raise self._refuse(
                f"{len(probe.calls)} of its {config.num_hidden_layers} layers call the attention function with our "
                "step (layers without attention, or a model that doesn't pass its keywords on)"
            )
        if not error < self._tolerance:
            raise self._refuse(f"its logits differ from its own attention's by {error:.1%} of the largest one")
        return [calls[i] for i in range(config.num_hidden_layers)], own_logits

    @torch.inference_mode()
    def _choose(self, model_impl: str, own_logits: torch.Tensor) -> None:
        """Our own forward pass if there is one and it says what the model says; else the model's, made faster."""
        if model_impl == "auto" and (llama := make_llama(self.hf)):
            self._llama = llama
            if self._difference(Probe(), own_logits) < self._tolerance:
                return
            self._llama = None
        self._faster_modules = faster_modules(self.hf)
        with self._our_attention():
            if self._faster_modules and not self._difference(Probe(), own_logits) < self._tolerance:
                self._faster_modules = []

    def _few_tokens(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token ids and positions of the probe, (1, 8), and the rows whose logits are compared."""
        vocab_size = self.hf.get_input_embeddings().weight.shape[0]
        positions = torch.arange(8, device=self.device)[None]
        return (positions * 7919 + 11) % vocab_size, positions, torch.tensor([3, 7], device=self.device)

    def _difference(self, probe: Probe, own_logits: torch.Tensor) -> float:
        """Between the model's own logits and those of the probe, over the largest one."""
        logits = self._forward(*self._few_tokens(), **{hf_attention.STEP: probe})
        own = own_logits.float()
        return ((own - logits.float()).abs().max() / own.abs().max()).item()

    @property
    def _tolerance(self) -> float:
        return 1e-3 if self.hf.dtype == torch.float32 else 0.1

    def _refuse(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.name} ({type(self.hf).__name__}) can't be served from a paged cache: {why}. Models known to "
            "work: Llama, Mistral, Qwen2, Qwen3, Gemma, Phi, GPT-2, OPT."
        )
