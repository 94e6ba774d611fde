# %% [markdown]
# # 02 · Where did the blocks go?
#
# **A pool of 64 blocks serves requests that hold 5 blocks each. After an hour it is out of blocks, and nobody is being served. Where are they?**
#
# Afterwards you can
# - say what a block allocator keeps, and what each of its three calls changes,
# - name the mistakes that give one block to two users, and see what becomes of their text,
# - choose a structure for the free blocks, and say which call it makes slow,
# - find a leak by comparing two books, and write code that has none.
#
# 35 minutes · Difficulty ●●○○○ · Needs nothing but the bundled model. All cells together run in about half a minute.

# %%
import random
import time
from collections import OrderedDict, deque
from itertools import pairwise
from statistics import median

from pagedkv_lab import Engine, Parts, SamplingParams, load_model
from pagedkv_lab.blocks import BlockAllocator, BlockTable
from pagedkv_lab.course import examine
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.errors import DoubleFree, OutOfBlocks, PartError
from pagedkv_lab.show import Playground, footprint_over_time, pool_picture, show_source
from pagedkv_lab.sizing import human_bytes

model = load_model("SmolLM2-135M-Instruct")

# %% [markdown]
# ## 1. A pool is a list of numbers
#
# The memory itself was taken when the engine started, all of it, and cut into equal blocks. What is left to manage is numbers: 0 to 63, say. Which of them are free? And how many sequences hold each of the others? That second number is the **reference count**, since a block may be shared.
#
# Three calls change them:
#
# | call | free blocks | count |
# |:---|:---|:---|
# | `allocate()` | one fewer | 0 → 1 |
# | `share(block)` | one fewer if it was free, else the same | + 1 |
# | `free(block)` | one more if it was the last holder, else the same | - 1 |
#
# One sentence holds them together: **a block is free exactly when its count is 0.** Here is an allocator of the kind that the article shows in §4.2, a stack and a list of counts:

# %%
class ListAllocator:
    """A stack of free blocks, and a count for each block. With two mistakes."""

    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.stack = list(range(num_blocks))
        self.counts = [0] * num_blocks

    def allocate(self):
        if not self.stack:
            raise OutOfBlocks(used=len(self.counts))
        block = self.stack.pop()
        self.counts[block] = 1
        return block

    def share(self, block):
        self.counts[block] += 1

    def free(self, block):
        self.counts[block] -= 1
        if self.counts[block] == 0:
            self.stack.append(block)

    def ref_count(self, block):
        return self.counts[block]

    @property
    def num_free(self):
        return len(self.stack)


pool = ListAllocator(num_blocks=4, block_size=16)
ann = [pool.allocate() for _ in range(2)]
bob = pool.allocate()
print("Ann has", ann, "and Bob has", bob)
for block in ann:
    pool.free(block)
print("Ann is done: free", pool.stack, "counts", pool.counts)

# %% [markdown]
# It works. Read `share` and `free` again: what do they take for granted?

# %% [markdown]
# ## 2. Freed twice
#
# Ann's clean-up runs twice. It happens: once when her request ends, once more in an error handler.

# %%
pool = ListAllocator(num_blocks=4, block_size=16)
ann = pool.allocate()
pool.free(ann)
pool.free(ann)
print("count of block", ann, "is", pool.ref_count(ann))
pool.share(ann)
print("somebody shares it, and its count is", pool.ref_count(ann), "as if it were free")

# %% [markdown]
# The count went below 0, nobody complained, and from then on it is wrong by one. A check finds that with three calls:

# %%
examine("BlockAllocator", ListAllocator)

# %% [markdown]
# The cure is one line: look before you count down, and raise `DoubleFree` where the count is 0.


# %%
class BetterListAllocator(ListAllocator):
    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        super().free(block)


pool = BetterListAllocator(num_blocks=4, block_size=16)
ann = pool.allocate()
pool.free(ann)
try:
    pool.free(ann)
