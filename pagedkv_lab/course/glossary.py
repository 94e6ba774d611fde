"""The course's words, each explained once. A lesson lists its key terms by name.

Knows words. The one place where a term is explained; lessons link to it by listing it.
"""

import difflib
from dataclasses import dataclass

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
    "paged": "The other way: a request gets blocks, anywhere in the pool, as it grows.",
    "utilization": "Share of the reserved slots that hold a token.",
    "internal fragmentation": "Reserved and never filled: the rest of a stretch, or of a last block.",
    "external fragmentation": "Free, and useless because no piece of it is long enough. Equal blocks have none.",
    "activations": "The numbers that a step computes on its way and throws away. They need memory while it runs.",
    "max_model_len": "The longest sequence that the engine admits, prompt and output together, in tokens.",
    "gpu_memory_utilization": "Share of the memory that the engine may use; the rest stays free.",
    "KiB, MiB, GiB": "2¹⁰, 2²⁰, 2³⁰ bytes. KB, MB, GB are 10³, 10⁶, 10⁹: 7% less at the G.",
}


@dataclass(frozen=True)
class Glossary:
    """Some terms with what they mean, in alphabetical order; a table in a notebook."""

    terms: tuple[str, ...]

    def __repr__(self) -> str:
        width = max(map(len, self.terms), default=0)
        return "\n".join(f"{term:<{width}}  {TERMS[term]}" for term in self.terms)

    def _repr_markdown_(self) -> str:
        rows = [f"| **{term}** | {TERMS[term]} |" for term in self.terms]
        return "\n".join(["| term | meaning |", "|:---|:---|", *rows])


def key_terms(*names: str) -> Glossary:
    """These terms, explained; all of them without a name. Raises ValueError for one that the glossary lacks."""
    for name in names:
        if name not in TERMS:
            close = difflib.get_close_matches(name, TERMS, n=1)
            raise ValueError(f"the glossary has no {name!r}" + (f"; it has {close[0]!r}" if close else ""))
    return Glossary(tuple(sorted(names or TERMS, key=str.lower)))
