"""Sequences in a pool, for the tests of attention, and what attention over them comes to.

The pools are as unpleasant as they get: blocks lie anywhere, and all that no sequence has written (other blocks, the
rest of a half-filled one) is NaN, as is whatever a table has behind a sequence's last block.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from pagedkv_lab.attention.numba_paged import HAS_NUMBA
from pagedkv_lab.sizing import blocks_for

needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed: pip install numba")


@dataclass
class Batch:
    """Sequences in a pool, as a backend sees them, and their keys and values as plain tensors."""

    query: torch.Tensor  # (T, Hq, D)
    key_pool: torch.Tensor
    value_pool: torch.Tensor
    block_tables: torch.Tensor
    context_lens: list[int]
    query_lens: list[int]
    options: dict[str, Any]
    keys: list[torch.Tensor]  # of each sequence, (context_len, Hkv, D)
    values: list[torch.Tensor]

    def run(self, backend, **more: Any) -> torch.Tensor:
        pools = (self.query, self.key_pool, self.value_pool, self.block_tables)
        return backend(*pools, self.context_lens, self.query_lens, **self.options, **more)

    def to(self, dtype: torch.dtype) -> "Batch":
        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype)

        return Batch(
            cast(self.query),
            cast(self.key_pool),
            cast(self.value_pool),
            self.block_tables,
            self.context_lens,
            self.query_lens,
            self.options,
            [cast(key) for key in self.keys],
            [cast(value) for value in self.values],
        )


def make_batch(
    lengths: list[tuple[int, int]],
    *,
    block_size: int = 4,
    num_kv_heads: int = 2,
    group: int = 2,
    key_dim: int = 8,
    value_dim: int | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Batch:
    """lengths: (context, queries) a sequence. Keys and values are drawn at random, blocks dealt out at random."""
    generator = torch.Generator().manual_seed(seed)
    value_dim = value_dim or key_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    needed = [blocks_for(context, block_size) for context, _ in lengths]
    num_blocks = sum(needed) + 3
    key_pool = torch.full((num_blocks, block_size, num_kv_heads, key_dim), float("nan"), dtype=dtype)
    value_pool = torch.full((num_blocks, block_size, num_kv_heads, value_dim), float("nan"), dtype=dtype)
    free = torch.randperm(num_blocks, generator=generator).tolist()
    unused = free[sum(needed)]
    # Two columns more than anybody needs; what stands behind a sequence's last block points to NaN.
    tables = torch.full((len(lengths), max(needed) + 2), unused, dtype=torch.int32)
    keys, values = [], []
    for row, (context, _) in enumerate(lengths):
        blocks = [free.pop() for _ in range(needed[row])]
        tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        keys.append(random(context, num_kv_heads, key_dim))
        values.append(random(context, num_kv_heads, value_dim))
        for position in range(context):
            block, offset = blocks[position // block_size], position % block_size
            key_pool[block, offset] = keys[-1][position]
            value_pool[block, offset] = values[-1][position]
    query = random(sum(queries for _, queries in lengths), num_kv_heads * group, key_dim)
    return Batch(
        query,
        key_pool,
        value_pool,
        tables,
        [context for context, _ in lengths],
        [queries for _, queries in lengths],
        {"scale": key_dim**-0.5, "sliding_window": sliding_window, "softcap": softcap},
        keys,
        values,
    )


def plain_attention(batch: Batch) -> torch.Tensor:
    """The same, from the sequences' keys and values as they are: softmax(q k^T) v in one line a head."""
    out = []
    queries = batch.query.split(list(batch.query_lens))
    for q, k, v, context in zip(queries, batch.keys, batch.values, batch.context_lens, strict=True):
        group = q.shape[1] // k.shape[1]
        for row in range(len(q)):
            last = context - len(q) + row  # position of this query
            window = batch.options["sliding_window"]
            first = 0 if window is None else max(0, last - window + 1)
            heads = []
            for head in range(q.shape[1]):
                scores = k[first : last + 1, head // group] @ q[row, head] * batch.options["scale"]
                cap = batch.options["softcap"]
                if cap is not None:
                    scores = cap * (scores / cap).tanh()
                heads.append(scores.softmax(0) @ v[first : last + 1, head // group])
            out.append(torch.stack(heads))
    return torch.stack(out)


def assert_right(got: torch.Tensor, batch: Batch) -> None:
    """`got` is attention over the numbers in `batch`, as exactly as their dtype allows."""
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-6, torch.bfloat16: 2e-2}[batch.query.dtype]
    assert got.dtype == batch.query.dtype
    torch.testing.assert_close(got.double(), plain_attention(batch.to(torch.float64)), rtol=tolerance, atol=tolerance)


# A sequence in decode, in its first prefill, or in a chunk behind what is cached.
LENGTHS = st.sampled_from([1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 50]).flatmap(
    lambda context: st.tuples(
        st.just(context),
        st.sampled_from(sorted({1, context, max(1, context - 1), max(1, context // 2), min(3, context)})),
    )
)

BATCHES = st.builds(
    make_batch,
    st.lists(LENGTHS, min_size=1, max_size=6),
    block_size=st.sampled_from([1, 4, 16]),
    num_kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 4]),
    key_dim=st.sampled_from([4, 8]),
    value_dim=st.sampled_from([None, 6]),
    sliding_window=st.sampled_from([None, 1, 2, 5, 16, 100]),
    softcap=st.sampled_from([None, 2.0]),
    seed=st.integers(0, 1000),
)


def share_first_blocks(batch: Batch, members: list[int], num_blocks: int) -> None:
    """From now on these sequences begin with the first one's blocks: a prefix hit."""
    block_size = batch.key_pool.shape[1]
    first, *others = members
    for other in others:
        batch.block_tables[other, :num_blocks] = batch.block_tables[first, :num_blocks]
        for plain in (batch.keys, batch.values):
            shared = plain[first][: num_blocks * block_size]
            plain[other] = torch.cat([shared, plain[other][num_blocks * block_size :]])
