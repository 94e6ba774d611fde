# %% [markdown]
# # 07 · The cache lies in 32 pieces. Who puts it together?
#
# **A sequence has 500 tokens, and their keys and values lie in 32 blocks, all over the pool: 22 MiB. The next token must see all of them, in each of 30 layers. Does somebody copy the 32 pieces together first, 22 MiB for every single token?**
#
# Afterwards you can
# - compute attention through a block table, by gathering and without,
# - take a softmax block by block, and say what its running maximum is for,
# - say which query may see which token, in prefill and in decode, and which KV head it reads,
# - read a paged attention kernel for a CPU and one for a GPU, and draw what a kernel reads,
# - say what splits and cascade attention are for,
# - judge what small blocks and table look-ups cost, by bytes and by the clock.
#
# 45 minutes · Difficulty ●●●●○ · Needs nothing but the bundled model. You should know a block table (chapter 03). A few cells show kernels in Triton; where it isn't installed they say so, and the rest runs without. All cells together run in well under a minute.

# %%
import os
from importlib.util import find_spec

import torch

# GPU kernels run without a GPU, too: Triton interprets them, slowly. It looks at this when it is first imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from timeit import repeat
from unittest import mock

import numpy as np
from IPython.display import display
from torch.utils._python_dispatch import TorchDispatchMode

from pagedkv_lab import Engine, Parts, SamplingParams, load_model
from pagedkv_lab.attention import numba_paged, reference, torch_paged
from pagedkv_lab.attention.cascade import shared_prefixes
from pagedkv_lab.attention.triton_launch import choose_num_splits
from pagedkv_lab.attention.work import FIRST, LAST, cut
from pagedkv_lab.blocks import BlockAllocator, hash_block
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.show import CannotFollow, attention_reads, reads_by_sequence, record_reads, show_source
from pagedkv_lab.sizing import human_bytes

HAS_TRITON = find_spec("triton") is not None
NO_TRITON = (
    "Triton is not installed here, so it is left out. To have it: pip install triton (about 1 GB, Linux only), "
    "then restart the kernel."
)
model = load_model("SmolLM2-135M-Instruct")

# %% [markdown]
# ## 1. What a layer is given
#
# Attention is a part of the engine like any other, so we can put one in that keeps what it was called with. The pool is shuffled, as if it had been in use for days. Three requests are in decode, the longest has 500 tokens, when a fourth one comes with a prompt.


# %%
class ScatteredAllocator(BlockAllocator):
    """The package's allocator, with its free blocks shuffled at the start."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(3))
        self._empty = type(self._empty)(self._empty[i] for i in order.tolist())


calls = []


def kept(*arguments, **options):
    """The package's attention. It keeps what each layer calls it with."""
    calls.append((arguments, options))
    return torch_paged.paged_attention(*arguments, **options)


harbour = model.encode(
    "The harbour master writes down every ship that comes in, the hour, the flag and the cargo. At night he reads "
    "the list aloud to his daughter, and she asks what each of them had seen on the way. " * 13
)
engine = Engine(
    model, num_gpu_blocks=48, max_model_len=600, enable_prefix_caching=False,
    parts=Parts(paged_attention=kept, BlockAllocator=ScatteredAllocator),
)  # fmt: skip
for prompt in (harbour[:499], harbour[:27], harbour[20:69]):
    engine.add_request(prompt, SamplingParams(max_tokens=8, ignore_eos=True))
engine.step()
engine.add_request(harbour[7:28], SamplingParams(max_tokens=8, ignore_eos=True))
calls.clear()
engine.step()

arguments, options = calls[20]  # of layer 20
query, key_pool, value_pool = (tensor.detach().cpu().float() for tensor in arguments[:3])
block_tables, context_lens, query_lens = arguments[3].cpu().int(), *arguments[4:]
scale = options["scale"]
batch = (query, key_pool, value_pool, block_tables, context_lens, query_lens)
num_blocks, block_size, num_kv_heads, head_dim = key_pool.shape
num_heads = query.shape[1]
print("query       ", tuple(query.shape), " tokens of this step, query heads, numbers a head")
print("key_pool    ", tuple(key_pool.shape), " blocks, slots, KV heads, numbers a head; value_pool likewise")
print("block_tables", tuple(block_tables.shape), " sequences, blocks of the longest")
print("context_lens", context_lens, " tokens in the pool, this step's included")
print("query_lens  ", query_lens, " how many of them are new")
print("scale       ", scale, " 1 / √64: products of 64 numbers are about √64 times as large as one")

# %% [markdown]
# That is the whole interface, and the one that your part will have. The tokens of all sequences stand one behind the other in `query`: three that decode, then the 21 of the prompt. Such a batch is called **ragged**; nothing is padded.
#
# This step's own keys and values are in the pool already. They were written before attention is called, so attention needs to look in one place only.
#
# ## 2. By the book: gather, then attend
#
# The first sequence's table, and one of its query heads. Look up the slot of each position, take the keys and values from there, and then it is attention as in any textbook:

