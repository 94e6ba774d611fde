"""Checks of chapter 01: how much memory a KV cache takes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pagedkv_lab import sizing
from pagedkv_lab.course.checks.functions import Case, FunctionCheck, Mistake
from pagedkv_lab.course.checks.registry import Exercise
from pagedkv_lab.sizing import GiB, MiB, blocks_for

LLAMA_2_13B, TINYLLAMA, SMOLLM2 = 819_200, 22_528, 46_080  # bytes a token; the last in float32

kv_bytes_per_token = FunctionCheck(
    name="kv_bytes_per_token",
    parameters=("num_layers", "num_kv_heads", "head_dim", "bytes_per_number"),
    reference=sizing.kv_bytes_per_token,
    cases=(
        Case((1, 1, 1, 1)),
        Case((3, 1, 1, 1)),
        Case((1, 5, 1, 1)),
        Case((1, 1, 7, 1)),
        Case((1, 1, 1, 2)),
        Case((2, 3, 5, 4)),
        Case((22, 4, 64, 2), "TinyLlama in float16"),
        Case((30, 3, 64, 4), "SmolLM2-135M in float32"),
        Case((40, 40, 128, 2), "Llama-2-13B in float16"),
        Case((32, 8, 128, 1), "Llama-3-8B with an int8 cache"),
        Case((32, 8, 128, 0.5), "Llama-3-8B with an int4 cache: two numbers share a byte"),
        Case((24, 1, 128, 2), "one KV head for all (MQA)"),
    ),
    mistakes=(
        Mistake(
            "no_factor_two",
            "It counts the keys or the values, not both. Each token leaves one key and one value.",
            lambda layers, heads, dim, size: math.ceil(layers * heads * dim * size),
        ),
        Mistake(
            "no_layers",
            "It counts one layer. Every layer keeps keys and values of its own.",
            lambda layers, heads, dim, size: math.ceil(2 * heads * dim * size),
        ),
        Mistake(
            "no_heads",
            "It counts one KV head. Every KV head keeps a key and a value of its own.",
            lambda layers, heads, dim, size: math.ceil(2 * layers * dim * size),
        ),
        Mistake(
            "no_head_dim",
            "It counts one number a head. A key has `head_dim` numbers, and so has a value.",
            lambda layers, heads, dim, size: math.ceil(2 * layers * heads * size),
        ),
        Mistake(
            "counts_numbers",
            "It counts numbers, not bytes: `bytes_per_number` is missing.",
            lambda layers, heads, dim, size: 2 * layers * heads * dim,
        ),
        Mistake(
            "bits",
            "It counts bits. `bytes_per_number` is in bytes already, so there is no 8 to multiply by.",
            lambda layers, heads, dim, size: math.ceil(16 * layers * heads * dim * size),
            hint=2,
        ),
        Mistake(
            "bits",
            "It divides by 8, as if `bytes_per_number` were bits. It is in bytes already.",
            lambda layers, heads, dim, size: math.ceil(2 * layers * heads * dim * size) // 8,
            hint=2,
        ),
        Mistake(
            "whole_bytes_only",
            "It rounds `bytes_per_number` down, and half a byte becomes none. Round the product, if anything.",
            lambda layers, heads, dim, size: 2 * layers * heads * dim * int(size),
            hint=2,
        ),
        Mistake(
            "adds",
            "It adds where it should multiply: each layer has all the heads, each head has all the numbers.",
            lambda layers, heads, dim, size: math.ceil(2 * (layers + heads + dim) * size),
        ),
    ),
    tried=("MHA", "GQA", "MQA", "float32 to int4", "four real models"),
)

contiguous_bytes = FunctionCheck(
    name="contiguous_bytes",
    parameters=("num_requests", "max_model_len", "bytes_per_token"),
    reference=sizing.contiguous_bytes,
    cases=(
        Case((1, 1, 1)),
        Case((3, 1, 1)),
        Case((1, 5, 1)),
        Case((1, 1, 7)),
        Case((2, 3, 5)),
        Case((0, 2048, LLAMA_2_13B), "no requests, nothing reserved"),
        Case((16, 2048, LLAMA_2_13B), "the article's 16 requests"),
        Case((8, 2048, TINYLLAMA)),
    ),
    mistakes=(
        Mistake(
            "one_request",
            "It reserves for one request. Each request gets a reservation of its own.",
            lambda requests, longest, size: longest * size,
        ),
        Mistake(
            "no_length",
            "It reserves one token a request. Each request reserves room for `max_model_len` tokens.",
            lambda requests, longest, size: requests * size,
        ),
        Mistake(
            "counts_tokens",
            "It counts tokens, not bytes: `bytes_per_token` is missing.",
            lambda requests, longest, size: requests * longest,
        ),
        Mistake(
            "two_again",
            "It doubles. Key and value are already in `bytes_per_token`.",
            lambda requests, longest, size: 2 * requests * longest * size,
            hint=2,
        ),
    ),
    tried=("one request", "many", "none"),
)

paged_bytes = FunctionCheck(
    name="paged_bytes",
    parameters=("lengths", "block_size", "bytes_per_token"),
    reference=sizing.paged_bytes,
    cases=(
        Case(([1], 1, 1)),
        Case(([1], 4, 1), "one token takes a whole block"),
        Case(([4], 4, 1), "exactly one full block"),
        Case(([5], 4, 1), "one token more than a full block"),
        Case(([3, 6], 4, 1), "each sequence has a last block of its own"),
        Case(([9, 5], 4, 1), "the longest sequence comes first"),
        Case(([5], 4, 3)),
        Case(([], 4, 1), "no sequences"),
        Case(([0, 2], 4, 1), "a sequence that has no tokens yet takes no block"),
        Case(([17, 17, 17], 16, 10)),
        Case(([300] * 16, 16, LLAMA_2_13B), "the article's 16 requests of 300 tokens"),
        Case(([12, 700, 33, 2048, 1], 16, TINYLLAMA)),
    ),
    mistakes=(
        Mistake(
            "floor",
            "It rounds down: the last, partly filled block of a sequence is missing.",
            lambda lengths, block, size: sum(n // block for n in lengths) * block * size,
        ),
        Mistake(
            "always_one_more",
            "It adds a block to every sequence, even where the last one is exactly full.",
            lambda lengths, block, size: sum(n // block + 1 for n in lengths) * block * size,
            hint=2,
        ),
        Mistake(
            "no_block_size",
            "It charges one token for each block. A block has room for `block_size` tokens, and takes that room.",
            lambda lengths, block, size: sum(blocks_for(n, block) for n in lengths) * size,
            hint=2,
        ),
        Mistake(
            "counts_blocks",
            "It counts blocks. Bytes are expected: blocks times `block_size` times `bytes_per_token`.",
            lambda lengths, block, size: sum(blocks_for(n, block) for n in lengths),
            hint=2,
        ),
        Mistake(
            "counts_slots",
            "It counts slots, not bytes: `bytes_per_token` is missing.",
            lambda lengths, block, size: sum(blocks_for(n, block) for n in lengths) * block,
            hint=2,
        ),
        Mistake(
            "no_blocks",
            "It counts tokens exactly, as if memory came token by token. It comes in whole blocks.",
            lambda lengths, block, size: sum(lengths) * size,
        ),
        Mistake(
            "rounds_the_sum",
            "It adds the lengths first and rounds once. Two sequences never share a partly filled block, so round "
            "for each sequence.",
            (
                lambda lengths, block, size: blocks_for(sum(lengths), block) * block * size,
                lambda lengths, block, size: sum(lengths) // block * block * size,
            ),
            hint=2,
        ),
        Mistake(
            "longest_for_all",
            "It gives every sequence the blocks of the longest one. That is pre-allocation again: each sequence "
            "takes only the blocks of its own length.",
            lambda lengths, block, size: len(lengths) * blocks_for(max(lengths, default=0), block) * block * size,
        ),
        Mistake(
            "one_block_each",
            "It gives every sequence one block. A sequence takes as many as its tokens fill.",
            lambda lengths, block, size: len(lengths) * block * size,
        ),
        Mistake(
            "first_only",
            "It looks at the first sequence only. A `return` inside the loop, perhaps?",
            lambda lengths, block, size: blocks_for(lengths[0], block) * block * size if lengths else 0,
            hint=2,
        ),
        Mistake(
            "at_least_one",
            "A sequence of 0 tokens takes no block: blocks come when the first token does.",
            lambda lengths, block, size: sum(max(1, blocks_for(n, block)) for n in lengths) * block * size,
            hint=2,
        ),
    ),
    tried=("full and partly filled last blocks", "several sequences", "none", "empty ones"),
)


def _clamped_or_not(blocks: Any) -> tuple[Any, Any]:
    """A wrong function, and the same one with the 0 for negative memory right."""
    return blocks, lambda *args: max(0, blocks(*args))


num_blocks_that_fit = FunctionCheck(
    name="num_blocks_that_fit",
    parameters=("memory_bytes", "block_size", "bytes_per_token"),
    reference=sizing.num_blocks_that_fit,
    cases=(
        Case((1, 1, 1)),
        Case((10, 1, 1)),
        Case((10, 5, 1)),
        Case((10, 1, 2)),
        Case((12, 2, 3), "exactly two blocks"),
        Case((11, 2, 3), "one byte short of two blocks"),
        Case((5, 2, 3), "less than one block"),
        Case((0, 16, SMOLLM2), "no memory"),
        Case((-1_000_000, 16, SMOLLM2), "the weights alone are too large: the rest is negative"),
        Case((64 * MiB, 16, SMOLLM2)),
        Case((10 * GiB, 16, LLAMA_2_13B)),
        Case((24 * 10**9, 32, TINYLLAMA)),
    ),
    mistakes=(
        Mistake(
            "rounds_up",
            "It rounds up, and the last block sticks out of the memory. Only whole blocks fit.",
            _clamped_or_not(lambda memory, block, size: -(-memory // (block * size))),
        ),
        Mistake(
            "rounds_to_nearest",
            "It rounds to the nearest number of blocks. Only whole blocks fit: round down.",
            _clamped_or_not(lambda memory, block, size: round(memory / (block * size))),
        ),
        Mistake(
            "negative",
            "It returns a negative number of blocks where memory is negative. Then none fits: 0.",
            (
                lambda memory, block, size: memory // (block * size),
                lambda memory, block, size: int(memory / (block * size)),
            ),
            hint=2,
        ),
        Mistake(
            "absolute",
            "It drops the minus sign. Where memory is negative, no block fits: 0.",
            lambda memory, block, size: abs(memory) // (block * size),
            hint=2,
        ),
        Mistake(
            "no_block_size",
            "It counts tokens that fit, not blocks: `block_size` is missing.",
            _clamped_or_not(lambda memory, block, size: memory // size),
        ),
        Mistake(
            "no_bytes",
            "It divides by `block_size` only. A block takes `block_size` times `bytes_per_token` bytes.",
            _clamped_or_not(lambda memory, block, size: memory // block),
        ),
        Mistake(
            "precedence",
            "It divides by one number and multiplies by the other: Python reads `a // b * c` as `(a // b) * c`. "
            "Put the product in parentheses.",
            (
                *_clamped_or_not(lambda memory, block, size: memory // block * size),
                *_clamped_or_not(lambda memory, block, size: memory // size * block),
            ),
            hint=3,
        ),
        Mistake(
            "always_one_more",
            "It adds one block too many. The rest of the division is too small for a whole block.",
            _clamped_or_not(lambda memory, block, size: memory // (block * size) + 1),
        ),
    ),
    tried=("an exact fit", "a byte too few", "no memory at all", "negative memory", "real pools"),
)


def reference_best_block_size(lengths: Sequence[int], candidates: Sequence[int], max_waste: float) -> int:
    """The largest candidate that wastes at most `max_waste` of the slots it reserves; the smallest if none does."""
    good = [size for size in candidates if _waste(lengths, size) <= max_waste]
    return max(good, default=min(candidates))


def _waste(lengths: Sequence[int], block_size: int) -> float:
    reserved = sum(blocks_for(n, block_size) for n in lengths) * block_size
    return 1 - sum(lengths) / reserved if reserved else 0.0


def _waste_per_token(lengths: Sequence[int], block_size: int) -> float:
    reserved = sum(blocks_for(n, block_size) for n in lengths) * block_size
    return (reserved - sum(lengths)) / max(1, sum(lengths))


def _mean_waste(lengths: Sequence[int], block_size: int) -> float:
    return sum(_waste([n], block_size) for n in lengths) / max(1, len(lengths))


def _first(sizes: Sequence[int], lengths: Sequence[int], max_waste: float) -> int:
    return next((size for size in sizes if _waste(lengths, size) <= max_waste), min(sizes))


def _good(lengths: Sequence[int], candidates: Sequence[int], max_waste: float, waste: Any = _waste) -> list[int]:
    return [size for size in candidates if waste(lengths, size) <= max_waste]


best_block_size = FunctionCheck(
    name="best_block_size",
    parameters=("lengths", "candidates", "max_waste"),
    reference=reference_best_block_size,
    # No case but the one that says so lies within rounding of the limit: how a share is computed can't decide.
    cases=(
        Case(([8], [4], 0.5), "one candidate"),
        Case(([8], [4, 8], 0.5), "both waste nothing: the larger one"),
        Case(([5], [4, 8], 0.3), "8 wastes 3 of 8 slots, 4 wastes 3 of 8 too: neither is good enough"),
        Case(([6], [2, 4, 8], 0.3), "2 wastes nothing, 4 and 8 waste 2 of 8 slots"),
        Case(([6], [2, 4, 8], 0.25), "2 of 8 slots is exactly the limit, and allowed"),
        Case(([6], [8, 2, 4], 0.1), "the candidates are in no order"),
        Case(([10], [4, 5, 8], 0.1), "the smallest wastes 2 of 12 slots, too many"),
        Case(([10], [4, 5, 6], 0.2), "5 wastes nothing, and 6 little enough"),
        Case(([9], [16, 8, 4], 0.1), "no candidate is good enough: the smallest"),
        Case(([30, 30], [4, 8, 16, 32], 0.0625), "2 of 32 slots is exactly the limit, and allowed"),
        Case(([3, 64], [4, 16, 32], 0.2), "the share is of all slots together"),
        Case(([65, 65], [16, 32, 64], 0.33), "wasted slots are a share of the slots reserved"),
        Case(([11], [4, 8, 12, 16], 0.1), "the second-largest wastes least"),
        Case(([], [8, 16], 0.1), "no sequences: nothing is wasted"),
        Case(([300] * 16, [8, 16, 32, 64], 0.05), "the article's 16 requests of 300 tokens"),
        Case(([300] * 16, [8, 16, 32, 64], 0.01)),
        Case(([17] * 20, [8, 16, 32], 0.3), "always 17 tokens"),
        Case(([12, 700, 33, 2048, 1], [128, 64, 32, 16], 0.06)),
    ),
    mistakes=(
        Mistake(
            "not_a_candidate",
            "It returned a number that is not among the candidates.",
            when=lambda args, got: got not in args[1],
            hint=2,
        ),
        Mistake(
            "smallest_that_fits",
            "It returns the smallest candidate that is good enough. The largest one is wanted: fewer blocks, and "
            "a shorter table, for waste that you allowed.",
            lambda lengths, sizes, limit: min(_good(lengths, sizes, limit), default=min(sizes)),
        ),
        Mistake(
            "least_waste",
            "It returns the candidate that wastes least. Any waste up to `max_waste` is allowed; among those, the "
            "largest candidate is wanted.",
            lambda lengths, sizes, limit: min(sizes, key=lambda size: _waste(lengths, size)),
        ),
        Mistake(
            "always_largest",
            "It always returns the largest candidate, whatever it wastes.",
            lambda lengths, sizes, limit: max(sizes),
        ),
        Mistake(
            "always_smallest",
            "It always returns the smallest candidate. The largest that is good enough is wanted.",
            lambda lengths, sizes, limit: min(sizes),
        ),
        Mistake(
            "limit_excluded",
            "It refuses a candidate that wastes exactly `max_waste`. At most `max_waste` is allowed: use `<=`.",
            lambda lengths, sizes, limit: max(
                (size for size in sizes if _waste(lengths, size) < limit), default=min(sizes)
            ),
            hint=2,
        ),
        Mistake(
            "first_in_order",
            "It takes the first candidate that is good enough. The candidates are in no order: look at all of them.",
            lambda lengths, sizes, limit: _first(sizes, lengths, limit),
            hint=2,
        ),
        Mistake(
            "last_in_order",
            "It takes the last candidate that is good enough. The candidates are in no order: take the largest.",
            lambda lengths, sizes, limit: _first(sizes[::-1], lengths, limit),
            hint=2,
        ),
        Mistake(
            "share_of_tokens",
            "It divides the wasted slots by the tokens. Divide them by the slots that are reserved.",
            lambda lengths, sizes, limit: max(_good(lengths, sizes, limit, _waste_per_token), default=min(sizes)),
            hint=2,
        ),
        Mistake(
            "mean_of_shares",
            "It averages the sequences' shares, so that a short sequence weighs as much as a long one. Count the "
            "wasted slots of all sequences together, and divide once.",
            lambda lengths, sizes, limit: max(_good(lengths, sizes, limit, _mean_waste), default=min(sizes)),
            hint=2,
        ),
        Mistake(
            "rounds_the_sum",
            "It adds the lengths first and rounds once. Every sequence has a last block of its own.",
            lambda lengths, sizes, limit: max(
                _good(lengths, sizes, limit, lambda n, size: _waste([sum(n)], size)), default=min(sizes)
            ),
            hint=2,
        ),
        Mistake(
            "largest_if_none",
            "It falls back on the largest candidate where none is good enough. The smallest one wastes least then.",
            lambda lengths, sizes, limit: max(_good(lengths, sizes, limit), default=max(sizes)),
            hint=3,
        ),
    ),
    tried=("waste exactly at the limit", "no candidate good enough", "candidates in no order", "no sequences"),
)


def reference_kv_bytes_from_config(config: Mapping[str, Any], bytes_per_number: float) -> int:
    """Bytes a token of a model, from its Hugging Face config."""
    shape = sizing.ModelShape.from_config(config, "case")
    return sizing.kv_bytes_per_token(
        shape.num_hidden_layers, shape.num_key_value_heads, shape.head_dim, bytes_per_number
    )


def _kv_heads(config: Mapping[str, Any]) -> int:
    return config.get("num_key_value_heads") or config["num_attention_heads"]


def _head_dim(config: Mapping[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _from_config(kv_heads: Any = _kv_heads, head_dim: Any = _head_dim) -> Any:
    """A wrong reading of the config: other heads, or another head_dim."""

    def answer(config: Mapping[str, Any], size: float) -> int:
        return sizing.kv_bytes_per_token(config["num_hidden_layers"], kv_heads(config), head_dim(config), size)

    return answer


def _config(layers: int, heads: int, hidden: int, **more: Any) -> dict[str, Any]:
    return {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden, **more}


kv_bytes_from_config = FunctionCheck(
    name="kv_bytes_from_config",
    parameters=("config", "bytes_per_number"),
    reference=reference_kv_bytes_from_config,
    cases=(
        Case((_config(1, 2, 8, num_key_value_heads=2), 1), "as many KV heads as query heads (MHA)"),
        Case((_config(1, 4, 8, num_key_value_heads=2), 1), "two query heads share a KV head (GQA)"),
        Case((_config(1, 4, 8, num_key_value_heads=1), 1), "all query heads share one KV head (MQA)"),
        Case((_config(1, 2, 8), 1), "an older config, without num_key_value_heads: it is MHA"),
        Case((_config(1, 2, 8, num_key_value_heads=None), 1), "num_key_value_heads is there and None: it is MHA"),
        Case((_config(1, 2, 8, num_key_value_heads=2, head_dim=16), 1), "head_dim is not hidden_size / heads"),
        Case((_config(1, 2, 8, num_key_value_heads=2, head_dim=None), 1), "head_dim is there and None"),
        Case((_config(22, 32, 2048, num_key_value_heads=4), 2), "TinyLlama in float16"),
        Case((_config(40, 40, 5120, num_key_value_heads=40), 2), "Llama-2-13B in float16"),
        Case((_config(28, 16, 1024, num_key_value_heads=8, head_dim=128), 2), "Qwen3-0.6B in float16"),
    ),
    mistakes=(
        Mistake(
            "query_heads",
            "It counts the query heads. Only the KV heads (`num_key_value_heads`) are kept in the cache; with GQA "
            "there are fewer of them.",
            _from_config(kv_heads=lambda config: config["num_attention_heads"]),
        ),
        Mistake(
            "ignores_head_dim",
            "It computes `head_dim` from `hidden_size` even where the config states another one.",
            _from_config(head_dim=lambda config: config["hidden_size"] // config["num_attention_heads"]),
            hint=2,
        ),
        Mistake(
            "head_dim_by_kv_heads",
            "It divides `hidden_size` by the KV heads. The query heads are the ones that make up `hidden_size`.",
            _from_config(head_dim=lambda config: config.get("head_dim") or config["hidden_size"] // _kv_heads(config)),
            hint=2,
        ),
        Mistake(
            "hidden_size",
            "It takes `hidden_size` for the numbers in a key. That is right for MHA only: a key has "
            "KV heads times head_dim numbers.",
            _from_config(kv_heads=lambda config: 1, head_dim=lambda config: config["hidden_size"]),
        ),
        Mistake(
            "no_factor_two",
            "It counts the keys or the values, not both.",
            lambda config, size: math.ceil(reference_kv_bytes_from_config(config, size) / 2),
        ),
    ),
    tried=("MHA", "GQA", "MQA", "a config without num_key_value_heads", "a head_dim of its own"),
)

EXERCISES = (
    Exercise("kv_bytes_per_token", "1.1", "Bytes a token", kv_bytes_per_token, slot="kv_bytes_per_token"),
    Exercise("contiguous_bytes", "1.2", "The contiguous footprint", contiguous_bytes),
    Exercise("paged_bytes", "1.3", "The paged footprint", paged_bytes),
    Exercise("num_blocks_that_fit", "1.4", "How many blocks fit", num_blocks_that_fit, slot="num_blocks_that_fit"),
    Exercise("best_block_size", "1.5", "Choose a block size", best_block_size),
    Exercise("kv_bytes_from_config", "1.6", "Any model's bytes a token", kv_bytes_from_config, stretch=True),
)
