"""The check of exercise 7.5: the attention over all tokens, from that over each split's.

Knows what comes back for which splits. Does not know how it is computed. Imports torch, so import it late.
"""

import random
from typing import Any

import torch

from pagedkv_lab.course.checks.report import Report
from pagedkv_lab.course.checks.tensors import Example, Mistake, TensorCheck, numbers

Splits = tuple[torch.Tensor, torch.Tensor]  # outputs (splits, H, D), lses (splits, H)

TRIED = ("one split and several", "several heads", "large log-sum-exps", "empty splits", "a row of empty ones")


def _weighted(outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.einsum("sh,shd->hd", weights, outputs)


def _right(splits: Splits) -> torch.Tensor:
    outputs, lses = (part.double() for part in splits)
    return _weighted(outputs, lses.softmax(0).nan_to_num(0.0))


def _divided(splits: Splits, weights: torch.Tensor) -> torch.Tensor:
    return _weighted(splits[0], weights / weights.sum(0))


def _largest(splits: Splits) -> torch.Tensor:
    outputs, lses = splits
    return outputs[lses.argmax(0), torch.arange(outputs.shape[1])]


MISTAKES = (
    Mistake(
        "mean_of_splits",
        "It takes the mean. A split whose tokens have larger scores counts more: its weight is its part of the sum "
        "over all exponentials.",
        (
            lambda splits: splits[0].mean(0),
            lambda splits: _divided(splits, (splits[1] > float("-inf")).float()),
        ),
        1,
    ),
    Mistake(
        "not_divided",
        "Its weights don't add up to 1: divide by their sum.",
        (
            lambda splits: _weighted(splits[0], (splits[1] - splits[1].amax(0)).exp()),
            lambda splits: _weighted(splits[0], (splits[1] - splits[1].amax(0)).nan_to_num(float("-inf")).exp()),
            lambda splits: splits[0].sum(0),
        ),
    ),
    Mistake(
        "no_largest",
        "Its exp overflows, or all of it becomes 0: exp(1000) is infinite in float32, exp(−1000) is 0. Subtract the "
        "largest log-sum-exp of the head first.",
        (
            lambda splits: _divided(splits, splits[1].exp()),
            lambda splits: _divided(splits, splits[1].exp()).nan_to_num(0.0),
        ),
    ),
    Mistake(
        "logarithms_as_weights",
        "It weighs with the logarithms themselves. A log-sum-exp of 2 is e times as much as one of 1, not twice.",
        (
            lambda splits: _divided(splits, splits[1]),
            lambda splits: _weighted(splits[0], splits[1]),
        ),
        1,
    ),
    Mistake(
        "base_two",
        "It takes 2 to the power of the log-sum-exps. They are natural logarithms here: exp.",
        (
            lambda splits: _divided(splits, (splits[1] - splits[1].amax(0)).exp2()),
            lambda splits: _divided(splits, (splits[1] - splits[1].amax(0)).exp2()).nan_to_num(0.0),
        ),
    ),
    Mistake(
        "wrong_axis",
        "Its weights add up to 1 over the heads. For each head, they must over the splits: dimension 0.",
        (
            lambda splits: _weighted(splits[0], splits[1].softmax(1)),
            lambda splits: _weighted(splits[0], splits[1].softmax(1).nan_to_num(0.0)),
        ),
    ),
    Mistake(
        "one_weight_for_all_heads",
        "It gives a split one weight for all heads. Each head has scores of its own, and so its own weights.",
        lambda splits: _weighted(splits[0], splits[1].logsumexp(1).softmax(0)[:, None].expand_as(splits[1])),
    ),
    Mistake(
        "largest_only",
        "It takes the output of the split with the largest log-sum-exp. The others count as well, by their part.",
        _largest,
        1,
    ),
    Mistake(
        "empty_row_is_nan",
        "Where no split of a head has a token, its result is NaN: −∞ − (−∞) on the way, or 0 ÷ 0. It should be 0.",
        lambda splits: _weighted(splits[0], splits[1].softmax(0)),
    ),
)  # fmt: skip


def examine(function: Any, draw: random.Random) -> Report:
    """Check an implementation of `merge_splits(outputs, lses)`."""
    check = TensorCheck("merge_splits", MISTAKES)
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    empty = float("-inf")

    def splits(lses: list[list[float]], width: int = 2) -> Splits:
        each = torch.tensor(lses)
        outputs = torch.randn(*each.shape, width, generator=generator)
        return outputs.masked_fill(each[:, :, None] == empty, 0.0), each

    cases = {
        "one split": splits([[0.5]]),
        "two splits with different log-sum-exps": splits([[1.0], [2.5]]),
        "two heads": splits([[1.0, 3.0], [2.5, 0.0], [2.0, 0.5]]),
        "log-sum-exps about 1000": splits([[1000.0, 999.0], [1001.5, 1000.5]]),
        "log-sum-exps about -1000": splits([[-1000.0], [-1001.5]]),
        "a split without tokens": splits([[1.0, 0.0], [empty, empty], [2.0, -1.0]]),
        "a split with tokens behind an empty one": splits([[empty], [1.5]]),
        "many splits": splits([[draw.uniform(-3, 3) for _ in range(3)] for _ in range(8)], 4),
        "a head without any tokens": splits([[empty, 1.0], [empty, 2.0]]),
    }

    def run() -> None:
        check.must_be_callable(function)
        check.must_be_right(function, [_example(label, each) for label, each in cases.items()])

    return check.report(run, TRIED)


def _example(label: str, splits: Splits) -> Example:
    outputs, lses = splits
    shown = "\n       ".join(numbers(row) for row in lses[:3]) + ("\n       ..." if len(lses) > 3 else "")
    return Example(
        label,
        f"# outputs of shape {tuple(outputs.shape)}\n# lses {shown}\nmerge_splits(outputs, lses)".replace(
            "\n  ", "\n# "
        ),
        splits,
        lambda: (outputs.clone(), lses.clone()),
        _right(splits),
        names={0: "outputs", 1: "lses"},
        place=lambda index: f"head {index[0]}",
    )
