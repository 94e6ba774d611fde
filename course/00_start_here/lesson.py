# %% [markdown]
# # 00 · Start here
#
# **Three children ask for a story. The first one costs the model 119 tokens of work before it can begin. The second costs 22. Where did the other 96 go?**
#
# You run a language model on this machine, watch its memory fill block by block, and see three requests use the same blocks.
#
# Afterwards you can
# - generate text with the course's engine and say what each step did,
# - read the live picture of the block pool: free, cached, in use, shared, partly filled,
# - put a part of your own into the engine, and read what a check says about it.
#
# 20 minutes · Difficulty ●○○○○ · Needs nothing but the model that came with the course. No GPU, no network. Run a cell with Shift+Enter, or all of them with *Run ▸ Run All Cells* (under a minute). The course's words are explained in the [glossary](glossary.ipynb).

# %% [markdown]
# ## 1. First, look
#
# The three ask at the same time. The storyteller's instructions are the same for everybody; the question is not. Run the cell and watch: this is the memory of a language model at work.

# %%
from pagedkv_lab import Engine, Parts, SamplingParams, load_model
from pagedkv_lab.course import examine
from pagedkv_lab.show import Playground, pool_picture, pool_text, record, replay, watch

model = load_model("SmolLM2-135M-Instruct")

storyteller = (
    "You are a storyteller. You tell long, quiet stories about people and the work of their hands. You say what they "
    "see, what they hear and what the weather is like. You give everybody a name and a place to live, you let small "
    "things happen one after the other, and you never hurry to the end. Your listeners are ten years old, so you use "
    "plain words. Do not use lists, do not use headings, and do not explain what the story means."
)
questions = ["Tell me about a lighthouse keeper.", "Tell me about a baker.", "Tell me about a woman who repairs clocks."]
prompts = [
    [{"role": "system", "content": storyteller}, {"role": "user", "content": question}] for question in questions
]

engine = Engine(model, num_gpu_blocks=64, max_model_len=1024)
stories = watch(engine, prompts, SamplingParams(max_tokens=120))

# %% [markdown]
# *Each square is a block of memory with room for 16 tokens. A colour is a request, a ring with a number says how many requests share the block, and hatching means: free, but its contents can still be found.*
#
# In Jupyter the picture is live. Move the mouse over a block to see what is in it, click on one to follow its request through the pool, or use the arrow keys. (On GitHub and in exported pages you see a still.)
#
# There is the answer to the question at the top, in plain sight: the six blocks with a ring. How they came to be shared is what you find out now, one thing at a time.

# %% [markdown]
# ## 2. One request
#
# Text comes from a real model with 135 million numbers in it, computed on this machine, one token at a time. A *token* is a word or a piece of one.

# %%
lighthouse = [{"role": "user", "content": "Write two sentences about a lighthouse keeper."}]

for piece in engine.stream(lighthouse, SamplingParams(max_tokens=60)):
    print(piece, end="", flush=True)

# %% [markdown]
# The model is small. It writes fluent sentences, it counts badly (there was one sentence, not two), and it gets facts wrong. For this course that does not matter: its memory works like that of a model a thousand times its size.
#
# Change the text in the cell above, and run it again.

# %% [markdown]
# ## 3. What the model keeps
#
# For each next token the model looks back at all tokens before it. Of each of them it needs two lists of numbers a layer, a *key* and a *value*. They never change once computed, so they are kept: that is the **KV cache**.
#
# The engine took the memory for it at the start, all at once, and cut it into **blocks**. A block has room for 16 tokens. All blocks together are the **pool**. Here is the arithmetic (chapter 01 takes it apart):

# %%
print(engine.plan)

# %% [markdown]
# ## 4. Watch it fill
#
# A fresh engine, one request, and one step:

# %%
engine = Engine(model, num_gpu_blocks=64, max_model_len=1024)
engine.add_request(lighthouse, SamplingParams(max_tokens=60))

report = engine.step()
text = model.decode([token for *_, token in report.tokens])
print(f"step {report.step}: {report.num_prefill_tokens} prompt tokens computed, {report.pool.used} blocks in use")
print(f"and the first token of the answer: {text!r}")
pool_picture(engine.snapshot())

# %% [markdown]
# *Two blocks are full and one is filled to about a third; 61 are free.*
#
# The first step computed the whole prompt at once: 38 tokens. That is **prefill**. They fill two blocks of 16 and take 6 slots of a third. The question was only eight words; the rest is the model's chat template: who speaks, and where a message ends.
#
# From now on each step computes one token. That is **decode**. When a block is full, the next token takes a new one from the pool. Here are the next 29 steps:

