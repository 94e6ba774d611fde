"""The suite `attention`: the backends against attention over contiguous tensors, milliseconds for one layer.

The bound is torch's own attention over keys and values that lie side by side, the query heads of a KV head as rows of
one matrix: what a paged cache could at best cost nothing more than. As in a model, every call is a layer with a pool of
its own, so that the cache is read from memory, and comes after a linear layer, whose threads are still spinning.

Knows backends and shapes. Does not know the engine.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from pagedkv_lab.attention import BACKENDS, Workspace, cascade
from pagedkv_lab.attention.numba_paged import HAS_NUMBA
from pagedkv_lab.measure.timing import Samples, in_turn
from pagedkv_lab.sizing import blocks_for

BLOCK_SIZE = 16
DTYPES = ("float32", "bfloat16")
NAIVE, BOUND, OURS = "gather each", "contiguous", "numba_paged"
#: As many layers as it takes for their keys and values to fill this many bytes, twice a large last cache.
FOOTPRINT = 64 * 2**20

NOTES = (
    "Blocks of 16 tokens, scattered. Shapes: query heads/KV heads/head dim.",
    "gather each: every sequence's tokens gathered, then scaled_dot_product_attention with enable_gqa.",
    "contiguous, the bound: no paging at all, the query heads of a KV head as rows; the ragged batch one by one.",
    "first step of D: 16 prompts of 128 tokens. Of P: 16 prompts of 1,024 shared and 64 own tokens, where the first "
    "of them computes what the others share. Each call then is a layer's share of a step.",
)


@dataclass(frozen=True)
class Case:
    """lengths: (context, queries) of each sequence, the first `shared` tokens the same blocks for all of them."""

    name: str
    heads: tuple[int, int, int]
    lengths: tuple[tuple[int, int], ...]
    shared: int = 0


DECODE = (
    Case("9/3/64, 8 x 512", (9, 3, 64), ((512, 1),) * 8),
    Case("9/3/64, 32 x 512", (9, 3, 64), ((512, 1),) * 32),
    Case("9/3/64, 8 x 2,048", (9, 3, 64), ((2048, 1),) * 8),
    Case("32/4/64, 8 x 2,048", (32, 4, 64), ((2048, 1),) * 8),
    Case("32/4/64, ragged 32 x 520-2,044", (32, 4, 64), tuple((520 + i * 1524 // 31, 1) for i in range(32))),
)
CASCADE = (Case("9/3/64, 16 x 1,104, 1,024 of them shared", (9, 3, 64), ((1104, 1),) * 16, shared=1024),)
PREFILL = (
    Case("9/3/64, first step of P", (9, 3, 64), ((1088, 1088), *((1088, 64),) * 15), shared=1024),
    Case("9/3/64, first step of D", (9, 3, 64), ((128, 128),) * 16),
)


class Layers:
    """Pools of several layers, and queries for them."""

    def __init__(self, case: Case, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(0)
        num_heads, num_kv_heads, dim = case.heads
        self.context_lens = [context for context, _ in case.lengths]
        self.query_lens = [queries for _, queries in case.lengths]
        blocks = [blocks_for(context, BLOCK_SIZE) for context in self.context_lens]
        free = torch.randperm(sum(blocks), generator=generator, dtype=torch.int32)
        self.block_tables = torch.zeros(len(blocks), max(blocks), dtype=torch.int32)
        for table, own in zip(self.block_tables, free.split(blocks), strict=True):
            table[: len(own)] = own
        self.block_tables[:, : case.shared // BLOCK_SIZE] = self.block_tables[0, : case.shared // BLOCK_SIZE]

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        self.query = random(sum(self.query_lens), num_heads, dim)
        self.scale = dim**-0.5
        pool = (sum(blocks), BLOCK_SIZE, num_kv_heads, dim)
        tokens = sum(self.context_lens) - case.shared * (len(blocks) - 1)
        layer_bytes = 2 * tokens * num_kv_heads * dim * dtype.itemsize
        self.pools = [(random(*pool), random(*pool)) for _ in range(max(2, -(-FOOTPRINT // layer_bytes)))]

    def tokens_of(self, pool: torch.Tensor, sequence: int) -> torch.Tensor:
        """(Hkv, context, D), gathered."""
        context = self.context_lens[sequence]
        table = self.block_tables[sequence, : blocks_for(context, BLOCK_SIZE)]
        return pool[table].flatten(0, 1)[:context].transpose(0, 1)

    # Ways to attend in layer `i`

    def backend(self, name: str, workspace: Workspace, i: int) -> torch.Tensor:
        lengths = self.context_lens, self.query_lens
        tables = self.block_tables
        return BACKENDS[name](
            self.query, *self.pools[i], tables, *lengths, scale=self.scale, workspace=workspace
        )  # fmt: skip

    def gather_each(self, i: int) -> torch.Tensor:
        outputs = []
        for s, q in enumerate(self.query):
            key, value = (self.tokens_of(pool, s) for pool in self.pools[i])
            out = F.scaled_dot_product_attention(q[None, :, None], key[None], value[None], enable_gqa=True)
            outputs.append(out[0, :, 0])
        return torch.stack(outputs)

    def contiguous(self) -> Callable[[int], torch.Tensor]:
        """Attention over copies that are made now. Equal sequences together, others one by one."""
        num_kv_heads = self.pools[0][0].shape[2]
        q = self.query.view(len(self.query), num_kv_heads, -1, self.query.shape[2])
        size = len(q) if len(set(self.context_lens)) == 1 else 1
        parts = [range(first, first + size) for first in range(0, len(q), size)]
        copies = [
            [[torch.stack([self.tokens_of(pool, s) for s in part]) for pool in pools] for part in parts]
            for pools in self.pools
        ]

        def attend(i: int) -> torch.Tensor:
            out = [
                F.scaled_dot_product_attention(q[part.start : part.stop], key, value)
                for part, (key, value) in zip(parts, copies[i], strict=True)
            ]
            return torch.cat(out).flatten(1, 2) if len(out) > 1 else out[0].flatten(1, 2)

        return attend


def measure(layers: Layers, ways: dict[str, Callable[[int], torch.Tensor]], rounds: int) -> dict[str, Samples]:
    """Milliseconds of a call, by way: a value a round, which is the median over the layers.

    Raises RuntimeError where two ways don't agree about what attention is.
    """
    first, *others = (way(0).float().clone() for way in ways.values())
    for name, out in zip(list(ways)[1:], others, strict=True):
        if not torch.allclose(out, first, rtol=2e-2, atol=2e-2):
            raise RuntimeError(f"{name} computes something else than {next(iter(ways))}")
    hidden, weight = torch.randn(16, 576), torch.randn(3072, 576)

    def one_round(way: Callable[[int], torch.Tensor], number: int) -> float:
        ms = []
        for i in range(len(layers.pools)):
            F.linear(hidden, weight)
            started = time.perf_counter()
            way(i)
            ms.append((time.perf_counter() - started) * 1e3)
        return Samples(tuple(ms)).median

    taken = in_turn({name: partial(one_round, way) for name, way in ways.items()}, rounds)
    return {name: Samples(tuple(values)) for name, values in taken.items()}


@contextmanager
def no_cascade() -> Iterator[None]:
    kept, cascade.MIN_SAVED = cascade.MIN_SAVED, 2**60
    try:
        yield
    finally:
        cascade.MIN_SAVED = kept


def _decode_ways(layers: Layers) -> dict[str, Callable[[int], torch.Tensor]]:
    ways = {BOUND: layers.contiguous(), NAIVE: layers.gather_each}
    return ways | _backends(layers)


def _backends(layers: Layers) -> dict[str, Callable[[int], torch.Tensor]]:
    names = ["torch_paged", *([OURS] if HAS_NUMBA else [])]
    return {name: partial(layers.backend, name, Workspace()) for name in names}


def _cascade_ways(layers: Layers) -> dict[str, Callable[[int], torch.Tensor]]:
    ways = _backends(layers)
    if HAS_NUMBA:
        workspace = Workspace()
        with no_cascade():  # what is worked out once a step is worked out here
            layers.backend(OURS, workspace, 0)
        ways["numba_paged without cascade"] = partial(layers.backend, OURS, workspace)
    return ways


@torch.inference_mode()
def run(*, quick: bool, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Time all cases in both dtypes. Returns the results, ready for JSON. quick: few rounds, to see that it runs."""
    rounds = 2 if quick else 15
    rows = []
    for kind, cases, ways in (
        ("decode", DECODE, _decode_ways),
        ("cascade", CASCADE, _cascade_ways),
        ("prefill", PREFILL, _backends),
    ):
        for case in cases:
            for dtype in DTYPES:
                say(f"{kind}: {case.name}, {dtype}")
                layers = Layers(case, getattr(torch, dtype))
                ms = measure(layers, ways(layers), rounds)
                row = {
                    "kind": kind,
                    "case": case.name,
                    "dtype": dtype,
                    "layers": len(layers.pools),
                    "ms": {name: samples.as_dict() for name, samples in ms.items()},
                }
                if BOUND in ms and OURS in ms:
                    row["bound_over_ours"] = ms[BOUND].median / ms[OURS].median
                rows.append(row)
    return {
        "suite": "attention",
        "rows": rows,
        "threads": torch.get_num_threads(),
        "dtype": list(DTYPES),
        "repetitions": rounds,
        "not_measured": [] if HAS_NUMBA else [{"peer": OURS, "why": "numba is not installed"}],
        "notes": list(NOTES),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text for a terminal."""
    names = list(dict.fromkeys(name for row in result["rows"] for name in row["ms"]))
    width = [max(len(name), 8) + 2 for name in names]

    def line(what: str, dtype: str, cells: list[str], ratio: str) -> str:
        numbers = "".join(f"{cell:>{w}}" for cell, w in zip(cells, width, strict=True))
        return f"{what:<42}{dtype:<9}{numbers}{ratio:>14}"

    lines = [line("milliseconds a layer", "", names, "bound/ours")]
    for row in result["rows"]:
        cells = [f"{row['ms'][name]['median']:.2f}" if name in row["ms"] else "-" for name in names]
        ratio = f"{row['bound_over_ours']:.2f}" if "bound_over_ours" in row else ""
        lines.append(line(row["case"], row["dtype"], cells, ratio))
    return "\n".join([*lines, "", *result["notes"]])


if __name__ == "__main__":
    import sys

    print(table(run(quick="--quick" in sys.argv[1:])))
