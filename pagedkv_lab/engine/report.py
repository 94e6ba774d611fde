"""What the engine says of itself: a report on each step, and counts since it was made.

Knows numbers. Does not know where they come from.
"""

from dataclasses import dataclass

from pagedkv_lab.blocks.manager import PoolCounts
from pagedkv_lab.engine.request import RequestOutput
from pagedkv_lab.sizing import utilization


@dataclass(frozen=True)
class StepReport:
    """What one step did.

    ran: (request id, output index, tokens computed, "prefill" or "decode") a sequence, in batch order.
    tokens: (request id, output index, token id) for every token produced.
    pool: the pool's blocks after the step. used_slots: slots that hold a token of a living sequence.
    hit_tokens: prompt tokens that were found in the cache by sequences let in by this step.
    preempted: request ids that lost their blocks. finished: what was completed. seconds: how long it took.
    """

    step: int
    ran: tuple[tuple[int, int, int, str], ...]
    tokens: tuple[tuple[int, int, int], ...]
    pool: PoolCounts
    used_slots: int
    hit_tokens: int
    preempted: tuple[int, ...]
    num_copied_blocks: int
    finished: tuple[RequestOutput, ...]
    seconds: float

    @property
    def num_scheduled(self) -> int:
        """Sequences that ran."""
        return len(self.ran)

    @property
    def num_prefill_tokens(self) -> int:
        return sum(tokens for *_, tokens, kind in self.ran if kind == "prefill")

    @property
    def num_decode_tokens(self) -> int:
        return sum(tokens for *_, tokens, kind in self.ran if kind == "decode")


@dataclass(frozen=True)
class EngineStats:
    """Counts since the engine was made. Peaks are taken after each step; sizes in blocks, slots and tokens."""

    steps: int
    seconds: float
    running: int
    waiting: int
    finished: int
    computed_tokens: int
    output_tokens: int
    queried_tokens: int
    hit_tokens: int
    preemptions: int
    copied_blocks: int
    pool: PoolCounts
    peak_used_blocks: int
    peak_used_slots: int
    block_size: int

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the prompt tokens looked up that were found, 0 to 1."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0

    @property
    def utilization(self) -> float:
        """At the step that reserved most: slots that held a token over slots reserved."""
        return utilization(self.peak_used_slots, self.peak_used_blocks * self.block_size)