# %%
table, length = block_tables[0], context_lens[0]
position = torch.arange(length)
slots = table[position // block_size] * block_size + position % block_size

keys = key_pool.flatten(0, 1)[slots]  # (500, 3, 64)
values = value_pool.flatten(0, 1)[slots]

scores = keys[:, 0] @ query[0, 0] * scale  # (500,): how well each key fits the query
weights = scores.softmax(0)  # (500,): positive, and 1 together
by_the_book = weights @ values[:, 0]  # (64,): the values, mixed by these weights

theirs = torch_paged.paged_attention(*batch, scale=scale)
print("the first slots:", slots[:18].tolist())
print("as the package has it:", torch.allclose(by_the_book, theirs[0, 0], atol=1e-5))

# %% [markdown]
# So yes: this one does copy. `key_pool[...][slots]` is a new tensor. What that costs, counted: a small class that adds up every byte that torch's operators write.


# %%
class Written(TorchDispatchMode):
    """Adds up the bytes of all tensors that torch makes anew, and notes the largest. Views make none."""

    def __init__(self):
        super().__init__()
        self.bytes = self.largest = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        is_view = any(out.alias_info and not out.alias_info.is_write for out in operator._schema.returns)
        if isinstance(result, torch.Tensor) and not is_view:
            self.bytes += result.nbytes
            self.largest = max(self.largest, result.nbytes)
        return result


with Written() as gathering:
    keys, values = key_pool.flatten(0, 1)[slots], value_pool.flatten(0, 1)[slots]
    keys[:, 0], values[:, 0]  # one head's: views
with Written() as repeating:
    for_nine_heads = keys.repeat_interleave(3, dim=1), values.repeat_interleave(3, dim=1)

cached = 2 * length * num_kv_heads * head_dim * 4
print(f"in the pool, for these {length} tokens:  {human_bytes(cached)} a layer")
print(f"written by the gather:            {human_bytes(gathering.bytes)}")
print(f"and for nine heads instead of 3:  {human_bytes(repeating.bytes)} more")

# %% [markdown]
# The gather reads the pool once, writes a copy and reads that again: **three times the bytes**. If keys and values are then repeated so that there is one for each of the nine query heads, as simple code does, that comes on top: read 1, write 3, and read 3 where 1 would do. A decode step does little arithmetic; it waits for memory. So bytes are time.
#
# Why not attend to the pieces where they lie? Because of the softmax. It divides by a sum over **all** tokens, so it seems that all scores must be there before the first value can be weighted.

# %% [markdown]
# ## 3. A softmax that doesn't wait
#
# First a detail that no implementation can leave out. exp grows fast, and numbers end:

# %%
print("float32, exp of 88 and 89:", torch.tensor([88.0, 89.0]).exp().tolist())
print("float16, exp of 11 and 12:", torch.tensor([11.0, 12.0], dtype=torch.float16).exp().tolist())
lone = torch.tensor([100.0, 98.0, 90.0])
print("softmax without care:     ", (lone.exp() / lone.exp().sum()).tolist())
safe = (lone - lone.max()).exp()
print("with the maximum taken off:", [round(weight, 4) for weight in (safe / safe.sum()).tolist()])

largest = max(
    float((keys_of[0].flatten(0, 1)[slots.to(keys_of[0].device)][:, h // 3].float() @ q[0, h].float()).max()) * scale
    for (q, *keys_of), _ in calls
    for h in range(num_heads)
)
print(f"largest score of our sequence, all layers and heads: about {largest:.0f}")

# %% [markdown]
# Taking the largest score off all of them changes nothing in the result, since it cancels in the division, and then no exponent is above 0. This is no precaution for rare cases: our small model has a score that float16 can't take the exp of. But now *two* things are needed from all scores: their maximum and their sum.
#
# The way out is to be wrong for a while, and to mend it. Take the maximum **so far**. When a later block has a larger score, everything summed up until then was taken relative to the wrong maximum, all of it by the same factor, exp(old - new). So multiply it by that and go on. This is the **online softmax** (Milakov & Gimelshein, 2018). Six scores in blocks of two, and values that are single numbers, so that one can follow:

# %%
toy_scores = torch.tensor([1.0, 3.0, 6.0, 2.0, 4.0, 5.0])
toy_values = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])

maximum, total, mixed = torch.tensor(-torch.inf), torch.tensor(0.0), torch.tensor(0.0)
print("scores       maximum   factor   weights            sum     values × weights")
for block in (slice(0, 2), slice(2, 4), slice(4, 6)):
    new_maximum = torch.maximum(maximum, toy_scores[block].max())
    factor = (maximum - new_maximum).exp()  # 1 where the maximum stays; 0 at first, exp(-inf)
    part = (toy_scores[block] - new_maximum).exp()
    total = total * factor + part.sum()
    mixed = mixed * factor + part @ toy_values[block]
    maximum = new_maximum
    print(
        f"{toy_scores[block].tolist()!s:<12} {maximum:>6.0f} {factor:>9.3f}   {part[0]:.3f}, {part[1]:.3f}"
        f" {total:>11.3f} {mixed:>13.3f}"
    )
print(f"\nonline:      {mixed / total:.4f}")
print(f"all at once: {toy_scores.softmax(0) @ toy_values:.4f}")

# %% [markdown]
# Three numbers are carried along: the maximum, the sum of weights, the mixed values. Only at the end is there a division. In the second block the maximum rises from 3 to 6, and what was there shrinks by exp(-3) = 0.050; in the third it stays, and the factor is 1.
#
# What goes wrong if one is careless? Without the factor, and with the average of each block's own softmax, both of which look plausible:

# %%
unscaled = torch.zeros(2)
averages = []
so_far = torch.tensor(-torch.inf)
for block in (slice(0, 2), slice(2, 4), slice(4, 6)):
    so_far = torch.maximum(so_far, toy_scores[block].max())
    part = (toy_scores[block] - so_far).exp()
    unscaled += torch.stack([part @ toy_values[block], part.sum()])
    averages.append(toy_scores[block].softmax(0) @ toy_values[block])
print(f"right: {mixed / total:.2f}   never rescaled: {unscaled[0] / unscaled[1]:.2f}   mean of the blocks: {sum(averages) / 3:.2f}")

# %% [markdown]
# All are averages of the values, so all look reasonable. Only a comparison with a plain softmax tells.
#
# Now the same on the real arrays, block by block along the table. Nothing is put together:


# %%
def attend_block_by_block(q, key_pool, value_pool, table, length, scale):
    """One query (Hq, D) over a sequence's blocks, each read where it lies. Returns (Hq, Dv)."""
    q = q.view(num_kv_heads, -1, q.shape[-1])  # (Hkv, group, D)
    maximum = torch.full(q.shape[:2], -torch.inf)
    total = torch.zeros(q.shape[:2])
    mixed = torch.zeros(*q.shape[:2], value_pool.shape[-1])
    for i, first in enumerate(range(0, length, block_size)):
        filled = min(block_size, length - first)  # the last block isn't full
        k, v = key_pool[table[i], :filled], value_pool[table[i], :filled]  # (filled, Hkv, D): views
        scores = torch.einsum("hgd,thd->hgt", q, k) * scale
        new_maximum = torch.maximum(maximum, scores.amax(-1))
        factor = (maximum - new_maximum).exp()
        weights = (scores - new_maximum[..., None]).exp()
        total = total * factor + weights.sum(-1)
        mixed = mixed * factor[..., None] + torch.einsum("hgt,thd->hgd", weights, v)
        maximum = new_maximum
    return (mixed / total[..., None]).flatten(0, 1)


with Written() as walking:
    walked = attend_block_by_block(query[0], key_pool, value_pool, table, length, scale)
watched = record_reads(key_pool)
attend_block_by_block(query[0], watched, value_pool, table, length, scale)
print("equal to the gather's:", torch.allclose(walked, theirs[0], atol=1e-5))
print(f"keys read: {len(watched.reads)} slots, of {length}; each once: {len(set(watched.reads)) == length}")
print(f"largest tensor made: {human_bytes(walking.largest)}, and by the gather {human_bytes(gathering.largest)}")

# %% [markdown]
# That is the answer to the question above: nobody has to put the pieces together. What this loop makes on its way is so small that it never leaves the processor's own cache, so the pool is read once, and that is all the traffic there is. In Python the loop is slow, a dozen calls for each block. Compiled, it is what serving engines do (section 7).

# %% [markdown]
# ## 4. Nine queries, three keys
#
# The query has nine heads, the pool three. In **grouped-query attention** (GQA) neighbours share: query head h reads KV head h // 3.

# %%
group = num_heads // num_kv_heads
for kv_head in range(num_kv_heads):
    print(f"KV head {kv_head}: query heads {[head for head in range(num_heads) if head // group == kv_head]}")

# %% [markdown]
# In `attend_block_by_block` that is the line `q.view(num_kv_heads, -1, ...)`: the three heads of a **group** become the rows of one small matrix. So each key is read once and used three times, and nothing is repeated in memory. The cache is a third of what nine KV heads would need, and so is the time to read it.
#
# Note the trap: `h % 3` is a mapping of nine heads to three, too. It runs, has the right shape, and is wrong (section 6).
#
# ## 5. Prefill and decode: who sees what
#
# In decode there is one query a sequence, and it sees everything up to itself. In prefill there are many, and each sees the tokens up to its own **position**. A sequence with context_len tokens in the pool, of which the last query_len are new, has its i-th query at position
#
#     context_len - query_len + i
#
# and that query sees the positions 0 to its own. Five new tokens behind three that are cached (a chunk, or a prompt with a prefix hit):


# %%
def visible(context_len, query_len):
    """(query_len, context_len): which token each query sees."""
    position = torch.arange(context_len)
    return position[None, :] <= position[context_len - query_len :][:, None]


for context_len, query_len in ((8, 5), (8, 1)):
    print(f"context_len {context_len}, query_len {query_len}")
    for row, position in zip(visible(context_len, query_len), range(context_len - query_len, context_len), strict=True):
        print(f"   position {position} sees  {' '.join('■' if seen else '·' for seen in row)}")

# %% [markdown]
# Decode is the same rule with one row. So one function does both, and a step may mix them. Here is the package's definition, which every faster version is held against. Gather, GQA by repeating, mask by position; nothing clever:

# %%
show_source(reference.paged_attention)

# %% [markdown]
# ## 6. What it looks like when it's wrong
#
# Five mistakes, each a few characters in the code above, and what the model then says:


# %%
def attention_with(mistake):
    """The definition, with one mistake."""

    def paged_attention(query, key_pool, value_pool, block_tables, context_lens, query_lens, *, scale, **options):
        size, kv_heads, heads = key_pool.shape[1], key_pool.shape[2], query.shape[1]
        kv_head = torch.arange(heads, device=query.device)
        kv_head = kv_head % kv_heads if mistake == "query head h reads KV head h % 3" else kv_head // (heads // kv_heads)
        outputs, start = [], 0
        for table, context_len, query_len in zip(block_tables, context_lens, query_lens, strict=True):
            newest = context_len
            if mistake == "reads the last block to its end":
                context_len = -(-context_len // size) * size
            position = torch.arange(context_len, device=query.device)
            slot = table[position // size].long() * size + position % size
            k, v = (pool.flatten(0, 1)[slot][:, kv_head] for pool in (key_pool, value_pool))
            scores = torch.einsum("qhd,khd->hqk", query[start : start + query_len], k)
            if mistake != "scale forgotten":
                scores = scores * scale
            own = torch.arange(newest - query_len, newest, device=query.device)
            if mistake == "masked by block":
                own = own // size * size + size - 1
            if mistake == "a query sees the next token, too":
                own = own + 1
            if mistake != "reads the last block to its end" or query_len > 1:
                scores = scores.masked_fill(position[None, :] > own[:, None], -torch.inf)
            outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
            start += query_len
        return torch.cat(outputs)

    return paged_attention


tea = [{"role": "user", "content": "How do I make a cup of tea? Answer in two sentences."}]
mistakes = (
    "none", "query head h reads KV head h % 3", "scale forgotten", "reads the last block to its end", "masked by block",
    "a query sees the next token, too",
)  # fmt: skip
for mistake in mistakes:
    broken = Engine(model, num_gpu_blocks=16, max_model_len=160, parts=Parts(paged_attention=attention_with(mistake)))
    [output] = broken.generate([tea], SamplingParams(max_tokens=28), use_tqdm=False)
    print(f"{mistake}:\n    {' '.join(output.text.split())}")

# %% [markdown]
# No mistake raises an error, and two of the five answer in good English. One reads the last block to its end: here the slots behind the last token are empty, in a pool that has been used they hold somebody else's words. The other one lets each token of the prompt peek at the next one. Both would survive a demo. So the check in the workbook doesn't look at text: it fills every slot that isn't yours with NaN, and compares numbers.
#
# ## 7. Kernels
#
# A **kernel** is a function that is compiled for one job. The engine on a CPU has one that walks the block table. This is its loop over **programs**: one for each sequence (or a piece of one) and each KV head, dealt out to the cores.

# %%
from pagedkv_lab.attention import numba_kernel, numba_tiles

show_source(numba_kernel.walk.py_func)

# %% [markdown]
# Three things differ from our loop. It works on **tiles** of 32 tokens and not on blocks, so that its speed doesn't hang on the block size: `find_slots` walks the table once, then a tile is fetched from whatever blocks it lies in. What is fetched goes into scratch that stays in the nearest cache (on a GPU: shared memory). And its exponentials are powers of two, which processors compute faster; 2 ** (x · log2 e) is exp(x).
#
# The look-up itself, all of it:

# %%
show_source(numba_tiles.find_slots.py_func)

# %% [markdown]
# ### The same on a GPU
#
# There are thousands of threads there, and one rarely writes for a thread. In **Triton** one writes for a program that handles whole arrays. Four things are new:
#
# - The function is started many times at once, on a **grid**. `tl.program_id(0)` says which one you are.
# - A tensor is passed as the address of its first number. You compute addresses: `key_pool + number`.
# - `tl.load(addresses, mask=..., other=0.0)` fetches an array of them. What is masked is **not read**. `tl.store` writes.
# - Sizes of arrays must be known when it is compiled, and powers of two: `tl.constexpr`.
#
# Here is a small one. It computes the scores of one query with one KV head: a program for each block.

# %%
if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def scores_kernel(query, key_pool, table, scores, length, kv_heads, BLOCK: tl.constexpr, DIM: tl.constexpr):
        block = tl.program_id(0)  # which of the sequence's blocks
        offset = tl.arange(0, BLOCK)
        position = block * BLOCK + offset
        slot = tl.load(table + block).to(tl.int64) * BLOCK + offset  # (BLOCK,): one look-up
        column = tl.arange(0, DIM)
        q = tl.load(query + column)  # (DIM,)
        number = slot[:, None] * kv_heads * DIM + column[None, :]  # (BLOCK, DIM): KV head 0 of each slot
        k = tl.load(key_pool + number, mask=(position < length)[:, None], other=0.0)
        tl.store(scores + position, tl.sum(k * q[None, :], axis=1), mask=position < length)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    first_query, pool, row = query[0, 0].to(device), key_pool.to(device), block_tables[0].to(device)
    output = torch.empty(length, device=device)
    scores_kernel[(len(row),)](first_query, pool, row, output, length, num_kv_heads, BLOCK=block_size, DIM=head_dim)
    by_torch = key_pool.flatten(0, 1)[slots, 0] @ query[0, 0]
    print(f"{len(row)} programs; as torch computes it: {torch.allclose(output.cpu(), by_torch, atol=1e-4)}")
else:
    print(NO_TRITON)

# %% [markdown]
# (Without a GPU it is Triton's **interpreter** that runs this, one program after the other. It is right and slow.)
#
# Now the real one. Look for what you know: the grid, the table, the mask, GQA's rows, the three running numbers.

# %%
if HAS_TRITON:
    from pagedkv_lab.attention import triton_kernels

    display(show_source(triton_kernels.slots_of.fn, triton_kernels.rescale.fn, triton_kernels.decode_kernel.fn))
else:
    print(NO_TRITON, "The kernel's source: decode_kernel in pagedkv_lab/attention/triton_kernels.py.")

# %% [markdown]
# ## 8. Side by side
#
# The same arrays for all of them, the ragged batch of section 1, and as the judge the definition in float64.


# %%
def with_triton(query, key_pool, value_pool, tables, context_lens, query_lens, **options):
    """The Triton kernels, wherever they run. Returns the result on the CPU."""
    from pagedkv_lab.attention import triton_paged

    tensors = [tensor.to(device) for tensor in (query, key_pool, value_pool, tables)]
    return triton_paged.paged_attention(*tensors, context_lens, query_lens, **options).cpu()


backends = {"torch": torch_paged.paged_attention, "walking the table, CPU": numba_paged.paged_attention}
if HAS_TRITON:
    backends["Triton"] = with_triton
else:
    print(NO_TRITON)
exact = reference.paged_attention(*(tensor.double() for tensor in batch[:3]), *batch[3:], scale=scale)
errors = {name: float((attend(*batch, scale=scale) - exact).abs().max()) for name, attend in backends.items()}
for name, error in errors.items():
    print(f"{name:<23} differs from float64 by less than 0.00001: {error < 1e-5}")

# %% [markdown]
# Equal up to the rounding of float32. They add in different orders, so the last digit may differ, and no more.
#
# What does each of them read? For torch there is `record_reads`, which hands it tensors that keep a log. The work of the CPU's kernel is cut into pieces, and each piece says which tokens it reads. And Triton's interpreter can be watched: each `tl.load` goes through one function, with the addresses.


# %%
class WatchedLoads:
    """Keeps the addresses that Triton's interpreter loads from."""

    def __enter__(self):
        from triton.runtime.interpreter import InterpreterBuilder

        self.addresses = []
        load = InterpreterBuilder.create_masked_load

        def noted(builder, pointers, mask, *rest):
            self.addresses.append(pointers.data[mask.data.astype(bool)].ravel())
            return load(builder, pointers, mask, *rest)

        self._patch = mock.patch.object(InterpreterBuilder, "create_masked_load", noted)
        self._patch.start()
        return self

    def __exit__(self, *_):
        self._patch.stop()

    def numbers(self, tensor):
        """Which numbers of this tensor were loaded, in order."""
        addresses = np.concatenate(self.addresses).astype(np.int64) - tensor.data_ptr()
        return addresses[(addresses >= 0) & (addresses < tensor.nbytes)] // tensor.element_size()


CAN_WATCH = HAS_TRITON and not torch.cuda.is_available()
NOT_WATCHED = "Compiled kernels can't be watched: this needs Triton's interpreter, on a machine without a GPU."

# %% [markdown]
# What each of them takes from the pool of keys (values are the same again), and the largest tensor that it makes on the way:

# %%
slot_bytes = num_kv_heads * head_dim * 4  # the keys of one slot


def keys_read(batch):
    """Bytes that each backend reads from the pool of keys."""
    _, key_pool, value_pool, _, context_lens, query_lens = batch
    read = {}
    for name, attend in (("reference", reference.paged_attention), ("torch", torch_paged.paged_attention)):
        watched = record_reads(key_pool)
        attend(query, watched, record_reads(value_pool), *batch[3:], scale=scale)
        read[name] = len(watched.reads) * slot_bytes
    work = cut(
        np.array(context_lens), np.array(query_lens), [],
        sliding_window=None, group=group, num_kv_heads=num_kv_heads, num_threads=2,
    )  # fmt: skip
    pieces = np.concatenate([work.few_rows, work.many_rows])
    read["walking the table, CPU"] = int((pieces[:, LAST] - pieces[:, FIRST]).sum()) * slot_bytes
    if CAN_WATCH:
        with WatchedLoads() as loads:
            with_triton(*batch, scale=scale)
        read["Triton"] = len(loads.numbers(key_pool)) * 4
    return read


print(f"keys of the four sequences, in bytes: {sum(context_lens) * slot_bytes:,}")
print("                         read from the pool   largest tensor made")
for name, read in keys_read(batch).items():
    with Written() as made:
        if name in ("reference", "torch"):
            {"reference": reference, "torch": torch_paged}[name].paged_attention(*batch, scale=scale)
    print(f"{name:<23} {read:>19,}   {human_bytes(made.largest) if made.largest else 'none: tiles only'}")
if not CAN_WATCH:
    print(NOT_WATCHED if HAS_TRITON else NO_TRITON)

# %% [markdown]
# All of them read each key once, but for Triton, which reads 50 slots more. That is the prompt. Here one of its programs has room for five queries, and each program reads all tokens before its own: 5 + 10 + 15 + 20 + 21 instead of 21. (For a prompt that hardly matters, there is much to compute for each key.) In decode, with one query, every kernel reads every key exactly once.
#
# The first two then write what they have read into new tensors, and read those: that is the difference.
#
# ## 9. A picture of what a kernel reads
#
# `reads_by_sequence` calls an attention with one sequence at a time and keeps the log. This is torch's gather on the three short sequences:

# %%
short = (query[1:], key_pool, value_pool, block_tables[1:], context_lens[1:], query_lens[1:])
reads = reads_by_sequence(torch_paged.paged_attention, *short, scale=scale)
attention_reads(reads, *short[3:5], block_size=block_size, num_blocks=num_blocks)

# %% [markdown]
# *Sixteen slots in a row are a block, with its number before it. Shade and number are the order in which slots are read: along the table, not along the pool. Empty slots of a last block are left alone.*
#
# The Triton kernel on the second one, by the addresses that it loads. Two of its three programs, one for each KV head:

# %%
if CAN_WATCH:
    own, lens = block_tables[2:3], context_lens[2:3]
    with WatchedLoads() as loads:
        with_triton(query[2:3], key_pool, value_pool, own, lens, [1], scale=scale)
    slot_and_head = [divmod(number // head_dim, num_kv_heads) for number in loads.numbers(key_pool).tolist()]
    by_program = {
        f"program of KV head {head}": list(dict.fromkeys(slot for slot, of in slot_and_head if of == head)) for head in (0, 1)
    }
    display(attention_reads(by_program, own.repeat(2, 1), lens * 2, block_size=block_size, num_blocks=num_blocks))
else:
    print(NOT_WATCHED if HAS_TRITON else NO_TRITON)

# %% [markdown]
# *The same slots in the same order; each program takes its own head's part of a slot. A GPU would run all three programs at once.*
#
# And this is what the mistake of section 6 looks like that answered in good English, the last block read to its end:

# %%
wrong = attention_with("reads the last block to its end")
reads = reads_by_sequence(wrong, *short, scale=scale)[:2]
attention_reads(reads, short[3][:2], short[4][:2], block_size=block_size, num_blocks=num_blocks)

# %% [markdown]
# *Red with dark corners: read, and not the sequence's own.* In the workbook the same picture is drawn of your kernel. And here, too, once you have passed exercise 7.3:

# %% tags=["nbval-ignore-output"]
from pagedkv_lab.course import mine

yours = mine().parts.paged_attention
print("yours, as kept from the workbook:" if yours else "not written yet, so this is the package's definition:")
try:
    reads = reads_by_sequence(yours or reference.paged_attention, *short, scale=scale)[:2]
    display(attention_reads(reads, short[3][:2], short[4][:2], block_size=block_size, num_blocks=num_blocks))
except CannotFollow as why:
    print(why)

# %% [markdown]
# ## 10. Splits: one long sequence on a large GPU
#
# A GPU like the H100 has 132 multiprocessors, and each wants at least one program. A decode step has sequences × KV heads of them. For a crowd that is plenty. For one user with a long document it is three, and 129 multiprocessors do nothing.
#
# So the tokens of a sequence are dealt out to several programs, called **splits** (Flash-Decoding, 2023). The package chooses their number like this:

# %%
print("sequences   tokens   splits   programs, of 132 that fit")
for sequences, tokens in ((1, 200), (1, 2048), (1, 32_768), (8, 2048), (64, 2048)):
    splits = choose_num_splits(sequences, num_kv_heads, tokens, num_multiprocessors=132, tile=64)
    print(f"{sequences:>9} {tokens:>8,} {splits:>8} {sequences * num_kv_heads * splits:>10}")

# %% [markdown]
# Each split computes attention over its own tokens as if there were no others. How are they put together? Not by a mean, as section 3 has shown. Each split also says how much weight it had in all: the logarithm of its sum of exponentials, its **log-sum-exp**. Four splits of our 500 tokens, for one head:

# %%
parts, lses = [], []
for first in range(0, length, 128):
    here = scores[first : first + 128]
    parts.append(here.softmax(0) @ values[first : first + 128, 0])
    lses.append(here.logsumexp(0))
shares = torch.stack(lses).softmax(0)
for first, share in zip(range(0, length, 128), shares, strict=True):
    print(f"tokens {first:>3} to {min(first + 128, length) - 1:>3}: {share:.0%} of the weight")
print("put together by these shares, equal to the whole:", torch.allclose(shares @ torch.stack(parts), by_the_book, atol=1e-5))
print("their mean, equal to the whole:", torch.allclose(torch.stack(parts).mean(0), by_the_book, atol=1e-5))

# %% [markdown]
# It is the online softmax once more, with splits for blocks; now they can run at the same time. (You write it as the stretch of the workbook.)
#
# ## 11. Cascade: what all have in common, once
#
# Sixteen users behind one system prompt of 1,024 tokens, 64 tokens of their own each. With prefix hits those 1,024 are the same blocks in all sixteen tables. They are *stored* once. But each program reads them for its own sequence, so they are *read* sixteen times.
#
# A merge by log-sum-exp offers a way out: attend to the common tokens with the queries of all sixteen together, read them once, attend to each one's own tokens apart, and merge. This is **cascade attention**.

# %%
users, shared, own = 16, 1024 // 16, 64 // 16  # blocks
generator = torch.Generator().manual_seed(0)
order = torch.randperm(shared + users * own, generator=generator).int()
tables = torch.cat([order[:shared].repeat(users, 1), order[shared:].view(users, own)], dim=1)
lens = [(shared + own) * 16] * users
pools = [torch.randn(len(order), 16, num_kv_heads, head_dim, generator=generator) for _ in range(2)]
crowd = (torch.randn(users, num_heads, head_dim, generator=generator), *pools, tables, lens, [1] * users)

lens_array, ones = np.array(lens), np.ones(users, np.int64)
prefixes = shared_prefixes(tables.numpy(), lens_array, ones, 16, group)
print(f"found: {len(prefixes[0].sequences)} sequences begin with the same {prefixes[0].num_tokens:,} tokens")
tokens_read = {}
for name, found in (("without", []), ("with", prefixes)):
    work = cut(lens_array, ones, found, sliding_window=None, group=group, num_kv_heads=num_kv_heads, num_threads=2)
    pieces = np.concatenate([work.few_rows, work.many_rows])
    tokens_read[name] = int((pieces[:, LAST] - pieces[:, FIRST]).sum())
    print(f"{name:>7} cascade: {tokens_read[name]:>6,} tokens read, {human_bytes(tokens_read[name] * 2 * slot_bytes)} a layer")


def milliseconds(attend, *arguments, **options):
    """The best of seven. The work is always the same, so whatever disturbs it can only add; best is held against best."""
    attend(*arguments, **options)  # once for nothing
    return 1000 * min(repeat(lambda: attend(*arguments, **options), number=3, repeat=7)) / 3


together = numba_paged.paged_attention(*crowd, scale=scale)
with_cascade = milliseconds(numba_paged.paged_attention, *crowd, scale=scale)
with mock.patch.object(numba_paged, "shared_prefixes", return_value=[]):
    apart = numba_paged.paged_attention(*crowd, scale=scale)
    without_cascade = milliseconds(numba_paged.paged_attention, *crowd, scale=scale)
print("the same result:", torch.allclose(together, apart, atol=1e-5))
fewer = tokens_read["without"] / tokens_read["with"]
print(f"{fewer:.1f} times fewer bytes; more than 4 times as fast: {without_cascade > 4 * with_cascade}")

# %% [markdown]
# Why isn't it as much faster as it reads less? Without cascade the sixteen read the same memory one after the other, and the processor's cache has kept it: fifteen of the sixteen reads are cheap. Bytes are time only where they come from memory. So the engine does it where it pays, for long prefixes and enough sequences. `attention/cascade.py` has the limits and the measurements behind them: a crowd like this one is 1.3 to 1.6 times as fast on two cores.

# %% [markdown]
# ## Check the article
#
# What the article says about reading through a table (§2.1, §2.3, §5.4). Eight sequences of 2,048 tokens, in blocks of different sizes, the same numbers in all of them.


# %%
def paged(block_size, scattered=True, sequences=8, tokens=2048):
    """The same keys and values in blocks of this size."""
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(sequences * tokens, num_kv_heads, head_dim, generator=generator) for _ in range(2))
    queries = torch.randn(sequences, num_heads, head_dim, generator=generator)
    blocks = sequences * tokens // block_size
    order = torch.randperm(blocks, generator=generator) if scattered else torch.arange(blocks)
    pools = []
    for numbers in (keys, values):
        pool = torch.empty(blocks, block_size, num_kv_heads, head_dim)
        pool[order] = numbers.view(pool.shape)
        pools.append(pool)
    return (queries, *pools, order.view(sequences, -1).int(), [tokens] * sequences, [1] * sequences)


def in_words(ratio):
    limits = {1.5: "less than 1.5 times as long", 2: "less than twice as long"}
    return next((words for limit, words in limits.items() if ratio < limit), "twice as long or longer")


def side_by_side(one, other, rounds=15):
    """How long attention takes with one of the two, over how long with the other. They are timed in turns."""
    times = [[], []]
    for _ in range(rounds):
        for arrays, times_of in zip((one, other), times, strict=True):
            times_of.append(milliseconds(numba_paged.paged_attention, *arrays, scale=scale))
    return min(times[0]) / min(times[1])


article = Claims()
scattered, in_order = paged(16), paged(16, scattered=False)
equal = torch.equal(*(numba_paged.paged_attention(*arrays, scale=scale) for arrays in (scattered, in_order)))
slower = side_by_side(scattered, in_order)
article.check(
    "§2.1",
    "Blocks need not lie side by side in memory",
    measured=(
        f"16,384 tokens, blocks scattered or one behind the other: equal to the last bit: {equal}; "
        f"scattered takes {in_words(slower)}"
    ),
    holds=equal and slower < 2,
    why="A block of 16 slots is 12 KiB in one piece here, enough that it doesn't matter where the next one is.",
)

# %%
per_token = model.shape.kv_bytes_per_token("float32")
shares = {size: 4 / (size * per_token) for size in (1, 4, 16)}
of_a_million = ", ".join(f"{share * 1e6:.2g} in blocks of {size}" for size, share in shares.items())
article.check(
    "§2.1",
    "If blocks are too small, the block table becomes too large",
    measured=f"bytes of table, for a million bytes of keys and values: {of_a_million}",
    holds=shares[1] > 0.01,
    why="Not even blocks of one token would make it large: an entry has 4 bytes, and a token of this small model 45 KiB.",
)

# %% [markdown]
# A kernel reads the table again in every layer and for every KV head, so beside *its* keys and values an entry counts for more. And finding the slots is work. Both measured, and the whole kernel with it. The look-up is timed alone, as the kernel calls it; its share is for all eight sequences and three heads, and of the time of all cores together. `find_slots` makes one turn of its outer loop for each block.

# %%
row = np.arange(2048, dtype=np.int32)
found = np.empty(2048 + 32, np.int64)


def look_up(size):
    """Milliseconds to find the slots of one sequence's 2,048 tokens."""
    numba_tiles.find_slots(row, 0, 2048, size, found)
    return 1000 * min(repeat(lambda: numba_tiles.find_slots(row, 0, 2048, size, found), number=50, repeat=15)) / 50


kernel = milliseconds(numba_paged.paged_attention, *scattered, scale=scale)
look_ups = {size: look_up(size) for size in (1, 4, 16)}
share_of = {size: 8 * num_kv_heads * each / (kernel * torch.get_num_threads()) for size, each in look_ups.items()}
print("           turns of   table, as a share of a     finding the slots, as")
print("blocks of  the loop   head's keys and values     a share of the kernel")
for size, most in ((1, 0.33), (4, 0.10), (16, 0.05)):
    share = f"less than {most:.0%}" if share_of[size] < most else f"{most:.0%} or more"
    print(f"{size:>9} {2048 // size:>9,} {4 / (size * 2 * head_dim * 4):>24.2%} {share:>25}")

# %%
small_blocks = side_by_side(paged(4), scattered)
lost, by_look_ups = small_blocks - 1, share_of[4] - share_of[16]
article.check(
    "§2.3",
    "With blocks of 4 instead of 16, looking up takes longer",
    measured=(
        f"the look-up alone: {'more' if look_ups[4] > 1.3 * look_ups[16] else 'not more'} than 1.3 times as long, and "
        f"{'less' if share_of[4] < 0.1 else 'more'} than a tenth of the kernel. The kernel as a whole: {in_words(small_blocks)}; "
        f"look-ups are {'less' if by_look_ups < lost / 2 else 'more'} than half of the difference"
    ),
    holds=look_ups[4] > 1.3 * look_ups[16],
    condition="it is a small part of the kernel" if share_of[4] < 0.1 else "",
    why=(
        "The rest goes with where the memory lies: 3 KiB in one piece instead of 12. And the Triton kernel looks up an entry for each "
        "token, whatever the block size: neighbours find the same one, in the cache."
    ),
)

# %%
chain = list(range(2048))


def hash_all(size):
    key = None
    for first in range(0, 2048, size):
        key = hash_block(key, chain[first : first + size])


def allocate_all(size):
    allocator = BlockAllocator(2048 // size, size)
    for _ in range(2048 // size):
        allocator.allocate()


def fastest(work, size):
    return min(repeat(lambda: work(size), number=3, repeat=15))


managing = {"hashing": fastest(hash_all, 4) / fastest(hash_all, 16)}
managing["allocating"] = fastest(allocate_all, 4) / fastest(allocate_all, 16)
in_short = ", ".join(f"{name} {'more' if ratio > 1.8 else 'not more'} than 1.8 times as long" for name, ratio in managing.items())
article.check(
    "§2.1, §2.3",
    "If blocks are too small, managing them costs more",
    measured=f"for one prompt, with blocks of 4 instead of 16: {in_short}",
    holds=min(managing.values()) > 1.8,
    why="Each block is allocated, hashed and looked up in a dictionary: work for Python on the host, four times as often.",
)

# %%
article.check(
    "§5.4",
    "Throughput is lower than expected because block look-ups are slow",
    measured=(
        f"blocks of 16: look-ups take {'less' if share_of[16] < 0.05 else 'more'} than 5% of the attention kernel, and attention "
        "is one part of a step among others"
    ),
    holds=share_of[16] >= 0.05,
    why=(
        "Without any look-up, a kernel would be that much faster and no more. An array instead of a dictionary is right all the "
        "same: a kernel can't read a dictionary (chapter 03)."
    ),
)

# %% [markdown]
# In all fairness: paging isn't free for a kernel. The PagedAttention paper (section 7.1) measured its first kernel against FasterTransformer's, which read contiguous memory: 20 to 26 % slower, by the look-ups, more branches and lengths that vary. It was a price worth paying, for many more sequences at a time; and since then it has become smaller. All of these:

# %%
article

# %% [markdown]
# ## In production
#
# | here | nano-vllm | vLLM |
# |:---|:---|:---|
# | `paged_attention` | none of its own: FlashAttention's, with `block_table=` (`nanovllm/layers/attention.py`) | a choice of backends (`--attention-backend`): on Ampere and Hopper FlashAttention first, then FlashInfer, then its own in Triton; on Blackwell FlashInfer first |
# | prefill and decode in one call | two: `flash_attn_varlen_func` and `flash_attn_with_kvcache` | one: `flash_attn_varlen_func` for any mixture |
# | a prompt without cached tokens | reads its own keys and values as they are; through the table only behind a prefix hit | through the table |
# | writing into slots | `store_kvcache`, a Triton kernel; slot -1 writes nothing | `reshape_and_cache` kernels |
# | the Triton kernel | | `unified_attention` (`vllm/v1/attention/ops/triton_unified_attention.py`), in two forms: one program for all of a sequence's tokens, or segments that `reduce_segments` merges |
# | splits | FlashAttention chooses | segments in Triton; FlashAttention has `num_splits` |
# | cascade attention | none | was there; off by default since March 2026, for fear of numerical differences, and removed by version 0.32 |
# | any block size | multiples of 256 | 16 by default; the backends named above take multiples of 16, or 16, 32 and 64 |
#
# And PagedAttention itself? The kernels of that name are gone. `paged_attention_v1` gave one program all tokens of a sequence; `paged_attention_v2`, October 2023, had splits. With version 0.8 vLLM's new engine went over to FlashAttention, which had learned to read block tables, and in July 2026 the old ones were deleted. The idea has won so completely that no kernel is named after it any more.
#
# Note the last row: the article's 8 for short sequences (§6.3) is nothing that these backends would run.

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. Twelve query heads, four KV heads. Which KV head does query head 7 read?**
#
# <details><summary>A. 3</summary>
#
# > **No.** That is 7 % 4. Neighbours share: heads 0, 1, 2 read KV head 0.
#
# </details>
# <details><summary>B. 1</summary>
#
# > **No.** That is 7 // 4. There are 12 / 4 = 3 query heads for each KV head, so it is 7 // 3.
#
# </details>
# <details><summary>C. 2</summary>
#
# > **Yes.** Groups of three: 6, 7 and 8 read KV head 2.
#
# </details>

# %% [markdown]
# **2. A kernel adds up weights relative to the maximum so far. The third block has a larger score than the first two. What about the sums so far?**
#
# <details><summary>A. They are multiplied by exp(old maximum - new maximum).</summary>
#
# > **Yes.** Both of them, the sum of weights and the mixed values. All terms were too large by the same factor.
#
# </details>
# <details><summary>B. They are thrown away: they were taken relative to a wrong maximum.</summary>
#
# > **No.** They are all wrong by one and the same factor, which can be put right.
#
# </details>
# <details><summary>C. Nothing: the division at the end puts it right.</summary>
#
# > **No.** It would if all weights were relative to the same maximum. Old and new ones aren't.
#
# </details>

# %% [markdown]
# **3. context_len is 40, query_len is 8. Which positions does the first of the eight queries see?**
#
# <details><summary>A. 0 to 39</summary>
#
# > **No.** That is what the last one sees. The others would read tokens that come after them.
#
# </details>
# <details><summary>B. 0 to 31</summary>
#
# > **No.** It sees itself, too.
#
# </details>
# <details><summary>C. 0 to 7</summary>
#
# > **No.** Those are counted from the chunk's beginning. Behind 32 cached tokens it is at position 32.
#
# </details>
# <details><summary>D. 0 to 32</summary>
#
# > **Yes.** It is at position 40 - 8 + 0 = 32, and sees what is before it and itself.
#
# </details>

# %% [markdown]
# **4. A sequence of 20 tokens has two blocks of 16. Its attention reads all 32 slots. When do you notice?**
#
# <details><summary>A. At once: an error says that the slots are empty.</summary>
#
# > **No.** A slot is numbers in an array, whoever wrote them.
#
# </details>
# <details><summary>B. Perhaps never: the text is still fluent.</summary>
#
# > **Yes.** In section 6 it was. In a used pool the twelve slots hold another user's tokens. A test that fills them with NaN notices.
#
# </details>
# <details><summary>C. When the third block is taken: then the first two are full.</summary>
#
# > **No.** Then those two are right, and the third one is read to its end instead.
#
# </details>

# %% [markdown]
# **5. One user, a context of 30,000 tokens, a large GPU, and attention is slow. What helps?**
#
# <details><summary>A. Splits: the context is dealt out to many programs.</summary>
#
# > **Yes.** Otherwise there are as many programs as KV heads, and most of the GPU is idle.
#
# </details>
# <details><summary>B. Larger blocks: fewer look-ups.</summary>
#
# > **No.** Look-ups are a small part, and the idle multiprocessors stay idle.
#
# </details>
# <details><summary>C. Cascade attention.</summary>
#
# > **No.** It saves reading what several sequences share. Here is one.
#
# </details>

# %% [markdown]
# **6. What is wrong with gathering a sequence's blocks into one tensor, and then calling a fast attention?**
#
# <details><summary>A. The result is less exact.</summary>
#
# > **No.** A copy is exact.
#
# </details>
# <details><summary>B. Nothing: fast attention makes up for it.</summary>
#
# > **No.** Decode waits for memory, and the copy triples what goes through it, in every layer of every step.
#
# </details>
# <details><summary>C. It moves three times the bytes: read the pool, write the copy, read the copy.</summary>
#
# > **Yes.** Right for a definition, or a prompt now and then; not for each token of each sequence.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "gather", "online softmax", "running maximum", "log-sum-exp", "GQA", "group", "causal mask", "ragged batch", "kernel",
    "tile", "grid", "Triton", "splits", "cascade attention", "prefill", "decode",
)  # fmt: skip

# %% [markdown]
# ## Read on
#
# - Kwon et al., *PagedAttention*, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 4.1 is attention block by block, 5.1 the kernels; 7.1 what paging costs a kernel, 7.2 block sizes from 1 to 256 by the clock, which is where the 16 comes from.
# - Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018 ([arXiv 1805.02867](https://arxiv.org/abs/1805.02867)). Section 3, algorithm 3: eight lines.
# - Dao et al., *FlashAttention*, NeurIPS 2022 ([arXiv 2205.14135](https://arxiv.org/abs/2205.14135)). Section 3.1: tiles and the online softmax for attention.
# - Dao, Haziza, Massa and Sizov, *Flash-Decoding for long-context inference*, 2023 ([crfm.stanford.edu](https://crfm.stanford.edu/2023/10/12/flashdecoding.html)). Splits, with a moving picture.
# - Ainslie et al., *GQA*, EMNLP 2023 ([arXiv 2305.13245](https://arxiv.org/abs/2305.13245)). Section 2.2.
# - Juravsky et al., *Hydragen*, 2024 ([arXiv 2402.05099](https://arxiv.org/abs/2402.05099)). Section 3: a shared prefix read once.
#
# Now write it yourself: [the workbook](../exercises/07_paged_attention/07_paged_attention.ipynb). Your attention will run in all 30 layers.