except DoubleFree as error:
    print(error)

# %% [markdown]
# One case escapes even this. Suppose Bob comes between Ann's two calls:

# %%
pool = BetterListAllocator(num_blocks=4, block_size=16)
ann = pool.allocate()
pool.free(ann)
bob = pool.allocate()  # the block that Ann had
pool.free(ann)  # count 1 -> 0: nothing to complain about
eve = pool.allocate()
print(f"Bob writes into block {bob}, and so does Eve, into block {eve}")

# %% [markdown]
# A count says how many hold a block, not who. So the second rule is for those who hold: forget a block in the same breath in which you free it. `BlockTable.free_all` does, its list is empty afterwards. Calling it twice is harmless:

# %%
show_source(BlockTable.free_all)

# %% [markdown]
# ## 3. Two users, one block
#
# The second mistake is in `share`. When a prompt begins like an earlier one, its blocks may be free by now, and yet hold what is needed. `share` then brings them back to life (chapter 05 makes that happen). This one counts them as held, and leaves them in the stack:

# %%
pool = BetterListAllocator(num_blocks=4, block_size=16)
block = pool.allocate()
pool.free(block)
pool.share(block)  # Ann's prefix hit
print(f"Ann holds block {block}, and allocate gives Bob block {pool.allocate()}")

# %% [markdown]
# Now on a real model. Ann asks a cook, gets her answer, and asks again. At the same moment Bob asks a doctor. The allocator is the first one, `ListAllocator`. `watch=False` means that the engine trusts it, and does not look over its shoulder:

# %%
cook = "You are a cook. You answer in one short sentence, and only about food. You are always friendly, and you never talk about anything else."
doctor = "You are a doctor. The patient's name is Bob Miller, he is 52 years old and has a broken left arm. Answer in one short sentence."
ann = [{"role": "system", "content": cook}, {"role": "user", "content": "What can I make from potatoes and eggs?"}]
bob = [{"role": "system", "content": doctor}, {"role": "user", "content": "What is wrong with me?"}]


def ann_then_both(parts):
    engine = Engine(model, num_gpu_blocks=40, max_model_len=256, parts=parts)
    engine.generate([ann], SamplingParams(max_tokens=30), use_tqdm=False)
    return engine.generate([ann, bob], SamplingParams(max_tokens=40), use_tqdm=False)


right = ann_then_both(Parts())
broken = ann_then_both(Parts(BlockAllocator=ListAllocator, watch=False))
print("to Ann, the package's allocator:\n   ", right[0].text.strip())
print("to Ann, the list allocator:\n   ", broken[0].text.strip())

# %% [markdown]
# Ann asked about potatoes and eggs, and is answered by a surgeon. Bob's prompt was written into blocks that Ann's sequence still reads. No error, no crash, and fluent text. In a real service this is one patient's data in another patient's chat.
#
# Left to its default, the engine counts along, and stops at the first block that is handed out twice:

# %%
try:
    ann_then_both(Parts(BlockAllocator=ListAllocator))
except PartError as error:
    print(error)

# %% [markdown]
# ## 4. Leaving from the middle
#
# So a block that comes back to life must leave the free ones. It may be anywhere among them. `stack.remove(block)` does that, by looking at one entry after the other. The package's allocator doesn't look:

# %%
show_source(BlockAllocator.__init__, BlockAllocator.allocate, BlockAllocator.share, BlockAllocator.free)

# %% [markdown]
# The free blocks lie in a **queue with two ends**, kept in two pieces. `_empty` is a stack of blocks whose contents nobody can find any more. `_cached` holds free blocks that can still be found, the one freed longest ago first; it is an ordered dictionary, so that a block leaves from the middle in O(1). Empty ones are handed out first. Chapter 05 needs that order; here it is enough that every call does a fixed number of small steps.

