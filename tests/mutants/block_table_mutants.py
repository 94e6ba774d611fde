"""Wrong and right implementations of chapter 03's exercises, with the diagnosis each wrong one must get."""

import math
from collections import deque
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import chain, zip_longest
from types import SimpleNamespace

import numpy as np
import torch
from mutant_list import right, wrong

TABLE = "BlockTable"


class Good:
    """The table as the chapter asks for it; the wrong ones below change a method of it."""

    def __init__(self, allocator):
        self.allocator = allocator
        self.blocks = []

    def append_block(self):
        block = self.allocator.allocate()
        self.blocks.append(block)
        return block

    def slot(self, position):
        if position < 0:
            raise IndexError(position)
        size = self.allocator.block_size
        return self.blocks[position // size] * size + position % size

    def free_all(self):
        while self.blocks:
            self.allocator.free(self.blocks.pop())


# Not written, or not a class


@wrong(TABLE, "unwritten", general=True)
class Stub:
    """the stub"""

    def __init__(self, allocator):
        """Nothing yet."""

    def append_block(self):
        """Nothing yet."""

    def slot(self, position):
        """Nothing yet."""

    def free_all(self):
        """Nothing yet."""


@wrong(TABLE, "unwritten")
class OnlyTheConstructor(Stub):
    """only __init__ is written"""

    def __init__(self, allocator):
        self.allocator, self.blocks = allocator, []


@wrong(TABLE, "unwritten")
class NoSlot(Good):
    """slot is still a stub"""

    def slot(self, position):
        """Nothing yet."""


@wrong(TABLE, "unwritten")
class NoFreeAll(Good):
    """free_all does nothing"""

    def free_all(self):
        pass


@wrong(TABLE, "unwritten", general=True)
class Todo(Good):
    """NotImplementedError"""

    def append_block(self):
        raise NotImplementedError


wrong(TABLE, "not_a_class", "an object", general=True)(Good(None))


@wrong(TABLE, "no_attribute")
class PrivateList(Good):
    """the list has another name"""

    def __init__(self, allocator):
        self.allocator, self.table = allocator, []

    def append_block(self):
        self.table.append(self.allocator.allocate())
        return self.table[-1]


@wrong(TABLE, "endless", general=True)
class Endless(Good):
    """free_all never ends"""

    def free_all(self):
        while True:
            for block in self.blocks[:0]:
                self.allocator.free(block)


@wrong(TABLE, "raises", general=True)
class ForgetsSelf(Good):
    """self is forgotten"""

    def append_block(self):
        return blocks_of_nobody.append(1)  # noqa: F821


@wrong(TABLE, "raises")
class FreesMany(Good):
    """calls a method that the protocol doesn't have"""

    def free_all(self):
        self.allocator.free_many(reversed(self.blocks))


# __init__


@wrong(TABLE, "shared_list")
class ClassList(Good):
    """one list for all tables, in the class"""

    blocks = []  # noqa: RUF012

    def __init__(self, allocator):
        self.allocator = allocator


@wrong(TABLE, "shared_list")
class DefaultList(Good):
    """one list for all tables, as a default"""

    def __init__(self, allocator, blocks=[]):  # noqa: B006
        self.allocator, self.blocks = allocator, blocks


_tables_by_allocator = {}


@wrong(TABLE, "shared_list")
class ListByAllocator(Good):
    """one list for all tables of a pool"""

    def __init__(self, allocator):
        self.allocator = allocator
        self.blocks = _tables_by_allocator.setdefault(allocator, [])


@wrong(TABLE, "takes_early")
class TakesOneAtOnce(Good):
    """a new table takes a block"""

    def __init__(self, allocator):
        super().__init__(allocator)
        self.append_block()


@wrong(TABLE, "blocks_not_a_list")
class Deque(Good):
    """a deque, which can't be sliced"""

    def __init__(self, allocator):
        self.allocator, self.blocks = allocator, deque()


@wrong(TABLE, "blocks_not_a_list")
class Method(Good):
    """blocks is a method"""

    def __init__(self, allocator):
        self.allocator, self._list = allocator, []

    def blocks(self):
        return self._list


@wrong(TABLE, "blocks_not_a_list")
class ByLogicalBlock(Good):
    """a dictionary"""

    def __init__(self, allocator):
        self.allocator, self.blocks = allocator, {}

    def append_block(self):
        self.blocks[len(self.blocks)] = block = self.allocator.allocate()
        return block


# append_block


@wrong(TABLE, "returns_none")
class ReturnsNone(Good):
    """append_block returns None"""

    def append_block(self):
        self.blocks.append(self.allocator.allocate())


@wrong(TABLE, "prints", general=True)
class Prints(Good):
    """append_block prints"""

    def append_block(self):
        print(super().append_block())


@wrong(TABLE, "not_stored")
class ForgetsToStore(Good):
    """append_block doesn't store"""

    def append_block(self):
        return self.allocator.allocate()


@wrong(TABLE, "stored_twice")
class StoresTwice(Good):
    """append_block stores twice"""

    def append_block(self):
        block = self.allocator.allocate()
        self.blocks.append(block)
        self.blocks += [block]
        return block


@wrong(TABLE, "takes_more")
class AllocatesTwice(Good):
    """stores one block and returns another"""

    def append_block(self):
        self.blocks.append(self.allocator.allocate())
        return self.allocator.allocate()


@wrong(TABLE, "takes_more")
class TwoAhead(Good):
    """takes two to be on the safe side"""

    def append_block(self):
        super().append_block()
        return super().append_block()


@wrong(TABLE, "takes_no_block")
class OwnNumbers(Good):
    """counts blocks by itself"""

    def append_block(self):
        self.blocks.append(len(self.blocks))
        return self.blocks[-1]


@wrong(TABLE, "prepends")
class Prepends(Good):
    """the newest block first"""

    def append_block(self):
        block = self.allocator.allocate()
        self.blocks.insert(0, block)
        return block


@wrong(TABLE, "stores_other")
class StoresPairs(Good):
    """stores pairs of block and filled slots"""

    def append_block(self):
        block = self.allocator.allocate()
        self.blocks.append((block, 0))
        return block


@wrong(TABLE, "stores_other")
class Sorts(Good):
    """keeps the list sorted"""

    def append_block(self):
        block = super().append_block()
        self.blocks.sort()
        return block


@wrong(TABLE, "returns_other")
class ReturnsIndex(Good):
    """returns the logical block"""

    def append_block(self):
        super().append_block()
        return len(self.blocks) - 1


@wrong(TABLE, "wrong_type")
class ReturnsList(Good):
    """returns the whole list"""

    def append_block(self):
        super().append_block()
        return self.blocks


@wrong(TABLE, "hides_out_of_blocks")
class SwallowsOutOfBlocks(Good):
    """catches OutOfBlocks"""

    def append_block(self):
        try:
            return super().append_block()
        except Exception:
            return None


@wrong(TABLE, "hides_out_of_blocks")
class OtherError(Good):
    """raises an error of its own"""

    def append_block(self):
        if self.allocator.num_free == 0:
            raise RuntimeError("no blocks")
        return super().append_block()


@wrong(TABLE, "changed_on_failure")
class PlaceFirst(Good):
    """makes the place first and takes the block then"""

    def append_block(self):
        self.blocks.append(None)
        self.blocks[-1] = self.allocator.allocate()
        return self.blocks[-1]


@wrong(TABLE, "not_stored")
class FixedRow(Good):
    """a row of 128 entries"""

    def append_block(self):
        block = self.allocator.allocate()
        if len(self.blocks) < 128:
            self.blocks.append(block)
        return block


# slot


def slot_is(diagnosis, name):
    """A table whose slot is this function of (blocks, position, block size)."""

    def add(function):
        class Table(Good):
            def slot(self, position):
                if position < 0:
                    raise IndexError(position)
                return function(self.blocks, position, self.allocator.block_size)

        wrong(TABLE, diagnosis, name)(Table)
        return function

    return add


slot_is("ignores_table", "the position itself")(lambda blocks, p, size: blocks[p // size] and p)
slot_is("ignores_table", "the logical block")(lambda blocks, p, size: (p // size) * size + p % size)
slot_is("contiguous", "counts on from the first block")(lambda blocks, p, size: blocks[0] * size + p)
slot_is("last_block", "always the last block")(lambda blocks, p, size: blocks[-1] * size + p % size)
slot_is("no_offset", "no offset")(lambda blocks, p, size: blocks[p // size] * size)
slot_is("block_number", "the block's number")(lambda blocks, p, size: blocks[p // size])
slot_is("no_block_size", "block plus offset")(lambda blocks, p, size: blocks[p // size] + p % size)
slot_is("multiplies", "times the offset")(lambda blocks, p, size: blocks[p // size] * size * (p % size))
slot_is("swapped", "// and % swapped")(lambda blocks, p, size: blocks[p % size] * size + p // size)
slot_is("swapped", "the offset by //")(lambda blocks, p, size: blocks[p // size] * size + p // size)
slot_is("other_block_size", "16 built in")(lambda blocks, p, size: blocks[p // 16] * 16 + p % 16)
slot_is("boundary", "a block too late")(lambda blocks, p, size: blocks[max(p - 1, 0) // size] * size + p % size)
slot_is("boundary", "positions from 1")(lambda blocks, p, size: blocks[(p - 1) // size] * size + (p - 1) % size)
slot_is("boundary", "a slot further")(lambda blocks, p, size: blocks[p // size] * size + p % size + 1)
slot_is("wrong_type", "block and offset as a pair")(lambda blocks, p, size: (blocks[p // size], p % size))
slot_is("wrong_type", "a quotient")(lambda blocks, p, size: blocks[p // size] * size + p / size)
slot_is("raises", "a float as index")(lambda blocks, p, size: blocks[p / size] * size + p % size)
slot_is("wrong_slot", "from the end of the block")(
    lambda blocks, p, size: (blocks[p // size] + 1) * size - 1 - p % size
)
slot_is("wrong_slot", "exclusive or")(lambda blocks, p, size: (blocks[p // size] * size) ^ (p % size))
slot_is("returns_none", "nothing for a block's first token")(
    lambda blocks, p, size: blocks[p // size] * size + p % size if p % size else None
)
slot_is("beyond_the_table", "-1 beyond the table")(
    lambda blocks, p, size: blocks[p // size] * size + p % size if p < len(blocks) * size else -1
)
slot_is("beyond_the_table", "None beyond the table")(
    lambda blocks, p, size: blocks[p // size] * size + p % size if p < len(blocks) * size else None
)
slot_is("beyond_the_table", "round and round")(
    lambda blocks, p, size: blocks[p // size % len(blocks)] * size + p % size
)


@wrong(TABLE, "negative_wraps")
class NegativeWraps(Good):
    """position -1 is in the last block"""

    def slot(self, position):
        size = self.allocator.block_size
        return self.blocks[position // size] * size + position % size


@wrong(TABLE, "stale_slot")
class Remembers(Good):
    """slots are remembered for ever"""

    def __init__(self, allocator):
        super().__init__(allocator)
        self.slot = cache(self.slot)


@wrong(TABLE, "takes_more")
class SlotGrows(Good):
    """slot takes the blocks that it lacks, and append_block relies on it"""

    def append_block(self):
        before = len(self.blocks)
        self.slot((before + 1) * self.allocator.block_size)
        return self.blocks[before]

    def slot(self, position):
        while position >= len(self.blocks) * self.allocator.block_size:
            self.blocks.append(self.allocator.allocate())
        return super().slot(position)


# free_all


@wrong(TABLE, "head_first")
class HeadFirst(Good):
    """gives back the head first"""

    def free_all(self):
        for block in self.blocks:
            self.allocator.free(block)
        self.blocks = []


@wrong(TABLE, "order")
class ByNumber(Good):
    """gives back in the order of the pool"""

    def free_all(self):
        for block in sorted(self.blocks):
            self.allocator.free(block)
        self.blocks.clear()


@wrong(TABLE, "leaks")
class ForgetsFirst(Good):
    """forgets the first block"""

    def free_all(self):
        for i in range(len(self.blocks) - 1, 0, -1):
            self.allocator.free(self.blocks[i])
        self.blocks = []


@wrong(TABLE, "leaks")
class ForgetsLast(Good):
    """forgets the last block"""

    def free_all(self):
        for block in self.blocks[-2::-1]:
            self.allocator.free(block)
        self.blocks.clear()


@wrong(TABLE, "leaks")
class RemovesWhileLooping(Good):
    """removes from the list that it loops over"""

    def free_all(self):
        for block in self.blocks:
            self.allocator.free(block)
            self.blocks.remove(block)


@wrong(TABLE, "leaks")
class OnlyClears(Good):
    """clears the list and frees nothing"""

    def free_all(self):
        self.blocks = []


@wrong(TABLE, "keeps_blocks")
class KeepsTheList(Good):
    """leaves the list as it is"""

    def free_all(self):
        for block in reversed(self.blocks):
            self.allocator.free(block)


@wrong(TABLE, "frees_twice")
class SecondList(Good):
    """a second list that is never cleared"""

    def __init__(self, allocator):
        super().__init__(allocator)
        self.taken = []

    def append_block(self):
        self.taken.append(super().append_block())
        return self.taken[-1]

    def free_all(self):
        for block in reversed(self.taken):
            self.allocator.free(block)
        self.blocks.clear()


@wrong(TABLE, "frees_twice")
class FreesUntilFree(Good):
    """frees a shared block for everybody"""

    def free_all(self):
        while self.blocks:
            block = self.blocks.pop()
            while self.allocator.ref_count(block):
                self.allocator.free(block)


@wrong(TABLE, "shared_block_unseen")
class Copies(Good):
    """blocks is a copy each time"""

    def __init__(self, allocator):
        self.allocator, self._row = allocator, []

    @property
    def blocks(self):
        return list(self._row)

    def append_block(self):
        self._row.append(self.allocator.allocate())
        return self._row[-1]

    def free_all(self):
        while self._row:
            self.allocator.free(self._row.pop())


@wrong(TABLE, "raises")
class Counts(Good):
    """counts its own blocks and misses the shared ones"""

    def __init__(self, allocator):
        super().__init__(allocator)
        self.count = 0

    def append_block(self):
        self.count += 1
        return super().append_block()

    def slot(self, position):
        if position >= self.count * self.allocator.block_size:
            raise IndexError("beyond the table")
        return super().slot(position)

    def free_all(self):
        super().free_all()
        self.count = 0


# Right ones

right(TABLE, "list, and pop")(Good)


@right(TABLE)
class Divmod:
    """divmod, and a list made anew"""

    def __init__(self, pool):
        self.pool = pool
        self.blocks: list[int] = []

    def append_block(self):
        self.blocks = [*self.blocks, self.pool.allocate()]
        return self.blocks[-1]

    def slot(self, position):
        logical, offset = divmod(position, self.pool.block_size)
        if not 0 <= logical < len(self.blocks):
            raise ValueError(f"no block for position {position}")
        return offset + self.pool.block_size * self.blocks[logical]

    def free_all(self):
        for block in self.blocks[::-1]:
            self.pool.free(block)
        self.blocks = []


@right(TABLE)
@dataclass
class DataTable:
    """a dataclass"""

    allocator: object
    blocks: list = field(default_factory=list)

    def append_block(self):
        new = self.allocator.allocate()
        self.blocks += [new]
        return new

    def slot(self, position):
        assert position >= 0
        return self.blocks[position // self.allocator.block_size] * self.allocator.block_size + (
            position % self.allocator.block_size
        )

    def free_all(self):
        for i in reversed(range(len(self.blocks))):
            self.allocator.free(self.blocks[i])
        del self.blocks[:]


@right(TABLE)
class Row:
    """a numpy row that doubles, with a list beside it"""

    def __init__(self, allocator):
        self.allocator = allocator
        self.row = np.full(2, -1, np.int32)
        self.blocks = []

    def append_block(self):
        if len(self.blocks) == len(self.row):
            self.row = np.pad(self.row, (0, len(self.row)), constant_values=-1)
        block = np.int32(self.allocator.allocate())
        self.row[len(self.blocks)] = block
        self.blocks.append(block)
        return block

    def append_shared(self, block):
        self.allocator.share(block)
        if len(self.blocks) == len(self.row):
            self.row = np.pad(self.row, (0, len(self.row)), constant_values=-1)
        self.row[len(self.blocks)] = block
        self.blocks.append(block)

    def slot(self, position):
        if not 0 <= position < len(self.blocks) * self.allocator.block_size:
            raise IndexError(position)
        size = self.allocator.block_size
        return self.row[position // size] * size + position % size

    def free_all(self):
        for block in map(int, self.row[: len(self.blocks)][::-1]):
            self.allocator.free(block)
        self.row[:] = -1
        self.blocks.clear()


@right(TABLE)
class ByLogical:
    """a dictionary by logical block, and a property"""

    def __init__(self, allocator):
        self.allocator, self._at = allocator, {}

    @property
    def blocks(self):
        return list(self._at.values())

    def append_shared(self, block):
        self.allocator.share(block)
        self._at[len(self._at)] = block

    def append_block(self):
        block = self.allocator.allocate()
        self._at[len(self._at)] = block
        return block

    def slot(self, position):
        return self._at[position // self.allocator.block_size] * self.allocator.block_size + (
            position % self.allocator.block_size
        )

    def free_all(self):
        while self._at:
            self.allocator.free(self._at.popitem()[1])


@right(TABLE)
class IsAList(list):
    """a subclass of list that is its own blocks"""

    def __init__(self, allocator):
        super().__init__()
        self.allocator = allocator

    @property
    def blocks(self):
        return self

    def append_block(self):
        self.append(self.allocator.allocate())
        return self[-1]

    def slot(self, position):
        if position < 0:
            raise IndexError
        return self[position // self.allocator.block_size] * self.allocator.block_size + (
            position % self.allocator.block_size
        )

    def free_all(self):
        while self:
            self.allocator.free(self.pop())


@right(TABLE)
class Slots:
    """__slots__, and free by recursion"""

    __slots__ = ("allocator", "blocks")

    def __init__(self, allocator):
        self.allocator, self.blocks = allocator, []

    def append_block(self):
        self.blocks.append(block := self.allocator.allocate())
        return block

    def slot(self, position):
        pool = list(chain.from_iterable(range(b * self.size, (b + 1) * self.size) for b in self.blocks))
        return pool[range(len(pool))[position] if position >= 0 else len(pool)]

    @property
    def size(self):
        return self.allocator.block_size

    def free_all(self):
        if self.blocks:
            last = self.blocks.pop()
            self.allocator.free(last)
            self.free_all()


@right(TABLE, "a closure that returns an object")
def make_table(allocator):
    blocks = []

    def append_block():
        blocks.append(allocator.allocate())
        return blocks[-1]

    def slot(position):
        block = dict(enumerate(blocks))[position // allocator.block_size]
        return block * allocator.block_size + position % allocator.block_size

    def free_all():
        while blocks:
            allocator.free(blocks.pop())

    return SimpleNamespace(blocks=blocks, append_block=append_block, slot=slot, free_all=free_all)


# slot_mapping

SLOTS = "slot_mapping"


def _of(positions, table, size):
    return [table[p // size] * size + p % size for p in positions]


wrong(SLOTS, "unwritten", "the stub", general=True)(lambda t, s, n, size: None)
wrong(SLOTS, "not_a_function", "a list", general=True)([1])
wrong(SLOTS, "wrong_arguments", "no block size", general=True)(lambda t, s, n: [])
wrong(SLOTS, "constant", "always empty", general=True)(lambda t, s, n, size: [])
wrong(SLOTS, "wrong_type", "one number", general=True)(lambda t, s, n, size: t[0] * size)
wrong(SLOTS, "wrong_type", "a generator", general=True)(lambda t, s, n, size: (p for p in range(n)))
wrong(SLOTS, "wrong_type", "a set", general=True)(lambda t, s, n, size: set(_of(range(s, s + n), t, size)))
wrong(SLOTS, "wrong_type", "pairs", general=True)(
    lambda t, s, n, size: [(t[p // size], p % size) for p in range(s, s + n)]
)
wrong(SLOTS, "wrong_type", "floats")(lambda t, s, n, size: [t[p // size] * size + p / size for p in range(s, s + n)])
wrong(SLOTS, "ragged", "a list a block")(
    lambda t, s, n, size: [[t[0]], *[[t[i] * size, 0] for i in range(1, len(t))], [0, 0]]
)
wrong(SLOTS, "ignores_table", "positions")(lambda t, s, n, size: np.arange(s, s + n))
wrong(SLOTS, "contiguous", "counts on")(
    lambda t, s, n, size: np.arange(n) + (np.append(t, 0)[s // size] * size + s % size)
)
wrong(SLOTS, "starts_at_zero", "from zero")(lambda t, s, n, size: _of(range(n), t, size))
wrong(SLOTS, "num_tokens_as_end", "to num_tokens")(lambda t, s, n, size: _of(range(s, n), t, size))
wrong(SLOTS, "one_too_few", "one short")(lambda t, s, n, size: _of(range(s, s + n - 1), t, size))
wrong(SLOTS, "one_too_many", "one over")(lambda t, s, n, size: _of(range(s, s + n + 1), t, size))
wrong(SLOTS, "no_offset", "block starts")(lambda t, s, n, size: np.array(t)[np.arange(s, s + n) // size] * size)
wrong(SLOTS, "block_number", "blocks")(lambda t, s, n, size: [t[p // size] for p in range(s, s + n)])
wrong(SLOTS, "no_block_size", "block plus offset")(
    lambda t, s, n, size: [t[p // size] + p % size for p in range(s, s + n)]
)
wrong(SLOTS, "swapped", "// and % swapped")(
    lambda t, s, n, size: [t[p % size] * size + p // size for p in range(s, s + n)]
)
wrong(SLOTS, "offset_from_start", "offsets from 0")(
    lambda t, s, n, size: [t[(s + i) // size] * size + i % size for i in range(n)]
)
wrong(SLOTS, "block_from_start", "blocks from 0")(
    lambda t, s, n, size: [t[i // size] * size + (s + i) % size for i in range(n)]
)
wrong(SLOTS, "whole_blocks", "whole blocks")(
    lambda t, s, n, size: _of(range(s // size * size, math.ceil((s + n) / size) * size), t, size)
)
wrong(SLOTS, "wrong_length", "stops at the first boundary")(
    lambda t, s, n, size: _of(range(s, min(s + n, (s // size + 1) * size)), t, size)
)
wrong(SLOTS, "wrong_answer", "sorted")(lambda t, s, n, size: sorted(_of(range(s, s + n), t, size)))
wrong(SLOTS, "raises", "a list divided")(lambda t, s, n, size: t[list(range(s, s + n)) // size])


@wrong(SLOTS, "mutates")
def _pops(block_table, start, num_tokens, block_size):
    slots = _of(range(start, start + num_tokens), block_table, block_size)
    block_table.clear()
    return slots


right(SLOTS, "a list comprehension")(lambda t, s, n, size: _of(range(s, s + n), t, size))
right(SLOTS, "a tuple by divmod")(
    lambda t, s, n, size: tuple(t[b] * size + o for b, o in (divmod(s + i, size) for i in range(n)))
)


@right(SLOTS, "numpy")
def _numpy_slots(block_table, start, num_tokens, block_size):
    positions = np.arange(start, start + num_tokens)
    return np.asarray(block_table)[positions // block_size] * block_size + positions % block_size


@right(SLOTS, "a tensor")
def _torch_slots(block_table, start, num_tokens, block_size):
    positions = torch.arange(start, start + num_tokens)
    return torch.tensor(block_table)[positions // block_size] * block_size + positions % block_size


@right(SLOTS, "block by block")
def _by_block(block_table, start, num_tokens, block_size):
    slots = []
    for block in block_table:
        slots.extend(range(block * block_size, block * block_size + block_size))
    return slots[start : start + num_tokens]


# blocks_to_append

APPEND = "blocks_to_append"


def _up(n, size):
    return -(-n // size)


wrong(APPEND, "unwritten", "the stub", general=True)(lambda n, new, size: None)
wrong(APPEND, "wrong_type", "a quotient", general=True)(lambda n, new, size: (n + new) / size)
wrong(APPEND, "too_early", "when the block is full")(lambda n, new, size: (n + new) // size - n // size)
wrong(APPEND, "new_tokens_alone", "forgets the room")(lambda n, new, size: math.ceil(new / size))
wrong(APPEND, "in_total", "all blocks")(lambda n, new, size: math.ceil((n + new) / size))
wrong(APPEND, "at_most_one", "one at a boundary")(lambda n, new, size: 1 if n % size == 0 else 0)
wrong(APPEND, "at_most_one", "one if it doesn't fit")(lambda n, new, size: int(_up(n + new, size) > _up(n, size)))
wrong(APPEND, "full_block_has_room", "a full block has room")(
    lambda n, new, size: max(0, math.ceil((new - (size - n % size)) / size))
)
wrong(APPEND, "floor", "rounds down")(lambda n, new, size: new // size)
wrong(APPEND, "floor", "rounds the lack down")(lambda n, new, size: max(0, new - (_up(n, size) * size - n)) // size)
wrong(APPEND, "always_one_more", "one too many at a boundary")(
    lambda n, new, size: (n + new) // size + 1 - math.ceil(n / size)
)
wrong(APPEND, "ignores_argument", "16 built in")(lambda n, new, size: _up(n + new, 16) - _up(n, 16))


@wrong(APPEND, "endless")
def _until_it_fits_exactly(num_tokens, num_new_tokens, block_size):
    blocks, room = 0, -num_tokens % block_size
    while room != num_new_tokens:
        room += block_size
        blocks += 1
    return blocks


right(APPEND, "a difference")(lambda n, new, size: _up(n + new, size) - _up(n, size))
right(APPEND, "math.ceil")(lambda n, new, size: math.ceil((n + new) / size) - math.ceil(n / size))
right(APPEND, "the lack, rounded up")(lambda n, new, size: math.ceil(max(0, new - -n % size) / size))


@right(APPEND, "token by token")
def _token_by_token(num_tokens, num_new_tokens, block_size):
    return sum(position % block_size == 0 for position in range(num_tokens, num_tokens + num_new_tokens))


# internal_waste

WASTE = "internal_waste"
wrong(WASTE, "unwritten", "the stub", general=True)(lambda lengths, size: None)
wrong(WASTE, "full_block", "a full block wastes a block")(lambda lengths, size: sum(size - n % size for n in lengths))
wrong(WASTE, "remainder", "the filled ones")(lambda lengths, size: sum(n % size for n in lengths))
wrong(WASTE, "rounds_the_sum", "one rounding")(lambda lengths, size: -sum(lengths) % size)
wrong(WASTE, "reserved", "all slots")(lambda lengths, size: sum(_up(n, size) * size for n in lengths))
wrong(WASTE, "at_most_a_block", "the worst case")(lambda lengths, size: len(lengths) * (size - 1))
wrong(WASTE, "counts_blocks", "blocks")(lambda lengths, size: len([n for n in lengths if n % size]))
wrong(WASTE, "at_least_one", "an empty one has a block")(
    lambda lengths, size: sum(max(_up(n, size), 1) * size - n for n in lengths)
)
wrong(WASTE, "wrong_sign", "negative")(lambda lengths, size: sum(n - _up(n, size) * size for n in lengths))
wrong(WASTE, "wrong_type", "a share")(
    lambda lengths, size: 1 - sum(lengths) / max(1, sum(_up(n, size) * size for n in lengths))
)
wrong(WASTE, "ignores_argument", "16 built in")(lambda lengths, size: sum(-n % 16 for n in lengths))


@wrong(WASTE, "first_only")
def _returns_in_the_loop(lengths, block_size):
    for n in lengths:
        return _up(n, block_size) * block_size - n
    return 0


right(WASTE, "minus modulo")(lambda lengths, size: sum(-n % size for n in lengths))
right(WASTE, "slots minus tokens")(lambda lengths, size: sum(_up(n, size) for n in lengths) * size - sum(lengths))
right(WASTE, "modulo twice")(lambda lengths, size: sum((size - n % size) % size for n in lengths))
right(WASTE, "numpy")(lambda lengths, size: (-np.array(lengths, dtype=int) % size).sum())
right(WASTE, "reduce")(
    lambda lengths, size: reduce(lambda waste, n: waste + (size - n % size if n % size else 0), lengths, 0)
)

# padded_tables

PADDED = "padded_tables"


def _padded(tables, pad, width=None, dtype=np.int32):
    rows = [[*table, *[pad] * ((width or max(map(len, tables))) - len(table))] for table in tables]
    return np.array(rows, dtype)


wrong(PADDED, "unwritten", "the stub", general=True)(lambda tables, pad: None)
wrong(PADDED, "wrong_dtype", "not padded")(lambda tables, pad: tables)
wrong(PADDED, "wrong_dtype", "a list of lists")(lambda tables, pad: _padded(tables, pad).tolist())
wrong(PADDED, "wrong_dtype", "int64")(lambda tables, pad: _padded(tables, pad, dtype=np.int64))
wrong(PADDED, "wrong_type", "floats")(lambda tables, pad: np.vstack([_padded(tables, pad, dtype=float)]))
wrong(PADDED, "wrong_type", "one long row")(lambda tables, pad: _padded(tables, pad).ravel())
wrong(PADDED, "pads_left", "padding first")(lambda tables, pad: _padded([t[::-1] for t in tables], pad)[:, ::-1])
wrong(PADDED, "cut", "the shortest")(
    lambda tables, pad: np.array(list(zip(*tables, strict=False)), np.int32).T.reshape(len(tables), -1)
)
wrong(PADDED, "ignores_pad", "zeros")(lambda tables, pad: _padded(tables, 0))
wrong(PADDED, "ignores_pad", "minus one")(lambda tables, pad: _padded(tables, -1))
wrong(PADDED, "repeats_last", "the last block again")(
    lambda tables, pad: np.array(
        [
            np.pad(t, (0, max(map(len, tables)) - len(t)), mode="edge") if t else [pad] * max(map(len, tables))
            for t in tables
        ],
        np.int32,
    )
)
wrong(PADDED, "transposed", "a column each")(lambda tables, pad: _padded(tables, pad).T)
wrong(PADDED, "wrong_shape", "a column too many")(
    lambda tables, pad: _padded(tables, pad, width=max(map(len, tables)) + 1)
)
wrong(PADDED, "wrong_answer", "sorted rows")(lambda tables, pad: _padded([sorted(t) for t in tables], pad))


@wrong(PADDED, "mutates")
def _extends(tables, pad=0):
    longest = max(map(len, tables))
    for table in tables:
        table += [pad] * (longest - len(table))
    return np.array(tables, np.int32)


right(PADDED, "a list of rows")(_padded)
right(PADDED, "zip_longest")(lambda tables, pad=0: np.array(list(zip_longest(*tables, fillvalue=pad)), np.int32).T)


@right(PADDED, "np.full and slices")
def _full(tables, pad=0):
    array = np.full((len(tables), max(len(table) for table in tables)), pad, dtype=np.int32)
    for row, table in zip(array, tables, strict=True):
        row[: len(table)] = table
    return array


@right(PADDED, "a tensor")
def _tensor(tables, pad=0):
    rows = [torch.tensor(table, dtype=torch.int32) for table in tables]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
