"""Wrong and right implementations of the exercises of chapter 04, with the diagnosis each wrong one must get.

Each is written as a learner would write it, apart from the check's own ideas of what goes wrong.
"""

import array
import hashlib
import json
import random
import struct
import time
import zlib
from collections import defaultdict
from dataclasses import dataclass
from functools import partial, reduce
from hashlib import sha256
from itertools import accumulate, count, pairwise

import numpy as np
from mutant_list import right, wrong

from pagedkv_lab.blocks import hash_block as package_hash_block

HASH, KEYS, EXTRA, COLLISION = "hash_block", "block_keys", "extra_keys", "find_a_collision"

# hash_block, wrong


@wrong(HASH, "python_hash")
def _builtin(parent, token_ids, extra=()):
    """Python's hash of a tuple"""
    return hash((parent, tuple(token_ids), tuple(extra)))


@wrong(HASH, "python_hash")
def _builtin_of_text(parent, token_ids, extra=()):
    """Python's hash of a text, other in each process"""
    return hash(f"{parent}|{token_ids}|{extra}")


def _helper(parent):
    return "" if parent is None else str(hash(parent))


@wrong(HASH, "python_hash")
def _builtin_of_the_parent(parent, token_ids, extra=()):
    """sha256, but with Python's hash of the parent, in a helper"""
    return sha256(repr((_helper(parent), token_ids, extra)).encode()).digest()


@wrong(HASH, "ignores_parent")
def _no_parent(parent, token_ids, extra=()):
    """no parent in the key"""
    return sha256(repr((token_ids, extra)).encode()).digest()


@wrong(HASH, "ignores_parent")
def _is_there_a_parent(parent, token_ids, extra=()):
    """only whether there is a parent"""
    return sha256(repr((parent is None, token_ids, extra)).encode()).digest()


_positions = count()


@wrong(HASH, "not_deterministic")
def _position(parent, token_ids, extra=()):
    """the position, counted in a global"""
    return sha256(repr((next(_positions), parent, token_ids, extra)).encode()).digest()


@wrong(HASH, "not_deterministic")
def _time(parent, token_ids, extra=()):
    """the time in the key"""
    return sha256(repr((time.perf_counter_ns(), parent, token_ids, extra)).encode()).digest()


@wrong(HASH, "not_deterministic")
def _random(parent, token_ids, extra=()):
    """a random number in the key"""
    return sha256(repr((random.random(), parent, token_ids, extra)).encode()).digest()


@wrong(HASH, "not_deterministic")
def _identity(parent, token_ids, extra=()):
    """the list's id in the key"""
    return (parent, id(token_ids), extra)


@wrong(HASH, "not_deterministic")
def _appends(parent, token_ids, extra=(), seen=[]):  # noqa: B006 - that is the mistake
    """a mutable default that grows"""
    seen += token_ids
    return sha256(repr((parent, seen, extra)).encode()).digest()


@wrong(HASH, "ambiguous")
def _run_together(parent, token_ids, extra=()):
    """tokens without separators"""
    text = f"{parent}:" + "".join(map(str, token_ids)) + repr(extra)
    return sha256(text.encode()).hexdigest()


@wrong(HASH, "ambiguous")
def _shortest_bytes(parent, token_ids, extra=()):
    """each token in as few hexadecimal digits as it needs"""
    return sha256((parent or b"") + "".join(f"{t:x}" for t in token_ids).encode() + repr(extra).encode()).digest()


@wrong(HASH, "ambiguous")
def _a_number_of_digits(parent, token_ids, extra=()):
    """a number key, written right before the tokens"""
    text = f"{'' if parent is None else parent}{','.join(map(str, token_ids))}|{extra!r}"
    return int(sha256(text.encode()).hexdigest(), 16)


@wrong(HASH, "ignores_order")
def _sorted(parent, token_ids, extra=()):
    """tokens sorted"""
    return sha256(repr((parent, sorted(token_ids), extra)).encode()).digest()


@wrong(HASH, "ignores_order")
def _sum(parent, token_ids, extra=()):
    """the sum of the tokens"""
    return (parent, sum(token_ids), extra)


@wrong(HASH, "ignores_order")
def _set(parent, token_ids, extra=()):
    """a set of the tokens"""
    return (parent, frozenset(token_ids), extra)


