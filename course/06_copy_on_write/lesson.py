# %% [markdown]
# # 06 · Who pays when two share a block?
#
# **One prompt of 45 tokens, and you want four answers to it. Blocks hold 16 tokens, so a sequence of 45 needs three of them. How many blocks do the four take: twelve?**
#
# Afterwards you can
# - say what a fork costs, and when the bill comes,
# - tell which blocks are ever copied, and why a prefix hit never copies one,
# - work out what parallel sampling and beam search save,
# - judge advice on block sizes and on copying ahead, by bytes and by the clock,
# - see a reference count go wrong under threads, and say when yours can.
#
# 35 minutes · Difficulty ●●●○○ · Needs nothing but the bundled model. You should know a block table (chapter 03) and what a prefix hit is (chapter 05). All cells together run in well under a minute.

# %%
import asyncio
import random
import statistics
import sys
import time
import warnings
from threading import Barrier, Thread

import torch

from pagedkv_lab import Engine, Parts, SamplingParams, load_model
from pagedkv_lab.blocks import BlockAllocator, BlockTable
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.kv.pool import KVPool
from pagedkv_lab.show import Playground, copy_on_write, show_source
from pagedkv_lab.sizing import blocks_for, human_bytes

# Newer versions of transformers have another name for it, and say so in a warning.
warnings.filterwarnings("ignore", message=".*past_key_values")
model = load_model("SmolLM2-135M-Instruct")

# %% [markdown]
# ## 1. Four answers
#
# `n=4` asks for four answers, each drawn at random on its own. This is **parallel sampling**: all four have the same beginning. The first step computes the prompt.

# %%
bakery = [{"role": "user", "content": "Suggest a name for a small bakery by the sea, and say why."}]
four = SamplingParams(n=4, temperature=0.8, seed=3, max_tokens=24)

engine = Engine(model, num_gpu_blocks=32, max_model_len=256)
request = engine.add_request(bakery, four)
prompt_len = len(engine.requests()[request].prompt_token_ids)


def moment(engine, request):
    """All tables, the tokens in them, and how many hold each block."""
    snapshot = engine.snapshot()
    sequences = engine.requests()[request].sequences
    tables = {f"answer {seq.index + 1}": snapshot.tables[seq.seq_id].tolist() for seq in sequences}
    tokens = {
        f"answer {seq.index + 1}": [
            model.tokenizer.decode([token]).replace("\n", "⏎") for token in seq.token_ids[: seq.num_computed_tokens]
        ]
        for seq in sequences
    }
    return tables, tokens, dict(enumerate(snapshot.ref_count.tolist()))


engine.step()
*before, counts_before = moment(engine, request)
for name, table in before[0].items():
    print(f"{name}: {table}")
print(f"{prompt_len} tokens, {engine.stats().pool.used} blocks in use")

# %% [markdown]
# Three, not twelve. The prompt was computed once, then the sequence was **forked** three times: three more tables with the same numbers in them, and a reference count of 4 on each block. Nothing was copied.
#
# But the third block holds 13 tokens, and has three empty slots. In the next step each of the four writes its first word, at position 45, in that block. Four words don't fit into one slot.

# %%
report = engine.step()
*after, counts_after = moment(engine, request)
for name, table in after[0].items():
    print(f"{name}: {table}")
print(f"{report.num_copied_blocks} blocks were copied, {engine.stats().pool.used} are in use")

# %% [markdown]
# Three of the four took a fresh block, got a copy of the 13 tokens in it, and then wrote. The last one to write was alone by then, and wrote into the original. With two answers there is one copy, and room to draw it:

# %%
pair = Engine(model, num_gpu_blocks=32, max_model_len=256)
both = pair.add_request(bakery, SamplingParams(n=2, temperature=0.8, seed=3, max_tokens=3))
pair.step()
*forked, forked_counts = moment(pair, both)
pair.step()
*written, written_counts = moment(pair, both)
copy_on_write(forked, written, block_size=16, ref_counts=(forked_counts, written_counts))

