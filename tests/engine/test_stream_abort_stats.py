"""The engine from outside: prompts of every kind, streaming, aborting, and numbers that add up."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import assert_all_back, letters_model, own_tokens, random_prompt, tiny_model

from pagedkv_lab.engine import Engine, RequestOutput, SamplingParams, StepReport

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


def make_engine(model: Any = None, **options: Any) -> Engine:
    defaults = {"block_size": 4, "num_gpu_blocks": 64, "max_model_len": 128}
    return Engine(model or tiny_model("toy"), **defaults | options)


def run(engine: Engine) -> tuple[list[StepReport], list[RequestOutput]]:
    reports = []
    while engine.has_unfinished_requests():
        reports.append(engine.step())
    return reports, [output for report in reports for output in report.finished]


# Prompts


def test_text_chat_and_token_ids_are_all_prompts():
    engine = make_engine()
    tokenizer = engine.model.tokenizer
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    as_text = "system: Be short.\nuser: Hi\nassistant: "
    ids = tokenizer(as_text)["input_ids"]
    outputs = engine.generate([as_text, chat, ids, torch.tensor(ids)], PARAMS, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [ids] * 4
    assert [output.token_ids for output in outputs] == [own_tokens(engine.model, ids, 6)] * 4
    assert [output.prompt for output in outputs] == [as_text, None, None, None]
    assert outputs[0].text == tokenizer.decode(outputs[0].token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("prompt", ["hello", [{"role": "user", "content": "hello"}], [104, 101, 108]])
def test_one_prompt_by_itself_is_a_list_of_one(prompt):
    engine = make_engine()
    (one,) = engine.generate(prompt, PARAMS, use_tqdm=False)
    (listed,) = engine.generate([prompt], PARAMS, use_tqdm=False)
    assert one.prompt_token_ids == listed.prompt_token_ids
    assert one.token_ids == listed.token_ids


def test_no_prompts_are_no_outputs():
    assert make_engine().generate([], use_tqdm=False) == []


def test_outputs_come_in_the_order_of_the_prompts_and_not_of_their_ends():
    engine = make_engine()
    prompts = [random_prompt(5, seed) for seed in range(4)]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (9, 1, 5, 2)]
    outputs = engine.generate(prompts, params, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert [len(output.token_ids) for output in outputs] == [9, 1, 5, 2]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([5, 257], r"token id 257 is outside toy's vocabulary of 257"),
        ([-1], r"token id -1 is outside toy's vocabulary of 257"),
        ([1.5, 2], "a prompt is text, a list of chat messages, or a list of token ids"),
        ([["nested"]], "a prompt is text, a list of chat messages, or a list of token ids"),
    ],
)
def test_a_prompt_that_can_not_be_read_is_refused_and_nothing_is_queued(prompt, said):
    engine = make_engine()
    with pytest.raises(ValueError, match=said):
        engine.add_request(prompt)
    assert_all_back(engine)


def test_a_message_by_itself_is_not_taken_for_two_prompts():
    engine = make_engine()
    with pytest.raises(ValueError, match="a list of chat messages"):
        engine.generate({"role": "user", "content": "Hi"}, use_tqdm=False)
    assert_all_back(engine)


@pytest.mark.parametrize("prompt", ["text", [{"role": "user", "content": "chat"}]])
def test_a_model_without_a_tokenizer_takes_token_ids_and_says_so(prompt):
    engine = make_engine(tiny_model("llama"))
    with pytest.raises(ValueError, match="llama came without a tokenizer, so it takes token ids"):
        engine.add_request(prompt)
    assert engine.generate([1, 2, 3], PARAMS, use_tqdm=False)[0].text == ""


def test_a_model_without_a_chat_template_says_so():
    with pytest.raises(ValueError, match="letters has no chat template"):
        make_engine(letters_model()).add_request([{"role": "user", "content": "ab"}])


def test_prompts_and_parameters_must_be_as_many():
    engine = make_engine()
    with pytest.raises(ValueError, match="2 prompts and 3 sampling params"):
        engine.generate(["a", "b"], [PARAMS] * 3, use_tqdm=False)
    assert_all_back(engine)


# Streaming


def stream(engine: Engine, prompt: Any, params: SamplingParams = PARAMS) -> list[str]:
    return list(engine.stream(prompt, params))


@pytest.mark.parametrize("model", [letters_model, lambda: tiny_model("toy")], ids=["letters", "bytes"])
def test_the_pieces_of_a_stream_are_the_text(model):
    engine = make_engine(model())
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    whole = engine.generate("abcdefgh", params, use_tqdm=False)[0].text
    pieces = stream(engine, "abcdefgh", params)
    assert "".join(pieces) == whole
    assert len(pieces) > 3
    assert all(pieces)
    assert_all_back(engine)


def test_a_stream_ends_before_its_stop_string_and_never_shows_the_beginning_of_it():
    engine = make_engine(letters_model())
    params = SamplingParams(max_tokens=12)
    whole = engine.generate("abcdefgh", params, use_tqdm=False)[0].text
    pieces = stream(engine, "abcdefgh", SamplingParams(max_tokens=12, stop=whole[9:14]))
    assert "".join(pieces) == whole[: whole.index(whole[9:14])]


def test_two_streams_side_by_side_both_come_whole():
    engine = make_engine(letters_model())
    params = SamplingParams(max_tokens=10)
    expected = [output.text for output in engine.generate(["abcdefgh", "hgfe"], params, use_tqdm=False)]
    first, second = engine.stream("abcdefgh", params), engine.stream("hgfe", params)
    texts = ["", ""]
    for piece in first:  # each piece of the one lets the other go on, too
        texts[0] += piece
        texts[1] += next(second, "")
    texts[1] += "".join(second)
    assert texts == expected
    assert_all_back(engine)


def test_a_stream_whose_last_steps_somebody_else_runs_still_comes_whole():
    engine = make_engine(letters_model())
    params = SamplingParams(max_tokens=10)
    expected = engine.generate("abcdefgh", params, use_tqdm=False)[0].text
    pieces = engine.stream("abcdefgh", params)
    begin = next(pieces)
    engine.generate("hgfedc", SamplingParams(max_tokens=30), use_tqdm=False)
    assert begin + "".join(pieces) == expected


def test_a_stream_goes_on_where_a_failed_step_broke_it_off(monkeypatch):
    """The generator ends with the exception; the engine is as good as new."""
    engine = make_engine(letters_model())
    expected = engine.generate("abcdefgh", PARAMS, use_tqdm=False)[0].text
    pieces = engine.stream("abcdefgh", PARAMS)
    next(pieces)
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "execute", lambda step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(pieces)
    assert_all_back(engine)
    assert "".join(stream(engine, "abcdefgh")) == expected


def test_a_stream_that_nobody_reads_queues_nothing():
    engine = make_engine()
    engine.stream("abc")
    assert not engine.has_unfinished_requests()


def test_a_stream_is_refused_at_the_door_like_any_request():
    with pytest.raises(ValueError, match="empty"):
        next(make_engine().stream(""))


# Aborting


def test_aborting_a_waiting_request_returns_no_token_and_it_never_runs():
    engine = make_engine()
    prompt = random_prompt(5)
    kept, aborted = engine.add_request(prompt, PARAMS), engine.add_request(random_prompt(5, 1), PARAMS)
    output = engine.abort(aborted)
    assert (output.request_id, output.token_ids, output.finish_reason) == (aborted, [], "abort")
    assert output.ttft_s is None
    reports, finished = run(engine)
    assert {request_id for report in reports for request_id, *_ in report.ran} == {kept}
    assert [out.request_id for out in finished] == [kept]
    assert_all_back(engine)


def test_aborting_a_running_request_returns_what_it_has_said_and_frees_its_blocks():
    engine = make_engine()
    prompt = random_prompt(9)
    request_id = engine.add_request(prompt, PARAMS)
    for _ in range(3):
        engine.step()
    assert engine.stats().pool.used == 3
    output = engine.abort(request_id)
    assert output.token_ids == own_tokens(engine.model, prompt, 3)
    assert output.finish_reason == "abort"
    assert_all_back(engine)


def test_aborting_between_chunks_and_between_forks_frees_everything():
    engine = make_engine(max_num_batched_tokens=4)
    chunked = engine.add_request(random_prompt(10), PARAMS)
    engine.step()
    engine.abort(chunked)
    assert_all_back(engine)
    forked = engine.add_request(random_prompt(3), SamplingParams(n=3, max_tokens=6, ignore_eos=True))
    engine.step()
    engine.step()
    output = engine.abort(forked)
    assert [o.finish_reason for o in output.outputs] == ["abort"] * 3
    assert_all_back(engine)


def test_aborting_an_unknown_or_finished_request_does_nothing():
    engine = make_engine()
    request_id = engine.add_request(random_prompt(5), SamplingParams(max_tokens=1))
    run(engine)
    assert engine.abort(request_id) is None
    assert engine.abort(999) is None
    assert engine.stats().finished == 1


def test_aborting_the_one_whose_block_others_share_leaves_it_to_them():
    engine = make_engine()
    prompt = random_prompt(9)
    ids = [engine.add_request(prompt, PARAMS) for _ in range(3)]
    engine.step()
    engine.abort(ids[0])
    engine.manager.check_invariants()
    _, finished = run(engine)
    assert {out.request_id: out.token_ids for out in finished} == {
        request_id: own_tokens(engine.model, prompt, 6) for request_id in ids[1:]
    }


# Numbers that add up


@settings(max_examples=25)
@given(
    requests=st.lists(
        st.tuples(st.sampled_from([1, 4, 9, 12, 17]), st.integers(0, 1), st.integers(1, 8), st.sampled_from([1, 1, 3])),
        min_size=1,
        max_size=5,
    ),
    num_gpu_blocks=st.sampled_from([7, 9, 40]),
    budget=st.sampled_from([8, 64]),
)
def test_the_reports_of_all_steps_add_up_to_the_stats(requests, num_gpu_blocks, budget):
    engine = make_engine(num_gpu_blocks=num_gpu_blocks, max_num_batched_tokens=budget)
    for length, seed, max_tokens, n in requests:
        engine.add_request(random_prompt(length, seed), SamplingParams(n=n, max_tokens=max_tokens, ignore_eos=True))
    reports, outputs = run(engine)
    stats = engine.stats()

    assert stats.steps == len(reports)
    assert [report.step for report in reports] == list(range(1, len(reports) + 1))
    assert stats.seconds == pytest.approx(sum(report.seconds for report in reports))
    assert stats.output_tokens == sum(len(report.tokens) for report in reports)
    assert stats.output_tokens == sum(len(o.token_ids) for output in outputs for o in output.outputs)
    assert stats.computed_tokens == sum(tokens for report in reports for _, _, tokens, _ in report.ran)
    assert stats.hit_tokens == sum(report.hit_tokens for report in reports)
    assert stats.preemptions == sum(len(report.preempted) for report in reports)
    assert stats.preemptions == sum(output.num_preemptions for output in outputs)
    assert stats.copied_blocks == sum(report.num_copied_blocks for report in reports)
    assert stats.finished == len(requests) == len(outputs)
    assert stats.running == stats.waiting == 0
    assert stats.pool == reports[-1].pool
    assert stats.peak_used_blocks >= max(report.pool.used for report in reports)
    assert 0 < stats.utilization <= 1
    assert 0 <= stats.prefix_hit_rate < 1
    if not stats.preemptions:
        prompts = sum(length for length, _, _, _ in requests)
        later = stats.output_tokens - sum(n for _, _, _, n in requests)
        assert stats.queried_tokens == prompts
        assert stats.computed_tokens == prompts - stats.hit_tokens + later
        assert stats.hit_tokens == sum(output.num_cached_tokens for output in outputs)
    for report in reports:
        assert report.num_scheduled == len(report.ran)
        total = sum(tokens for _, _, tokens, _ in report.ran)
        assert report.num_prefill_tokens + report.num_decode_tokens == total <= budget
        assert report.used_slots <= report.pool.used * engine.block_size


def test_a_report_says_what_ran_and_what_came_of_it():
    engine = make_engine(max_num_batched_tokens=8)
    a, b = random_prompt(5), random_prompt(6, 1)
    first = engine.add_request(a, SamplingParams(max_tokens=3))
    second = engine.add_request(b, SamplingParams(max_tokens=1))
    report = engine.step()
    assert report.ran == ((first, 0, 5, "prefill"), (second, 0, 3, "prefill"))
    assert report.tokens == ((first, 0, own_tokens(engine.model, a, 1)[0]),)
    assert (report.pool.used, report.used_slots) == (3, 8)
    assert report.finished == ()
    report = engine.step()
    assert report.ran == ((first, 0, 1, "decode"), (second, 0, 3, "prefill"))
    expected = [own_tokens(engine.model, a, 2)[1], own_tokens(engine.model, b, 1)[0]]
    assert [token for *_, token in report.tokens] == expected
    assert [out.request_id for out in report.finished] == [second]
    assert (report.pool.used, report.used_slots) == (2, 6)
    report = engine.step()
    assert report.ran == ((first, 0, 1, "decode"),)
    assert report.finished[0].token_ids == own_tokens(engine.model, a, 3)
    assert report.pool.used == report.used_slots == 0


def test_a_request_that_has_one_token_has_no_time_per_token_after_it():
    engine = make_engine()
    engine.add_request(random_prompt(5), SamplingParams(max_tokens=6, ignore_eos=True))
    engine.add_request(random_prompt(5, 1), SamplingParams(max_tokens=1))
    _, (short, long) = run(engine)
    assert short.tpot_s is None
    assert short.ttft_s > 0
    assert long.ttft_s > 0
    assert long.tpot_s > 0


def test_a_step_with_nothing_to_do_does_nothing():
    engine = make_engine()
    report = engine.step()
    assert (report.ran, report.tokens, report.finished, report.hit_tokens) == ((), (), (), 0)
    assert engine.stats().computed_tokens == 0


def test_the_snapshot_shows_what_the_counts_say():
    engine = make_engine(num_gpu_blocks=12)
    engine.generate([random_prompt(9)], SamplingParams(max_tokens=1), use_tqdm=False)
    engine.add_request(random_prompt(6, 1), SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    snapshot, pool = engine.snapshot(), engine.stats().pool
    assert [int((snapshot.state == state).sum()) for state in (0, 1, 2)] == [pool.free, pool.cached, pool.used]
    assert int(snapshot.filled.sum()) == engine.manager.used_slots == 6


def test_the_same_engine_takes_requests_while_it_runs_and_after_it_was_idle():
    engine = make_engine()
    prompts = [random_prompt(5, seed) for seed in range(3)]
    done = {}
    ids = [engine.add_request(prompts[0], PARAMS)]
    engine.step()
    ids.append(engine.add_request(prompts[1], PARAMS))
    done |= {out.request_id: out.token_ids for out in run(engine)[1]}
    ids.append(engine.add_request(prompts[2], PARAMS))
    done |= {out.request_id: out.token_ids for out in run(engine)[1]}
    expected = [own_tokens(engine.model, prompt, 6) for prompt in prompts]
    assert [done[request_id] for request_id in ids] == expected
    assert ids == sorted(ids)
