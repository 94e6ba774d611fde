"""Wrong and right implementations of chapter 06's exercises, with the diagnosis each wrong one must get."""

import threading
from collections import Counter, defaultdict
from copy import copy
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from mutant_list import right, wrong

from pagedkv_lab.blocks import BlockTable
from pagedkv_lab.errors import DoubleFree, OutOfBlocks

TABLE = "ForkableTable"


class Given:
    """The lines of the stub that are given."""

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


class Good(Given):
    """As the chapter asks for it; the wrong ones below change a method of it."""

    def fork(self):
        child = type(self)(self.allocator)
        for block in self.blocks:
            self.allocator.share(block)
            child.blocks.append(block)
        return child

    def ensure_writable(self, i):
        source = self.blocks[i]
        if self.allocator.ref_count(source) == 1:
            return None
        destination = self.allocator.allocate()
        self.blocks[i] = destination
        self.allocator.free(source)
        return source, destination


# Right ones

right(TABLE, "as in the hints")(Good)
right(TABLE, "the package's own")(BlockTable)


@right(TABLE)
class ListCopy(Given):
    """share all, then copy the list; more than one holder asked first"""

    def fork(self):
        list(map(self.allocator.share, self.blocks))
        child = ListCopy(self.allocator)
        child.blocks = self.blocks[:]
        return child

    def ensure_writable(self, i):
        if self.allocator.ref_count(self.blocks[i]) > 1:
            old, new = self.blocks[i], self.allocator.allocate()
            self.allocator.free(old)
            self.blocks[i] = new
            return (old, new)
        return None


@right(TABLE)
@dataclass
class DataclassTable:
    """a dataclass; the fork comes from the constructor"""

    allocator: object
    blocks: list = field(default_factory=list)

    append_block, slot, free_all = Given.append_block, Given.slot, Given.free_all

    def fork(self):
        for block in self.blocks:
            self.allocator.share(block)
        return DataclassTable(self.allocator, [*self.blocks])

    def ensure_writable(self, i):
        old = self.blocks[i]
        if self.allocator.ref_count(old) <= 1:
            return None
        self.blocks[i] = self.allocator.allocate()
        self.allocator.free(old)
        return old, self.blocks[i]


@right(TABLE)
class CopyModule(Good):
    """copy.copy of the table, then a list of its own"""

    def fork(self):
        child = copy(self)
        child.blocks = []
        for block in self.blocks:
            child.append_shared(block)
        return child

    def append_shared(self, block):
        self.allocator.share(block)
        self.blocks.append(block)


class Copy(NamedTuple):
    source: int
    destination: int


@right(TABLE)
class Named(Good):
    """a subclass of the package's table; a NamedTuple of numpy ints"""

    def ensure_writable(self, i):
        pair = super().ensure_writable(i)
        return pair and Copy(*map(np.int64, pair))


def table_of_closures(allocator):
    """closures in a namespace"""
    table = SimpleNamespace(blocks=[])

    def append_block():
        table.blocks.append(allocator.allocate())
        return table.blocks[-1]

    def slot(position):
        if position < 0:
            raise IndexError
        i, offset = divmod(position, allocator.block_size)
        return table.blocks[i] * allocator.block_size + offset

    def free_all():
        for block in table.blocks[::-1]:
            allocator.free(block)
        table.blocks.clear()

    def fork():
        child = table_of_closures(allocator)
        for block in table.blocks:
            allocator.share(block)
        child.blocks.extend(table.blocks)
        return child

    def ensure_writable(i):
        old = table.blocks[i]
        if allocator.ref_count(old) > 1:
            table.blocks[i] = allocator.allocate()
            allocator.free(old)
            return old, table.blocks[i]
        return None

    table.append_block, table.slot, table.free_all = append_block, slot, free_all
    table.fork, table.ensure_writable = fork, ensure_writable
    return table


right(TABLE)(table_of_closures)


# Not written


@wrong(TABLE, "unwritten", general=True)
class Stub(Given):
    """the stub"""

    def fork(self):
        """Nothing yet."""

    def ensure_writable(self, i):
        """Nothing yet."""


@wrong(TABLE, "unwritten", general=True)
class OnlyFork(Good):
    """ensure_writable is still a stub"""

    def ensure_writable(self, i):
        """Nothing yet."""


@wrong(TABLE, "no_method", general=True)
class NoEnsure(Given):
    """no ensure_writable"""

    fork = Good.fork


# fork


@wrong(TABLE, "same_table")
class ReturnsItself(Good):
    """fork returns the table itself"""

    def fork(self):
        for block in self.blocks:
            self.allocator.share(block)
        return self


@wrong(TABLE, "same_list")
class SameList(Good):
    """parent and child have one list"""

    def fork(self):
        child = type(self)(self.allocator)
        child.blocks = self.blocks
        for block in self.blocks:
            self.allocator.share(block)
        return child


