"""The pool in 8 or 4 bits: `KVPool`'s place taken by numbers that are quantized as they are written.

Knows the layouts, what a step writes and reads, and how to make plain keys and values of it again. Does not know
sequences or attention. How a number is quantized is `quantize.py`'s business, whose tail is where `tails.py`'s.

With keys by token, a token is quantized when it is written, and what is read of it never changes. So how a prompt is
cut or batched makes no difference but for rounding: on a real model, a last bit that differs sends some numbers to the
next step, and steps are coarser than bits, so that near ties may be decided otherwise than before. With keys by
channel, a block is quantized when its last slot is written; until then it lies in a tail, and queries see it exact.
So what a query sees then depends on when the block was full: a prompt that is computed in one piece sees its full
blocks quantized, the same tokens in decode saw each block exact until it was full. A sequence that is computed again
(preemption), or in other pieces, may say something else where two tokens are nearly as likely.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from pagedkv_lab.kv.pool import LayerShape
from pagedkv_lab.kv.quantize import QuantizedTensor, dequantize, quantize
from pagedkv_lab.kv.tails import TailRows, TouchedBlocks, touched_blocks
from pagedkv_lab.sizing import KVQuantization

__all__ = ["QuantizedKVPool", "QuantizedLayer", "QuantizedTensor"]


class QuantizedLayer(NamedTuple):
    """One layer, as kernels that read it as it is get it. The last three are None where nothing lies in tails.

    tail_keys, tail_values: (num_tails, block_size, num_kv_heads, dim) in the model's dtype. tail_rows: (S,) int32,
    on the pool's device: the tail of each sequence's last block where that is partly filled, else -1.
    """

    keys: QuantizedTensor
    values: QuantizedTensor
    tail_keys: torch.Tensor | None
    tail_values: torch.Tensor | None
    tail_rows: torch.Tensor | None


class _Writes(NamedTuple):
    """Where a step's tokens go, for torch; indices on the device, the same for every layer.

    to_tails: which of the written tokens go into tail slots `tail_slots`. from_tails: rows that are full then, whose
    blocks are `blocks_from_tails`. whole: (n, block_size) tokens that fill the blocks `whole_blocks` in one go.
    """

    to_tails: torch.Tensor
    tail_slots: torch.Tensor
    from_tails: torch.Tensor
    blocks_from_tails: torch.Tensor
    whole: torch.Tensor
    whole_blocks: torch.Tensor


class _Reads(NamedTuple):
    """What a step's tables name: each block once, the tables in numbers of that list, and which of it lie in tails."""

    blocks: torch.Tensor
    tables: torch.Tensor
    in_tails: torch.Tensor
    rows: torch.Tensor


