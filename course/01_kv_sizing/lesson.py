# %% [markdown]
# # 01 · What does one token weigh?
#
# **A 13B model runs, and 10 GB are left for its cache. Five users are being served. The sixth is turned away, while seven eighths of those 10 GB hold nothing. Why?**
#
# Afterwards you can
# - compute the cache bytes of a token from a model's config, for any attention and any number format,
# - say when the cache outgrows the weights,
# - compute what a server reserves, contiguously and in blocks, and how many users fit,
# - judge a number that somebody tells you about memory, the article's included.
#
# 30 minutes · Difficulty ●●○○○ · Needs nothing but the bundled model. All cells together run in about ten seconds. Before it: [00 · Start here](00_start_here.ipynb). Words: the [glossary](glossary.ipynb).

# %%
from dataclasses import replace

from pagedkv_lab import Engine, load_model, show, sizing
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.show import show_source
from pagedkv_lab.sizing import BUILT_IN_SHAPES, human_bytes

llama13 = BUILT_IN_SHAPES["Llama-2-13B"]

# %% [markdown]
# ## 1. One token
#
# For each token, each layer keeps one key and one value for each of its **KV heads**. A key is a list of `head_dim` numbers, and so is a value. That is the whole formula:

# %%
show_source(sizing.kv_bytes_per_token)

# %%
sizing.kv_bytes_per_token(num_layers=40, num_kv_heads=40, head_dim=128, bytes_per_number=2)

# %% [markdown]
# 819,200 bytes. For *one* token; a page of text has several hundred.
#
# Two ways to say it: 819 KB (thousands of bytes) or 800 KiB (1,024 bytes each). At the G the two differ by 7 %. The article that this course grew out of mixes them. Here, GB is 10⁹ bytes and GiB is 2³⁰, always.

# %% [markdown]
# ## 2. From a model's config
#
# All five factors are in the file `config.json` that comes with a model. Here it is read from the model that you ran in chapter 00:

# %%
model = load_model("SmolLM2-135M-Instruct")
print(model.shape)
for dtype in ("float32", "float16", "int8"):
    print(f"{dtype:>8}: {human_bytes(model.shape.kv_bytes_per_token(dtype))} a token")

# %% [markdown]
# `head_dim` is the trap. Most configs don't name it, and then it is hidden size / attention heads. Some do, and then that division is wrong. `ModelShape.from_config` takes the named one first:

# %%
config = {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8}
divided = sizing.ModelShape.from_config(config, "without head_dim")
named = sizing.ModelShape.from_config(config | {"head_dim": 128}, "with head_dim")
for shape in (divided, named):
    print(f"{shape.name:<16} head_dim {shape.head_dim:>3}: {human_bytes(shape.kv_bytes_per_token())} a token")

# %% [markdown]
# The second is Qwen3-0.6B, and the real one. Who divides is off by a factor of two.

# %% [markdown]
# ### Fewer KV heads: MHA, GQA, MQA
#
# The formula counts *KV* heads. Early models had as many of them as query heads (multi-head attention, **MHA**). In grouped-query attention, **GQA**, several query heads read the same keys and values; with one KV head for all it is called multi-query attention, **MQA**.

# %%
show.bytes_per_token(list(BUILT_IN_SHAPES.values()))

# %% [markdown]
# *Llama-2-13B keeps 800 KiB a token. Llama-3-8B, not much smaller, keeps 128 KiB: a sixth.*
#
# "How large is the model" does not say how large its cache is. Take the 13B model and change nothing but its KV heads:

# %%
for kv_heads in (40, 8, 1):
    shape = replace(llama13, num_key_value_heads=kv_heads)
    print(f"{shape.attention_kind}: {kv_heads:>2} KV heads  {human_bytes(shape.kv_bytes_per_token()):>8} a token")

# %% [markdown]
# ## 3. Weigh it
#
# A formula is believed when a scale agrees. First scale: transformers' own cache, after 100 tokens of the bundled model. Second: the pool of our engine, 64 blocks of 16 tokens.

