"""A fork goes on from where a request stands: same blocks, its own future, and nothing changes for its parent.

Whatever state the parent is in, greedy tokens are those that the model generates by itself from the same prompt; and
after every step the books are right.
"""

from typing import Any

import pytest
from article_parts import MendedAllocator, MendedPrefixCache, MendedTable
from tiny_models import assert_all_back, letters_model, own_tokens, random_prompt, tiny_model

from pagedkv_lab.blocks import BlockAllocator, BlockTable
from pagedkv_lab.engine import ContiguousEngine, Engine, Parts, RequestOutput, SamplingParams
from pagedkv_lab.engine.scheduler import Scheduler
from pagedkv_lab.errors import NotAllocated, PartError, RequestTooLong

PROMPT = random_prompt(10)
GREEDY = SamplingParams(max_tokens=8)
SAMPLED = SamplingParams(max_tokens=8, temperature=2.0, seed=1)
ARTICLE = {"BlockAllocator": MendedAllocator, "BlockTable": MendedTable, "PrefixCache": MendedPrefixCache}


def make_engine(make: type[Engine] = Engine, **options: Any) -> Engine:
    defaults: dict[str, Any] = {"max_model_len": 48, "num_gpu_blocks": 40}
    defaults |= {"block_size": 4} if make is Engine else {"num_gpu_blocks": 6}
    return make(tiny_model("toy"), **defaults | options)


def run(engine: Engine, steps: int | None = None) -> dict[int, RequestOutput]:
    """So many steps, or all that there are; the books are looked at after each. What finished, by request id."""
    done = {}
    while engine.has_unfinished_requests() and steps != 0:
        done |= {output.request_id: output for output in engine.step().finished}
        engine.manager.check_invariants()
        steps = None if steps is None else steps - 1
    return done


def own(engine: Engine, max_tokens: int = 8, prompt: list[int] = PROMPT) -> list[int]:
    return own_tokens(engine.model, prompt, max_tokens)


def sequences(engine: Engine) -> dict[int, Any]:
    return {i: request.sequences[0] for i, request in engine.requests().items()}


# In the middle of the text

EVERYWHERE = pytest.mark.parametrize(
    ("make", "options"),
    [
        (Engine, {}),
        (Engine, {"enable_prefix_caching": False}),
        (Engine, {"block_size": 1}),
        (Engine, {"block_size": 16}),
        (Engine, {"parts": Parts(**ARTICLE)}),
        (ContiguousEngine, {}),
    ],
    ids=["paged", "no-caching", "blocks-of-1", "blocks-of-16", "article-parts", "contiguous"],
)


@EVERYWHERE
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_a_greedy_fork_says_what_its_parent_says(make, options, steps):
    engine = make_engine(make, **options)
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, steps)
    used = engine.stats().pool.used
    fork = engine.fork(parent)
    assert fork != parent
    assert engine.stats().pool.used == used, "a fork takes no block by itself"
    done = run(engine)
    assert done[parent].token_ids == done[fork].token_ids == own(engine)
    assert_all_back(engine)


@EVERYWHERE
def test_a_sampled_fork_goes_its_own_way_and_its_parent_says_what_it_would_have_said(make, options):
    engine = make_engine(make, **options)
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 3)
    fork = engine.fork(parent, SAMPLED)
    done = run(engine)
    assert done[parent].token_ids == own(engine)
    assert done[fork].token_ids[:3] == own(engine)[:3], "up to the fork it is the same text"
    assert done[fork].token_ids[3:] != own(engine)[3:]
    assert len(done[fork].token_ids) == 8, "max_tokens counts from the prompt's end"
    assert_all_back(engine)


def test_a_sampled_parent_draws_the_same_tokens_with_a_fork_and_without():
    def tokens(forks: int) -> list[int]:
        engine = make_engine()
        parent = engine.add_request(PROMPT, SAMPLED)
        run(engine, 3)
        for _ in range(forks):
            engine.fork(parent, SamplingParams(max_tokens=12, temperature=2.0))
        return run(engine)[parent].token_ids

    assert tokens(0) == tokens(1) == tokens(3)


def test_two_forks_without_a_seed_of_their_own_differ():
    engine = make_engine()
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 2)
    forks = [engine.fork(parent, SamplingParams(max_tokens=8, temperature=2.0)) for _ in range(2)]
    done = run(engine)
    assert done[forks[0]].token_ids != done[forks[1]].token_ids


