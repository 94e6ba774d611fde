"""The block layer against those of vLLM, nano-vllm and transformers: microseconds of the same work.

Knows which peers there are and what to make of their times. What is timed, and how, is in peers/blocks_worker.py;
what each peer does for it, and why that is the same work, in peers/blocks_<peer>.py.

Each block layer runs in a process of its own and is asked in turn, round after round, so that a busy moment of the
machine hits all of them. The peers' code is not in this repository: transformers is installed with the package,
vLLM is in an interpreter that the caller names, nano-vllm in a checkout that the caller names (it needs xxhash).
Who is not there is listed with the reason.
"""

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.blocks_worker import BLOCK_SIZE, OPERATIONS, PROMPT_TOKENS
from benchmarks.workers import Worker, WorkerDied

ROOT = Path(__file__).resolve().parents[1]
OURS, PEERS = "ours", ("nano-vllm", "transformers", "vLLM")
NUM_BLOCKS = 8192
POOL_SIZES = (1 << 10, 1 << 13, 1 << 16, 1 << 19)
TIMEOUT_S = 300.0

NOTES = (
    "Hashes: ours are sha256 over the parent's 32 bytes and 8 bytes a token, vLLM's sha256 over a pickle, nano-vllm's "
    "xxh64, transformers' 8 bytes of blake2b.",
    "Full hits: ours and vLLM keep the hashes with the request, and have them before the time is taken; nano-vllm and "
    "transformers compute them at each look up. Ours leaves one token to compute, the others the last block.",
    "Every block evicted first: transformers evicts all cached blocks at once when none is left, which its median does "
    "not show.",
    "One decode step: asking for room; appending the token to the request is subtracted.",
    "Larger pools: no operation does more work in one, but evicting touches what lies furthest apart, and a large "
    "pool's dictionaries don't fit into the processor's caches.",
)


class Contestant:
    """A block layer in its process, and its times. why_not: why it is not measured, or not any more."""

    def __init__(self, name: str, module: str, python: str | Path | None = sys.executable, *arguments: str):
        self.name, self.why_not = name, ""
        self.command = [str(python), "-m", f"benchmarks.peers.{module}", *arguments]
        self.versions: dict[str, str] = {}
        self._times: dict[tuple[str, int], list[float]] = {}
        self._worker: Worker | None = None

    def start(self) -> None:
        try:
            self._worker = Worker(self.command, ROOT)
            self.versions = self._worker.answer(TIMEOUT_S)["versions"]
        except (WorkerDied, OSError) as error:
            self.why_not = str(error)

    def time(self, operation: str, num_blocks: int, repetitions: int, seed: int) -> None:
        """So many repetitions more of the operation. Whoever breaks is asked no more."""
        if self.why_not:
            return
        question = {"operation": operation, "num_blocks": num_blocks, "repetitions": repetitions, "seed": seed}
        try:
            us = self._worker.ask(question, TIMEOUT_S)["us"]
        except WorkerDied as error:
            self.why_not = f"{operation}: {error}"
        else:
            self._times.setdefault((operation, num_blocks), []).extend(us)

    def median(self, operation: str, num_blocks: int = NUM_BLOCKS) -> float | None:
        """Microseconds, or None where it wasn't measured."""
        times = self._times.get((operation, num_blocks))
        return median(times) if times and not self.why_not else None

    def close(self) -> None:
        if self._worker:
            self._worker.close()


def contestants(vllm_python: str | Path | None, nano_vllm: str | Path | None) -> list[Contestant]:
    """Ours, then the peers in the order of PEERS, none of them started."""
    ours = Contestant(OURS, "blocks_ours")
    nano = Contestant(PEERS[0], "blocks_nano_vllm", sys.executable, str(nano_vllm))
    transformers = Contestant(PEERS[1], "blocks_transformers")
    vllm = Contestant(PEERS[2], "blocks_vllm", vllm_python)
    if nano_vllm is None:
        nano.why_not = "no checkout was named"
    elif find_spec("xxhash") is None:
        nano.why_not = "it needs xxhash, which is not installed (pip install xxhash)"
    if vllm_python is None:
        vllm.why_not = "no interpreter that has it was named"
    return [ours, nano, transformers, vllm]


