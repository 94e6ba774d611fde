# %% [markdown]
# # 08 · Four people are reading along, and the text stops
#
# **The model is writing for four people at once. A fifth one pastes a document of 600 tokens, and for the other four the text stands still. For how long, and who decides that?**
#
# Afterwards you can
# - say what static and continuous batching are, and read a schedule from a Gantt chart,
# - choose a token budget, and say what it costs whom: the one who waits for the first token, or those who read along,
# - follow a request that loses its blocks and comes back, and say what the watermark does about it,
# - measure TTFT and TPOT, and say which of them a change will move.
#
# 30 minutes · Difficulty ●●●○○ · Needs nothing but the bundled model. All cells together run in well under a minute.

# %%
import weakref
from dataclasses import dataclass

from pagedkv_lab import Engine, Parts, SamplingParams, load_model
from pagedkv_lab.blocks import BlockAllocator
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.engine.scheduler import Schedule, Scheduler
from pagedkv_lab.measure.dry_run import Arrival, dry_run, token_steps
from pagedkv_lab.show import latency_distributions, schedule_gantt, show_source, watch

model = load_model("SmolLM2-135M-Instruct")

# %% [markdown]
# ## 1. Who is in the batch?
#
# A step of the model computes a **batch**: some tokens of some sequences. The **scheduler** decides which. It has nothing to do with the model, so we can watch it without one: `dry_run` plays the engine, and a step only counts its tokens as computed.
#
# Eight requests come at once, and four may run at a time (`max_num_seqs`). Their answers are of very different lengths.
#
# The old way is **static batching**: take four, run until all four are done, take the next four. Here it is, as a change to the package's scheduler in one method.


# %%
class StaticBatching(Scheduler):
    """Nobody comes in before everybody is done."""

    def _schedule_waiting(self, step, budget):
        if not self.running:
            super()._schedule_waiting(step, budget)


lengths = (4, 30, 7, 12, 25, 3, 5, 9)
eight = [Arrival(step=0, prompt_len=8, max_tokens=length) for length in lengths]


def busy_seats(reports, seats=4):
    """Share of the seats that somebody sat in, over all steps."""
    return sum(report.num_scheduled for report in reports) / (seats * len(reports))


static = dry_run(eight, StaticBatching, max_num_seqs=4)
continuous = dry_run(eight, max_num_seqs=4)
for name, reports in (("static", static), ("continuous", continuous)):
    print(f"{name:<11} {len(reports)} steps, {busy_seats(reports):.0%} of the seats busy")

schedule_gantt(static)

# %%
schedule_gantt(continuous)

# %% [markdown]
# *Above, static: requests 1, 3 and 4 are done early, and their places stay empty until request 2 is done, too. Below, **continuous batching** (Orca, 2022): at every step whoever is done leaves, and the next one comes in.*
#
# It takes two things. The scheduler must be asked before **every** step. And sequences of any length must be able to share a step, which is what block tables are for: no sequence cares where another one's blocks lie.
#
# ## 2. The scheduler
#
# This is all of it. First those that run, then those that wait, and one budget of tokens for both.

# %%
show_source(Scheduler.schedule, Scheduler._schedule_running, Scheduler._schedule_waiting, Scheduler.preempt)

# %% [markdown]
# Note what it doesn't say: "prefill" and "decode". A sequence has tokens that are computed and tokens that aren't. One that generates has one of these left, one that has just come has its whole prompt. Both kinds may be in the same step.
#
# The order is **first come, first served** (FCFS): when the first in the queue can't come in, nobody behind it does, even where it would fit. Otherwise a large request could wait for ever, overtaken again and again. (The stretch of the workbook looks for a better policy.)
#
# ## 3. The text stands still
#
# Now with the model. Four people have been reading along for six steps when somebody comes with 600 tokens. First with a budget that takes the prompt in one go, `max_num_batched_tokens=2048`, then with 64. We keep each step's report: what it computed, and how long it took.

