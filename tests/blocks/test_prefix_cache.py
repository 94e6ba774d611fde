"""The prefix cache finds a block by its key for as long as the block holds what the key stands for."""

from hypothesis import given
from hypothesis import strategies as st

from pagedkv_lab.blocks import PrefixCache


def test_what_was_never_inserted_is_a_miss():
    assert PrefixCache().lookup(b"key") is None


def test_an_inserted_block_is_found_by_its_key_and_by_no_other():
    cache = PrefixCache()
    cache.insert(b"key", 3)
    assert cache.lookup(b"key") == 3
    assert cache.lookup(b"yek") is None
    assert len(cache) == 1


def test_block_0_is_found_like_any_other():
    cache = PrefixCache()
    cache.insert(b"key", 0)
    assert cache.lookup(b"key") == 0
    cache.forget(0)
    assert cache.lookup(b"key") is None


def test_a_forgotten_block_is_found_no_more():
    cache = PrefixCache()
    cache.insert(b"key", 3)
    cache.insert(b"other", 4)
    cache.forget(3)
    assert cache.lookup(b"key") is None
    assert cache.lookup(b"other") == 4
    assert len(cache) == 1


def test_forgetting_a_block_without_a_key_is_harmless():
    cache = PrefixCache()
    cache.insert(b"key", 3)
    cache.forget(5)
    cache.forget(5)
    assert cache.lookup(b"key") == 3


def test_of_two_blocks_with_the_same_contents_the_first_is_found():
    cache = PrefixCache()
    cache.insert(b"key", 3)
    cache.insert(b"key", 7)
    assert cache.lookup(b"key") == 3
    cache.forget(7)
    assert cache.lookup(b"key") == 3, "the second block never had the key: forgetting it changes nothing"


def test_a_block_with_new_contents_is_not_found_by_its_old_key():
    cache = PrefixCache()
    cache.insert(b"old", 3)
    cache.insert(b"new", 3)
    assert cache.lookup(b"old") is None
    assert cache.lookup(b"new") == 3
    assert len(cache) == 1


def test_a_key_can_be_inserted_again_for_another_block_once_its_block_is_forgotten():
    cache = PrefixCache()
    cache.insert(b"key", 3)
    cache.forget(3)
    cache.insert(b"key", 8)
    assert cache.lookup(b"key") == 8
    cache.forget(3)
    assert cache.lookup(b"key") == 8, "block 3 has no key any more"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3))))
def test_no_block_is_ever_found_by_two_keys(calls):
    cache, inserted = PrefixCache(), {}
    for is_insert, key, block in calls:
        if is_insert:
            if key not in inserted:
                inserted = {k: b for k, b in inserted.items() if b != block} | {key: block}
            cache.insert(key, block)
        else:
            inserted = {k: b for k, b in inserted.items() if b != block}
            cache.forget(block)
        assert {k: cache.lookup(k) for k in range(4) if cache.lookup(k) is not None} == inserted
        assert len(cache) == len(inserted)
