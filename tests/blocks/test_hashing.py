"""A block's key stands for its tokens and for everything before them, and for nothing else."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_lab.blocks import hash_block

SALT = (("cache_salt", "team-7"),)


def number(n: int) -> bytes:
    return n.to_bytes(8, "little", signed=True)


def key_by_hand(parent: bytes | None, token_ids: list[int], extra=()) -> bytes:
    """The key as the docstring of `hash_block` describes it: each piece after its length or count."""
    past = parent or b""
    message = number(len(past)) + past + number(len(token_ids)) + b"".join(map(number, token_ids))
    for tag, value in extra:
        for text in (tag.encode(), value.encode()):
            message += number(len(text)) + text
    return hashlib.sha256(message).digest()


def chain(token_ids: list[int], block_size: int, extra=()) -> list[bytes]:
    """Keys of all full blocks of a sequence."""
    keys: list[bytes] = []
    for at in range(0, len(token_ids) - block_size + 1, block_size):
        parent, first_only = (keys[-1], ()) if keys else (None, extra)
        keys.append(hash_block(parent, token_ids[at : at + block_size], first_only))
    return keys


def test_keys_are_those_of_the_known_answers():
    first = hash_block(None, [1, 23, 0, 49151])
    assert first.hex() == "417f3a3c5e0eead4ed903b2ad75c9d9624705d8ea21dadf0cf47288da4f90484"
    second = hash_block(first, [7, 8])
    assert second.hex() == "e5bebf30a6599b9537357ac31cb50b6b26407b588677f403c26f9653aadff5b6"
    salted = hash_block(None, [5], SALT)
    assert salted.hex() == "9cf257535324aa9a08375ab638856373607cea178a3663f43e114749a98170d9"


tokens = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)
extras = st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3)


@given(st.none() | st.binary(min_size=32, max_size=32), tokens, extras)
def test_a_key_is_the_sha256_of_parent_tokens_and_extra_keys_each_after_its_length(parent, token_ids, extra):
    assert hash_block(parent, token_ids, extra) == key_by_hand(parent, token_ids, extra)


@pytest.mark.parametrize("seed", ["0", "1", "31337"])
def test_keys_are_the_same_in_every_process(seed):
    """Python's own hash() of a text differs with PYTHONHASHSEED; a key must not."""
    script = (
        "from pagedkv_lab.blocks import hash_block\n"
        "first = hash_block(None, range(16), [('cache_salt', 'team-7')])\n"
        "print(first.hex(), hash_block(first, range(16)).hex(), hash('team-7'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    first = key_by_hand(None, list(range(16)), SALT)
    second = key_by_hand(first, list(range(16)))
    assert done.stdout.split()[:2] == [first.hex(), second.hex()]


def test_a_key_is_32_bytes_however_long_the_block():
    assert [len(hash_block(None, range(size))) for size in (1, 16, 256)] == [32, 32, 32]


def test_any_sequence_of_integers_will_do():
    expected = hash_block(None, [3, 1, 2])
    assert hash_block(None, (3, 1, 2)) == expected
    assert hash_block(None, np.array([3, 1, 2], dtype=np.int32)) == expected


PARENT = hash_block(None, [9])

DIFFERENT = {
    "tokens whose digits run together": ((None, [1, 23]), (None, [12, 3])),
    "tokens in another order": ((None, [1, 2]), (None, [2, 1])),
    "one token more": ((None, [1, 2]), (None, [1, 2, 0])),
    "a negative token": ((None, [1]), (None, [-1])),
    "a first block and one with a past": ((None, [1, 2]), (PARENT, [1, 2])),
    "two pasts": ((PARENT, [1, 2]), (hash_block(None, [8]), [1, 2])),
    "a past and the same bytes as tokens": ((PARENT + number(1) + number(5), []), (PARENT, [5])),
    "no past and a past called root": ((None, [1]), (b"root", [1])),
    "salted and not": ((None, [5]), (None, [5], SALT)),
    "two salts": ((None, [5], SALT), (None, [5], (("cache_salt", "team-8"),))),
    "a salt and the same bytes as a token": ((None, [5, 6]), (None, [5], (("", number(6).decode()),))),
    "the same value under another tag": ((None, [5], SALT), (None, [5], (("lora", "team-7"),))),
    "a letter moved from tag to value": ((None, [5], (("ab", "c"),)), (None, [5], (("a", "bc"),))),
    "tag and value swapped": ((None, [5], (("a", "b"),)), (None, [5], (("b", "a"),))),
    "two extra keys and one that holds both": (
        (None, [5], (("a", "b"), ("c", "d"))),
        (None, [5], (("a", "bcd"),)),
    ),
    "an empty extra key and none": ((None, [5], (("", ""),)), (None, [5])),
    "the salt in the first block and in the second": ((PARENT, [5], SALT), (PARENT, [5])),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_has_different_keys(case):
    one, other = DIFFERENT[case]
    assert hash_block(*one) != hash_block(*other)


def test_equal_blocks_have_different_keys_at_different_places_of_a_sequence():
    keys = chain([7, 7] * 8, block_size=2)
    assert len(set(keys)) == 8


@given(st.lists(st.integers(0, 3), min_size=1, max_size=24), st.data())
def test_a_changed_token_changes_the_keys_from_its_block_on_and_none_before(token_ids, data):
    block_size = data.draw(st.integers(1, 4))
    changed_at = data.draw(st.integers(0, len(token_ids) - 1))
    changed = list(token_ids)
    changed[changed_at] += 1
    before, after = chain(token_ids, block_size), chain(changed, block_size)
    first_changed = changed_at // block_size
    assert before[:first_changed] == after[:first_changed]
    assert set(before[first_changed:]).isdisjoint(after[first_changed:])


def test_a_salt_in_the_first_block_changes_the_whole_chain():
    plain, salted = chain(list(range(12)), 4), chain(list(range(12)), 4, SALT)
    assert set(plain).isdisjoint(salted)


def test_what_comes_after_a_block_does_not_change_its_key():
    assert chain([1, 2, 3, 4, 5, 6], 4) == chain([1, 2, 3, 4, 9, 9, 9], 4)
