"""Wrong and right implementations of the exercises of chapter 05, with the diagnosis each wrong one must get.

Each is written as a learner would write it, without a look at the check.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from mutant_list import right, wrong

from pagedkv_lab.blocks import BlockAllocator
from pagedkv_lab.blocks import PrefixCache as PackagePrefixCache
from pagedkv_lab.errors import DoubleFree, OutOfBlocks

# 5.1 PrefixCache


@right("PrefixCache")
class TwoDicts:
    """two dictionaries"""

    def __init__(self):
        self.block_of = {}
        self.key_of = {}

    def lookup(self, key):
        return self.block_of.get(key)

    def insert(self, key, block):
        if key in self.block_of:
            return
        self.forget(block)
        self.block_of[key] = block
        self.key_of[block] = key

    def forget(self, block):
        if block in self.key_of:
            del self.block_of[self.key_of.pop(block)]


right("PrefixCache", "the package's own")(PackagePrefixCache)


@right("PrefixCache")
class ListOfPairs:
    """a list of pairs, searched"""

    def __init__(self):
        self.pairs = []

    def lookup(self, key):
        for k, block in self.pairs:
            if k == key and type(k) is type(key):
                return block
        return None

    def insert(self, key, block):
        if self.lookup(key) is None:
            self.pairs = [(k, b) for k, b in self.pairs if b != block]
            self.pairs.append((key, block))

    def forget(self, block):
        self.pairs = [(k, b) for k, b in self.pairs if b != block]


@right("PrefixCache")
class IsADict(dict):
    """a subclass of dict"""

    lookup = dict.get

    def insert(self, key, block):
        if key not in self:
            self.forget(block)
            self[key] = block

    def forget(self, block):
        for key in [key for key, value in self.items() if value == block]:
            del self[key]


@right("PrefixCache")
@dataclass
class DataclassWithNumpyBlocks:
    """a dataclass that keeps numpy ints"""

    entries: OrderedDict = field(default_factory=OrderedDict)

    def lookup(self, key):
        return self.entries.get(key)

    def insert(self, key, block):
        if key in self.entries:
            return
        self.forget(block)
        self.entries[key] = np.int64(block)

    def forget(self, block):
        self.entries = OrderedDict((k, b) for k, b in self.entries.items() if b != block)


@right("PrefixCache", "closures in a namespace")
def closures():
    block_of, key_of = {}, {}

    def forget(block):
        block_of.pop(key_of.pop(block, object()), None)

    def insert(key, block):
        if key not in block_of:
            forget(block)
            block_of[key], key_of[block] = block, key

    def lookup(key):
        return block_of.get(key)

    class Cache:
        pass

    cache = Cache()
    cache.lookup, cache.insert, cache.forget = lookup, insert, forget
    return cache


@wrong("PrefixCache", "unwritten", general=True)
class StubOfTheCache:
    """the stub"""

    def __init__(self):
        pass

    def lookup(self, key):
        """The block."""

    def insert(self, key, block):
        """Nothing."""

    def forget(self, block):
        """Nothing."""


@wrong("PrefixCache", "raises", general=True)
class NoDictYet(TwoDicts):
    """no dictionary in __init__"""

    def __init__(self):
        self.key_of = {}


@wrong("PrefixCache", "insert_raises")
class InsertComplains(TwoDicts):
    """insert raises for a key that is there"""

    def insert(self, key, block):
        if key in self.block_of:
            raise ValueError("there already")
        super().insert(key, block)


@wrong("PrefixCache", "no_forget")
class NoForget:
    """no forget"""

    def __init__(self):
        self.cache = {}

    def lookup(self, key):
        return self.cache.get(key)

    def insert(self, key, block):
        self.cache.setdefault(key, block)


@wrong("PrefixCache", "still_found")
class ForgetDoesNothing(TwoDicts):
    """forget does nothing"""

    def forget(self, block):
        pass


@wrong("PrefixCache", "still_found")
class ForgetsOneDirection(TwoDicts):
    """forget drops the way back only"""

    def forget(self, block):
        self.key_of.pop(block, None)


@wrong("PrefixCache", "still_found")
class ForgetsByKey(TwoDicts):
    """forget takes the block for a key"""

    def forget(self, block):
        self.block_of.pop(block, None)


@wrong("PrefixCache", "forget_raises")
class ForgetWantsAKey(TwoDicts):
    """forget of a block without a key is a KeyError"""

    def forget(self, block):
        del self.block_of[self.key_of.pop(block)]

    def insert(self, key, block):
        if key not in self.block_of:
            if block in self.key_of:
                self.forget(block)
            self.block_of[key], self.key_of[block] = block, key


@wrong("PrefixCache", "forgets_another")
class ForgetsTheOldest(TwoDicts):
    """forget drops the oldest entry"""

    def forget(self, block):
        if self.block_of:
            del self.block_of[next(iter(self.block_of))]


@wrong("PrefixCache", "forgets_another")
class ForgetsAll(TwoDicts):
    """forget clears everything"""

    def insert(self, key, block):
        self.block_of.setdefault(key, block)

    def forget(self, block):
        self.block_of.clear()


@wrong("PrefixCache", "overwrites")
class Overwrites(TwoDicts):
    """the second block under a key takes the first one's place"""

    def insert(self, key, block):
        self.block_of[key] = block
        self.key_of[block] = key


