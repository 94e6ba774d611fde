"""The Triton kernels for quantized pools, interpreted: reads against float64 attention over the same numbers made
plain, writes against what the pool itself writes."""

import pytest
import torch
from batches import LENGTHS, Batch, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import interpreted

from pagedkv_lab.attention import Workspace, reference
from pagedkv_lab.attention.triton_launch import CHANNEL_BLOCK_SIZES, HEAD_DIMS
from pagedkv_lab.kv import LayerShape
from pagedkv_lab.kv.quantize import dequantize, quantize
from pagedkv_lab.kv.quantized import QuantizedKVPool, QuantizedLayer
from pagedkv_lab.sizing import KVQuantization

triton_paged = interpreted("triton_paged")
triton_quantized = interpreted("triton_quantized")

TOLERANCE = {torch.float32: 4e-6, torch.float16: 5e-3, torch.bfloat16: 3e-2}
KINDS = [(8, "token"), (4, "token"), (8, "channel"), (4, "channel")]
EVERY_KIND = pytest.mark.parametrize(("bits", "axis"), KINDS)


def quantized(batch: Batch, bits: int, axis: str) -> tuple[QuantizedLayer, Batch]:
    """The batch's pools quantized, and a batch of the plain numbers that this keeps.

    By channel, a sequence's last block is in a tail where it is partly filled. Everything that belongs to nobody is
    poison: the scales of blocks without an owner are NaN, and so is the rest of a tail.
    """
    block_size, dtype = batch.key_pool.shape[1], batch.query.dtype
    unused = batch.key_pool.isnan().all(dim=-1).all(dim=-1)  # (num_blocks, block_size)
    keys, values = (
        quantize(pool.float().nan_to_num(0.0), bits, of)
        for pool, of in ((batch.key_pool, axis), (batch.value_pool, "token"))
    )
    plain_keys, plain_values = dequantize(keys, axis, torch.float64), dequantize(values, "token", torch.float64)
    tails = None, None, None
    if axis == "channel":
        rows = torch.full((len(batch.context_lens),), -1, dtype=torch.int32)
        shape = (len(batch.context_lens) + 1, *batch.key_pool.shape[1:])
        tail_keys, tail_values = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
        for s, context in enumerate(batch.context_lens):
            if context % block_size:
                block = batch.block_tables[s, context // block_size]
                rows[s] = len(batch.context_lens) - s
                tail_keys[rows[s]], tail_values[rows[s]] = batch.key_pool[block], batch.value_pool[block]
                plain_keys[block] = batch.key_pool[block].double()
                plain_values[block] = batch.value_pool[block].double()
        tails = tail_keys, tail_values, rows
        keys.scale[unused.all(dim=1)] = float("nan")
    else:
        keys.scale[unused] = float("nan")
    values.scale[unused] = float("nan")
    plain = Batch(
        batch.query.double(), plain_keys, plain_values, batch.block_tables, batch.context_lens, batch.query_lens,
        batch.options, [], [],
    )  # fmt: skip
    return QuantizedLayer(keys, values, *tails), plain


def assert_right(batch: Batch, bits: int, axis: str, workspace: Workspace | None = None) -> None:
    layer, plain = quantized(batch, bits, axis)
    got = triton_quantized.paged_attention(
        batch.query, layer, batch.block_tables, batch.context_lens, batch.query_lens,
        **batch.options, workspace=workspace,
    )  # fmt: skip
    assert got.dtype == batch.query.dtype
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), plain.run(reference.paged_attention), rtol=tolerance, atol=tolerance)


# Reading


@EVERY_KIND
def test_any_step_is_attention_over_the_numbers_that_were_kept(bits, axis):
    @settings(max_examples=25)
    @given(
        lengths=st.lists(LENGTHS, min_size=1, max_size=4),
        block_size=st.sampled_from(CHANNEL_BLOCK_SIZES if axis == "channel" else (1, 4, 16)),
        heads=st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 3), (1, 8)]),
        sliding_window=st.sampled_from([None, None, 1, 5, 16, 100]),
        softcap=st.sampled_from([None, None, 2.0]),
        dtype=st.sampled_from(list(TOLERANCE)),
        seed=st.integers(0, 1000),
    )
    def is_attention(lengths, block_size, heads, sliding_window, softcap, dtype, seed):
        num_kv_heads, group = heads
        batch = make_batch(
            lengths, block_size=block_size, num_kv_heads=num_kv_heads, group=group, key_dim=16,
            sliding_window=sliding_window, softcap=softcap, seed=seed,
        )  # fmt: skip
        assert_right(batch.to(dtype), bits, axis)

    is_attention()


@EVERY_KIND
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_every_size_of_a_head(dim, bits, axis):
    batch = make_batch([(35, 1), (33, 3)], block_size=16, num_kv_heads=1, group=2, key_dim=dim)
    assert_right(batch.to(torch.float32), bits, axis)


@EVERY_KIND
@pytest.mark.parametrize("group", [1, 5, 9, 17])
def test_any_number_of_query_heads_may_share_a_kv_head(group, bits, axis):
    batch = make_batch([(35, 1), (18, 3)], block_size=16, num_kv_heads=2, group=group, key_dim=16)
    assert_right(batch.to(torch.float32), bits, axis)


