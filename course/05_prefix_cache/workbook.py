# %% [markdown]
# # 05 · Workbook: find it again, and know whom to evict
#
# **You write the part that remembers prompts, the part that decides what is forgotten, and you mend a pool that
# answers one user with the other's text.** Four exercises and a stretch. About 60 minutes, no GPU, no network.
#
# `PrefixCache` and `CachingAllocator` are parts of the engine. At the end it runs on both.

# %% [markdown]
# ## Exercise 5.1: from key to block
#
# Difficulty ●●○○○ · Importance ●●●●● · about 10 min · 9 lines
#
# A **key** stands for a full block of tokens and everything before it (chapter 04). A `PrefixCache` says which block
# holds them. Write the class, with three methods:
#
# - `lookup(key)`: the block that was inserted under this key, or `None`. It changes nothing.
# - `insert(key, block)`: from now on this key finds this block. If the key finds a block already, that one **stays**
#   and nothing happens: sequences share it. A block has one key: one that is inserted under a new key loses its old one.
# - `forget(block)`: the block is about to be overwritten, so its key must find nothing any more. The engine calls this
#   for **every** block that it hands out; a block without a key is left alone.
#
# ```
# cache = PrefixCache()
# cache.insert(b"A", 3)
# cache.insert(b"A", 5)    # comes too late
# cache.lookup(b"A")       # 3
# cache.forget(5)          # has no key: nothing happens
# cache.forget(3)
# cache.lookup(b"A")       # None
# ```
#
# A key is anything that a dictionary takes as a key. Block 0 is a block like any other.


# %% nbgrader={"schema_version": 3, "grade_id": "PrefixCache", "grade": false, "solution": true, "locked": false, "task": false}
class PrefixCache:
    """Which block holds which prefix."""

    def __init__(self):
        """Knows nothing yet."""
        ### BEGIN SOLUTION
        # Your lines here: the way from a key to its block, and the way back.
        self.block_of = {}
        self.key_of = {}
        ### END SOLUTION

    def lookup(self, key):
        """The block under this key, or None."""
        ### BEGIN SOLUTION
        # Your line here.
        return self.block_of.get(key)
        ### END SOLUTION

    def insert(self, key, block):
        """Make the block findable under the key. The first block under a key stays."""
        ### BEGIN SOLUTION
        # Your lines here: what if the key is there already? What if the block has another key?
        if key in self.block_of:
            return
        self.forget(block)
        self.block_of[key] = block
        self.key_of[block] = key
        ### END SOLUTION

    def forget(self, block):
        """Drop the block's key. A block without a key is left alone."""
        ### BEGIN SOLUTION
        # Your lines here: both ways must go.
        if block in self.key_of:
            del self.block_of[self.key_of.pop(block)]
        ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_PrefixCache", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(PrefixCache=PrefixCache)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# A dictionary from key to block does `lookup` and most of `insert`. `d.get(key)` is `None` on a miss. Test for `None`
# and for "is it in there", never for truth: block 0 and an empty key are false.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `forget` gets a block and must remove a key. Searching all entries for it is right, and slow: the engine calls it for
# every block it hands out. Keep a second dictionary, from block to key, and change both together. A block that came too
# late must not get into the second one.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `insert`: if the key is there, `return`. Else `self.forget(block)` first, so that the block's old key goes, then
# one assignment in each dictionary. `forget`: if the block has a key, `key = self.key_of.pop(block)` and
# `del self.block_of[key]`.
#
# </details>

