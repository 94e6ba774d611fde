# %% [markdown]
# # 09 · Workbook: numbers that can be believed
#
# **You write the measuring instruments, and then measure your own engine with them.** Four exercises and a stretch.
# About 60 minutes, no GPU, no network.
#
# Nothing of this goes into the engine. At the end your functions say what paging and the prefix cache are worth, on
# the bundled model, with all parts that you have kept.

# %% [markdown]
# ## Exercise 9.1: utilization
#
# Difficulty ●●○○○ · Importance ●●●●● · about 12 min · 7 lines
#
# Of the memory that a cache reserves, how much holds a token? Write `utilization(tables, num_tokens, block_size)`, for
# one moment:
#
# - `tables[r]` is the block table of request r, and `num_tokens[r]` says how many of its tokens lie there. The table may
#   have more blocks than those need.
# - Reserved are all slots of the blocks that stand in any table. A block in several tables is **one** block.
# - A slot is filled where a token of any request lies. So a shared block counts once, with all its slots that some
#   request has filled.
# - The result is filled slots over reserved slots, from 0 to 1. Where nothing is reserved, nothing is wasted: 1.0.
#
# The same function does for contiguous allocation: each request has one "block" of `max_model_len` slots.
#
# | `tables` | `num_tokens` | `block_size` | utilization | |
# |:---|:---|---:|---:|:---|
# | `[[0], [1]]` | `[300, 100]` | 2048 | 400/4096 | contiguous |
# | `[[3, 1], [5]]` | `[5, 4]` | 4 | 9/12 | paged |
# | `[[7, 1], [7, 2]]` | `[6, 5]` | 4 | 7/12 | block 7 is shared |


# %% nbgrader={"schema_version": 3, "grade_id": "utilization", "grade": false, "solution": true, "locked": false, "task": false}
def utilization(tables, num_tokens, block_size):
    """Share of the reserved slots that hold a token.

    tables: for each request the list of its blocks; may be empty. num_tokens: for each the tokens that lie in them.
    Returns a number from 0 to 1; 1.0 where no block is reserved.
    """
    ### BEGIN SOLUTION
    # Your lines here: for each block, how many of its slots are filled? Then one division.
    filled = {}
    for table, tokens in zip(tables, num_tokens, strict=True):
        for i, block in enumerate(table):
            here = min(max(tokens - i * block_size, 0), block_size)
            filled[block] = max(here, filled.get(block, 0))
    if not filled:
        return 1.0
    return sum(filled.values()) / (len(filled) * block_size)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_utilization", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(utilization=utilization)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Add up slots over all requests, filled ones and reserved ones, and divide once at the end. Without sharing that would be
# `sum(num_tokens)` over the blocks of all tables times `block_size`.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# With sharing, go block by block: a dict from the block to its filled slots. Block i of a table holds the tokens from
# `i * block_size` on: at most `block_size` of them, and not fewer than 0. If the block is in the dict already, keep the
# larger number.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `here = min(max(tokens - i * block_size, 0), block_size)` in two loops, over requests and over `enumerate(table)`, then
# `filled[block] = max(here, filled.get(block, 0))`. In the end `sum(filled.values()) / (len(filled) * block_size)`; ask
# first whether `filled` is empty.
#
# </details>

# %% [markdown]
# ## Exercise 9.2: a fair benchmark
#
# Difficulty ●●●○○ · Importance ●●●●● · about 15 min · 10 lines
#
# Which of two functions is faster, and by how much? Write `fair_benchmark(run_a, run_b, repeats, warmup, clock)`. It
# returns the median time of a over the median time of b: 2.0 says that b takes half as long.
#
# - **Warm-up**: each function is called `warmup` times first. Those times don't count.
# - **Taking turns**: then `repeats` times each, one run of a, one of b, and again. A machine that gets slower meanwhile
#   is unfair to nobody then.
# - **Median**, of each side's times by itself. One disturbed run doesn't move it. With an even number of runs it is the
#   mean of the two in the middle (`statistics.median` knows).
#
# `clock()` says what time it is, in seconds. Look at it before and after each run.


# %% nbgrader={"schema_version": 3, "grade_id": "fair_benchmark", "grade": false, "solution": true, "locked": false, "task": false}
import time
from statistics import median


