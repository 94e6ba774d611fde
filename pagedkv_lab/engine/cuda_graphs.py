"""CUDA graphs for decode: a step's kernels, some hundreds, launched as one.

Knows batch sizes, buffers and what a decode step reads. Does not know the model: it is handed a function that runs it.

A small model's decode step is over on the GPU before Python has launched it. A graph is recorded once and replayed
without Python, but a replay is the same kernels on the same addresses. Hence the three ideas here, all vLLM's:

- **Static buffers.** What changes from step to step is copied to where the recorded kernels read it.
- **Buckets.** A graph is for one batch size. There is one for 1, 2, 4, 8, 16, 24, ... sequences, and a step takes the
  next larger one.
- **Padding rows.** The rows that are left over belong to nobody: a context of length 0 attends to nothing and gives 0,
  slot -1 is written nowhere, token 0 at position 0 costs its share of the products, and its logits are dropped.

Prefill runs without: it is long enough for Python to keep up, and no two prefill steps have the same shape.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from pagedkv_lab.engine.device import CudaDevice
from pagedkv_lab.engine.staging import Staging, offsets

#: Sequences; larger steps are long enough without a graph (vLLM's limit too).
LARGEST = 512

#: A dtype and what a padding row holds, for each field that has a number a row: those of DecodeInput before the tables.
_ROWS = ((np.int64, 0), (np.int64, 0), (np.int64, -1), (np.int32, 0))
#: Likewise tail_rows, and the five of `touched`: block, tail row, first, count, row. Nothing is read without a count.
_TAIL_ROWS = ((np.int32, -1), *[(np.int32, 0)] * 5)


class DecodeInput(NamedTuple):
    """What a decode step of B rows reads: tensors on the device, row s for sequence s.

    token_ids, positions, write_slots: (B,) int64. write_slots: where the token's key and value go, -1 for nowhere.
    context_lens: (B,) int32, 0 for a padding row. block_tables: (B, W) int32.

    On a quantized pool with tails also tail_rows: (B,) int32, and touched: (5, B) int32, the fields of
    `kv.tails.TouchedBlocks`, with a count of 0 in entries that are padding.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    write_slots: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    tail_rows: torch.Tensor | None = None
    touched: torch.Tensor | None = None

    def first(self, num_rows: int) -> "DecodeInput":
        rows = [tensor[:num_rows] for tensor in self[:5]]
        if self.touched is None:
            return DecodeInput(*rows)
        return DecodeInput(*rows, self.tail_rows[:num_rows], self.touched[:, :num_rows])