@wrong("PrefixCache", "forgets_another")
class NotesTheIgnored(TwoDicts):
    """the way back is noted for an ignored block, too"""

    def insert(self, key, block):
        self.block_of.setdefault(key, block)
        self.key_of[block] = key


@wrong("PrefixCache", "two_keys")
class TwoKeys(TwoDicts):
    """a block keeps its old key beside the new one"""

    def insert(self, key, block):
        if key not in self.block_of:
            self.block_of[key] = block
            self.key_of[block] = key


@wrong("PrefixCache", "miss_raises")
class KeyErrorOnAMiss(TwoDicts):
    """lookup raises KeyError on a miss"""

    def lookup(self, key):
        return self.block_of[key]


@wrong("PrefixCache", "miss_is_not_none")
class MinusOne(TwoDicts):
    """lookup returns -1 on a miss"""

    def lookup(self, key):
        return self.block_of.get(key, -1)


@wrong("PrefixCache", "miss_is_not_none")
class FalseOnAMiss(TwoDicts):
    """lookup returns False on a miss"""

    def lookup(self, key):
        return key in self.block_of and self.block_of[key]


@wrong("PrefixCache", "lookup_removes")
class Pops(TwoDicts):
    """lookup takes the entry out"""

    def lookup(self, key):
        return self.block_of.pop(key, None)


@wrong("PrefixCache", "block_0")
class BlockZero(TwoDicts):
    """block 0 is taken for a miss"""

    def lookup(self, key):
        block = self.block_of.get(key)
        return block if block else None


@wrong("PrefixCache", "falsy_key")
class FalsyKey(TwoDicts):
    """an empty key is taken for none"""

    def insert(self, key, block):
        if key:
            super().insert(key, block)


@wrong("PrefixCache", "not_found")
class InsertForgotten(TwoDicts):
    """insert notes the way back only"""

    def insert(self, key, block):
        self.key_of[block] = key


@wrong("PrefixCache", "wrong_block")
class OffByOne(TwoDicts):
    """returns the number of the entry, not the block"""

    def lookup(self, key):
        return list(self.block_of).index(key) if key in self.block_of else None


@wrong("PrefixCache", "wrong_type")
class ReturnsAPair(TwoDicts):
    """lookup returns block and key"""

    def lookup(self, key):
        return (self.block_of[key], key) if key in self.block_of else None


@wrong("PrefixCache", "found_too_much")
class AnythingHits(TwoDicts):
    """a miss returns the newest block"""

    def lookup(self, key):
        if key in self.block_of or not self.block_of:
            return self.block_of.get(key)
        return list(self.block_of.values())[-1]


