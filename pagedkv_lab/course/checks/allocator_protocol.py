"""The allocator's protocol, tried from one block to a random life: for every exercise that asks for an allocator.

Each call is made on the learner's allocator and on a tiny model of the right behaviour, a list with the number of
holders of each block.

Knows behaviour. The order in which blocks are handed out is free, except where the exercise says which. Does not know
which exercise asks.
"""

import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from pagedkv_lab.course.checks.limits import call_with_limit
from pagedkv_lab.course.checks.objects import Scenario, Subject, smallest
from pagedkv_lab.course.checks.probe import Probe, Wrong, say, say_none, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN
from pagedkv_lab.errors import DoubleFree, OutOfBlocks

BLOCK_SIZE = 16


class Pool:
    """A learner's allocator beside the model: `holders[block]`. Every method makes one call on both and compares.

    lowest_first: the exercise asks for the free block with the lowest number.
    all_findable: an allocator that revives a block only if it was marked findable (the package's, chapter 05's) is told
        so of each.
    """

    all_findable = False

    def __init__(self, probe: Probe, factory: Any, num_blocks: int, lowest_first: bool = False, name: str = ""):
        name = name or "allocator"
        self.subject = Subject(probe, factory, name, num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self.probe, self.num_blocks, self.lowest_first = probe, num_blocks, lowest_first
        self.holders = [0] * num_blocks
        self.revived: set[int] = set()  # by `share`, since they were free
        self.given_back: set[int] = set()

    @property
    def num_free(self) -> int:
        return self.holders.count(0)

    def allocate(self) -> int:
        """Take a block, which must be a free one."""
        expected = f"block {self.holders.index(0)}" if self.lowest_first else "a free block"
        value = self.subject.call_allowing(Exception, "allocate")
        if isinstance(value, Exception):
            self._says_empty(value)
        if value is None:
            self._fail("returns_none", "`allocate` returned None. Return the number of the block.", expected, "None")
        block = self._whole(value, expected)
        if not 0 <= block < self.num_blocks:
            message = f"`allocate` handed out block {block}. {self._numbers}"
            self._fail("no_such_block", message, expected, f"block {block}")
        if self.holders[block]:
            self._handed_out_in_use(block, expected)
        if self.lowest_first and any(count == 0 for count in self.holders[:block]):
            lowest = self.holders.index(0)
            message = f"Block {lowest} is free, and it handed out block {block}. This one hands out the lowest first."
            self._fail("not_the_lowest", message, expected, f"block {block}", hint=2)
        self.holders[block] = 1
        self.given_back.discard(block)
        self.revived.discard(block)
        if self.all_findable and callable(getattr(self.subject.object, "mark_findable", None)):
            self.subject.quietly("mark_findable", block)
        return block

    def allocate_from_nothing(self) -> None:
        """Ask for a block where none is left: OutOfBlocks."""
        expected = "OutOfBlocks is raised"
        value = self.subject.call_allowing(Exception, "allocate")
        if isinstance(value, OutOfBlocks):
            return
        if isinstance(value, Exception):
            message = (
                f"No block is left, and `allocate` raised {say(value)}. Raise OutOfBlocks, which whoever called can "
                "tell from a mistake in the code: `raise OutOfBlocks(used=...)`."
            )
            self._fail("wrong_error_when_empty", message, expected, type(value).__name__, hint=2)
        if isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value < self.num_blocks:
            self._handed_out_in_use(int(value), expected)
        if value == self.num_blocks and not isinstance(value, bool):
            message = f"`allocate` handed out block {value}, one block too many. {self._numbers}"
            self._fail("no_such_block", message, expected, f"block {value}")
        message = (
            f"No block is left, and `allocate` returned {short(value)}. Nobody looks at every answer: a sequence would "
            "go on with it as if it were a block. Raise OutOfBlocks."
        )
        self._fail("no_error_when_empty", message, expected, short(value), hint=2)

    def share(self, block: int) -> None:
        """One more holder; of a free block, the first."""
        was_free, self.holders[block] = self.holders[block] == 0, self.holders[block] + 1
        if was_free:
            self.revived.add(block)
        value = self.subject.call_allowing(Exception, "share", block)
        if isinstance(value, Exception):
            state = "is free and comes back to life" if was_free else "is in use and gets one more holder"
            message = f"Block {block} {state}, and `share` raised {say(value)}."
            self._fail("share_refuses", message, "no error", type(value).__name__, hint=3 if was_free else 1)

    def free(self, block: int) -> None:
        """One holder less."""
        self.holders[block] -= 1
        value = self.subject.call_allowing(Exception, "free", block)
        if isinstance(value, Exception):
            left = f"{self.holders[block] + 1} held it" if self.holders[block] else "one still held it"
            message = f"`free` refused block {block}, and {left}: it raised {say(value)}."
            self._fail("free_refuses", message, "no error", type(value).__name__)
        if self.holders[block] == 0:
            self.given_back.add(block)

    def free_too_often(self, block: int) -> None:
        """`free` of a block that nobody holds: DoubleFree, and nothing has changed."""
        expected = "DoubleFree is raised"
        value = self.subject.call_allowing(Exception, "free", block)
        if isinstance(value, DoubleFree):
            return
        if isinstance(value, Exception):
            message = f"Nobody holds block {block}. `free` noticed and raised {say(value)}; raise DoubleFree({block})."
            self._fail("wrong_error_for_double_free", message, expected, type(value).__name__, hint=2)
        message = f"Nobody held block {block} any more, and `free({block})` did not object."
        got = "no error"
        if twice := self._handed_out_twice():
            message = f"Block {twice[0]} was handed out twice: it was freed twice, and `free` did not notice."
            got = f"two owners of block {twice[0]}"
        message += " Sooner or later two sequences write into the same memory. Raise DoubleFree where the count is 0."
        self._fail("double_free_unnoticed", message, expected, got, hint=2)

    def look(self, block: int) -> None:
        """The count of one block, and how many are free."""
        self.look_at_count(block)
        self.look_at_num_free()

    def look_at_count(self, block: int) -> None:
        expected, count = self.holders[block], self.ref_count(block)
        if count == expected:
            return
        rest = {"expected": str(expected), "got": str(count)}
        if expected == 1 and block in self.revived:
            message = f"`share` took block {block} back from the free ones: from then on one holds it, not {count}."
            self._fail("count_after_revival", message, **rest, hint=3)
        elif expected > 1 and count == expected - 1 and "share" in self._last_call:
            message = f"`share` did not count its holder: {expected} hold block {block} now."
            self._fail("share_not_counted", message + " The first of them to finish would free it for all.", **rest)
        elif expected == 0 and count < 0:
            message = f"The count of block {block} went below 0, to {count}. The next `share` would start from there."
            self._fail("count_below_zero", message, **rest, hint=2)
        elif "free" in self._last_call and 0 <= count < expected:
            message = f"{_holders(expected)} block {block}: one `free` takes away one holder, and not all of them."
            self._fail("freed_while_shared", message, **rest)
        elif "allocate" in self._last_call:
            message = f"A block that was just handed out has one holder: block {block} counts {count}."
            self._fail("count_after_allocate", message, **rest)
        else:
            message = f"{_holders(expected)} block {block}, and it counts {count}."
            self._fail("wrong_count", message, **rest)

    def look_at_num_free(self) -> None:
        expected = self.num_free
        value = self.subject.get("num_free", expected=str(expected))
        if value is None:
            self._fail("returns_none", "`num_free` is None. Return the number of free blocks.", str(expected), "None")
        count = self._whole(value, str(expected))
        if count == expected:
            return
        rest = {"expected": str(expected), "got": str(count)}
        last = self._last_call
        if not self.subject.lines[1:-1]:
            self._fail("wrong_at_start", f"All {self.num_blocks} blocks of a fresh pool are free.", **rest)
        if "share" in last and count == expected + 1:
            message = (
                "`share` of a free block left it among the free ones: `allocate` would hand it out a second time. A "
                "block that comes back to life must leave them, wherever among them it is."
            )
            self._fail("share_leaves_it_free", message, **rest, hint=3)
        if "share" in last:
            self._fail("share_takes_a_block", "`share` of a block in use takes no further block from the pool.", **rest)
        if "free" in last and count == expected + 1:
            message = "The block has another holder, and it was freed for both: only the last `free` gives it back."
            self._fail("freed_while_shared", message, **rest)
        if "free" in last and count == expected - 1:
            message = "The last holder gave its block back, and it is not among the free ones: it is lost for good."
            self._fail("lost_block", message, **rest)
        message = f"{expected} of the {self.num_blocks} blocks can be handed out now, and it says {count}."
        self._fail("wrong_num_free", message, **rest)

    # Inside

    @property
    def _numbers(self) -> str:
        if self.num_blocks == 1:
            return "A pool of one block has block 0 only."
        return f"A pool of {self.num_blocks} blocks has the blocks 0 to {self.num_blocks - 1}."

    @property
    def _last_call(self) -> str:
        """The last line of the example that changed something."""
        changing = [line for line in self.subject.lines if any(f".{name}(" in line for name in CHANGING)]
        return changing[-1].partition("(")[0] if changing else ""

    def ref_count(self, block: int) -> int:
        counts = getattr(self.subject.object, "ref_count", None)
        expected = str(self.holders[block])
        if counts is None or callable(counts):
            value = self.subject.call("ref_count", block, expected=expected)
        else:  # a list, as in the article's skeleton
            text = f"{self.subject.name}.ref_count[{block}]"
            self.subject.lines.append(text)
            transcript = self.subject.transcript
            value = self.probe.call(lambda: counts[block], text=transcript, expected=expected).value
            self.subject.lines[-1] += f"   # {short(value)}"
        if value is None:
            self._fail("returns_none", "`ref_count` returned None. Return the number of holders.", expected, "None")
        return self._whole(value, expected)

    def _says_empty(self, error: Exception) -> None:
        """`allocate` raised where blocks are free: why?"""
        free = [block for block, count in enumerate(self.holders) if count == 0]
        rest = {"expected": f"one of the {len(free)} free blocks", "got": type(error).__name__}
        lost = [block for block in free if block in self.given_back]
        if not isinstance(error, OutOfBlocks):
            self._fail("allocate_raises", f"{_of(free)} free, and `allocate` raised {say(error)}.", **rest)
        if lost:
            message = f"Block {lost[0]} never came back: its last holder freed it, and `allocate` finds none."
            self._fail("lost_block", message, **rest)
        message = f"`allocate` says that no block is left after {self.num_blocks - len(free)} of {self.num_blocks}."
        self._fail("too_few_blocks", message, **rest)

    def _handed_out_in_use(self, block: int, expected: str) -> None:
        got = f"block {block}"
        what = f"Block {block} was handed out while {_holders(self.holders[block]).lower()} it."
        if block in self.revived:
            message = f"{what} `share` took it back from the free ones, and left it among them."
            self._fail("share_leaves_it_free", message, expected, got, hint=3)
        message = f"{what} Two sequences would write into the same memory."
        self._fail("handed_out_in_use", message, expected, got)

    def _handed_out_twice(self) -> list[int]:
        """Take all blocks there are, up to the first that comes twice; then the example goes on up to there."""
        seen: set[int] = set()
        length = len(self.subject.lines)
        for _ in range(self.num_blocks + 1):
            try:
                block = self.subject.call("allocate")
            except Wrong:
                break
            if not isinstance(block, int | np.integer):
                break
            if block in seen:
                return [int(block)]
            seen.add(block)
        del self.subject.lines[length:]
        return []

    def _whole(self, value: Any, expected: str) -> int:
        """As an int. A block number is an index, so 2.0 won't do."""
        whole = self.probe.whole_number(value, self.subject.transcript, expected)
        if isinstance(value, float):
            self._fail("wrong_type", f"It is {value!r}, a float. Blocks are counted in ints.", expected, repr(value))
        return whole

    def _fail(self, code: str, message: str, expected: str, got: str, hint: int = 1) -> None:
        self.subject.fail(code, message, expected=expected, got=got, hint=hint)


#: The methods that change an allocator.
CHANGING = ("allocate", "share", "free")


def _holders(count: int) -> str:
    return {0: "Nobody holds", 1: "One sequence holds"}.get(count, f"{count} sequences hold")


def _of(blocks: Sequence[int]) -> str:
    return f"Block {blocks[0]} is" if len(blocks) == 1 else f"{len(blocks)} blocks are"


# The protocol, from the smallest scenario to the largest. Each takes (probe, factory); lowest_first is bound below.


def is_written(probe: Probe, factory: Any, lowest_first: bool) -> None:
    """A stub stores nothing and its methods return None."""
    subject = Subject(probe, factory, "allocator", num_blocks=1, block_size=BLOCK_SIZE)
    outcome = call_with_limit(getattr(subject.object, "allocate", lambda: 0), seconds=probe.seconds)
    if isinstance(outcome.error, NotImplementedError):
        probe.fail(UNWRITTEN, say_unwritten(f"`{probe.name}` raised NotImplementedError"), hint=1)
    if outcome.error is not None or outcome.timed_out or outcome.value not in (None, ...):
        return
    if outcome.printed.strip():
        code, message = say_none(outcome.printed)
        rest = {"call": "allocator.allocate()", "expected": "0", "got": "None", "printed": outcome.printed, "hint": 1}
        probe.fail(code, message, **rest)
    count = getattr(subject.object, "ref_count", None)
    counted = call_with_limit(count, (0,), seconds=probe.seconds).value if callable(count) else count
    if counted in (None, ...):
        probe.fail(UNWRITTEN, say_unwritten(f"`{probe.name}.allocate()` returned None"), hint=1)


def one_block(probe: Probe, factory: Any, lowest_first: bool) -> None:
    pool = Pool(probe, factory, 1, lowest_first)
    pool.look_at_num_free()
    block = pool.allocate()
    pool.look(block)
    pool.allocate_from_nothing()
    pool.free(block)
    pool.look(block)
    pool.look(pool.allocate())


def freed_twice(probe: Probe, factory: Any, lowest_first: bool) -> None:
    for was_allocated in (True, False):
        pool = Pool(probe, factory, 2, lowest_first)
        block = 1
        if was_allocated:
            block = pool.allocate()
            pool.free(block)
        pool.free_too_often(block)
        pool.look(block)  # a refusal changes nothing


def two_holders(probe: Probe, factory: Any, lowest_first: bool) -> None:
    pool = Pool(probe, factory, 2, lowest_first)
    block = pool.allocate()
    pool.share(block)
    pool.look(block)
    pool.free(block)
    pool.look(block)
    other = pool.allocate()
    pool.look(other)
    pool.allocate_from_nothing()
    pool.free(block)
    pool.look(block)
    pool.look(pool.allocate())
    pool.look(other)


def revived(probe: Probe, factory: Any, lowest_first: bool) -> None:
    """A free block is shared: it must leave the free ones, from whichever place among them."""
    for which in range(3):
        pool = Pool(probe, factory, 3, lowest_first)
        pool.all_findable = True
        blocks = [pool.allocate() for _ in range(3)]
        for block in blocks:
            pool.free(block)
        pool.share(blocks[which])
        pool.look(blocks[which])
        pool.allocate()
        pool.allocate()
        pool.allocate_from_nothing()
        pool.free(blocks[which])
        pool.look(blocks[which])
        pool.free_too_often(blocks[which])
        pool.look(pool.allocate())


def many_blocks(probe: Probe, factory: Any, lowest_first: bool) -> None:
    """All blocks of a larger pool, twice: each number once, and no count left over from before."""
    pool = Pool(probe, factory, 70, lowest_first)
    for turn in range(2):
        blocks = [pool.allocate() for _ in range(pool.num_blocks)]
        pool.allocate_from_nothing()
        pool.look(blocks[0])
        for block in blocks if turn else blocks[::-1]:
            pool.free(block)
        pool.look(blocks[0])


def two_pools(probe: Probe, factory: Any, lowest_first: bool) -> None:
    one, other = (Pool(probe, factory, 2, lowest_first, name) for name in ("one", "other"))
    one.allocate()
    one.allocate()
    try:
        other.look_at_num_free()
        other.look(other.allocate())
        one.look_at_num_free()
    except Wrong as wrong:
        found = wrong.diagnosis
        message = "Two pools share their blocks. Make the lists in `__init__`, as `self. ...`, not in the class."
        example = "\n".join((*one.subject.lines, *other.subject.lines))
        probe.fail("shared_between_pools", message, call=example, expected=found.expected, got=found.got, hint=1)


def random_life(probe: Probe, factory: Any, lowest_first: bool) -> None:
    draw = random.Random(0)
    kinds = draw.choices(("allocate", "share", "free", "free"), (5, 3, 3, 3), k=150)
    life = [(kind, draw.randrange(5)) for kind in kinds]

    def lead(steps: Sequence[tuple[str, int]]) -> None:
        pool = Pool(probe, factory, 5, lowest_first)
        pool.all_findable = True
        for kind, block in steps:
            if kind == "allocate":
                block = pool.allocate() if pool.num_free else pool.allocate_from_nothing()
            elif kind == "share":
                if pool.holders[block] or block in pool.given_back:
                    pool.share(block)
            elif pool.holders[block]:
                pool.free(block)
            else:
                pool.free_too_often(block)
            pool.look(0 if block is None else block)

    smallest(life, lead)


SCENARIOS = (is_written, one_block, freed_twice, two_holders, revived, many_blocks, two_pools, random_life)


def searches(factory: Any) -> Sequence[str]:
    """A remark where taking a free block back takes longer in a larger pool. It is right all the same."""

    def seconds(num_blocks: int) -> float:
        allocator = factory(num_blocks, BLOCK_SIZE)
        blocks = [allocator.allocate() for _ in range(num_blocks)]
        for block in blocks:
            allocator.free(block)
        best = 1.0
        for block in blocks[num_blocks // 3 :: max(1, num_blocks // 12)]:
            started = time.perf_counter()
            allocator.share(block)
            best = min(best, time.perf_counter() - started)
            allocator.free(block)
        return best

    small = call_with_limit(seconds, (200,), seconds=0.5)
    large = call_with_limit(seconds, (20_000,), seconds=0.5)
    if small.error or large.error or small.timed_out:
        return ()
    if large.timed_out or (large.value > 20 * small.value and large.value > 30e-6):
        return ("It searches: the larger the pool, the longer a call takes. Right all the same. Hint 3 has O(1).",)
    return ()


def protocol(lowest_first: bool) -> tuple[Scenario, ...]:
    return tuple(partial(scenario, lowest_first=lowest_first) for scenario in SCENARIOS)


TRIED = ("one block", "freed twice", "two holders", "a free block revived", "70 blocks", "two pools", "a random life")
