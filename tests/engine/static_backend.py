"""An attention backend for tests, in plain torch, with all that `triton_paged` has: it writes the pool by slots, and in
a decode step it reads tables and lengths from tensors alone, so that it can be recorded."""

from dataclasses import dataclass

import torch

from pagedkv_lab.attention import Workspace, reference

METADATA = "static metadata"

#: What `supports` says: set by a test.
refusal: str | None = None


@dataclass(frozen=True)
class Metadata:
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    num_splits: int | None = None
    longest: int = 0


def decode_metadata(
    block_tables: torch.Tensor, context_lens: torch.Tensor, num_splits: int | None = None, *, longest: int = 0
) -> Metadata:
    return Metadata(block_tables, context_lens, num_splits, longest)


def supports(device, dtype, head_dim, value_dim, num_heads, num_kv_heads, **more) -> str | None:
    return refusal


def write_kv(key, value, key_pool, value_pool, slots) -> None:
    """Without an operation whose shape depends on numbers: every slot of the pool looks for its token."""
    flat_shape = (-1, *key_pool.shape[2:])
    wanted = torch.arange(key_pool.shape[0] * key_pool.shape[1])[:, None] == slots[None]  # (slots, T)
    token = wanted.to(torch.uint8).argmax(dim=1)
    for pool, new in ((key_pool, key), (value_pool, value)):
        flat = pool.view(flat_shape)
        flat.copy_(torch.where(wanted.any(dim=1)[:, None, None], new[token], flat))


def paged_attention(
    query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale, sliding_window=None, softcap=None,
    workspace=None,
):  # fmt: skip
    metadata = workspace.once_a_step(METADATA, lambda: None)
    if metadata is None:
        options = {"scale": scale, "sliding_window": sliding_window, "softcap": softcap}
        lengths = context_lens, query_lens
        return _kept(
            reference.paged_attention(query, key_pool, value_pool, block_tables, *lengths, **options), workspace
        )
    tables, lengths = metadata.block_tables, metadata.context_lens[:, None]
    block_size, group = key_pool.shape[1], query.shape[1] // key_pool.shape[2]
    position = torch.arange(tables.shape[1] * block_size)[None]  # (1, L)
    visible = position < lengths
    if sliding_window is not None:
        visible &= position >= lengths - sliding_window
    block = torch.where(visible, tables.long().repeat_interleave(block_size, dim=1), 0)
    slots = block * block_size + position % block_size  # (S, L)
    key, value = (pool.flatten(0, 1)[slots] for pool in (key_pool, value_pool))  # (S, L, Hkv, D)
    key, value = (torch.where(visible[..., None, None], side, 0) for side in (key, value))
    key, value = (side.unsqueeze(3).expand(-1, -1, -1, group, -1).flatten(2, 3) for side in (key, value))
    scores = torch.einsum("shd,slhd->shl", query, key) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = torch.where(visible[:, None], scores, float("-inf"))
    weights = torch.where(visible[:, None], scores.softmax(dim=-1), 0)  # an empty row is NaN before
    return _kept(torch.einsum("shl,slhd->shd", weights, value), workspace)


def _kept(result: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """The result in a buffer that the workspace keeps, and replaces by another one where it is too small."""
    return workspace.buffer("output", tuple(result.shape), result).copy_(result)