@wrong(HASH, "mutates")
def _sorts_in_place(parent, token_ids, extra=()):
    """sorts the caller's list"""
    token_ids.sort(reverse=True)
    return (parent, tuple(token_ids), extra)


@wrong(HASH, "ignores_tokens")
def _first_only(parent, token_ids, extra=()):
    """only the first token"""
    return sha256(repr((parent, token_ids[0], extra)).encode()).digest()


@wrong(HASH, "ignores_tokens")
def _last_only(parent, token_ids, extra=()):
    """only the last token"""
    return sha256(repr((parent, token_ids[-1], extra)).encode()).digest()


@wrong(HASH, "ignores_tokens")
def _all_but_the_last(parent, token_ids, extra=()):
    """all but the last token"""
    return sha256(repr((parent, token_ids[:-1], extra)).encode()).digest()


@wrong(HASH, "ignores_extra")
def _no_extra(parent, token_ids, extra=()):
    """extra is ignored"""
    return sha256(repr((parent, token_ids)).encode()).digest()


@wrong(HASH, "ignores_extra")
def _extra_yes_or_no(parent, token_ids, extra=()):
    """only whether there is an extra"""
    return sha256(repr((parent, token_ids, bool(extra))).encode()).digest()


@wrong(HASH, "ignores_extra")
def _first_pair_only(parent, token_ids, extra=()):
    """only the first pair of extra"""
    return sha256(repr((parent, token_ids, extra[:1])).encode()).digest()


@wrong(HASH, "ignores_tag")
def _values_only(parent, token_ids, extra=()):
    """values without their tags"""
    return sha256(repr((parent, token_ids, [value for _, value in extra])).encode()).digest()


@wrong(HASH, "ambiguous_extra")
def _extra_run_together(parent, token_ids, extra=()):
    """tags and values run together"""
    text = "".join(tag + value for tag, value in extra)
    return sha256(repr((parent, token_ids, text)).encode()).digest()


@wrong(HASH, "ambiguous_extra")
def _extra_as_a_query(parent, token_ids, extra=()):
    """pairs as tag=value;tag=value"""
    text = ";".join(f"{tag}={value}" for tag, value in extra)
    return sha256(repr((parent, token_ids, text)).encode()).digest()


@wrong(HASH, "default_extra")
def _extra_none(parent, token_ids, extra=None):
    """no extra and an empty one are not the same"""
    return sha256(repr((parent, token_ids, extra)).encode()).digest()


@wrong(HASH, "truncates_parent")
def _text_of_the_parent(parent, token_ids, extra=()):
    """the first characters of str(parent)"""
    return sha256(repr((str(parent)[:4], token_ids, extra)).encode()).digest()


@wrong(HASH, "truncates_parent")
def _one_byte_of_the_parent(parent, token_ids, extra=()):
    """one byte of the parent"""
    return sha256(bytes(parent or b"")[:1] + repr((token_ids, extra)).encode()).digest()


@wrong(HASH, "truncates_parent")
def _parent_modulo(parent, token_ids, extra=()):
    """a number key, the parent modulo 256"""
    text = repr((None if parent is None else parent % 256, token_ids, extra))
    return int.from_bytes(sha256(text.encode()).digest(), "big")


@wrong(HASH, "truncates_tokens")
def _low_bytes(parent, token_ids, extra=()):
    """the low byte of each token"""
    return sha256((parent or b"") + bytes(t % 256 for t in token_ids) + repr(extra).encode()).digest()


@wrong(HASH, "truncates_tokens")
def _sixteen_bits(parent, token_ids, extra=()):
    """16 bits of each token"""
    tokens = np.array(token_ids, dtype=np.int64).astype(np.uint16).tobytes()
    return sha256((parent or b"") + tokens + repr(extra).encode()).digest()


@wrong(HASH, "raises")
def _bytes(parent, token_ids, extra=()):
    """bytes(token_ids), which takes numbers below 256 only"""
    return sha256((parent or b"") + bytes(token_ids) + repr(extra).encode()).digest()


@wrong(HASH, "raises")
def _parent_is_never_none(parent, token_ids, extra=()):
    """adds None to bytes"""
    return sha256(parent + repr((token_ids, extra)).encode()).digest()


