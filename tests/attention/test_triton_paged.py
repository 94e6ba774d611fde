"""The Triton kernels, interpreted, against attention in float64 over each sequence's own tokens."""

import numpy as np
import pytest
import torch
from batches import LENGTHS, Batch, make_batch, plain_attention, share_first_blocks
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import interpreted

from pagedkv_lab.attention import Workspace, choose_backend, reference
from pagedkv_lab.attention.triton_launch import HEAD_DIMS, MAX_SPLITS
from pagedkv_lab.kv import KVPool, LayerShape

triton_paged = interpreted("triton_paged")

#: Absolute and relative. In 16 bits, weights and outputs are rounded to 11 and 8 bits.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
EVERY_DTYPE = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def assert_right(got: torch.Tensor, batch: Batch) -> None:
    """`got` is attention over the numbers in `batch`, as exactly as their dtype allows."""
    assert got.dtype == batch.query.dtype
    assert got.shape == batch.query.shape
    tolerance = TOLERANCE[batch.query.dtype]
    torch.testing.assert_close(got.double(), plain_attention(batch.to(torch.float64)), rtol=tolerance, atol=tolerance)


def attend(batch: Batch, workspace: Workspace | None = None) -> torch.Tensor:
    return batch.run(triton_paged.paged_attention, workspace=workspace)


def decode_with(batch: Batch, splits: int) -> torch.Tensor:
    """A decode step with the tokens of each sequence cut into so many parts."""
    workspace = Workspace()
    lens = torch.tensor(batch.context_lens, dtype=torch.int32)
    workspace.put(triton_paged.METADATA, triton_paged.decode_metadata(batch.block_tables, lens, splits))
    return batch.run(triton_paged.paged_attention, workspace=workspace)


# Any step


@settings(max_examples=60)
@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=4),
    block_size=st.sampled_from([1, 4, 16]),
    heads=st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 3), (3, 4), (1, 7)]),
    sliding_window=st.sampled_from([None, None, 1, 2, 5, 16, 100]),
    softcap=st.sampled_from([None, None, 2.0]),
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 1000),
)
def test_any_step_is_attention_over_each_sequence_s_own_tokens(
    lengths, block_size, heads, sliding_window, softcap, dtype, seed
):
    num_kv_heads, group = heads
    batch = make_batch(
        lengths, block_size=block_size, num_kv_heads=num_kv_heads, group=group, key_dim=16,
        sliding_window=sliding_window, softcap=softcap, seed=seed,
    ).to(dtype)  # fmt: skip
    assert_right(attend(batch), batch)


@EVERY_DTYPE
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_every_size_of_a_head(dim, dtype):
    batch = make_batch([(35, 1), (18, 3)], block_size=16, num_kv_heads=1, group=2, key_dim=dim).to(dtype)
    assert_right(attend(batch), batch)


@EVERY_DTYPE
@pytest.mark.parametrize("group", [1, 2, 3, 4, 8, 9, 16, 17, 40])
def test_any_number_of_query_heads_may_share_a_kv_head(group, dtype):
    """Also 17 and 40, which are more than one program takes."""
    batch = make_batch([(9, 1), (6, 4)], num_kv_heads=2, group=group, key_dim=16).to(dtype)
    assert_right(attend(batch), batch)


@EVERY_DTYPE
@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_lengths_around_the_edge_of_a_block(block_size, dtype):
    around = sorted({1, max(1, block_size - 1), block_size, block_size + 1})
    lengths = [(context, queries) for context in around for queries in {1, context}]
    batch = make_batch(lengths, block_size=block_size, num_kv_heads=1, key_dim=16).to(dtype)
    assert_right(attend(batch), batch)


@pytest.mark.parametrize("context", [31, 32, 33, 127, 128, 129, 160])
def test_lengths_around_the_edge_of_a_tile(context):
    batch = make_batch([(context, 1), (context, 3)], block_size=16, num_kv_heads=1, group=1, key_dim=64)
    batch = batch.to(torch.float32)
    assert_right(attend(batch), batch)


def test_a_prompt_in_one_piece_and_a_chunk_behind_cached_tokens():
    """More queries than a program takes, and a chunk that doesn't begin at the edge of a block or a tile."""
    batch = make_batch([(70, 70), (70, 23), (40, 39)], block_size=16, num_kv_heads=1, group=3, key_dim=16)
    batch = batch.to(torch.float32)
    assert_right(attend(batch), batch)


@pytest.mark.parametrize("window", [1, 4, 5, 11, 12, 13, 33])
def test_a_sliding_window_counts_the_token_itself(window):
    batch = make_batch([(40, 1), (40, 40), (40, 5)], sliding_window=window, num_kv_heads=1, key_dim=16)
    batch = batch.to(torch.float32)
    assert_right(attend(batch), batch)


