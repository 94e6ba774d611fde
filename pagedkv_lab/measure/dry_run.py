"""An engine without a model: who runs when, in milliseconds and without weights.

A step "runs" by counting its tokens as computed; a sequence whose newest token was computed gets one more, and ends
when it has as many as it asked for. Which token that is plays no part in scheduling.

    reports = dry_run([Arrival(0, prompt_len=5, max_tokens=3), Arrival(2, 17, 4)], max_num_batched_tokens=8)

Knows scheduler, block manager and steps. Does not know tensors, and says nothing about seconds: a step is a step.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from pagedkv_lab.blocks import BlockManager
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.report import StepReport
from pagedkv_lab.engine.request import Request, RequestOutput, Sequence
from pagedkv_lab.engine.sampling import SamplingParams
from pagedkv_lab.engine.scheduler import Schedule, Scheduler

_MAX_MODEL_LEN = 1 << 20
#: Steps after which a run is given up, where nothing has moved for so long.
_MOST_IDLE_STEPS = 3


@dataclass(frozen=True)
class Arrival:
    """A request that comes when `step` steps have run. n: outputs; places are kept for them, but none is forked.

    prompt: its tokens, where it matters which they are (for prefix hits). By default nobody else has the same.
    """

    step: int
    prompt_len: int
    max_tokens: int
    n: int = 1
    prompt: tuple[int, ...] | None = None


class DryEngine:
    """A scheduler and a block manager with the engine around them that they expect.

    scheduler: makes one, as `Parts.Scheduler` does. options: those of `EngineConfig`; 64 blocks and no prefix caching,
    where nothing else is said.
    """

    def __init__(self, scheduler: Callable[[EngineConfig, BlockManager], Any] = Scheduler, **options: Any):
        self.config = EngineConfig(**{"num_gpu_blocks": 64, "enable_prefix_caching": False} | options)
        self.config.resolve(_MAX_MODEL_LEN)
        self.manager = BlockManager(
            self.config.num_gpu_blocks,
            self.config.block_size,
            enable_prefix_caching=self.config.enable_prefix_caching,
        )
        self.scheduler = scheduler(self.config, self.manager)
        self.unfinished: list[Sequence] = []
        self._ids = count(1)
        self._steps = self._hits = 0

    def add(self, prompt_len: int, max_tokens: int, n: int = 1, prompt: tuple[int, ...] | None = None) -> Sequence:
        """Queue a request of one sequence."""
        number = next(self._ids)
        tokens = list(prompt) if prompt else [1_000_000 * number + i for i in range(prompt_len)]
        request = Request(number, tokens, SamplingParams(n=n, max_tokens=max_tokens))
        seq = Sequence(number, request)
        request.sequences.append(seq)
        self.unfinished.append(seq)
        self.scheduler.add(seq)
        return seq

    def run(self, schedule: Schedule) -> StepReport:
        """As if the model had run this schedule."""
        ran, tokens, finished = [], [], []
        for seq, num_tokens, _ in schedule.work:
            number = seq.request.request_id
            ran.append((number, seq.index, num_tokens, "decode" if seq.is_decoding else "prefill"))
            seq.num_computed_tokens += num_tokens
            if seq.num_uncomputed_tokens == 0:
                seq.token_ids.append(0)
                tokens.append((number, seq.index, 0))
        self.manager.commit_step()
        for seq in [seq for seq, *_ in schedule.work if seq.num_output_tokens >= seq.params.max_tokens]:
            seq.finish_reason = "length"
            self.unfinished.remove(seq)
            self.scheduler.remove(seq)
            self.manager.free(seq)
            finished.append(RequestOutput.of(seq.request))
        self._steps += 1
        hits_before, self._hits = self._hits, self.manager.hit_tokens
        return StepReport(
            step=self._steps,
            ran=tuple(ran),
            tokens=tuple(tokens),
            pool=self.manager.counts(),
            used_slots=self.manager.used_slots,
            hit_tokens=self._hits - hits_before,
            preempted=tuple(seq.request.request_id for seq in schedule.preempted),
            num_copied_blocks=len(self.manager.take_copies()),
            finished=tuple(finished),
            seconds=0.0,
        )

    def step(self) -> StepReport:
        """Schedule a step and run it."""
        return self.run(self.scheduler.schedule())


def dry_run(
    arrivals: Iterable[Arrival], scheduler: Callable[[EngineConfig, BlockManager], Any] = Scheduler, **options: Any
) -> list[StepReport]:
    """Run all requests to their end. Requests are numbered from 1, in the order of their arrival.

    Raises RuntimeError where nobody runs any more and somebody still waits.
    """
    engine = DryEngine(scheduler, **options)
    coming = deque(sorted(arrivals, key=lambda arrival: arrival.step))
    reports: list[StepReport] = []
    idle = 0
    while coming or engine.unfinished:
        while coming and coming[0].step <= len(reports):
            arrival = coming.popleft()
            engine.add(arrival.prompt_len, arrival.max_tokens, arrival.n, arrival.prompt)
        reports.append(engine.step())
        idle = 0 if reports[-1].ran or not engine.unfinished else idle + 1
        if idle == _MOST_IDLE_STEPS:
            waiting = ", ".join(seq.name for seq in engine.unfinished)
            raise RuntimeError(f"nobody ran for {idle} steps, and {waiting} did not finish: {engine.manager.counts()}")
    return reports


def token_steps(reports: Iterable[StepReport]) -> dict[int, list[int]]:
    """By request, the steps that gave it a token. They are counted from 1, as in the engine's reports."""
    steps: dict[int, list[int]] = {}
    for report in reports:
        for number, _, _ in report.tokens:
            steps.setdefault(number, []).append(report.step)
    return dict(sorted(steps.items()))


