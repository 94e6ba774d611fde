# %% [markdown]
# # 08 · Workbook: who runs in this step
#
# **You write the part that decides, before every step, who runs and with how many tokens, and who gives way when
# the blocks run out.** Four exercises and a stretch. About 75 minutes, no GPU, no network.
#
# `Scheduler` is a part of the engine. At the end it runs on yours, in a pool that is too small for everybody.

# %% [markdown]
# ## Exercise 8.1: a step's tokens
#
# Difficulty ●●○○○ · Importance ●●●●● · about 8 min · 6-8 lines
#
# A step computes at most `budget` tokens (`max_num_batched_tokens`). `left` says how many tokens each sequence has
# still to compute, in the order in which they are served: 1 for each that is generating, the length of the prompt for
# one that is new. How many does each get? Write `split_budget(left, budget, chunked)`: a list with one number for each.
#
# - Each gets what it wants, as long as the budget lasts. What it takes is gone for those behind it.
# - With `chunked` True, one that doesn't fit any more gets what is left: a **chunk** of its prompt.
# - With `chunked` False a prompt isn't cut. The first one that doesn't fit gets 0, and so do all behind it. Nobody
#   overtakes.
#
# | left | budget | chunked | result |
# |:---|---:|:---|:---|
# | `[1, 1, 5]` | 8 | True | `[1, 1, 5]` |
# | `[1, 17, 2]` | 8 | True | `[1, 7, 0]` |
# | `[1, 17, 2]` | 8 | False | `[1, 0, 0]` |


# %% nbgrader={"schema_version": 3, "grade_id": "split_budget", "grade": false, "solution": true, "locked": false, "task": false}
def split_budget(left, budget, chunked):
    """How many tokens each sequence gets in this step.

    left: tokens that each has still to compute, in the order of service. Leave the list as it is.
    budget: tokens of the whole step. chunked: whether a prompt may be cut.
    Returns a list as long as `left`.
    """
    ### BEGIN SOLUTION
    # Your lines here: go through the list, and keep count of what is left of the budget.
    tokens = [0] * len(left)
    for i, wanted in enumerate(left):
        if wanted > budget and not chunked:
            break
        tokens[i] = min(wanted, budget)
        budget -= tokens[i]
    return tokens
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_split_budget", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(split_budget=split_budget)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# One loop in the order of the list. Each gets `min(wanted, budget)`, and the budget shrinks by that.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Without chunks there is one more question, before anything is given: does it fit whole? If not, the loop ends. With
# chunks you need not ask: when the budget is 0, `min(wanted, budget)` is 0 for all that follow.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Begin with `tokens = [0] * len(left)`, so that those behind a `break` have their 0 already. `for i, wanted in
# enumerate(left):`, then the question, then `tokens[i] = ...`.
#
# </details>

# %% [markdown]
# ## Exercise 8.2: who gives way
#
# Difficulty ●●●○○ · Importance ●●●●● · about 15 min · 11 lines
#
# A sequence that runs needs room for its next tokens. `manager.append(seq, num_tokens)` makes it: it returns the
# positions to be written, as a range, or `None` where there aren't enough free blocks (then nothing has changed).
# With `None` somebody must give way: the one that **came last** among those that run. It loses its blocks and
# goes back to the queue. This is **preemption**; later it is computed again.
#
# Write `make_room(scheduler, step, seq, num_tokens)`, which returns what `append` returns in the end. You have
#
# - `scheduler.manager`: `append(seq, num_tokens)`, and `free(victim)`, which takes all blocks of a sequence;
# - `scheduler.running`: a list, in the order of arrival. `seq` is in it;
# - `scheduler.waiting`: a deque, in the order of arrival;
# - `step.preempted`: a list. Put each victim there, so that the engine knows.
#
# A victim
#
# - gives back its blocks, and is out of `running`;
# - begins again: `num_computed_tokens` becomes 0, and `num_preemptions` counts one more;
# - keeps its `token_ids`, those that it has said too: the user has read them;
# - goes to the **head** of `waiting`: it came before all that wait there.
#
# If one is not enough, the next one gives way. If `seq` itself is the last in `running`, it is the one: return `None`.


