"""Paged attention on a CPU, by compiled kernels that walk the block tables and gather nothing.

Knows what the kernels are given, and works out once a step what all layers have in common. Does not know how they
compute (`numba_kernel` for few query rows, `numba_prefill` for many; only these need numba), how the work is cut
(`work`), which sequences attend together (`cascade`), nor how threads are had (`threads`).

Falls back on torch_paged for what the kernels aren't made for: other devices, dtypes other than float32 and bfloat16,
and heads of more than 256.
"""

import ctypes
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch
from packaging.version import Version

from pagedkv_lab.attention import torch_paged
from pagedkv_lab.attention.arguments import Arguments, Sizes
from pagedkv_lab.attention.cascade import shared_prefixes
from pagedkv_lab.attention.threads import run_on_all_cores
from pagedkv_lab.attention.work import cut
from pagedkv_lab.attention.workspace import Workspace


def _numba_will_do() -> bool:
    """Whether it is installed, and new enough: with the compiler of 0.61 the kernels take two to five times longer."""
    try:
        return Version(version("numba")) >= Version("0.62")
    except PackageNotFoundError:
        return False


HAS_NUMBA = _numba_will_do()

#: The kernels' scratch lies on the stack of a thread, and grows with the size of a head.
_MAX_DIM = 256


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
    """As `reference.paged_attention`, which says what each argument is. Returns (T, Hq, Dv).

    With a workspace, the result lies in one of its buffers and is overwritten by the next call.
    """
    workspace = workspace or Workspace()
    options = {"scale": scale, "sliding_window": sliding_window, "softcap": softcap}
    if not (HAS_NUMBA and _suits(query, key_pool, value_pool)):
        return torch_paged.paged_attention(
            query, key_pool, value_pool, block_tables, context_lens, query_lens, **options, workspace=workspace
        )
    step = workspace.once_a_step(
        ("numba_paged", query.shape, query.dtype, key_pool.shape, value_pool.shape, scale, sliding_window, softcap),
        lambda: _Step(query, key_pool, value_pool, block_tables, context_lens, query_lens, workspace, **options),
    )
    return step.attend(query, key_pool, value_pool)


def _suits(query: torch.Tensor, key_pool: torch.Tensor, value_pool: torch.Tensor) -> bool:
    return (
        query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.bfloat16)
        and key_pool.dtype == value_pool.dtype == query.dtype
        and key_pool.is_contiguous()
        and value_pool.is_contiguous()
        and max(key_pool.shape[3], value_pool.shape[3]) <= _MAX_DIM
    )


class _Step:
    """One step's attention, ready to run but for the addresses of a layer's queries, keys and values."""

    def __init__(
        self,
        query: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        block_tables: torch.Tensor,
        context_lens: Sequence[int],
        query_lens: Sequence[int],
        workspace: Workspace,
        *,
        scale: float,
        sliding_window: int | None,
        softcap: float | None,
    ):
        self._workspace = workspace
        num_blocks, block_size, num_kv_heads, dim = key_pool.shape
        num_tokens, num_heads = query.shape[:2]
        group = num_heads // num_kv_heads
        context_lens, query_lens = np.asarray(context_lens, np.int64), np.asarray(query_lens, np.int64)
        if block_tables.dtype != torch.int32 or block_tables.stride(1) != 1:
            block_tables = block_tables.int().contiguous()

        prefixes = []
        if sliding_window is None:
            prefixes = shared_prefixes(block_tables.numpy(), context_lens, query_lens, block_size, group)
        work = cut(
            context_lens,
            query_lens,
            prefixes,
            sliding_window=sliding_window,
            group=group,
            num_kv_heads=num_kv_heads,
            num_threads=torch.get_num_threads(),
        )
        float32 = query if query.dtype == torch.float32 else torch.empty(0)
        self._rows = workspace.buffer("rows", (work.num_rows, num_heads, value_pool.shape[3]), float32)
        self._lse = workspace.buffer("lse", (work.num_rows, num_heads), float32)

        self._counter = np.zeros(1, np.int64)
        scales = np.array([scale, softcap or 0.0], np.float32)
        longest = int(context_lens.max(initial=0))
        self._launches = []
        self._kept = [work, block_tables, scales]
        for kernel, pieces, programs in (
            ("prefill", work.many_rows, len(work.many_rows) * num_kv_heads),
            ("decode", work.few_rows, len(work.few_rows) * num_kv_heads),
            ("merge", work.merges, len(work.merges)),
        ):
            if not programs:
                continue
            sizes = Sizes(
                *pieces.shape,
                queries=len(work.queries),
                tables=len(block_tables),
                table_stride=block_tables.stride(0),
                tokens=num_tokens,
                heads=num_heads,
                slots=num_blocks * block_size,
                block_size=block_size,
                kv_heads=num_kv_heads,
                dim=dim,
                value_dim=value_pool.shape[3],
                longest=longest,
                window=longest if sliding_window is None else sliding_window,
                rows=work.num_rows,
            )
            arguments = Arguments(
                sizes=ctypes.addressof(sizes),
                scales=scales.ctypes.data,
                counter=self._counter.ctypes.data,
                pieces=pieces.ctypes.data,
                queries=work.queries.ctypes.data,
                tables=block_tables.data_ptr(),
                output=self._rows.data_ptr(),
                lse=self._lse.data_ptr(),
            )
            self._kept.append(sizes)
            self._launches.append((_kernel(kernel, query.dtype), arguments, programs))

    def attend(self, query: torch.Tensor, key_pool: torch.Tensor, value_pool: torch.Tensor) -> torch.Tensor:
        """A layer's (T, Hq, Dv)."""
        rows = query.float().contiguous()
        for kernel, arguments, programs in self._launches:
            arguments.query, arguments.keys, arguments.values = (
                rows.data_ptr(),
                key_pool.data_ptr(),
                value_pool.data_ptr(),
            )
            self._counter[0] = 0
            run_on_all_cores(kernel, ctypes.addressof(arguments), programs)
        output = self._rows[: len(query)]
        if query.dtype != torch.float32:
            output = self._workspace.buffer("output", output.shape, query).copy_(output)
        return output


def _kernel(name: str, dtype: torch.dtype) -> int:
    """The address of a kernel, compiled when it is first asked for. numba is imported here and not before."""
    from pagedkv_lab.attention import numba_kernel, numba_prefill

    if name == "merge":
        return numba_kernel.merge_kernel()
    kernels = {"decode": numba_kernel.decode_kernel, "prefill": numba_prefill.prefill_kernel}
    return kernels[name](dtype == torch.bfloat16)