# %%
_ = watch(engine, steps=29)

# %% [markdown]
# *Four blocks are full, and the fifth has begun.*
#
# The request never said how long its answer would be. It did not have to: it takes memory as it grows, 16 tokens at a time. At any moment, all that is reserved and not used is the rest of one block.
#
# The same picture as text, for a terminal. `A` is a full block of sequence 1, `a` a partly filled one:

# %%
print(pool_text(engine.snapshot()))

# %% [markdown]
# Now let the request finish.

# %%
while engine.has_unfinished_requests():
    report = engine.step()

for output in report.finished:
    print(f"Finished after {report.step} steps, with {len(output.token_ids)} tokens of output: {output.finish_reason}")
pool_picture(engine.snapshot())

# %% [markdown]
# *No block is in use any more. Four are hatched, 60 are empty.*
#
# All blocks are back. The hatched ones are free like the others, and yet their contents can still be found: that is the **prefix cache**. Only full blocks are kept in it.

# %% [markdown]
# ## 5. Three requests, one prefix
#
# Now the three children again, in a fresh engine, and only the first step:

# %%
engine = Engine(model, num_gpu_blocks=64, max_model_len=1024)
for prompt in prompts:
    engine.add_request(prompt, SamplingParams(max_tokens=40))

report = engine.step()
for request, _, tokens, kind in report.ran:
    print(f"request {request}: {tokens} tokens computed ({kind})")
print(f"{report.hit_tokens} tokens were in the cache already")
pool_picture(engine.snapshot())

# %% [markdown]
# *Six blocks carry a ring and a 3: three sequences hold them. Each sequence has two more blocks, of its own.*
#
# That is the whole answer. The prompts have 119, 118 and 121 tokens, and their first 110 are equal. Those fill six blocks of 16, which are 96 tokens. The first request computed them. The other two found them, put the same six blocks into their own **block tables**, and computed 22 and 25 tokens. (The 14 tokens that are equal and lie in a seventh block are computed three times: only full blocks are shared. Chapter 04 shows why.)
#
# All three came in the same step, and still shared. The blocks are in memory once; the number in the ring is the **reference count**.
#
# Let them finish, and look at what each of them computed:

# %%
answers = {}
with record(engine) as run:
    while engine.has_unfinished_requests():
        report = engine.step()
        answers |= {output.request_id: output for output in report.finished}

for output in answers.values():
    total, hit = len(output.prompt_token_ids), output.num_cached_tokens
    print(f"{output.text}\n    prompt {total} tokens = {hit} found + {total - hit} computed")

# %% [markdown]
# `run` has kept every step. Drag the slider to go back in time; nothing is computed for it. `run.save("stories.pagedkv")` keeps it in a file of a few kilobytes, and `run.to_html("stories.html")` makes a page of it that plays anywhere, without Python.

# %%
replay(run)

# %% [markdown]
# *When a request is done, its blocks go back; what they hold stays findable, hatched, until somebody needs the room.*
#
# Sharing must not change a single token. Hold it against an engine without a prefix cache, and against the model's own `generate` from the transformers library, which knows nothing of blocks:

# %%
import torch

tokens = [answers[request].token_ids for request in sorted(answers)]
plain = Engine(model, num_gpu_blocks=64, max_model_len=1024, enable_prefix_caching=False)
without = plain.generate(prompts, SamplingParams(max_tokens=40), use_tqdm=False)

prompt_ids = torch.tensor([without[0].prompt_token_ids], device=model.device)
theirs = model.hf.generate(
    prompt_ids, attention_mask=torch.ones_like(prompt_ids), max_new_tokens=40, do_sample=False, pad_token_id=0
)
print("same tokens without a prefix cache:  ", [output.token_ids for output in without] == tokens)
print("same tokens as transformers' generate:", theirs[0, prompt_ids.shape[1] :].tolist() == tokens[0])
print(f"tokens computed: {engine.stats().computed_tokens} with the cache, {plain.stats().computed_tokens} without")

# %% [markdown]
# ## 6. Now you
#
# An engine to play with. The three stories are in it, and ten steps have run. Try, in this order:
#
# 1. **Run**, and watch blocks being taken as the stories grow. **Pause**, and **Step** through a few steps.
# 2. While it runs, type a question of your own and press **Add**.
# 3. Press **fork** on one of the cards: a second story goes on from there. It shares all blocks of the first; whoever writes into the last one first gets a copy of it. Find the copy in the log.
# 4. In the settings, switch the prefix cache off and apply. How many prompt tokens are found now?
# 5. Switch on the contiguous baseline. With the same memory, how many stories can it write at once, and how much of what it reserves does it use?

