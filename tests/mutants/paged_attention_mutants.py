"""Wrong and right implementations of the exercises of chapter 07 (the kernels are in triton_decode_mutants.py).

Each is written as a learner would write it, without a look at the check.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from mutant_list import right, wrong

# 7.1 gather_attention


@right("gather_attention")
def in_a_row(query, key_pool, value_pool, table, context_len, scale):
    """blocks put together with cat"""
    keys = torch.cat([key_pool[block] for block in table])[:context_len]
    values = torch.cat([value_pool[block] for block in table])[:context_len]
    return torch.softmax(keys @ query * scale, dim=0) @ values


@right("gather_attention")
def token_by_token(query, key_pool, value_pool, table, context_len, scale):
    """Python floats, a token at a time"""
    size = key_pool.shape[1]
    places = [(table[i // size], i % size) for i in range(context_len)]
    scores = [scale * sum(float(a) * float(b) for a, b in zip(query, key_pool[p], strict=True)) for p in places]
    weights = [math.exp(score - max(scores)) for score in scores]
    output = torch.zeros_like(query)
    for weight, place in zip(weights, places, strict=True):
        output += weight / sum(weights) * value_pool[place]
    return output


@right("gather_attention")
def by_slots(query, key_pool, value_pool, table, context_len, scale):
    """flat slots, index_select, and torch's own attention"""
    size, dim = key_pool.shape[1:]
    slots = (torch.tensor(table)[:, None] * size + torch.arange(size)).flatten()[:context_len]
    keys, values = (pool.reshape(-1, dim).index_select(0, slots) for pool in (key_pool, value_pool))
    return F.scaled_dot_product_attention(query[None], keys, values, scale=scale)[0]


@right("gather_attention")
def with_numpy_inside(query, key_pool, value_pool, table, context_len, scale):
    """numpy, and back to torch"""
    q, keys, values = query.numpy(), key_pool.numpy()[table], value_pool.numpy()[table]
    keys, values = (x.reshape(-1, x.shape[-1])[:context_len] for x in (keys, values))
    scores = keys @ q * scale
    weights = np.exp(scores - scores.max())
    return torch.from_numpy(weights @ values / weights.sum())


GATHER = """
def gather_attention(query, key_pool, value_pool, table, context_len, scale):
    keys = torch.cat([key_pool[block] for block in table])[:context_len]
    values = torch.cat([value_pool[block] for block in table])[:context_len]
    scores = keys @ query * scale
    weights = torch.softmax(scores, dim=0)
    return weights @ values
"""


