"""A step's host arrays on their way to the GPU: all of them in one pinned buffer, by one copy that nobody waits for.

Knows arrays and bytes. Does not know what they mean.

A copy costs its launch, a few microseconds, long before its bytes cost anything: a step's arrays are some kilobytes. So
eight arrays in one copy cost what one does. From memory that isn't pinned the driver would copy in two moves, and let
the CPU wait until all that was queued before is done.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import torch

from pagedkv_lab.engine.device import CudaDevice

#: Bytes; each array begins at a multiple. Triton compiles faster loads for addresses that are multiples of 16.
ALIGNMENT = 16


def offsets(num_bytes: Sequence[int]) -> list[int]:
    """Where arrays of so many bytes begin, one behind the other; and, last, where the whole ends."""
    return [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in num_bytes)]


class _PinnedBuffer:
    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.wait: Callable[[], None] = lambda: None


class Staging:
    """Two pinned buffers, in turn: one is filled while the other's copy may be under way still."""

    def __init__(self, gpu: CudaDevice):
        self._gpu = gpu
        self._buffers = [_PinnedBuffer(), _PinnedBuffer()]
        self._on_device = torch.empty(0, dtype=torch.uint8)

    def begin(self, num_bytes: int) -> np.ndarray:
        """(num_bytes,) uint8 to fill; what stands in it is left over from earlier. `send` ends what this begins."""
        self._buffers.reverse()
        buffer = self._buffers[0]
        buffer.wait()  # its copy was two steps ago: hardly ever a wait
        if len(buffer.memory) < num_bytes:
            buffer.memory = self._gpu.pinned(2 * num_bytes)
        return buffer.memory.numpy()[:num_bytes]

    def send(self, into: torch.Tensor) -> None:
        """Queue the copy of what `begin` gave, from its start. into: uint8 on the device."""
        buffer = self._buffers[0]
        buffer.wait = self._gpu.copy(buffer.memory[: len(into)], into)

    def upload(self, arrays: Sequence[np.ndarray | None]) -> list[torch.Tensor | None]:
        """The arrays as tensors on the device, None for None. The next upload overwrites them."""
        given = [array for array in arrays if array is not None]
        *begins, total = offsets([array.nbytes for array in given])
        host = self.begin(total)
        for array, begin in zip(given, begins, strict=True):
            host[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        if len(self._on_device) < total:
            self._on_device = torch.empty(2 * total, dtype=torch.uint8, device=self._gpu.device)
        self.send(self._on_device[:total])
        parts = iter(
            self._on_device[begin : begin + array.nbytes].view(getattr(torch, array.dtype.name)).view(array.shape)
            for array, begin in zip(given, begins, strict=True)
        )
        return [None if array is None else next(parts) for array in arrays]