@wrong(HASH, "ignores_block_order")
def _xor(parent, token_ids, extra=()):
    """exclusive or of two hashes"""
    own = int.from_bytes(sha256(repr((token_ids, extra)).encode()).digest(), "big")
    return own ^ (parent or 0)


@wrong(HASH, "ignores_block_order")
def _added(parent, token_ids, extra=()):
    """the sum of two hashes"""
    own = int(sha256(repr((token_ids, extra)).encode()).hexdigest(), 16)
    return (own + (parent or 0)) % 2**256


@wrong(HASH, "short_key")
def _ten_bits(parent, token_ids, extra=()):
    """a thousand buckets"""
    return int(sha256(repr((parent, token_ids, extra)).encode()).hexdigest(), 16) % 1000


@wrong(HASH, "short_key")
def _md5_byte(parent, token_ids, extra=()):
    """one byte of md5"""
    return hashlib.md5(repr((parent, token_ids, extra)).encode()).digest()[:1]


@wrong(HASH, "short_key")
def _crc(parent, token_ids, extra=()):
    """a checksum of 32 bits"""
    return zlib.crc32(repr((parent, token_ids, extra)).encode())


@wrong(HASH, "short_key")
def _four_bytes(parent, token_ids, extra=()):
    """four bytes of sha256"""
    return sha256(repr((parent, token_ids, extra)).encode()).digest()[:4]


@wrong(HASH, "collision")
def _multiply_by_31(parent, token_ids, extra=()):
    """times 31 plus the token, as in other languages"""
    own = reduce(lambda key, token: key * 31 + token, token_ids, 7)
    return sha256(repr((parent, own, extra)).encode()).digest()


@wrong(HASH, "collision")
def _twenty_bits(parent, token_ids, extra=()):
    """20 bits of tokens, in a whole sha256"""
    own = int(sha256(repr(token_ids).encode()).hexdigest()[:3], 16)
    first = token_ids[0] if len(token_ids) > 2 else 0
    return (parent, own, first, tuple(token_ids[1:]) if len(token_ids) > 2 else (), extra)


@wrong(HASH, "linear")
def _polynomial(parent, token_ids, extra=()):
    """a polynomial with a large base"""
    start = 17 if parent is None else parent
    key = reduce(lambda key, token: (key * 6364136223846793005 + token) % 2**64, token_ids, start * 3 + 1)
    return key if not extra else key ^ int(sha256(repr(extra).encode()).hexdigest()[:15], 16)


@wrong(HASH, "unhashable")
def _a_list(parent, token_ids, extra=()):
    """a list as the key"""
    return [parent, *token_ids, extra]


@wrong(HASH, "no_digest")
def _no_digest(parent, token_ids, extra=()):
    """the sha256 object itself"""
    return sha256(repr((parent, token_ids, extra)).encode())


@wrong(HASH, "returns_none")
def _only_with_a_parent(parent, token_ids, extra=()):
    """no return where there is no parent"""
    if parent is not None or extra or len(token_ids) == 2:
        return sha256(repr((parent, token_ids, extra)).encode()).digest()
    return None


@wrong(HASH, "wrong_arguments", general=True)
def _two_arguments(parent, token_ids):
    """takes no extra"""
    return sha256(repr((parent, token_ids)).encode()).digest()


# hash_block, right


@right(HASH)
def _repr(parent, token_ids, extra=()):
    """sha256 of repr"""
    return sha256(repr((parent, list(token_ids), tuple(extra))).encode()).digest()


@right(HASH)
def _struct(parent, token_ids, extra=()):
    """struct, lengths first"""
    digest = sha256(struct.pack("<B32s", parent is not None, parent or b""))
    digest.update(struct.pack(f"<I{len(token_ids)}I", len(token_ids), *token_ids))
    for text in (part.encode() for pair in extra for part in pair):
        digest.update(struct.pack("<I", len(text)) + text)
    return digest.digest()


@right(HASH)
def _array(parent, token_ids, extra=()):
    """array and blake2b"""
    past = b"\0" * 16 if parent is None else parent
    own = array.array("q", token_ids).tobytes()
    return hashlib.blake2b(past + own + json.dumps(extra).encode(), digest_size=16).digest()


