"""Paged attention and cache writes on a GPU, by the kernels of `triton_kernels.py`.

Knows tensors, a step's sequences and the device. Does not know models or who owns a block.

What depends on the step alone is put on the device once, as a `StepMetadata`, and read by every layer. In a decode
step nothing else is needed, so its launches can be captured in a CUDA graph: the same kernels on the same buffers,
whose contents change.
"""

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
import torch
from triton.runtime.interpreter import InterpretedFunction

from pagedkv_lab.attention import triton_kernels as kernels
from pagedkv_lab.attention.triton_launch import (
    Launch,
    chip_of,
    choose_num_splits,
    decode_launch,
    merge_launch,
    prefill_launch,
    refusal,
    write_launch,
)
from pagedkv_lab.attention.workspace import Workspace

#: Under this key a step's metadata are kept in the workspace.
METADATA = "triton_paged metadata"

#: Whether kernels run in Triton's interpreter, on the CPU: TRITON_INTERPRET=1, set before triton is imported.
INTERPRETED = isinstance(kernels.decode_kernel, InterpretedFunction)

#: What the interpreter is taken for: the launches of this chip, with as many multiprocessors.
_INTERPRETED_AS = ((8, 0), 8)

NO_WINDOW = 2**31 - 1


@dataclass(frozen=True)
class StepMetadata:
    """Where a step's S sequences lie. All tensors are int32 and on the device.

    block_tables: (S, max_blocks), rows may be a view of wider ones. context_lens, query_lens: (S,).
    query_starts: (S,), the row of each sequence's first query. decoding: the sequences that have one query.
    chunks: the others, and how many queries they have. longest: tokens of the longest decoding context, from which
    the number of splits follows, unless num_splits says it.
    """

    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_lens: torch.Tensor
    query_starts: torch.Tensor
    decoding: torch.Tensor
    chunks: tuple[tuple[int, int], ...]
    longest: int
    num_splits: int | None = None


def decode_metadata(
    block_tables: torch.Tensor, context_lens: torch.Tensor, num_splits: int | None = None, *, longest: int = 0
) -> StepMetadata:
    """Metadata of a step in which every sequence has one query, for arrays that are on the device already.

    block_tables: (S, max_blocks) int32. context_lens: (S,) int32; 0 marks a padding row, whose output is 0. Both are
    read when the kernels run, so they may be filled anew for each replay of a CUDA graph. The number of splits is
    num_splits, or what suits contexts of `longest` tokens.
    """
    rows = torch.arange(len(context_lens), dtype=torch.int32, device=context_lens.device)
    return StepMetadata(block_tables, context_lens, torch.ones_like(rows), rows, rows, (), longest, num_splits)