@wrong("PrefixCache", "shared_between_caches")
class SharedDict:
    """the dictionaries belong to the class"""

    block_of = {}  # noqa: RUF012
    key_of = {}  # noqa: RUF012

    def lookup(self, key):
        return self.block_of.get(key)

    def insert(self, key, block):
        if key not in self.block_of:
            self.forget(block)
            self.block_of[key], self.key_of[block] = block, key

    def forget(self, block):
        self.block_of.pop(self.key_of.pop(block, None), None)


# 5.2 CachingAllocator


right("CachingAllocator", "the package's own")(BlockAllocator)


@right("CachingAllocator")
class TwoQueues:
    """a list of empty blocks and an OrderedDict of cached ones"""

    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.empty = list(range(num_blocks))
        self.cached = OrderedDict()
        self.counts = [0] * num_blocks
        self.findable = [False] * num_blocks

    def allocate(self):
        if self.empty:
            block = self.empty.pop()
        elif self.cached:
            block, _ = self.cached.popitem(last=False)
        else:
            raise OutOfBlocks(used=self.num_blocks)
        self.findable[block] = False
        self.counts[block] = 1
        return block

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            if self.findable[block]:
                self.cached[block] = None
            else:
                self.empty.append(block)

    def share(self, block):
        if self.counts[block] == 0:
            self._revive(block)
        self.counts[block] += 1

    def _revive(self, block):
        if block in self.cached:
            del self.cached[block]
        else:
            self.empty.remove(block)

    def mark_findable(self, block, findable=True):
        self.findable[block] = findable

    def ref_count(self, block):
        return self.counts[block]

    @property
    def num_free(self):
        return len(self.empty) + len(self.cached)


@right("CachingAllocator")
class OneList:
    """one list with two ends, searched"""

    def __init__(self, num_blocks, block_size):
        self.free_blocks = list(range(num_blocks))
        self.ref_count = [0] * num_blocks
        self.marks = set()
        self.block_size = block_size

    @property
    def num_free(self):
        return len(self.free_blocks)

    def allocate(self):
        if not self.free_blocks:
            raise OutOfBlocks(used=len(self.ref_count))
        block = self.free_blocks.pop(0)
        self.marks.discard(block)
        self.ref_count[block] += 1
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
            self.free_blocks.insert(len(self.free_blocks) if block in self.marks else 0, block)

    def mark_findable(self, block, findable=True):
        (self.marks.add if findable else self.marks.discard)(block)


@right("CachingAllocator")
class Clock:
    """numpy arrays: counts, marks, and a time of freeing"""

    def __init__(self, num_blocks, block_size):
        self.counts = np.zeros(num_blocks, int)
        self.marked = np.zeros(num_blocks, bool)
        self.freed_at = np.zeros(num_blocks, int)
        self.now = 0

    def allocate(self):
        [free] = np.nonzero(self.counts == 0)
        if not len(free):
            raise OutOfBlocks(used=len(self.counts))
        block = free[np.lexsort((self.freed_at[free], self.marked[free]))[0]]
        self.counts[block], self.marked[block] = 1, False
        return block

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(int(block))
        self.counts[block] -= 1
        self.now += 1
        self.freed_at[block] = self.now

    def share(self, block):
        self.counts[block] += 1

    def mark_findable(self, block, findable=True):
        self.marked[block] = findable

    def ref_count(self, block):
        return self.counts[block]

    def num_free(self):
        return np.count_nonzero(self.counts == 0)


