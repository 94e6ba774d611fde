"""The key of a full block: a chain of hashes, so that equal keys mean equal tokens from the very start.

Knows token ids. Does not know blocks, pools or who asks.

Why a chain: the keys and values of a token depend on every token before it. A block's content alone
doesn't identify them; its content and its whole past do. Hashing the parent's key instead of the whole
past makes that one hash of constant cost a block.

Why sha256, and not Python's hash(): a prefix cache that can be made to collide hands one user's cache to
another (CVE-2025-25183 did so with the built-in hash, which is predictable for integers). sha256 is also
the same in every process, so keys can be shared between servers and stored.

`hash_block` says what a key is. `hash_blocks` computes the same keys for a whole prompt in half the time.
"""

import struct
from collections.abc import Sequence
from functools import cache
from hashlib import sha256

#: What goes into a key beside tokens: pairs of a type tag and a value, such as ("cache_salt", "team-7").
ExtraKeys = Sequence[tuple[str, str]]


def hash_block(parent: bytes | None, token_ids: Sequence[int], extra: ExtraKeys = ()) -> bytes:
    """Key of a full block: H(parent's key, token ids, extra keys). 32 bytes, equal in every process.

    parent: key of the block before, or None for a sequence's first block.
    token_ids: the block's tokens, all `block_size` of them.
    extra: what else must be equal for the block to be shared, as (tag, value) pairs. A salt goes into the
        first block only; the chain carries it on.

    Every piece is written with its length or count first, so that no two different inputs give the same
    bytes: "1,23" and "12,3" can't be confused, nor a salt with a token.
    """
    past = b"" if parent is None else parent
    count = len(token_ids)
    written = _layout(len(past), count).pack(len(past), past, count, *token_ids)
    for tag, value in extra:
        for text in (tag.encode(), value.encode()):
            written += struct.pack("<q", len(text)) + text
    return sha256(written).digest()


@cache
def _layout(past: int, count: int) -> struct.Struct:
    """How `past` bytes and `count` tokens are written: each number in 8 bytes, lowest byte first, lengths first."""
    return struct.Struct(f"<q{past}sq{count}q")


def hash_blocks(parent: bytes | None, token_ids: Sequence[int], block_size: int, extra: ExtraKeys = ()) -> list[bytes]:
    """Keys of full blocks in a row. `token_ids` are all their tokens; `parent` and `extra` belong to the first block.

    The same keys as from `hash_block`, block after block, in less time. What differs is when bytes are made: all
    tokens at once, to be cut afterwards; what is equal in every block (the length of a key, the number of tokens)
    once. And a hash that has read the beginning is copied, which is cheaper than to start a new one.
    """
    assert len(token_ids) % block_size == 0, f"{len(token_ids)} tokens are no full blocks of {block_size}"
    keys = [hash_block(parent, token_ids[:block_size], extra)]
    begun = sha256(struct.pack("<q", len(keys[0])))
    count = struct.pack("<q", block_size)
    tokens = struct.pack(f"<{len(token_ids)}q", *token_ids)
    width = len(count) * block_size
    for at in range(width, len(tokens), width):
        block = begun.copy()
        block.update(keys[-1] + count + tokens[at : at + width])
        keys.append(block.digest())
    return keys