# %% [markdown]
# ## 5. What is O(1)?
#
# The article says that a free list or a bitmap makes allocation O(1): equally fast in a large pool and in a small one. That can be tried. Each line below is one way to do one step. It is timed in a pool of 3,000 blocks and in one of 300,000, and the two times are compared.

# %%
def middle(n):
    return n // 2


def scan(bits):
    for block, free in enumerate(bits):
        if free:
            return block
    return None


ONE_FREE = "a bitmap, the last block free: "
STEPS = {
    # what: (make it from n, do the step once, put it back)
    "a stack, allocate: pop()": (lambda n: list(range(n)), lambda s, n: s.pop(), lambda s, n: s.append(n - 1)),
    "a list as a queue: pop(0)": (lambda n: list(range(n)), lambda s, n: s.pop(0), lambda s, n: s.append(0)),
    "a deque: popleft()": (lambda n: deque(range(n)), lambda s, n: s.popleft(), lambda s, n: s.append(0)),
    "a set: pop()": (lambda n: set(range(n)), lambda s, n: s.pop(), lambda s, n: s.add(0)),
    ONE_FREE + "a loop": (lambda n: bytearray(n - 1) + b"\1", lambda s, n: scan(s), lambda s, n: None),
    ONE_FREE + "one int, its lowest bit": (
        lambda n: [1 << (n - 1)],
        lambda s, n: (s[0] & -s[0]).bit_length() - 1,
        lambda s, n: None,
    ),
    "revive, stack: remove(block)": (
        lambda n: list(range(n)),
        lambda s, n: s.remove(middle(n)),
        lambda s, n: s.insert(middle(n), middle(n)),
    ),
    "revive, deque: remove(block)": (
        lambda n: deque(range(n)),
        lambda s, n: s.remove(middle(n)),
        lambda s, n: s.insert(middle(n), middle(n)),
    ),
    "revive, set: discard(block)": (
        lambda n: set(range(n)),
        lambda s, n: s.discard(middle(n)),
        lambda s, n: s.add(middle(n)),
    ),
    "revive, ordered dict: del d[block]": (
        lambda n: OrderedDict.fromkeys(range(n)),
        lambda s, n: s.pop(middle(n)),
        lambda s, n: s.setdefault(middle(n)),
    ),
}


def seconds(make, step, undo, n):
    """The fastest of 25 tries."""
    structure, best = make(n), 1.0
    for _ in range(25):
        started = time.perf_counter()
        step(structure, n)
        best = min(best, time.perf_counter() - started)
        undo(structure, n)
    return best


grows = {}
for name, steps in STEPS.items():
    grows[name] = seconds(*steps, 300_000) > 5 * seconds(*steps, 3_000)
    print(f"{name:<56}{'grows with the pool' if grows[name] else 'O(1)'}")

# %% [markdown]
# A stack is O(1), and so are a deque at its end and a set. A **bitmap is not**: somebody has to find the next free bit, and in a full pool it is far away. It is small, and looking at 64 bits at once makes it fast enough for many uses; but it is not O(1). (Real ones keep a second bitmap over the words of the first.)
#
# To leave from the **middle**, a stack and a deque have to search. An ordered dictionary does not, and neither does a linked list whose links lie in the blocks themselves, which is what vLLM has. A set is fast at everything and knows no order, so it can't say which block was freed longest ago.
#
# ## 6. Holes
#
# After a few thousand requests have come and gone, the free blocks lie scattered through the pool. With contiguous reservation that was the end (chapter 01: external fragmentation). Here is a pool, shuffled as badly as can be, and a fresh one:

# %%
story = "Once upon a time there was a lighthouse keeper who lived alone with his cat on a small rock in the sea. " * 8


def shuffle_pool(engine):
    """Take all blocks, and give them back in no order."""
    allocator = engine.manager.allocator
    blocks = [allocator.allocate() for _ in range(allocator.num_free)]
    random.Random(0).shuffle(blocks)
    for block in blocks:
        allocator.free(block)


