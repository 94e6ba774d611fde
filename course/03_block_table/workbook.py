# %% [markdown]
# # 03 · Workbook: where does a token lie?
#
# **You write the block table, and a real model reads its memory through it.** One class, three short functions and a
# stretch. About 45 minutes, no GPU, no network.
#
# `BlockTable` is a part of the engine: once it passes, it can stand in for the package's own. The functions are what the
# engine does with a table: write many tokens, grow, and hand all tables to a kernel.
#
# Three words. A **position** is a token's place in its sequence, from 0. A **block** is `block_size` slots of the
# pool, and has a number. A **slot** is the room for one token: slot s is in block `s // block_size`.

# %% [markdown]
# ## Exercise 3.1: the block table
#
# Difficulty ●●○○○ · Importance ●●●●● · about 15 min · 9 lines
#
# A sequence counts its own blocks: positions 0 to 15 are its **logical** block 0, the next 16 its logical block 1.
# Where a logical block really lies is another number, its **physical** block in the pool. The table says which.
#
# Write the class `BlockTable`, one table for one sequence:
#
# | call | what it does |
# |:---|:---|
# | `BlockTable(allocator)` | an empty table. It takes no block yet. |
# | `blocks` | a list: `blocks[i]` is the physical block of logical block i. |
# | `append_block()` | takes one block from the allocator, puts it at the end of `blocks`, and returns its number. |
# | `slot(position)` | the slot of the token at this position: block × block_size + offset. |
# | `free_all()` | gives every block back to the allocator, **the last one first**, and leaves the table empty. |
#
# You are given the allocator; of it you need `allocator.block_size`, `allocator.allocate()` and
# `allocator.free(block)`. The rest is fine print that a real engine depends on:
# - When the pool is empty, `allocate` raises `OutOfBlocks`. Let it pass, with the table as it was.
# - A position that the table has no block for raises `IndexError`: too far, or below 0.
# - `blocks` is the list itself, not a copy. When a prompt finds its beginning in the cache, the engine appends the
#   shared blocks to it.
# - After `free_all` the table can be used again.
#
# Example, with blocks of 4 tokens and an allocator that hands out blocks 5, 2 and 7. After three `append_block()`,
# `blocks` is `[5, 2, 7]`. Position 6 is in logical block 1, which is block 2, at offset 2: `slot(6)` is 2 × 4 + 2 = 10.
# `free_all()` gives back 7, then 2, then 5.

