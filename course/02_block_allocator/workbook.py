# %% [markdown]
# # 02 · Workbook: who owns which block
#
# **You write the part that hands out the memory, find a leak in an engine at work, and make sure that there is none in
# yours.** Four exercises and a stretch. About 60 minutes, no GPU, no network.
#
# `BlockAllocator` is a part of the engine. Everything that comes later takes its blocks from it.
#
# The two errors that you raise come from the package: `OutOfBlocks(used=...)`, where no block is left, and
# `DoubleFree(block)`, where somebody gives back what nobody holds.

# %% [markdown]
# ## Exercise 2.1: the block allocator
#
# Difficulty ●●●○○ · Importance ●●●●● · about 20 min · 17 lines
#
# A pool has the blocks 0 to `num_blocks - 1`. Somebody must know which of them are free, and how many sequences hold
# each of the others: its **reference count**. Write `BlockAllocator(num_blocks, block_size)`:
#
# - `allocate()`: take a free block, whichever you like, and return its number. One sequence holds it from now on. Where
#   none is free, raise `OutOfBlocks`.
# - `share(block)`: one more sequence holds the block. It may be **free** at that moment: then a prefix hit brings it
#   back to life (chapter 05), one sequence holds it, and it must not be handed out any more.
# - `free(block)`: one holder less. When the last one has gone, the block is free. Where nobody holds it, raise
#   `DoubleFree`, and change nothing.
# - `ref_count(block)`: how many hold it, 0 where it is free.
# - `num_free`: how many blocks are free.
#
# ```
# allocator = BlockAllocator(num_blocks=4, block_size=16)
# block = allocator.allocate()   # 1 holder
# allocator.share(block)         # 2
# allocator.free(block)          # 1: somebody still needs it
# allocator.free(block)          # 0: free, and anybody may get it
# allocator.share(block)         # 1: back to life
# allocator.num_free             # 3
# ```
#
# First make it right. If `share` has to search for a free block, the check says so in a note and lets it pass: a large
# pool would be slow then. Hint 3 tells how it goes without searching.


# %% nbgrader={"schema_version": 3, "grade_id": "BlockAllocator", "grade": false, "solution": true, "locked": false, "task": false}
from pagedkv_lab.errors import DoubleFree, OutOfBlocks


class BlockAllocator:
    """Hands out the blocks 0 to num_blocks - 1, and counts who holds them."""

    def __init__(self, num_blocks, block_size):
        """All blocks are free. block_size: tokens a block; keep it for the tables that ask."""
        ### BEGIN SOLUTION
        # Your lines here: the free blocks, and a count for every block.
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_blocks = dict.fromkeys(range(num_blocks))  # the keys, last in first out
        self.ref_counts = [0] * num_blocks
        ### END SOLUTION

    def allocate(self):
        """Take a free block and return its number. Raises OutOfBlocks where there is none."""
        ### BEGIN SOLUTION
        # Your lines here.
        if not self.free_blocks:
            raise OutOfBlocks(used=self.num_blocks)
        block, _ = self.free_blocks.popitem()
        self.ref_counts[block] = 1
        return block
        ### END SOLUTION

    def share(self, block):
        """One more holder. A free block comes back to life."""
        ### BEGIN SOLUTION
        # Your lines here: what if the block is among the free ones?
        self.free_blocks.pop(block, None)
        self.ref_counts[block] += 1
        ### END SOLUTION

    def free(self, block):
        """One holder less; with the last one the block is free. Raises DoubleFree where nobody holds it."""
        ### BEGIN SOLUTION
        # Your lines here: look before you count down.
        if self.ref_counts[block] == 0:
            raise DoubleFree(block)
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self.free_blocks[block] = None
        ### END SOLUTION

    def ref_count(self, block):
        """How many sequences hold the block."""
        ### BEGIN SOLUTION
        # Your line here.
        return self.ref_counts[block]
        ### END SOLUTION

    @property
    def num_free(self):
        """Blocks that can be handed out now."""
        ### BEGIN SOLUTION
        # Your line here.
        return len(self.free_blocks)
        ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_BlockAllocator", "grade": true, "solution": false, "locked": true, "points": 4, "task": false}
from pagedkv_lab.course import check