# %% [markdown]
# ## Exercise 5.2: who goes first
#
# Difficulty ●●●●○ · Importance ●●●●● · about 20 min · 22 lines
#
# In chapter 02 a free block was a free block. Now some free blocks still hold something that a key can find, and those
# should be handed out last. Write `CachingAllocator(num_blocks, block_size)`: what your `BlockAllocator` did, and a
# fifth method. (You may begin with yours and change it.)
#
# - `mark_findable(block, findable=True)`: says of a block **in use** whether its contents can be found by a key.
# - `allocate()`: hands out a free block that is **not** findable, as long as there is one, whichever you like. Then,
#   of the findable ones, the one **freed longest ago**. Whatever it hands out has one holder and is not findable any
#   more: it will be overwritten. With no free block at all it raises `OutOfBlocks`.
# - `free(block)`: one holder less. With the last one gone the block is free; if it is findable, it goes to the end of
#   the queue of those. Raises `DoubleFree` where nobody holds it.
# - `share(block)`: one holder more. A findable block that is free comes back to life, from **any** place in the queue,
#   and stays findable. This happens at each prefix hit, so it should take the same time whatever the number of blocks.
#   (Free blocks that are not findable are never shared: nobody can find them.)
# - `ref_count(block)`, and `num_free`, which counts **both** kinds.
#
# ```
# allocator = CachingAllocator(num_blocks=3, block_size=16)   # allocate() three times: a, b, c
# allocator.mark_findable(a); allocator.mark_findable(b)
# allocator.free(b); allocator.free(a); allocator.free(c)
# allocator.allocate()    # c: nobody can find it
# allocator.allocate()    # b: freed before a
# ```


# %% nbgrader={"schema_version": 3, "grade_id": "CachingAllocator", "grade": false, "solution": true, "locked": false, "task": false}
from collections import OrderedDict

from pagedkv_lab.errors import DoubleFree, OutOfBlocks


class CachingAllocator:
    """A pool whose free blocks are forgotten as late as possible."""

    def __init__(self, num_blocks, block_size):
        """All blocks are free, and none is findable."""
        ### BEGIN SOLUTION
        # Your lines here: counts, marks, and the free blocks of two kinds.
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counts = [0] * num_blocks
        self.findable = [False] * num_blocks
        self.empty = list(range(num_blocks))
        self.cached = OrderedDict()
        ### END SOLUTION

    def allocate(self):
        """A free block: an empty one, else the findable one freed longest ago."""
        ### BEGIN SOLUTION
        # Your lines here: which kind first, and what changes for the block that goes?
        if self.empty:
            block = self.empty.pop()
        elif self.cached:
            block, _ = self.cached.popitem(last=False)
        else:
            raise OutOfBlocks(used=self.num_blocks)
        self.counts[block] = 1
        self.findable[block] = False
        return block
        ### END SOLUTION

    def free(self, block):
        """One holder less."""
        ### BEGIN SOLUTION
        # Your lines here: where does the block go when nobody holds it any more?
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            if self.findable[block]:
                self.cached[block] = None
            else:
                self.empty.append(block)
        ### END SOLUTION

    def share(self, block):
        """One holder more. A free block comes back to life."""
        ### BEGIN SOLUTION
        # Your lines here: a block that comes back to life must leave the free ones.
        if self.counts[block] == 0:
            del self.cached[block]
        self.counts[block] += 1
        ### END SOLUTION

    def mark_findable(self, block, findable=True):
        """Say whether a key finds the contents of this block, which is in use."""
        ### BEGIN SOLUTION
        # Your line here.
        self.findable[block] = findable
        ### END SOLUTION

    def ref_count(self, block):
        """Holders of the block."""
        ### BEGIN SOLUTION
        # Your line here.
        return self.counts[block]
        ### END SOLUTION

    @property
    def num_free(self):
        """Free blocks of both kinds."""
        ### BEGIN SOLUTION
        # Your line here.
        return len(self.empty) + len(self.cached)
        ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_CachingAllocator", "grade": true, "solution": false, "locked": true, "points": 4, "task": false}
from pagedkv_lab.course import check

check(CachingAllocator=CachingAllocator)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Keep two collections of free blocks. One for empty blocks: a list, as in chapter 02. One for findable ones, in the
# order in which they were freed. When a block becomes free, its mark says which of the two it joins.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `allocate` tries the empty ones, then the front of the findable ones, then raises `OutOfBlocks(used=self.num_blocks)`.
# `free` at count 0 raises `DoubleFree(block)`; at count 1 it puts the block at the **end** of one of the two. `num_free`
# is the length of both: a findable block is free, too. Store in `mark_findable` what it was told, `False` included.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# A `collections.OrderedDict` is a queue that gives up a block from its middle at once: `cached[block] = None` appends,
# `cached.popitem(last=False)` takes the oldest, `del cached[block]` takes any. `share` deletes from it where the count
# is 0, and leaves the mark alone: the block goes to the end of the queue when it is freed again. `allocate` sets the
# count to 1 and the mark to `False`.
#
# </details>

