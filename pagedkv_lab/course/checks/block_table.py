"""Checks of chapter 03: where a sequence's tokens lie. Here the table; its functions are in table_functions.py.

The table is tried on an allocator that hands out its blocks in no order and notes every call, so that a block's number
is never its place in the sequence, and whatever a table takes or forgets to give back is known.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pagedkv_lab.course.checks.functions import Mistake
from pagedkv_lab.course.checks.objects import Named, ObjectCheck, Subject, smallest
from pagedkv_lab.course.checks.probe import Probe, Wrong, say_unwritten, short
from pagedkv_lab.course.checks.registry import Exercise
from pagedkv_lab.course.checks.report import UNWRITTEN
from pagedkv_lab.course.checks.table_functions import blocks_to_append, internal_waste, padded_tables, slot_mapping
from pagedkv_lab.errors import DoubleFree, NotAllocated, OutOfBlocks


class NotingAllocator:
    """The protocol and nothing else: allocate, share, free, ref_count, num_free. Notes what it hands out and gets back.

    order: all its blocks, next to be handed out first; a block that is freed queues up behind the others.
    """

    def __init__(self, order: Sequence[int], block_size: int):
        self.num_blocks, self.block_size = len(order), block_size
        self.handed_out: list[int] = []
        self.got_back: list[int] = []
        self._free, self._counts = list(order), [0] * len(order)

    def __repr__(self) -> str:
        return "allocator"

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        if not self._free:
            raise OutOfBlocks(used=self.num_blocks)
        block = self._free.pop(0)
        self._counts[block] = 1
        self.handed_out.append(block)
        return block

    def share(self, block: int) -> None:
        if not 0 <= block < self.num_blocks or self._counts[block] == 0:
            raise NotAllocated(block, self.num_blocks)
        self._counts[block] += 1

    def free(self, block: int) -> None:
        if not 0 <= block < self.num_blocks:
            raise NotAllocated(block, self.num_blocks, "the pool has no such block")
        if self._counts[block] == 0:
            raise DoubleFree(block)
        self._counts[block] -= 1
        self.got_back.append(block)
        if self._counts[block] == 0:
            self._free.append(block)

    def ref_count(self, block: int) -> int:
        return self._counts[block]


#: In no order, and no block at its own place.
ORDER = (2, 7, 5, 11, 0, 9, 3, 6, 1, 10, 4, 8)


def _table(probe: Probe, factory: Any, allocator: NotingAllocator, name: str = "table") -> Subject:
    """A new table, which must be empty and have taken nothing."""
    taken = len(allocator.handed_out)
    table = Subject(probe, factory, name, allocator=Named("allocator", allocator))
    table.lines[0] += f"   # blocks of {allocator.block_size} tokens"
    if not _has_blocks(table):
        if table.call("append_block") is None and len(allocator.handed_out) == taken:
            table.fail(UNWRITTEN, say_unwritten("`BlockTable` returned None"), hint=1)
        table.get("blocks", expected="a list of the sequence's blocks")
    blocks = _blocks(table)
    if len(allocator.handed_out) > taken:
        message = "A new table has taken a block already. A sequence takes one when it has a token to put there."
        table.fail("takes_early", message, expected="no block taken", got=f"{allocator.handed_out[taken:]}", hint=1)
    if blocks:
        message = (
            "A new table already has the blocks of another one: both use the same list. A list that is made in the "
            "class's body, or as an argument's default, exists once for all tables. Make it in `__init__`."
        )
        table.fail("shared_list", message, expected=f"{name}.blocks == []", got=short(blocks), hint=1)
    return table


def _has_blocks(table: Subject) -> bool:
    # As in Subject.get: the class first, where a property is found without being run.
    return hasattr(type(table.object), "blocks") or "blocks" in getattr(table.object, "__dict__", {})


def _blocks(table: Subject) -> list[Any]:
    """What `table.blocks` holds now. The example doesn't show it."""
    read = f"{table.name}.blocks"
    value = table.probe.call(getattr, table.object, "blocks", text=f"{table.transcript}\n{read}").value
    if not isinstance(value, list):
        what = "a method; store the list itself" if callable(value) else f"a {type(value).__name__}"
        table.fail("blocks_not_a_list", f"`{read}` is {what}. The engine reads and slices it as a list.", hint=1,
                   expected="a list", got=short(value))  # fmt: skip
    return list(value)


