"""The pool: for each layer one tensor of keys and one of values, cut into blocks.

Knows layers, blocks and slots (slot = block x block_size + offset). Does not know sequences, tables or who
may write where; it does as it is told.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch


class LayerShape(NamedTuple):
    """What one layer keeps for a token: `num_kv_heads` keys of `key_dim` and as many values of `value_dim` numbers."""

    num_kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def numbers_per_token(self) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim)


class KVPool:
    """`keys[layer]` is (num_blocks, block_size, num_kv_heads, key_dim), `values[layer]` likewise.

    Block first, so that one block of a layer is one stretch of memory: a copy of it is one memcpy, and one
    token of it is `num_kv_heads * head_dim` numbers in a row.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.num_blocks, self.block_size = num_blocks, block_size

        def empty(heads: int, dim: int) -> torch.Tensor:
            # zeros, not empty: who looks into a block that nobody wrote must see the same in every run.
            return torch.zeros(num_blocks, block_size, heads, dim, dtype=dtype, device=device)

        self.keys = [empty(layer.num_kv_heads, layer.key_dim) for layer in layers]
        self.values = [empty(layer.num_kv_heads, layer.value_dim) for layer in layers]
        # The same memory slot by slot, (num_slots, num_kv_heads, dim), so that a write needs no block and offset.
        self._slots = [(k.flatten(0, 1), v.flatten(0, 1)) for k, v in zip(self.keys, self.values, strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def start_anew(self, is_in_use: Callable[[int], bool]) -> None:
        """No block holds anything any more: nothing to do here. A quantized pool has books to keep."""

    def begin_step(
        self,
        copies: Sequence[tuple[int, int]],
        write_slots: np.ndarray,
        block_tables: np.ndarray,
        context_lens: np.ndarray,
    ) -> None:
        """What a step needs before its first layer: the block copies. The arrays are those of `StepInput`."""
        self.copy_blocks(copies)

    def read(self, layer: int, block_tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys, values and block tables to attend with: here the pool as it is."""
        return self.keys[layer], self.values[layer], block_tables

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put one token into each slot. slots: (T,) int64; key: (T, num_kv_heads, key_dim), value likewise."""
        keys, values = self._slots[layer]
        keys.index_copy_(0, slots, key)
        values.index_copy_(0, slots, value)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, in every layer: pairs (source, destination), all read before any is written."""
        if not copies:
            return
        sources, destinations = (torch.tensor(side, device=self.keys[0].device) for side in zip(*copies, strict=True))
        for pool in (*self.keys, *self.values):
            pool.index_copy_(0, destinations, pool.index_select(0, sources))
