"""Wrong and right implementations of the exercises of chapter 02, with the diagnosis each wrong one must get."""

import heapq
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from mutant_list import right, wrong

from pagedkv_lab.errors import DoubleFree, NotAllocated, OutOfBlocks

# The protocol, written in many ways. All of these are right; those for a BitmapAllocator hand out the lowest first.


@right("BlockAllocator")
class OrderedFree:
    """an OrderedDict of free blocks"""

    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_blocks = OrderedDict.fromkeys(range(num_blocks))
        self.counts = [0] * num_blocks

    def allocate(self):
        if not self.free_blocks:
            raise OutOfBlocks(used=self.num_blocks)
        block, _ = self.free_blocks.popitem(last=False)
        self.counts[block] = 1
        return block

    def share(self, block):
        self.free_blocks.pop(block, None)
        self.counts[block] += 1

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            self.free_blocks[block] = None

    def ref_count(self, block):
        return self.counts[block]

    @property
    def num_free(self):
        return len(self.free_blocks)


@right("BlockAllocator")
class ListStack:
    """a list as a stack, searched by share; num_free is a method, ref_count a list"""

    def __init__(self, num_blocks, block_size):
        self.free_blocks = [*range(num_blocks)]
        self.ref_count = num_blocks * [0]

    def num_free(self):
        return len(self.free_blocks)

    def allocate(self):
        try:
            block = self.free_blocks.pop()
        except IndexError:
            raise OutOfBlocks(used=len(self.ref_count)) from None
        self.ref_count[block] = 1
        return block

    def share(self, block):
        if not self.ref_count[block]:
            self.free_blocks.remove(block)
        self.ref_count[block] += 1

    def free(self, block):
        if not self.ref_count[block]:
            raise DoubleFree(block)
        self.ref_count[block] -= 1
        if not self.ref_count[block]:
            self.free_blocks.append(block)


@right("BlockAllocator")
class DequeFree:
    """a deque, first in first out"""

    def __init__(self, num_blocks, block_size):
        self.queue, self.counts = deque(range(num_blocks)), Counter()

    @property
    def num_free(self):
        return len(self.queue)

    def ref_count(self, block):
        return self.counts[block]

    def allocate(self):
        if self.queue:
            block = self.queue.popleft()
            self.counts[block] += 1
            return block
        raise OutOfBlocks

    def share(self, block):
        if block in self.queue:
            self.queue.remove(block)
        self.counts[block] += 1

    def free(self, block):
        if self.counts[block] < 1:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if not self.counts[block]:
            self.queue.append(block)


@right("BlockAllocator")
@right("BitmapAllocator")
class LazyHeap:
    """a heap with lazy deletion"""

    def __init__(self, num_blocks, block_size):
        self.heap, self.counts = list(range(num_blocks)), [0] * num_blocks
        self.waiting = [True] * num_blocks  # in the heap

    @property
    def num_free(self):
        return self.counts.count(0)

    def ref_count(self, block):
        return self.counts[block]

    def allocate(self):
        while self.heap:
            block = heapq.heappop(self.heap)
            self.waiting[block] = False
            if not self.counts[block]:
                self.counts[block] = 1
                return block
        raise OutOfBlocks(used=len(self.counts))

    def share(self, block):
        self.counts[block] += 1

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] == 0 and not self.waiting[block]:
            self.waiting[block] = True
            heapq.heappush(self.heap, block)


@right("BlockAllocator")
@right("BitmapAllocator")
class BitmapInt:
    """one int, a bit a block"""

    def __init__(self, num_blocks, block_size):
        self.bits, self.counts = (1 << num_blocks) - 1, [0] * num_blocks

    @property
    def num_free(self):
        return self.bits.bit_count()

    def ref_count(self, block):
        return self.counts[block]

    def allocate(self):
        if not self.bits:
            raise OutOfBlocks(used=len(self.counts))
        lowest = self.bits & -self.bits
        self.bits ^= lowest
        block = lowest.bit_length() - 1
        self.counts[block] = 1
        return block

    def share(self, block):
        self.bits &= ~(1 << block)
        self.counts[block] += 1

    def free(self, block):
        if not self.counts[block]:
            raise DoubleFree(block)
        self.counts[block] -= 1
        self.bits |= (not self.counts[block]) << block


@right("BlockAllocator")
@right("BitmapAllocator")
class BitmapNumpy:
    """a numpy array of bools, and counts in another one"""

    def __init__(self, num_blocks, block_size):
        self.is_free, self.counts = np.ones(num_blocks, bool), np.zeros(num_blocks, np.int32)

    @property
    def num_free(self):
        return self.is_free.sum()

    def ref_count(self, block):
        return self.counts[block]

    def allocate(self):
        block = self.is_free.argmax()
        if not self.is_free[block]:
            raise OutOfBlocks(used=len(self.counts))
        self.is_free[block], self.counts[block] = False, 1
        return block

    def share(self, block):
        self.is_free[block] = False
        self.counts[block] += 1

    def free(self, block):
        if self.is_free[block]:
            raise DoubleFree(int(block))
        self.counts[block] -= 1
        self.is_free[block] = self.counts[block] == 0


