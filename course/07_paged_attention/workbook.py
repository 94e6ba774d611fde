# %% [markdown]
# # 07 · Workbook: read what the table says, and nothing else
#
# **You write attention over a paged cache: first for one query, then without ever holding more than a block, then the
# part of the engine, and at last as a GPU kernel.** Four exercises and a stretch. About 100 minutes, no GPU, no network.
#
# `paged_attention` is a part of the engine: at the end the model generates with yours.

# %% [markdown]
# Exercise 7.4 is a Triton kernel. On a machine without a GPU, Triton runs kernels in its **interpreter**, if it is told so
# before it is imported. That is why this cell comes first.

# %%
import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# %% [markdown]
# ## Exercise 7.1: gather, then attend
#
# Difficulty ●●○○○ · Importance ●●●●● · about 12 min · 5-6 lines
#
# One sequence, one head, one query: the token that is decoded now. Its keys and values lie in the pools, block by block,
# in the order that the table says. With $q$ the query, $k_i$ and $v_i$ the key and the value of token $i$, and $n$ the
# number of tokens (`context_len`), attention is
#
# $$\text{output} = \sum_{i<n} w_i\, v_i \qquad w = \text{softmax}(s) \qquad s_i = \text{scale} \cdot q \cdot k_i$$
#
# Write `gather_attention(query, key_pool, value_pool, table, context_len, scale)`:
#
# 1. gather the sequence's keys and values from its blocks, so that they lie one after the other;
# 2. leave out what is not the sequence's: the rest of its last block holds anything, NaN even;
# 3. compute the formula. `torch.softmax` is allowed.
#
# ```
# block_size 4, table [5, 2], context_len 6
# tokens 0 to 3 are key_pool[5, 0] to key_pool[5, 3], tokens 4 and 5 are key_pool[2, 0] and key_pool[2, 1]
# ```

# %% nbgrader={"schema_version": 3, "grade_id": "gather_attention", "grade": false, "solution": true, "locked": false, "task": false}
import torch


def gather_attention(query, key_pool, value_pool, table, context_len, scale):
    """Attention of one query over one sequence's tokens, wherever they lie.

    query: (D,). key_pool, value_pool: (num_blocks, block_size, D). Leave all three as they are.
    table: a list of the sequence's blocks, in order. context_len: how many tokens it has.
    Returns (D,).
    """
    ### BEGIN SOLUTION
    # Your lines here: the keys and the values, one after the other; then scores, weights, and the sum.
    keys = torch.cat([key_pool[block] for block in table])[:context_len]  # (context_len, D)
    values = torch.cat([value_pool[block] for block in table])[:context_len]
    scores = keys @ query * scale  # (context_len,)
    weights = torch.softmax(scores, dim=0)
    return weights @ values
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_gather_attention", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(gather_attention=gather_attention)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# `key_pool[block]` is one block's keys, `(block_size, D)`. Put the blocks of the table one below the other and you have a
# contiguous cache; from there on this is attention as in any textbook.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `torch.cat` of a list of blocks, in the table's order, then `[:context_len]`, for keys and for values. One score a token:
# `keys @ query`, times `scale`. The weights are the softmax of the scores, and the output is the sum of the values,
# each times its weight: `weights @ values`.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `keys = torch.cat([key_pool[block] for block in table])[:context_len]`, the same for `values`,
# `weights = torch.softmax(keys @ query * scale, dim=0)`. Cut **before** the softmax: a weight of 0 doesn't help, since
# 0 × NaN is NaN.
#
# </details>

# %% [markdown]
# ### What was copied
#
# Your function has copied every key and every value once, to have them in a row. This is what it costs in a layer of the
# bundled model (3 KV heads of 64, float32) for one new token:

# %%
for tokens in (128, 2048, 8192):
    cache = 2 * tokens * 3 * 64 * 4
    print(f"{tokens:>5} tokens: {cache / 2**20:5.2f} MiB of cache, read once, written once as a copy, read again")

