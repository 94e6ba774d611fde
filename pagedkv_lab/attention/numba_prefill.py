"""The kernel for many queries at once: prompts, chunks behind cached tokens, and decodes behind a shared prefix.

Knows what `numba_kernel` knows. Does not know why these queries are together.

One query a sequence makes few rows, and the time goes into reading the cache. Here many rows read the same tokens, the
time goes into arithmetic, and all is arranged for that. Rows lie in the lanes of the vector registers: queries are
turned over once, and scores come out turned over, (TILE, rows), so that a row's maximum and sum are taken lane by lane
and nothing is summed across a register. Both matrix products are the same loop: for each load and store of a result
it does eight multiply-adds.
"""

from functools import cache

import numpy as np
from numba import carray, njit

from pagedkv_lab.attention.numba_kernel import arguments
from pagedkv_lab.attention.numba_tiles import LOG2_E, MINUS_INFINITY, cap, exp2, find_slots, load_tile
from pagedkv_lab.attention.numba_words import OPTIONS, address_of, fetch_add, scratch
from pagedkv_lab.attention.work import (
    FIRST,
    FIRST_QUERY,
    LAST,
    LAST_QUERY,
    MAX_ROWS,
    POSITION,
    ROW,
    SEQUENCE,
    TARGET,
    TILE,
)

#: Less than any score, but finite: a row that sees nothing of a tile must not become NaN.
_NOTHING = np.float32(-1e30)
_TINY = np.float32(1e-30)


@njit(**OPTIONS)
def attend(
    counter, pieces, queries, query, key_pool, value_pool, tables, output, lse, block_size, longest, window, scale,
    softcap,
):  # fmt: skip
    """Attend to the tokens of each piece, whatever its number of queries. The arguments are those of `walk`."""
    num_kv_heads, dim, value_dim = key_pool.shape[1], key_pool.shape[2], value_pool.shape[2]
    group = query.shape[1] // num_kv_heads
    padded = (dim + 7) // 8 * 8  # as add_product wants it
    most = (max(MAX_ROWS, group) + 15) // 16 * 16
    slots = np.empty(longest + TILE, np.int64)
    position = np.empty(most, np.int64)
    key = carray(scratch(TILE * padded), (TILE, padded))
    value = carray(scratch(TILE * value_dim), (TILE, value_dim))
    for_q, for_score, for_sums = scratch(padded * most), scratch(TILE * most), scratch(most * value_dim)
    for_maximum, for_total, for_rescale = scratch(most), scratch(most), scratch(most)
    key[:] = np.float32(0.0)

    while True:
        program = fetch_add(counter)
        if program >= len(pieces) * num_kv_heads:
            return
        piece, head = pieces[program // num_kv_heads], program % num_kv_heads
        num_rows = (piece[LAST_QUERY] - piece[FIRST_QUERY]) * group
        lanes = (num_rows + 15) // 16 * 16  # whole registers, of 64 bytes where there are such
        q = carray(for_q, (padded, lanes))
        score = carray(for_score, (TILE, lanes))
        sums = carray(for_sums, (lanes, value_dim))
        maximum, total, rescale = carray(for_maximum, lanes), carray(for_total, lanes), carray(for_rescale, lanes)
        q[:] = np.float32(0.0)
        position[:] = piece[LAST]
        for r in range(num_rows):
            one = queries[piece[FIRST_QUERY] + r // group]
            position[r] = one[POSITION]
            for d in range(dim):
                q[d, r] = query[one[ROW], head * group + r % group, d] * (scale * LOG2_E)
        maximum[:] = _NOTHING
        total[:] = np.float32(0.0)
        sums[:] = np.float32(0.0)

        num_tokens = piece[LAST] - piece[FIRST]
        find_slots(tables[piece[SEQUENCE]], piece[FIRST], piece[LAST], block_size, slots)
        for first in range(0, num_tokens, TILE):
            last = min(first + TILE, num_tokens)
            load_tile(key_pool, slots, first, last, head, key)
            load_tile(value_pool, slots, first, last, head, value)
            score[:] = np.float32(0.0)
            add_product(key, q, score)
            if softcap > np.float32(0.0):
                cap(score, softcap)
            # Rows are in the order of their positions. Is all of the tile seen by the first, and by the last?
            start = piece[FIRST] + first
            if start + TILE > min(position[0] + 1, piece[LAST]) or start <= position[num_rows - 1] - window:
                hide(score, start, piece[LAST], position, window)
            online_softmax(score, maximum, total, rescale)
            for r in range(lanes):
                for d in range(value_dim):
                    sums[r, d] *= rescale[r]
            add_product(score.T, value, sums)

        for r in range(num_rows):
            target = queries[piece[FIRST_QUERY] + r // group, TARGET]
            lse[target, head * group + r % group] = maximum[r] + np.log2(total[r])
            for d in range(value_dim):
                # A row that sees nothing of this piece has a total of 0, and an lse of minus infinity.
                output[target, head * group + r % group, d] = sums[r, d] / max(total[r], _TINY)


@njit(**OPTIONS)
def add_product(a, b, c):
    """c (M, N) += a (M, K) @ b (K, N), with M a multiple of 4 and K of 8."""
    for m in range(0, a.shape[0], 4):
        for k in range(0, a.shape[1], 8):
            for n in range(c.shape[1]):
                c0, c1, c2, c3 = c[m, n], c[m + 1, n], c[m + 2, n], c[m + 3, n]
                for i in range(8):
                    c0 += a[m, k + i] * b[k + i, n]
                    c1 += a[m + 1, k + i] * b[k + i, n]
                    c2 += a[m + 2, k + i] * b[k + i, n]
                    c3 += a[m + 3, k + i] * b[k + i, n]
                c[m, n], c[m + 1, n], c[m + 2, n], c[m + 3, n] = c0, c1, c2, c3


@njit(**OPTIONS)
def hide(score, start, end, position, window):
    """Minus infinity where a row doesn't see a token: behind it, outside its window, or past the end of the piece."""
    for t in range(TILE):
        token = start + t
        for r in range(score.shape[1]):
            if token > position[r] or token <= position[r] - window or token >= end:
                score[t, r] = MINUS_INFINITY


@njit(**OPTIONS)
def online_softmax(score, maximum, total, rescale):
    """As `numba_kernel.online_softmax`, for scores (TILE, rows)."""
    for r in range(score.shape[1]):
        largest = maximum[r]
        for t in range(TILE):
            largest = max(largest, score[t, r])
        rescale[r] = maximum[r] - largest
        maximum[r] = largest
    for r in range(score.shape[1]):
        rescale[r] = exp2(rescale[r])
    for t in range(TILE):
        for r in range(score.shape[1]):
            score[t, r] = exp2(score[t, r] - maximum[r])
    for r in range(score.shape[1]):
        weights = total[r] * rescale[r]
        for t in range(TILE):
            weights += score[t, r]
        total[r] = weights


@cache
def prefill_kernel(bfloat16: bool) -> int:
    """The address of the compiled `attend`, as `numba_kernel.decode_kernel` has it for `walk`."""
    stored = np.uint16 if bfloat16 else np.float32

    def prefill(pointers):
        attend(*arguments(pointers, stored))

    return address_of(prefill)