@right("BlockAllocator")
class SetFree:
    """a set, and a dict of the counts of blocks in use"""

    def __init__(self, num_blocks, block_size):
        self.free_set, self.held = set(range(num_blocks)), {}

    num_free = property(lambda self: len(self.free_set))

    def ref_count(self, block):
        return self.held.get(block, 0)

    def allocate(self):
        if not self.free_set:
            raise OutOfBlocks(used=len(self.held))
        block = self.free_set.pop()
        self.held[block] = 1
        return block

    def share(self, block):
        self.free_set.discard(block)
        self.held[block] = self.held.get(block, 0) + 1

    def free(self, block):
        if block not in self.held:
            raise DoubleFree(block)
        if self.held[block] == 1:
            del self.held[block]
            self.free_set.add(block)
        else:
            self.held[block] -= 1


@right("BlockAllocator")
@dataclass
class DataclassAllocator:
    """a dataclass, num_free kept as a number"""

    num_blocks: int
    block_size: int
    free_blocks: dict = field(default_factory=dict)
    counts: defaultdict = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self):
        self.free_blocks.update(dict.fromkeys(range(self.num_blocks)))
        self.num_free = self.num_blocks

    def allocate(self):
        if self.num_free == 0:
            raise OutOfBlocks(used=self.num_blocks)
        block = next(iter(self.free_blocks))
        self.share(block)
        return block

    def share(self, block):
        if self.counts[block] == 0:
            del self.free_blocks[block]
            self.num_free -= 1
        self.counts[block] += 1

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            self.free_blocks[block] = None
            self.num_free += 1

    def ref_count(self, block):
        return self.counts[block]


@right("BlockAllocator", "closures in a namespace")
def closures(num_blocks, block_size):
    free_blocks, counts = dict.fromkeys(range(num_blocks)), [0] * num_blocks

    def allocate():
        if not free_blocks:
            raise OutOfBlocks(used=num_blocks)
        block, _ = free_blocks.popitem()
        counts[block] = 1
        return block

    def share(block):
        free_blocks.pop(block, None)
        counts[block] += 1

    def free(block):
        if not counts[block]:
            raise DoubleFree(block)
        counts[block] -= 1
        if not counts[block]:
            free_blocks[block] = None

    return SimpleNamespace(
        allocate=allocate,
        share=share,
        free=free,
        ref_count=counts.__getitem__,
        num_free=lambda: len(free_blocks),
        block_size=block_size,
    )


@right("BlockAllocator")
class Linked:
    """a linked list through two arrays, as vLLM's"""

    def __init__(self, num_blocks, block_size):
        # Places num_blocks (the head) and every free block; a free block is in the ring.
        self.after = [*range(1, num_blocks + 1), 0]
        self.before = [num_blocks, *range(num_blocks)]
        self.end, self.counts, self.num_free = num_blocks, [0] * num_blocks, num_blocks

    def _leave(self, block):
        a, b = self.before[block], self.after[block]
        self.after[a], self.before[b] = b, a
        self.num_free -= 1

    def allocate(self):
        block = self.after[self.end]
        if block == self.end:
            raise OutOfBlocks(used=len(self.counts))
        self._leave(block)
        self.counts[block] = 1
        return block

    def share(self, block):
        if self.counts[block] == 0:
            self._leave(block)
        self.counts[block] += 1

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            last = self.before[self.end]
            self.after[last] = self.before[self.end] = block
            self.before[block], self.after[block] = last, self.end
            self.num_free += 1

    def ref_count(self, block):
        return self.counts[block]


# Wrong allocators


@wrong("BlockAllocator", "unwritten", general=True)
@wrong("BitmapAllocator", "unwritten", general=True)
@wrong("ThreadSafeAllocator", "unwritten", general=True)
class Stub:
    """the stub"""

    def __init__(self, num_blocks, block_size):
        pass

    def allocate(self):
        pass

    def share(self, block):
        pass

    def free(self, block):
        pass

    def ref_count(self, block):
        pass

    @property
    def num_free(self):
        pass


@wrong("BlockAllocator", "unwritten", general=True)
class NotImplementedYet(Stub):
    """NotImplementedError"""

    def allocate(self):
        raise NotImplementedError


wrong("BlockAllocator", "not_a_class", "an object, not a class", general=True)(SimpleNamespace(allocate=lambda: 0))


@wrong("BlockAllocator", "endless", general=True)
class EndlessAllocate(OrderedFree):
    """an endless loop where none is left"""

    def allocate(self):
        while not self.free_blocks:
            pass
        return super().allocate()


@wrong("BlockAllocator", "prints", general=True)
class Prints(OrderedFree):
    """prints the block"""

    def allocate(self):
        print(super().allocate())


@wrong("BlockAllocator", "returns_none")
class AllocateWithoutReturn(OrderedFree):
    """no return in allocate"""

    def allocate(self):
        super().allocate()