# %% [markdown]
# A kernel reads each block where it lies, once, and copies nothing. But then it sees one block at a time, and softmax wants
# all scores at once. That is the next exercise.

# %% [markdown]
# ## Exercise 7.2: softmax, a block at a time
#
# Difficulty ●●●○○ · Importance ●●●●● · about 15 min · 9-11 lines
#
# `blocks` hands you the blocks of a sequence, one after the other: `for scores, values in blocks`. `scores` is `(n,)`, ready
# to go into the softmax; `values` is `(n, D)`. Return the same as `torch.softmax(all_scores, 0) @ all_values`, shape
# `(D,)`, with two rules:
#
# - **A block comes only once, and its memory is used again.** When you ask for the next one, the last one is gone (it is
#   overwritten with NaN). Keep three things on the way: the largest score so far, the sum of the weights so far, the
#   weighted sum of values so far. Nothing that grows with the number of blocks.
# - **Scores may be large**, 1,000 or −1,000. `exp(1000)` is infinite in float32; `exp(score - largest)` never is.
#
# The trouble is that `largest` may change at every block. What has been summed up with the old one must be put right:
# multiply it by `exp(old_largest - new_largest)`. This is the **online softmax** (Milakov and Gimelshein 2018), and
# FlashAttention is built on it.

# %% nbgrader={"schema_version": 3, "grade_id": "online_softmax", "grade": false, "solution": true, "locked": false, "task": false}
import torch


def online_softmax(blocks):
    """The softmax-weighted sum of values, without ever having all scores at once.

    blocks: an iterator of (scores, values); scores (n,), values (n, D), float32, n at least 1 and not always the same.
    Returns (D,), float32.
    """
    ### BEGIN SOLUTION
    # Your lines here: three running numbers; in each block, the new largest, the factor for the old, the new weights.
    largest = torch.tensor(float("-inf"))
    total = torch.tensor(0.0)
    weighted = torch.tensor(0.0)
    for scores, values in blocks:
        new_largest = torch.maximum(largest, scores.max())
        factor = torch.exp(largest - new_largest)  # 0 for the first block: exp(-inf)
        weights = torch.exp(scores - new_largest)
        total = total * factor + weights.sum()
        weighted = weighted * factor + weights @ values
        largest = new_largest
    return weighted / total
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_online_softmax", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(online_softmax=online_softmax)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Softmax is a fraction: on top the sum of `exp(score) * value`, below the sum of `exp(score)`. Both sums can be made a block
# at a time. If you subtract the same number from all scores, both grow smaller by the same factor, and the fraction stays.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Begin with `largest` = −∞ and both sums 0. In each block: `new_largest` is the larger one of `largest` and the block's own
# maximum. Multiply **both** sums by `exp(largest - new_largest)`, then add the block's weights, `exp(scores - new_largest)`,
# to the one and `weights @ values` to the other. Divide once, at the end.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `factor = torch.exp(largest - new_largest)`, which is `exp(-inf)` = 0 in the first block, where there is nothing to put
# right. `total = total * factor + weights.sum()`, `weighted = weighted * factor + weights @ values`,
# `largest = new_largest`. After the loop `weighted / total`.
#
# </details>

# %% [markdown]
# ### Who counts
#
# Your function on four blocks of two tokens, one block more each time; the values of block $b$ are about $10b$. With scores in
# rising order the factor is small, and what came before hardly counts any more. In falling order nothing needs to be put right,
# and the newcomers hardly count.

# %%
from pagedkv_lab.course import require

require(online_softmax=online_softmax)

values = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
for name, order in (("rising", [1.0, 4.0, 8.0, 11.0]), ("falling", [11.0, 8.0, 4.0, 1.0])):
    blocks = [(torch.tensor([score, score - 1.0]), values + 10 * number) for number, score in enumerate(order)]
    for count in range(1, 5):
        output = online_softmax(iter(blocks[:count]))
        print(f"{name:<8} after {count} blocks: {[round(float(x), 2) for x in output]}")