@right("CachingAllocator")
class LazyHeap:
    """a heap with entries that are out of date"""

    def __init__(self, num_blocks, block_size):
        self.heap = [(0, i, i) for i in range(num_blocks)]
        self.entry = {block: (0, block, block) for block in range(num_blocks)}
        self.holders = dict.fromkeys(range(num_blocks), 0)
        self.marks = {}
        self.clock = num_blocks

    @property
    def num_free(self):
        return len(self.entry)

    def allocate(self):
        while self.heap:
            item = heappop(self.heap)
            block = item[2]
            if self.entry.get(block) == item:
                del self.entry[block]
                self.marks.pop(block, None)
                self.holders[block] = 1
                return block
        raise OutOfBlocks(used=len(self.holders))

    def share(self, block):
        self.entry.pop(block, None)
        self.holders[block] += 1

    def free(self, block):
        if self.holders[block] < 1:
            raise DoubleFree(block)
        self.holders[block] -= 1
        if self.holders[block] == 0:
            self.clock += 1
            self.entry[block] = (int(self.marks.get(block, False)), self.clock, block)
            heappush(self.heap, self.entry[block])

    def mark_findable(self, block, findable=True):
        self.marks[block] = findable

    def ref_count(self, block):
        return self.holders[block]


@right("CachingAllocator", "a subclass of chapter 02's, with a deque for the empty ones")
class Subclass(TwoQueues):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.empty = deque(self.empty)


@wrong("CachingAllocator", "unwritten", general=True)
class StubOfTheAllocator:
    """the stub"""

    def __init__(self, num_blocks, block_size):
        """Nothing."""

    def allocate(self):
        """A block."""

    def free(self, block):
        """Nothing."""

    def share(self, block):
        """Nothing."""

    def mark_findable(self, block, findable=True):
        """Nothing."""

    def ref_count(self, block):
        """A count."""

    @property
    def num_free(self):
        """A number."""


@wrong("CachingAllocator", "never_evicts")
class NeverEvicts(TwoQueues):
    """findable blocks are never handed out"""

    def allocate(self):
        if not self.empty:
            raise OutOfBlocks(used=self.num_blocks)
        return super().allocate()


@wrong("CachingAllocator", "cached_not_counted")
class CountsEmptyOnly(TwoQueues):
    """num_free counts the empty ones only"""

    @property
    def num_free(self):
        return len(self.empty)


@wrong("CachingAllocator", "evicts_the_newest")
class NewestFirst(TwoQueues):
    """a stack of findable blocks"""

    def allocate(self):
        if self.empty or not self.cached:
            return super().allocate()
        block, _ = self.cached.popitem()
        self.findable[block] = False
        self.counts[block] = 1
        return block


@wrong("CachingAllocator", "evicts_too_early")
class NoNoticeOfMarks(TwoQueues):
    """one queue, whatever is marked"""

    def mark_findable(self, block, findable=True):
        pass

    def allocate(self):
        if not self.empty:
            raise OutOfBlocks(used=self.num_blocks)
        block = self.empty.pop(0)
        self.counts[block] = 1
        return block


@wrong("CachingAllocator", "evicts_too_early")
class CachedFirst(TwoQueues):
    """findable blocks go before the empty ones"""

    def allocate(self):
        if not self.cached:
            return super().allocate()
        block, _ = self.cached.popitem(last=False)
        self.findable[block] = False
        self.counts[block] = 1
        return block


@wrong("CachingAllocator", "mark_kept")
class KeepsMarks(TwoQueues):
    """a block that is handed out anew keeps its mark"""

    def allocate(self):
        before = list(self.findable)
        block = super().allocate()
        self.findable[block] = before[block]
        return block


@wrong("CachingAllocator", "mark_not_taken_back")
class CantUnmark(TwoQueues):
    """mark_findable takes no notice of its second argument"""

    def mark_findable(self, block, findable=True):
        self.findable[block] = True


@wrong("CachingAllocator", "mark_refuses")
class OneArgument(TwoQueues):
    """mark_findable insists on a fresh block"""

    def mark_findable(self, block, findable=True):
        assert not self.findable[block]
        self.findable[block] = findable


@wrong("CachingAllocator", "share_leaves_it_free")
class StaysInTheQueue(TwoQueues):
    """share leaves a findable block in the queue"""

    def _revive(self, block):
        pass


