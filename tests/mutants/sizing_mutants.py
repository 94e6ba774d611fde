"""Wrong and right implementations of the exercises of chapters 00 and 01, with the diagnosis each wrong one must get.

Each is written as a learner would write it, apart from the check's own list of known mistakes.
"""

import math
from decimal import Decimal
from fractions import Fraction
from functools import partial, reduce

import numpy as np
from mutant_list import right, wrong

# Wrong in ways that have nothing to do with the exercise: each exercise gets each of them.

ARGUMENTS = {
    "blocks_for": 2,
    "kv_bytes_per_token": 4,
    "contiguous_bytes": 3,
    "paged_bytes": 3,
    "num_blocks_that_fit": 3,
    "best_block_size": 3,
    "kv_bytes_from_config": 2,
}


def _not_implemented(*args):
    raise NotImplementedError


def _raises(*args):
    return args[0] / 0 if isinstance(args[0], int) else args[0].no_such_attribute


def _exits(*args):
    raise SystemExit(1)


def _endless(*args):
    while True:
        pass


def _recursive(*args):
    return _recursive(*args)


def _missing_name(*args):
    return no_such_name * 2  # noqa: F821


def _prints(*args):
    print(42)


def _generator(*args):
    yield 1


async def _coroutine(*args):
    return 1


for _exercise in ARGUMENTS:
    for _name, _function, _diagnosis in (
        ("the stub", lambda *args: None, "unwritten"),
        ("an ellipsis", lambda *args: ..., "unwritten"),
        ("NotImplementedError", _not_implemented, "unwritten"),
        ("raises", _raises, "raises"),
        ("calls exit()", _exits, "raises"),
        ("an undefined name", _missing_name, "raises"),
        ("an endless loop", _endless, "endless"),
        ("an endless recursion", _recursive, "endless"),
        ("prints", _prints, "prints"),
        ("a text", lambda *args: "22 KiB", "wrong_type"),
        ("a list", lambda *args: [1], "wrong_type"),
        ("an array", lambda *args: np.array([1, 2]), "wrong_type"),
        ("a bool", lambda *args: True, "wrong_type"),
        ("half a byte", lambda *args: 0.5, "wrong_type"),
        ("infinity", lambda *args: math.inf, "wrong_type"),
        ("nan", lambda *args: float("nan"), "wrong_type"),
        ("a generator", _generator, "wrong_type"),
        ("a coroutine", _coroutine, "wrong_type"),
        ("a function", lambda *args: lambda: 1, "wrong_type"),
        ("no arguments", lambda: 1, "wrong_arguments"),
        ("not a function", 22_528, "not_a_function"),
        ("a large constant", lambda *args: 819_200_001, "constant"),
    ):
        if (_exercise, _name) != ("best_block_size", "a large constant"):
            wrong(_exercise, _diagnosis, _name, general=True)(_function)

# blocks_for

