"""The compiled kernels: whatever is cut, shared, merged, capped or fallen back from, it is the same attention."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import BATCHES, Batch, assert_right, make_batch, needs_numba, share_first_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedkv_lab.attention import Workspace, cascade, numba_paged, threads, torch_paged, work
from pagedkv_lab.attention.numba_paged import paged_attention

pytestmark = needs_numba

# Contexts over several tiles, prompts of several chunks; heads and groups that fill the registers or don't.
LARGER = st.builds(
    make_batch,
    st.lists(
        st.sampled_from([(70, 1), (31, 1), (32, 1), (33, 1), (200, 1), (65, 65), (100, 37), (130, 2), (64, 32)]),
        min_size=1,
        max_size=4,
    ),
    block_size=st.sampled_from([3, 16, 32]),
    num_kv_heads=st.sampled_from([1, 2]),
    group=st.sampled_from([1, 3, 8, 13, 100]),
    key_dim=st.sampled_from([5, 20, 64]),
    value_dim=st.sampled_from([None, 7, 32]),
    sliding_window=st.sampled_from([None, 31, 64]),
    softcap=st.sampled_from([None, 2.0]),
    seed=st.integers(0, 1000),
)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
NUM_THREADS = pytest.mark.parametrize("num_threads", [1, 2, 5])


@DTYPES
@NUM_THREADS
def test_it_is_the_same_attention_on_any_number_of_threads(dtype, num_threads):
    @settings(max_examples=40)
    @given(st.one_of(BATCHES, LARGER))
    def agrees(batch: Batch) -> None:
        torch.set_num_threads(num_threads)
        batch = batch.to(dtype)
        assert_right(batch.run(paged_attention), batch)

    agrees()


# Parts and their merge


def watch_launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Programs of each launch from now on."""
    launches = []
    run = threads.run_on_all_cores
    monkeypatch.setattr(numba_paged, "run_on_all_cores", lambda *args: launches.append(args[2]) or run(*args))
    return launches


@DTYPES
def test_a_long_context_is_cut_among_threads_and_put_together_again(dtype, monkeypatch):
    launches = watch_launches(monkeypatch)
    batch = make_batch([(700, 1), (40, 1)], block_size=16).to(dtype)
    assert_right(batch.run(paged_attention), batch)
    torch.set_num_threads(2)
    assert_right(batch.run(paged_attention), batch)
    assert len(launches) == 3, "one launch on one thread; on two, another one to merge"
    assert launches[1] > launches[0] == 2 * 2


