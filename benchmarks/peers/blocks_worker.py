"""What the `blocks` suite times, and the process in which one block layer is timed.

Knows the operations and how a repetition is set up. Does not know how any block layer works: each comes as a
`BlockLayer` (blocks_ours.py and its neighbours). Runs in any interpreter, the peers' own too: standard library only.

The process says what it is, {"versions": {...}}, then reads one JSON object a line, the arguments of `sample`, and
answers each with {"us": [...]}, one time a repetition.
"""

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

BLOCK_SIZE = 16
PROMPT_BLOCKS = 128
PROMPT_TOKENS = BLOCK_SIZE * PROMPT_BLOCKS
VOCABULARY = 50_000


class BlockLayer(Protocol):
    """One implementation over a pool of its own. What a request is, is its own affair.

    A full hit leaves at least one token to compute; how much more than that is computed again, and whether hashes
    are kept with the request, is the implementation's choice. What it keeps is kept here too.
    """

    def __init__(self, num_blocks: int): ...

    def new_request(self, prompt: list[int]) -> Any:
        """A request that nothing is known of yet: no hash, no block."""

    def allocate_and_free(self, count: int) -> None:
        """Take so many fresh blocks as one sequence's, each with one holder, and give them back, the tail first."""

    def hash(self, request: Any) -> None:
        """Compute the key of every full block."""

    def remember_hashes(self, request: Any) -> None:
        """Where hashes are kept with the request: compute and keep them."""

    def look_up(self, request: Any) -> Any:
        """Find the longest cached prefix."""

    def take(self, request: Any, hits: Any) -> None:
        """Blocks for all tokens: a reference to each hit, fresh ones for the rest, if there is room."""

    def step_done(self, request: Any) -> None:
        """All tokens are computed: the full blocks can be found from now on."""

    def free(self, request: Any) -> None:
        """Give back all blocks; what is full stays findable."""

    def decode(self, request: Any, tokens: list[int]) -> None:
        """Room for one token after the other, in a step each, and nothing else that a step does. None fills a block."""

    def grow(self, request: Any, tokens: list[int]) -> None:
        """What `decode` does beside asking for room: the request's own counters. Its time is subtracted."""

    def decode_and_hash(self, request: Any, tokens: list[int]) -> None:
        """As `decode`, with all that the block layer does in a step, the hashing of a block that is full included."""


def timed(work: Callable[[], Any]) -> float:
    """Microseconds that the work takes."""
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / 1000


def serve(layer: BlockLayer, request: Any) -> None:
    layer.take(request, layer.look_up(request))
    layer.step_done(request)


class Operations:
    """Each method is one repetition and returns its microseconds."""

    def __init__(self, make_layer: Callable[[int], BlockLayer], num_blocks: int, seed: int):
        self.layer, self.num_blocks = make_layer(num_blocks), num_blocks
        self.random = random.Random(seed)
        self.shared: Any = None  # a prompt that many repetitions hit, and the request that came first with it

    def new_request(self) -> Any:
        return self.layer.new_request(self.random.choices(range(VOCABULARY), k=PROMPT_TOKENS))

    def allocate_and_free(self) -> float:
        return timed(lambda: self.layer.allocate_and_free(PROMPT_BLOCKS))

    def hash(self) -> float:
        request = self.new_request()
        return timed(lambda: self.layer.hash(request))

    def cold_prompt(self) -> float:
        request = self.new_request()

        def work() -> None:
            serve(self.layer, request)
            self.layer.free(request)

        return timed(work)

    def cold_prompt_evicting(self) -> float:
        """As `cold_prompt`, once every free block holds somebody's prefix."""
        if self.shared is None:
            self.shared = True
            for _ in range(self.num_blocks // PROMPT_BLOCKS + 1):
                self.cold_prompt()
        return self.cold_prompt()

    def full_hit_in_use(self) -> float:
        return self._full_hit(keep_holder=True)

    def full_hit_free(self) -> float:
        return self._full_hit(keep_holder=False)

    def _full_hit(self, keep_holder: bool) -> float:
        layer = self.layer
        if self.shared is None:
            self.shared = self.random.choices(range(VOCABULARY), k=PROMPT_TOKENS)
            holder = layer.new_request(self.shared)
            serve(layer, holder)
            if not keep_holder:
                layer.free(holder)
        request = layer.new_request(self.shared)
        layer.remember_hashes(request)
        us = timed(lambda: layer.take(request, layer.look_up(request)))
        layer.free(request)
        return us

    def decode_step(self) -> float:
        """One step, between two block boundaries: the mean of the 14 that neither begin nor fill a block."""
        tokens = self._at_a_block_s_first_token()
        request, steps = self.shared, len(tokens) - 2
        self.layer.decode_and_hash(request, tokens[:1])
        us = timed(lambda: self.layer.decode(request, tokens[1:-1]))
        self.layer.decode_and_hash(request, tokens[-1:])
        beside = self.layer.new_request([1])
        return (us - timed(lambda: self.layer.grow(beside, tokens[1:-1]))) / steps

    def decode_block(self) -> float:
        """One step, as the mean over all 16 of a block: one begins it and takes a block, one fills and hashes it."""
        tokens = self._at_a_block_s_first_token()
        request = self.shared
        us = timed(lambda: self.layer.decode_and_hash(request, tokens))
        beside = self.layer.new_request([1])
        return (us - timed(lambda: self.layer.grow(beside, tokens))) / len(tokens)

    def _at_a_block_s_first_token(self) -> list[int]:
        if self.shared is None:
            self.shared = self.new_request()
            serve(self.layer, self.shared)
        return self.random.choices(range(VOCABULARY), k=BLOCK_SIZE)


#: What a row is called, and the method that times it.
OPERATIONS = {
    "allocate and free 128 blocks": "allocate_and_free",
    "hash 128 blocks": "hash",
    "cold prompt: look up, allocate, hash, free": "cold_prompt",
    "cold prompt, every block evicted first": "cold_prompt_evicting",
    "full hit, blocks in use": "full_hit_in_use",
    "full hit, blocks free": "full_hit_free",
    "one decode step": "decode_step",
    "one decode step, mean over a block": "decode_block",
}


def sample(
    make_layer: Callable[[int], BlockLayer], operation: str, num_blocks: int, repetitions: int, seed: int
) -> list[float]:
    """Microseconds of each repetition. A pool serves so many that half of it is still untouched, then comes a new one.

    Where the pool must be full of cached prefixes first, one pool serves all.
    """
    a_pool = repetitions if "evict" in operation else min(64, max(1, num_blocks // PROMPT_BLOCKS // 2))
    times: list[float] = []
    while len(times) < repetitions:
        operations = Operations(make_layer, num_blocks, seed + len(times))
        once = getattr(operations, OPERATIONS[operation])
        once()  # what is slow the first time is not measured
        gc.collect()
        gc.disable()
        times += [once() for _ in range(min(a_pool, repetitions - len(times)))]
        gc.enable()
    return times


def answer_rounds(make_layer: Callable[[int], BlockLayer], *packages: str) -> None:
    """Say the versions of these packages, then time what standard input asks for, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a peer prints is no answer
    gc.freeze()  # what was imported needs no looking through before each round
    print(json.dumps({"versions": {name: version(name) for name in packages}}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"us": sample(make_layer, **json.loads(line))}), file=answers, flush=True)