@pytest.mark.parametrize(("steps", "copies"), [(1, 1), (2, 1), (3, 0), (4, 1)])
def test_the_block_that_both_write_into_is_copied_once_and_a_full_one_never(steps, copies):
    """The prompt has 10 tokens: after three steps, 12 lie in three full blocks of 4."""
    engine = make_engine()
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, steps)
    tables = {i: list(engine.manager.block_table(seq)) for i, seq in sequences(engine).items()}
    fork = engine.fork(parent)
    for seq in sequences(engine).values():
        assert engine.manager.block_table(seq) == tables[parent]
    reports = [engine.step() for _ in range(3)]
    assert [report.num_copied_blocks for report in reports] == [copies, 0, 0]
    assert engine.stats().copied_blocks == copies
    mine, its = (engine.manager.block_table(seq) for seq in sequences(engine).values())
    shared = len(tables[parent]) - copies
    assert mine[:shared] == its[:shared] == tables[parent][:shared]
    assert set(mine[shared:]).isdisjoint(its[shared:])
    assert run(engine)[fork].token_ids == own(engine)


def test_of_three_forks_the_last_one_writes_in_place():
    engine = make_engine()
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 1)
    for _ in range(3):
        engine.fork(parent)
    assert engine.step().num_copied_blocks == 3, "four write into one block, and one of them may keep it"
    assert [output.token_ids for output in run(engine).values()] == [own(engine)] * 4
    assert_all_back(engine)


def test_a_fork_can_be_forked_and_can_outlive_its_parent():
    engine = make_engine()
    parent = engine.add_request(PROMPT, SamplingParams(max_tokens=4))
    run(engine, 2)
    child = engine.fork(parent, SamplingParams(max_tokens=9))
    run(engine, 1)
    grandchild = engine.fork(child, SamplingParams(max_tokens=14))
    done = run(engine)
    assert [len(done[i].token_ids) for i in (parent, child, grandchild)] == [4, 9, 14]
    assert done[grandchild].token_ids == own(engine, 14)
    assert_all_back(engine)


def test_what_is_known_of_the_parent_is_known_of_the_fork():
    engine = make_engine()
    engine.generate([PROMPT], GREEDY, use_tqdm=False)
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 3)
    fork = engine.fork(parent)
    of, seq = sequences(engine).values()
    assert seq.parent_id == of.seq_id
    assert seq.name == f"request {fork}"
    assert [o.request_id for o in (of.request, seq.request)] == [parent, fork]
    done = run(engine)
    assert done[fork].prompt_token_ids == PROMPT
    assert done[fork].num_cached_tokens == done[parent].num_cached_tokens == 8
    assert done[fork].ttft_s == done[parent].ttft_s


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_of_several_outputs_is_forked(index):
    engine = make_engine()
    params = SamplingParams(max_tokens=8, n=3, temperature=2.0, seed=5)
    [alone] = engine.generate([PROMPT], params, use_tqdm=False)
    parent = engine.add_request(PROMPT, params)
    run(engine, 4)
    fork = engine.fork(parent, GREEDY, index=index)
    done = run(engine)
    assert [output.token_ids for output in done[parent].outputs] == [output.token_ids for output in alone.outputs]
    of = alone.outputs[index].token_ids
    assert done[fork].token_ids[:4] == of[:4]
    assert done[fork].token_ids == of[:4] + own(engine, 4, PROMPT + of[:4])
    assert [output.index for output in done[fork].outputs] == [0]
    assert_all_back(engine)


def test_without_params_of_its_own_it_takes_its_parent_s_but_stays_one_output():
    engine = make_engine()
    parent = engine.add_request(PROMPT, SamplingParams(max_tokens=7, n=2))
    run(engine, 2)
    fork = engine.fork(parent, index=1)
    done = run(engine)
    assert [len(done[i].outputs) for i in (parent, fork)] == [2, 1]
    assert done[fork].token_ids == own(engine, 7)


# Wherever the parent stands


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_request_that_still_waits_can_be_forked(enable_prefix_caching):
    engine = make_engine(enable_prefix_caching=enable_prefix_caching)
    parent = engine.add_request(PROMPT, GREEDY)
    fork = engine.fork(parent, SAMPLED)
    assert engine.stats().waiting == 2
    done = run(engine)
    assert done[parent].token_ids == own(engine)
    assert done[fork].token_ids != own(engine)
    assert done[parent].num_cached_tokens == 0
    assert done[fork].num_cached_tokens == (8 if enable_prefix_caching else 0), "two blocks of the same step"
    assert_all_back(engine)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_request_whose_prompt_is_half_computed_can_be_forked(enable_prefix_caching, steps):
    """25 tokens, 7 a step."""
    engine = make_engine(max_num_batched_tokens=7, enable_prefix_caching=enable_prefix_caching)
    prompt = random_prompt(25, 3)
    parent = engine.add_request(prompt, SamplingParams(max_tokens=6, n=2))
    run(engine, steps)
    assert sequences(engine)[parent].num_computed_tokens == 7 * steps
    fork = engine.fork(parent)
    done = run(engine)
    expected = own(engine, 6, prompt)
    assert [output.token_ids for output in done[parent].outputs] == [expected] * 2
    assert [output.token_ids for output in done[fork].outputs] == [expected]
    assert_all_back(engine)