wrong("blocks_for", "floor", "rounds down")(lambda n, size: n // size)
wrong("blocks_for", "floor", "int of a quotient")(lambda n, size: int(n / size))
wrong("blocks_for", "always_one_more", "a block too many")(lambda n, size: 1 + n // size)
wrong("blocks_for", "rounds_to_nearest", "round")(lambda n, size: round(n / size))
wrong("blocks_for", "at_least_one", "at least one")(lambda n, size: max(1, math.ceil(n / size)))
wrong("blocks_for", "slots", "slots")(lambda n, size: math.ceil(n / size) * size)
wrong("blocks_for", "swapped", "swapped")(lambda n, size: math.ceil(size / max(n, 1)))
wrong("blocks_for", "swapped", "swapped, and no tokens divide by zero")(lambda n, size: math.ceil(size / n))
wrong("blocks_for", "wrong_type", "not rounded")(lambda n, size: n / size)
wrong("blocks_for", "ignores_argument", "always 16")(lambda n, size: math.ceil(n / 16))


@wrong("blocks_for", "returns_none")  # noqa: RET503
def no_return_for_a_rest(n, size):
    if n % size == 0:
        return n // size


@wrong("blocks_for", "returns_none")  # noqa: RET503
def no_return_for_an_exact_fit(n, size):
    if n % size:
        return n // size + 1


@wrong("blocks_for", "endless")
def loop_that_stops_on_exact_fits_only(n, size):
    blocks = 0
    while n != 0:
        n -= size
        blocks += 1
    return blocks


# kv_bytes_per_token

KV = "kv_bytes_per_token"
wrong(KV, "no_factor_two", "keys only")(lambda L, h, d, b: L * h * d * b)
wrong(KV, "no_layers", "one layer")(lambda L, h, d, b: 2 * h * d * b)
wrong(KV, "no_heads", "one head")(lambda L, h, d, b: 2 * L * d * b)
wrong(KV, "no_head_dim", "one number")(lambda L, h, d, b: 2 * L * h * b)
wrong(KV, "counts_numbers", "numbers")(lambda L, h, d, b: 2 * L * h * d)
wrong(KV, "bits", "bits")(lambda L, h, d, b: 2 * L * h * d * b * 8)
wrong(KV, "bits", "bytes_per_number as bits")(lambda L, h, d, b: int(2 * L * h * d * b // 8))
wrong(KV, "whole_bytes_only", "int4 is nothing")(lambda L, h, d, b: 2 * L * h * d * int(b))
wrong(KV, "adds", "sum")(lambda L, h, d, b: int(2 * (L + h + d) * b))
wrong(KV, "constant_factor", "key and value twice")(lambda L, h, d, b: 2 * 2 * L * h * d * b)
wrong(KV, "constant_factor", "minus")(lambda L, h, d, b: -2 * L * h * d * b)
wrong(KV, "extra_factor", "layers squared")(lambda L, h, d, b: 2 * L * L * h * d * b)
wrong(KV, "constant", "the example")(lambda L, h, d, b: 22_528)
wrong(KV, "ignores_argument", "always float16")(lambda L, h, d, b: 2 * L * h * d * 2)
wrong(KV, "wrong_type", "KiB")(lambda L, h, d, b: 2 * L * h * d * b / 1024)
wrong(KV, "wrong_answer", "no cache in a single layer")(lambda L, h, d, b: 0 if L == 1 else 2 * L * h * d * b)
wrong(KV, "wrong_arguments", "three arguments")(lambda L, h, d: 2 * L * h * d * 2)


@wrong(KV, "hard_coded")
def the_examples_only(L, h, d, b):
    return {(22, 4, 64, 2): 22_528, (40, 40, 128, 2): 819_200}.get((L, h, d, b), 0)


# contiguous_bytes

wrong("contiguous_bytes", "one_request", "one request")(lambda n, longest, size: longest * size)
wrong("contiguous_bytes", "no_length", "one token")(lambda n, longest, size: n * size)
wrong("contiguous_bytes", "counts_tokens", "tokens")(lambda n, longest, size: n * longest)
wrong("contiguous_bytes", "two_again", "key and value again")(lambda n, longest, size: 2 * n * longest * size)
wrong("contiguous_bytes", "constant_factor", "fp16 again, thrice")(lambda n, longest, size: 6 * n * longest * size)
wrong("contiguous_bytes", "ignores_argument", "2048 built in")(lambda n, longest, size: n * 2048 * size)
wrong("contiguous_bytes", "wrong_type", "GiB")(lambda n, longest, size: n * longest * size / 2**30)
wrong("contiguous_bytes", "constant", "the example")(lambda n, longest, size: 26_843_545_600)
wrong("contiguous_bytes", "wrong_answer", "one request too many")(lambda n, longest, size: (n + 1) * longest * size)

# paged_bytes


def _up(n, size):
    return math.ceil(n / size)


PAGED = "paged_bytes"
wrong(PAGED, "floor", "rounds down")(lambda lengths, B, size: sum(n // B for n in lengths) * B * size)
wrong(PAGED, "always_one_more", "adds one")(lambda lengths, B, size: sum(n // B + 1 for n in lengths) * B * size)
wrong(PAGED, "no_block_size", "a block is a token")(lambda lengths, B, size: sum(_up(n, B) for n in lengths) * size)
wrong(PAGED, "counts_blocks", "blocks")(lambda lengths, B, size: sum(_up(n, B) for n in lengths))
wrong(PAGED, "counts_slots", "slots")(lambda lengths, B, size: sum(_up(n, B) * B for n in lengths))
wrong(PAGED, "no_blocks", "tokens")(lambda lengths, B, size: sum(lengths) * size)
wrong(PAGED, "rounds_the_sum", "one rounding")(lambda lengths, B, size: _up(sum(lengths), B) * B * size)
wrong(PAGED, "rounds_the_sum", "one rounding, down")(lambda lengths, B, size: sum(lengths) // B * B * size)
wrong(PAGED, "longest_for_all", "the longest")(
    lambda lengths, B, size: len(lengths) * _up(max(lengths, default=0), B) * B * size
)
wrong(PAGED, "one_block_each", "one block each")(lambda lengths, B, size: len(lengths) * B * size)
wrong(PAGED, "at_least_one", "empty ones count")(
    lambda lengths, B, size: sum(max(_up(n, B), 1) for n in lengths) * B * size
)
wrong(PAGED, "raises", "max of nothing")(
    lambda lengths, B, size: max(lengths) and sum(_up(n, B) for n in lengths) * B * size
)
wrong(PAGED, "ignores_argument", "16 built in")(lambda lengths, B, size: sum(_up(n, 16) for n in lengths) * 16 * size)


@wrong(PAGED, "first_only")
def returns_in_the_loop(lengths, block_size, bytes_per_token):
    for n in lengths:
        return _up(n, block_size) * block_size * bytes_per_token
    return 0


@wrong(PAGED, "mutates")
def pops(lengths, block_size, bytes_per_token):
    total = 0
    while lengths:
        total += _up(lengths.pop(), block_size)
    return total * block_size * bytes_per_token


@wrong(PAGED, "mutates")
def sorts_in_place(lengths, block_size, bytes_per_token):
    lengths.sort()
    return sum(_up(n, block_size) for n in lengths) * block_size * bytes_per_token


# num_blocks_that_fit

FIT = "num_blocks_that_fit"
wrong(FIT, "rounds_up", "rounds up")(lambda m, B, size: max(0, math.ceil(m / (B * size))))
wrong(FIT, "rounds_up", "rounds up, negative too")(lambda m, B, size: math.ceil(m / (B * size)))
wrong(FIT, "rounds_to_nearest", "round")(lambda m, B, size: max(0, round(m / (B * size))))
wrong(FIT, "negative", "negative, rounded down")(lambda m, B, size: m // (B * size))
wrong(FIT, "negative", "negative, cut")(lambda m, B, size: int(m / (B * size)))
wrong(FIT, "absolute", "absolute")(lambda m, B, size: abs(m) // (B * size))
wrong(FIT, "no_block_size", "tokens")(lambda m, B, size: m // size)
wrong(FIT, "no_bytes", "a block is its slots")(lambda m, B, size: max(0, m // B))
wrong(FIT, "precedence", "no parentheses")(lambda m, B, size: max(0, m // B * size))
wrong(FIT, "precedence", "no parentheses, turned round")(lambda m, B, size: m // size * B)
wrong(FIT, "always_one_more", "one too many")(lambda m, B, size: m // (B * size) + 1)
wrong(FIT, "wrong_type", "not rounded")(lambda m, B, size: m / (B * size))
wrong(FIT, "ignores_argument", "16 built in")(lambda m, B, size: max(0, m // (16 * size)))


@wrong(FIT, "endless")
def subtracts_until_exactly_empty(memory, block_size, bytes_per_token):
    blocks = 0
    while memory != 0:
        memory -= block_size * bytes_per_token
        blocks += 1
    return blocks


# best_block_size


def _waste(lengths, size):
    slots = sum(_up(n, size) for n in lengths) * size
    return 1 - sum(lengths) / slots if slots else 0


def _choose(lengths, sizes, limit, waste=_waste, pick=max, otherwise=min):
    good = [size for size in sizes if waste(lengths, size) <= limit]
    return pick(good) if good else otherwise(sizes)


BEST = "best_block_size"
wrong(BEST, "smallest_that_fits", "smallest")(partial(_choose, pick=min))
wrong(BEST, "least_waste", "least waste")(lambda lengths, sizes, limit: min(sizes, key=lambda s: _waste(lengths, s)))
wrong(BEST, "always_largest", "max")(lambda lengths, sizes, limit: max(sizes))
wrong(BEST, "always_smallest", "min")(lambda lengths, sizes, limit: min(sizes))
wrong(BEST, "first_in_order", "the first")(partial(_choose, pick=lambda good: good[0]))
wrong(BEST, "last_in_order", "the last")(partial(_choose, pick=lambda good: good[-1]))
wrong(BEST, "largest_if_none", "falls back on the largest")(partial(_choose, otherwise=max))
wrong(BEST, "limit_excluded", "less than")(partial(_choose, waste=lambda n, s: _waste(n, s) + 1e-9))
wrong(BEST, "share_of_tokens", "share of tokens")(
    partial(_choose, waste=lambda n, s: (sum(_up(k, s) for k in n) * s - sum(n)) / max(sum(n), 1))
)
wrong(BEST, "mean_of_shares", "mean")(
    partial(_choose, waste=lambda n, s: sum(_waste([k], s) for k in n) / max(len(n), 1))
)
wrong(BEST, "rounds_the_sum", "one rounding")(partial(_choose, waste=lambda n, s: _waste([sum(n)], s)))
wrong(BEST, "raises", "division by no slots")(
    lambda lengths, sizes, limit: _choose(
        lengths, sizes, limit, lambda n, s: 1 - sum(n) / (sum(_up(k, s) for k in n) * s)
    )
)
wrong(BEST, "not_a_candidate", "its index")(lambda lengths, sizes, limit: sizes.index(_choose(lengths, sizes, limit)))
wrong(BEST, "not_a_candidate", "a constant")(lambda lengths, sizes, limit: 819_200_001)


@wrong(BEST, "mutates")
def sorts_the_candidates(lengths, candidates, max_waste):
    candidates.sort(reverse=True)
    return next((size for size in candidates if _waste(lengths, size) <= max_waste), candidates[-1])


@wrong(BEST, "returns_none")  # noqa: RET503
def forgets_the_fallback(lengths, candidates, max_waste):
    for size in sorted(candidates, reverse=True):
        if _waste(lengths, size) <= max_waste:
            return size


# kv_bytes_from_config


def _read(config, b, kv=None, dim=None):
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads") or heads if kv is None else kv(config)
    dim = config.get("head_dim") or config["hidden_size"] // heads if dim is None else dim(config)
    return int(2 * config["num_hidden_layers"] * kv * dim * b)


CONFIG = "kv_bytes_from_config"
wrong(CONFIG, "query_heads", "query heads")(partial(_read, kv=lambda c: c["num_attention_heads"]))
wrong(CONFIG, "ignores_head_dim", "computes head_dim")(
    partial(_read, dim=lambda c: c["hidden_size"] // c["num_attention_heads"])
)
wrong(CONFIG, "head_dim_by_kv_heads", "by KV heads")(
    partial(
        _read,
        dim=lambda c: (
            c.get("head_dim") or c["hidden_size"] // (c.get("num_key_value_heads") or c["num_attention_heads"])
        ),
    )
)
wrong(CONFIG, "hidden_size", "hidden_size")(lambda c, b: int(2 * c["num_hidden_layers"] * c["hidden_size"] * b))
wrong(CONFIG, "no_factor_two", "keys only")(lambda c, b: _read(c, b) // 2)
wrong(CONFIG, "raises", "older configs")(partial(_read, kv=lambda c: c["num_key_value_heads"]))
wrong(CONFIG, "raises", "None in the config")(
    partial(_read, kv=lambda c: c.get("num_key_value_heads", c["num_attention_heads"]))
)
wrong(CONFIG, "constant_factor", "bits")(lambda c, b: _read(c, b) * 8)


@wrong(CONFIG, "mutates")
def fills_the_config_in(config, b):
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    return _read(config, b)


# Right, written differently

right("blocks_for", "ceil")(lambda n, size: math.ceil(n / size))
right("blocks_for", "minus minus")(lambda n, size: -(-n // size))
right("blocks_for", "divmod")(lambda n, size: divmod(n, size)[0] + (n % size > 0))
right("blocks_for", "numpy ceil, a float")(lambda n, size: np.ceil(n / size))
right("blocks_for", "range")(lambda n, size: len(range(0, n, size)))

right(KV, "a product")(lambda L, h, d, b: 2 * L * h * d * b)
right(KV, "floats")(lambda L, h, d, b: 2.0 * L * h * d * b)
right(KV, "Fraction")(lambda L, h, d, b: Fraction(b) * 2 * L * h * d)
right(KV, "Decimal")(lambda L, h, d, b: Decimal(b) * 2 * L * h * d)
right(KV, "math.prod")(lambda *sizes: math.prod(sizes, start=2))
right(KV, "numpy int64")(lambda *sizes: np.int64(2 * np.prod(sizes)))
right(KV, "a 0-d array")(lambda *sizes: np.array(2 * np.prod(sizes)))


@right(KV, "keywords with defaults")
def _kv(num_layers, num_kv_heads, head_dim, bytes_per_number=2, *, tensors=2):
    key = value = head_dim * bytes_per_number
    return int(sum(key + value for _ in range(num_layers * num_kv_heads))) if tensors == 2 else 0


class _Callable:
    def __call__(self, L, h, d, b):
        return round(L * (h * d * b + h * d * b))


right(KV, "a callable object")(_Callable())

right("contiguous_bytes", "a product")(lambda n, longest, size: n * longest * size)
right("contiguous_bytes", "a sum")(lambda n, longest, size: sum(longest * size for _ in range(n)))
right("contiguous_bytes", "reduce")(lambda *sizes: reduce(lambda a, b: a * b, sizes))
right("contiguous_bytes", "Fraction")(lambda n, longest, size: Fraction(n) * longest * size)

right(PAGED, "ceil")(lambda lengths, B, size: sum(math.ceil(n / B) for n in lengths) * B * size)
right(PAGED, "range")(lambda lengths, B, size: sum(len(range(0, n, B)) for n in lengths) * B * size)
right(PAGED, "numpy")(lambda lengths, B, size: (-(-np.array(lengths, dtype=np.int64) // B)).sum() * B * size)


@right(PAGED, "block by block")
def _block_by_block(lengths, block_size, bytes_per_token):
    blocks, lengths = 0, list(lengths)
    for length in lengths:
        while length > 0:
            length -= block_size
            blocks += 1
    return blocks * (block_size * bytes_per_token)


right(FIT, "clamped")(lambda m, B, size: max(0, m // (B * size)))
right(FIT, "clamped first")(lambda m, B, size: int(max(m, 0) / (B * size)))
right(FIT, "floor")(lambda m, B, size: math.floor(max(0, m / B / size)))
right(FIT, "if")(lambda m, B, size: 0 if m < 0 else divmod(m, B * size)[0])
right(FIT, "a float")(lambda m, B, size: max(0.0, np.floor(m / (B * size))))

right(BEST, "filter and max")(_choose)
right(BEST, "waste times slots")(
    partial(_choose, waste=lambda n, s: (s * sum(_up(k, s) for k in n) - sum(n)) / (s * sum(_up(k, s) for k in n) or 1))
)
right(BEST, "sorted copy")(
    lambda lengths, sizes, limit: next(
        (s for s in sorted(sizes, reverse=True) if _waste(lengths, s) <= limit), min(sizes)
    )
)
right(BEST, "used share")(
    lambda lengths, sizes, limit: max(
        sizes,
        key=lambda s: (1 - _waste(lengths, s) >= 1 - limit, s if 1 - _waste(lengths, s) >= 1 - limit else -s),
    )
)
right(BEST, "numpy")(
    lambda lengths, sizes, limit: np.int64(_choose(np.array(lengths, dtype=int), np.array(sizes), limit))
)

right(CONFIG, "get or")(_read)
right(CONFIG, "a float")(lambda c, b: float(_read(c, b)))


@right(CONFIG, "if None")
def _if_none(config, b):
    kv = config.get("num_key_value_heads")
    if kv is None:
        kv = config["num_attention_heads"]
    dim = config.get("head_dim")
    if dim is None:
        dim = config["hidden_size"] / config["num_attention_heads"]
    return 2 * config["num_hidden_layers"] * kv * dim * b


@right(CONFIG, "defaults merged")
def _merged(config, b):
    heads = config["num_attention_heads"]
    full = {"num_key_value_heads": heads, "head_dim": config["hidden_size"] // heads}
    full |= {key: value for key, value in config.items() if value is not None}
    return int(2 * b * full["num_hidden_layers"] * full["num_key_value_heads"] * full["head_dim"])