def step_metadata(
    block_tables: torch.Tensor, context_lens: Sequence[int], query_lens: Sequence[int]
) -> StepMetadata:
    """Metadata of any step. block_tables: on the device; the lengths: on the host, and copied over in one go."""
    context, queries = np.asarray(context_lens, np.int32), np.asarray(query_lens, np.int32)
    decoding = np.flatnonzero(queries == 1).astype(np.int32)
    packed = np.concatenate([context, queries, np.cumsum(queries, dtype=np.int32) - queries, decoding])
    on_device = to_device(torch.from_numpy(packed), block_tables.device)
    num_sequences = len(context)
    return StepMetadata(
        block_tables.to(torch.int32),
        on_device[:num_sequences],
        on_device[num_sequences : 2 * num_sequences],
        on_device[2 * num_sequences : 3 * num_sequences],
        on_device[3 * num_sequences :],
        tuple((int(s), int(queries[s])) for s in np.flatnonzero(queries > 1)),
        int(context[decoding].max(initial=0)),
    )


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A small CPU tensor on the device; on a GPU without waiting for what runs there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def supports(
    device: torch.device | str, dtype: torch.dtype, head_dim: int, value_dim: int, num_heads: int, num_kv_heads: int,
    **more: int | bool,
) -> str | None:  # fmt: skip
    """Why the kernels can't run on this device with these sizes, by name; None where they can. See `refusal`."""
    device = torch.device(device)
    if device.type != "cuda" and not INTERPRETED:
        return f"it runs on CUDA, and the model is on {device.type} (TRITON_INTERPRET=1 has it interpreted, slowly)"
    capability, _ = gpu(device)
    return refusal(capability, dtype_name(dtype), head_dim, value_dim, num_heads, num_kv_heads, **more)


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
    """As `reference.paged_attention`, which says what each argument is. Returns (T, Hq, D), D up to 256.

    Where the workspace holds metadata of this step, the tables and lengths are those of the metadata.

    Raises ValueError, naming it, for a dtype, a head's size or a device that the kernels don't run with.
    """
    workspace = workspace or Workspace()
    num_kv_heads, dim = key_pool.shape[2:]
    num_heads = query.shape[1]
    if why := refused(query.device, query.dtype, dim, value_pool.shape[3], num_heads, num_kv_heads):
        raise ValueError(f"triton_paged can't run this: {why}")
    metadata: StepMetadata = workspace.once_a_step(
        METADATA, lambda: step_metadata(block_tables, context_lens, query_lens)
    )
    if query.stride(2) != 1:
        query = query.contiguous()
    capability, _ = gpu(query.device)
    group, dtype = num_heads // num_kv_heads, dtype_name(query.dtype)
    output = new_output(query)
    lengths = (query.stride(0), query.stride(1), metadata.block_tables.stride(0), group, num_kv_heads)
    options = (key_pool.shape[1], sliding_window or NO_WINDOW, float(scale), float(softcap or 1.0))
    flags = {"CAPPED": softcap is not None, "UPCAST": INTERPRETED and query.dtype == torch.bfloat16}

    if num_decoding := len(metadata.decoding):
        launch = decode_launch(chip_of(capability), dtype, dim, group)
        splits = Splits.of(metadata, query, num_kv_heads, launch.constants["TILE"], workspace)
        kernels.decode_kernel[(num_decoding, programs(num_kv_heads, group, launch), splits.count)](
            query, key_pool, value_pool, metadata.block_tables, metadata.context_lens, metadata.decoding,
            metadata.query_starts, output, splits.outputs, splits.lses, *lengths, *options,
            **flags, **how(launch),
        )  # fmt: skip
        splits.merge(metadata, output)
    if metadata.chunks:
        launch = prefill_launch(chip_of(capability), dtype, dim, group)
        pieces = cut_into_pieces(metadata, launch, group, workspace)
        kernels.prefill_kernel[(len(pieces), programs(num_kv_heads, group, launch))](
            query, key_pool, value_pool, metadata.block_tables, metadata.context_lens, metadata.query_starts,
            metadata.query_lens, pieces, output, *lengths, *options, **flags, **how(launch),
        )  # fmt: skip
    return output.to(query.dtype)


def write_kv(
    key: torch.Tensor, value: torch.Tensor, key_pool: torch.Tensor, value_pool: torch.Tensor, slots: torch.Tensor
) -> None:
    """Put one token into each slot. key, value: (T, Hkv, D); slots: (T,) int64 on the device, below 0 for none.

    The pools are (num_blocks, block_size, Hkv, D). A token whose slot is negative (padding) is not written.
    """
    key, value = (side if side.stride(2) == 1 else side.contiguous() for side in (key, value))
    num_tokens, num_kv_heads, dim = key.shape
    if num_tokens:
        kernels.write_kernel[(num_tokens,)](
            key, value, key_pool, value_pool, slots, *key.stride()[:2], *value.stride()[:2], num_kv_heads,
            **how(write_launch(dim)),
        )  # fmt: skip


