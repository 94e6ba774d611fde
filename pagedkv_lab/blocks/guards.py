"""The door for parts that somebody else wrote: what comes in is adapted, what comes out is checked.

A learner's part may be as small as the article's skeletons. A guard supplies what such a part leaves out
(`mark_findable`, `fork`, ...), checks each answer against the protocol, and turns whatever goes wrong inside
into a PartError that speaks of the part. The package's own parts run without guards. Many blocks are dealt
with one by one here, so that the error names the one.

`watch=False` adapts a part and checks nothing: to see what a broken part does to a model's text. Only what it raises
itself still ends as a PartError.
"""

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pagedkv_lab.blocks.hashing import hash_block
from pagedkv_lab.errors import PagedKVError, PartError


def call_part(part_name: str, method: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a learner's function; whatever it raises becomes a PartError, except the protocol's own errors."""
    try:
        return function(*args)
    except PagedKVError:
        raise
    except Exception as error:
        raise PartError(part_name, f"{method}({', '.join(map(_short, args))})", _say(error)) from error


def require(part: Any, part_name: str, *methods: str) -> None:
    """Raise PartError where the part lacks one of these methods."""
    for method in methods:
        if not callable(getattr(part, method, None)):
            raise PartError(part_name, method, f"it has no method {method}()")


class GuardedAllocator:
    """A learner's allocator, with the package's protocol. Keeps counts of its own to check the learner's."""

    name = "BlockAllocator"

    def __init__(self, part: Any, num_blocks: int, block_size: int, watch: bool = True):
        require(part, self.name, "allocate", "free", "share")
        self.part, self.num_blocks, self.block_size, self.watch = part, num_blocks, block_size, watch
        self._counts = [0] * num_blocks
        self._findable: set[int] = set()
        self._cached: dict[int, None] = {}

    def allocate(self) -> int:
        block = call_part(self.name, "allocate", self.part.allocate)
        block = self._check_block(block, "allocate()")
        if self._counts[block] and self.watch:
            raise PartError(
                self.name,
                "allocate()",
                f"block {block} was handed out while {self._counts[block]} still held it. It was in the free "
                "list and in use at once: look at free (does it act only when the count reaches 0?) and at "
                "share (does it take a free block out of the free list?)",
            )
        self._counts[block] = 1
        self._findable.discard(block)
        self._cached.pop(block, None)
        return block

    def share(self, block: int) -> None:
        call_part(self.name, "share", self.part.share, block)
        self._counts[block] += 1
        self._cached.pop(block, None)

    def free(self, block: int) -> None:
        call_part(self.name, "free", self.part.free, block)
        if self._counts[block] == 0 and self.watch:
            raise PartError(self.name, f"free({block})", "nobody holds this block, and free did not object")
        self._counts[block] = max(0, self._counts[block] - 1)
        if self._counts[block] == 0 and block in self._findable:
            self._cached[block] = None

    def mark_findable(self, block: int, findable: bool = True) -> None:
        (self._findable.add if findable else self._findable.discard)(block)
        if hasattr(self.part, "mark_findable"):
            call_part(self.name, "mark_findable", self.part.mark_findable, block, findable)

    def ref_count(self, block: int) -> int:
        """The part's own count, whether it keeps a method or a list. It must fit what it was asked to do."""
        counts = getattr(self.part, "ref_count", None)
        if counts is None:
            raise PartError(self.name, f"ref_count({block})", "it has neither a method nor a list ref_count")
        function = counts if callable(counts) else counts.__getitem__
        count = call_part(self.name, "ref_count", function, block)
        if count != self._counts[block] and self.watch:
            what = f"it says {count!r} where {self._counts[block]} hold it: look at allocate, share and free"
            raise PartError(self.name, f"ref_count({block})", what)
        return count

    @property
    def num_free(self) -> int:
        """The part's `num_free` (value or method), or the length of its `free_blocks`."""
        # The class is asked first: a property is found there without being run.
        if hasattr(type(self.part), "num_free") or hasattr(self.part, "num_free"):
            value = call_part(self.name, "num_free", lambda: self.part.num_free)
            value = call_part(self.name, "num_free", value) if callable(value) else value
        elif hasattr(self.part, "free_blocks"):
            value = len(self.part.free_blocks)
        else:
            raise PartError(self.name, "num_free", "it has neither num_free nor a list free_blocks")
        if self.watch and (not _is_whole(value) or not 0 <= value <= self.num_blocks):
            what = f"{value!r} is not a number of blocks from 0 to {self.num_blocks}"
            raise PartError(self.name, "num_free", what)
        return value

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def cached_blocks(self) -> list[int]:
        return list(self._cached)

    def _check_block(self, block: Any, method: str) -> int:
        if not _is_whole(block) or not 0 <= block < self.num_blocks:
            what = f"it returned {block!r}, not a block from 0 to {self.num_blocks - 1}"
            raise PartError(self.name, method, what)
        return block.__index__()


class GuardedTable:
    """A learner's block table. `append_block` and `free_all` are theirs; what else is missing is supplied."""

    name = "BlockTable"

    def __init__(self, part: Any, allocator: Any, watch: bool = True):
        require(part, self.name, "append_block", "free_all")
        if not hasattr(part, "blocks"):
            raise PartError(self.name, "__init__", "it keeps no list called blocks")
        self.part, self.allocator, self.watch = part, allocator, watch

    @property
    def blocks(self) -> list[int]:
        return self.part.blocks

    def append_block(self) -> int:
        before = len(self.part.blocks)
        block = call_part(self.name, "append_block", self.part.append_block)
        blocks = self.part.blocks
        if not self.watch:
            return block
        if len(blocks) != before + 1:
            what = f"the table had {before} blocks and now has {len(blocks)}"
            raise PartError(self.name, "append_block()", what)
        if block is None:
            raise PartError(self.name, "append_block()", "it returned None; return the new block's number")
        if blocks[-1] != block:
            what = f"it returned block {block} and stored block {blocks[-1]} last"
            raise PartError(self.name, "append_block()", what)
        return block

    def append_shared(self, block: int) -> None:
        if hasattr(self.part, "append_shared"):
            call_part(self.name, "append_shared", self.part.append_shared, block)
        else:
            self.allocator.share(block)
            self.part.blocks.append(block)

    def append_blocks(self, count: int) -> None:
        for _ in range(count):
            self.append_block()

    def append_shared_blocks(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.append_shared(block)

    def fork(self) -> "GuardedTable":
        if hasattr(self.part, "fork"):
            child = GuardedTable(call_part(self.name, "fork", self.part.fork), self.allocator, self.watch)
            if self.watch and list(child.blocks) != list(self.blocks):
                what = f"the child has blocks {child.blocks}, the parent {self.blocks}"
                raise PartError(self.name, "fork()", what)
            return child
        child = GuardedTable(type(self.part)(self.allocator), self.allocator, self.watch)
        child.append_shared_blocks(self.blocks)
        return child

    def ensure_writable(self, i: int) -> tuple[int, int] | None:
        source = self.blocks[i]
        shared = self.allocator.ref_count(source) > 1
        if hasattr(self.part, "ensure_writable"):
            copy = call_part(self.name, "ensure_writable", self.part.ensure_writable, i)
            what = ""
            if shared and self.blocks[i] == source:
                what = f"block {source} is shared and still in the table: it would be written in place"
            elif copy is not None and not (isinstance(copy, tuple) and len(copy) == 2):
                what = f"it returned {copy!r}; return None (write in place) or the pair (source, destination)"
            elif self.blocks[i] != source and copy != (source, self.blocks[i]):
                what = f"the table went from block {source} to {self.blocks[i]}, but it returned {copy!r}"
            if what and self.watch:
                raise PartError(self.name, f"ensure_writable({i})", what)
            return copy
        if not shared:
            return None
        destination = self.allocator.allocate()
        self.part.blocks[i] = destination
        self.allocator.free(source)
        return source, destination

    def slot(self, position: int) -> int:
        if hasattr(self.part, "slot"):
            return call_part(self.name, "slot", self.part.slot, position)
        block_size = self.allocator.block_size
        return self.blocks[position // block_size] * block_size + position % block_size

    def slots(self, positions: range) -> list[int]:
        return [self.slot(position) for position in positions]

    def free_all(self) -> None:
        if not self.watch:
            call_part(self.name, "free_all", self.part.free_all)
            return
        held_before = {block: self.allocator.ref_count(block) for block in self.part.blocks}
        call_part(self.name, "free_all", self.part.free_all)
        if self.part.blocks:
            what = f"the table still lists {len(self.part.blocks)} of {len(held_before)} blocks"
            raise PartError(self.name, "free_all()", what)
        for block, count in held_before.items():
            if self.allocator.ref_count(block) == count:
                what = f"block {block} left the table without free({block}): it leaked"
                raise PartError(self.name, "free_all()", what)


class GuardedPrefixCache:
    """A learner's prefix cache. Keeps each block's key to notice one that should have been forgotten."""

    name = "PrefixCache"

    def __init__(self, part: Any, num_blocks: int, watch: bool = True):
        require(part, self.name, "lookup", "insert", *(("forget",) if watch else ()))
        self.part, self.num_blocks, self.watch = part, num_blocks, watch
        self._key_of: dict[int, Hashable] = {}

    def lookup(self, key: Hashable) -> int | None:
        block = call_part(self.name, "lookup", self.part.lookup, key)
        if block is None or not self.watch:
            return block
        if not _is_whole(block) or not 0 <= block < self.num_blocks:
            what = f"it returned {block!r}; return a block from 0 to {self.num_blocks - 1}, None for a miss"
            raise PartError(self.name, "lookup", what)
        if self._key_of.get(block) != key:
            what = (
                f"it returned block {block} for a key that the block no longer has: its contents changed. "
                f"Look at forget({block}): it must drop the key"
            )
            raise PartError(self.name, "lookup", what)
        return block.__index__()

    def insert(self, key: Hashable, block: int) -> None:
        call_part(self.name, "insert", self.part.insert, key, block)
        self._key_of[block] = key

    def forget(self, block: int) -> None:
        if self.watch or hasattr(self.part, "forget"):
            call_part(self.name, "forget", self.part.forget, block)
        self._key_of.pop(block, None)

    def insert_many(self, keys: Sequence[Hashable], blocks: Sequence[int]) -> list[int]:
        inserted = []
        for key, block in zip(keys, blocks, strict=True):
            if self.lookup(key) is None:
                self.insert(key, block)
                inserted.append(block)
        return inserted

    def forget_many(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.forget(block)


def guard_hash(function: Callable[..., Hashable], name: str = "hash_block") -> Callable[..., Hashable]:
    """A learner's `hash_block(parent, token_ids[, extra])`. Without `extra`, `parent` carries it."""
    takes_extra = _takes(function, 3)

    def guarded(parent: Hashable, token_ids: list[int], extra: tuple = ()) -> Hashable:
        if takes_extra:
            key = call_part(name, name, function, parent, token_ids, extra)
        else:
            if extra:
                parent = hash_block(None, (), (*extra, ("parent", repr(parent))))
            key = call_part(name, name, function, parent, token_ids)
        try:
            hash(key)
        except TypeError:
            key = None
        if key is None:
            what = "it returned nothing that can be a dictionary's key (bytes, str or int)"
            raise PartError(name, name, what)
        return key

    return guarded


def _is_whole(value: Any) -> bool:
    """An int of any kind, numpy's too; not True."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _short(value: Any) -> str:
    shape = getattr(value, "shape", None)
    text = repr(value) if shape is None else f"{type(value).__name__}{tuple(shape)}"
    return text if len(text) <= 40 else text[:37] + "..."


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
