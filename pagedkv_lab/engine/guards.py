"""The door for a scheduler and an attention that somebody else wrote, as `blocks/guards.py` is for the block layer.

Knows what a step's work and an attention's output must look like. Does not know any policy: who runs first is the
scheduler's business.
"""

from typing import Any

import torch

from pagedkv_lab.attention import PagedAttention
from pagedkv_lab.blocks.guards import call_part, require
from pagedkv_lab.blocks.manager import BlockManager
from pagedkv_lab.engine.request import Sequence
from pagedkv_lab.engine.scheduler import Schedule, Scheduled
from pagedkv_lab.errors import PartError


class GuardedScheduler:
    """A learner's scheduler. What it raises, and work that can't be done, is said in terms of the part."""

    name = "Scheduler"

    def __init__(self, part: Any, manager: BlockManager):
        require(part, self.name, "add", "schedule", "remove")
        for attribute in ("waiting", "running"):
            if not hasattr(part, attribute):
                raise PartError(self.name, "__init__", f"it keeps no list called {attribute}")
        self.part, self.manager = part, manager

    @property
    def waiting(self) -> Any:
        return self.part.waiting

    @property
    def running(self) -> Any:
        return self.part.running

    def add(self, seq: Sequence) -> None:
        call_part(self.name, "add", self.part.add, seq)

    def add_fork(self, parent: Sequence, child: Sequence) -> None:
        require(self.part, self.name, "add_fork")
        call_part(self.name, "add_fork", self.part.add_fork, parent, child)

    def remove(self, seq: Sequence) -> None:
        call_part(self.name, "remove", self.part.remove, seq)

    def schedule(self) -> Schedule:
        step = call_part(self.name, "schedule", self.part.schedule)
        if not isinstance(step, Schedule):
            raise PartError(self.name, "schedule()", f"it returned {type(step).__name__}, not a Schedule")
        seen: set[int] = set()
        for item in step.work:
            if what := self._wrong_with(item, seen):
                raise PartError(self.name, "schedule()", what)
            seen.add(item.seq.seq_id)
        return step

    def _wrong_with(self, item: Any, seen: set[int]) -> str | None:
        """Why the runner can't do this piece of work; None where it can."""
        if not isinstance(item, Scheduled):
            return f"its work holds a {type(item).__name__}, not a Scheduled"
        seq = item.seq
        if seq.seq_id in seen:
            return f"{seq.name} is in the step twice"
        if not 1 <= item.num_tokens <= seq.num_uncomputed_tokens:
            return f"{seq.name} is to compute {item.num_tokens} tokens and has {seq.num_uncomputed_tokens} to compute"
        end = seq.num_computed_tokens + item.num_tokens
        room = self.manager.room(seq)
        if room < end:
            return f"{seq.name} is to reach token {end} and has blocks for {room}: ask manager.append(seq, num_tokens)"
        if not seq.num_computed_tokens <= item.writes.start <= item.writes.stop == end:
            return f"{seq.name} is to write {item.writes!r}: hand on the range that manager.append returned"
        return None


def guard_attention(function: PagedAttention) -> PagedAttention:
    """A learner's attention: what it raises, and an output of the wrong shape, is said in terms of the part."""

    def watched(query: torch.Tensor, key_pool: torch.Tensor, value_pool: torch.Tensor, *args: Any, **options: Any):
        options.pop("workspace", None)
        options = {name: value for name, value in options.items() if value is not None}
        tables, *lens = args
        args = (tables.contiguous(), *([int(n) for n in each] for each in lens))  # plain lists, as the article has them
        output = call_part(
            "paged_attention", "paged_attention", lambda *a: function(*a, **options), query, key_pool, value_pool, *args
        )
        wanted = (*query.shape[:2], value_pool.shape[3])
        if not isinstance(output, torch.Tensor) or tuple(output.shape) != wanted:
            got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise PartError("paged_attention", "paged_attention", f"it returned {got}, not a tensor of {wanted}")
        return output

    return watched
