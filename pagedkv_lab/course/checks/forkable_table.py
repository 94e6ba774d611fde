"""The check of exercise 6.1: a block table that can be forked, and that copies a shared block before it is written.

Every call is made on the learner's tables and on a tiny model of the right behaviour: a list of blocks for each table.
From the lists follows how many hold each block, and so what must be copied.

Knows behaviour. Does not know how a table keeps its blocks' contents, for it doesn't: it says what is to be copied.
"""

import copy
import random
from collections.abc import Sequence
from typing import Any

from pagedkv_lab.course.checks.block_table import ORDER, NotingAllocator
from pagedkv_lab.course.checks.objects import Named, ObjectCheck, Subject, smallest
from pagedkv_lab.course.checks.probe import Probe, say, say_unwritten, short
from pagedkv_lab.course.checks.report import UNWRITTEN
from pagedkv_lab.errors import DoubleFree, NotAllocated, OutOfBlocks

BLOCK_SIZE = 4


class CountingAllocator(NotingAllocator):
    """Notes, too, whether anybody asked how many hold a block."""

    asked = False

    def ref_count(self, block: int) -> int:
        self.asked = True
        return self.holders_of(block)

    def holders_of(self, block: int) -> int:
        """`ref_count` for the check itself."""
        return super().ref_count(block)