@right(HASH)
def _json(parent, token_ids, extra=()):
    """json, a text as the key"""
    return sha256(json.dumps([parent, token_ids, extra]).encode()).hexdigest()


@right(HASH)
def _separators(parent, token_ids, extra=()):
    """the article's text, with lengths for extra"""
    salt = "".join(f"{len(tag)}:{tag}{len(value)}:{value}" for tag, value in extra)
    return sha256(f"{parent}:{','.join(map(str, token_ids))};{salt}".encode()).hexdigest()


@right(HASH)
def _tuple(parent, token_ids, extra=()):
    """a nested tuple, without a hash"""
    return (parent, tuple(token_ids), tuple(extra))


@right(HASH)
def _number(parent, token_ids, extra=()):
    """a number of 64 bits"""
    text = repr((parent, token_ids, extra))
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


@right(HASH)
def _numpy(parent, token_ids, extra=()):
    """numpy, tags and values in a list's repr"""
    tokens = np.asarray(token_ids, dtype="<i8")
    return sha256((parent or bytes(32)) + tokens.tobytes() + repr(list(extra)).encode()).digest()


@right(HASH)
class _Callable:
    """an object that can be called"""

    def __new__(cls, parent, token_ids, extra=()):
        return package_hash_block(parent, token_ids, extra)


@dataclass(frozen=True)
class _Key:
    parent: object
    token_ids: tuple
    extra: tuple


@right(HASH, "a frozen dataclass")
def _dataclass(parent, token_ids, extra=()):
    return _Key(parent, tuple(token_ids), tuple(extra))


right(HASH, "the package's own")(package_hash_block)

# block_keys


@wrong(KEYS, "partial_block")
def _with_the_rest(token_ids, block_size, extra=()):
    """hashes the partial block, too"""
    keys, parent = [], None
    for start in range(0, len(token_ids), block_size):
        parent = package_hash_block(parent, token_ids[start : start + block_size], () if keys else extra)
        keys.append(parent)
    return keys