# %%
openings = ["Once upon a time there was", "The best thing about winter is", "My sister keeps bees, and", "A short history of bread:"]
document = list(range(1000, 1600))  # 600 tokens; which ones does not matter here


def with_a_document(budget):
    """Four that generate, and after six steps a document. Returns the engine, all reports and all outputs."""
    engine = Engine(model, num_gpu_blocks=80, max_model_len=1024, max_num_batched_tokens=budget)
    for opening in openings:
        engine.add_request(opening, SamplingParams(max_tokens=24, ignore_eos=True))
    reports = []
    while engine.has_unfinished_requests():
        if len(reports) == 6:
            engine.add_request(document, SamplingParams(max_tokens=6, ignore_eos=True))
        reports.append(engine.step())
    outputs = sorted((output for report in reports for output in report.finished), key=lambda o: o.request_id)
    return engine, reports, outputs


with_a_document(64)  # once for nothing: the first run of anything is slow
runs = {budget: with_a_document(budget) for budget in (2048, 64)}


def pause(reports):
    """The longest step in which one of the four got a token, over the median of those before the document came."""
    usual = sorted(report.seconds for report in reports[1:6])[2]
    return max(report.seconds for report in reports[6:] if any(request <= 4 for request, *_ in report.tokens)) / usual


pauses = {budget: pause(reports) for budget, (_, reports, _) in runs.items()}
for budget, (_, reports, _) in runs.items():
    largest = max(reports, key=lambda report: report.num_prefill_tokens + report.num_decode_tokens)
    print(
        f"budget {budget:>4}: the largest step computes {largest.num_decode_tokens} tokens of those who read along and "
        f"{largest.num_prefill_tokens} of the document"
    )
print("With 2048 the four wait more than 5 times as long as usual:", pauses[2048] > 5)
print("With 64 they wait less than half of that:", pauses[64] < pauses[2048] / 2)

# %%
schedule_gantt(runs[2048][1], arrivals={5: 7})

# %%
schedule_gantt(runs[64][1], arrivals={5: 7})

# %% [markdown]
# *Above, the document is computed in one step, the seventh. Below, the same in **chunks**: in each step the four take 4 of the 64 tokens, and the document gets the other 60.*
#
# All columns are equally wide here, and that hides what the four see. The same two runs, drawn by the clock:

# %% tags=["nbval-ignore-output"]
schedule_gantt(runs[2048][1], x="seconds", arrivals={5: 7})

# %% tags=["nbval-ignore-output"]
schedule_gantt(runs[64][1], x="seconds", arrivals={5: 7})

# %% [markdown]
# *A green bar is one token. Above, one bar is as long as a dozen others, and nobody gets a token before it ends: here the text stands still. Below there is no such bar.*
#
# This is **chunked prefill** (Sarathi-Serve, 2024). Nobody is served faster by it: the document's own first token comes later. But the four read on.
#
# The words for it: **TTFT**, time to first token, is what the fifth one waits. **TPOT**, time per output token, is the mean time between the tokens that the others read.

# %% tags=["nbval-ignore-output"]
latency_distributions({f"budget {budget}": outputs for budget, (*_, outputs) in runs.items()})

# %% [markdown]
# *A dot for each request. Times are this machine's: run the cell on yours.*
#
# Look at TPOT on the right. It hardly changed! It is a **mean**, over 23 gaps between 24 tokens, and the document has to be computed in either run. One long pause or ten short ones make the same mean. What a reader notices is the longest gap:

# %%
def longest_gap_over_mean(reports):
    """For the first request: its longest gap between two tokens, over the mean of its gaps."""
    gaps = [report.seconds for report in reports if any(request == 1 for request, *_ in report.tokens)][1:]
    return max(gaps) / (sum(gaps) / len(gaps))


ratios = {budget: longest_gap_over_mean(reports) for budget, (_, reports, _) in runs.items()}
print("budget 2048: the longest gap is more than 8 times the mean:", ratios[2048] > 8)
print("budget   64: it is less than 5 times the mean:", ratios[64] < 5)

