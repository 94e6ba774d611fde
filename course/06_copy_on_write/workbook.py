# %% [markdown]
# # 06 · Workbook: share it until somebody writes
#
# **You write the fork, the copy at the last moment, and a step of beam search on shared blocks; then you lose counts to a
# race, and mend it.** Four exercises and a stretch. About 60 minutes, no GPU, no network.
#
# `ForkableTable` is a part of the engine: at the end the model answers one prompt three times on it.

# %% [markdown]
# ## Exercise 6.1: fork, and copy on write
#
# Difficulty ●●●○○ · Importance ●●●●● · about 15 min · 12 lines
#
# A **fork** is a second sequence that goes on from where the first one stands. It has the same tokens, so it can read
# the same blocks: nothing is copied. Until one of the two writes.
#
# Below is the block table of chapter 03, with two methods missing. (The other lines are given. Put yours there if you
# like them better.)
#
# - `fork()` returns a second table, of the same class and on the same allocator. It begins with **all** the parent's
#   blocks, the last one too, whether that is full or not. Each of them has one holder more. The parent stays as it is.
# - `ensure_writable(i)` is called before something is written into logical block i.
#   - If this table is the block's only holder, it returns `None`: write in place.
#   - If somebody else holds it, too, this table takes a fresh block in its place, gives up the shared one, and returns
#     `(source, destination)`: which block to copy, and to which. A table holds numbers and no tensors, so somebody else
#     makes the copy.
#   - If the pool has no block left, the allocator's `OutOfBlocks` passes on, and nothing has changed.
#
# Of the allocator you need `share(block)`, `ref_count(block)`, `allocate()` and `free(block)`.
#
# ```
# parent.blocks                # [5, 2]
# child = parent.fork()        # child.blocks is [5, 2]; two hold block 5, two hold block 2
# child.ensure_writable(1)     # (2, 7): child.blocks is [5, 7]
# parent.ensure_writable(1)    # None: nobody else holds block 2 any more
# ```


