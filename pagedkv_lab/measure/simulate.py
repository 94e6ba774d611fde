"""How much a prefix cache finds, without a model: a trace of requests is replayed on block ids alone.

    trace = generated_trace(seed=0)
    replay(trace, capacity=500).hit_rate

A trace says of each request which blocks its prompt has; equal ids mean an equal prefix up to and including that
block. That is all a prefix cache looks at, so a trace needs no text, and hours of traffic take seconds.

Knows block ids, and who is evicted. Does not know tokens, time, or requests that run side by side: each request is
over before the next one comes.
"""

import json
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm.auto import tqdm

from pagedkv_lab.errors import PagedKVError


class TraceRequest(NamedTuple):
    """One request. timestamp: milliseconds from the start; lengths in tokens; hash_ids: its prompt's blocks."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


@dataclass(slots=True)
class FreeBlock:
    """A free block that can still be found, as a policy sees it when one has to go.

    last_used: number of the request that used it last, counted from 0. hits: how often it was found.
    depth: its place in the prompt, 0 for a prompt's first block. All blocks behind it need it.
    found_before: how many blocks the request that computed it had found.
    """

    last_used: int
    hits: int
    depth: int
    found_before: int


@dataclass(frozen=True)
class Replay:
    """What came of a replay, in blocks. `computed` is what was not found, `evicted` what had to go for it."""

    looked_up: int
    found: int
    evicted: int

    @property
    def computed(self) -> int:
        return self.looked_up - self.found

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' blocks that were found, 0 to 1."""
        return self.found / self.looked_up if self.looked_up else 0.0


#: Says which of these blocks goes; it must return one of them.
ChooseVictim = Callable[[list[FreeBlock]], FreeBlock]

POLICIES = ("lru", "fifo", "mru")


def replay(
    requests: Iterable[TraceRequest],
    capacity: int | None = None,
    policy: str | ChooseVictim = "lru",
    *,
    tail_first: bool = True,
    use_tqdm: bool = True,
) -> Replay:
    """Send the requests through a prefix cache, one after the other, and count.

    A request looks its blocks up in order and stops at the first miss. What it found it holds, so that this can't be
    evicted; for the rest it takes empty blocks first, then evicts. At its end it gives all of them back.

    capacity: blocks in the pool; None for a pool that never fills.
    policy: who goes. "lru": the block given back longest ago. "fifo": the one computed longest ago, whether it was
        found since or not. "mru": the one given back last. Or a function, which is asked once for each eviction and
        gets all candidates: slow, for small traces.
    tail_first: whether a request gives back its last block first. Then "lru" never evicts a block before those that
        need it.
    use_tqdm: a progress bar, if it takes more than two seconds.

    Raises ValueError for a policy without a meaning, for a capacity below 1, and for a request larger than the pool.
    """
    if not callable(policy) and policy not in POLICIES:
        raise ValueError(f"policy is one of {', '.join(POLICIES)} or a function, not {policy!r}")
    if capacity is not None and capacity < 1:
        raise ValueError(f"a pool has at least 1 block, not {capacity}")
    # Free and findable, in the order in which they were given back; by "fifo" in the order of computing.
    cached: OrderedDict[int, FreeBlock] = OrderedDict()
    empty = capacity if capacity is not None else 0
    looked_up = found = evicted = 0
    for number, request in enumerate(tqdm(requests, unit="request", delay=2, leave=False, disable=not use_tqdm)):
        keys = request.hash_ids
        if capacity is not None and len(keys) > capacity:
            raise ValueError(f"request {number} has {len(keys)} blocks, and the pool {capacity}")
        held: dict[int, FreeBlock] = {}
        hits = 0
        for key in keys:
            block = cached.get(key)
            if block is None:
                break
            held[key] = block
            hits += 1
            block.hits += 1
        looked_up += len(keys)
        found += hits
        if policy != "fifo":
            for key in held:
                del cached[key]
        missing = len(keys) - hits
        if capacity is not None:
            for _ in range(missing - empty):
                _evict(cached, held, policy)
                evicted += 1
            empty = max(empty, missing) - missing
        for depth in range(hits, len(keys)):
            if keys[depth] in cached:  # behind the first miss, and computed again: the second copy has no key
                empty += 1
            else:
                held[keys[depth]] = FreeBlock(number, 0, depth, hits)
        for key in reversed(keys) if tail_first else keys:
            if key in held:
                held[key].last_used = number
                cached[key] = held[key]
    return Replay(looked_up, found, evicted)


