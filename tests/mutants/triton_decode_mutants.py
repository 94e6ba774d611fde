"""Wrong and right implementations of exercise 7.4: decode kernels in Triton, run by its interpreter.

Triton reads a kernel's source, so each variant is a file of its own to Python: a text in linecache. Without Triton
there is none of them, and the tests that count them say so.
"""

import linecache
from importlib.util import find_spec

import torch
from mutant_list import right, wrong

KERNEL = """
@triton.jit
def decode_kernel(query, key_pool, value_pool, block_tables, context_lens, output, scale, num_heads, num_kv_heads,
                  max_blocks, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr):
    sequence, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // (num_heads // num_kv_heads)
    column = tl.arange(0, DIM)
    offset = tl.arange(0, BLOCK_SIZE)
    row = (sequence * num_heads + head) * DIM
    q = tl.load(query + row + column).to(tl.float32)
    context_len = tl.load(context_lens + sequence)
    largest = float("-inf")
    total = 0.0
    weighted = tl.zeros((DIM,), tl.float32)
    for i in range(tl.cdiv(context_len, BLOCK_SIZE)):
        block = tl.load(block_tables + sequence * max_blocks + i).to(tl.int64)
        inside = i * BLOCK_SIZE + offset < context_len
        place = ((block * BLOCK_SIZE + offset) * num_kv_heads + kv_head) * DIM
        place = place[:, None] + column[None, :]
        k = tl.load(key_pool + place, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(value_pool + place, mask=inside[:, None], other=0.0).to(tl.float32)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(inside, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=0))
        factor = tl.exp(largest - larger)
        weights = tl.exp(scores - larger)
        total = total * factor + tl.sum(weights, axis=0)
        weighted = weighted * factor + tl.sum(weights[:, None] * v, axis=0)
        largest = larger
    tl.store(output + row + column, weighted / total)


def triton_decode(query, key_pool, value_pool, block_tables, context_lens, scale):
    output = torch.empty_like(query)
    grid = (query.shape[0], query.shape[1])
    decode_kernel[grid](query, key_pool, value_pool, block_tables, context_lens, output, scale, query.shape[1],
                        key_pool.shape[2], block_tables.shape[1], BLOCK_SIZE=key_pool.shape[1], DIM=query.shape[2])
    return output
"""

#: The query heads of one KV head as rows of a program; a tile of tokens that each look up their own block; powers of 2.
TILES = """
@triton.jit
def tile_kernel(query, key_pool, value_pool, block_tables, context_lens, output, scale, group, max_blocks, block_size,
                kv_heads, DIM: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr):
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.arange(0, DIM)
    own = (row < group)[:, None]
    place = ((sequence * kv_heads + kv_head) * group + row)[:, None] * DIM + column[None, :]
    q = tl.load(query + place, mask=own, other=0.0).to(tl.float32) * (scale * 1.4426950408889634)
    context_len = tl.load(context_lens + sequence)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS, DIM), tl.float32)
    for start in range(0, context_len, TILE):
        token = start + tl.arange(0, TILE)
        inside = token < context_len
        block = tl.load(block_tables + sequence * max_blocks + token // block_size, mask=inside, other=0).to(tl.int64)
        slot = block * block_size + token % block_size
        number = (slot * kv_heads + kv_head)[:, None] * DIM + column[None, :]
        k = tl.load(key_pool + number, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(value_pool + number, mask=inside[:, None], other=0.0).to(tl.float32)
        scores = tl.sum(q[:, None, :] * k[None, :, :], axis=2)
        scores = tl.where(inside[None, :], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - larger[:, None])
        total = total * tl.exp2(largest - larger) + tl.sum(weights, axis=1)
        weighted = weighted * tl.exp2(largest - larger)[:, None]
        weighted += tl.sum(weights[:, :, None] * v[None, :, :], axis=1)
        largest = larger
    tl.store(output + place, weighted / total[:, None], mask=own)


def triton_decode(query, key_pool, value_pool, block_tables, context_lens, scale):
    output = torch.zeros_like(query)
    kv_heads = key_pool.shape[2]
    group = query.shape[1] // kv_heads
    tile_kernel[(len(query), kv_heads)](query, key_pool, value_pool, block_tables, context_lens, output, scale, group,
                                        block_tables.shape[1], key_pool.shape[1], kv_heads, DIM=query.shape[2],
                                        ROWS=triton.next_power_of_2(group), TILE=16)
    return output
"""

