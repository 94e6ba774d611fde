"""The check of exercise 8.3: a scheduler that runs whole workloads, step by step, beside the right one.

The policy is said in full, so that there is one right answer to "who runs in this step, and with how many tokens". The
package's scheduler runs the same workload on a pool of its own; the first step in which the two differ is the example,
and what the difference is about gives it its name (`scheduler_differences`). No model: a step runs by counting its
tokens as computed.

Knows workloads, and how two schedulers serve them side by side. Does not know how the queues are kept.
"""

import random
from collections.abc import Sequence
from typing import Any

from pagedkv_lab.course.checks.objects import Named, ObjectCheck, Subject, smallest
from pagedkv_lab.course.checks.probe import Probe
from pagedkv_lab.course.checks.scheduler_differences import Before, Step, name_of, work_of

_BLOCK_SIZE = 4
_POOL = {"num_gpu_blocks": 32, "max_num_batched_tokens": 8, "max_num_seqs": 8, "watermark": 0.0}


class Service:
    """A learner's scheduler and the package's, which serve the same requests, each with a block manager of its own."""

    def __init__(self, probe: Probe, factory: Any, **options: Any):
        from pagedkv_lab.measure.dry_run import DryEngine

        options = _POOL | options
        self.right = DryEngine(block_size=_BLOCK_SIZE, **options)
        self.theirs = DryEngine(self._take(probe, factory), block_size=_BLOCK_SIZE, **options)
        self.subject.lines[0] += f"   # {_setting(options)}"
        self.running: list[Any] = []
        self.steps = 0

    def _take(self, probe: Probe, factory: Any) -> Any:
        """Makes the learner's scheduler, and puts the subject between it and the engine."""

        def make(config: Any, manager: Any) -> Any:
            self.subject = Subject(
                probe, factory, "scheduler", config=Named("config", config), manager=Named("manager", manager)
            )
            return _Spoken(self.subject)

        return make

    def add(self, prompt_len: int, max_tokens: int = 4, **more: Any) -> Any:
        """A request comes to both."""
        self.right.add(prompt_len, max_tokens, **more)
        seq = self.theirs.add(prompt_len, max_tokens, **more)
        several = f", {more['n']} outputs" if "n" in more else ""
        self.subject.lines[-1] += f"   # {len(seq.token_ids)} prompt tokens, {max_tokens} to come{several}"
        return seq

    def abort(self, seq: Any) -> None:
        """The request is taken back, as when a user closes the window."""
        for engine in (self.right, self.theirs):
            mine = next(one for one in engine.unfinished if one.seq_id == seq.seq_id)
            engine.scheduler.remove(mine)
            engine.manager.free(mine)
            engine.unfinished.remove(mine)
        self.running = [one for one in self.running if one is not seq]

    def step(self) -> None:
        """Both schedule a step. Compare them, and run it."""
        before = {
            seq.seq_id: Before(
                seq.num_computed_tokens, tuple(seq.token_ids), "running" if seq in self.running else "waiting"
            )
            for seq in self.theirs.unfinished
        }
        expected = self.right.scheduler.schedule()
        got = self.subject.call("schedule", expected=work_of(expected), hint=2)
        self.subject.lines[-1] = "scheduler.schedule()"
        Step(self, before, expected, got).compare()
        gone = {seq.seq_id for seq in got.preempted}
        self.running = [seq for seq in self.running if seq.seq_id not in gone]
        self.running += [seq for seq, *_ in got.work if seq not in self.running]
        self.right.run(expected)
        self.theirs.run(got)
        left = {seq.seq_id for seq in self.theirs.unfinished}
        self.running = [seq for seq in self.running if seq.seq_id in left]
        self.steps += 1

    def finish(self) -> None:
        """Until nobody is left. The right one always gets there."""
        while self.right.unfinished:
            self.step()


class _Spoken:
    """The learner's scheduler as the dry engine calls it: every call is a line of the example."""

    def __init__(self, subject: Subject):
        self.subject = subject

    def add(self, seq: Any) -> None:
        self.subject.call("add", Named(name_of(seq), seq))

    def remove(self, seq: Any) -> None:
        self.subject.call("remove", Named(name_of(seq), seq))

    def schedule(self) -> Any:
        return self.subject.call("schedule")


def _setting(options: dict[str, Any]) -> str:
    blocks = options["num_gpu_blocks"]
    words = [f"{blocks} blocks of {_BLOCK_SIZE}", f"budget {options['max_num_batched_tokens']}"]
    if options["max_num_seqs"] != _POOL["max_num_seqs"]:
        words.append(f"max_num_seqs {options['max_num_seqs']}")
    if watermark := int(options["watermark"] * blocks):
        words.append(f"watermark {watermark} blocks")
    if options.get("enable_chunked_prefill") is False:
        words.append("no chunked prefill")
    return ", ".join(words)


def one_request(probe: Probe, factory: Any) -> None:
    service = Service(probe, factory)
    service.add(5, 3)
    service.finish()
    service.step()


def several_at_once(probe: Probe, factory: Any) -> None:
    service = Service(probe, factory)
    for length in (3, 2, 3):
        service.add(length, 2)
    service.finish()


def one_joins(probe: Probe, factory: Any) -> None:
    """Continuous batching: who comes later joins, and who is done leaves."""
    service = Service(probe, factory)
    service.add(4, 6)
    service.step()
    service.add(3, 2)
    service.finish()


