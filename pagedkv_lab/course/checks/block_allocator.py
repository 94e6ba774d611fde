"""Checks of chapter 02: who owns which block.

The three allocators (2.1, 2.4, 2.5) are tried by `allocator_protocol`; the other two exercises are functions, tried on
examples here.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pagedkv_lab.blocks import BlockAllocator
from pagedkv_lab.course.checks.allocator_protocol import (
    BLOCK_SIZE,
    TRIED,
    protocol,
    searches,
)
from pagedkv_lab.course.checks.allocator_threads import threads_meet, waits_for_itself
from pagedkv_lab.course.checks.objects import ObjectCheck
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_none, say_unwritten, short
from pagedkv_lab.course.checks.registry import Exercise
from pagedkv_lab.course.checks.report import UNWRITTEN, Report
from pagedkv_lab.errors import OutOfBlocks

block_allocator = ObjectCheck("BlockAllocator", protocol(lowest_first=False), TRIED, searches)
bitmap_allocator = ObjectCheck("BitmapAllocator", protocol(lowest_first=True), (*TRIED, "the lowest block first"))


thread_safe_allocator = ObjectCheck(
    "ThreadSafeAllocator",
    (*map(waits_for_itself, protocol(lowest_first=False)), threads_meet),
    (*TRIED, "eight meetings of two threads, one of them stopped wherever it can be"),
)


# 2.2: leaked_blocks

#: Reference counts and tables, from small to large.
LEAKS: tuple[tuple[list[int], list[list[int]]], ...] = (
    ([0], []),
    ([1], [[0]]),
    ([1], []),
    ([0, 1, 0], []),
    ([2], [[0], [0]]),
    ([2], [[0]]),
    ([1, 1, 2], [[2, 0], [2, 1]]),
    ([3, 0, 1], [[0], [0]]),
    ([1], [[0], [0]]),
    ([1, 1, 1, 1], [[3], []]),
    ([5, 2, 0, 1, 1, 3, 0, 2], [[0, 5, 7], [0, 5, 1], [0, 5], [3]]),
)


def holders_of(block: int, tables: Iterable[Sequence[int]]) -> int:
    return sum(block in table for table in tables)


def leaks(ref_counts: Sequence[int], tables: Sequence[Sequence[int]]) -> list[int]:
    return [block for block, count in enumerate(ref_counts) if count > holders_of(block, tables)]


#: Known mistakes: code, what to say, hint, the wrong function.
LEAK_MISTAKES: tuple[tuple[str, str, int, Callable[[list[int], list[list[int]]], list[int]]], ...] = (
    (
        "in_use_is_no_leak",
        "It lists every block in use. A block with as many holders as tables is in good hands.",
        1,
        lambda counts, tables: [b for b, count in enumerate(counts) if count],
    ),
    (
        "shared_is_no_leak",
        "It lists shared blocks. A count of 2 is right where two tables hold the block: count the tables.",
        1,
        lambda counts, tables: [b for b, count in enumerate(counts) if count > 1],
    ),
    (
        "tables_counted_once",
        "It asks whether any table holds the block, as if that were one holder. Count how many tables do.",
        2,
        lambda counts, tables: [b for b, count in enumerate(counts) if count > (holders_of(b, tables) > 0)],
    ),
    (
        "held_blocks_leak_too",
        "It misses a leak where some table holds the block. Two holders counted and one table: one `free` is missing.",
        2,
        lambda counts, tables: [b for b, count in enumerate(counts) if count and not holders_of(b, tables)],
    ),
    (
        "too_low_is_no_leak",
        "A count that is too low is another mistake (freed too often). A leak is a count that is too high.",
        2,
        lambda counts, tables: [b for b, count in enumerate(counts) if count != holders_of(b, tables)],
    ),
    (
        "free_is_no_leak",
        "It lists the blocks that nobody holds. Those that are also counted 0 are free, as they should be.",
        1,
        lambda counts, tables: [b for b, _ in enumerate(counts) if not holders_of(b, tables)],
    ),
)


def examine_leaked_blocks(function: Any) -> Report:
    probe = Probe("leaked_blocks")
    try:
        if not callable(function):
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.")
        given = [_leaked(probe, function, counts, tables) for counts, tables in LEAKS]
        if all(answer is None for answer in given):
            probe.fail(UNWRITTEN, say_unwritten("`leaked_blocks` returned None"), hint=1)
        for (counts, tables), answer in zip(LEAKS, given, strict=True):
            _judge_leaked(probe, counts, tables, answer, given)
    except Wrong as wrong:
        return Report("leaked_blocks", probe.cases, diagnosis=wrong.diagnosis)
    tried = ("no leak", "a block that nobody holds", "shared blocks", "a shared block with one holder too many")
    return Report("leaked_blocks", probe.cases, (*tried, "a count that is too low"))


def _text_of(counts: list[int], tables: list[list[int]]) -> str:
    return f"leaked_blocks(ref_counts={counts}, tables={tables})"


def _leaked(probe: Probe, function: Callable[..., Any], counts: list[int], tables: list[list[int]]) -> Any:
    """The answer as a list of ints, or None. Raises Wrong for one that is neither."""
    text, expected = _text_of(counts, tables), str(leaks(counts, tables))
    given = (list(counts), [list(table) for table in tables])
    outcome = probe.call(function, *given, text=text, expected=expected)
    example = {"call": text, "expected": expected, "got": short(outcome.value), "hint": 1}
    if given != (counts, tables):
        message = "It changed its arguments, and they belong to a pool at work. Only look at them."
        probe.fail("mutates", message, **{**example, "got": f"ref_counts={given[0]}, tables={given[1]}"})
    value = outcome.value
    if value is None or value is ...:
        if outcome.printed.strip():
            code, message = say_none(outcome.printed)
            probe.fail(code, message, printed=outcome.printed, **example)
        return None
    if not isinstance(value, list | tuple | range | np.ndarray):
        what = "a generator: a `yield` makes one" if inspect.isgenerator(value) else f"{short(value)}"
        probe.fail("not_a_list", f"It returned {what}. Return a list of blocks, in ascending order.", **example)
    return [probe.whole_number(block, text, expected) for block in value]


def _judge_leaked(probe: Probe, counts: list[int], tables: list[list[int]], answer: Any, given: list[Any]) -> None:
    right = leaks(counts, tables)
    if answer == right:
        return
    rest = {"call": _text_of(counts, tables), "expected": str(right), "got": str(answer)}
    if answer is None:
        probe.fail("returns_none", "It returned None. Where nothing leaks, return an empty list.", hint=1, **rest)
    for code, message, hint, mistake in LEAK_MISTAKES:
        if all(a is not None and sorted(set(a)) == mistake(*case) for a, case in zip(given, LEAKS, strict=True)):
            probe.fail(code, message, hint=hint, **rest)
    if sorted(answer) == right:
        probe.fail("not_sorted", "The right blocks, in another order. Ascending, please: `sorted`.", hint=1, **rest)
    if sorted(set(answer)) == right:
        probe.fail("listed_twice", "A block is listed once, however many of its holders are missing.", hint=2, **rest)
    unknown = [block for block in answer if not 0 <= block < len(counts)]
    if unknown:
        message = f"The pool has the blocks 0 to {len(counts) - 1}. There is no block {unknown[0]}."
        probe.fail("lists_no_block", message, hint=2, **rest)
    missing = sorted(set(right) - set(answer))
    if missing:
        block = missing[0]
        held = holders_of(block, tables)
        message = f"Block {block} counts {counts[block]} and {held} tables hold it: it leaked, and it is missing here."
        probe.fail("misses_a_leak", message, hint=2, **rest)
    block = sorted(set(answer) - set(right))[0]
    held = holders_of(block, tables)
    message = f"Block {block} counts {counts[block]} and {held} tables hold it: that is no leak."
    probe.fail("lists_no_leak", message, hint=2, **rest)


# 2.3: borrowed_blocks


class Ledger(BlockAllocator):
    """The package's allocator, and the order in which blocks were taken and given back."""

    def __init__(self, num_blocks: int):
        super().__init__(num_blocks, BLOCK_SIZE)
        self.taken: list[int] = []
        self.freed: list[int] = []

    def allocate(self) -> int:
        block = super().allocate()
        self.taken.append(block)
        return block

    def free(self, block: int) -> None:
        super().free(block)
        self.freed.append(block)