@wrong("BlockAllocator", "returns_none")
class CountWithoutReturn(OrderedFree):
    """no return in ref_count"""

    def ref_count(self, block):
        self.counts[block]


@wrong("BlockAllocator", "returns_none")
class NumFreeWithoutReturn(OrderedFree):
    """no return in num_free"""

    @property
    def num_free(self):
        len(self.free_blocks)


@wrong("BlockAllocator", "wrong_type")
class BlockAsFloat(OrderedFree):
    """block numbers are floats"""

    def allocate(self):
        return super().allocate() / 1


@wrong("BlockAllocator", "no_attribute")
class NoNumFree:
    """num_free was forgotten"""

    def __init__(self, num_blocks, block_size):
        self.inner = OrderedFree(num_blocks, block_size)
        self.allocate, self.share, self.free = self.inner.allocate, self.inner.share, self.inner.free
        self.ref_count = self.inner.ref_count


@wrong("BlockAllocator", "no_such_block")
class CountsFromOne(OrderedFree):
    """the blocks are 1 to num_blocks"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.free_blocks, self.counts = OrderedDict.fromkeys(range(1, num_blocks + 1)), [0] * (num_blocks + 1)


@wrong("BlockAllocator", "wrong_at_start")
class OneTooMany(OrderedFree):
    """num_blocks + 1 blocks"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks + 1, block_size)


@wrong("BlockAllocator", "no_such_block")
class OneTooManyUnseen(OrderedFree):
    """num_blocks + 1 blocks, and num_free does not show it"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks + 1, block_size)

    @property
    def num_free(self):
        return max(0, len(self.free_blocks) - 1)


@wrong("BlockAllocator", "wrong_at_start")
class OneTooFew(OrderedFree):
    """range(1, num_blocks): a block is missing from the start"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        del self.free_blocks[0]


@wrong("BlockAllocator", "too_few_blocks")
class StopsEarly(OrderedFree):
    """keeps the last block to itself"""

    def allocate(self):
        if len(self.free_blocks) <= 1 and len(self.counts) > 1:
            raise OutOfBlocks
        return super().allocate()


@wrong("BlockAllocator", "wrong_error_when_empty")
class IndexErrorWhenEmpty(OrderedFree):
    """lets pop's own error out"""

    def allocate(self):
        if not self.free_blocks:
            return [].pop()
        return super().allocate()


@wrong("BlockAllocator", "wrong_error_when_empty")
class RuntimeErrorWhenEmpty(OrderedFree):
    """RuntimeError, as in the article"""

    def allocate(self):
        if not self.free_blocks:
            raise RuntimeError("Out of blocks")
        return super().allocate()


@wrong("BlockAllocator", "no_error_when_empty")
class NoneWhenEmpty(OrderedFree):
    """None where no block is left"""

    def allocate(self):
        return super().allocate() if self.free_blocks else None


@wrong("BlockAllocator", "no_error_when_empty")
class MinusOneWhenEmpty(OrderedFree):
    """-1 where no block is left"""

    def allocate(self):
        return super().allocate() if self.free_blocks else -1


@wrong("BlockAllocator", "handed_out_in_use")
class WrapsAround(OrderedFree):
    """begins again with block 0 where no block is left"""

    def allocate(self):
        if not self.free_blocks:
            return 0
        return super().allocate()


@wrong("BlockAllocator", "allocate_raises")
class BreaksLater(OrderedFree):
    """a KeyError on the second block"""

    def allocate(self):
        if self.free_blocks and len(self.counts) - len(self.free_blocks) == 1:
            return {}[1]
        return super().allocate()


@wrong("BlockAllocator", "count_after_allocate")
class FreshCountZero(OrderedFree):
    """a fresh block counts 0"""

    def allocate(self):
        block = super().allocate()
        self.counts[block] = 0
        return block


@wrong("BlockAllocator", "count_after_allocate")
class StaleCounts(OrderedFree):
    """allocate adds to a count that free never took down"""

    def allocate(self):
        block, _ = self.free_blocks.popitem() if self.free_blocks else (None, super().allocate())
        self.counts[block] += 1
        return block

    def free(self, block):
        if block in self.free_blocks:
            raise DoubleFree(block)
        if self.counts[block] > 1:
            self.counts[block] -= 1
        else:
            self.free_blocks[block] = None

    def ref_count(self, block):
        return 0 if block in self.free_blocks else self.counts[block]


@wrong("BlockAllocator", "double_free_unnoticed")
class Skeleton(OrderedFree):
    """the article's skeleton: the count goes below zero"""

    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.stack, self.counts = num_blocks, list(range(num_blocks)), [0] * num_blocks

    num_free = property(lambda self: len(self.stack))

    def allocate(self):
        if not self.stack:
            raise OutOfBlocks
        block = self.stack.pop()
        self.counts[block] = 1
        return block

    def free(self, block):
        self.counts[block] -= 1
        if self.counts[block] == 0:
            self.stack.append(block)

    def share(self, block):
        self.counts[block] += 1


