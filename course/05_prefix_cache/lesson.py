# %% [markdown]
# # 05 · What stays, and what goes first?
#
# **Ann asks how to keep bread fresh. Her prompt has 54 tokens; the engine finds 48 of them in its cache, computes the other 6, and answers: "To treat a fever, you should consult a doctor." No error, no crash. Which line is missing?**
#
# Afterwards you can
# - say which blocks of a prompt are found, which are computed, and why the last token always is,
# - follow a block from hand to hand: in use, free but findable, evicted, back to life,
# - say who is evicted first, and what that does to the hit rate,
# - find the bug above in somebody's prefix cache, and mend it,
# - judge how much memory a prefix cache needs, on a trace.
#
# 30 minutes · Difficulty ●●●○○ · Needs nothing but the bundled model. You should know what a key is (chapter 04) and what a free list is (chapter 02). All cells together run in about half a minute.

# %%
import torch

from pagedkv_lab import Engine, Parts, SamplingParams, load_model, show
from pagedkv_lab.blocks import BlockAllocator, PrefixCache
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.errors import PartError
from pagedkv_lab.measure.simulate import POLICIES, TraceRequest, generated_trace, hit_rates, replay
from pagedkv_lab.measure.workloads import shared_system_prompt
from pagedkv_lab.show import record, show_source

model = load_model("SmolLM2-135M-Instruct")

# %% [markdown]
# ## 1. What the second request costs
#
# Three people ask at the help desk of a library, one after the other. The house rules stand in front of each question. The engine answers with a prefix cache, and once more without:

# %%
questions = shared_system_prompt(3)
a_few = SamplingParams(max_tokens=4)


def ask_one_by_one(engine):
    return [engine.generate([question], a_few, use_tqdm=False)[0] for question in questions]


with_cache = Engine(model, num_gpu_blocks=64, max_model_len=1024)
without = Engine(model, num_gpu_blocks=64, max_model_len=1024, enable_prefix_caching=False)
found, plain = ask_one_by_one(with_cache), ask_one_by_one(without)

for output in found:
    total, hit = len(output.prompt_token_ids), output.num_cached_tokens
    print(f"prompt of {total} tokens: {hit:>3} found, {total - hit:>3} computed")
computed = with_cache.stats().computed_tokens, without.stats().computed_tokens
print(f"computed in all, answers included: {computed[0]:,} tokens with the cache, {computed[1]:,} without")
print("same answers:", [output.token_ids for output in found] == [output.token_ids for output in plain])

# %% [markdown]
# The first one pays. The others find whole blocks, and compute what is theirs: their question, and the few tokens at the seam that don't fill a block.
#
# Between two requests nobody held those blocks. They were **free**. So two parts must agree here: one that knows where a prefix is, and one that knows who may have the block next.

# %% [markdown]
# ## 2. Where a prefix is
#
# The first part is a dictionary from key to block, and a way back. This is all of it:

# %%
show_source(PrefixCache.lookup, PrefixCache.insert, PrefixCache.forget)

# %% [markdown]
# Three things to see.
#
# - `lookup` gives a block's number, or `None`. It says nothing about who holds the block: perhaps three sequences, perhaps nobody.
# - `insert` keeps the **first** block under a key. Two requests can compute the same block in the same moment; sequences may share the first one already, so the second is simply not findable.
# - `forget` goes the way back, from block to key. Whoever hands a block out must call it, because the block is about to be overwritten.
#
# ## 3. Who may have the block next
#
# The second part is chapter 02's allocator, with one thing more: some of its free blocks are **findable**.
#
# | a block is | held by | found by a key | may be handed out |
# |:---|:---|:---|:---|
# | in use | somebody | once it is full | no |
# | cached | nobody | yes | last |
# | empty | nobody | no | first |
#
# Here is its life, by hand. Two blocks; the first gets a key:

# %%
allocator, cache = BlockAllocator(num_blocks=2, block_size=16), PrefixCache()


def state(block):
    if allocator.ref_count(block):
        return "in use"
    return "cached" if block in allocator.cached_blocks() else "empty"


def note(what):
    print(f"{what:<38} block 0 is {state(0):<7} block 1 is {state(1):<7} key A finds {cache.lookup('A')}")


block = allocator.allocate()
cache.insert("A", block)
allocator.mark_findable(block)
note("computed and inserted under A")
allocator.free(block)
note("its sequence has finished")
allocator.share(cache.lookup("A"))
note("the same prompt again: a hit")
allocator.free(block)
allocator.allocate()
note("somebody needs a block")
block = allocator.allocate()
cache.forget(block)
note("somebody needs another: evicted")