class BodyFailed(Exception):
    """What the body of a `with` raises here: an error like any other."""


class Stopped(BaseException):
    """Like KeyboardInterrupt: no Exception. (A real one is the learner's own stop button.)"""


class Loan:
    """One `with borrowed_blocks(allocator, count) as blocks:`, and what came of it."""

    def __init__(
        self,
        probe: Probe,
        function: Callable[..., Any],
        num_blocks: int,
        count: int,
        body: Callable[[Any, Ledger], None] = lambda blocks, ledger: None,
        body_text: str = "pass",
    ):
        self.probe, self.ledger, self.blocks = probe, Ledger(num_blocks), None  # those that the body gets
        self.text = (
            f"allocator = BlockAllocator(num_blocks={num_blocks}, block_size={BLOCK_SIZE})\n"
            f"with borrowed_blocks(allocator, {count}) as blocks:\n    {body_text}"
        )
        self.entered, self.count = False, count
        self.held: list[int] = []  # while the body runs
        #: What passed on to the code around the `with`.
        self.error: BaseException | None = None
        manager = probe.call(function, self.ledger, count, text=self.text, expected="something for a `with`").value
        if manager is None or manager is ...:
            probe.fail(UNWRITTEN, say_unwritten("`borrowed_blocks` returned None"), hint=1)
        generator = getattr(manager, "gen", None)  # of @contextmanager
        if hasattr(manager, "gen") and not inspect.isgenerator(generator):
            if generator is None:
                message = "It has `@contextmanager`, and no `yield`: `yield` the blocks, to the body of the `with`."
                self.fail("no_yield", message, "a `yield`", "none")
            self._no_manager(generator)
        if not (hasattr(type(manager), "__enter__") and hasattr(type(manager), "__exit__")):
            self._no_manager(manager)

        def use() -> None:
            try:
                with manager as blocks:
                    self.entered = True
                    # A copy: the list may be emptied while the blocks are given back.
                    self.blocks = blocks[:] if isinstance(blocks, list) else blocks
                    self.held = [block for block in self.ledger.taken if self.ledger.ref_count(block)]
                    body(blocks, self.ledger)
            except (BodyFailed, Stopped, OutOfBlocks) as error:
                self.error = error

        probe.call(use, text=self.text, expected="no other error")

    def fail(self, code: str, message: str, expected: str, got: str, hint: int = 1) -> None:
        self.probe.fail(code, message, call=self.text, expected=expected, got=got, hint=hint)

    def all_back(self, code: str, message: str, hint: int) -> None:
        """Every block that was taken is free again."""
        lost = [block for block in self.ledger.taken if self.ledger.ref_count(block)]
        if lost:
            got = f"{len(lost)} of them still held"
            self.fail(code, message, f"all {len(self.ledger.taken)} blocks taken are free again", got, hint)

    def _no_manager(self, value: Any) -> None:
        if inspect.isgenerator(value):
            value.close()
            message = "It has a `yield`, and a `with` can't use it yet: put `@contextmanager` above the `def`."
        else:
            message = f"It returned {short(value)}, and a `with` can't use that. `yield` the blocks instead."
        self.fail("not_a_context_manager", message, "something for a `with`", short(value))


