# %% [markdown]
# # 09 · Is it twice as fast?
#
# **A report says: TinyLlama, eight requests at once. Before: 4.2 GB and 18 tokens a second. With paging and a prefix cache: 2.1 GB and 41 tokens a second. Which of the four numbers can the cache have changed?**
#
# Afterwards you can
# - compare engines so that the ratio means something: the same requests, warm, in turn, median and spread,
# - say which counter sees what: blocks in use, tensors, torch's allocator, the driver,
# - recognize nine ways in which a benchmark misleads, each of which you have seen at work,
# - say where a contiguous cache leaves four fifths of its memory, and reproduce the figure of the paper,
# - take a report apart: what the cache can have done, and what it can't.
#
# 40 minutes · Difficulty ●●●○○ · Needs nothing but the bundled model. Where there is a GPU, the same cells measure TinyLlama on it if you ask for it in the next cell. You should know blocks (chapter 02), prefix hits (05) and batching (08). All cells together take about 40 seconds on two cores.

# %%
import gc
import random
import time
from statistics import median
from uuid import uuid4

import psutil
import torch

from pagedkv_lab import Engine, SamplingParams, load_model, sizing
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.engine import ContiguousEngine
from pagedkv_lab.measure import comparison
from pagedkv_lab.measure.dry_run import Arrival, dry_run
from pagedkv_lab.measure.reservation import BuddyMemory, serve_contiguously, serve_paged, shares
from pagedkv_lab.measure.timing import Samples, in_turn, machine, num_threads, versions
from pagedkv_lab.measure.workloads import QUESTIONS, SYSTEM_PROMPT
from pagedkv_lab.show import footprint_over_time, memory_by_kind, show_source
from pagedkv_lab.sizing import BUILT_IN_SHAPES, GiB, human_bytes

MEASURE_TINYLLAMA_ON_A_GPU = False  # True where there is an NVIDIA GPU; fetches 2.2 GB once

tinyllama = MEASURE_TINYLLAMA_ON_A_GPU and torch.cuda.is_available()
if MEASURE_TINYLLAMA_ON_A_GPU and not tinyllama:
    print("There is no CUDA device here: we go on with the bundled model.")
model = load_model("TinyLlama/TinyLlama-1.1B-Chat-v1.0" if tinyllama else "SmolLM2-135M-Instruct")

# %% [markdown]
# A number without its machine is no number. So say where you are, first of all:

# %% tags=["nbval-ignore-output"]
print(f"{model.name}, {str(model.dtype).removeprefix('torch.')}, on {model.device.type}, {num_threads()} threads")
print(machine())
print(versions("torch", "transformers"))

# %% [markdown]
# ## 1. The first time
#
# An engine, one short prompt, two tokens. We time it once, right now, while nothing has been used yet; and then three times more.

# %%
def seconds(do):
    """How long it takes to do something."""
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


def a_short_answer():
    engine = Engine(model, num_gpu_blocks=16, max_model_len=128)
    engine.generate([[1, 2, 3, 4, 5, 6, 7, 8]], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)


if "cold" not in globals():  # run this cell again, and it isn't the first time any more
    cold = seconds(a_short_answer)
warm = median(seconds(a_short_answer) for _ in range(3))
print("The first time takes more than 1.3 times as long as later ones:", cold > 1.3 * warm)

# %% [markdown]
# What is in it: weights are read from the disk when they are first touched; matrices are packed for the library that multiplies them; kernels are compiled, or loaded. On a GPU there is more: the CUDA context, libraries that load lazily, an allocator that begins with nothing, CUDA graphs. None of it belongs to whoever happens to run first.
#
# So run everything once before you look at the clock, with the shapes that you will measure: that is a **warm-up**. (On a GPU there is one more trap. A kernel is *launched*, and Python goes on; a clock read without waiting, `torch.cuda.synchronize()`, times the launch. Our engine reads its tokens back at every step, and so it waits.)
#
# ## 2. In turn, median, spread
#
# Machines don't keep still. They get warm and slow down, or somebody else wants them. Suppose that every run is 2 % slower than the one before, and A and B do exactly the same:

# %%
def on_a_slowing_machine(order):
    """Median seconds of A and of B. Both do the same, and every run takes 2 % longer than the one before."""
    found = {"A": [], "B": []}
    for number, name in enumerate(order):
        found[name].append(1.02**number)
    return {name: median(values) for name, values in found.items()}


for order in ("AAAAAAAABBBBBBBB", "ABABABABABABABAB", "ABBAABBAABBAABBA"):
    found = on_a_slowing_machine(order)
    print(f"{order}   B takes {found['B'] / found['A'] - 1:.1%} longer")

# %% [markdown]
# One after the other, B is a sixth slower than itself. **In turn** the drift meets both, and where the rounds begin with somebody else each time, nothing is left of it. The package's benchmarks all go through this function:

# %%
show_source(in_turn, Samples)

# %% [markdown]
# The **median** of the rounds stands for each, since one disturbed round doesn't move it. The **spread** stands beside it, since it says which differences mean nothing.
#
# How large is "nothing" here? Measure something against itself. This is called an **A/A test**, and it should come before any A/B test:

# %% tags=["nbval-ignore-output"]
toy = Engine(load_model("toy"), num_gpu_blocks=64, max_model_len=256, enable_prefix_caching=False)
some_work = [list(range(10 * i, 10 * i + 40)) for i in range(4)]


def same_work(round_number):
    return seconds(lambda: toy.generate(some_work, SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False))


same_work(0)
itself = {name: Samples(tuple(times)) for name, times in in_turn({"A": same_work, "B": same_work}, rounds=15).items()}
for name, times in itself.items():
    best = min(times.values)
    print(f"{name}: median {1000 * times.median:.1f} ms, best {1000 * best:.1f} ms, spread {times.spread:.0%}")
