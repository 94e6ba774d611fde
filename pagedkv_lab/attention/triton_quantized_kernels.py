"""The kernels for a cache in 8 or 4 bits: attention that reads it as it is, and writes that quantize.

Knows the layouts of `kv.quantize`: a number is data x scale + zero, with one scale for each token and head, or, for
keys, for each channel of a block. Otherwise knows what `triton_kernels.py` knows, whose running softmax this is.

A tile is never turned back into plain numbers. What a scale multiplies can be moved out of the product:

    by token:    q . (k s + z)         = (q . k) s + (q summed up) z         two numbers a token
    by channel:  q . (k s + z)         = (q s) . k + q . z                   the query is scaled once a block
    values:      sum of w (v s + z)    = sum of (w s) v + (sum of w z)       the weights are scaled

So the product is of whole numbers as they were loaded, and the memory that is read is all that was saved.

A head is worked on in two halves, because that is how 4-bit numbers lie: byte j holds number j and number
j + DIM // 2. Two products of half the width cost as much as one.
"""

import triton
import triton.language as tl

from pagedkv_lab.attention.triton_kernels import LOG2_E, capped, products, rescale, slots_of, weighted_sum


@triton.jit
def _halves(pool, row, column, loaded, DIM: tl.constexpr, BITS: tl.constexpr):
    """Both halves of the heads at `row` of a pool, (TILE, WIDTH) each. row: int64; column: within a half."""
    HALF: tl.constexpr = DIM // 2
    if BITS == 4:
        both = tl.load(pool + row[:, None] * HALF + column[None, :], mask=loaded, other=0)
        return both & 15, both >> 4
    else:
        number = row[:, None] * DIM + column[None, :]
        low = tl.load(pool + number, mask=loaded, other=0)
        return low, tl.load(pool + number + HALF, mask=loaded, other=0)


@triton.jit(do_not_specialize=["query", "tail_rows", "block_tables", "context_lens", "query_starts", "query_lens",
                               "pieces", "query_token_stride", "query_head_stride", "table_stride", "group",
                               "kv_heads", "block_size", "window", "scale", "softcap"])  # fmt: skip