engines = {name: Engine(model, num_gpu_blocks=96, max_model_len=512) for name in ("fresh", "shuffled")}
shuffle_pool(engines["shuffled"])
tables, decode_seconds, texts = {}, {}, {}
for name, engine in engines.items():
    request = engine.add_request(story, SamplingParams(max_tokens=40, ignore_eos=True))
    engine.step()
    decode_seconds[name] = [engine.step().seconds for _ in range(30)]
    [tables[name]] = [table.tolist() for table in engine.snapshot().tables.values()]
snapshot = engines["shuffled"].snapshot()
for name, engine in engines.items():
    while engine.has_unfinished_requests():
        for output in engine.step().finished:
            texts[name] = output.text

for name, table in tables.items():
    neighbours = sum(b - a == 1 for a, b in pairwise(table))
    print(f"{name:<9}{str(table[:6])[:-1]}, ...]  {neighbours} of {len(table) - 1} pairs of blocks are neighbours")
ratio = median(decode_seconds["shuffled"]) / median(decode_seconds["fresh"])
print("the same text:", texts["fresh"] == texts["shuffled"])
print("a decode step takes", "less than 1.5 times as long" if ratio < 1.5 else f"{ratio:.1f} times as long")
pool_picture(snapshot)

# %% [markdown]
# *One sequence, its blocks all over the pool. Every hole was good for a block.*
#
# There are holes, and they do no harm: every block is as good as any other, and none has to have a neighbour. What the order of the free list decides is only *which* block comes next. (It does matter to a processor's cache whether addresses are near each other, but a block of this model is 737,280 bytes, and between two of them the cache has forgotten everything anyway.)

# %% [markdown]
# ## 7. The leak
#
# Now the question at the top. Here is a loop that serves one request after the other. Every eighth fails half-way: the client hangs up. Look at where `free_all` stands.

# %%
def serve(allocator, request, look):
    table = BlockTable(allocator)
    for _ in range(5):
        table.append_block()
    look(table)
    if request % 8 == 0:
        raise ConnectionError("the client has gone")
    table.free_all()


def serve_safely(allocator, request, look):
    table = BlockTable(allocator)
    try:
        for _ in range(5):
            table.append_block()
        look(table)
        if request % 8 == 0:
            raise ConnectionError("the client has gone")
    finally:
        table.free_all()


def an_hour(serve_one, num_requests=160):
    """Slots reserved and slots filled while each request is being served, and how it ended."""
    allocator, reserved, filled = BlockAllocator(64, block_size=16), [], []

    def look(table):
        reserved.append((64 - allocator.num_free) * 16)
        filled.append(len(table.blocks) * 16)

    for request in range(1, num_requests + 1):
        try:
            serve_one(allocator, request, look)
        except ConnectionError:
            pass  # the next one, please
        except OutOfBlocks as error:
            return reserved, filled, f"request {request}: {error}"
    return reserved, filled, f"all {num_requests} requests served, {allocator.num_free} of 64 blocks free"


runs = {"free_all at the end": an_hour(serve), "free_all in a finally": an_hour(serve_safely)}
for name, (*_, end) in runs.items():
    print(f"{name}: {end}")
footprint_over_time({name: run[:2] for name, run in runs.items()}, xlabel="request")

# %% [markdown]
# *Left, each failed request leaves five blocks behind (grey), and after 12 of them the next one finds four. Right, the pool is as empty after each request as before.*
#
# Read the message of the left one: 64 in use, and nobody is at work. That is where the blocks are: their counts say 1, and the one that held them no longer exists. Nobody will ever free them.
#
# ### On the real engine
#
# A leak has no symptom until the end. Here is a block table with its two lines in the wrong order:

# %%
class CarelessTable(BlockTable):
    def free_all(self):
        self.blocks.clear()
        for block in self.blocks:
            self.allocator.free(block)