#: First the largest score of all, then the sums: the keys are read twice.
TWICE = """
@triton.jit
def scores_of(q, key_pool, table, i, context_len, scale, kv_heads, kv_head, BLOCK: tl.constexpr, DIM: tl.constexpr):
    token = i * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(table + i).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    number = (slot * kv_heads + kv_head)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    k = tl.load(key_pool + number, mask=(token < context_len)[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k.to(tl.float32), axis=1) * scale
    return tl.where(token < context_len, scores, float("-inf")), number


@triton.jit
def two_pass_kernel(q_ptr, key_pool, value_pool, tables, lengths, out_ptr, scale, heads, kv_heads, width,
                    BLOCK: tl.constexpr, DIM: tl.constexpr):
    program = tl.program_id(0)
    sequence, head = program // heads, program % heads
    kv_head = head * kv_heads // heads
    context_len = tl.load(lengths + sequence)
    table = tables + sequence * width
    q = tl.load(q_ptr + program * DIM + tl.arange(0, DIM)).to(tl.float32)
    num_blocks = (context_len + BLOCK - 1) // BLOCK
    largest = tl.full((), float("-inf"), tl.float32)
    for i in range(0, num_blocks):
        scores, number = scores_of(q, key_pool, table, i, context_len, scale, kv_heads, kv_head, BLOCK, DIM)
        largest = tl.maximum(largest, tl.max(scores, axis=0))
    total = tl.zeros((), tl.float32)
    weighted = tl.zeros((DIM,), tl.float32)
    for i in range(0, num_blocks):
        scores, number = scores_of(q, key_pool, table, i, context_len, scale, kv_heads, kv_head, BLOCK, DIM)
        weights = tl.exp(scores - largest)
        inside = (i * BLOCK + tl.arange(0, BLOCK) < context_len)[:, None]
        v = tl.load(value_pool + number, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(weights, axis=0)
        weighted += tl.sum(weights[:, None] * v, axis=0)
    tl.store(out_ptr + program * DIM + tl.arange(0, DIM), (weighted / total).to(out_ptr.dtype.element_ty))


def triton_decode(query, key_pool, value_pool, block_tables, context_lens, scale):
    num_sequences, heads, dim = query.shape
    output = query.new_empty(query.shape)
    two_pass_kernel[(num_sequences * heads,)](query, key_pool, value_pool, block_tables, context_lens, output, scale,
                                              heads, key_pool.shape[2], block_tables.shape[1], key_pool.shape[1], dim)
    return output
"""

#: Puts out of the way what is behind the context, after it was loaded.
ONLY = """
@triton.jit
def only(inside, tile):
    return tl.where(inside[:, None], tile, 0.0)


"""

LOAD_V = "v = tl.load(value_pool + place, mask=inside[:, None], other=0.0)"
LOAD_K = "k = tl.load(key_pool + place, mask=inside[:, None], other=0.0)"

HAS_TRITON = find_spec("triton") is not None
_files = []


def made(source, *changes):
    """The launcher that a source defines when one text in it is another."""
    import triton
    import triton.language as tl

    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    path = f"<triton_decode {len(_files)}>"
    _files.append(path)
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    names = {"torch": torch, "triton": triton, "tl": tl, "__name__": f"triton_decode_{len(_files)}"}
    exec(compile(source, path, "exec"), names)
    return names["triton_decode"]


def kernel(diagnosis, name, *changes, general=False):
    if HAS_TRITON:
        wrong("triton_decode", diagnosis, name, general)(made(KERNEL, *changes))


if HAS_TRITON:
    right("triton_decode", "a program a head, a block at a time")(made(KERNEL))
    right("triton_decode", "a program a KV head, tiles of 16 tokens, powers of 2")(made(TILES))
    right("triton_decode", "two passes, a grid of one axis")(made(TWICE))
    right("triton_decode", "no masks at the loads, what is nobody's replaced by 0")(
        made(
            KERNEL,
            (LOAD_K, "k = only(inside, tl.load(key_pool + place))"),
            (LOAD_V, "v = only(inside, tl.load(value_pool + place))"),
            ("@triton.jit", ONLY + "@triton.jit"),
        )
    )
    right("triton_decode", "block by block, a program a head, output of zeros")(
        made(KERNEL, ("torch.empty_like(query)", "torch.zeros(query.shape, dtype=query.dtype, device=query.device)"))
    )

