"""Who attends in the measurement of bandwidth, and over which memory: our kernels, and torch's as peers.

Each function here returns calls, one for each set of sequences, and all that a call needs is on the device by then.
Knows pools, tables and signatures. Does not know time.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from gpu_checks.batches import Batch
from gpu_checks.device import Device
from gpu_checks.varlen import VarlenRefused, prepare_varlen
from pagedkv_lab.attention import Workspace, triton_launch, triton_paged, triton_quantized
from pagedkv_lab.kv import QuantizedLayer
from pagedkv_lab.kv.quantize import QuantizedTensor
from pagedkv_lab.sizing import KVQuantization

BLOCK_SIZE, LARGE_PAGES = 16, 256

Call = Any  # () -> (sequences, query heads, dim)


@dataclass(frozen=True)
class Cell:
    """One cell of the grid: query heads, KV heads and head dim; sequences; tokens of each."""

    shape: tuple[int, int, int]
    sequences: int
    context: int

    def __str__(self) -> str:
        return f"{'/'.join(map(str, self.shape))}, {self.sequences} x {self.context:,}"

    @property
    def kv_shape(self) -> tuple[int, int]:
        return self.shape[1:]

    @property
    def numbers(self) -> int:
        """Keys that must be read, and as many values."""
        return self.sequences * self.context * self.shape[1] * self.shape[2]

    def random_query(self, dtype: torch.dtype, device: Device) -> torch.Tensor:
        """(sequences, query heads, dim)."""
        return torch.randn(self.sequences, self.shape[0], self.shape[2], dtype=dtype, device=device.torch_device)


class Arena:
    """Memory for the keys and values of every cell, filled once with random numbers."""

    def __init__(self, device: Device, dtype: torch.dtype, numbers: int):
        self.dtype, self.numbers = dtype, numbers
        self.sides = [torch.empty(numbers, dtype=dtype, device=device.torch_device).normal_() for _ in "kv"]

    def pools(self, num_blocks: int, block_size: int, heads: int, dim: int) -> list[torch.Tensor]:
        """Keys and values, (num_blocks, block_size, heads, dim)."""
        shape = (num_blocks, block_size, heads, dim)
        return [side[: num_blocks * block_size * heads * dim].view(shape) for side in self.sides]


def scattered_tables(device: Device, sets: int, sequences: int, width: int) -> torch.Tensor:
    """(sets, sequences, width) int32: every block of a pool once, in any order."""
    order = torch.randperm(sets * sequences * width, device=device.torch_device)
    return order.to(torch.int32).view(sets, sequences, width)


# Ours


def chosen_splits(cell: Cell, dtype: torch.dtype, device: Device) -> int:
    """What the backend takes by itself."""
    num_heads, num_kv_heads, dim = cell.shape
    chip, name = triton_launch.chip_of(device.capability), str(dtype).removeprefix("torch.")
    tile = triton_launch.decode_launch(chip, name, dim, num_heads // num_kv_heads).constants["TILE"]
    return triton_launch.choose_num_splits(cell.sequences, num_kv_heads, cell.context, device.num_multiprocessors, tile)


def _decode_options(query: torch.Tensor, table: torch.Tensor, cell: Cell, splits: int) -> dict[str, Any]:
    """As the engine's CUDA graphs call a backend: with metadata on the device."""
    lens = torch.full((cell.sequences,), cell.context, dtype=torch.int32, device=query.device)
    workspace = Workspace()
    workspace.put(triton_paged.METADATA, triton_paged.decode_metadata(table, lens, splits))
    return {"scale": cell.shape[2] ** -0.5, "workspace": workspace}


def ours(query: torch.Tensor, pools: list[torch.Tensor], table: torch.Tensor, cell: Cell, splits: int) -> Call:
    lengths = [cell.context] * cell.sequences, [1] * cell.sequences
    options = _decode_options(query, table, cell, splits)
    return partial(triton_paged.paged_attention, query, *pools, table, *lengths, **options)


def ours_quantized(query: torch.Tensor, cell: Cell, kind: KVQuantization, sets: int, device: Device) -> list[Call]:
    """Over full blocks of random numbers."""
    _, heads, dim = cell.shape
    tables = scattered_tables(device, sets, cell.sequences, cell.context // BLOCK_SIZE)
    shape = (tables.numel(), BLOCK_SIZE, heads)

    def side(axis: str) -> QuantizedTensor:
        groups = shape if axis == "token" else (tables.numel(), heads, dim)
        scale = torch.rand(groups, device=query.device).to(torch.float16) / 64
        if kind.bits == 8:
            data = torch.randint(-127, 128, (*shape, dim), dtype=torch.int8, device=query.device)
            return QuantizedTensor(data, scale, None)
        data = torch.randint(0, 256, (*shape, dim // 2), dtype=torch.uint8, device=query.device)
        return QuantizedTensor(data, scale, -scale)

    tails: tuple[torch.Tensor | None, ...] = (None, None, None)
    if kind.has_tails:
        tail = torch.zeros(1, *shape[1:], dim, dtype=query.dtype, device=query.device)
        tails = (tail, tail, torch.full((cell.sequences,), -1, dtype=torch.int32, device=query.device))
    layer = QuantizedLayer(side(kind.key_axis), side("token"), *tails)
    lengths = [cell.context] * cell.sequences, [1] * cell.sequences
    splits = chosen_splits(cell, query.dtype, device)
    return [
        partial(triton_quantized.paged_attention, query, layer, table, *lengths,
                **_decode_options(query, table, cell, splits))
        for table in tables
    ]  # fmt: skip


# Peers


def sdpa(query: torch.Tensor, arena: Arena, cell: Cell, sets: int) -> list[Call]:
    """torch's attention over sequences that lie side by side, no paging at all: the same memory, seen so.

    The query heads of a KV head are rows of one small matrix, which is how it is fastest.
    """
    n = cell.sequences
    q = query.view(n, cell.shape[1], -1, cell.shape[2])
    keys, values = (side.transpose(1, 2) for side in arena.pools(sets * n, cell.context, *cell.kv_shape))
    return [
        partial(F.scaled_dot_product_attention, q, keys[i * n : (i + 1) * n], values[i * n : (i + 1) * n])
        for i in range(sets)
    ]


def varlen(
    query: torch.Tensor, pools: list[torch.Tensor], tables: torch.Tensor, cell: Cell, device: Device
) -> list[Call]:
    """Raises VarlenRefused."""
    ones = np.ones(cell.sequences, np.int32)
    options = {"scale": cell.shape[2] ** -0.5, "sliding_window": None, "softcap": None}
    batches = [Batch(query, *pools, table, ones * np.int32(cell.context), ones, options) for table in tables]
    return [prepare_varlen(batch, device, poisoned=False) for batch in batches]


def varlen_with_large_pages(query: torch.Tensor, arena: Arena, cell: Cell, sets: int, device: Device) -> list[Call]:
    """Raises VarlenRefused."""
    if cell.context % LARGE_PAGES:
        raise VarlenRefused(f"{cell.context} tokens are not a multiple of its page")
    tables = scattered_tables(device, sets, cell.sequences, cell.context // LARGE_PAGES)
    return varlen(query, arena.pools(tables.numel(), LARGE_PAGES, *cell.kv_shape), tables, cell, device)