# %% [markdown]
# ## Exercise 7.3: the part of the engine
#
# Difficulty ●●●●○ · Importance ●●●●● · about 25 min · 12-16 lines
#
# A step of the engine has several sequences in it, and a model has many heads. Write
# `paged_attention(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale)`.
#
# - **Ragged batch.** `query` is `(T, Hq, D)`: the queries of all sequences, one after the other. Sequence $s$ has
#   `query_lens[s]` of them: one in decode, many in prefill.
# - **Positions.** `context_lens[s]` tokens of sequence $s$ lie in the pool, its queries' own among them. The queries are the
#   **last** ones: with a context of 10 and 3 queries, they stand at positions 7, 8 and 9.
# - **Causal.** A query sees the tokens at its own position and before, none behind.
# - **GQA.** The pools are `(num_blocks, block_size, Hkv, D)`. Query heads come in groups of `Hq // Hkv`; with 4 query heads
#   and 2 KV heads, heads 0 and 1 read KV head 0, heads 2 and 3 read KV head 1.
# - **Padding.** `block_tables` is `(S, max_blocks)`, a tensor; row $s$ is sequence $s$'s table. What stands in it behind the
#   sequence's last block means nothing. So does everything in the pool that isn't a token of the sequence: it may be NaN.
# - Return `(T, Hq, D)`, of the dtype of `query`.
#
# A loop over the sequences is fine. `torch.softmax` and `torch.einsum` are, too.

# %% nbgrader={"schema_version": 3, "grade_id": "paged_attention", "grade": false, "solution": true, "locked": false, "task": false}
import torch


def paged_attention(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale):
    """Causal attention of each sequence's newest tokens over all its tokens in the pool.

    query: (T, Hq, D). key_pool, value_pool: (num_blocks, block_size, Hkv, D).
    block_tables: (S, max_blocks), integers. context_lens, query_lens: S numbers each.
    Returns (T, Hq, D).
    """
    ### BEGIN SOLUTION
    # Your lines here: for each sequence its queries and positions, gather, repeat KV heads, scores, mask, softmax, sum.
    block_size, num_kv_heads = key_pool.shape[1:3]
    group = query.shape[1] // num_kv_heads
    outputs = []
    start = 0
    for table, context_len, query_len in zip(block_tables, context_lens, query_lens, strict=True):
        q = query[start : start + query_len]  # (query_len, Hq, D)
        start += query_len
        position = torch.arange(context_len, device=query.device)
        block = table[position // block_size].long()
        k = key_pool[block, position % block_size].repeat_interleave(group, dim=1)  # (context_len, Hq, D)
        v = value_pool[block, position % block_size].repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        hidden = position[None, :] > position[context_len - query_len :, None]  # (query_len, context_len)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(outputs)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_paged_attention", "grade": true, "solution": false, "locked": true, "points": 5, "task": false}
from pagedkv_lab.course import check

check(paged_attention=paged_attention)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# It is exercise 7.1 in a loop over the sequences, with a dimension for the heads and one for the queries. Keep count of
# where each sequence's queries begin in `query`, and of positions: they decide what is seen.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# The tokens of a sequence are at positions 0 to context_len − 1, each in block `table[position // block_size]`, at
# `position % block_size`. Index the pools with two tensors, so that only these are read. Repeat each KV head for its whole
# group (`repeat_interleave`, not `repeat`). The queries' positions are the last `query_len`; where a key's position is
# larger than the query's, the score becomes −∞.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `position = torch.arange(context_len)`, `block = table[position // block_size].long()`,
# `k = key_pool[block, position % block_size].repeat_interleave(group, dim=1)`. Scores:
# `torch.einsum("qhd,khd->hqk", q, k) * scale`. Hidden is
# `position[None, :] > position[context_len - query_len :, None]`, for `masked_fill`. At last
# `torch.einsum("hqk,khd->qhd", weights, v)`, and `torch.cat` of all sequences.
#
# </details>

# %% [markdown]
# ### What your attention reads
#
# The pool can keep a log of what is read from it. Three sequences in blocks of 4: one of 10 tokens, and two that share their
# first block. Shade and number say in which order your function has read.

# %%
from pagedkv_lab.course import require
from pagedkv_lab.show import attention_reads, reads_by_sequence

require(paged_attention=paged_attention)

pool = torch.randn(12, 4, 1, 8, generator=torch.Generator().manual_seed(7))
block_tables = torch.tensor([[6, 1, 9], [3, 8, 0], [3, 4, 0]])
context_lens, query_lens = [10, 7, 5], [1, 1, 1]
query = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(8))
reads = reads_by_sequence(
    paged_attention, query, pool, pool, block_tables, context_lens, query_lens, scale=8**-0.5
)
attention_reads(reads, block_tables.tolist(), context_lens, block_size=4, num_blocks=12)

