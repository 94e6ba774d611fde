"""The engine's options, under vLLM's names, each one with what it does.

Knows numbers and their limits. Does not know models or tensors.
"""

from dataclasses import dataclass

from pagedkv_lab.sizing import KVQuantization, kv_quantization


@dataclass(kw_only=True)
class EngineConfig:
    """Options of `Engine`. All have defaults that suit a laptop; sizes are in tokens unless they say otherwise.

    block_size: tokens a block.
    num_gpu_blocks: blocks in the pool (on a CPU too; the name is vLLM's). None plans it from a budget.
    kv_cache_memory_bytes: the budget for the pool in bytes. None takes it from gpu_memory_utilization.
    gpu_memory_utilization: share of the free memory that the pool may take, so 1 - this stays free. On a GPU
        the free memory is what is left after weights, one full step and CUDA graphs; on a CPU a quarter of the free
        RAM.
    kv_cache_dtype: what the pool keeps a number in. "auto" is the model's dtype. "int8" and "int4" take a half and a
        quarter of 16 bits, apart from scales. "int8" has one scale for each token and head: the tokens don't depend
        on batching, chunking, block size, preemption or prefix caching, but for rounding. "int4" has one for each
        channel of a block's keys, and keeps partly filled blocks exact: a sequence that is computed again or in other
        pieces sees other blocks exact, and its tokens may differ (`kv/quantized.py` says when).
    max_model_len: longest sequence, prompt and output together. None takes the model's own maximum.
    max_num_seqs: sequences that run at once.
    max_num_batched_tokens: tokens of all sequences in one step. None takes 2048, or max_model_len where
        chunked prefill is off.
    enable_chunked_prefill: a prompt that doesn't fit into a step's tokens is computed in pieces. Off, a prompt
        waits for a step that takes it whole.
    enable_prefix_caching: full blocks stay findable by their content and are shared.
    watermark: share of the pool that stays free when a new sequence is let in, so that the running ones can
        grow before somebody is preempted.
    attn_backend: name of the attention backend; None takes the fastest for the device.
    model_impl: "auto" runs Llama-shaped models on a CPU in our own forward pass (`engine/llama.py`), which is faster;
        "transformers" runs every model's own modules.
    enforce_eager: on a GPU, decode steps are launched kernel by kernel and not as CUDA graphs. The engine starts
        sooner, and small batches run slower.
    seed: where sampling starts from for requests without a seed of their own.

    Raises ValueError, naming the option, for a value out of range.
    """

    block_size: int = 16
    num_gpu_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    attn_backend: str | None = None
    model_impl: str = "auto"
    enforce_eager: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs"):
            self._require(getattr(self, name) >= 1, name, "at least 1")
        for name in ("num_gpu_blocks", "kv_cache_memory_bytes", "max_model_len", "max_num_batched_tokens"):
            value = getattr(self, name)
            self._require(value is None or value >= 1, name, "at least 1")
        self._require(0 < self.gpu_memory_utilization <= 1, "gpu_memory_utilization", "above 0 and at most 1")
        self._require(0 <= self.watermark < 1, "watermark", "0 or more and below 1")
        kv_quantization(self.kv_cache_dtype)  # raises for a name that it doesn't know
        impls = ("auto", "transformers")
        self._require(self.model_impl in impls, "model_impl", " or ".join(impls))

    @property
    def kv_quantization(self) -> KVQuantization | None:
        """How the pool's numbers are packed; None where they are in the model's dtype."""
        return kv_quantization(self.kv_cache_dtype)

    def resolve(self, model_max_len: int) -> None:
        """Fill in what depends on the model: max_model_len and max_num_batched_tokens. Raises ValueError."""
        if self.max_model_len is None:
            self.max_model_len = model_max_len
        if self.max_model_len > model_max_len:
            raise ValueError(
                f"max_model_len {self.max_model_len} is above the model's own maximum of {model_max_len} positions"
            )
        if self.max_num_batched_tokens is None:
            self.max_num_batched_tokens = 2048 if self.enable_chunked_prefill else max(2048, self.max_model_len)
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"without chunked prefill a prompt must fit into one step: raise max_num_batched_tokens "
                f"({self.max_num_batched_tokens}) to max_model_len ({self.max_model_len}), or lower the latter"
            )

    def _require(self, ok: bool, name: str, wanted: str) -> None:
        if not ok:
            raise ValueError(f"{name} must be {wanted}, not {getattr(self, name)!r}")