def examine_borrowed_blocks(function: Any) -> Report:
    probe = Probe("borrowed_blocks")
    try:
        if not callable(function):
            probe.fail("not_a_function", f"`check` was given {short(function)} and not a function.")
        for scenario in (_lends, _gives_back, _body_fails, _runs_out, _body_is_stopped, _others_hold, _tail_first):
            scenario(probe, function)
    except Wrong as wrong:
        return Report("borrowed_blocks", probe.cases, diagnosis=wrong.diagnosis)
    tried = ("0 to 4 blocks", "a body that fails", "one that is stopped", "a pool that runs out half-way")
    return Report("borrowed_blocks", probe.cases, (*tried, "a block with other holders", "the order of giving back"))


def _lends(probe: Probe, function: Any) -> None:
    for count in (1, 3, 0, 4):
        loan = Loan(probe, function, 4, count)
        blocks = loan.blocks
        if blocks is None:
            loan.fail(
                "yields_nothing", "`blocks` is None in the body: `yield` the list of blocks.", f"{count} blocks", "None"
            )
        if not isinstance(blocks, list | tuple):
            loan.fail("not_a_list", "`blocks` must be a list of blocks.", f"a list of {count} blocks", short(blocks))
        numbers = [probe.whole_number(block, loan.text, f"{count} blocks") for block in blocks]
        if numbers != loan.ledger.taken or len(numbers) != count:
            taken = len(loan.ledger.taken)
            message = f"{_count(count)} asked for, {taken} were allocated, and the body gets {len(numbers)}."
            loan.fail("wrong_number", message, f"{count} blocks", short(blocks))
        if loan.held != numbers:
            message = "The blocks are given back before the body runs: somebody else could get them meanwhile."
            loan.fail("given_back_too_early", message, f"{count} blocks held in the body", f"{len(loan.held)} held")


