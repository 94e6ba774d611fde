"""The small steps between a Llama's matrix products, each compiled into one pass over its rows.

Knows rows of numbers, float32 or bfloat16. Does not know the model, nor torch; `glue` is the way in. Needs numba.

In torch an RMS norm on a CPU is seven kernels and SiLU times a factor is two, each with a visit to the dispatcher
and a pass over memory. On 1 to 16 rows that is most of their time.
"""

from functools import cache

import numpy as np
from numba import carray, njit

from pagedkv_lab.attention.numba_tiles import LOG2_E, exp2
from pagedkv_lab.attention.numba_words import OPTIONS, address_of, fetch_add


@njit(**OPTIONS)
def load(row, numbers):
    """Widen a row to float32. A row of uint16 holds bfloat16, which is the upper half of a float32."""
    bits = numbers.view(np.uint32)
    for i in range(len(row)):
        if row.itemsize == 2:
            bits[i] = np.uint32(row[i]) << np.uint32(16)
        else:
            numbers[i] = row[i]


@njit(**OPTIONS)
def store(numbers, row):
    """Narrow float32 numbers to what the row holds; bfloat16 is rounded to nearest, ties to even, as torch does."""
    bits = numbers.view(np.uint32)
    for i in range(len(row)):
        if row.itemsize == 2:
            odd = (bits[i] >> np.uint32(16)) & np.uint32(1)
            row[i] = np.uint16((bits[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16))
        else:
            row[i] = numbers[i]


@njit(**OPTIONS)
def _rms_norm(counter, x, weight, eps, output):
    """output (T, H) = x / sqrt(mean(x^2) + eps) * weight (H,): Zhang and Sennrich 2019, equation 4."""
    width = x.shape[1]
    numbers = np.empty(width, np.float32)
    factors = np.empty(width, np.float32)
    load(weight, factors)
    while True:
        t = fetch_add(counter)
        if t >= len(x):
            return
        load(x[t], numbers)
        total = np.float32(0.0)
        for i in range(width):
            total += numbers[i] * numbers[i]
        scale = np.float32(1.0) / np.sqrt(total / np.float32(width) + eps)
        for i in range(width):
            numbers[i] *= scale * factors[i]
        store(numbers, output[t])


@njit(**OPTIONS)
def _silu_times(counter, x, output):
    """output (T, F) = silu(x[:, :F]) * x[:, F:]; silu(g) = g / (1 + exp(-g)) (the gate of a Llama's MLP)."""
    width = output.shape[1]
    gate = np.empty(width, np.float32)
    factor = np.empty(width, np.float32)
    while True:
        t = fetch_add(counter)
        if t >= len(x):
            return
        load(x[t, :width], gate)
        load(x[t, width:], factor)
        for i in range(width):
            # Beyond 2^126 the quotient is zero for every purpose, and the power stays finite.
            power = exp2(min(gate[i] * -LOG2_E, np.float32(126.0)))
            gate[i] *= factor[i] / (np.float32(1.0) + power)
        store(gate, output[t])


#: Where each argument stands in the array of pointers that a kernel is given.
COUNTER, SIZES, X, WEIGHT, EPS, OUTPUT = range(6)


@cache
def rms_norm_kernel(bfloat16: bool) -> int:
    """The address of the compiled `_rms_norm`, to be run by `attention.threads`."""
    stored = np.uint16 if bfloat16 else np.float32

    def rms_norm(pointers):
        p = carray(pointers, 6)
        rows, width = carray(p[SIZES], 2, np.int64)
        _rms_norm(
            carray(p[COUNTER], 1, np.int64),
            carray(p[X], (rows, width), stored),
            carray(p[WEIGHT], (width,), stored),
            carray(p[EPS], 1, np.float32)[0],
            carray(p[OUTPUT], (rows, width), stored),
        )

    return address_of(rms_norm)


@cache
def silu_times_kernel(bfloat16: bool) -> int:
    """The address of the compiled `_silu_times`, to be run by `attention.threads`."""
    stored = np.uint16 if bfloat16 else np.float32

    def silu_times(pointers):
        p = carray(pointers, 6)
        rows, width = carray(p[SIZES], 2, np.int64)
        _silu_times(
            carray(p[COUNTER], 1, np.int64),
            carray(p[X], (rows, 2 * width), stored),
            carray(p[OUTPUT], (rows, width), stored),
        )

    return address_of(silu_times)