# %% [markdown]
# *On the right of each pool, how many hold the block.*
#
# This is **copy-on-write**. The rule has two halves:
#
# - more than one holder: take a fresh block, copy the contents, let go of the shared one, then write;
# - one holder: write in place.
#
# The first two blocks stay shared to the end. Nobody will ever write into them: they are full. So six blocks instead of twelve, and from now on each answer grows on its own.

# %%
while engine.has_unfinished_requests():
    report = engine.step()
[output] = report.finished
for one in output.outputs:
    print(one.index + 1, " ".join(one.text.split()))
print("copied in all:", engine.stats().copied_blocks)

# %% [markdown]
# ## 2. The code
#
# A fork, and the question before a write. A table holds numbers and no tensors, so it can't copy. It says what must be copied:

# %%
show_source(BlockTable.fork, BlockTable.ensure_writable)

# %% [markdown]
# The pairs of one step are collected, and the pool makes all copies at once, in every layer, before the step writes anything:

# %%
show_source(KVPool.copy_blocks)

# %% [markdown]
# The order in `ensure_writable` matters. `allocate` comes first: if the pool is empty it raises, and nothing has changed. `free` then takes one holder away from the source; the others keep it.
#
# Fork something yourself. Press **Step** a few times, then **fork** on a card, and **Step** again: the log says which block was copied, if one was. Where the parent stood at the end of a block, none is.

# %%
playground = Playground(Engine(model, num_gpu_blocks=48, max_model_len=256), ["Tell me about the sea."], max_tokens=80)
playground.step(12)
[sequence] = [seq for one in playground.engine.requests().values() for seq in one.sequences]
playground.fork(sequence.seq_id)
playground.step(3)
playground

# %% [markdown]
# *A fork of a running answer: the blocks that both hold, and the two that are their own.*

# %% [markdown]
# ## 3. When it happens, and when it doesn't
#
# Does every fork copy? Prompts of different lengths, each with four answers. (Which block is copied follows from lengths and tables alone, so this runs on `load_model("toy")`, a random model that takes a millisecond a step.)

# %%
toy = load_model("toy")


def copies_of_forks(length, n=4):
    """Blocks that are copied in the life of one request with n answers."""
    engine = Engine(toy, num_gpu_blocks=64, max_model_len=128)
    engine.generate([list(range(1, length + 1))], SamplingParams(n=n, max_tokens=20), use_tqdm=False)
    return engine.stats().copied_blocks


by_length = {length: copies_of_forks(length) for length in range(44, 53)}
for length, copied in by_length.items():
    print(f"prompt of {length} tokens, {length % 16:>2} in the last block: {copied} copied")

# %% [markdown]
# Always three, except where the last block is exactly full: then each answer takes a fresh block, as it would without a fork. And never more than three, however long the answers become: once a block is yours, it stays yours. **A fork pays at most one block, once.**
#
# Prefix hits share blocks as well, far more of them than forks do. 200 requests with five common beginnings, among them some that repeat a prompt to the last token:

# %%
rng = random.Random(0)
beginnings = [[rng.randrange(1, 200) for _ in range(48)] for _ in range(5)]
engine = Engine(toy, num_gpu_blocks=128, max_model_len=128)
for _ in range(200):
    engine.add_request(
        rng.choice(beginnings) + [rng.randrange(1, 200) for _ in range(rng.choice((0, 0, 1, 7, 16, 20)))],
        SamplingParams(max_tokens=8),
    )
shared_most = 0
while engine.has_unfinished_requests():
    engine.step()
    shared_most = max(shared_most, int(engine.snapshot().ref_count.max()))
hits = engine.stats()
print(
    f"{hits.hit_tokens:,} of {hits.queried_tokens:,} prompt tokens were found: {hits.hit_tokens // 16:,} blocks shared"
)
print(f"up to {shared_most} sequences held one block; blocks copied: {hits.copied_blocks}")