# %% [markdown]
# ### Watch it evict
#
# Four blocks, two prompts of two blocks each, then a third. The letters are what a key finds.

# %%
from pagedkv_lab.course import require

require(PrefixCache=PrefixCache, CachingAllocator=CachingAllocator)

cache, allocator = PrefixCache(), CachingAllocator(num_blocks=4, block_size=16)


def ask(*keys):
    """One request after the other: share what is there, compute the rest, give everything back, the tail first."""
    held, found = [], ""
    for key in keys:
        block = cache.lookup(key) if len(found) == len(held) else None  # nothing counts behind a miss
        if block is not None:
            allocator.share(block)
            found += key
        else:
            block = allocator.allocate()
            cache.forget(block)
            cache.insert(key, block)
            allocator.mark_findable(block)
        held.append(block)
    for block in reversed(held):
        allocator.free(block)
    there = "".join(key if cache.lookup(key) is not None else "-" for key in "ABCDEF")
    print(f"{''.join(keys)}: found {found or 'nothing':<8} afterwards in the cache: {there}")


for prompt in ("AB", "CD", "AB", "EF", "AB", "CD"):
    ask(*prompt)

# %% [markdown]
# `EF` needed two blocks. `AB` was older than `CD`, but it had been found in between: so `CD` went.

# %% [markdown]
# ## Exercise 5.3: the longest prefix
#
# Difficulty ●●○○○ · Importance ●●●●○ · about 8 min · 7 lines
#
# A prompt comes in. How much of it is there already? Write `match_prefix(lookup, keys, num_tokens, block_size)`:
#
# - `lookup` is a function from key to block or `None`, such as `cache.lookup`;
# - `keys` are the keys of the prompt's **full** blocks, in order (there may be none);
# - `num_tokens` is the length of the prompt, at least 1.
#
# Return a pair: the list of blocks that hold the longest cached prefix, and the number of tokens that need not be
# computed. Two rules:
#
# 1. Stop at the first miss. What lies behind a gap is of no use.
# 2. The last token of a prompt is **always** computed, for the next token comes out of it. So a prompt that is found
#    completely has all its blocks, and one computed token less than it has tokens.
#
# | found | tokens | block size | result |
# |:---|---:|---:|:---|
# | the first block, 4 | 20 | 16 | `([4], 16)` |
# | first and third, 4 and 9 | 60 | 16 | `([4], 16)` |
# | the first block, 4, which is the whole prompt | 16 | 16 | `([4], 15)` |


# %% nbgrader={"schema_version": 3, "grade_id": "match_prefix", "grade": false, "solution": true, "locked": false, "task": false}
def match_prefix(lookup, keys, num_tokens, block_size):
    """The blocks of the longest cached prefix, and how many tokens are computed.

    lookup: a function from a key to a block, or None on a miss.
    keys: keys of the prompt's full blocks, in order. Leave the list as it is.
    num_tokens: tokens of the prompt, 1 or more. block_size: tokens a block.
    Returns (blocks, num_computed_tokens).
    """
    ### BEGIN SOLUTION
    # Your lines here: collect blocks up to the first miss, then count tokens. Mind the last one.
    blocks = []
    for key in keys:
        block = lookup(key)
        if block is None:
            break
        blocks.append(block)
    return blocks, min(len(blocks) * block_size, num_tokens - 1)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_match_prefix", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(match_prefix=match_prefix)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# A loop over the keys that ends (`break`) as soon as one is not found. A miss is `None`; block 0 is none.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Each found block is `block_size` tokens. Only if that is the whole prompt, take one off. The blocks all stay: the last