def quantized_kernel(
    query,  # (T, Hq, DIM)
    key_data,  # (num_blocks, block_size, kv_heads, DIM) int8, or DIM // 2 bytes in 4 bits
    key_scale,  # float16: (num_blocks, block_size, kv_heads), or BY_CHANNEL (num_blocks, kv_heads, DIM)
    key_zero,  # likewise; not read in 8 bits
    value_data,
    value_scale,  # (num_blocks, block_size, kv_heads) float16
    value_zero,
    tail_keys,  # BY_CHANNEL: (num_tails, block_size, kv_heads, DIM), the query's dtype
    tail_values,
    tail_rows,  # BY_CHANNEL: (S,) int32, the tail of a sequence's last block where that is partly filled
    block_tables,  # (S, table_stride) int32
    context_lens,  # (S,) int32
    query_starts,  # (S,) int32
    query_lens,  # (S,) int32
    pieces,  # (grid 0, 2) int32: sequence, and which of its queries is the piece's first
    output,  # (T, Hq, DIM)
    partial_outputs,  # (grid 0, Hq, splits, DIM) float32
    partial_lses,  # (grid 0, Hq, splits) float32
    query_token_stride: tl.int64,
    query_head_stride: tl.int64,
    table_stride: tl.int64,
    group,
    kv_heads,
    block_size,
    window,
    scale: tl.float32,
    softcap: tl.float32,  # 0 for none
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,  # DIM // 2, rounded up to a power of two
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    TILE: tl.constexpr,  # BY_CHANNEL: block_size
    BITS: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Decode and prefill in one: a decoding sequence is a piece of one query, whose tokens may be split.

    Grid: pieces x KV heads (times ceil(group / HEADS)) x splits. See `decode_kernel` and `prefill_kernel`.
    """
    piece, split = tl.program_id(0), tl.program_id(2)
    programs = tl.cdiv(group, HEADS)
    kv_head = tl.program_id(1) // programs
    heads = tl.minimum(group, HEADS)
    sequence = tl.load(pieces + 2 * piece)
    first_query = tl.load(pieces + 2 * piece + 1)
    context = tl.load(context_lens + sequence)
    query_len = tl.load(query_lens + sequence)
    table = block_tables + sequence * table_stride

    row = tl.arange(0, ROWS)
    queries = ROWS // heads
    of_query = first_query + row // heads
    in_group = tl.program_id(1) % programs * HEADS + row % heads
    head = kv_head * group + in_group
    own_row = (row < queries * heads) & (of_query < query_len) & (in_group < group)
    position = context - query_len + of_query
    HALF: tl.constexpr = DIM // 2
    column = tl.arange(0, WIDTH)  # of a half
    own_column = column < HALF
    own = own_row[:, None] & own_column[None, :]

    token_row = (tl.load(query_starts + sequence) + of_query).to(tl.int64)
    where = (token_row * query_token_stride + head * query_head_stride)[:, None] + column[None, :]
    q_low = tl.load(query + where, mask=own, other=0.0)  # (ROWS, WIDTH)
    q_high = tl.load(query + where + HALF, mask=own, other=0.0)
    if UPCAST:
        q_low, q_high = q_low.to(tl.float32), q_high.to(tl.float32)
    q_sum = tl.sum(q_low.to(tl.float32), axis=1) + tl.sum(q_high.to(tl.float32), axis=1)  # (ROWS,)

    first_position = context - query_len + first_query
    end = tl.minimum(first_position + queries, context)
    first_tile = tl.maximum(first_position - window + 1, 0) // TILE
    if BY_CHANNEL:
        last_tile = tl.minimum(tl.cdiv(end, TILE), context // TILE)  # whole blocks only; the rest lies in a tail
    else:
        last_tile = tl.cdiv(end, TILE)
    share = tl.cdiv(last_tile - first_tile, tl.num_programs(2))
    begin = first_tile + split * share

    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    low = tl.zeros((ROWS, WIDTH), tl.float32)
    high = tl.zeros((ROWS, WIDTH), tl.float32)
    for tile in range(begin, tl.minimum(begin + share, last_tile)):
        tokens = tile * TILE + tl.arange(0, TILE)
        inside = tokens < end
        slot = slots_of(table, tokens, inside, block_size)
        of_token = slot * kv_heads + kv_head
        loaded = inside[:, None] & own_column[None, :]
        k_low, k_high = _halves(key_data, of_token, column, loaded, DIM, BITS)
        if BY_CHANNEL:
            block = tl.load(table + tile).to(tl.int64)
            channel = (block * kv_heads + kv_head) * DIM + column
            scale_low = tl.load(key_scale + channel, mask=own_column, other=0.0).to(tl.float32)
            scale_high = tl.load(key_scale + channel + HALF, mask=own_column, other=0.0).to(tl.float32)
            scaled_low = (q_low.to(tl.float32) * scale_low[None, :]).to(q_low.dtype)
            scaled_high = (q_high.to(tl.float32) * scale_high[None, :]).to(q_low.dtype)
            scores = products(scaled_low, k_low.to(q_low.dtype)) + products(scaled_high, k_high.to(q_low.dtype))
            if BITS == 4:
                zero_low = tl.load(key_zero + channel, mask=own_column, other=0.0).to(tl.float32)
                zero_high = tl.load(key_zero + channel + HALF, mask=own_column, other=0.0).to(tl.float32)
                scores += tl.sum(q_low * zero_low[None, :] + q_high * zero_high[None, :], axis=1)[:, None]
        else:
            scores = products(q_low, k_low.to(q_low.dtype)) + products(q_high, k_high.to(q_low.dtype))
            scores *= tl.load(key_scale + of_token, mask=inside, other=0.0).to(tl.float32)[None, :]
            if BITS == 4:
                zero = tl.load(key_zero + of_token, mask=inside, other=0.0).to(tl.float32)
                scores += q_sum[:, None] * zero[None, :]
        scores *= scale
        if softcap > 0:
            scores = capped(scores, softcap)
        distance = position[:, None] - tokens[None, :]
        visible = (distance >= 0) & (distance < window) & inside[None, :]
        scores = tl.where(visible, scores * LOG2_E, float("-inf"))
        largest, factor, weights = rescale(largest, scores)
        total = total * factor + tl.sum(weights, axis=1)
        v_low, v_high = _halves(value_data, of_token, column, loaded, DIM, BITS)
        scaled = weights * tl.load(value_scale + of_token, mask=inside, other=0.0).to(tl.float32)[None, :]
        low = low * factor[:, None] + weighted_sum(scaled, v_low.to(q_low.dtype))
        high = high * factor[:, None] + weighted_sum(scaled, v_high.to(q_low.dtype))
        if BITS == 4:
            zero = tl.load(value_zero + of_token, mask=inside, other=0.0).to(tl.float32)
            added = tl.sum(weights * zero[None, :], axis=1)[:, None]
            low += added
            high += added

    if BY_CHANNEL:
        # The block that isn't full yet, in full precision. The last split takes it.
        tail_begin = context // TILE * TILE
        if (tail_begin < end) & (split == tl.num_programs(2) - 1):
            tokens = tail_begin + tl.arange(0, TILE)
            inside = tokens < end
            tail_slot = tl.load(tail_rows + sequence).to(tl.int64) * TILE + tl.arange(0, TILE)
            of_token = tail_slot * kv_heads + kv_head
            loaded = inside[:, None] & own_column[None, :]
            k_low, k_high = _halves(tail_keys, of_token, column, loaded, DIM, 16)
            scores = products(q_low, k_low.to(q_low.dtype)) + products(q_high, k_high.to(q_low.dtype))
            scores *= scale
            if softcap > 0:
                scores = capped(scores, softcap)
            distance = position[:, None] - tokens[None, :]
            visible = (distance >= 0) & (distance < window) & inside[None, :]
            scores = tl.where(visible, scores * LOG2_E, float("-inf"))
            largest, factor, weights = rescale(largest, scores)
            total = total * factor + tl.sum(weights, axis=1)
            v_low, v_high = _halves(tail_values, of_token, column, loaded, DIM, 16)
            low = low * factor[:, None] + weighted_sum(weights, v_low.to(q_low.dtype))
            high = high * factor[:, None] + weighted_sum(weights, v_high.to(q_low.dtype))

    divisor = tl.where(total > 0, total, 1.0)[:, None]
    if tl.num_programs(2) > 1:
        part = (piece * (kv_heads * group) + head).to(tl.int64) * tl.num_programs(2) + split  # (ROWS,)
        lse = tl.where(total > 0, largest + tl.log2(total), float("-inf"))
        tl.store(partial_lses + part, lse, mask=own_row)
        number = part[:, None] * DIM + column[None, :]
        tl.store(partial_outputs + number, low / divisor, mask=own)
        tl.store(partial_outputs + number + HALF, high / divisor, mask=own)
    else:
        number = (token_row * (kv_heads * group) + head)[:, None] * DIM + column[None, :]
        tl.store(output + number, (low / divisor).to(output.dtype.element_ty), mask=own)
        tl.store(output + number + HALF, (high / divisor).to(output.dtype.element_ty), mask=own)


# Writing


@triton.jit
def _round(x):
    """To the nearest whole number, halves to the even one, |x| < 2 ** 22: behind so large a number is no fraction."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _in_steps(x, scale, BITS: tl.constexpr):
    """x / scale as a whole number of the range that so many bits have; 0 where the scale is 0."""
    steps = _round(tl.div_rn(x, tl.where(scale > 0, scale, 1.0)))
    if BITS == 8:
        return tl.minimum(tl.maximum(steps, -127.0), 127.0)
    else:
        return tl.minimum(tl.maximum(steps, 0.0), 15.0)


@triton.jit
def _scale_and_zero(smallest, largest, BITS: tl.constexpr):
    """As float16 keeps them, in float32: 127 steps to the number furthest from 0, or 15 from smallest to largest."""
    if BITS == 8:
        furthest = tl.maximum(largest, -smallest)
        return tl.div_rn(furthest, 127.0).to(tl.float16).to(tl.float32), tl.zeros_like(furthest)
    else:
        scale = tl.div_rn(largest - smallest, 15.0).to(tl.float16).to(tl.float32)
        return scale, smallest.to(tl.float16).to(tl.float32)


@triton.jit
def _store_steps(data, number, low, high, mask, DIM: tl.constexpr, BITS: tl.constexpr):
    """Whole numbers, as int8, or two in a byte. number: where the low half's go in a pool of single numbers."""
    if BITS == 8:
        tl.store(data + number, low.to(tl.int8), mask=mask)
        tl.store(data + number + DIM // 2, high.to(tl.int8), mask=mask)
    else:
        tl.store(data + number, (low.to(tl.int32) | (high.to(tl.int32) << 4)).to(tl.uint8), mask=mask)


@triton.jit
def _write_token(new, number, data, scale, zero, row, column, DIM: tl.constexpr, BITS: tl.constexpr):
    """Quantize one token's numbers in one head, at new + number, into row `row` of a pool's heads."""
    HALF: tl.constexpr = DIM // 2
    own = column < HALF
    low = tl.load(new + number + column, mask=own, other=0.0).to(tl.float32)
    high = tl.load(new + number + HALF + column, mask=own, other=0.0).to(tl.float32)
    both_smallest = tl.where(own, tl.minimum(low, high), float("inf"))
    both_largest = tl.where(own, tl.maximum(low, high), float("-inf"))
    step, lowest = _scale_and_zero(tl.min(both_smallest, axis=0), tl.max(both_largest, axis=0), BITS)
    low, high = _in_steps(low - lowest, step, BITS), _in_steps(high - lowest, step, BITS)
    _store_steps(data, row * (DIM if BITS == 8 else HALF) + column, low, high, own, DIM, BITS)
    tl.store(scale + row, step.to(tl.float16))
    if BITS == 4:
        tl.store(zero + row, lowest.to(tl.float16))


@triton.jit(do_not_specialize=["key", "value", "slots", "key_token_stride", "key_head_stride", "value_token_stride",
                               "value_head_stride", "kv_heads"])  # fmt: skip
def write_tokens_kernel(
    key,  # (T, kv_heads, DIM)
    value,
    key_data,
    key_scale,
    key_zero,
    value_data,
    value_scale,
    value_zero,
    slots,  # (T,) int64
    key_token_stride: tl.int64,
    key_head_stride: tl.int64,
    value_token_stride: tl.int64,
    value_head_stride: tl.int64,
    kv_heads,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
):
    """Quantizes each token by itself, into its slot. Grid: tokens x KV heads. A slot below 0 is no slot."""
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + token)
    if slot >= 0:
        row = slot * kv_heads + head
        column = tl.arange(0, WIDTH)
        number = token * key_token_stride + head * key_head_stride
        _write_token(key, number, key_data, key_scale, key_zero, row, column, DIM, BITS)
        number = token * value_token_stride + head * value_head_stride
        _write_token(value, number, value_data, value_scale, value_zero, row, column, DIM, BITS)


@triton.jit
def _known(new, tails, of_new, of_tail, is_new, is_old, column, own_column):
    """A block's numbers in one half of a head, (BLOCK_SIZE, WIDTH) float32: this step's and those of its tail."""
    where_new = of_new + column[None, :]
    fresh = tl.load(new + where_new, mask=is_new[:, None] & own_column[None, :], other=0.0).to(tl.float32)
    kept = tl.load(tails + of_tail + column[None, :], mask=is_old[:, None] & own_column[None, :], other=0.0)
    return fresh + kept.to(tl.float32)  # where one is, the other is 0


@triton.jit(do_not_specialize=["key", "value", "touched", "key_token_stride", "key_head_stride", "value_token_stride",
                               "value_head_stride", "kv_heads", "touched_stride"])  # fmt: skip
def fill_blocks_kernel(
    key,  # (T, kv_heads, DIM)
    value,
    key_data,
    key_scale,  # (num_blocks, kv_heads, DIM)
    key_zero,
    value_data,
    value_scale,  # (num_blocks, BLOCK_SIZE, kv_heads)
    value_zero,
    tail_keys,  # (num_tails, BLOCK_SIZE, kv_heads, DIM)
    tail_values,
    touched,  # (5, touched_stride) int32: block, tail row, first offset, count, row of its first token in key and value
    key_token_stride: tl.int64,
    key_head_stride: tl.int64,
    value_token_stride: tl.int64,
    value_head_stride: tl.int64,
    kv_heads,
    touched_stride,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BITS: tl.constexpr,
):
    """Writes a step's tokens block by block, and quantizes those that are full: keys by channel, values by token.

    Grid: touched blocks x KV heads. What came before lies in the block's tail. A block that isn't full yet goes
    there; a full one into the pool. An entry with no token is padding.
    """
    entry, head = tl.program_id(0), tl.program_id(1)
    block = tl.load(touched + entry).to(tl.int64)
    tail = tl.load(touched + touched_stride + entry).to(tl.int64)
    first = tl.load(touched + 2 * touched_stride + entry)
    count = tl.load(touched + 3 * touched_stride + entry)
    token_row = tl.load(touched + 4 * touched_stride + entry)
    HALF: tl.constexpr = DIM // 2
    offset = tl.arange(0, BLOCK_SIZE)
    column = tl.arange(0, WIDTH)
    own_column = column < HALF
    is_new = (offset >= first) & (offset < first + count)
    is_full = first + count == BLOCK_SIZE
    is_old = offset < tl.where(is_full, first, 0)  # a block that isn't full keeps in its tail what is there
    of_tail = ((tail * BLOCK_SIZE + offset) * kv_heads + head)[:, None] * DIM
    token = (token_row + offset - first).to(tl.int64)
    of_key = (token * key_token_stride + head * key_head_stride)[:, None]
    of_value = (token * value_token_stride + head * value_head_stride)[:, None]
    k_low = _known(key, tail_keys, of_key, of_tail, is_new, is_old, column, own_column)
    k_high = _known(key + HALF, tail_keys + HALF, of_key, of_tail, is_new, is_old, column, own_column)
    v_low = _known(value, tail_values, of_value, of_tail, is_new, is_old, column, own_column)
    v_high = _known(value + HALF, tail_values + HALF, of_value, of_tail, is_new, is_old, column, own_column)
    if is_full:
        row = (block * BLOCK_SIZE + offset) * kv_heads + head  # (BLOCK_SIZE,) of the pool's heads
        number = row[:, None] * (DIM if BITS == 8 else HALF) + column[None, :]
        mask = (offset < BLOCK_SIZE)[:, None] & own_column[None, :]
        # Keys: one scale a channel.
        channel = (block * kv_heads + head) * DIM + column
        step_low, zero_low = _scale_and_zero(tl.min(k_low, axis=0), tl.max(k_low, axis=0), BITS)  # (WIDTH,)
        step_high, zero_high = _scale_and_zero(tl.min(k_high, axis=0), tl.max(k_high, axis=0), BITS)
        low = _in_steps(k_low - zero_low[None, :], step_low[None, :], BITS)
        high = _in_steps(k_high - zero_high[None, :], step_high[None, :], BITS)
        _store_steps(key_data, number, low, high, mask, DIM, BITS)
        tl.store(key_scale + channel, step_low.to(tl.float16), mask=own_column)
        tl.store(key_scale + channel + HALF, step_high.to(tl.float16), mask=own_column)
        if BITS == 4:
            tl.store(key_zero + channel, zero_low.to(tl.float16), mask=own_column)
            tl.store(key_zero + channel + HALF, zero_high.to(tl.float16), mask=own_column)
        # Values: one scale a token.
        smallest = tl.min(tl.where(own_column[None, :], tl.minimum(v_low, v_high), float("inf")), axis=1)
        greatest = tl.max(tl.where(own_column[None, :], tl.maximum(v_low, v_high), float("-inf")), axis=1)
        step, zero = _scale_and_zero(smallest, greatest, BITS)  # (BLOCK_SIZE,)
        low = _in_steps(v_low - zero[:, None], step[:, None], BITS)
        high = _in_steps(v_high - zero[:, None], step[:, None], BITS)
        _store_steps(value_data, number, low, high, mask, DIM, BITS)
        tl.store(value_scale + row, step.to(tl.float16))
        if BITS == 4:
            tl.store(value_zero + row, zero.to(tl.float16))
    if tail >= 0:
        mask = is_new[:, None] & own_column[None, :]
        where = of_tail + column[None, :]
        tl.store(tail_keys + where, k_low.to(tail_keys.dtype.element_ty), mask=mask)
        tl.store(tail_keys + where + HALF, k_high.to(tail_keys.dtype.element_ty), mask=mask)
        tl.store(tail_values + where, v_low.to(tail_values.dtype.element_ty), mask=mask)
        tl.store(tail_values + where + HALF, v_high.to(tail_values.dtype.element_ty), mask=mask)