def _count(blocks: int) -> str:
    return "1 block was" if blocks == 1 else f"{blocks} blocks were"


def _gives_back(probe: Probe, function: Any) -> None:
    loan = Loan(probe, function, 4, 3)
    loan.all_back("not_given_back", "The body ended, and blocks are still held: they leaked.", 1)


def _body_fails(probe: Probe, function: Any) -> None:
    def body(blocks: Any, ledger: Ledger) -> None:
        raise BodyFailed

    loan = Loan(probe, function, 4, 3, body, "raise ValueError")
    message = "The body raised an error, and what comes after the `yield` did not run. A `finally` does run."
    loan.all_back("leaks_when_the_body_fails", message, 2)
    if not isinstance(loan.error, BodyFailed):
        message = "The body's error disappeared: whoever called goes on as if all were well. Let it pass on."
        loan.fail("swallows_the_error", message, "ValueError passes on", "no error", 2)


def _runs_out(probe: Probe, function: Any) -> None:
    loan = Loan(probe, function, 3, 5)
    if loan.entered:
        message = "5 blocks were asked for, 3 were there, and the body ran. Let OutOfBlocks pass on."
        loan.fail("swallows_the_error", message, "OutOfBlocks passes on", f"blocks = {short(loan.blocks)}", 2)
    if not isinstance(loan.error, OutOfBlocks):
        loan.fail(
            "swallows_the_error", "OutOfBlocks disappeared. Let it pass on.", "OutOfBlocks passes on", "no error", 2
        )
    message = (
        "The pool ran out half-way, and the blocks that it had given by then leaked. Allocate inside the `try`, one "
        "after the other into the list that the `finally` gives back."
    )
    loan.all_back("leaks_when_the_pool_runs_out", message, 3)


def _body_is_stopped(probe: Probe, function: Any) -> None:
    def body(blocks: Any, ledger: Ledger) -> None:
        raise Stopped

    loan = Loan(probe, function, 4, 2, body, "raise KeyboardInterrupt   # the stop button")
    message = "The stop button raises KeyboardInterrupt, which is no `Exception`. A `finally` runs for it too."
    loan.all_back("leaks_when_stopped", message, 2)
    if not isinstance(loan.error, Stopped):
        loan.fail("swallows_the_error", "The stop button was swallowed.", "KeyboardInterrupt passes on", "no error", 2)


def _others_hold(probe: Probe, function: Any) -> None:
    def body(blocks: Any, ledger: Ledger) -> None:
        ledger.share(blocks[0])

    loan = Loan(probe, function, 4, 2, body, "allocator.share(blocks[0])   # somebody else holds it too")
    count = loan.ledger.ref_count(loan.blocks[0])
    if count != 1:
        message = "Somebody else still holds the block. Give back one holder of each block, your own."
        loan.fail("frees_for_others", message, "1 holder is left", f"{count} left", 2)


def _tail_first(probe: Probe, function: Any) -> None:
    loan = Loan(probe, function, 4, 3)
    taken, freed = loan.ledger.taken, loan.ledger.freed
    if freed != taken[::-1]:
        message = "All blocks come back, in another order. The last one goes back first; chapter 05 needs that."
        loan.fail("not_tail_first", message, f"freed {taken[::-1]}", f"freed {freed}", 2)


EXERCISES = (
    Exercise("BlockAllocator", "2.1", "The block allocator", block_allocator, slot="BlockAllocator"),
    Exercise("leaked_blocks", "2.2", "Find the leak", examine_leaked_blocks),
    Exercise("borrowed_blocks", "2.3", "Give them back, whatever happens", examine_borrowed_blocks),
    Exercise("BitmapAllocator", "2.4", "A bitmap", bitmap_allocator),
    Exercise("ThreadSafeAllocator", "2.5", "Several threads", thread_safe_allocator, stretch=True),
)