# %%
playground = Playground(Engine(model, num_gpu_blocks=64, max_model_len=512), prompts, max_tokens=150)
playground.step(10)
playground

# %% [markdown]
# *64 blocks are 1,024 slots. Contiguous reservation makes two rows of 512 of them, so the third story has to wait; in blocks, all three run, and half of the pool stays free.*

# %% [markdown]
# ## 7. Parts: what you will build
#
# The engine is put together from a few **parts**. Each has a small job and a small protocol. In the chapters to come you write them one by one, and each one goes into this engine, with this model.

# %%
from dataclasses import fields

for part in fields(Parts):
    print(part.name)

# %% [markdown]
# Here is a block allocator of the kind that you will write, a list and a counter. It is built like the one in the article that the course grew out of (its §4.2), mistake included. Twenty lines, and they run a real model:

# %%
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
        self.ref_count[block] += 1

    def free(self, block):
        self.ref_count[block] -= 1
        if self.ref_count[block] == 0:
            self.free_blocks.append(block)


engine = Engine(model, num_gpu_blocks=64, max_model_len=1024, parts=Parts(BlockAllocator=ListAllocator))
[output] = engine.generate(prompts[:1], SamplingParams(max_tokens=40), use_tqdm=False)
print(output.text)

# %% [markdown]
# It works for one story. Now two, one after the other. When the second one comes, the first one's blocks are free and findable, and so they are shared:

# %%
from pagedkv_lab.errors import PartError

engine = Engine(model, num_gpu_blocks=64, max_model_len=1024, parts=Parts(BlockAllocator=ListAllocator))
try:
    for prompt in prompts[:2]:
        [output] = engine.generate([prompt], SamplingParams(max_tokens=40), use_tqdm=False)
        print(output.text)
except PartError as error:
    print(error)

# %% [markdown]
# That is the article's mistake, in `share`. A block that is free lies in `free_blocks`; `share` counts it as held and leaves it there, so `allocate` hands it out a second time. Two requests would write into the same memory, and both would answer nonsense. In chapter 02 you write a better one.
#
# Note what happened to you: no nonsense, no crash, but a sentence that names your part, the call, and the two places to look at. The engine is still usable.

# %% [markdown]
# ## 8. Checks: how you know that a part is right
#
# A **check** takes your function or class, tries it, and says what is wrong with it by the smallest example. Here is how many blocks a number of tokens takes, with a mistake that many people make first:

# %%
def blocks_for(num_tokens, block_size):
    return num_tokens // block_size


examine("blocks_for", blocks_for)

# %% [markdown]
# The mended version rounds up:

# %%
def blocks_for(num_tokens, block_size):
    return (num_tokens + block_size - 1) // block_size


examine("blocks_for", blocks_for)

# %% [markdown]
# In the exercises the call is `check(blocks_for=blocks_for)`. It says the same, and it remembers what you have passed. Below each exercise there are three hints to unfold. The exercise of this chapter is in [its workbook](../exercises/00_start_here/00_start_here.ipynb).

# %% [markdown]
# ## 9. Is this machine ready for the rest?
#
# `pagedkv doctor` in a terminal looks at everything that the course needs, and says what to do where something is missing. Here is its verdict:

# %%
from pagedkv_lab.course import doctor

problems = [finding for finding in doctor.examine() if finding.state == "problem"]
for finding in problems:
    print(f"{finding.what}: {finding.says}. {finding.remedy or ''}")
print("Something is missing: see above." if problems else "The course can run here.")

# %% [markdown]
# ## The way from here
#
# The course as a map. At the left are the chapters in which you build the engine, in the middle its parts, at the right the chapters that take it from there. An arrow leads from a chapter to the part that comes out of it, and to the chapters that need it.

# %%
from pagedkv_lab import show
from pagedkv_lab.course.outline import COURSE, ChapterList

show.course_map(COURSE)

# %% [markdown]
# *What you need first is always further up. Where two arrows end at one part, the later chapter replaces or extends what the earlier one made.*
#
# The same as a list, with the question that each chapter answers:

# %%
ChapterList()

# %% [markdown]
# Each chapter is a lesson in the folder `notebooks`, like this one, and a workbook in `exercises`, in which you write the part. From chapter 01 on, each one also takes the article's claims on its topic, recomputes them in front of you, and says which hold.

