"""Attention over a paged cache: the reference against attention over plain tensors, the others against it."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from batches import BATCHES, Batch, assert_right, make_batch, needs_numba, plain_attention, share_first_blocks
from hypothesis import given, settings

from pagedkv_lab.attention import BACKENDS, Workspace, choose_backend, numba_paged, reference, torch_paged

#: What a backend computes in. The kernels of numba_paged know float32 and bfloat16 only.
CASES = [
    ("reference", torch.float64),
    ("torch_paged", torch.float64),
    pytest.param("numba_paged", torch.float32, marks=needs_numba),
    pytest.param("numba_paged", torch.bfloat16, marks=needs_numba),
]
EVERY_BACKEND = pytest.mark.parametrize(("name", "dtype"), CASES)


# The reference against attention over contiguous tensors


@settings(max_examples=60)
@given(BATCHES)
def test_the_reference_is_attention_over_each_sequence_s_own_tokens(batch):
    torch.testing.assert_close(batch.run(reference.paged_attention), plain_attention(batch), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("context", [1, 15, 16, 17, 40])
def test_the_reference_agrees_with_torch_s_own_attention_on_a_contiguous_prompt(context):
    batch = make_batch([(context, context)], block_size=16, num_kv_heads=2, group=3)
    expected = F.scaled_dot_product_attention(
        batch.query.transpose(0, 1)[None],
        batch.keys[0].transpose(0, 1)[None],
        batch.values[0].transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )[0].transpose(0, 1)
    torch.testing.assert_close(batch.run(reference.paged_attention), expected, rtol=1e-12, atol=1e-12)


# Every other backend against the reference

FAST = [name for name in BACKENDS if name != "reference"]


@pytest.mark.parametrize("name", FAST)
def test_a_backend_says_what_the_reference_says_to_the_last_digit_in_float64(name):
    @settings(max_examples=150)
    @given(BATCHES)
    def agrees(batch: Batch) -> None:
        got = batch.run(BACKENDS[name])
        torch.testing.assert_close(got, batch.run(reference.paged_attention), rtol=1e-11, atol=1e-11)

    agrees()


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_a_backend_keeps_to_the_precision_of_the_pool(name, dtype, tolerance):
    @settings(max_examples=40)
    @given(BATCHES)
    def agrees(batch: Batch) -> None:
        batch = batch.to(dtype)
        got = batch.run(BACKENDS[name])
        assert got.dtype == dtype
        # The same rounded numbers, computed exactly.
        exact = batch.to(torch.float64).run(reference.paged_attention)
        torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance)

    agrees()


@EVERY_BACKEND
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_lengths_around_the_edge_of_a_block(name, dtype, block_size):
    around = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size, 2 * block_size + 1})
    lengths = [(context, queries) for context in around for queries in {1, context}]
    batch = make_batch(lengths, block_size=block_size).to(dtype)
    got = batch.run(BACKENDS[name])
    assert not got.isnan().any()
    assert_right(got, batch)


@EVERY_BACKEND
def test_a_decode_beside_a_prompt_beside_a_chunk_behind_cached_tokens(name, dtype):
    batch = make_batch([(23, 1), (9, 9), (30, 7), (1, 1), (22, 1)], block_size=4, sliding_window=None).to(dtype)
    assert_right(batch.run(BACKENDS[name]), batch)


@EVERY_BACKEND
def test_lengths_may_be_arrays_and_the_tables_a_view_of_something_larger(name, dtype):
    """As the runner has them: rows of a table that is kept for all sequences, as wide as the longest may become."""
    batch = make_batch([(23, 1), (9, 9), (30, 7), (1, 1)]).to(dtype)
    width = batch.block_tables.shape[1]
    kept = torch.full((7, width + 5), 10**6, dtype=torch.int32)
    kept[2:6, :width] = batch.block_tables
    batch.block_tables = kept[2:6, :width]
    batch.context_lens, batch.query_lens = np.array(batch.context_lens), np.array(batch.query_lens)
    assert_right(batch.run(BACKENDS[name]), batch)
    # Turned over in memory, and of 64 bits.
    batch.block_tables = batch.block_tables.long().T.contiguous().T
    assert_right(batch.run(BACKENDS[name]), batch)


@EVERY_BACKEND
def test_sequences_may_share_their_first_blocks(name, dtype):
    batch = make_batch([(12, 1), (12, 12)], block_size=4)
    share_first_blocks(batch, [0, 1], 2)
    batch = batch.to(dtype)
    assert_right(batch.run(BACKENDS[name]), batch)


@EVERY_BACKEND
def test_queries_that_come_as_a_transposed_view_are_read_right(name, dtype):
    """As transformers hands them over: (heads, tokens, dim) in memory."""
    batch = make_batch([(9, 9), (5, 1), (12, 4)]).to(dtype)
    expected = batch.run(BACKENDS[name])
    batch.query = batch.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert not batch.query.is_contiguous()
    torch.testing.assert_close(batch.run(BACKENDS[name]), expected, rtol=0, atol=0)


@EVERY_BACKEND
@pytest.mark.parametrize("window", [1, 4, 5, 11, 12, 13])
def test_a_sliding_window_counts_the_token_itself(name, dtype, window):
    batch = make_batch([(12, 1), (12, 12), (12, 5)], sliding_window=window).to(dtype)
    assert_right(batch.run(BACKENDS[name]), batch)
    # What lies outside may be anything: only the newest token sees position 12 - window.
    decode = make_batch([(12, 1)], sliding_window=window).to(dtype)
    before = decode.run(BACKENDS[name])
    for position in range(12 - window):
        block = decode.block_tables[0, position // 4]
        decode.value_pool[block, position % 4] = 1e6
        decode.key_pool[block, position % 4] = 1e6
    torch.testing.assert_close(decode.run(BACKENDS[name]), before, rtol=0, atol=0)


# The workspace


@EVERY_BACKEND
def test_a_workspace_changes_nothing_over_many_steps_of_any_shape(name, dtype):
    workspace = Workspace()
    for step, lengths in enumerate(
        [[(17, 17)], [(18, 1), (40, 40)], [(3, 1)], [(50, 1), (50, 1), (4, 1), (9, 2)], [(2, 2)], [(19, 1)]]
    ):
        for window in (None, 6):
            batch = make_batch(lengths, seed=step, sliding_window=window).to(dtype)
            workspace.begin_step()
            assert_right(batch.run(BACKENDS[name], workspace=workspace), batch)


@EVERY_BACKEND
def test_layers_of_different_shapes_and_windows_share_a_workspace_within_a_step(name, dtype):
    workspace = Workspace()
    workspace.begin_step()
    lengths = [(17, 1), (9, 9), (30, 4)]
    layers = [
        make_batch(lengths, seed=1),
        make_batch(lengths, seed=1, sliding_window=5),
        make_batch(lengths, seed=1, num_kv_heads=1, group=4, key_dim=4),
        make_batch(lengths, seed=1, sliding_window=5, softcap=3.0),
        make_batch(lengths, seed=1, softcap=3.0),
    ]
    # The same sequences, so the same blocks, in every layer, and one table a step.
    assert all(torch.equal(layer.block_tables, layers[0].block_tables) for layer in layers)
    for layer in [*layers, *layers]:
        layer.block_tables = layers[0].block_tables
        layer = layer.to(dtype)
        assert_right(layer.run(BACKENDS[name], workspace=workspace), layer)


def test_a_growing_context_allocates_buffers_now_and_then_and_not_in_every_step():
    workspace = Workspace()
    made = []
    buffer = workspace.buffer

    def watched(name: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        got = buffer(name, shape, like)
        made.append((name, got.untyped_storage().data_ptr()))
        return got

    workspace.buffer = watched
    for context in range(100, 160):
        batch = make_batch([(context, 1), (context - 7, 1)], block_size=16)
        workspace.begin_step()
        batch.run(torch_paged.paged_attention, workspace=workspace)
    for name in ("key", "value"):
        storages = [storage for which, storage in made if which == name]
        assert len(storages) == 60
        changes = sum(a != b for a, b in pairwise(storages))
        assert changes <= 6, f"{name}: a new buffer in {changes} of 60 steps"
    assert len({storage for which, storage in made if which == "output"}) == 1


def test_a_buffer_of_another_dtype_is_not_mistaken_for_one_s_own():
    workspace = Workspace()
    batch = make_batch([(9, 1), (12, 12)])
    batch.run(torch_paged.paged_attention, workspace=workspace)
    workspace.begin_step()
    half = batch.to(torch.float32)
    got = half.run(torch_paged.paged_attention, workspace=workspace)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), plain_attention(batch), rtol=1e-5, atol=1e-5)


# What is read


def count_gathered(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> int:
    """Slots of which keys are read in one call."""
    gathered = 0
    index_select = torch.index_select

    def counting(source: torch.Tensor, dim: int, index: torch.Tensor, **more: Any) -> torch.Tensor:
        nonlocal gathered
        if source.data_ptr() == batch.key_pool.data_ptr():
            gathered += len(index)
        return index_select(source, dim, index, **more)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "index_select", counting)
        got = batch.run(torch_paged.paged_attention)
    torch.testing.assert_close(got, batch.run(reference.paged_attention), rtol=1e-11, atol=1e-11)
    return gathered


def test_one_long_sequence_among_many_short_ones_is_read_once_and_not_once_for_each(monkeypatch):
    short = [(20 + i, 1) for i in range(15)]
    gathered = count_gathered(make_batch([*short, (600, 1)], block_size=16), monkeypatch)
    needed = 600 + sum(context for context, _ in short)
    assert needed <= gathered <= 1.25 * needed


def test_lengths_of_every_kind_are_padded_by_a_third_at_the_most(monkeypatch):
    lengths = [(context, 1) for context in (1, 2, 3, 5, 9, 17, 33, 65, 100, 129, 200, 257)]
    gathered = count_gathered(make_batch(lengths, block_size=16), monkeypatch)
    needed = sum(context for context, _ in lengths)
    assert needed <= gathered <= needed / 0.75


def test_a_sliding_window_reads_no_more_than_it_sees(monkeypatch):
    decode = make_batch([(300, 1), (200, 1)], block_size=16, sliding_window=10)
    assert count_gathered(decode, monkeypatch) == 20
    chunk = make_batch([(300, 5)], block_size=16, sliding_window=10)
    assert count_gathered(chunk, monkeypatch) == 14


def test_what_depends_on_the_tables_alone_is_worked_out_once_a_step(monkeypatch):
    plans = []
    plan = torch_paged._plan
    monkeypatch.setattr(torch_paged, "_plan", lambda *args: plans.append(args) or plan(*args))
    workspace = Workspace()
    batch = make_batch([(9, 1), (12, 12)])
    for step in range(2):
        workspace.begin_step()
        for _ in range(4):
            batch.run(torch_paged.paged_attention, workspace=workspace)
        assert len(plans) == step + 1


# Choosing


@needs_numba
def test_the_backend_for_a_cpu_is_the_compiled_one_unless_another_is_asked_for():
    assert choose_backend() == ("numba_paged", numba_paged.paged_attention)
    assert choose_backend("reference") == ("reference", reference.paged_attention)
    assert choose_backend("torch_paged") == ("torch_paged", torch_paged.paged_attention)


def test_a_gpu_without_triton_attends_with_torch_s_kernels_and_it_is_said(monkeypatch, caplog):
    monkeypatch.setattr("pagedkv_lab.attention.find_spec", lambda name: None)
    assert choose_backend(device="cuda") == ("torch_paged", torch_paged.paged_attention)
    (said,) = caplog.messages
    assert said.endswith("pip install triton")
    with pytest.raises(ValueError, match="pip install triton"):
        choose_backend("triton_paged", "cuda")


def test_without_numba_the_backend_is_torch_s_and_who_asks_for_the_other_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr(numba_paged, "HAS_NUMBA", False)
    assert choose_backend() == ("torch_paged", torch_paged.paged_attention)
    with pytest.raises(ValueError, match="pip install -U numba"):
        choose_backend("numba_paged")


def test_an_unknown_backend_is_refused_by_name_with_the_names_that_there_are():
    with pytest.raises(ValueError, match="'fastest'") as refused:
        choose_backend("fastest")
    for name in BACKENDS:
        assert name in str(refused.value)