class Family:
    """Tables of one pool beside the model. Every method makes one call on a table, and compares everything.

    tables: the learner's, by name. blocks: what each must hold.
    """

    def __init__(self, probe: Probe, factory: Any, order: Sequence[int] = ORDER):
        self.probe, self.factory = probe, factory
        self.allocator = CountingAllocator(order, BLOCK_SIZE)
        self.tables: dict[str, Subject] = {}
        self.blocks: dict[str, list[int]] = {}

    @property
    def lines(self) -> list[str]:
        """The calls so far: one list for all tables."""
        return next(iter(self.tables.values())).lines

    def new(self, name: str, num_blocks: int = 0) -> Subject:
        """A table with so many fresh blocks."""
        table = Subject(self.probe, self.factory, name, allocator=Named("allocator", self.allocator))
        if self.tables:
            table.lines = [*self.lines, *table.lines]
            for other in self.tables.values():
                other.lines = table.lines
        self.tables[name], self.blocks[name] = table, []
        self._compare(name, "`__init__`")
        for _ in range(num_blocks):
            self.append(name)
        return table

    def append(self, name: str) -> None:
        self.tables[name].call("append_block", expected="the number of the block it took", hint=1)
        self.blocks[name].append(self.allocator.handed_out[-1])
        self._compare(name, "`append_block`")

    def free_all(self, name: str) -> None:
        table = self.tables[name]
        if isinstance(error := table.call_allowing((DoubleFree, NotAllocated), "free_all"), Exception):
            table.fail("broke_the_rest", f"`free_all` raised {say(error)}.", expected="no error",
                       got=type(error).__name__, hint=1)  # fmt: skip
        self.blocks[name].clear()
        self._compare(name, "`free_all`")

    def look(self, name: str) -> None:
        """`slot` of the first and the last position."""
        if blocks := self.blocks[name]:
            for position in (0, len(blocks) * BLOCK_SIZE - 1):
                expected = blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
                value = self.tables[name].call("slot", position, expected=str(expected))
                if value != expected:
                    message = "`slot` finds another place than the table says. It was given; leave it as it is."
                    self.tables[name].fail("broke_the_rest", message, expected=str(expected), got=short(value), hint=1)
                self.lines.pop()

    # fork

    def fork(self, parent: str, child: str) -> None:
        table, blocks = self.tables[parent], self.blocks[parent]
        counts, taken = self._counts(blocks), len(self.allocator.handed_out)
        value = table.call_allowing((NotAllocated, OutOfBlocks), "fork")
        self.lines[-1] = f"{child} = {table.name}.fork()"
        expected = f"{child}.blocks == {blocks}"
        if isinstance(value, Exception):
            message = f"It raised {say(value)}. A fork shares blocks that are in use; it takes none."
            table.fail("fork_raises", message, expected=expected, got=type(value).__name__, hint=1)
        if value is None:
            if not blocks or self._counts(blocks) == counts:
                table.fail(UNWRITTEN, say_unwritten("`fork` returned None"), hint=1)
            table.fail("returns_none", "`fork` returned None. Return the child, a table.", expected=expected,
                       got="None", hint=2)  # fmt: skip
        if value is table.object:
            message = "It returned the table itself. A child is a table of its own: the two will part."
            table.fail("same_table", message, expected="a second table", got=f"{parent} itself", hint=1)
        if not isinstance(getattr(value, "blocks", None), list):
            message = f"It returned {short(value, 60)}, which has no list `blocks`. Return a table of your own class."
            table.fail("not_a_table", message, expected=expected, got=short(value, 60), hint=2)
        subject = copy.copy(table)
        subject.object, subject.name = value, child
        self.tables[child], self.blocks[child] = subject, list(blocks)
        self._judge_child(table, subject, blocks, counts, taken)
        self._compare(child, "`fork`")

    def _judge_child(
        self, table: Subject, child: Subject, blocks: list[int], counts: dict[int, int], taken: int
    ) -> None:
        has, expected = child.object.blocks, f"{child.name}.blocks == {blocks}"
        got = f"{child.name}.blocks == {short(has)}"
        new = self.allocator.handed_out[taken:]
        if new:
            message = (
                f"`fork` took {'block' if len(new) == 1 else 'blocks'} {', '.join(map(str, new))} from the pool. "
                "Nothing is copied yet: the child has the same blocks, until somebody writes."
            )
            table.fail("fork_takes_blocks", message, expected=expected, got=got, hint=1)
        if has is table.object.blocks:
            message = (
                "Parent and child have the same list. What one appends, or turns over to a copy, changes the other's "
                "table as well. Give the child a list of its own with the same numbers in it."
            )
            table.fail("same_list", message, expected="two lists", got="one list", hint=2)
        if table.object.blocks != blocks:
            message = "`fork` changed the parent's table. It stays as it is."
            table.fail("parent_changed", message, expected=f"{table.name}.blocks == {blocks}",
                       got=f"{table.name}.blocks == {short(table.object.blocks)}", hint=2)  # fmt: skip
        if has != blocks:
            if has == blocks[:-1]:
                message = (
                    "The child lacks the parent's last block. Whether it is full makes no difference: the child reads "
                    "it, and whoever writes into it first copies it then."
                )
                table.fail("last_left_out", message, expected=expected, got=got, hint=1)
            message = "The child begins with everything that its parent has: the same blocks in the same order."
            table.fail("other_blocks", message, expected=expected, got=got, hint=1)
        now = self._counts(blocks)
        wrong = next((block for block in blocks if now[block] != counts[block] + 1), None)
        if wrong is None:
            return
        rest = {"expected": f"{_hold(counts[wrong] + 1)} block {wrong}", "got": f"the allocator counts {now[wrong]}"}
        if now[wrong] > counts[wrong] + 1:
            message = (
                f"Block {wrong} has one new holder, and it was shared {now[wrong] - counts[wrong]} times. It will "
                "never become free again."
            )
            table.fail("shared_twice", message, hint=2, **rest)
        if wrong == blocks[-1] and len(blocks) > 1:
            message = (
                f"The last block, {wrong}, was not shared. It is the one that both are about to write into: with a "
                "count of 1 each of them will think that it is alone."
            )
            table.fail("last_not_shared", message, hint=2, **rest)
        message = (
            f"The child's table points to block {wrong}, and the allocator doesn't know. When the parent ends, the "
            "block goes to somebody else. Share each block once."
        )
        table.fail("not_shared", message, hint=2, **rest)

    # ensure_writable

    def ensure_writable(self, name: str, i: int) -> None:
        table, blocks = self.tables[name], self.blocks[name]
        source, holders = blocks[i], self._holders(blocks[i])
        free, taken = self.allocator.num_free, len(self.allocator.handed_out)
        back, self.allocator.asked = len(self.allocator.got_back), False
        value = table.call_allowing((OutOfBlocks, DoubleFree, NotAllocated), "ensure_writable", i)
        who = "one held" if holders == 1 else f"{holders} held"
        self.lines[-1] += f"   # {who} block {source}" if "#" not in self.lines[-1] else f"; {who} block {source}"
        new, given_back = self.allocator.handed_out[taken:], self.allocator.got_back[back:]
        if holders == 1:
            self._judge_in_place(table, source, value, new)
        elif free == 0:
            self._judge_no_room(table, name, value)
        else:
            self._judge_copy(table, i, source, value, new, given_back)
            blocks[i] = new[0]
        self._compare(name, "`ensure_writable`")

    def _judge_in_place(self, table: Subject, source: int, value: Any, new: list[int]) -> None:
        expected = "None, and nothing has changed"
        if new or isinstance(value, OutOfBlocks):
            message = (
                f"Only this table holds block {source}, and it was copied all the same. A sole owner writes in place: "
                "otherwise every token that is written costs a copy of a block."
            )
            got = f"a copy to block {new[0]}" if new else type(value).__name__
            table.fail("copies_alone", message, expected=expected, got=got, hint=1)
        if isinstance(value, Exception):
            table.fail("raises_alone", f"It raised {say(value)}. A sole owner needs nothing.", expected=expected,
                       got=type(value).__name__, hint=2)  # fmt: skip
        if value is not None:
            message = f"There is nothing to copy, and it returned {short(value)}. Return None."
            table.fail("not_none", message, expected=expected, got=short(value), hint=2)

    def _judge_no_room(self, table: Subject, name: str, value: Any) -> None:
        expected = "OutOfBlocks, and nothing has changed"
        if not isinstance(value, OutOfBlocks):
            message = (
                "The pool has no block for the copy, and `ensure_writable` hides it. Let the allocator's OutOfBlocks "
                "pass: the engine then finds somebody who can wait."
            )
            got = type(value).__name__ if isinstance(value, Exception) else short(value)
            table.fail("hides_out_of_blocks", message, expected=expected, got=got, hint=3)
        blocks = self.blocks[name]
        if table.object.blocks != blocks or any(self.allocator.holders_of(b) != self._holders(b) for b in blocks):
            message = (
                "No block was to be had, and something changed all the same: this sequence has given up a block that "
                "it still needs. Allocate first; give up the shared one when you have the new one."
            )
            table.fail("changed_on_failure", message, expected=expected, got=self._state(table, blocks), hint=3)

    def _judge_copy(
        self, table: Subject, i: int, source: int, value: Any, new: list[int], given_back: list[int]
    ) -> None:
        blocks, has = self.blocks[table.name], table.object.blocks
        fresh = new[0] if new else "a fresh one"
        right = f"({source}, {fresh}), and {table.name}.blocks[{i}] == {fresh}"
        others = self._holders(source) - 1

        def fail(code: str, message: str, got: Any, hint: int = 2) -> None:
            table.fail(code, message, expected=right, got=got, hint=hint)

        if isinstance(value, Exception):
            message = f"It raised {say(value)}, though blocks are free and {others + 1} hold block {source}."
            fail("raises_shared", message, type(value).__name__, 3)
        if not new:
            if value is None and has == blocks and not given_back:
                if not self.allocator.asked:
                    table.fail(UNWRITTEN, say_unwritten("`ensure_writable` returned None"), hint=1)
                message = (
                    f"Block {source} is still in the table, and another table holds it, too. Writing here would change "
                    "what the other sequence reads. Above one holder, take a block of your own."
                )
                fail("writes_shared", message, self._says(table, i, value), 1)
            message = f"It took no block. Somebody else reads block {source}: this table needs a fresh one instead."
            fail("takes_no_block", message, self._says(table, i, value), 1)
        if len(new) > 1:
            fail("takes_more", f"It took {len(new)} blocks: {new}. One is copied.", f"{len(new)} blocks taken")
        if has == blocks:
            message = (
                f"It took block {fresh}, and the table still points to block {source}: the write goes where somebody "
                f"else reads. Put the new block into the table."
            )
            fail("table_not_changed", message, self._says(table, i, value))
        if has != [*blocks[:i], fresh, *blocks[i + 1 :]]:
            message = f"Another entry of the table changed than number {i}."
            fail("other_entry", message, f"{table.name}.blocks == {short(has)}")
        if self.allocator.holders_of(source) != others:
            count = self.allocator.holders_of(source)
            if count > others:
                message = (
                    f"This table has left block {source}, and still counts as a holder. The one that is left will "
                    "never count as alone, and the block never becomes free. Give it back."
                )
                fail("keeps_source", message, f"{_hold(count)} block {source}")
            message = f"Block {source} was given back once too often: {_hold(others)} it still."
            fail("frees_source_twice", message, f"{_hold(count)} block {source}")
        if value is None:
            message = (
                f"The table points to block {fresh} now, which holds nothing yet, and nobody is told to copy. Return "
                "the pair (source, destination)."
            )
            fail("returns_none", message, "None")
        if isinstance(value, tuple | list) and len(value) == 2:
            if tuple(value) == (fresh, source):
                message = "Source and destination are the wrong way round: the old contents would be overwritten."
                fail("pair_reversed", message, short(value))
            if tuple(value) != (source, fresh):
                fail("other_pair", "Return which block to copy, and to which: (source, destination).", short(value))
        if not isinstance(value, tuple) or len(value) != 2:
            message = f"Return the pair (source, destination), a tuple; it returned {short(value, 60)}."
            fail("no_pair", message, short(value))

    # Everything

    def _compare(self, name: str, what: str) -> None:
        """All tables hold what the model says, and so do the counts."""
        table = self.tables[name]
        for other, blocks in self.blocks.items():
            has = getattr(self.tables[other].object, "blocks", None)
            if not isinstance(has, list) or list(has) != blocks:
                rest = {"expected": f"{other}.blocks == {blocks}", "got": f"{other}.blocks == {short(has)}"}
                if other != name:
                    message = f"{what} of {name} changed the table of {other}. Each table needs a list of its own."
                    table.fail("changes_another", message, hint=2, **rest)
                message = f"After {what} the table holds other blocks than it should. That line was given."
                table.fail("broke_the_rest", message, hint=1, **rest)
        for block in range(self.allocator.num_blocks):
            if self.allocator.holders_of(block) != self._holders(block):
                message = f"After {what} of {name}, the count of block {block} is not the number of its holders."
                table.fail("wrong_count", message, expected=f"{_hold(self._holders(block))} it",
                           got=f"the allocator counts {self.allocator.holders_of(block)}", hint=2)  # fmt: skip

    def _holders(self, block: int) -> int:
        return sum(blocks.count(block) for blocks in self.blocks.values())

    def _counts(self, blocks: Sequence[int]) -> dict[int, int]:
        return {block: self.allocator.holders_of(block) for block in blocks}

    def _says(self, table: Subject, i: int, value: Any) -> str:
        return f"{short(value)}, and {table.name}.blocks[{i}] == {short(table.object.blocks[i])}"

    def _state(self, table: Subject, blocks: list[int]) -> str:
        counts = ", ".join(f"{_hold(self.allocator.holders_of(block))} block {block}" for block in blocks)
        return f"{table.name}.blocks == {short(table.object.blocks)}; {counts}"


