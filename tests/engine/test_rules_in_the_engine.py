"""The rules of the cache as far as only a running engine can keep or break them.

`tests/test_cache_rules.py` has what the block layer promises by itself; here a model runs, and what is looked
at is what it computed, what stands in the pool's tensors, and which tokens came out. Rule 10 has a file of its
own (`test_token_equality.py`), and so has what rule 9 says about failures (`test_recovery.py`).
"""

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import assert_all_back, own_tokens, random_prompt, tiny_model

from pagedkv_lab.engine import ContiguousEngine, Engine, SamplingParams
from pagedkv_lab.errors import RequestTooLong
from pagedkv_lab.sizing import blocks_for

BLOCK_SIZE = 4


def make_engine(num_gpu_blocks: int = 32, **options: Any) -> Engine:
    return Engine(
        tiny_model("toy"),
        **{"block_size": BLOCK_SIZE, "num_gpu_blocks": num_gpu_blocks, "max_model_len": 64} | options,
    )


def pool_of(engine: Engine) -> list[torch.Tensor]:
    """A copy of all tensors of the pool."""
    return [tensor.clone() for tensor in (*engine.runner.pool.keys, *engine.runner.pool.values)]


def written_blocks(before: list[torch.Tensor], after: list[torch.Tensor]) -> set[int]:
    """Blocks in which a byte differs, in any layer."""
    return {
        block
        for old, new in zip(before, after, strict=True)
        for block in range(len(old))
        if not torch.equal(old[block], new[block])
    }


def blocks_of(engine: Engine, request_id: int, index: int = 0) -> list[int]:
    return list(engine.manager.block_table(engine.requests()[request_id].sequences[index]))