def changed(source, *changes):
    """What the source makes when one text in it is another: a slip of a learner's."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    names = {"torch": torch, "F": F, "np": np}
    exec(source, names)
    return names[source.split("def ", 1)[1].split("(", 1)[0]]


def gather(diagnosis, name, *changes, general=False):
    wrong("gather_attention", diagnosis, name, general)(changed(GATHER, *changes))


SLICE = "[:context_len]"
wrong("gather_attention", "not_a_function", "a tensor in the place of a function", general=True)(torch.zeros(2))
wrong("gather_attention", "unwritten", "the stub", general=True)(lambda *args: None)
gather(
    "returns_none",
    "returns nothing for one token",
    ("    scores", "    if context_len == 1:\n        return\n    scores"),
)
gather("wrong_type", "a list", ("return weights @ values", "return (weights @ values).tolist()"), general=True)
gather("wrong_shape", "the weighted values, not summed up", ("weights @ values", "weights[:, None] * values"))
gather(
    "wrong_dtype",
    "computed and returned in float64",
    ("keys @ query", "keys.double() @ query.double()"),
    ("weights @ values", "weights @ values.double()"),
)
gather(
    "mutates",
    "scales the query in place",
    ("    scores = keys @ query * scale", "    query *= scale\n    scores = keys @ query"),
)
gather(
    "raises",
    "values that were not cut",
    ("for block in table])[:context_len]\n    scores", "for block in table])\n    scores"),
)
gather("no_scale", "no scale", (" * scale", ""))
gather("divides_by_scale", "divided by the scale", (" * scale", " / scale"))
gather("ignores_table", "block 0, 1, 2, ... of the pool", ("in table]", "in range(len(table))]"))
gather("whole_blocks", "the last block not cut", (SLICE, ""))
gather("full_blocks_only", "full blocks only", ("in table]", "in table[: context_len // key_pool.shape[1]]]"))
gather("drops_newest", "without the newest token", (SLICE, "[: context_len - 1]"))
gather("first_block_only", "only the first block", ("in table]", "in table[:1]]"))
gather("keys_for_values", "sums up keys", ("weights @ values", "weights @ keys"))
gather(
    "no_largest", "exp without the largest score", ("torch.softmax(scores, dim=0)", "scores.exp() / scores.exp().sum()")
)
gather(
    "not_divided", "weights that don't add up to 1", ("torch.softmax(scores, dim=0)", "(scores - scores.max()).exp()")
)
gather(
    "zeros_count",
    "padding with zeros that get a weight",
    (
        "    scores = keys @ query",
        "    rest = -context_len % key_pool.shape[1]\n"
        "    keys, values = (F.pad(x, (0, 0, 0, rest)) for x in (keys, values))\n"
        "    scores = keys @ query",
    ),
)
gather(
    "times_zero",
    "all slots, and the score of the rest set to -inf",
    (SLICE, ""),
    (" * scale", " * scale\n    scores[context_len:] = float('-inf')"),
)
gather(
    "times_zero",
    "all slots, and the weights of the rest set to 0",
    (SLICE, ""),
    ("keys @ query * scale", "(keys @ query * scale)"),
    (
        "torch.softmax(scores, dim=0)",
        "F.pad(torch.softmax(scores[:context_len], dim=0), (0, len(scores) - context_len))",
    ),
)
gather("wrong_answer", "blocks in the order of the pool", ("in table]", "in sorted(table)]"))
gather("wrong_answer", "the table backwards", ("in table]", "in table[::-1]]"))


@wrong("gather_attention", "mean_of_blocks")
def each_block_by_itself(query, key_pool, value_pool, table, context_len, scale):
    """a softmax a block, and the mean of these"""
    size, outputs = key_pool.shape[1], []
    for i, block in enumerate(table):
        n = min(size, context_len - i * size)
        outputs.append(torch.softmax(key_pool[block, :n] @ query * scale, 0) @ value_pool[block, :n])
    return torch.stack(outputs).mean(0)


@wrong("gather_attention", "ignores_offset")
def one_slot_a_block(query, key_pool, value_pool, table, context_len, scale):
    """one slot of each block"""
    places = [table[i // key_pool.shape[1]] for i in range(context_len)]
    return torch.softmax(key_pool[places, 0] @ query * scale, 0) @ value_pool[places, 0]


@wrong("gather_attention", "endless", general=True)
def walks_on(query, key_pool, value_pool, table, context_len, scale):
    """a loop that never counts"""
    token = 0
    while token < context_len:
        pass
    return query


# 7.2 online_softmax


@right("online_softmax")
def three_numbers(blocks):
    """three running numbers"""
    largest, total, weighted = torch.tensor(float("-inf")), 0.0, 0.0
    for scores, values in blocks:
        larger = torch.maximum(largest, scores.max())
        factor, weights = torch.exp(largest - larger), torch.exp(scores - larger)
        total = total * factor + weights.sum()
        weighted = weighted * factor + weights @ values
        largest = larger
    return weighted / total


@right("online_softmax")
def as_log_sum_exp(blocks):
    """a log-sum-exp and an output that is always divided"""
    lse, output = None, None
    for scores, values in blocks:
        block_lse, block_output = scores.logsumexp(0), scores.softmax(0) @ values
        if lse is None:
            lse, output = block_lse, block_output
            continue
        both = torch.logaddexp(lse, block_lse)
        output = output * torch.exp(lse - both) + block_output * torch.exp(block_lse - both)
        lse = both
    return output


@right("online_softmax")
def a_token_at_a_time(blocks):
    """Python floats, a token at a time, rescaling only when it must"""
    largest, total, weighted = -math.inf, 0.0, None
    for scores, values in blocks:
        for score, value in zip(scores.tolist(), values.double(), strict=True):
            if score > largest:
                shrink = math.exp(largest - score)
                total *= shrink
                weighted = torch.zeros_like(value) if weighted is None else weighted * shrink
                largest = score
            weight = math.exp(score - largest)
            total += weight
            weighted = weighted + weight * value
    return (weighted / total).float()


@right("online_softmax")
def numpy_float64(blocks):
    """numpy in float64, the first block before the loop"""
    scores, values = (part.numpy().astype(np.float64) for part in next(blocks))
    largest = scores.max()
    weights = np.exp(scores - largest)
    total, weighted = weights.sum(), weights @ values
    for scores, values in blocks:
        s, v = scores.numpy().astype(np.float64), values.numpy()
        old, largest = largest, max(largest, s.max())
        weights = np.exp(s - largest)
        total = total * np.exp(old - largest) + weights.sum()
        weighted = weighted * np.exp(old - largest) + weights @ v
    return torch.from_numpy(weighted / total).float()


@right("online_softmax")
def partial_results(blocks):
    """a partial result a block, merged at the end"""
    parts = [(s.logsumexp(0), s.softmax(0) @ v) for s, v in blocks]
    weights = torch.stack([lse for lse, _ in parts]).softmax(0)
    return sum(weight * output for weight, (_, output) in zip(weights, parts, strict=True))


ONLINE = """
def online_softmax(blocks):
    largest, total, weighted = torch.tensor(float("-inf")), torch.tensor(0.0), torch.tensor(0.0)
    for scores, values in blocks:
        larger = torch.maximum(largest, scores.max())
        factor = torch.exp(largest - larger)
        weights = torch.exp(scores - larger)
        total = total * factor + weights.sum()
        weighted = weighted * factor + weights @ values
        largest = larger
    return weighted / total