def take_turns(
    names: list[Contestant], num_blocks: int, rounds: int, repetitions: int, say: Callable[[str], None]
) -> None:
    """Every operation in every round, one contestant after the other; who begins changes with the round."""
    for r in range(rounds):
        say(f"pool of {num_blocks:,} blocks: round {r + 1} of {rounds}")
        first = r % len(names)
        for operation in OPERATIONS:
            for contestant in names[first:] + names[:first]:
                contestant.time(operation, num_blocks, repetitions, seed=1000 * r)


def run(
    *,
    quick: bool,
    vllm_python: str | Path | None = None,
    nano_vllm: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Time all operations. Returns the results, ready for JSON; times are medians in microseconds.

    quick: few repetitions, to see that it runs. vllm_python: an interpreter that has vLLM. nano_vllm: the folder of
    a checkout of nano-vllm. say: told of the progress, line by line.
    """
    rounds, repetitions = (2, 5) if quick else (9, 24)
    rounds_of_sizes = 1 if quick else 3
    all_of_them = contestants(vllm_python, nano_vllm)
    ours, *peers = all_of_them
    try:
        for contestant in all_of_them:
            if not contestant.why_not:
                contestant.start()
        take_turns(all_of_them, NUM_BLOCKS, rounds, repetitions, say)
        for num_blocks in POOL_SIZES:
            if num_blocks != NUM_BLOCKS:
                take_turns([ours], num_blocks, rounds_of_sizes, repetitions, say)
    finally:
        for contestant in all_of_them:
            contestant.close()
    if ours.why_not:
        raise RuntimeError(f"our own block layer broke: {ours.why_not}")
    return {
        "suite": "blocks",
        "block_size": BLOCK_SIZE,
        "num_blocks": NUM_BLOCKS,
        "prompt_tokens": PROMPT_TOKENS,
        "repetitions": rounds * repetitions,
        "rows": [row(operation, ours, peers) for operation in OPERATIONS],
        "pool_sizes": [
            {
                "num_blocks": size,
                "unit": "us",
                "repetitions": (rounds if size == NUM_BLOCKS else rounds_of_sizes) * repetitions,
                "ours": {name: ours.median(name, size) for name in OPERATIONS},
            }
            for size in POOL_SIZES
        ],
        "peers": {peer.name: {"versions": peer.versions} for peer in peers},
        "not_measured": [{"peer": peer.name, "why": peer.why_not} for peer in peers if peer.why_not],
        "notes": list(NOTES),
    }


def row(operation: str, ours: Contestant, peers: list[Contestant]) -> dict[str, Any]:
    """One operation: our median, the peers' by name (None: not measured), and ours over the best of theirs."""
    times = {peer.name: peer.median(operation) for peer in peers}
    measured = [us for us in times.values() if us is not None]
    return {
        "operation": operation,
        "unit": "us",
        "ours": ours.median(operation),
        "peers": times,
        "ratio_to_best": ours.median(operation) / min(measured) if measured else None,
    }


def table(result: dict[str, Any]) -> str:
    """The result as text for a terminal."""

    def line(name: str, cells: list[float | None]) -> str:
        return f"{name:<44}" + "".join(f"{'-' if c is None else f'{c:.2f}':>14}" for c in cells)

    def head(name: str, cells: list[str]) -> str:
        return f"{name:<44}" + "".join(f"{cell:>14}" for cell in cells)

    sizes = result["pool_sizes"]
    return "\n".join(
        [
            head("microseconds", [OURS, *PEERS, "ours / best"]),
            *(line(r["operation"], [r["ours"], *r["peers"].values(), r["ratio_to_best"]]) for r in result["rows"]),
            "",
            head("ours, by blocks in the pool", [f"{size['num_blocks']:,}" for size in sizes]),
            *(line(name, [size["ours"][name] for size in sizes]) for name in OPERATIONS),
            "",
            *result["notes"],
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it runs")
    parser.add_argument("--vllm-python", metavar="PATH")
    parser.add_argument("--nano-vllm", metavar="PATH")
    results = run(**vars(parser.parse_args()))
    print(table(results))
    for missing in results["not_measured"]:
        print(f"not measured: {missing['peer']}: {missing['why']}")
