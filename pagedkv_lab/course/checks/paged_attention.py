"""Checks of chapter 07: attention over a paged cache.

One module an exercise: `gather_attention`, `online_softmax`, `batched_attention`, `triton_decode`, `merge_splits`.
`tensors` is what they share; `attention_scenes` makes pools, `attention_mistakes` knows what goes wrong.

They bring torch, so they are imported when they are needed. What is drawn is drawn from here.
"""

import random
from typing import Any

from pagedkv_lab.course.checks.registry import Exercise
from pagedkv_lab.course.checks.report import Report


def gather_attention(function: Any) -> Report:
    from pagedkv_lab.course.checks.gather_attention import examine

    return examine(function, random.Random(0))


def online_softmax(function: Any) -> Report:
    from pagedkv_lab.course.checks.online_softmax import examine

    return examine(function, random.Random(0))


def paged_attention(function: Any) -> Report:
    from pagedkv_lab.course.checks.batched_attention import examine

    return examine(function, random.Random(0))


def triton_decode(function: Any) -> Report:
    from pagedkv_lab.course.checks.triton_decode import examine

    return examine(function, random.Random(0))


def merge_splits(function: Any) -> Report:
    from pagedkv_lab.course.checks.merge_splits import examine

    return examine(function, random.Random(0))


EXERCISES = (
    Exercise("gather_attention", "7.1", "Gather, then attend", gather_attention),
    Exercise("online_softmax", "7.2", "Softmax, a block at a time", online_softmax),
    Exercise("paged_attention", "7.3", "The part of the engine", paged_attention, slot="paged_attention"),
    Exercise("triton_decode", "7.4", "A decode kernel in Triton", triton_decode),
    Exercise("merge_splits", "7.5", "Merge what splits have found", merge_splits, stretch=True),
)
