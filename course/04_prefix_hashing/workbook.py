# %% [markdown]
# # 04 · Workbook: when are two blocks the same?
#
# **You write the keys that the engine finds its blocks by.** Three short functions and a stretch, about 45 minutes, no
# GPU, no network.
#
# A key has one job: to be equal where two blocks hold the same keys and values, and where both users may have them; and
# to be different everywhere else. Too strict, and nothing is ever shared. Too lax, and one user reads another's text.

# %% [markdown]
# ## Exercise 4.1: the key of a block
#
# Difficulty ●●○○○ · Importance ●●●●● · about 12 min · 1-6 lines
#
# Write `hash_block(parent, token_ids, extra=())`. It returns the key of one full block.
#
# - `token_ids` is a list, the block's tokens: whole numbers from 0 up to some hundred thousand. Their order counts.
# - `parent` is the key of the block before, which your function has made; `None` for the first block of a prompt.
# - `extra` is a tuple of pairs of texts, a tag and a value: `(("cache_salt", "team-7"),)`. Mostly it is empty.
#
# Equal arguments must give equal keys, in every process and on every machine. Different arguments must give different
# keys, even if somebody tries hard to find a pair that doesn't: a user chooses their tokens, and a salt may be any text.
#
# A key is whatever a dictionary takes as its key: `bytes`, a text, a number. `hashlib.sha256(data).digest()` makes 32
# bytes from any number of them.
#
# The engine will call your function once for each block that becomes full.

# %% nbgrader={"schema_version": 3, "grade_id": "hash_block", "grade": false, "solution": true, "locked": false, "task": false}
from hashlib import sha256


def hash_block(parent, token_ids, extra=()):
    """The key of a full block: equal for equal arguments, different for all others.

    parent: the key of the block before, or None.
    token_ids: a list, all tokens of the block. Leave it as it is.
    extra: a tuple of (tag, value) pairs, both texts.
    Returns bytes, or something else that can be the key of a dictionary.
    """
    ### BEGIN SOLUTION
    # Your lines here: first write all three so that no two inputs look alike, then hash what you have written.
    written = repr((parent, list(token_ids), tuple(extra)))
    return sha256(written.encode()).digest()
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_hash_block", "grade": true, "solution": false, "locked": true, "points": 3, "task": false}
from pagedkv_lab.course import check

check(hash_block=hash_block)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Three things must be in the key, and nothing else: all tokens in their order, the parent, and extra. Go through them:
# what happens to your key if you change this one only? And what if you call twice with the same?
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# `sha256` takes bytes, so everything has to be written down first, and this is where different inputs can become the
# same: `"1" + "23"` is `"12" + "3"`. Put a separator between numbers. For texts a separator is not enough, because a
# text may contain it: quotes are needed, or the length first. Python's `repr` of a tuple does all of this.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `repr((parent, token_ids, extra))` is one text in which nothing runs together. `.encode()` makes bytes of it,
# `sha256(...)` hashes them, and `.digest()` at the end gives the 32 bytes.
#
# </details>

# %% [markdown]
# ### Your keys, on three prompts
#
# The blocks have 8 tokens, so that they fit into the picture. Where two prompts part, your keys part; where the same
# tokens come after another beginning, your keys must differ. The note “same key, other
# past” would be a mistake.

# %%
from pagedkv_lab.course import require

require(hash_block=hash_block)

from pagedkv_lab import load_model, show