@wrong("BlockAllocator", "double_free_unnoticed")
class FreedTwiceIsFreeTwice(Skeleton):
    """freed twice, it is in the free list twice"""

    def free(self, block):
        self.counts[block] -= 1
        if self.counts[block] <= 0:
            self.counts[block] = 0
            self.stack.append(block)


@wrong("BlockAllocator", "double_free_unnoticed")
class DoubleFreeOnlyOnceBelow(Skeleton):
    """notices only when the count is negative already"""

    def free(self, block):
        if self.counts[block] < 0:
            raise DoubleFree(block)
        super().free(block)


@wrong("BlockAllocator", "double_free_unnoticed")
class IgnoresDoubleFree(OrderedFree):
    """a second free is quietly ignored"""

    def free(self, block):
        if self.counts[block]:
            super().free(block)


@wrong("BlockAllocator", "wrong_error_for_double_free")
class AssertsDoubleFree(OrderedFree):
    """an assert for a double free"""

    def free(self, block):
        assert self.counts[block] > 0, "not in use"
        super().free(block)


@wrong("BlockAllocator", "wrong_error_for_double_free")
class NotAllocatedForDoubleFree(OrderedFree):
    """NotAllocated for a double free"""

    def free(self, block):
        if not self.counts[block]:
            raise NotAllocated(block, self.num_blocks)
        super().free(block)


@wrong("BlockAllocator", "count_below_zero")
class RefusesTooLate(OrderedFree):
    """counts down first, then raises DoubleFree"""

    def free(self, block):
        self.counts[block] -= 1
        if self.counts[block] < 0:
            raise DoubleFree(block)
        if self.counts[block] == 0:
            self.free_blocks[block] = None


@wrong("BlockAllocator", "share_not_counted")
class ShareForgetsToCount(OrderedFree):
    """share does nothing for a block in use"""

    def share(self, block):
        if self.counts[block] == 0:
            super().share(block)


@wrong("BlockAllocator", "share_not_counted")
class ShareSetsTwo(OrderedFree):
    """share sets the count to 2"""

    def share(self, block):
        was_free = self.free_blocks.pop(block, 0) is None
        self.counts[block] = 1 if was_free else 2


@wrong("BlockAllocator", "wrong_count")
class ShareDoubles(OrderedFree):
    """share doubles the count"""

    def share(self, block):
        self.free_blocks.pop(block, None)
        self.counts[block] = self.counts[block] * 2 or 1


@wrong("BlockAllocator", "freed_while_shared")
class FreeForgetsTheOthers(OrderedFree):
    """free sets the count of a shared block to 0"""

    def free(self, block):
        shared = self.counts[block] > 1
        super().free(block)
        if shared:
            self.counts[block] = 0


@wrong("BlockAllocator", "share_leaves_it_free")
class ShareLeavesItFree(OrderedFree):
    """share leaves a free block among the free ones"""

    def share(self, block):
        self.counts[block] += 1


@wrong("BlockAllocator", "share_leaves_it_free")
class ShareLeavesItFreeUnseen(OrderedFree):
    """share leaves a free block in the list, and num_free counts the zeros"""

    def share(self, block):
        self.counts[block] += 1

    @property
    def num_free(self):
        return self.counts.count(0)


@wrong("BlockAllocator", "count_after_revival")
class RevivalCountsTwo(OrderedFree):
    """a block that comes back to life counts 2"""

    def share(self, block):
        self.counts[block] += 1 + (self.free_blocks.pop(block, 0) is None)


@wrong("BlockAllocator", "share_refuses")
class RefusesToRevive(OrderedFree):
    """share of a free block is an error"""

    def share(self, block):
        if self.counts[block] == 0:
            raise NotAllocated(block, self.num_blocks)
        self.counts[block] += 1


@wrong("BlockAllocator", "share_refuses")
class PopsTheWrongEnd(OrderedFree):
    """share takes the block that was freed last, whichever is asked for"""

    def share(self, block):
        if self.counts[block] == 0:
            last, _ = self.free_blocks.popitem()
            assert last == block
        self.counts[block] += 1


@wrong("BlockAllocator", "share_leaves_it_free")
class RevivesAnother(OrderedFree):
    """share of a free block takes another one out of the free ones"""

    def share(self, block):
        if self.counts[block] == 0 and self.free_blocks:
            self.free_blocks.popitem()
        self.counts[block] += 1


@wrong("BlockAllocator", "share_takes_a_block")
class NumFreeCountsHolders(OrderedFree):
    """num_free subtracts every holder"""

    @property
    def num_free(self):
        return len(self.counts) - sum(self.counts)


@wrong("BlockAllocator", "freed_while_shared")
class FreesForAll(OrderedFree):
    """free gives a shared block back at once"""

    def free(self, block):
        super().free(block)
        self.free_blocks[block] = None


@wrong("BlockAllocator", "lost_block")
class NeverGivesBack(OrderedFree):
    """free only counts down"""

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1