wrong("triton_decode", "unwritten", "the stub", general=True)(lambda *args: None)
wrong("triton_decode", "not_a_function", "a grid in the place of a function", general=True)((1, 2))
kernel("gqa_interleaved", "KV head h % Hkv", ("head // (num_heads // num_kv_heads)", "head % num_kv_heads"))
kernel("one_kv_head", "KV head 0 for all", ("head // (num_heads // num_kv_heads)", "0"))
kernel("no_scale", "no scale", (" * scale\n", "\n"))
kernel("divides_by_scale", "divided by the scale", (" * scale\n", " / scale\n"))
kernel(
    "ignores_table",
    "logical blocks",
    ("block = tl.load(block_tables + sequence * max_blocks + i).to(tl.int64)", "block = i"),
)
kernel(
    "another_row",
    "the first sequence's table for all",
    ("block_tables + sequence * max_blocks + i", "block_tables + i"),
)
kernel(
    "whole_blocks",
    "no mask at all",
    (", mask=inside[:, None], other=0.0", ""),
    ('        scores = tl.where(inside, scores, float("-inf"))\n', ""),
)
kernel(
    "zeros_count",
    "keys of 0 behind the context, with the score 0",
    ('        scores = tl.where(inside, scores, float("-inf"))\n', ""),
)
kernel("reads_past", "a mask for the scores, none for the loads", (", mask=inside[:, None], other=0.0", ""))
kernel("reads_past", "a mask for keys only", (LOAD_V, "v = tl.load(value_pool + place)"))
kernel("full_blocks_only", "full blocks only", ("tl.cdiv(context_len, BLOCK_SIZE)", "context_len // BLOCK_SIZE"))
kernel("first_block_only", "one turn of the loop", ("tl.cdiv(context_len, BLOCK_SIZE)", "1"))
kernel("drops_newest", "the mask off by one", ("+ offset < context_len", "+ offset < context_len - 1"))
kernel(
    "no_largest",
    "exp without the largest score",
    ("tl.exp(scores - larger)", "tl.exp(scores)"),
    ("tl.exp(largest - larger)", "1.0"),
)
kernel("no_largest", "largest begins at 0", ('largest = float("-inf")', "largest = 0.0"))
kernel("forgets_to_rescale", "no factor", (" * factor", ""))
kernel("forgets_to_rescale", "a factor for the sum of the weights only", ("weighted * factor", "weighted"))
kernel("last_block_only", "sums that begin anew in each block", ("total * factor + ", ""), ("weighted * factor + ", ""))
kernel("not_divided", "the sum, not divided", ("weighted / total", "weighted"))
kernel(
    "mean_of_blocks",
    "the mean of the blocks' softmaxes",
    ("        total = total * factor + tl.sum(weights, axis=0)\n", ""),
    ("larger = tl.maximum(largest, tl.max(scores, axis=0))", "larger = tl.max(scores, axis=0)"),
    (
        "weighted * factor + tl.sum(weights[:, None] * v, axis=0)",
        "weighted + tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)",
    ),
    ("weighted / total", "weighted / tl.cdiv(context_len, BLOCK_SIZE)"),
)
kernel("keys_for_values", "loads keys twice", (LOAD_V, LOAD_V.replace("value_pool", "key_pool")))
kernel(
    "ignores_offset",
    "the first slot of each block",
    ("(block * BLOCK_SIZE + offset)", "(block * BLOCK_SIZE + offset * 0)"),
)
kernel(
    "wrong_queries",
    "the first sequence's queries for all",
    ("tl.load(query + row + column)", "tl.load(query + head * DIM + column)"),
)
kernel(
    "rows_missing",
    "a program for each head, not for each sequence",
    ("grid = (query.shape[0], query.shape[1])", "grid = (1, query.shape[1])"),
)
kernel(
    "writes_beside",
    "rows counted with DIM forgotten, then twice",
    ("output + row + column", "output + row * 8 + column"),
)
kernel(
    "writes_beside",
    "one sequence too many",
    ("grid = (query.shape[0], query.shape[1])", "grid = (query.shape[0] + 1, query.shape[1])"),
)
kernel("wrong_dtype", "an output of float32", ("torch.empty_like(query)", "torch.empty(query.shape)"))
kernel("wrong_shape", "an output of one row a sequence", ("    return output", "    return output.flatten(1)"))
kernel("raises", "a name that Triton doesn't have", ("tl.maximum(", "tl.largest("), general=True)
kernel(
    "not_a_number",
    "divides by a sum that nobody counts",
    ("total = total * factor + tl.sum(weights, axis=0)", "total = total * factor"),
    general=True,
)
kernel(
    "returns_none",
    "the launch and no return",
    ("    return output", "    if query.shape[1] > 1:\n        return output"),
    general=True,
)
kernel(
    "wrong_answer",
    "forgets the KV heads in the pool's rows",
    ("* num_kv_heads + kv_head) * DIM", ") * DIM + kv_head * DIM"),
)
