"""Who runs when: continuous batching, chunked prefill, the token budget, first come first served.

The scheduler is asked alone here, with a block manager and no model: a step "runs" by counting its tokens as
computed.
"""

from itertools import count
from typing import Any

import pytest

from pagedkv_lab.blocks import BlockManager
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.request import Request, Sequence
from pagedkv_lab.engine.sampling import SamplingParams
from pagedkv_lab.engine.scheduler import Schedule, Scheduler

_ids = count(1)


def make_scheduler(num_blocks: int = 64, block_size: int = 4, **options: Any) -> Scheduler:
    config = EngineConfig(block_size=block_size, **{"enable_prefix_caching": False} | options)
    config.resolve(256)
    return Scheduler(config, BlockManager(num_blocks, block_size, enable_prefix_caching=config.enable_prefix_caching))


def add(scheduler: Scheduler, prompt_len: int, n: int = 1, first_token: int | None = None) -> Sequence:
    """Queue a sequence whose prompt nobody else has (or one that begins at `first_token`)."""
    seq_id = next(_ids)
    begin = 1000 * seq_id if first_token is None else first_token
    request = Request(seq_id, list(range(begin, begin + prompt_len)), SamplingParams(n=n, max_tokens=100))
    seq = Sequence(seq_id, request)
    request.sequences.append(seq)
    scheduler.add(seq)
    return seq


def run(step: Schedule, scheduler: Scheduler) -> None:
    """As if the model had run: whoever reached its newest token gets one more."""
    for item in step.work:
        ready = item.is_last_chunk
        item.seq.num_computed_tokens += item.num_tokens
        if ready:
            item.seq.token_ids.append(0)
    scheduler.manager.commit_step()


def next_step(scheduler: Scheduler) -> list[tuple[Sequence, int]]:
    """Schedule and run a step. Returns who ran and with how many tokens."""
    step = scheduler.schedule()
    ran = [(item.seq, item.num_tokens) for item in step.work]
    run(step, scheduler)
    scheduler.manager.check_invariants()
    return ran


def test_whoever_fits_runs_in_the_same_step_in_the_order_of_arrival():
    scheduler = make_scheduler(max_num_batched_tokens=64)
    a, b, c = add(scheduler, 5), add(scheduler, 9), add(scheduler, 2)
    assert next_step(scheduler) == [(a, 5), (b, 9), (c, 2)]


def test_decode_and_prefill_share_a_step_and_decode_comes_first():
    scheduler = make_scheduler(max_num_batched_tokens=64)
    a = add(scheduler, 5)
    next_step(scheduler)
    b = add(scheduler, 7)
    assert next_step(scheduler) == [(a, 1), (b, 7)]
    assert next_step(scheduler) == [(a, 1), (b, 1)]


def test_a_long_prompt_is_computed_in_chunks_of_what_the_budget_leaves():
    scheduler = make_scheduler(max_num_batched_tokens=8)
    a = add(scheduler, 4)
    next_step(scheduler)
    b = add(scheduler, 17)
    assert next_step(scheduler) == [(a, 1), (b, 7)]
    assert next_step(scheduler) == [(a, 1), (b, 7)]
    assert next_step(scheduler) == [(a, 1), (b, 3)]
    assert next_step(scheduler) == [(a, 1), (b, 1)]


@pytest.mark.parametrize("budget", [1, 5, 8, 33])
def test_no_step_has_more_tokens_than_the_budget_and_none_is_wasted_while_somebody_waits(budget):
    scheduler = make_scheduler(max_num_batched_tokens=budget)
    prompts = [3, 11, 1, 20, 6]
    for length in prompts:
        add(scheduler, length)
    left = sum(prompts)
    while left > 0:
        step = scheduler.schedule()
        assert step.num_tokens == min(budget, left)
        left -= step.num_tokens
        done = [item.seq for item in step.work if item.is_last_chunk]
        run(step, scheduler)
        for seq in done:
            scheduler.manager.free(seq)
            scheduler.remove(seq)


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_takes_it_whole():
    scheduler = make_scheduler(max_num_batched_tokens=16, max_model_len=16, enable_chunked_prefill=False)
    a, b, c = add(scheduler, 10), add(scheduler, 9), add(scheduler, 2)
    assert next_step(scheduler) == [(a, 10)]  # nobody overtakes: c would have fitted
    assert next_step(scheduler) == [(a, 1), (b, 9), (c, 2)]


def test_no_more_sequences_run_at_once_than_max_num_seqs():
    scheduler = make_scheduler(max_num_seqs=2, max_num_batched_tokens=64)
    a, b, c = (add(scheduler, 3) for _ in range(3))
    assert next_step(scheduler) == [(a, 3), (b, 3)]
    assert next_step(scheduler) == [(a, 1), (b, 1)]
    scheduler.manager.free(a)
    scheduler.remove(a)
    assert next_step(scheduler) == [(b, 1), (c, 3)]