def preempted_request(engine: Engine) -> int:
    """Two requests in a pool that is too small for both: the id of the one that had to give way."""
    first, second = (engine.add_request(random_prompt(10, i), SamplingParams(max_tokens=14)) for i in range(2))
    while not sequences(engine)[second].num_preemptions:
        run(engine, 1)
    assert sequences(engine)[second].num_output_tokens > 0
    assert first in engine.requests()
    return second


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_request_that_had_to_give_way_can_be_forked(enable_prefix_caching):
    engine = make_engine(num_gpu_blocks=8, enable_prefix_caching=enable_prefix_caching)
    parent = preempted_request(engine)
    had = sequences(engine)[parent].num_output_tokens
    fork = engine.fork(parent)
    assert sequences(engine)[fork].num_output_tokens == had
    assert engine.manager.room(sequences(engine)[fork]) == 0
    done = run(engine)
    expected = own(engine, 14, random_prompt(10, 1))
    assert done[parent].token_ids == done[fork].token_ids == expected
    assert_all_back(engine)


def test_forks_in_a_pool_that_is_too_small_for_all_come_to_their_end():
    engine = make_engine(num_gpu_blocks=7)
    parent = engine.add_request(PROMPT, SamplingParams(max_tokens=16))
    run(engine, 1)
    ids = [parent, *(engine.fork(parent) for _ in range(4))]
    done = run(engine)
    assert [done[i].token_ids for i in ids] == [own(engine, 16)] * 5
    assert engine.stats().preemptions > 0
    assert_all_back(engine)


def test_after_a_failed_step_everybody_can_be_forked(monkeypatch):
    engine = make_engine()
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 3)

    def fail(*args, **kwargs):
        raise RuntimeError("the model is out of order")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "execute", fail)
        with pytest.raises(RuntimeError, match="out of order"):
            engine.step()
    fork = engine.fork(parent)
    done = run(engine)
    assert done[parent].token_ids == done[fork].token_ids == own(engine)
    assert_all_back(engine)


# What can't be


def assert_nothing_changes(engine: Engine, error: type[Exception], match: str, *args: Any, **kwargs: Any) -> None:
    before = engine.stats(), list(engine.requests()), engine.snapshot().ref_count.tolist()
    with pytest.raises(error, match=match):
        engine.fork(*args, **kwargs)
    assert (engine.stats(), list(engine.requests()), engine.snapshot().ref_count.tolist()) == before
    engine.manager.check_invariants()


def test_what_is_over_or_never_was_is_refused_by_name():
    engine = make_engine()
    over = engine.add_request(PROMPT, GREEDY)
    run(engine)
    assert_nothing_changes(engine, ValueError, f"request {over} has no unfinished output 0", over)
    assert_nothing_changes(engine, ValueError, "request 77 has no unfinished output 0", 77)
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 1)
    assert_nothing_changes(engine, ValueError, "no unfinished output 1", parent, index=1)
    engine.abort(parent)
    assert_nothing_changes(engine, ValueError, "no unfinished output 0", parent)


@pytest.mark.parametrize(
    ("params", "error", "match"),
    [
        (SamplingParams(n=2, max_tokens=8), ValueError, "n > 1"),
        (SamplingParams(max_tokens=3), ValueError, "3 output tokens already"),
        (SamplingParams(max_tokens=2), ValueError, "3 output tokens already"),
    ],
)
def test_params_that_make_no_sense_from_here_on_are_refused(params, error, match):
    engine = make_engine()
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 3)
    assert_nothing_changes(engine, error, match, parent, params)
    assert run(engine)[parent].token_ids == own(engine)


def test_a_fork_that_could_outgrow_the_pool_is_refused():
    engine = make_engine(num_gpu_blocks=5)
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 3)
    assert_nothing_changes(engine, RequestTooLong, "whole pool has 5", parent, SamplingParams(max_tokens=30))


def test_no_more_sequences_run_than_max_num_seqs_allows():
    engine = make_engine(max_num_seqs=2)
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 2)
    fork = engine.fork(parent)
    run(engine, 1)
    assert_nothing_changes(engine, RequestTooLong, "max_num_seqs", parent)
    done = run(engine)
    assert done[parent].token_ids == done[fork].token_ids == own(engine)