# %%
import torch

with torch.inference_mode():
    _, cache = model.hf(torch.arange(100, device=model.device)[None]).to_tuple()
theirs = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

engine = Engine(model, block_size=16, num_gpu_blocks=64, max_model_len=1024)
ours = engine.runner.pool.nbytes

dtype = str(model.dtype).removeprefix("torch.")
formula = model.shape.kv_bytes_per_token(dtype)
print(f"formula                   {formula:>6,} bytes a token in {dtype}")
print(f"transformers' cache / 100 {theirs / 100:>6,.0f}")
print(f"engine's pool / (64 × 16) {ours / (64 * 16):>6,.0f}")

# %% [markdown]
# To the byte, all three. The engine plans its pool with the same function, and prints the arithmetic:

# %%
print(engine.plan)

# %% [markdown]
# Give it a budget instead of a number of blocks, and it divides:

# %%
print(Engine(model, kv_cache_memory_bytes=100_000_000, max_model_len=1024).plan)

# %% [markdown]
# ## 4. Weights against cache
#
# The weights are paid once. The cache is paid for each token of each user. So at some point it is larger:

# %%
weights = llama13.weight_bytes()
per_token = llama13.kv_bytes_per_token()
print(f"weights: {weights / 1e9:.1f} GB, as much as the cache of {weights / per_token:,.0f} tokens")

users = {1: "1 user", 8: "8 users", 16: "16 users", 32: "32 users"}
show.memory_by_kind(
    {name: {"weights": weights, "cache": n * 2048 * per_token} for n, name in users.items()}, capacity_bytes=80e9
)

# %% [markdown]
# *The blue part is the same in each bar. At 16 users of 2,048 tokens the cache has overtaken it; at 32 the two together fill a card of 80 GB.*
#
# ## 5. Contiguous against paged
#
# Nobody knows beforehand how long an answer will be. The old way was to reserve for the worst case: each request gets one **contiguous** stretch of memory, as long as the longest request allowed.

# %%
show_source(sizing.contiguous_bytes, sizing.blocks_for, sizing.paged_bytes)

# %% [markdown]
# Here are sixteen requests. They are 300 tokens long on average, as in the article's example, and as different as real ones are. Up to 2,048 are allowed.

# %%
lengths = [57, 112, 88, 231, 1040, 164, 305, 420, 96, 610, 143, 275, 380, 199, 512, 168]  # 300 on average
show.contiguous_against_paged(lengths, max_model_len=2048, block_size=16)

# %% [markdown]
# *Left, the grey is reserved and never filled: six sevenths of it all. Right, to the same scale, the grey is the rest of each last block: hardly to be seen.*
#
# Two words for what is lost. **Internal fragmentation** is reserved and not filled: all the grey. **External fragmentation** is free and useless, because no gap is long enough for the next stretch. Equal blocks have none of the second, and of the first at most 15 slots a request.
#
# In bytes:

# %%
contiguous = sizing.contiguous_bytes(len(lengths), 2048, per_token)
paged = sizing.paged_bytes(lengths, 16, per_token)
filled = sum(lengths) * per_token
print(f"filled      {human_bytes(filled):>9}")
print(f"contiguous  {human_bytes(contiguous):>9}  {filled / contiguous:.1%} of it filled")
print(f"paged       {human_bytes(paged):>9}  {filled / paged:.1%} of it filled, {contiguous / paged:.1f} times less")

# %% [markdown]
# The factor is no property of paging. It is the longest length allowed over the average length: 2,048 / 300 is 6.8, and the half-empty last blocks take a little off. Allow 8,192 and paging saves 27 times; serve nothing but full-length requests and it saves nothing.

# %% [markdown]
# ## 6. How many users fit?
#
# Now the question at the top. 10 GB for the cache, and each user really has 300 tokens:

# %%
budget = 10 * 10**9
old = sizing.contiguous_requests_that_fit(budget, 2048, per_token)
new = sizing.paged_requests_that_fit(budget, 300, 16, per_token)
print(f"contiguous: {old} users, and {old * 300 * per_token / budget:.0%} of the 10 GB hold a token")
print(f"paged:     {new} users, and {new * 300 * per_token / budget:.0%} of the 10 GB hold a token")

# %% [markdown]
# That is why the sixth user is turned away: five times 2,048 slots are promised, and 1,500 are used.

# %%
show.users_that_fit(budget, per_token, max_model_len=2048, block_size=16, shared_tokens=128)

# %% [markdown]
# *The contiguous line is flat: it does not care how long requests really are. The paged lines meet it where every request is as long as allowed. (The upward axis grows by factors of ten.)*
#
# The green line is for users who share a prefix of 128 tokens, such as a system prompt. Those eight blocks are stored once for everybody. The shorter the rest, the more that is worth.
#
# One warning. Paging lets 40 users in because they have 300 tokens *now*. All of them may go on to 2,048, and then the pool runs out in the middle of their sentences. The engine must take blocks back from somebody and compute them again later: **preemption**, chapter 08. Contiguous allocation never has to. It buys that peace with seven eighths of the memory.

# %% [markdown]
# ## 7. What must stay free
#
# The pool can't have all that the weights leave. A step computes numbers that it throws away afterwards, the **activations**, and they need room while it runs. How much depends on how many tokens a step computes at once. Roughly, at the widest point of a layer, in its MLP, for the 13B model in float16:

# %%
hidden, intermediate = 5120, 13824  # from Llama-2-13B's config
bytes_at_the_widest = 2 * (2 * intermediate + 3 * hidden)  # gate and up; and three copies of the hidden state
for tokens in (2048, 16384):
    print(f"{tokens:>6} tokens in a step: {tokens * bytes_at_the_widest / 1e9:.1f} GB of activations")

# %% [markdown]
# That is an estimate. Engines measure: they run one full step before they plan the pool, look at the peak, and leave 10 % of the memory on top for what nobody foresaw. An 80 GB card, planned that way:

# %%
usable = 0.9 * 80e9
activations = 16384 * bytes_at_the_widest
pool = usable - weights - activations
blocks = sizing.num_blocks_that_fit(int(pool), 16, per_token)
print(f"0.9 × 80.0 GB - {weights / 1e9:.1f} - {activations / 1e9:.1f} = {pool / 1e9:.1f} GB: {blocks:,} blocks, {16 * blocks:,} tokens")

show.memory_by_kind(
    {"80 GB": {"weights": weights, "cache": pool, "activations": activations, "kept free": 80e9 - usable}}, 80e9
)

# %% [markdown]
# *Weights, cache, a thin slice of activations, and 8 GB that nobody plans with.*
#
# `pagedkv plan` does this arithmetic in a terminal, for any model whose `config.json` you have and for four that it knows by name. (It leaves the activations to the 10 % that stay free, so its pool is a little larger.)

# %%
from pagedkv_lab.cli import main

_ = main(["plan", "Llama-2-13B", "--memory=80GB", "--users=150", "--tokens=300", "--max-model-len=2048"])

# %% [markdown]
# ## 8. A block size
#
# Large blocks waste the rest of the last one. Small blocks make long tables, and more work for whoever reads them. For the sixteen requests above:

# %%
show.waste_by_block_size(lengths, (4, 8, 16, 32, 64, 128, 256))

# %% [markdown]
# *Left rises, right falls. At 16, two slots in a hundred are empty and a table has 19 entries.*
#
# Neither side is dramatic around 16 or 32. At 256 three tenths of the memory are gone, for *these* lengths: with requests of thirty thousand tokens nobody would notice. Block size also decides how finely prefixes are shared, and how fast a kernel reads. Chapters 04 and 07 add those two.

