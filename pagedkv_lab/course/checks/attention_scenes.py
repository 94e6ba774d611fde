"""Sequences in a pool, for the checks of attention: every slot holds numbers of its own, and blocks lie anywhere.

A scene is there twice: with ordinary numbers in all places that belong to nobody (then what a mistake reads shows which
mistake it is), and with NaN in them (then nothing that reads them gets away with it).

Knows pools, tables and the right answer. Does not know how anybody gets there. Imports torch, so import it late.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pagedkv_lab.attention import reference
from pagedkv_lab.sizing import blocks_for


@dataclass(frozen=True)
class Scene:
    """Arguments of attention, as `attention.reference` has them; queries may be fewer than a context's tokens.

    written: (num_blocks, block_size) True where a sequence has a token.
    """

    label: str
    query: torch.Tensor  # (T, Hq, D)
    key_pool: torch.Tensor  # (num_blocks, block_size, Hkv, D)
    value_pool: torch.Tensor
    block_tables: torch.Tensor  # (S, max_blocks) int32, padded with blocks that belong to nobody
    context_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    scale: float
    written: torch.Tensor

    @property
    def block_size(self) -> int:
        return self.key_pool.shape[1]

    @property
    def group(self) -> int:
        return self.query.shape[1] // self.key_pool.shape[2]

    def poisoned(self) -> "Scene":
        """The same with NaN wherever no sequence has a token."""
        nobody = ~self.written[:, :, None, None]
        keys, values = (pool.masked_fill(nobody, float("nan")) for pool in (self.key_pool, self.value_pool))
        return replace(self, key_pool=keys, value_pool=values)

    def to(self, dtype: torch.dtype) -> "Scene":
        tensors = {name: getattr(self, name).to(dtype) for name in ("query", "key_pool", "value_pool")}
        return replace(self, **tensors)

    def answer(self) -> torch.Tensor:
        """The right one, in float64: (T, Hq, D)."""
        exact = self.to(torch.float64)
        pools = (exact.query, exact.key_pool, exact.value_pool, self.block_tables)
        return reference.paged_attention(*pools, self.context_lens, self.query_lens, scale=self.scale)

    def row(self, row: int) -> str:
        """What a row of the queries is, in words."""
        for sequence, (context, queries) in enumerate(zip(self.context_lens, self.query_lens, strict=True), 1):
            if row < queries:
                return f"sequence {sequence}, position {context - queries + row}"
            row -= queries
        return ""

    def head(self) -> str:
        """Its sizes and tables, as comments above a call."""
        heads, kv_heads = self.query.shape[1], self.key_pool.shape[2]
        count = len(self.context_lens)
        what = f"{count} sequence{'s' * (count > 1)}, block_size {self.block_size}"
        own = [blocks_for(context, self.block_size) for context in self.context_lens]
        tables = [f"[{', '.join(map(str, t[:n].tolist()))}, ...]" for t, n in zip(self.block_tables, own, strict=True)]
        lengths = f"context_lens {list(self.context_lens)}, query_lens {list(self.query_lens)}"
        return f"# {what}, {heads} query and {kv_heads} KV heads\n# block_tables [{', '.join(tables)}]\n# {lengths}"


def make_scene(
    draw: random.Random,
    label: str,
    lengths: Sequence[tuple[int, int]],
    *,
    block_size: int = 4,
    num_kv_heads: int = 1,
    group: int = 1,
    dim: int = 4,
    scale: float | None = None,
    loud: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Scene:
    """A scene with drawn numbers and blocks. lengths: of each sequence, tokens in the pool and how many are queries.

    loud: what all scores are moved by. Softmax doesn't mind, exp does.
    """
    scale = dim**-0.5 if scale is None else scale
    counts = [blocks_for(context, block_size) for context, _ in lengths]
    # Room for a table's row behind the context, as long as the longest mistake: it reads the queries once more.
    width = max(blocks_for(context + queries, block_size) for context, queries in lengths) + 1
    num_blocks = sum(counts) + 3
    order = draw.sample(range(num_blocks), num_blocks)
    nobodys, order = order[:3], order[3:]
    tables = torch.tensor([draw.choices(nobodys, k=width) for _ in lengths], dtype=torch.int32)
    written = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for s, (context, _) in enumerate(lengths):
        own, order = order[: counts[s]], order[counts[s] :]
        tables[s, : counts[s]] = torch.tensor(own)
        for position in range(context):
            written[own[position // block_size], position % block_size] = True

    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    query, keys, values = (
        torch.randn(*shape, dim, generator=generator).to(dtype).float()  # numbers that the dtype can hold
        for shape in (
            (sum(queries for _, queries in lengths), group * num_kv_heads),
            (num_blocks, block_size, num_kv_heads),
            (num_blocks, block_size, num_kv_heads),
        )
    )
    if loud:
        query[..., 0], keys[..., 0] = loud / scale, 1.0
    contexts, queries = zip(*lengths, strict=True)
    return Scene(label, query, keys, values, tables, contexts, queries, scale, written).to(dtype)
