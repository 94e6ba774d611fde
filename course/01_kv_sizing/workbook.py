# %% [markdown]
# # 01 · Workbook: how much memory does a KV cache take?
#
# **You write the arithmetic that an engine plans its memory with, and then an engine plans with it.** Five short
# functions and a stretch. About 30 minutes, no GPU, no network.
#
# Two of the five, `kv_bytes_per_token` and `num_blocks_that_fit`, are parts of the engine. The other three tell you
# what paging saves, and how to choose a block size.
#
# Units: everything is in bytes unless it says otherwise. KiB and GiB are powers of two (1,024 and 1,073,741,824
# bytes); GB is 1,000,000,000 bytes.

# %% [markdown]
# ## Exercise 1.1: bytes a token
#
# Difficulty ●○○○○ · Importance ●●●●● · about 5 min · 1 line
#
# Attention needs the keys and values of all earlier tokens. The cache keeps them. For one token it keeps, in
# **every layer** and for **every KV head**, one key and one value of `head_dim` numbers each.
#
# Write `kv_bytes_per_token(num_layers, num_kv_heads, head_dim, bytes_per_number)`.
#
# Example: TinyLlama has 22 layers, 4 KV heads and a `head_dim` of 64. In float16 (2 bytes a number) a token takes
# 22,528 bytes, which is 22 KiB. It has 32 query heads too, but their queries are used once and not kept.
#
# `bytes_per_number` may be a fraction: in int4 two numbers share a byte, so it is 0.5.

# %% nbgrader={"schema_version": 3, "grade_id": "kv_bytes_per_token", "grade": false, "solution": true, "locked": false, "task": false}
def kv_bytes_per_token(num_layers, num_kv_heads, head_dim, bytes_per_number):
    """Bytes that one token takes in the cache, over all layers.

    num_layers: layers of the model.
    num_kv_heads: heads that have keys and values of their own (fewer than the query heads in GQA).
    head_dim: numbers in one key, and in one value.
    bytes_per_number: 4 for float32, 2 for float16, 0.5 for int4.
    Returns a whole number of bytes.
    """
    ### BEGIN SOLUTION
    # Your line here: multiply what a token keeps. Keys and values both count.
    return int(2 * num_layers * num_kv_heads * head_dim * bytes_per_number)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_kv_bytes_per_token", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(kv_bytes_per_token=kv_bytes_per_token)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Take the smallest model there is: one layer, one KV head, one number in a key, one byte a number. What does a token
# leave behind there? One key and one value, so 2 bytes. Now let each of the four grow, one at a time.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# A product of five factors: 2 for key and value, then the four arguments. Nothing is divided, and there is no 8:
# the argument is in bytes, not bits.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `2 * num_layers * ...`, and the same for the three arguments that are left. `int(...)` around it turns 131072.0
# into 131072 where `bytes_per_number` is 0.5.
#
# </details>

# %% [markdown]
# ## Exercise 1.2: the contiguous footprint
#
# Difficulty ●○○○○ · Importance ●●●○○ · about 2 min · 1 line
#
# Without paging, a request's cache is one contiguous stretch of memory. Nobody knows how long an answer will be, so
# each request reserves room for the longest one allowed, `max_model_len` tokens, as soon as it starts.
#
# Write `contiguous_bytes(num_requests, max_model_len, bytes_per_token)`: what that reserves.
#
# Example: 16 requests, 2,048 tokens each, 819,200 bytes a token (Llama-2-13B in float16): 26,843,545,600 bytes, 25
# GiB. The weights of that model take 24.2 GiB.


# %% nbgrader={"schema_version": 3, "grade_id": "contiguous_bytes", "grade": false, "solution": true, "locked": false, "task": false}
def contiguous_bytes(num_requests, max_model_len, bytes_per_token):
    """Bytes that pre-allocation reserves.

    num_requests: requests at the same time.
    max_model_len: tokens that the longest request may have.
    bytes_per_token: bytes that one token takes in the cache, keys and values of all layers.
    Returns a whole number of bytes.
    """
    ### BEGIN SOLUTION
    # Your line here: how much one request reserves, times the requests.
    return num_requests * max_model_len * bytes_per_token
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_contiguous_bytes", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(contiguous_bytes=contiguous_bytes)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# How long the requests really are does not come in. Each one reserves the same, the most it could need.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# One request reserves `max_model_len` tokens of `bytes_per_token` bytes. The 2 for key and value is in
# `bytes_per_token` already.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# The product of the three arguments.
#
# </details>