# token's keys and values are there, it is only its answer that is missing, so nothing is written.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Collect into `blocks`, then `return blocks, min(len(blocks) * block_size, num_tokens - 1)`.
#
# </details>

# %% [markdown]
# ## A pool to mend
#
# Here are an allocator and a prefix cache in one class, in the manner of the article (§4.2 and §4.3), in our words.
# Run the cell.


# %%
from pagedkv_lab import errors


class ArticlePool:
    """Blocks and what can be found in them. Every method does what the article says, and no more."""

    def __init__(self, num_blocks):
        self.free_blocks = list(range(num_blocks))
        self.holders = [0] * num_blocks
        self.block_of = {}

    def allocate(self):
        if not self.free_blocks:
            raise errors.OutOfBlocks(used=len(self.holders))
        block = self.free_blocks.pop()
        self.holders[block] = 1
        return block

    def free(self, block):
        self.holders[block] -= 1
        if self.holders[block] == 0:
            self.free_blocks.append(block)

    def share(self, block):
        self.holders[block] += 1

    def lookup(self, key):
        return self.block_of.get(key)

    def insert(self, key, block):
        self.block_of[key] = block


# %% [markdown]
# Two users, and a pool of two blocks. What a block holds is written in `memory`, as an engine would write keys and
# values. Then Ann asks the same again.


# %%
def ann_ben_ann(pool, memory):
    """Ann's prompt, Ben's, Ann's again. Returns what Ann finds the second time, or None for nothing."""
    for words in (["my", "invoice"], ["my", "rash"]):
        blocks = [pool.allocate() for _ in words]
        for i, (word, block) in enumerate(zip(words, blocks, strict=True)):
            memory[block] = word
            pool.insert(" ".join(words[: i + 1]), block)
        for block in reversed(blocks):
            pool.free(block)
    block = pool.lookup("my invoice")
    return None if block is None else memory[block]


print("Ann asks about her invoice again, and finds:", ann_ben_ann(ArticlePool(num_blocks=2), {}))

# %% [markdown]
# ## Exercise 5.4: mend the article's pool
#
# Difficulty ●●●○○ · Importance ●●●●● · about 12 min · 15-20 lines
#
# Ann found Ben's rash, and nothing raised an error. Mend it: `MendedPool` must do the following, and the class above
# fails in each point.
#
# 1. `free` of a block that nobody holds raises `errors.DoubleFree(block)`.
# 2. `share` of a free block takes it out of the free ones, so that nobody else gets it.
# 3. `allocate`: from the moment a block is handed out again, its old key finds nothing. (And not before: a free block
#    that nobody has overwritten must still be found.)
# 4. `insert` under a key that finds a block already changes nothing.
# 5. `allocate`, where all free blocks can be found: the one freed longest ago goes first.
#
# Override what is wrong, inherit what is right. You may add to `__init__`, or replace its collections by others.


# %% nbgrader={"schema_version": 3, "grade_id": "MendedPool", "grade": false, "solution": true, "locked": false, "task": false}
class MendedPool(ArticlePool):
    """The article's pool, with its five mistakes mended."""

    ### BEGIN SOLUTION
    # Your methods here, in the place of those that are wrong.
    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.key_of = {}

    def allocate(self):
        if not self.free_blocks:
            raise errors.OutOfBlocks(used=len(self.holders))
        block = self.free_blocks.pop(0)
        self.holders[block] = 1
        if block in self.key_of:
            del self.block_of[self.key_of.pop(block)]
        return block

    def free(self, block):
        if self.holders[block] == 0:
            raise errors.DoubleFree(block)
        super().free(block)

    def share(self, block):
        if self.holders[block] == 0:
            self.free_blocks.remove(block)
        super().share(block)

    def insert(self, key, block):
        if key not in self.block_of:
            self.block_of[key] = block
            self.key_of[block] = key

    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_MendedPool", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(MendedPool=MendedPool)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Points 1 and 2 are one `if` each, before the inherited line: what if the count is 0? `super().free(block)` runs the
