"""Paged attention on a GPU: the kernels, in Triton. `triton_paged.py` launches them.

Knows pointers, tables, and one program's share of the work. Does not know tensors, sequences or steps.

How the work is cut. One program takes one KV head of one sequence, and all query heads that read it: its rows. So a
key is loaded once for the whole group (GQA), and the scores are one small matrix product. A program walks over its
tokens in tiles and keeps a running softmax: the largest score so far, the sum of the weights, and the weighted sum of
values, all three rescaled when a larger score turns up (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022,
section 3.1). Scores are kept in powers of two, because a GPU computes exp2 and not exp.

A tile is a number of tokens, whatever the block size is: each token looks its block up in the table by itself.
Neighbours of one block look up the same entry, which costs next to nothing beside their keys and values.

What is masked is never loaded. So a table may hold anything behind a sequence's last block, and a block that belongs
to nobody may hold NaN.

Numbers that differ from call to call are plain arguments (`do_not_specialize`): otherwise Triton would compile a
kernel anew for each that happens to be 1, or a multiple of 16, and for each small tensor that happens to begin at a
multiple of 16 bytes. Names in capitals are compiled in.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def slots_of(table, tokens, inside, block_size):
    """Where `tokens` of a sequence lie in the pool. int64: a large pool has more numbers than 2 ** 31."""
    block = tl.load(table + tokens // block_size, mask=inside, other=0).to(tl.int64)
    return block * block_size + tokens % block_size


@triton.jit
def products(rows, tile):
    """rows @ tile.T, (ROWS, TILE): each query's products with each key of a tile. Added up in float32.

    "ieee": by default a GPU would round float32 to TF32, 10 bits, on the way. One row isn't worth a matrix product.
    """
    if rows.shape[0] == 1:
        return tl.sum(rows.to(tl.float32) * tile.to(tl.float32), axis=1)[None, :]
    else:
        return tl.dot(rows, tl.trans(tile), input_precision="ieee")


@triton.jit
def weighted_sum(weights, tile):
    """weights @ tile, (ROWS, WIDTH): the values of a tile, by their weights. Added up in float32."""
    if weights.shape[0] == 1:
        return tl.sum(tl.trans(weights) * tile.to(tl.float32), axis=0)[None, :]
    else:
        return tl.dot(weights.to(tile.dtype), tile, input_precision="ieee")


@triton.jit
def capped(scores, softcap):
    """softcap * tanh(scores / softcap) (Gemma 2, section 2.4)."""
    return softcap * (1 - 2 / (tl.exp2(scores * (2 * LOG2_E / softcap)) + 1))


@triton.jit
def rescale(largest, scores):
    """The running maximum of each row with these scores, the factor for what was summed up before, the weights.

    Where a row has seen no token yet, its maximum is -inf, and -inf - -inf is NaN: such a row subtracts 0 instead.
    """
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    subtract = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    return new_largest, tl.exp2(largest - subtract), tl.exp2(scores - subtract[:, None])


@triton.jit(do_not_specialize=["query", "block_tables", "context_lens", "sequences", "query_starts",
                               "query_token_stride", "query_head_stride", "table_stride", "group", "kv_heads",
                               "block_size", "window", "scale", "softcap"])  # fmt: skip
def decode_kernel(
    query,  # (T, Hq, DIM)
    key_pool,  # (num_blocks, block_size, kv_heads, DIM)
    value_pool,
    block_tables,  # (S, table_stride) int32
    context_lens,  # (S,) int32
    sequences,  # (grid 0,) int32: which sequences decode
    query_starts,  # (S,) int32: the row of a sequence's first query
    output,  # (T, Hq, DIM)
    partial_outputs,  # (grid 0, Hq, splits, DIM) float32
    partial_lses,  # (grid 0, Hq, splits) float32
    query_token_stride: tl.int64,
    query_head_stride: tl.int64,
    table_stride: tl.int64,
    group,  # query heads a KV head
    kv_heads,
    block_size,
    window,  # a query sees this many tokens, itself included
    scale: tl.float32,
    softcap: tl.float32,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,  # DIM, rounded up to a power of two
    ROWS: tl.constexpr,  # query heads of a program
    TILE: tl.constexpr,  # tokens
    CAPPED: tl.constexpr,
    UPCAST: tl.constexpr,  # compute in float32: the interpreter's bfloat16 product is wrong
):
    """One new token a sequence. Grid: sequences that decode x KV heads (times ceil(group / ROWS)) x splits.

    The tokens of a sequence are dealt out to several programs ("splits") where sequences and heads alone don't fill
    the GPU (Flash-Decoding, Dao et al. 2023). Each writes its part of the output, and the log-sum-exp of its scores;
    a split without tokens writes -inf. A sequence of length 0 is padding: its output is 0.
    """
    index, split = tl.program_id(0), tl.program_id(2)
    programs = tl.cdiv(group, ROWS)  # that share a KV head
    kv_head = tl.program_id(1) // programs
    sequence = tl.load(sequences + index)
    context = tl.load(context_lens + sequence)
    table = block_tables + sequence * table_stride
    row = tl.program_id(1) % programs * ROWS + tl.arange(0, ROWS)  # in the group
    head = kv_head * group + row
    column = tl.arange(0, WIDTH)
    own = (row < group)[:, None] & (column < DIM)[None, :]

    token_row = tl.load(query_starts + sequence).to(tl.int64)
    query += token_row * query_token_stride
    q = tl.load(query + head[:, None] * query_head_stride + column[None, :], mask=own, other=0.0)  # (ROWS, WIDTH)
    if UPCAST:
        q = q.to(tl.float32)

    # This split's tiles: its share of those that hold a visible token.
    first_visible = tl.maximum(context - window, 0)
    first_tile = first_visible // TILE
    last_tile = tl.cdiv(context, TILE)
    share = tl.cdiv(last_tile - first_tile, tl.num_programs(2))
    begin = first_tile + split * share
    end = tl.minimum(begin + share, last_tile)

    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS, WIDTH), tl.float32)
    for tile in range(begin, end):
        tokens = tile * TILE + tl.arange(0, TILE)
        visible = (tokens >= first_visible) & (tokens < context)
        slot = slots_of(table, tokens, visible, block_size)
        number = (slot * kv_heads + kv_head)[:, None] * DIM + column[None, :]  # (TILE, WIDTH)
        loaded = visible[:, None] & (column < DIM)[None, :]
        k = tl.load(key_pool + number, mask=loaded, other=0.0)
        v = tl.load(value_pool + number, mask=loaded, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = products(q, k) * scale  # (ROWS, TILE)
        if CAPPED:
            scores = capped(scores, softcap)
        scores = tl.where(visible[None, :], scores * LOG2_E, float("-inf"))
        largest, factor, weights = rescale(largest, scores)
        total = total * factor + tl.sum(weights, axis=1)
        weighted = weighted * factor[:, None] + weighted_sum(weights, v)

    heads = kv_heads * group
    result = weighted / tl.where(total > 0, total, 1.0)[:, None]
    if tl.num_programs(2) > 1:  # `merge_kernel` comes afterwards
        part = (index * heads + head).to(tl.int64) * tl.num_programs(2) + split  # (ROWS,)
        lse = tl.where(total > 0, largest + tl.log2(total), float("-inf"))
        tl.store(partial_lses + part, lse, mask=row < group)
        tl.store(partial_outputs + part[:, None] * DIM + column[None, :], result, mask=own)
    else:
        where = output + (token_row * heads + head)[:, None] * DIM + column[None, :]
        tl.store(where, result.to(output.dtype.element_ty), mask=own)


@triton.jit(do_not_specialize=["sequences", "query_starts", "splits"])
def merge_kernel(
    partial_outputs,  # (grid 0, Hq, splits, DIM) float32
    partial_lses,  # (grid 0, Hq, splits) float32: the base-2 logarithm of the sum of 2 ** score
    sequences,
    query_starts,
    output,  # (T, Hq, DIM)
    splits,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,  # at least as many
):
    """Puts the splits of a sequence together. Grid: sequences that decode x query heads.

    A split's share in the whole is its part of the sum over all exponentials, 2 ** (lse - lse of all).
    """
    index, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, WIDTH)
    part = (index * heads + head).to(tl.int64) * splits + split
    lse = tl.load(partial_lses + part, mask=split < splits, other=float("-inf"))
    largest = tl.max(lse, axis=0)
    share = tl.exp2(lse - tl.where(largest == float("-inf"), 0.0, largest))  # all 0 where no split has a token
    total = tl.sum(share, axis=0)
    own = (split < splits)[:, None] & (column < DIM)[None, :]
    outputs = tl.load(partial_outputs + part[:, None] * DIM + column[None, :], mask=own, other=0.0)  # (SPLITS, WIDTH)
    result = tl.sum(outputs * share[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    token_row = tl.load(query_starts + tl.load(sequences + index)).to(tl.int64)
    where = output + (token_row * heads + head) * DIM + column
    tl.store(where, result.to(output.dtype.element_ty), mask=column < DIM)


@triton.jit(do_not_specialize=["query", "block_tables", "context_lens", "query_starts", "query_lens", "pieces",
                               "query_token_stride", "query_head_stride", "table_stride", "group", "kv_heads",
                               "block_size", "window", "scale", "softcap"])  # fmt: skip
def prefill_kernel(
    query,  # (T, Hq, DIM)
    key_pool,  # (num_blocks, block_size, kv_heads, DIM)
    value_pool,
    block_tables,  # (S, table_stride) int32
    context_lens,  # (S,) int32
    query_starts,  # (S,) int32: the row of a sequence's first query
    query_lens,  # (S,) int32
    pieces,  # (grid 0, 2) int32: sequence, and which of its queries is the piece's first
    output,  # (T, Hq, DIM)
    query_token_stride: tl.int64,
    query_head_stride: tl.int64,
    table_stride: tl.int64,
    group,
    kv_heads,
    block_size,
    window,
    scale: tl.float32,
    softcap: tl.float32,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,  # queries times heads, at most
    HEADS: tl.constexpr,  # of the group in one program, at most
    TILE: tl.constexpr,
    CAPPED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Many new tokens a sequence: a prompt, or a chunk of one behind tokens that are cached.

    Grid: pieces x KV heads (times ceil(group / HEADS)). A piece is as many queries as fit into ROWS with all heads of
    the group (HEADS of them, where it is larger). All keys and values come from the pool, the chunk's own too, which
    have been written just before. The newest query of a piece says where its tiles end.
    """
    piece = tl.program_id(0)
    programs = tl.cdiv(group, HEADS)  # that share a KV head
    kv_head = tl.program_id(1) // programs
    heads = tl.minimum(group, HEADS)
    sequence = tl.load(pieces + 2 * piece)
    first_query = tl.load(pieces + 2 * piece + 1)
    context = tl.load(context_lens + sequence)
    query_len = tl.load(query_lens + sequence)
    table = block_tables + sequence * table_stride

    row = tl.arange(0, ROWS)
    queries = ROWS // heads
    of_query = first_query + row // heads  # which query of its sequence
    in_group = tl.program_id(1) % programs * HEADS + row % heads
    head = kv_head * group + in_group
    column = tl.arange(0, WIDTH)
    own = (row < queries * heads) & (of_query < query_len) & (in_group < group)
    own = own[:, None] & (column < DIM)[None, :]
    position = context - query_len + of_query  # in the sequence

    token_row = (tl.load(query_starts + sequence) + of_query).to(tl.int64)
    where = (token_row * query_token_stride + head * query_head_stride)[:, None] + column[None, :]
    q = tl.load(query + where, mask=own, other=0.0)  # (ROWS, WIDTH)
    if UPCAST:
        q = q.to(tl.float32)

    first_position = context - query_len + first_query
    end = tl.minimum(first_position + queries, context)  # behind the newest query's own token
    begin = tl.maximum(first_position - window + 1, 0) // TILE

    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS, WIDTH), tl.float32)
    for tile in range(begin, tl.cdiv(end, TILE)):
        tokens = tile * TILE + tl.arange(0, TILE)
        inside = tokens < end
        slot = slots_of(table, tokens, inside, block_size)
        number = (slot * kv_heads + kv_head)[:, None] * DIM + column[None, :]  # (TILE, WIDTH)
        loaded = inside[:, None] & (column < DIM)[None, :]
        k = tl.load(key_pool + number, mask=loaded, other=0.0)
        v = tl.load(value_pool + number, mask=loaded, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = products(q, k) * scale  # (ROWS, TILE)
        if CAPPED:
            scores = capped(scores, softcap)
        distance = position[:, None] - tokens[None, :]
        visible = (distance >= 0) & (distance < window) & inside[None, :]
        scores = tl.where(visible, scores * LOG2_E, float("-inf"))
        largest, factor, weights = rescale(largest, scores)
        total = total * factor + tl.sum(weights, axis=1)
        weighted = weighted * factor[:, None] + weighted_sum(weights, v)

    result = weighted / tl.where(total > 0, total, 1.0)[:, None]
    where = (token_row * (kv_heads * group) + head)[:, None] * DIM + column[None, :]
    tl.store(output + where, result.to(output.dtype.element_ty), mask=own)


@triton.jit(do_not_specialize=["key", "value", "slots", "key_token_stride", "key_head_stride", "value_token_stride",
                               "value_head_stride", "kv_heads"])  # fmt: skip
def write_kernel(
    key,  # (T, kv_heads, DIM)
    value,
    key_pool,  # (num_blocks, block_size, kv_heads, DIM): num_slots rows of kv_heads * DIM numbers
    value_pool,
    slots,  # (T,) int64
    key_token_stride: tl.int64,
    key_head_stride: tl.int64,
    value_token_stride: tl.int64,
    value_head_stride: tl.int64,
    kv_heads,
    DIM: tl.constexpr,
    TILE: tl.constexpr,  # numbers at a time
):
    """Puts each token's keys and values into its slot. Grid: tokens. A slot below 0 is no slot: nothing is written."""
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    if slot >= 0:
        numbers = kv_heads * DIM
        for start in range(0, numbers, TILE):
            number = start + tl.arange(0, TILE)
            inside = number < numbers
            head, column = number // DIM, number % DIM
            k = tl.load(key + token * key_token_stride + head * key_head_stride + column, mask=inside)
            v = tl.load(value + token * value_token_stride + head * value_head_stride + column, mask=inside)
            tl.store(key_pool + slot * numbers + number, k, mask=inside)
            tl.store(value_pool + slot * numbers + number, v, mask=inside)