@wrong("CachingAllocator", "found_again_goes_first")
class KeepsItsPlace(OneList):
    """a block that was found again goes to the front when freed"""

    def share(self, block):
        if not self.ref_count[block]:
            self.marks.discard(block)
        super().share(block)


@wrong("CachingAllocator", "out_of_turn")
class ByNumber(TwoQueues):
    """the findable block with the lowest number goes first"""

    def allocate(self):
        self.cached = OrderedDict.fromkeys(sorted(self.cached))
        return super().allocate()


@wrong("CachingAllocator", "handed_out_in_use")
class EvictsInUse(TwoQueues):
    """evicts marked blocks, in use or not"""

    def allocate(self):
        if self.num_free == 0 and any(self.findable):
            return self.findable.index(True)
        return super().allocate()


@wrong("CachingAllocator", "double_free_unnoticed")
class FreesTwice(TwoQueues):
    """free goes below zero"""

    def free(self, block):
        self.counts[block] -= 1
        if self.counts[block] == 0:
            if self.findable[block]:
                self.cached[block] = None
            else:
                self.empty.append(block)


@wrong("CachingAllocator", "freed_while_shared")
class FreesAtOnce(TwoQueues):
    """the first free gives a shared block back"""

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        self.empty.append(block)


@wrong("CachingAllocator", "lost_block")
class LosesUnmarked(TwoQueues):
    """an unmarked block is in neither queue"""

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] == 0 and self.findable[block]:
            self.cached[block] = None


# 5.3 match_prefix


@right("match_prefix", "a loop")
def loop(lookup, keys, num_tokens, block_size):
    blocks = []
    for key in keys:
        block = lookup(key)
        if block is None:
            break
        blocks.append(block)
    computed = len(blocks) * block_size
    if computed == num_tokens:
        computed -= 1
    return blocks, computed


@right("match_prefix", "takewhile and min")
def with_takewhile(lookup, keys, num_tokens, block_size):
    from itertools import takewhile

    blocks = tuple(takewhile(lambda block: block is not None, map(lookup, keys)))
    return [blocks, min(len(blocks) * block_size, num_tokens - 1)]


@right("match_prefix", "iter with a sentinel, numpy")
def with_a_sentinel(lookup, keys, num_tokens, block_size):
    rest = iter(keys)
    blocks = np.array([*iter(lambda: lookup(next(rest, object())), None)], int)
    return blocks, np.minimum(blocks.size * block_size, num_tokens - 1)


@right("match_prefix", "recursion")
def recursive(lookup, keys, num_tokens, block_size):
    def found(i):
        block = lookup(keys[i]) if i < len(keys) else None
        return [] if block is None else [block, *found(i + 1)]

    blocks = found(0)
    return blocks, len(blocks) * block_size - (len(blocks) * block_size == num_tokens)


wrong("match_prefix", "unwritten", "the stub", general=True)(lambda *args: None)
wrong("match_prefix", "not_a_function", "not a function", general=True)(([], 0))


@wrong("match_prefix", "past_the_miss", "continue in the place of break")
def continues(lookup, keys, num_tokens, block_size):
    blocks = []
    for key in keys:
        block = lookup(key)
        if block is None:
            continue
        blocks.append(block)
    return blocks, min(len(blocks) * block_size, num_tokens - 1)


@wrong("match_prefix", "hits_the_last_token", "a full hit leaves nothing to compute")
def full(lookup, keys, num_tokens, block_size):
    blocks, _ = loop(lookup, keys, num_tokens, block_size)
    return blocks, len(blocks) * block_size


@wrong("match_prefix", "gives_up_a_block", "a full hit gives its last block up")
def drops_the_last(lookup, keys, num_tokens, block_size):
    blocks = []
    for key in keys:
        block = lookup(key)
        if block is None or (len(blocks) + 1) * block_size >= num_tokens:
            break
        blocks.append(block)
    return blocks, len(blocks) * block_size