def fair_benchmark(run_a, run_b, repeats, warmup, clock=time.perf_counter):
    """How many times as long a takes as b: the ratio of the medians.

    run_a, run_b: functions without arguments. repeats, warmup: runs of each that count, and before them.
    clock: a function that returns the time in seconds.
    """
    ### BEGIN SOLUTION
    # Your lines here: the warm-up, then turn by turn, then one division.
    for _ in range(warmup):
        run_a()
        run_b()
    seconds = {run_a: [], run_b: []}
    for _ in range(repeats):
        for run in (run_a, run_b):
            started = clock()
            run()
            seconds[run].append(clock() - started)
    return median(seconds[run_a]) / median(seconds[run_b])
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_fair_benchmark", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(fair_benchmark=fair_benchmark)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Two lists, one for each side's times. A run's time is `clock()` after it minus `clock()` before it. Both sides get
# the same: as many runs to warm up, as many that count.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# The warm-up is a loop of its own, before the first look at the clock. At the end `median(times_a) / median(times_b)`:
# not the mean, not the best, and not the median of the ratios.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `for _ in range(repeats):` and in it first a, then b: `started = clock()`, `run_a()`, `times_a.append(clock() -
# started)`, and the same for b. One loop for both, not two loops.
#
# </details>

# %% [markdown]
# ### Three benchmarks of the same two functions
#
# On this machine b takes half as long as a. But the machine gets slower with every run, and the very first run is slow
# by itself.

# %%
from pagedkv_lab.course import require

require(fair_benchmark=fair_benchmark)


class TiredMachine:
    """Its clock moves only while something runs: each run takes 3 % of the first one's time longer than the last."""

    def __init__(self):
        self.now, self.runs = 0.0, 0

    def run(self, seconds):
        self.now += seconds * (1 + 0.03 * self.runs) + (4.0 if self.runs == 0 else 0.0)
        self.runs += 1

    def time(self, seconds):
        started = self.now
        self.run(seconds)
        return self.now - started


machine = TiredMachine()
print(f"one run each:           a takes {machine.time(2.0) / machine.time(1.0):.2f} times as long")

machine = TiredMachine()
all_of_a = [machine.time(2.0) for _ in range(9)]
all_of_b = [machine.time(1.0) for _ in range(9)]
print(f"first all a, then all b: a takes {median(all_of_a) / median(all_of_b):.2f} times as long")

machine = TiredMachine()
ratio = fair_benchmark(lambda: machine.run(2.0), lambda: machine.run(1.0), 9, 1, lambda: machine.now)
print(f"yours:                  a takes {ratio:.2f} times as long")

# %% [markdown]
# The truth is 2. A little is missing where b is always the second one in its round: let the two swap places in every
# round, and that is gone, too (`pagedkv_lab.measure.timing.in_turn` does it).

# %% [markdown]
# ## Exercise 9.3: tokens a second
#
# Difficulty ●○○○○ · Importance ●●●●● · about 6 min · 3 lines
#
# Throughput is what a server makes, not what one user gets: **output** tokens of all requests over the time of the
# **whole** run, from the first arrival to the last finish. Write `tokens_per_second(records)`. Each record has `arrival`
# and `finish` (seconds on one clock), `prompt_tokens` and `output_tokens`. They are in no particular order, and there is
# at least one.


# %% nbgrader={"schema_version": 3, "grade_id": "tokens_per_second", "grade": false, "solution": true, "locked": false, "task": false}
def tokens_per_second(records):
    """Output tokens of all requests, over the seconds from the first arrival to the last finish."""
    ### BEGIN SOLUTION
    # Your lines here: which tokens, and from when to when?
    first = min(record.arrival for record in records)
    last = max(record.finish for record in records)
    return sum(record.output_tokens for record in records) / (last - first)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_tokens_per_second", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(tokens_per_second=tokens_per_second)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# One sum over one difference. The prompts' tokens are not in the sum: the user brought those along.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Requests overlap, so their own times don't add up to the time of the run. It is one stretch of time, with its pauses:
# it begins when the first request arrives and ends when the last one is done.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `min` over all `arrival`, `max` over all `finish`, whatever their order in the list. The clock need not begin at 0.
#
# </details>

# %% [markdown]
# ## Exercise 9.4: what is wrong with this report?
#
# Difficulty ●●●○○ · Importance ●●●●● · about 15 min · 8-16 lines
#
# Somebody says: three times faster! Here is what such a report should tell of both sides.

# %%
from pagedkv_lab.measure.records import BenchmarkReport, Side