wrong(TABLE, "same_list", "copy.copy, which copies no list")(
    type("Shallow", (Good,), {"fork": lambda self: [*map(self.allocator.share, self.blocks), copy(self)][-1]})
)


@wrong(TABLE, "last_left_out")
class FullBlocksOnly(Good):
    """shares all blocks but the last, partly filled one"""

    def fork(self):
        child = type(self)(self.allocator)
        for block in self.blocks[:-1]:
            self.allocator.share(block)
            child.blocks.append(block)
        return child


@wrong(TABLE, "last_not_shared")
class LastUncounted(Good):
    """the child has the last block, and it isn't shared"""

    def fork(self):
        child = type(self)(self.allocator)
        child.blocks += self.blocks
        for block in self.blocks[:-1]:
            self.allocator.share(block)
        return child


@wrong(TABLE, "not_shared")
class NobodyCounts(Good):
    """copies the list and shares nothing"""

    def fork(self):
        child = type(self)(self.allocator)
        child.blocks = list(self.blocks)
        return child


@wrong(TABLE, "shared_twice")
class SharesTwice(Good):
    """shares for the parent and for the child"""

    def fork(self):
        child = super().fork()
        for block in child.blocks:
            self.allocator.share(block)
        return child


@wrong(TABLE, "fork_takes_blocks")
class CopiesAtOnce(Good):
    """the child gets blocks of its own"""

    def fork(self):
        child = type(self)(self.allocator)
        for _ in self.blocks:
            child.append_block()
        return child


@wrong(TABLE, "fork_takes_blocks")
class CopiesTheLast(Good):
    """shares the full blocks and takes a new last one"""

    def fork(self):
        child = type(self)(self.allocator)
        for block in self.blocks[:-1]:
            self.allocator.share(block)
            child.blocks.append(block)
        if self.blocks:
            child.append_block()
        return child


@wrong(TABLE, "parent_changed")
class MovesBlocks(Good):
    """the parent's list becomes the child's"""

    def fork(self):
        child = type(self)(self.allocator)
        child.blocks, self.blocks = self.blocks, []
        return child


@wrong(TABLE, "other_blocks")
class EmptyChild(Good):
    """the child has no blocks"""

    def fork(self):
        for block in self.blocks:
            self.allocator.share(block)
        return type(self)(self.allocator)


@wrong(TABLE, "other_blocks")
class Backwards(Good):
    """the child has the blocks in reverse order"""

    def fork(self):
        child = super().fork()
        child.blocks.reverse()
        return child


@wrong(TABLE, "not_a_table")
class ReturnsList(Good):
    """fork returns a list"""

    def fork(self):
        for block in self.blocks:
            self.allocator.share(block)
        return list(self.blocks)


@wrong(TABLE, "returns_none")
class ForkReturnsNone(Good):
    """fork makes the child and doesn't return it"""

    def fork(self):
        super().fork()


@wrong(TABLE, "fork_raises")
class FreesBeforeSharing(Good):
    """gives the blocks up before it shares them"""

    def fork(self):
        child = type(self)(self.allocator)
        for block in self.blocks:
            self.allocator.free(block)
            self.allocator.share(block)
            self.allocator.share(block)
            child.blocks.append(block)
        return child


@wrong(TABLE, "no_method")
class PlainChild(Good):
    """the child of a child is a plain table that can't fork"""

    def fork(self):
        child = Given(self.allocator)
        for block in self.blocks:
            self.allocator.share(block)
            child.blocks.append(block)
        return child


# ensure_writable


@wrong(TABLE, "copies_alone")
class AlwaysCopies(Good):
    """copies when it is the sole owner"""

    def ensure_writable(self, i):
        source = self.blocks[i]
        self.blocks[i] = self.allocator.allocate()
        self.allocator.free(source)
        return source, self.blocks[i]


@wrong(TABLE, "copies_alone")
class CopiesFromOne(Good):
    """at least one holder instead of more than one"""

    def ensure_writable(self, i):
        if self.allocator.ref_count(self.blocks[i]) >= 1:
            return AlwaysCopies.ensure_writable(self, i)
        return None


@wrong(TABLE, "copies_alone")
class RemembersForks(Good):
    """what was forked once is copied for ever"""

    def fork(self):
        child = super().fork()
        self.forked = child.forked = True
        return child

    def ensure_writable(self, i):
        return AlwaysCopies.ensure_writable(self, i) if getattr(self, "forked", False) else None


@wrong(TABLE, "writes_shared")
class NeverCopies(Good):
    """looks at the count and does nothing"""

    def ensure_writable(self, i):
        if self.allocator.ref_count(self.blocks[i]) == 0:
            return AlwaysCopies.ensure_writable(self, i)
        return None


