"""Attention over a paged cache: the reference against attention over plain tensors, the others against it.

The pools here are as unpleasant as they get: blocks lie anywhere, and all that no sequence has written (other
blocks, the rest of a half-filled one) is NaN, as is whatever a table has behind a sequence's last block.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedkv_lab.attention import BACKENDS, Workspace, choose_backend, reference, torch_paged
from pagedkv_lab.sizing import blocks_for


@dataclass
class Batch:
    """Sequences in a pool, as a backend sees them, and their keys and values as plain tensors."""

    query: torch.Tensor  # (T, Hq, D)
    key_pool: torch.Tensor
    value_pool: torch.Tensor
    block_tables: torch.Tensor
    context_lens: list[int]
    query_lens: list[int]
    options: dict[str, Any]
    keys: list[torch.Tensor]  # of each sequence, (context_len, Hkv, D)
    values: list[torch.Tensor]

    def run(self, backend, **more: Any) -> torch.Tensor:
        pools = (self.query, self.key_pool, self.value_pool, self.block_tables)
        return backend(*pools, self.context_lens, self.query_lens, **self.options, **more)

    def to(self, dtype: torch.dtype) -> "Batch":
        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype)

        return Batch(
            cast(self.query),
            cast(self.key_pool),
            cast(self.value_pool),
            self.block_tables,
            self.context_lens,
            self.query_lens,
            self.options,
            [cast(key) for key in self.keys],
            [cast(value) for value in self.values],
        )


def make_batch(
    lengths: list[tuple[int, int]],
    *,
    block_size: int = 4,
    num_kv_heads: int = 2,
    group: int = 2,
    key_dim: int = 8,
    value_dim: int | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Batch:
    """lengths: (context, queries) a sequence. Keys and values are drawn at random, blocks dealt out at random."""
    generator = torch.Generator().manual_seed(seed)
    value_dim = value_dim or key_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    needed = [blocks_for(context, block_size) for context, _ in lengths]
    num_blocks = sum(needed) + 3
    key_pool = torch.full((num_blocks, block_size, num_kv_heads, key_dim), float("nan"), dtype=dtype)
    value_pool = torch.full((num_blocks, block_size, num_kv_heads, value_dim), float("nan"), dtype=dtype)
    free = torch.randperm(num_blocks, generator=generator).tolist()
    unused = free[sum(needed)]
    # Two columns more than anybody needs; what stands behind a sequence's last block points to NaN.
    tables = torch.full((len(lengths), max(needed) + 2), unused, dtype=torch.int32)
    keys, values = [], []
    for row, (context, _) in enumerate(lengths):
        blocks = [free.pop() for _ in range(needed[row])]
        tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        keys.append(random(context, num_kv_heads, key_dim))
        values.append(random(context, num_kv_heads, value_dim))
        for position in range(context):
            block, offset = blocks[position // block_size], position % block_size
            key_pool[block, offset] = keys[-1][position]
            value_pool[block, offset] = values[-1][position]
    query = random(sum(queries for _, queries in lengths), num_kv_heads * group, key_dim)
    return Batch(
        query,
        key_pool,
        value_pool,
        tables,
        [context for context, _ in lengths],
        [queries for _, queries in lengths],
        {"scale": key_dim**-0.5, "sliding_window": sliding_window, "softcap": softcap},
        keys,
        values,
    )


# A sequence in decode, in its first prefill, or in a chunk behind what is cached.
LENGTHS = st.sampled_from([1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 50]).flatmap(
    lambda context: st.tuples(
        st.just(context),
        st.sampled_from(sorted({1, context, max(1, context - 1), max(1, context // 2), min(3, context)})),
    )
)

BATCHES = st.builds(
    make_batch,
    st.lists(LENGTHS, min_size=1, max_size=6),
    block_size=st.sampled_from([1, 4, 16]),
    num_kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 4]),
    key_dim=st.sampled_from([4, 8]),
    value_dim=st.sampled_from([None, 6]),
    sliding_window=st.sampled_from([None, 1, 2, 5, 16, 100]),
    softcap=st.sampled_from([None, 2.0]),
    seed=st.integers(0, 1000),
)


# The reference against attention over contiguous tensors


def plain_attention(batch: Batch) -> torch.Tensor:
    """The same, from the sequences' keys and values as they are: softmax(q k^T) v in one line a head."""
    out = []
    queries = batch.query.split(batch.query_lens)
    for q, k, v, context in zip(queries, batch.keys, batch.values, batch.context_lens, strict=True):
        group = q.shape[1] // k.shape[1]
        for row in range(len(q)):
            last = context - len(q) + row  # position of this query
            window = batch.options["sliding_window"]
            first = 0 if window is None else max(0, last - window + 1)
            heads = []
            for head in range(q.shape[1]):
                scores = k[first : last + 1, head // group] @ q[row, head] * batch.options["scale"]
                cap = batch.options["softcap"]
                if cap is not None:
                    scores = cap * (scores / cap).tanh()
                heads.append(scores.softmax(0) @ v[first : last + 1, head // group])
            out.append(torch.stack(heads))
    return torch.stack(out)


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


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_lengths_around_the_edge_of_a_block(name, block_size):
    around = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size, 2 * block_size + 1})
    lengths = [(context, queries) for context in around for queries in {1, context}]
    batch = make_batch(lengths, block_size=block_size)
    got = batch.run(BACKENDS[name])
    assert not got.isnan().any()
    torch.testing.assert_close(got, plain_attention(batch), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_decode_beside_a_prompt_beside_a_chunk_behind_cached_tokens(name):
    batch = make_batch([(23, 1), (9, 9), (30, 7), (1, 1), (22, 1)], block_size=4, sliding_window=None)
    torch.testing.assert_close(batch.run(BACKENDS[name]), plain_attention(batch), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", BACKENDS)
def test_sequences_may_share_their_first_blocks(name):
    batch = make_batch([(12, 1), (12, 12)], block_size=4)
    # The second sequence's first two blocks are the first one's now: a prefix hit.
    batch.block_tables[1, :2] = batch.block_tables[0, :2]
    for plain in (batch.keys, batch.values):
        plain[1] = torch.cat([plain[0][:8], plain[1][8:]])
    torch.testing.assert_close(batch.run(BACKENDS[name]), plain_attention(batch), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", BACKENDS)
def test_queries_that_come_as_a_transposed_view_are_read_right(name):
    """As transformers hands them over: (heads, tokens, dim) in memory."""
    batch = make_batch([(9, 9), (5, 1), (12, 4)])
    expected = batch.run(BACKENDS[name])
    batch.query = batch.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert not batch.query.is_contiguous()
    torch.testing.assert_close(batch.run(BACKENDS[name]), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("window", [1, 4, 5, 11, 12, 13])
def test_a_sliding_window_counts_the_token_itself(name, window):
    batch = make_batch([(12, 1), (12, 12), (12, 5)], sliding_window=window)
    torch.testing.assert_close(batch.run(BACKENDS[name]), plain_attention(batch), rtol=1e-11, atol=1e-11)
    # What lies outside may be anything: only the newest token sees position 12 - window.
    decode = make_batch([(12, 1)], sliding_window=window)
    before = decode.run(BACKENDS[name])
    for position in range(12 - window):
        block = decode.block_tables[0, position // 4]
        decode.value_pool[block, position % 4] = 1e6
        decode.key_pool[block, position % 4] = 1e6
    torch.testing.assert_close(decode.run(BACKENDS[name]), before, rtol=0, atol=0)


# The workspace


def test_a_workspace_changes_nothing_over_many_steps_of_any_shape():
    workspace = Workspace()
    for step, lengths in enumerate(
        [[(17, 17)], [(18, 1), (40, 40)], [(3, 1)], [(50, 1), (50, 1), (4, 1), (9, 2)], [(2, 2)], [(19, 1)]]
    ):
        for window in (None, 6):
            batch = make_batch(lengths, seed=step, sliding_window=window)
            workspace.begin_step()
            got = batch.run(torch_paged.paged_attention, workspace=workspace)
            torch.testing.assert_close(got, plain_attention(batch), rtol=1e-11, atol=1e-11)


def test_layers_of_different_shapes_and_windows_share_a_workspace_within_a_step():
    workspace = Workspace()
    workspace.begin_step()
    lengths = [(17, 1), (9, 9), (30, 4)]
    layers = [
        make_batch(lengths, seed=1),
        make_batch(lengths, seed=1, sliding_window=5),
        make_batch(lengths, seed=1, num_kv_heads=1, group=4, key_dim=4),
        make_batch(lengths, seed=1, sliding_window=5, softcap=3.0),
    ]
    for layer in layers:
        layer.block_tables = layers[0].block_tables  # one table a step, whatever the layer
        got = layer.run(torch_paged.paged_attention, workspace=workspace)
        expected = layer.run(reference.paged_attention)
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11, equal_nan=True)
        assert not got.isnan().any()


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


def test_the_backend_for_a_cpu_is_the_fast_one_unless_another_is_asked_for():
    assert choose_backend() == ("torch_paged", torch_paged.paged_attention)
    assert choose_backend("reference") == ("reference", reference.paged_attention)


def test_an_unknown_backend_is_refused_by_name_with_the_names_that_there_are():
    with pytest.raises(ValueError, match="'fastest'") as refused:
        choose_backend("fastest")
    for name in BACKENDS:
        assert name in str(refused.value)