@wrong("match_prefix", "always_one_less", "one token less at every hit")
def one_less(lookup, keys, num_tokens, block_size):
    blocks, _ = loop(lookup, keys, num_tokens, block_size)
    return blocks, max(len(blocks) * block_size - 1, 0)


@wrong("match_prefix", "block_0", "`while block := lookup(...)` ends at block 0")
def walrus(lookup, keys, num_tokens, block_size):
    blocks, i = [], 0
    while i < len(keys) and (block := lookup(keys[i])):
        blocks.append(block)
        i += 1
    return blocks, min(len(blocks) * block_size, num_tokens - 1)


@wrong("match_prefix", "counts_blocks", "the number of blocks")
def blocks_only(lookup, keys, num_tokens, block_size):
    blocks, _ = loop(lookup, keys, num_tokens, block_size)
    return blocks, len(blocks)


@wrong("match_prefix", "counts_the_rest", "the tokens that are left")
def the_rest(lookup, keys, num_tokens, block_size):
    blocks, computed = loop(lookup, keys, num_tokens, block_size)
    return blocks, num_tokens - computed


@wrong("match_prefix", "no_count", "all but the last token")
def all_but_one(lookup, keys, num_tokens, block_size):
    return loop(lookup, keys, num_tokens, block_size)[0], num_tokens - 1


@wrong("match_prefix", "mutates", "pops the keys")
def pops(lookup, keys, num_tokens, block_size):
    blocks = []
    while keys and (block := lookup(keys.pop(0))) is not None:
        blocks.append(block)
    return blocks, min(len(blocks) * block_size, num_tokens - 1)


@wrong("match_prefix", "not_a_pair", "blocks alone")
def no_pair(lookup, keys, num_tokens, block_size):
    return loop(lookup, keys, num_tokens, block_size)[0]


@wrong("match_prefix", "no_blocks", "the number of blocks, and the tokens")
def number_and_tokens(lookup, keys, num_tokens, block_size):
    blocks, computed = loop(lookup, keys, num_tokens, block_size)
    return len(blocks), computed


@wrong("match_prefix", "wrong_blocks", "in the wrong order")
def backwards(lookup, keys, num_tokens, block_size):
    blocks, computed = loop(lookup, keys, num_tokens, block_size)
    return blocks[::-1], computed


@wrong("match_prefix", "wrong_count", "blocks of 16, whatever the block size")
def always_16(lookup, keys, num_tokens, block_size):
    blocks, _ = loop(lookup, keys, num_tokens, block_size)
    return blocks, min(16 * len(blocks), num_tokens - 1)


@wrong("match_prefix", "endless", "a loop that never moves on", general=True)
def never_moves_on(lookup, keys, num_tokens, block_size):
    blocks, i = [], 0
    while i < len(keys) and lookup(keys[i]) is not None:
        pass
    return blocks, i


@wrong("match_prefix", "raises", "an index too far", general=True)
def too_far(lookup, keys, num_tokens, block_size):
    blocks, i = [], 0
    while lookup(keys[i]) is not None:
        blocks.append(lookup(keys[i]))
        i += 1
    return blocks, len(blocks)


# 5.4 MendedPool


class ArticlePool:
    """Blocks and a prefix cache in one, in the article's manner, with its mistakes."""

    def __init__(self, num_blocks):
        self.free_blocks = list(range(num_blocks))
        self.holders = [0] * num_blocks
        self.block_of = {}

    def allocate(self):
        if not self.free_blocks:
            raise OutOfBlocks(used=len(self.holders))
        block = self.free_blocks.pop()
        self.holders[block] = 1
        return block

    def free(self, block):
        self.holders[block] -= 1
        if self.holders[block] == 0:
            self.free_blocks.append(block)

    def share(self, block):
        self.holders[block] += 1

    def lookup(self, key):
        return self.block_of.get(key)

    def insert(self, key, block):
        self.block_of[key] = block