check(BlockAllocator=BlockAllocator)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Two things to keep: the free blocks, and a list of counts with one entry a block. For each method, say what it does to
# both. A block is either among the free ones and counts 0, or it is not and counts 1 or more. No method may break that.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Look first, then change: `allocate` looks whether a block is left, `free` whether the count is 0 already. Raise there,
# before anything has changed. `free` counts down, and only where it arrives at 0 does the block go back among the free
# ones. `allocate` **sets** the count to 1.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `share` of a free block must take it out of the middle of the free ones. `list.remove` searches. The keys of a
# dictionary don't: `self.free_blocks = dict.fromkeys(range(num_blocks))` keeps them in order, `popitem()` takes the
# last one, `pop(block, None)` takes out this one if it is there, and `self.free_blocks[block] = None` puts it back.
#
# </details>

# %% [markdown]
# ### Two sequences on your allocator
#
# One has a prefix of two blocks, the other shares it and goes on for itself. The first one ends, and the prefix stays:
# the count says that somebody still needs it.

# %%
from pagedkv_lab.course import require

require(BlockAllocator=BlockAllocator)

allocator = BlockAllocator(num_blocks=8, block_size=16)
first = [allocator.allocate() for _ in range(3)]
second = first[:2]
for block in second:
    allocator.share(block)
second.append(allocator.allocate())
print("first ", first, " second", second, "  free:", allocator.num_free)
for block in reversed(first):
    allocator.free(block)
print("first has ended; holders of", second, "are", [allocator.ref_count(b) for b in second], "  free:", allocator.num_free)

# %% [markdown]
# ## Exercise 2.2: find the leak
#
# Difficulty ●●○○○ · Importance ●●●●○ · about 8 min · 1-5 lines
#
# A block **leaked** when its count is higher than the number of sequences that hold it. Nobody will ever give back what
# is too much. It looks like a block in use, so counting free blocks does not find it: you must compare two books, the
# allocator's and the tables'.
#
# Write `leaked_blocks(ref_counts, tables)`. `ref_counts[b]` is the count of block `b`; `tables` is a list with the
# blocks of each sequence that lives (no block twice in one table). Return the leaked blocks, in ascending order.
#
# Example: `leaked_blocks([2, 1, 0, 1], [[0, 3], [0]])` is `[1]`. Block 0 counts 2, and two tables hold it; block 1
# counts 1, and no table does. A count that is too *low* is another mistake, and not asked here.


# %% nbgrader={"schema_version": 3, "grade_id": "leaked_blocks", "grade": false, "solution": true, "locked": false, "task": false}
def leaked_blocks(ref_counts, tables):
    """Blocks that are counted more often than they are held.

    ref_counts: a list, the reference count of each block. tables: a list of lists of blocks, one for each sequence.
    Both belong to a pool at work: leave them as they are.
    Returns a list of blocks, ascending; an empty one where nothing leaks.
    """
    ### BEGIN SOLUTION
    # Your lines here: for each block, how many tables hold it?
    held = [0] * len(ref_counts)
    for table in tables:
        for block in table:
            held[block] += 1
    return [block for block, count in enumerate(ref_counts) if count > held[block]]
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_leaked_blocks", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(leaked_blocks=leaked_blocks)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Each holder should be a table. Where the count says 2 and two tables hold the block, all is well; that a block is in
# use, or shared, is no leak. Count the tables, then compare.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Make a list of zeros, as long as `ref_counts`. Go through all tables and add 1 for each block. Then go through the
# blocks: it leaked where the count is **greater** than what you have added up. Block 0 is a block like any other.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `held[block] += 1` inside two loops, then
# `[block for block, count in enumerate(ref_counts) if count > held[block]]`.
#
# </details>

# %% [markdown]
# ### An engine that leaks
#
# Somebody wrote a block table in a hurry. With it the model answers as it should, tests pass, and each request that
# ends leaves something behind. Your function says what.

# %%
from pagedkv_lab import Engine, Parts, SamplingParams, load_model
from pagedkv_lab.blocks import BlockTable
from pagedkv_lab.course import require

require(leaked_blocks=leaked_blocks)


class HurriedTable(BlockTable):
    def free_all(self):
        for i in range(len(self.blocks) - 1):
            self.allocator.free(self.blocks[i])
        self.blocks.clear()


model = load_model("SmolLM2-135M-Instruct")
# watch=False: the engine would notice this mistake by itself, and say so.
engine = Engine(model, parts=Parts(BlockTable=HurriedTable, watch=False), num_gpu_blocks=32, max_model_len=256)
for prompt in ("The sea is", "A good baker", "In winter", "The last train"):
    engine.add_request(prompt, SamplingParams(max_tokens=60 if prompt == "In winter" else 24, ignore_eos=True))
for _ in range(26):
    engine.step()