@wrong("BlockAllocator", "lost_block")
class NeverGivesBackUnseen(NeverGivesBack):
    """free only counts down, and num_free counts the zeros"""

    @property
    def num_free(self):
        return self.counts.count(0)


@wrong("BlockAllocator", "freed_while_shared")
class GivesBackAtOne(OrderedFree):
    """free gives back where one holder is left, not none"""

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] <= 1:
            self.free_blocks[block] = None


@wrong("BlockAllocator", "free_refuses")
class FreeNeedsTwo(OrderedFree):
    """takes the last holder's free for a double one"""

    def free(self, block):
        if self.counts[block] <= 1:
            raise DoubleFree(block)
        super().free(block)


@wrong("BlockAllocator", "wrong_num_free")
class NumFreeNeverChanges(OrderedFree):
    """num_free is set once"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.size = num_blocks

    @property
    def num_free(self):
        return self.size


@wrong("BlockAllocator", "shared_between_pools")
class ClassLists:
    """lists of the class, not of the object"""

    free_blocks, counts = [], []

    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.free_blocks[:] = range(num_blocks)
        self.counts[:] = [0] * num_blocks

    allocate = ListStack.__dict__["allocate"]

    @property
    def num_free(self):
        return len(self.free_blocks)

    @property
    def ref_count(self):
        return self.counts

    share = ListStack.__dict__["share"]
    free = ListStack.__dict__["free"]


# Bitmaps


@right("BitmapAllocator")
class BitmapString:
    """a subclass of a stack that looks for the lowest"""

    def __init__(self, num_blocks, block_size):
        self.used, self.num_blocks, self.counts = 0, num_blocks, Counter()

    def num_free(self):
        return self.num_blocks - self.used.bit_count()

    def ref_count(self, block):
        return self.counts[block]

    def allocate(self):
        for block in range(self.num_blocks):
            if not self.used >> block & 1:
                self.share(block)
                return block
        raise OutOfBlocks(used=self.num_blocks)

    def share(self, block):
        self.used |= 1 << block
        self.counts[block] += 1

    def free(self, block):
        if not self.used >> block & 1:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if not self.counts[block]:
            self.used &= ~(1 << block)


wrong("BitmapAllocator", "not_the_lowest", "a stack, not a bitmap")(ListStack)
wrong("BitmapAllocator", "not_the_lowest", "a queue, not a bitmap")(DequeFree)


@wrong("BitmapAllocator", "handed_out_in_use")
class ForgetsToClear(BitmapInt):
    """the bit is not cleared"""

    def allocate(self):
        block, bits = super().allocate(), self.bits
        self.bits = bits | (1 << block if len(self.counts) > 1 else 0)
        return block

    @property
    def num_free(self):
        return self.counts.count(0)


@wrong("BitmapAllocator", "no_such_block")
class BitLength(BitmapInt):
    """bit_length without - 1"""

    def allocate(self):
        return super().allocate() + 1


@wrong("BitmapAllocator", "not_the_lowest")
class HighestFirst(BitmapInt):
    """the highest free block first"""

    def allocate(self):
        if not self.bits:
            raise OutOfBlocks
        block = self.bits.bit_length() - 1
        self.share(block)
        return block


@wrong("BitmapAllocator", "share_leaves_it_free")
class ShareLeavesTheBit(BitmapInt):
    """share leaves the bit set"""

    def share(self, block):
        self.counts[block] += 1


@wrong("BitmapAllocator", "handed_out_in_use")
class ToggledTwice(BitmapInt):
    """share toggles the bit, also of a block in use"""

    def share(self, block):
        self.bits ^= 1 << block
        self.counts[block] += 1

    @property
    def num_free(self):
        return self.counts.count(0)


@wrong("BitmapAllocator", "handed_out_in_use")
class ArgmaxOfNothing(BitmapNumpy):
    """argmax of an array without a True is 0"""

    def allocate(self):
        block = self.is_free.argmax()
        self.is_free[block], self.counts[block] = False, 1
        return block


@wrong("BitmapAllocator", "raises", "64 bits in a numpy integer")
class SixtyFourBits(BitmapInt):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        np.uint64(self.bits)


# Threads


@right("ThreadSafeAllocator")
class OneLock(OrderedFree):
    """a subclass with one lock"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.lock = threading.Lock()

    def allocate(self):
        with self.lock:
            return super().allocate()

    def share(self, block):
        with self.lock:
            super().share(block)

    def free(self, block):
        with self.lock:
            super().free(block)


@right("ThreadSafeAllocator")
class Reentrant(DataclassAllocator):
    """an RLock, and a method that calls another"""

    def __post_init__(self):
        super().__post_init__()
        self.lock = threading.RLock()

    def allocate(self):
        with self.lock:
            return super().allocate()

    def share(self, block):
        with self.lock:
            super().share(block)

    def free(self, block):
        self.lock.acquire()
        try:
            super().free(block)
        finally:
            self.lock.release()


