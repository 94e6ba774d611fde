"""Checks of chapter 03's functions: slots, growth, waste, and the array of tables that a kernel gets."""

from collections.abc import Sequence
from typing import Any

from pagedkv_lab.course.checks.arrays import ArrayCheck
from pagedkv_lab.course.checks.functions import Case, FunctionCheck, Mistake
from pagedkv_lab.sizing import blocks_for

# 3.2 slot_mapping


def reference_slot_mapping(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> list[int]:
    """The slots of positions start .. start + num_tokens - 1, in order."""
    return [block_table[p // block_size] * block_size + p % block_size for p in range(start, start + num_tokens)]


slot_mapping = ArrayCheck(
    name="slot_mapping",
    parameters=("block_table", "start", "num_tokens", "block_size"),
    reference=reference_slot_mapping,
    cases=(
        Case(([3], 0, 1, 2), "the first token of all"),
        Case(([3, 1], 0, 2, 2), "a whole block"),
        Case(([3, 1], 0, 4, 2), "two blocks, and the second lies before the first"),
        Case(([3, 1], 1, 1, 2), "one decode step, in the middle of a block"),
        Case(([3, 1], 2, 1, 2), "one decode step, at the boundary"),
        Case(([3, 1, 6], 1, 4, 2), "begins and ends in the middle of a block"),
        Case(([3, 1, 6], 3, 3, 2), "a block of the table that isn't written"),
        Case(([3, 1], 2, 0, 2), "no tokens: nothing to write"),
        Case(([4], 0, 3, 4), "the last block is not full"),
        Case(([9, 2, 5], 5, 7, 4)),
        Case(([7, 3, 0], 37, 1, 16), "the lesson's position 37"),
        Case(([11, 2, 30, 7], 10, 50, 16)),
        Case(([6, 0, 9, 3, 5], 0, 5, 1), "blocks of one token"),
    ),
    mistakes=(
        Mistake(
            "ignores_table",
            "The slots are the positions: as if the sequence lay in the pool in one piece, from slot 0 on. Which block "
            "it is stands in the table.",
            lambda table, start, n, size: range(start, start + n),
        ),
        Mistake(
            "contiguous",
            "It finds the first slot and counts on from there. At the end of the block the next token is somewhere "
            "else: look up each position's block.",
            lambda table, start, n, size: (
                [table[start // size] * size + start % size + i for i in range(n)] if start // size < len(table) else []
            ),
        ),
        Mistake(
            "starts_at_zero",
            "It begins at position 0, whatever `start` says. A decode step writes one token, far from the beginning.",
            lambda table, start, n, size: reference_slot_mapping(table, 0, n, size),
        ),
        Mistake(
            "num_tokens_as_end",
            "It takes `num_tokens` for the last position. It is how many: the positions are `start` to "
            "`start + num_tokens - 1`.",
            lambda table, start, n, size: reference_slot_mapping(table, start, max(0, n - start), size),
            hint=2,
        ),
        Mistake(
            "one_too_few",
            "One token is missing. `range(a, b)` and `np.arange(a, b)` leave out b, so b is `start + num_tokens`.",
            lambda table, start, n, size: reference_slot_mapping(table, start, max(0, n - 1), size),
            hint=2,
        ),
        Mistake(
            "one_too_many",
            "It gives one slot too many. `range(a, b)` leaves out b, so b is `start + num_tokens`.",
            lambda table, start, n, size: reference_slot_mapping(table, start, n + 1, size),
            hint=2,
        ),
        Mistake(
            "no_offset",
            "All tokens of a block get the block's first slot, and each overwrites the one before it. Add the offset.",
            lambda table, start, n, size: [table[p // size] * size for p in range(start, start + n)],
            hint=2,
        ),
        Mistake(
            "block_number",
            "It gives blocks, not slots. A slot is block × block_size + offset.",
            lambda table, start, n, size: [table[p // size] for p in range(start, start + n)],
            hint=2,
        ),
        Mistake(
            "no_block_size",
            "It adds block and offset. Block b begins at slot b × block_size.",
            lambda table, start, n, size: [table[p // size] + p % size for p in range(start, start + n)],
            hint=2,
        ),
        Mistake(
            "swapped",
            "It has // and % the wrong way round: position // block_size is the logical block, position % block_size "
            "the place in it.",
            lambda table, start, n, size: [table[p % size] * size + p // size for p in range(start, start + n)],
            hint=2,
        ),
        Mistake(
            "offset_from_start",
            "It counts the offset from `start`. The offset is the position's: where `start` is in the middle of a "
            "block, the first token's offset is not 0.",
            (
                lambda table, start, n, size: [table[(start + i) // size] * size + i % size for i in range(n)],
                lambda table, start, n, size: [table[start // size + i // size] * size + i % size for i in range(n)],
            ),
            hint=2,
        ),
        Mistake(
            "block_from_start",
            "It looks up blocks from the beginning of the table. The logical block is the position's: "
            "`(start + i) // block_size`.",
            lambda table, start, n, size: [table[i // size] * size + (start + i) % size for i in range(n)],
            hint=2,
        ),
        Mistake(
            "whole_blocks",
            "It gives all slots of the blocks, written or not. Cut out those of `start` to `start + num_tokens - 1`.",
            lambda table, start, n, size: [
                table[i] * size + offset
                for i in range(start // size, blocks_for(start + n, size))
                for offset in range(size)
            ],
            hint=2,
        ),
    ),
    tried=("whole blocks", "both ends in the middle of a block", "one decode step", "no tokens", "scattered blocks"),
    what="slots",
)

# 3.3 blocks_to_append


def reference_blocks_to_append(num_tokens: int, num_new_tokens: int, block_size: int) -> int:
    """Blocks that a sequence lacks for its next tokens; what it has lies in as few blocks as will do."""
    return blocks_for(num_tokens + num_new_tokens, block_size) - blocks_for(num_tokens, block_size)


blocks_to_append = FunctionCheck(
    name="blocks_to_append",
    parameters=("num_tokens", "num_new_tokens", "block_size"),
    reference=reference_blocks_to_append,
    cases=(
        Case((0, 1, 4), "the first token of all"),
        Case((1, 1, 4), "there is room in the block"),
        Case((3, 1, 4), "the token that fills the block"),
        Case((4, 1, 4), "the block is full, and one more token comes"),
        Case((5, 1, 4)),
        Case((0, 4, 4), "a prompt of exactly one block"),
        Case((0, 9, 4), "a prompt of two blocks and a token"),
        Case((3, 2, 4), "one token fits, the other doesn't"),
        Case((4, 4, 4), "a full block, and another block's worth"),
        Case((4, 9, 4)),
        Case((6, 6, 4)),
        Case((2, 0, 4), "nothing to write"),
        Case((8, 0, 4), "nothing to write, and the block is full"),
        Case((1, 2, 8), "more room than tokens"),
        Case((3, 5, 1), "blocks of one token"),
        Case((32, 1, 16)),
        Case((31, 1, 16)),
        Case((38, 512, 16), "a chunk of a long prompt"),
    ),
    mistakes=(
        Mistake(
            "too_early",
            "It takes a block as soon as the last one is full, before anybody needs it. The request may end here. Take "
            "it when a token has no place.",
            lambda n, new, size: (n + new) // size - n // size,
            hint=2,
        ),
        Mistake(
            "new_tokens_alone",
            "It forgets the room in the last block: the first new tokens fill that up.",
            lambda n, new, size: blocks_for(new, size),
        ),
        Mistake(
            "in_total",
            "It counts all blocks of the sequence. Those that it has already need not be appended.",
            lambda n, new, size: blocks_for(n + new, size),
        ),
        Mistake(
            "at_most_one",
            "It appends one block at most. That is enough for decode; a prompt brings many tokens at once.",
            (
                lambda n, new, size: int(n % size == 0 and new > 0),
                lambda n, new, size: int(n % size == 0),
                lambda n, new, size: int(blocks_for(n + new, size) > blocks_for(n, size)),
                lambda n, new, size: int(n % size + new > size),
            ),
            hint=2,
        ),
        Mistake(
            "full_block_has_room",
            "It takes a full last block for an empty one: `block_size - num_tokens % block_size` is block_size there, "
            "and should be 0.",
            (
                lambda n, new, size: max(0, -(-(new - (size - n % size)) // size)),
                lambda n, new, size: -(-(new - (size - n % size)) // size),
            ),
            hint=2,
        ),
        Mistake(
            "floor",
            "It rounds down. A token that is left over needs a block, however empty that block stays.",
            (
                lambda n, new, size: new // size,
                lambda n, new, size: (n % size + new) // size,
                lambda n, new, size: max(0, new - -n % size) // size,
            ),
        ),
        Mistake(
            "always_one_more",
            "It adds a block where the tokens end exactly at a boundary.",
            (
                lambda n, new, size: (n + new) // size + 1 - blocks_for(n, size),
                lambda n, new, size: new // size + 1,
            ),
            hint=2,
        ),
    ),
    tried=("one decode step at each place of a block", "prompts", "chunks", "no tokens"),
)  # fmt: skip

# 3.4 internal_waste


def reference_internal_waste(lengths: Sequence[int], block_size: int) -> int:
    """Slots that are reserved and hold no token, over all sequences."""
    return sum(blocks_for(length, block_size) * block_size - length for length in lengths)


internal_waste = FunctionCheck(
    name="internal_waste",
    parameters=("lengths", "block_size"),
    reference=reference_internal_waste,
    cases=(
        Case(([1], 4), "one token, three slots empty"),
        Case(([3], 4)),
        Case(([4], 4), "a full block wastes nothing"),
        Case(([5], 4)),
        Case(([3, 6], 4), "each sequence has a last block of its own"),
        Case(([6, 9, 4], 4)),
        Case(([], 4), "no sequences"),
        Case(([0, 2], 4), "a sequence without tokens has no block"),
        Case(([17], 16), "the article's 17 tokens"),
        Case(([17] * 20, 16)),
        Case(([7, 1, 3], 1), "blocks of one token waste nothing"),
        Case(([300] * 16, 16)),
        Case(([12, 700, 33, 2048, 1], 64)),
    ),
    mistakes=(
        Mistake(
            "full_block",
            "It counts a whole empty block where the last one is exactly full. There is no rest then: 0.",
            (
                lambda lengths, size: sum(size - n % size for n in lengths),
                lambda lengths, size: sum((n // size + 1) * size - n for n in lengths),
            ),
            hint=2,
        ),
        Mistake(
            "remainder",
            "It counts the filled slots of each last block. The empty ones are wanted: what is left of the block.",
            lambda lengths, size: sum(n % size for n in lengths),
        ),
        Mistake(
            "rounds_the_sum",
            "It adds the lengths first and rounds once. Two sequences never share a partly filled block, so look at "
            "each sequence's last block.",
            lambda lengths, size: -sum(lengths) % size,
        ),
        Mistake(
            "reserved",
            "It counts all slots that are reserved. Subtract those that hold a token.",
            lambda lengths, size: sum(blocks_for(n, size) * size for n in lengths),
        ),
        Mistake(
            "at_most_a_block",
            "It counts the most that a sequence can waste, block_size - 1. Count what these waste.",
            lambda lengths, size: (size - 1) * len(lengths),
        ),
        Mistake(
            "counts_blocks",
            "It counts partly filled blocks. Count the empty slots in them.",
            lambda lengths, size: sum(n % size > 0 for n in lengths),
        ),
        Mistake(
            "at_least_one",
            "A sequence of 0 tokens has no block, so it wastes nothing.",
            lambda lengths, size: sum(max(1, blocks_for(n, size)) * size - n for n in lengths),
            hint=2,
        ),
        Mistake(
            "first_only",
            "It looks at one sequence only. A `return` inside the loop, perhaps?",
            (
                lambda lengths, size: -lengths[0] % size if lengths else 0,
                lambda lengths, size: -lengths[-1] % size if lengths else 0,
            ),
            hint=2,
        ),
        Mistake(
            "wrong_sign",
            "It subtracts the wrong way round: slots that are reserved minus tokens, not tokens minus slots.",
            lambda lengths, size: -reference_internal_waste(lengths, size),
            hint=2,
        ),
    ),
    tried=("full and partly filled last blocks", "several sequences", "none", "empty ones"),
)  # fmt: skip

# 3.5 padded_tables


def reference_padded_tables(tables: Sequence[Sequence[int]], pad: int = 0) -> list[list[int]]:
    """One row a table, filled up to the longest with `pad`."""
    longest = max(map(len, tables))
    return [[*table, *[pad] * (longest - len(table))] for table in tables]


def _pads_wrongly(pad_of: Any) -> Any:
    return lambda tables, pad: reference_padded_tables(tables, pad_of(tables))


padded_tables = ArrayCheck(
    name="padded_tables",
    parameters=("tables", "pad"),
    reference=reference_padded_tables,
    cases=(
        Case(([[3]], 0), "one table of one block"),
        Case(([[3, 1]], 0)),
        Case(([[3], [5]], 0), "two tables of the same length: no padding"),
        Case(([[3, 1], [5]], 0), "the second is shorter"),
        Case(([[5], [3, 1]], 0), "the first is shorter"),
        Case(([[5], [3, 1], [7, 2, 4]], 0)),
        Case(([[5], [3, 1]], -1), "another padding"),
        Case(([[], [3, 1]], 9), "a sequence that has no block yet"),
        Case(([[2, 4, 6], [8], [1, 3]], -1)),
        Case(([list(range(40, 8, -1)), [7] * 2, [0]], 0)),
    ),
    mistakes=(
        Mistake(
            "pads_left",
            "It pads on the left. Logical block 0 belongs in column 0: a kernel reads column position // block_size.",
            lambda tables, pad: [[*[pad] * (max(map(len, tables)) - len(t)), *t] for t in tables],
        ),
        Mistake(
            "cut",
            "It cuts every table to the shortest one. The longer sequences lose their last blocks.",
            lambda tables, pad: [t[: min(map(len, tables))] for t in tables],
        ),
        Mistake(
            "ignores_pad",
            "It doesn't pad with `pad`.",
            (_pads_wrongly(lambda tables: 0), _pads_wrongly(lambda tables: -1)),
            hint=2,
        ),
        Mistake(
            "repeats_last",
            "It fills up with the table's own last block. Pad with `pad`.",
            lambda tables, pad: [[*t, *[t[-1] if t else pad] * (max(map(len, tables)) - len(t))] for t in tables],
            hint=2,
        ),
        Mistake(
            "transposed",
            "It has a column for each sequence. Make it a row: a kernel's program reads the row of its sequence.",
            lambda tables, pad: list(map(list, zip(*reference_padded_tables(tables, pad), strict=True))),
        ),
    ),
    tried=("tables of one length and of several", "other paddings", "a sequence without blocks"),
    dims=2,
    dtype="int32",
    what="rows",
)  # fmt: skip