"""


def online(diagnosis, name, *changes):
    wrong("online_softmax", diagnosis, name)(changed(ONLINE, *changes))


wrong("online_softmax", "unwritten", "the stub", general=True)(lambda blocks: None)
wrong("online_softmax", "not_a_function", "None in the place of a function", general=True)(None)
online(
    "no_largest",
    "exp without the largest score",
    ("torch.exp(scores - larger)", "torch.exp(scores)"),
    ("torch.exp(largest - larger)", "1.0"),
)
online(
    "first_largest_only",
    "the first block's largest score for ever",
    ("torch.maximum(largest, scores.max())", "largest if largest.isfinite() else scores.max()"),
)
online("starts_at_zero", "largest begins at 0", ('float("-inf")', "0.0"))
online("forgets_to_rescale", "no factor", (" * factor", ""))
online(
    "forgets_to_rescale",
    "each block's own largest score, no factor",
    (" * factor", ""),
    ("torch.maximum(largest, scores.max())", "scores.max()"),
)
online("rescales_one_sum", "the sum of the weights is not rescaled", ("total * factor", "total"))
online("rescales_one_sum", "the weighted values are not rescaled", ("weighted * factor", "weighted"))
online(
    "factor_upside_down",
    "the factor upside down, where there is one",
    ("factor = torch.exp(largest - larger)", "factor = torch.exp(larger - largest) if total > 0 else 0.0"),
)
online("not_divided", "the sum, not divided", ("return weighted / total", "return weighted"))
online(
    "last_block_only",
    "largest, sum and values of the last block",
    ("total * factor + ", ""),
    ("weighted * factor + ", ""),
)
online(
    "last_block_only",
    "return inside the loop, behind the last block",
    (
        "        largest = larger\n    return weighted / total",
        "        last = scores.softmax(0) @ values\n    return last",
    ),
)
online(
    "wrong_answer",
    "the factor of the new weights, too",
    ("torch.exp(scores - larger)", "torch.exp(scores - larger) * (1 - factor)"),
)
online("not_a_number", "largest begins at NaN", ("torch.maximum(largest, scores.max())", "largest * 0 + scores.max()"))
online("wrong_shape", "one number, the mean of the values", ("weights @ values", "(weights @ values).mean()"))


@wrong("online_softmax", "divides_each_time")
def divides_in_the_loop(blocks):
    """divides in every block"""
    largest, total, output = torch.tensor(float("-inf")), 0.0, 0.0
    for scores, values in blocks:
        larger = torch.maximum(largest, scores.max())
        factor, weights = torch.exp(largest - larger), torch.exp(scores - larger)
        total = total * factor + weights.sum()
        output = (output * factor + weights @ values) / total
        largest = larger
    return output


@wrong("online_softmax", "mean_of_blocks")
def mean_of_the_blocks(blocks):
    """the mean of the blocks' softmaxes"""
    return torch.stack([scores.softmax(0) @ values for scores, values in blocks]).mean(0)


