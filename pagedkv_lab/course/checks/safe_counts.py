"""The check of exercise 6.4: reference counts that several threads change at once.

First one thread, against a list of counts. Then two calls meet, the first stopped before each of its instructions in
turn, while the second is made whole.

Knows the counts, and what must be true after two calls. Does not know how a thread is stopped in the middle of a call:
that is `thread_races`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pagedkv_lab.course.checks.allocator_threads import waits_for_itself
from pagedkv_lab.course.checks.objects import ObjectCheck, Subject, smallest
from pagedkv_lab.course.checks.probe import Probe, say, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN
from pagedkv_lab.course.checks.thread_races import PATIENCE_SECONDS, SHORT_PATIENCE_SECONDS, Call, meet
from pagedkv_lab.errors import DoubleFree

#: Instructions of a call at which the first thread is stopped, at most.
MOST_STOPS = 400


def _hold(count: int) -> str:
    return "1 holds" if count == 1 else f"{count} hold"


class Counts:
    """A learner's counts beside the model. Every method makes one call on both and compares."""

    def __init__(self, probe: Probe, factory: Any, num_blocks: int = 3):
        self.subject = Subject(probe, factory, "counts", num_blocks=num_blocks)
        self.probe = probe
        self.holders = [0] * num_blocks

    def share(self, block: int) -> None:
        self.subject.call("share", block)
        self.holders[block] += 1

    def free(self, block: int) -> None:
        expected = self.holders[block] == 1
        value = self.subject.call("free", block, expected=str(expected), hint=2)
        self.holders[block] -= 1
        self._yes_or_no("free", value, expected, block)

    def free_too_often(self, block: int) -> None:
        value = self.subject.call_allowing(Exception, "free", block)
        if not isinstance(value, DoubleFree):
            got = type(value).__name__ if isinstance(value, Exception) else short(value)
            message = f"Nobody holds block {block}. Raise DoubleFree({block}), with the counts as they were."
            self._fail("double_free_unnoticed", message, "DoubleFree is raised", got, 2)

    def leave_if_shared(self, block: int) -> None:
        expected = self.holders[block] > 1
        value = self.subject.call("leave_if_shared", block, expected=str(expected), hint=2)
        self.holders[block] -= expected
        self._yes_or_no("leave_if_shared", value, expected, block)

    def look(self, block: int) -> None:
        value = self.subject.call("ref_count", block, expected=str(self.holders[block]), hint=1)
        expected = str(self.holders[block])
        if value is None and self.holders[block]:
            self.probe.fail(UNWRITTEN, say_unwritten("`ref_count` returned None"), hint=1)
        if self.probe.whole_number(value, self.subject.transcript, expected) != self.holders[block]:
            message = f"{expected} hold block {block}, and it counts {short(value)}."
            self._fail("wrong_count", message, expected, short(value), 1)

    def _yes_or_no(self, method: str, value: Any, expected: bool, block: int) -> None:
        if value is None:
            message = f"`{method}` returned None. Return True or False."
            self._fail("returns_none", message, str(expected), "None", 2)
        if bool(value) == expected:
            return
        if method == "free":
            last = "the last holder went" if expected else f"{self.holders[block]} still hold the block"
            message = (
                f"`free` says {short(value)}, and {last}. True means: the block is free now, and you must put it back."
            )
            self._fail("wrong_last", message, str(expected), short(value), 2)
        others = f"{self.holders[block] + expected} held the block"
        message = (
            f"`leave_if_shared` says {short(value)}, and {others}. True means: there were others, you have left, go "
            "and copy. False: you are alone, you still hold it, write in place."
        )
        self._fail("wrong_leave", message, str(expected), short(value), 2)

    def _fail(self, code: str, message: str, expected: str, got: str, hint: int) -> NoReturn:
        self.subject.fail(code, message, expected=expected, got=got, hint=hint)


def _one_thread(probe: Probe, factory: Any) -> None:
    counts = Counts(probe, factory)
    counts.look(1)
    counts.share(1)
    counts.look(1)
    counts.share(1)
    counts.look(1)
    counts.look(0)
    counts.free(1)
    counts.look(1)
    counts.free(1)
    counts.look(1)
    counts.free_too_often(1)
    counts.look(1)


def _leaves(probe: Probe, factory: Any) -> None:
    counts = Counts(probe, factory)
    counts.share(2)
    counts.leave_if_shared(2)
    counts.look(2)
    counts.share(2)
    counts.share(2)
    for _ in range(3):
        counts.leave_if_shared(2)
        counts.look(2)
    counts.free(2)


def _life(probe: Probe, factory: Any) -> None:
    rng = random.Random(0)
    kinds = rng.choices(("share", "free", "leave"), (4, 3, 3), k=120)
    steps = [(kind, rng.randrange(3)) for kind in kinds]

    def lead(life: Sequence[tuple[str, int]]) -> None:
        counts = Counts(probe, factory)
        for kind, block in life:
            if kind == "share":
                counts.share(block)
            elif kind == "free":
                (counts.free if counts.holders[block] else counts.free_too_often)(block)
            elif counts.holders[block]:
                counts.leave_if_shared(block)
            counts.look(block)

    smallest(steps, lead)