def _hold(count: int) -> str:
    return "1 holds" if count == 1 else f"{count} hold"


def _one_fork(probe: Probe, factory: Any) -> None:
    family = Family(probe, factory)
    family.new("parent", 2)
    family.fork("parent", "child")


def _part_ways(probe: Probe, factory: Any) -> None:
    """Both write into the last block: the first one copies, the second is alone by then."""
    for first, second in (("child", "parent"), ("parent", "child")):
        family = Family(probe, factory)
        family.new("parent", 3)
        family.fork("parent", "child")
        family.ensure_writable(first, 2)
        family.ensure_writable(second, 2)
        family.ensure_writable(first, 2)
        for name in (first, second):
            family.look(name)


def _alone(probe: Probe, factory: Any) -> None:
    family = Family(probe, factory)
    family.new("table", 2)
    family.ensure_writable("table", 1)
    family.ensure_writable("table", 0)


def _at_a_boundary(probe: Probe, factory: Any) -> None:
    """Full blocks only: each appends a block of its own, and nothing is copied."""
    family = Family(probe, factory)
    family.new("parent", 2)
    family.fork("parent", "child")
    for name in ("child", "parent", "child"):
        family.append(name)
    for name in ("child", "parent"):
        family.ensure_writable(name, 2)


def _empty(probe: Probe, factory: Any) -> None:
    family = Family(probe, factory)
    family.new("parent")
    family.fork("parent", "child")
    family.append("child")
    family.append("parent")