@wrong("online_softmax", "mean_of_blocks")
def sum_of_the_blocks(blocks):
    """the sum of the blocks' softmaxes"""
    return sum(scores.softmax(0) @ values for scores, values in blocks)


@wrong("online_softmax", "keeps_blocks")
def gathers_views(blocks):
    """all blocks in a list, then one softmax"""
    blocks = list(blocks)
    return torch.cat([s for s, _ in blocks]).softmax(0) @ torch.cat([v for _, v in blocks])


@wrong("online_softmax", "keeps_blocks")
def two_passes(blocks):
    """the largest score in a first pass, the sums in a second"""
    blocks = list(blocks)
    largest = max(scores.max() for scores, _ in blocks)
    weights = [torch.exp(scores - largest) for scores, _ in blocks]
    return sum(w @ v for w, (_, v) in zip(weights, blocks, strict=True)) / sum(w.sum() for w in weights)


@wrong("online_softmax", "keeps_all")
def gathers_copies(blocks):
    """copies of all blocks, then one softmax"""
    copies = [(scores.clone(), values.clone()) for scores, values in blocks]
    return torch.cat([s for s, _ in copies]).softmax(0) @ torch.cat([v for _, v in copies])


# 7.3 paged_attention

PAGED = """
def paged_attention(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    block_size, num_kv_heads = key_pool.shape[1:3]
    group = query.shape[1] // num_kv_heads
    outputs = []
    start = 0
    for s, (table, context_len, query_len) in enumerate(zip(block_tables, context_lens, query_lens)):
        q = query[start : start + query_len]
        start += query_len
        position = torch.arange(context_len)
        block = table[position // block_size].long()
        k = key_pool[block, position % block_size].repeat_interleave(group, dim=1)
        v = value_pool[block, position % block_size].repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        hidden = position[None, :] > position[context_len - query_len :, None]
        scores = scores.masked_fill(hidden, float("-inf"))
        weights = scores.softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(outputs)
"""
right("paged_attention", "a loop over sequences, and einsum")(changed(PAGED))


