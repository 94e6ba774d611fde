"""A recorded pool notes what torch code reads from it, gives the right numbers, and refuses what it can't follow."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pagedkv_lab.attention import reference, torch_paged
from pagedkv_lab.show.reads import CannotFollow, reads_by_sequence, record_reads

# 3 blocks of 4 slots, 2 heads of 8 numbers. Slot = block x 4 + offset.
POOL = torch.arange(3 * 4 * 2 * 8, dtype=torch.float32).view(3, 4, 2, 8)
WEIGHTS = torch.ones(8, 8)
BLOCK_1, ALL = [4, 5, 6, 7], list(range(12))

#: What code does with a pool, and the slots that it reads, in order.
READS = {
    "one row": (lambda p: p[1, 2] + 0, [6]),
    "rows by lists": (lambda p: p[[0, 2], [1, 3]], [1, 11]),
    "rows by tensors": (lambda p: p[torch.tensor([2, 0]), torch.tensor([0, 1])], [8, 1]),
    "blocks by a tensor": (lambda p: p[torch.tensor([2, 0])], [8, 9, 10, 11, 0, 1, 2, 3]),
    "a slice": (lambda p: p[2, 1:3].clone(), [9, 10]),
    "a slice of an index": (lambda p: p[1:][0][[3, 0]], [7, 4]),
    "a mask": (lambda p: p.flatten(0, 1)[torch.arange(12) % 5 == 0], [0, 5, 10]),
    "view, then index_select": (lambda p: torch.index_select(p.view(-1, 16), 0, torch.tensor([5, 3])), [5, 3]),
    "index_select into a buffer": (
        lambda p: torch.index_select(p.view(-1, 16), 0, torch.tensor([5]), out=torch.empty(1, 16)),
        [5],
    ),
    "gather": (lambda p: torch.gather(p.view(12, 16), 0, torch.tensor([[7] * 16, [2] * 16])), [7, 2]),
    "take_along_dim": (lambda p: torch.take_along_dim(p.view(12, 16), torch.tensor([[7] * 16]), 0), [7]),
    "embedding": (lambda p: F.embedding(torch.tensor([9, 1]), p.view(12, 16)), [9, 1]),
    "a loop over a table": (lambda p: torch.cat([p[b] for b in (2, 1)]), [8, 9, 10, 11, *BLOCK_1]),
    "a loop over a tensor": (lambda p: torch.stack([p[b] for b in torch.tensor([1])]), BLOCK_1),
    "a loop over the pool": (lambda p: [block.sum() for block in p], ALL),
    "permute, then matmul": (lambda p: p[1].permute(1, 0, 2) @ WEIGHTS, BLOCK_1),
    "a reshape that has to copy": (lambda p: p.transpose(1, 2).reshape(6, 4, 8)[3], ALL),
    "a reshape that does not": (lambda p: p.transpose(1, 2).reshape(3, 2, 2, 2, 8)[1].sum(), BLOCK_1),
    "einsum": (lambda p: torch.einsum("thd,de->the", p[1], WEIGHTS), BLOCK_1),
    "attention on a view": (
        lambda p: F.scaled_dot_product_attention(torch.ones(2, 1, 8), p[1].transpose(0, 1), torch.ones(2, 4, 8)),
        BLOCK_1,
    ),
    "softmax": (lambda p: p[1].softmax(-1), BLOCK_1),
    "arithmetic from both sides": (lambda p: 1 - p[1, :2], [4, 5]),
    "a cast": (lambda p: p[1].double(), BLOCK_1),
    "a cast that changes nothing": (lambda p: p.float()[1].sum(), BLOCK_1),
    "contiguous, where it is": (lambda p: p.contiguous()[1].sum(), BLOCK_1),
    "one number": (lambda p: p[0, 1, 0, 0].item(), [1]),
    "unbind": (lambda p: p.unbind(0)[1].sum(), BLOCK_1),
    "split": (lambda p: p.split(2)[1].sum(), [8, 9, 10, 11]),
    "heads repeated": (lambda p: p[1, :2].repeat_interleave(3, 1), [4, 4, 4, 5, 5, 5]),
    "the same row twice": (lambda p: p[[0, 0]][:, :2], [0, 1, 2, 3, 0, 1, 2, 3]),
    "into another tensor": (lambda p: torch.zeros(4, 2, 8).copy_(p[1]), BLOCK_1),
    "vmap": (lambda p: torch.func.vmap(torch.sum)(p[1:2]), BLOCK_1),
    "shape, dtype and device only": (lambda p: p.new_empty(p.shape, device=p.device).to(p.dtype), []),
    "views only": (lambda p: p.view(-1, 16)[3:][None].expand(2, -1, -1), []),
    "printed": (lambda p: repr(p), []),
}  # fmt: skip


@pytest.mark.parametrize("grad", [torch.enable_grad, torch.inference_mode], ids=["grad", "inference"])
@pytest.mark.parametrize("way", READS)
def test_reads_are_noted_in_order(way, grad):
    code, slots = READS[way]
    with grad():
        pool = record_reads(POOL)
        code(pool)
        assert pool.reads.tolist() == slots


@pytest.mark.parametrize("way", READS)
def test_code_gets_the_numbers_that_it_would_get_otherwise(way):
    code, _ = READS[way]
    watched, plain = code(record_reads(POOL)), code(POOL)
    for one, other in zip(watched, plain, strict=True) if isinstance(plain, list) else [(watched, plain)]:
        if isinstance(other, torch.Tensor) and way not in ("shape, dtype and device only", "views only"):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


#: What hides which slots are read, or isn't reading.
REFUSED = {
    "numpy": lambda p: p.numpy(),
    "numpy of a view": lambda p: np.asarray(p[1]),
    "address": lambda p: p.data_ptr(),
    "dlpack": lambda p: torch.from_dlpack(p),
    "tolist": lambda p: p.tolist(),
    "topk": lambda p: p.topk(2),
    "sort": lambda p: p.sort(),
    "tril": lambda p: p[0, 0].tril(),
    "padding": lambda p: F.pad(p, (0, 1)),
    "as_strided": lambda p: p.as_strided((2,), (1,)),
    "other numbers in the same memory": lambda p: p.view(torch.int32),
    "a write": lambda p: p[0].fill_(1),
    "a write by index": lambda p: p.__setitem__((torch.tensor([0]), torch.tensor([0])), torch.ones(2, 8)),
    "a write by a product": lambda p: p.mul_(2),
}


@pytest.mark.parametrize("grad", [torch.enable_grad, torch.inference_mode], ids=["grad", "inference"])
@pytest.mark.parametrize("way", REFUSED)
def test_what_can_not_be_followed_is_refused_in_words(way, grad):
    before = POOL.clone()
    with grad(), pytest.raises(CannotFollow, match=r"can't be followed through .*: it .*index_select"):
        REFUSED[way](record_reads(POOL))
    assert torch.equal(POOL, before)


def test_a_number_read_by_two_heads_is_read_twice_but_two_heads_of_a_slot_are_one_read():
    pool = record_reads(POOL)
    for head in (0, 1):
        pool[1, 2, head].sum()
    assert pool.reads.tolist() == [6]
    pool[1, 2, 1].sum()
    assert pool.reads.tolist() == [6, 6]


def test_views_share_the_log_and_it_can_be_emptied():
    pool = record_reads(POOL)
    view = pool.view(12, 2, 8)
    view[[3]]
    assert view.reads.tolist() == pool.reads.tolist() == [3]
    pool.forget_reads()
    assert pool.reads.tolist() == []


def test_recording_a_recorded_pool_starts_a_log_of_its_own():
    first = record_reads(POOL)
    second = record_reads(first)
    second[[0], [0]]
    assert first.reads.tolist() == []
    assert second.reads.tolist() == [0]


def test_a_pool_that_is_a_view_of_something_larger_counts_its_own_slots():
    larger = torch.randn(2, 3, 4, 2, 8)
    pool = record_reads(larger[1])
    assert torch.equal(pool.view(-1, 16)[[5]], larger[1].view(-1, 16)[[5]])
    assert pool.reads.tolist() == [5]


def test_only_a_pool_can_be_recorded():
    with pytest.raises(TypeError, match="not of a ndarray"):
        record_reads(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="a pool is"):
        record_reads(torch.zeros(4))
    with pytest.raises(ValueError, match="not empty"):
        record_reads(torch.zeros(0, 4, 2))


# The package's own attention


@pytest.fixture
def batch():
    """Two sequences in decode and one in prefill, in scattered blocks; GQA, 4 query heads on 2."""
    torch.manual_seed(0)
    return {
        "query": torch.randn(1 + 1 + 3, 4, 8),
        "key_pool": torch.randn(16, 4, 2, 8),
        "value_pool": torch.randn(16, 4, 2, 8),
        "block_tables": torch.tensor([[7, 2, 9], [3, 11, 0], [5, 0, 0]]),
        "context_lens": [11, 6, 4],
        "query_lens": [1, 1, 3],
        "scale": 8**-0.5,
    }


OWN = [[28, 29, 30, 31, 8, 9, 10, 11, 36, 37, 38], [12, 13, 14, 15, 44, 45], [20, 21, 22, 23]]
BACKENDS = pytest.mark.parametrize("backend", [reference, torch_paged], ids=["reference", "torch_paged"])


@BACKENDS
def test_attention_reads_each_sequences_slots_once_and_in_order(backend, batch):
    assert [slots.tolist() for slots in reads_by_sequence(backend.paged_attention, **batch)] == OWN


@BACKENDS
def test_attention_on_recorded_pools_comes_out_the_same(backend, batch):
    plain = backend.paged_attention(**batch)
    recorded = batch | {name: record_reads(batch[name]) for name in ("key_pool", "value_pool")}
    torch.testing.assert_close(backend.paged_attention(**recorded), plain, rtol=0, atol=0)
    for name in ("key_pool", "value_pool"):
        assert set(recorded[name].reads) == set().union(*OWN)


@BACKENDS
def test_a_window_reads_no_further_back(backend, batch):
    first, *_ = reads_by_sequence(backend.paged_attention, **batch, sliding_window=5)
    expected = {reference: OWN[0], torch_paged: OWN[0][-5:]}  # the reference gathers all and masks
    assert first.tolist() == expected[backend]


def test_padding_shows_as_a_slot_that_is_read_again(batch):
    """In one batch, torch_paged pads the shorter sequence with its own last token."""
    keys = record_reads(batch["key_pool"])
    own = {"block_tables": batch["block_tables"][:2], "context_lens": [7, 6], "query_lens": [1, 1]}
    torch_paged.paged_attention(**batch | own | {"query": batch["query"][:2], "key_pool": keys})
    assert keys.reads.tolist() == [*OWN[0][:7], 12, 13, 14, 15, 44, 45, 45]


def test_attention_that_reads_somebody_elses_blocks_is_seen(batch):
    def wrong(query, key_pool, value_pool, block_tables, context_lens, query_lens, scale):
        return key_pool[block_tables[0]]  # whole blocks, and what stands behind the last one

    assert set(reads_by_sequence(wrong, **batch)[1]) - set(OWN[1]) == {46, 47, 0, 1, 2, 3}