def _append(table: Subject, allocator: NotingAllocator) -> None:
    """`append_block`, which must take one block, store it last and return it."""
    before, taken = _blocks(table), len(allocator.handed_out)
    value = table.call("append_block", expected="the number of the block it took")
    after, new = _blocks(table), allocator.handed_out[taken:]

    def fail(code: str, message: str, got: Any, hint: int = 2) -> None:
        expected = f"{table.name}.blocks == {before + new[:1]}, and {new[0]} returned" if new else "a block taken"
        table.fail(code, message, expected=expected, got=got, hint=hint)

    stored = f"{table.name}.blocks == {short(after)}"
    if not new:
        if value is None and after == before:
            table.fail(UNWRITTEN, say_unwritten("`append_block` returned None"), hint=1)
        message = (
            "`append_block` didn't ask the allocator. Which block comes next is not the table's to say: another "
            "sequence may hold it. Call `allocator.allocate()`."
        )
        fail("takes_no_block", message, stored, hint=1)
    if len(new) > 1:
        fail("takes_more", f"It took {len(new)} blocks: {new}. One call takes one.", f"{len(new)} blocks taken")
    block = new[0]
    if after == before:
        fail("not_stored", f"It took block {block} and didn't put it into the table. Nobody will find it.", stored)
    if after == [*before, block, block]:
        fail("stored_twice", f"Block {block} stands in the table twice: two logical blocks would share it.", stored)
    if before and after == [block, *before]:
        message = "The new block came first in the table. Tokens come in order, and so do blocks: the newest is last."
        fail("prepends", message, stored)
    if after != [*before, block]:
        fail("stores_other", f"It took block {block}, and the table doesn't end in that number.", stored)
    if value is None:
        fail("returns_none", "It returned None. Return the number of the block that it took.", "None")
    number = table.probe.whole_number(value, table.transcript, str(block), hint=2)
    if number != block:
        message = "It returned something else than the block that it took."
        fail("returns_other", message, str(number))


