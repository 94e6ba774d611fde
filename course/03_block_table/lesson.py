# %% [markdown]
# # 03 · Where in the pool is position 37?
#
# **Your prompt has 38 tokens. The last one is at position 37, and its keys and values lie in slot 117 of the pool. Why there, and how does the model find them?**
#
# Afterwards you can
# - find any token in the pool by hand, from its position and a block table,
# - say where the comparison with an operating system's page table holds, and where it misleads,
# - tell internal from external fragmentation, and say which of them paging ends,
# - say what a table costs, and judge advice on arrays, dictionaries and block sizes.
#
# 30 minutes · Difficulty ●●○○○ · Needs nothing but the bundled model. All cells together run in about half a minute.

# %%
import random

import numpy as np
import torch

from pagedkv_lab import Engine, Parts, SamplingParams, load_model
from pagedkv_lab.blocks import BlockAllocator, BlockTable
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.show import block_table_arrows, footprint_over_time, show_source, waste_by_block_size, watch
from pagedkv_lab.sizing import blocks_for, human_bytes

model = load_model("SmolLM2-135M-Instruct")

# %% [markdown]
# ## 1. A pool that has been used
#
# Eight short requests come first, and each takes one block. Three of them end soon, in this order: the eighth, the third, the fifth. Then comes a prompt of 38 tokens, which needs three blocks.

# %%
openings = [
    "The capital of France is", "Once upon a time", "Water boils at", "The opposite of hot is",
    "A week has seven", "My favourite colour", "The moon goes round", "Bread is made of",
]  # fmt: skip
lengths = {2: 3, 4: 4, 7: 2}  # output tokens of the third, the fifth and the eighth

engine = Engine(model, num_gpu_blocks=24, max_model_len=256, model_impl="transformers")
for i, opening in enumerate(openings):
    engine.add_request(opening, SamplingParams(max_tokens=lengths.get(i, 64), ignore_eos=True))
for _ in range(4):
    engine.step()

lighthouse = [{"role": "user", "content": "Write two sentences about a lighthouse keeper."}]
request = engine.add_request(lighthouse, SamplingParams(max_tokens=60))
engine.step()

[seq] = engine.requests()[request].sequences
table = engine.snapshot().tables[seq.seq_id].tolist()
print(f"{seq.prompt_len} tokens, block table {table}")

# %% [markdown]
# The table is the answer. The sequence counts its own **logical blocks**: positions 0 to 15 are block 0, 16 to 31 block 1, the rest block 2. The table says which **physical block** of the pool each one is. They are the three blocks that had come back, the latest first.

# %%
prompt = model.encode(lighthouse)
words = [model.tokenizer.decode([token]).replace("\n", "⏎") for token in prompt]
neighbour = next(r for r in engine.requests().values() if r.prompt == openings[3])
tables = {"lighthouse": table, "neighbour": engine.snapshot().tables[neighbour.sequences[0].seq_id].tolist()}
tokens = {"lighthouse": words, "neighbour": [model.tokenizer.decode([t]) for t in neighbour.sequences[0].token_ids[:-1]]}

block_table_arrows(tables, tokens, block_size=16, num_blocks=24)

# %% [markdown]
# *Left, a sequence as it sees itself: in one piece and in order. Right, where it really lies. The arrows are the whole table.*

# %% [markdown]
# ## 2. From position to slot
#
# A **slot** is the room for one token. Block b has the slots b × 16 to b × 16 + 15. So:

# %%
logical, offset = divmod(37, 16)
block = table[logical]
print(f"position 37: logical block {logical}, offset {offset}")
print(f"logical block {logical} is physical block {block}")
print(f"slot {block} × 16 + {offset} = {block * 16 + offset}")

# %% [markdown]
# A division, a look-up and an addition. In the package it is one line; the other methods are no longer:

# %%
show_source(BlockTable.append_block, BlockTable.slot, BlockTable.free_all)

