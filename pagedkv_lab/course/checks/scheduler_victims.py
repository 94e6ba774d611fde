"""The check of exercise 8.2: room for a sequence, and who gives way for it.

The learner's function is called with a real block manager, real sequences and two plain queues, in pools that are full.

Knows who lost its blocks and what became of it. Does not know how the function finds out.
"""

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN, Report

_BLOCK_SIZE = 4

#: Blocks in the pool; tokens that each running sequence has computed; whose turn it is, and how many new tokens it has.
CASES = (
    (4, {"a": 4, "b": 4}, "a", 1),  # two free blocks
    (4, {"a": 5, "b": 4}, "a", 2),  # room in its last block
    (2, {"a": 4, "b": 4}, "a", 1),  # b gives way
    (3, {"a": 4, "b": 4, "c": 4}, "a", 1),  # c gives way, and b stays
    (3, {"a": 4, "b": 4, "c": 4}, "b", 1),  # c, and not a
    (5, {"a": 4, "b": 8, "c": 8}, "a", 5),  # c's two blocks are enough
    (4, {"a": 4, "b": 4, "c": 4, "d": 3}, "a", 12),  # all others give way
    (2, {"a": 4, "b": 4}, "b", 1),  # b itself: a came before it
    (1, {"a": 4}, "a", 1),  # nobody else is there
)