@right("paged_attention")
def with_torchs_kernel(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    """blocks put together with cat, and torch's own attention with a mask"""
    size, group = key_pool.shape[1], query.shape[1] // key_pool.shape[2]
    output = torch.empty_like(query)
    end = 0
    for s, n in enumerate(context_lens):
        start, end = end, end + query_lens[s]
        blocks = block_tables[s, : -(-n // size)].tolist()
        k, v = (torch.cat([pool[b] for b in blocks])[:n].transpose(0, 1) for pool in (key_pool, value_pool))
        mask = torch.ones(query_lens[s], n, dtype=torch.bool).tril(n - query_lens[s])
        q = query[start:end].transpose(0, 1)
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        output[start:end] = F.scaled_dot_product_attention(q, k, v, mask, scale=scale).transpose(0, 1)
    return output


@right("paged_attention")
def head_by_head_in_numpy(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    """numpy, one query and head at a time, no mask at all"""
    q, keys, values = (x.numpy().astype(np.float64) for x in (query, key_pool, value_pool))
    output = np.zeros(q.shape)
    row = 0
    for table, context_len, query_len in zip(block_tables.tolist(), context_lens, query_lens, strict=True):
        for position in range(context_len - query_len, context_len):
            places = [(table[i // keys.shape[1]], i % keys.shape[1]) for i in range(position + 1)]
            for head in range(q.shape[1]):
                kv_head = head * keys.shape[2] // q.shape[1]
                scores = np.array([keys[b, o, kv_head] @ q[row, head] for b, o in places]) * scale
                weights = np.exp(scores - scores.max())
                output[row, head] = sum(w * values[b, o, kv_head] for w, (b, o) in zip(weights, places, strict=True))
                output[row, head] /= weights.sum()
            row += 1
    return torch.from_numpy(output).to(query.dtype)


@right("paged_attention")
def block_by_block(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    """the online softmax, a block at a time, the group's heads as rows"""
    size, kv_heads, dim = key_pool.shape[1:]
    group = query.shape[1] // kv_heads
    outputs = []
    for q, table, n in zip(query.split(list(query_lens)), block_tables, context_lens, strict=True):
        count = len(q)
        rows = q.view(count, kv_heads, group, dim).permute(1, 0, 2, 3).reshape(kv_heads, -1, dim).float()
        largest = torch.full(rows.shape[:2], float("-inf"))
        total, weighted = torch.zeros_like(largest), torch.zeros_like(rows)
        own = (torch.arange(n - count, n)[:, None]).expand(count, group).reshape(-1)
        for i in range(0, n, size):
            block, filled = table[i // size], min(size, n - i)
            k, v = (pool[block, :filled].float().transpose(0, 1) for pool in (key_pool, value_pool))
            scores = rows @ k.transpose(1, 2) * scale
            scores = scores.masked_fill(torch.arange(i, i + filled)[None] > own[:, None], float("-inf"))
            larger = torch.maximum(largest, scores.amax(-1))
            factor, weights = torch.exp(largest - larger), torch.exp(scores - larger[..., None])
            total = total * factor + weights.sum(-1)
            weighted = weighted * factor[..., None] + weights @ v
            largest = larger
        out = (weighted / total[..., None]).view(kv_heads, count, group, dim)
        outputs.append(out.permute(1, 0, 2, 3).reshape(count, -1, dim))
    return torch.cat(outputs).to(query.dtype)


@right("paged_attention")
def one_padded_batch(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    """all sequences in one padded batch, what is nobody's replaced by 0 before it is used"""
    lengths, counts = torch.tensor(context_lens), torch.tensor(query_lens)
    sequence = torch.arange(len(lengths)).repeat_interleave(counts)
    position = torch.cat([torch.arange(n - m, n) for n, m in zip(context_lens, query_lens, strict=True)])
    keys, values = (pool[block_tables.long()].flatten(1, 2) for pool in (key_pool, value_pool))
    token = torch.arange(keys.shape[1])
    inside = (token < lengths[:, None])[:, :, None, None]
    group = query.shape[1] // key_pool.shape[2]
    k, v = (torch.where(inside, x, 0.0).repeat_interleave(group, 2)[sequence] for x in (keys, values))
    scores = torch.einsum("thd,tnhd->thn", query.float(), k.float()) * scale
    scores[(token > position[:, None])[:, None, :].expand_as(scores)] = float("-inf")
    return torch.einsum("thn,tnhd->thd", scores.softmax(-1), v.float()).to(query.dtype)


def paged(diagnosis, name, *changes, general=False):
    wrong("paged_attention", diagnosis, name, general)(changed(PAGED, *changes))


INTERLEAVED = ".repeat_interleave(group, dim=1)"
HIDDEN = "position[None, :] > position[context_len - query_len :, None]"
BLOCK = "block = table[position // block_size].long()"
SOFTMAX = "weights = scores.softmax(dim=-1)"

wrong("paged_attention", "unwritten", "the stub", general=True)(lambda *args, scale: None)
wrong("paged_attention", "not_a_function", "the name of a function", general=True)("paged_attention")
wrong("paged_attention", "wrong_arguments", "without query_lens", general=True)(
    lambda query, key_pool, value_pool, block_tables, context_lens, *, scale: query
)
paged("wrong_type", "a list of outputs", ("return torch.cat(outputs)", "return outputs"), general=True)
paged("gqa_interleaved", "KV heads repeated in the wrong order", (INTERLEAVED, ".repeat(1, group, 1)"))
paged("one_kv_head", "the first KV head for all", (INTERLEAVED, "[:, :1].repeat(1, query.shape[1], 1)"))
paged(
    "mask_too_narrow", "a query doesn't see itself", ("position[None, :] > position", "position[None, :] >= position")
)
paged(
    "mask_too_wide",
    "a query sees the token behind it",
    ("position[None, :] > position", "position[None, :] - 1 > position"),
)
paged(
    "masks_by_block",
    "compares blocks, not positions",
    (
        HIDDEN,
        HIDDEN.replace("position[None, :]", "(position // block_size)[None, :]").replace(
            "position[context", "(position // block_size)[context"
        ),
    ),
)
paged("not_causal", "no mask", ('        scores = scores.masked_fill(hidden, float("-inf"))\n', ""))
paged(
    "positions_from_zero",
    "positions of queries from 0",
    ("position[context_len - query_len :, None]", "position[:query_len, None]"),
)
paged(
    "counts_queries_twice",
    "context and queries added up",
    ("        q = query", "        context_len = context_len + query_len\n        q = query"),
)
paged(
    "whole_blocks",
    "a context rounded up to whole blocks, a mask by blocks",
    ("arange(context_len)", "arange(-(-context_len // block_size) * block_size)"),
    (
        HIDDEN,
        "(position // block_size)[None, :] > (position // block_size)[context_len - query_len : context_len, None]",
    ),
)
paged(
    "reads_past",
    "a context rounded up to whole blocks, then masked",
    ("arange(context_len)", "arange(-(-context_len // block_size) * block_size)"),
    (HIDDEN, "position[None, :] > position[context_len - query_len : context_len, None]"),
)
paged(
    "drops_newest",
    "one token too few",
    ("        position", "        tokens = torch.arange(context_len)\n        position"),
    ("arange(context_len)\n        block", "arange(context_len - 1)\n        block"),
    ("position[context_len", "tokens[context_len"),
)
paged("no_scale", "no scale", (" * scale", ""))
paged("divides_by_scale", "divided by the scale", (" * scale", " / scale"))
paged("ignores_table", "logical blocks", (BLOCK, "block = position // block_size"))
paged(
    "another_row",
    "the first sequence's table for all",
    (BLOCK, "block = block_tables[0][position // block_size].long()"),
)
paged(
    "another_row",
    "the table of the sequence before",
    (BLOCK, "block = block_tables[s - 1][position // block_size].long()"),
)
paged(
    "wrong_queries",
    "the first rows of query for each sequence",
    ("query[start : start + query_len]", "query[:query_len]"),
)
paged(
    "wrong_queries", "row s of query for sequence s", ("query[start : start + query_len]", "query[s : s + query_len]")
)
paged("keys_for_values", "sums up keys", ("weights, v)", "weights, k)"))
paged(
    "no_largest",
    "exp without the largest score",
    (SOFTMAX, "weights = scores.exp() / scores.exp().sum(-1, keepdim=True)"),
)
paged(
    "not_divided",
    "weights that don't add up to 1",
    (SOFTMAX, "weights = (scores - scores.amax(-1, keepdim=True)).exp()"),
)
paged("wrong_axis", "softmax over the heads", ("dim=-1)\n        outputs", "dim=0)\n        outputs"))
paged("ignores_offset", "one slot of each block", ("position % block_size", "position * 0"))
paged(
    "full_blocks_only",
    "full blocks only",
    ("        k = key", "        block = block[: context_len // block_size * block_size]\n        k = key"),
    ("position % block_size", "position[: len(block)] % block_size"),
    ("position[None, :]", "position[None, : len(block)]"),
)
paged(
    "first_block_only",
    "the first block only",
    ("        k = key", "        block = block[:block_size]\n        k = key"),
    ("position % block_size", "position[: len(block)] % block_size"),
    ("position[None, :]", "position[None, : len(block)]"),
)
paged(
    "wrong_dtype",
    "an output of float32 for every query",
    ("return torch.cat(outputs)", "return torch.cat(outputs).float()"),
)
paged("wrong_shape", "heads first", ("hqk,khd->qhd", "hqk,khd->hqd"))
paged("wrong_shape", "heads put together", ("return torch.cat(outputs)", "return torch.cat(outputs).flatten(1)"))
paged(
    "mutates",
    "scales the queries in place",
    ("        start += query_len", "        q *= scale\n        start += query_len"),
    (" * scale", " * 1"),
)
paged(
    "raises",
    "takes the tables for a list of lists",
    (BLOCK, "block = [table[p // block_size] for p in position.tolist() + [9999]]"),
    general=True,
)
paged(
    "wrong_answer",
    "gives the heads back in another order",
    ("return torch.cat(outputs)", "return torch.cat(outputs).flip(1)"),
)

BY_BLOCKS = """
def paged_attention(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    size, group = key_pool.shape[1], query.shape[1] // key_pool.shape[2]
    outputs = []
    start = 0
    for table, n, m in zip(block_tables, context_lens, query_lens):
        q = query[start : start + m]
        start += m
        largest = torch.full((query.shape[1], m), float("-inf"))
        total = torch.zeros(query.shape[1], m)
        weighted = torch.zeros(m, *query.shape[1:])
        for i in range(0, n, size):
            block, filled = int(table[i // size]), min(size, n - i)
            k = key_pool[block, :filled].repeat_interleave(group, 1)
            v = value_pool[block, :filled].repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", q, k).float() * scale
            scores[:, torch.arange(i, i + filled)[None] > torch.arange(n - m, n)[:, None]] = float("-inf")
            larger = torch.maximum(largest, scores.amax(-1))
            factor = torch.exp(largest - larger)
            weights = torch.exp(scores - larger[..., None])
            total = total * factor + weights.sum(-1)
            weighted = weighted * factor.T[..., None] + torch.einsum("hqk,khd->qhd", weights, v.float())
            largest = larger
        outputs.append(weighted / total.T[..., None])
    return torch.cat(outputs).to(query.dtype)
"""
right("paged_attention", "the online softmax with einsum")(changed(BY_BLOCKS))


def by_blocks(diagnosis, name, *changes):
    wrong("paged_attention", diagnosis, name)(changed(BY_BLOCKS, *changes))


by_blocks(
    "forgets_to_rescale", "online, neither sum rescaled", ("total * factor", "total"), (" * factor.T[..., None]", "")
)
by_blocks("forgets_to_rescale", "online, the values not rescaled", (" * factor.T[..., None]", ""))
by_blocks(
    "last_block_only",
    "online, the sums begin anew in each block",
    ("total * factor + ", ""),
    ("weighted * factor.T[..., None] + ", ""),
)
by_blocks("no_largest", "online, the largest score begins at 0", ('m), float("-inf"))', "m), 0.0)"))


@wrong("paged_attention", "mean_of_blocks")
def softmax_a_block(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    """a softmax for each block, and the mean of these"""
    size, group, outputs, start = key_pool.shape[1], query.shape[1] // key_pool.shape[2], [], 0
    for table, n, m in zip(block_tables, context_lens, query_lens, strict=True):
        parts = []
        for i in range(0, n, size):
            k, v = (pool[int(table[i // size]), : n - i].repeat_interleave(group, 1) for pool in (key_pool, value_pool))
            scores = torch.einsum("qhd,khd->hqk", query[start : start + m], k) * scale
            hidden = torch.arange(i, i + len(k))[None] > torch.arange(n - m, n)[:, None]
            parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v))
        outputs.append(torch.stack(parts).mean(0))
        start += m
    return torch.cat(outputs)


@wrong("paged_attention", "positions_from_zero")
def is_causal(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    """torch's attention with is_causal, which counts queries from position 0"""
    size, group, outputs, start = key_pool.shape[1], query.shape[1] // key_pool.shape[2], [], 0
    for table, n, m in zip(block_tables, context_lens, query_lens, strict=True):
        k, v = (pool[table[: -(-n // size)].long()].flatten(0, 1)[:n] for pool in (key_pool, value_pool))
        k, v = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        q = query[start : start + m].transpose(0, 1)
        outputs.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(0, 1))
        start += m
    return torch.cat(outputs)


# 7.5 merge_splits


@right("merge_splits")
def a_softmax(outputs, lses):
    """a softmax over the splits"""
    return (lses.softmax(0).nan_to_num(0.0)[:, :, None] * outputs).sum(0)


@right("merge_splits")
def one_after_the_other(outputs, lses):
    """merged one after the other"""
    lse, merged = lses[0], outputs[0]
    for output, new in zip(outputs[1:], lses[1:], strict=True):
        both = torch.logaddexp(lse, new)
        safe = torch.where(both.isinf(), 0.0, both)
        merged = merged * (lse - safe).exp()[:, None] + output * (new - safe).exp()[:, None]
        lse = both
    return merged


@right("merge_splits")
def head_by_head(outputs, lses):
    """Python floats, head by head"""
    merged = torch.zeros_like(outputs[0])
    for head in range(lses.shape[1]):
        column = lses[:, head].tolist()
        if max(column) == -math.inf:
            continue
        weights = [math.exp(lse - max(column)) for lse in column]
        for split, weight in enumerate(weights):
            merged[head] += weight / sum(weights) * outputs[split, head]
    return merged


MERGE = """
def merge_splits(outputs, lses):
    largest = lses.max(dim=0).values
    largest = largest.masked_fill(largest == float("-inf"), 0.0)
    weights = torch.exp(lses - largest)
    total = weights.sum(dim=0).clamp(min=1e-30)
    return (weights[:, :, None] * outputs).sum(dim=0) / total[:, None]
"""


def merge(diagnosis, name, *changes, general=False):
    wrong("merge_splits", diagnosis, name, general)(changed(MERGE, *changes))


wrong("merge_splits", "unwritten", "the stub", general=True)(lambda outputs, lses: None)
wrong("merge_splits", "mean_of_splits", "the mean of the splits")(lambda outputs, lses: outputs.mean(0))
wrong("merge_splits", "not_divided", "the sum of the splits")(lambda outputs, lses: outputs.sum(0))
wrong("merge_splits", "empty_row_is_nan", "softmax alone")(
    lambda outputs, lses: (lses.softmax(0)[:, :, None] * outputs).sum(0)
)
wrong("merge_splits", "wrong_axis", "softmax over the heads")(
    lambda outputs, lses: (lses.softmax(-1).nan_to_num(0.0)[:, :, None] * outputs).sum(0)
)
wrong("merge_splits", "logarithms_as_weights", "the logarithms as weights")(
    lambda outputs, lses: (lses[:, :, None] * outputs).sum(0) / lses.sum(0)[:, None]
)
wrong("merge_splits", "largest_only", "the largest split alone")(
    lambda outputs, lses: outputs[lses.argmax(0), torch.arange(lses.shape[1])]
)
wrong("merge_splits", "one_weight_for_all_heads", "one weight for all heads of a split")(
    lambda outputs, lses: (lses.logsumexp(1).softmax(0)[:, None, None] * outputs).sum(0)
)
merge("not_divided", "weights that don't add up to 1", (" / total[:, None]", ""))
merge("no_largest", "exp without the largest", ("lses - largest", "lses"))
merge("base_two", "powers of 2", ("torch.exp(", "torch.exp2("))
merge("empty_row_is_nan", "0 divided by 0 for an empty row", (".clamp(min=1e-30)", ""))
merge("wrong_shape", "splits not summed up", (".sum(dim=0) / total[:, None]", " / total[:, None]"))
merge("wrong_answer", "the weights upside down", ("lses - largest", "(largest - lses)"))
