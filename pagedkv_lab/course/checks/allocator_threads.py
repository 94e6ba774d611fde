"""Exercise 2.5: an allocator that several threads use at once.

Knows which calls of two threads may meet, and what must be true afterwards. Does not know how a thread is stopped in
the middle of a call: that is `thread_races`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagedkv_lab.course.checks.allocator_protocol import Pool
from pagedkv_lab.course.checks.objects import Scenario
from pagedkv_lab.course.checks.probe import Probe, Wrong, say
from pagedkv_lab.course.checks.thread_races import PATIENCE_SECONDS, SHORT_PATIENCE_SECONDS, Call, meet
from pagedkv_lab.errors import DoubleFree, OutOfBlocks


@dataclass(frozen=True)
class Meeting:
    """Two calls that meet in a pool of `num_blocks`, after the calls `before` (all about block "its").

    code: of the diagnosis. refused: how many of the two must raise OutOfBlocks or DoubleFree. holders, num_free: what
    must be true afterwards.
    """

    code: str
    num_blocks: int
    before: tuple[str, ...]
    methods: tuple[str, str]
    refused: int
    holders: int
    num_free: int


MEETINGS = (
    Meeting("race_allocate", 1, (), ("allocate", "allocate"), refused=1, holders=1, num_free=0),
    Meeting("race_allocate", 2, (), ("allocate", "allocate"), refused=0, holders=1, num_free=0),
    Meeting("race_share", 1, ("allocate",), ("share", "share"), refused=0, holders=3, num_free=0),
    Meeting("race_free", 1, ("allocate", "share"), ("free", "free"), refused=0, holders=0, num_free=1),
    Meeting("race_free", 1, ("allocate",), ("free", "free"), refused=1, holders=0, num_free=1),
    Meeting("race_between_methods", 1, ("allocate",), ("free", "share"), refused=0, holders=1, num_free=0),
    Meeting("race_between_methods", 1, ("allocate",), ("share", "free"), refused=0, holders=1, num_free=0),
    Meeting("race_between_methods", 1, ("allocate", "share"), ("free", "share"), refused=0, holders=2, num_free=0),
)
#: Instructions of a call at which the first thread is stopped, at most.
MOST_STOPS = 400
REFUSALS = (OutOfBlocks, DoubleFree)


def threads_meet(probe: Probe, factory: Any) -> None:
    """Every meeting, the first thread stopped before each instruction of its call."""
    for meeting in MEETINGS:
        cases = probe.cases + 1  # one a meeting: how many stops there are depends on how the threads run
        at, waits = 0, 0  # the stop, and stops in a row at which the second thread waited: it stands at a lock
        while at < MOST_STOPS:
            second = hold(meeting, probe, factory, at, SHORT_PATIENCE_SECONDS if waits > 2 else PATIENCE_SECONDS)
            if second is None:
                break
            waits = waits + 1 if second.waited else 0
            # A lock is held over many instructions; giving it back and taking another one are more than three.
            at += 3 if waits > 2 else 1
        probe.cases = cases


def hold(meeting: Meeting, probe: Probe, factory: Any, at: int, patience: float) -> Call | None:
    """Let the two calls meet, the first stopped before its instruction `at`.

    Returns the second call, or None where the first has no such instruction. Raises Wrong.
    """
    pool = Pool(probe, factory, meeting.num_blocks)
    subject, block = pool.subject, 0
    for method in meeting.before:
        if method == "allocate":
            block = pool.allocate()
        else:
            pool.share(block)
    args = () if meeting.methods[0] == "allocate" else (block,)
    first, second = calls = [Call(getattr(subject.object, method), args) for method in meeting.methods]
    line = meet(first, second, at, probe.seconds, patience)
    if line is None and first.done:
        return None
    for name, method in zip("AB", meeting.methods, strict=True):
        when = "meanwhile" if name == "B" else f"stops before: {line}" if line else "stops on its way"
        subject.lines.append(f"# thread {name}: {subject.name}.{method}({', '.join(map(str, args))})   {when}")
    if not (first.done and second.done):
        message = (
            "Two threads called it at the same time and did not both come back: each holds a lock that the other "
            "needs, or one that nobody gives back. One lock for everything is enough, taken with `with`."
        )
        subject.fail("deadlock", message, expected="both calls end", got="they wait for ever", hint=3)
    if problem := what_is_wrong(meeting, pool, block, calls):
        message = (
            f"Two threads called it at the same time, and {problem}. Between two steps of one call, the other thread's "
            "call came in. Hold one lock over the whole method, from the first look to the last change."
        )
        expected = (
            f"{meeting.refused} of the two calls refused, {meeting.holders} hold the block, {meeting.num_free} free"
        )
        subject.fail(meeting.code, message, expected=expected, got=problem, hint=2)
    return second


def what_is_wrong(meeting: Meeting, pool: Pool, block: int, calls: Sequence[Call]) -> str:
    """In a few words; "" where the meeting went well."""
    refused = [call for call in calls if isinstance(call.error, REFUSALS)]
    for call in calls:
        if call.error is not None and call not in refused:
            return f"one of them got {say(call.error)}"
    if len(refused) != meeting.refused:
        return f"{len(refused)} of the calls were refused"
    if meeting.methods[0] == "allocate":
        blocks = [call.value for call in calls if call not in refused]
        if len(blocks) != len(set(blocks)):
            return f"both got block {blocks[0]}"
        block = blocks[0]
    holders, num_free = pool.ref_count(block), pool.subject.get("num_free")
    if (holders, num_free) != (meeting.holders, meeting.num_free):
        return f"now {holders} hold block {block} and {num_free} are free"
    return ""


def waits_for_itself(scenario: Scenario) -> Scenario:
    """The scenario, with a word on locks where a call does not come back."""

    def told(probe: Probe, factory: Any) -> None:
        try:
            scenario(probe, factory)
        except Wrong as wrong:
            found = wrong.diagnosis
            if found.code != "endless" or not found.got.startswith("still running"):
                raise
            message = (
                f"{found.message.partition(' Look for')[0]} With one thread only, it waits for a lock that it holds "
                "itself: a method that holds it calls another that takes it (then use an RLock), or an error came "
                "between `acquire` and `release` (then use `with`)."
            )
            probe.fail("deadlock", message, call=found.call, expected="an answer", got=found.got, hint=3)

    return told