def serve_on_engine(watch):
    engine = Engine(
        model,
        num_gpu_blocks=64,
        max_model_len=256,
        enable_prefix_caching=False,
        parts=Parts(BlockTable=CarelessTable, watch=watch),
    )
    for number in range(1, 20):
        [output] = engine.generate([f"{number}. {story[:320]}"], SamplingParams(max_tokens=3), use_tqdm=False)
        counts = engine.manager.counts()
        in_tables = int((engine.snapshot().ref_count > 0).sum())
        if number in (1, 2, 12):
            print(f"after request {number:>2}: {counts.used} in use by the counts, {in_tables} in tables, {output.finish_reason}")


try:
    serve_on_engine(watch=False)
except OutOfBlocks as error:
    print(error)

# %% [markdown]
# Twelve requests were served without a fault. The thirteenth could not be, with a pool that by all tables was empty.
#
# So there are **two books**: the allocator's counts, and the tables of the sequences that live. They must agree, block by block, and where a count is higher, a block has leaked. Counting free blocks alone does not tell a leak from a busy server. In the workbook you write the function that compares. The engine's own is `manager.check_invariants()`; and where it watches a part, it compares at once:

# %%
try:
    serve_on_engine(watch=True)
except PartError as error:
    print(error)

# %% [markdown]
# ## 8. Whatever happens
#
# A request can end in more ways than one: it is done; it is aborted; the model raises; somebody presses the stop button. The engine promises that its blocks are back in every case. Here the model itself breaks, in the middle of the fifth step:

# %%
engine = Engine(model, num_gpu_blocks=64, max_model_len=256)
execute, calls = engine.runner.execute, 0


def breaks_in_step_5(batch):
    global calls
    calls += 1
    if calls == 5:
        raise RuntimeError("the GPU fell off the bus")
    return execute(batch)


engine.runner.execute = breaks_in_step_5
try:
    engine.generate([ann, bob], SamplingParams(max_tokens=20), use_tqdm=False)
except RuntimeError as error:
    print(f"{error}; blocks in use: {engine.manager.counts().used}")
engine.runner.execute = execute
print("the next request:", engine.generate(ann, SamplingParams(max_tokens=8), use_tqdm=False)[0].text.strip(), "...")

# %% [markdown]
# In Python the tool for this is `try` and `finally`, or a context manager, which is the same thing with a name. Both run on the way out, whatever the way. Three things to get right:
#
# - **Inside the `try` from the first block on.** If the pool runs out after 2 of 5, the 2 must go back.
# - **`finally`, not `except Exception`.** The stop button raises KeyboardInterrupt, and that is no `Exception`.
# - **Let the error pass on.** Giving blocks back is your business, the error is not.
#
# Try it by hand. Press **Run**, then stop a request in mid-sentence with the button on its card, and watch what becomes of its blocks:

# %%
playground = Playground(Engine(model, num_gpu_blocks=64, max_model_len=512), [ann, bob, story[:105]], max_tokens=100)
playground.step(8)
playground

# %% [markdown]
# *The blocks of a request that is stopped are free at once. Full ones are hatched: free, and still findable.*

# %% [markdown]
# ## Check the article
#
# On this topic the article makes eight claims that can be tried (§2.3, §4.2, §5).

# %%
article = Claims()

article.check(
    "§2.3", "A free list or a bitmap makes allocation O(1)",
    measured="; ".join(
        f"{name}: {'grows' if grows[name] else 'O(1)'}"
        for name in ("a stack, allocate: pop()", ONE_FREE + "a loop", ONE_FREE + "one int, its lowest bit")
    ),
    holds=not grows["a stack, allocate: pop()"],
    condition="for the free list; a plain bitmap must be searched",
    why="And the list only as a stack: bringing a block back to life from its middle takes a linked list or an ordered dict.",
)