# %% [markdown]
# So measure the gaps too (vLLM's benchmarks report them as ITL, inter-token latency), and their p99 rather than their mean. The tokens are the same in both runs; only their times differ:

# %%
texts = {budget: [output.token_ids for output in outputs] for budget, (*_, outputs) in runs.items()}
print("the same tokens:", texts[64] == texts[2048])

# %% [markdown]
# ## 4. How large a budget?
#
# Small steps are good for those who read along, but each step has a price of its own: all weights are read from memory, whether for 4 tokens or for 400. And a chunk attends to all the chunks before it, whose keys are read again each time. Counted without a clock:

# %%
traffic = [Arrival(0, 8, 40) for _ in range(4)] + [Arrival(6, 600, 6)]
print("budget   largest step   steps until the document's first token")
for budget in (2048, 256, 64, 16):
    reports = dry_run(traffic, max_num_batched_tokens=budget)
    largest = max(report.num_prefill_tokens + report.num_decode_tokens for report in reports[6:])
    first = token_steps(reports)[5][0] - 6
    print(f"{budget:>6}   {largest:>6} tokens  {first:>6}")

# %% [markdown]
# There is no best number, only a trade: a larger budget is a shorter TTFT and more tokens a second, a smaller one is an even pace. vLLM's default depends on the card and on what it is used for: 2,048 tokens for a server on most cards, 8,192 on an H100, 16,384 on the largest cards or for a list of prompts that nobody is waiting for (version 0.32). On a large GPU a step of a hundred tokens takes hardly longer than one of 4, because both wait for the weights; there small chunks waste what the card can do.
#
# ## 5. When the blocks run out
#
# A request is let in when its **prompt** fits. Nobody knows how long its answer will be. So the pool fills up while everybody grows, and at some step a sequence needs a block and none is free. Then the one that came **last** gives its blocks back and returns to the head of the queue: **preemption**. Its tokens are kept, keys and values are not; when there is room again, prompt and answer so far are computed in one prefill. Four requests in a pool of 12 blocks, live:

# %%
small = Engine(model, num_gpu_blocks=12, max_model_len=128, watermark=0, enable_prefix_caching=False)
reports = []
small.listeners.append(reports.append)
answers = watch(small, openings, SamplingParams(max_tokens=60, ignore_eos=True))

# %%
schedule_gantt(reports)

# %% [markdown]
# *A cross is where somebody lost its blocks. The blue bar after it is everything computed again: prompt and answer so far.*

# %%
roomy = Engine(model, num_gpu_blocks=64, max_model_len=128, enable_prefix_caching=False)
wanted = roomy.generate(openings, SamplingParams(max_tokens=60, ignore_eos=True), use_tqdm=False)
same = [one.token_ids == other.token_ids for one, other in zip(answers, wanted, strict=True)]
for name, engine in (("12 blocks", small), ("64 blocks", roomy)):
    stats = engine.stats()
    print(f"{name}: {stats.preemptions} preemptions, {stats.computed_tokens} tokens computed for {stats.output_tokens} output tokens")
print("the same text for all four:", all(same))

# %% [markdown]
# The readers see a pause, and nothing else. Why the last one? Because it has the least to lose, and because the first one then always gets to its end: whatever happens, something is finished, and its blocks come back. Preempt the oldest instead, and two large requests can throw each other out for ever.
#
# It is computed again because that is simple and mostly cheap: a prefill is one step for hundreds of tokens. The other way is to copy the blocks to the CPU's memory and back (*swapping*; the PagedAttention paper measured both, and found them equally good for blocks of 16 to 64 tokens). And if the prefix cache is on, the lost blocks may still be there when the victim comes back:

# %%
cached = Engine(model, num_gpu_blocks=12, max_model_len=128, watermark=0)
again = cached.generate(openings, SamplingParams(max_tokens=60, ignore_eos=True), use_tqdm=False)
print(f"with prefix caching: {cached.stats().preemptions} preemptions, {cached.stats().computed_tokens} tokens computed")
print("the same text:", [output.token_ids for output in again] == [output.token_ids for output in wanted])

