"""Checks of chapter 00: one small function, to see how a check works."""

from pagedkv_lab import sizing
from pagedkv_lab.course.checks.functions import Case, FunctionCheck, Mistake
from pagedkv_lab.course.checks.registry import Exercise

blocks_for = FunctionCheck(
    name="blocks_for",
    parameters=("num_tokens", "block_size"),
    reference=sizing.blocks_for,
    cases=(
        Case((1, 1)),
        Case((1, 4), "one token still needs a block"),
        Case((4, 4), "exactly one full block"),
        Case((5, 4), "one token more than a full block"),
        Case((0, 4), "no tokens, no blocks"),
        Case((8, 4)),
        Case((17, 16)),
        Case((16, 16)),
        Case((300, 16)),
        Case((8192, 16)),
        Case((8191, 32)),
        Case((100_000_001, 100_000_000), "one token more than a large block"),
    ),
    mistakes=(
        Mistake(
            "floor",
            "It rounds down. The tokens left over after the full blocks need a block too, a partly filled one.",
            lambda tokens, size: tokens // size,
        ),
        Mistake(
            "always_one_more",
            "It adds a block even where the last one is exactly full.",
            lambda tokens, size: tokens // size + 1,
            hint=2,
        ),
        Mistake(
            "rounds_to_nearest",
            "It rounds to the nearest number of blocks. A single token left over already needs one.",
            lambda tokens, size: round(tokens / size),
            hint=2,
        ),
        Mistake(
            "at_least_one",
            "No tokens need no block at all: 0 is a possible answer.",
            lambda tokens, size: max(1, -(-tokens // size)),
            hint=2,
        ),
        Mistake(
            "slots",
            "It counts slots (blocks times block_size). Return the number of blocks.",
            lambda tokens, size: -(-tokens // size) * size,
        ),
        Mistake(
            "swapped",
            "It divides the wrong way round: num_tokens by block_size, not block_size by num_tokens.",
            (
                lambda tokens, size: size // tokens,
                lambda tokens, size: -(-size // tokens),
                lambda tokens, size: -(-size // max(1, tokens)),
            ),
        ),
    ),
    tried=("a full last block", "a partly filled one", "one token", "no tokens"),
)

EXERCISES = (Exercise("blocks_for", "0.1", "Blocks for a number of tokens", blocks_for),)