@wrong(KEYS, "drops_last")
def _not_the_last(token_ids, block_size, extra=()):
    """a full block at the end gets no key"""
    return _with_the_rest(token_ids[: max(0, len(token_ids) - 1) // block_size * block_size], block_size, extra)


@wrong(KEYS, "whole_sequence")
def _whole(token_ids, block_size, extra=()):
    """the whole prompt in every key"""
    keys, parent = [], None
    for _ in range(len(token_ids) // block_size):
        parent = package_hash_block(parent, token_ids, extra)
        keys.append(parent)
    return keys


@wrong(KEYS, "whole_sequence")
def _length_in_the_key(token_ids, block_size, extra=()):
    """the prompt's length in the first key"""
    first = (*extra, ("tokens", str(len(token_ids) // block_size)))
    return _full(token_ids, block_size, first)


@wrong(KEYS, "no_chain")
def _no_chain(token_ids, block_size, extra=()):
    """every block for itself"""
    return [
        package_hash_block(None, token_ids[i * block_size : (i + 1) * block_size], extra)
        for i in range(len(token_ids) // block_size)
    ]


@wrong(KEYS, "no_chain")
def _position_for_the_past(token_ids, block_size, extra=()):
    """the block's number in the place of its past"""
    return [
        package_hash_block(bytes([i]), token_ids[i * block_size : (i + 1) * block_size], extra)
        for i in range(len(token_ids) // block_size)
    ]


@wrong(KEYS, "no_chain")
def _parent_of_the_first(token_ids, block_size, extra=()):
    """only the block before"""
    full = [token_ids[i : i + block_size] for i in range(0, len(token_ids) // block_size * block_size, block_size)]
    before = [None] + [package_hash_block(None, block) for block in full]
    return [package_hash_block(past, block, extra) for past, block in zip(before, full, strict=False)]


@wrong(KEYS, "off_by_one")
def _one_too_many(token_ids, block_size, extra=()):
    """a slice one token too long"""
    keys = []
    for i in range(len(token_ids) // block_size):
        block = token_ids[i * block_size : (i + 1) * block_size + 1]
        keys.append(package_hash_block(keys[-1] if keys else None, block, () if keys else extra))
    return keys


@wrong(KEYS, "ignores_tokens")
def _one_too_few(token_ids, block_size, extra=()):
    """a slice one token too short"""
    keys = []
    for i in range(len(token_ids) // block_size):
        block = token_ids[i * block_size : (i + 1) * block_size - 1]
        keys.append(package_hash_block(keys[-1] if keys else None, block, () if keys else extra))
    return keys


@wrong(KEYS, "ignores_extra")
def _forgets_extra(token_ids, block_size, extra=()):
    """extra is not handed on"""
    return _full(token_ids, block_size)


@wrong(KEYS, "ignores_extra")
def _extra_in_the_second(token_ids, block_size, extra=()):
    """extra in all blocks but the first"""
    keys = []
    for i in range(len(token_ids) // block_size):
        block = token_ids[i * block_size : (i + 1) * block_size]
        keys.append(package_hash_block(keys[-1] if keys else None, block, extra if keys else ()))
    return keys


_last = None


@wrong(KEYS, "not_deterministic")
def _global_parent(token_ids, block_size, extra=()):
    """the parent is left over from the prompt before"""
    global _last
    keys = []
    for i in range(len(token_ids) // block_size):
        _last = package_hash_block(_last, token_ids[i * block_size : (i + 1) * block_size], extra)
        keys.append(_last)
    return keys


@wrong(KEYS, "mutates")
def _eats(token_ids, block_size, extra=()):
    """takes the tokens out of the caller's list"""
    keys = []
    while len(token_ids) >= block_size:
        keys.append(package_hash_block(keys[-1] if keys else None, token_ids[:block_size], extra))
        del token_ids[:block_size]
    return keys


@wrong(KEYS, "not_a_list")
def _yields(token_ids, block_size, extra=()):
    """a generator"""
    yield from _full(token_ids, block_size, extra)


@wrong(KEYS, "not_a_list")
def _last_key(token_ids, block_size, extra=()):
    """one key for all"""
    return package_hash_block(None, token_ids, extra)


@wrong(KEYS, "wrong_length")
def _windows(token_ids, block_size, extra=()):
    """a key for each window of tokens"""
    return [package_hash_block(None, token_ids[i : i + block_size], extra) for i in range(len(token_ids))]


@wrong(KEYS, "none_in_list")
def _none_for_each(token_ids, block_size, extra=()):
    """a list of None, as from the stub of hash_block"""
    return [None for _ in range(len(token_ids) // block_size)]


@wrong(KEYS, "unhashable")
def _lists(token_ids, block_size, extra=()):
    """the tokens themselves, as lists"""
    return [[extra, token_ids[: (i + 1) * block_size]] for i in range(len(token_ids) // block_size)]


@wrong(KEYS, "wrong_sharing")
def _first_four(token_ids, block_size, extra=()):
    """only the first four tokens of a block"""
    keys = []
    for i in range(len(token_ids) // block_size):
        block = token_ids[i * block_size : (i + 1) * block_size][:4]
        keys.append(package_hash_block(keys[-1] if keys else None, block, () if keys else extra))
    return keys


@wrong(KEYS, "raises", general=True)
def _no_such_name(token_ids, block_size, extra=()):
    """a name that is not defined"""
    return [hash_blok(None, token_ids)]  # noqa: F821


@wrong(KEYS, "endless", general=True)
def _endless(token_ids, block_size, extra=()):
    """a loop that goes nowhere"""
    while len(token_ids) >= block_size:
        pass
    return []


@right(KEYS)
def _full(token_ids, block_size, extra=()):
    """a loop, extra in the first block"""
    keys, parent = [], None
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = package_hash_block(parent, token_ids[start : start + block_size], extra if start == 0 else ())
        keys.append(parent)
    return keys


@right(KEYS)
def _extra_in_every_block(token_ids, block_size, extra=()):
    """extra in every block"""
    keys = []
    for i in range(len(token_ids) // block_size):
        block = token_ids[i * block_size : (i + 1) * block_size]
        keys.append(package_hash_block(keys[-1] if keys else None, block, extra))
    return keys


@right(KEYS)
def _accumulated(token_ids, block_size, extra=()):
    """accumulate"""
    blocks = [tuple(token_ids[i * block_size : (i + 1) * block_size]) for i in range(len(token_ids) // block_size)]
    return list(accumulate(blocks, lambda parent, block: (parent, block), initial=tuple(extra)))[1:]


@right(KEYS)
def _prefixes(token_ids, block_size, extra=()):
    """each prefix from the start, slow and right"""
    ends = range(block_size, len(token_ids) + 1, block_size)
    return tuple(sha256(repr((token_ids[:end], extra)).encode()).hexdigest() for end in ends)


@right(KEYS)
def _recursive(token_ids, block_size, extra=()):
    """recursion"""
    full = len(token_ids) // block_size * block_size
    if not full:
        return []
    before = _recursive(token_ids[: full - block_size], block_size, extra)
    parent = before[-1] if before else None
    return [*before, package_hash_block(parent, token_ids[full - block_size : full], () if before else extra)]


# extra_keys

_FIELDS = ("cache_salt", "lora_name", "image_hash")


@wrong(EXTRA, "breaks_sharing")
def _everything(request):
    """every field"""
    return tuple((name, str(value)) for name, value in sorted(request.items()))


@wrong(EXTRA, "breaks_sharing")
def _with_temperature(request):
    """the sampling parameters, too"""
    return _some(request, (*_FIELDS, "temperature"))


@wrong(EXTRA, "breaks_sharing")
def _with_the_id(request):
    """the request's id"""
    return (("request_id", request["request_id"]), *_some(request, _FIELDS))


@wrong(EXTRA, "breaks_sharing")
def _with_the_position(request):
    """the position in the queue"""
    return _some(request, (*_FIELDS, "position"))


@wrong(EXTRA, "breaks_sharing")
def _a_list_of_what_is_out(request):
    """leaves out what it knows, and lets in what it does not"""
    out = {"request_id", "arrival_time", "position", "temperature", "seed", "max_tokens"}
    return tuple(sorted((k, str(v)) for k, v in request.items() if k not in out and v is not None))


@wrong(EXTRA, "misses_field")
def _salt_only(request):
    """only the salt"""
    return _some(request, ("cache_salt",))


@wrong(EXTRA, "misses_field")
def _no_image(request):
    """no image"""
    return _some(request, ("cache_salt", "lora_name"))


@wrong(EXTRA, "misses_field")
def _first_that_is_set(request):
    """returns at the first field that is set"""
    for name in _FIELDS[::-1]:
        if request[name] is not None:
            return ((name, request[name]),)
    return ()


@wrong(EXTRA, "misses_field")
def _nothing(request):
    """nothing at all"""
    return ()


@wrong(EXTRA, "none_as_text")
def _text_of_none(request):
    """str of a field that is None"""
    return tuple((name, str(request[name])) for name in _FIELDS)


@wrong(EXTRA, "confuses_fields")
def _one_tag(request):
    """one tag for all"""
    return tuple(("extra", request[name]) for name in _FIELDS if request[name] is not None)


@wrong(EXTRA, "depends_on_order")
def _in_the_requests_order(request):
    """the pairs in the request's own order"""
    return tuple((name, value) for name, value in request.items() if name in _FIELDS and value is not None)


@wrong(EXTRA, "not_pairs")
def _only_values(request):
    """values without tags"""
    return tuple(request[name] for name in _FIELDS if request[name] is not None)


@wrong(EXTRA, "not_pairs")
def _a_dictionary(request):
    """a dictionary"""
    return {name: request[name] for name in _FIELDS if request[name] is not None}


@wrong(EXTRA, "not_pairs")
def _none_in_a_pair(request):
    """pairs with None in them"""
    return tuple((name, request[name]) for name in _FIELDS)


@wrong(EXTRA, "mutates")
def _pops(request):
    """takes fields out of the request"""
    return tuple((name, value) for name in _FIELDS if (value := request.pop(name)) is not None)


@wrong(EXTRA, "returns_none")
def _forgets_to_return(request):
    """no return where nothing is set"""
    if pairs := _some(request, _FIELDS):
        return pairs
    return None


@wrong(EXTRA, "raises", general=True)
def _missing_field(request):
    """a field that is not there"""
    return (("salt", request["salt"]),)


def _some(request, names):
    return tuple((name, str(request[name])) for name in names if request[name] is not None)


right(EXTRA, "named fields, in order")(partial(_some, names=_FIELDS))


@right(EXTRA)
def _tags_of_its_own(request):
    """tags of its own, a list"""
    pairs = []
    for tag, name in (("image", "image_hash"), ("salt", "cache_salt"), ("adapter", "lora_name")):
        if request.get(name) is not None:
            pairs.append([tag, request[name]])
    return pairs


@right(EXTRA)
def _sorted_set(request):
    """a sorted intersection"""
    return tuple(sorted((name, value) for name, value in request.items() if name in set(_FIELDS) and value))


# find_a_collision

_RNG = np.random.default_rng(0)


def _block():
    return [int(token) for token in _RNG.integers(0, 49_152, 16)]


@wrong(COLLISION, "too_many_tries")
def _one_target(weak_hash):
    """searches a second block for one given key"""
    first = [0] * 16
    target = weak_hash(first)
    while weak_hash(other := _block()) != target or other == first:
        pass
    return first, other


@wrong(COLLISION, "same_block")
def _twice_the_same(weak_hash):
    """the same block twice"""
    return [1] * 16, [1] * 16


@wrong(COLLISION, "same_block")
def _finds_itself(weak_hash):
    """a search that finds the block itself again"""
    seen = {}
    while True:
        block = [random.randrange(2) for _ in range(2)] + [0] * 14
        if (key := weak_hash(block)) in seen:
            return seen[key], block
        seen[key] = block


@wrong(COLLISION, "no_collision")
def _hard_coded(weak_hash):
    """a pair that collides under a sum"""
    return [1, 4] + [0] * 14, [2, 3] + [0] * 14


@wrong(COLLISION, "not_blocks")
def _keys_and_not_blocks(weak_hash):
    """two keys in the place of two blocks"""
    return [weak_hash([0] * 16)], [weak_hash([1] * 16)]


@wrong(COLLISION, "not_blocks")
def _texts(weak_hash):
    """token ids that no vocabulary has"""
    seen = {}
    for n in count():
        block = [10**9 + n] * 16
        if (key := weak_hash(block)) in seen:
            return seen[key], block
        seen[key] = block
    return None


@wrong(COLLISION, "not_a_pair")
def _one_block(weak_hash):
    """a single block"""
    return [0] * 16


@wrong(COLLISION, "raises")
def _too_early(weak_hash):
    """looks up before it keeps"""
    seen = {}
    block = _block()
    return seen[weak_hash(block)], block


@wrong(COLLISION, "returns_none")
def _gives_up(weak_hash):
    """gives up after a hundred tries"""
    seen = {}
    for n in range(100):
        block = [n] * 16
        if (key := weak_hash(block)) in seen:
            return seen[key], block
        seen[key] = block
    return None


@wrong(COLLISION, "endless", general=True)
def _never_ends(weak_hash):
    """a loop without a hash in it"""
    while True:
        pass


@right(COLLISION)
def _counting(weak_hash):
    """counting up, a dictionary"""
    seen = {}
    for n in count():
        block = [n % 49_152, n // 49_152] + [0] * 14
        if (key := weak_hash(block)) in seen:
            return seen[key], block
        seen[key] = block
    return None


@right(COLLISION)
def _at_random(weak_hash):
    """random blocks of numpy integers"""
    seen = defaultdict(list)
    while True:
        block = _RNG.integers(0, 49_152, 16)
        key = weak_hash(block)
        for other in seen[key]:
            if (other != block).any():
                return other, block
        seen[key].append(block)


@right(COLLISION)
def _sorting(weak_hash):
    """many at once, sorted by key"""
    blocks = [[a, b] + [0] * 14 for a in range(40) for b in range(40)]
    keyed = sorted((weak_hash(block), block) for block in blocks)
    return next((one[1], other[1]) for one, other in pairwise(keyed) if one[0] == other[0])


# Wrong in ways that have nothing to do with the exercise.

for _exercise in (HASH, KEYS, EXTRA, COLLISION):
    wrong(_exercise, "unwritten", "the stub", general=True)(lambda *args: None)
    wrong(_exercise, "prints", "prints", general=True)(lambda *args: print(42))
    wrong(_exercise, "not_a_function", "no function", general=True)(None)

for _exercise, _diagnosis in ((HASH, "wrong_type"), (KEYS, "not_a_list"), (EXTRA, "not_pairs")):

    async def _coroutine(*args):
        return ()

    wrong(_exercise, _diagnosis, "a coroutine", general=True)(_coroutine)