# %% [markdown]
# Not one. Only **full** blocks have a key (chapter 04), so only full blocks are found, and a full block has no slot left to write into. Even the full hit, whose last token is computed again, writes nothing (chapter 05).
#
# So there are two kinds of sharing in one pool, and only one of them needs copy-on-write:
#
# | | prefix hit | fork |
# |:---|:---|:---|
# | who shares | requests that don't know each other | sequences with one parent |
# | found by | the key of a full block | nobody searches: the table is copied |
# | shares | full blocks only | the partly filled one, too |
# | copies | never | the partly filled block, once for each but the last writer |

# %% [markdown]
# ## 4. What it looks like when it goes wrong
#
# Two broken tables. The first never copies: both answers write into the shared block. The second takes a fresh block, and nobody copies the contents.


# %%
class WritesShared(BlockTable):
    def fork(self):
        child = type(self)(self.allocator)
        child.append_shared_blocks(self.blocks)
        return child

    def ensure_writable(self, i):
        return self.blocks[i], self.blocks[i]  # "copy the block onto itself"


class TableOnly(WritesShared):
    def ensure_writable(self, i):
        _, destination = BlockTable.ensure_writable(self, i)
        return destination, destination


two = SamplingParams(n=2, temperature=0.8, seed=3, max_tokens=24)
for table in (BlockTable, WritesShared, TableOnly):
    engine = Engine(model, num_gpu_blocks=32, max_model_len=256, parts=Parts(BlockTable=table, watch=False))
    [output] = engine.generate([bakery], two, use_tqdm=False)
    print(table.__name__)
    for one in output.outputs:
        print("   ", " ".join(one.text.split()))

# %% [markdown]
# Nothing crashes, and every sentence is fluent. With `WritesShared` the answer that wrote last is right; the other one reads three words that it never said. With `TableOnly` the one that copied has lost the last thirteen tokens of the question: in their place are the zeros of a fresh block. (`watch=False` switches off the engine's guards. Watched, both tables are refused in words.)

# %% [markdown]
# ## 5. What sharing saves
#
# Measure it as the PagedAttention paper does (section 6.3): blocks that are saved, as a share of those that the tables would take without sharing. The paper reports 6 to 10 % for parallel sampling on Alpaca, where questions are short (19 tokens on average, its figure 11) and answers are longer (58). Its list of lengths is not bundled; these are drawn with the same averages, once spread widely and once closely. Each step counts table entries, and blocks in use:


# %%
def saved_by_sampling(n, prompt_mean, output_mean, shape, num_requests=24):
    """Share of the blocks that forks save, over the whole run. No prefix cache. shape: the larger, the closer."""
    rng = random.Random(1)
    engine = Engine(toy, num_gpu_blocks=4096, max_model_len=1024, max_num_seqs=256, enable_prefix_caching=False)
    for _ in range(num_requests):
        lengths = [min(480, 1 + int(rng.gammavariate(shape, mean / shape))) for mean in (prompt_mean, output_mean)]
        params = SamplingParams(n=n, max_tokens=lengths[1], ignore_eos=True)
        engine.add_request([rng.randrange(1, 200) for _ in range(lengths[0])], params)
    entries = blocks = 0
    while engine.has_unfinished_requests():
        engine.step()
        snapshot = engine.snapshot()
        entries += sum(len(table) for table in snapshot.tables.values())
        blocks += int((snapshot.ref_count > 0).sum())
    return 1 - blocks / entries


for spread, shape in (("widely", 1), ("closely", 8)):
    saved = [f"{saved_by_sampling(n, 19, 58, shape):.0%} with {n} answers" for n in (2, 4, 6)]
    print(f"lengths spread {spread}: saved {', '.join(saved)}")

# %% [markdown]
# The paper's 6 to 10 % lie between the two. Sampled answers share the full blocks of the prompt and nothing else, so much hangs on how many questions fill a block at all. And a long answer dilutes what is shared. A prompt of a thousand tokens with short answers saves nearly all copies of itself.
#
# **Beam search** shares more. It keeps the four best texts so far; in each step every beam proposes next tokens, and the four best of all proposals go on. A good beam is forked, a bad one freed. So the beams of today have a common ancestor a few words back, and share everything before it.


