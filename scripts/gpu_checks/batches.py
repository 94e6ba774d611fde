"""Sequences in a paged pool, and what attention over them comes to.

The pool is as unpleasant as it gets: blocks lie anywhere, and all that no sequence has written is NaN: free blocks,
the rest of a half-filled one, and the block to which a table points behind a sequence's last one. A kernel that reads
what it must not read returns NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gpu_checks.sizes import Config
from pagedkv_lab.attention import reference
from pagedkv_lab.sizing import blocks_for

#: Largest error against float64, over the largest number of the result (or 1, if that is larger). float16 rounds to
#: 2^-11 and bfloat16 to 2^-8 of a number: the weights once, the result once more.
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


@dataclass
class Batch:
    """What a backend is called with. query: (T, Hq, D). Pools: (num_blocks, block_size, Hkv, D)."""

    query: torch.Tensor
    key_pool: torch.Tensor
    value_pool: torch.Tensor
    block_tables: torch.Tensor
    context_lens: np.ndarray
    query_lens: np.ndarray
    options: dict[str, Any]

    @property
    def dtype_name(self) -> str:
        return str(self.query.dtype).removeprefix("torch.")

    def run(self, backend: Any, **more: Any) -> torch.Tensor:
        pools = (self.query, self.key_pool, self.value_pool, self.block_tables)
        return backend(*pools, self.context_lens, self.query_lens, **self.options, **more)

    def exact(self) -> torch.Tensor:
        """(T, Hq, D) float64: the reference, on these numbers. 0 for sequences of length 0, which pad a batch."""
        size = self.key_pool.shape[1]
        real = np.flatnonzero(self.context_lens)
        blocks = [self.block_tables[s, : blocks_for(int(self.context_lens[s]), size)] for s in real]
        # Only the blocks that are read, in a pool of their own: all of a large one would not fit in float64.
        named, numbers = torch.cat(blocks).long().unique(return_inverse=True)
        tables = torch.zeros(len(real), max(map(len, blocks)), dtype=torch.int64, device=self.query.device)
        for table, own in zip(tables, numbers.split([len(own) for own in blocks]), strict=True):
            table[: len(own)] = own
        rows = torch.from_numpy(np.repeat(self.context_lens > 0, self.query_lens)).to(self.query.device)
        result = torch.zeros(self.query.shape, dtype=torch.float64, device=self.query.device)
        result[rows] = reference.paged_attention(
            self.query[rows].double(),
            self.key_pool[named].double(),
            self.value_pool[named].double(),
            tables,
            self.context_lens[real].tolist(),
            self.query_lens[real].tolist(),
            **self.options,
        )
        return result

    def with_contexts(self, context_lens: Sequence[int]) -> "Batch":
        """The same pools and tables, and other lengths, none longer than before."""
        return replace(self, context_lens=np.asarray(context_lens, np.int32))


def make_batch(
    config: Config,
    lengths: Sequence[tuple[int, int]],
    device: torch.device,
    *,
    seed: int = 0,
    num_blocks: int | None = None,
) -> Batch:
    """Random sequences. lengths: (context, queries) of each; (0, 1) is a row that pads the batch.

    num_blocks: of a pool that is larger than needed; its other blocks are then whatever lay in that memory.
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config.dtype)
    size, heads, dim = config.block_size, config.num_kv_heads, config.head_dim
    needed = [blocks_for(context, size) for context, _ in lengths]
    if num_blocks is None:
        num_blocks = sum(needed) + 3
        pools = [torch.full((num_blocks, size, heads, dim), float("nan"), dtype=dtype, device=device) for _ in "kv"]
    else:
        pools = [torch.empty(num_blocks, size, heads, dim, dtype=dtype, device=device) for _ in "kv"]
    # The pool's last blocks, in any order.
    far = torch.arange(num_blocks - sum(needed) - 1, num_blocks)
    free = far[torch.randperm(len(far), generator=generator)]
    unused, free = int(free[0]), free[1:]
    tables = torch.full((len(lengths), max(needed) + 2), unused, dtype=torch.int32)
    for pool in pools:
        pool[unused] = float("nan")
    for (context, _), table, own in zip(lengths, tables, free.split(needed), strict=True):
        table[: len(own)] = own
        position = torch.arange(context)
        slots = (own[position // size] * size + position % size).to(device)
        for pool in pools:
            numbers = torch.randn(context, heads, dim, generator=generator).to(dtype).to(device)
            pool[own.to(device)] = float("nan")
            pool.view(-1, heads, dim)[slots] = numbers
    num_queries = sum(queries for _, queries in lengths)
    query = torch.randn(num_queries, heads * config.group, dim, generator=generator).to(dtype).to(device)
    return Batch(
        query,
        *pools,
        tables.to(device),
        np.array([context for context, _ in lengths], np.int32),
        np.array([queries for _, queries in lengths], np.int32),
        {"scale": dim**-0.5, "sliding_window": config.sliding_window, "softcap": config.softcap},
    )


def error_of(got: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, over the largest number of the result or 1. NaN where anything is not a number."""
    if got.shape != exact.shape:
        raise ValueError(f"the result has shape {tuple(got.shape)}, not {tuple(exact.shape)}")
    if exact.numel() == 0:
        return 0.0
    largest = max(1.0, exact.abs().max().item())
    return (got.double() - exact).abs().max().item() / largest