# %% nbgrader={"schema_version": 3, "grade_id": "BlockTable", "grade": false, "solution": true, "locked": false, "task": false}
class BlockTable:
    """One sequence's blocks, in order."""

    def __init__(self, allocator):
        """allocator: has block_size, allocate() and free(block)."""
        ### BEGIN SOLUTION
        # Your lines here: keep the allocator, and begin with an empty list called blocks.
        self.allocator = allocator
        self.blocks = []
        ### END SOLUTION

    def append_block(self):
        """Take one block from the allocator, put it last, return its number."""
        ### BEGIN SOLUTION
        # Your lines here.
        block = self.allocator.allocate()
        self.blocks.append(block)
        return block
        ### END SOLUTION

    def slot(self, position):
        """The slot of the token at `position`, a number from 0. Raises IndexError where there is none."""
        ### BEGIN SOLUTION
        # Your lines here: which logical block, which block is that, and which place in it?
        if position < 0:
            raise IndexError(f"no token has position {position}")
        block_size = self.allocator.block_size
        return self.blocks[position // block_size] * block_size + position % block_size
        ### END SOLUTION

    def free_all(self):
        """Give every block back, the last one first. The table is empty afterwards."""
        ### BEGIN SOLUTION
        # Your lines here.
        while self.blocks:
            self.allocator.free(self.blocks.pop())
        ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_BlockTable", "grade": true, "solution": false, "locked": true, "points": 4, "task": false}
from pagedkv_lab.course import check

check(BlockTable=BlockTable)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# The table is a list and nothing more. Each table needs a list of its own, made in `__init__`. Which block comes
# next is the allocator's to say: blocks of one sequence are scattered, because other sequences take some in between.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `append_block`: ask the allocator first, then append what it gave, then return it. `slot`: `position // block_size` is
# the logical block, `position % block_size` the offset in it. Look the logical block up in `blocks`; what you find
# begins at slot block × block_size. `free_all`: `free` each block once, and empty the list.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `self.blocks[position // block_size] * block_size + position % block_size`, with
# `block_size = self.allocator.block_size`. A list raises IndexError by itself where the index is too large, but
# `blocks[-1]` is the last one, so look at `position < 0` first. `self.blocks.pop()` takes the last block out of the
# list and returns it; do that `while self.blocks`.
#
# </details>

# %% [markdown]
# ### Two sequences, one pool
#
# Your table twice, on the package's allocator. Two sequences grow in turn, so neither gets neighbouring blocks. Then
# the first one ends, and a third takes over its blocks. Each arrow is an entry of one of your tables.

# %%
from pagedkv_lab.blocks import BlockAllocator
from pagedkv_lab.course import require
from pagedkv_lab.show import block_table_arrows

require(BlockTable=BlockTable)

allocator = BlockAllocator(num_blocks=8, block_size=4)
poem, list_of_things, letter = BlockTable(allocator), BlockTable(allocator), BlockTable(allocator)
for table in (poem, list_of_things, poem, list_of_things):
    table.append_block()
poem.free_all()
for table in (letter, list_of_things, letter):
    table.append_block()

words = {
    "list": ["bread", ",", "milk", ",", "eggs", ",", "a", "pound", "of", "butter"],
    "letter": ["My", "dear", "friend", ",", "how", "are", "you"],
}
block_table_arrows(
    {"list": list_of_things.blocks, "letter": letter.blocks}, words, block_size=4, num_blocks=allocator.num_blocks
)

# %% [markdown]
# ## Exercise 3.2: the slots of many tokens
#
# Difficulty ●●●○○ · Importance ●●●●○ · about 8 min · 1-4 lines
#
# A step of the engine writes the keys and values of many tokens at once: a prompt's 500, or one for each running
# sequence. It hands the pool one array, the **slot mapping**: for each token, the slot it goes to.
#
# Write `slot_mapping(block_table, start, num_tokens, block_size)`: the slots of positions `start` to
# `start + num_tokens - 1`, in this order. `block_table` is a list of physical blocks.
#
# Example: `slot_mapping([3, 1, 6], start=1, num_tokens=4, block_size=2)` is `[7, 2, 3, 12]`. Position 1 is the second
# slot of block 3, positions 2 and 3 fill block 1, position 4 is the first slot of block 6.
#
# A list or an array is welcome. A loop over positions is right, and in numpy it is three lines without a loop: `//` and
# `%` work on whole arrays, and an array can be indexed with an array. With a prompt of thousands of tokens that
# matters.

# %% nbgrader={"schema_version": 3, "grade_id": "slot_mapping", "grade": false, "solution": true, "locked": false, "task": false}
import numpy as np


def slot_mapping(block_table, start, num_tokens, block_size):
    """The slots of `num_tokens` tokens, from position `start` on.

    block_table: a list, the physical blocks of the sequence. Leave it as it is.
    start: position of the first token; it may lie in the middle of a block. num_tokens: may be 0.
    Returns a list or an array of whole numbers, one a token.
    """
    ### BEGIN SOLUTION
    # Your lines here: all positions first, then their blocks, then their offsets.
    positions = np.arange(start, start + num_tokens)
    blocks = np.array(block_table)[positions // block_size]
    return blocks * block_size + positions % block_size
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_slot_mapping", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(slot_mapping=slot_mapping)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# It is `slot` of exercise 3.1 for each position from `start` on. Consecutive positions are consecutive slots only
# within a block: at each boundary the table decides where it goes on.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# The positions are `start`, `start + 1`, ... up to `start + num_tokens - 1`. For each one, `position // block_size` is
# the index into the table and `position % block_size` the offset. Both come from the position, not from how many
# tokens you have done.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `positions = np.arange(start, start + num_tokens)`. Then `np.array(block_table)[positions // block_size]` is the block
# of every one of them. Times `block_size`, plus `positions % block_size`.
#
# </details>

# %% [markdown]
# ## Exercise 3.3: when a table grows
#
# Difficulty ●●○○○ · Importance ●●●●○ · about 6 min · 1-3 lines
#
# Before a step runs, the scheduler must know whether the pool has room: it asks how many blocks each sequence lacks.
#
# Write `blocks_to_append(num_tokens, num_new_tokens, block_size)`. The sequence has `num_tokens` tokens in as few blocks
# as will do, and is about to write `num_new_tokens` more. How many blocks must be appended for that?
#
# | `num_tokens` | `num_new_tokens` | `block_size` | append | |
# |---:|---:|---:|---:|:---|
# | 15 | 1 | 16 | 0 | the new token takes the last slot |
# | 16 | 1 | 16 | 1 | the block is full |
# | 14 | 3 | 16 | 1 | two fit, the third does not |
# | 0 | 40 | 16 | 3 | a prompt |
#
# A block is taken when a token has no slot, and not a step earlier: the request may be over by then.

# %% nbgrader={"schema_version": 3, "grade_id": "blocks_to_append", "grade": false, "solution": true, "locked": false, "task": false}
def blocks_to_append(num_tokens, num_new_tokens, block_size):
    """Blocks that a sequence lacks for its next tokens.

    num_tokens: tokens that lie in its blocks already, 0 or more.
    num_new_tokens: tokens that are to be written now, 0 or more.
    block_size: tokens that one block holds.
    Returns a whole number of blocks, 0 or more.
    """
    ### BEGIN SOLUTION
    # Your lines here: how many blocks before, and how many after?
    before = (num_tokens + block_size - 1) // block_size
    after = (num_tokens + num_new_tokens + block_size - 1) // block_size
    return after - before
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_blocks_to_append", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(blocks_to_append=blocks_to_append)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# The last block may have room, and the first new tokens go there. It is easiest to count the blocks of the whole
# sequence twice: as it is, and as it will be.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Round up both times, `num_tokens / block_size` and `(num_tokens + num_new_tokens) / block_size`, and subtract. If you
# count the free slots of the last block instead, mind that a full block has none: `block_size - num_tokens % block_size`
# says block_size there.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `(n + block_size - 1) // block_size` is n tokens' blocks. Take it for `num_tokens + num_new_tokens`, minus the same for
# `num_tokens`.
#
# </details>

# %% [markdown]
# ## Exercise 3.4: what last blocks waste
#
# Difficulty ●○○○○ · Importance ●●●○○ · about 5 min · 1-3 lines
#
# Whatever is free in the pool can be used by anybody: there is no external fragmentation. What is lost is internal: the
# empty slots in each sequence's last block.
#
# Write `internal_waste(lengths, block_size)`: how many slots are reserved and empty, over all sequences together.
#
# Example: `internal_waste([17, 5, 32], block_size=16)` is 26. 17 tokens take two blocks and leave 15 slots empty, 5
# leave 11, and 32 leave none.

# %% nbgrader={"schema_version": 3, "grade_id": "internal_waste", "grade": false, "solution": true, "locked": false, "task": false}
def internal_waste(lengths, block_size):
    """Slots that are reserved and hold no token.

    lengths: a list, the tokens of each sequence; may be empty, and a length may be 0. Leave it as it is.
    block_size: tokens that one block holds.
    Returns a whole number of slots.
    """
    ### BEGIN SOLUTION
    # Your lines here: for each sequence, the slots of its blocks minus its tokens.
    blocks = [(length + block_size - 1) // block_size for length in lengths]
    return sum(blocks) * block_size - sum(lengths)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_internal_waste", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(internal_waste=internal_waste)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Only the last block of a sequence can have empty slots, and it may have none. Two sequences never share a partly
# filled block, so go through them one by one.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# For each length: blocks, rounded up, times `block_size`, minus the length. A length that is a multiple of `block_size`
# gives 0, and so does 0.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `sum(...)` over `for length in lengths` of `(length + block_size - 1) // block_size * block_size - length`.
#
# </details>

# %% [markdown]
# ### Your function on three kinds of traffic
#
# 1,000 sequences each. The rule of thumb to hold it against: half a block a sequence.

# %%
require(internal_waste=internal_waste)

rng = np.random.default_rng(0)
for name, average in (("short questions", 60), ("chats", 300), ("long documents", 3000)):
    lengths = [int(n) for n in rng.gamma(2, average / 2, 1000).clip(1)]
    print(f"{name}, {sum(lengths) / 1000:.0f} tokens on average")
    for block_size in (4, 16, 64, 256):
        empty = internal_waste(lengths, block_size)
        share = empty / (sum(lengths) + empty)
        print(f"  blocks of {block_size:>3}: {empty / 1000:>5.1f} empty slots a sequence, {share:6.1%} of what is reserved")

# %% [markdown]
# Half a block, or so, until a block is longer than the sequence. What it costs is another matter: 32 empty slots are a
# third of a short question's memory and one percent of a long document's.

# %% [markdown]
# ## Stretch 3.5: the array that a kernel gets
#
# Difficulty ●●○○○ · Importance ●●○○○ · about 8 min · 3-5 lines
#
# A GPU kernel can't take a list of lists. It takes one array of 32-bit integers: **one row a sequence**, as wide as
# the longest table, and what is left of a shorter row is filled up with something.
#
# Write `padded_tables(tables, pad=0)`: a 2-D array of type `int32`. Row i begins with table i; the rest is `pad`.
#
# Example: `padded_tables([[5], [3, 1]])` is
#
# ```
# [[5, 0],
#  [3, 1]]
# ```

# %% nbgrader={"schema_version": 3, "grade_id": "padded_tables", "grade": false, "solution": true, "locked": false, "task": false}
import numpy as np


def padded_tables(tables, pad=0):
    """All block tables of a step in one array.

    tables: a list of lists of physical blocks, one a sequence; at least one. Leave them as they are.
    pad: what stands behind the end of a shorter table.
    Returns a 2-D int32 array: a row for each sequence, a column for each logical block of the longest.
    """
    ### BEGIN SOLUTION
    # Your lines here: an array full of `pad` first, then each table into its row.
    array = np.full((len(tables), max(len(table) for table in tables)), pad, dtype=np.int32)
    for row, table in zip(array, tables, strict=True):
        row[: len(table)] = table
    return array
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_padded_tables", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(padded_tables=padded_tables)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# All rows of an array are of one length. So first find the longest table, then make an array of that width, full of
# `pad`, and write the tables over it.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `np.full(shape, pad, dtype=np.int32)` makes the array. Its shape is (number of tables, length of the longest). Then
# assign each table to the beginning of its row; the rest of the row stays.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `for row, table in zip(array, tables): row[:len(table)] = table`. A row is a view of the array, so this writes into it.
#
# </details>

# %% [markdown]
# ### Why the padding must never be read
#
# 0 is a block like any other, and somebody holds it. So nothing in the array says where a table ends: a kernel must be
# told how many tokens each sequence has, and stop there. Here are two sequences, of 3 and of 7 tokens, on a pool of
# random keys and values. First with two different paddings, and right lengths. Then with one token too many:

# %%
import torch

from pagedkv_lab.attention.reference import paged_attention

require(padded_tables=padded_tables)

torch.manual_seed(0)
keys, values = torch.randn(2, 8, 4, 1, 16)  # two pools of 8 blocks of 4 tokens, one head of 16 numbers
query = torch.randn(2, 1, 16)  # one new token for each of the two sequences
tables = [[5], [3, 1]]


def attend(pad, context_lens):
    array = torch.from_numpy(padded_tables(tables, pad))
    return paged_attention(query, keys, values, array, context_lens, query_lens=[1, 1], scale=0.25)


print("padding 0 and padding 6 give the same:", torch.equal(attend(0, [3, 7]), attend(6, [3, 7])))
print("and where five tokens of the first are read:", torch.equal(attend(0, [5, 7]), attend(6, [5, 7])))

# %% [markdown]
# With the right lengths nobody looks at the padding. One block too far, and a sequence attends to a stranger's tokens,
# without an error. A padding of -1 is no protection: in numpy and torch it is the pool's last block.

# %% [markdown]
# ## Run it for real
#
# Your `BlockTable` goes into the engine, together with the parts that you have made in earlier chapters. The model
# generates; each of its tokens finds all earlier ones through your table, in all layers. Greedy decoding must give the
# same tokens as the package's own engine and as transformers, which has no blocks at all.

# %%
from pagedkv_lab.course import run_for_real

run_for_real(BlockTable=BlockTable)

# %% [markdown]
# ### What lies in your slots
#
# The last doubt: the tokens agree, but do the numbers lie where you say? Three short requests come first, so that the
# pool is used. Then the engine computes a prompt of 38 tokens and stops. Its table, as your class made it, and your `slot_mapping` say where the 38 keys are. Transformers' own cache
# says what they should be.

# %%
require(BlockTable=BlockTable, slot_mapping=slot_mapping)

import torch

from pagedkv_lab import Engine, Parts, SamplingParams, load_model

model = load_model("SmolLM2-135M-Instruct")
prompt = model.encode([{"role": "user", "content": "Write two sentences about a lighthouse keeper."}])

parts = Parts(BlockTable=BlockTable)
engine = Engine(model, num_gpu_blocks=32, max_model_len=256, model_impl="transformers", parts=parts)
for text, max_tokens in (("Once upon a time", 2), ("Water boils at", 20), ("Bread is made of", 2)):
    engine.add_request(text, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
for _ in range(2):
    engine.step()
request = engine.add_request(prompt, SamplingParams(max_tokens=4))
engine.step()
[seq] = engine.requests()[request].sequences
table = engine.snapshot().tables[seq.seq_id].tolist()
slots = torch.as_tensor(np.array(slot_mapping(table, 0, len(prompt), engine.block_size)))

with torch.inference_mode():
    _, cache = model.hf(torch.tensor([prompt], device=model.device)).to_tuple()
largest = 0.0
for layer, pool in zip(cache.layers, engine.runner.pool.keys, strict=True):
    ours = pool.flatten(0, 1)[slots.to(pool.device)]  # (38, KV heads, head_dim)
    theirs = layer.keys[0].transpose(0, 1)
    largest = max(largest, float((ours - theirs).abs().max() / theirs.abs().max()))
for unfinished in engine.requests():
    engine.abort(unfinished)

print(f"table {table}, position 37 in slot {slots[37].item()}")
print(f"{len(cache.layers)} layers × {len(prompt)} keys where you say they are:", "yes" if largest < 1e-3 else "no")

# %% [markdown]
# ## Your progress

# %%
from pagedkv_lab.course import progress

progress()