@EVERY_DTYPE
def test_large_scores_do_not_overflow_and_tiny_ones_do_not_vanish(dtype):
    batch = make_batch([(20, 1), (20, 20)], num_kv_heads=1, key_dim=16)
    batch.query *= 30
    batch = batch.to(dtype)
    got = attend(batch)
    assert got.isfinite().all()
    # Scores of hundreds, rounded to 16 bits nowhere: only the products' operands are.
    torch.testing.assert_close(got.double(), plain_attention(batch.to(torch.float64)), rtol=1e-2, atol=2e-2)


# How a step comes


def test_lengths_may_be_arrays_and_the_tables_a_view_of_something_larger():
    batch = make_batch([(23, 1), (9, 9), (30, 7), (1, 1)], key_dim=16).to(torch.float32)
    width = batch.block_tables.shape[1]
    kept = torch.full((7, width + 5), 10**6, dtype=torch.int32)
    kept[2:6, :width] = batch.block_tables
    batch.block_tables = kept[2:6, :width]
    batch.context_lens, batch.query_lens = np.array(batch.context_lens), np.array(batch.query_lens)
    assert_right(attend(batch), batch)


def test_queries_that_come_as_a_transposed_view_are_read_right():
    batch = make_batch([(9, 9), (5, 1), (12, 4)], key_dim=16).to(torch.float32)
    expected = attend(batch)
    batch.query = batch.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert not batch.query.is_contiguous()
    torch.testing.assert_close(attend(batch), expected, rtol=0, atol=0)
    batch.query = batch.query.transpose(1, 2).contiguous().transpose(1, 2)  # not even a head's numbers together
    torch.testing.assert_close(attend(batch), expected, rtol=0, atol=0)


def test_sequences_may_share_their_first_blocks():
    batch = make_batch([(12, 1), (12, 12)], key_dim=16)
    share_first_blocks(batch, [0, 1], 2)
    batch = batch.to(torch.float32)
    assert_right(attend(batch), batch)


def test_a_workspace_changes_nothing_over_many_steps_of_any_shape():
    workspace = Workspace()
    for step, lengths in enumerate([[(17, 17)], [(18, 1), (40, 40)], [(3, 1)], [(50, 1), (4, 1), (9, 2)], [(19, 1)]]):
        for window in (None, 6):
            batch = make_batch(lengths, seed=step, sliding_window=window, key_dim=16).to(torch.float32)
            workspace.begin_step()
            assert_right(attend(batch, workspace), batch)


def test_layers_of_different_shapes_and_windows_share_a_workspace_within_a_step():
    workspace = Workspace()
    workspace.begin_step()
    lengths = [(17, 1), (9, 9), (30, 4)]
    shapes = [{}, {"sliding_window": 5}, {"num_kv_heads": 1, "group": 4}, {"softcap": 3.0, "key_dim": 64}]
    layers = [make_batch(lengths, seed=1, **{"key_dim": 16, **shape}) for shape in shapes]
    for layer in [*layers, *layers]:
        layer.block_tables = layers[0].block_tables
        layer = layer.to(torch.float32)
        assert_right(attend(layer, workspace), layer)


# Splits


@EVERY_DTYPE
@pytest.mark.parametrize("splits", [1, 2, 3, 5, MAX_SPLITS])
def test_a_sequence_s_tokens_may_be_cut_into_any_number_of_parts(splits, dtype):
    """More parts than there are tiles, too: some are empty then."""
    batch = make_batch([(200, 1), (1, 1), (65, 1)], block_size=16, num_kv_heads=1, group=3, key_dim=64).to(dtype)
    assert_right(decode_with(batch, splits), batch)


@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("window", [3, 64, 100])
def test_parts_hold_what_the_window_lets_see(window, splits):
    batch = make_batch([(200, 1), (20, 1)], block_size=16, num_kv_heads=1, key_dim=64, sliding_window=window)
    batch = batch.to(torch.float32)
    assert_right(decode_with(batch, splits), batch)


@pytest.mark.parametrize("splits", [1, 4])
@EVERY_DTYPE
def test_a_padding_row_gives_zeros_and_reads_nothing(dtype, splits):
    batch = make_batch([(20, 1), (5, 1), (33, 1)], num_kv_heads=1, key_dim=16).to(dtype)
    expected = decode_with(batch, splits)
    batch.context_lens[1] = 0
    batch.block_tables[1] = 10**6  # no such block
    got = decode_with(batch, splits)
    assert got[1].eq(0).all()
    torch.testing.assert_close(got[[0, 2]], expected[[0, 2]], rtol=0, atol=0)


