"""Runs a compiled function on all the cores that torch computes with.

Knows C functions of one pointer, and the OpenMP runtime that torch has loaded. Does not know what they compute.

A second pool of threads would be easier to come by. But torch's own workers keep spinning for a while after each of
its operations, to be ready for the next, and a step alternates between torch and our kernels every few hundred
microseconds: two pools fight for the same cores. So the kernel borrows torch's team. `GOMP_parallel` is the call into
which a compiler turns `#pragma omp parallel`; it wakes the threads that torch has just used. Between two `F.linear`, a
kernel of 0.4 ms took 0.1 ms longer on numba's workqueue or on Python's threads (two threads).
"""

import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def run_on_all_cores(function: int, argument: ctypes.Array | int, programs: int) -> None:
    """Call the C function at address `function`, `void (*)(void *)`, once on each thread.

    argument: an address or a ctypes array; all get the same. Returns when all have returned. How they share the
    `programs` that there are to run is their affair: they may be fewer than torch.get_num_threads(), and come in any
    order. A single program is run here, without waking anybody.
    """
    num_threads = torch.get_num_threads()
    if programs <= 1 or num_threads == 1:
        _FUNCTION(function)(argument)
    else:
        _team()(function, argument, num_threads)


@cache
def _team() -> Callable[[int, ctypes.Array | int, int], None]:
    openmp = _openmp_of_torch()
    return _run_on_python_threads if openmp is None else _runner(openmp)


def _openmp_of_torch() -> ctypes.CDLL | None:
    """The OpenMP runtime that is loaded in this process, torch's own if there are several. None if there is none.

    GNU's has the entry point that is wanted, and so have LLVM's and Intel's on Linux, which imitate it.
    """
    if sys.platform != "linux":
        return None
    fields = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    files = {Path(field[5]) for field in fields if len(field) == 6}
    home = Path(torch.__file__).parent
    for file in sorted(files, key=lambda file: home not in file.parents):
        if file.name.startswith(("libgomp", "libomp", "libiomp5")):
            runtime = ctypes.CDLL(str(file))
            if hasattr(runtime, "GOMP_parallel"):
                return runtime
    return None


def _runner(openmp: ctypes.CDLL) -> Callable[[int, ctypes.Array | int, int], None]:
    parallel = openmp.GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    no_flags = 0
    return lambda function, argument, num_threads: parallel(function, argument, num_threads, no_flags)


def _run_on_python_threads(function: int, argument: ctypes.Array | int, num_threads: int) -> None:
    """Elsewhere. They run side by side, because ctypes gives the GIL away for the length of a call."""
    call = _FUNCTION(function)
    others = [_pool(num_threads - 1).submit(call, argument) for _ in range(num_threads - 1)]
    call(argument)
    for other in others:
        other.result()


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="attention")