# %% [markdown]
# ## 6. The watermark
#
# One can see it coming. If a request is let in with the very last block, the next one that grows throws somebody out, and mostly it is the one that has just come: its prefill was for nothing. So some blocks are kept free when somebody is **let in**: the **watermark**. Those that run may use them. Thirty requests in a pool of 40 blocks, without a model:


# %%
def with_watermark(arrivals, watermark):
    """What became of everybody: preemptions, tokens computed, steps, mean steps until the first token."""
    reports = dry_run(arrivals, num_gpu_blocks=40, watermark=watermark)
    preemptions = sum(len(report.preempted) for report in reports)
    computed = sum(report.num_prefill_tokens + report.num_decode_tokens for report in reports)
    tokens = token_steps(reports)
    waits = [tokens[number][0] - arrival.step for number, arrival in enumerate(arrivals, 1)]
    return preemptions, computed, len(reports), sum(waits) / len(waits)


crowd = [Arrival(step=i, prompt_len=20 + 7 * i % 40, max_tokens=30 + 11 * i % 50) for i in range(30)]
print("watermark   preemptions   tokens computed   steps   mean TTFT in steps")
for watermark in (0.0, 0.05, 0.1, 0.2, 0.4):
    preemptions, computed, steps, ttft = with_watermark(crowd, watermark)
    print(f"{watermark:>9.0%} {preemptions:>13} {computed:>17,} {steps:>7} {ttft:>20.1f}")

# %% [markdown]
# Twenty preemptions are a thousand tokens that were computed twice. With 20 % of the blocks kept free there are two, and everybody waits longer to come in. A high watermark buys less waste with fewer sequences at a time. Ours is 1 % by default: with thousands of blocks that is dozens.

# %% [markdown]
# ## Check the article
#
# What the article says on this topic, each claim measured here.

# %%
article = Claims()

# %% [markdown]
# Does nano-vllm batch continuously? Its scheduler (`nanovllm/engine/scheduler.py`) is asked before each step. It lets in whoever is waiting and has room; if somebody came in, the step is theirs alone; if not, the step is one token for each that runs. (`max_num_seqs` is a limit for one step there, not for all that run.) Here is that policy, in our words, on the eight requests of section 1:


# %%
class PrefillFirst(Scheduler):
    """A step is either prefill, for those that come in, or decode, for those that run."""

    def schedule(self):
        step = Schedule()
        run_already, self.running = self.running, []  # they take no place from those that come in
        self._schedule_waiting(step, self.config.max_num_batched_tokens)
        self.running = run_already + self.running
        if not step.work:
            self._schedule_running(step, self.config.max_num_seqs)  # one token each
        return step


nano = dry_run(eight, PrefillFirst, max_num_seqs=4)
article.check(
    "§6.1",
    "nano-vllm may process requests one after the other, without continuous batching",
    measured=f"steps for eight requests: static {len(static)}, its policy {len(nano)}, ours {len(continuous)}",
    holds=len(nano) >= len(static),
    why=(
        "It has had continuous batching since its first commit (June 2025): whoever is done leaves, and the next one "
        "goes on in the next step. What it doesn't do is mix: while a prompt is computed, nobody else gets a token."
    ),
)

# %% [markdown]
# What that looks like when they don't come all at once, but one every four steps:

# %%
every_four = [Arrival(4 * i, 8, length) for i, length in enumerate(lengths)]
schedule_gantt(dry_run(every_four, PrefillFirst), arrivals={i + 1: 4 * i + 1 for i in range(8)})

# %% [markdown]
# *Each time somebody comes in, there is a gap in all the others' bars. With prompts of 8 tokens nobody would notice.*
#
# The next claim is on the allocator. Here is one that has never heard of sequences, let alone of unfinished ones: a list and a counter for each block. We stop a document half-way through its prompt and look.


