"""The course's words, each explained once. A lesson lists its key terms by name.

Knows words. The one place where a term is explained: a lesson shows its own terms with `key_terms`, and the page of
all terms, notebooks/glossary.ipynb, is built from here. Does not know which chapter lists which term.
"""

import difflib
import re
from dataclasses import dataclass

PAGE = "glossary.ipynb"  # beside the lessons

TERMS: dict[str, str] = {
    "token": "A piece of text, a word or less, with a number. Models read and write tokens.",
    "KV cache": "The keys and values of all earlier tokens, kept so that no step computes them again.",
    "prefill": "Computing the keys and values of a prompt, all its tokens in one step (or a few).",
    "decode": "Generating: each step computes one token for each running sequence.",
    "step": "One pass of the model over a batch: some sequences in prefill, others in decode.",
    "sequence": "One line of tokens, prompt and output, with a block table of its own.",
    "pool": "All memory of the KV cache, allocated once at the start and cut into blocks.",
    "block": "`block_size` slots in a row: the unit in which the cache is handed out. The paper's KV block.",
    "slot": "Room for the keys and values of one token, in all layers.",
    "block table": "A sequence's list of its blocks, in order: from position in the sequence to place in the pool.",
    "block size": "Slots in a block (`block_size`), 16 by default, here and in vLLM.",
    "prefix cache": "A dictionary from the content of a full block, and all before it, to the block that holds it.",
    "prefix hit": "A prompt begins with tokens whose block is still there: it is shared, not computed.",
    "reference count": "How many sequences hold a block. At 0 it is free.",
    "cached block": "A free block whose contents can still be found, until somebody needs the room.",
    "part": "A piece of the engine with a small protocol, which you can replace by your own.",
    "check": "A function that takes your part and says what is wrong with it, with the smallest example.",
    "MHA": "Multi-head attention: as many KV heads as query heads.",
    "GQA": "Grouped-query attention: several query heads share one KV head, so the cache shrinks by their number.",
    "MQA": "Multi-query attention: all query heads share one KV head.",
    "KV head": "One set of keys and values in a layer, `head_dim` numbers each a token.",
    "head_dim": "Numbers in one key or one value of one head.",
    "bytes a token": "2 × layers × KV heads × head_dim × bytes a number: what one token adds to the cache.",
    "contiguous": "The old way: each request gets one stretch of memory, as long as the longest request allowed.",
    "paged": "A request gets blocks, anywhere in the pool, as it grows; nothing is reserved for it beforehand.",
    "utilization": "Share of the reserved slots that hold a token.",
    "internal fragmentation": "Reserved and never filled: the rest of a stretch, or of a last block.",
    "external fragmentation": "Free, and useless because no piece of it is long enough. Equal blocks have none.",
    "activations": "The numbers that a step computes on its way and throws away. They need memory while it runs.",
    "max_model_len": "The longest sequence that the engine admits, prompt and output together, in tokens.",
    "gpu_memory_utilization": "Share of the memory that the engine may use; the rest stays free.",
    "KiB, MiB, GiB": "2¹⁰, 2²⁰, 2³⁰ bytes. KB, MB, GB are 10³, 10⁶, 10⁹: 7% less at the G.",
    "slot mapping": "For each token of a step, the slot that its keys and values are written to.",
    "position": "A token's place in its sequence, from 0.",
    "logical block": "A sequence's own count of its blocks: position // block_size.",
    "physical block": "A block's number in the pool. The block table leads there from the logical block.",
    "offset": "A token's place in its block: position % block_size.",
    "page table": "An operating system's block table: from a process's pages to the memory's. Hardware reads it.",
    "padding": "What fills up an array's shorter rows. It must never be read.",
    "free list": "The blocks that nobody holds, in a list, a stack or a queue: what `allocate` takes from.",
    "bitmap": "One bit a block, set where it is free. Small; the next free bit must be searched.",
    "leak": "A block that is counted as held by somebody who no longer exists. Nobody will free it.",
    "double free": "Giving back a block once more than it was taken: soon two sequences hold it.",
    "O(1)": "Equally fast however large the pool is: a fixed number of steps.",
    "OutOfBlocks": "The error that says that no block is left: how many are free, cached, in use, and who holds most.",
    "context manager": "What a `with` uses: it cleans up on the way out, whatever the way (`try` and `finally`).",
    "full block": "A block whose slots are all filled. Only full blocks have a key and are shared.",
    "block key": "What a full block is found by: equal where its tokens and all tokens before are equal.",
    "hash chain": "Each key is made from the block's tokens and the key of the block before: it stands for the past.",
    "extra keys": "What else goes into a block's key, as (tag, value) pairs: a salt, a LoRA adapter, an image's hash.",
    "cache salt": "A secret in the first block's key (`cache_salt`): only requests with the same one share.",
    "collision": "Two inputs with the same hash. In a prefix cache, one prompt is handed another one's cache.",
    "sha256": "A hash of 32 bytes, the same in every process, for which nobody has found a collision.",
    "side channel": "What a system tells without saying it, such as by the time that an answer takes.",
    "hit rate": "Share of the prompt tokens that were found in the prefix cache.",
    "findable": "Of a block: a key leads to it. In use or free, its contents can be shared.",
    "eviction": "Handing out a cached block: its key is forgotten, and its contents are overwritten.",
    "LRU": "Least recently used: of the cached blocks, the one freed longest ago is evicted first.",
    "full hit": "A prompt whose blocks are all found. Its last token is computed all the same, and written nowhere.",
    "stale entry": "A key that still leads to a block whose contents have changed: one user gets another's answer.",
    "trace": "A record of requests that were really made, or might have been, without their text: times and blocks.",
    "LoRA adapter": "A small addition to a model's weights, chosen by request. It computes other keys and values.",
    "fork": "A second sequence that goes on from where the first one stands. It shares all its blocks.",
    "copy-on-write": "A shared block is copied when somebody is about to write into it, and not before.",
    "parallel sampling": "Several outputs of one prompt (`n`), each drawn by itself. The prompt is computed once.",
    "beam search": "Keeps the few best texts so far; in each step all of them propose, and the best proposals go on.",
    "sole owner": "The only holder of a block. It writes in place.",
    "race": "The result depends on which of two threads comes first, and one order is wrong.",
    "atomic": "Of an operation: nobody sees it half done, and nobody comes in between.",
    "lock": "What one thread holds at a time, while the others wait. It makes several lines of code atomic.",
    "continuous batching": "Sequences join and leave the batch at every step. Static: nobody joins until all are done.",
    "chunked prefill": "A prompt too long for a step's budget is computed in pieces, beside the others' decodes.",
    "token budget": "Tokens that one step may compute, of all sequences together (`max_num_batched_tokens`).",
    "max_num_seqs": "Sequences that run at once, at most.",
    "FCFS": "First come, first served: nobody overtakes, and nobody waits for ever.",
    "preemption": "A running sequence loses its blocks to one that came before it, and is computed again later.",
    "recomputation": "Computing lost keys and values again from the tokens, which are kept. The other way is swapping.",
    "watermark": "Blocks that stay free when somebody is let in, so that those who run can grow.",
    "starvation": "Somebody waits without end, because others always come first.",
    "TTFT": "Time to first token: from the request's arrival to its first token.",
    "TPOT": "Time per output token: the mean time between tokens after the first.",
    "scheduler": "Decides, before each step, who runs in it and with how many tokens.",
    "gather": "Copying what lies scattered into one piece: here a sequence's keys and values, out of its blocks.",
    "online softmax": "A softmax taken block by block, with a running maximum. Sums are rescaled when it rises.",
    "running maximum": "The largest score so far. Weights are taken relative to it, so that no exp is too large.",
    "log-sum-exp": "The logarithm of a sum of exponentials: how much weight a part has, so that parts can be merged.",
    "group": "The query heads that share one KV head. They read its keys together, once.",
    "causal mask": "A token sees itself and what is before it, by position.",
    "ragged batch": "Sequences of different lengths one behind the other, without padding.",
    "kernel": "A function compiled for one job, which many threads run at once.",
    "tile": "The tokens that a kernel handles at a time. It need not be a block.",
    "grid": "How many programs of a kernel are started; each knows its place in it.",
    "Triton": "A language for GPU kernels in Python, in which a program handles whole arrays.",
    "splits": "Parts of a sequence's tokens that different programs attend to; their results are merged.",
    "cascade attention": "Attending to a shared prefix once for all who share it, and merging with each one's own.",
    "throughput": "Output tokens of all requests, over the time of the whole run. Prompt tokens are another number.",
    "concurrency": "How many requests run at the same time. More of them share each reading of the weights.",
    "warm-up": "Runs before the clock starts: loading, compiling and first allocations belong to nobody's time.",
    "median": "The one in the middle: as many runs were faster as were slower. One disturbed run doesn't move it.",
    "spread": "How far the slowest and the fastest run are apart. Smaller differences mean nothing.",
    "in turn": "A, B, B, A, ... instead of all A and then all B, so that a machine that slows down slows both.",
    "A/A test": "Measuring something against itself. What comes out is what a difference of nothing looks like.",
    "confidence interval": "Where the ratio would lie, most of the times, if everything were measured again.",
    "buddy allocator": "Hands out pieces of 1, 2, 4, 8, ... slots: splits one into halves, and joins them again.",
    "caching allocator": "torch's own, on a GPU: it keeps freed memory for the next tensor instead of giving it back.",
    "NVML": "The NVIDIA driver's library, which nvidia-smi asks: it counts all that all processes hold on a GPU.",
    "RSS": "Resident set size: the memory of a process that really lies in RAM, as the operating system counts it.",
}