#: Wrong ways to find a slot: (blocks, position, block size) to slot.
SLOT_MISTAKES = (
    Mistake(
        "ignores_table",
        "The slot is the position itself: as if the sequence lay in the pool in one piece, from slot 0 on. Which block "
        "it is stands in the table.",
        lambda blocks, p, size: p,
    ),
    Mistake(
        "contiguous",
        "It counts on from the sequence's first block, as if the others lay behind it. The next block can be anywhere: "
        "look it up in the table.",
        lambda blocks, p, size: blocks[0] * size + p,
    ),
    Mistake(
        "last_block",
        "It takes the last block for every position. Which logical block it is follows from the position.",
        lambda blocks, p, size: blocks[-1] * size + p % size,
        hint=2,
    ),
    Mistake(
        "no_offset",
        "It returns the first slot of the block for all tokens in it. Add the offset: the place inside the block.",
        lambda blocks, p, size: blocks[p // size] * size,
        hint=2,
    ),
    Mistake(
        "block_number",
        "It returns the block. A slot is a place for one token: block × block_size + offset.",
        lambda blocks, p, size: blocks[p // size],
        hint=2,
    ),
    Mistake(
        "no_block_size",
        "It adds block and offset. Block b begins at slot b × block_size: there are b whole blocks before it.",
        lambda blocks, p, size: blocks[p // size] + p % size,
        hint=2,
    ),
    Mistake(
        "multiplies",
        "It multiplies by the offset. The offset is added: so many slots from the block's first one.",
        (
            lambda blocks, p, size: blocks[p // size] * size * (p % size),
            lambda blocks, p, size: blocks[p // size] * (p % size),
            lambda blocks, p, size: blocks[p // size] * (size + p % size),
        ),
        hint=3,
    ),
    Mistake(
        "swapped",
        "It has // and % the wrong way round: position // block_size is the logical block, position % block_size the "
        "place in it.",
        (
            lambda blocks, p, size: blocks[p % size] * size + p // size,
            lambda blocks, p, size: blocks[p // size] * size + p // size,
            lambda blocks, p, size: blocks[p % size] * size + p % size,
        ),
        hint=2,
    ),
    Mistake(
        "other_block_size",
        "It counts with blocks of 16. Ask the allocator: `allocator.block_size`.",
        (
            lambda blocks, p, size: blocks[p // 16] * 16 + p % 16,
            lambda blocks, p, size: blocks[p // 16] * size + p % size,
            lambda blocks, p, size: blocks[p // size] * 16 + p % size,
            lambda blocks, p, size: blocks[p // size] * 16 + p % 16,
        ),
    ),
    Mistake(
        "boundary",
        "It is off by one at the boundary of a block. Positions count from 0: with blocks of 4, positions 0 to 3 are "
        "in the first block, and position 4 is the first of the second.",
        (
            lambda blocks, p, size: blocks[(p - 1) // size] * size + (p - 1) % size,
            lambda blocks, p, size: blocks[max(p - 1, 0) // size] * size + p % size,
            lambda blocks, p, size: blocks[(p + 1) // size] * size + p % size,
            lambda blocks, p, size: blocks[p // size] * size + p % size + 1,
            lambda blocks, p, size: blocks[p // size] * size + p % size - 1,
            lambda blocks, p, size: blocks[p // (size + 1)] * size + p % (size + 1),
        ),
        hint=2,
    ),
)  # fmt: skip


def _check_slots(table: Subject, blocks: Sequence[int], size: int, positions: Sequence[int] | None = None) -> None:
    """`slot` at every position of the table. The first wrong one is the example; all of them say what is wrong."""
    positions = range(len(blocks) * size) if positions is None else positions
    right = {p: blocks[p // size] * size + p % size for p in positions}
    answers = {p: _quiet_slot(table, p) for p in positions}
    first = next((p for p in positions if answers[p] != right[p]), None)
    if first is None:
        return
    block, offset = blocks[first // size], first % size
    expected = f"{right[first]}: block {block} × {size} + {offset}"
    for mistake in SLOT_MISTAKES:
        ways = (mistake.answers,) if callable(mistake.answers) else mistake.answers
        if any(_explains(way, blocks, size, answers) for way in ways):
            _show_slot(table, first)
            table.fail(mistake.code, mistake.message, expected=expected, got=short(answers[first]), hint=mistake.hint)
    value = table.call("slot", first, expected=expected)  # raises Wrong where it raises
    if value is None:
        if all(answer is None for answer in answers.values()):
            table.fail(UNWRITTEN, say_unwritten("`slot` returned None"), hint=1)
        table.fail("returns_none", "It returned None here: one way through it ends without a `return`.",
                   expected=expected, got="None", hint=2)  # fmt: skip
    table.probe.whole_number(value, table.transcript, expected, hint=2)
    table.fail("wrong_slot", f"The token at position {first} lies in block {block}, at offset {offset}.",
               expected=expected, got=short(value), hint=2)  # fmt: skip


def _quiet_slot(table: Subject, position: int) -> Any:
    """What `slot` says, as an int; None where it raises. What is no number stays as it is."""
    length = len(table.lines)
    value = table.call_allowing(Exception, "slot", position)
    del table.lines[length:]
    try:
        return None if isinstance(value, Exception) else table.probe.whole_number(value)
    except Wrong:
        return value


def _show_slot(table: Subject, position: int) -> None:
    table.call_allowing(Exception, "slot", position)


def _explains(way: Any, blocks: Sequence[int], size: int, answers: dict[int, Any]) -> bool:
    """Whether this mistake gives all these answers, with None where it raises."""
    for position, answer in answers.items():
        try:
            replayed = way(blocks, position, size)
        except IndexError:
            replayed = None
        if type(answer) not in (int, type(None)) or replayed != answer:
            return False
    return True


def _free_all(table: Subject, allocator: NotingAllocator) -> None:
    """`free_all`, which must give back each block once, the tail first, and leave an empty table."""
    blocks, already = _blocks(table), len(allocator.got_back)
    error = table.call_allowing(DoubleFree, "free_all")
    back, left = allocator.got_back[already:], _blocks(table)
    if blocks and not back and left == blocks and error is None:
        table.fail(UNWRITTEN, say_unwritten("`free_all` returned None"), hint=1)
    rest = {"expected": f"given back: {blocks[::-1]}", "got": f"given back: {back}"}
    too_often = [block for block, count in Counter(back).items() if count > blocks.count(block)]
    if error is not None or too_often:
        block = error.block if error is not None else too_often[0]
        message = (
            f"Block {block} was given back once too often. Another sequence may hold it by then, and would lose it: "
            "each block of the table is freed once, and a table without blocks frees nothing."
        )
        table.fail("frees_twice", message, **rest, hint=2)
    if missing := [block for block in blocks if block not in back]:
        message = f"Block {missing[0]} was not given back: it leaked. Nobody will ever get it again."
        table.fail("leaks", message, **rest, hint=2)
    if left:
        message = (
            f"The blocks are given back, and the table still lists {left}. They are somebody else's from now on: empty "
            "the table."
        )
        table.fail("keeps_blocks", message, expected=f"{table.name}.blocks == []", got=short(left), hint=2)
    if back == blocks[::-1]:
        return
    if back == blocks:
        message = (
            "The blocks are given back head first. Give back the tail first: freed blocks wait in a queue with their "
            "contents, the first one in is the first one reused, and a prefix without its tail can still be shared, "
            "but not a tail without its prefix."
        )
        table.fail("head_first", message, **rest, hint=3)
    table.fail("order", "The blocks are given back in some other order than the tail first.", **rest, hint=3)


def _one_block(probe: Probe, factory: Any) -> None:
    allocator = NotingAllocator(ORDER, 4)
    table = _table(probe, factory, allocator)
    _append(table, allocator)


def _two_tables(probe: Probe, factory: Any) -> None:
    """Two sequences of one pool: each has a table of its own."""
    allocator = NotingAllocator(ORDER, 4)
    first, second = (_table(probe, factory, allocator, name) for name in ("first", "second"))
    second.lines = first.lines = first.lines + second.lines
    for table in (first, second, first):
        before = _blocks(second if table is first else first)
        _append(table, allocator)
        other = second if table is first else first
        if _blocks(other) != before:
            message = "What one table appends turns up in the other: both use the same list. Make it in `__init__`."
            table.fail("shared_list", message, expected=f"{other.name}.blocks == {before}",
                       got=short(_blocks(other)), hint=1)  # fmt: skip
    _check_slots(first, [ORDER[0], ORDER[2]], 4)


def _slots(probe: Probe, factory: Any) -> None:
    for size, count in ((4, 3), (3, 4), (1, 3)):
        allocator = NotingAllocator(ORDER, size)
        table = _table(probe, factory, allocator)
        for _ in range(count):
            _append(table, allocator)
        _check_slots(table, ORDER[:count], size)


def _outside(probe: Probe, factory: Any) -> None:
    """Positions that the table has no block for: too far, and before the first."""
    allocator = NotingAllocator(ORDER, 4)
    table = _table(probe, factory, allocator)
    for count in (0, 2):
        for _ in range(count):
            _append(table, allocator)
        for position in (4 * count, 4 * count + 3, 4 * count + 40):
            got = table.call_allowing(Exception, "slot", position)
            if not isinstance(got, Exception):
                message = (
                    f"The table has {count} blocks, so there is no slot for position {position}, and it named one. A "
                    "token would be written over somebody else's. Let it raise IndexError."
                )
                table.fail("beyond_the_table", message, expected="IndexError", got=short(got), hint=3)
    for position in (-1, -4, -5, -8):
        got = table.call_allowing(Exception, "slot", position)
        if not isinstance(got, Exception):
            message = (
                "No token has a position below 0. Python counts a negative index from the end of the list, and so a "
                "mistake elsewhere would quietly write into the last block. Let it raise IndexError."
            )
            table.fail("negative_wraps", message, expected="IndexError", got=short(got), hint=3)


def _out_of_blocks(probe: Probe, factory: Any) -> None:
    """The pool is empty: the table says so and stays as it is."""
    allocator = NotingAllocator((1, 0), 4)
    table = _table(probe, factory, allocator)
    for _ in range(2):
        _append(table, allocator)
    got = table.call_allowing(Exception, "append_block")
    if not isinstance(got, OutOfBlocks):
        message = (
            "The pool has no block left, and `append_block` hides it. The allocator raises OutOfBlocks; let it pass: "
            "the engine then finds somebody who can wait."
        )
        what = type(got).__name__ if isinstance(got, Exception) else short(got)
        table.fail("hides_out_of_blocks", message, expected="OutOfBlocks", got=what, hint=2)
    if _blocks(table) != [1, 0]:
        message = "No block was to be had, and the table changed all the same. Take the block first, then store it."
        table.fail("changed_on_failure", message, expected="table.blocks == [1, 0]", got=short(_blocks(table)), hint=2)


def _give_back(probe: Probe, factory: Any) -> None:
    allocator = NotingAllocator(ORDER, 4)
    table = _table(probe, factory, allocator)
    for count in (0, 1, 3):
        for _ in range(count):
            _append(table, allocator)
        _free_all(table, allocator)
        _free_all(table, allocator)  # a table without blocks


def _used_again(probe: Probe, factory: Any) -> None:
    """After `free_all` the table is as good as new."""
    allocator = NotingAllocator(ORDER, 4)
    table = _table(probe, factory, allocator)
    _append(table, allocator)
    old = _quiet_slot(table, 1)
    _free_all(table, allocator)
    _append(table, allocator)
    if _quiet_slot(table, 1) == old:
        _show_slot(table, 1)
        message = f"It still finds position 1 in block {ORDER[0]}, which it has given back. Look into the table anew."
        expected = f"{ORDER[1] * 4 + 1}: block {ORDER[1]} × 4 + 1"
        table.fail("stale_slot", message, expected=expected, got=str(old), hint=2)
    _check_slots(table, [ORDER[1]], 4)


def _hit(table: Subject, allocator: NotingAllocator, block: int) -> None:
    """A prefix hit: the engine shares a block and appends it to the table's list, or asks `append_shared`."""
    before = _blocks(table)
    if callable(getattr(table.object, "append_shared", None)):
        table.call("append_shared", block)
    else:
        allocator.share(block)
        table.object.blocks.append(block)
        table.lines.append(f"allocator.share({block}); {table.name}.blocks.append({block})")
    if _blocks(table) != [*before, block]:
        message = (
            "A prompt that finds its beginning in the cache gets shared blocks: the engine appends them to "
            "`table.blocks`. Yours is a copy, made anew each time, so they are lost. Keep one list, and let `blocks` "
            "be that list."
        )
        table.fail("shared_block_unseen", message, expected=f"{table.name}.blocks == {[*before, block]}",
                   got=short(_blocks(table)), hint=1)  # fmt: skip


def _shared_prefix(probe: Probe, factory: Any) -> None:
    allocator = NotingAllocator(ORDER, 4)
    first, second = (_table(probe, factory, allocator, name) for name in ("first", "second"))
    second.lines = first.lines = first.lines + second.lines
    for _ in range(2):
        _append(first, allocator)
    for block in ORDER[:2]:
        _hit(second, allocator, block)
    _append(second, allocator)
    _check_slots(second, ORDER[:3], 4)
    _free_all(second, allocator)
    _check_slots(first, ORDER[:2], 4)
    _free_all(first, allocator)


def _long(probe: Probe, factory: Any) -> None:
    """A table has no last row: 130 blocks, and every one found."""
    order = list(range(1, 140))
    random.Random(3).shuffle(order)
    allocator = NotingAllocator([*order, 0], 16)
    table = _table(probe, factory, allocator)
    for _ in range(130):
        _append(table, allocator)
    _check_slots(table, order[:130], 16, range(0, 130 * 16, 7))
    _free_all(table, allocator)


def _life(probe: Probe, factory: Any) -> None:
    """Three sequences come, grow, share and go, at random; a model of three lists says what is right."""
    rng = random.Random(0)
    kinds = ["append"] * 5 + ["slots"] * 2 + ["hit", "free"]
    steps = [(rng.choice(kinds), rng.randrange(3), rng.randrange(3)) for _ in range(150)]
    order = list(range(40))
    rng.shuffle(order)

    def lead(life: Sequence[tuple[str, int, int]]) -> None:
        allocator = NotingAllocator(order, 3)
        tables = [_table(probe, factory, allocator, name) for name in ("a", "b", "c")]
        lines = [line for table in tables for line in table.lines]
        model: list[list[int]] = [[], [], []]
        for table in tables:
            table.lines = lines
        for kind, i, j in life:
            table, blocks = tables[i], model[i]
            if kind == "append" and allocator.num_free:
                _append(table, allocator)
                blocks.append(allocator.handed_out[-1])
            elif kind == "slots" and blocks:
                _check_slots(table, blocks, 3)
            elif kind == "hit" and not blocks:
                for block in model[j][:2]:
                    _hit(table, allocator, block)
                    blocks.append(block)
            elif kind == "free":
                _free_all(table, allocator)
                blocks.clear()
        for table in tables:
            _free_all(table, allocator)

    smallest(steps, lead)


block_table = ObjectCheck(
    "BlockTable",
    (_one_block, _two_tables, _slots, _outside, _out_of_blocks, _give_back, _used_again, _shared_prefix, _long, _life),
    tried=(
        "scattered blocks of 1, 3, 4 and 16 tokens",
        "every position, and positions outside",
        "two tables of one pool, and shared blocks",
        "an empty pool",
        "giving back, and again",
        "a random life of three sequences",
    ),
)

EXERCISES = (
    Exercise("BlockTable", "3.1", "The block table", block_table, slot="BlockTable"),
    Exercise("slot_mapping", "3.2", "The slots of many tokens", slot_mapping),
    Exercise("blocks_to_append", "3.3", "When a table grows", blocks_to_append),
    Exercise("internal_waste", "3.4", "What last blocks waste", internal_waste),
    Exercise("padded_tables", "3.5", "The array that a kernel gets", padded_tables, stretch=True),
)
