"""The check of exercise 7.2: a softmax-weighted sum, a block at a time.

The blocks come in memory that is used again, as in a kernel: who keeps an earlier one keeps NaN.

Knows what comes back for which blocks. Does not know what is kept on the way. Imports torch, so import it late.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagedkv_lab.course.checks.report import Report
from pagedkv_lab.course.checks.tensors import Example, Mistake, TensorCheck, numbers

Blocks = list[tuple[torch.Tensor, torch.Tensor]]  # scores (n,), values (n, D)

TRIED = ("one block and many", "rising and falling scores", "scores of 1,000 and -1,000", "memory used again")


def _online(
    blocks: Blocks, *, factor: str = "both", begin: float = float("-inf"), turned: bool = False, own: bool = False
) -> torch.Tensor:
    """The right function, but for: what is multiplied by the factor, the first `largest`, the factor's sign.

    own: each block subtracts its own largest score, and nobody minds.
    """
    largest, total, weighted = torch.tensor(begin), torch.tensor(0.0), torch.tensor(0.0)
    for scores, values in blocks:
        larger = scores.max() if own else torch.maximum(largest, scores.max())
        shrink = torch.exp(largest - larger)
        if turned and shrink > 0:
            shrink = 1 / shrink
        weights = torch.exp(scores - larger)
        total = total * (shrink if factor in ("both", "sum") else 1) + weights.sum()
        weighted = weighted * (shrink if factor in ("both", "weighted") else 1) + weights @ values
        largest = larger
    return weighted / total


def _fixed(blocks: Blocks, largest: Any) -> torch.Tensor:
    """All weights against one and the same number."""
    weights = [(torch.exp(scores - largest), values) for scores, values in blocks]
    return sum(w @ v for w, v in weights) / sum(w.sum() for w, _ in weights)


def _divides_each_time(blocks: Blocks) -> torch.Tensor:
    largest, total, weighted = torch.tensor(float("-inf")), torch.tensor(0.0), torch.tensor(0.0)
    for scores, values in blocks:
        larger = torch.maximum(largest, scores.max())
        factor, weights = torch.exp(largest - larger), torch.exp(scores - larger)
        total = total * factor + weights.sum()
        weighted = (weighted * factor + weights @ values) / total
        largest = larger
    return weighted


def _not_divided(blocks: Blocks) -> torch.Tensor:
    scores, values = _in_one(blocks)
    return torch.exp(scores - scores.max()) @ values


def _mean(blocks: Blocks) -> torch.Tensor:
    return torch.stack([scores.softmax(0) @ values for scores, values in blocks]).mean(0)


def _sum(blocks: Blocks) -> torch.Tensor:
    return torch.stack([scores.softmax(0) @ values for scores, values in blocks]).sum(0)


def _last(blocks: Blocks) -> torch.Tensor:
    return blocks[-1][0].softmax(0) @ blocks[-1][1]


MISTAKES = (
    Mistake(
        "no_largest",
        "Its exp overflows, or all of it becomes 0: exp(1000) is infinite in float32, exp(−1000) is 0. Subtract the "
        "largest score first; the fraction stays the same.",
        lambda blocks: _fixed(blocks, 0.0),
        1,
    ),
    Mistake(
        "first_largest_only",
        "It subtracts the first block's largest score for ever. A later block may have larger ones: the largest is a "
        "running one.",
        lambda blocks: _fixed(blocks, blocks[0][0].max()),
    ),
    Mistake(
        "starts_at_zero",
        "Its largest score begins at 0. Where all scores are far below, every exp is 0, and so is their sum. Begin at "
        "−∞.",
        lambda blocks: _online(blocks, begin=0.0),
    ),
    Mistake(
        "forgets_to_rescale",
        "When a larger score turns up, what was summed up before must shrink: multiply both sums by "
        "exp(old largest − new largest).",
        (
            lambda blocks: _online(blocks, factor="none"),
            lambda blocks: _online(blocks, factor="none", own=True),
        ),
    ),
    Mistake(
        "rescales_one_sum",
        "It puts right one of the two sums only. The weights' sum and the weighted values must shrink by the same "
        "factor, or the fraction changes.",
        (lambda blocks: _online(blocks, factor="sum"), lambda blocks: _online(blocks, factor="weighted")),
    ),
    Mistake(
        "factor_upside_down",
        "Its factor grows where it should shrink: it is exp(old largest − new largest), at most 1.",
        lambda blocks: _online(blocks, turned=True),
        3,
    ),
    Mistake(
        "divides_each_time",
        "It divides in every block. Divide once, at the end: until then, the weighted sum and the sum of the weights "
        "belong together.",
        _divides_each_time,
    ),
    Mistake(
        "not_divided",
        "It doesn't divide by the sum of the weights, so they don't add up to 1.",
        _not_divided,
    ),
    Mistake(
        "mean_of_blocks",
        "It takes the mean (or the sum) of what each block's own softmax gives. A block with larger scores counts "
        "more.",
        (_mean, _sum),
        1,
    ),
    Mistake(
        "last_block_only",
        "Its result is that of the last block alone: what the blocks before it have added is lost.",
        _last,
    ),
)  # fmt: skip


def examine(function: Any, draw: random.Random) -> Report:
    """Check an implementation of `online_softmax(blocks)`."""
    check = TensorCheck("online_softmax", MISTAKES)
    generator = torch.Generator().manual_seed(draw.getrandbits(32))

    def blocks(levels: Sequence[float], sizes: Sequence[int] = (2, 2, 1), width: int = 2) -> Blocks:
        return [
            (level + torch.randn(sizes[i % len(sizes)], generator=generator),
             torch.randn(sizes[i % len(sizes)], width, generator=generator))
            for i, level in enumerate(levels)
        ]  # fmt: skip

    many = blocks([draw.uniform(-3, 3) for _ in range(64)], (4, 3), 8)
    cases = {
        "one block": blocks([0]),
        "two blocks, the second with smaller scores": blocks([2, -2]),
        "two blocks, the second with larger scores": blocks([-2, 2]),
        "blocks of different sizes": blocks([0, 1, -1, 2], (1, 3, 2), 3),
        "all scores about 1000": blocks([1000, 1001, 999]),
        "all scores about -1000": blocks([-1000, -1001, -999]),
        "scores that rise by 200 from block to block": blocks([-200, 0, 200]),
        "scores that fall by 200 from block to block": blocks([200, 0, -200]),
        "64 blocks": many,
    }

    def run() -> None:
        check.must_be_callable(function)
        check.must_be_right(function, [_example(label, each) for label, each in cases.items()])
        check.must_not_read(
            function,
            [_example(label, each, used_again=True) for label, each in cases.items()],
            "keeps_blocks",
            "It needs a block that is over. When it asks for the next one, the memory of the last one is used again "
            "(NaN is written over it). Take out of a block what you need while you have it: three numbers, no list.",
            hint=2,
        )
        example = _example("64 blocks", many, used_again=True)
        with _Largest() as seen:
            check.answer(function, example)
        if seen.numbers >= sum(values.numel() for _, values in many) // 2:
            check.probe.fail(
                "keeps_all",
                "It has copied all blocks into one tensor. That is exercise 7.1 again: what is kept here must not "
                "grow with the number of blocks.",
                call=example.call,
                expected="no tensor larger than a few blocks",
                got=f"a tensor of {seen.numbers:,} numbers",
                hint=2,
            )

    return check.report(run, TRIED)


class _Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operator(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


def _example(label: str, blocks: Blocks, used_again: bool = False) -> Example:
    shown = ", ".join(f"({numbers(s, 2)}, {list(v.shape)} values)" for s, v in blocks[:3])
    call = f"online_softmax(iter([{shown}{', ...' if len(blocks) > 3 else ''}]))"
    scores, values = _in_one(blocks)
    expected = scores.double().softmax(0) @ values.double()

    def arguments() -> tuple[Any, ...]:
        return (_in_one_memory(blocks) if used_again else iter([(s.clone(), v.clone()) for s, v in blocks]),)

    return Example(label, call, blocks, arguments, expected)


def _in_one(blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([scores for scores, _ in blocks]), torch.cat([values for _, values in blocks])


def _in_one_memory(blocks: Blocks) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The blocks one after the other, each in the memory of the last."""
    longest = max(blocks, key=lambda block: len(block[0]))
    memory = [torch.empty_like(part) for part in longest]
    for block in blocks:
        for part in memory:
            part.fill_(float("nan"))
        views = tuple(part[: len(block[0])] for part in memory)
        for view, part in zip(views, block, strict=True):
            view.copy_(part)
        yield views
    for part in memory:
        part.fill_(float("nan"))
