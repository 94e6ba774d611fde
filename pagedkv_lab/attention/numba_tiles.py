"""What both kernels do with a tile of keys or values: find it through the block table, and copy it close.

Knows pools, block tables and float32. Does not know attention.
"""

import numpy as np
from numba import njit

from pagedkv_lab.attention.numba_words import OPTIONS, float_of_bits, prefetch
from pagedkv_lab.attention.work import TILE

LOG2_E = np.float32(1.4426950408889634)
MINUS_INFINITY = np.float32(-np.inf)


@njit(**OPTIONS)
def find_slots(table, first, last, block_size, slots):
    """slots[i] = where token first + i lies in the pool, for all tokens before `last`: the walk along the table."""
    i = 0
    while first < last:
        block = np.int64(table[first // block_size])
        offset = first % block_size
        here = min(block_size - offset, last - first)
        for j in range(here):
            slots[i + j] = block * block_size + offset + j
        i += here
        first += here
    # A tile more, for those who look ahead.
    for j in range(i, i + TILE):
        slots[j] = slots[i - 1]


@njit(**OPTIONS)
def load_tile(pool, slots, first, last, head, tile):
    """Copy slots[first:last], at most TILE, of one head to tile (TILE, D) float32; zeros behind them.

    Meanwhile the tile after this one is called into the cache: a decode step reads all of its cache once, so whoever
    waits for memory token by token waits all the time. pool: (num_slots, heads, D), float32, or uint16 that holds
    bfloat16, which is the upper half of a float32.
    """
    dim = pool.shape[2]
    bits = tile.view(np.uint32)
    for t in range(last - first):
        slot = slots[first + t]
        for d in range(dim):
            if pool.itemsize == 2:
                bits[t, d] = np.uint32(pool[slot, head, d]) << np.uint32(16)
            else:
                tile[t, d] = pool[slot, head, d]
        ahead = (slots[first + t + TILE] * pool.shape[1] + head) * dim
        for d in range(0, dim, 64 // pool.itemsize):  # a cache line is 64 bytes
            prefetch(pool, ahead + d)
    for t in range(last - first, TILE):
        for d in range(dim):
            tile[t, d] = np.float32(0.0)


@njit(**OPTIONS)
def exp2(x):
    """2**x for float32 x <= 127, relative error below 1e-7; 0 where x is -126.5 or less, NaN where it is NaN.

    2**x = 2**n * 2**f with n whole and |f| <= 1/2. n goes straight into the exponent bits of a float; 2**f is a
    polynomial, fitted for the least relative error.
    """
    x = np.float32(-127.0) if x < np.float32(-127.0) else x  # -127 has no exponent bits, which makes the float 0
    n = np.floor(x + np.float32(0.5))
    f = x - n
    power = np.float32(1.534581189e-4)
    power = power * f + np.float32(1.339993122e-3)
    power = power * f + np.float32(9.618488958e-3)
    power = power * f + np.float32(5.550328777e-2)
    power = power * f + np.float32(2.402264689e-1)
    power = power * f + np.float32(6.931472057e-1)
    power = power * f + np.float32(1.0)
    return power * float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))


@njit(**OPTIONS)
def cap(score, softcap):
    """softcap * tanh(score / softcap), by tanh(x) = 1 - 2 / (exp(2 x) + 1). In units of log2(e), as the scores are."""
    for i in range(score.shape[0]):
        for j in range(score.shape[1]):
            x = score[i, j] * (np.float32(2.0) / softcap)
            x = np.float32(126.0) if x > np.float32(126.0) else x
            tanh = np.float32(1.0) - np.float32(2.0) / (exp2(x) + np.float32(1.0))
            score[i, j] = softcap * LOG2_E * tanh
