"""The check of exercise 7.4: a decode kernel in Triton, interpreted on a CPU or compiled for the GPU that is there.

Knows what comes back for which batch, and what is missing where no kernel can run at all. Does not know kernels.
Imports torch, so import it late.
"""

import functools
import random
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from pagedkv_lab.course.checks.attention_mistakes import known
from pagedkv_lab.course.checks.attention_scenes import Scene, make_scene
from pagedkv_lab.course.checks.guarded_memory import GuardedMemory, with_room
from pagedkv_lab.course.checks.probe import Wrong, say_unwritten
from pagedkv_lab.course.checks.report import NOT_CHECKED, UNWRITTEN, Diagnosis, Report
from pagedkv_lab.course.checks.tensors import Example, TensorCheck

NAME = "triton_decode"
#: Seconds that a call may take: the interpreter needs 4 ms for each block of each program, a compiler seconds for all.
SECONDS = 20.0
#: Of the known mistakes, those that a decode kernel can make, and the hint that helps.
HINTS = {
    "no_scale": 3, "divides_by_scale": 3, "ignores_table": 2, "another_row": 2, "whole_blocks": 2,
    "full_blocks_only": 2, "last_block_only": 1, "first_block_only": 1, "drops_newest": 2, "wrong_queries": 2,
    "gqa_interleaved": 2, "one_kv_head": 2, "keys_for_values": 3, "no_largest": 1, "not_divided": 1,
    "forgets_to_rescale": 1, "mean_of_blocks": 1, "zeros_count": 2, "ignores_offset": 3,
}  # fmt: skip
TRIED = (
    "one sequence and several", "full and partly filled blocks", "scattered tables", "GQA", "large scores",
    "NaN all around", "float16",
)  # fmt: skip

NO_TRITON = Diagnosis(
    NOT_CHECKED,
    "It was NOT checked, and it is no pass: Triton is not installed here, and without it no kernel runs. `pip install "
    "triton` gets it (Linux only, about 1 GB); then restart the kernel. No other exercise needs it: go on with the "
    "next one.",
)
NO_INTERPRETER = Diagnosis(
    NOT_CHECKED,
    "It was NOT checked, and it is no pass: there is no GPU here, and Triton was imported before it was told to "
    "interpret. Restart the kernel and run this notebook's first cell (it sets TRITON_INTERPRET) before all others.",
)


def examine(function: Any, draw: random.Random) -> Report:
    """Check an implementation of `triton_decode(query, key_pool, value_pool, block_tables, context_lens, scale)`."""
    check = KernelCheck(NAME, known(HINTS), SECONDS)
    tried = [
        make_scene(draw, "a full block and one token, one head", [(5, 1)]),
        make_scene(draw, "a partly filled block", [(3, 1)]),
        make_scene(draw, "two full blocks", [(8, 1)]),
        make_scene(draw, "three blocks, the last one partly filled", [(9, 1)]),
        make_scene(draw, "another scale than D ** -0.5", [(6, 1)], scale=1.5),
        make_scene(draw, "three sequences", [(5, 1), (3, 1), (draw.randint(6, 12), 1)]),
        make_scene(draw, "4 query heads and 2 KV heads", [(3, 1)], num_kv_heads=2, group=2),
        make_scene(draw, "all scores about 300", [(7, 1)], loud=300.0),
        make_scene(draw, "all scores about -300", [(7, 1)], loud=-300.0),
        make_scene(draw, "6 query heads and 2 KV heads, blocks of 8", [(11, 1), (2, 1)], block_size=8, num_kv_heads=2,
                   group=3, dim=16),
    ]  # fmt: skip
    half = make_scene(draw, "in float16", [(6, 1)], num_kv_heads=2, group=2, dim=8, dtype=torch.float16)

    def run() -> None:
        check.must_be_callable(function)
        device = _device(check, function, tried[0])
        check.must_be_right(function, [_example(scene, device) for scene in tried])
        check.must_not_read(
            function,
            [_example(tried[i].poisoned(), device) for i in (0, 5, 9)],
            "reads_past",
            "It computes with slots that hold no token of the sequence. They may hold NaN, and a weight of 0 doesn't "
            "help then: 0 × NaN is NaN. Give `tl.load` a mask, with `other=0.0`, for keys and for values.",
            hint=2,
        )
        check.must_be_right(function, [_example(half, device)])

    return check.report(run, TRIED)


