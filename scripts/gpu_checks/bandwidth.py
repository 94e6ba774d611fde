"""How much of the memory's bandwidth does decode attention reach?

A decode step reads every key and value once and computes next to nothing with them, so its bound is the memory. The
figure is the bytes of keys and values over the median time, as a share of what a large copy on the same device moves
(bytes read and written both counted).

Knows cells of a grid and goals. Who attends, and over which memory, is in `attending`. The last cache would flatter
small cells, so a cell has as many sets of sequences as it takes to fill it twice, and calls take them in turn. Time is
the GPU's own (see `CudaDevice.time`).
"""

from collections.abc import Callable
from typing import Any

import torch

from gpu_checks import attending
from gpu_checks.attending import Arena, Call, Cell
from gpu_checks.device import Device, copy_bandwidth
from gpu_checks.quantized import INT4, INT8
from gpu_checks.record import NotRun, Section
from gpu_checks.sizes import Sizes
from gpu_checks.varlen import VarlenRefused
from pagedkv_lab.sizing import KVQuantization

MANY, SINGLE = 0.85, 0.60
#: A timed run lasts about so long, so that where it begins and ends doesn't matter.
RUN_S, MAX_CALLS = 2e-3, 512
SPLITS_TO_TRY = (1, 2, 3, 4, 6, 8, 16, 32)


def run(section: Section, device: Device, sizes: Sizes) -> None:
    bench = Bench(section, device, sizes)
    cells = [Cell(*cell) for cell in sizes.cells]
    quantized = [(Cell(*cell), kind) for cell in sizes.quantized_cells for kind in (INT8, INT4)]
    # The goals' cells, then a few quantized ones, then the rest of the grid.
    first = [cell for cell in cells if wanted(cell, sizes)]
    rest = [cell for cell in cells if not wanted(cell, sizes)]
    try:
        bench.make_arena(cells)
        bench.cells(first)
        for cell, kind in section.in_time(quantized, lambda pair: f"{pair[0]}, int{pair[1].bits}"):
            with section.trying(f"bandwidth {cell}, int{kind.bits}"):
                bench.quantized(cell, kind)
        bench.cells(rest)
    finally:
        judge(section, sizes, cells, bench.shares)
        del bench
        device.empty_cache()


def wanted(cell: Cell, sizes: Sizes) -> float:
    """The share of the copy's bandwidth that is this cell's goal, 0 for one without."""
    sequences, context = sizes.many
    if cell.sequences >= sequences and cell.context >= context:
        return MANY
    return SINGLE if (cell.sequences, cell.context) == (1, sizes.single) else 0.0


def judge(section: Section, sizes: Sizes, cells: list[Cell], shares: dict[Cell, float]) -> None:
    """Both goals, by their lowest cell."""
    sequences, context = sizes.many
    for share, where in ((MANY, f"from {sequences} x {context:,} on"), (SINGLE, f"for 1 x {sizes.single:,}")):
        those = [cell for cell in cells if wanted(cell, sizes) == share]
        reached = {str(cell): shares[cell] for cell in those if cell in shares}
        section.goal(f"decode attention at {share:.0%} of the copy's bandwidth {where}", share, reached, len(those))


