"""Cuts a step's attention into pieces of work for the CPU kernels, none of them much larger than the others.

Knows lengths, positions, and rows of the batch, in numpy. Does not know tensors, nor numba.

A piece is some queries, of one sequence or of several that share a prefix, and a range of tokens that they attend to.
It is cut along its tokens where whole pieces would be too few, or one too large, for the threads to finish together;
the results of the parts are merged afterwards.
"""

from dataclasses import dataclass

import numpy as np

#: Columns of a piece: the first and last (excluded) of its queries, the sequence whose block table it reads, and the
#: first and last (excluded) of the tokens that it attends to.
FIRST_QUERY, LAST_QUERY, SEQUENCE, FIRST, LAST = range(5)
#: Columns of a query: its row in the batch, its position, and the row of the output that the result goes to.
ROW, POSITION, TARGET = range(3)

#: Tokens that a kernel handles at a time.
TILE = 32
#: Rows, which are queries times the query heads of one KV head. From so many on the kernel for many rows is the faster
#: one for a single query, too; and it takes no more than the most. Measured, ns a row and token on one thread: with 8
#: rows 9.9 against 6.2, with 12 6.6 against 5.6, with 16 5.0 against 5.3.
MIN_ROWS, MAX_ROWS = 16, 96

#: A thread gets about so many pieces, and none of them is larger than its share of that.
_PIECES_A_THREAD = 8
#: But no part has fewer tokens, because each costs a pass over its output.
_MIN_TOKENS = 64


@dataclass(frozen=True)
class SharedPrefix:
    """Sequences whose tables begin with the same blocks, full ones and before the first query of each.

    sequences: (n,) rows of the block tables, n > 1. num_tokens: how many tokens those blocks hold.
    """

    sequences: np.ndarray
    num_tokens: int


@dataclass(frozen=True)
class Work:
    """few_rows, many_rows: (n, 5) pieces for either kernel. queries: (m, 3), which pieces refer to. merges: (k, 3), a
    row of the output, and the first and last (excluded) of the rows that its parts are in. num_rows: rows of the
    output: first those of the batch, then the parts. All int64.
    """

    few_rows: np.ndarray
    many_rows: np.ndarray
    queries: np.ndarray
    merges: np.ndarray
    num_rows: int


def cut(
    context_lens: np.ndarray,
    query_lens: np.ndarray,
    prefixes: list[SharedPrefix],
    *,
    sliding_window: int | None,
    group: int,
    num_kv_heads: int,
    num_threads: int,
) -> Work:
    """The work of a step. context_lens, query_lens: (S,) int64. group: query heads that read one KV head.

    With prefixes there must be no sliding window.
    """
    most_queries = max(1, MAX_ROWS // group)
    first_row = np.cumsum(query_lens) - query_lens

    # Over its own tokens, each sequence's queries, in equal chunks. Those behind a shared prefix begin behind it.
    num_chunks = -(-query_lens // most_queries)
    sequence, nth = _repeat(num_chunks)
    chunk = -(-query_lens[sequence] // num_chunks[sequence])
    offset = nth * chunk
    num_queries = np.minimum(query_lens[sequence] - offset, chunk)
    position = (context_lens - query_lens)[sequence] + offset
    behind = np.zeros_like(context_lens)
    for prefix in prefixes:
        behind[prefix.sequences] = prefix.num_tokens
    first = behind[sequence]
    if sliding_window is not None:
        first = np.maximum(first, position - sliding_window + 1)
    pieces = [_columns(num_queries, sequence, first, position + num_queries)]
    piece, nth = _repeat(num_queries)
    queries = [_columns((first_row[sequence] + offset)[piece] + nth, position[piece] + nth)]

    # Over a shared prefix, the queries of all who share it.
    for prefix in prefixes:
        member, nth = _repeat(query_lens[prefix.sequences])
        offset = np.arange(0, len(member), most_queries)
        num_queries = np.minimum(len(member) - offset, most_queries)
        pieces.append(_columns(num_queries, prefix.sequences[0], 0, prefix.num_tokens))
        queries.append(_columns(first_row[prefix.sequences][member] + nth, prefix.num_tokens))

    return _cut_along_tokens(np.concatenate(pieces), np.concatenate(queries), group, num_kv_heads, num_threads)


def _cut_along_tokens(pieces: np.ndarray, queries: np.ndarray, group: int, num_kv_heads: int, num_threads: int) -> Work:
    """pieces (n, 4): number of queries, sequence, first and last token. queries (m, 2): row and position."""
    num_queries, sequence, first, last = pieces.T
    tokens = last - first
    size = tokens
    if num_threads > 1:
        share = (num_queries * tokens).sum() * num_kv_heads / (num_threads * _PIECES_A_THREAD)
        size = np.maximum(share / num_queries, _MIN_TOKENS).astype(np.int64)
        size = np.minimum(-(-size // TILE) * TILE, tokens)
    piece, nth = _repeat(-(-tokens // size))
    first = first[piece] + nth * size[piece]
    last = np.minimum(first + size[piece], last[piece])

    # Every part has all queries of its piece, each with a target of its own.
    part, nth = _repeat(num_queries[piece])
    row, position = queries[(np.cumsum(num_queries) - num_queries)[piece][part] + nth].T
    num_parts = np.bincount(row)
    several = np.flatnonzero(num_parts > 1)
    end = len(num_parts) + np.cumsum(num_parts[several])
    target = np.arange(len(num_parts))
    target[several] = end - num_parts[several]
    merges = _columns(several, target[several], end)
    by_row = np.argsort(row, kind="stable")
    target = target[row]
    target[by_row] += _repeat(num_parts)[1]

    num_queries = num_queries[piece]
    last_query = np.cumsum(num_queries)
    parts = _columns(last_query - num_queries, last_query, sequence[piece], first, last)
    # Large ones first: what is left for the end is small.
    parts = parts[np.argsort(-num_queries * (last - first), kind="stable")]
    few = (parts[:, LAST_QUERY] - parts[:, FIRST_QUERY] == 1) & (group < MIN_ROWS)
    num_rows = int(end[-1]) if len(end) else len(num_parts)
    return Work(parts[few], parts[~few], _columns(row, position, target), merges, num_rows)


def _repeat(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each index i counts[i] times, and beside it 0, 1, 2 and so on: (0 0 2 2 2), (0 1 0 1 2) for counts (2 0 3)."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - (np.cumsum(counts) - counts)[index]


def _columns(*columns: np.ndarray | int) -> np.ndarray:
    table = np.empty((len(columns[0]), len(columns)), np.int64)
    for i, column in enumerate(columns):
        table[:, i] = column
    return table