# %% [markdown]
# ## Check the article
#
# The article states eleven numbers on this topic. Each is recomputed here by the functions you have just read. Its model has 40 layers, hidden size 5,120, 40 heads of 128, in FP16: that is Llama-2-13B, and OPT-13B too.

# %%
GB, KB = 10**9, 10**3
article = Claims()

article.check(
    "§1", "A 13B model takes 800 KB to 1 MB a token in FP16",
    measured=f"{per_token:,} bytes: {per_token / KB:.0f} KB, {per_token / 1024:.0f} KiB",
    holds=800 * KB <= per_token <= 1000 * KB,
    condition="for MHA",
    why=f"With 8 KV heads the same model takes {human_bytes(replace(llama13, num_key_value_heads=8).kv_bytes_per_token())}.",
)

# %%
article.check(
    "§1", "The weights themselves are perhaps 26 GB",
    measured=f"{llama13.num_parameters:,} × 2 bytes = {weights / GB:.1f} GB",
    holds=abs(weights / GB - 26) < 0.5,
)

# %%
all_users = sizing.contiguous_bytes(32, 2048, per_token)
article.check(
    "§1", "32 users × 2,048 tokens: over 50 GB of cache, more than the weights",
    measured=f"{all_users / GB:.1f} GB, {all_users / weights:.1f} times the weights",
    holds=all_users > 50 * GB and all_users > weights,
    condition="if all 32 really hold 2,048 tokens, or reserve them",
    why=f"The cache overtakes the weights at {weights / (2048 * per_token):.1f} such users.",
)

# %%
one = sizing.contiguous_bytes(1, 2048, per_token)
article.check(
    "§2.2", "Pre-allocated for 2,048 tokens, a request takes 1.6 GB",
    measured=f"{one / GB:.2f} GB, {one / sizing.GiB:.2f} GiB",
    holds=abs(one / (1.6 * GB) - 1) < 0.05,
    why="The paper of PagedAttention has the same example, OPT-13B, in its section 3.",
)

# %%
sixteen = sizing.contiguous_bytes(16, 2048, per_token)
article.check(
    "§2.2", "16 requests at once take 25.6 GB",
    measured=f"{sixteen / GB:.1f} GB, {sixteen / sizing.GiB:.1f} GiB",
    holds=abs(sixteen / (25.6 * GB) - 1) < 0.05,
    condition="to 5 %: 1.6 was rounded before it was multiplied",
)

# %%
share = sizing.utilization(300, 2048)
article.check(
    "§2.2", "At 300 tokens on average, under 15 % is used",
    measured=f"300 / 2,048 = {share:.1%}",
    holds=share < 0.15,
)

# %%
needed = sizing.blocks_for(300, 16)
average = sum(sizing.blocks_for(length, 16) for length in lengths) / len(lengths)
article.check(
    "§2.2", "Such a request uses 20 blocks of 16 on average",
    measured=f"{needed} for 300 tokens; {average:.1f} on average for the sixteen requests of section 5",
    holds=abs(average - 20) <= 1,
    condition="rounded up, to the reader's disadvantage",
)

# %%
block = 16 * per_token
article.check(
    "§2.2", "A block is 12.8 MB, 20 blocks are 256 MB",
    measured=f"{block / 1e6:.1f} MB ({block / sizing.MiB:.1f} MiB); {20 * block / 1e6:.0f} MB ({20 * block / sizing.MiB:.0f} MiB)",
    holds=abs(20 * block / 256e6 - 1) < 0.05,
    condition="to 3 %: 800 KiB were multiplied as if they were 800 KB",
)

# %%
paged_16 = 16 * 20 * block
article.check(
    "§2.2", "16 requests then take about 4 GB, over 6 times less",
    measured=f"{paged_16 / GB:.2f} GB, {sixteen / paged_16:.1f} times less ({contiguous / paged:.1f} for our sixteen)",
    holds=abs(paged_16 / (4 * GB) - 1) < 0.06 and sixteen / paged_16 > 6,
    condition="for lengths of 300 where 2,048 are allowed",
    why="The factor is the longest length allowed over the average one. It says nothing about other workloads.",
)