@dataclass(frozen=True)
class Glossary:
    """Some terms with what they mean, in alphabetical order; a table in a notebook."""

    terms: tuple[str, ...]

    def __repr__(self) -> str:
        width = max(map(len, self.terms), default=0)
        return "\n".join(f"{term:<{width}}  {TERMS[term]}" for term in self.terms)

    def _repr_markdown_(self) -> str:
        rows = [f"| [**{term}**]({PAGE}#cell-id={cell_id(term)}) | {TERMS[term]} |" for term in self.terms]
        table = ["| term | meaning |", "|:---|:---|", *rows]
        return "\n".join([*table, "", f"A term leads to its place in the [glossary]({PAGE}), with all other terms."])


def cell_id(term: str) -> str:
    """The id of the term's cell on the page of all terms. JupyterLab and nbconvert both know #cell-id=.

    A heading's id would do as well, but not where JupyterLab has yet to open the page: it looks for headings before
    they are there.
    """
    return re.sub(r"[^A-Za-z0-9_]+", "-", term).strip("-")


def key_terms(*names: str) -> Glossary:
    """These terms, explained; all of them without a name. Raises ValueError for one that the glossary lacks."""
    for name in names:
        if name not in TERMS:
            close = difflib.get_close_matches(name, TERMS, n=1)
            raise ValueError(f"the glossary has no {name!r}" + (f"; it has {close[0]!r}" if close else ""))
    return Glossary(tuple(sorted(names or TERMS, key=str.lower)))