report = BenchmarkReport(
    before=Side(
        prompt_lens=(512, 512, 512),
        output_lens=(64, 64, 64),
        batch_size=1,
        cached_tokens=0,
        warmup_runs=0,
        seconds=(12.1, 8.3, 8.2, 8.4, 8.3),
        reported_seconds=8.3,
        counted_tokens=192,
    ),
    after=Side(
        prompt_lens=(512, 512, 512),
        output_lens=(64, 64, 64),
        batch_size=3,
        cached_tokens=0,
        warmup_runs=2,
        seconds=(3.1, 2.6, 3.0, 3.2, 3.0),
        reported_seconds=2.6,
        counted_tokens=192,
    ),
)
print(report)

# %% [markdown]
# Write `what_is_wrong(report)`. It returns the **set** of all flaws that the report has, by these names; an empty set for
# a fair one.
#
# | flaw | the report has it where |
# |:---|:---|
# | `no_warm_up` | one side (or both) had no warm-up run |
# | `not_the_median` | one side's `reported_seconds` are not the median of its `seconds` |
# | `counts_prompt_tokens` | one side's `counted_tokens` are not the tokens of its outputs |
# | `other_requests` | the two sides' prompts or outputs are not of the same lengths, request by request |
# | `other_batch_size` | the two sides did not run the same number of requests at once |
# | `other_cache` | before the runs, more of the prompts lay in one side's prefix cache than in the other's (`cached_tokens`) |
# | `within_the_spread` | the times of the two sides overlap: some run of the slower side was not slower than some run of the faster one |
#
# The report above has three of them. Which side is `before` and which is faster makes no difference.


# %% nbgrader={"schema_version": 3, "grade_id": "what_is_wrong", "grade": false, "solution": true, "locked": false, "task": false}
from statistics import median


def what_is_wrong(report):
    """The names of all flaws of a BenchmarkReport, as a set. Its sides are report.before and report.after."""
    ### BEGIN SOLUTION
    # Your lines here: what may be wrong with either side, and then what may be wrong between them.
    before, after = report.before, report.after
    flaws = set()
    for side in (before, after):
        if side.warmup_runs == 0:
            flaws.add("no_warm_up")
        if side.reported_seconds != median(side.seconds):
            flaws.add("not_the_median")
        if side.counted_tokens != sum(side.output_lens):
            flaws.add("counts_prompt_tokens")
    if before.prompt_lens != after.prompt_lens or before.output_lens != after.output_lens:
        flaws.add("other_requests")
    if before.batch_size != after.batch_size:
        flaws.add("other_batch_size")
    if before.cached_tokens != after.cached_tokens:
        flaws.add("other_cache")
    if max(before.seconds) >= min(after.seconds) and max(after.seconds) >= min(before.seconds):
        flaws.add("within_the_spread")
    return flaws
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_what_is_wrong", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(what_is_wrong=what_is_wrong)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Begin with `flaws = set()`, add a name for each question that is answered with yes, and return it at the end. Seven
# questions, and no `elif`: one flaw doesn't excuse another.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# The first three flaws are those of a side: a loop over `(report.before, report.after)` asks both. The others compare
# the sides. Compare the lengths themselves (they are tuples, `!=` does it), not their sums.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# The median is `median(side.seconds)`, neither the best nor the mean. Two ranges overlap where each begins before the
# other ends: `max(before.seconds) >= min(after.seconds)`, and the same the other way round.
#
# </details>

# %%
from pagedkv_lab.course import require

require(what_is_wrong=what_is_wrong)

print(sorted(what_is_wrong(report)))

# %% [markdown]
# ## Stretch 9.5: how sure is the ratio?
#
# Difficulty ●●●○○ · Importance ●●○○○ · about 12 min · 8 lines
#
# 9.2 gives one number. Had the same runs come out a little differently, what would it have been? The **bootstrap** asks
# the runs themselves: draw as many as there are, **with replacement**, from a's times and from b's times; take the ratio
# of the medians; do that `draws` times. Of all these ratios, 2.5 % lie below the low end and 2.5 % above the high one.
#
# Write `ratio_interval(seconds_a, seconds_b, draws, rng)`, which returns the pair `low, high`. `rng` is a
# `random.Random`: all chance comes from it.


# %% nbgrader={"schema_version": 3, "grade_id": "ratio_interval", "grade": false, "solution": true, "locked": false, "task": false}
from statistics import median


