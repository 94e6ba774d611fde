"""What a plan needs to know of a model: its parameters, and which layers cache how much of a token.

Arithmetic on numbers that somebody else read (`read_model.py`, `empty_model.py`). Imports without torch.
"""

import math
from dataclasses import dataclass

from pagedkv_lab.sizing import dtype_bytes


@dataclass(frozen=True)
class KVLayers:
    """`layers` layers whose caches look alike: for each token `kv_heads` keys and as many values."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int

    def bytes_per_token(self, dtype: str) -> int:
        """Bytes that one token takes in these layers."""
        numbers = self.layers * self.kv_heads * (self.key_dim + self.value_dim)
        return math.ceil(numbers * dtype_bytes(dtype))

    def arithmetic(self, dtype: str) -> str:
        """The multiplication behind `bytes_per_token`, in words."""
        heads = f"{self.layers} layers x {self.kv_heads} KV head{'s' if self.kv_heads > 1 else ''}"
        if self.key_dim == self.value_dim:
            product = f"2 (key and value) x {heads} x {self.key_dim} numbers"
        else:
            product = f"{heads} x ({self.key_dim} key + {self.value_dim} value) numbers"
        return f"{product} x {dtype_bytes(dtype):g} bytes"


@dataclass(frozen=True)
class ModelSize:
    """What `plan` needs to know of a model.

    `num_parameters` is None where only the bytes of its files are known (`stored_bytes`). `max_model_len` is
    the longest sequence that the model was made for, in tokens. `notes` are sentences on what the arithmetic
    leaves out.
    """

    name: str
    attention: str
    kv_layers: tuple[KVLayers, ...]
    num_parameters: int | None
    parameters_from: str
    stored_bytes: int | None
    max_model_len: int
    notes: tuple[str, ...] = ()