counts = [engine.manager.allocator.ref_count(block) for block in range(engine.num_gpu_blocks)]
tables = [table.tolist() for table in engine.snapshot().tables.values()]
print("one request is left, with the blocks", tables)
print("in use:", [block for block, count in enumerate(counts) if count])
print("leaked:", leaked_blocks(counts, tables))

# %% [markdown]
# Three requests have ended, each held two blocks, and three blocks are gone: the last one of each. Find the line of `HurriedTable` that does
# it. How many requests until an engine with 4,096 blocks stands still?

# %% [markdown]
# ## Exercise 2.3: give them back, whatever happens
#
# Difficulty ●●●○○ · Importance ●●●●○ · about 12 min · 9 lines
#
# Most leaks aren't off by one. A request fails half-way, and the line that gives its blocks back is never reached. A
# **context manager** reaches it always. Write `borrowed_blocks(allocator, count)` so that
#
# ```
# with borrowed_blocks(allocator, 3) as blocks:
#     ...                                        # `blocks` is a list of 3 blocks
# ```
#
# gives back **every** block that it took, however the `with` ends:
# - the body comes to its end;
# - the body raises an error: it must pass on, and be seen by whoever called;
# - somebody presses the stop button (KeyboardInterrupt, which is no `Exception`);
# - the allocator runs out half-way, after 2 of 3 blocks: `OutOfBlocks` must pass on, and the 2 must be back.
#
# Give the last block back first. Give back only your own hold of it, by one `free`: the body may have shared a block
# with somebody who lives on.


# %% nbgrader={"schema_version": 3, "grade_id": "borrowed_blocks", "grade": false, "solution": true, "locked": false, "task": false}
from contextlib import contextmanager


### BEGIN SOLUTION
# Your line here: @contextmanager makes a function with a `yield` fit for a `with`. (Or write a class.)
@contextmanager
### END SOLUTION
def borrowed_blocks(allocator, count):
    """For a `with`: so many blocks of the allocator, and all of them are back when it ends.

    Yields a list of blocks, in the order in which they were allocated. Raises OutOfBlocks.
    """
    ### BEGIN SOLUTION
    # Your lines here: allocate one by one, yield the list once, and give everything back in a `finally`.
    blocks = []
    try:
        for _ in range(count):
            blocks.append(allocator.allocate())
        yield blocks
    finally:
        for block in reversed(blocks):
            allocator.free(block)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_borrowed_blocks", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(borrowed_blocks=borrowed_blocks)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# With `@contextmanager`, what stands before the `yield` runs when the `with` begins, what stands after it when it ends.
# `yield blocks` hands the list to the body. An error of the body comes out of the `yield`, as if that line had raised it.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Put the `yield` into a `try`, and give the blocks back in its `finally`: that part runs after an error, after
# KeyboardInterrupt, and when all went well. Don't catch anything with `except`: then everything passes on by itself.
# Walk over `reversed(blocks)`, one `free` each.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Begin with an empty list **before** the `try`. Allocate inside the `try`, one block at a time, and append each one at
# once: if the third `allocate` raises, the list holds the two that came before, and the `finally` gives them back. A
# list comprehension would lose them.
#
# </details>

# %% [markdown]
# ### A hundred requests, every third one fails
#
# The loop without your function, then with it.

# %%
from contextlib import suppress

from pagedkv_lab.blocks import BlockAllocator as ReferenceAllocator
from pagedkv_lab.course import require

require(borrowed_blocks=borrowed_blocks)


def answer(request, blocks):
    if request % 3 == 0:
        raise ConnectionError("the client has gone")


def without(allocator, request):
    blocks = [allocator.allocate() for _ in range(5)]
    answer(request, blocks)
    for block in reversed(blocks):
        allocator.free(block)


def with_yours(allocator, request):
    with borrowed_blocks(allocator, 5) as blocks:
        answer(request, blocks)


for serve in (without, with_yours):
    allocator, served = ReferenceAllocator(64, 16), 0
    try:
        for request in range(1, 101):
            with suppress(ConnectionError):
                serve(allocator, request)
            served += 1
    except OutOfBlocks as error:
        print(f"{serve.__name__}: request {request} of 100, nobody else is there. {str(error).partition('. ')[0]}.")
    else:
        print(f"{serve.__name__}: all {served} requests, {allocator.num_free} of 64 blocks free")

