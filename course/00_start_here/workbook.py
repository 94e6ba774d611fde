# %% [markdown]
# # 00 · Workbook: make one check pass
#
# **You write one line, and see how every workbook of this course works.** About 10 minutes, no GPU, no network.
#
# Each exercise has the same shape:
#
# 1. **What to write**, in words, with an example. The dots say how hard it is and how much of what follows
#    depends on it.
# 2. **A cell for your code.** It holds the beginning of a function. Write below the comment, then run the cell
#    (Shift+Enter).
# 3. **A check.** Run it as often as you like. It tries your function on many cases and, if one goes wrong, says
#    what is wrong and shows the smallest case that does.
# 4. **Three hints**, folded. The first gives the idea, the last is nearly the code. A check that fails says which
#    one to open.
#
# At the end, **Run it for real**: a real model runs, and your code is held against it.

# %% [markdown]
# ## Exercise 0.1: blocks for a number of tokens
#
# Difficulty ●○○○○ · Importance ●●●○○ · about 3 min · 1 line
#
# A KV cache keeps a key and a value for every token. A paged cache keeps them in **blocks** of `block_size` tokens.
# Memory is handed out in whole blocks, so the last block of a sequence may be only partly filled.
#
# Write `blocks_for(num_tokens, block_size)`: how many blocks a sequence of `num_tokens` tokens needs.
#
# | `num_tokens` | `block_size` | blocks |
# |---:|---:|---:|
# | 16 | 16 | 1 |
# | 17 | 16 | 2 |
# | 0 | 16 | 0 |

# %% nbgrader={"schema_version": 3, "grade_id": "blocks_for", "grade": false, "solution": true, "locked": false, "task": false}
def blocks_for(num_tokens, block_size):
    """Blocks that hold `num_tokens` tokens.

    num_tokens: tokens of the sequence, 0 or more.
    block_size: tokens that one block holds, 1 or more.
    Returns a whole number of blocks.
    """
    ### BEGIN SOLUTION
    # Your line here: divide, and count the rest as a block of its own.
    return (num_tokens + block_size - 1) // block_size
    ### END SOLUTION


# %% [markdown]
# The check takes your function. Run this cell now, before you write anything, to see what a check says about an
# exercise that is not written yet. Then write your line, run the cell above, and run this one again.

# %% nbgrader={"schema_version": 3, "grade_id": "check_blocks_for", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(blocks_for=blocks_for)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Count the full blocks first. If tokens are left over, they need one block more, however few they are.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# This is a division that rounds up. `//` rounds down: `17 // 16` is 1. Make the number a little larger before you
# divide, so that every rest tips it over, and an exact fit does not.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# Add `block_size - 1`, then divide: 16 tokens become 31, and `31 // 16` is 1; 17 become 32, and `32 // 16` is 2.
#
# </details>

# %% [markdown]
# ## Stretch: wrong on purpose
#
# Difficulty ●○○○○ · Importance ●○○○○ · about 3 min
#
# `examine` does what `check` does, on any function, and remembers nothing. The cell below gives it a wrong one. Read
# what it says. Then try others: `num_tokens // block_size + 1`, `round(num_tokens / block_size)`, a `print` in the
# place of a `return`, a `while True: pass`. Which of them would you have caught by trying 17 and 16?

# %%
from pagedkv_lab.course import examine


def rounds_down(num_tokens, block_size):
    return num_tokens // block_size


examine("blocks_for", rounds_down)

# %% [markdown]
# ## Run it for real
#
# The engine below serves a real model from a paged cache: SmolLM2-135M, which came with the course (with a GPU it may
# be TinyLlama). The cell starts a request, runs 20 steps, and stops while the request is still at work. Then it
# counts the blocks in use, and asks your function how many there should be.

# %%
from pagedkv_lab.course import require

require(blocks_for=blocks_for)

from pagedkv_lab import Engine, SamplingParams, load_model
from pagedkv_lab.show import pool_text

model = load_model()
engine = Engine(model, block_size=16, max_model_len=256, kv_cache_memory_bytes=32 * 2**20)
engine.add_request("A paged cache is like a hotel that", SamplingParams(max_tokens=40, ignore_eos=True))
for _ in range(20):
    engine.step()

snapshot = engine.snapshot()
tokens = int(snapshot.filled.sum())
in_use = int((snapshot.ref_count > 0).sum())
print(f"{tokens} tokens are in the cache, in {in_use} blocks of {snapshot.block_size}")
print(f"your blocks_for({tokens}, {snapshot.block_size}) says {blocks_for(tokens, snapshot.block_size)}")
print(pool_text(snapshot))

# %% [markdown]
# Let the request finish: its blocks go back to the pool.

# %%
require(blocks_for=blocks_for)

while engine.has_unfinished_requests():
    engine.step()
print(f"{int((engine.snapshot().ref_count > 0).sum())} blocks in use")

# %% [markdown]
# ## Your progress
#
# A pass is remembered in a small file on this machine, in `.pagedkv` next to your notebooks. Nothing is sent
# anywhere. In a terminal, `pagedkv progress` shows the same.
#
# Next: [01 · KV sizing](../../notebooks/01_kv_sizing.ipynb).

# %%
from pagedkv_lab.course import progress

progress()