def test_metadata_of_a_graph_are_read_when_the_kernels_run():
    """As a CUDA graph has it: the same tensors, filled anew before each replay."""
    workspace = Workspace()
    tables, lens = torch.zeros(3, 16, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    workspace.put(triton_paged.METADATA, triton_paged.decode_metadata(tables, lens, 2))
    for lengths in ([(20, 1), (3, 1), (9, 1)], [(21, 1), (4, 1), (1, 1)]):
        batch = make_batch(lengths, num_kv_heads=1, key_dim=16).to(torch.float32)
        tables[:, : batch.block_tables.shape[1]] = batch.block_tables
        lens[:] = torch.tensor(batch.context_lens)
        assert_right(attend(batch, workspace), batch)


# A pool with more numbers than 32 bits count


@pytest.mark.parametrize("queries", [1, 3])
def test_a_pool_of_more_than_two_billion_numbers(queries, monkeypatch):
    """Blocks behind number 2 ** 31 of the pool. Memory that nobody touches takes no room."""
    # The interpreter copies its arguments back to where they came from: here onto themselves, all 9 GB of them.
    monkeypatch.setattr("triton.runtime.interpreter.GridExecutor._restore_args_dev", lambda *arguments: None)
    dim, block_size = 256, 16
    num_blocks = 2**31 // (dim * block_size) + 8
    pools = [torch.empty(num_blocks, block_size, 1, dim, dtype=torch.float16) for _ in range(2)]
    small = make_batch([(20, queries)], block_size=block_size, num_kv_heads=1, group=1, key_dim=dim).to(torch.float16)
    tables = torch.tensor([[num_blocks - 1, num_blocks - 3]], dtype=torch.int32)
    slots = (tables.long().repeat_interleave(block_size, dim=1) * block_size)[0, :20] + torch.arange(20) % block_size
    triton_paged.write_kv(small.keys[0], small.values[0], *pools, slots)
    got = triton_paged.paged_attention(small.query, *pools, tables, [20], [queries], **small.options)
    assert_right(got, small)


# Writing


@EVERY_DTYPE
@pytest.mark.parametrize("shape", [LayerShape(1, 16, 16), LayerShape(3, 80, 80), LayerShape(8, 128, 128)])
def test_tokens_are_written_where_the_pool_itself_would_write_them(shape, dtype):
    ours, theirs = (KVPool([shape], 5, 4, dtype=dtype) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    key, value = (torch.randn(6, shape.num_kv_heads, shape.key_dim, generator=generator).to(dtype) for _ in range(2))
    slots = torch.tensor([7, 0, 19, 3, 12, 11])
    theirs.write(0, slots, key, value)
    # As transformers hands them over: heads first in memory.
    key, value = (side.transpose(0, 1).contiguous().transpose(0, 1) for side in (key, value))
    triton_paged.write_kv(key, value, ours.keys[0], ours.values[0], slots)
    assert torch.equal(ours.keys[0], theirs.keys[0])
    assert torch.equal(ours.values[0], theirs.values[0])


def test_a_token_without_a_slot_is_written_nowhere():
    pool = KVPool([LayerShape(2, 16, 16)], 3, 4)
    key = torch.ones(3, 2, 16)
    triton_paged.write_kv(key, key, pool.keys[0], pool.values[0], torch.tensor([-1, 5, -1]))
    written = pool.keys[0].flatten(0, 1)[:, 0, 0]
    assert written.nonzero().flatten().tolist() == [5]
    triton_paged.write_kv(key[:0], key[:0], pool.keys[0], pool.values[0], torch.zeros(0, dtype=torch.int64))


# What it doesn't do


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key_dim": 24}, "heads of 24 numbers"),
        ({"key_dim": 16, "value_dim": 32}, "keys of 16 and values of 32"),
        ({"key_dim": 16, "dtype": torch.float64}, "float64"),
    ],
)
def test_what_the_kernels_can_t_run_is_refused_by_name(change, words):
    batch = make_batch([(5, 1)], **{"dtype": torch.float32, **change})
    with pytest.raises(ValueError, match=words):
        attend(batch)


def test_the_backend_is_chosen_by_its_name():
    assert choose_backend("triton_paged", "cpu") == ("triton_paged", triton_paged.paged_attention)


def test_a_gpu_attends_with_the_triton_kernels_unless_told_otherwise():
    assert choose_backend(None, "cuda") == ("triton_paged", triton_paged.paged_attention)
    assert choose_backend("torch_paged", "cuda")[0] == "torch_paged"


def test_without_the_interpreter_a_cpu_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(triton_paged, "INTERPRETED", False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        choose_backend("triton_paged", "cpu")
    assert "on CUDA" in triton_paged.supports("cpu", torch.float32, 64, 64, 4, 4)


# The tests would notice


def test_the_reference_shows_a_mask_that_is_off_by_one():
    """What a wrong kernel would give is further off than the tolerance, in every dtype."""
    for dtype, tolerance in TOLERANCE.items():
        batch = make_batch([(20, 1)], num_kv_heads=1, key_dim=16).to(dtype)
        batch.context_lens = [19]
        wrong = batch.to(torch.float64).run(reference.paged_attention)
        batch.context_lens = [20]
        right = plain_attention(batch.to(torch.float64))
        assert (wrong - right).abs().max() > 3 * tolerance