def ratio_interval(seconds_a, seconds_b, draws, rng):
    """The 95 % bootstrap interval of median(seconds_a) / median(seconds_b).

    seconds_a, seconds_b: times of the runs, not necessarily as many of each. draws: how often to draw anew.
    rng: a random.Random. Returns (low, high).
    """
    ### BEGIN SOLUTION
    # Your lines here: draw both sides, the ratio of the medians, again and again. Then cut off the ends.
    ratios = []
    for _ in range(draws):
        drawn_a = rng.choices(seconds_a, k=len(seconds_a))
        drawn_b = rng.choices(seconds_b, k=len(seconds_b))
        ratios.append(median(drawn_a) / median(drawn_b))
    ratios.sort()
    outside = round(draws * 0.025)
    return ratios[outside], ratios[-1 - outside]
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_ratio_interval", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(ratio_interval=ratio_interval)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# A loop with `draws` rounds. Each round makes two lists like the ones you were given, by chance, and from them one ratio:
# the median of a's over the median of b's.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# With replacement: a run may come twice, and another not at all. `rng.choices(seconds_a, k=len(seconds_a))` does that;
# `rng.sample` doesn't. Both sides are drawn, each by itself.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Sort the ratios. With 2000 of them, 50 lie outside at each end: `ratios[50]` and `ratios[-51]`.
#
# </details>

# %% [markdown]
# ### More runs, a surer ratio
#
# Two functions on a noisy machine: each run takes its time, give or take a fifth. In truth a takes 1.2 times as long.

# %%
import random

from pagedkv_lab.course import require

require(ratio_interval=ratio_interval)

noise = random.Random(6)
for runs in (5, 15, 75):
    seconds_a = [1.2 * noise.lognormvariate(0, 0.2) for _ in range(runs)]
    seconds_b = [1.0 * noise.lognormvariate(0, 0.2) for _ in range(runs)]
    low, high = ratio_interval(seconds_a, seconds_b, 2000, random.Random(1))
    verdict = "a is slower" if low > 1 else "nobody knows yet"
    print(f"{runs:>2} runs each: ratio {median(seconds_a) / median(seconds_b):.2f}, between {low:.2f} and {high:.2f}: {verdict}")

# %% [markdown]
# ## Run it for real
#
# Six people ask a librarian, with one system prompt for all. Three caches serve them from the same memory: **contiguous**
# (room for two at once), **paged**, and **paged with the prefix cache**. The two paged ones run on all the parts that you
# have kept. Same prompts, same lengths of output, same model, same number of slots.

# %%
import torch

from pagedkv_lab import SamplingParams, load_model
from pagedkv_lab.bundled import BUNDLED_MODEL
from pagedkv_lab.course import mine, require
from pagedkv_lab.engine import ContiguousEngine, Engine

require(utilization=utilization, fair_benchmark=fair_benchmark, tokens_per_second=tokens_per_second)

model = load_model(BUNDLED_MODEL, device="cpu", dtype=torch.float32)

SYSTEM = (
    "You are the librarian of a small town. You know every book on your shelves, and most of the people who read them. "
    "Answer each question in one plain sentence, be kind, and never speak of anything but books."
)
QUESTIONS = (
    "What shall I read on a train?",
    "Which book would a sailor like?",
    "What is a good book about bees?",
    "Is there one for my grandmother?",
    "What do children take home?",
    "Which one is the shortest?",
)
prompts = [
    model.encode([{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]) for question in QUESTIONS
]
params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in (5, 7, 4, 6, 5, 7)]

