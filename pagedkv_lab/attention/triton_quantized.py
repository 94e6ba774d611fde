"""Attention over a quantized cache, and writes to it, on a GPU: launches the kernels of `triton_quantized_kernels.py`.

Knows the layouts of a quantized layer and what `triton_paged` knows. Does not know how tails are handed out.

A layer is what `kv.QuantizedKVPool.layer` returns: `keys` and `values`, each with `data`, `scale` and `zero`, and
`tail_keys`, `tail_values`, `tail_rows`, None unless keys are quantized by channel.
"""

from collections.abc import Sequence
from typing import Any

import torch

from pagedkv_lab.attention import triton_quantized_kernels as kernels
from pagedkv_lab.attention.triton_launch import chip_of, fill_blocks_launch, quantized_launch, write_tokens_launch
from pagedkv_lab.attention.triton_paged import (
    INTERPRETED,
    METADATA,
    NO_WINDOW,
    Splits,
    StepMetadata,
    cut_into_pieces,
    dtype_name,
    gpu,
    how,
    new_output,
    programs,
    refused,
    step_metadata,
)
from pagedkv_lab.attention.workspace import Workspace


def paged_attention(
    query: torch.Tensor,
    layer: Any,
    block_tables: torch.Tensor,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """As `reference.paged_attention`, over a quantized layer. Returns (T, Hq, D).

    Raises ValueError, naming it, for what the kernels don't run with.
    """
    workspace = workspace or Workspace()
    bits, by_channel = _kind(layer)
    _, block_size, num_kv_heads, _ = layer.keys.data.shape
    num_heads, dim = query.shape[1:]
    value_dim = layer.values.data.shape[3] * (2 if bits == 4 else 1)
    if why := refused(
        query.device, query.dtype, dim, value_dim, num_heads, num_kv_heads,
        block_size=block_size, keys_by_channel=by_channel,
    ):  # fmt: skip
        raise ValueError(f"triton_paged can't run this: {why}")
    metadata: StepMetadata = workspace.once_a_step(
        METADATA, lambda: step_metadata(block_tables, context_lens, query_lens)
    )
    if query.stride(2) != 1:
        query = query.contiguous()
    capability, _ = gpu(query.device)
    group = num_heads // num_kv_heads
    output = new_output(query)
    kind = (chip_of(capability), dtype_name(query.dtype), dim, group, bits, block_size if by_channel else None)
    pools = _pools(layer, output)
    tables = (metadata.block_tables, metadata.context_lens, metadata.query_starts, metadata.query_lens)
    numbers = (
        query.stride(0), query.stride(1), metadata.block_tables.stride(0), group, num_kv_heads, block_size,
        sliding_window or NO_WINDOW, float(scale), float(softcap or 0.0),
    )  # fmt: skip
    upcast = INTERPRETED and query.dtype == torch.bfloat16

    if num_decoding := len(metadata.decoding):
        launch = quantized_launch(*kind, decode=True)
        splits = Splits.of(metadata, query, num_kv_heads, launch.constants["TILE"], workspace)
        pieces = workspace.once_a_step(
            "triton decode pieces", lambda: torch.stack([metadata.decoding, torch.zeros_like(metadata.decoding)], dim=1)
        )
        kernels.quantized_kernel[(num_decoding, programs(num_kv_heads, group, launch), splits.count)](
            query, *pools, *tables, pieces, output, splits.outputs, splits.lses, *numbers,
            UPCAST=upcast, **how(launch),
        )  # fmt: skip
        splits.merge(metadata, output)
    if metadata.chunks:
        launch = quantized_launch(*kind, decode=False)
        pieces = cut_into_pieces(metadata, launch, group, workspace)
        unused = Splits.buffers(1, 0, query, workspace)
        kernels.quantized_kernel[(len(pieces), programs(num_kv_heads, group, launch), 1)](
            query, *pools, *tables, pieces, output, unused.outputs, unused.lses, *numbers, UPCAST=upcast, **how(launch)
        )
    return output.to(query.dtype)


def write_tokens(key: torch.Tensor, value: torch.Tensor, layer: Any, slots: torch.Tensor) -> None:
    """Quantize each token by itself into its slot. key, value: (T, Hkv, D); slots: (T,) int64, below 0 for none."""
    bits, _ = _kind(layer)
    key, value = _dense_rows(key), _dense_rows(value)
    num_tokens, num_kv_heads, dim = key.shape
    if num_tokens:
        kernels.write_tokens_kernel[(num_tokens, num_kv_heads)](
            key, value, *_sides(layer), slots, *key.stride()[:2], *value.stride()[:2], num_kv_heads,
            **how(write_tokens_launch(dim, bits)),
        )  # fmt: skip


def fill_blocks(key: torch.Tensor, value: torch.Tensor, layer: Any, touched: torch.Tensor) -> None:
    """Write a step's tokens by block, and quantize blocks that are full: keys by channel, values by token.

    key, value: (T, Hkv, D). touched: (5, n) int32 on the device, the fields of `kv.tails.TouchedBlocks` in its order:
    block, tail_row, first, count, row, where row is that of a block's first token in key and value. Rows of it may be
    a view of longer ones. An entry whose count is 0 is padding.
    """
    bits, _ = _kind(layer)
    key, value = _dense_rows(key), _dense_rows(value)
    _, num_kv_heads, dim = key.shape
    if num_touched := touched.shape[1]:
        kernels.fill_blocks_kernel[(num_touched, num_kv_heads)](
            key, value, *_sides(layer), layer.tail_keys, layer.tail_values, touched,
            *key.stride()[:2], *value.stride()[:2], num_kv_heads, touched.stride(0),
            **how(fill_blocks_launch(dim, bits, layer.keys.data.shape[1])),
        )  # fmt: skip


def _kind(layer: Any) -> tuple[int, bool]:
    """Bits of a number, and whether keys are quantized by channel."""
    return (8 if layer.keys.data.dtype == torch.int8 else 4), layer.tail_keys is not None


def _dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def _sides(layer: Any) -> list[torch.Tensor]:
    """Data, scale and zero of keys and values; a zero that isn't there is never read, so anything stands for it."""
    return [t for side in (layer.keys, layer.values) for t in (side.data, side.scale, _or(side.zero, side.scale))]


def _pools(layer: Any, output: torch.Tensor) -> list[torch.Tensor]:
    """What `quantized_kernel` reads, in its order; for tails that aren't there, anything of their dtype."""
    rows = _or(layer.tail_rows, torch.empty(0, dtype=torch.int32, device=output.device))
    return [*_sides(layer), _or(layer.tail_keys, output), _or(layer.tail_values, output), rows]


def _or(tensor: torch.Tensor | None, otherwise: torch.Tensor) -> torch.Tensor:
    return otherwise if tensor is None else tensor