# %% nbgrader={"schema_version": 3, "grade_id": "make_room", "grade": false, "solution": true, "locked": false, "task": false}
def make_room(scheduler, step, seq, num_tokens):
    """Room for the next tokens of a running sequence, at the cost of those that came after it.

    Returns the range of positions to write, or None where `seq` itself had to give way.
    """
    ### BEGIN SOLUTION
    # Your lines here: ask `append`, and as long as it says None, take the blocks of the last one in `running`.
    writes = scheduler.manager.append(seq, num_tokens)
    while writes is None:
        victim = scheduler.running.pop()
        scheduler.manager.free(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        scheduler.waiting.appendleft(victim)
        step.preempted.append(victim)
        if victim is seq:
            return None
        writes = scheduler.manager.append(seq, num_tokens)
    return writes
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_make_room", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(make_room=make_room)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Ask first: mostly there is room, and nobody has to give way. Else a loop: one victim, then ask again.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# The victim is the last of `running`. That may be `seq`: nobody came after it. Then it has no blocks any more, so
# don't ask `append` again; there is nothing to write, and the answer is `None`.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `victim = scheduler.running.pop()` takes the last one out. Then `manager.free(victim)`, the two counts,
# `scheduler.waiting.appendleft(victim)`, `step.preempted.append(victim)`. Two victims end up in the right order by
# themselves: the younger one goes to the head first, the older one in front of it.
#
# </details>

# %% [markdown]
# ## Exercise 8.3: the scheduler
#
# Difficulty ●●●●○ · Importance ●●●●● · about 30 min · 26 lines
#
# The queues are here already: who waits, who runs, and how one comes from here to there. Read the class once.


# %%
from collections import deque


class Queues:
    """What a scheduler keeps. Sequences are in the order of their arrival, in both queues."""

    def __init__(self, config, manager):
        self.config, self.manager = config, manager
        self.waiting = deque()
        self.running = []
        self.watermark = int(config.watermark * manager.num_blocks)  # in blocks

    def add(self, seq):
        """A new sequence. The engine calls this, and `remove` when a sequence is done or taken back."""
        self.waiting.append(seq)

    def add_fork(self, parent, child):
        """A fork runs beside its parent (chapter 06)."""
        self.running.insert(self.running.index(parent) + 1, child)

    def remove(self, seq):
        """Out of either queue. The engine takes care of its blocks."""
        if seq in self.running:
            self.running.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)

    def has_place(self, seq):
        """Whether one more may run (max_num_seqs). One that will be forked needs a place for each output."""
        return sum(1 + one.forks_to_come for one in [*self.running, seq]) <= self.config.max_num_seqs

    def start(self, seq, hits):
        """From the head of the queue to those that run. It gets its hit blocks: so many tokens are computed already."""
        self.waiting.popleft()
        self.running.append(seq)
        seq.num_computed_tokens = self.manager.admit(seq, hits)
        if seq.request.num_cached_tokens is None:  # the first time: what the request's output will say of hits
            seq.request.num_cached_tokens = seq.num_computed_tokens