# article's own line.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Point 3: `allocate` knows the block and needs its key. Search `block_of` for it, or keep a second dictionary
# `key_of`, made in `__init__` after `super().__init__(num_blocks)`. Do it when the block is handed out, not when it is
# freed.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Point 5: freed blocks are appended at the end of the list, so the oldest is at its beginning: `pop(0)`. Point 4: in
# `insert`, both assignments (key to block, block to key) only `if key not in self.block_of`.
#
# </details>

# %%
from pagedkv_lab.course import require

require(MendedPool=MendedPool)

print("Ann asks about her invoice again, and finds:", ann_ben_ann(MendedPool(num_blocks=2), {}))

# %% [markdown]
# Nothing: so her prompt is computed again, and answered as it should be. `pop(0)` and `remove` on a list search and
# shift, which is fine for two blocks. With a hundred thousand, you have 5.2.

# %% [markdown]
# ## Stretch 5.5: better than LRU
#
# Difficulty ●●●○○ · Importance ●●○○○ · about 15 min · 1-5 lines
#
# LRU evicts what was used longest ago. It knows nothing of the traffic. You do: on the trace below there are chats,
# which come back, and documents, which are read once and fill up to a third of the pool. Write
# `choose_victim(blocks)`: `blocks` are all free blocks that can be found, the one given back longest ago first. Return
# the one to evict. Each has
#
# - `last_used`: the number of the request that used it last;
# - `hits`: how often it was found;
# - `depth`: its place in the prompt, 0 for the first block;
# - `found_before`: how many blocks of its prompt were found when it was computed.
#
# It must find at least 3 percentage points more than LRU, averaged over three traces of this kind, in a pool of 200
# blocks. LRU itself is `return blocks[0]`.


# %% nbgrader={"schema_version": 3, "grade_id": "choose_victim", "grade": false, "solution": true, "locked": false, "task": false}
def choose_victim(blocks):
    """Which of these blocks to evict.

    blocks: a list of free blocks, at least one, each with last_used, hits, depth, found_before. Leave it as it is.
    Returns one of them.
    """
    ### BEGIN SOLUTION
    # Your lines here: which blocks will never be asked for again?
    return min(blocks, key=lambda block: (block.hits + block.found_before > 0, block.last_used, -block.depth))
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_choose_victim", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(choose_victim=choose_victim)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# A document of 40 blocks pushes out 40 blocks of chats and never comes again. If documents were evicted first, they
# could do no harm. How do you recognize a block of a document?
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `hits == 0` alone is not enough: the newest turn of a chat has not been found yet, either, and it is what the next
# turn asks for. But a chat begins with a system prompt that was there already. A document begins with nothing that
# anybody knows.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Strangers first: blocks with `hits == 0` and `found_before == 0`, the oldest of them. If there are none, the oldest of
# all. `min` with a `key` that is a tuple does both: first whether the block is known (False is less than True), then
# `last_used`.
#
# </details>

# %% [markdown]
# ### LRU against yours

# %%
from pagedkv_lab import show
from pagedkv_lab.course import require
from pagedkv_lab.measure.simulate import generated_trace, hit_rates, replay

require(choose_victim=choose_victim)

trace = generated_trace(seed=0)
capacities = (80, 120, 200, 300, 500)
show.hit_rate_by_capacity(
    {"LRU": hit_rates(trace, capacities), "yours": hit_rates(trace, capacities, choose_victim)},
    no_limit=replay(trace).hit_rate,
)

# %% [markdown]
# Would you put it into a server? It was made for traffic that you know. The lesson tries it on a real trace.

# %% [markdown]
# ## Run it for real
#
# The engine, with your prefix cache and your allocator in it, and the bundled model. Three requests share a prefix;
# a fourth comes when they are done and finds blocks that are free. The pool is shown live. The tokens must be those of
# the package's own parts, and those of transformers' `generate`.

# %%
from pagedkv_lab.course import run_for_real

run_for_real(PrefixCache=PrefixCache, CachingAllocator=CachingAllocator)

# %% [markdown]
# ## Your progress

# %%
from pagedkv_lab.course import progress

progress()