def locked(method):
    def guarded(self, *args):
        with self.condition:
            return method(self, *args)

    return guarded


@right("ThreadSafeAllocator")
class Decorated(BitmapInt):
    """a decorator, and a condition"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.condition = threading.Condition()

    allocate, share, free = (locked(vars(BitmapInt)[name]) for name in ("allocate", "share", "free"))


@right("ThreadSafeAllocator")
class GeneratorLock(OrderedFree):
    """a lock taken in a generator, as a context manager of its own"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.lock = threading.Lock()

    @contextmanager
    def alone(self):
        self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    def allocate(self):
        with self.alone():
            return super().allocate()

    def share(self, block):
        with self.alone():
            super().share(block)

    def free(self, block):
        with self.alone():
            super().free(block)


@wrong("ThreadSafeAllocator", "race_allocate")
class NoLock(OrderedFree):
    """no lock at all"""


wrong("ThreadSafeAllocator", "race_share", "a list as a stack: pop needs no lock, += does")(ListStack)


@wrong("ThreadSafeAllocator", "race_allocate")
class LockPerCall(OrderedFree):
    """every call makes a lock of its own"""

    def allocate(self):
        with threading.Lock():
            return super().allocate()


@wrong("ThreadSafeAllocator", "race_allocate")
class LooksBeforeTheLock(OneLock):
    """looks whether a block is left before it takes the lock"""

    def allocate(self):
        if not self.free_blocks:
            raise OutOfBlocks
        with self.lock:
            block, _ = self.free_blocks.popitem()
            self.counts[block] = 1
            return block


@wrong("ThreadSafeAllocator", "race_share")
class ShareUnlocked(OneLock):
    """share without the lock"""

    def share(self, block):
        OrderedFree.share(self, block)


@wrong("ThreadSafeAllocator", "race_free")
class FreeUnlocked(OneLock):
    """free without the lock"""

    def free(self, block):
        OrderedFree.free(self, block)


@wrong("ThreadSafeAllocator", "race_free")
class CountsDownOutside(OneLock):
    """free takes the lock for the list only"""

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            with self.lock:
                self.free_blocks[block] = None