def a_long_prompt(probe: Probe, factory: Any) -> None:
    service = Service(probe, factory)
    service.add(4, 6)
    service.step()
    service.add(17, 2)
    service.finish()


def two_long_prompts(probe: Probe, factory: Any) -> None:
    """The budget of one step: the end of one prompt and the beginning of the next."""
    service = Service(probe, factory)
    service.add(11, 3)
    service.add(13, 3)
    service.add(2, 3)
    service.finish()


def without_chunks(probe: Probe, factory: Any) -> None:
    # The engine sees to it that any prompt fits into an empty step.
    service = Service(probe, factory, enable_chunked_prefill=False, max_num_batched_tokens=16, max_model_len=16)
    for length in (10, 9, 2):
        service.add(length, 2)
    service.finish()


def few_places(probe: Probe, factory: Any) -> None:
    service = Service(probe, factory, max_num_seqs=2)
    for length in (2, 2, 2, 2):
        service.add(length, 2)
    service.finish()


def places_for_forks(probe: Probe, factory: Any) -> None:
    service = Service(probe, factory, max_num_seqs=3)
    service.add(2, 2)
    service.add(2, 1, n=3)
    service.add(2, 1)
    for _ in range(3):
        service.step()


def a_full_pool(probe: Probe, factory: Any) -> None:
    """What doesn't fit waits, though its first chunk would fit."""
    service = Service(probe, factory, num_gpu_blocks=6)
    service.add(9, 2)
    service.add(15, 2)
    service.add(2, 2)
    service.finish()


def the_watermark(probe: Probe, factory: Any) -> None:
    service = Service(probe, factory, num_gpu_blocks=10, watermark=0.2, max_num_batched_tokens=64)
    service.add(15, 2)
    service.add(19, 2)
    service.finish()
    service = Service(probe, factory, num_gpu_blocks=4, watermark=0.5, max_num_batched_tokens=64)
    service.add(12, 2)  # into an empty engine the watermark keeps nobody out
    service.finish()


def growing_out_of_the_pool(probe: Probe, factory: Any) -> None:
    """Prompts that fit and answers that don't."""
    service = Service(probe, factory, num_gpu_blocks=4, max_num_batched_tokens=16)
    service.add(7, 6)
    service.add(8, 4)
    service.finish()


def several_give_way(probe: Probe, factory: Any) -> None:
    service = Service(probe, factory, num_gpu_blocks=6, max_num_batched_tokens=32)
    for length in (8, 8, 7):
        service.add(length, 6)
    service.step()
    service.add(3, 2)
    service.finish()


def two_give_way_at_once(probe: Probe, factory: Any) -> None:
    """b and c have the same prompt and share its blocks: when c gives way, no block comes free, and b must, too."""
    service = Service(probe, factory, num_gpu_blocks=3, max_num_batched_tokens=32, enable_prefix_caching=True)
    service.add(4, 4)
    for _ in range(2):
        service.add(0, 3, prompt=tuple(range(8)))
    service.finish()


def found_in_the_cache(probe: Probe, factory: Any) -> None:
    service = Service(probe, factory, enable_prefix_caching=True)
    prompt = tuple(range(12))
    service.add(0, 3, prompt=prompt)
    service.step()
    service.step()
    service.add(0, 2, prompt=(*prompt, 99))
    service.add(0, 2, prompt=prompt)
    service.finish()


def taken_back(probe: Probe, factory: Any) -> None:
    service = Service(probe, factory, max_num_seqs=2)
    running, _, waiting = service.add(3), service.add(3), service.add(3)
    service.step()
    service.abort(waiting)
    service.abort(running)
    service.finish()


def random_life(probe: Probe, factory: Any) -> None:
    draw = random.Random(0)
    kinds = draw.choices(("add", "step", "abort"), (3, 7, 0.4), k=160)
    life = [(kind, draw.randrange(1, 30), draw.randrange(1, 12), draw.randrange(3)) for kind in kinds]
    options = {"num_gpu_blocks": 12, "max_num_seqs": 4, "watermark": 0.1, "enable_prefix_caching": True}

    def lead(steps: Sequence[tuple[str, int, int, int]]) -> None:
        service = Service(probe, factory, **options)
        for kind, length, more, which in steps:
            if kind == "add":
                # Half of them begin alike, and are found in the cache for as long as they are there.
                service.add(0, more, prompt=tuple(range(1000 * which, 1000 * which + length)))
            elif kind == "abort":
                if service.theirs.unfinished:
                    service.abort(service.theirs.unfinished[length % len(service.theirs.unfinished)])
            else:
                service.step()
        service.finish()

    smallest(life, lead)


SCENARIOS = (
    one_request, several_at_once, one_joins, a_long_prompt, two_long_prompts, without_chunks, few_places,
    places_for_forks, a_full_pool, the_watermark, growing_out_of_the_pool, several_give_way, two_give_way_at_once,
    found_in_the_cache, taken_back, random_life,
)  # fmt: skip
TRIED = (
    "joining and leaving", "chunks", "the budget", "places", "a full pool", "the watermark", "preemption",
    "prefix hits", "requests taken back", "a random life",
)  # fmt: skip

scheduler = ObjectCheck("Scheduler", SCENARIOS, TRIED)
