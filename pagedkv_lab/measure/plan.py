"""How many users fit on a device: a model's weights, and a cache that is reserved contiguously or in blocks.

Knows sizes and a budget; the arithmetic itself is `sizing`'s. Does not know devices: the budget is a number.
`plan_report.py` shows a plan to people.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pagedkv_lab.measure.model_size import ModelSize
from pagedkv_lab.sizing import (
    block_table_bytes,
    blocks_for,
    contiguous_bytes,
    contiguous_requests_that_fit,
    dtype_bytes,
    kv_quantization,
    num_blocks_that_fit,
    paged_bytes,
)


@dataclass(frozen=True)
class Plan:
    """One model, one budget, `users` sequences of `tokens` tokens at once.

    Sizes are in bytes. `memory_bytes` is all of the device's memory; `gpu_memory_utilization` (0 to 1) is the
    share of it that weights and cache may take. Contiguous allocation reserves `max_model_len` tokens for a
    user; None takes the longest sequence that the model was made for. `kv_cache_dtype` is the engine's option: "auto"
    keeps keys and values in `dtype`, "int8" and "int4" quantize them, with scales beside the data and, for int4,
    partly filled blocks in `dtype` (tails).

    Raises ValueError for numbers that make no sense, in the command line's words.
    """

    model: ModelSize
    memory_bytes: int
    users: int
    tokens: int
    dtype: str = "float16"
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        dtype_bytes(self.dtype)
        if quantization := kv_quantization(self.kv_cache_dtype):
            for layers in self.model.kv_layers:
                quantization.check(layers.key_dim, layers.value_dim)
        for option in ("users", "tokens", "block_size", "max_model_len"):
            value = getattr(self, option)
            if value is not None and not 1 <= value <= 10**12:
                raise ValueError(f"--{option.replace('_', '-')} must be from 1 to 10**12, not {value}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                "--gpu-memory-utilization is a share of the memory, above 0 and at most 1, not "
                f"{self.gpu_memory_utilization:g}"
            )
        if self.tokens > self.longest:
            whose = "--max-model-len" if self.max_model_len else f"what {self.model.name} was made for"
            raise ValueError(
                f"--tokens {self.tokens:,} is more than {whose}, {self.longest:,}: give fewer, or a larger "
                "--max-model-len"
            )

    @property
    def longest(self) -> int:
        """Tokens that contiguous allocation reserves a user."""
        return self.max_model_len or self.model.max_model_len

    @property
    def _share(self) -> Fraction:
        return Fraction(str(self.gpu_memory_utilization))  # exactly 9/10, which the float 0.9 is not

    # What there is.

    @property
    def usable_bytes(self) -> int:
        """What weights and cache may take."""
        return int(self.memory_bytes * self._share)

    @property
    def weight_bytes(self) -> int:
        """The weights, in `dtype`; where nobody could count the parameters, the files as they are."""
        if self.model.num_parameters is None:
            return self.model.stored_bytes or 0
        return math.ceil(self.model.num_parameters * dtype_bytes(self.dtype))

    @property
    def cache_bytes(self) -> int:
        """What the weights leave for the cache. Below zero where the weights alone don't fit."""
        return self.usable_bytes - self.weight_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool that fits into `cache_bytes`, beside the users' tails."""
        beside_tails = self.cache_bytes - self.users * self.tail_bytes_per_user
        return num_blocks_that_fit(beside_tails, self.block_size, self.bytes_per_token)

    # What a user takes.

    @property
    def cache_dtype(self) -> str:
        """What a number of a key or value is kept in."""
        return self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    @property
    def data_bytes_per_token(self) -> int:
        """One token's keys and values, over all layers; scales apart."""
        return sum(layers.bytes_per_token(self.cache_dtype) for layers in self.model.kv_layers)

    @property
    def scale_bytes_per_token(self) -> int | Fraction:
        """One token's share of its block's scales, over all layers. 0 where nothing is quantized."""
        quantization = kv_quantization(self.kv_cache_dtype)
        if quantization is None:
            return 0
        of_a_block = sum(
            layers.layers * quantization.scale_bytes(layers.kv_heads, layers.key_dim, self.block_size)
            for layers in self.model.kv_layers
        )
        return _whole(Fraction(of_a_block, self.block_size))

    @property
    def bytes_per_token(self) -> int | Fraction:
        """One token in the cache, over all layers, scales included."""
        return self.data_bytes_per_token + self.scale_bytes_per_token

    @property
    def plain_bytes_per_token(self) -> int:
        """What one token would take in `dtype`."""
        return sum(layers.bytes_per_token(self.dtype) for layers in self.model.kv_layers)

    @property
    def tails_per_user(self) -> int:
        """Partly filled blocks that are kept in `dtype` for each user."""
        quantization = kv_quantization(self.kv_cache_dtype)
        return quantization.num_tails(1) if quantization else 0

    @property
    def tail_bytes_per_user(self) -> int:
        return self.tails_per_user * self.block_size * self.plain_bytes_per_token

    @property
    def blocks_per_user(self) -> int:
        """Blocks that hold one user's tokens."""
        return blocks_for(self.tokens, self.block_size)

    @property
    def contiguous_bytes_per_user(self) -> int:
        """The longest sequence allowed, reserved up front."""
        return math.ceil(contiguous_bytes(1, self.longest, self.bytes_per_token))

    @property
    def paged_bytes_per_user(self) -> int:
        """Whole blocks, as many as the tokens need, and the tails."""
        return int(paged_bytes([self.tokens], self.block_size, self.bytes_per_token)) + self.tail_bytes_per_user

    # What comes of it.

    @property
    def contiguous_users(self) -> int:
        """Users that fit at once when each reserves the longest sequence."""
        return contiguous_requests_that_fit(self.cache_bytes, self.longest, self.bytes_per_token)

    @property
    def paged_users(self) -> int:
        """Users that fit at once when each takes blocks as it needs them."""
        return max(0, self.cache_bytes) // self.paged_bytes_per_user

    @property
    def fits(self) -> bool:
        """Whether all users fit at once, paged."""
        return self.paged_users >= self.users

    @property
    def left_bytes(self) -> int:
        """What is left beside the weights and those of the `users` that fit, paged. Below zero: missing."""
        return self.cache_bytes - min(self.users, self.paged_users) * self.paged_bytes_per_user

    @property
    def memory_needed_bytes(self) -> int:
        """Memory of a device on which all users fit, paged, at this `gpu_memory_utilization`."""
        return math.ceil((self.weight_bytes + self.users * self.paged_bytes_per_user) / self._share)

    def as_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            "model": self.model.name,
            "attention": self.model.attention,
            "dtype": self.dtype,
            "memory_bytes": self.memory_bytes,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "users": self.users,
            "tokens": self.tokens,
            "block_size": self.block_size,
            "max_model_len": self.longest,
            "parameters": self.model.num_parameters,
            "parameters_from": self.model.parameters_from,
            "stored_weight_bytes": self.model.stored_bytes,
            "weight_bytes": self.weight_bytes,
            "usable_bytes": self.usable_bytes,
            "kv_cache_dtype": self.kv_cache_dtype,
            "kv_bytes_per_token": _plain(self.bytes_per_token),
            "kv_data_bytes_per_token": self.data_bytes_per_token,
            "kv_scale_bytes_per_token": _plain(self.scale_bytes_per_token),
            "kv_tail_bytes_per_user": self.tail_bytes_per_user,
            "kv_cache_bytes": self.cache_bytes,
            "num_gpu_blocks": self.num_blocks,
            "blocks_per_user": self.blocks_per_user,
            "block_table_bytes_per_user": block_table_bytes(self.tokens, self.block_size),
            "contiguous": {
                "bytes_per_user": self.contiguous_bytes_per_user,
                "bytes": self.users * self.contiguous_bytes_per_user,
                "users_that_fit": self.contiguous_users,
            },
            "paged": {
                "bytes_per_user": self.paged_bytes_per_user,
                "bytes": self.users * self.paged_bytes_per_user,
                "users_that_fit": self.paged_users,
            },
            "fits": self.fits,
            "left_bytes": self.left_bytes,
            "memory_needed_bytes": self.memory_needed_bytes,
            "notes": list(self.model.notes),
        }


def _whole(number: Fraction) -> int | Fraction:
    """As an int where it is one."""
    return number.numerator if number.denominator == 1 else number


def _plain(number: int | Fraction) -> int | float:
    """As JSON can hold it."""
    return number if isinstance(number, int) else float(number)