@wrong(TABLE, "writes_shared")
class MoreThanTwo(Good):
    """copies from three holders on"""

    def ensure_writable(self, i):
        return Good.ensure_writable(self, i) if self.allocator.ref_count(self.blocks[i]) > 2 else None


@wrong(TABLE, "takes_no_block")
class PairOfOne(Good):
    """says that the block is to be copied onto itself"""

    def ensure_writable(self, i):
        if self.allocator.ref_count(self.blocks[i]) > 1:
            return self.blocks[i], self.blocks[i]
        return None


@wrong(TABLE, "takes_more")
class TakesTwo(Good):
    """append_block besides the copy"""

    def ensure_writable(self, i):
        if self.allocator.ref_count(self.blocks[i]) > 1:
            source = self.blocks[i]
            self.append_block()
            self.blocks[i] = self.allocator.allocate()
            self.allocator.free(source)
            return source, self.blocks[i]
        return None


@wrong(TABLE, "table_not_changed")
class TableStays(Good):
    """takes a block and leaves the table as it was"""

    def ensure_writable(self, i):
        source = self.blocks[i]
        if self.allocator.ref_count(source) > 1:
            self.allocator.free(source)
            return source, self.allocator.allocate()
        return None


@wrong(TABLE, "other_entry")
class AppendsTheCopy(Good):
    """the copy comes behind the shared block instead of in its place"""

    def ensure_writable(self, i):
        source = self.blocks[i]
        if self.allocator.ref_count(source) > 1:
            destination = self.append_block()
            self.allocator.free(source)
            return source, destination
        return None


@wrong(TABLE, "keeps_source")
class KeepsSource(Good):
    """forgets to give the source back"""

    def ensure_writable(self, i):
        source = self.blocks[i]
        if self.allocator.ref_count(source) > 1:
            self.blocks[i] = self.allocator.allocate()
            return source, self.blocks[i]
        return None


@wrong(TABLE, "frees_source_twice")
class FreesTwice(Good):
    """gives the source back twice"""

    def ensure_writable(self, i):
        pair = super().ensure_writable(i)
        if pair:
            self.allocator.free(pair[0])
        return pair


@wrong(TABLE, "raises_shared")
class FreesTheNewOne(Good):
    """gives back every holder until it is alone"""

    def ensure_writable(self, i):
        source = self.blocks[i]
        if self.allocator.ref_count(source) > 1:
            self.blocks[i] = self.allocator.allocate()
            for _ in range(3):
                self.allocator.free(source)
            return source, self.blocks[i]
        return None


@wrong(TABLE, "returns_none")
class SaysNothing(Good):
    """changes the table and tells nobody what to copy"""

    def ensure_writable(self, i):
        super().ensure_writable(i)


@wrong(TABLE, "pair_reversed")
class Reversed(Good):
    """(destination, source)"""

    def ensure_writable(self, i):
        pair = super().ensure_writable(i)
        return pair and pair[::-1]


@wrong(TABLE, "other_pair")
class LogicalPair(Good):
    """(logical block, destination)"""

    def ensure_writable(self, i):
        pair = super().ensure_writable(i)
        return pair and (i - 5, pair[1])


@wrong(TABLE, "no_pair")
class OnlyDestination(Good):
    """returns the new block only"""

    def ensure_writable(self, i):
        pair = super().ensure_writable(i)
        return pair and pair[1]


@wrong(TABLE, "no_pair")
class ListPair(Good):
    """a list, which the engine doesn't take"""

    def ensure_writable(self, i):
        pair = super().ensure_writable(i)
        return pair and list(pair)


@wrong(TABLE, "not_none")
class AlwaysAPair(Good):
    """returns the block twice where nothing is to be copied"""

    def ensure_writable(self, i):
        return super().ensure_writable(i) or (self.blocks[i], self.blocks[i])


@wrong(TABLE, "raises_alone")
class FreesAlone(Good):
    """a sole owner gives its block back, twice"""

    def ensure_writable(self, i):
        source = self.blocks[i]
        if self.allocator.ref_count(source) == 1:
            self.allocator.free(source)
            self.allocator.free(source)
        return super().ensure_writable(i)


@wrong(TABLE, "changed_on_failure")
class FreesFirst(Good):
    """gives the shared block up before it has the new one"""

    def ensure_writable(self, i):
        source = self.blocks[i]
        if self.allocator.ref_count(source) > 1:
            self.allocator.free(source)
            self.blocks[i] = self.allocator.allocate()
            return source, self.blocks[i]
        return None


@wrong(TABLE, "hides_out_of_blocks")
class WritesAnyway(Good):
    """no block left, so it writes into the shared one"""

    def ensure_writable(self, i):
        try:
            return super().ensure_writable(i)
        except OutOfBlocks:
            return None