# %% [markdown]
# ## Exercise 1.3: the paged footprint
#
# Difficulty ●●○○○ · Importance ●●●●○ · about 6 min · 1-4 lines
#
# With paging, a sequence takes blocks of `block_size` tokens, and only as many as its tokens fill. Its last block
# may be partly empty, and two sequences never share a partly filled block.
#
# Write `paged_bytes(lengths, block_size, bytes_per_token)`. `lengths` is a list with the number of tokens of each
# sequence.
#
# Example: `paged_bytes([17, 5], block_size=16, bytes_per_token=10)`. 17 tokens take 2 blocks, 5 tokens take 1. Three
# blocks of 16 tokens are 48 slots, and 480 bytes.
#
# You may use the `blocks_for` of workbook 00, which the package has too: `from pagedkv_lab.sizing import blocks_for`.


# %% nbgrader={"schema_version": 3, "grade_id": "paged_bytes", "grade": false, "solution": true, "locked": false, "task": false}
def paged_bytes(lengths, block_size, bytes_per_token):
    """Bytes that paging takes for sequences of these lengths.

    lengths: a list, the tokens of each sequence; may be empty, and a length may be 0. Leave it as it is.
    block_size: tokens that one block holds.
    bytes_per_token: bytes that one token takes in the cache.
    Returns a whole number of bytes.
    """
    ### BEGIN SOLUTION
    # Your lines here: count the blocks of each sequence, then turn blocks into bytes.
    blocks = sum((length + block_size - 1) // block_size for length in lengths)
    return blocks * block_size * bytes_per_token
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_paged_bytes", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(paged_bytes=paged_bytes)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Memory comes in blocks, not in tokens. A sequence of 5 tokens takes as much as one of 16. So first find the number
# of blocks, sequence by sequence, rounding up each time.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# For each length, divide by `block_size` and round up; 0 tokens give 0 blocks. Add these numbers. A block takes
# `block_size` times `bytes_per_token` bytes, however full it is.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `(length + block_size - 1) // block_size` is one sequence's blocks. Sum it with `for length in lengths`, and
# multiply the sum by `block_size * bytes_per_token`.
#
# </details>

# %% [markdown]
# ### What paging saves
#
# Your first three functions, on the article's example: Llama-2-13B in float16, 16 requests, at most 2,048 tokens
# each, 300 on average.

# %%
from pagedkv_lab.course import require
from pagedkv_lab.sizing import human_bytes

require(kv_bytes_per_token=kv_bytes_per_token, contiguous_bytes=contiguous_bytes, paged_bytes=paged_bytes)

per_token = kv_bytes_per_token(40, 40, 128, 2)
reserved = contiguous_bytes(16, 2048, per_token)
paged = paged_bytes([300] * 16, 16, per_token)
print(f"a token            {human_bytes(per_token):>9}")
print(f"contiguous         {human_bytes(reserved):>9}   of which {16 * 300 * per_token / reserved:.0%} is used")
print(f"paged, blocks of 16{human_bytes(paged):>9}   of which {16 * 300 * per_token / paged:.0%} is used")
print(f"contiguous takes {reserved / paged:.1f} times as much")

# %% [markdown]
# ## Exercise 1.4: how many blocks fit
#
# Difficulty ●●○○○ · Importance ●●●●● · about 5 min · 1-2 lines
#
# An engine sets its pool aside once, when it starts: it takes the memory that the weights leave, and cuts it into
# blocks. Write `num_blocks_that_fit(memory_bytes, block_size, bytes_per_token)`: how many **whole** blocks fit.
#
# Example: `num_blocks_that_fit(1000, block_size=16, bytes_per_token=10)`. A block takes 160 bytes. Six blocks take
# 960, and the 40 bytes that are left are no block: 6.
#
# If the weights alone are too large for the card, what they leave is negative. Then no block fits: 0.


# %% nbgrader={"schema_version": 3, "grade_id": "num_blocks_that_fit", "grade": false, "solution": true, "locked": false, "task": false}
def num_blocks_that_fit(memory_bytes, block_size, bytes_per_token):
    """Whole blocks that fit into this memory.

    memory_bytes: bytes that are left for the cache; may be negative.
    block_size: tokens that one block holds.
    bytes_per_token: bytes that one token takes in the cache.
    Returns a whole number of blocks, 0 or more.
    """
    ### BEGIN SOLUTION
    # Your lines here: bytes of one block first, then how often they fit. Mind a memory below 0.
    bytes_per_block = block_size * bytes_per_token
    return max(0, memory_bytes // bytes_per_block)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_num_blocks_that_fit", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(num_blocks_that_fit=num_blocks_that_fit)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# One block takes `block_size` times `bytes_per_token` bytes. How often does that go into `memory_bytes`? Here the
# rest is lost: a part of a block is no use.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Divide with `//`, which rounds down. It rounds a negative number down as well: `-5 // 160` is -1. So keep the
# answer from going below 0.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `memory_bytes // (block_size * bytes_per_token)`, inside `max(0, ...)`. The parentheses matter: without them Python
# divides by `block_size` and then multiplies.
#
# </details>

# %% [markdown]
# ### Who gets in?
#
# A card with 10 GB left for the cache, Llama-2-13B, requests of 300 tokens: how many run at the same time?

# %%
require(num_blocks_that_fit=num_blocks_that_fit, kv_bytes_per_token=kv_bytes_per_token)

memory, per_token = 10 * 10**9, kv_bytes_per_token(40, 40, 128, 2)
blocks = num_blocks_that_fit(memory, 16, per_token)
blocks_each = -(-300 // 16)
print(f"contiguous: {memory // (2048 * per_token)} requests, {human_bytes(2048 * per_token)} each")
print(f"paged:      {blocks // blocks_each} requests, {blocks_each} of {blocks} blocks each")

# %% [markdown]
# ## Exercise 1.5: choose a block size
#
# Difficulty ●●●○○ · Importance ●●●○○ · about 10 min · 4-8 lines
#
# Small blocks waste little: at most `block_size - 1` slots of each sequence's last block stay empty. Large blocks
# make short tables, and fewer blocks to hand out and to walk through. So set a limit to the waste, and take the
# largest block that respects it.
#
# The **waste** of a block size is the share of empty slots: slots of all blocks that the sequences take, minus
# their tokens, divided by those slots.
#
# Write `best_block_size(lengths, candidates, max_waste)`:
# - return the **largest** candidate whose waste is **at most** `max_waste`;
# - if no candidate is good enough, return the smallest one;
# - no sequences take no slots: their waste is 0.
#
# Example: one sequence of 6 tokens. Blocks of 2 waste nothing (3 blocks, 6 slots), blocks of 4 waste 2 of 8 slots,
# 0.25, and a block of 8 wastes the same. So `best_block_size([6], [2, 4, 8], 0.25)` is 8, and with a limit of 0.1 it
# is 2.


# %% nbgrader={"schema_version": 3, "grade_id": "best_block_size", "grade": false, "solution": true, "locked": false, "task": false}
def best_block_size(lengths, candidates, max_waste):
    """The largest block size that wastes little enough.

    lengths: a list, the tokens of each sequence; may be empty. Leave it as it is.
    candidates: a list of block sizes, in no order, at least one. Leave it as it is.
    max_waste: largest share of empty slots that is allowed, 0 to 1.
    Returns one of the candidates.
    """

    ### BEGIN SOLUTION
    # Your lines here: the waste of each candidate first, then the choice among those that are good enough.
    def waste(block_size):
        slots = sum((length + block_size - 1) // block_size for length in lengths) * block_size
        return (slots - sum(lengths)) / slots if slots else 0

    good = [size for size in candidates if waste(size) <= max_waste]
    return max(good) if good else min(candidates)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_best_block_size", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(best_block_size=best_block_size)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Two steps. First a number for each candidate: its waste. Then a choice: of the candidates that are good enough,
# the largest; it need not be the one that wastes least.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# The slots of a block size are the blocks of all sequences (rounded up for each sequence, as in 1.3) times the block
# size. The waste is `(slots - sum(lengths)) / slots`, once for all sequences together, and 0 where there are no
# slots. A waste of exactly `max_waste` is allowed. Go through all candidates; their order means nothing.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Write the waste as a function inside yours: `def waste(block_size): ...`. Collect
# `good = [size for size in candidates if waste(size) <= max_waste]`. Then `max(good)`, or `min(candidates)` where
# `good` is empty.
#
# </details>

# %% [markdown]
# ### Three kinds of traffic
#
# Your function on three distributions of lengths, 1,000 sequences each, with 5 % of waste allowed. The article's
# rule of thumb is 16, 8 for short sequences and 32 for long ones.

# %%
import numpy as np

require(best_block_size=best_block_size)

rng = np.random.default_rng(0)
for name, average in (("short questions", 60), ("chats", 300), ("long documents", 3000)):
    lengths = [int(n) for n in rng.gamma(2, average / 2, 1000).clip(1)]
    size = best_block_size(lengths, [1, 2, 4, 8, 16, 32, 64, 128, 256], 0.05)
    print(f"{name:<16} {sum(lengths) / 1000:6.0f} tokens on average   block size {size}")

# %% [markdown]
# ## Stretch 1.6: any model's bytes a token
#
# Difficulty ●●○○○ · Importance ●●○○○ · about 8 min · 3-4 lines
#
# A Hugging Face model brings a `config.json`. Read from it what `kv_bytes_per_token` needs:
# - `num_hidden_layers`, `num_attention_heads` (the query heads) and `hidden_size` are always there;
# - `num_key_value_heads` may be missing, or `None`: then every query head has keys and values of its own (MHA);
# - `head_dim` may be missing, or `None`: then it is `hidden_size` divided by the query heads.
#
# Write `kv_bytes_from_config(config, bytes_per_number)`; `config` is a dictionary. Example:
# `{"num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_size": 2048}` with 2 bytes a
# number gives 22,528.


# %% nbgrader={"schema_version": 3, "grade_id": "kv_bytes_from_config", "grade": false, "solution": true, "locked": false, "task": false}
def kv_bytes_from_config(config, bytes_per_number):
    """Bytes that one token of this model takes in the cache.

    config: a dictionary, the model's config.json. Leave it as it is.
    bytes_per_number: 4 for float32, 2 for float16, 0.5 for int4.
    Returns a whole number of bytes.
    """
    ### BEGIN SOLUTION
    # Your lines here: KV heads and head_dim first, each with what to do where the config doesn't say.
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return kv_bytes_per_token(config["num_hidden_layers"], kv_heads, head_dim, bytes_per_number)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_kv_bytes_from_config", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(kv_bytes_from_config=kv_bytes_from_config)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Only KV heads are in the cache, so the number of query heads is needed in two places only: where the config does
# not say how many KV heads there are, and where it does not say `head_dim`.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `config.get("head_dim")` is `None` where the entry is missing, and where it is there and `None`. Qwen3 states a
# `head_dim` of 128 that is not `hidden_size` divided by its heads, so look there first.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]`. Do the same for `head_dim`, then
# call your `kv_bytes_per_token`.
#
# </details>

# %% [markdown]
# ## Run it for real
#
# The engine plans its pool with the sizes of the model that it serves: bytes a token first, then the blocks that fit
# into its budget. Below, both numbers come from **your** functions. On a CPU the model is SmolLM2-135M in float32. The
# budget is 64 MiB. Read the plan: it is the arithmetic of this workbook.

# %%
from pagedkv_lab.course import require

require(kv_bytes_per_token=kv_bytes_per_token, num_blocks_that_fit=num_blocks_that_fit)

from pagedkv_lab import Engine, Parts, SamplingParams, load_model

model = load_model()
options = {"block_size": 16, "max_model_len": 1024, "kv_cache_memory_bytes": 64 * 2**20}
parts = Parts(kv_bytes_per_token=kv_bytes_per_token, num_blocks_that_fit=num_blocks_that_fit)
engine = Engine(model, parts=parts, **options)
print(engine.plan)

# %% [markdown]
# Now two requests on your plan, and the same two on an engine with the package's own parts. Greedy decoding must give
# the same tokens: how memory is planned changes what fits, never what is said.

# %%
require(kv_bytes_per_token=kv_bytes_per_token, num_blocks_that_fit=num_blocks_that_fit)

prompts = ["The memory of a language model", "A hotel with many small rooms"]
greedy = SamplingParams(temperature=0, max_tokens=24)
mine = engine.generate(prompts, greedy)
reference = Engine(model, **options).generate(prompts, greedy)

for ours, theirs in zip(mine, reference, strict=True):
    same = "same tokens" if ours.token_ids == theirs.token_ids else "DIFFERENT tokens"
    print(f"{same}: {ours.text.strip()!r}")

# %% [markdown]
# The pool of your plan, caught while three requests are at work. Each square is a block of 16 tokens; its
# colour is the request that holds it. Hatched blocks belong to nobody, but still hold what the two earlier requests
# wrote, in case somebody asks the same again: chapter 05.

# %%
require(kv_bytes_per_token=kv_bytes_per_token, num_blocks_that_fit=num_blocks_that_fit)

from pagedkv_lab.show import pool_picture

for prompt in (*prompts, "Once upon a time " * 30):
    engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=12))
for _ in range(4):
    engine.step()
snapshot = engine.snapshot()
while engine.has_unfinished_requests():
    engine.step()

pool_picture(snapshot)

# %% [markdown]
# ## Your progress
#
# Next: [02 · Block allocator](../../notebooks/02_block_allocator.ipynb), whose `BlockAllocator` hands out the blocks that
# you have counted here.

# %%
from pagedkv_lab.course import progress

progress()
