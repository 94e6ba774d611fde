"""Checks of chapter 06: shared blocks, and what happens when somebody writes into one.

The table is in forkable_table.py, the write in written_tokens.py, beam search in beams.py, threads in safe_counts.py.
Here the blocks that a step will take.
"""

from collections import Counter
from collections.abc import Sequence

from pagedkv_lab.course.checks.beams import examine_beam_step
from pagedkv_lab.course.checks.forkable_table import forkable_table
from pagedkv_lab.course.checks.functions import Case, FunctionCheck, Mistake
from pagedkv_lab.course.checks.registry import Exercise
from pagedkv_lab.course.checks.safe_counts import safe_counts
from pagedkv_lab.course.checks.written_tokens import examine_write_token

Tables = Sequence[Sequence[int]]


def _partly_filled(tables: Tables, num_tokens: Sequence[int], block_size: int) -> Counter[int]:
    """How many of the sequences write into each block that they have already."""
    return Counter(blocks[-1] for blocks, n in zip(tables, num_tokens, strict=True) if n % block_size)


def _at_boundary(num_tokens: Sequence[int], block_size: int) -> int:
    return sum(n % block_size == 0 for n in num_tokens)


def _reference(tables: Tables, num_tokens: Sequence[int], block_size: int) -> int:
    writers = _partly_filled(tables, num_tokens, block_size)
    return _at_boundary(num_tokens, block_size) + sum(count - 1 for count in writers.values())


def _no_copies(tables: Tables, num_tokens: Sequence[int], block_size: int) -> int:
    return _at_boundary(num_tokens, block_size)


def _no_growth(tables: Tables, num_tokens: Sequence[int], block_size: int) -> int:
    return sum(count - 1 for count in _partly_filled(tables, num_tokens, block_size).values())


def _all_copy(tables: Tables, num_tokens: Sequence[int], block_size: int) -> int:
    writers = _partly_filled(tables, num_tokens, block_size)
    return _at_boundary(num_tokens, block_size) + sum(count for count in writers.values() if count > 1)


def _one_copy(tables: Tables, num_tokens: Sequence[int], block_size: int) -> int:
    writers = _partly_filled(tables, num_tokens, block_size)
    return _at_boundary(num_tokens, block_size) + sum(count > 1 for count in writers.values())


def _copies_full_ones(tables: Tables, num_tokens: Sequence[int], block_size: int) -> int:
    last = Counter(blocks[-1] for blocks in tables if blocks)
    return _at_boundary(num_tokens, block_size) + sum(count - 1 for count in last.values())


def _all_shared(tables: Tables, num_tokens: Sequence[int], block_size: int) -> int:
    everywhere = Counter(block for blocks in tables for block in blocks)
    return _at_boundary(num_tokens, block_size) + sum(count - 1 for count in everywhere.values())


def _early(tables: Tables, num_tokens: Sequence[int], block_size: int) -> int:
    writers = _partly_filled(tables, num_tokens, block_size)
    full = sum((n + 1) % block_size == 0 for n in num_tokens)
    return full + sum(count - 1 for count in writers.values())


blocks_for_step = FunctionCheck(
    "blocks_for_step",
    ("tables", "num_tokens", "block_size"),
    _reference,
    cases=(
        Case(([[3]], [2], 4), "one sequence with room"),
        Case(([[3]], [4], 4), "one sequence whose block is full"),
        Case(([[3], [3]], [2, 2], 4), "a fork, and both write into the same block"),
        Case(([[3], [3]], [4, 4], 4), "a fork at a boundary"),
        Case(([[1, 2]] * 4, [6, 6, 6, 6], 4), "four outputs of one prompt"),
        Case(([[1, 2], [1, 5]], [6, 7], 4), "two that share a full block only"),
        Case(([[1, 2], [1, 2], [0], [7, 4, 8]], [7, 7, 4, 12], 4), "a fork and two others"),
        Case(([[1, 2], [1, 2], [1, 2], [6, 9], [6, 9]], [5, 5, 5, 7, 7], 4), "two families of forks"),
        Case(([[5]] * 3 + [[8]], [1, 1, 1, 3], 16), "blocks of 16"),
        Case(([[5], [5], [8]], [1, 1, 1], 1), "blocks of 1: every token is at a boundary"),
        Case(([], [], 16), "nobody runs"),
    ),
    mistakes=(
        Mistake(
            "no_copies",
            "It counts the sequences whose last block is full, and no copies. Where several write into one block, all "
            "but one of them need a block for a copy.",
            _no_copies,
        ),
        Mistake(
            "no_growth",
            "It counts the copies, and not the sequences whose last block is full: each of those takes a fresh one.",
            _no_growth,
        ),
        Mistake(
            "all_copy",
            "Of those who write into one block the last is alone, once the others have left: it writes in place. Of "
            "four, three copy.",
            _all_copy,
            hint=2,
        ),
        Mistake(
            "one_copy",
            "It counts one copy for each shared block, however many write into it. Of four, three copy.",
            _one_copy,
            hint=2,
        ),
        Mistake(
            "copies_full_ones",
            "It counts a copy for a shared last block that is full. Nobody writes into it any more: each takes a fresh "
            "block instead.",
            _copies_full_ones,
        ),
        Mistake(
            "all_shared",
            "It counts every shared block. Only the block that is written into is copied, the last one; the full ones "
            "before it stay shared.",
            _all_shared,
        ),
        Mistake(
            "a_step_early",
            "It counts the sequences that fill their block with this token. A fresh block is taken by a token that has "
            "no slot: the one after.",
            _early,
            hint=2,
        ),
    ),
    tried=("sequences with room and without", "forks of two, three and four", "boundaries", "two families"),
)

EXERCISES = (
    Exercise("ForkableTable", "6.1", "Fork, and copy on write", forkable_table, slot="BlockTable"),
    Exercise("write_token", "6.2", "Write one token", examine_write_token),
    Exercise("beam_step", "6.3", "A step of beam search", examine_beam_step),
    Exercise("SafeCounts", "6.4", "A race, and how to mend it", safe_counts),
    Exercise("blocks_for_step", "6.5", "How many blocks will the step take?", blocks_for_step, stretch=True),
)
