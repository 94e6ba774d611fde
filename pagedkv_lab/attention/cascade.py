"""Finds sequences that begin with the same blocks, so that a decode step can attend to those blocks once for all.

Knows block tables and lengths, in numpy. Does not know tensors, nor how attention is computed: what comes out over
the shared tokens and over each sequence's own is merged by log-sum-exp, like the splits of a long context.

Cascade attention: Hydragen, Juravsky et al. 2024 (arXiv:2402.05099), section 3; Cascade Inference, Ye et al. 2024
(FlashInfer).

When it pays, as measured: two threads, float32 and bfloat16, 9/3 and 32/4 heads of 64, 2 to 32 sequences with 64 to
8,192 shared tokens and 80 of their own. Without cascade the shared blocks are read once for each sequence, but from
the processor's cache, since they are the same memory. So it is less than the bytes promise: 16 sequences behind 1,024
tokens are 1.3 to 1.6 times as fast, 4 behind 8,192 tokens 1.3 to 2.0 times. Where the limits here exclude it, it was
mostly slower, by up to a third (2 sequences of 3 rows each), for want of rows or for the merge.
"""

import numpy as np

from pagedkv_lab.attention.work import SharedPrefix

#: Tokens that need not be read again, summed over all sequences but the first.
MIN_SAVED = 4096
#: Tokens of a prefix.
MIN_TOKENS = 256
#: Query rows, which are sequences times query heads of a KV head. The kernel for many rows works on 16 at a time.
MIN_ROWS = 12


def shared_prefixes(
    block_tables: np.ndarray, context_lens: np.ndarray, query_lens: np.ndarray, block_size: int, group: int
) -> list[SharedPrefix]:
    """The groups of decoding sequences with common first blocks for which it pays to attend to these together.

    block_tables: (S, max_blocks); context_lens, query_lens: (S,), as `reference.paged_attention` has them. group:
    query heads that read one KV head. No sequence is in two of the groups.
    """
    full_blocks = np.where(query_lens == 1, (context_lens - 1) // block_size, 0)  # before the query
    fewest = max(2, -(-MIN_ROWS // group))
    prefixes = []
    waiting = [np.flatnonzero(full_blocks)]
    while waiting:
        members = waiting.pop()
        if len(members) < fewest:
            continue
        # If it pays for so many, they have the same block in this column. Mostly nobody has, and all is done.
        column = -(-max(MIN_TOKENS, MIN_SAVED // (len(members) - 1)) // block_size) - 1
        for together in _with_equal(block_tables, members[full_blocks[members] > column], column, fewest):
            if len(together) < len(members):
                waiting.append(together)  # fewer, so they must share more
                continue
            together, common = _neighbours(block_tables, full_blocks, together)
            num_blocks, first, last = _best_run(common, fewest)
            if num_blocks > column:
                prefixes.append(SharedPrefix(together[first:last], num_blocks * block_size))
                waiting.append(np.delete(together, slice(first, last)))
    return prefixes


def _with_equal(block_tables: np.ndarray, members: np.ndarray, column: int, fewest: int) -> list[np.ndarray]:
    """Those `members` that have the same block in this column, `fewest` and more of them."""
    if len(members) < fewest:
        return []
    block = block_tables[members, column]
    order = np.argsort(block, kind="stable")
    edges = np.flatnonzero(np.diff(block[order], prepend=-1, append=-1))
    return [members[order[edges[i] : edges[i + 1]]] for i in np.flatnonzero(np.diff(edges) >= fewest)]


def _neighbours(block_tables: np.ndarray, full_blocks: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The members in the order of their tables, like words in a dictionary, and with how many full blocks each of them
    but the last begins like the next. Those with a prefix in common then stand side by side."""
    tables = block_tables[members, : full_blocks[members].max()]
    words = [row.tobytes() for row in tables.astype(">i4")]  # bytes compare as the numbers do
    order = np.array(sorted(range(len(members)), key=words.__getitem__))
    members, tables = members[order], tables[order]
    same = tables[:-1] == tables[1:]
    common = np.where(same.all(axis=1), same.shape[1], same.argmin(axis=1))
    return members, np.minimum(common, np.minimum(full_blocks[members[:-1]], full_blocks[members[1:]])).tolist()


def _best_run(common: list[int], fewest: int) -> tuple[int, int, int]:
    """Of all runs of `fewest` or more members, the one that saves most by its common blocks: how many these are, the
    first and the last (excluded) of the members. Blocks times neighbours: the largest rectangle under a skyline.
    """
    best = (0, 0, 0, 0)  # what it saves, and the result
    rising: list[tuple[int, int]] = []  # runs that may go on: where they began, and their blocks
    for i, height in enumerate([*common, 0]):
        start = i
        while rising and rising[-1][1] >= height:
            start, num_blocks = rising.pop()
            if i + 1 - start >= fewest:
                best = max(best, (num_blocks * (i - start), num_blocks, start, i + 1))
        rising.append((start, height))
    return best[1:]