@wrong("ThreadSafeAllocator", "race_between_methods")
class ALockEach(OrderedFree):
    """a lock for each method"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.locks = [threading.Lock() for _ in range(3)]

    def allocate(self):
        with self.locks[0]:
            return super().allocate()

    def share(self, block):
        with self.locks[1]:
            super().share(block)

    def free(self, block):
        with self.locks[2]:
            super().free(block)


@wrong("ThreadSafeAllocator", "deadlock")
class CallsItself(DataclassAllocator):
    """a Lock, and a method that holds it calls another that takes it"""

    def __post_init__(self):
        super().__post_init__()
        self.lock = threading.Lock()

    def allocate(self):
        with self.lock:
            return super().allocate()

    def share(self, block):
        with self.lock:
            super().share(block)


@wrong("ThreadSafeAllocator", "deadlock")
class ForgetsToRelease(OneLock):
    """raises between acquire and release"""

    def allocate(self):
        self.lock.acquire()
        block = OrderedFree.allocate(self)
        self.lock.release()
        return block


@wrong("ThreadSafeAllocator", "deadlock")
class TwoLocks(OrderedFree):
    """two locks, taken in two orders"""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.of_counts, self.of_free = threading.Lock(), threading.Lock()

    def allocate(self):
        with self.of_free, self.of_counts:
            return super().allocate()

    def share(self, block):
        with self.of_free, self.of_counts:
            super().share(block)

    def free(self, block):
        with self.of_counts, self.of_free:
            super().free(block)


wrong("ThreadSafeAllocator", "double_free_unnoticed", "the article's skeleton")(Skeleton)

# leaked_blocks


@right("leaked_blocks", "a comprehension")
def comprehension(ref_counts, tables):
    return [block for block, count in enumerate(ref_counts) if count > sum(table.count(block) for table in tables)]


@right("leaked_blocks", "a Counter of all tables")
def counter(ref_counts, tables):
    held = Counter(block for table in tables for block in table)
    found = []
    for block in range(len(ref_counts)):
        if ref_counts[block] - held[block] > 0:
            found.append(block)
    return found


@right("leaked_blocks", "numpy, and an array as the answer")
def bincount(ref_counts, tables):
    flat = np.array([block for table in tables for block in table], int)
    return np.flatnonzero(np.array(ref_counts) > np.bincount(flat, minlength=len(ref_counts)))


@right("leaked_blocks", "subtracts from a copy of the counts; a tuple")
def subtracts(ref_counts, tables):
    left = list(ref_counts)
    for table in tables:
        for block in table:
            left[block] -= 1
    return tuple(sorted(block for block, count in enumerate(left) if count > 0))


@wrong("leaked_blocks", "unwritten", "the stub", general=True)
def leak_stub(ref_counts, tables):
    pass


@wrong("leaked_blocks", "prints", "prints", general=True)
def leak_prints(ref_counts, tables):
    print(comprehension(ref_counts, tables))


wrong("leaked_blocks", "not_a_function", "a list", general=True)([3])
wrong("leaked_blocks", "wrong_type", "block numbers as texts")(lambda c, t: [str(b) for b in comprehension(c, t)])


@wrong("leaked_blocks", "returns_none", "None where nothing leaks")
def leak_returns_nothing(ref_counts, tables):
    return comprehension(ref_counts, tables) or None


@wrong("leaked_blocks", "in_use_is_no_leak", "every block in use")
def leak_in_use(ref_counts, tables):
    return [block for block, count in enumerate(ref_counts) if count > 0]


@wrong("leaked_blocks", "shared_is_no_leak", "every block with more than one holder")
def leak_shared(ref_counts, tables):
    return [block for block, count in enumerate(ref_counts) if count >= 2]


@wrong("leaked_blocks", "tables_counted_once", "counts the tables of a block as one")
def leak_once(ref_counts, tables):
    held = {block for table in tables for block in table}
    return [block for block, count in enumerate(ref_counts) if count > (1 if block in held else 0)]


@wrong("leaked_blocks", "held_blocks_leak_too", "looks only at blocks in no table")
def leak_unheld_only(ref_counts, tables):
    held = {block for table in tables for block in table}
    return [block for block, count in enumerate(ref_counts) if count and block not in held]


@wrong("leaked_blocks", "too_low_is_no_leak", "every count that is off")
def leak_unequal(ref_counts, tables):
    held = Counter(block for table in tables for block in table)
    return [block for block, count in enumerate(ref_counts) if count != held[block]]


@wrong("leaked_blocks", "free_is_no_leak", "every block in no table, the free ones too")
def leak_unheld(ref_counts, tables):
    held = {block for table in tables for block in table}
    return sorted(set(range(len(ref_counts))) - held)


@wrong("leaked_blocks", "not_a_list", "a set")
def leak_set(ref_counts, tables):
    return set(comprehension(ref_counts, tables))


@wrong("leaked_blocks", "not_a_list", "a generator")
def leak_yields(ref_counts, tables):
    yield from comprehension(ref_counts, tables)


@wrong("leaked_blocks", "not_a_list", "how many blocks leaked, not which")
def leak_count(ref_counts, tables):
    return len(comprehension(ref_counts, tables))


@wrong("leaked_blocks", "not_sorted", "from the back")
def leak_backwards(ref_counts, tables):
    return comprehension(ref_counts, tables)[::-1]


@wrong("leaked_blocks", "listed_twice", "a block once for each missing holder")
def leak_each_holder(ref_counts, tables):
    held = Counter(block for table in tables for block in table)
    return [block for block, count in enumerate(ref_counts) for _ in range(count - held[block])]


@wrong("leaked_blocks", "mutates", "counts down in the pool's own list")
def leak_counts_down(ref_counts, tables):
    for table in tables:
        for block in table:
            ref_counts[block] -= 1
    return [block for block, count in enumerate(ref_counts) if count > 0]


@wrong("leaked_blocks", "misses_a_leak", "block 0 is taken for None")
def leak_but_not_block_0(ref_counts, tables):
    return [block for block in comprehension(ref_counts, tables) if block]


@wrong("leaked_blocks", "lists_no_leak", "looks at the first table only")
def leak_first_table_only(ref_counts, tables):
    return comprehension(ref_counts, tables[:1])


@wrong("leaked_blocks", "lists_no_block", "counts blocks from 1")
def leak_from_one(ref_counts, tables):
    return [block + 1 for block in comprehension(ref_counts, tables)]


# borrowed_blocks


@right("borrowed_blocks", "try and finally")
@contextmanager
def with_finally(allocator, count):
    blocks = []
    try:
        for _ in range(count):
            blocks.append(allocator.allocate())
        yield blocks
    finally:
        while blocks:
            allocator.free(blocks.pop())


@right("borrowed_blocks")
class WithClass:
    """a class"""

    def __init__(self, allocator, count):
        self.allocator, self.count, self.blocks = allocator, count, []

    def __enter__(self):
        try:
            while len(self.blocks) < self.count:
                self.blocks.append(self.allocator.allocate())
        except BaseException:
            self.__exit__()
            raise
        return self.blocks

    def __exit__(self, *error):
        for block in reversed(self.blocks):
            self.allocator.free(block)


@right("borrowed_blocks", "an ExitStack; a tuple for the body")
@contextmanager
def with_stack(allocator, count):
    with ExitStack() as stack:
        blocks = []
        for _ in range(count):
            blocks.append(allocator.allocate())
            stack.callback(allocator.free, blocks[-1])
        yield tuple(blocks)


@right("borrowed_blocks", "one block, and the rest by itself")
@contextmanager
def recursive(allocator, count):
    if count == 0:
        yield []
        return
    block = allocator.allocate()
    try:
        with recursive(allocator, count - 1) as rest:
            yield [block, *rest]
    finally:
        allocator.free(block)


@wrong("borrowed_blocks", "unwritten", "the stub", general=True)
def loan_stub(allocator, count):
    pass


wrong("borrowed_blocks", "not_a_function", "a number", general=True)(3)


@wrong("borrowed_blocks", "raises", "an attribute that does not exist", general=True)
@contextmanager
def loan_breaks(allocator, count):
    yield allocator.allocate_all(count)


@wrong("borrowed_blocks", "not_a_context_manager", "a generator without @contextmanager")
def loan_undecorated(allocator, count):
    yield [allocator.allocate() for _ in range(count)]


@wrong("borrowed_blocks", "not_a_context_manager", "returns the list")
def loan_returns(allocator, count):
    return [allocator.allocate() for _ in range(count)]


@wrong("borrowed_blocks", "no_yield", "@contextmanager without a yield")
@contextmanager
def loan_without_yield(allocator, count):
    for block in [allocator.allocate() for _ in range(count)]:
        allocator.free(block)


@wrong("borrowed_blocks", "not_a_context_manager", "@contextmanager, and returns the list")
@contextmanager
def loan_decorated_return(allocator, count):
    return [allocator.allocate() for _ in range(count)]


@wrong("borrowed_blocks", "yields_nothing", "a bare yield")
@contextmanager
def loan_yields_nothing(allocator, count):
    blocks = [allocator.allocate() for _ in range(count)]
    yield
    for block in reversed(blocks):
        allocator.free(block)


@wrong("borrowed_blocks", "not_a_list", "a block, not a list of them")
@contextmanager
def loan_of_one(allocator, count):
    block = allocator.allocate()
    yield block
    allocator.free(block)


@wrong("borrowed_blocks", "wrong_number", "one block too few")
@contextmanager
def loan_one_too_few(allocator, count):
    blocks = [allocator.allocate() for _ in range(count - 1)]
    yield blocks
    for block in reversed(blocks):
        allocator.free(block)


@wrong("borrowed_blocks", "given_back_too_early", "frees before the yield")
@contextmanager
def loan_too_early(allocator, count):
    blocks = [allocator.allocate() for _ in range(count)]
    for block in reversed(blocks):
        allocator.free(block)
    yield blocks


@wrong("borrowed_blocks", "not_given_back", "never frees")
@contextmanager
def loan_never_frees(allocator, count):
    yield [allocator.allocate() for _ in range(count)]


@wrong("borrowed_blocks", "leaks_when_the_body_fails", "no finally")
@contextmanager
def loan_without_finally(allocator, count):
    blocks = [allocator.allocate() for _ in range(count)]
    yield blocks
    for block in reversed(blocks):
        allocator.free(block)


@wrong("borrowed_blocks", "swallows_the_error", "except without raise")
@contextmanager
def loan_swallows(allocator, count):
    blocks = []
    try:
        for _ in range(count):
            blocks.append(allocator.allocate())
        yield blocks
    except Exception:
        pass
    for block in reversed(blocks):
        allocator.free(block)


@wrong("borrowed_blocks", "swallows_the_error")
class LoanSwallows(WithClass):
    """__exit__ returns True"""

    def __exit__(self, *error):
        super().__exit__()
        return True


@wrong("borrowed_blocks", "swallows_the_error", "gives fewer blocks where the pool runs out")
@contextmanager
def loan_gives_fewer(allocator, count):
    blocks = []
    try:
        for _ in range(count):
            if allocator.num_free:
                blocks.append(allocator.allocate())
        yield blocks
    finally:
        while blocks:
            allocator.free(blocks.pop())


@wrong("borrowed_blocks", "leaks_when_the_pool_runs_out", "allocates before the try")
@contextmanager
def loan_allocates_before_try(allocator, count):
    blocks = [allocator.allocate() for _ in range(count)]
    try:
        yield blocks
    finally:
        for block in reversed(blocks):
            allocator.free(block)


@wrong("borrowed_blocks", "leaks_when_stopped", "except Exception, which KeyboardInterrupt isn't")
@contextmanager
def loan_except_exception(allocator, count):
    blocks = []
    try:
        for _ in range(count):
            blocks.append(allocator.allocate())
        yield blocks
    except Exception:
        for block in reversed(blocks):
            allocator.free(block)
        raise
    else:
        for block in reversed(blocks):
            allocator.free(block)


@wrong("borrowed_blocks", "frees_for_others", "frees until nobody holds the block")
@contextmanager
def loan_frees_all_holders(allocator, count):
    blocks = []
    try:
        for _ in range(count):
            blocks.append(allocator.allocate())
        yield blocks
    finally:
        for block in reversed(blocks):
            while allocator.ref_count(block):
                allocator.free(block)


@wrong("borrowed_blocks", "not_tail_first", "the first block back first")
@contextmanager
def loan_head_first(allocator, count):
    blocks = []
    try:
        for _ in range(count):
            blocks.append(allocator.allocate())
        yield blocks
    finally:
        for block in blocks:
            allocator.free(block)