def _drawn(draw: random.Random) -> list[tuple[int, dict[str, int], str, int]]:
    """Pools that no table holds, full or nearly full."""
    cases = []
    for _ in range(8):
        computed = {name: draw.randint(1, 12) for name in "abcdef"[: draw.randint(2, 6)]}
        held = sum(-(-length // _BLOCK_SIZE) for length in computed.values())
        cases.append((held + draw.randint(0, 1), computed, draw.choice(list(computed)), draw.randint(1, 6)))
    return cases


class World:
    """One case: a pool, the queues, and what the right answer makes of them."""

    def __init__(self, case: tuple[int, dict[str, int], str, int]):
        from pagedkv_lab.blocks import BlockManager  # with the engine comes torch: imported when the check runs
        from pagedkv_lab.engine.request import Request, Sequence
        from pagedkv_lab.engine.sampling import SamplingParams
        from pagedkv_lab.engine.scheduler import Schedule

        num_blocks, computed, turn, self.num_tokens = case
        self.manager = BlockManager(num_blocks, _BLOCK_SIZE, enable_prefix_caching=False)
        self.by_name: dict[str, Sequence] = {}
        for number, (name, length) in enumerate(computed.items(), 1):
            seq = Sequence(number, Request(number, list(range(length - 1)), SamplingParams()))
            seq.token_ids.append(0)  # one that it has said: tokens of both kinds must stay
            self.manager.admit(seq, [])
            assert self.manager.append(seq, length) is not None
            seq.num_computed_tokens = length
            self.by_name[name] = seq
        self.seq = self.by_name[turn]
        self.seq.token_ids += [0] * self.num_tokens
        self.early = Sequence(99, Request(99, [1, 2, 3], SamplingParams()))  # waits already
        self.step = Schedule()
        self.scheduler = SimpleNamespace(
            manager=self.manager, running=list(self.by_name.values()), waiting=deque([self.early])
        )
        self.tokens = {name: tuple(seq.token_ids) for name, seq in self.by_name.items()}
        self.turn = turn
        self.before = f"pool of {num_blocks} blocks of {_BLOCK_SIZE}; running: " + ", ".join(
            f"{name} ({length} tokens computed)" for name, length in computed.items()
        )
        self.text = f"make_room(scheduler, step, {turn}, num_tokens={self.num_tokens})   # {self.before}"
        self.victims, self.writes = self._right_answer(num_blocks, computed)

    def _right_answer(self, num_blocks: int, computed: dict[str, int]) -> tuple[list[str], range | None]:
        start = computed[self.turn]
        held = {name: -(-length // _BLOCK_SIZE) for name, length in computed.items()}
        needed = -(-(start + self.num_tokens) // _BLOCK_SIZE) - held[self.turn]
        free, names, victims = num_blocks - sum(held.values()), list(computed), []
        while needed > free:
            victims.append(names.pop())
            if victims[-1] == self.turn:
                return victims, None
            free += held[victims[-1]]
        return victims, range(start, start + self.num_tokens)

    def name(self, seq: Any) -> str:
        return next((name for name, one in self.by_name.items() if one is seq), "the one that waits")


def make_room(function: Any) -> Report:
    """Check an implementation of `make_room(scheduler, step, seq, num_tokens)`."""
    probe = Probe("make_room")
    try:
        if not callable(function):
            extra = "" if function is None else " Pass the function itself, without parentheses after its name."
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.{extra}")
        for case in (*CASES, *_drawn(random.Random(0))):
            _examine(probe, function, World(case))
    except Wrong as wrong:
        return Report("make_room", probe.cases, diagnosis=wrong.diagnosis)
    return Report(
        "make_room", probe.cases, ("room enough", "one gives way", "several", "itself", "what becomes of them")
    )


def _examine(probe: Probe, function: Any, world: World) -> None:
    expected = f"{world.writes}; gave way: {', '.join(world.victims) or 'nobody'}"
    outcome = probe.call(
        function, world.scheduler, world.step, world.seq, world.num_tokens, text=world.text, expected=expected
    )
    value = outcome.value
    lost = [name for name, seq in world.by_name.items() if not world.manager.room(seq)]
    touched = bool(lost) or len(world.scheduler.running) < len(world.by_name)

    def fail(code: str, message: str, hint: int, got: str = "") -> None:
        said = "None" if value is None else short(value, 60)
        got = got or f"{said}; gave way: {', '.join(lost) or 'nobody'}"
        probe.fail(code, message, call=world.text, expected=expected, got=got, hint=hint)

    if (value is None or value is ...) and world.writes is not None and not touched:
        if outcome.printed.strip():
            probe.fail(*say_none(outcome.printed), call=world.text, expected=expected, got="None", hint=1)
        if probe.cases == 1 and world.manager.room(world.seq) == 4:
            probe.fail(UNWRITTEN, say_unwritten("`make_room` returned None"), hint=1)
        if not world.victims:
            fail("returns_none", "There was room, and it returned None. Return what `append` returned.", 1)
        message = f"{world.turn} needs a block, none is free, and nobody gave way. The youngest of those that run must."
        fail("never_preempts", message, 1)
    _who(world, lost, fail)
    _what_became_of_them(world, fail)
    if world.writes is None and value is not None:
        message = f"{world.turn} has lost its own blocks. There is nothing to write to: return None."
        fail("no_none", message, 2)
    if world.writes is not None and value is None:
        message = "Room was made, and it returned None. Ask `append` again, and return the range that it returns."
        fail("returns_none", message, 2)
    if value != world.writes:
        fail("wrong_writes", f"It returned {short(value, 60)}. Return the range that `append` returned.", 1)


def _who(world: World, lost: list[str], fail: Any) -> None:
    """Were they the right ones?"""
    still = [name for name in world.victims if name not in lost]
    gone_from_running = [name for name, seq in world.by_name.items() if seq not in world.scheduler.running]
    if lost == sorted(world.victims):
        return
    if still and set(still) <= set(gone_from_running):
        message = f"{still[0]} runs no more, and still holds its blocks. `manager.free(victim)` gives them back."
        fail("victim_keeps_its_blocks", message, 3)
    if not world.victims:
        fail("preempts_needlessly", f"{lost[0]} lost its blocks, and there was room. Ask `append` first.", 1)
    if world.victims[-1] == world.turn and world.turn not in lost:
        message = (
            f"{world.turn} came last, so it is the one that gives way, even if it asked for room itself. "
            f"{' and '.join(lost) or 'Nobody'} did."
        )
        fail("spares_itself", message, 2)
    first = next(iter(world.by_name))
    if lost[:1] == [first] and first not in world.victims:
        message = f"{first} came first, and it gave way. It has done most of its work: the youngest goes, the last one."
        fail("preempts_the_oldest", message, 2)
    if set(world.victims) < set(lost):
        message = f"{len(lost)} gave way, and {len(world.victims)} would have done: after each one, ask `append` again."
        fail("preempts_too_many", message, 2)
    if set(lost) < set(world.victims):
        message = "One was not enough. As long as `append` says None, the next one gives way."
        fail("gives_up_too_early", message, 2)
    fail("preempts_another", "Others should have given way: the one that came last, then the one before it.", 2)


def _what_became_of_them(world: World, fail: Any) -> None:
    running, waiting = list(world.scheduler.running), list(world.scheduler.waiting)
    for name, seq in world.by_name.items():
        if tuple(seq.token_ids) != world.tokens[name]:
            message = f"{name} had {len(world.tokens[name])} tokens and has {len(seq.token_ids)}. They all stay."
            fail("loses_tokens", message, 3, f"{name}.token_ids has {len(seq.token_ids)} tokens")
    for name in world.victims:
        seq = world.by_name[name]
        if seq in running:
            fail("victim_still_runs", f"{name} lost its blocks and is still in `running`.", 3, f"{name} in running")
        if seq.num_computed_tokens:
            message = f"{name} lost its blocks, and its tokens still count as computed. It must begin at 0 again."
            fail("victim_keeps_its_count", message, 3, f"{name}.num_computed_tokens = {seq.num_computed_tokens}")
        if seq not in waiting:
            message = f"{name} neither runs nor waits: nobody will ever come back to it."
            fail("victim_is_lost", message, 3, f"{name} not in waiting")
        if seq.num_preemptions != 1:
            message = f"{name} was preempted once: count it, `victim.num_preemptions += 1`."
            fail("not_counted", message, 3, f"{name}.num_preemptions = {seq.num_preemptions}")
    right = [world.by_name[name] for name in reversed(world.victims)] + [world.early]
    if waiting != right:
        names = ", ".join(map(world.name, waiting))
        message = (
            "The queue is in the wrong order. Who is thrown out came before all that wait, so it goes to the head; and "
            "of several, the one that came first stands first."
        )
        fail("wrong_place_in_the_queue", message, 3, f"waiting: {names}")
    told = [world.name(seq) for seq in world.step.preempted]
    if sorted(told) != sorted(world.victims):
        message = "The step must say who lost its blocks: `step.preempted.append(victim)` for each."
        fail("preempted_not_told", message, 3, f"step.preempted: {', '.join(told) or 'nobody'}")