# %% [markdown]
# §4.4 tells of a measurement: TinyLlama-1.1B, eight requests at once, a peak of 4.2 GB the old way, and 2.1 GB with paging and prefix cache. Chapter 09 repeats it. The arithmetic alone can already judge it:

# %%
tiny = BUILT_IN_SHAPES["TinyLlama"]
most = sizing.contiguous_bytes(8, tiny.max_position_embeddings, tiny.kv_bytes_per_token())
saved = (4.2 - 2.1) * GB
article.check(
    "§4.4", "TinyLlama, 8 requests: paging takes the peak from 4.2 to 2.1 GB",
    measured=(
        f"{human_bytes(tiny.kv_bytes_per_token())} a token, 8 × {tiny.max_position_embeddings:,} tokens are "
        f"{human_bytes(most)}; the weights are {tiny.weight_bytes() / GB:.1f} GB"
    ),
    holds=most >= saved and tiny.weight_bytes() <= 2.1 * GB,
    why=(
        f"All the cache there can be is {most / GB:.2f} GB, so no way of managing it saves {saved / GB:.1f}. And a "
        "peak of 2.1 GB is less than the FP16 weights alone. Something else changed between the two runs."
    ),
)

# %%
article.check(
    "§6.2", "Servers leave 10 to 20 % of the memory free, for activations and buffers",
    measured=f"{1 - engine.config.gpu_memory_utilization:.0%} here and in nano-vllm (0.9), 8 % in vLLM (0.92; 0.9 in earlier releases)",
    holds=0.099 < 1 - engine.config.gpu_memory_utilization <= 0.20,
    condition="it comes on top: the activations are measured in a trial step, and taken off before",
    why="The article is right that no value suits all: activations grow with the tokens of a step, not with the card.",
)

# %% [markdown]
# All of them in one table:

# %%
article

# %% [markdown]
# ## In production
#
# The same product of five factors stands in every engine.
#
# | here | nano-vllm | vLLM |
# |:---|:---|:---|
# | `kv_bytes_per_token × block_size` | `block_bytes` in `ModelRunner.allocate_kv_cache` (`engine/model_runner.py`) | `page_size_bytes` of an `AttentionSpec` (`vllm/v1/kv_cache_interface.py`), for *one* layer |
# | `num_gpu_blocks` | `num_kvcache_blocks`; always computed | `num_gpu_blocks`; `num_gpu_blocks_override` sets it |
# | `kv_cache_memory_bytes` | | `kv_cache_memory_bytes`; overrides the next one |
# | `gpu_memory_utilization` 0.9 of what is *free* after weights and a full step | 0.9 of *all* memory, less what is used and the peak of a warm-up step | 0.92 of *all* memory, less weights and the peak of a profiling step |
# | `print(engine.plan)` | | two lines in the log: "GPU KV cache size: … tokens" and "Maximum concurrency for … tokens per request: …x" |
# | `block_size` 16 | a multiple of 256 | 16 |
# | KV heads over several GPUs: chapter 14 | divided by the number of GPUs | likewise |
#
# vLLM's "maximum concurrency" is our users that fit, all at full length: the least favourable case. Models whose layers differ (sliding windows, state-space layers, compressed keys as in DeepSeek) have no single number of bytes a token; vLLM plans by groups of layers, and our planner sums over layers.

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. A model has 32 layers, 32 query heads, 8 KV heads, head_dim 128, in bfloat16. What does a token take?**
#
# <details><summary>A. 512 KiB</summary>
#
# > **No.** That counts the 32 query heads. Queries are used once and thrown away; only keys and values are kept.
#
# </details>
# <details><summary>B. 64 KiB</summary>
#
# > **No.** That forgets the factor 2: a key *and* a value.
#
# </details>
# <details><summary>C. 128 KiB</summary>
#
# > **Yes.** 2 × 32 × 8 × 128 × 2 bytes = 131,072. This is Llama-3-8B.
#
# </details>
# <details><summary>D. It depends on the hidden size.</summary>
#
# > **No.** Hidden size only matters where `head_dim` has to be derived from it. Here it is given.
#
# </details>