def quantized_kernels() -> ModuleType:
    """The module that does the same over a quantized pool: `paged_attention`, `write_tokens`, `fill_blocks`."""
    return importlib.import_module("pagedkv_lab.attention.triton_quantized")  # which imports this one


# What the launches over quantized pools (`triton_quantized`) need, too


@dataclass(frozen=True)
class Splits:
    """How many parts a decode step's sequences are cut into, and what each part leaves behind for `merge`.

    outputs: (N * Hq * count, D) and lses: (N * Hq * count,), float32; with one part next to nothing is allocated.
    """

    count: int
    outputs: torch.Tensor
    lses: torch.Tensor

    @classmethod
    def of(cls, metadata: StepMetadata, query: torch.Tensor, num_kv_heads: int, tile: int, work: Workspace) -> "Splits":
        num_sequences, num_heads = len(metadata.decoding), query.shape[1]
        count = metadata.num_splits
        if count is None:
            _, num_multiprocessors = gpu(query.device)
            count = choose_num_splits(num_sequences, num_kv_heads, metadata.longest, num_multiprocessors, tile)
        return cls.buffers(count, num_sequences * num_heads * count if count > 1 else 0, query, work)

    @classmethod
    def buffers(cls, count: int, parts: int, query: torch.Tensor, work: Workspace) -> "Splits":
        """With room for so many parts of a head."""
        floats = torch.empty(0, dtype=torch.float32, device=query.device)
        outputs = work.buffer("triton partial outputs", (max(parts, 1), query.shape[2]), floats)
        return cls(count, outputs, work.buffer("triton partial lses", (max(parts, 1),), floats))

    def merge(self, metadata: StepMetadata, output: torch.Tensor) -> None:
        """Put the parts together into the rows of `output` (T, Hq, D) that decode."""
        if self.count > 1:
            kernels.merge_kernel[(len(metadata.decoding), output.shape[1])](
                self.outputs, self.lses, metadata.decoding, metadata.query_starts, output, self.count,
                **how(merge_launch(output.shape[2], self.count)),
            )  # fmt: skip


def how(launch: Launch) -> dict[str, int]:
    """A launch as keywords."""
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "maxnreg": launch.max_registers}
    return launch.constants | {name: given for name, given in options.items() if given is not None}


def programs(num_kv_heads: int, group: int, launch: Launch) -> int:
    """How many programs there are along a grid's axis of KV heads."""
    heads = launch.constants.get("HEADS", launch.constants["ROWS"])
    return num_kv_heads * math.ceil(group / heads)


def cut_into_pieces(metadata: StepMetadata, launch: Launch, group: int, workspace: Workspace) -> torch.Tensor:
    """(P, 2) int32 on the device: a sequence, and the first of those of its queries that one program takes."""
    queries = launch.constants["ROWS"] // min(group, launch.constants["HEADS"])

    def cut() -> torch.Tensor:
        pieces = [(sequence, first) for sequence, num in metadata.chunks for first in range(0, num, queries)]
        return to_device(torch.tensor(pieces, dtype=torch.int32), metadata.context_lens.device)

    return workspace.once_a_step(("triton pieces", queries), cut)


def new_output(query: torch.Tensor) -> torch.Tensor:
    """Where the kernels write, (T, Hq, D). The interpreter rounds bfloat16 wrongly: there it is float32."""
    dtype = torch.float32 if INTERPRETED and query.dtype == torch.bfloat16 else query.dtype
    return torch.empty(query.shape, dtype=dtype, device=query.device)


def dtype_name(dtype: torch.dtype) -> str:
    """ "float16" for torch.float16."""
    return str(dtype).removeprefix("torch.")


@cache
def gpu(device: torch.device) -> tuple[tuple[int, int], int]:
    """Compute capability and number of multiprocessors; made up where kernels are interpreted on a CPU."""
    if device.type != "cuda":
        return _INTERPRETED_AS
    return torch.cuda.get_device_capability(device), torch.cuda.get_device_properties(device).multi_processor_count


refused = cache(supports)
