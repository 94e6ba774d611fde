"""An engine without a model schedules as the real one does, and says who ran in which step."""

import pytest

from pagedkv_lab.engine.scheduler import Schedule, Scheduler
from pagedkv_lab.measure.dry_run import Arrival, Waiting, by_policy, dry_run, generated_arrivals, token_steps


def ran(reports):
    return [[(request, tokens) for request, _, tokens, _ in report.ran] for report in reports]


def test_each_request_runs_to_its_end_and_its_blocks_come_back():
    reports = dry_run([Arrival(0, 5, 2), Arrival(1, 3, 1)], block_size=4)
    assert ran(reports) == [[(1, 5)], [(1, 1), (2, 3)]]
    assert [output.request_id for report in reports for output in report.finished] == [1, 2]
    assert reports[-1].pool.used == 0


def test_a_request_is_not_there_before_it_comes():
    reports = dry_run([Arrival(2, 4, 1)])
    assert ran(reports) == [[], [], [(1, 4)]]


def test_the_reports_say_chunks_decodes_and_preemptions():
    arrivals = [Arrival(0, 4, 6), Arrival(0, 4, 6)]
    reports = dry_run(arrivals, block_size=4, num_gpu_blocks=3, max_num_batched_tokens=6, watermark=0)
    assert ran(reports)[0] == [(1, 4), (2, 2)]
    assert [kind for *_, kind in reports[1].ran] == ["decode", "prefill"]
    assert [report.preempted for report in reports if report.preempted] == [(2,)]


def test_prompts_that_begin_alike_are_found_in_the_cache():
    prompt = tuple(range(8))
    arrivals = [Arrival(0, 0, 3, prompt=prompt), Arrival(1, 0, 1, prompt=(*prompt, 99))]
    reports = dry_run(arrivals, block_size=4, enable_prefix_caching=True)
    assert ran(reports)[1] == [(1, 1), (2, 1)]
    assert [report.hit_tokens for report in reports] == [0, 8, 0]


def test_a_scheduler_that_runs_nobody_is_given_up():
    class Idle(Scheduler):
        def schedule(self):
            return Schedule()

    with pytest.raises(RuntimeError, match="nobody ran for 3 steps, and request 1 did not finish"):
        dry_run([Arrival(0, 4, 1)], Idle)


def test_steps_are_counted_from_one_as_the_engine_does():
    reports = dry_run([Arrival(0, 4, 3)])
    assert [report.step for report in reports] == [1, 2, 3]
    assert token_steps(reports) == {1: [1, 2, 3]}


def test_a_policy_chooses_who_comes_in_next():
    asked = []

    def shortest(waiting):
        asked.append(list(waiting))
        return min(waiting, key=lambda one: one.prompt_len)

    arrivals = [Arrival(0, 4, 2), Arrival(1, 9, 1), Arrival(1, 5, 1)]
    reports = dry_run(arrivals, by_policy(shortest), max_num_seqs=1)
    assert list(token_steps(reports)) == [1, 2, 3]
    assert token_steps(reports) == {1: [1, 2], 2: [4], 3: [3]}
    assert [Waiting(9, 1), Waiting(5, 1)] in asked


def test_generated_traffic_is_the_same_for_the_same_seed():
    assert generated_arrivals(3) == generated_arrivals(3) != generated_arrivals(4)