@right("MendedPool")
class Mended(ArticlePool):
    """the least that mends it"""

    def allocate(self):
        if not self.free_blocks:
            raise OutOfBlocks(used=len(self.holders))
        block = self.free_blocks.pop(0)
        self.holders[block] = 1
        for key in [key for key, of in self.block_of.items() if of == block]:
            del self.block_of[key]
        return block

    def free(self, block):
        if self.holders[block] == 0:
            raise DoubleFree(block)
        super().free(block)

    def share(self, block):
        if self.holders[block] == 0:
            self.free_blocks.remove(block)
        super().share(block)

    def insert(self, key, block):
        self.block_of.setdefault(key, block)


@right("MendedPool")
class WithTwoEnds(ArticlePool):
    """a way back, and a deque with two ends"""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.free_blocks = deque(self.free_blocks)
        self.key_of = {}

    def allocate(self):
        block = self.free_blocks[0] if self.free_blocks else None
        if block is None:
            raise OutOfBlocks(used=len(self.holders))
        self.free_blocks.popleft()
        if block in self.key_of:
            del self.block_of[self.key_of.pop(block)]
        self.holders[block] = 1
        return block

    def free(self, block):
        if self.holders[block] < 1:
            raise DoubleFree(block)
        self.holders[block] -= 1
        if not self.holders[block]:
            (self.free_blocks.append if block in self.key_of else self.free_blocks.appendleft)(block)

    def share(self, block):
        if not self.holders[block]:
            self.free_blocks.remove(block)
        self.holders[block] += 1

    def insert(self, key, block):
        if key not in self.block_of:
            self.block_of[key], self.key_of[block] = block, key


@right("MendedPool")
class OfPackageParts:
    """made of the package's two parts"""

    def __init__(self, num_blocks):
        self.allocator, self.cache = BlockAllocator(num_blocks, 16), PackagePrefixCache()
        self.free, self.share, self.lookup = self.allocator.free, self.allocator.share, self.cache.lookup

    def allocate(self):
        block = self.allocator.allocate()
        self.cache.forget(block)
        return block

    def insert(self, key, block):
        self.cache.insert(key, block)
        if self.cache.lookup(key) == block:
            self.allocator.mark_findable(block)


@right("MendedPool", "a class made from a mended one, and empty itself")
class Inherited(Mended):
    pass


@wrong("MendedPool", "unwritten", "the stub", general=True)
class StubOfThePool(ArticlePool):
    pass


wrong("MendedPool", "not_a_class", "an object", general=True)(Mended(1))


@wrong("MendedPool", "double_free_unnoticed")
class StillFreesTwice(Mended):
    """free still goes below zero"""

    free = ArticlePool.free


@wrong("MendedPool", "double_free_unnoticed")
class FreeQuietly(Mended):
    """a second free is ignored"""

    def free(self, block):
        if self.holders[block] > 0:
            super().free(block)


@wrong("MendedPool", "share_leaves_it_free")
class StillInTheList(Mended):
    """share leaves a free block in the list"""

    share = ArticlePool.share


@wrong("MendedPool", "stale_entry")
class StillStale(Mended):
    """a block that is handed out again keeps its key"""

    def allocate(self):
        if not self.free_blocks:
            raise OutOfBlocks(used=len(self.holders))
        block = self.free_blocks.pop(0)
        self.holders[block] = 1
        return block


@wrong("MendedPool", "forgets_too_early")
class ForgetsWhenFreed(Mended):
    """the key goes when the block is freed"""

    def free(self, block):
        super().free(block)
        if self.holders[block] == 0:
            self.block_of = {key: of for key, of in self.block_of.items() if of != block}


@wrong("MendedPool", "forgets_another")
class ForgetsIgnored(WithTwoEnds):
    """the key of an ignored block goes with that block"""

    def insert(self, key, block):
        self.block_of.setdefault(key, block)
        self.key_of[block] = key


@wrong("MendedPool", "overwrites")
class StillOverwrites(Mended):
    """the second block under a key takes the first one's place"""

    insert = ArticlePool.insert