# %% [markdown]
# **Eviction** is nothing but the last line: a cached block is handed out as if it were empty, and its key goes. No memory moves, nothing is written back. That is why a prefix cache can take *all* free memory, and costs nobody a block.
#
# In code, the two kinds of free blocks are two collections. `share` must take a block out of the middle of the second one, at once: an `OrderedDict` can.

# %%
show_source(BlockAllocator.allocate, BlockAllocator.share, BlockAllocator.free)

# %% [markdown]
# ## 4. Stop at the first miss
#
# A prompt of 64 tokens, four blocks. Then the same with token 20 changed, which is in the second block. Blocks three and four hold the same tokens as before. Are they found?

# %%
one_token = SamplingParams(max_tokens=1)
engine = Engine(model, num_gpu_blocks=32, max_model_len=256)
prompt = list(range(1000, 1064))
changed = [*prompt[:20], 7, *prompt[21:]]

for name, token_ids in (
    ("the prompt", prompt),
    ("token 20 changed", changed),
    ("the prompt and 5 more", [*prompt, 1, 2, 3, 4, 5]),
):
    [output] = engine.generate([token_ids], one_token, use_tqdm=False)
    print(f"{name:<22} {len(token_ids)} tokens, {output.num_cached_tokens} found")

# %% [markdown]
# No. The keys and values of a token depend on everything before it (chapter 04 shows it on the model), and so does a key: the chain makes the keys of blocks three and four different, and a lookup that has missed once will miss for ever. So it **stops at the first miss**: anything else would be wasted work, or, with a weaker key, wrong.
#
# ## 5. The full hit
#
# Now the same 64 tokens once more. All four blocks are there. What is left to compute?

# %%
before = [tensor.clone() for tensor in (*engine.runner.pool.keys, *engine.runner.pool.values)]
engine.add_request(prompt, one_token)
report = engine.step()
after = (*engine.runner.pool.keys, *engine.runner.pool.values)

print(f"found {report.hit_tokens}, computed {report.num_prefill_tokens}, of {len(prompt)} tokens")
print("a number in the pool has changed:", any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)))

# %% [markdown]
# One token is computed: the last. The next token is read off the model's output *at the last token of the prompt*. That output is not in the cache; only keys and values are. So the last token goes through the model again. It attends to the blocks that are there, its own key and value among them, and writes **nothing**: the block is shared, and what would be written stands there already.
#
# This is a special case that is easy to get wrong in both directions. Compute nothing, and there is nothing to sample from. Give the last block up, and 16 tokens are computed for one.

# %% [markdown]
# ## 6. Who goes first
#
# A pool of 8 blocks, and three people who come one after the other. A conversation takes five blocks, so not everything can stay. The recording opens where Cleo comes. Drag the slider, or press play, and look at the hatched blocks: free, and findable.

# %%
ann = [
    {
        "role": "user",
        "content": "How do I keep bread fresh for a few days? I bake on Mondays. Please answer in two short sentences.",
    }
]
ben = [
    {
        "role": "user",
        "content": "What should I do about a red rash on both of my arms and a fever? Please answer in two short sentences.",
    }
]
cleo = [
    {
        "role": "user",
        "content": "Please name three rivers in Europe and for each of them one city on its banks. Please answer in two sentences.",
    }
]

engine = Engine(model, num_gpu_blocks=8, max_model_len=128)
with record(engine) as run:
    for name, prompt in (("Ann", ann), ("Ben", ben), ("Ann", ann), ("Cleo", cleo), ("Ann", ann), ("Ben", ben)):
        if name == "Cleo":
            cleo_comes = engine.stats().steps + 1
        [output] = engine.generate([prompt], SamplingParams(max_tokens=24), use_tqdm=False)
        print(f"{name:<4} {output.num_cached_tokens:>2} of {len(output.prompt_token_ids)} tokens found")
show.replay(run, step=cleo_comes)

# %% [markdown]
# *The first block belongs to all: it holds the chat template's system message. When Cleo comes, the two empty blocks go first, then two of Ben, who was there before Ann's second visit.*
#
# When only cached blocks are left, the one **freed longest ago** goes: least recently used, **LRU**. Ann came again after Ben, so her blocks were newer than his, and she found them a third time. Ben came back, and found only what all three share.
#
# ### The tail first
#
# A sequence gives all its blocks back in the same moment. In which order? The last block first, so that it is also evicted first. A **prefix is useful without its tail; a tail without its prefix is not**, for the lookup stops before it gets there. See what one short request does to a prompt of four blocks in a pool of four:


# %%
def requests(*prompts):
    """A trace with one letter a block."""
    return [TraceRequest(i, 16 * len(prompt), 1, tuple(map(ord, prompt))) for i, prompt in enumerate(prompts)]


for tail_first in (True, False):
    result = replay(requests("abcd", "x", "abcd"), capacity=4, tail_first=tail_first)
    print(f"{'tail' if tail_first else 'head'} first: {result.found} of 4 blocks found again")

# %% [markdown]
# `x` needs one block. Freed tail first, `d` goes, and `abc` is found. Freed head first, `a` goes: then `b`, `c` and `d` lie in the pool, findable by keys that nobody will get to.

# %% [markdown]
# ## 7. Ann gets Ben's answer
#
# Now a prefix cache in the manner of the article (§4.3): a dictionary with `lookup` and `insert`. And a list allocator as in chapter 02, with its mistake in `share` mended, so that only one is left. `watch=False` switches off the engine's guards, which would notice.


# %%
class ArticleCache:
    def __init__(self):
        self.block_of = {}

    def lookup(self, key):
        return self.block_of.get(key)

    def insert(self, key, block):
        self.block_of[key] = block


class ListAllocator:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.ref_count = [0] * num_blocks

    def allocate(self):
        block = self.free_blocks.pop()
        self.ref_count[block] = 1
        return block

    def share(self, block):
        if self.ref_count[block] == 0:
            self.free_blocks.remove(block)
        self.ref_count[block] += 1

    def free(self, block):
        self.ref_count[block] -= 1
        if self.ref_count[block] == 0:
            self.free_blocks.append(block)


def ann_ben_ann(max_tokens=36, **parts):
    """The three answers, one after the other, from an engine with these parts."""
    engine = Engine(model, num_gpu_blocks=16, max_model_len=256, parts=Parts(**parts))
    greedy = SamplingParams(max_tokens=max_tokens)
    return [engine.generate([prompt], greedy, use_tqdm=False)[0] for prompt in (ann, ben, ann)]


stale = ann_ben_ann(BlockAllocator=ListAllocator, PrefixCache=ArticleCache, watch=False)
for name, output in zip(("Ann", "Ben", "Ann"), stale, strict=True):
    total, hit = len(output.prompt_token_ids), output.num_cached_tokens
    print(f"{name}: {hit} of {total} tokens found\n    {output.text.strip()}")

# %% [markdown]
# There it is. Ann's blocks were freed, and Ben's prompt was written into them. Her keys still led there. The second time, the engine "found" her 48 tokens, read Ben's keys and values, and computed the 6 tokens that are left: the end of the message and the beginning of the answer. Those are the same in every chat. The model saw Ben's question, and answered it.
#
# Nothing was out of bounds and nothing was freed twice. Every count was right. Only the meaning of a key had changed.
#
# The missing line is `forget`. The engine calls it for every block it hands out. A cache that has none, or whose `forget` does nothing, is refused as soon as it is watched:


# %%
class ForgetsNothing(ArticleCache):
    def forget(self, block):
        pass


for name, cache_class in (("without forget", ArticleCache), ("forget does nothing", ForgetsNothing)):
    try:
        ann_ben_ann(BlockAllocator=ListAllocator, PrefixCache=cache_class)
        print(f"{name}: nobody noticed")
    except PartError as error:
        print(f"{name}: {error}")

# %% [markdown]
# Mended: a way back, from block to key, and `forget`.


# %%
class MendedCache(ArticleCache):
    def __init__(self):
        super().__init__()
        self.key_of = {}

    def insert(self, key, block):
        super().insert(key, block)
        self.key_of[block] = key

    def forget(self, block):
        self.block_of.pop(self.key_of.pop(block, None), None)


mended = ann_ben_ann(BlockAllocator=ListAllocator, PrefixCache=MendedCache)
for name, wrong, right in zip(("Ann", "Ben", "Ann"), stale, mended, strict=True):
    print(f"{name} was told   {wrong.text.strip()}\n    and now    {right.text.strip()}")