# %%
neighbours = sum(b - a == 1 for a, b in pairwise(tables["shuffled"]))
article.check(
    "§2.3", "The pool gets holes from frequent allocation and freeing, and they need managing",
    measured=f"{neighbours} of {len(tables['shuffled']) - 1} pairs of blocks are neighbours in the shuffled pool, "
    f"{'the same' if texts['fresh'] == texts['shuffled'] else 'another'} text, a decode step takes "
    f"{'less' if ratio < 1.5 else 'more'} than 1.5 times as long",
    holds=neighbours > len(tables["shuffled"]) // 2 or texts["fresh"] != texts["shuffled"] or ratio >= 1.5,
    why="There are holes, and each is exactly one block large, which is all that anybody asks for. No order is needed to fill them.",
)

# %%
report = examine("BlockAllocator", ListAllocator), examine("BlockAllocator", BetterListAllocator)
article.check(
    "§4.2", "The allocator's skeleton leaves out only copy-on-write and prefix hashing",
    measured=f"on an allocator built like it, the check finds: {report[0].diagnosis.code}; that mended: {report[1].diagnosis.code}",
    holds=all(each.passed for each in report),
    why="It accepts a double free, and `share` leaves a free block in the list. The second one mixed Ann's and Bob's text.",
)

# %% [markdown]
# §5.1 is about "Out of blocks" while `nvidia-smi` shows free memory, and gives three causes. First, a pool that is too small: thirteen requests of five blocks, all at work. (Here on the machine's own memory, which is as free as a card's would be.)

# %%
import psutil

allocator, tables_at_work = BlockAllocator(64, 16), []
try:
    while True:
        tables_at_work.append(BlockTable(allocator))
        for _ in range(5):
            tables_at_work[-1].append_block()
except OutOfBlocks:
    serving = len(tables_at_work) - 1
bytes_of_pool = 64 * 16 * model.shape.kv_bytes_per_token("float32")
memory_free = psutil.virtual_memory().available > bytes_of_pool
leak_ended_it = runs["free_all at the end"][2].startswith("request")
article.check(
    "§5.1", "Out of blocks with memory free: the pool is too small, or blocks have leaked",
    measured=f"too small: {serving} requests at work, the next one fails, and more than the whole pool "
    f"({human_bytes(bytes_of_pool)}) is {'free' if memory_free else 'not free'} outside it; a leak: section 7, nobody at work",
    holds=memory_free and serving == 12 and leak_ended_it,
    why="`nvidia-smi` sees one large allocation, made at the start. What happens inside it, only the allocator knows.",
)

# %%
leaked_free = 64 - runs["free_all at the end"][0][-1] // 16
article.check(
    "§5.1", "To find out, first print the number of free blocks",
    measured=f"too small: {allocator.num_free} free while {serving} sequences live; the leak: {leaked_free} or fewer free, and none lives",
    holds=allocator.num_free < 5 and leaked_free < 5,
    condition="it says that the pool is empty, not why",
    why="Both causes look alike from there. Compare the counts with the tables of those who live.",
)

# %% [markdown]
# The third cause: free blocks are there, and it still says "Out of blocks", because a sequence has more logical blocks than there are physical ones. Two ways to get there: a table with too few columns, and a request that is larger than the pool.

# %%
import numpy as np

from pagedkv_lab.errors import RequestTooLong