class Bench:
    """Times cells, and notes a row for each one who attends. shares: what our kernel reached."""

    def __init__(self, section: Section, device: Device, sizes: Sizes):
        self.section, self.device, self.sizes = section, device, sizes
        self.shares: dict[Cell, float] = {}
        copy = copy_bandwidth(device)
        self.copy_bytes_per_s = copy["bytes_per_s"]
        section.facts |= {
            "copy": copy,
            "block_size": attending.BLOCK_SIZE,
            "dtype": str(device.half_dtype).removeprefix("torch."),
            "share": "bytes of keys and values / median time / bytes a second of the copy (median, read + written)",
        }

    def make_arena(self, cells: list[Cell]) -> None:
        """As large as the largest cell, or as memory allows: cells beyond are named as not run."""
        dtype = self.device.half_dtype
        largest = max(cell.numbers for cell in cells) + 2 * self.device.l2_bytes
        fits = int(0.7 * self.device.free_bytes() / 2 / dtype.itemsize)
        self.arena = Arena(self.device, dtype, min(largest, fits))
        self.section.facts["arena_bytes"] = 2 * self.arena.numbers * dtype.itemsize

    def cells(self, cells: list[Cell]) -> None:
        """All of them, while there is time."""
        for cell in self.section.in_time(cells):
            with self.section.trying(f"bandwidth {cell}"):
                self.cell(cell)

    def cell(self, cell: Cell) -> None:
        """Our kernel, other numbers of splits where it missed its goal, and its peers."""
        device, arena = self.device, self.arena
        num_bytes = 2 * cell.numbers * arena.dtype.itemsize
        sets = self._sets(num_bytes)
        if sets * cell.numbers > arena.numbers:
            raise NotRun(f"does not fit: {sets * num_bytes / 1e9:.1f} GB of keys and values")
        query = cell.random_query(arena.dtype, device)
        tables = attending.scattered_tables(device, sets, cell.sequences, cell.context // attending.BLOCK_SIZE)
        pools = arena.pools(tables.numel(), attending.BLOCK_SIZE, *cell.kv_shape)
        chosen = attending.chosen_splits(cell, arena.dtype, device)

        def ours(splits: int) -> list[Call]:
            return [attending.ours(query, pools, table, cell, splits) for table in tables]

        share = self.shares[cell] = self._note(cell, "triton_paged", ours(chosen), num_bytes, splits=chosen)
        if share < wanted(cell, self.sizes):
            # Would another number of splits have reached it? A hint for `choose_num_splits`.
            found = {}
            to_try = SPLITS_TO_TRY[:2] if device.dry_run else SPLITS_TO_TRY
            for splits in self.section.in_time(to_try, lambda n: f"{cell}: {n} splits"):
                found[splits] = self._timed(ours(splits), num_bytes)["share_of_copy"]
            self.section.measure("splits", case=str(cell), chosen=chosen, share_of_copy_by_splits=found)

        self._peer(cell, "SDPA, contiguous", num_bytes, lambda: attending.sdpa(query, arena, cell, sets))
        if not self._peer(cell, "varlen, pages of 16", num_bytes,
                          lambda: attending.varlen(query, pools, tables, cell, device)):  # fmt: skip
            # Its first versions take large pages only.
            pages = attending.LARGE_PAGES
            self._peer(cell, f"varlen, pages of {pages}", num_bytes,
                       lambda: attending.varlen_with_large_pages(query, arena, cell, sets, device))  # fmt: skip

    def quantized(self, cell: Cell, kind: KVQuantization) -> None:
        """Our kernel over full blocks in 8 or 4 bits. The bytes are those of the numbers and of their scales."""
        _, num_kv_heads, dim = cell.shape
        size = attending.BLOCK_SIZE
        block_bytes = size * kind.data_bytes(num_kv_heads, dim, dim) + kind.scale_bytes(num_kv_heads, dim, size)
        num_bytes = cell.sequences * (cell.context // size) * block_bytes
        sets = self._sets(num_bytes)
        query = cell.random_query(self.device.half_dtype, self.device)
        calls = attending.ours_quantized(query, cell, kind, sets, self.device)
        self._note(cell, f"int{kind.bits}, keys by {kind.key_axis}", calls, num_bytes)

    def _sets(self, num_bytes: int) -> int:
        """Sets of sequences, which together fill the last cache twice."""
        return min(MAX_CALLS, max(1, -(-2 * self.device.l2_bytes // num_bytes)))

    def _peer(self, cell: Cell, name: str, num_bytes: int, make: Callable[[], list[Call]]) -> bool:
        """Somebody else's kernel. One that can't run is no failure of ours; returns whether it ran."""
        if self.section.time_left() <= 0:
            self.section.skip(f"{cell}: {name}", "no time left")
            return True
        try:
            self._note(cell, name, make(), num_bytes)
        except (VarlenRefused, RuntimeError) as error:
            self.section.skip(f"{cell}: {name}", str(error)[:300])
            return False
        return True

    def _note(self, cell: Cell, who: str, calls: list[Call], num_bytes: int, **more: Any) -> float:
        figures = self._timed(calls, num_bytes)
        self.section.measure("bandwidth", case=str(cell), peer=who, bytes=num_bytes, **figures, **more)
        return figures["share_of_copy"]

    @torch.inference_mode()
    def _timed(self, calls: list[Call], num_bytes: int) -> dict[str, Any]:
        """The figures of calls that each take one set and must read so many bytes."""
        wanted_calls = max(len(calls), int(RUN_S * self.copy_bytes_per_s / num_bytes))
        num_calls = 1 if self.device.dry_run else min(MAX_CALLS, wanted_calls)
        timing = self.device.time([calls[i % len(calls)] for i in range(num_calls)], self.sizes.rounds)
        bytes_per_s = num_bytes / timing.median * 1e3
        return {
            "ms": timing.median,
            "from_to_ms": [min(timing.values), max(timing.values)],
            "calls": num_calls,
            "timed_by": timing.how,
            "bytes_per_s": bytes_per_s,
            "share_of_copy": bytes_per_s / self.copy_bytes_per_s,
        }