def watch_steps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the runner is given from now on, step by step."""
    steps: list[Any] = []
    execute = engine.runner.execute
    monkeypatch.setattr(engine.runner, "execute", lambda step: steps.append(step) or execute(step))
    return steps


def run(engine: Engine) -> dict[int, list[list[int]]]:
    done = {}
    while engine.has_unfinished_requests():
        for out in engine.step().finished:
            done[out.request_id] = [output.token_ids for output in out.outputs]
    return done


# Rule 1


def test_rule_1_a_salt_keeps_requests_apart_and_lets_those_of_the_same_salt_share():
    engine = make_engine()
    prompt = random_prompt(14)
    expected = own_tokens(engine.model, prompt, 3)

    def cached_tokens(salt: str | None) -> int:
        output = engine.generate([prompt], SamplingParams(max_tokens=3), cache_salt=salt, use_tqdm=False)[0]
        assert output.token_ids == expected
        return output.num_cached_tokens

    assert [cached_tokens(salt) for salt in ("team 7", "team 8", None)] == [0, 0, 0]
    assert [cached_tokens(salt) for salt in ("team 7", "team 8", None)] == [12, 12, 12]


# Rule 2


def test_rule_2_a_request_that_needs_every_free_block_keeps_the_ones_it_hits():
    engine = make_engine(num_gpu_blocks=6)
    prompt = random_prompt(16)
    engine.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    longer = prompt + random_prompt(7, 1)
    # The four blocks that it hits are the only cached ones, and it needs two more: all that are left.
    output = engine.generate([longer], SamplingParams(max_tokens=2), use_tqdm=False)[0]
    assert output.num_cached_tokens == 16
    assert output.token_ids == own_tokens(engine.model, longer, 2)
    assert output.num_preemptions == 0


# Rule 4


def test_rule_4_the_prompt_that_was_used_longest_ago_is_the_one_that_is_forgotten():
    engine = make_engine(num_gpu_blocks=12)
    params = SamplingParams(max_tokens=1)
    first, second, third = (random_prompt(16, seed) for seed in range(3))
    engine.generate([first], params, use_tqdm=False)
    engine.generate([second], params, use_tqdm=False)
    engine.generate([first], params, use_tqdm=False)  # now `second` is the older one
    engine.generate([third, random_prompt(12, 3)], params, use_tqdm=False)  # takes the empty ones and three more
    assert engine.generate([first], params, use_tqdm=False)[0].num_cached_tokens == 15
    assert engine.generate([second], params, use_tqdm=False)[0].num_cached_tokens < 8


# Rule 5


@pytest.mark.parametrize("still_running", [True, False], ids=["blocks-in-use", "blocks-free"])
def test_rule_5_a_full_hit_computes_one_token_and_writes_nothing(monkeypatch, still_running):
    engine = make_engine()
    prompt = random_prompt(16)
    first = engine.add_request(prompt, SamplingParams(max_tokens=8 if still_running else 1))
    engine.step()
    if still_running:
        engine.step()  # its first output token goes into a block of its own
    before = pool_of(engine)
    steps = watch_steps(engine, monkeypatch)
    decode = 1 if still_running else 0

    second = engine.add_request(prompt, SamplingParams(max_tokens=4))
    report = engine.step()

    assert report.ran[decode:] == ((second, 0, 1, "prefill"),)
    assert report.hit_tokens == 15
    assert steps[0].token_ids[decode:] == prompt[-1:]
    assert steps[0].positions[decode:] == [15]
    assert len(steps[0].write_slots) == decode, "the full hit was to be written"
    own = set(blocks_of(engine, first)[4:]) if still_running else set()
    assert written_blocks(before, pool_of(engine)) <= own, "a shared block has other bytes than before"
    assert report.tokens[decode:] == ((second, 0, own_tokens(engine.model, prompt, 1)[0]),)


def test_rule_5_what_follows_a_full_hit_goes_into_blocks_of_its_own():
    engine = make_engine()
    prompt = random_prompt(16)
    engine.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    request_id = engine.add_request(prompt, SamplingParams(max_tokens=8))
    before = pool_of(engine)
    engine.step()
    hits = set(blocks_of(engine, request_id))
    for _ in range(6):
        engine.step()
    own = set(blocks_of(engine, request_id)) - hits
    assert len(hits) == 4
    assert written_blocks(before, pool_of(engine)) == own
    assert run(engine)[request_id] == [own_tokens(engine.model, prompt, 8)]


def test_rule_5_a_step_of_nothing_but_full_hits_writes_nothing_at_all():
    engine = make_engine()
    prompt = random_prompt(12)
    expected = own_tokens(engine.model, prompt, 1)
    engine.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    before = pool_of(engine)
    for _ in range(3):
        engine.add_request(prompt, SamplingParams(max_tokens=1))
    report = engine.step()
    assert report.num_prefill_tokens == 3
    assert [out.token_ids for out in report.finished] == [expected] * 3
    assert not written_blocks(before, pool_of(engine))


def test_rule_5_a_prompt_that_ends_within_a_block_computes_what_lies_in_that_block():
    engine = make_engine()
    prompt = random_prompt(18)
    engine.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    request_id = engine.add_request(prompt, SamplingParams(max_tokens=2))
    report = engine.step()
    assert report.ran == ((request_id, 0, 2, "prefill"),)
    assert report.hit_tokens == 16


# Rule 6


@pytest.mark.parametrize(("length", "computed", "blocks"), [(18, [18, 2, 2], 4 + 3), (16, [16, 1, 1], 4)])
def test_rule_6_equal_prompts_in_one_step_share_their_blocks(length, computed, blocks):
    engine = make_engine()
    prompt = random_prompt(length)
    ids = [engine.add_request(prompt, SamplingParams(max_tokens=5)) for _ in range(3)]
    report = engine.step()
    assert [tokens for _, _, tokens, _ in report.ran] == computed
    assert report.pool.used == blocks
    tables = [blocks_of(engine, request_id)[:4] for request_id in ids]
    assert tables[0] == tables[1] == tables[2]
    assert run(engine) == {request_id: [own_tokens(engine.model, prompt, 5)] for request_id in ids}


def test_rule_6_a_prompt_shares_within_the_step_what_the_other_s_chunk_has_room_for():
    engine = make_engine(max_num_batched_tokens=12)
    prompt = random_prompt(11)
    ids = [engine.add_request(prompt, SamplingParams(max_tokens=3)) for _ in range(2)]
    report = engine.step()
    # The first computes 11 of 12 tokens; the second finds 8 of its own there and has a budget of one left.
    assert [tokens for _, _, tokens, _ in report.ran] == [11, 1]
    assert report.hit_tokens == 8
    assert run(engine) == {request_id: [own_tokens(engine.model, prompt, 3)] for request_id in ids}


def test_rule_6_without_prefix_caching_equal_prompts_share_nothing():
    engine = make_engine(enable_prefix_caching=False)
    prompt = random_prompt(16)
    for _ in range(3):
        engine.add_request(prompt, SamplingParams(max_tokens=2))
    report = engine.step()
    assert [tokens for _, _, tokens, _ in report.ran] == [16, 16, 16]
    assert report.pool.used == 12
    assert report.hit_tokens == 0


# Rule 7


def test_rule_7_four_outputs_share_the_prompt_and_each_copies_the_partial_block_but_the_last():
    engine = make_engine()
    prompt = random_prompt(6)  # one full block and a half
    request_id = engine.add_request(prompt, SamplingParams(n=4, max_tokens=4))

    report = engine.step()
    assert report.pool.used == 2
    assert report.num_copied_blocks == 0
    tables = [blocks_of(engine, request_id, index) for index in range(4)]
    assert all(table == tables[0] for table in tables)
    full, partial = tables[0]
    assert engine.snapshot().ref_count[[full, partial]].tolist() == [4, 4]
    before = pool_of(engine)

    report = engine.step()
    assert report.num_copied_blocks == 3
    assert report.pool.used == 1 + 4
    tables = [blocks_of(engine, request_id, index) for index in range(4)]
    assert [table[0] for table in tables] == [full] * 4
    own = [table[1] for table in tables]
    assert len(set(own)) == 4
    assert partial in own, "the last one to write keeps the block and writes in place"
    assert full not in written_blocks(before, pool_of(engine))
    for tensor in pool_of(engine):
        for block in own:
            torch.testing.assert_close(tensor[block, :2], tensor[partial, :2], rtol=0, atol=0)

    assert run(engine) == {request_id: [own_tokens(engine.model, prompt, 4)] * 4}
    assert engine.stats().copied_blocks == 3


def test_rule_7_outputs_of_a_prompt_that_fills_its_blocks_copy_nothing():
    engine = make_engine()
    prompt = random_prompt(8)
    output = engine.generate([prompt], SamplingParams(n=4, max_tokens=4), use_tqdm=False)[0]
    assert [o.token_ids for o in output.outputs] == [own_tokens(engine.model, prompt, 4)] * 4
    assert engine.stats().copied_blocks == 0


def test_rule_7_a_sole_owner_writes_in_place():
    engine = make_engine()
    prompt = random_prompt(6)
    request_id = engine.add_request(prompt, SamplingParams(max_tokens=3))
    engine.step()
    table = blocks_of(engine, request_id)
    engine.step()
    assert blocks_of(engine, request_id) == table
    assert engine.stats().copied_blocks == 0


@pytest.mark.parametrize("make", [Engine, ContiguousEngine])
def test_rule_7_no_slot_is_ever_written_in_a_block_that_has_two_owners(monkeypatch, make):
    options: dict[str, Any] = {"max_model_len": 32, "num_gpu_blocks": 8}
    if make is Engine:
        # Without the cache: with it, equal prompts may share a block in the very step that fills it (rule 6).
        options |= {"block_size": BLOCK_SIZE, "enable_prefix_caching": False}
    engine = make(tiny_model("toy"), **options)
    checked = 0
    write = engine.runner.pool.write

    def write_if_alone(layer: int, slots: torch.Tensor, *key_and_value: torch.Tensor) -> None:
        nonlocal checked
        for block in {slot // engine.block_size for slot in slots.tolist()}:
            assert engine.manager.allocator.ref_count(block) == 1, f"block {block} is shared and written"
            checked += 1
        write(layer, slots, *key_and_value)

    monkeypatch.setattr(engine.runner.pool, "write", write_if_alone)
    prompts = [random_prompt(6), random_prompt(7, 1)]
    params = [SamplingParams(n=4, max_tokens=5), SamplingParams(n=3, max_tokens=4)]
    outputs = engine.generate(prompts, params, use_tqdm=False)
    assert checked > 50
    assert engine.stats().copied_blocks > 0
    for output, prompt, param in zip(outputs, prompts, params, strict=True):
        assert [o.token_ids for o in output.outputs] == [own_tokens(engine.model, prompt, param.max_tokens)] * param.n


# Rule 8


def test_rule_8_a_request_that_the_whole_pool_could_not_hold_is_refused_with_the_numbers():
    engine = make_engine(num_gpu_blocks=5)
    with pytest.raises(RequestTooLong) as refused:
        engine.add_request(random_prompt(13), SamplingParams(max_tokens=9))
    # 13 + 9 tokens, of which the last needs no slot: 21 tokens, 6 blocks.
    numbers = [int(number) for number in re.findall(r"\d+", str(refused.value))]
    assert {21, 6, 4, 5, 9, 13} <= set(numbers)
    for option in ("max_tokens", "num_gpu_blocks"):
        assert option in str(refused.value)
    assert_all_back(engine)


def test_rule_8_the_longest_request_that_fits_is_taken_and_one_token_more_is_refused():
    engine = make_engine(num_gpu_blocks=5)
    prompt = random_prompt(13)
    with pytest.raises(RequestTooLong):
        engine.add_request(prompt, SamplingParams(max_tokens=9))
    output = engine.generate([prompt], SamplingParams(max_tokens=8), use_tqdm=False)[0]
    assert output.token_ids == own_tokens(engine.model, prompt, 8)
    assert output.num_preemptions == 0
    assert engine.stats().peak_used_blocks == 5


def test_rule_8_a_prompt_as_long_as_the_longest_sequence_is_refused_with_the_numbers():
    engine = make_engine(max_model_len=20)
    with pytest.raises(RequestTooLong, match=r"20 tokens.*max_model_len is 20"):
        engine.add_request(random_prompt(20))
    output = engine.generate([random_prompt(19)], SamplingParams(max_tokens=5), use_tqdm=False)[0]
    assert len(output.token_ids) == 1
    assert output.finish_reason == "length"


def test_rule_8_more_outputs_than_may_run_at_once_are_refused_with_the_numbers():
    engine = make_engine(max_num_seqs=3)
    with pytest.raises(RequestTooLong, match=r"n = 4 .*max_num_seqs = 3"):
        engine.add_request(random_prompt(5), SamplingParams(n=4))
    assert len(engine.generate([random_prompt(5)], SamplingParams(n=3), use_tqdm=False)[0].outputs) == 3


def test_rule_8_the_contiguous_engine_refuses_by_its_rows():
    engine = ContiguousEngine(tiny_model("toy"), max_model_len=16, num_gpu_blocks=1)
    with pytest.raises(RequestTooLong, match="max_model_len is 16"):
        engine.add_request(random_prompt(16))


def test_rule_8_a_refused_request_leaves_the_others_alone():
    engine = make_engine(num_gpu_blocks=5)
    prompt = random_prompt(9)
    request_id = engine.add_request(prompt, SamplingParams(max_tokens=6))
    engine.step()
    before = engine.stats().pool
    with pytest.raises(RequestTooLong):
        engine.add_request(random_prompt(40))
    assert engine.stats().pool == before
    assert run(engine) == {request_id: [own_tokens(engine.model, prompt, 6)]}


def test_rule_8_running_out_in_mid_flight_takes_the_blocks_of_the_one_that_came_last():
    engine = make_engine(num_gpu_blocks=5, watermark=0.0, enable_prefix_caching=False)
    prompts = [random_prompt(8), random_prompt(8, 1)]
    ids = [engine.add_request(prompt, SamplingParams(max_tokens=9)) for prompt in prompts]
    preempted = []
    done = {}
    while engine.has_unfinished_requests():
        report = engine.step()
        preempted += report.preempted
        done |= {out.request_id: out for out in report.finished}
    assert set(preempted) == {ids[1]}
    assert done[ids[0]].num_preemptions == 0
    assert done[ids[1]].num_preemptions == len(preempted)
    assert list(done) == ids, "first come, first served"
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert done[request_id].token_ids == own_tokens(engine.model, prompt, 9)


def test_rule_8_outputs_of_one_request_that_outgrow_the_pool_together_finish_by_turns():
    # One output needs 5 of the 6 blocks at its end, so four can't be there at once.
    engine = make_engine(num_gpu_blocks=6)
    prompt = random_prompt(10)
    output = engine.generate([prompt], SamplingParams(n=4, max_tokens=10), use_tqdm=False)[0]
    assert [o.token_ids for o in output.outputs] == [own_tokens(engine.model, prompt, 10)] * 4
    assert output.num_preemptions > 0
    assert_all_back(engine)


@settings(max_examples=60)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 24), st.integers(1, 12), st.integers(0, 2), st.sampled_from([1, 1, 1, 3])),
        min_size=2,
        max_size=6,
    ),
    block_size=st.sampled_from([1, 3, 8]),
    budget=st.sampled_from([1, 2, 7, 64]),
    watermark=st.sampled_from([0.0, 0.5, 0.99]),
    max_num_seqs=st.sampled_from([3, 64]),
    caching=st.booleans(),
)
def test_rule_8_whatever_got_past_the_door_comes_to_an_end(
    requests, block_size, budget, watermark, max_num_seqs, caching
):
    needed = max(blocks_for(length + max_tokens - 1, block_size) for length, max_tokens, _, _ in requests)
    engine = make_engine(
        num_gpu_blocks=needed,
        block_size=block_size,
        max_num_batched_tokens=budget,
        watermark=watermark,
        max_num_seqs=max_num_seqs,
        enable_prefix_caching=caching,
    )
    for length, max_tokens, seed, n in requests:
        engine.add_request(random_prompt(length, seed), SamplingParams(n=n, max_tokens=max_tokens, ignore_eos=True))
    # One after the other with one token a step would take so many steps, each output computed from the start.
    enough = sum(n * (length + max_tokens) for length, max_tokens, _, n in requests)
    steps = 0
    outputs = 0
    while engine.has_unfinished_requests():
        report = engine.step()
        steps += 1
        outputs += len(report.tokens)
        assert report.ran, "a step in which nobody runs"
        assert steps <= 2 * enough, "the engine goes round in circles"
    assert outputs == sum(n * max_tokens for _, max_tokens, _, n in requests)
    assert_all_back(engine)


# Rule 9


def test_rule_9_however_a_request_ends_every_block_is_back():
    engine = make_engine(num_gpu_blocks=24, max_num_seqs=4)
    text = "abc"
    said = engine.generate(text, SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)[0]
    stop_string = said.text[2:4]
    by_stop = engine.add_request(text, SamplingParams(max_tokens=8, stop=stop_string, ignore_eos=True))
    by_token = engine.add_request(text, SamplingParams(max_tokens=8, stop_token_ids=[said.token_ids[3]]))
    by_length = engine.add_request(random_prompt(6), SamplingParams(n=2, max_tokens=3, ignore_eos=True))
    in_prefill = engine.add_request(random_prompt(30, 1), SamplingParams(max_tokens=9))
    waiting = engine.add_request(random_prompt(30, 2), SamplingParams(max_tokens=9))
    reasons = {}
    for step in range(30):
        reasons |= {out.request_id: out.finish_reason for out in engine.step().finished}
        engine.manager.check_invariants()
        counts = engine.stats().pool
        assert counts.free + counts.cached + counts.used == counts.total == 24
        if step == 0:
            for request_id in (in_prefill, waiting):
                reasons[request_id] = engine.abort(request_id).finish_reason
                engine.manager.check_invariants()
        if not engine.has_unfinished_requests():
            break
    assert reasons == {
        by_stop: "stop",
        by_token: "stop",
        by_length: "length",
        in_prefill: "abort",
        waiting: "abort",
    }
    assert_all_back(engine)