@dataclass(frozen=True)
class Meeting:
    """Two calls on block 0, which `holders` hold. answers: what the two must say, in any order; holders_after."""

    code: str
    holders: int
    methods: tuple[str, str]
    answers: tuple[bool | None, ...]
    holders_after: int
    message: str


LOST = "one of the two changes to the count is lost: both read it, and both wrote their own result."
MEETINGS = (
    Meeting("lost_share", 1, ("share", "share"), (), 3, LOST),
    Meeting(
        "both_are_last", 2, ("free", "free"), (False, True), 0,
        "not exactly one of them was told that it was the last: the block is put back twice, or never.",
    ),
    Meeting("lost_between", 2, ("free", "share"), (), 2, LOST),
    Meeting("lost_between", 2, ("share", "free"), (), 2, LOST),
    Meeting(
        "both_leave", 2, ("leave_if_shared", "leave_if_shared"), (False, True), 1,
        "not exactly one of them left: both saw two holders, and now nobody has the block; or both write into it.",
    ),
    Meeting(
        "leave_meets_free", 2, ("leave_if_shared", "free"), (), 0,
        "what the two were told does not fit the count that is left.",
    ),
)  # fmt: skip


def _threads_meet(probe: Probe, factory: Any) -> None:
    for meeting in MEETINGS:
        cases = probe.cases + 1  # one a meeting: how many stops there are depends on how the threads run
        at, waits = 0, 0
        while at < MOST_STOPS:
            second = _let_meet(meeting, probe, factory, at, SHORT_PATIENCE_SECONDS if waits > 2 else PATIENCE_SECONDS)
            if second is None:
                break
            waits = waits + 1 if second.waited else 0
            at += 3 if waits > 2 else 1
        probe.cases = cases


def _let_meet(meeting: Meeting, probe: Probe, factory: Any, at: int, patience: float) -> Call | None:
    """Let the two calls meet; None where the first one has no instruction `at`. Raises Wrong."""
    counts = Counts(probe, factory, 1)
    for _ in range(meeting.holders):
        counts.share(0)
    subject = counts.subject
    first, second = calls = [Call(getattr(subject.object, method), (0,)) for method in meeting.methods]
    line = meet(first, second, at, probe.seconds, patience)
    if line is None and first.done:
        return None
    for name, method in zip("AB", meeting.methods, strict=True):
        when = "meanwhile" if name == "B" else f"stops before: {line}" if line else "stops on its way"
        subject.lines.append(f"# thread {name}: counts.{method}(0)   {when}")
    if not (first.done and second.done):
        message = "Two threads called it at the same time and did not both come back: one lock is held for ever."
        subject.fail("deadlock", message, expected="both calls end", got="they wait for ever", hint=3)
    expected, got = _what_is_wrong(meeting, counts, calls)
    if got:
        message = (
            f"Two threads called it at the same time, and {meeting.message} Between a look at the count and its change "
            "nobody else may come in: hold one lock over both."
        )
        subject.fail(meeting.code, message, expected=expected, got=got, hint=2)
    return second


def _what_is_wrong(meeting: Meeting, counts: Counts, calls: Sequence[Call]) -> tuple[str, str]:
    """What should be and what is; "" for the latter where all is well."""
    if meeting.methods == ("leave_if_shared", "free"):
        return _leave_and_free(counts, calls)
    says = f"{' and '.join(map(str, meeting.answers))}; " if meeting.answers else ""
    expected = f"{says}{_hold(meeting.holders_after)} the block"
    for call in calls:
        if call.error is not None:
            return expected, f"one of them raised {say(call.error)}"
    holders = counts.subject.quietly("ref_count", 0)
    answers = sorted(bool(call.value) for call in calls)
    if holders == meeting.holders_after and answers in (list(meeting.answers), answers if not meeting.answers else []):
        return expected, ""
    said = f"{' and '.join(str(call.value) for call in calls)}; " if meeting.answers else ""
    return expected, f"{said}{_hold(holders)} the block"


def _leave_and_free(counts: Counts, calls: Sequence[Call]) -> tuple[str, str]:
    """Either the first has left, and the second was the last; or the first was alone and still holds the block."""
    expected = "left, and the other freed it; or alone, and 1 holds the block"
    leave, free = calls
    if leave.error is not None or free.error is not None:
        return expected, f"one of them raised {say(leave.error or free.error)}"
    holders = counts.subject.quietly("ref_count", 0)
    found = (bool(leave.value), bool(free.value), holders)
    if found in ((True, True, 0), (False, False, 1)):
        return expected, ""
    return expected, f"leave_if_shared says {leave.value}, free says {free.value}, {_hold(holders)} the block"


def _is_written(probe: Probe, factory: Any) -> None:
    """A count that is still None after a `share`, and None from the others, too: the stub."""
    counts = Counts(probe, factory)
    subject = counts.subject
    values = [
        subject.call_allowing(Exception, method, 0) for method in ("share", "ref_count", "free", "leave_if_shared")
    ]
    if all(value is None for value in values):
        subject.fail(UNWRITTEN, say_unwritten("`SafeCounts` returns None everywhere"), hint=1)


safe_counts = ObjectCheck(
    "SafeCounts",
    tuple(map(waits_for_itself, (_is_written, _one_thread, _leaves, _life, _threads_meet))),
    tried=("one thread", "a random life", "two threads, stopped before each instruction"),
)