@wrong("MendedPool", "evicts_the_newest")
class StillAStack(Mended):
    """the free block that was freed last goes first"""

    def allocate(self):
        self.free_blocks.insert(0, self.free_blocks.pop()) if self.free_blocks else None
        return super().allocate()


@wrong("MendedPool", "out_of_turn")
class TheMiddle(Mended):
    """the one in the middle goes first"""

    def allocate(self):
        middle = len(self.free_blocks) // 2
        if len(self.free_blocks) > 2:
            self.free_blocks.insert(0, self.free_blocks.pop(middle))
        return super().allocate()


@wrong("MendedPool", "lost_block")
class LosesKeyedBlocks(Mended):
    """a block with a key never becomes free"""

    def free(self, block):
        if block in self.block_of.values():
            if self.holders[block] == 0:
                raise DoubleFree(block)
            self.holders[block] -= 1
        else:
            super().free(block)

    def share(self, block):
        self.holders[block] += 1


@wrong("MendedPool", "handed_out_in_use")
class FreesSharedBlocks(Mended):
    """the first free gives a shared block back"""

    def free(self, block):
        if self.holders[block] == 0:
            raise DoubleFree(block)
        self.holders[block] -= 1
        if block not in self.free_blocks:
            self.free_blocks.append(block)


@wrong("MendedPool", "no_such_block")
class OneTooMany(Mended):
    """block numbers from 1"""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.free_blocks = list(range(1, num_blocks + 1))
        self.holders = [0] * (num_blocks + 1)


@wrong("MendedPool", "no_error_when_empty")
class NoneWhenEmpty(Mended):
    """None where nothing is left"""

    def allocate(self):
        return super().allocate() if self.free_blocks else None


@wrong("MendedPool", "wrong_block")
class AnyBlock(Mended):
    """lookup says how many keys there are"""

    def lookup(self, key):
        return len(self.block_of)


# 5.5 choose_victim


@right("choose_victim", "strangers first")
def strangers_first(blocks):
    return min(blocks, key=lambda block: (block.found_before + block.hits > 0, block.last_used, -block.depth))


@right("choose_victim", "two lists")
def two_lists(blocks):
    strangers = [block for block in blocks if block.found_before == 0 and block.hits == 0]
    return sorted(strangers or blocks, key=lambda block: block.last_used)[0]


@right("choose_victim", "a loop that keeps the best so far")
def loop_over_blocks(blocks):
    best = blocks[0]
    for block in blocks:
        seen, best_seen = block.found_before or block.hits, best.found_before or best.hits
        if (not seen and best_seen) or (bool(seen) == bool(best_seen) and block.last_used < best.last_used):
            best = block
    return best


wrong("choose_victim", "unwritten", "the stub", general=True)(lambda blocks: None)
wrong("choose_victim", "not_a_function", "not a function", general=True)("lru")
wrong("choose_victim", "is_lru", "LRU")(lambda blocks: min(blocks, key=lambda block: block.last_used))
wrong("choose_victim", "is_lru", "the first of the list, which is LRU")(lambda blocks: blocks[0])
wrong("choose_victim", "worse_than_lru", "the newest")(lambda blocks: max(blocks, key=lambda block: block.last_used))
wrong("choose_victim", "worse_than_lru", "the deepest")(lambda blocks: max(blocks, key=lambda block: block.depth))
wrong("choose_victim", "worse_than_lru", "the one found least (LFU)")(
    lambda blocks: min(blocks, key=lambda block: block.hits)
)
wrong("choose_victim", "not_one_of_them", "the place in the list")(
    lambda blocks: min(range(len(blocks)), key=lambda i: blocks[i].last_used)
)
wrong("choose_victim", "mutates", "takes the victim out of the list")(lambda blocks: blocks.pop(0))


@wrong("choose_victim", "too_little", "strangers first, among the oldest twenty only")
def among_twenty(blocks):
    return strangers_first(blocks[:20])
