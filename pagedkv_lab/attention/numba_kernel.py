"""The decode kernel for a CPU: walks each sequence's block table, tile by tile, with an online softmax.

Knows pools, tables and pieces of work. Does not know torch, nor who cut the work into pieces (`work`).

A GPU runs one program for each (sequence, KV head, split of the context), and so does this kernel. There are only a
few cores, so each of them takes one program after the other, by a common counter, until none is left. A program is a
small matrix problem: the query heads that read one KV head are its rows, and its columns are the tokens `first` to
`last` of one block table. Keys and values are copied tile by tile, from whatever blocks they lie in, into scratch that
stays in the L1 cache, and widened to float32 on the way; each is read once from memory.

Algorithm: online softmax, Milakov & Gimelshein 2018 (arXiv:1805.02867); tiles, FlashAttention, Dao et al. 2022
(arXiv:2205.14135); splits of the context merged by log-sum-exp, Flash-Decoding, Dao et al. 2023. Softmax is taken to
base 2, because powers of two are cheap: the queries are multiplied by log2(e) beforehand.
"""

from functools import cache

import numpy as np
from numba import carray, njit

from pagedkv_lab.attention.arguments import POINTERS, SIZES
from pagedkv_lab.attention.numba_tiles import LOG2_E, MINUS_INFINITY, cap, exp2, find_slots, load_tile
from pagedkv_lab.attention.numba_words import OPTIONS, address_of, fetch_add, scratch
from pagedkv_lab.attention.work import FIRST, FIRST_QUERY, LAST, ROW, SEQUENCE, TARGET, TILE

NUM_POINTERS, NUM_SIZES = len(POINTERS), len(SIZES)