# %%
def beam_search(prompt_ids, width, steps, block_size=16):
    """The best text, and for each step: entries in the tables, blocks in use. Copies made; copies if made at the fork."""
    allocator = BlockAllocator(512, block_size)
    root = BlockTable(allocator)
    root.append_blocks(blocks_for(len(prompt_ids), block_size))
    beams, cache, history, copies, at_fork = [(0.0, prompt_ids, root)], None, [], 0, 0
    for _ in range(steps):
        new = torch.tensor([ids if cache is None else ids[-1:] for _, ids, _ in beams], device=model.device)
        with torch.inference_mode():
            logits, cache = model.hf(new, past_key_values=cache, use_cache=True).to_tuple()[:2]
        log_probs = logits[:, -1].float().log_softmax(-1)
        log_probs[:, model.hf.generation_config.eos_token_id] = -torch.inf
        best = log_probs.topk(width)
        candidates = sorted(
            (
                (beams[b][0] + float(best.values[b, k]), b, int(best.indices[b, k]))
                for b in range(len(beams))
                for k in range(width)
            ),
            reverse=True,
        )[:width]
        cache.reorder_cache(torch.tensor([b for _, b, _ in candidates], device=model.device))

        position = len(beams[0][1])
        forks = [beams[b][2].fork() for _, b, _ in candidates]  # first fork the survivors,
        for _, _, table in beams:
            table.free_all()  # then give up the old beams
        if position % block_size:
            at_fork += len(candidates) - len({b for _, b, _ in candidates})
        for table in forks:
            if position % block_size == 0:
                table.append_block()
            elif table.ensure_writable(position // block_size):
                copies += 1
        beams = [
            (score, [*beams[b][1], token], table) for (score, b, token), table in zip(candidates, forks, strict=True)
        ]
        history.append((sum(len(table) for table in forks), 512 - allocator.num_free))
    return beams[0][1], history, copies, at_fork


lighthouse = model.encode("The keeper of the lighthouse looked out at the sea and saw a small boat")
text, history, beam_copies, beam_at_fork = beam_search(lighthouse, width=4, steps=48)
print(model.tokenizer.decode(text))
for step in (1, 8, 16, 32, 48):
    print(f"step {step:>2}: {history[step - 1][0]:>2} entries in four tables, {history[step - 1][1]:>2} blocks in use")
entries, blocks = map(sum, zip(*history, strict=True))
beam_saved = 1 - blocks / entries
print(f"saved: {beam_saved:.0%}; copied: {beam_copies} blocks in 48 steps")

# %% [markdown]
# The paper has 38 to 55 % on Alpaca, with widths from 2 to 6. Is it beam search at all? Transformers' own, with the same width:

# %%
ids = torch.tensor([lighthouse], device=model.device)
[theirs] = model.hf.generate(
    ids,
    attention_mask=torch.ones_like(ids),
    num_beams=4,
    do_sample=False,
    min_new_tokens=48,
    max_new_tokens=48,
    pad_token_id=0,
)
print("the same text as transformers' beam search:", theirs.tolist() == text)

# %% [markdown]
# Without blocks, each step of beam search copies whole caches: that is what `reorder_cache` does above, for each beam, from the first token on. With tables, a step moves numbers, and copies a block for each fork.

# %% [markdown]
# ## 6. What a copy costs
#
# First in bytes. A copy reads a block and writes a block, in all layers. A decode step reads all weights, and the cache of every sequence. On a GPU both wait for memory, so the bytes alone say how long a copy takes, as a share of a step:


# %%
def share_of_a_step(block_size, bytes_per_token, weight_bytes):
    """Bytes that a copy moves, as a share of what a decode step of one short sequence reads."""
    return 2 * block_size * bytes_per_token / weight_bytes


models = {
    "SmolLM2-135M, float32": (model.shape.kv_bytes_per_token("float32"), 4 * model.shape.num_parameters),
    "a 13B model, float16": (2 * 40 * 40 * 128 * 2, 2 * 13_000_000_000),
}
for name, (a_token, weights) in models.items():
    for block_size in (16, 64):
        share = share_of_a_step(block_size, a_token, weights)
        print(f"{name}, blocks of {block_size}: {human_bytes(block_size * a_token):>9} copied, {share:.1%} of a step")

# %% [markdown]
# Then by the clock, here: the time of one copy against the median decode step of a single sequence, which is the shortest step there is.


# %%
def measured_share(block_size):
    """Seconds of one block copy, as a share of a decode step."""
    engine = Engine(model, num_gpu_blocks=32, max_model_len=256, block_size=block_size)
    engine.add_request(bakery, SamplingParams(max_tokens=24, ignore_eos=True))
    engine.step()
    step = statistics.median(engine.step().seconds for _ in range(16))
    copies = []
    for _ in range(30):
        started = time.perf_counter()
        engine.runner.pool.copy_blocks([(30, 31)])
        copies.append(time.perf_counter() - started)
    return statistics.median(copies) / step


def in_words(share):
    """Coarse, since your machine is another one."""
    return next(
        (f"less than {limit:.0%} of a step" for limit in (0.05, 0.1, 0.25) if share < limit), "over 25% of a step"
    )


cost = {block_size: measured_share(block_size) for block_size in (16, 64)}
for block_size, share in cost.items():
    print(f"blocks of {block_size}: one copy takes {in_words(share)}")
print("four times the block takes", "less" if cost[64] < 4 * cost[16] else "more", "than four times as long")

# %% [markdown]
# And how often? Each answer pays once. Over a request with 4 answers of 24 tokens it is 3 copies in 24 steps; beam search forks all the time, and copies about a block a step. For a **jump** in one token's latency that you would notice, it takes many forks in the same step. And if it bothers you: smaller blocks make the copy smaller, and everything else that costs by the block (tables, keys, look-ups) more frequent.

# %% [markdown]
# ## 7. Copying ahead
#
# The article suggests a way round the jump: guess which blocks will be shared, and copy them before they are written. Two questions decide whether that pays. Which of the shared blocks are ever written? And when would the copy be made otherwise?
#
# - **Hot blocks**, the prefixes that everybody hits: section 3 shared them by the hundred, and copied none. A copy made ahead is wasted, all of them, and so is its memory.
# - **Forks**: the last block will be written, in the very next step. Copied at the fork, it is the same copy, a step earlier. Nothing is saved, and a fork that ends before it writes has paid for nothing.


# %%
def idle_forks(forks=6):
    """Fork a running answer, and stop the forks before they say anything."""
    engine = Engine(toy, num_gpu_blocks=64, max_model_len=128)
    parent = engine.add_request(list(range(1, 46)), SamplingParams(max_tokens=8))
    engine.step()
    for each in [engine.fork(parent) for _ in range(forks)]:
        engine.abort(each)
    while engine.has_unfinished_requests():
        engine.step()
    return engine.stats().copied_blocks


print(f"beam search:    {beam_copies} copied on write, {beam_at_fork} if copied at the fork")
print(f"6 forks that are stopped at once: {idle_forks()} copied on write, 6 if copied at the fork")
print(
    f"prefix hits:    {hits.copied_blocks} copied on write, {hits.hit_tokens // 16:,} if every shared block were copied ahead"
)

# %% [markdown]
# ## 8. Counts and threads
#
# Everything above leans on a number: how many hold this block? `count = count + 1` is three steps, read, add, write. If another thread comes in between, one of the two additions is lost.
#
# See it happen. Four threads share one block many times over. The first way keeps counts in a dictionary, the second in a list with `+=`. (Python may change threads every microsecond here, not every 5 ms, and we try again until it has gone wrong or 40 rounds are over.)


# %%
class InDict:
    def __init__(self):
        self.counts = {}

    def share(self, block):
        count = self.counts.get(block, 0)
        self.counts[block] = count + 1


class InList:
    def __init__(self):
        self.counts = [0]

    def share(self, block):
        self.counts[block] += 1


def shares_lost(counts, times=10_000):
    """Four threads share block 0 so many times each; how many of these were not counted."""
    start = Barrier(4)

    def work():
        start.wait()
        for _ in range(times):
            counts.share(0)

    threads = [Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return 4 * times - counts.counts[0]


lost = {Counts.__name__: any(shares_lost(Counts()) for _ in range(40)) for Counts in (InDict, InList)}
for name, some in lost.items():
    print(f"{name}: {'holders were lost' if some else 'none was lost'}")

# %% [markdown]
# A lost holder is a block that becomes free while somebody reads it: the wrong text of section 4, at random, once a week.
#
# That the list got away with it is luck, not a promise. Today's CPython changes threads only at certain instructions, at the end of a call or of a loop's round, and `self.counts[block] += 1` has none in its middle. The dictionary's `get` is a call. A free-threaded Python has no such points at all.
#
# And whole counts are not enough. Copy-on-write **decides** by a count: "am I alone?" Let two sequences hold block 5, and both look before either acts:

# %%
holders = {5: 2}
first_sees, second_sees = holders[5], holders[5]
copied = 0
for sees in (first_sees, second_sees):
    if sees > 1:  # somebody else needs it: copy, and give up this one
        copied += 1
        holders[5] -= 1
print(f"both saw {first_sees}; {copied} copies were made, and {holders[5]} hold block 5")

# %% [markdown]
# Each step was right, and every single change could have been atomic. One copy was for nothing, and block 5 has no holder, although neither of the two put it back: each thought that the other would stay. Looking and changing must be **one** operation, under one lock. You write it in the workbook.
#
# Is an asynchronous server in the same danger? 4 × 10,000 shares again, as coroutines:

# %%
counts = InDict()


async def share_many():
    for i in range(10_000):
        counts.share(0)
        if i % 100 == 0:
            await asyncio.sleep(0)  # here, and only here, another coroutine may run


await asyncio.gather(*(share_many() for _ in range(4)))  # noqa: F704 - a notebook's cell may await
lost_async = 40_000 - counts.counts[0]
print("lost:", lost_async)

# %% [markdown]
# None, and this is a promise: coroutines change only where one says `await`. As long as no `await` stands between looking and changing, there is nothing to lock.
#
# Real engines take the simplest way out. One thread owns the scheduler and all its counts. Front ends, tokenizers and GPU workers are other threads or processes, and hand it messages through a queue. Then a count is a plain integer.

# %% [markdown]
# ## Check the article
#
# Eight claims (§3.3, §5.3, §6.3). The rule first:

# %%
article = Claims()
held = [counts_before[block] for block in before[0]["answer 1"]]
copies_at_four = by_length[45]
article.check(
    "§3.3",
    "Before a write, look at the count: above 1, copy the block and change the own table; at 1, write in place",
    measured=f"four held the last block: {copies_at_four} copied it, and the last one wrote in place",
    holds=held == [4, 4, 4] and copies_at_four == 3 and counts_after[before[0]["answer 1"][-1]] == 1,
)

# %%
article.check(
    "§3.3",
    "Prefix hits are read only, so copy-on-write happens mainly at block boundaries",
    measured=(
        f"{hits.hit_tokens // 16:,} blocks shared by hits: {hits.copied_blocks} copied. Four answers: {by_length[47]} copied "
        f"with 47 tokens, {by_length[48]} with 48, a boundary, {by_length[49]} with 49"
    ),
    holds=hits.copied_blocks == 0 and by_length[48] > by_length[47],
    why=(
        "The first half holds. The boundary is the one place where nothing is ever copied: the copies are in the middle "
        "of a block, after a fork."
    ),
)

# %%
sampled, searched = 3 * cost[16] / 24, beam_copies * cost[16] / 48  # a copy's share of a step, over all steps
article.check(
    "§3.3",
    "Designed well, the extra cost is small",
    measured=(
        f"all copies of a run, as a share of its steps: four answers of 24 tokens {'under 1%' if sampled < 0.01 else 'over 1%'}, "
        f"beam search {'under 5%' if searched < 0.05 else 'over 5%'}"
    ),
    holds=sampled < 0.01 and searched < 0.05,
    why="A fork pays for one block at most, whatever comes after it.",
)

# %%
article.check(
    "§5.3",
    "With blocks of 16, the cost of copy-on-write can be neglected",
    measured=f"one copy takes {in_words(cost[16])}; {share_of_a_step(16, *models['a 13B model, float16']):.1%} by bytes on a 13B model",
    holds=cost[16] < 0.1,
)

# %%
article.check(
    "§5.3",
    "With blocks of 64, a copy is a jump in latency that one notices",
    measured=f"one copy takes {in_words(cost[64])}; {share_of_a_step(64, *models['a 13B model, float16']):.1%} by bytes on a 13B model",
    holds=cost[64] >= 0.25,
    why=(
        "A step reads all weights, and a block is small beside them, at 64 too. By bytes it takes "
        f"{round(0.25 / share_of_a_step(64, *models['a 13B model, float16']))} forks in one step of a 13B model to make "
        "it a quarter longer."
    ),
)

# %%
article.check(
    "§5.3",
    "A way out: smaller blocks",
    measured=f"a copy of 16 moves a quarter of the bytes and takes {'less' if cost[16] < cost[64] else 'more'} time than one of 64",
    holds=cost[16] < cost[64],
    condition="where the copies are what you notice",
    why="Smaller blocks make tables longer, and keys and look-ups more frequent, in every step and for everybody.",
)

# %%
article.check(
    "§5.3, §6.3",
    "Another way out: predict hot blocks and copy them ahead",
    measured=(
        f"hot blocks: {hits.hit_tokens // 16:,} copies ahead, {hits.copied_blocks} needed. Beam search: {beam_at_fork} at the fork, "
        f"{beam_copies} on write. Forks that are stopped: 6 against {idle_forks()}"
    ),
    holds=beam_at_fork < beam_copies or hits.copied_blocks > 0,
    why=(
        "A hot block is a full block, and is never written. A fork's block is written in the next step anyway: copied at "
        "the fork, it costs the same, and sometimes for nothing."
    ),
)

# %%
article.check(
    "§3.3",
    "Counts need atomic operations, since serving is multi-threaded or asynchronous",
    measured=(
        f"four threads: {'holders were lost' if lost['InDict'] else 'none was lost this time'}; four coroutines: {lost_async} lost"
    ),
    holds=lost["InDict"] and lost_async == 0,
    condition=(
        "where more than one thread changes them; an asynchronous server on one thread needs none, and one owner is what "
        "engines have"
    ),
    why="And atomic additions are not enough: to look whether one is alone and to leave must be one operation.",
)

# %% [markdown]
# §5.3 also names counts that are not taken down when a sequence ends badly, and `try`/`finally` as the cure: chapter 02 tried that. All of these:

# %%
article

# %% [markdown]
# ## In production
#
# | here | nano-vllm | vLLM |
# |:---|:---|:---|
# | `SamplingParams(n=4)` | no `n` | `n` requests instead of forks: `ParentRequest` (`vllm/v1/engine/parallel_sampling.py`) makes a child request for each output, with seed + index; they share the prompt's full blocks through the prefix cache |
# | the partly filled last block | | computed again by each child: fewer than `block_size` tokens, and no copy |
# | `fork`, `ensure_writable` | none | versions before V1 had both, as in the paper; V1 began without them. Newer versions copy again in one case (`KVCacheBlockCopy`, a pair of source and destination): where keys are for smaller pieces than a block, a prefix hit may end in the middle of one |
# | beam search | none | outside the engine: every step asks for one more token of each beam with its log probabilities, and the prefix cache finds the beams' blocks again |
# | who changes the counts | one thread | one: the scheduler's loop in the engine's process; `ref_cnt` is a plain integer |
#
# A lesson in that: with a prefix cache, sharing full blocks comes for free, and copy-on-write saves the rest of one block for each fork, and no more. V1 did well without. And "a prefix hit never copies" is not a law of nature: it follows from "only full blocks have a key".

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. A prompt of 100 tokens, blocks of 16, five answers. How many blocks are in use after the prompt, and how many one step later?**
#
# <details><summary>A. 7, then 12</summary>
#
# > **No.** Five write into the seventh block. The last of them is alone, and needs no copy.
#
# </details>
# <details><summary>B. 35, then 35</summary>
#
# > **No.** That is five sequences without sharing.
#
# </details>
# <details><summary>C. 7, then 11</summary>
#
# > **Yes.** 100 tokens are 6 full blocks and 4 tokens. Four of the five copy the seventh block.
#
# </details>
# <details><summary>D. 7, then 7</summary>
#
# > **No.** Then five different words would be in one slot.
#
# </details>

# %% [markdown]
# **2. The same with a prompt of 96 tokens?**
#
# <details><summary>A. 6, then 11, and nothing is copied</summary>
#
# > **Yes.** The six blocks are full. Each of the five takes a fresh one for its first token.
#
# </details>
# <details><summary>B. 6, then 10, and four are copied</summary>
#
# > **No.** Nobody writes into a full block, so there is nothing to copy.
#
# </details>
# <details><summary>C. 6, then 6</summary>
#
# > **No.** There is no slot left in six blocks for token 97.
#
# </details>

# %% [markdown]
# **3. A server shares a system prompt of 2,048 tokens among 100 users, by prefix hits. Somebody wants to protect it with copies made ahead. What do they gain?**
#
# <details><summary>A. Safety: somebody might write into it.</summary>
#
# > **No.** All its blocks are full. There is no slot to write into, and the engine never writes a hit block.
#
# </details>
# <details><summary>B. Time: the copies would otherwise come at a bad moment.</summary>
#
# > **No.** They would never come.
#
# </details>
# <details><summary>C. Nothing, and they lose what sharing has saved.</summary>
#
# > **Yes.** 128 blocks for each user, copied from blocks that nobody would have changed.
#
# </details>

# %% [markdown]
# **4. `ensure_writable` puts a fresh block into the table and returns the right pair, but forgets to free the source. What happens?**
#
# <details><summary>A. The next write goes into the wrong block.</summary>
#
# > **No.** The table is right, and so is the text.
#
# </details>
# <details><summary>B. The block stays in use for ever, and the one who still holds it will copy it without need.</summary>
#
# > **Yes.** The count says two, and one is there. It never thinks itself alone, and when it goes, the count stays at one: a leak.
#
# </details>
# <details><summary>C. DoubleFree, as soon as somebody frees it.</summary>
#
# > **No.** There is one `free` too few, not one too many.
#
# </details>

# %% [markdown]
# **5. Each change to a count is atomic. Two threads hold a block and want to write into it. Each asks `ref_count(block) > 1`, and if so copies and frees. Is that right?**
#
# <details><summary>A. Yes: atomic means that nothing is lost.</summary>
#
# > **No.** Nothing is lost, and it is wrong all the same. Both can ask before either frees.
#
# </details>
# <details><summary>B. No: both may see 2, both copy, and the block ends with no holder.</summary>
#
# > **Yes.** Between looking and acting the other one came in. The two must be one operation.
#
# </details>
# <details><summary>C. No: one of the two waits for ever.</summary>
#
# > **No.** Nobody waits for anybody here. That is the trouble.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "fork",
    "copy-on-write",
    "parallel sampling",
    "beam search",
    "sole owner",
    "race",
    "atomic",
    "lock",
    "reference count",
)

# %% [markdown]
# ## Read on
#
# - Kwon et al., PagedAttention, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 4.4 is forks, parallel sampling and beam search on shared blocks, with the picture of copy-on-write; 6.3 has what they save; 5.1 the kernel that makes all copies of a step at once.
# - Zheng et al., *SGLang*, NeurIPS 2024 ([arXiv 2312.07104](https://arxiv.org/abs/2312.07104)). Section 3 keeps all prefixes in a tree, and so forks and hits are the same thing.
# - Arpaci-Dusseau, *Operating Systems: Three Easy Pieces*, [chapter 23](https://pages.cs.wisc.edu/~remzi/OSTEP/vm-complete.pdf) for copy-on-write of pages, [chapter 28](https://pages.cs.wisc.edu/~remzi/OSTEP/threads-locks.pdf) for locks.
#
# Now write it yourself: [the workbook](../exercises/06_copy_on_write/06_copy_on_write.ipynb). The model will answer three times on your table.