# %% [markdown]
# **2. Which change halves the cache of a model and leaves its weights as they are?**
#
# <details><summary>A. Quantizing the weights to 8 bits.</summary>
#
# > **No.** That halves the weights. The cache has a number format of its own.
#
# </details>
# <details><summary>B. Keeping keys and values in 8 bits instead of 16.</summary>
#
# > **Yes.** Bytes a number is a factor of the formula. What it costs in quality is chapter 12.
#
# </details>
# <details><summary>C. Blocks of 8 tokens instead of 16.</summary>
#
# > **No.** That only changes the waste in the last block. A token weighs the same.
#
# </details>

# %% [markdown]
# **3. Requests may have 4,096 tokens and have 1,024 on average. About how many times more users does paging let in?**
#
# <details><summary>A. 4</summary>
#
# > **Yes.** Contiguous reserves 4,096 for each, paging about 1,024 and half a block: 4,096 / 1,032 is 3.97.
#
# </details>
# <details><summary>B. 16, the block size</summary>
#
# > **No.** Block size only decides the waste in the last block: 8 slots on average at 16.
#
# </details>
# <details><summary>C. 6, as in the article</summary>
#
# > **No.** Its 6 comes from its lengths: 2,048 allowed, 320 reserved.
#
# </details>

# %% [markdown]
# **4. All users share a system prompt of 130 tokens; blocks have 16 slots. How many tokens of it are stored once for all?**
#
# <details><summary>A. 130</summary>
#
# > **No.** The last two tokens lie in a block together with what is each user's own. Only full blocks are shared.
#
# </details>
# <details><summary>B. 128</summary>
#
# > **Yes.** Eight full blocks. The ninth holds two tokens of the prompt, once in each user's copy.
#
# </details>
# <details><summary>C. 144</summary>
#
# > **No.** That rounds up to nine blocks. The ninth is filled differently for each user.
#
# </details>

# %% [markdown]
# **5. A colleague reports: "With paging, the peak memory of our 1B model at 4 users fell by 3 GB." What do you do first?**
#
# <details><summary>A. Compute the largest cache that 4 users can have.</summary>
#
# > **Yes.** Bytes a token × longest length × 4. If that is under 3 GB, the report is about something else: another number format, another batch, a framework's own buffers.
#
# </details>
# <details><summary>B. Believe it: paging saves up to 6 times.</summary>
#
# > **No.** It saves of the *cache*. A peak also has weights and activations in it, and those don't shrink.
#
# </details>
# <details><summary>C. Ask for the block size.</summary>
#
# > **No.** Between block sizes of 8 and 32 the cache differs by a few percent. It can't be the reason for 3 GB.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "bytes a token", "KV head", "head_dim", "MHA", "GQA", "MQA", "contiguous", "paged", "utilization", "block size",
    "internal fragmentation", "external fragmentation", "activations", "max_model_len", "gpu_memory_utilization",
    "KiB, MiB, GiB",
)

# %% [markdown]
# ## Read on
#
# - Kwon et al., PagedAttention, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 3 has the 800 KB and the 1.6 GB, and finds that existing systems fill 20.4 to 38.2 % of the cache memory that they hold.
# - Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*, 2019 ([arXiv 1911.02150](https://arxiv.org/abs/1911.02150)). Section 3: MQA, and what it saves in decode.
# - Ainslie et al., *GQA*, EMNLP 2023 ([arXiv 2305.13245](https://arxiv.org/abs/2305.13245)). Section 2.2 is the idea.
#
# Now write the functions yourself, in the [workbook](../exercises/01_kv_sizing/01_kv_sizing.ipynb): the engine will plan its pool with them. Then [02 · Block allocator](02_block_allocator.ipynb).