def _one_goes(probe: Probe, factory: Any) -> None:
    """One of the two ends; the other is alone then, and writes in place."""
    for goes, stays in (("parent", "child"), ("child", "parent")):
        family = Family(probe, factory)
        family.new("parent", 2)
        family.fork("parent", "child")
        family.free_all(goes)
        family.ensure_writable(stays, 1)
        family.look(stays)
        family.free_all(stays)


def _three(probe: Probe, factory: Any) -> None:
    """A child is forked, too: three hold the last block, two copy it, one writes in place."""
    family = Family(probe, factory)
    family.new("a", 2)
    family.fork("a", "b")
    family.fork("b", "c")
    for name in "bac":
        family.ensure_writable(name, 1)
    family.ensure_writable("a", 0)
    for name in "abc":
        family.free_all(name)


def _no_room(probe: Probe, factory: Any) -> None:
    family = Family(probe, factory, order=(1, 0))
    family.new("parent", 2)
    family.fork("parent", "child")
    family.ensure_writable("child", 1)
    family.free_all("parent")
    family.ensure_writable("child", 1)


def _life(probe: Probe, factory: Any) -> None:
    """Tables come, grow, fork, write and go at random, in a pool that now and then has no block left."""
    rng = random.Random(0)
    kinds = ["append"] * 4 + ["write"] * 5 + ["fork"] * 3 + ["free", "look"]
    steps = [(rng.choice(kinds), rng.choice("abcd"), rng.choice("abcd"), rng.random()) for _ in range(160)]

    def lead(life: Sequence[tuple[str, str, str, float]]) -> None:
        family = Family(probe, factory)
        family.new("a", 1)
        for kind, name, other, where in life:
            blocks = family.blocks.get(name)
            if blocks is None:
                continue
            if kind == "append" and family.allocator.num_free:
                family.append(name)
            elif kind == "write" and blocks:
                family.ensure_writable(name, int(where * len(blocks)))
            elif kind == "fork" and blocks and not family.blocks.get(other):
                family.fork(name, other)
            elif kind == "free":
                family.free_all(name)
            elif kind == "look":
                family.look(name)

    smallest(steps, lead)


forkable_table = ObjectCheck(
    "ForkableTable",
    (_one_fork, _alone, _part_ways, _at_a_boundary, _empty, _one_goes, _three, _no_room, _life),
    tried=(
        "a fork, and both write",
        "a sole owner",
        "a fork at a boundary and one of nothing",
        "one of two ends",
        "a fork of a fork",
        "an empty pool",
        "a random life of four tables",
    ),
)