def test_the_parts_of_a_context_weigh_what_they_should_even_where_one_of_them_is_all():
    """One token whose key is exactly the query's direction, far ahead of the rest, in one part only."""
    torch.set_num_threads(2)
    batch = make_batch([(640, 1)], block_size=16, num_kv_heads=1, group=1, dtype=torch.float32)
    batch.query *= 30
    key = batch.query[0, 0]
    block = batch.block_tables[0, 500 // 16]
    batch.key_pool[block, 500 % 16, 0] = key
    batch.keys[0][500, 0] = key
    got = batch.run(paged_attention)
    torch.testing.assert_close(got[0, 0], batch.values[0][500, 0], rtol=1e-6, atol=1e-6)
    assert_right(got, batch)


@DTYPES
def test_scores_far_from_zero_do_not_overflow(dtype):
    for factor in (1e4, -1e4, 0.0):
        batch = make_batch([(70, 1), (70, 70)], key_dim=16)
        batch.query *= factor
        batch = batch.to(dtype)
        got = batch.run(paged_attention)
        assert got.isfinite().all()
        exact = batch.to(torch.float64).run(torch_paged.paged_attention)
        torch.testing.assert_close(got.double(), exact, rtol=2e-2, atol=2e-2)


@DTYPES
def test_a_softcap_holds_scores_however_large(dtype):
    batch = make_batch([(70, 1), (70, 70)], key_dim=16, softcap=5.0)
    batch.query *= 1e3
    batch = batch.to(dtype)
    assert_right(batch.run(paged_attention), batch)


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("which", ["key_pool", "value_pool"])
def test_what_is_not_a_number_comes_out_as_such_and_is_not_swept_under_the_carpet(which, softcap):
    batch = make_batch([(70, 1), (70, 70)], dtype=torch.float32, softcap=softcap)
    for table in batch.block_tables:
        getattr(batch, which)[table[20 // 4], 20 % 4] = math.nan
    got = batch.run(paged_attention)
    sees_it = torch.tensor([True] + [position >= 20 for position in range(70)])
    assert got[sees_it].isnan().all()
    if which == "key_pool":  # a value counts zero times, which is NaN as well; so it does in the reference
        assert got[~sees_it].isfinite().all()


# Shared prefixes


def random_batch_with_shared_prefixes(draw: st.DrawFn) -> Batch:
    count = draw(st.integers(2, 8))
    lengths = [draw(st.sampled_from([(150, 1), (101, 1), (96, 1), (97, 1), (120, 24), (97, 97)])) for _ in range(count)]
    batch = make_batch(
        lengths,
        block_size=16,
        num_kv_heads=draw(st.sampled_from([1, 2])),
        group=draw(st.sampled_from([1, 3, 8])),
        sliding_window=draw(st.sampled_from([None, None, None, 40])),
        softcap=draw(st.sampled_from([None, 3.0])),
        seed=draw(st.integers(0, 1000)),
    )
    order = draw(st.permutations(range(count)))
    split = draw(st.integers(0, count))
    for members in (order[:split], order[split:]):
        if members:
            most = min(lengths[s][0] for s in members) // 16
            share_first_blocks(batch, members, draw(st.integers(0, most)))
    return batch


@DTYPES
@NUM_THREADS
def test_attending_to_shared_blocks_together_changes_nothing(dtype, num_threads, monkeypatch):
    monkeypatch.setattr(cascade, "MIN_SAVED", 16)
    monkeypatch.setattr(cascade, "MIN_TOKENS", 16)
    monkeypatch.setattr(cascade, "MIN_ROWS", 1)
    together = []
    find = cascade.shared_prefixes
    monkeypatch.setattr(numba_paged, "shared_prefixes", lambda *args: together.append(find(*args)) or together[-1])

    @settings(max_examples=40)
    @given(st.composite(random_batch_with_shared_prefixes)())
    def agrees(batch: Batch) -> None:
        torch.set_num_threads(num_threads)
        batch = batch.to(dtype)
        assert_right(batch.run(paged_attention), batch)

    agrees()
    assert sum(len(prefixes) for prefixes in together) >= 10, "the examples must share something"


def test_samples_of_a_long_prompt_attend_to_it_together_and_others_beside_them_by_themselves(monkeypatch):
    """With the limits as they are."""
    found = []
    find = cascade.shared_prefixes
    monkeypatch.setattr(numba_paged, "shared_prefixes", lambda *args: found.append(find(*args)) or found[-1])
    torch.set_num_threads(2)
    batch = make_batch([*[(530 + i, 1) for i in range(10)], (40, 1), (90, 17)], block_size=16, group=3)
    share_first_blocks(batch, list(range(10)), 32)
    batch = batch.to(torch.float32)
    assert_right(batch.run(paged_attention), batch)
    [[prefix]] = found
    assert (sorted(prefix.sequences), prefix.num_tokens) == (list(range(10)), 512)


def test_with_a_sliding_window_nobody_attends_together(monkeypatch):
    def never(*args):
        raise AssertionError("a prefix may be outside of the window")

    monkeypatch.setattr(numba_paged, "shared_prefixes", never)
    batch = make_batch([(530, 1)] * 10, block_size=16, sliding_window=100)
    share_first_blocks(batch, list(range(10)), 32)
    batch = batch.to(torch.float32)
    assert_right(batch.run(paged_attention), batch)


# What is worked out when, and how much


def test_pieces_are_cut_once_a_step_for_all_layers(monkeypatch):
    cuts = []
    cut = work.cut
    monkeypatch.setattr(numba_paged, "cut", lambda *args, **options: cuts.append(args) or cut(*args, **options))
    workspace = Workspace()
    batch = make_batch([(9, 1), (12, 12)], dtype=torch.float32)
    for step in range(2):
        workspace.begin_step()
        for _ in range(4):
            batch.run(paged_attention, workspace=workspace)
        assert len(cuts) == step + 1


def test_numbers_of_another_layer_are_read_from_that_layer():
    """The same tables and shapes, other pools and queries."""
    workspace = Workspace()
    workspace.begin_step()
    for seed in range(3):
        layer = make_batch([(40, 1), (12, 12)], dtype=torch.float32)
        other = make_batch([(40, 1), (12, 12)], dtype=torch.float32, seed=seed)
        layer.key_pool *= 1 + seed
        layer.keys = [key * (1 + seed) for key in layer.keys]
        layer.query = other.query
        assert_right(layer.run(paged_attention, workspace=workspace), layer)


def test_a_context_that_grows_allocates_a_new_output_now_and_then():
    torch.set_num_threads(2)
    workspace = Workspace()
    storages = set()
    for context in range(300, 340):
        batch = make_batch([(context, 1), (context - 7, 1)], block_size=16, dtype=torch.float32)
        workspace.begin_step()
        storages.add(batch.run(paged_attention, workspace=workspace).untyped_storage().data_ptr())
    assert len(storages) <= 3


# Where the kernels don't go


@pytest.mark.parametrize(("dtype", "key_dim"), [(torch.float64, 8), (torch.float16, 8), (torch.float32, 300)], ids=str)
def test_what_the_kernels_are_not_made_for_goes_to_torch(dtype, key_dim, monkeypatch):
    launches = watch_launches(monkeypatch)
    batch = make_batch([(40, 1), (12, 12)], key_dim=key_dim).to(dtype)
    torch.testing.assert_close(batch.run(paged_attention), batch.run(torch_paged.paged_attention), rtol=0, atol=0)
    assert launches == []


def test_without_numba_all_goes_to_torch(monkeypatch):
    monkeypatch.setattr(numba_paged, "HAS_NUMBA", False)
    launches = watch_launches(monkeypatch)
    batch = make_batch([(40, 1), (12, 12)], dtype=torch.float32)
    assert_right(batch.run(paged_attention), batch)
    assert launches == []


def test_numba_is_imported_by_those_who_use_it_only():
    script = "import sys, pagedkv_lab.attention; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


# Threads


def test_without_openmp_python_s_threads_do_the_work(monkeypatch):
    monkeypatch.setattr(threads, "_team", lambda: threads._run_on_python_threads)
    torch.set_num_threads(2)
    batch = make_batch([(700, 1), (40, 40)], block_size=16, dtype=torch.float32)
    assert_right(batch.run(paged_attention), batch)


@pytest.mark.skipif(sys.platform != "linux", reason="torch's OpenMP is found on Linux only")
def test_on_linux_it_is_torch_s_own_team():
    file = threads._openmp_of_torch()._name
    assert Path(torch.__file__).parent in Path(file).parents


# The kernels' arithmetic


def test_powers_of_two_are_right_to_the_last_digit_but_one():
    from numba import njit

    from pagedkv_lab.attention.numba_tiles import exp2

    @njit
    def all_of(x):
        return np.array([exp2(one) for one in x])

    x = np.concatenate([np.linspace(-126, 127, 200_001), np.linspace(-2, 2, 100_001)]).astype(np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert np.abs(all_of(x) / exact - 1).max() < 1e-7
    far = np.array([-127, -150, -1e30, -math.inf], np.float32)
    assert (all_of(far) == 0).all()
    assert (all_of(np.array([0, 1, -1, 100], np.float32)) == [1, 2, 0.5, 2.0**100]).all()


# Compiled once a machine


def test_a_second_process_finds_the_kernels_compiled(tmp_path):
    script = "from pagedkv_lab.attention.numba_kernel import decode_kernel, merge_kernel; decode_kernel(False)"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    seen = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], env=environment, check=True)
        seen.append({file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb*")})
    assert seen[0]
    assert seen[1] == seen[0]
