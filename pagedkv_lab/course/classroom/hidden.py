"""Hidden tests: the check of an exercise on cases that nobody has seen.

    hidden_test(7312, kv_bytes_per_token=kv_bytes_per_token)

What computes its answers is right on these too. What looks them up, in a table of the check's own cases, is not.
The number decides which cases are drawn: the same for everybody in a class, and unknown until the work is graded.

Knows how checks draw their cases. Does not know nbgrader.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

from pagedkv_lab.course import checks
from pagedkv_lab.course.checks.functions import Case, FunctionCheck
from pagedkv_lab.course.checks.registry import find
from pagedkv_lab.course.checks.report import CheckFailed, Report
from pagedkv_lab.measure.records import RequestRecord

#: How many fresh cases of a plain function are tried.
FRESH_CASES = 40


def hidden_test(seed: int, **implementations: Any) -> None:
    """Say nothing where all `implementations` (exercise=object) are right. Raises CheckFailed."""
    for name, implementation in implementations.items():
        report = examine_afresh(name, implementation, seed)
        if not report.passed:
            raise CheckFailed(report, f"`{name}` is not right on cases that its check doesn't show.")


def examine_afresh(name: str, implementation: Any, seed: int) -> Report:
    """What the check of the exercise `name` finds on cases drawn by `seed`. Raises UnknownExercise."""
    examine = find(name).examine
    if isinstance(examine, FunctionCheck) and name in {*_INDEPENDENT, *_TOGETHER}:
        examine = replace(examine, cases=fresh_cases(examine, random.Random(seed)))
    with _other_draws(seed):
        return examine(implementation)


def fresh_cases(check: FunctionCheck, draw: random.Random) -> tuple[Case, ...]:
    """Cases that are not among the check's, small ones first.

    Of `_INDEPENDENT` exercises each argument is as in one of the check's cases, in other company: every value is one
    that the check's author found sensible in its place. Where arguments only make sense together, `_TOGETHER` draws.
    """
    known = [case.args for case in check.cases]
    together = _TOGETHER.get(check.name)
    fresh: list[tuple[Any, ...]] = []
    for _ in range(50 * FRESH_CASES):
        if together:
            args = together(draw)
        else:
            args = tuple(draw.choice(known)[place] for place in range(len(check.parameters)))
        if args not in known and args not in fresh:
            fresh.append(args)
        if len(fresh) == FRESH_CASES:
            break
    return tuple(Case(args) for args in sorted(fresh, key=lambda args: len(repr(args))))


def _config(draw: random.Random) -> tuple[Any, ...]:
    kv_heads, queries_each, head_dim = draw.randint(1, 8), draw.choice([1, 2, 4, 7]), draw.choice([8, 64, 80, 128])
    heads = kv_heads * queries_each
    config = {"num_hidden_layers": draw.randint(1, 48), "num_attention_heads": heads, "hidden_size": heads * head_dim}
    if queries_each > 1 or draw.random() < 0.5:
        config["num_key_value_heads"] = kv_heads
    if draw.random() < 0.4:
        config["head_dim"] = draw.choice([None, head_dim, 2 * head_dim])
    return config, draw.choice([1, 2, 4])


def _slots(draw: random.Random) -> tuple[Any, ...]:
    block_size, table = draw.choice([1, 2, 4, 8, 16]), draw.sample(range(64), draw.randint(1, 6))
    start = draw.randrange(len(table) * block_size)
    return table, start, draw.randint(0, len(table) * block_size - start), block_size


def _tables(draw: random.Random) -> tuple[Any, ...]:
    tables = [draw.sample(range(64), draw.randint(0, 5)) for _ in range(draw.randint(0, 4))]
    return [*tables, draw.sample(range(64), 3)], draw.choice([0, -1, 9])


def _step(draw: random.Random) -> tuple[Any, ...]:
    """Families of forks: the members of one have the same tokens, and have written nothing since."""
    block_size, unused = draw.choice([1, 2, 4, 8]), iter(draw.sample(range(64), 64))
    tables, num_tokens = [], []
    for _ in range(draw.randint(1, 4)):
        tokens, members = draw.randint(1, 3 * block_size), draw.randint(1, 4)
        tables += [[next(unused) for _ in range(-(-tokens // block_size))]] * members
        num_tokens += [tokens] * members
    return tables, num_tokens, block_size


def _held(draw: random.Random) -> tuple[Any, ...]:
    """Requests that share some blocks, and one that waits now and then. Whoever shares a block may fill it less."""
    block_size, unused = draw.choice([1, 2, 4, 16]), iter(draw.sample(range(64), 64))
    prefix = [next(unused) for _ in range(draw.randint(0, 2))]
    tables, num_tokens = [], []
    for _ in range(draw.randint(1, 4)):
        table = [*prefix, *(next(unused) for _ in range(draw.randint(0, 3)))]
        tables.append(table)
        num_tokens.append(draw.randint(0, len(table) * block_size))
    return tables, num_tokens, block_size


def _records(draw: random.Random) -> tuple[Any, ...]:
    """Requests that come and go in quarters of a second."""
    found = []
    for _ in range(draw.randint(1, 5)):
        arrival = draw.randint(0, 40) / 4
        finish = arrival + draw.randint(1, 24) / 4
        found.append(RequestRecord(arrival, finish, draw.randint(1, 600), draw.randint(1, 64)))
    return (found,)


#: Exercises whose arguments make sense in any company. Listed, so that a right answer never meets a case without sense.
_INDEPENDENT = {
    "blocks_for", "kv_bytes_per_token", "contiguous_bytes", "paged_bytes", "num_blocks_that_fit", "best_block_size",
    "blocks_to_append", "internal_waste",
}  # fmt: skip

#: Arguments of exercises whose arguments depend on one another.
_TOGETHER: dict[str, Callable[[random.Random], tuple[Any, ...]]] = {
    "kv_bytes_from_config": _config,
    "slot_mapping": _slots,
    "padded_tables": _tables,
    "blocks_for_step": _step,
    "utilization": _held,
    "tokens_per_second": _records,
}


@contextmanager
def _other_draws(seed: int) -> Iterator[None]:
    """While it lasts, the random lives in the checks are other ones.

    A check draws from `random.Random(0)`, so that it says the same every time. Here that 0 is mixed with `seed`.
    """
    other = ModuleType("random")
    vars(other).update(vars(random))
    other.Random = lambda number=0: random.Random(f"{seed} {number}")  # type: ignore[attr-defined]
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{checks.__name__}.")]
    drawing = [module for module in modules if getattr(module, "random", None) is random]
    for module in drawing:
        module.random = other  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in drawing:
            module.random = random  # type: ignore[attr-defined]
