"""Attention with one thing wrong: the mistakes that the checks of chapter 07 know by name.

`attend` is attention with every decision in a place of its own; a mistake changes one of them.

Knows mistakes and how to make them. Does not know whose they are. Imports torch, so import it late.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from pagedkv_lab.course.checks.attention_scenes import Scene
from pagedkv_lab.course.checks.tensors import Mistake
from pagedkv_lab.sizing import blocks_for


def soft(scores: torch.Tensor, values: torch.Tensor, block_size: int) -> torch.Tensor:
    """scores: (H, queries, tokens); values: (tokens, H, D). Returns (queries, H, D)."""
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)


def attend(
    scene: Scene,
    *,
    table: Callable[[Scene, int], torch.Tensor] = lambda scene, s: scene.block_tables[s],
    length: Callable[[int, int, int], int] = lambda context, queries, block_size: context,
    slot: Callable[[torch.Tensor, int], torch.Tensor] = lambda position, block_size: position % block_size,
    kv_head: Callable[[int, Scene], int] = lambda head, scene: head // scene.group,
    scale: Callable[[torch.Tensor, float], torch.Tensor] = lambda scores, scale: scores * scale,
    query_position: Callable[[int, int], int] = lambda context, queries: context - queries,
    first_query: Callable[[int, int], int] = lambda start, s: start,
    visible: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = lambda key, query, block_size: key <= query,
    combine: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = soft,
    values_from: str = "value_pool",
) -> torch.Tensor:
    """Attention over a scene, in the dtype of the scene, with as many decisions as there are mistakes."""
    size, heads = scene.block_size, [kv_head(head, scene) for head in range(scene.query.shape[1])]
    outputs, start = [], 0
    for s, (context, queries) in enumerate(zip(scene.context_lens, scene.query_lens, strict=True)):
        first = first_query(start, s)
        q = scene.query[first : first + queries]  # (queries, Hq, D)
        start += queries
        position = torch.arange(length(context, queries, size))
        block = table(scene, s)[position // size].long()
        k = scene.key_pool[block, slot(position, size)][:, heads]  # (tokens, Hq, D)
        v = getattr(scene, values_from)[block, slot(position, size)][:, heads]
        scores = scale(torch.einsum("qhd,khd->hqk", q, k), scene.scale)
        of_query = query_position(context, queries) + torch.arange(queries)
        seen = visible(position[None, :], of_query[:, None], size)
        outputs.append(combine(scores.masked_fill(~seen, float("-inf")), v, size))
    return torch.cat(outputs)


# Ways to go from scores to an output


def _no_largest(scores: torch.Tensor, values: torch.Tensor, block_size: int) -> torch.Tensor:
    weights = scores.exp()
    return torch.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdim=True), values)


def _not_divided(scores: torch.Tensor, values: torch.Tensor, block_size: int) -> torch.Tensor:
    return torch.einsum("hqk,khd->qhd", (scores - scores.amax(-1, keepdim=True)).exp(), values)


def _axis(axis: int) -> Callable[..., torch.Tensor]:
    return lambda scores, values, block_size: torch.einsum("hqk,khd->qhd", scores.softmax(axis), values)


def _block_by_block(
    scores: torch.Tensor,
    values: torch.Tensor,
    block_size: int,
    *,
    sum_factor: bool = True,
    weighted_factor: bool = True,
    begin: float = float("-inf"),
) -> torch.Tensor:
    """The online softmax, perhaps without a factor, or with another beginning."""
    heads, queries, tokens = scores.shape
    largest = torch.full((heads, queries), begin)
    total = torch.zeros(heads, queries)
    weighted = torch.zeros(queries, heads, values.shape[-1])
    for at in range(0, tokens, block_size):
        s, v = scores[..., at : at + block_size].float(), values[at : at + block_size].float()
        larger = torch.maximum(largest, s.amax(-1))
        factor, weights = (largest - larger).exp(), (s - larger[..., None]).exp()
        total = total * (factor if sum_factor else 1) + weights.sum(-1)
        weighted = weighted * (factor.T[..., None] if weighted_factor else 1)
        weighted = weighted + torch.einsum("hqk,khd->qhd", weights, v)
        largest = larger
    return weighted / total.T[..., None]


def _mean_of_blocks(scores: torch.Tensor, values: torch.Tensor, block_size: int) -> torch.Tensor:
    starts = range(0, scores.shape[-1], block_size)
    parts = [soft(scores[..., at : at + block_size], values[at : at + block_size], block_size) for at in starts]
    return torch.stack(parts).mean(0)


def _zeros_count(scores: torch.Tensor, values: torch.Tensor, block_size: int) -> torch.Tensor:
    """Of the last block's rest, keys and values are 0, and so is the score: it should be -inf."""
    rest = -scores.shape[-1] % block_size
    scores = torch.cat([scores, scores.new_zeros(*scores.shape[:2], rest)], -1)
    return soft(scores, torch.cat([values, values.new_zeros(rest, *values.shape[1:])]), block_size)