def test_places_are_kept_for_the_forks_to_come():
    scheduler = make_scheduler(max_num_seqs=4, max_num_batched_tokens=64)
    a, b = add(scheduler, 3), add(scheduler, 3, n=4)
    c = add(scheduler, 3)
    assert next_step(scheduler) == [(a, 3)]  # b will be four, and c must not overtake it
    scheduler.manager.free(a)
    scheduler.remove(a)
    assert next_step(scheduler) == [(b, 3)]
    assert c in scheduler.waiting


def test_a_fork_runs_beside_its_parent_and_before_those_that_came_later():
    scheduler = make_scheduler(max_num_batched_tokens=64)
    a, b = add(scheduler, 3), add(scheduler, 3)
    next_step(scheduler)
    child = a.fork(next(_ids), 1, None)
    scheduler.manager.fork(a, child)
    scheduler.add_fork(a, child)
    assert [seq for seq, _ in next_step(scheduler)] == [a, child, b]


def test_the_watermark_keeps_blocks_free_for_those_that_run():
    # 10 blocks; a takes 4 of them, b needs 4: 2 would stay.
    for watermark, admitted in ((0.2, True), (0.3, False)):
        scheduler = make_scheduler(num_blocks=10, watermark=watermark)
        a, b = add(scheduler, 16), add(scheduler, 16)
        step = next_step(scheduler)
        assert step == ([(a, 16), (b, 16)] if admitted else [(a, 16)])


def test_the_watermark_keeps_nobody_out_of_an_empty_engine():
    scheduler = make_scheduler(num_blocks=4, watermark=0.9)
    a = add(scheduler, 16)
    assert next_step(scheduler) == [(a, 16)]


def test_when_blocks_run_out_the_one_that_came_last_goes_back_to_the_head_of_the_queue():
    scheduler = make_scheduler(num_blocks=6, watermark=0.0)
    a, b, c = add(scheduler, 8), add(scheduler, 8), add(scheduler, 8)
    waits = add(scheduler, 3)
    assert next_step(scheduler) == [(a, 8), (b, 8), (c, 8)]
    step = scheduler.schedule()
    # a and b need a third block each: c gives its two.
    assert [item.seq for item in step.work] == [a, b]
    assert step.preempted == [c]
    assert list(scheduler.waiting) == [c, waits]
    assert c.num_computed_tokens == 0
    assert c.num_preemptions == 1
    assert len(c.token_ids) == 9, "what it has said already stays said"


def test_several_that_are_thrown_out_keep_their_order():
    scheduler = make_scheduler(num_blocks=6, watermark=0.0)
    a, b, c = add(scheduler, 16), add(scheduler, 4), add(scheduler, 4)
    next_step(scheduler)
    a.token_ids += range(7)  # a needs two more blocks in one step
    step = scheduler.schedule()
    assert step.preempted == [c, b]
    assert list(scheduler.waiting) == [b, c]


def test_nobody_new_comes_in_while_somebody_is_thrown_out():
    scheduler = make_scheduler(num_blocks=4, watermark=0.0)
    a, b = add(scheduler, 8), add(scheduler, 8)
    next_step(scheduler)
    late = add(scheduler, 1)
    step = scheduler.schedule()
    assert step.preempted == [b]
    assert [item.seq for item in step.work] == [a]
    assert late in scheduler.waiting


def test_a_sequence_that_alone_outgrows_the_pool_is_thrown_out_itself_and_the_step_is_empty():
    scheduler = make_scheduler(num_blocks=2, watermark=0.0)
    a = add(scheduler, 8)
    next_step(scheduler)
    step = scheduler.schedule()
    assert step.work == []
    assert step.preempted == [a]


def test_hits_cost_no_budget():
    scheduler = make_scheduler(max_num_batched_tokens=8, enable_prefix_caching=True)
    a = add(scheduler, 8, first_token=0)
    assert next_step(scheduler) == [(a, 8)]
    b = add(scheduler, 13, first_token=0)
    assert next_step(scheduler) == [(a, 1), (b, 5)]


def test_who_is_removed_runs_no_more_wherever_it_was():
    scheduler = make_scheduler(max_num_seqs=1)
    running, waiting = add(scheduler, 3), add(scheduler, 3)
    next_step(scheduler)
    scheduler.remove(waiting)
    scheduler.manager.free(running)
    scheduler.remove(running)
    scheduler.remove(running)  # a second time does no harm
    assert next_step(scheduler) == []
