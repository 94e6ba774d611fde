"""Checks of chapter 04: when two blocks are the same.

A key is right where it is equal exactly when it has to be. So nearly every question here is one of two: these two
calls must give the same key, those two must not. What a key looks like (bytes, a number, a text, a tuple) is free.

One module an exercise: `hash_block`, `key_chains`, `extra_keys`, `collisions`; `keys` is what they share.
"""

from pagedkv_lab.course.checks.collisions import examine_find_a_collision
from pagedkv_lab.course.checks.extra_keys import examine_extra_keys
from pagedkv_lab.course.checks.hash_block import examine_hash_block
from pagedkv_lab.course.checks.key_chains import examine_block_keys
from pagedkv_lab.course.checks.registry import Exercise

EXERCISES = (
    Exercise("hash_block", "4.1", "The key of a block", examine_hash_block, slot="hash_block"),
    Exercise("block_keys", "4.2", "The keys of a prompt", examine_block_keys),
    Exercise("extra_keys", "4.3", "What belongs in a key", examine_extra_keys),
    Exercise("find_a_collision", "4.4", "Find a collision", examine_find_a_collision, stretch=True),
)
