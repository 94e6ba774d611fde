"""Parts that pass their checks, as text that a notebook's cells or a kept file may hold."""

#: A block allocator under any name: for exercise 2.1 and, since it keeps findable blocks for last, for 5.2.
ALLOCATOR = """
from collections import OrderedDict
from pagedkv_lab.errors import DoubleFree, OutOfBlocks

class {name}:
    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.empty, self.cached = OrderedDict.fromkeys(range(num_blocks)), OrderedDict()
        self.counts, self.findable = [0] * num_blocks, set()

    def allocate(self):
        free = self.empty or self.cached
        if not free:
            raise OutOfBlocks(used=self.num_blocks)
        block, _ = free.popitem(last=False)
        self.counts[block] = 1
        self.findable.discard(block)
        return block

    def share(self, block):
        self.empty.pop(block, None)
        self.cached.pop(block, None)
        self.counts[block] += 1

    def free(self, block):
        if self.counts[block] == 0:
            raise DoubleFree(block)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            (self.cached if block in self.findable else self.empty)[block] = None

    def mark_findable(self, block, findable=True):
        if findable:
            self.findable.add(block)
            if self.counts[block] == 0:
                self.empty.pop(block, None)
                self.cached[block] = None
            return
        self.findable.discard(block)
        if self.counts[block] == 0:
            self.cached.pop(block, None)
            self.empty[block] = None

    def ref_count(self, block):
        return self.counts[block]

    @property
    def num_free(self):
        return len(self.empty) + len(self.cached)
"""

TABLE = """
class BlockTable:
    def __init__(self, allocator):
        self.allocator, self.blocks = allocator, []

    def append_block(self):
        self.blocks.append(self.allocator.allocate())
        return self.blocks[-1]

    def slot(self, position):
        if position < 0:
            raise IndexError(position)
        size = self.allocator.block_size
        return self.blocks[position // size] * size + position % size

    def free_all(self):
        while self.blocks:
            self.allocator.free(self.blocks.pop())
"""

HASH = """
import hashlib
import json

def hash_block(parent, token_ids, extra=()):
    text = json.dumps([parent.hex() if parent is not None else None, [int(t) for t in token_ids], repr(tuple(extra))])
    return hashlib.sha256(text.encode()).digest()
"""

CACHE = """
class PrefixCache:
    def __init__(self):
        self.block_of, self.key_of = {}, {}

    def lookup(self, key):
        return self.block_of.get(key)

    def insert(self, key, block):
        if key not in self.block_of:
            self.forget(block)
            self.block_of[key], self.key_of[block] = block, key

    def forget(self, block):
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]
"""


def made(source: str, name: str):
    """The class or function that a source defines."""
    names: dict = {}
    exec(source, names)
    return names[name]