# %% nbgrader={"schema_version": 3, "grade_id": "ForkableTable", "grade": false, "solution": true, "locked": false, "task": false}
class ForkableTable:
    """One sequence's blocks, in order, some of them shared with others."""

    def __init__(self, allocator):
        self.allocator = allocator
        self.blocks = []

    def append_block(self):
        block = self.allocator.allocate()
        self.blocks.append(block)
        return block

    def slot(self, position):
        if position < 0:
            raise IndexError(f"no token has position {position}")
        block_size = self.allocator.block_size
        return self.blocks[position // block_size] * block_size + position % block_size

    def free_all(self):
        while self.blocks:
            self.allocator.free(self.blocks.pop())

    def fork(self):
        """A second table of the same blocks."""
        ### BEGIN SOLUTION
        # Your lines here: a new table, and for each block one holder more.
        child = ForkableTable(self.allocator)
        for block in self.blocks:
            self.allocator.share(block)
            child.blocks.append(block)
        return child
        ### END SOLUTION

    def ensure_writable(self, i):
        """Make logical block i this table's own. Returns None, or (source, destination): what is to be copied."""
        ### BEGIN SOLUTION
        # Your lines here: alone? Else a fresh block, into the table, and the shared one given up.
        source = self.blocks[i]
        if self.allocator.ref_count(source) == 1:
            return None
        destination = self.allocator.allocate()
        self.blocks[i] = destination
        self.allocator.free(source)
        return source, destination
        ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_ForkableTable", "grade": true, "solution": false, "locked": true, "points": 4, "task": false}
from pagedkv_lab.course import check

check(ForkableTable=ForkableTable)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# A table is a list of numbers. A fork is a second list with the same numbers, and an allocator that knows of it. Whether
# somebody may write is a question to the allocator: a block with one holder is yours alone. It doesn't matter whether a
# block is full, or who was there first.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `fork`: make a table of your class, and for each block of `self.blocks` call `share` once and append the number. Two
# tables must never have the same list object. `ensure_writable`: where `ref_count` is 1, return `None`. Else take a new
# block, put it into `self.blocks[i]`, `free` the old one once, and return both numbers as a tuple, the old one first.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# The order matters when the pool is empty: `destination = self.allocator.allocate()` comes first. If it raises, nothing
# has happened yet. Then `self.blocks[i] = destination`, `self.allocator.free(source)`,
# `return source, destination`. `free` only takes one holder away here; the others keep the block.
#
# </details>

# %% [markdown]
# ### Before and after
#
# Your table: a parent with six tokens, a fork, and then both go on, each with a word of its own. The child writes first.

# %%
from pagedkv_lab.blocks import BlockAllocator
from pagedkv_lab.course import require
from pagedkv_lab.show import copy_on_write

require(ForkableTable=ForkableTable)

allocator = BlockAllocator(num_blocks=8, block_size=4)
parent = ForkableTable(allocator)
parent.append_block()
parent.append_block()
child = parent.fork()
story = ["Once", "upon", "a", "time", "there", "was"]


def moment(parent_says=(), child_says=()):
    """Tables and tokens, as they are now."""
    tables = {"parent": list(parent.blocks), "child": list(child.blocks)}
    return tables, {"parent": [*story, *parent_says], "child": [*story, *child_says]}


def counts():
    return {block: allocator.ref_count(block) for block in range(allocator.num_blocks)}


forked, counted = moment(), counts()
print("the child writes: ", child.ensure_writable(1))
after_child = moment(child_says=["snow"])
picture = copy_on_write(forked, after_child, block_size=4, ref_counts=(counted, counts()))
print("the parent writes:", parent.ensure_writable(1))
picture

# %% [markdown]
# ## Exercise 6.2: write one token
#
# Difficulty ●●○○○ · Importance ●●●●● · about 8 min · 7-9 lines
#
# Now the tensor. `pool` is a numpy array of shape (blocks, block_size, width): `pool[block, offset]` is what the cache
# keeps of one token. Write `write_token(table, pool, position, value)`, which puts `value` where the token at
# `position` of this sequence belongs:
#
# 1. If the position is the first that the table has no block for, append one.
# 2. Make the block writable. If that means a copy, make it in the pool.
# 3. Write.
#
# `table` is a table as in exercise 6.1 (the package's own, so that this exercise stands alone). The order of these
# steps is the exercise: every other order loses a token, or gives one to somebody else.


# %% nbgrader={"schema_version": 3, "grade_id": "write_token", "grade": false, "solution": true, "locked": false, "task": false}
def write_token(table, pool, position, value):
    """Write one token's numbers into the pool, into a block that only this sequence holds.

    table: has blocks, append_block(), ensure_writable(i), slot(position).
    pool: array (num_blocks, block_size, width), changed in place.
    position: at most the first one that has no block yet. value: `width` numbers.
    """
    ### BEGIN SOLUTION
    # Your lines here: which logical block, which offset? Then the three steps.
    block_size = pool.shape[1]
    i, offset = divmod(position, block_size)
    if i == len(table.blocks):
        table.append_block()
    copy = table.ensure_writable(i)
    if copy is not None:
        source, destination = copy
        pool[destination] = pool[source]
    pool[table.blocks[i], offset] = value
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_write_token", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(write_token=write_token)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Two things must change together: the table, which is numbers, and the pool, which is memory. `ensure_writable` changes
# the first and tells you what to do about the second. If you don't copy, the new block holds whatever was in it before.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `position // block_size` is the logical block, `position % block_size` the offset. Ask `ensure_writable` for the
# logical block, copy the **whole** block if it returned a pair, and only then look up `table.blocks[i]`, for it may have
# changed. At a boundary you have just appended a block that nobody shares: `ensure_writable` says None.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `copy = table.ensure_writable(i)`; `if copy is not None:` `source, destination = copy` and
# `pool[destination] = pool[source]`. Last, `pool[table.blocks[i], offset] = value`.
#
# </details>

# %% [markdown]
# ### Read it back
#
# A sequence of 5 tokens forks, and both go on for a while in turn. Each token is a number here, so that we can read what
# each sequence finds in the pool.

# %%
import numpy as np

require(ForkableTable=ForkableTable, write_token=write_token)

allocator = BlockAllocator(num_blocks=8, block_size=4)
pool = np.zeros((8, 4, 1))
parent = ForkableTable(allocator)
for position in range(5):
    write_token(parent, pool, position, position)
child = parent.fork()
for position in range(5, 10):
    write_token(parent, pool, position, 100 + position)
    write_token(child, pool, position, 200 + position)
for name, table in (("parent", parent), ("child", child)):
    found = [int(pool.reshape(-1)[table.slot(position)]) for position in range(10)]
    print(f"{name:<6} blocks {table.blocks}: {found}")

# %% [markdown]
# ## Exercise 6.3: a step of beam search
#
# Difficulty ●●●○○ · Importance ●●●●○ · about 12 min · 5-10 lines
#
# **Beam search** keeps the best few texts so far, the beams. In each step every beam proposes next tokens, with the
# score of the text that would come of it (a sum of log probabilities: higher is better). The best of all proposals
# survive. So a good beam may go on twice or more, and a bad one ends. In blocks: forks, and tables that are freed.
#
# Write `beam_step(tables, candidates, width)`.
#
# - `tables` are the beams' block tables; each has `fork()` and `free_all()`.
# - `candidates` is a list of `(score, beam, token)`; `beam` is an index into `tables`. No two scores are equal.
# - Return a list of `width` pairs `(table, token)`: the candidates with the highest scores, the best first. Each has a
#   table of its own, which holds its beam's blocks. Nothing is written yet, and so nothing is copied.
# - Beams that end are freed. Afterwards the pool is held by the returned tables, and by nobody else.
#
# You may return a table that you were given, once. In which order must you fork and free?


# %% nbgrader={"schema_version": 3, "grade_id": "beam_step", "grade": false, "solution": true, "locked": false, "task": false}
def beam_step(tables, candidates, width):
    """The beams that go on, each with a table of its own and its next token.

    tables: a list of block tables, one a beam. candidates: a list of (score, beam, token). Leave both lists as they are.
    width: how many survive; there are at least so many candidates.
    Returns a list of (table, token), the best first.
    """
    ### BEGIN SOLUTION
    # Your lines here: choose among all candidates, fork for each survivor, then give up what is not needed.
    best = sorted(candidates, reverse=True)[:width]
    survivors = [(tables[beam].fork(), token) for _, beam, token in best]
    for table in tables:
        table.free_all()
    return survivors
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_beam_step", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(beam_step=beam_step)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Two halves. First choose: sort all candidates together, whichever beam they come from, and take the first `width`. Then
# move tables: every survivor needs one of its own with the blocks of its beam, and whatever is left over goes.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# The simplest way: fork every survivor from its beam's table, into a new list; then `free_all` of **all** the old
# tables. A beam with one survivor goes from one holder to two and back to one. Free first, and the blocks are gone
# before you fork: `free_all` empties the table, and the next one to allocate gets them. If you keep some of the old
# tables instead, keep each of them for one survivor only, and don't free those.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `best = sorted(candidates, reverse=True)[:width]`. Then `[(tables[beam].fork(), token) for _, beam, token in best]`, and
# a loop of `table.free_all()` over `tables`.
#
# </details>

# %% [markdown]
# ### Search with it
#
# The bundled model goes on with a sentence, four beams wide. Your `beam_step` moves the tables; then each beam makes room
# for its token, as an engine would. (The model itself reads a contiguous cache of its own here: `reorder_cache` **copies**
# all of it, for every beam, in every step. That is what forks save.)

# %%
import warnings

import torch

from pagedkv_lab import load_model

require(ForkableTable=ForkableTable, beam_step=beam_step)

# Newer versions of transformers have another name for it, and say so in a warning.
warnings.filterwarnings("ignore", message=".*past_key_values")
model = load_model("SmolLM2-135M-Instruct")
prompt = model.encode("The keeper of the lighthouse looked out at the sea and saw")
allocator = BlockAllocator(num_blocks=64, block_size=4)


def take_slot(table, position):
    """Room for one more token: a fresh block, or the last one, copied if it is shared."""
    return table.append_block() if position % 4 == 0 else table.ensure_writable(position // 4)


first = ForkableTable(allocator)
for position in range(len(prompt)):
    take_slot(first, position)
tables, texts, scores, copies, theirs = [first], [prompt], [0.0], 0, None
for step in range(1, 10):
    new = torch.tensor([text if theirs is None else text[-1:] for text in texts], device=model.device)
    with torch.inference_mode():
        logits, theirs = model.hf(new, past_key_values=theirs, use_cache=True).to_tuple()[:2]
    best = logits[:, -1].float().log_softmax(-1).topk(4)
    candidates = [
        (scores[beam] + float(best.values[beam, k]), beam, int(best.indices[beam, k]))
        for beam in range(len(tables))
        for k in range(4)
    ]
    tables = [table for table, _ in beam_step(tables, candidates, width=4)]
    chosen = sorted(candidates, reverse=True)[:4]
    theirs.reorder_cache(torch.tensor([beam for _, beam, _ in chosen], device=model.device))
    texts = [[*texts[beam], token] for _, beam, token in chosen]
    scores = [score for score, _, _ in chosen]
    copies += sum(isinstance(take_slot(table, len(texts[0]) - 1), tuple) for table in tables)
    if step % 3 == 0:
        entries = sum(len(table.blocks) for table in tables)
        says = " ".join(model.tokenizer.decode(texts[0][len(prompt) :], skip_special_tokens=True).split())
        print(f"step {step}: {entries} entries in the tables, {64 - allocator.num_free:>2} blocks: ... {says}")
print(f"{copies} blocks of 4 tokens were copied in 9 steps of 4 beams")
for table in tables:
    table.free_all()
print("all blocks are back:", allocator.num_free == 64)

# %% [markdown]
# ## Exercise 6.4: a race, and how to mend it
#
# Difficulty ●●●○○ · Importance ●●●○○ · about 12 min · 12-20 lines
#
# Two threads change a count at the same time. In this cell four threads share one block, 20,000 times each, and then we
# look how many were counted. (`setswitchinterval` lets Python change threads more often than it usually does; and if
# they don't meet the first time, we try again.)

# %%
import sys
from threading import Barrier, Thread


class RacyCounts:
    """Counts in a dictionary: read, add, write."""

    def __init__(self):
        self.counts = {}

    def share(self, block):
        count = self.counts.get(block, 0)
        self.counts[block] = count + 1

    def ref_count(self, block):
        return self.counts[block]


def share_from_threads(counts, times=20_000):
    """Four threads share block 0, so many times each. Returns how many of these were not counted."""
    start = Barrier(4)

    def work():
        start.wait()
        for _ in range(times):
            counts.share(0)

    threads = [Thread(target=work) for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    return 4 * times - counts.ref_count(0)


lost = 0
for _ in range(100):
    lost = lost or share_from_threads(RacyCounts())
print("holders that were never counted:", "some" if lost else "none")

# %% [markdown]
# Thread A reads 7. Thread B reads 7, writes 8. Thread A writes 8. Two have shared, one was counted: the block will be
# free while somebody still reads it.
#
# Losing an addition is the simpler half. The other half is a **decision** that rests on a count:
#
# - "Was I the last one?" If two threads give up a block at the same time, exactly one of them must put it back.
# - "Am I alone?" Two sequences hold a block, and both are about to write into it. If both look first and see 2, both go
#   and copy, and the block is nobody's. If one leaves, the other must learn that it is alone.
#
# Write `SafeCounts(num_blocks)`: counts for blocks 0 to num_blocks - 1, all 0 at first, which any number of threads may
# use.
#
# | call | what it does |
# |:---|:---|
# | `share(block)` | one holder more |
# | `free(block)` | one holder less. Returns whether that was the **last** one. Raises `DoubleFree(block)` where nobody holds it |
# | `leave_if_shared(block)` | if more than one hold it: one holder less, and `True` (go and copy). If you are alone: nothing changes, and `False` (write in place) |
# | `ref_count(block)` | how many hold it now |
#
# The check does not hope for a race. It stops one thread before each of its instructions in turn, and lets another make
# its whole call meanwhile.

# %% nbgrader={"schema_version": 3, "grade_id": "SafeCounts", "grade": false, "solution": true, "locked": false, "task": false}
import threading

from pagedkv_lab.errors import DoubleFree


class SafeCounts:
    """Reference counts that several threads may change at once."""

    def __init__(self, num_blocks):
        """Nobody holds anything."""
        ### BEGIN SOLUTION
        # Your lines here: the counts, and a lock.
        self.counts = [0] * num_blocks
        self.lock = threading.Lock()
        ### END SOLUTION

    def share(self, block):
        """One holder more."""
        ### BEGIN SOLUTION
        # Your lines here.
        with self.lock:
            self.counts[block] += 1
        ### END SOLUTION

    def free(self, block):
        """One holder less. Returns True where it was the last, else False. Raises DoubleFree."""
        ### BEGIN SOLUTION
        # Your lines here: look, change and decide, with nobody in between.
        with self.lock:
            if self.counts[block] == 0:
                raise DoubleFree(block)
            self.counts[block] -= 1
            return self.counts[block] == 0
        ### END SOLUTION

    def leave_if_shared(self, block):
        """If others hold it, too: one holder less, and True. Else False."""
        ### BEGIN SOLUTION
        # Your lines here.
        with self.lock:
            if self.counts[block] == 1:
                return False
            self.counts[block] -= 1
            return True
        ### END SOLUTION

    def ref_count(self, block):
        """How many hold it."""
        ### BEGIN SOLUTION
        # Your line here.
        return self.counts[block]
        ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_SafeCounts", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(SafeCounts=SafeCounts)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Whatever is read, decided and written in one call must be done before anybody else begins. A `threading.Lock` sees to
# it: `with self.lock:` lets one thread in at a time. There is one lock, made in `__init__`; a lock that each call makes
# for itself keeps nobody out.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Hold the lock over the whole body of `share`, `free` and `leave_if_shared`, the same lock in all three. The answer that
# `free` returns belongs inside, too: a moment later the count may be another one. `free` returns True for exactly one
# of those who leave, the one that brings the count to 0. `leave_if_shared` compares with 1, not with 0.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `with self.lock:` and in it: `if self.counts[block] == 0: raise DoubleFree(block)`, then `self.counts[block] -= 1`, then
# `return self.counts[block] == 0`. A `with` gives the lock back when an error is raised. Don't call `free` from
# `leave_if_shared` while you hold the lock: it would wait for itself (or take an `RLock`).
#
# </details>

# %% [markdown]
# ### The same four threads

# %%
require(SafeCounts=SafeCounts)

print("holders that were never counted:", share_from_threads(SafeCounts(1)))

# %% [markdown]
# A lock is one way out. The engine here, and vLLM's scheduler, take another: only one thread ever touches the counts.
# Whoever else wants something puts it into a queue. The lesson says more.

# %% [markdown]
# ## Stretch 6.5: how many blocks will the step take?
#
# Difficulty ●●●○○ · Importance ●●●○○ · about 8 min · 2-8 lines
#
# Before a step runs, the scheduler must know that the pool has room for it. Every running sequence is about to write one
# token. Write `blocks_for_step(tables, num_tokens, block_size)`: how many blocks will be taken from the pool, growth and
# copies together?
#
# - `tables[s]` is the list of blocks of sequence s, in which its `num_tokens[s]` tokens lie (1 or more). It has as many
#   blocks as those need, and no more.
# - A block that stands in several tables is shared by these, and by nobody else.
#
# | `tables` | `num_tokens` | `block_size` | blocks | |
# |:---|:---|---:|---:|:---|
# | `[[3], [3]]` | `[2, 2]` | 4 | 1 | one copies, the other is alone then |
# | `[[3], [3]]` | `[4, 4]` | 4 | 2 | the block is full: each takes a fresh one |
# | `[[1, 2]] * 4` | `[6] * 4` | 4 | 3 | |


# %% nbgrader={"schema_version": 3, "grade_id": "blocks_for_step", "grade": false, "solution": true, "locked": false, "task": false}
def blocks_for_step(tables, num_tokens, block_size):
    """Blocks that the pool must have free, if each sequence writes one token.

    tables: a list of lists of blocks, one a sequence; may be empty. num_tokens: the tokens in each. Leave them as they are.
    Returns a whole number of blocks.
    """
    ### BEGIN SOLUTION
    # Your lines here: who is at a boundary? And of those who write into the same block, who may stay?
    may_stay = set()
    for blocks, tokens in zip(tables, num_tokens, strict=True):
        if tokens % block_size:
            may_stay.add(blocks[-1])
    return len(tables) - len(may_stay)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_blocks_for_step", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(blocks_for_step=blocks_for_step)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Each sequence is in one of two states. Its last block is full: it takes a fresh one, whoever shares the full one. Or its
# last block has room: then it writes there, and whether it must copy depends on who else writes there.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Of h sequences that write into the same block, h - 1 copy; the last one finds itself alone. So every block that is
# written into is kept by one of its writers. A token in the last slot fills the block, and takes no new one.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Collect `blocks[-1]` of all sequences where `tokens % block_size` is not 0, in a set: each of these blocks serves one
# sequence in place. All other sequences take a block: `len(tables)` minus the size of the set.
#
# </details>

# %% [markdown]
# ## Run it for real
#
# Your `ForkableTable` goes into the engine. One prompt is answered three times: the engine computes it once, forks it
# twice, and each output goes its own way. The tokens are held against the package's engine.

# %%
from pagedkv_lab import SamplingParams
from pagedkv_lab.course import run_for_real

run_for_real(
    ForkableTable=ForkableTable,
    prompts=[{"role": "user", "content": "Write one line for a birthday card to a lighthouse keeper."}],
    params=SamplingParams(n=3, temperature=0.7, seed=1, max_tokens=24),
    max_num_seqs=4,
    max_model_len=256,
)

# %% [markdown]
# Greedily all three say the same, which is dull, and the reason why it can be held against transformers, too: three
# outputs that share and copy must say what one alone says.

# %%
run_for_real(
    ForkableTable=ForkableTable,
    prompts=["The capital of France is", "Once upon a time there was a baker who"],
    params=SamplingParams(n=3, max_tokens=16),
    max_num_seqs=6,
    max_model_len=256,
    live=False,
)

# %% [markdown]
# ## Your progress
#
# Next: 07 · Paged attention, which reads keys and values through your tables.

# %%
from pagedkv_lab.course import progress

progress()