def _device(check: TensorCheck, function: Any, scene: Scene) -> str:
    """Where kernels run. Raises Wrong where they can't run at all; an exercise that isn't begun is called so first."""
    if not find_spec("triton"):
        outcome = check.probe.call(lambda: _value_of(function, scene))
        if outcome.value is None:
            check.probe.fail(UNWRITTEN, say_unwritten(f"`{NAME}` returned None"), hint=1)
        raise Wrong(NO_TRITON)
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    if isinstance(tl.cdiv, InterpretedFunction):  # decided when Triton was imported
        return "cpu"
    if not torch.cuda.is_available():
        raise Wrong(NO_INTERPRETER)
    return "cuda"


def _value_of(function: Callable[..., Any], scene: Scene) -> Any:
    """What it returns without Triton: None, where nothing is written; else mostly an error."""
    try:
        return function(*_example(scene, "cpu").arguments())
    except Exception as error:
        return error


class KernelCheck(TensorCheck):
    """A TensorCheck in guarded memory: what a kernel writes beside its output, or leaves unwritten, is said first."""

    def answer(self, function: Callable[..., Any], example: Example) -> torch.Tensor:
        memory = GuardedMemory()

        @functools.wraps(function)
        def guarded(*args: Any) -> Any:
            with memory, np.errstate(all="ignore"):  # the interpreter computes with numpy
                try:
                    return function(*args)
                except Exception as error:  # the kernel's own error, not the interpreter's around it
                    if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
                        raise error.__cause__ from None
                    raise

        value = super().answer(guarded, example)
        if memory.written_beside:
            message = (
                "It writes beside the output. There is a row for each sequence and query head, and it begins at "
                "`(sequence * num_heads + head) * DIM`."
            )
            got = "numbers in front of the output, or behind it"
            self.probe.fail("writes_beside", message, call=example.call, got=got, hint=2)
        unwritten = value.isnan().all(-1)
        if unwritten.any() and not unwritten.all():  # new memory holds NaN here
            message = (
                "It leaves rows of the output unwritten. Launch a program for each sequence and query head: two axes."
            )
            sequence, head = unwritten.nonzero()[0].tolist()
            got = f"output[{sequence}, {head}] was never written"
            self.probe.fail(
                "rows_missing", message, call=example.call, expected="a number in every row", got=got, hint=1
            )
        return value


def _example(scene: Scene, device: str) -> Example:
    nobodys = int(scene.block_tables[0, -1])

    def arguments() -> tuple[Any, ...]:
        floats = (with_room(each, float("nan")) for each in (scene.query, scene.key_pool, scene.value_pool))
        lengths = torch.tensor(scene.context_lens, dtype=torch.int32)
        tensors = (*floats, with_room(scene.block_tables, nobodys), with_room(lengths, 0))
        return (*(tensor if device == "cpu" else _moved(tensor, device) for tensor in tensors), scene.scale)

    return Example(
        scene.label,
        f"{scene.head()}\n{NAME}(query, key_pool, value_pool, block_tables, context_lens, scale={scene.scale:.4g})",
        scene,
        arguments,
        scene.answer(),
        names={0: "query", 1: "key_pool", 2: "value_pool", 3: "block_tables", 4: "context_lens"},
        dtype=scene.query.dtype,
        place=lambda index: f"{scene.row(index[0])}, query head {index[1]}",
    )


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """On the device, with the room around it."""
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).to(device)
    start = tensor.storage_offset()
    return memory[start : start + tensor.numel()].view(tensor.shape)
