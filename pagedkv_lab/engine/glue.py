"""The small steps between a Llama's matrix products on a CPU: the norm, and the MLP's gate.

Knows rows of numbers. Does not know the model. Compiled kernels (`glue_kernels`) where numba is there, else torch's own
operators, which give the same numbers up to rounding.
"""

import ctypes
import threading

import numpy as np
import torch
import torch.nn.functional as F

from pagedkv_lab.attention.numba_paged import HAS_NUMBA
from pagedkv_lab.attention.threads import run_on_all_cores

#: Fewer numbers than this are done before another thread has woken up.
_NUMBERS_A_THREAD = 16384


class _Arguments(threading.local):
    """What a kernel is pointed to, each thread its own: another one may run its engine during a call."""

    def __init__(self) -> None:
        self.counter, self.sizes, self.eps = np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, np.float32)
        counter, sizes, eps = (array.ctypes.data for array in (self.counter, self.sizes, self.eps))
        self.pointers = (ctypes.c_void_p * 6)(counter, sizes, 0, 0, eps, 0)


_own = _Arguments()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, row by row. x: (T, H) float32 or bfloat16, contiguous; weight: (H,)."""
    if not HAS_NUMBA:
        return F.rms_norm(x, weight.shape, weight, eps)
    from pagedkv_lab.engine.glue_kernels import rms_norm_kernel

    output = torch.empty_like(x)
    _own.eps[0] = eps
    return _run(rms_norm_kernel(x.dtype == torch.bfloat16), x, weight, output)


def silu_times(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, (T, F), of the two side by side: gate_up (T, 2 F), float32 or bfloat16, contiguous."""
    if not HAS_NUMBA:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
    from pagedkv_lab.engine.glue_kernels import silu_times_kernel

    output = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    return _run(silu_times_kernel(gate_up.dtype == torch.bfloat16), gate_up, gate_up, output)


def _run(kernel: int, x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    own = _own
    own.counter[0] = 0
    own.sizes[0], own.sizes[1] = output.shape
    pointers = own.pointers
    pointers[2], pointers[3], pointers[5] = x.data_ptr(), weight.data_ptr(), output.data_ptr()
    run_on_all_cores(kernel, pointers, 1 + output.numel() // _NUMBERS_A_THREAD)
    return output