# %% [markdown]
# ## In production
#
# The words and options of this course are vLLM's, so that what you learn can be used there. nano-vllm is a small engine of the same build, about 1,200 lines, made to be read.
#
# | here | nano-vllm | vLLM |
# |:---|:---|:---|
# | `Engine.generate`, `add_request`, `step` | the same names in `LLMEngine` (`engine/llm_engine.py`) | `LLM.generate`; `LLMEngine.add_request`, `step` (`vllm/v1/engine/`) |
# | `BlockManager` | `BlockManager` (`engine/block_manager.py`) | `KVCacheManager` and `BlockPool` (`vllm/v1/core/`) |
# | `Scheduler` | `Scheduler` (`engine/scheduler.py`) | `Scheduler` (`vllm/v1/core/sched/`) |
# | `block_size` 16 | `kvcache_block_size` 256, multiples of it only | `block_size` 16 |
# | `enable_prefix_caching`, on | always on | `enable_prefix_caching`, on |
# | `num_cached_tokens` of an output | `num_cached_tokens` of a `Sequence` | `num_cached_tokens` of a `RequestOutput` |
#
# One difference you can see in the picture above: our three requests shared in the very step in which the first one computed. nano-vllm makes blocks findable after the step has run, so equal prompts in one step share nothing there.

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. A prompt has 33 tokens, a block has 16 slots. How many blocks does the prompt take?**
#
# <details><summary>A. 2</summary>
#
# > **No.** Two blocks hold 32 tokens. The 33rd has to go somewhere.
#
# </details>
# <details><summary>B. 3</summary>
#
# > **Yes.** Two full ones, and a third with one token in it. Its other 15 slots are reserved and empty: that is the price of a block.
#
# </details>
# <details><summary>C. 33</summary>
#
# > **No.** That would be blocks of one token. It works, and the block table gets as long as the prompt.
#
# </details>

# %% [markdown]
# **2. A request has finished and its blocks are hatched in the picture. What is true of a hatched block?**
#
# <details><summary>A. It is reserved for the next request of the same user.</summary>
#
# > **No.** It belongs to nobody. Any request may take it over as an empty block, and any request with the same prefix may find it.
#
# </details>
# <details><summary>B. It has leaked: its owner forgot to free it.</summary>
#
# > **No.** A leaked block is *in use* by nobody who lives. A hatched block was given back properly.
#
# </details>
# <details><summary>C. It is free, and its contents can still be found.</summary>
#
# > **Yes.** If the pool runs short it is handed out like an empty one, after the empty ones, and its contents are forgotten then.
#
# </details>

# %% [markdown]
# **3. Two prompts of 40 tokens are equal in their first 39 tokens. Blocks have 16 slots. How many blocks do they share?**
#
# <details><summary>A. 2</summary>
#
# > **Yes.** Blocks 1 and 2 are full and equal: 32 tokens. The third holds 8 tokens in each, is not full, and is not shared.
#
# </details>
# <details><summary>B. 3, because only one token differs.</summary>
#
# > **No.** The third block is not full, and even if it were, one different token makes it another block.
#
# </details>
# <details><summary>C. 39 tokens' worth: sharing goes token by token.</summary>
#
# > **No.** The unit of sharing is the block. The seven equal tokens after the 32nd are computed by both.
#
# </details>

# %% [markdown]
# **4. In decode, one request runs alone and its block fills up. What happens at the next step?**
#
# <details><summary>A. Its keys and values are moved to a longer stretch of memory.</summary>
#
# > **No.** Nothing is ever moved because a sequence grows. That is the point of blocks.
#
# </details>
# <details><summary>B. It takes one more block from the pool, wherever that one lies.</summary>
#
# > **Yes.** The block table notes which one. Blocks of one sequence need not be neighbours.
#
# </details>
# <details><summary>C. It had reserved blocks up to <code>max_model_len</code> and goes on in the next one.</summary>
#
# > **No.** That is the old way, with one stretch for each request. Chapter 01 counts what it wastes.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "token", "KV cache", "pool", "block", "slot", "block table", "prefill", "decode", "step", "sequence",
    "prefix cache", "prefix hit", "cached block", "reference count", "part", "check",
)

# %% [markdown]
# ## Read on
#
# - Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 3 is the problem, 4.1 to 4.3 are blocks, tables and how a sequence grows, 4.4 is sharing.
# - Vaswani et al., *Attention Is All You Need*, 2017 ([arXiv 1706.03762](https://arxiv.org/abs/1706.03762)). Section 3.2: queries, keys and values.
#
# Now write your first line, in the [workbook](../exercises/00_start_here/00_start_here.ipynb). Then [01 · KV sizing](01_kv_sizing.ipynb).