# %% [markdown]
# The engine asks `insert` only for keys that are not there, so that the overwriting in it does no harm here. On your own it would: in the workbook you mend the article's pool, with all five of its mistakes.
#
# Look at how much of Ann's prompt is found now:

# %%
own = ann_ben_ann(max_tokens=1)
for name, outputs in (("article's parts", stale), ("mended", mended), ("package's parts", own)):
    print(f"{name:<16} found for Ann, second time: {outputs[2].num_cached_tokens} of 54 tokens")

# %% [markdown]
# Right, but next to nothing is found: the list hands out first what was freed **last**. In a pool of 16 blocks ten were empty all the time, and the list took Ann's. The package's allocator hands out the empty ones first, and finds all 48. An allocator that is right can still make a poor cache.

# %% [markdown]
# ## 8. Capacity against hit rate
#
# How large must the pool be? That depends on the traffic, so take traffic. A **trace** lists for each request which blocks its prompt has; equal numbers mean equal prefixes. That is all a prefix cache looks at, so it can be replayed without a model, in seconds. Here is a generated one: chats of several turns behind three system prompts, and documents that are read once.

# %%
trace = generated_trace(seed=0)
print(f"{len(trace)} requests in one hour, {sum(len(request.hash_ids) for request in trace):,} blocks of 64 tokens")
for request in trace[:3]:
    print(
        f"after {request.timestamp / 1000:>2.0f} s: {request.input_length} tokens, blocks {list(request.hash_ids[:8])} ..."
    )

# %%
capacities = (80, 120, 200, 300, 500, 800)
rates = {policy.upper(): hit_rates(trace, capacities, policy) for policy in POLICIES}
no_limit = replay(trace).hit_rate
show.hit_rate_by_capacity(rates, no_limit=no_limit)

# %% [markdown]
# *LRU against FIFO (the block computed longest ago goes, found since or not) and MRU (the newest goes). The dashed line is a pool that never fills.*
#
# - No pool finds more than the dashed line: what was never there can't be found.
# - FIFO throws the system prompts out again and again, although they are found every few seconds: they are old.
# - MRU, "evict the newest first", is what you get by mistake from a plain stack. It finds between a fifth and a third of what LRU finds: the chat that has just been answered goes first, and it is the one that comes again in a minute.
#
# ### A real hour
#
# Mooncake (FAST'25) published traces of a real chat service, with blocks of 512 tokens. If you have `conversation_trace.jsonl` (12,031 requests, from the repository `kvcache-ai/Mooncake`, folder `FAST25-release/traces`) in a folder `shared/traces` next to the course, the next cell replays it. We measured:
#
# | pool | LRU finds | FIFO finds |
# |---:|---:|---:|
# | 1,000 blocks | 4.45 % | 4.45 % |
# | 10,000 blocks | 21.16 % | 18.17 % |
# | no limit | 36.64 % | 36.64 % |
#
# (Freed head first, LRU finds 21.12 % at 10,000 blocks. On this traffic the order hardly matters.)

# %% tags=["skip-execution", "nbval-skip"]
from pathlib import Path

from pagedkv_lab.measure.simulate import read_trace

name = Path("shared", "traces", "conversation_trace.jsonl")
file = next((folder / name for folder in (Path.cwd(), *Path.cwd().parents) if (folder / name).exists()), None)
if file is None:
    print(f"There is no {name} here or in a folder above: go on with the generated trace.")
else:
    real = read_trace(file)
    for capacity in (1_000, 10_000, None):
        lru, fifo = (replay(real, capacity, policy).hit_rate for policy in ("lru", "fifo"))
        print(f"{capacity or 'no limit':>8}: LRU {lru:.2%}, FIFO {fifo:.2%}")

# %% [markdown]
# Two things are different from our small trace. Even with no limit, two thirds of the blocks are new: people paste long texts. And a thousand blocks of 512 tokens, half a million tokens, find almost nothing, because so much passes between two turns of a chat. All requests of this trace begin with the same block, so that a policy that prefers prompts with a known beginning (the stretch of the workbook) does exactly what LRU does here. A policy is good *for a trace*.

# %% [markdown]
# ## Check the article
#
# What the article says on this topic, each claim measured here.

# %%
article = Claims()
total = [len(output.prompt_token_ids) for output in found]
new = [length - output.num_cached_tokens for length, output in zip(total, found, strict=True)]
article.check(
    "§3.1",
    "With a fixed system prompt, all requests after the first one save that computation",
    measured=f"three prompts of {min(total)} to {max(total)} tokens: {', '.join(map(str, new))} computed",
    holds=new[0] == total[0] and max(new[1:]) < 0.1 * min(total),
    condition="full blocks only, and as long as they have not been evicted",
    why="Two requests with the same prefix in the same step share too: then not even the second one pays.",
)