# %% [markdown]
# What is missing is `schedule()`. It returns a `Schedule`: `step.work` is a list of
# `Scheduled(seq, num_tokens, writes)`, at most one for each sequence. The budget of the step is
# `self.config.max_num_batched_tokens`.
#
# **First those that run**, in their order, as long as some of the budget is left. Each computes what it has left,
# `seq.num_uncomputed_tokens`, or as much of it as the budget allows. Your `make_room(self, step, seq, num_tokens)` gives
# the writes. Where it returns `None`, nobody is left behind it, and the step is complete.
#
# **Then those that wait**, from the head of the queue, as long as some of the budget is left; but nobody, if anybody
# was preempted in this step. Let the first one in if all of this holds, and stop at the first that can't come in:
#
# - there is a place for it (`has_place`);
# - all its tokens fit into the pool, with the watermark to spare: `self.manager.can_admit(seq, hits, watermark)`, where
#   `hits = self.manager.lookup(seq)` are the blocks of its prefix that are cached. The watermark is for those that run,
#   so it is 0 while nobody runs;
# - with `self.config.enable_chunked_prefill` False: its tokens, without those of the hits, fit into what is left of the
#   budget. (A hit is a full block of `self.config.block_size` tokens.)
#
# Then `start(seq, hits)`, and it computes what it has left, or what is left of the budget. For its writes ask
# `self.manager.append(seq, num_tokens)`: there is room, `can_admit` said so.
#
# ```
# max_num_batched_tokens = 8; a has been generating, b is new and has a prompt of 17 tokens
# scheduler.schedule()   # a 1, b 7
# scheduler.schedule()   # a 1, b 7
# scheduler.schedule()   # a 1, b 3
# scheduler.schedule()   # a 1, b 1
# ```
#
# Don't count tokens as computed: the engine does that when the step has run.


# %% nbgrader={"schema_version": 3, "grade_id": "Scheduler", "grade": false, "solution": true, "locked": false, "task": false}
from pagedkv_lab.engine.scheduler import Schedule, Scheduled


class Scheduler(Queues):
    """First come, first served, with chunked prefill and preemption."""

    def schedule(self):
        """The next step's work. Blocks for it are allocated."""
        ### BEGIN SOLUTION
        # Your lines here: a Schedule(), the budget, a loop over those that run, a loop over those that wait.
        step = Schedule()
        budget = self.config.max_num_batched_tokens
        i = 0
        while i < len(self.running) and budget > 0:
            seq = self.running[i]
            num_tokens = min(seq.num_uncomputed_tokens, budget)
            writes = make_room(self, step, seq, num_tokens)
            if writes is None:
                break
            step.work.append(Scheduled(seq, num_tokens, writes))
            budget -= num_tokens
            i += 1
        while self.waiting and budget > 0 and not step.preempted:
            seq = self.waiting[0]
            hits = self.manager.lookup(seq)
            left = len(seq.token_ids) - len(hits) * self.config.block_size
            if left > budget and not self.config.enable_chunked_prefill:
                break
            watermark = self.watermark if self.running else 0
            if not self.has_place(seq) or not self.manager.can_admit(seq, hits, watermark):
                break
            self.start(seq, hits)
            num_tokens = min(seq.num_uncomputed_tokens, budget)
            step.work.append(Scheduled(seq, num_tokens, self.manager.append(seq, num_tokens)))
            budget -= num_tokens
        return step
        ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_Scheduler", "grade": true, "solution": false, "locked": true, "points": 5, "task": false}
from pagedkv_lab.course import check

check(Scheduler=Scheduler)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Two loops, one after the other, that share one budget. The first is 8.1 and 8.2 together. Write it alone at first,
# with `return step` behind it, and see what the check says: it names the step in which somebody is missing.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `make_room` takes sequences out of `self.running`, at its end, while you go through it. An index does well with that:
# `while i < len(self.running) and budget > 0`. So nobody who lost its blocks can be reached, and nobody who is in the
# step already can lose them. In the second loop look at `self.waiting[0]`, and take it out only when everything holds
# (`start` does it). The prompt may be longer than the budget; it comes in with its first chunk, if the **whole**
# of it fits into the pool.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# For those that run: `num_tokens = min(seq.num_uncomputed_tokens, budget)`, `writes = make_room(self, step, seq,
# num_tokens)`, `if writes is None: break`, then `step.work.append(Scheduled(seq, num_tokens, writes))`, and the budget
# shrinks. For those that wait: `while self.waiting and budget > 0 and not step.preempted`, with `seq = self.waiting[0]`.
# The tokens of the hits are `len(hits) * self.config.block_size`. The same `min` as above after `start`, because then
# `num_uncomputed_tokens` is right.
#
# </details>