@wrong(TABLE, "changes_another")
class TellsTheFamily(Good):
    """the copy goes into the child's table as well"""

    def fork(self):
        self.child = super().fork()
        return self.child

    def ensure_writable(self, i):
        pair = super().ensure_writable(i)
        child = getattr(self, "child", None)
        if pair and child and i < len(child.blocks):
            child.blocks[i] = pair[1]
        return pair


@wrong(TABLE, "wrong_count")
class EatsTheFirst(Good):
    """gives back the first block with every copy in place"""

    def ensure_writable(self, i):
        pair = super().ensure_writable(i)
        if pair is None and i > 0:
            self.allocator.share(self.blocks[0])
        return pair


@wrong(TABLE, "broke_the_rest")
class HeadOnly(Good):
    """free_all gives back the last block only"""

    def free_all(self):
        self.allocator.free(self.blocks.pop())


@wrong(TABLE, "wrong_count")
class FreesAllTwice(Good):
    """free_all gives every block back twice"""

    def free_all(self):
        for block in self.blocks:
            self.allocator.free(block)
            self.allocator.free(block)
        self.blocks.clear()


@wrong(TABLE, "broke_the_rest")
class SlotIsPosition(Good):
    """slot ignores the table"""

    def slot(self, position):
        return position


# write_token

WRITE = "write_token"


@right(WRITE)
def by_divmod(table, pool, position, value):
    i, offset = divmod(position, pool.shape[1])
    if i == len(table.blocks):
        table.append_block()
    copy = table.ensure_writable(i)
    if copy is not None:
        source, destination = copy
        pool[destination] = pool[source]
    pool[table.blocks[i], offset] = value