# %% [markdown]
# ## Exercise 7.4: a decode kernel in Triton
#
# Difficulty ●●●●● · Importance ●●●●○ · about 35 min · 25 lines
#
# Now on a GPU's terms. A **kernel** is a function that runs many times at once; each run is a **program** and does its share.
# Here a program takes one query head of one sequence, walks through that sequence's block table, and loads one block in each
# turn. It can't hold all scores, so it is your online softmax. (No Triton on this machine? `pip install triton` gets it, on Linux,
# about 1 GB. Without it this exercise waits; all others go on.)
#
# The kernel gets **pointers** to the first number of each tensor. All tensors are contiguous, so number
# `[block, offset, kv_head, d]` of a pool is `((block * BLOCK_SIZE + offset) * num_kv_heads + kv_head) * DIM + d` places
# behind it. What you need of Triton:
#
# | | |
# |:---|:---|
# | `tl.program_id(0)`, `tl.program_id(1)` | which program this is: here the sequence, and the query head |
# | `tl.arange(0, DIM)` | the numbers 0 to DIM − 1, as a tensor (the ends are powers of two) |
# | `tl.load(pointers, mask=..., other=0.0)` | reads; where the mask is False nothing is read, and `other` comes back |
# | `tl.store(pointers, values)` | writes |
# | `tl.sum(x, axis=1)`, `tl.max(x, axis=0)`, `tl.maximum`, `tl.exp`, `tl.where` | as in torch |
# | `x[:, None]`, `x[None, :]` | as in torch, a new axis |
# | `tl.zeros((DIM,), tl.float32)`, `x.to(tl.float32)` | a tensor of zeros; another dtype |
# | `tl.cdiv(a, b)`, `for i in range(...)` | division, rounded up; loops are as in Python |
#
# Write both: `decode_kernel`, and `triton_decode`, which makes the output, and launches one program for each sequence and
# query head: `decode_kernel[(num_sequences, num_heads)](query, ..., BLOCK_SIZE=block_size, DIM=dim)`. Hand over the tensors
# themselves: Triton makes pointers of them. Names in capitals are known when the kernel is compiled;
# `block_size` and `D` are powers of two here. Scores and sums are float32. What lies behind the context must not be read, or it
# must be put out of the way before anything is multiplied by it: it may be NaN.


# %% nbgrader={"schema_version": 3, "grade_id": "triton_decode", "grade": false, "solution": true, "locked": false, "task": false}
import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # the other exercises don't need it
    triton = None