MAX_MODEL_LEN, ROWS = 256, 2
paged = {"max_model_len": MAX_MODEL_LEN, "block_size": 16, "num_gpu_blocks": ROWS * MAX_MODEL_LEN // 16}


def engine_with(cache, parts):
    """A fresh engine, with nothing in its cache."""
    if cache == "contiguous":  # one row of max_model_len slots for each request: it takes no parts
        return ContiguousEngine(model, max_model_len=MAX_MODEL_LEN, num_gpu_blocks=ROWS)
    return Engine(model, parts=parts, enable_prefix_caching=cache == "paged + prefix cache", **paged)


yours = mine()
yours

# %% [markdown]
# First once each, to see that all three say the same, and what lies in memory in the fullest moment. These are counts:
# they come out the same on every machine.

# %%
from pagedkv_lab.measure.comparison import transformers_generate
from pagedkv_lab.measure.serving import serve

require(utilization=utilization, fair_benchmark=fair_benchmark, tokens_per_second=tokens_per_second)

CACHES = ("contiguous", "paged", "paged + prefix cache")
served = {cache: serve(engine_with(cache, yours.parts), prompts, params) for cache in CACHES}
theirs, _ = transformers_generate(model, prompts, max(each.max_tokens for each in params))


def same(run):
    """Whether all outputs begin as transformers' do. Those end at the model's end token, ours go on."""
    return all(list(ours)[: len(its)] == its[: len(ours)] for ours, its in zip(run.token_ids, theirs, strict=True))


print(f"{'cache':<22}{'at once':>7}{'reserved':>12}{'filled':>9}{'found':>8}  tokens")
for cache, run in served.items():
    share = utilization(run.tables, run.num_tokens, run.block_size)
    verdict = "as transformers" if same(run) and not run.leaked else "OTHER tokens, or a leak"
    print(
        f"{cache:<22}{len(run.tables):>7}{run.reserved_bytes / 2**20:>8.2f} MiB{share:>9.1%}{run.hit_rate:>8.1%}  {verdict}"
    )

# %% [markdown]
# "At once" are the requests that held blocks in that moment; "found" is the share of the prompts' tokens that were in the
# prefix cache. Each run begins with an empty one: what is found was computed by another request of the same run.
#
# With the prefix cache utilization goes **down**, while the memory is halved. The blocks that are now there once were all
# full, and the half empty ones at the ends are as many as before. A share alone is no goal: look at the bytes, too.
#
# Now the clock. Every run gets a fresh engine. One that has served these prompts before would find all of them, and its
# benchmark would be of a service that nobody runs (9.4 calls it `other_cache`). And all three get the package's attention,
# even if you have kept your own: the contiguous engine knows no other, and caches are to be compared, not kernels.

# %%
from dataclasses import replace

from tqdm.auto import tqdm

require(utilization=utilization, fair_benchmark=fair_benchmark, tokens_per_second=tokens_per_second)

REPEATS, WARMUP = 3, 1
same_attention = replace(yours.parts, paged_attention=None)
pairs = [("contiguous", "paged"), ("paged", "paged + prefix cache")]


def in_words(ratio):
    """Coarsely: the next machine, and the next hour, give another number."""
    limits = ((0.8, "slower"), (1.25, "no clear difference"), (3, "faster, less than 3 times"))
    return next((words for limit, words in limits if ratio < limit), "more than 3 times faster")


with tqdm(total=2 * (REPEATS + WARMUP) * len(pairs), desc="serving", unit="run", leave=False) as bar:

    def run_of(cache):
        fresh = [engine_with(cache, same_attention) for _ in range(WARMUP + REPEATS)]  # made before the clock runs

        def run():
            serve(fresh.pop(), prompts, params)
            bar.update()

        return run

    ratios = [fair_benchmark(run_of(a), run_of(b), REPEATS, WARMUP) for a, b in pairs]

for (a, b), ratio in zip(pairs, ratios, strict=True):
    print(f"{a:<10} → {b:<20}  {in_words(ratio)}")

# %% [markdown]
# Paging alone computes nothing faster. It lets six run at once where two did, in the same memory, and a step for six
# doesn't take three times as long as one for two. The prefix cache saves work: the system prompt is computed once.
#
# And last the rates, of the first run above. What one user gets and what the server makes are two numbers; and with the
# prompts' tokens in it, the second would be a third one.

# %%
require(utilization=utilization, fair_benchmark=fair_benchmark, tokens_per_second=tokens_per_second)

records = served["paged + prefix cache"].records
server = tokens_per_second(records)
users = [tokens_per_second([record]) for record in records]
outputs = sum(record.output_tokens for record in records)
everything = outputs + sum(record.prompt_tokens for record in records)
slower = "fewer" if max(users) < server else "as many"
print(f"each of the {len(users)} users gets {slower} tokens a second than the server makes")
print(f"with {everything - outputs} prompt tokens counted, {outputs} output tokens look like {everything / outputs:.0f} times as many")

# %% [markdown]
# ## Your progress
#
# What of the article's own numbers holds, measured this way? The lesson says, in *Check the article*.

# %%
from pagedkv_lab.course import progress

progress()
