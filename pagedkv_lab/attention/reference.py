"""Paged attention in plain code: the definition that every other backend is held against.

Knows queries, pools and block tables. Slow on purpose: one sequence at a time, every step written out, no
buffers reused; exact in float64.
"""

from collections.abc import Sequence

import torch

from pagedkv_lab.attention.workspace import Workspace


def paged_attention(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """Causal attention of each sequence's newest tokens over all its tokens in the pool.

    query: (T, Hq, D), the queries of all sequences one after the other, T = sum(query_lens).
    key_pool: (num_blocks, block_size, Hkv, D). value_pool: (num_blocks, block_size, Hkv, Dv).
    block_tables: (S, max_blocks) integer; row s lists sequence s's physical blocks; what stands behind its
        last block is never read.
    context_lens: (S,) tokens of each sequence in the pool, its queries' own included.
    query_lens: (S,) how many of them, at the end, are queries: 1 in decode, a chunk in prefill.
    scale: what the scores are multiplied by, usually D ** -0.5.
    sliding_window: a query sees this many tokens, itself included; None sees all.
    softcap: scores become softcap * tanh(score / softcap) (Gemma 2, section 2.4); None leaves them.
    workspace: not used here.

    Returns (T, Hq, Dv). Query head h reads KV head h // (Hq // Hkv) (GQA: Ainslie et al. 2023).
    """
    block_size, num_kv_heads = key_pool.shape[1], key_pool.shape[2]
    num_heads = query.shape[1]
    outputs = []
    start = 0
    for table, context_len, query_len in zip(block_tables, context_lens, query_lens, strict=True):
        q = query[start : start + query_len]  # (query_len, Hq, D)
        start += query_len

        position = torch.arange(int(context_len), device=query.device)
        block = table[position // block_size].long()
        k = key_pool[block, position % block_size]  # (context_len, Hkv, D)
        v = value_pool[block, position % block_size]  # (context_len, Hkv, Dv)
        k = k.repeat_interleave(num_heads // num_kv_heads, dim=1)  # (context_len, Hq, D)
        v = v.repeat_interleave(num_heads // num_kv_heads, dim=1)

        scores = torch.einsum("qhd,khd->hqk", q, k) * scale  # (Hq, query_len, context_len)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        query_position = position[int(context_len) - int(query_len) :]
        distance = query_position[:, None] - position[None, :]  # (query_len, context_len)
        visible = distance >= 0
        if sliding_window is not None:
            visible &= distance < sliding_window
        scores = scores.masked_fill(~visible, float("-inf"))
        weights = scores.softmax(dim=-1).to(v.dtype)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(outputs) if outputs else query.new_zeros(0, num_heads, value_pool.shape[3])