# %% [markdown]
# ## Exercise 2.4: a bitmap
#
# Difficulty ●●●○○ · Importance ●●○○○ · about 12 min · 16 lines
#
# The article names another way to keep the free blocks: one bit each. Write `BitmapAllocator`, with the protocol of
# 2.1, and keep the free blocks in **one Python `int`** (bit `b` is set where block `b` is free) or in **one numpy array
# of bools**. No list, set or dictionary of free blocks; counts as before.
#
# One thing is new: `allocate` must hand out the free block with the **lowest number**. A bitmap gives that nearly for
# nothing, a stack does not.
#
# With an int: `bits & -bits` leaves nothing but the lowest bit that is set, `x.bit_length() - 1` says which one that is,
# `bits.bit_count()` says how many are set.


# %% nbgrader={"schema_version": 3, "grade_id": "BitmapAllocator", "grade": false, "solution": true, "locked": false, "task": false}
class BitmapAllocator:
    """A BlockAllocator whose free blocks are bits. Hands out the lowest free block."""

    def __init__(self, num_blocks, block_size):
        """All blocks are free."""
        ### BEGIN SOLUTION
        # Your lines here: num_blocks bits, all set, and the counts.
        self.num_blocks, self.block_size = num_blocks, block_size
        self.bits = (1 << num_blocks) - 1
        self.ref_counts = [0] * num_blocks
        ### END SOLUTION

    def allocate(self):
        """Take the free block with the lowest number. Raises OutOfBlocks."""
        ### BEGIN SOLUTION
        # Your lines here: find the lowest bit, and clear it.
        if not self.bits:
            raise OutOfBlocks(used=self.num_blocks)
        lowest = self.bits & -self.bits
        self.bits ^= lowest
        block = lowest.bit_length() - 1
        self.ref_counts[block] = 1
        return block
        ### END SOLUTION

    def share(self, block):
        """One more holder. A free block comes back to life."""
        ### BEGIN SOLUTION
        # Your lines here.
        self.bits &= ~(1 << block)
        self.ref_counts[block] += 1
        ### END SOLUTION

    def free(self, block):
        """One holder less. Raises DoubleFree where nobody holds it."""
        ### BEGIN SOLUTION
        # Your lines here.
        if self.ref_counts[block] == 0:
            raise DoubleFree(block)
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self.bits |= 1 << block
        ### END SOLUTION

    def ref_count(self, block):
        """How many sequences hold the block."""
        ### BEGIN SOLUTION
        # Your line here.
        return self.ref_counts[block]
        ### END SOLUTION

    @property
    def num_free(self):
        """Blocks that can be handed out now."""
        ### BEGIN SOLUTION
        # Your line here.
        return self.bits.bit_count()
        ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_BitmapAllocator", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(BitmapAllocator=BitmapAllocator)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# `(1 << num_blocks) - 1` is an int with `num_blocks` ones. Setting and clearing a bit takes the place of putting a block
# into the free list and taking it out. Everything about the counts stays as in 2.1.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Clear bit `b`: `bits &= ~(1 << b)`. It does nothing where the bit is 0 already, so `share` need not ask. Set it:
# `bits |= 1 << b`. `^=` flips, which is wrong where you don't know what the bit was. With numpy, `argmax` finds the
# first True, and 0 where there is none at all: ask first.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `allocate`: if `bits` is 0, raise. `lowest = self.bits & -self.bits`, then `self.bits ^= lowest` (that bit is known to
# be set), and the block is `lowest.bit_length() - 1`.
#
# </details>

# %% [markdown]
# ### What does it cost?
#
# The time to take the last free block of a pool of 100,000: your bitmap against your `BlockAllocator`.

# %%
import time

from pagedkv_lab.course import require

require(BlockAllocator=BlockAllocator, BitmapAllocator=BitmapAllocator)


def seconds_to_take_the_last(Allocator, num_blocks):
    """The fastest of five tries."""
    allocator, best = Allocator(num_blocks, 16), 1.0
    last = max(allocator.allocate() for _ in range(num_blocks))
    for _ in range(5):
        allocator.free(last)
        started = time.perf_counter()
        allocator.allocate()
        best = min(best, time.perf_counter() - started)
    return best


slower = seconds_to_take_the_last(BitmapAllocator, 100_000) / seconds_to_take_the_last(BlockAllocator, 100_000)
print("The bitmap takes", "more than three times as long." if slower > 3 else "about as long, at most three times.")

# %% [markdown]
# ## Stretch 2.5: several threads
#
# Difficulty ●●●○○ · Importance ●●○○○ · about 12 min · 10-25 lines
#
# A server answers from several threads. Between any two instructions of one thread, another one may run, also in the
# middle of `self.ref_counts[block] += 1`, which reads, adds and writes. Then two sequences get the same block, or a
# count is lost.
#
# Write `ThreadSafeAllocator`: the protocol of 2.1, from any number of threads at once. `threading.Lock` and
# `threading.RLock` are what you need. Subclassing your `BlockAllocator` is a good way.
#
# The check does not hope for a race. It stops one thread in the middle of its call, at one instruction after the other,
# and lets a second one make its whole call meanwhile.