# %% [markdown]
# ### Watch it schedule
#
# No model yet: `dry_run` plays the engine, and a step only counts. Request 1 generates, 2 comes with a long prompt, 3
# comes behind it. Then the same in a pool of 13 blocks.

# %%
from pagedkv_lab import show
from pagedkv_lab.course import require
from pagedkv_lab.measure.dry_run import Arrival, dry_run

require(make_room=make_room, Scheduler=Scheduler)

arrivals = [Arrival(0, prompt_len=6, max_tokens=20), Arrival(2, prompt_len=30, max_tokens=14), Arrival(3, 5, 12)]
came = {number: arrival.step + 1 for number, arrival in enumerate(arrivals, 1)}  # the first step it could run in
options = {"block_size": 4, "max_num_batched_tokens": 8}
show.schedule_gantt(dry_run(arrivals, Scheduler, num_gpu_blocks=64, **options), arrivals=came)

# %%
require(make_room=make_room, Scheduler=Scheduler)

show.schedule_gantt(dry_run(arrivals, Scheduler, num_gpu_blocks=13, watermark=0, **options), arrivals=came)

# %% [markdown]
# *The long prompt takes what the first one leaves of the budget, step after step. In the small pool (below) whoever
# came last loses its blocks, waits, and is computed again: prompt and what it had said, so its second bar is longer.*

# %% [markdown]
# ## Exercise 8.4: how long people wait
#
# Difficulty ●○○○○ · Importance ●●●●○ · about 6 min · 4 lines
#
# Two numbers say how a service feels. **TTFT**, time to first token: from the request's arrival to its first token.
# **TPOT**, time per output token: the mean time between tokens after that. Write `ttft_and_tpot(arrival, token_times)`,
# which returns the pair. All times are in seconds on the same clock, and there is at least one token. With a single
# token there is no TPOT: `None`.
#
# | arrival | token_times | result |
# |---:|:---|:---|
# | 10.0 | `[10.5, 10.75, 11.0]` | `(0.5, 0.25)` |
# | 3.0 | `[3.5]` | `(0.5, None)` |


# %% nbgrader={"schema_version": 3, "grade_id": "ttft_and_tpot", "grade": false, "solution": true, "locked": false, "task": false}
def ttft_and_tpot(arrival, token_times):
    """Time to the first token, and mean time of each token after it.

    arrival: when the request came, in seconds. token_times: when each token was there, at least one.
    Returns (ttft, tpot) in seconds; tpot is None for a single token.
    """
    ### BEGIN SOLUTION
    # Your lines here: how many gaps are there between n tokens?
    first, last = token_times[0], token_times[-1]
    gaps = len(token_times) - 1
    return first - arrival, (last - first) / gaps if gaps else None
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_ttft_and_tpot", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(ttft_and_tpot=ttft_and_tpot)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# TTFT needs the arrival and the first time, TPOT the first and the last. Return `ttft, tpot`, in this order.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# TPOT is the time from the first to the last token, divided by the number of gaps between them. The wait for the first
# token is not part of it.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# n tokens have n - 1 gaps. With one token that is 0: don't divide, say `None`. Not 0 either: it would look like the
# fastest service in the world.
#
# </details>

