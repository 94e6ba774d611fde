"""Who runs in the next step, and with how many tokens.

Knows sequences, the step's token budget and the block manager's answers. Does not know the model: a step is
a list of (sequence, number of tokens), prefill and decode mixed (continuous batching: Yu et al., OSDI'22;
chunked prefill: Agrawal et al., OSDI'24).

The order is first come, first served. Running sequences come before waiting ones; when the pool runs out,
the one that came last gives its blocks back and will be computed again (preemption by recomputation). The
first sequence can always take everybody's blocks, and a request that wouldn't fit even then was refused at
the door, so something always moves on.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pagedkv_lab.blocks.manager import BlockManager
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.request import Sequence


class Scheduled(NamedTuple):
    """One sequence's work in a step: its next `num_tokens` tokens, of which those at `writes` go into the pool."""

    seq: Sequence
    num_tokens: int
    writes: range

    @property
    def is_last_chunk(self) -> bool:
        """Whether the step reaches the sequence's newest token, so that the next one can be sampled."""
        return self.num_tokens == self.seq.num_uncomputed_tokens

    @property
    def kind(self) -> str:
        """ "decode" where only the newest output token is computed, else "prefill"."""
        return "decode" if self.seq.is_decoding else "prefill"


@dataclass
class Schedule:
    """A step's work, in batch order, and who had to give way for it."""

    work: list[Scheduled] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.work)


class Scheduler:
    """Holds the waiting and the running sequences. The engine calls `add`, `schedule` and `remove`."""

    def __init__(self, config: EngineConfig, manager: BlockManager):
        self.config, self.manager = config, manager
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._watermark = int(config.watermark * manager.num_blocks)

    def add(self, seq: Sequence) -> None:
        """A new sequence, to run after all that came before."""
        self.waiting.append(seq)

    def add_fork(self, parent: Sequence, child: Sequence) -> None:
        """A fork runs beside its parent, with the parent's place in the queue."""
        self.running.insert(self.running.index(parent) + 1, child)

    def remove(self, seq: Sequence) -> None:
        """The sequence is finished or aborted. Its blocks are the caller's business."""
        if seq in self.running:
            self.running.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)

    def schedule(self) -> Schedule:
        """The next step's work. Blocks for it are allocated; an empty list means that nothing can run."""
        step = Schedule()
        budget = self._schedule_running(step, self.config.max_num_batched_tokens)
        if not step.preempted:
            # Whoever was just preempted waits; letting another in would only throw it out again.
            self._schedule_waiting(step, budget)
        return step

    def preempt(self, seq: Sequence) -> None:
        """Take the sequence's blocks; it goes to the head of the queue and is computed again. Its tokens stay."""
        self.manager.free(seq)
        self.running.remove(seq)
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1
        self.waiting.appendleft(seq)

    def _schedule_running(self, step: Schedule, budget: int) -> int:
        append = self.manager.append
        i = 0
        while i < len(self.running) and budget > 0:
            seq = self.running[i]
            num_tokens = min(len(seq.token_ids) - seq.num_computed_tokens, budget)
            writes = append(seq, num_tokens)
            while writes is None:
                victim = self.running[-1]  # behind i, so never one that is in this step already
                self.preempt(victim)
                step.preempted.append(victim)
                if victim is seq:
                    return budget
                writes = append(seq, num_tokens)
            step.work.append(Scheduled(seq, num_tokens, writes))
            budget -= num_tokens
            i += 1
        return budget

    def _schedule_waiting(self, step: Schedule, budget: int) -> None:
        if not self.waiting:
            return
        places = sum(1 + running.forks_to_come for running in self.running)
        while self.waiting and budget > 0:
            seq = self.waiting[0]
            if places + 1 + seq.forks_to_come > self.config.max_num_seqs:
                break
            hits = self.manager.lookup(seq)
            num_hit = min(len(hits) * self.manager.block_size, len(seq.token_ids) - 1)
            remaining = len(seq.token_ids) - num_hit
            if remaining > budget and not self.config.enable_chunked_prefill:
                break
            if not self.manager.can_admit(seq, hits, self._watermark if self.running else 0):
                break
            self.waiting.popleft()
            self.running.append(seq)
            places += 1 + seq.forks_to_come
            seq.num_computed_tokens = self.manager.admit(seq, hits)
            if seq.request.num_cached_tokens is None:
                seq.request.num_cached_tokens = seq.num_computed_tokens
            num_tokens = min(remaining, budget)
            writes = self.manager.append(seq, num_tokens)
            assert writes is not None, "can_admit promised room for the whole sequence"
            step.work.append(Scheduled(seq, num_tokens, writes))
            budget -= num_tokens