# %%
article.check(
    "§3.1",
    "On a hit the blocks are reused, and only the new part is computed",
    measured=f"64 of 64 tokens were there: {report.hit_tokens} reused, {report.num_prefill_tokens} computed",
    holds=report.num_prefill_tokens <= 1,
    condition="the last token of the prompt is computed even when nothing is new",
    why="Its output is what the next token is read from, and outputs are not cached.",
)

# %%
pool = with_cache.stats().pool
again = with_cache.generate([questions[0]], one_token, use_tqdm=False)[0]
article.check(
    "§3.2",
    "When all sequences that reference a block have ended, the block is reclaimed",
    measured=(
        f"after the three requests {pool.used} blocks are in use and {pool.cached} are cached; asked again, "
        f"{again.num_cached_tokens} of {len(again.prompt_token_ids)} tokens were found"
    ),
    holds=pool.used == 0,
    condition="it may be handed out from then on; until it is, it can be found",
    why="If reclaimed meant emptied, a prefix would be lost whenever nobody happens to use it.",
)

# %%
article.check(
    "§4.3",
    "A prefix cache is a dictionary with lookup and insert; a hit's block can be reused",
    measured=f"Ann's answer, second time: {stale[2].text.strip()!r}; with forget: {mended[2].text.strip()!r}",
    holds=stale[2].token_ids == mended[2].token_ids,
    why="Blocks are handed out again. Without a way from block to key, old keys lead to new contents.",
)

# %%
small, large = (replay(trace, capacity) for capacity in (100, 800))
article.check(
    "§5.2",
    "A hit rate can be low because the cache is small and old blocks are evicted too fast",
    measured=f"100 blocks: {small.hit_rate:.1%} found, {small.evicted:,} evicted; 800 blocks: {large.hit_rate:.1%}, {large.evicted:,}",
    holds=small.hit_rate < 0.75 * large.hit_rate,
    why="The other bound is the traffic: no cache finds what was never asked before.",
)

# %%
pool_blocks = 300
by_share = {share: replay(trace, int(share * pool_blocks)).hit_rate for share in (0.3, 0.5, 1.0)}
article.check(
    "§6.3",
    "Give the prefix cache 30 to 50 % of the pool",
    measured="; ".join(f"{share:.0%} of {pool_blocks} blocks: {rate:.1%} found" for share, rate in by_share.items()),
    holds=by_share[0.5] >= 0.95 * by_share[1.0],
    why=(
        "There is nothing to give: a cached block is a free block, handed out as soon as somebody needs it. A limit would "
        "leave blocks empty that could have been found. vLLM and nano-vllm have none either."
    ),
)

# %% [markdown]
# All of them in one table:

# %%
article

# %% [markdown]
# The advice of §6.3 has a good core: what is *in use* must fit first, and only the rest can cache. With requests that fill the pool there is no rest, and prefixes die young. The remedy is a larger pool or fewer requests at a time, not a reservation.

# %% [markdown]
# ## In production
#
# | here | nano-vllm | vLLM |
# |:---|:---|:---|
# | `PrefixCache` | `hash_to_block_id` of `BlockManager` (`engine/block_manager.py`) | `cached_block_hash_to_block` of `BlockPool` (`vllm/v1/core/block_pool.py`); several blocks may have one key |
# | `forget`, when a block is handed out | a lookup compares the block's token ids with the prompt's, and takes a difference for a miss | `_maybe_evict_cached_block` |
# | free blocks: a stack and an `OrderedDict` | one `deque`; a hit on a free block searches it | `FreeKVCacheBlockQueue`, a doubly linked list through the blocks: out of the middle in O(1) |
# | `share` of a free block | `_allocate_block` of that very block | `touch` |
# | the tail is freed first | likewise (`deallocate`) | likewise |
# | a full hit computes one token | | computes the last block again: the hit is cut to `num_tokens - 1`, rounded down to whole blocks |
# | every free block caches | likewise | likewise; `reset_prefix_cache` empties it, for instance after new weights |
#
# SGLang keeps prefixes in a radix tree and evicts its leaves, least recently used first: the tail first, by construction.

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. A prompt of 48 tokens has been served before, block size 16. All three blocks are found. How many tokens does the engine compute before it can answer?**
#
# <details><summary>A. 0</summary>
#
# > **No.** The cache has keys and values, not the model's output. Without computing a token there is nothing to sample from.
#
# </details>
# <details><summary>B. 16</summary>
#
# > **No.** That is what happens if the last block is given up, as vLLM does. Here the block is kept and only its last token goes through the model.
#
# </details>
# <details><summary>C. 1</summary>
#
# > **Yes.** The last one. It attends to all 48 keys that are there, and writes nothing.
#
# </details>