# %% [markdown]
# `free_all` does a list of blocks at a time where it can; its loop says what it means. The tail goes back first, so that it is also reused first. If the same prompt comes again, its beginning may still be there: a beginning without its end is worth something, an end without its beginning is not (chapter 05).
#
# ## 3. Look there
#
# Is it true? Transformers keeps its cache the plain way, one tensor a layer, position after position. We compute the prompt with it, take its key at position 37, and hold it against what lies in our slot 117.

# %%
with torch.inference_mode():
    _, cache = model.hf(torch.tensor([prompt], device=model.device)).to_tuple()
theirs = [layer.keys[0, :, 37] for layer in cache.layers]  # each (KV heads, head_dim)


def difference(slot):
    """The largest difference to transformers' keys of position 37, over all layers, as a share of the largest key."""
    pool = [keys.flatten(0, 1)[slot] for keys in engine.runner.pool.keys]
    return max(float((ours - key).abs().max() / key.abs().max()) for ours, key in zip(pool, theirs, strict=True))


for slot in (117, 116, 37):
    print(f"slot {slot:>3}:", "position 37, in all 30 layers" if difference(slot) < 1e-3 else "something else")

# %% [markdown]
# Slot 117 it is, in every layer. One table serves all layers: each layer has a pool of its own, cut in the same way. It is not slot 37, which is where it would lie if the sequence began at the pool's beginning. (The engine was made with `model_impl="transformers"`. Its own, faster forward pass stores the numbers of a key in another order, and then they can't be compared one by one.)
#
# All 38 at once: this is what the engine did when it wrote the prompt. The array of slots is called the **slot mapping**. With numpy it needs no loop:

# %%
positions = np.arange(38)
slots = np.array(table)[positions // 16] * 16 + positions % 16
print(slots)

largest = max(
    float((pool.flatten(0, 1)[torch.from_numpy(slots)] - layer.keys[0].transpose(0, 1)).abs().max() / layer.keys.abs().max())
    for pool, layer in zip(engine.runner.pool.keys, cache.layers, strict=True)
)
print("38 keys in 30 layers lie where the table says:", largest < 1e-3)

# %% [markdown]
# ## 4. Growing
#
# From here on each step writes one token. Eight steps, live:

# %%
_ = watch(engine, steps=8)

# %% [markdown]
# *The lighthouse's third block fills up, slot by slot. (In the still picture: as it was after the eighth step.)*
#
# Now step by step, around the boundary:

# %%
for _ in range(4):
    engine.step()
    table = engine.snapshot().tables[seq.seq_id].tolist()
    written = seq.num_computed_tokens
    print(f"position {written - 1} written: {written} tokens, {len(table)} blocks {table}")

# %% [markdown]
# The block is full with position 47, and nothing happens. Only position 48 takes a new one. `append_block` comes when a token has no slot, not when a block becomes full: the request might have ended there, and then a block too many would have been taken. In a pool under pressure that is a block for which somebody else is sent away.
#
# In numbers, a sequence of n tokens that is about to write m more lacks blocks_for(n + m) - blocks_for(n) blocks. In decode m is 1, and that is 1 exactly where n is a multiple of 16, else 0.

# %%
while engine.has_unfinished_requests():
    engine.step()
print(f"{engine.snapshot().ref_count.sum()} blocks in use: every table is empty again")

# %% [markdown]
# ## 5. An operating system's page table, and not quite
#
# The idea is taken from virtual memory, and most of it carries over.
#
# | operating system | here | |
# |:---|:---|:---|
# | page, page frame | logical block, physical block | the same: equal pieces, any piece is as good as any other |
# | page table, one a process | block table, one a sequence | the same |
# | address → page number and offset | position → logical block and offset | the same division |
# | two processes share a page | two sequences share a block | the same: prefix cache (05), copy-on-write (06) |
# | memory comes when it is touched | a block comes when a token needs a slot | the same, but **our code** has to notice |
# | the hardware translates each access | the attention kernel looks up each block, in each layer | **no hardware helps** |
# | a page that isn't there: a fault, and it is fetched | nothing: a wrong entry is read as if it were right | **no page faults** |
# | processes can't see each other's pages | any kernel can read the whole pool | **no protection** |
# | single pages are swapped out to disk | all blocks of a sequence or none: every step reads all of them | **whole sequences** are preempted (08) |
# | address space with holes, so tables have levels | positions 0 to n - 1 without a gap | simpler: **a flat list** will do |
#
# What misleads is in the middle of the table: an operating system catches you. A block table doesn't. Section 7 shows what that looks like.

# %% [markdown]
# ## 6. It does not matter where blocks lie
#
# If translation is right, the pool's order means nothing. Here is an allocator that hands out its blocks in random order, and the same request on it and on the package's own:

# %%
class ScatteredAllocator(BlockAllocator):
    """The package's allocator, with its free blocks shuffled at the start."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        random.Random(7).shuffle(self._empty)


greedy = SamplingParams(max_tokens=24)
outputs = []
for allocator in (BlockAllocator, ScatteredAllocator):
    engine = Engine(model, num_gpu_blocks=24, max_model_len=256, parts=Parts(BlockAllocator=allocator))
    engine.add_request(lighthouse, greedy)
    engine.step()
    print(f"{allocator.__name__}: table {next(iter(engine.snapshot().tables.values())).tolist()}")
    finished = []
    while engine.has_unfinished_requests():
        finished += engine.step().finished
    outputs.append(finished[0])
print(outputs[0].text.strip())
print("the same 24 tokens:", outputs[0].token_ids == outputs[1].token_ids)

# %% [markdown]
# ## 7. What it looks like when the table lies
#
# Two broken tables, each with one line changed, serve two users at once. The first ignores the table when it writes: slot = position. The second looks up the first block and counts on from there, as if the others lay behind it.

# %%
class IgnoresTable(BlockTable):
    def slot(self, position):
        return position


class CountsOn(BlockTable):
    def slot(self, position):
        return self.blocks[0] * self.allocator.block_size + position


bakery = [{"role": "user", "content": "Name three things that a bakery sells."}]
for broken in (BlockTable, IgnoresTable, CountsOn):
    engine = Engine(model, num_gpu_blocks=24, max_model_len=256, enable_prefix_caching=False, parts=Parts(BlockTable=broken))
    print(broken.__name__)
    for output in engine.generate([lighthouse, bakery], greedy, use_tqdm=False):
        print("   ", " ".join(output.text.split()))

# %% [markdown]
# No error, no warning. With `IgnoresTable` both users write into the same slots from 0 on, over each other. The first one reads what the second has written; the second reads its own blocks, where at first nobody has written.
#
# `CountsOn` is the more dangerous one. On a fresh pool a prompt's blocks do lie one behind the other, so its tests pass and its sentences begin well. They fall apart at position 48, where a sequence takes its fourth block, which is not behind its third. Scattered blocks and a crossed boundary belong into every test of a table; the check in the workbook has both.
#
# ### A surprise
#
# Now something that looks as if it must go wrong. After the prompt is computed we swap two entries in its table: the first block for the second. Everything that was at positions 0 to 15 is now looked up as 16 to 31, and the other way round.

# %%
tables = []


class KeptTable(BlockTable):
    """The package's table. Each one is kept in a list, so that we can get at it."""

    def __init__(self, allocator):
        super().__init__(allocator)
        tables.append(self)


def swap_after_the_prompt(i, j):
    """Generate, with two entries of the table swapped once the prompt is computed."""
    engine = Engine(model, num_gpu_blocks=24, max_model_len=256, parts=Parts(BlockTable=KeptTable))
    engine.add_request(lighthouse, greedy)
    engine.step()
    blocks = list(tables[-1].blocks)
    blocks[i], blocks[j] = blocks[j], blocks[i]
    tables[-1].blocks = blocks
    finished = []
    while engine.has_unfinished_requests():
        finished += engine.step().finished
    return finished[0]


right = outputs[0]
for i, j in ((0, 1), (0, 2)):
    output = swap_after_the_prompt(i, j)
    same = "the same tokens" if output.token_ids == right.token_ids else "other tokens"
    print(f"entries {i} and {j} swapped: {same}")
    print("   ", " ".join(output.text.split()))

# %% [markdown]
# Swapping two full blocks changes nothing. Attention takes a weighted sum over all earlier tokens, and a sum doesn't ask for the order. What tells tokens apart by position was put **into** each key before it was stored (RoPE turns a key by an angle that grows with its position). A token that is generated sees all of them, so any order of full blocks will do.
#
# Swap a full block with the last one, and it is another text. Not because of order: the last block has 6 tokens and 10 empty slots. Where it counts as full, empty slots are read as if they were tokens; where a full one counts as the last, ten of its tokens are not read, and new ones are written over them. The text is fluent all the same. You would not notice in a demo.
#
# So don't lean on the first: while a prompt is being computed, each of its tokens may see only the ones before it, and those are chosen by position. There the order of entries does count.

# %% [markdown]
# ## 8. Two kinds of fragmentation
#
# Memory that is reserved and empty is **internal** fragmentation. Memory that is free, and in pieces too small for the next request, is **external** fragmentation.
#
# The old way comes in two forms. Reserve the longest length for everybody, and every hole fits every request: no external fragmentation, much internal (chapter 01). Or suppose that you knew each request's length beforehand and reserved exactly that: nothing internal. Then the holes are of all sizes. Here requests of 64 to 400 tokens come and go on 1,024 slots:

# %%
def turned_away(seed, arrivals):
    """Requests of known lengths on contiguous memory, first fit. Yields (memory, wanted) where one finds no place.

    Each waits until enough memory is free. One item of memory stands for 16 slots: who has it, or "." for nobody.
    """
    rng = random.Random(seed)
    memory = ["."] * 64
    guests = []
    for name in arrivals:
        wanted = rng.randint(4, 25)
        while memory.count(".") < wanted:
            gone = guests.pop(rng.randrange(len(guests)))
            memory = ["." if guest == gone else guest for guest in memory]
        place = "".join("." if guest == "." else "#" for guest in memory).find("." * wanted)
        if place < 0:
            yield memory, wanted
        else:
            guests.append(name)
            memory[place : place + wanted] = [name] * wanted


memory, wanted = next(turned_away(0, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
gaps = "".join("." if guest == "." else " " for guest in memory).split()
print("".join(memory))
print(f"free: {16 * memory.count('.')} slots. The next request wants {16 * wanted}. The longest gap has {16 * max(map(len, gaps))}.")

# %% [markdown]
# *Each character is 16 slots, each letter a request, a dot is free.*
#
# Enough is free, and the request has to wait for somebody else to end. In blocks of 16 the same memory takes it at once: any free block will do. How often does that happen?

# %%
share_turned_away = sum(1 for _ in turned_away(1, range(5_000))) / 5_000
print(f"contiguous: {share_turned_away:.0%} of the requests find no place while enough memory is free")
print("in blocks:   0%, because free is free")

# %% [markdown]
# The price of blocks is the other kind: a last block that is not full. Half a block a sequence, on average. What that means depends on how long sequences are:

# %%
rng = np.random.default_rng(0)
chats = [int(n) for n in rng.gamma(2, 150, 200).clip(1)]  # 200 chats, 300 tokens on average
waste_by_block_size(chats, (1, 4, 8, 16, 32, 64, 256))

# %% [markdown]
# *Left, the empty share grows with the block; right, the table shrinks.*
#
# And over a run, in the engine itself. Contiguous reservation takes the longest length for each request; blocks follow the tokens. (Memory doesn't depend on what a model says, so this is the toy model, which is fast.)

# %%
from pagedkv_lab import ContiguousEngine

toy = load_model("toy")
lengths = ((20, 70), (90, 30), (33, 40), (10, 90))  # prompt and output
requests = [(rng.integers(1, 200, n).tolist(), SamplingParams(max_tokens=m, ignore_eos=True)) for n, m in lengths]
runs = {}
for name, make in (
    ("contiguous", lambda: ContiguousEngine(toy, num_gpu_blocks=4, max_model_len=256)),
    ("blocks of 16", lambda: Engine(toy, num_gpu_blocks=64, max_model_len=256)),
    ("blocks of 64", lambda: Engine(toy, num_gpu_blocks=16, block_size=64, max_model_len=256)),
):
    one = make()
    for ids, params in requests:
        one.add_request(ids, params)
    reserved, filled = [], []
    while one.has_unfinished_requests():
        report = one.step()
        reserved.append(report.pool.used * one.block_size)
        filled.append(report.used_slots)
    runs[name] = reserved, filled
footprint_over_time(runs)

# %% [markdown]
# *Grey is reserved and empty: internal fragmentation. In blocks of 16 it is a thin line on top of what is filled.*
#
# ## 9. What a kernel gets
#
# A step runs many sequences, each with a table of its own length. A GPU kernel can't take a list of lists: it takes one array of 32-bit integers, a row a sequence, as wide as the longest. The rest of a row is filled with anything, and never read, because the kernel is told each sequence's length besides. This is what the engine hands over in each step:

# %%
from pagedkv_lab.engine.runner import StepInput

show_source(StepInput)

# %%
lists = [[4, 2, 7, 9], [3], [0, 12]]
array = np.zeros((len(lists), max(map(len, lists))), np.int32)
for row, blocks in zip(array, lists, strict=True):
    row[: len(blocks)] = blocks
print(array)

# %% [markdown]
# The zeros are padding, and 0 is a block like any other. Nothing in the array says that the second sequence ends after block 3. If a kernel trusted the array alone, that sequence would attend to block 0: somebody else's tokens.

# %% [markdown]
# ## Check the article
#
# Seven claims on tables, and a remedy. First the size of a table:

# %%
import sys

article = Claims()
entries = blocks_for(8192, 16)
as_array = np.arange(entries, dtype=np.int32)
as_list = as_array.tolist()
list_bytes = sys.getsizeof(as_list) + sum(sys.getsizeof(block) for block in as_list)
cached = 8192 * model.shape.kv_bytes_per_token("float16")
article.check(
    "§2.3", "8,192 tokens in blocks of 16: a table of 512 entries, about 2 KB, which can be neglected",
    measured=(
        f"{entries} entries, {as_array.nbytes:,} bytes as int32; the tokens themselves take {human_bytes(cached)}, "
        f"{cached / as_array.nbytes:,.0f} times as much, even in a model of 135M"
    ),
    holds=entries == 512 and abs(as_array.nbytes / 2000 - 1) < 0.05,
    condition="as an array of int32",
    why=f"As a Python list of ints it is up to {list_bytes // 1000} KB: a pointer and an object for each entry.",
)

# %%
article.check(
    "§2.3", "Blocks of 4 make the table 4 times as large",
    measured=f"{blocks_for(8192, 4):,} entries, {blocks_for(8192, 4) // entries} times as many",
    holds=blocks_for(8192, 4) == 4 * entries,
    why="The bytes still don't matter. The work does: four times as many blocks to take, to hash and to look up.",
)

# %%
empty = max(reserved - filled for reserved, filled in zip(*runs["blocks of 16"], strict=True))
article.check(
    "§2.1", "Paging wastes at most one block for each sequence",
    measured=f"four sequences in blocks of 16, over {len(runs['blocks of 16'][0])} steps: at most {empty} slots empty, of 4 × 15",
    holds=empty <= 4 * 15,
    why="One slot less than a block, to be exact: a block is taken for a token, so it holds at least that one.",
)

# %% [markdown]
# Next, the holes. §2.3 says that paging ends external fragmentation, but that a pool that is much used gets holes, which have to be managed. The shuffled pool of section 6 is nothing but holes:

# %%
article.check(
    "§2.3", "Paging ends external fragmentation; yet the pool gets holes from taking and giving back",
    measured=(
        f"contiguous: {share_turned_away:.0%} find no place with enough memory free. In blocks: nobody, and with "
        f"its blocks in random order the model says {'the same' if outputs[0].token_ids == outputs[1].token_ids else 'something else'}"
    ),
    holds=share_turned_away > 0 and outputs[0].token_ids == outputs[1].token_ids,
    condition="the holes are there, and they do no harm",
    why="A free list doesn't manage holes, it makes them irrelevant: the next block is any block.",
)

# %% [markdown]
# §5.1 has an example, sequences of always 17 tokens: two blocks, the second with one token in it, half wasted; larger blocks are one way out.

# %%
def empty_slots(length, block_size):
    return blocks_for(length, block_size) * block_size - length


article.check(
    "§5.1", "17 tokens in blocks of 16 waste half",
    measured=f"{empty_slots(17, 16)} of the 16 slots of the second block, {empty_slots(17, 16) / 32:.0%} of both blocks",
    holds=abs(empty_slots(17, 16) / 32 - 0.5) < 0.05,
    condition="half of the two blocks together; of the second block it is nearly all",
)

# %%
by_size = {size: empty_slots(17, size) for size in (4, 8, 16, 32, 64)}
article.check(
    "§5.1", "Where sequences have 17 tokens, larger blocks are a way out",
    measured="empty slots by block size: " + ", ".join(f"{size}: {empty}" for size, empty in by_size.items()),
    holds=min(by_size[32], by_size[64]) < by_size[16],
    why="32 wastes as much as 16 does, 64 more. Smaller blocks help: 8 waste 7 slots, 4 waste 3. And real lengths differ.",
)

# %% [markdown]
# §5.1 also says what to suspect if blocks are free and allocation fails all the same: a table out of bounds, more logical blocks than physical ones. Four children ask the same storyteller, and we count both:

# %%
storyteller = "You tell long, quiet stories to children. You use plain words. " * 6
engine = Engine(model, num_gpu_blocks=16, max_model_len=160)
for question in ("a baker", "a sailor", "a gardener", "a clown"):
    chat = [{"role": "system", "content": storyteller}, {"role": "user", "content": f"Tell me about {question}."}]
    engine.add_request(chat, SamplingParams(max_tokens=4))
engine.step()
snapshot = engine.snapshot()
logical = sum(len(table) for table in snapshot.tables.values())
physical = int((snapshot.ref_count > 0).sum())
while engine.has_unfinished_requests():
    engine.step()

article.check(
    "§5.1", "More logical than physical blocks: the table is out of bounds, and allocation fails",
    measured=f"{logical} entries in 4 tables, {physical} blocks in use, {snapshot.num_blocks} in the pool; all four were served",
    holds=not logical > snapshot.num_blocks,
    why=(
        "More entries than blocks is what sharing is for. One sequence alone can't have more than the pool: this engine "
        "refuses it at the door. What does go out of bounds is a table of fixed width, one of max_model_len / block_size "
        "entries, when somebody forgets the limit."
    ),
)

# %% [markdown]
# Last, §5.4: if throughput is low, looking up blocks may be slow, and an array is better than a dictionary. Here are the slots of 8,192 tokens, from the same table kept in four ways. Only ratios are shown: your seconds will be others.

# %%
from timeit import repeat

as_dict = dict(enumerate(as_list))


def slots_one_by_one(blocks):
    return [blocks[position // 16] * 16 + position % 16 for position in range(8192)]


def slots_at_once():
    positions = np.arange(8192)
    return as_array[positions // 16] * 16 + positions % 16


def seconds(function, *args):
    return min(repeat(lambda: function(*args), number=2, repeat=7)) / 2


one_by_one = {name: seconds(slots_one_by_one, b) for name, b in (("list", as_list), ("dict", as_dict), ("array", as_array))}


def compared(a, b):
    """How long a takes, compared with b, in words that hold on any machine."""
    return "about as long as" if 0.6 < a / b < 1.7 else "longer than" if a > b else "less time than"


dictionary = compared(one_by_one["dict"], one_by_one["list"])
array = compared(one_by_one["array"], one_by_one["list"])
faster = one_by_one["dict"] / seconds(slots_at_once)
at_once = "over 5 times as fast as" if faster > 5 else "less than 5 times as fast as"
print(f"one by one: the dictionary takes {dictionary} a list, the numpy array {array} a list")
print(f"all in one call, the array is {at_once} the dictionary")

# %%
for prompt_of in (lighthouse, bakery):
    engine.add_request(prompt_of, SamplingParams(max_tokens=6))
step_seconds = min([engine.step().seconds for _ in range(6)][1:])
share = 2 * one_by_one["dict"] / 8192 / step_seconds  # in decode, each sequence writes one slot
article.check(
    "§5.4", "Throughput is low: table look-ups are slow, so use arrays and not dictionaries",
    measured=(
        f"one by one, a dictionary takes {dictionary} a list, a numpy array {array} a list; all in one call, the array "
        f"is {at_once} the dictionary"
    ),
    holds=faster > 5,
    condition="for many tokens in one call, as when a prompt is written; one by one an array is no faster",
    why=(
        f"And look at the share first: finding the slots of a decode step takes {'less' if share < 0.01 else 'more'} than "
        "1 % of it, even with this small model. Engines use arrays for another reason: a kernel can't read a dictionary. "
        "What a look-up costs inside a kernel is chapter 07."
    ),
)

# %% [markdown]
# All of them:

# %%
article

# %% [markdown]
# ## In production
#
# | here | nano-vllm | vLLM |
# |:---|:---|:---|
# | `BlockTable.blocks` | a list, `block_table`, on each `Sequence` | twice: the scheduler's lists of blocks by request, and the worker's `BlockTable` (`vllm/v1/worker/block_table.py`) |
# | the array of tables, int32 | `ModelRunner.prepare_block_tables`: built anew each step, padded with -1 | one array of `max_num_reqs` rows, made once; `append_row` adds what is new, then it is copied to the GPU |
# | `slots`: the slot mapping | in `prepare_prefill`, block by block; in `prepare_decode`, the last block only | a Triton kernel on the GPU, from positions and tables, into int64 |
# | a padding token's slot | | -1 (`PAD_SLOT_ID`): written nowhere |
# | a block when a token has no slot | `BlockManager.may_append`, where `len(seq) % block_size == 1`: the new token counts already | `KVCacheManager.allocate_slots`, for all new tokens of a request |
# | the tail is freed first | `deallocate` goes through the table backwards | likewise |
#
# Our engine keeps its array between steps, too, and writes into it only what is new (`engine/batch.py`). A kernel may want blocks of another size than the allocator: vLLM's table then splits each block into several.

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. Blocks have 16 slots. A sequence's table is [9, 0, 4]. In which slot is the token at position 20?**
#
# <details><summary>A. 20</summary>
#
# > **No.** That is the position. It would be the slot if the table were [0, 1, 2].
#
# </details>
# <details><summary>B. 4</summary>
#
# > **Yes.** Position 20 is logical block 1, offset 4. Logical block 1 is physical block 0: slot 0 × 16 + 4.
#
# </details>
# <details><summary>C. 148</summary>
#
# > **No.** That takes block 9, the sequence's first. Position 20 is in its second, which is block 0.
#
# </details>
# <details><summary>D. 68</summary>
#
# > **No.** That is in block 4, the third. It begins with position 32.
#
# </details>

# %% [markdown]
# **2. A sequence of 31 tokens runs one decode step. Blocks have 16 slots. Does its table grow?**
#
# <details><summary>A. Yes, to three blocks: the second one is full now.</summary>
#
# > **No.** It is full, and that is all. The third comes with the next token, if there is one.
#
# </details>
# <details><summary>B. It depends on where its blocks lie.</summary>
#
# > **No.** Where they lie doesn't matter. How many there are follows from the number of tokens.
#
# </details>
# <details><summary>C. No. The token takes the last slot of the second block.</summary>
#
# > **Yes.** It is position 31, offset 15. The next step, position 32, needs a block.
#
# </details>

# %% [markdown]
# **3. A bug lets one entry of a table point to a block of another sequence. What happens?**
#
# <details><summary>A. The model attends to somebody else's tokens, and nothing reports it.</summary>
#
# > **Yes.** No hardware checks who may read what. The text may even be fluent, and it may repeat what another user wrote.
#
# </details>
# <details><summary>B. A page fault: the block is not this sequence's.</summary>
#
# > **No.** That is how an operating system would catch it. Here a table is numbers in an array.
#
# </details>
# <details><summary>C. The allocator raises an error at the next step.</summary>
#
# > **No.** It isn't asked when blocks are read. Only at the end, when the block is freed twice, a good one notices.
#
# </details>

# %% [markdown]
# **4. A pool has 100 free blocks, no two of them neighbours. A prompt needs 90. Is there a problem?**
#
# <details><summary>A. Yes: external fragmentation. The pool has to be compacted first.</summary>
#
# > **No.** Compaction is for contiguous memory. Here nothing asks for neighbours.
#
# </details>
# <details><summary>B. Yes: reading scattered blocks gives slightly different results.</summary>
#
# > **No.** The same numbers are read, in the same order. Section 6 has the same tokens, one by one.
#
# </details>
# <details><summary>C. Yes: the table becomes longer.</summary>
#
# > **No.** It has 90 entries, wherever the blocks lie.
#
# </details>
# <details><summary>D. No.</summary>
#
# > **Yes.** Any 90 of the 100 will do, in any order.
#
# </details>

# %% [markdown]
# **5. All your requests have 33 tokens; blocks have 16 slots. Which change wastes least?**
#
# <details><summary>A. Blocks of 32</summary>
#
# > **No.** Two blocks, 64 slots, 31 empty. At 16 it was three blocks, 48 slots, 15 empty.
#
# </details>
# <details><summary>B. Blocks of 8</summary>
#
# > **Yes.** Five blocks, 40 slots, 7 empty. (Of 11 would waste none, if a kernel took it.)
#
# </details>
# <details><summary>C. Leaving it at 16: it is the default for a reason.</summary>
#
# > **No.** It is a good default for lengths that vary. For these, 15 of 48 slots are empty.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "block table", "slot", "slot mapping", "logical block", "physical block", "position", "offset", "page table",
    "internal fragmentation", "external fragmentation", "padding",
)

# %% [markdown]
# ## Read on
#
# - Kwon et al., PagedAttention, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 4.2 is the table and how it grows, 4.3 one sequence step by step, 4.5 why whole sequences are swapped out and not single blocks. Section 3.1 has the three kinds of waste in contiguous memory.
# - Arpaci-Dusseau, *Operating Systems: Three Easy Pieces*, [chapter 18, Paging: Introduction](https://pages.cs.wisc.edu/~remzi/OSTEP/vm-paging.pdf). The original of section 5.
# - Prabhu et al., *vAttention*, ASPLOS 2025 ([arXiv 2405.04437](https://arxiv.org/abs/2405.04437)). Section 3 is the case against tables that software walks, section 5 the other way. It lets the GPU's own page tables do the translation, so that a sequence is contiguous for the kernel and paged in memory.
#
# Now write the table yourself: `exercises/03_block_table`. The model will read through it.