print(f"median of B over median of A: {itself['B'].median / itself['A'].median:.2f}")
print(f"median of B over best of A:   {itself['B'].median / min(itself['A'].values):.2f}")

# %% [markdown]
# (Times are this machine's: run the cell on yours.) Look at the last line. The *best* of fifteen runs of A against the *median* of B: the same function, and A is faster than itself. The more often one tries, the better the best. Compare medians with medians, or best with best, and never across.
#
# ## 3. The same requests, three times
#
# Eight people write to the help desk of a library. All eight prompts begin with the library's opening hours. We serve them with three engines, and the fourth run is transformers' own `generate`, which says what the right tokens are.

# %%
paragraphs = SYSTEM_PROMPT.split("\n\n")
rules = paragraphs[1]  # the opening hours
chats = [[{"role": "system", "content": rules}, {"role": "user", "content": question}] for question in QUESTIONS]
prompts = [model.encode(chat) for chat in chats]
common = next(i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
print(f"{len(prompts)} prompts, {sum(map(len, prompts))} tokens; the first {common} of each are the same")

# %%
slots_per_block = {"contiguous": 2048, "paged": 16, "paged+prefix": 16}
reserved, filled = {}, {}


def note(name, report, tokens_done, tokens_expected):
    """Called after each step."""
    if report.step == 1:
        print(f"serving all eight, {name} ...")
        reserved[name], filled[name] = [], []
    reserved[name].append(report.pool.used * slots_per_block[name])
    filled[name].append(report.used_slots)


result = comparison.compare(
    model, prompts, max_tokens=8, max_model_len=2048, on_step=note,
    on_transformers=lambda: print("transformers' generate, for the tokens ..."),
)
print("the same tokens, four times:", result.tokens_equal_transformers)
print("blocks leaked:", result.blocks_leaked)

# %% [markdown]
# **First** the tokens, then the numbers. An engine that makes other tokens can be as fast as it likes. (In 16 bits on a GPU two tokens may be so close that the order of additions decides; in float32 there is no excuse.)
#
# Now the memory, in bytes. These are counts and not times: they come out the same on every machine.

# %%
print(f"{'':<14}{'reserved at the peak':>21}{'holds tokens':>15}{'utilization':>13}")
for run in result.runs:
    print(
        f"{run.name:<14}{human_bytes(run.kv_reserved_peak_bytes):>21}{human_bytes(run.kv_used_peak_bytes):>15}"
        f"{run.utilization:>13.0%}"
    )

# %%
footprint_over_time({name: (reserved[name], filled[name]) for name in reserved})

# %% [markdown]
# *What is reserved and what holds a token, step by step, to the same scale. Left, the grey is everything. In the middle, hardly any grey is left. Right, the opening hours are stored once, so that there is less of both. (The shares above the panels are of the first step at the peak; those in the table are of the fullest one.)*
#
# **Utilization** is what holds a token over what is reserved. Here: at the step that reserves most. Notice that the prefix cache doesn't raise it. It makes the bar lower, and utilization can't see that: two numbers, and you need both.
#
# ## 4. And the clock
#
# Three rounds, in turn, after a warm-up. Every run gets a `cache_salt` that nobody has used before, so that it finds nothing from the run before (chapter 04: the salt is part of the first key). It is the same as a new engine, and costs nothing.

# %%
engines = {
    "contiguous": ContiguousEngine(model, max_model_len=2048, num_gpu_blocks=8),
    "paged": Engine(model, max_model_len=2048, num_gpu_blocks=256, enable_prefix_caching=False),
    "paged+prefix": Engine(model, max_model_len=2048, num_gpu_blocks=256),
}


def serve(engine, prompts, max_tokens=8, salt=None):
    """Output tokens a second, over the time of the whole run."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    started = time.perf_counter()
    outputs = engine.generate(prompts, params, use_tqdm=False, cache_salt=salt or uuid4().hex)
    return sum(len(output.token_ids) for output in outputs) / (time.perf_counter() - started)


def rates_of(engines, prompts, rounds=3):
    """Output tokens a second, by the engines' names."""
    for engine in engines.values():
        serve(engine, prompts[:1], 2)  # warm-up
    runs = {name: lambda round_number, engine=engine: serve(engine, prompts) for name, engine in engines.items()}
    return {name: Samples(tuple(values)) for name, values in in_turn(runs, rounds).items()}


print("three engines, three rounds each ...")
rates = rates_of(engines, prompts)

# %% tags=["nbval-ignore-output"]
for name, rate in rates.items():
    print(f"{name:<14}{rate.median:>6.0f} output tokens a second, spread {rate.spread:.0%}")

# %% [markdown]
# The digits are one machine's, on one day. What travels is the **ratio**, side by side on the same machine. And even that only roughly, so from here on we print in which range it lies:

# %%
def between(ratio, low, high):
    """The range, if the ratio is in it; else the ratio itself, for you to wonder about."""
    return f"between {low:g} and {high:g} times" if low <= ratio <= high else f"{ratio:.2f} times"


paging_alone = rates["paged"].median / rates["contiguous"].median
with_prefix = rates["paged+prefix"].median / rates["contiguous"].median
print("paged over contiguous:       ", between(paging_alone, 0.75, 1.33))
print("paged+prefix over contiguous:", between(with_prefix, 1.4, 3.5))

# %% [markdown]
# Paging by itself saves more than nine tenths of the memory here, and no time at all. Of course: the same eight sequences are in every step, and the model does the same work. The prefix cache saves time because less is computed, and that can be counted. How much depends on how much the prompts share. The house has more rules than its opening hours. Here are the first one, two, four and all paragraphs of them in front of the questions, without a model (chapter 08's `dry_run`):

# %%
def tokens_computed(prompts, max_tokens, **options):
    """Over all requests, all at once, until all are done."""
    arrivals = [Arrival(0, len(prompt), max_tokens, prompt=tuple(prompt)) for prompt in prompts]
    reports = dry_run(arrivals, num_gpu_blocks=1024, **options)
    return sum(report.num_prefill_tokens + report.num_decode_tokens for report in reports)


print("rules          prompt tokens   computed   with hits   times fewer")
fewer = {}
for count in (1, 2, 4, len(paragraphs)):
    start = {"role": "system", "content": "\n\n".join(paragraphs[:count])}
    longer = [model.encode([start, chat[1]]) for chat in chats]
    without, with_hits = (tokens_computed(longer, 8, enable_prefix_caching=on) for on in (False, True))
    fewer[count] = without / with_hits
    total = sum(map(len, longer))
    print(f"{count} paragraph{'s' if count > 1 else ' '}{total:>16,}{without:>11,}{with_hits:>12,}{fewer[count]:>14.1f}")

# %% [markdown]
# Tokens are not time: a token of a prompt, in a step with hundreds of others, is cheaper than a token of an answer. But if a report says "2.3 times as fast with a prefix cache", this table is where you look first. It can be true, and it says more about the prompts than about the engine.
#
# ## 5. The same memory
#
# So where does paging's speed come from? From the room. Give all engines **the same memory**: two rows of 2,048 slots. The contiguous engine can serve two at a time, and the other six wait. In blocks, all eight fit.

# %%
questions = [model.encode([{"role": "user", "content": question}])[-20:] for question in QUESTIONS]
two_rows = {
    "contiguous": ContiguousEngine(model, max_model_len=2048, num_gpu_blocks=2),
    "paged": engines["paged"],
}
for name, engine in two_rows.items():
    print(f"{name:<11} {human_bytes(engine.runner.pool.nbytes)}")

print("two engines, three rounds each ...")
same_memory = rates_of(two_rows, questions)
at_same_memory = same_memory["paged"].median / same_memory["contiguous"].median
print("paged over contiguous, same memory:", between(at_same_memory, 1.8, 4.5))

# %% [markdown]
# Why is eight at a time so much better than two? Because a step for eight hardly takes longer than a step for two. In both, *all* weights are read from memory once. Here are decode steps, by how many sequences are in them:

# %% tags=["nbval-ignore-output"]
step_seconds = {}
for size in (1, 2, 4, 8, 16):
    engine = engines["paged"]
    for i in range(size):
        engine.add_request(list(range(100 + i, 120 + i)), SamplingParams(max_tokens=7, ignore_eos=True))
    reports = []
    while engine.has_unfinished_requests():
        reports.append(engine.step())
    step_seconds[size] = median(report.seconds for report in reports[1:])
print("sequences   one step   tokens a second")
for size, duration in step_seconds.items():
    print(f"{size:>9} {1000 * duration:>7.0f} ms {size / duration:>17.0f}")

# %%
at_eight = 8 * step_seconds[1] / step_seconds[8]
print("8 sequences in a step make more than twice the tokens of one:", at_eight > 2)

# %% [markdown]
# That is **concurrency**, and that is what the memory buys. On a GPU the curve is flatter still, up to a hundred sequences and more, until arithmetic becomes the bottleneck, or the reading of the caches themselves.
#
# Two things follow. "At the same concurrency" and "with the same memory" are two different comparisons, and a report must say which one it makes. And paging helps nobody who has memory left: if all requests fit anyway, there is nothing to gain.
#
# ## 6. How a benchmark misleads
#
# Now some reports. In each of them somebody concludes something, from numbers that were really measured. Three you have seen: **no warm-up**, **one after the other**, and **the best of many against a median**. Here are six more, and all of them compare an engine with *itself*.
#
# **Other lengths.** "The new version makes more tokens a second." It had the questions alone, and the old version had them with the opening hours in front. Both numbers stand above, and both are from the same object, `engines["paged"]`:

# %%
print("reported:", between(same_memory["paged"].median / rates["paged"].median, 1.8, 8), "as fast")
print(
    f"honest:   for the same {8 * 8} output tokens, {sum(map(len, questions))} prompt tokens were computed instead of "
    f"{sum(map(len, prompts))}"
)

# %% [markdown]
# Outputs too: after a long prompt, ten tokens look slow and a thousand look fast. And if the model may stop by itself, two engines (or two seeds) may not even write equally much, so benchmarks set `ignore_eos`.
#
# **Another batch size.** "Our engine makes more than twice the tokens of the other one." With eight users, where the other had one. You have the numbers above: that is what the *same* engine does. Say the concurrency, and better, show the curve.
#
# **Counting the prompts.** "Tokens a second" of what? Whoever counts prompt tokens too has a larger number, without a single token more on anybody's screen:

# %%
outputs = 8 * 8
all_tokens = sum(map(len, prompts)) + outputs
print(f"reported: {all_tokens / outputs:.1f} times as many tokens a second")
print(f"honest:   {all_tokens} tokens went through, and {outputs} of them were answers")

# %% [markdown]
# Both numbers mean something (prefill is work), but they are not the same thing, and with a prefix cache the larger one even counts tokens that nobody computed.
#
# **A cache that is still warm.** The same prompts again, in the same engine. Nothing is wrong with it, but then the second run computes hardly more than its answers:

# %%
engine, before = engines["paged+prefix"], engines["paged+prefix"].stats()
salt = uuid4().hex
first = serve(engine, prompts, salt=salt)
between_runs = engine.stats()
second = serve(engine, prompts, salt=salt)
computed = [
    between_runs.computed_tokens - before.computed_tokens,
    engine.stats().computed_tokens - between_runs.computed_tokens,
]
print("reported:", between(second / first, 1.1, 5), "as fast with the new version, which ran second")
print(f"honest:   the first run computed {computed[0]} tokens, the second one {computed[1]}")

# %% [markdown]
# It isn't always wrong to measure it warm: in a service, the system prompt *is* in the cache. But then both must be warm.
#
# **Adding up.** Each of eight requests takes a second, all at the same time. Whoever adds up the eight seconds finds a server that is eight times slower than it is. Tokens a second are all output tokens, over the time from the first request to the last token:

# %%
started = time.perf_counter()
answers = engines["paged"].generate(questions, SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)
whole = time.perf_counter() - started
added_up = sum(answer.ttft_s + 7 * answer.tpot_s for answer in answers)
print("the sum of the requests' times is", between(added_up / whole, 6, 8.5), "the time of the whole")

# %% [markdown]
# **Another seed.** Three questions, answered at random with three seeds, and with the third one again. How many tokens is that?

# %%
ask = [
    [{"role": "user", "content": text}]
    for text in (
        "Answer in one word: is Paris in France?",
        "What is 2 + 3? Answer with the number only.",
        "Say hello.",
    )
]
seeds = {"seed 1": 1, "seed 2": 2, "seed 3": 3, "seed 3 again": 3}
drawn = [SamplingParams(temperature=1.0, seed=seed, max_tokens=24) for seed in seeds.values() for _ in ask]
print("answering twelve times ...")
answers = Engine(model, num_gpu_blocks=128, max_model_len=256).generate(ask * len(seeds), drawn, use_tqdm=False)
work = {name: [len(answer.token_ids) for answer in answers[3 * i : 3 * i + 3]] for i, name in enumerate(seeds)}
for name, counts in work.items():
    print(f"{name:<13} {' + '.join(map(str, counts))} = {sum(counts)} tokens")

# %% [markdown]
# Without a fixed seed, each run is another amount of work, and more tokens may just be more talk. With a fixed one it is the same work every time, in our engine even when other requests run beside it. Greedy sampling, fixed lengths and `ignore_eos` are the simplest way to the same end.
#
# **A real one.** nano-vllm's README says that it makes 1,434 tokens a second where vLLM makes 1,362, on a laptop's GPU: 256 requests, and 133,966 output tokens in both runs. The seed is fixed, no output ends early, one request warms up, output tokens are divided by the whole time. Most of the traps above are avoided. What is missing? It doesn't say how many runs these are, in which order, and how far apart they lie, so nobody can tell whether 5 % is something or nothing. (The article warns, too, against holding it against production engines: §6.1. Offline throughput, everything sent at once, is one number of many.)
#
# In the workbook you write a function that finds such flaws in a report.
#
# ## 7. Which counter?
#
# "Measure the memory": with what? There are at least four counters, each further away from the cache.
#
# | | says | doesn't see |
# |:---|:---|:---|
# | blocks in use × bytes a block | what the requests hold | weights, activations |
# | `torch.cuda.memory_allocated()` | bytes of all tensors that live now; `max_memory_allocated()` the peak | what a pool's tensors are used for |
# | `torch.cuda.memory_reserved()` | what torch's **caching allocator** has taken from the driver: tensors, and what it keeps for the next ones, gaps included (fragmentation) | what others in the process take |
# | NVML, which is what `nvidia-smi` shows | what the driver has given away, to all processes: also each one's CUDA context with its kernels, some hundred MiB | who needs it and what for |
#
# The trouble begins in the second line. A paged engine allocates its pool **once, at the start**, and from then on hands out numbers. A contiguous one may do so too. Then none of the last three counters sees any difference between them. That can be shown without a GPU: the operating system counts the memory of a process (**RSS**, resident set size). Two pools of the same size, and the same two requests:

# %%
on_cpu = model.device.type == "cpu"
from_outside = (lambda: psutil.Process().memory_info().rss) if on_cpu else torch.cuda.memory_allocated
two = [[i] * 80 for i in (10, 11)]
seen = {}
for name, make in {
    "contiguous": lambda: ContiguousEngine(model, max_model_len=2048, num_gpu_blocks=2),
    "paged": lambda: Engine(model, max_model_len=2048, num_gpu_blocks=2 * 128, enable_prefix_caching=False),
}.items():
    gc.collect()
    held = make()
    pool, made = held.runner.pool.nbytes, from_outside()
    held.generate(two, SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    grown = from_outside() - made
    in_use = held.stats().peak_used_blocks * held.plan.block_bytes
    seen[name] = pool, in_use
    print(f"{name:<11} pool {human_bytes(pool)}, in use at the peak {human_bytes(in_use)}")
    print(f"{'':<11} from outside, it grew by more than a fifth of the pool while it served: {grown > pool / 5}")
    del held

# %% [markdown]
# The blocks in use differ by more than ten times, and from outside the two look the same. `nvidia-smi` doesn't fall when you switch paging on! Nor should it: an engine that is told to use 90 % of the card uses 90 % of the card. What changes is how many requests live in there.
#
# So count blocks. (Where a cache grows with its sequence, as transformers' own does, `max_memory_allocated()` is a fair measure of it.) The next cell reads the other counters, if there is something to read:

# %%
def print_nvml():
    """What the driver has given away, to all processes and to this one."""
    import os

    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(f"NVML: no NVIDIA driver here, so there is no GPU memory to read ({type(error).__name__}).")
        return
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        if torch.cuda.is_available():  # torch may have been given another one of several
            uuid = str(torch.cuda.get_device_properties(0).uuid)
            device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        used = pynvml.nvmlDeviceGetMemoryInfo(device).used
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        mine = next((process.usedGpuMemory for process in processes if process.pid == os.getpid()), None)
        print(f"NVML: {human_bytes(used)} of the device are taken, by all processes together,")
        print(f"      {human_bytes(mine) if mine else 'and it does not tell (usual in a container) how much'} by this one")
    except pynvml.NVMLError as error:
        print(f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()


print_nvml()
if torch.cuda.is_available():
    allocated, reserved_by_torch = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    print(f"torch: {human_bytes(allocated)} in tensors; {human_bytes(model.weight_bytes)} of them are weights")
    print(f"torch: {human_bytes(reserved_by_torch)} taken from the driver")
    print(f"torch: at the peak {human_bytes(torch.cuda.max_memory_allocated())} in tensors")
else:
    print("torch: no CUDA device, so its allocator has nothing to count.")

# %% [markdown]
# On a GPU you will find allocated ≤ reserved ≤ this process's part ≤ all that is taken. The first gap is what the allocator keeps; `torch.cuda.empty_cache()` gives it back. The second is the context. The third is other people.
#
# ## 8. Where the other four fifths are
#
# The paper of PagedAttention counts what a contiguous cache is filled with (Figure 2): 20.4 to 38.2 % of it holds tokens, with vLLM 96.3 %. Where is the rest? It names three places:
#
# - **reserved**: slots that a running request is going to fill, but has not yet,
# - **internal fragmentation**: slots that were reserved and will never be filled,
# - **external fragmentation**: free, but in pieces that are too small for the next request. It also includes what the allocator rounds up.
#
# They come from three ways to reserve: **Max**, the longest length allowed. **Pow2**, the answer's length rounded up to a power of two, as if one could guess it that well. **Oracle**, the exact length, as if one knew. The stretches are cut by a *buddy allocator*, which has pieces of 1, 2, 4, 8, ... slots only, splits a larger one in two halves ("buddies") if it must, and joins them when both are free again.
#
# All of this can be played without a model: a request is two lengths, and in each step everybody who runs gets one token. Here are the buddies and the service; beside them stands the same in blocks, with the package's own block manager and scheduler (`serve_paged`).

# %%
show_source(BuddyMemory, serve_contiguously)

# %% [markdown]
# The paper's set-up: 15,700 slots (OPT-13B on a 40 GB card, Table 1), 2,048 tokens at most, prompts of 161 and answers of 338 tokens on average (ShareGPT, Figure 11). We have the averages and not the texts, so we draw lengths with about these averages, 400 of them.

# %%
draw = random.Random(0)
requests = [
    (1 + min(1023, int(draw.expovariate(1 / 161))), 1 + min(1023, int(draw.expovariate(1 / 338)))) for _ in range(400)
]
slots = 15_700


def four_ways(requests, longest, slots):
    """The same requests, served in the paper's three ways and in blocks."""
    return {
        "Max": serve_contiguously(requests, lambda prompt, answer: longest, slots),
        "Pow2": serve_contiguously(requests, lambda prompt, answer: prompt + (1 << (answer - 1).bit_length()), slots),
        "Oracle": serve_contiguously(requests, lambda prompt, answer: prompt + answer, slots),
        "paged": serve_paged(requests, slots),
    }


services = four_ways(requests, 2048, slots)
found = {name: shares(moments, slots) for name, moments in services.items()}
paper = {  # Figures 2 and 13a; of vLLM's 3.7 % that are no tokens it doesn't say what they are
    "Max": (20.4, 13.3, 57.3, 8.9, 7.0),
    "Pow2": (26.8, 17.9, 13.6, 41.6, 9.81),
    "Oracle": (38.2, 25.2, 0, 36.6, 13.62),
    "paged": (96.3, 30.42),
}

print("                  tokens  reserved  internal  external   requests at a time")
for name, (*columns, together) in found.items():
    print(f"{name:<7} here  {''.join(f'{share:>10.1%}' for share in columns)}{together:>12.1f}")
    *columns, together = paper[name]
    print(f"{'':<7} paper {''.join(f'{share:>9.1f}%' for share in columns):<40}{together:>12.1f}")

# %%
footprint_over_time(
    {
        name: ([m.filled + m.to_fill + m.never for m in moments[::50]], [m.filled for m in moments[::50]])
        for name, moments in services.items()
    },
    xlabel="every 50th step",
)

# %% [markdown]
# *The same 400 requests, to the same scale; the memory ends at 15,700 slots. Blue holds tokens, grey is reserved, and what is empty below 15,700 is too small for the next request. How far to the right it goes is how many steps it takes: five times fewer, with blocks.*
#
# Nothing here was fitted: three lines of policy, an allocator from a textbook, and two averages. The shape of Figure 2 comes out, and so does Figure 13 (how many run at a time).
#
# - Max wastes on what will never be written. Nobody knows the length, so everybody gets the longest one.
# - Pow2 and Oracle waste on holes. To *know* the length helps less than one would think, because a stretch of 500 slots must lie in one piece, and the buddy allocator makes it 512, and one of 520 becomes 1,024.
# - Even without holes, a request holds its last slot from its first step on.
#
# Paging takes away all three at once: no reservation, at most 15 slots a request that may stay empty, and no hole, since every block fits everywhere.
#
# ### On a real hour
#
# The same on the lengths of a real chat service: the first 2,000 requests of Mooncake's trace (chapter 05 says where it is from; prompts are 12,000 tokens long on average and answers 343), in 2 million slots, with up to 131,072 tokens allowed. We measured:
#
# | | tokens | reserved | internal | external | at a time |
# |:---|---:|---:|---:|---:|---:|
# | Max | 11.5 % | 0.2 % | 86.6 % | 1.7 % | 15.0 |
# | Pow2 | 52.4 % | 0.9 % | 0.7 % | 46.0 % | 68.6 |
# | Oracle | 54.8 % | 1.0 % | 0.0 % | 44.3 % | 71.6 |
# | paged | 97.7 % | 0.0 % | 0.0 % | 2.2 % | 128.7 |
#
# Long prompts and short answers: hardly anything is "reserved" any more, and guessing the answer's length is hardly worse than knowing it. What is left is holes.

# %% tags=["skip-execution", "nbval-skip"]
from pathlib import Path

from pagedkv_lab.measure.simulate import read_trace

name = Path("shared", "traces", "conversation_trace.jsonl")
file = next((folder / name for folder in (Path.cwd(), *Path.cwd().parents) if (folder / name).exists()), None)
if file is None:
    print(f"There is no {name} here or in a folder above: the table above is what we measured.")
else:
    print("replaying the lengths of 2,000 requests ...")
    real = [(request.input_length, request.output_length) for request in read_trace(file)[:2000]]
    for name, moments in four_ways(real, 131_072, 2_000_000).items():
        *columns, together = shares(moments, 2_000_000)
        print(f"{name:<7}{''.join(f'{share:>9.1%}' for share in columns)}{together:>9.1f}")

# %% [markdown]
# ## 9. The report, taken apart
#
# Back to the report at the top. First its memory. TinyLlama's sizes are in its config, and the rest is multiplication (chapter 01):

# %%
tiny = BUILT_IN_SHAPES["TinyLlama"]
per_token = tiny.kv_bytes_per_token()
all_eight = sizing.contiguous_bytes(8, tiny.max_position_embeddings, per_token)
in_float16, in_float32 = tiny.weight_bytes("float16"), tiny.weight_bytes("float32")
print(f"a token in float16:       {human_bytes(per_token)}")
print(f"8 × 2,048 tokens of them: {human_bytes(all_eight)}, and that is the most that there can be")
print(f"weights in float16:       {human_bytes(in_float16)}, in float32 {human_bytes(in_float32)}")

# %%
memory_by_kind(
    {
        "contiguous": {"weights": in_float16, "cache": all_eight},
        "paged, 300 each": {"weights": in_float16, "cache": sizing.paged_bytes([300] * 8, 16, per_token)},
        "reported before": {"weights": in_float32, "cache": 4.2 * GiB - in_float32},
        "reported after": {"weights": in_float16, "cache": 2.1 * GiB - in_float16},
    }
)

# %% [markdown]
# *Above, what paging does for TinyLlama, if eight requests hold 300 tokens each: the orange part nearly goes, and the blue one stays. Below, a reading of the report that fits.*
#
# Paging can save the orange part of the first bar, a third of a GiB, and the report saves 2.1. So what else halves? **The number format.** In float32 the weights alone are 4.1 GiB, and in float16 they are 2.05. Take the report's GB as GiB (which is how people mostly print torch's bytes), and 0.1 and 0.05 GiB are left for the cache:

# %%
for reported, dtype in ((4.2, "float32"), (2.1, "float16")):
    left = reported * GiB - tiny.weight_bytes(dtype)
    tokens = left / (8 * tiny.kv_bytes_per_token(dtype))
    print(f"{reported} GiB - weights in {dtype} = {human_bytes(left)}: {tokens:.0f} tokens for each of eight requests")

# %% [markdown]
# Two runs with the same requests of about 300 tokens, the first in float32 and the second in float16, would show just these two peaks. We can't know whether that is what happened: the report doesn't say. But a factor of exactly two, in weights and cache alike, is no fingerprint of paging.
#
# And the speed? 2.28 times: prefix hits can do that, as section 4 shows, if the prompts share enough. Half the bytes a number can nearly do it, too. Then there are 18 and 41 themselves. To make a token for each of the eight, the weights are read once. A small data-centre GPU (T4) reads about 300 GB a second:

# %%
steps = 300e9 / in_float16
print(f"the weights can be read {steps:.0f} times a second: up to {8 * steps:,.0f} tokens a second for eight requests")
print(f"41 tokens a second are {41 / (8 * steps):.0%} of that")

# %% [markdown]
# Whatever limited these two runs, it was not the reading of memory, and so hardly the cache. Python around each layer, no batching, a slow attention: anything like that. An engine that is 25 times slower than the card allows tells you nothing about how it manages memory.

# %% [markdown]
# ## Check the article
#
# What the article says on this topic, each claim judged by what was measured above.

# %%
article = Claims()


def growing_cache(num_tokens):
    """Bytes of transformers' own cache, whose tensors grow with the sequence."""
    with torch.inference_mode():
        _, cache = model.hf(torch.arange(num_tokens, device=model.device)[None]).to_tuple()
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


few, many = growing_cache(20), growing_cache(80)
article.check(
    "§4.4",
    "Read memory_allocated() and compare the peaks of both ways to see the effect",
    measured=(
        f"transformers' cache: {human_bytes(few)} for 20 tokens, {human_bytes(many)} for 80; two pools of "
        f"{human_bytes(seen['paged'][0])} with {human_bytes(seen['contiguous'][1])} and "
        f"{human_bytes(seen['paged'][1])} in use"
    ),
    holds=many > few,
    condition="if tensors grow with the cache; a pool is allocated once, and then they say nothing",
    why="With a pool, count the blocks in use. (And the peak is max_memory_allocated(); the other one is now.)",
)

# %%
totals = [sum(counts) for counts in work.values()]
article.check(
    "§4.4",
    "Fix the seed and the inputs, or the numbers vary a lot",
    measured=f"output tokens with three seeds: {totals[0]}, {totals[1]}, {totals[2]}; the third again: {totals[3]}",
    holds=totals[2] == totals[3] and max(totals) > 1.2 * min(totals),
    condition="where tokens are drawn and may end early",
    why="Greedy, with fixed lengths and ignore_eos, no seed is needed. Clocks vary all the same: median and spread.",
)

# %%
article.check(
    "§4.4",
    "Warm up a few times, so that lazy loading is out of the numbers",
    measured=f"the first run took {'more' if cold > 1.3 * warm else 'less'} than 1.3 times the median of later ones",
    holds=cold > 1.3 * warm,
    why="On a CPU as well. But a prefix cache must be cold again afterwards, or equally warm for everybody.",
)

# %%
saved = 4.2 - 2.1
article.check(
    "§4.4",
    "TinyLlama, 8 requests: paging and prefix cache take the peak from 4.2 to 2.1 GB",
    measured=(
        f"all the cache there can be: {all_eight / GiB:.2f} GiB in float16, {2 * all_eight / GiB:.2f} in float32; "
        f"{saved:.1f} were saved"
    ),
    holds=2 * all_eight / GiB >= saved,
    why="Weights in float32, then in float16, would show just these peaks. From the cache at most a sixth can come.",
)

# %%
article.check(
    "§4.4",
    "At the same concurrency, throughput rises from 18 to 41 tokens a second, 2.28 times",
    measured=(
        f"paging alone: {between(paging_alone, 0.75, 1.33)}; with prefix hits: {between(with_prefix, 1.4, 3.5)}, "
        f"and with all of the rules {fewer[len(paragraphs)]:.1f} times fewer tokens to compute"
    ),
    holds=with_prefix > 1.33 and fewer[len(paragraphs)] > 2.28,
    condition="from prefix hits only, with prompts that are mostly shared",
    why=(
        "Paging at the same concurrency changes nothing in a step. And 41 tokens a second are a few percent of what "
        "reading the weights allows, so that something else was slow."
    ),
)


# %%
def saved_share(shape, used=300, allowed=2048, users=8):
    """What paging saves of weights and cache together, contiguously reserved."""
    before = sizing.contiguous_bytes(users, allowed, shape.kv_bytes_per_token())
    after = sizing.paged_bytes([used] * users, 16, shape.kv_bytes_per_token())
    return (before - after) / (shape.weight_bytes() + before)


by_size = sorted(BUILT_IN_SHAPES.values(), key=lambda shape: shape.num_parameters)
by_model = {shape.name: saved_share(shape) for shape in by_size}
article.check(
    "§4.4",
    "The smaller the model, the smaller the gain, because the cache is a smaller share",
    measured=", ".join(f"{name} {share:.0%}" for name, share in by_model.items()) + " of the memory saved",
    holds=list(by_model.values()) == sorted(by_model.values()),
    why=(
        "What counts is bytes a token against bytes of weights. Weights grow faster than caches do, and GQA cuts the "
        "cache only: the smallest of the four gains the most here."
    ),
)

# %%
longer = [saved_share(tiny, used=300 * k, allowed=2048 * k) for k in (1, 2, 4, 8)]
article.check(
    "§4.4",
    "The longer the sequences, the larger the gain",
    measured="TinyLlama, all lengths times 1, 2, 4, 8: " + ", ".join(f"{share:.0%}" for share in longer),
    holds=longer == sorted(longer),
    condition="if what is allowed grows along with what is used",
    why=f"Requests that use all that they may gain nothing: {saved_share(tiny, used=2048):.0%}.",
)

# %%
use = {run.name: run.utilization for run in result.runs}
article.check(
    "§1",
    "Utilization rises from under 40 % to over 80 %",
    measured=f"our eight requests: {use['contiguous']:.0%} and {use['paged']:.0%}; as in the paper: "
    f"{found['Max'][0]:.0%} to {found['Oracle'][0]:.0%}, and {found['paged'][0]:.0%}",
    holds=use["contiguous"] < 0.4 and use["paged"] > 0.8,
    condition="if requests are much shorter than what is reserved for them",
    why=f"With 2,000 tokens in 2,048 slots it would be {sizing.utilization(2000, 2048):.0%} without paging.",
)

# %%
article.check(
    "§1",
    "Paging and prefix cache together raise throughput 2 to 4 times",
    measured=(
        f"same memory, no prefix shared: {between(at_same_memory, 1.8, 4.5)}; same concurrency: paging alone "
        f"{between(paging_alone, 0.75, 1.33)}, with prefix hits {between(with_prefix, 1.4, 3.5)}"
    ),
    holds=at_same_memory > 1.8 and with_prefix > 1.4,
    condition="if memory limited the batch before, or prompts share a lot",
    why=(
        "Memory left over, or nothing shared: then nothing is gained. The paper's 2 to 4 times (abstract) are against "
        "its own baselines, at equal latency."
    ),
)

# %%
article.check(
    "SOSP'23",
    "Existing systems use 20.4 to 38.2 % of the cache memory for tokens, vLLM 96.3 %",
    measured=", ".join(f"{name} {columns[0]:.1%}" for name, columns in found.items()),
    holds=all(abs(100 * found[name][0] - share) < 5 for name, (share, *_) in paper.items()),
    condition="with lengths of the paper's averages, and always somebody waiting",
    why="Figure 2 comes out of the policies and two averages: no GPU, no model, no kernel is needed for it.",
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
# | `in_turn`, warm, with other engines: `pagedkv bench` | `bench.py`: 256 random requests of 100 to 1,024 tokens in and out, one run | `vllm bench throughput`, `vllm bench latency`, and `vllm bench serve` against a running server |
# | warm-up | one request, `"Benchmark: "` | `latency`: `--num-iters-warmup` 10 of `--num-iters` 30; `serve`: `--num-warmups`, **0** if you don't say |
# | fixed work | `seed(0)`, `ignore_eos=True` | `--seed 0`, `--input-len`, `--output-len`, `--ignore-eos` (by itself with random prompts) |
# | output tokens over the whole time | "Throughput" is that, too | `Output token throughput (tok/s)`; `Total token throughput (tok/s)` counts prompts, and stands a few lines below |
# | cold or warm prefix cache | prompts are random: nothing is shared | `latency` switches it off, since its batch is the same in every iteration; `--dataset-name prefix_repetition` measures it |
# | concurrency | all at once | `--max-concurrency`, `--request-rate` (all at once if you don't say) |
# | TTFT, TPOT, ITL | | mean, median and p99 of each; `--percentile-metrics`, `--metric-percentiles`, and `--goodput` for those that were fast enough |
# | blocks in use, hits, preemptions: `engine.stats()` | | `/metrics`: `vllm:kv_cache_usage_perc`, `vllm:prefix_cache_hits` over `vllm:prefix_cache_queries` (in tokens), `vllm:num_preemptions` |
#
# With a server, ask for the throughput **at a latency that your users accept**. Tokens a second go up with the load, up to what the server can do; from there on only the queue grows, and everybody's waiting time with it (Figure 12 of the paper is a set of such curves).

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. You switch paging on and look at `nvidia-smi`. The engine still takes 72 of 80 GB. What does that tell you?**
#
# <details><summary>A. Paging doesn't work.</summary>
#
# > **No.** The pool is allocated at the start, whoever uses how much of it.
#
# </details>
# <details><summary>B. There is a leak.</summary>
#
# > **No.** A leak shows in the number of free blocks, and never in the size of the pool.
#
# </details>
# <details><summary>C. Nothing about paging: the engine takes the share that it was told to take.</summary>
#
# > **Yes.** `gpu_memory_utilization` is 0.9. Look at blocks in use, or at how many requests run at a time.
#
# </details>

# %% [markdown]
# **2. Engine A: best of ten runs 50 ms. Engine B: median of ten runs 53 ms, spread 15 %. What do you report?**
#
# <details><summary>A. Nothing yet. I ask for the median of A, measured in turn with B.</summary>
#
# > **Yes.** And 6 % is less than the spread, so it may well be nothing even then.
#
# </details>
# <details><summary>B. A is 6 % faster.</summary>
#
# > **No.** The best of B may be 48 ms.
#
# </details>
# <details><summary>C. Both are equally fast.</summary>
#
# > **No.** That isn't known either. A may be 20 % slower: its best says little about it.
#
# </details>

# %% [markdown]
# **3. Eight requests run at once for two seconds, and each gets 50 tokens. How many tokens a second does the server make?**
#
# <details><summary>A. 25</summary>
#
# > **No.** That is what one user sees. Adding up all eight times (16 s) gives the same mistake: 400 / 16.
#
# </details>
# <details><summary>B. 200</summary>
#
# > **Yes.** 400 output tokens over the 2 seconds that all of it took.
#
# </details>
# <details><summary>C. It depends on the lengths of the prompts.</summary>
#
# > **No.** The two seconds do. Whoever counts prompt tokens too gets a larger number, of something else.
#
# </details>

# %% [markdown]
# **4. The card's memory holds all your requests twice over, contiguously. What does paging do for your throughput?**
#
# <details><summary>A. It doubles it.</summary>
#
# > **No.** Only more requests in a step would, and there are no more.
#
# </details>
# <details><summary>B. It raises it by the utilization that is gained.</summary>
#
# > **No.** Utilization is memory. It becomes speed only through a larger batch.
#
# </details>
# <details><summary>C. It lowers it, because of the block tables.</summary>
#
# > **No.** We measured about the same. A poor kernel might lose something here; a good one doesn't.
#
# </details>
# <details><summary>D. About nothing.</summary>
#
# > **Yes.** Paging buys room. Who has room already buys nothing. (A prefix cache is another matter: it saves work.)
#
# </details>

# %% [markdown]
# **5. Every length is known beforehand (Oracle). Why does a contiguous cache still hold tokens in little more than a third of its memory?**
#
# <details><summary>A. Because of the tokens that are still to come, and of pieces that don't fit.</summary>
#
# > **Yes.** A request holds its last slot from the start, and a stretch must lie in one piece: about 23 and 41 % in our run.
#
# </details>
# <details><summary>B. Because it reserves 2,048 slots for each.</summary>
#
# > **No.** That is Max.
#
# </details>
# <details><summary>C. Because keys and values are stored twice.</summary>
#
# > **No.** They are stored once.
#
# </details>

# %% [markdown]
# **6. Somebody measures the old engine, then the new one, each ten times, and takes the medians. The new one is 8 % slower. What is the first thing to try?**
#
# <details><summary>A. Twenty runs each.</summary>
#
# > **No.** More runs make a drift longer, and don't make it go away.
#
# </details>
# <details><summary>B. Taking turns.</summary>
#
# > **Yes.** A machine that gets warm slows down whoever comes second. In turn it meets both. Then an A/A test.
#
# </details>
# <details><summary>C. Taking the best run of each.</summary>
#
# > **No.** All runs of the second one may have been on the slower machine, its best too.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "utilization",
    "throughput",
    "concurrency",
    "warm-up",
    "median",
    "spread",
    "in turn",
    "A/A test",
    "confidence interval",
    "internal fragmentation",
    "external fragmentation",
    "buddy allocator",
    "caching allocator",
    "NVML",
    "RSS",
    "cache salt",
)

# %% [markdown]
# ## Read on
#
# - Kwon et al., *PagedAttention*, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 3.1: the three kinds of waste, with Figure 2; section 6.1: Max, Pow2 and Oracle; section 6.2: throughput at equal latency, and Figure 13.
# - Mytkowicz et al., *Producing Wrong Data Without Doing Anything Obviously Wrong!*, ASPLOS 2009. How the size of an environment variable can be worth more than an optimization.
# - Georges et al., *Statistically Rigorous Java Performance Evaluation*, OOPSLA 2007. Section 3: from medians to confidence intervals, as in the workbook's stretch.
# - Prabhu et al., *vAttention*, ASPLOS 2025 ([arXiv 2405.04437](https://arxiv.org/abs/2405.04437)). Leaves paging to the driver: contiguous addresses, memory on demand. Section 3 asks what paging costs in kernels.
#
# Now write it yourself: [the workbook](../exercises/09_measure/09_measure.ipynb). Your benchmark will compare an engine of your own parts with the contiguous one.