# %%
class ListAllocator:
    """Free blocks in a list, a count for each block, and nothing else."""

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


halfway = {}
for allocator in (BlockAllocator, ListAllocator):
    engine = Engine(
        model, num_gpu_blocks=80, max_model_len=1024, max_num_batched_tokens=100, parts=Parts(BlockAllocator=allocator)
    )
    request = engine.add_request(document[:250], SamplingParams(max_tokens=8, ignore_eos=True))
    engine.step()
    engine.step()
    [seq] = engine.requests()[request].sequences
    print(
        f"{allocator.__name__}: {seq.num_computed_tokens} of {seq.prompt_len} prompt tokens computed, "
        f"{len(engine.manager.block_table(seq))} blocks in its table, {engine.stats().pool.used} in use"
    )
    finished = []
    while engine.has_unfinished_requests():
        finished += engine.step().finished
    halfway[allocator.__name__] = finished[0].token_ids

# %%
article.check(
    "§6.2",
    "Chunked prefill needs a block allocator that can deal with partly finished sequences",
    measured=f"an allocator of blocks without sequences: same tokens: {halfway['ListAllocator'] == halfway['BlockAllocator']}",
    holds=halfway["ListAllocator"] != halfway["BlockAllocator"],
    why=(
        "An allocator hands out blocks and doesn't know what for. What must be remembered is one number a sequence, how "
        "many of its tokens are computed, and the scheduler must ask for blocks chunk by chunk."
    ),
)

# %% [markdown]
# And do the activations of a chunk go, while its keys and values stay? We hold a weak reference to what each layer's MLP puts out, which doesn't keep it alive, and count the slots that are filled.

# %%
@dataclass
class Chunk:
    rows: int  # tokens in the largest activation of the step
    alive: int  # activations that still exist when the step is over
    slots: int  # slots of the pool that hold a token


def chunk_by_chunk(budget):
    engine = Engine(
        model, num_gpu_blocks=80, max_model_len=1024, max_num_batched_tokens=budget, model_impl="transformers"
    )
    seen, chunks = [], []  # what the layers of one step put out; what each step left
    hooks = [
        layer.mlp.register_forward_hook(lambda _, inputs, output: seen.append((output.shape[1], weakref.ref(output))))
        for layer in model.hf.model.layers
    ]
    try:
        request = engine.add_request(document, SamplingParams(max_tokens=2, ignore_eos=True))
        [seq] = engine.requests()[request].sequences
        while seq.num_computed_tokens < len(document):
            seen.clear()
            engine.step()
            alive = sum(tensor() is not None for _, tensor in seen)
            chunks.append(Chunk(max(rows for rows, _ in seen), alive, engine.manager.used_slots))
    finally:
        for hook in hooks:
            hook.remove()
    return chunks


whole, chunks = chunk_by_chunk(2048), chunk_by_chunk(200)
for chunk in chunks:
    print(f"{chunk.rows} rows of activations, {chunk.alive} tensors alive afterwards, {chunk.slots} slots filled")

# %%
article.check(
    "§6.2",
    "Each chunk's activations are released when it is computed, and its keys and values stay",
    measured=(
        f"{max(chunk.rows for chunk in chunks)} rows at a time instead of {whole[0].rows}; "
        f"{sum(chunk.alive for chunk in chunks)} tensors alive after a step; {', '.join(str(c.slots) for c in chunks)} slots filled"
    ),
    holds=sum(chunk.alive for chunk in chunks) == 0 and chunks[-1].slots == len(document),
    condition="activations go after every step, chunk or not; chunks make them smaller",
    why="So `max_num_batched_tokens` also bounds the memory for activations, which has to be kept free beside the pool.",
)

# %% [markdown]
# How much is to be kept free? The article says 10 to 20 %, and means the card's memory, for those activations; chapter 01 has that. The scheduler's own reserve is the watermark. Is 10 to 20 % good advice there? The pool of section 6, and requests whose answers are short, mixed, or long:

# %%
short = [Arrival(step=i, prompt_len=40 + 7 * i % 40, max_tokens=5 + 3 * i % 8) for i in range(60)]
long = [Arrival(step=i, prompt_len=10 + 7 * i % 10, max_tokens=80 + 11 * i % 60) for i in range(30)]
print("answers   watermark   preemptions   tokens computed   mean TTFT in steps")
reserve = {}
for name, arrivals in (("short", short), ("mixed", crowd), ("long", long)):
    for watermark in (0.0, 0.1, 0.2):
        preemptions, computed, _, ttft = reserve[name, watermark] = with_watermark(arrivals, watermark)
        print(f"{name:<7} {watermark:>11.0%} {preemptions:>13} {computed:>17,} {ttft:>20.1f}")

# %%
thrown_out = {
    name: ", ".join(str(reserve[name, watermark][0]) for watermark in (0.0, 0.1, 0.2))
    for name in ("short", "mixed", "long")
}
article.check(
    "§6.2",
    "Keep 10 to 20 % in reserve, or memory runs out in mid-run; the right share depends on the work, there is no fixed value",
    measured=(
        "preemptions with 0, 10 and 20 % of the blocks kept free: "
        f"short answers {thrown_out['short']}; mixed {thrown_out['mixed']}; long {thrown_out['long']}"
    ),
    holds=reserve["mixed", 0.2][0] < reserve["mixed", 0.0][0] and reserve["short", 0.0][0] < reserve["long", 0.2][0],
    condition="for blocks of the pool it is a trade: without a reserve people are thrown out, and every one is answered",
    why=(
        "For short answers even 10 % only makes people wait; for long ones 20 % is too little to stop it. "
        "Count preemptions on your own traffic."
    ),
)

