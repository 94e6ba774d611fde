"""Where the memory of a contiguous KV cache goes, request by request, beside that of a paged one.

    moments = serve_contiguously([(161, 338)] * 400, reserve=lambda prompt, answer: 2048, num_slots=15_700)
    shares(moments, 15_700).tokens   # 0.2 of the slots hold a token

The set-up of the PagedAttention paper (Kwon et al., SOSP 2023, section 6.1): stretches of slots that a buddy allocator
cuts, and three ways to choose their length. What is wasted has the paper's names (its figure 2).

Knows lengths and slots. Does not know tokens, time or a model: in a step, every request that runs gets one token.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pagedkv_lab.measure.dry_run import Arrival, dry_run


class BuddyMemory:
    """Slots in pieces whose sizes are powers of two (Knuth, The Art of Computer Programming 1, section 2.5).

    free: by order, where the free pieces of 2**order slots begin.
    """

    def __init__(self, num_slots: int):
        self.free: list[set[int]] = [set() for _ in range(num_slots.bit_length())]
        start = 0
        for order in reversed(range(num_slots.bit_length())):
            if num_slots >> order & 1:
                self.free[order].add(start)
                start += 1 << order

    def take(self, size: int) -> tuple[int, int] | None:
        """A piece of at least `size` slots, as (where it begins, order); None where none is free."""
        order = (size - 1).bit_length()
        larger = next((o for o in range(order, len(self.free)) if self.free[o]), None)
        if larger is None:
            return None
        start = min(self.free[larger])
        self.free[larger].remove(start)
        for half in reversed(range(order, larger)):  # keep the first half, again and again
            self.free[half].add(start + (1 << half))
        return start, order

    def give_back(self, piece: tuple[int, int]) -> None:
        """Take a piece back, and join it with its buddy for as long as that is free, too."""
        start, order = piece
        while start ^ (1 << order) in self.free[order]:
            self.free[order].remove(start ^ (1 << order))
            start &= ~(1 << order)
            order += 1
        self.free[order].add(start)


class Moment(NamedTuple):
    """The memory in one step, in slots. filled: hold a token. to_fill: a request that runs will fill them.

    never: reserved by a request that will not fill them. running: requests in the step.
    """

    filled: int
    to_fill: int
    never: int
    running: int


class Shares(NamedTuple):
    """Of all slots, averaged over steps, 0 to 1: what holds tokens, and what is lost to what.

    reserved: will be filled. internal: reserved, and will not. external: free, and too small for the next request;
    also what an allocator adds to round up. running: requests at a time, no share.
    """

    tokens: float
    reserved: float
    internal: float
    external: float
    running: float


def serve_contiguously(
    requests: Iterable[tuple[int, int]], reserve: Callable[[int, int], int], num_slots: int
) -> list[Moment]:
    """Serve requests, (tokens of the prompt, of the answer), in their order, as many at a time as fit.

    reserve: from the two lengths, the slots that a request asks for. The steps end when the last one is let in: until
    then somebody waits, and memory is what limits. Raises ValueError for a request that no empty memory can hold.
    """
    memory, waiting = BuddyMemory(num_slots), deque(requests)
    running: list[tuple[int, int, int, tuple[int, int]]] = []  # prompt, answer, tokens of it so far, its piece
    moments = []
    while waiting:
        while waiting and (piece := memory.take(reserve(*waiting[0]))):
            running.append((*waiting.popleft(), 0, piece))
        if not running:
            raise ValueError(f"a request asks for {reserve(*waiting[0])} slots in a row, and there are {num_slots}")
        running = [(prompt, answer, done + 1, piece) for prompt, answer, done, piece in running]
        moments.append(
            Moment(
                filled=sum(prompt + done for prompt, _, done, _ in running),
                to_fill=sum(answer - done for _, answer, done, _ in running),
                never=sum(reserve(prompt, answer) - prompt - answer for prompt, answer, *_ in running),
                running=len(running),
            )
        )
        for _, answer, done, piece in running:
            if done == answer:
                memory.give_back(piece)
        running = [request for request in running if request[2] < request[1]]
    return moments


def serve_paged(requests: Sequence[tuple[int, int]], num_slots: int, block_size: int = 16) -> list[Moment]:
    """The same in blocks: the package's block manager and scheduler, without a model."""
    arrivals = [Arrival(0, prompt, answer) for prompt, answer in requests]
    reports = dry_run(
        arrivals,
        num_gpu_blocks=num_slots // block_size,
        block_size=block_size,
        max_num_seqs=len(requests),
        max_num_batched_tokens=num_slots,
    )
    first_step: dict[int, int] = {}
    for step, report in enumerate(reports):
        for number, *_ in report.ran:
            first_step.setdefault(number, step)
    return [
        Moment(report.used_slots, 0, report.pool.used * block_size - report.used_slots, report.num_scheduled)
        for report in reports[: max(first_step.values(), default=0)]
    ]


def shares(moments: Sequence[Moment], num_slots: int) -> Shares:
    """What became of the memory. Raises ValueError where there is no step: then nobody had to wait."""
    if not moments:
        raise ValueError("all requests fit at once: nobody waited, and memory was no limit")
    *parts, running = (sum(column) / len(moments) for column in zip(*moments, strict=True))
    tokens, reserved, internal = (part / num_slots for part in parts)
    return Shares(tokens, reserved, internal, 1 - tokens - reserved - internal, running)
