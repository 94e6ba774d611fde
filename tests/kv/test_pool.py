"""The pool's tensors: a token goes where it was sent, a block is copied whole, and nothing else changes."""

import pytest
import torch

from pagedkv_lab.kv import KVPool, LayerShape
from pagedkv_lab.sizing import kv_bytes_per_token

NUM_BLOCKS, BLOCK_SIZE = 5, 4
#: Two layers that differ, and keys that are as wide as values in neither.
UNLIKE = (LayerShape(num_kv_heads=2, key_dim=3, value_dim=5), LayerShape(num_kv_heads=1, key_dim=6, value_dim=2))


def make_pool(layers=UNLIKE, **options):
    return KVPool(layers, NUM_BLOCKS, BLOCK_SIZE, **options)


def tensors(pool):
    return [*pool.keys, *pool.values]


def fill(pool):
    """Give every number of the pool a value of its own. Returns a copy of all of it."""
    start = 1
    for tensor in tensors(pool):
        tensor.copy_(torch.arange(start, start + tensor.numel()).view(tensor.shape))
        start += tensor.numel()
    return [tensor.clone() for tensor in tensors(pool)]


def tokens(count, layer=UNLIKE[0], start=1000.0):
    """Keys and values of so many tokens, every number another one."""
    heads = layer.num_kv_heads
    key = torch.arange(count * heads * layer.key_dim).view(count, heads, layer.key_dim) + start
    value = -torch.arange(count * heads * layer.value_dim).view(count, heads, layer.value_dim) - start
    return key, value


def test_each_layer_has_tensors_of_its_own_shape():
    pool = make_pool()
    assert [tuple(tensor.shape) for tensor in pool.keys] == [(5, 4, 2, 3), (5, 4, 1, 6)]
    assert [tuple(tensor.shape) for tensor in pool.values] == [(5, 4, 2, 5), (5, 4, 1, 2)]


@pytest.mark.parametrize(("dtype", "bytes_per_number"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)])
def test_the_pool_weighs_what_the_sizing_formula_says(dtype, bytes_per_number):
    pool = make_pool([LayerShape(2, 8, 8)] * 3, dtype=dtype)
    assert {tensor.dtype for tensor in tensors(pool)} == {dtype}
    assert pool.nbytes == NUM_BLOCKS * BLOCK_SIZE * kv_bytes_per_token(3, 2, 8, bytes_per_number)


def test_the_pool_weighs_the_sum_over_its_layers_where_they_differ():
    numbers = sum(layer.numbers_per_token for layer in UNLIKE)
    assert numbers == 2 * (3 + 5) + 1 * (6 + 2)
    assert make_pool(dtype=torch.float16).nbytes == NUM_BLOCKS * BLOCK_SIZE * numbers * 2


def test_a_new_pool_is_empty():
    assert all(not tensor.any() for tensor in tensors(make_pool()))


def test_tokens_go_into_the_slots_they_were_sent_to_and_nothing_else_changes():
    pool = make_pool()
    expected = fill(pool)  # layer 0 and 1 of the keys, layer 0 and 1 of the values
    key, value = tokens(3)
    slots = [2 * BLOCK_SIZE + 3, 0, 4 * BLOCK_SIZE + 1]  # not in order, over three blocks
    pool.write(0, torch.tensor(slots), key, value)
    for row, slot in enumerate(slots):
        block, offset = divmod(slot, BLOCK_SIZE)
        expected[0][block, offset], expected[2][block, offset] = key[row], value[row]
    assert all(map(torch.equal, tensors(pool), expected))


def test_a_write_takes_what_the_model_hands_over_though_it_is_a_view_of_something_else():
    pool = make_pool()
    key, value = tokens(2)
    # (Hkv, T, D) in memory, as it comes from a model, seen as (T, Hkv, D).
    as_models_have_it = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (key, value)]
    assert not as_models_have_it[0].is_contiguous()
    pool.write(0, torch.tensor([1, 6]), *as_models_have_it)
    assert torch.equal(pool.keys[0].view(-1, 2, 3)[[1, 6]], key)
    assert torch.equal(pool.values[0].view(-1, 2, 5)[[1, 6]], value)


def test_writing_no_token_writes_nothing():
    """A step of one full hit alone computes a token and has nothing to write."""
    pool = make_pool()
    before = fill(pool)
    pool.write(0, torch.tensor([], dtype=torch.int64), *tokens(0))
    assert all(map(torch.equal, tensors(pool), before))


def test_a_slot_that_does_not_exist_is_refused():
    with pytest.raises((IndexError, RuntimeError)):
        make_pool().write(0, torch.tensor([NUM_BLOCKS * BLOCK_SIZE]), *tokens(1))


def test_a_copied_block_is_the_same_in_every_layer_and_the_others_are_as_before():
    pool = make_pool()
    before = fill(pool)
    pool.copy_blocks([(1, 3)])
    for tensor, old in zip(tensors(pool), before, strict=True):
        assert torch.equal(tensor[3], old[1])
        assert torch.equal(tensor[[0, 1, 2, 4]], old[[0, 1, 2, 4]])


def test_one_block_can_be_copied_to_several_places():
    pool = make_pool()
    before = fill(pool)
    pool.copy_blocks([(2, 0), (2, 4)])
    for tensor, old in zip(tensors(pool), before, strict=True):
        assert torch.equal(tensor, old[[2, 1, 2, 3, 2]])


@pytest.mark.parametrize(
    ("copies", "where_from"),
    [
        ([(0, 1), (1, 2)], [0, 0, 1, 3, 4]),  # 1 is copied away and copied into: 2 gets what 1 held before
        ([(1, 2), (0, 1)], [0, 0, 1, 3, 4]),  # whichever comes first
        ([(3, 4), (4, 3)], [0, 1, 2, 4, 3]),  # a swap
    ],
)
def test_all_blocks_are_read_before_any_is_written(copies, where_from):
    pool = make_pool()
    before = fill(pool)
    pool.copy_blocks(copies)
    for tensor, old in zip(tensors(pool), before, strict=True):
        assert torch.equal(tensor, old[where_from])


def test_copying_no_block_changes_nothing():
    pool = make_pool()
    before = fill(pool)
    pool.copy_blocks([])
    assert all(map(torch.equal, tensors(pool), before))