class QuantizedKVPool:
    """`keys[layer]` and `values[layer]` are QuantizedTensors of (num_blocks, block_size, num_kv_heads, dim).

    Values have a scale for each token and head. Keys have that, or one for each channel of a block
    (`quantization.key_axis`). `num_tails` rows hold the partly filled blocks of the latter; `kv.tails` says how many
    are enough. dtype: what the tails and `read` are in.

    To be called in this order: `begin_step`, then for each layer `write`, then `read` or `layer`. A block is written
    from its first slot on, without gaps.

    Raises ValueError for heads that can't be packed in so few bits.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        quantization: KVQuantization,
        *,
        num_tails: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        for layer in layers:
            quantization.check(layer.key_dim, layer.value_dim)
        self.num_blocks, self.block_size, self.quantization = num_blocks, block_size, quantization
        self.dtype, self.device = dtype, torch.device(device)
        self.keys = [self._empty(layer.num_kv_heads, layer.key_dim, quantization.key_axis) for layer in layers]
        self.values = [self._empty(layer.num_kv_heads, layer.value_dim, "token") for layer in layers]
        self.tail_keys: list[torch.Tensor] = []
        self.tail_values: list[torch.Tensor] = []
        self.tails: TailRows | None = None
        if quantization.has_tails:
            self.tails = TailRows(num_blocks, num_tails, block_size)
            for layer in layers:
                shape = (num_tails, block_size, layer.num_kv_heads)
                self.tail_keys.append(torch.zeros(*shape, layer.key_dim, dtype=dtype, device=device))
                self.tail_values.append(torch.zeros(*shape, layer.value_dim, dtype=dtype, device=device))
        #: What this step writes by block, and each sequence's tail; on the host. None where there are no tails.
        self.touched: TouchedBlocks | None = None
        self.tail_rows: np.ndarray | None = None
        self._tables: tuple[np.ndarray, np.ndarray] | None = None
        self._writes: _Writes | None = None
        self._reads: _Reads | None = None
        self._scratch: dict[tuple[str, int, int], torch.Tensor] = {}

    def _empty(self, heads: int, dim: int, axis: str) -> QuantizedTensor:
        shape, bits = (self.num_blocks, self.block_size, heads), self.quantization.bits
        of_a_group = shape if axis == "token" else (self.num_blocks, heads, dim)

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        if bits == 8:
            return QuantizedTensor(zeros(*shape, dim, dtype=torch.int8), zeros(*of_a_group, dtype=torch.float16), None)
        scale, zero = (zeros(*of_a_group, dtype=torch.float16) for _ in range(2))
        return QuantizedTensor(zeros(*shape, dim // 2, dtype=torch.uint8), scale, zero)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: data, scales, tails. `read` needs room for one layer of what it reads besides."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values, *self.tail_keys, *self.tail_values))

    def start_anew(self, is_in_use: Callable[[int], bool]) -> None:
        """No block holds anything any more. is_in_use: whether somebody holds a block, from now on."""
        if self.tails:
            self.tails.forget()
            self.tails.is_in_use = is_in_use

    # A step

    def begin_step(
        self,
        copies: Sequence[tuple[int, int]],
        write_slots: np.ndarray,
        block_tables: np.ndarray,
        context_lens: np.ndarray,
    ) -> None:
        """Copy blocks, as pairs (source, destination), and find out what the step writes and reads.

        Arrays on the host, as `StepInput` has them: write_slots (T,), block_tables (S, max_blocks), context_lens (S,).
        """
        self._tables = block_tables, context_lens
        self._writes = self._reads = None
        row_copies: list[tuple[int, int]] = []
        if self.tails:
            touched = touched_blocks(write_slots, self.block_size)
            self.touched, row_copies = self.tails.begin_step(copies, touched)
            self.tail_rows = self.tails.of_last_blocks(block_tables, context_lens)
        self._copy([t for pool in (*self.keys, *self.values) for t in pool.tensors], copies)
        self._copy([*self.tail_keys, *self.tail_values], row_copies)

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put one token into each slot. slots: (T,) int64, those of `begin_step`; key: (T, num_kv_heads, key_dim),
        value likewise."""
        if self.tails is None:
            for pool, new in ((self.keys[layer], key), (self.values[layer], value)):
                self._put([tensor.flatten(0, 1) for tensor in pool.tensors], slots, new, "token")
            return
        self._writes = self._writes or self._find_writes()
        writes = self._writes
        for pool, tails, new, axis in (
            (self.keys[layer], self.tail_keys[layer], key, self.quantization.key_axis),
            (self.values[layer], self.tail_values[layer], value, "token"),
        ):
            tails.flatten(0, 1).index_copy_(0, writes.tail_slots, new[writes.to_tails].to(tails.dtype))
            self._put(pool.tensors, writes.blocks_from_tails, tails[writes.from_tails], axis)
            self._put(pool.tensors, writes.whole_blocks, new[writes.whole], axis)

    def read(self, layer: int, block_tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values of the blocks that the step's tables name, as any backend can attend to them.

        Returns (num_named, block_size, num_kv_heads, key_dim), the values likewise, and block tables for these:
        (S, max_blocks) int32. Blocks that no table names are not read. The tensors are overwritten by the next call.
        """
        self._reads = self._reads or self._find_reads()
        keys = self._plain("keys", self.keys[layer], self.quantization.key_axis, self.tail_keys, layer)
        values = self._plain("values", self.values[layer], "token", self.tail_values, layer)
        return keys, values, self._reads.tables

    def layer(self, layer: int, tail_rows: torch.Tensor | None = None) -> QuantizedLayer:
        """A layer for kernels that read it as it is. tail_rows: the step's, where they are on the device already."""
        if self.tails is None:
            return QuantizedLayer(self.keys[layer], self.values[layer], None, None, None)
        if tail_rows is None and self.tail_rows is not None:
            tail_rows = self._index(self.tail_rows)
        tails = self.tail_keys[layer], self.tail_values[layer]
        return QuantizedLayer(self.keys[layer], self.values[layer], *tails, tail_rows)

    # Inside

    def _put(self, tensors: list[torch.Tensor], where: torch.Tensor, new: torch.Tensor, axis: str) -> None:
        """Quantize what is new into these places of a pool's tensors."""
        if len(where):
            for tensor, part in zip(tensors, quantize(new, self.quantization.bits, axis).tensors, strict=True):
                tensor.index_copy_(0, where, part)

    def _plain(
        self, name: str, pool: QuantizedTensor, axis: str, tails: list[torch.Tensor], layer: int
    ) -> torch.Tensor:
        """The named blocks in full precision, tails laid over, in a buffer that the layers share."""
        blocks, _, in_tails, rows = self._reads
        named = QuantizedTensor(*(None if t is None else t.index_select(0, blocks) for t in pool))
        plain = dequantize(named, axis, self.dtype)
        buffer = self._scratch.get((name, *plain.shape[2:]))
        if buffer is None or len(buffer) < len(plain):
            buffer = torch.empty(len(plain) + len(plain) // 8, *plain.shape[1:], dtype=self.dtype, device=self.device)
            self._scratch[name, *plain.shape[2:]] = buffer
        buffer = buffer[: len(plain)]
        buffer.copy_(plain)
        if len(rows):
            buffer.index_copy_(0, in_tails, tails[layer].index_select(0, rows))
        return buffer

    def _find_writes(self) -> _Writes:
        block, tail_row, first, count, row = (field.astype(np.int64) for field in self.touched)
        whole = tail_row < 0
        fills = ~whole & (first + count == self.block_size)
        # Every token of a block that has a tail, and its slot among the tails.
        n = count[~whole]
        step = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)  # 0, 1, ... within each block
        to_tails = np.repeat(row[~whole], n) + step
        tail_slots = np.repeat(tail_row[~whole] * self.block_size + first[~whole], n) + step
        tokens_of_whole = row[whole, None] + np.arange(self.block_size)
        indices = (to_tails, tail_slots, tail_row[fills], block[fills], tokens_of_whole, block[whole])
        return _Writes(*map(self._index, indices))

    def _find_reads(self) -> _Reads:
        block_tables, context_lens = self._tables
        held = -(-context_lens // self.block_size)
        named = np.arange(block_tables.shape[1]) < held[:, None]
        blocks, numbers = np.unique(block_tables[named], return_inverse=True)
        tables = np.zeros(block_tables.shape, np.int32)
        tables[named] = numbers.ravel()
        rows = self.tails.row_of[blocks] if self.tails else np.zeros(0, np.int32)
        in_tails = np.flatnonzero(rows >= 0)
        indices = (blocks.astype(np.int64), tables, in_tails, rows[in_tails].astype(np.int64))
        return _Reads(*map(self._index, indices))

    def _index(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _copy(self, tensors: list[torch.Tensor], copies: Sequence[tuple[int, int]]) -> None:
        """In each tensor: copy whole entries, all read before any is written."""
        if not copies:
            return
        sources, destinations = (torch.tensor(side, device=self.device) for side in zip(*copies, strict=True))
        for tensor in tensors:
            tensor.index_copy_(0, destinations, tensor.index_select(0, sources))
