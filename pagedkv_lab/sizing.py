"""How much memory a KV cache takes: arithmetic on a model's shape, nothing else.

Knows the sizes in a model's config. Does not know tensors, devices or requests; imports without torch.
All sizes are in bytes unless a name says otherwise. KiB, MiB, GiB are powers of two; GB is 10**9.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30

#: Bytes of one number. int4 packs two numbers in a byte.
DTYPE_BYTES: dict[str, float] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8": 1,
    "int8": 1,
    "int4": 0.5,
}


def dtype_bytes(dtype: str) -> float:
    """Bytes of one number of `dtype` ("float16", "torch.float16", "bfloat16", "int4", ...).

    Raises ValueError for a name that isn't in `DTYPE_BYTES`.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r} is not known here; choose one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[name]


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder that decide what its weights and its cache weigh.

    `num_key_value_heads` equals `num_attention_heads` in multi-head attention (MHA), is smaller in
    grouped-query attention (GQA), and is 1 in multi-query attention (MQA).
    """

    name: str
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_parameters: int | None = None
    max_position_embeddings: int = 2048

    @property
    def attention_kind(self) -> str:
        """ "MHA", "GQA" or "MQA"."""
        if self.num_key_value_heads == self.num_attention_heads:
            return "MHA"
        return "MQA" if self.num_key_value_heads == 1 else "GQA"

    def kv_bytes_per_token(self, dtype: str = "float16") -> int:
        """Bytes that one token takes in the cache, over all layers."""
        return kv_bytes_per_token(
            self.num_hidden_layers, self.num_key_value_heads, self.head_dim, dtype_bytes(dtype)
        )

    def weight_bytes(self, dtype: str = "float16") -> int:
        """Bytes of the weights. Raises ValueError where the number of parameters is unknown."""
        if self.num_parameters is None:
            raise ValueError(f"{self.name}: the number of parameters is unknown")
        return math.ceil(self.num_parameters * dtype_bytes(dtype))

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | str | Path | Any, name: str | None = None
    ) -> "ModelShape":
        """Read the shape from a Hugging Face config: a mapping, a config object, a config.json or its folder.

        Raises ValueError, naming the missing fields, where the config doesn't describe a decoder's attention.
        """
        if isinstance(config, str | Path):
            path = Path(config)
            path = path / "config.json" if path.is_dir() else path
            name = name or (path.parent.name if path.name == "config.json" else path.stem)
            config = json.loads(path.read_text(encoding="utf-8"))
        elif not isinstance(config, Mapping):
            config = config.to_dict()
        if not isinstance(config, Mapping):
            raise ValueError(f"{name or 'this file'} holds no model config: its JSON is not an object")
        config = config.get("text_config") or config

        def field(*names: str, default: Any = None) -> Any:
            return next((config[n] for n in names if config.get(n) is not None), default)

        layers = field("num_hidden_layers", "n_layer", "num_layers")
        heads = field("num_attention_heads", "n_head", "num_heads")
        hidden = field("hidden_size", "n_embd", "d_model")
        missing = [
            label
            for label, value in (
                ("num_hidden_layers", layers),
                ("num_attention_heads", heads),
                ("hidden_size or head_dim", hidden or field("head_dim")),
            )
            if value is None
        ]
        if missing:
            lacks = ", ".join(missing)
            raise ValueError(f"{name or 'this config'} is not a decoder's config: it lacks {lacks}")
        head_dim = field("head_dim", default=None) or hidden // heads
        kv_heads = field("num_key_value_heads", "num_kv_heads", default=heads)
        if config.get("multi_query") and not config.get("new_decoder_architecture"):
            kv_heads = 1  # GPT-BigCode and the first Falcons say MQA with a flag
        return cls(
            name=name or field("_name_or_path", "model_type", default="model"),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            num_parameters=llama_parameters(config) if _LLAMA_FIELDS.issubset(config) else None,
            max_position_embeddings=field("max_position_embeddings", "n_positions", default=2048),
        )


#: What `llama_parameters` can't do without.
_LLAMA_FIELDS = {"num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size"}


def llama_parameters(config: Mapping[str, Any]) -> int:
    """Number of parameters of a Llama-shaped model: gated MLP, two norms a layer, no biases.

    Per layer: q and o projections (hidden x heads*head_dim each), k and v (hidden x kv_heads*head_dim each),
    three MLP matrices (hidden x intermediate), two norms. Plus the embedding, the output head unless it is
    tied to the embedding, and the last norm (Touvron et al. 2023, section 2).
    """
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    mlp = 3 * hidden * config["intermediate_size"]
    embedding = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings", False) else 2)
    return config["num_hidden_layers"] * (attention + mlp + 2 * hidden) + embedding + hidden


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_number: float) -> int:
    """Bytes that one token takes in the cache.

    A key and a value (the 2) for every layer and every KV head, `head_dim` numbers each:
    2 x layers x kv_heads x head_dim x bytes (Kwon et al., SOSP'23, section 3).
    """
    return math.ceil(2 * num_layers * num_kv_heads * head_dim * bytes_per_number)


def contiguous_bytes(num_requests: int, max_model_len: int, bytes_per_token: int) -> int:
    """Bytes that pre-allocation reserves: every request gets room for the longest one allowed."""
    return num_requests * max_model_len * bytes_per_token


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens: the last one may be partly filled. 0 tokens take 0 blocks."""
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    return -(-num_tokens // block_size)


def paged_bytes(lengths: Iterable[int], block_size: int, bytes_per_token: int) -> int:
    """Bytes that paging reserves for sequences of these lengths (tokens): whole blocks, as few as will do."""
    return sum(blocks_for(length, block_size) for length in lengths) * block_size * bytes_per_token


def num_blocks_that_fit(memory_bytes: int, block_size: int, bytes_per_token: int) -> int:
    """Whole blocks that fit into `memory_bytes`."""
    return max(0, int(memory_bytes) // (block_size * bytes_per_token))


def contiguous_requests_that_fit(memory_bytes: int, max_model_len: int, bytes_per_token: int) -> int:
    """Requests that fit at once when each one reserves `max_model_len` slots."""
    return max(0, int(memory_bytes) // (max_model_len * bytes_per_token))


def paged_requests_that_fit(
    memory_bytes: int, tokens_per_request: int, block_size: int, bytes_per_token: int, shared_tokens: int = 0
) -> int:
    """Requests of `tokens_per_request` tokens that fit at once in a paged pool.

    `shared_tokens` of them (rounded down to whole blocks: only full blocks are shared) are a common prefix
    that is stored once for all. Each request takes a block of its own at least: for its next token.
    """
    shared_blocks = min(shared_tokens, tokens_per_request) // block_size
    own_blocks = max(1, blocks_for(tokens_per_request, block_size) - shared_blocks)
    free = num_blocks_that_fit(memory_bytes, block_size, bytes_per_token) - shared_blocks
    return max(0, free) // own_blocks


def utilization(used_tokens: int, reserved_slots: int) -> float:
    """Share of the reserved slots that hold a token, 0 to 1. Nothing reserved is 1: nothing is wasted."""
    return used_tokens / reserved_slots if reserved_slots else 1.0


def block_table_bytes(num_tokens: int, block_size: int, bytes_per_entry: int = 4) -> int:
    """Bytes of one sequence's block table: one entry (int32) a block."""
    return blocks_for(num_tokens, block_size) * bytes_per_entry


@dataclass(frozen=True)
class KVQuantization:
    """A cache whose numbers have `bits` bits (8 or 4), each group of them a scale of its own in float16.

    Values share a scale by token and head. Keys do, too, with key_axis "token"; with "channel" it is one for each
    channel of a head and block, and a block is kept in full precision, in a tail, until it is full. In 4 bits a
    group has a zero besides, as large as the scale.
    """

    bits: int
    key_axis: str = "token"

    @property
    def has_tails(self) -> bool:
        """Whether partly filled blocks are kept in full precision."""
        return self.key_axis == "channel"

    def num_tails(self, max_num_seqs: int) -> int:
        """Tails that are enough for so many running sequences: a step may fill one block of each and begin another."""
        return 2 * max_num_seqs if self.has_tails else 0

    def check(self, key_dim: int, value_dim: int) -> None:
        """Raises ValueError where heads of so many numbers can't be packed."""
        for what, dim in (("keys", key_dim), ("values", value_dim)):
            if self.bits == 4 and dim % 2:
                raise ValueError(
                    f"kv_cache_dtype int4 packs two numbers of a head in a byte, and these {what} have {dim} a head: "
                    "take int8"
                )

    def data_bytes(self, kv_heads: int, key_dim: int, value_dim: int) -> int:
        """Bytes of one token's numbers in one layer."""
        return kv_heads * (key_dim + value_dim) * self.bits // 8

    def scale_bytes(self, kv_heads: int, key_dim: int, block_size: int) -> int:
        """Bytes of one block's scales (and zeros) in one layer."""
        by_token = block_size * kv_heads
        groups = by_token + (kv_heads * key_dim if self.has_tails else by_token)
        return groups * (2 if self.bits == 8 else 4)


#: vLLM's option `kv_cache_dtype`: None is the model's own type.
KV_CACHE_DTYPES: dict[str, KVQuantization | None] = {
    "auto": None,
    "int8": KVQuantization(8, "token"),
    "int4": KVQuantization(4, "channel"),
}


def kv_quantization(kv_cache_dtype: str) -> KVQuantization | None:
    """What `kv_cache_dtype` stands for. Raises ValueError for a name that isn't in KV_CACHE_DTYPES."""
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        raise ValueError(f"kv_cache_dtype must be {', '.join(KV_CACHE_DTYPES)}, not {kv_cache_dtype!r}")
    return KV_CACHE_DTYPES[kv_cache_dtype]


def human_bytes(num_bytes: float) -> str:
    """`num_bytes` with a binary unit and three digits: "800 KiB", "1.56 GiB"."""
    for unit, size in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(num_bytes) >= size:
            value = num_bytes / size
            return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"
    return f"{num_bytes:.0f} B"


_BYTES_OF_UNIT = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES_OF_UNIT |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}


def parse_bytes(text: str | int | float) -> int:
    """Bytes in "24GB" (10**9), "24GiB" (2**30), "512 MB", "1.5g" (as GB) or a plain number.

    Raises ValueError for anything else, and for a size that isn't above zero.
    """
    word = str(text).strip().lower()
    number = word.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        num_bytes = round(float(number) * _BYTES_OF_UNIT[word[len(number) :]])
        if num_bytes < 1:
            raise ValueError
    except (ValueError, KeyError, OverflowError):
        bad = f"{text!r} is not a memory size above zero"
        raise ValueError(f"{bad}; write it like 24GB, 24GiB or 512MB") from None
    return num_bytes


def _llama_shape(name: str, **config: Any) -> ModelShape:
    return ModelShape.from_config(config, name)


#: Shapes that the course talks about, from the models' published configs.
BUILT_IN_SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _llama_shape(
            "Llama-2-13B", num_hidden_layers=40, num_attention_heads=40, num_key_value_heads=40,
            hidden_size=5120, intermediate_size=13824, vocab_size=32000, max_position_embeddings=4096,
        ),
        _llama_shape(
            "TinyLlama", num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
            hidden_size=2048, intermediate_size=5632, vocab_size=32000, max_position_embeddings=2048,
        ),
        _llama_shape(
            "SmolLM2-135M", num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
            hidden_size=576, intermediate_size=1536, vocab_size=49152, tie_word_embeddings=True,
            max_position_embeddings=8192,
        ),
        _llama_shape(
            "Llama-3-8B", num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
            hidden_size=4096, intermediate_size=14336, vocab_size=128256, max_position_embeddings=8192,
        ),
    )
}  # fmt: skip
