"""The check of exercise 7.3: the engine's attention, over a ragged batch of sequences in prefill and decode.

Knows what comes back for which batch. Does not know how it is computed. Imports torch, so import it late.
"""

import random
from typing import Any

import torch

from pagedkv_lab.course.checks.attention_mistakes import known
from pagedkv_lab.course.checks.attention_scenes import Scene, make_scene
from pagedkv_lab.course.checks.report import Report
from pagedkv_lab.course.checks.tensors import Example, TensorCheck

#: The known mistakes, and the hint that helps.
HINTS = {
    "no_scale": 3, "divides_by_scale": 3, "ignores_table": 2, "another_row": 2, "whole_blocks": 2,
    "full_blocks_only": 2, "last_block_only": 2, "first_block_only": 2, "masks_by_block": 2, "mask_too_narrow": 3,
    "mask_too_wide": 3, "drops_newest": 2, "not_causal": 1, "positions_from_zero": 2, "counts_queries_twice": 2,
    "wrong_queries": 1, "gqa_interleaved": 2, "one_kv_head": 2, "keys_for_values": 3, "no_largest": 3,
    "not_divided": 3, "wrong_axis": 3, "forgets_to_rescale": 3, "mean_of_blocks": 3, "zeros_count": 2,
    "ignores_offset": 2,
}  # fmt: skip
TRIED = (
    "decode and prefill", "chunks", "several sequences of different lengths", "GQA", "scattered tables",
    "NaN all around", "large scores", "float16",
)  # fmt: skip


def scenes(draw: random.Random) -> list[Scene]:
    """From one token to a full step."""
    lengths = [(draw.randint(9, 14), 1), (draw.randint(5, 8), 4), (draw.randint(2, 4), 1), (7, 7)]
    return [
        make_scene(draw, "one token of one sequence", [(1, 1)], block_size=2, dim=2),
        make_scene(draw, "decode in a partly filled block", [(3, 1)], dim=2),
        make_scene(draw, "decode over three blocks", [(9, 1)]),
        make_scene(draw, "another scale than D ** -0.5", [(6, 1)], scale=1.5),
        make_scene(draw, "a prompt: as many queries as tokens", [(3, 3)], dim=2),
        make_scene(draw, "a prompt of more than one block", [(6, 6)]),
        make_scene(draw, "a chunk: tokens before it are in the cache already", [(7, 2)]),
        make_scene(draw, "two sequences in decode", [(5, 1), (3, 1)]),
        make_scene(draw, "a prompt and a chunk", [(3, 3), (6, 2)]),
        make_scene(draw, "4 query heads and 2 KV heads", [(3, 1)], num_kv_heads=2, group=2),
        make_scene(draw, "6 query heads and 2 KV heads, in prefill", [(5, 4)], num_kv_heads=2, group=3),
        make_scene(draw, "all scores about 300", [(7, 2)], loud=300.0),
        make_scene(draw, "all scores about -300", [(7, 2)], loud=-300.0),
        make_scene(draw, "a full step", lengths, num_kv_heads=2, group=2, dim=8),
        make_scene(draw, "blocks of 16", [(37, 5), (16, 1)], block_size=16, num_kv_heads=3, group=3, dim=16),
    ]


def examine(function: Any, draw: random.Random) -> Report:
    """Check an implementation of `paged_attention`, with the arguments of `attention.reference` up to `scale`."""
    check = TensorCheck("paged_attention", known(HINTS))
    tried = scenes(draw)
    half = make_scene(draw, "in float16", [(6, 2), (3, 1)], num_kv_heads=2, group=2, dim=8, dtype=torch.float16)

    def run() -> None:
        check.must_be_callable(function)
        check.must_be_right(function, [_example(scene) for scene in tried])
        check.must_not_read(
            function,
            [_example(scene.poisoned()) for scene in tried],
            "reads_past",
            "It computes with slots that hold no token of the sequence. They may hold NaN, and a weight of 0 doesn't "
            "help then: 0 × NaN is NaN. Take only the slots of positions below the context's length out of the pool.",
            hint=2,
        )
        check.must_be_right(function, [_example(half)])

    return check.report(run, TRIED)


def _example(scene: Scene) -> Example:
    def arguments() -> tuple[Any, ...]:
        tensors = (scene.query, scene.key_pool, scene.value_pool, scene.block_tables)
        return (*(tensor.clone() for tensor in tensors), list(scene.context_lens), list(scene.query_lens))

    arguments_in_words = "query, key_pool, value_pool, block_tables, context_lens, query_lens"
    return Example(
        scene.label,
        f"{scene.head()}\npaged_attention({arguments_in_words}, scale={scene.scale:.4g})",
        scene,
        arguments,
        scene.answer(),
        options={"scale": scene.scale},
        names={0: "query", 1: "key_pool", 2: "value_pool", 3: "block_tables"},
        dtype=scene.query.dtype,
        place=lambda index: f"{scene.row(index[0])}, query head {index[1]}",
    )
