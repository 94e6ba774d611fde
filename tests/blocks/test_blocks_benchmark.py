"""The `blocks` benchmark: every operation runs on our block layer, and rows say who was measured and who wasn't."""

import pytest

from benchmarks import blocks
from benchmarks.peers.blocks_ours import Ours
from benchmarks.peers.blocks_worker import OPERATIONS, Operations, sample


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_runs_on_our_block_layer_as_often_as_asked(operation):
    times = sample(Ours, operation, num_blocks=512, repetitions=3, seed=1)
    assert len(times) == 3


@pytest.mark.parametrize("method", OPERATIONS.values())
def test_a_repetition_leaves_the_books_of_the_pool_right(method):
    operations = Operations(Ours, num_blocks=512, seed=1)
    for _ in range(3):
        getattr(operations, method)()
        operations.layer.manager.check_invariants()


def test_the_hits_that_are_timed_are_hits_and_the_evictions_evict():
    in_use, free = (Operations(Ours, num_blocks=512, seed=1) for _ in range(2))
    for _ in range(2):
        in_use.full_hit_in_use()
        free.full_hit_free()
    for operations, used in ((in_use, 128), (free, 0)):
        manager = operations.layer.manager
        assert manager.hit_tokens == 2 * (128 * 16 - 1)
        assert (manager.counts().used, manager.counts().used + manager.counts().cached) == (used, 128)
    evicting = Operations(Ours, num_blocks=512, seed=1)
    evicting.cold_prompt_evicting()
    assert evicting.layer.manager.counts() == (512, 0, 512, 0)


def measured(name: str, **times: float) -> blocks.Contestant:
    one = blocks.Contestant(name, "nobody")
    one._times = {(operation, blocks.NUM_BLOCKS): [us] * 3 for operation, us in times.items()}
    return one


def test_a_row_holds_our_time_against_the_fastest_peer_and_none_where_nobody_measured():
    absent = measured("vLLM")
    absent.why_not = "no interpreter"
    row = blocks.row("hash", measured("ours", hash=2.0), [measured("a", hash=8.0), measured("b", hash=4.0), absent])
    assert row["peers"] == {"a": 8.0, "b": 4.0, "vLLM": None}
    assert (row["ours"], row["ratio_to_best"]) == (2.0, 0.5)
    assert blocks.row("hash", measured("ours", hash=2.0), [absent])["ratio_to_best"] is None


def test_a_peer_that_broke_on_the_way_has_no_times():
    peer = measured("a", hash=8.0)
    peer.why_not = "hash: KeyError"
    assert peer.median("hash") is None


def test_peers_that_nobody_named_say_so_and_the_installed_one_takes_part():
    why = {peer.name: peer.why_not for peer in blocks.contestants(None, None)}
    assert why == {
        "ours": "",
        "nano-vllm": "no checkout was named",
        "transformers": "",
        "vLLM": "no interpreter that has it was named",
    }