if triton is not None:

    @triton.jit
    def decode_kernel(
        query,  # (S, Hq, DIM)
        key_pool,  # (num_blocks, BLOCK_SIZE, num_kv_heads, DIM)
        value_pool,
        block_tables,  # (S, max_blocks)
        context_lens,  # (S,)
        output,  # (S, Hq, DIM)
        scale,
        num_heads,
        num_kv_heads,
        max_blocks,
        BLOCK_SIZE: tl.constexpr,
        DIM: tl.constexpr,
    ):
        """One query head of one sequence."""
        ### BEGIN SOLUTION
        # Your lines here: who am I, my query; three running numbers; for each block its keys, scores, weights, values.
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
            place = place[:, None] + column[None, :]  # (BLOCK_SIZE, DIM)
            k = tl.load(key_pool + place, mask=inside[:, None], other=0.0).to(tl.float32)
            v = tl.load(value_pool + place, mask=inside[:, None], other=0.0).to(tl.float32)
            scores = tl.sum(q[None, :] * k, axis=1) * scale
            scores = tl.where(inside, scores, float("-inf"))
            new_largest = tl.maximum(largest, tl.max(scores, axis=0))
            factor = tl.exp(largest - new_largest)
            weights = tl.exp(scores - new_largest)
            total = total * factor + tl.sum(weights, axis=0)
            weighted = weighted * factor + tl.sum(weights[:, None] * v, axis=0)
            largest = new_largest
        tl.store(output + row + column, weighted / total)
        ### END SOLUTION


def triton_decode(query, key_pool, value_pool, block_tables, context_lens, scale):
    """Attention in a decode step: one query a sequence.

    query: (S, Hq, D). key_pool, value_pool: (num_blocks, block_size, Hkv, D). All contiguous.
    block_tables: (S, max_blocks) int32. context_lens: (S,) int32, a tensor here, for the kernel to read.
    Returns (S, Hq, D).
    """
    ### BEGIN SOLUTION
    # Your lines here: the output, the grid, and the launch with all the sizes that the kernel asks for.
    num_sequences, num_heads, dim = query.shape
    block_size, num_kv_heads = key_pool.shape[1:3]
    output = torch.empty_like(query)
    decode_kernel[(num_sequences, num_heads)](
        query,
        key_pool,
        value_pool,
        block_tables,
        context_lens,
        output,
        scale,
        num_heads,
        num_kv_heads,
        block_tables.shape[1],
        BLOCK_SIZE=block_size,
        DIM=dim,
    )
    return output
    ### END SOLUTION


# %% tags=["raises-exception"] nbgrader={"schema_version": 3, "grade_id": "check_triton_decode", "grade": true, "solution": false, "locked": true, "points": 5, "task": false}
from pagedkv_lab.course import check

check(triton_decode=triton_decode)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Begin with the launcher and a kernel that stores zeros, then one that stores `q`: so you know that rows and programs fit.
# Then the loop: it is exercise 7.2 with a block that you load yourself. No program knows of any other.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Row `(sequence * num_heads + head) * DIM` of `query` is yours to read, the same row of `output` yours to write. The table's
# row begins at `sequence * max_blocks`. In turn `i` the tokens are `i * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)`; those below
# `context_len` are `inside`. Load keys and values with `mask=inside[:, None], other=0.0`, and set the other scores to −∞:
# a key of 0 has the score 0, which is not "no token".
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `place = ((block * BLOCK_SIZE + offset) * num_kv_heads + kv_head) * DIM`, then
# `place[:, None] + column[None, :]` is a tile of `(BLOCK_SIZE, DIM)`. `scores = tl.sum(q[None, :] * k, axis=1) * scale`,
# `scores = tl.where(inside, scores, float("-inf"))`. Weighted values: `tl.sum(weights[:, None] * v, axis=0)`. Load a block's
# number with `.to(tl.int64)`: a large pool has more numbers than fit into int32.
#
# </details>

# %% [markdown]
# ### Three ways to the same numbers
#
# The same three sequences: the package's own backend for the CPU (where numba is installed, it walks the table as your kernel
# does), your `paged_attention`, and your kernel.

# %%
from pagedkv_lab.attention import choose_backend