allocator, block_tables = BlockAllocator(64, 16), np.zeros((1, 64 // 16), np.int32)  # one row, max_model_len 64
try:
    for i in range(5):
        block_tables[0, i] = allocator.allocate()
    overrun = "no error"
except IndexError as error:
    overrun = type(error).__name__

engine = Engine(model, num_gpu_blocks=4, max_model_len=512)
try:
    engine.add_request(story)
    too_long = "no error"
except RequestTooLong as error:
    too_long = type(error).__name__

article.check(
    "§5.1", "Out of blocks with blocks free: the table has more logical blocks than there are physical ones",
    measured=f"a fifth block in a table of four columns: {overrun}, {allocator.num_free} blocks free; a request larger than the pool: {too_long}",
    holds="OutOfBlocks" in (overrun, too_long),
    why="A table that is too short is another error with another name. And 32 sequences that share 8 blocks have 256 logical blocks on 8 physical ones, rightly.",
)

# %%
without, within = (run[2] for run in runs.values())
article.check(
    "§5.3", "A sequence that ends abnormally without free_all keeps its blocks; try/finally or a context manager prevents it",
    measured=f"without: {without.partition('. ')[0]}; with finally: {within}",
    holds=without.startswith("request") and within.endswith("64 of 64 blocks free"),
)

# %% [markdown]
# §5.4 has a row "memory does not go down": blocks were not given back, add try/finally. So here is an engine with a large pool. The process is weighed while it serves, when every block is back, and when the engine itself is gone:

# %%
import gc


def weigh():
    gc.collect()
    return psutil.Process().memory_info().rss


engine = Engine(model, kv_cache_memory_bytes=512 * 2**20, max_model_len=512)
pool_bytes = engine.runner.pool.nbytes
engine.add_request(story, SamplingParams(max_tokens=8, ignore_eos=True))
engine.step()
while_serving = weigh()
while engine.has_unfinished_requests():
    engine.step()
all_back, in_use = weigh(), engine.manager.counts().used
del engine
gone = weigh()

fell = while_serving - all_back > pool_bytes / 4
fell_in_the_end = all_back - gone > pool_bytes / 2
article.check(
    "§5.4", "Memory does not go down: blocks were not given back, add try/finally",
    measured=f"{in_use} blocks in use, and of the pool's {human_bytes(pool_bytes)} "
    f"{'more' if fell else 'less'} than a quarter went back to the system; without the engine "
    f"{'more' if fell_in_the_end else 'less'} than half did",
    holds=fell,
    why="The pool is taken once and kept. Memory never goes down while an engine lives, leak or no leak; look at the number of free blocks instead.",
)

# %% [markdown]
# All of them in one table:

# %%
article

# %% [markdown]
# ## In production
#
# | here | nano-vllm | vLLM |
# |:---|:---|:---|
# | `BlockAllocator` | `BlockManager` (`engine/block_manager.py`), which also does hashing | `BlockPool` (`vllm/v1/core/block_pool.py`) |
# | stack of empty blocks, ordered dict of findable ones | `free_block_ids`, a deque, and `used_block_ids`, a set | `FreeKVCacheBlockQueue` (`vllm/v1/core/kv_cache_utils.py`), a doubly linked list through the blocks; both kinds in one queue |
# | `allocate` | `_allocate_block` | `get_new_blocks` |
# | `share` of a free block, O(1) | `free_block_ids.remove(block_id)`: a search | `touch`: takes the block out of the linked list, O(1) |
# | `free` | `deallocate`, tail first | `free_blocks`, tail first |
# | reference count | `ref_count` of a `Block` | `ref_cnt` of a `KVCacheBlock` |
# | `OutOfBlocks`, `DoubleFree` | plain assertions | `get_new_blocks` raises ValueError; before it comes to that, the scheduler preempts |
# | block 0 is a block | block 0 is a block | block 0 is kept aside as the `null_block`, for places in a table that need none |
#
# Neither of them locks anything: one thread schedules, and it alone owns the pool. The article's atomic reference counts (§3.3) are needed only where several threads allocate; workbook 2.5 shows what goes wrong then.

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. A block has the count 2. One of its two sequences ends and calls `free`. What happens to the block?**
#
# <details><summary>A. It goes back among the free ones, and the other sequence gets a copy.</summary>
#
# > **No.** Nothing is copied when somebody leaves. Copies are made when somebody *writes* into a shared block (chapter 06).
#
# </details>
# <details><summary>B. Its count is 1, and it stays where it is.</summary>
#
# > **Yes.** Only the last holder's `free` makes a block free.
#
# </details>
# <details><summary>C. <code>free</code> raises DoubleFree, because the block is shared.</summary>
#
# > **No.** Each `allocate` and each `share` allows one `free`. Two holders may free twice.
#
# </details>

# %% [markdown]
# **2. Which structure takes a block out of the middle of the free ones without a search, and still knows which was freed longest ago?**
#
# <details><summary>A. An ordered dictionary, or a doubly linked list.</summary>
#
# > **Yes.** Both keep the order, and find a block by its number at once.
#
# </details>
# <details><summary>B. A deque.</summary>
#
# > **No.** It keeps the order, and is fast at both ends. `remove` walks through it.
#
# </details>
# <details><summary>C. A set.</summary>
#
# > **No.** No search, but no order either: it can't say what has waited longest.
#
# </details>
# <details><summary>D. A bitmap.</summary>
#
# > **No.** Clearing a bit needs no search. But a bit says whether a block is free, not since when.
#
# </details>

# %% [markdown]
# **3. The allocator says 0 free. What tells a leak from a pool that is too small?**
#
# <details><summary>A. <code>nvidia-smi</code>: with a leak it shows more memory in use.</summary>
#
# > **No.** The pool is one allocation, and its size never changes.
#
# </details>
# <details><summary>B. A reference count above 1.</summary>
#
# > **No.** That is a shared block. It is as it should be where two tables hold it.
#
# </details>
# <details><summary>C. A count that is higher than the number of living tables with that block.</summary>
#
# > **Yes.** Somebody who is counted no longer exists. If all counts agree with the tables, everybody is at work and the pool is too small.
#
# </details>

# %% [markdown]
# **4. After a day of traffic the free blocks are scattered all over the pool. What do you do?**
#
# <details><summary>A. Nothing.</summary>
#
# > **Yes.** Any free block serves any request. Section 6 measured it: the same text, in the same time.
#
# </details>
# <details><summary>B. Restart the server at night.</summary>
#
# > **No.** That would help against a leak, for a while. Scattered blocks are no leak.
#
# </details>
# <details><summary>C. Move blocks together, as a disk is defragmented.</summary>
#
# > **No.** It would cost copies and gain nothing: nobody asks for two blocks that are neighbours.
#
# </details>

# %% [markdown]
# **5. `blocks = [allocator.allocate() for _ in range(5)]` stands before the `try`, whose `finally` frees them. What can leak?**
#
# <details><summary>A. Nothing: the <code>finally</code> always runs.</summary>
#
# > **No.** It runs once the `try` has been entered. This error comes before.
#
# </details>
# <details><summary>B. All five blocks, if the body of the <code>try</code> raises.</summary>
#
# > **No.** Then the `finally` runs, and frees them.
#
# </details>
# <details><summary>C. Those that were allocated before the pool ran out.</summary>
#
# > **Yes.** The third `allocate` raises, the list was never finished, and nobody knows the first two.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "pool", "block", "free list", "bitmap", "reference count", "leak", "double free", "O(1)", "OutOfBlocks",
    "context manager", "cached block", "external fragmentation",
)

# %% [markdown]
# ## Read on
#
# - Kwon et al., PagedAttention, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 4.2 is the KV cache manager, 4.4 the reference counts of shared blocks, 4.5 what is done when no block is left.
# - Wilson, Johnstone, Neely, Boles, *Dynamic Storage Allocation: A Survey and Critical Review*, IWMM 1995 ([doi 10.1007/3-540-60368-9_19](https://doi.org/10.1007/3-540-60368-9_19)). Section 2 is what fragmentation is, and where it comes from.
#
# Now write an allocator without these mistakes, in `exercises/02_block_allocator`. At the end a real model runs on it.