model = load_model("SmolLM2-135M-Instruct")
texts = {
    "request 1": "You help at the desk of a library. Answer in one line. When do you open on Saturday mornings?",
    "request 2": "You help at the desk of a library. Answer in one line. What does a new card cost for a child?",
    "request 3": "You help at the desk of a museum. Answer in one line. What does a new card cost for a child?",
}
tokens, keys = {}, {}
for name, text in texts.items():
    ids = model.encode(text)
    tokens[name], keys[name], parent = [model.decode([token]) for token in ids], [], None
    for block in range(len(ids) // 8):
        parent = hash_block(parent, ids[8 * block : 8 * block + 8])
        keys[name].append(parent)

show.hash_chains(tokens, keys, block_size=8)

# %% [markdown]
# ## Exercise 4.2: the keys of a prompt
#
# Difficulty ●●○○○ · Importance ●●●●○ · about 10 min · 4-7 lines
#
# Write `block_keys(token_ids, block_size, extra=())`. It returns a list with one key for each **full** block of the
# prompt, in order. Tokens that are left over at the end belong to a block that is not full, and it has no key.
#
# Each key is made by `hash_block`, with the key before as its parent. `extra` goes into the first block; the chain
# carries it on.
#
# Example: 40 tokens in blocks of 16 have two keys. If another prompt has the same first 20 tokens and the same `extra`,
# its first key is the same, and its second is not.


# %% nbgrader={"schema_version": 3, "grade_id": "block_keys", "grade": false, "solution": true, "locked": false, "task": false}
def block_keys(token_ids, block_size, extra=()):
    """The keys of a prompt's full blocks.

    token_ids: a list, all tokens of the prompt; may be empty. Leave it as it is.
    block_size: tokens in a block.
    extra: a tuple of (tag, value) pairs, for the first block.
    Returns a list of keys, one for each full block.
    """
    ### BEGIN SOLUTION
    # Your lines here: from block to block, and each key is the next one's parent.
    keys = []
    for block in range(len(token_ids) // block_size):
        tokens = token_ids[block * block_size : (block + 1) * block_size]
        keys.append(hash_block(keys[-1], tokens) if keys else hash_block(None, tokens, extra))
    return keys
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_block_keys", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(block_keys=block_keys)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Cut the prompt into pieces of `block_size` and go through them with one variable that remembers the last key. In the
# beginning it is `None`.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# There are `len(token_ids) // block_size` full blocks. Block i has the tokens from `i * block_size` up to, and without,
# `(i + 1) * block_size`. Nothing else goes into its key but these tokens, the key before, and `extra` where i is 0.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `for i in range(len(token_ids) // block_size):` and in it
# `parent = hash_block(parent, token_ids[i * block_size : (i + 1) * block_size], extra if i == 0 else ())`, then append
# `parent` to the list.
#
# </details>

# %% [markdown]
# ### How much do they find?
#
# Your keys on a small traffic: 40 prompts with one system prompt of 200 tokens, each with a question of its own. Beside
# them, keys that are made from the whole prompt.

# %%
require(hash_block=hash_block, block_keys=block_keys)

import random


def hit_rate(prompts, keys_of):
    """Share of the tokens that a cache finds that never forgets."""
    known, found = set(), 0
    for prompt in prompts:
        keys, hits = keys_of(prompt), 0
        while hits < len(keys) and keys[hits] in known:
            hits += 1
        found += 16 * hits
        known.update(keys)
    return found / sum(map(len, prompts))


rng = random.Random(0)
system = [rng.randrange(49_152) for _ in range(200)]
prompts = [system + [rng.randrange(49_152) for _ in range(rng.randint(30, 120))] for _ in range(40)]
print(f"your block_keys:           {hit_rate(prompts, lambda prompt: block_keys(prompt, 16)):.0%} of the tokens found")
print(f"the whole prompt in a key: {hit_rate(prompts, lambda prompt: [hash_block(None, prompt)]):.0%}")

# %% [markdown]
# ## Exercise 4.3: find what breaks the hit rate
#
# Difficulty ●●○○○ · Importance ●●●●○ · about 10 min · 2-5 lines
#
# Somebody has written `extra` for a server, and was careful: *whatever is in the request shall be in the key*. Run the
# next cell and see what it does to the same prompts.

# %%
require(hash_block=hash_block, block_keys=block_keys)


def everything(request):
    return tuple((field, str(value)) for field, value in sorted(request.items()))


requests = [
    {
        "request_id": f"req-{i}",
        "arrival_time": 1764547200 + 1.5 * i,
        "position": i % 4,  # the place in the queue
        "temperature": rng.choice([0.0, 0.7, 1.0]),
        "seed": None,
        "max_tokens": rng.choice([64, 256]),
        "cache_salt": rng.choice([None, "team-7"]),
        "lora_name": rng.choice([None, None, "legal"]),
        "image_hash": None,
    }
    for i in range(len(prompts))
]


def hit_rate_with(extra_of):
    known, found = set(), 0
    for prompt, request in zip(prompts, requests, strict=True):
        keys, hits = block_keys(prompt, 16, extra_of(request)), 0
        while hits < len(keys) and keys[hits] in known:
            hits += 1
        found += 16 * hits
        known.update(keys)
    return found / sum(map(len, prompts))


print(f"with everything in the key: {hit_rate_with(everything):.0%} of the tokens found")

# %% [markdown]
# Write `extra_keys(request)`, which picks what belongs into the key and leaves out the rest. Ask of each field: does it
# change the keys and values of the prompt's tokens? Does it say who may share with whom? If neither, it stays out.
#
# - `request` is a dictionary with the fields that you see above. A field that a request doesn't set is `None`.
# - Return a tuple of pairs of texts, the field's name and its value: `(("cache_salt", "team-7"),)`. What is `None` gives
#   no pair; a request that sets nothing gives `()`.
# - Servers grow. Tomorrow's requests have fields that neither of us has heard of.


# %% nbgrader={"schema_version": 3, "grade_id": "extra_keys", "grade": false, "solution": true, "locked": false, "task": false}
def extra_keys(request):
    """What of a request belongs in its blocks' keys, beside the tokens.

    request: a dictionary, see above. Leave it as it is.
    Returns a tuple of (field, value) pairs, both texts, in the same order for all requests.
    """
    ### BEGIN SOLUTION
    # Your lines here: name the fields that belong in, and take those that are set.
    belong = ("cache_salt", "lora_name", "image_hash")
    return tuple((field, request[field]) for field in belong if request[field] is not None)
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_extra_keys", "grade": true, "solution": false, "locked": true, "points": 2, "task": false}
from pagedkv_lab.course import check

check(extra_keys=extra_keys)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# Think of what the model does with the prompt. Another adapter is other weights, another image is another input: other
# keys and values. Temperature and seed come into play when the next token is drawn, and that is after it.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Three fields belong in: the salt, the adapter, the image. List these, rather than those that stay out: a new field then
# stays out by itself. Leave out what is `None`, and don't turn it into the text `"None"`, which somebody's salt may be.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `tuple((field, request[field]) for field in ("cache_salt", ...) if request[field] is not None)`
#
# </details>

# %% [markdown]
# ### And now?
#
# The same prompts and requests, with your pairs.

# %%
require(hash_block=hash_block, block_keys=block_keys, extra_keys=extra_keys)

groups = len({extra_keys(request) for request in requests})
print(f"everything in the key: {hit_rate_with(everything):.0%} of the tokens found")
print(f"your extra_keys:       {hit_rate_with(extra_keys):.0%}, in {groups} groups that share among themselves")

# %% [markdown]
# ## Stretch 4.4: find a collision
#
# Difficulty ●●●○○ · Importance ●●○○○ · about 12 min · 6-9 lines
#
# Somebody saves memory and keeps 20 bits of each hash. A million different keys, that sounds like a lot. Show what it is
# worth.
#
# Write `find_a_collision(weak_hash)`. `weak_hash` is a function that takes a block, a list of 16 token ids from 0 to
# 49,151, and returns its key. Return two **different** blocks with the same key.
#
# You cannot look inside it, and it is another one each time. You may call it some ten thousand times, not a million.


# %% nbgrader={"schema_version": 3, "grade_id": "find_a_collision", "grade": false, "solution": true, "locked": false, "task": false}
def find_a_collision(weak_hash):
    """Two different blocks with the same key.

    weak_hash: a function from a block (a list of 16 token ids, 0 to 49,151) to its key.
    Returns a pair of blocks.
    """
    ### BEGIN SOLUTION
    # Your lines here: try block after block, and keep every key that you have seen with its block.
    seen = {}
    for number in range(1_000_000):
        block = [number % 49_152, number // 49_152] + [0] * 14
        key = weak_hash(block)
        if key in seen:
            return seen[key], block
        seen[key] = block
    raise ValueError("no two of a million blocks have the same key")
    ### END SOLUTION


# %% nbgrader={"schema_version": 3, "grade_id": "check_find_a_collision", "grade": true, "solution": false, "locked": true, "points": 1, "task": false}
from pagedkv_lab.course import check

check(find_a_collision=find_a_collision)

# %% [markdown]
# <details><summary><b>Hint 1</b>: the idea</summary>
#
# How many people must be in a room until two have the same birthday? 23 are enough, because *any* two will do. Whoever
# looks for one with your own birthday needs ten times as many. Don't fix one block and look for its partner.
#
# </details>
# <details><summary><b>Hint 2</b>: in words</summary>
#
# Make blocks, as many different ones as you like: count up in the first place, and leave the other fifteen at 0. Keep a
# dictionary from key to block. As soon as a key is in it already, you have a pair. With n possible keys that takes about
# the square root of n blocks.
#
# </details>
# <details><summary><b>Hint 3</b>: nearly the code</summary>
#
# `seen = {}`, then `for number in range(49_152): block = [number] + [0] * 15`, `key = weak_hash(block)`,
# `if key in seen: return seen[key], block`, `seen[key] = block`.
#
# </details>

# %% [markdown]
# ### Thirty-two bits?
#
# Each further bit makes the search longer by the square root of two only. Your function, on sha256 cut to so many bits:

# %%
require(hash_block=hash_block, find_a_collision=find_a_collision)

for bits in (8, 16, 24):
    asked = []

    def cut(block, bits=bits, asked=asked):
        asked.append(block)
        return int.from_bytes(sha256(repr(block).encode()).digest(), "big") >> (256 - bits)

    find_a_collision(cut)
    print(f"{bits} bits, {2**bits:>10,} keys: a pair after {len(asked):>6,} blocks")

# %% [markdown]
# ## Run it for real
#
# Your `hash_block` goes into the engine. A real model answers three requests with a common prefix, then a fourth that
# finds its blocks by your keys. The tokens are held against the package's own engine and against the model's `generate`.

# %%
from pagedkv_lab.course import run_for_real

run_for_real(hash_block=hash_block)

# %% [markdown]
# And the other way round: what does the model say when the keys are wrong? A hash that adds up the tokens cannot tell
# who is allergic to what. The first patient's file is in the cache when the second one's comes.

# %%
require(hash_block=hash_block)

from pagedkv_lab import Engine, Parts, SamplingParams

files = [
    "Patient file. Anna is allergic to nuts and Tom is allergic to milk. What is Tom allergic to? Tom is allergic to",
    "Patient file. Tom is allergic to nuts and Anna is allergic to milk. What is Tom allergic to? Tom is allergic to",
]
for name, function in (
    ("a sum of the tokens", lambda parent, ids, extra=(): (parent, sum(ids))),
    ("yours", hash_block),
):
    engine = Engine(model, num_gpu_blocks=64, max_model_len=512, parts=Parts(hash_block=function))
    answers = [engine.generate([file], SamplingParams(max_tokens=2), use_tqdm=False)[0] for file in files]
    print(
        f"{name}: {' and'.join(answer.text for answer in answers)}; {answers[1].num_cached_tokens} tokens of file 2 found"
    )

# %% [markdown]
# ## Your progress
#
# Next: [05 · Prefix cache](../../notebooks/05_prefix_cache.ipynb), which keeps your keys, and forgets them in time.

# %%
from pagedkv_lab.course import progress

progress()