require(paged_attention=paged_attention)
arguments = (query, pool, pool, block_tables, context_lens, query_lens)
name, package = choose_backend(device="cpu")
answers = {name: package(*arguments, scale=8**-0.5), "paged_attention": paged_attention(*arguments, scale=8**-0.5)}
if triton is None:
    print("Triton is not installed: your kernel was NOT run.")
else:
    require(triton_decode=triton_decode)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = (query, pool, pool, block_tables.int(), torch.tensor(context_lens, dtype=torch.int32))
    answers["triton_decode"] = triton_decode(*(tensor.to(device) for tensor in tensors), 8**-0.5).cpu()
for name, answer in answers.items():
    print(f"{name:<16} {[round(float(x), 4) for x in answer[0, 0, :4]]} ...")

# %% [markdown]
# ## Stretch 7.5: merge what splits have found
#
# Difficulty ●●●●○ · Importance ●●●○○ · about 12 min · 5-6 lines
#
# One long sequence, many idle programs: so its tokens are dealt out to several (**split KV**, Flash-Decoding). Each attends to
# its own part and leaves two things: its output, as if there were no other tokens, and the **log-sum-exp** of its scores,
# $\text{lse} = \ln \sum_i e^{s_i}$. From these the whole can be put together exactly: an output counts as much as
# its split's part of the sum over all $e^{s_i}$.
#
# Write `merge_splits(outputs, lses)`. Log-sum-exps may be large (1,000). A split that has no tokens leaves −∞ and an output of 0;
# where **no** split has any (a padding row), the result is 0, not NaN.


# %% nbgrader={"schema_version": 3, "grade_id": "merge_splits", "grade": false, "solution": true, "locked": false, "task": false}
import torch


def merge_splits(outputs, lses):
    """The attention over all tokens, from that over each split's.

    outputs: (num_splits, H, D), one a split and head. lses: (num_splits, H), natural logarithms; -inf: no tokens.
    Returns (H, D).
    """
    ### BEGIN SOLUTION
    # Your lines here: the weight of each split, for each head, without overflow; then the weighted sum.
    largest = lses.max(dim=0).values  # (H,)
    largest = largest.masked_fill(largest == float("-inf"), 0.0)  # -inf - -inf would be NaN
    weights = torch.exp(lses - largest)  # (num_splits, H)
    total = weights.sum(dim=0).clamp(min=1e-30)
    return (weights[:, :, None] * outputs).sum(dim=0) / total[:, None]
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_merge_splits", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(merge_splits=merge_splits)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# It is one more softmax: over the splits, with the log-sum-exps as scores. The outputs are the values.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# The softmax goes along dimension 0, for each head by itself. `torch.softmax(lses, dim=0)` is right wherever a head has a
# token at all. If all its splits are empty, it computes −∞ − (−∞), which is NaN: subtract 0 there instead.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `weights = torch.softmax(lses, dim=0).nan_to_num(0.0)` is `(num_splits, H)`; give it an axis for D,
# `weights[:, :, None] * outputs`, and sum over dimension 0.
#
# </details>

# %% [markdown]
# ## Run it for real
#
# The engine with your attention in it: every layer of the bundled model calls it in every step. A step computes at most 32
# tokens, so that prompts come in chunks beside those who decode, and only two requests run at a time. The third one begins as
# the first did, and finds these blocks in the cache: its queries stand behind tokens that it has never computed.

# %%
from pagedkv_lab import SamplingParams
from pagedkv_lab.course import run_for_real

harbour = (
    "The keeper of the lighthouse wrote down every ship that came into the harbour, with its name, its flag and the hour, "
    "in a large blue book. Tonight"
)
run_for_real(
    paged_attention=paged_attention,
    prompts=[harbour + " he wrote", "A block table is", harbour + " the sea was calm, and"],
    params=SamplingParams(max_tokens=12, ignore_eos=True),
    max_model_len=128,
    max_num_batched_tokens=32,
    max_num_seqs=2,
)

# %% [markdown]
# ## Your progress

# %%
from pagedkv_lab.course import progress

progress()