def batch_buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture: 1, 2, 4, by eights up to 256, by sixteens from there, and the largest, max_num_seqs.

    The list has the shape of vLLM's cudagraph_capture_sizes. At most 7 rows of a step are padding up to 256 sequences.
    """
    largest = min(max_num_seqs, LARGEST)
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST, 16)) if size < largest] + [largest]


class _Graph(NamedTuple):
    """A recording, and the function that was recorded: it holds the tensors whose addresses are in the recording."""

    replay: Callable[[], None]
    decode: Callable[[], torch.Tensor]


class DecodeGraphs:
    """One graph a bucket, over buffers and a memory pool that all of them share.

    make_decode: takes a DecodeInput and returns a function that runs a step on what stands in it at that time. It
        returns logits, (B, vocab).
    table_width: blocks of the longest sequence there may be. with_tails: for a quantized pool that has tails.

    The buffers lie in one stretch of memory, row by row of the tables last, and the pinned buffer is laid out alike:
    one copy fills them all.
    """

    def __init__(
        self,
        gpu: CudaDevice,
        staging: Staging,
        make_decode: Callable[[DecodeInput], Callable[[], torch.Tensor]],
        *,
        max_num_seqs: int,
        table_width: int,
        with_tails: bool = False,
    ):
        self._rows = _ROWS + _TAIL_ROWS * with_tails
        self.buckets = batch_buckets(max_num_seqs)
        self.table_width = table_width
        self._gpu, self._staging, self._make_decode = gpu, staging, make_decode
        self._pool = gpu.graph_pool()
        self._graphs: dict[int, _Graph] = {}
        largest = self.buckets[-1]
        sizes = [largest * np.dtype(dtype).itemsize for dtype, _ in self._rows]
        self._begins = offsets(sizes)  # of the fields, the tables' last
        table_bytes = largest * table_width * 4
        self._memory = torch.empty(self._begins[-1] + table_bytes, dtype=torch.uint8, device=gpu.device)
        self._fields = [
            self._memory[begin : begin + size].view(getattr(torch, np.dtype(dtype).name))
            for begin, size, (dtype, _) in zip(self._begins, sizes, self._rows, strict=False)
        ]
        tables = self._memory[self._begins[-1] :].view(torch.int32).view(largest, table_width)
        self.buffers = DecodeInput(*self._fields[: len(_ROWS)], tables)
        if with_tails:
            tail_rows, *touched = self._fields[len(_ROWS) :]
            stride = touched[1].storage_offset() - touched[0].storage_offset()  # they lie one behind the other
            touched = touched[0].as_strided((5, largest), (stride, 1))
            self.buffers = self.buffers._replace(tail_rows=tail_rows, touched=touched)
        self._logits: torch.Tensor | None = None

    @property
    def captured(self) -> list[int]:
        """The buckets that have a graph, smallest first."""
        return sorted(self._graphs)

    @torch.inference_mode()
    def capture(self, buckets: Sequence[int] | None = None, *, use_tqdm: bool = True) -> None:
        """Record these buckets, by default all, the largest first: the smaller ones find its memory in the pool.

        use_tqdm: a progress bar, if it takes more than two seconds. Raises what the model raises where it can't be
        captured (mostly RuntimeError).
        """
        for buffer, (_, empty) in zip(self._fields, self._rows, strict=True):
            buffer.fill_(empty)  # a recording runs the model too: on padding rows, which write nothing
        self.buffers.block_tables.zero_()
        order = sorted(self.buckets if buckets is None else buckets, reverse=True)
        with tqdm(order, desc="capturing CUDA graphs", unit="graph", delay=2, leave=False, disable=not use_tqdm) as bar:
            for bucket in bar:
                self._graphs[bucket] = self._capture(bucket)

    def _capture(self, bucket: int) -> _Graph:
        decode = self._make_decode(self.buffers.first(bucket))

        def step() -> None:
            logits = decode()
            if self._logits is None:  # before the first recording: a graph's own memory is the pool's
                self._logits = torch.empty(self.buckets[-1], logits.shape[1], dtype=logits.dtype, device=logits.device)
            self._logits[:bucket].copy_(logits)

        return _Graph(self._gpu.capture(step, self._pool), decode)

    def fit(self, token_ids: np.ndarray, sample_rows: np.ndarray, block_tables: np.ndarray) -> bool:
        """Whether a step of these arrays has a graph: one token a sequence, all of them sampled, not too many."""
        num_seqs, width = block_tables.shape
        return (
            len(token_ids) == len(sample_rows) == num_seqs <= self.buckets[-1]
            and width <= self.table_width
            and self.bucket_of(num_seqs) in self._graphs
        )

    def bucket_of(self, num_seqs: int) -> int:
        """The smallest bucket that holds so many sequences."""
        return self.buckets[bisect_left(self.buckets, num_seqs)]

    def run(
        self,
        token_ids: np.ndarray,
        positions: np.ndarray,
        write_slots: np.ndarray,
        context_lens: np.ndarray,
        block_tables: np.ndarray,
        tail_rows: np.ndarray | None = None,
        touched: np.ndarray | None = None,
    ) -> torch.Tensor:
        """One step of S sequences, `fit` being true; arrays as in DecodeInput, block_tables not wider than its tables.

        Returns logits (S, vocab), to be used before the next call overwrites them.
        """
        num_seqs, width = block_tables.shape
        bucket = self.bucket_of(num_seqs)
        tables_begin = self._begins[-1]
        num_bytes = tables_begin + num_seqs * self.table_width * 4
        host = self._staging.begin(num_bytes)
        arrays = [token_ids, positions, write_slots, context_lens]
        if touched is not None:
            arrays += [tail_rows, *touched]
        for array, begin, (dtype, empty) in zip(arrays, self._begins, self._rows, strict=False):
            field = host[begin : begin + bucket * np.dtype(dtype).itemsize].view(dtype)
            field[: len(array)] = array
            field[len(array) :] = empty
        # Behind a sequence's last block, and in padding rows, a table may hold anything: it is never read.
        host[tables_begin:].view(np.int32).reshape(num_seqs, self.table_width)[:, :width] = block_tables
        self._staging.send(self._memory[:num_bytes])
        self._graphs[bucket].replay()
        return self._logits[:num_seqs]