class Waiting(NamedTuple):
    """What a policy knows of a request that waits: tokens to compute before it can answer, steps since it came."""

    prompt_len: int
    waited: int


def by_policy(choose_next: Callable[[list[Waiting]], Waiting]) -> type[Scheduler]:
    """The package's scheduler, with another rule for who comes in next: `choose_next(waiting)` says which.

    waiting: in the order of arrival, at least one. Whoever was preempted comes in first, whatever the rule.
    """

    class ByPolicy(Scheduler):
        def __init__(self, config: EngineConfig, manager: BlockManager):
            super().__init__(config, manager)
            self.now = 0
            self.came: dict[int, int] = {}

        def add(self, seq: Sequence) -> None:
            self.came[seq.seq_id] = self.now
            super().add(seq)

        def schedule(self) -> Schedule:
            rest = [seq for seq in self.waiting if not seq.num_preemptions]
            chosen = [seq for seq in self.waiting if seq.num_preemptions]
            for _ in range(self.config.max_num_seqs - len(self.running)):
                if not rest:
                    break
                asked = [Waiting(seq.prompt_len, self.now - self.came[seq.seq_id]) for seq in rest]
                answer = choose_next(asked)
                chosen.append(rest.pop(next(i for i, one in enumerate(asked) if one is answer)))
            self.waiting = deque(chosen + sorted(rest, key=lambda seq: seq.seq_id))
            self.now += 1
            return super().schedule()

    return ByPolicy


def generated_arrivals(seed: int, num_requests: int = 90) -> list[Arrival]:
    """Traffic for policies: questions, and now and then somebody who pastes a document (18 % of the requests)."""
    draw = random.Random(seed)
    arrivals, step = [], 0
    for _ in range(num_requests):
        step += draw.randrange(4)
        prompt_len = draw.randrange(200, 400) if draw.random() < 0.18 else draw.randrange(10, 60)
        arrivals.append(Arrival(step, prompt_len, max_tokens=draw.randrange(4, 12)))
    return arrivals