# %% [markdown]
# **2. Blocks 1, 2 and 4 of a prompt are in the cache, block 3 was evicted. What is used?**
#
# <details><summary>A. Blocks 1 and 2.</summary>
#
# > **Yes.** The lookup stops at the first miss. (With LRU and the tail freed first, this state does not come about from one prompt alone.)
#
# </details>
# <details><summary>B. Blocks 1, 2 and 4.</summary>
#
# > **No.** Tokens 33 to 48 would be computed, and 49 to 64 are right as they are: it would be possible. But then a prompt has holes to be computed in several places, and no engine here does that.
#
# </details>
# <details><summary>C. None: a prefix is found as a whole or not at all.</summary>
#
# > **No.** Each block has a key of its own, and those in front of a miss are as good as ever.
#
# </details>

# %% [markdown]
# **3. Why does the engine have `forget(block)`, and not `forget(key)`?**
#
# <details><summary>A. Keys are 32 bytes long, and block numbers are shorter.</summary>
#
# > **No.** Length is no matter. Whoever calls it doesn't have the key.
#
# </details>
# <details><summary>B. It is called when a block is handed out, and then nobody knows the key of what was in it.</summary>
#
# > **Yes.** The sequence that computed it may have ended an hour ago. So the cache keeps the way back.
#
# </details>
# <details><summary>C. Because several keys can lead to one block.</summary>
#
# > **No.** A block holds one thing at a time, so it has at most one key.
#
# </details>

# %% [markdown]
# **4. Your server has 1,000 blocks. At this moment 700 are in use. How many can hold cached prefixes that nobody uses?**
#
# <details><summary>A. 300 to 500, as the article advises.</summary>
#
# > **No.** More than 300 there aren't, and nothing is reserved.
#
# </details>
# <details><summary>B. None, since they have to be free for new requests.</summary>
#
# > **No.** They are free *and* cached. A new request simply takes one.
#
# </details>
# <details><summary>C. As many as were configured.</summary>
#
# > **No.** There is no such number here, nor in vLLM or nano-vllm.
#
# </details>
# <details><summary>D. Up to 300: all that are free.</summary>
#
# > **Yes.** Whatever isn't in use can be found until it is needed.
#
# </details>

# %% [markdown]
# **5. A colleague clears a block's key in `free`, as soon as its last holder is gone. What do you see?**
#
# <details><summary>A. Users get each other's answers.</summary>
#
# > **No.** That comes from clearing it too late. Too early is safe.
#
# </details>
# <details><summary>B. Hits only among requests that run at the same time.</summary>
#
# > **Yes.** The answers are right. But the next turn of a chat, half a minute later, computes everything again.
#
# </details>
# <details><summary>C. The pool runs out of blocks.</summary>
#
# > **No.** Keys take no blocks. A block without a key is as free as one with a key.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "prefix cache",
    "prefix hit",
    "cached block",
    "findable",
    "eviction",
    "LRU",
    "full hit",
    "stale entry",
    "hit rate",
    "trace",
    "reference count",
)

# %% [markdown]
# ## Read on
#
# - Kwon et al., *PagedAttention*, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 4.4, "Shared prefix": the blocks of a system prompt kept in advance. Finding any prefix by its hash came later.
# - Zheng et al., *SGLang*, 2024 ([arXiv 2312.07104](https://arxiv.org/abs/2312.07104)). Section 3: RadixAttention, a tree of prefixes with LRU over its leaves.
# - Qin et al., *Mooncake*, FAST 2025 ([arXiv 2407.00079](https://arxiv.org/abs/2407.00079)). Section 4.2 has hit rates of LRU and two other policies on a trace, by capacity; LRU is the best of them.
#
# Now write it yourself: [the workbook](../exercises/05_prefix_cache/05_prefix_cache.ipynb). Your prefix cache and your allocator will run the engine, and you mend the article's pool.