# %% [markdown]
# ## Stretch 8.5: shorter waits, and nobody starves
#
# Difficulty ●●●○○ · Importance ●●○○○ · about 15 min · 1-3 lines
#
# First come, first served is fair, and slow: ten short questions wait behind somebody's document. Write a policy,
# `choose_next(waiting)`: which of those that wait comes in next? `waiting` is a list in the order of arrival, and each
# has
#
# - `prompt_len`: tokens to compute before it can answer;
# - `waited`: steps since it came.
#
# First come, first served itself is `return waiting[0]`. It is run on generated traffic (90 requests, 18 % of them
# documents; five seeds), with 48 tokens a step and 8 places, and so is yours. Counted in steps and averaged over the
# seeds, your **mean** time to the first token must come down to 70 % of what it was, and the **longest** may grow to
# 1.6 times at most.


# %% nbgrader={"schema_version": 3, "grade_id": "choose_next", "grade": false, "solution": true, "locked": false, "task": false}
def choose_next(waiting):
    """Who comes in next.

    waiting: a list, at least one, each with prompt_len and waited. Leave it as it is.
    Returns one of them.
    """
    ### BEGIN SOLUTION
    # Your lines here: who costs the others least? And who has waited long enough?
    return min(waiting, key=lambda one: one.prompt_len - 8 * one.waited)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_choose_next", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(choose_next=choose_next)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# The shortest prompt first: it makes the others wait least. That alone brings the mean down by more than half. Try it,
# and see what becomes of the longest wait.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# A document never comes first, as long as questions keep coming. Let its wait count for it: each step makes it look a
# little shorter. This is called ageing.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `min` with a `key`: `prompt_len` minus some number times `waited`. Between 5 and 12 both bounds are kept. (How many
# tokens does a step compute? 48.)
#
# </details>

# %% [markdown]
# ### First come, first served against yours

# %%
from pagedkv_lab.course import require
from pagedkv_lab.measure.dry_run import by_policy, generated_arrivals, token_steps

require(choose_next=choose_next, ttft_and_tpot=ttft_and_tpot)


def waits(policy):
    """TTFT and TPOT of every request, in steps, by your own function."""
    arrivals = generated_arrivals(seed=7)
    options = {"num_gpu_blocks": 400, "max_num_batched_tokens": 48, "max_num_seqs": 8}
    times = token_steps(dry_run(arrivals, by_policy(policy), **options))
    return [ttft_and_tpot(arrival.step, times[number]) for number, arrival in enumerate(arrivals, 1)]


for name, policy in (("first come", lambda waiting: waiting[0]), ("yours", choose_next)):
    ttft, tpot = zip(*waits(policy), strict=True)
    print(f"{name:<11} TTFT: mean {sum(ttft) / len(ttft):>4.1f} steps, longest {max(ttft):>3}", end=";  ")
    print(f"TPOT: mean {sum(tpot) / len(tpot):.2f}")

# %% [markdown]
# Another seed than those of the check. TPOT hardly changes: the policy decides who comes in, and those that are in get
# their token in every step.

# %% [markdown]
# ## Run it for real
#
# The engine, with your scheduler in it, and the bundled model. Four requests that grow to four blocks each, in a pool of
# 8. Whoever came last gives way when the others grow, and its text must come out as if nothing had happened. The pool
# is shown live; the tokens must be those of the package's own scheduler, and those of transformers' `generate`, which
# knows no pool at all.

# %%
from pagedkv_lab import SamplingParams
from pagedkv_lab.course import run_for_real

prompts = [
    "Once upon a time there was a small dragon who",
    "The best thing about the sea in winter is that",
    "A good baker gets up early, because bread",
    "In the library of my town there is a book about bees, and",
]
real = run_for_real(
    Scheduler=Scheduler,
    prompts=prompts,
    params=SamplingParams(max_tokens=40, ignore_eos=True),
    num_gpu_blocks=8,
    max_model_len=128,
    max_num_batched_tokens=16,
    watermark=0,
)
for output in real.outputs:
    print(f"request {output.request_id}: preempted {output.num_preemptions}x, {len(output.token_ids)} tokens")
real

# %% [markdown]
# ## Your progress

# %%
from pagedkv_lab.course import progress

progress()