@right(WRITE)
def by_slot(table, pool, position, value):
    """the slot in a flat view of the pool; a loop copies"""
    size = table.allocator.block_size
    while len(table.blocks) * size <= position:
        table.append_block()
    pair = table.ensure_writable(position // size)
    if pair:
        for offset in range(size):
            pool[pair[1], offset] = pool[pair[0], offset]
    pool.reshape(-1, pool.shape[-1])[table.slot(position)] = value


@right(WRITE)
def saves_the_old_block(table, pool, position, value):
    """copies the contents before it asks"""
    i, offset = position // pool.shape[1], position % pool.shape[1]
    if position % pool.shape[1] == 0 and i == len(table.blocks):
        table.append_block()
    before = pool[table.blocks[i]].copy()
    table.ensure_writable(i)
    before[offset] = value
    pool[table.blocks[i]] = before
    return pool


@right(WRITE)
def counts_itself(table, pool, position, value):
    """asks the allocator instead of the table"""
    i, offset = divmod(position, len(pool[0]))
    if i >= len(table.blocks):
        table.append_block()
    elif table.allocator.ref_count(table.blocks[i]) > 1:
        old = table.blocks[i]
        table.blocks[i] = table.allocator.allocate()
        table.allocator.free(old)
        np.copyto(pool[table.blocks[i]], pool[old])
    pool[table.blocks[i]][offset] = value


def _place(table, pool, position):
    i, offset = divmod(position, pool.shape[1])
    if i == len(table.blocks):
        table.append_block()
    return i, offset


@wrong(WRITE, "unwritten", general=True)
def does_nothing(table, pool, position, value):
    """the stub"""


wrong(WRITE, "not_a_function", "an array", general=True)(np.zeros(3))


@wrong(WRITE, "writes_shared")
def never_asks(table, pool, position, value):
    i, offset = _place(table, pool, position)
    pool[table.blocks[i], offset] = value


@wrong(WRITE, "table_without_tensor")
def copies_no_tensor(table, pool, position, value):
    """the table is copied, the tensor isn't"""
    i, offset = _place(table, pool, position)
    table.ensure_writable(i)
    pool[table.blocks[i], offset] = value


@wrong(WRITE, "writes_first")
def writes_first(table, pool, position, value):
    """writes before it copies"""
    i, offset = _place(table, pool, position)
    pool[table.blocks[i], offset] = value
    copy = table.ensure_writable(i)
    if copy:
        pool[copy[1]] = pool[copy[0]]


@wrong(WRITE, "old_block")
def old_slot(table, pool, position, value):
    """looks the slot up before the table changes"""
    i, _ = _place(table, pool, position)
    slot = table.slot(position)
    copy = table.ensure_writable(i)
    if copy:
        pool[copy[1]] = pool[copy[0]]
    pool.reshape(-1, 2)[slot] = value


@wrong(WRITE, "copies_over_it")
def copies_over_it(table, pool, position, value):
    """copies over what it has written"""
    i, offset = _place(table, pool, position)
    copy = table.ensure_writable(i)
    pool[table.blocks[i], offset] = value
    if copy is not None:
        pool[copy[1]] = pool[copy[0]]


@wrong(WRITE, "backwards")
def backwards(table, pool, position, value):
    """copies from destination to source"""
    i, offset = _place(table, pool, position)
    copy = table.ensure_writable(i)
    if copy:
        destination, source = copy
        pool[destination] = pool[source]
    pool[table.blocks[i], offset] = value


@wrong(WRITE, "table_without_tensor")
def one_slot(table, pool, position, value):
    """copies one slot, not the block"""
    i, offset = _place(table, pool, position)
    copy = table.ensure_writable(i)
    if copy:
        pool[copy[1], offset] = pool[copy[0], offset]
    pool[table.blocks[i], offset] = value


@wrong(WRITE, "ignores_table")
def logical_block(table, pool, position, value):
    """writes into the logical block's number"""
    i, offset = _place(table, pool, position)
    copy = table.ensure_writable(i)
    if copy:
        pool[copy[1]] = pool[copy[0]]
    pool[i, offset] = value


@wrong(WRITE, "raises")
def never_grows(table, pool, position, value):
    """takes no block at a boundary"""
    i, offset = divmod(position, pool.shape[1])
    copy = table.ensure_writable(i)
    if copy:
        pool[copy[1]] = pool[copy[0]]
    pool[table.blocks[i], offset] = value


@wrong(WRITE, "pool_unchanged")
def a_new_pool(table, pool, position, value):
    """returns a changed copy of the pool"""
    pool = pool.copy()
    pool[position // 4, position % 4] = value
    return pool


@wrong(WRITE, "wrong_tables")
def always_a_fresh_block(table, pool, position, value):
    """takes a block for every token"""
    i, offset = _place(table, pool, position)
    copy = table.ensure_writable(i)
    if copy:
        pool[copy[1]] = pool[copy[0]]
    table.append_block()
    pool[table.blocks[i], offset] = value


@wrong(WRITE, "wrong_pool")
def whole_block(table, pool, position, value):
    """writes the token into every slot of the block"""
    i, _ = _place(table, pool, position)
    copy = table.ensure_writable(i)
    if copy:
        pool[copy[1]] = pool[copy[0]]
    pool[table.blocks[i]] = value


# beam_step

BEAM = "beam_step"


@right(BEAM)
def reuse_then_fork(tables, candidates, width):
    """a beam's first survivor keeps its table, the others are forks"""
    survivors, used = [], set()
    for _, beam, token in sorted(candidates, reverse=True)[:width]:
        survivors.append((tables[beam].fork() if beam in used else tables[beam], token))
        used.add(beam)
    for beam, table in enumerate(tables):
        if beam not in used:
            table.free_all()
    return survivors


@right(BEAM)
def fork_all_free_all(tables, candidates, width):
    """forks every survivor, then frees all that were there"""
    best = nlargest(width, candidates, key=itemgetter(0))
    survivors = [(tables[beam].fork(), token) for _, beam, token in best]
    for table in tables:
        table.free_all()
    return survivors


@right(BEAM)
def last_child_keeps(tables, candidates, width):
    """the last survivor of a beam keeps its table; dead beams go first; a tuple of lists"""
    best = sorted(candidates, key=lambda c: -c[0])[:width]
    left = Counter(beam for _, beam, _ in best)
    for beam, table in enumerate(tables):
        if not left[beam]:
            table.free_all()
    survivors = []
    for _, beam, token in best:
        left[beam] -= 1
        survivors.append([tables[beam] if left[beam] == 0 else tables[beam].fork(), token])
    return tuple(survivors)


def _best(candidates, width):
    return sorted(candidates, reverse=True)[:width]


@wrong(BEAM, "unwritten", general=True)
def no_beams(tables, candidates, width):
    """the stub"""


@wrong(BEAM, "frees_too_early")
def frees_before_forking(tables, candidates, width):
    """frees the beams, then forks them"""
    for table in tables:
        table.free_all()
    return [(tables[beam].fork(), token) for _, beam, token in _best(candidates, width)]


@wrong(BEAM, "frees_too_early")
def shares_what_is_free(tables, candidates, width):
    """remembers the blocks, frees, then shares them again"""
    allocator, blocks = tables[0].allocator, [list(table.blocks) for table in tables]
    for table in tables:
        table.free_all()
    survivors = []
    for _, beam, token in _best(candidates, width):
        table = BlockTable(allocator)
        for block in blocks[beam]:
            allocator.share(block)
            table.blocks.append(block)
        survivors.append((table, token))
    return survivors


@wrong(BEAM, "leaks")
def never_frees(tables, candidates, width):
    """dead beams keep their blocks"""
    used, survivors = set(), []
    for _, beam, token in _best(candidates, width):
        survivors.append((tables[beam].fork() if beam in used else tables[beam], token))
        used.add(beam)
    return survivors


@wrong(BEAM, "leaks")
def forks_everybody(tables, candidates, width):
    """forks every survivor and frees only the beams without one"""
    best = _best(candidates, width)
    survivors = [(tables[beam].fork(), token) for _, beam, token in best]
    for beam, table in enumerate(tables):
        if beam not in {b for _, b, _ in best}:
            table.free_all()
    return survivors


@wrong(BEAM, "one_table_twice")
def no_fork(tables, candidates, width):
    """two survivors with one table"""
    best = _best(candidates, width)
    for beam, table in enumerate(tables):
        if all(beam != b for _, b, _ in best):
            table.free_all()
    return [(tables[beam], token) for _, beam, token in best]


@wrong(BEAM, "one_list_twice")
def copies_objects(tables, candidates, width):
    """copy.copy instead of fork"""
    return [(copy(tables[beam]), token) for _, beam, token in _best(candidates, width)]


@wrong(BEAM, "not_held")
def copies_lists(tables, candidates, width):
    """new tables with the same blocks, not shared"""
    survivors, used = [], set()
    for _, beam, token in _best(candidates, width):
        table = tables[beam]
        if beam in used:
            table = BlockTable(table.allocator)
            table.blocks = list(tables[beam].blocks)
        used.add(beam)
        survivors.append((table, token))
    for beam, table in enumerate(tables):
        if beam not in used:
            table.free_all()
    return survivors


@wrong(BEAM, "other_parent")
def by_place(tables, candidates, width):
    """survivor number i gets table number i"""
    tables = tables + [tables[0].fork() for _ in range(width - len(tables))]
    survivors = [(tables[i], token) for i, (_, _, token) in enumerate(_best(candidates, width))]
    for table in tables[width:]:
        table.free_all()
    return survivors


@wrong(BEAM, "other_blocks")
def drops_the_last(tables, candidates, width):
    """the survivor's last block is left out"""
    survivors = fork_all_free_all(tables, candidates, width)
    for table, _ in survivors:
        table.allocator.free(table.blocks.pop())
    return survivors


@wrong(BEAM, "takes_blocks")
def grows_at_once(tables, candidates, width):
    """takes a block for the next token already"""
    survivors = fork_all_free_all(tables, candidates, width)
    survivors[0][0].append_block()
    survivors[0][0].allocator.free(survivors[0][0].blocks.pop())
    return survivors


@wrong(BEAM, "frees_twice")
def frees_dead_twice(tables, candidates, width):
    """gives the blocks of a dead beam back by hand as well"""
    best = _best(candidates, width)
    dead = [table for beam, table in enumerate(tables) if beam not in {b for _, b, _ in best}]
    survivors = [(tables[beam].fork(), token) for _, beam, token in best]
    for table in dead:
        for block in list(table.blocks):
            table.allocator.free(block)
        table.free_all()
    return survivors


@wrong(BEAM, "keeps_the_worst")
def lowest_first(tables, candidates, width):
    """sorts the wrong way"""
    return fork_all_free_all(tables, [(-score, beam, token) for score, beam, token in candidates], width)


@wrong(BEAM, "one_of_each_beam")
def one_each(tables, candidates, width):
    """the best candidate of each beam"""
    best = [max(c for c in candidates if c[1] == beam) for beam in range(len(tables))]
    return [(tables[beam], token) for _, beam, token in sorted(best, reverse=True)[:width]]


@wrong(BEAM, "one_of_each_beam")
def one_each_then_more(tables, candidates, width):
    """the best of each beam, then the next best"""
    first = [max(c for c in candidates if c[1] == beam) for beam in range(len(tables))]
    rest = [c for c in _best(candidates, width) if c not in first]
    best = (sorted(first, reverse=True) + rest)[:width]
    return fork_all_free_all(tables, best, width)


@wrong(BEAM, "order")
def in_beam_order(tables, candidates, width):
    """survivors in the order of their beams"""
    return sorted(
        fork_all_free_all(tables, candidates, width), key=lambda pair: (pair[0].blocks, -pair[1]), reverse=True
    )


@wrong(BEAM, "other_choice")
def the_first_ones(tables, candidates, width):
    """takes the candidates as they come"""
    survivors = [(tables[beam].fork(), token) for _, beam, token in candidates[:width]]
    for table in tables:
        table.free_all()
    return survivors


@wrong(BEAM, "wrong_number")
def all_of_them(tables, candidates, width):
    """ignores the width"""
    return fork_all_free_all(tables, candidates, len(candidates))


@wrong(BEAM, "not_pairs")
def only_tables(tables, candidates, width):
    """returns the tables without their tokens"""
    return [table for table, _ in fork_all_free_all(tables, candidates, width)]


@wrong(BEAM, "mutates")
def sorts_in_place(tables, candidates, width):
    """sorts the caller's list"""
    candidates.sort(reverse=True)
    return fork_all_free_all(tables, candidates, width)


@wrong(BEAM, "wrong_arguments")
def without_a_width(tables, candidates):
    """keeps all, and has forgotten that somebody says how many"""
    return [(tables[beam].fork(), token) for _, beam, token in candidates]


@wrong(BEAM, "raises", general=True)
def wrong_name(tables, candidates, width):
    """a name that doesn't exist"""
    return [(beams[0], 0)]  # noqa: F821


# SafeCounts

COUNTS = "SafeCounts"


class Unlocked:
    """Right, from one thread."""

    def __init__(self, num_blocks):
        self.counts = [0] * num_blocks

    def share(self, block):
        self.counts[block] += 1

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        return self.counts[block] == 0

    def leave_if_shared(self, block):
        if self.counts[block] <= 1:
            return False
        self.counts[block] -= 1
        return True

    def ref_count(self, block):
        return self.counts[block]


@right(COUNTS)
class OneLock(Unlocked):
    """one lock, with"""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.lock = threading.Lock()

    def share(self, block):
        with self.lock:
            super().share(block)

    def free(self, block):
        with self.lock:
            return super().free(block)

    def leave_if_shared(self, block):
        with self.lock:
            return super().leave_if_shared(block)

    def ref_count(self, block):
        with self.lock:
            return super().ref_count(block)


@right(COUNTS)
class LockEach:
    """a lock for each block; numpy counts; leave calls free"""

    def __init__(self, num_blocks):
        self.counts = np.zeros(num_blocks, int)
        self.locks = [threading.RLock() for _ in range(num_blocks)]

    def share(self, block):
        with self.locks[block]:
            self.counts[block] += 1

    def free(self, block):
        self.locks[block].acquire()
        try:
            if not self.counts[block]:
                raise DoubleFree(block)
            self.counts[block] -= 1
            return self.counts[block] == 0
        finally:
            self.locks[block].release()

    def leave_if_shared(self, block):
        with self.locks[block]:
            return self.counts[block] > 1 and not self.free(block)

    def ref_count(self, block):
        return int(self.counts[block])


@right(COUNTS)
class Conditioned:
    """a Condition, a defaultdict, and one method that changes a count"""

    def __init__(self, num_blocks):
        self.held, self.condition = defaultdict(int), threading.Condition()

    def change(self, block, by, least):
        with self.condition:
            before = self.held[block]
            if before >= least:
                self.held[block] = before + by
            return before

    def share(self, block):
        self.change(block, 1, 0)

    def free(self, block):
        before = self.change(block, -1, 1)
        if before == 0:
            raise DoubleFree(block)
        return before == 1

    def leave_if_shared(self, block):
        return self.change(block, -1, 2) > 1

    def ref_count(self, block):
        return self.change(block, 0, 0)


@wrong(COUNTS, "unwritten", general=True)
class CountsStub:
    """the stub"""

    def __init__(self, num_blocks):
        """Nothing yet."""

    def share(self, block):
        """Nothing yet."""

    def free(self, block):
        """Nothing yet."""

    def leave_if_shared(self, block):
        """Nothing yet."""

    def ref_count(self, block):
        """Nothing yet."""


wrong(COUNTS, "lost_share", "no lock")(Unlocked)


@wrong(COUNTS, "lost_share")
class LockPerCall(OneLock):
    """every call makes a lock of its own"""

    def share(self, block):
        with threading.Lock():
            self.counts[block] += 1


@wrong(COUNTS, "both_are_last")
class LooksLater(OneLock):
    """looks whether it was the last when it has given the lock back"""

    def free(self, block):
        with self.lock:
            if self.counts[block] == 0:
                raise DoubleFree(block)
            self.counts[block] -= 1
        return self.counts[block] == 0


@wrong(COUNTS, "both_are_last")
class FreeUnlocked(OneLock):
    """free without the lock"""

    free = Unlocked.free


@wrong(COUNTS, "both_leave")
class LooksBeforeTheLock(OneLock):
    """leave_if_shared looks first and locks then"""

    def leave_if_shared(self, block):
        if self.counts[block] > 1:
            with self.lock:
                self.counts[block] -= 1
            return True
        return False


@wrong(COUNTS, "both_leave")
class TwoCalls(OneLock):
    """leave_if_shared is ref_count and free, one after the other"""

    def leave_if_shared(self, block):
        if self.ref_count(block) > 1:
            self.free(block)
            return True
        return False


@wrong(COUNTS, "lost_between")
class TwoLocks(OneLock):
    """a lock for sharing and one for giving back"""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.other_lock = threading.Lock()

    def free(self, block):
        with self.other_lock:
            return Unlocked.free(self, block)

    def leave_if_shared(self, block):
        with self.other_lock:
            return Unlocked.leave_if_shared(self, block)


@wrong(COUNTS, "leave_meets_free")
class LeaveOwnLock(OneLock):
    """leave_if_shared has a lock of its own"""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.leaving = threading.Lock()

    def leave_if_shared(self, block):
        with self.leaving:
            return Unlocked.leave_if_shared(self, block)


@wrong(COUNTS, "deadlock")
class WaitsForItself(OneLock):
    """leave_if_shared holds the lock and calls free, which takes it"""

    def leave_if_shared(self, block):
        with self.lock:
            if self.counts[block] > 1:
                self.free(block)
                return True
            return False


@wrong(COUNTS, "wrong_last")
class LastIsOne(OneLock):
    """says whether somebody is left"""

    def free(self, block):
        return not super().free(block)


@wrong(COUNTS, "wrong_leave")
class LeavesAlone(OneLock):
    """a sole owner leaves, too"""

    def leave_if_shared(self, block):
        with self.lock:
            self.counts[block] -= 1
            return True


@wrong(COUNTS, "wrong_count")
class StaysOnLeaving(OneLock):
    """leave_if_shared says yes and doesn't leave"""

    def leave_if_shared(self, block):
        with self.lock:
            return self.counts[block] > 1


@wrong(COUNTS, "double_free_unnoticed")
class BelowZero(OneLock):
    """goes below zero"""

    def free(self, block):
        with self.lock:
            self.counts[block] -= 1
            return self.counts[block] == 0


@wrong(COUNTS, "returns_none")
class FreeSaysNothing(OneLock):
    """free says nothing"""

    def free(self, block):
        super().free(block)


# blocks_for_step

STEP = "blocks_for_step"


@right(STEP)
def by_counter(tables, num_tokens, block_size):
    writers = Counter(blocks[-1] for blocks, n in zip(tables, num_tokens, strict=True) if n % block_size)
    return len(tables) - len(writers)


@right(STEP)
def by_walking(tables, num_tokens, block_size):
    """the second writer of a block copies, the first doesn't"""
    seen, taken = set(), 0
    for blocks, n in zip(tables, num_tokens, strict=True):
        if n % block_size == 0 or blocks[-1] in seen:
            taken += 1
        else:
            seen.add(blocks[-1])
    return taken


@right(STEP)
def by_simulation(tables, num_tokens, block_size):
    """the step, played through with counts"""
    counts, taken = defaultdict(int), 0
    for block in (block for blocks in tables for block in blocks):
        counts[block] += 1
    for blocks, n in zip(tables, num_tokens, strict=True):
        if n == len(blocks) * block_size:
            taken += 1
        elif counts[blocks[-1]] > 1:
            counts[blocks[-1]] -= 1
            taken += 1
    return taken


@wrong(STEP, "unwritten", general=True)
def no_count(tables, num_tokens, block_size):
    """the stub"""


@wrong(STEP, "no_copies")
def boundaries_only(tables, num_tokens, block_size):
    return sum(n % block_size == 0 for n in num_tokens)


@wrong(STEP, "no_growth")
def copies_only(tables, num_tokens, block_size):
    open_blocks = [blocks[-1] for blocks, n in zip(tables, num_tokens, strict=True) if n % block_size]
    return len(open_blocks) - len(set(open_blocks))


@wrong(STEP, "all_copy")
def everybody_copies(tables, num_tokens, block_size):
    """the last one copies, too"""
    counts = Counter(block for blocks in tables for block in blocks)
    return sum(n % block_size == 0 or counts[b[-1]] > 1 for b, n in zip(tables, num_tokens, strict=True))


@wrong(STEP, "one_copy")
def one_a_block(tables, num_tokens, block_size):
    """one copy for each shared block"""
    writers = Counter(blocks[-1] for blocks, n in zip(tables, num_tokens, strict=True) if n % block_size)
    return sum(n % block_size == 0 for n in num_tokens) + sum(count > 1 for count in writers.values())


@wrong(STEP, "copies_full_ones")
def full_ones_too(tables, num_tokens, block_size):
    """full last blocks are copied, too"""
    taken = len(tables) - len({blocks[-1] for blocks in tables})
    return taken + sum(n % block_size == 0 for n in num_tokens)


@wrong(STEP, "all_shared")
def every_shared_block(tables, num_tokens, block_size):
    """every shared block is copied"""
    entries = [block for blocks in tables for block in blocks]
    return len(entries) - len(set(entries)) + sum(n % block_size == 0 for n in num_tokens)


@wrong(STEP, "a_step_early")
def step_early(tables, num_tokens, block_size):
    """a block when the last one becomes full"""
    open_blocks = [blocks[-1] for blocks, n in zip(tables, num_tokens, strict=True) if n % block_size]
    return sum((n + 1) % block_size == 0 for n in num_tokens) + len(open_blocks) - len(set(open_blocks))