# %%
article.check(
    "§6.2",
    "Continuous batching and finer scheduling change how the KV cache is used",
    measured=(
        f"blocks in use, mean over all steps: static {sum(r.pool.used for r in static) / len(static):.1f}, "
        f"continuous {sum(r.pool.used for r in continuous) / len(continuous):.1f}"
    ),
    holds=sum(r.pool.used for r in continuous) / len(continuous) > sum(r.pool.used for r in static) / len(static),
    why="Empty seats hold no blocks. The same pool serves more at once, and so it is also full sooner.",
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
# | `Scheduler.schedule` | `Scheduler.schedule` (`engine/scheduler.py`), about 50 lines | `Scheduler.schedule` (`vllm/v1/core/sched/scheduler.py`) |
# | prefill and decode in one step | a step is one or the other, prefill first | in one step, those that run first; the code knows no phases, either |
# | chunked prefill, `enable_chunked_prefill` | since April 2026, for the first prompt of a step | on by default; `long_prefill_token_threshold` bounds the chunks of one prompt, so that others fit beside it |
# | preempt the last one, recompute | likewise (`preempt`) | likewise (`_preempt_request`); with `policy="priority"`, the one of lowest priority |
# | nobody is let in after a preemption | waiting ones come before running ones | likewise |
# | a prompt must fit as a whole to come in | likewise | likewise by default (`scheduler_reserve_full_isl`) |
# | `watermark`, 1 % | | likewise, and off by default (1 % before V1); like ours, not asked for while nobody runs |
# | `max_num_seqs`, `max_num_batched_tokens` | likewise, 512 and 16,384; the first is a limit for one step | likewise; the defaults depend on the card and on how it is used: 256 or 1,024 sequences, 2,048 to 16,384 tokens |
#
# The next step in large services is to take the two phases apart: some GPUs do prefill only, others decode only, and the cache is sent from one to the other (DistServe, Mooncake). Then no prompt can make anybody stutter.

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. Users complain that text stops for a second now and then, and then goes on. Which change helps?**
#
# <details><summary>A. A larger <code>max_num_batched_tokens</code>.</summary>
#
# > **No.** Then longer prompts are computed in one step, and everybody waits for it.
#
# </details>
# <details><summary>B. A smaller <code>max_num_batched_tokens</code>, with chunked prefill on.</summary>
#
# > **Yes.** No step is longer than its budget. The price is a later first token for long prompts.
#
# </details>
# <details><summary>C. A larger pool.</summary>
#
# > **No.** Only if it comes from preemption. Look at the number of preemptions first: if it is 0, blocks are not the reason.
#
# </details>

# %% [markdown]
# **2. The budget is 64. Ten sequences are generating, and a prompt of 200 tokens is next. In how many steps is it computed?**
#
# <details><summary>A. 1</summary>
#
# > **No.** A step has 64 tokens in all.
#
# </details>
# <details><summary>B. 2</summary>
#
# > **No.** Not even the whole budget would do in two steps.
#
# </details>
# <details><summary>C. 3</summary>
#
# > **No.** The ten take 10 of the 64 in each step, and 3 × 54 is 162.
#
# </details>
# <details><summary>D. 4</summary>
#
# > **Yes.** 54 a step: 54, 54, 54 and 38. Its first token comes out of the fourth.
#
# </details>

# %% [markdown]
# **3. A sequence with a prompt of 100 tokens has said 40 when it is preempted. What is lost?**
#
# <details><summary>A. The keys and values of its tokens, and the time to compute them again.</summary>
#
# > **Yes.** The 140 token ids are kept. When it comes back they are one prefill, and it goes on with the 41st.
#
# </details>
# <details><summary>B. The 40 tokens: it must answer from the beginning.</summary>
#
# > **No.** They have been sent to the user already, and a scheduler that drops them is wrong.
#
# </details>
# <details><summary>C. Nothing: its blocks stay where they are.</summary>
#
# > **No.** Somebody else needed them. (Some may still be found by their keys, if nobody has overwritten them.)
#
# </details>

# %% [markdown]
# **4. Why isn't the largest sequence preempted? It would free the most blocks.**
#
# <details><summary>A. It would be hard to find.</summary>
#
# > **No.** The lengths are at hand.
#
# </details>
# <details><summary>B. Its blocks may be shared.</summary>
#
# > **No.** So may anybody's. The scheduler asks again after each victim.
#
# </details>
# <details><summary>C. It would be thrown out each time it has become large again, and never end.</summary>
#
# > **Yes.** With "the last one that came" the first one is never a victim, so it ends, and then the next one is first.
#
# </details>

# %% [markdown]
# **5. You switch from static to continuous batching. Which number stays what it was?**
#
# <details><summary>A. The time until a new request begins.</summary>
#
# > **No.** That is what falls: it waits for a seat and not for a whole batch.
#
# </details>
# <details><summary>B. The tokens that each request gets.</summary>
#
# > **Yes.** With whom a sequence shares its steps changes times, and no token (greedy, float32).
#
# </details>
# <details><summary>C. The number of steps for all requests.</summary>
#
# > **No.** It falls, because seats are busy that were empty.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "scheduler",
    "step",
    "continuous batching",
    "token budget",
    "max_num_seqs",
    "chunked prefill",
    "FCFS",
    "preemption",
    "recomputation",
    "watermark",
    "starvation",
    "TTFT",
    "TPOT",
)

# %% [markdown]
# ## Read on
#
# - Yu et al., *Orca*, OSDI 2022. Section 3: why a batch must be put together anew at each iteration.
# - Kwon et al., *PagedAttention*, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 4.5: first come, first served, whom to preempt, swapping against recomputation; section 7.3 measures the two.
# - Agrawal et al., *Sarathi-Serve*, OSDI 2024 ([arXiv 2403.02310](https://arxiv.org/abs/2403.02310)). Section 4.1: chunked prefills; 4.2: batches without stalls; 4.3: how large a budget.
#
# Now write it yourself: [the workbook](../exercises/08_scheduler/08_scheduler.ipynb). Your scheduler will run the engine, in a pool that is too small.
