"""The check of exercise 7.1: attention of one query, one head, over a sequence that lies in blocks.

Knows what comes back for which table. Does not know how the tokens are gathered. Imports torch, so import it late.
"""

import random
from typing import Any

from pagedkv_lab.course.checks.attention_mistakes import known
from pagedkv_lab.course.checks.attention_scenes import Scene, make_scene
from pagedkv_lab.course.checks.report import Report
from pagedkv_lab.course.checks.tensors import Example, Mistake, TensorCheck, numbers
from pagedkv_lab.sizing import blocks_for

#: Of the known mistakes, those that one query of one head can make, and the hint that helps.
HINTS = {
    "no_scale": 2, "divides_by_scale": 2, "ignores_table": 1, "whole_blocks": 2, "full_blocks_only": 2,
    "drops_newest": 2, "first_block_only": 2, "keys_for_values": 2, "no_largest": 3, "not_divided": 2,
    "mean_of_blocks": 2, "zeros_count": 3, "ignores_offset": 1,
}  # fmt: skip
TRIED = ("one block and several", "full and partly filled ones", "scattered tables", "large scores", "NaN all around")


def examine(function: Any, draw: random.Random) -> Report:
    """Check an implementation of `gather_attention(query, key_pool, value_pool, table, context_len, scale)`."""
    mistakes = [Mistake(m.code, m.message, _of_one_row(m.answers), m.hint) for m in known(HINTS)]
    check = TensorCheck("gather_attention", mistakes)
    scenes = [
        make_scene(draw, "a full block", [(2, 1)], block_size=2, dim=2),
        make_scene(draw, "a full block and one token", [(3, 1)], block_size=2, dim=2),
        make_scene(draw, "one token", [(1, 1)], block_size=2, dim=2),
        make_scene(draw, "a partly filled block", [(3, 1)], dim=2),
        make_scene(draw, "two full blocks", [(8, 1)]),
        make_scene(draw, "three blocks, the last one partly filled", [(9, 1)]),
        make_scene(draw, "another scale than D ** -0.5", [(6, 1)], scale=1.5),
        make_scene(draw, "all scores about 300", [(7, 1)], loud=300.0),
        make_scene(draw, "all scores about -300", [(7, 1)], loud=-300.0),
        make_scene(draw, "a longer sequence", [(draw.randint(40, 60), 1)], block_size=8, dim=16),
    ]

    def run() -> None:
        check.must_be_callable(function)
        check.must_be_right(function, [_example(scene) for scene in scenes])
        check.must_not_read(
            function,
            [_example(scene.poisoned()) for scene in scenes],
            "times_zero",
            "It computes with what lies in the block behind the sequence's last token. A weight of 0 doesn't help "
            "where that is NaN: 0 × NaN is NaN. Cut it off before.",
            hint=3,
        )

    return check.report(run, TRIED)


def _of_one_row(answers: Any) -> Any:
    ways = answers if isinstance(answers, tuple) else (answers,)
    return tuple(lambda scene, way=way: way(scene)[0, 0] for way in ways)


def _example(scene: Scene) -> Example:
    context_len = scene.context_lens[0]
    table = scene.block_tables[0, : blocks_for(context_len, scene.block_size)].tolist()

    def arguments() -> tuple[Any, ...]:
        pools = (scene.key_pool[:, :, 0].clone(), scene.value_pool[:, :, 0].clone())
        return (scene.query[0, 0].clone(), *pools, list(table), context_len, scene.scale)

    call = (
        f"# block_size {scene.block_size}, query {numbers(scene.query)}\n"
        f"gather_attention(query, key_pool, value_pool, table={table}, context_len={context_len}, "
        f"scale={scene.scale:.4g})"
    )
    names = {0: "query", 1: "key_pool", 2: "value_pool"}
    return Example(scene.label, call, scene, arguments, scene.answer()[0, 0], names=names)