def _first_block(scores: torch.Tensor, values: torch.Tensor, block_size: int) -> torch.Tensor:
    return soft(scores[..., :block_size], values[:block_size], block_size)


def _in_halves(scene: Scene) -> torch.Tensor:
    """Whole blocks attend, then what is left over: the rest alone, as if it were everything."""
    return attend(scene, combine=lambda s, v, size: soft(s[..., (s.shape[-1] - 1) // size * size :],
                                                         v[(s.shape[-1] - 1) // size * size :], size))  # fmt: skip


def _logical(scene: Scene, s: int) -> torch.Tensor:
    return torch.arange(scene.block_tables.shape[1])


MISTAKES = (
    Mistake(
        "no_scale",
        "It doesn't multiply the scores by `scale`. Long keys make large scores, and softmax then looks at one token "
        "only.",
        partial(attend, scale=lambda scores, scale: scores),
    ),
    Mistake(
        "divides_by_scale",
        "It divides the scores by `scale`, which is 1 / √D already. Multiply.",
        partial(attend, scale=lambda scores, scale: scores / scale),
    ),
    Mistake(
        "ignores_table",
        "It reads the pool from block 0 on: a logical block is taken for a physical one. Where logical block i lies, "
        "the table says.",
        partial(attend, table=_logical),
    ),
    Mistake(
        "another_row",
        "It reads the table of another sequence: each sequence has a row of `block_tables` of its own.",
        (
            partial(attend, table=lambda scene, s: scene.block_tables[0]),
            partial(attend, table=lambda scene, s: scene.block_tables[-1]),
            partial(attend, table=lambda scene, s: scene.block_tables[s - 1]),
        ),
    ),
    Mistake(
        "whole_blocks",
        "It attends to all slots of the last block. Only those below the context's length hold tokens of this "
        "sequence; what is in the others may be anybody's.",
        partial(
            attend,
            length=lambda context, queries, size: blocks_for(context, size) * size,
            visible=lambda key, query, size: key // size <= query // size,
        ),
        hint=1,
    ),
    Mistake(
        "full_blocks_only",
        "It leaves out the last block where that isn't full. Its tokens are the newest, the query's own among them. "
        "Round the number of blocks up.",
        partial(attend, length=lambda context, queries, size: context // size * size),
    ),
    Mistake(
        "last_block_only",
        "Its result is that of the last block alone: what the blocks before it have added is lost.",
        _in_halves,
    ),
    Mistake(
        "first_block_only",
        "It reads the sequence's first block only. Go through all blocks that hold tokens.",
        partial(attend, combine=_first_block),
    ),
    Mistake(
        "masks_by_block",
        "It compares blocks where positions are to be compared: inside a block, a query must not see the tokens "
        "behind it either.",
        partial(attend, visible=lambda key, query, size: key // size <= query // size),
    ),
    Mistake(
        "mask_too_narrow",
        "Its mask is off by one: a query sees the token at its own position, too.",
        partial(attend, visible=lambda key, query, size: key < query),
    ),
    Mistake(
        "mask_too_wide",
        "Its mask is off by one: a query must not see the token right behind it.",
        partial(attend, visible=lambda key, query, size: key <= query + 1),
    ),
    Mistake(
        "drops_newest",
        "It leaves out the newest token, whose query this is. A sequence of n tokens has those at 0 to n − 1, and all "
        "count.",
        partial(attend, length=lambda context, queries, size: context - 1),
    ),
    Mistake(
        "not_causal",
        "Its queries see the tokens behind them. In prefill there are several queries, and each has a position: what "
        "comes later is hidden from it.",
        partial(attend, visible=lambda key, query, size: key >= 0),
        hint=1,
    ),
    Mistake(
        "positions_from_zero",
        "It takes the first query for position 0. Queries are the last tokens of the context: with 10 tokens and 3 "
        "queries they stand at 7, 8 and 9. (`is_causal=True` of torch's attention counts from 0 as well.)",
        partial(attend, query_position=lambda context, queries: 0),
    ),
    Mistake(
        "counts_queries_twice",
        "It takes the context for the tokens before the queries, and reads on behind its end. `context_lens` counts "
        "the queries' own tokens already.",
        partial(
            attend,
            length=lambda context, queries, size: context + queries,
            query_position=lambda context, queries: context,
        ),
    ),
    Mistake(
        "wrong_queries",
        "It takes the wrong rows of `query`: those of a sequence begin where the rows of the one before it end.",
        (
            partial(attend, first_query=lambda start, s: 0),
            partial(attend, first_query=lambda start, s: s),
        ),
    ),
    Mistake(
        "gqa_interleaved",
        "Query head h reads KV head h % Hkv here. Heads are grouped: it reads head h // group, so that neighbours "
        "share one. (`repeat_interleave` repeats in that order, `repeat` does not.)",
        partial(attend, kv_head=lambda head, scene: head % scene.key_pool.shape[2]),
    ),
    Mistake(
        "one_kv_head",
        "All its query heads read the same KV head. There are several: query head h reads head h // group.",
        partial(attend, kv_head=lambda head, scene: 0),
    ),
    Mistake(
        "keys_for_values",
        "It sums up keys. The weights come from the keys, and what they weigh are the values.",
        partial(attend, values_from="key_pool"),
    ),
    Mistake(
        "no_largest",
        "Its exp overflows, or all of it becomes 0: exp(300) is infinite in float32, exp(−300) is 0. Subtract the "
        "largest score from all of them first; the fraction stays the same.",
        (partial(attend, combine=_no_largest), partial(attend, combine=partial(_block_by_block, begin=0.0))),
    ),
    Mistake(
        "not_divided",
        "It doesn't divide by the sum of the weights, so they don't add up to 1.",
        partial(attend, combine=_not_divided),
    ),
    Mistake(
        "wrong_axis",
        "Its softmax runs along the wrong axis: the weights of one query and head over its **tokens** add up to 1.",
        (partial(attend, combine=_axis(0)), partial(attend, combine=_axis(1))),
    ),
    Mistake(
        "forgets_to_rescale",
        "When a larger score turns up, what was summed up before must shrink: multiply both sums by "
        "exp(old largest − new largest).",
        (
            partial(attend, combine=partial(_block_by_block, sum_factor=False, weighted_factor=False)),
            partial(attend, combine=partial(_block_by_block, sum_factor=False)),
            partial(attend, combine=partial(_block_by_block, weighted_factor=False)),
        ),
    ),
    Mistake(
        "mean_of_blocks",
        "It takes the mean of what each block's own softmax gives. A block with larger scores counts more, and one "
        "that is half empty counts less.",
        partial(attend, combine=_mean_of_blocks),
        hint=1,
    ),
    Mistake(
        "zeros_count",
        "Behind the context the keys are loaded as 0, and their score is 0: that is a weight like any other. Set those "
        "scores to −∞.",
        partial(attend, combine=_zeros_count),
    ),
    Mistake(
        "ignores_offset",
        "It reads one slot of each block again and again. Token i of a block lies at offset i.",
        partial(attend, slot=lambda position, size: position * 0),
    ),
)  # fmt: skip


def known(hints: Mapping[str, int]) -> list[Mistake]:
    """The mistakes with these codes, each with the number of the exercise's hint that helps."""
    by_code = {mistake.code: mistake for mistake in MISTAKES}
    return [Mistake(code, by_code[code].message, by_code[code].answers, hint) for code, hint in hints.items()]
