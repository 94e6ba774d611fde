"""How a step of the learner's scheduler differs from the right one, in words.

A difference may have several causes: what says most is looked for first, and the first that is found is told.

Knows two steps, and what was before them. Does not know how the requests came to be where they are: `scheduler_steps`
does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagedkv_lab.course.checks.probe import say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN
from pagedkv_lab.sizing import blocks_for

if TYPE_CHECKING:  # the engine brings torch: it is imported when a check runs, not when all checks are listed
    from pagedkv_lab.course.checks.scheduler_steps import Service
    from pagedkv_lab.engine.scheduler import Schedule


@dataclass(frozen=True)
class Before:
    """What a sequence was like before a step was scheduled."""

    computed: int
    tokens: tuple[int, ...]
    state: str  # "running", "waiting"


class Step:
    """One step of the two, compared. Every difference has a name; the first that is found is told."""

    def __init__(self, service: "Service", before: dict[int, Before], expected: "Schedule", got: Any):
        self.service, self.before, self.expected, self.got = service, before, expected, got
        self.subject, self.config = service.subject, service.theirs.config
        self.manager = service.theirs.manager

    def compare(self) -> None:
        self._is_a_schedule()
        self.lost = {seq.seq_id: seq for seq in self.got.preempted}
        self._who_was_preempted()
        self._can_be_run()
        self.subject.lines[-1] += f"   # {work_of(self.got)}"
        self._within_limits()
        self._who_runs()
        self._how_many_tokens()
        self._what_became_of_them()

    def fail(self, code: str, message: str, got: str = "", expected: str = "", hint: int = 2) -> None:
        got = got or (work_of(self.got) if hasattr(self.got, "work") else short(self.got))
        self.subject.fail(code, message, expected=expected or work_of(self.expected), got=got, hint=hint)

    # Can the engine do it at all?

    def _is_a_schedule(self) -> None:
        from pagedkv_lab.engine.request import Sequence
        from pagedkv_lab.engine.scheduler import Schedule, Scheduled

        if self.got is None or self.got is ...:
            if not self.service.steps:
                self.subject.fail(UNWRITTEN, say_unwritten("`schedule()` returned None"), hint=1)
            self.fail("returns_none", "`schedule()` returned None in this step: one way ends without a `return`.")
        if not isinstance(self.got, Schedule):
            self.fail("not_a_schedule", f"`schedule()` returned {short(self.got, 80)}. Return the `Schedule` itself.")
        if not all(isinstance(seq, Sequence) for seq in self.got.preempted or ()) or self.got.preempted is None:
            message = f"`step.preempted` is {short(self.got.preempted, 80)}. It is a list of sequences."
            self.fail("preempted_not_sequences", message, got=short(self.got.preempted, 80), hint=3)
        for item in self.got.work:
            if not isinstance(item, Scheduled) or not isinstance(item.seq, Sequence):
                message = f"Its work holds {short(item, 80)}. Each piece is `Scheduled(seq, num_tokens, writes)`."
                self.fail("not_scheduled", message, got=short(item, 80), hint=3)

    def _can_be_run(self) -> None:
        unfinished = {seq.seq_id: seq for seq in self.service.theirs.unfinished}
        twins = {seq.seq_id: seq for seq, *_ in self.expected.work}
        seen: set[int] = set()
        for seq, num_tokens, writes in self.got.work:
            name = name_of(seq)
            if seq.seq_id not in unfinished:
                message = f"{name} has been removed, because it was done, and it is in the step."
                self.fail("runs_the_removed", message, hint=1)
            if seq.seq_id in seen:
                self.fail("twice", f"{name} is in the step twice. It has one newest token, not two.", hint=2)
            seen.add(seq.seq_id)
            if seq.seq_id in self.lost:
                message = (
                    f"{name} lost its blocks in this step, and is in the work of the same step: there is no room to "
                    "write its keys to. Take victims from behind those that are in the step already."
                )
                self.fail("runs_a_victim", message, hint=2)
            self.subject.probe.whole_number(num_tokens, self.subject.transcript, work_of(self.expected), hint=3)
            if isinstance(num_tokens, float):
                self.fail(
                    "wrong_type", f"{name} is given {num_tokens!r} tokens, a float. `//` divides to an int.", hint=3
                )
            was = self.before[seq.seq_id]
            if was.state == "running" and seq.num_computed_tokens != was.computed:
                self._computed_changed(seq, was)
            twin = twins.get(seq.seq_id)
            if twin is not None and seq.num_computed_tokens != twin.num_computed_tokens:
                message = (
                    f"{twin.num_computed_tokens} tokens of {name} were found in the cache, and it says "
                    f"{seq.num_computed_tokens}. What `manager.admit` returns is where the computing begins."
                )
                self.fail("ignores_hits", message, f"{name}.num_computed_tokens = {seq.num_computed_tokens}", hint=3)
            if not 1 <= num_tokens <= seq.num_uncomputed_tokens:
                message = (
                    f"{name} is to compute {num_tokens} tokens, and has {seq.num_uncomputed_tokens} that are not "
                    f"computed yet ({len(seq.token_ids)} in all, {seq.num_computed_tokens} computed)."
                )
                self.fail("no_such_tokens", message, hint=3)
            end = seq.num_computed_tokens + num_tokens
            if self.manager.room(seq) < end:
                message = (
                    f"{name} is to reach token {end}, and its blocks have room for {self.manager.room(seq)}. Ask "
                    "`manager.append(seq, num_tokens)` before you put it into the step."
                )
                self.fail("no_room", message, hint=2)
            if not isinstance(writes, range) or writes.stop != end or writes.start < seq.num_computed_tokens:
                message = f"The writes of {name} are {short(writes, 60)}. Hand on the range that `append` returned."
                self.fail("wrong_writes", message, got=short(writes, 60), hint=3)

    def _computed_changed(self, seq: Any, was: Before) -> None:
        name, now = name_of(seq), seq.num_computed_tokens
        if now > was.computed:
            message = (
                f"`schedule` counted tokens of {name} as computed: {was.computed}, then {now}. They are not, before "
                "the step has run; the engine counts them then."
            )
            self.fail("counts_too_early", message, got=f"{name}.num_computed_tokens = {now}", hint=3)
        message = (
            f"{name} had {was.computed} tokens computed, and `schedule` set that to {now}. A prompt that is computed "
            "in chunks goes on where its last chunk ended: its keys and values are in its blocks."
        )
        self.fail("loses_a_chunk", message, got=f"{name}.num_computed_tokens = {now}", hint=2)

    def _within_limits(self) -> None:
        budget, total = self.config.max_num_batched_tokens, sum(item.num_tokens for item in self.got.work)
        if total > budget:
            message = f"The step has {total} tokens, and max_num_batched_tokens is {budget}."
            self.fail("exceeds_the_budget", message, f"{work_of(self.got)}: {total} tokens", hint=1)

    # Who gave way?

    def _who_was_preempted(self) -> None:
        right = [name_of(seq) for seq in self.expected.preempted]
        told = [name_of(seq) for seq in self.got.preempted]
        untold = [name_of(s) for s in self.service.running if not self.manager.room(s) and name_of(s) not in told]
        if untold and untold[0] in right:
            message = f"{untold[0]} lost its blocks. The step must say so: `step.preempted.append(victim)`."
            self.fail("preempted_not_told", message, f"preempted: {_list(told)}", f"preempted: {_list(right)}", hint=3)
        told += untold
        if told == right:
            return
        rest = {"got": _with_victims(self.got), "expected": _with_victims(self.expected)}
        if not told:
            message = (
                "The pool is full, and nobody gave way. The one that came last must give its blocks back, so that "
                "those before it can go on; else, with every block taken, nobody can."
            )
            self.fail("never_preempts", message, hint=2, **rest)
        if not right:
            message = f"{told[0]} lost its blocks, and there were enough for everybody."
            self.fail("preempts_needlessly", message, hint=2, **rest)
        if sorted(told) == sorted(right):
            message = "These are the right ones, in another order: one after the other, the youngest first."
            self.fail("another_order", message, hint=2, **rest)
        running = [name_of(seq) for seq in self.service.running]
        if told[0] == running[0] != right[0]:
            message = (
                f"{told[0]} came first and was thrown out. It loses most, and whoever is thrown out again and again "
                "never ends. The one that came last gives way."
            )
            self.fail("preempts_the_oldest", message, hint=2, **rest)
        if told[: len(right)] == right:
            message = "More gave way than had to: after each one, ask `append` again."
            self.fail("preempts_too_many", message, hint=2, **rest)
        message = "Others should have given way: always the one that came last among those that run."
        self.fail("preempts_another", message, hint=2, **rest)

    # Who runs?

    def _who_runs(self) -> None:
        right = [seq.seq_id for seq, *_ in self.expected.work]
        got = {seq.seq_id: seq for seq, *_ in self.got.work}
        missing = [seq for seq, *_ in self.expected.work if seq.seq_id not in got]
        extra = [seq for number, seq in got.items() if number not in right]
        # A running one that was left out says more than who got its place.
        for seq in missing:
            if self.before[seq.seq_id].state == "running":
                self._left_out(seq)
        for seq in extra:
            self._too_much(seq, missing)
        if missing:
            self._kept_waiting(missing[0])

    def _left_out(self, right: Any) -> None:
        name, was = name_of(right), self.before[right.seq_id]
        if right.is_decoding:
            message = (
                f"{name} is generating, and gets nothing in this step. Those that run come first, one token each, or "
                "their users see the text stop."
            )
            self.fail("starves_decodes", message, hint=1)
        message = (
            f"{name} has {was.computed} of {len(was.tokens)} tokens computed. The rest of its prompt must follow: it "
            "holds blocks, and it can't answer before."
        )
        self.fail("forgets_the_rest", message, hint=2)

    def _too_much(self, seq: Any, missing: Sequence[Any]) -> None:
        """`seq` was let in, and should not have been."""
        name = name_of(seq)
        num_running = len([one for one in self.service.running if one.seq_id not in self.lost])
        if missing:
            message = (
                f"{name} came after {name_of(missing[0])} and was let in before it. First come, first served: when the "
                "head of the queue can't come in, nobody can. (A sequence that was thrown out goes back to the head.)"
            )
            self.fail("overtakes", message, hint=1)
        places = num_running + sum(
            1 + max(0, one.forks_to_come) for one, *_ in self.got.work if self.before[one.seq_id].state == "waiting"
        )
        if places > self.config.max_num_seqs:
            forks = f" {name} will be {1 + seq.forks_to_come} of them." if seq.forks_to_come else ""
            message = f"At most {self.config.max_num_seqs} sequences run at once (max_num_seqs).{forks}"
            self.fail("exceeds_max_num_seqs", message, hint=1)
        first = self._head_of_the_queue()
        if first is not None and first.seq_id != seq.seq_id:
            message = (
                f"{name_of(first)} is at the head of the queue and can't come in yet. {name} came later, and overtook "
                "it. First come, first served: stop there."
            )
            self.fail("overtakes", message, hint=1)
        if not self.config.enable_chunked_prefill and seq.num_uncomputed_tokens > self._left_by_others(seq):
            message = (
                f"Chunked prefill is off, and what is left of the step's budget does not take the prompt of {name} "
                "whole. It must wait for a step that does."
            )
            self.fail("cuts_a_prompt", message, hint=2)
        needed = blocks_for(len(self.before[seq.seq_id].tokens), self.config.block_size)
        free = self._free_before()
        watermark = int(self.config.watermark * self.config.num_gpu_blocks)
        if needed <= free:
            message = (
                f"{name} needs {needed} blocks of {free} free ones, and {watermark} must stay free while others run "
                "(the watermark), or the first of them that grows throws somebody out."
            )
            self.fail("ignores_the_watermark", message, hint=2)
        message = (
            f"{name} has {len(self.before[seq.seq_id].tokens)} tokens, which is {needed} blocks, and {free} are free. "
            "Its first chunk fits, the whole does not: it would be thrown out half-way."
        )
        self.fail("admits_what_cant_fit", message, hint=2)

    def _kept_waiting(self, right: Any) -> None:
        """`right` should have come in, and nobody came in its place."""
        name = name_of(right)
        if right.num_preemptions:
            message = (
                f"{name} was thrown out, and now there is room for it again: it should come back, from the head of the "
                "queue. What it has said stays said."
            )
            self.fail("never_comes_back", message, hint=2)
        if any(self.before[seq.seq_id].state == "waiting" for seq, *_ in self.got.work):
            message = (
                f"{name} could come in, too: a place, blocks and some of the budget are left for it. Go on with the "
                "next in the queue for as long as all three allow it."
            )
            self.fail("stops_too_early", message, hint=1)
        if self.service.running:
            message = (
                f"{name} waits, with room for it in the batch, the budget and the pool, until others are done. That is "
                "static batching: a batch that nobody joins."
            )
            self.fail("static_batching", message, hint=1)
        message = f"{name} waits, every block is free, and nobody runs. It would wait for ever."
        self.fail("never_starts", message, hint=1)

    # With how many tokens, and in which state?

    def _how_many_tokens(self) -> None:
        right = {seq.seq_id: num_tokens for seq, num_tokens, _ in self.expected.work}
        for seq, num_tokens, _ in self.got.work:
            # More than expected can't be: the budget is kept, so somebody else would have got less.
            if num_tokens < right[seq.seq_id]:
                message = (
                    f"{name_of(seq)} could compute {right[seq.seq_id]} tokens in this step, and is given {num_tokens}."
                )
                self.fail("wastes_the_budget", message, hint=1)

    def _what_became_of_them(self) -> None:
        for seq in self.service.theirs.unfinished:
            name, was = name_of(seq), self.before[seq.seq_id]
            if tuple(seq.token_ids) != was.tokens:
                message = (
                    f"{name} had {len(was.tokens)} tokens and has {len(seq.token_ids)}. Its tokens stay, those that it "
                    "has said too: only their keys and values are lost with the blocks."
                )
                self.fail("loses_tokens", message, got=f"{len(seq.token_ids)} tokens", hint=3)
            if seq.seq_id in self.lost:
                if seq.num_computed_tokens:
                    message = (
                        f"{name} lost its blocks and still counts {seq.num_computed_tokens} tokens as computed. Their "
                        "keys and values are gone: it must begin at 0."
                    )
                    self.fail("victim_keeps_its_count", message, got=f"{seq.num_computed_tokens} computed", hint=3)
                if self.manager.room(seq):
                    message = f"{name} was preempted and still holds its blocks: `manager.free(victim)`."
                    self.fail("victim_keeps_its_blocks", message, got=f"room for {self.manager.room(seq)}", hint=3)
            elif was.state == "running" and seq.num_computed_tokens != was.computed:
                self._computed_changed(seq, was)

    # Inside

    def _head_of_the_queue(self) -> Any:
        """The sequence that comes in next by the right policy; None where nobody waits after this step."""
        waiting = self.service.right.scheduler.waiting
        return waiting[0] if waiting else None

    def _left_by_others(self, seq: Any) -> int:
        others = sum(item.num_tokens for item in self.got.work if item.seq is not seq)
        return self.config.max_num_batched_tokens - others

    def _free_before(self) -> int:
        """Free blocks as the right one saw them when it did not let the sequence in."""
        return self.service.right.manager.allocator.num_free


def name_of(seq: Any) -> str:
    """a, b, c, ...: short names, in the order of arrival."""
    number = seq.seq_id
    return chr(96 + number) if number <= 26 else f"seq{number}"


def work_of(schedule: Any) -> str:
    """ "a 1, b 7", or "nothing"."""
    work = ", ".join(f"{name_of(seq)} {num_tokens}" for seq, num_tokens, _ in schedule.work)
    return (work or "nothing") + (f"; preempted: {_victims(schedule)}" if schedule.preempted else "")


def _victims(schedule: Any) -> str:
    return ", ".join(map(name_of, schedule.preempted))


def _with_victims(schedule: Any) -> str:
    return work_of(schedule) + ("" if schedule.preempted else "; nobody preempted")


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "nobody"
