"""The texts of a new chapter: a lesson, a workbook, a check and mutants that build and pass as they are.

Everything in them is an example, to be replaced. `$chapter`, `$number`, `$title` and `$name` (of the exercise) are
filled in by new_chapter.py.

Knows what a chapter of this course looks like. Does not know files.
"""

LESSON = """\
# %% [markdown]
# # $number · $title
#
# **A prompt has 37 tokens and a block has 16 slots. How many of its blocks are full?**
#
# Afterwards you can
# - say in one sentence what this chapter is about,
# - compute one number by hand.
#
# 5 minutes · Difficulty ●○○○○ · Needs nothing but the bundled model. Words: the [glossary](glossary.ipynb).

# %%
from pagedkv_lab import sizing
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.show import show_source

# %% [markdown]
# ## 1. Prose and short cells in turn
#
# Say one thing, then let the reader run it. A cell has a few lines, and prints what the next sentence talks about.

# %%
for num_tokens in (15, 16, 17, 37):
    print(f"{num_tokens} tokens take {sizing.blocks_for(num_tokens, 16)} blocks, {num_tokens // 16} of them full")

# %% [markdown]
# A partly filled block counts as taken, and not as full. Code is shown from the package itself, so that the text and the code can't drift apart:

# %%
show_source(sizing.blocks_for)

# %% [markdown]
# ## Check the article
#
# Each claim on this topic is computed in front of the reader. The verdict is an expression over what came out, never a word that was typed in.

# %%
article = Claims()

article.check(
    "§2.1",
    "A table for 8,192 tokens in blocks of 16 has 512 entries",
    measured=f"{sizing.blocks_for(8192, 16)} entries",
    holds=sizing.blocks_for(8192, 16) == 512,
)

# %%
article

# %% [markdown]
# ## In production
#
# Where nano-vllm and vLLM do the same thing, under which name, and what they do differently.
#
# | here | nano-vllm | vLLM |
# |:---|:---|:---|
# | `block_size` 16 | `kvcache_block_size` 256 | `block_size` 16 |

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. A prompt has 32 tokens, a block has 16 slots. How many blocks are full?**
#
# <details><summary>A. 1</summary>
#
# > **No.** That would leave 16 tokens without a place.
#
# </details>
# <details><summary>B. 2</summary>
#
# > **Yes.** The last one is exactly full.
#
# </details>
# <details><summary>C. 3</summary>
#
# > **No.** No token is left over for a third.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms("block", "slot")

# %% [markdown]
# ## Read on
#
# - Kwon et al., PagedAttention, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 4.1: blocks.
#
# Now the [workbook](../exercises/$chapter/$chapter.ipynb).
"""  # noqa: E501 (prose is one line a paragraph)

WORKBOOK = '''\
# %% [markdown]
# # $number · Workbook: $title
#
# **What you write here, and what it is for.** One function. About 5 minutes, no GPU, no network.

# %% [markdown]
# ## Exercise $int.1: full blocks
#
# Difficulty ●○○○○ · Importance ●●●○○ · about 5 min · 1 line
#
# Write `$name(num_tokens, block_size)`: how many of a sequence's blocks are full.
#
# Example: 37 tokens in blocks of 16 fill 2; the third has 5 tokens in it.


# %% nbgrader={"schema_version": 3, "grade_id": "$name", "grade": false, "solution": true, "locked": false, "task": false}
def $name(num_tokens, block_size):
    """Blocks that are full.

    num_tokens: tokens of the sequence, 0 or more.
    block_size: tokens that one block holds.
    Returns a whole number of blocks.
    """
    ### BEGIN SOLUTION
    # Your line here: a partly filled block does not count.
    return num_tokens // block_size
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_$name", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check($name=$name)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Fill block after block. When do you stop counting?
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Divide the tokens by the size of a block, and round down.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `//` divides and rounds down.
#
# </details>

# %% [markdown]
# ## Run it for real
#
# What the learner wrote is put to use, on a real prompt or in the engine: `run_for_real(Part=Part)` where it is a part.

# %%
from pagedkv_lab.course import require

require($name=$name)

for num_tokens in (15, 16, 37):
    print(f"{num_tokens} tokens: {$name(num_tokens, 16)} full blocks")
'''  # noqa: E501 (nbgrader's metadata stand on one line)

CHECKS = '''\
"""Checks of chapter $number: full blocks."""

from pagedkv_lab.course.checks.functions import Case, FunctionCheck, Mistake
from pagedkv_lab.course.checks.registry import Exercise

$name = FunctionCheck(
    name="$name",
    parameters=("num_tokens", "block_size"),
    reference=lambda tokens, size: tokens // size,
    cases=(
        Case((4, 4), "exactly one full block"),
        Case((3, 4), "a block that is not full"),
        Case((0, 4), "no tokens"),
        Case((5, 4), "one token more than a full block"),
        Case((8, 4)),
        Case((3, 1)),
        Case((37, 16)),
        Case((8191, 32)),
    ),
    mistakes=(
        Mistake(
            "rounds_up",
            "It counts the last block, too, where that one is only partly filled.",
            lambda tokens, size: -(-tokens // size),
        ),
        Mistake(
            "always_one_more",
            "It adds a block. The one that is still being filled is not full.",
            lambda tokens, size: tokens // size + 1,
        ),
        Mistake(
            "the_rest",
            "It returns the tokens that are left over, and not the blocks that are full.",
            lambda tokens, size: tokens % size,
            hint=2,
        ),
        Mistake(
            "slots",
            "It returns the slots of the full blocks, and not their number.",
            lambda tokens, size: tokens // size * size,
            hint=2,
        ),
    ),
    tried=("a full last block", "a partly filled one", "no tokens"),
)

EXERCISES = (Exercise("$name", "$int.1", "Full blocks", $name),)
'''

MUTANTS = '''\
"""Wrong and right implementations of the exercises of chapter $number, as learners would write them."""

import math

from mutant_list import right, wrong

NAME = "$name"


@wrong(NAME, "rounds_up")
def _ceil(num_tokens, block_size):
    """math.ceil"""
    return math.ceil(num_tokens / block_size)


@wrong(NAME, "always_one_more")
def _one_more(num_tokens, block_size):
    """one more"""
    return num_tokens // block_size + 1


@wrong(NAME, "the_rest")
def _rest(num_tokens, block_size):
    """divmod, and the wrong half of it"""
    return divmod(num_tokens, block_size)[1]


@wrong(NAME, "slots")
def _slots(num_tokens, block_size):
    """slots instead of blocks"""
    return num_tokens - num_tokens % block_size


@wrong(NAME, "constant")
def _constant(num_tokens, block_size):
    """the same for all"""
    return 2


@wrong(NAME, "unwritten", general=True)
def _stub(num_tokens, block_size):
    """the stub"""


@right(NAME)
def _floor(num_tokens, block_size):
    """math.floor"""
    return math.floor(num_tokens / block_size)


@right(NAME)
def _divmod(num_tokens, block_size):
    """divmod"""
    return divmod(num_tokens, block_size)[0]


@right(NAME)
def _loop(num_tokens, block_size):
    """counting"""
    full = 0
    while num_tokens >= block_size:
        num_tokens -= block_size
        full += 1
    return full
'''