# %% nbgrader={"schema_version": 3, "grade_id": "ThreadSafeAllocator", "grade": false, "solution": true, "locked": false, "task": false}
import threading


class ThreadSafeAllocator:
    """A BlockAllocator that several threads may call at once."""

    def __init__(self, num_blocks, block_size):
        """All blocks are free, and nobody holds the lock."""
        ### BEGIN SOLUTION
        # Your lines here: an allocator, and one lock for all of it.
        self.block_size = block_size
        self.inner = BlockAllocator(num_blocks, block_size)
        self.lock = threading.Lock()
        ### END SOLUTION

    def allocate(self):
        """Take a free block. Raises OutOfBlocks."""
        ### BEGIN SOLUTION
        # Your lines here: one call at a time, from its first look to its last change.
        with self.lock:
            return self.inner.allocate()
        ### END SOLUTION

    def share(self, block):
        """One more holder. A free block comes back to life."""
        ### BEGIN SOLUTION
        # Your lines here.
        with self.lock:
            self.inner.share(block)
        ### END SOLUTION

    def free(self, block):
        """One holder less. Raises DoubleFree where nobody holds it."""
        ### BEGIN SOLUTION
        # Your lines here.
        with self.lock:
            self.inner.free(block)
        ### END SOLUTION

    def ref_count(self, block):
        """How many sequences hold the block."""
        ### BEGIN SOLUTION
        # Your lines here.
        with self.lock:
            return self.inner.ref_count(block)
        ### END SOLUTION

    @property
    def num_free(self):
        """Blocks that can be handed out now."""
        ### BEGIN SOLUTION
        # Your lines here.
        with self.lock:
            return self.inner.num_free
        ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_ThreadSafeAllocator", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(ThreadSafeAllocator=ThreadSafeAllocator)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Make one lock in `__init__`, and hold it in every method, from its first line to its last. Nobody can come in between
# then. That it is one lock for all methods matters: `free` and `share` change the same count.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `with self.lock:` around the whole body. "Is a block left?" belongs inside, too: the answer may be old by the time you
# take the block. A `with` gives the lock back when an error is raised, `acquire` and `release` alone do not.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Keep `self.inner = BlockAllocator(num_blocks, block_size)`, and each method is two lines: `with self.lock:` and
# `return self.inner.allocate()`. If a method that holds a `Lock` calls another one that takes it, it waits for itself
# for ever; an `RLock` lets the same thread in again.
#
# </details>

# %% [markdown]
# ## Run it for real
#
# Your `BlockAllocator` goes into the engine, and a real model generates on the blocks that it hands out: three requests
# with a common prefix, then a fourth that finds its blocks free and brings them back to life. The tokens are held
# against the package's own engine and against the model's own `generate`.

# %%
from pagedkv_lab.course import run_for_real

run_for_real(BlockAllocator=BlockAllocator)

# %% [markdown]
# And your bitmap, in the same slot. Other blocks are handed out, the lowest first, and the model says the same: which
# block a token lies in makes no difference.

# %%
from pagedkv_lab.course import require

require(BlockAllocator=BlockAllocator, BitmapAllocator=BitmapAllocator)

from pagedkv_lab import Engine, Parts, SamplingParams, load_model
from pagedkv_lab.show import pool_text

model = load_model("SmolLM2-135M-Instruct")
prompts = ["The memory of a language model", "A hotel with many small rooms"]
texts = []
for Allocator in (BlockAllocator, BitmapAllocator):
    engine = Engine(model, parts=Parts(BlockAllocator=Allocator), num_gpu_blocks=32, max_model_len=256)
    for prompt in prompts:
        engine.add_request(prompt, SamplingParams(max_tokens=24, ignore_eos=True))
    for _ in range(20):
        engine.step()
    print(pool_text(engine.snapshot()))
    finished = []
    while engine.has_unfinished_requests():
        finished += engine.step().finished
    texts.append([output.text for output in sorted(finished, key=lambda output: output.request_id)])
print("the same text from both:", texts[0] == texts[1])

# %% [markdown]
# ## Your progress
#
# Next: [03 · Block table](../../notebooks/03_block_table.ipynb), which says where in your blocks a token lies.

# %%
from pagedkv_lab.course import progress

progress()