@njit(**OPTIONS)
def walk(
    counter, pieces, queries, query, key_pool, value_pool, tables, output, lse, block_size, longest, window, scale,
    softcap,
):  # fmt: skip
    """Attend to the tokens of each piece. Pieces of one query only; `arguments` says what all these are."""
    num_kv_heads, dim, value_dim = key_pool.shape[1], key_pool.shape[2], value_pool.shape[2]
    group = query.shape[1] // num_kv_heads
    slots = np.empty(longest + TILE, np.int64)
    q = carray(scratch(group * dim), (group, dim))
    key = carray(scratch(TILE * dim), (TILE, dim))
    value = carray(scratch(TILE * value_dim), (TILE, value_dim))
    score = carray(scratch(group * TILE), (group, TILE))
    sums = carray(scratch(group * value_dim), (group, value_dim))
    maximum = carray(scratch(group), group)
    total = carray(scratch(group), group)
    rescale = carray(scratch(group), group)

    while True:
        program = fetch_add(counter)
        if program >= len(pieces) * num_kv_heads:
            return
        piece, head = pieces[program // num_kv_heads], program % num_kv_heads
        row, target = queries[piece[FIRST_QUERY], ROW], queries[piece[FIRST_QUERY], TARGET]
        for g in range(group):
            for d in range(dim):
                q[g, d] = query[row, head * group + g, d] * (scale * LOG2_E)
        maximum[:] = MINUS_INFINITY
        total[:] = np.float32(0.0)
        sums[:] = np.float32(0.0)

        num_tokens = piece[LAST] - piece[FIRST]
        find_slots(tables[piece[SEQUENCE]], piece[FIRST], piece[LAST], block_size, slots)
        for first in range(0, num_tokens, TILE):
            last = min(first + TILE, num_tokens)
            load_tile(key_pool, slots, first, last, head, key)
            load_tile(value_pool, slots, first, last, head, value)
            dot_products(q, key, score)
            if softcap > np.float32(0.0):
                cap(score, softcap)
            online_softmax(score, last - first, maximum, total, rescale)
            weighted_sum(score, value, rescale, sums)

        for g in range(group):
            lse[target, head * group + g] = maximum[g] + np.log2(total[g])
            for d in range(value_dim):
                output[target, head * group + g, d] = sums[g, d] / total[g]


@njit(**OPTIONS)
def dot_products(q, key, score):
    """score (G, TILE) = q (G, D) @ key (TILE, D).T; four tokens at a time, so that q is loaded once for four."""
    for g in range(q.shape[0]):
        for t in range(0, TILE, 4):
            dot0 = dot1 = dot2 = dot3 = np.float32(0.0)
            for d in range(q.shape[1]):
                dot0 += q[g, d] * key[t, d]
                dot1 += q[g, d] * key[t + 1, d]
                dot2 += q[g, d] * key[t + 2, d]
                dot3 += q[g, d] * key[t + 3, d]
            score[g, t], score[g, t + 1], score[g, t + 2], score[g, t + 3] = dot0, dot1, dot2, dot3


@njit(**OPTIONS)
def online_softmax(score, num_tokens, maximum, total, rescale):
    """Turn the scores of a tile into weights relative to the row's maximum so far.

    maximum, total (G,): of the tiles so far; brought up to date. rescale (G,): what sums so far must be multiplied by,
    because they were taken relative to a smaller maximum.
    """
    for g in range(score.shape[0]):
        for t in range(num_tokens, TILE):
            score[g, t] = MINUS_INFINITY
        largest = _largest(score, g, maximum[g])
        rescale[g] = np.float32(1.0)
        if largest > maximum[g]:
            rescale[g] = exp2(maximum[g] - largest)
        weights = np.float32(0.0)
        for t in range(TILE):
            score[g, t] = exp2(score[g, t] - largest)
            weights += score[g, t]
        total[g] = total[g] * rescale[g] + weights
        maximum[g] = largest


# A maximum may be taken in any order only where there is no NaN. If there is one after all, the weights have it.
@njit(**{**OPTIONS, "fastmath": {"reassoc", "nsz", "nnan"}})
def _largest(score, g, largest):
    for t in range(TILE):
        largest = max(largest, score[g, t])
    return largest


@njit(**OPTIONS)
def weighted_sum(weight, value, rescale, sums):
    """sums (G, Dv) = rescale * sums + weight (G, TILE) @ value (TILE, Dv)"""
    for g in range(weight.shape[0]):
        for d in range(value.shape[1]):
            new = sums[g, d] * rescale[g]
            for t in range(TILE):
                new += weight[g, t] * value[t, d]
            sums[g, d] = new


@njit(**OPTIONS)
def merge(counter, rows, output, lse):
    """Put together the outputs of a query whose tokens were cut into several pieces, each weighted by its share.

    rows (n, 3): a row of the output, and the first and last (excluded) of the rows that its parts are in.
    """
    while True:
        program = fetch_add(counter)
        if program >= len(rows):
            return
        row, first, last = rows[program]
        for head in range(output.shape[1]):
            largest = MINUS_INFINITY
            for part in range(first, last):
                largest = max(largest, lse[part, head])
            total = np.float32(0.0)
            for d in range(output.shape[2]):
                output[row, head, d] = np.float32(0.0)
            for part in range(first, last):
                weight = exp2(lse[part, head] - largest)
                total += weight
                for d in range(output.shape[2]):
                    output[row, head, d] += weight * output[part, head, d]
            for d in range(output.shape[2]):
                output[row, head, d] /= total


# What is compiled: functions of one pointer, which any team of threads can run


@njit(**OPTIONS)
def arguments(pointers, stored):
    """What `pointers` (an `Arguments`) point to. stored: what the pools hold, float32 or, for bfloat16, uint16.

    A counter of programs, at zero; pieces and queries of `Work`; query (T, Hq, D); the pools, their blocks one after
    the other; block tables; and for the results output (rows, Hq, Dv) and lse (rows, Hq), the base 2 logarithm of the
    sum of the exponentials. Then block size, longest context, sliding window, scale, and softcap or 0.
    """
    sizes, scales, counter, pieces, queries, tables, query, keys, values, output, lse = carray(pointers, NUM_POINTERS)
    (
        num_pieces, columns, num_queries, num_tables, table_stride, num_tokens, heads, num_slots, block_size, kv_heads,
        dim, value_dim, longest, window, rows,
    ) = carray(sizes, NUM_SIZES, np.int64)  # fmt: skip
    scale, softcap = carray(scales, 2, np.float32)
    return (
        carray(counter, 1, np.int64),
        carray(pieces, (num_pieces, columns), np.int64),
        carray(queries, (num_queries, 3), np.int64),
        carray(query, (num_tokens, heads, dim), np.float32),
        carray(keys, (num_slots, kv_heads, dim), stored),
        carray(values, (num_slots, kv_heads, value_dim), stored),
        carray(tables, (num_tables, table_stride), np.int32),
        carray(output, (rows, heads, value_dim), np.float32),
        carray(lse, (rows, heads), np.float32),
        block_size,
        longest,
        window,
        scale,
        softcap,
    )


@cache
def decode_kernel(bfloat16: bool) -> int:
    """The address of the compiled `walk`, for pools of bfloat16 or float32. It takes the address of an `Arguments`."""
    stored = np.uint16 if bfloat16 else np.float32

    def decode(pointers):
        walk(*arguments(pointers, stored))

    return address_of(decode)


@cache
def merge_kernel() -> int:
    """The address of the compiled `merge`. It takes the same, with the merges in the place of the pieces."""

    def merge_parts(pointers):
        given = arguments(pointers, np.float32)
        counter, merges, output, lse = given[0], given[1], given[7], given[8]
        merge(counter, merges, output, lse)

    return address_of(merge_parts)