def test_places_that_outputs_to_come_have_taken_are_not_free():
    """n = 3 and a prompt half computed: one sequence runs, three places are taken."""
    engine = make_engine(max_num_seqs=3, max_num_batched_tokens=4)
    parent = engine.add_request(PROMPT, SamplingParams(max_tokens=4, n=3))
    run(engine, 1)
    assert_nothing_changes(engine, RequestTooLong, "max_num_seqs", parent)
    assert [output.token_ids for output in run(engine)[parent].outputs] == [own(engine, 4)] * 3


# Stop strings, and going away

#: This model says letters.
SAYS = SamplingParams(max_tokens=24)


def letters_engine() -> Engine:
    return Engine(letters_model(), block_size=4, num_gpu_blocks=40, max_model_len=48)


def test_a_stop_string_that_lies_across_the_fork_ends_it():
    engine = letters_engine()
    [whole] = engine.generate([PROMPT], SAYS, use_tqdm=False)
    stop = whole.text[5:11]  # begins in the third token, which the parent says, and ends in the sixth
    end = whole.text.index(stop)
    parent = engine.add_request(PROMPT, SAYS)
    run(engine, 4)
    fork = engine.fork(parent, SamplingParams(max_tokens=24, stop=stop))
    done = run(engine)
    assert (done[fork].text, done[fork].finish_reason) == (whole.text[:end], "stop")
    assert done[parent].text == whole.text
    assert_all_back(engine)


def test_a_parent_s_stop_string_holds_for_its_fork_too():
    engine = letters_engine()
    [whole] = engine.generate([PROMPT], SAYS, use_tqdm=False)
    stop = whole.text[9:13]
    parent = engine.add_request(PROMPT, SamplingParams(max_tokens=24, stop=stop))
    run(engine, 4)
    fork = engine.fork(parent)
    done = run(engine)
    assert done[parent].text == done[fork].text == whole.text[: whole.text.index(stop)]


def test_a_stop_string_that_was_said_already_is_refused():
    engine = letters_engine()
    [whole] = engine.generate([PROMPT], SAYS, use_tqdm=False)
    parent = engine.add_request(PROMPT, SAYS)
    run(engine, 4)
    params = SamplingParams(max_tokens=24, stop=["zz", whole.text[1:5]])
    assert_nothing_changes(engine, ValueError, "said one of these stop strings", parent, params)


@pytest.mark.parametrize("who", ["parent", "fork"])
@pytest.mark.parametrize("steps", [0, 1])
def test_aborting_one_leaves_the_other_its_tokens(who, steps):
    engine = make_engine()
    parent = engine.add_request(PROMPT, GREEDY)
    run(engine, 2)
    fork = engine.fork(parent)
    run(engine, steps)
    gone, stays = (parent, fork) if who == "parent" else (fork, parent)
    output = engine.abort(gone)
    engine.manager.check_invariants()
    assert output.token_ids == own(engine)[: 2 + steps]
    assert output.finish_reason == "abort"
    assert run(engine)[stays].token_ids == own(engine)
    assert_all_back(engine)


# Parts that break when they fork


class TornTable(BlockTable):
    """Shares the first block and then breaks."""

    def fork(self):
        self.allocator.share(self.blocks[0])
        raise ValueError("torn")


class ForgetfulTable(BlockTable):
    """Its fork shares nothing."""

    def fork(self):
        return type(self)(self.allocator)


class ObjectingAllocator(BlockAllocator):
    """Takes no second holder, and says so with an error of the protocol's own."""

    def share(self, block):
        if self.ref_count(block):
            raise NotAllocated(block, self.num_blocks)
        super().share(block)


class ForklessScheduler(Scheduler):
    """Has no place for a fork."""

    add_fork = None


@pytest.mark.parametrize(
    ("part", "error", "match"),
    [
        ({"BlockTable": TornTable}, PartError, "BlockTable.*fork.*torn"),
        ({"BlockTable": ForgetfulTable}, PartError, "the child has blocks"),
        ({"BlockAllocator": ObjectingAllocator}, NotAllocated, ""),
        ({"Scheduler": ForklessScheduler}, PartError, "Scheduler.*no method add_fork"),
    ],
    ids=["torn", "forgetful", "objecting", "no-place"],
)
def test_a_part_that_breaks_as_it_forks_is_named_and_the_engine_goes_on(part, error, match):
    engine = make_engine(parts=Parts(**part))
    parent = engine.add_request(PROMPT, GREEDY)
    other = engine.add_request(random_prompt(9, 1), GREEDY)
    run(engine, 3)
    with pytest.raises(error, match=f"(?s){match}"):
        engine.fork(parent)
    engine.manager.check_invariants()
    assert list(engine.requests()) == [parent, other]
    done = run(engine)
    assert done[parent].token_ids == own(engine)
    assert done[other].token_ids == own(engine, 8, random_prompt(9, 1))
    assert_all_back(engine)