@EVERY_KIND
@pytest.mark.parametrize("splits", [1, 2, 5])
def test_a_sequence_s_tokens_may_be_cut_into_parts(splits, bits, axis):
    """Also one that has nothing but a tail, one without a tail, and a padding row."""
    batch = make_batch([(150, 1), (7, 1), (64, 1), (20, 1)], block_size=16, num_kv_heads=1, group=3, key_dim=16)
    batch = batch.to(torch.float32)
    layer, plain = quantized(batch, bits, axis)
    expected = plain.run(reference.paged_attention)
    lens = torch.tensor(batch.context_lens, dtype=torch.int32)
    lens[3], expected[3] = 0, 0
    workspace = Workspace()
    workspace.put(triton_paged.METADATA, triton_paged.decode_metadata(batch.block_tables, lens, splits))
    got = triton_quantized.paged_attention(
        batch.query, layer, batch.block_tables, [], [], **batch.options, workspace=workspace
    )
    torch.testing.assert_close(got.double(), expected, rtol=4e-6, atol=4e-6)


@EVERY_KIND
def test_layers_share_a_workspace_within_a_step(bits, axis):
    workspace = Workspace()
    workspace.begin_step()
    shapes = [{}, {"sliding_window": 20}, {"num_kv_heads": 1, "group": 4}]
    layers = [make_batch([(17, 1), (40, 9)], block_size=16, seed=1, **{"key_dim": 16, **more}) for more in shapes]
    for layer in [*layers, *layers]:
        layer.block_tables = layers[0].block_tables
        assert_right(layer.to(torch.float32), bits, axis, workspace)


def test_keys_by_channel_in_blocks_of_another_size_are_refused_by_name():
    batch = make_batch([(9, 1)], block_size=4, key_dim=16).to(torch.float32)
    with pytest.raises(ValueError, match="block_size among 16, 32, not 4"):
        assert_right(batch, 4, "channel")


# Writing

SHAPES = [LayerShape(1, 16, 16), LayerShape(3, 80, 80), LayerShape(2, 128, 128)]


def random_tokens(number: int, shape: LayerShape, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Keys and values, heads first in memory, as transformers hands them over."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randn(shape.num_kv_heads, number, shape.key_dim, generator=generator) * 3 for _ in range(2)]
    return [side.to(dtype).transpose(0, 1) for side in tokens]


def assert_same_layer(ours: QuantizedLayer, theirs: QuantizedLayer) -> None:
    for our_side, their_side in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        for our, their in zip(our_side, their_side, strict=True):
            assert (our is None) == (their is None)
            assert our is None or torch.equal(our, their)
    for our, their in zip(ours[2:4], theirs[2:4], strict=True):
        assert our is None or torch.equal(our, their)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_are_quantized_to_the_same_numbers_as_by_the_pool_itself(shape, bits, dtype):
    ours, theirs = (QuantizedKVPool([shape], 5, 4, KVQuantization(bits, "token"), dtype=dtype) for _ in range(2))
    key, value = random_tokens(6, shape, dtype)
    key[2] = 0.5  # all alike: the scale is 0 in 4 bits
    key[3] = 0
    slots = torch.tensor([7, 0, 19, 3, 12, 11])
    theirs.write(0, slots, key, value)
    triton_quantized.write_tokens(key, value, ours.layer(0), slots)
    assert_same_layer(ours.layer(0), theirs.layer(0))


def test_a_token_without_a_slot_is_written_nowhere():
    shape = LayerShape(2, 16, 16)
    pool = QuantizedKVPool([shape], 3, 4, KVQuantization(8, "token"))
    key, value = random_tokens(3, shape, torch.float32)
    triton_quantized.write_tokens(key, value, pool.layer(0), torch.tensor([-1, 5, -1]))
    assert pool.keys[0].scale.flatten(0, 1)[:, 0].nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_fill_up_as_in_the_pool_itself(shape, bits, dtype):
    """Step by step: one token, many, a block from its start to its end, over an edge; two sequences by turns."""
    block_size = 16
    ours, theirs = (
        QuantizedKVPool([shape], 8, block_size, KVQuantization(bits, "channel"), num_tails=4, dtype=dtype)
        for _ in range(2)
    )
    tables = {"a": [6, 1, 3], "b": [0, 5, 2]}
    lens = dict.fromkeys(tables, 0)
    for step, work in enumerate(
        [{"a": 1, "b": 5}, {"a": 14, "b": 27}, {"a": 1}, {"a": 20, "b": 1}, {"b": 15}, {"a": 12}]
    ):
        slots, block_tables, context_lens = [], [], []
        for name, count in work.items():
            positions = range(lens[name], lens[name] + count)
            slots += [tables[name][p // block_size] * block_size + p % block_size for p in positions]
            lens[name] += count
            block_tables.append(tables[name])
            context_lens.append(lens[name])
        key, value = random_tokens(len(slots), shape, dtype, seed=step)
        for pool in (ours, theirs):
            pool.begin_step(
                [], torch.tensor(slots).numpy(), torch.tensor(block_tables).numpy(), torch.tensor(context_lens).numpy()
            )
        theirs.write(0, torch.tensor(slots), key, value)
        touched = torch.stack([torch.from_numpy(field) for field in ours.touched])
        padding = torch.tensor([[7], [0], [0], [0], [0]], dtype=torch.int32)
        triton_quantized.fill_blocks(key, value, ours.layer(0), torch.cat([touched, padding], dim=1))
        assert_same_layer(ours.layer(0), theirs.layer(0))