def _evict(cached: OrderedDict[int, FreeBlock], held: dict[int, FreeBlock], policy: str | ChooseVictim) -> None:
    """Drop one block that nobody holds. By "fifo" the held ones keep their place in `cached`."""
    if policy == "lru":
        cached.popitem(last=False)
    elif policy == "mru":
        cached.popitem()
    elif policy == "fifo":
        del cached[next(key for key in cached if key not in held)]
    else:
        candidates = list(cached.values())
        victim = policy(candidates)
        key = next((key for key, block in cached.items() if block is victim), None)
        if key is None:
            raise ValueError(f"the policy returned {victim!r}, which is none of the {len(candidates)} blocks it got")
        del cached[key]


def read_trace(path: str | Path) -> list[TraceRequest]:
    """The requests of a file of Mooncake's form: one JSON object a line, with the fields of `TraceRequest`.

    Raises PagedKVError for a line that is something else; OSError where there is no file.
    """
    requests = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                lengths = int(entry["timestamp"]), int(entry["input_length"]), int(entry["output_length"])
                requests.append(TraceRequest(*lengths, tuple(map(int, entry["hash_ids"]))))
            except (ValueError, KeyError, TypeError) as error:
                raise PagedKVError(f"{path}, line {number}: not a request of a trace ({error!r})") from error
    return requests


def generated_trace(
    seed: int = 0, num_chats: int = 80, num_documents: int = 80, block_size: int = 64
) -> list[TraceRequest]:
    """A small trace in the same form, the same for the same seed: chats of several turns, and documents read once.

    Three applications have a system prompt each, of 12, 8 and 20 blocks; half of the chats belong to the first.
    A chat has 1 to 8 turns, half a minute to some minutes apart, and each turn sends the whole chat again. A document
    comes in one request of 20 to 60 blocks and never again. All start at random within one hour.

    block_size: tokens a block, for the lengths.
    """
    rng = random.Random(seed)
    new_id = iter(range(10**9)).__next__
    system_prompts = [[new_id() for _ in range(length)] for length in (12, 8, 20)]
    hour = 60 * 60 * 1000
    requests = []
    for _ in range(num_chats):
        [prompt] = rng.choices(system_prompts, weights=(5, 3, 2))
        blocks, when = list(prompt), rng.randrange(hour)
        for _ in range(rng.randint(1, 8)):
            blocks += [new_id() for _ in range(rng.randint(1, 4))]  # the last answer, and the next question
            requests.append(_request(rng, when, blocks, block_size))
            when += int(rng.expovariate(1 / 60_000)) + 30_000
    for _ in range(num_documents):
        blocks = [new_id() for _ in range(rng.randint(20, 60))]
        requests.append(_request(rng, rng.randrange(hour), blocks, block_size))
    return sorted(requests)


def _request(rng: random.Random, when: int, blocks: Sequence[int], block_size: int) -> TraceRequest:
    tail = rng.randrange(block_size)  # tokens of the last block, which is not full and has no id
    return TraceRequest(when, len(blocks) * block_size + tail, rng.randint(16, 4 * block_size), tuple(blocks))


def hit_rates(
    requests: Sequence[TraceRequest], capacities: Iterable[int], policy: str | ChooseVictim = "lru"
) -> dict[int, float]:
    """Hit rate by capacity, for a figure."""
    return {capacity: replay(requests, capacity, policy).hit_rate for capacity in capacities}
