"""From logits to tokens: which tokens may be drawn, how often, and that a seed settles it. When an output ends."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_models import letters_model, own_tokens, random_prompt, tiny_model

from pagedkv_lab.engine import Engine, SamplingParams
from pagedkv_lab.engine.sampling import sample, token_probabilities


def logits_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities).log()


LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=40).map(torch.tensor)


# Which tokens may be drawn


@settings(max_examples=100)
@given(LOGITS, st.floats(0.1, 5), st.integers(0, 50), st.floats(0.01, 1))
def test_what_is_drawn_from_is_a_distribution_over_the_likeliest_tokens(logits, temperature, top_k, top_p):
    probabilities = token_probabilities(logits, SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p))
    assert probabilities.shape == logits.shape
    torch.testing.assert_close(probabilities.sum(), torch.tensor(1.0))
    kept = probabilities > 0
    assert kept.any()
    if not kept.all():
        assert logits[kept].min() >= logits[~kept].max() - 1e-6, "a likelier token was left out"
    if top_k:
        assert kept.sum() <= top_k
    # Among the kept ones nothing but the scale has changed.
    plain = (logits.double() / temperature).softmax(-1)
    torch.testing.assert_close(
        probabilities[kept].double(), plain[kept] / plain[kept].sum(), rtol=1e-4, atol=1e-7
    )


@settings(max_examples=100)
@given(LOGITS, st.floats(0.05, 0.999))
def test_top_p_keeps_as_few_tokens_as_reach_it(logits, top_p):
    kept = token_probabilities(logits, SamplingParams(temperature=1, top_p=top_p)) > 0
    ordered = logits.double().softmax(-1).sort(descending=True).values
    reached = ordered.cumsum(-1)
    assume((reached - top_p).abs().min() > 1e-5)  # rounding decides there
    assert kept.sum() == (reached < top_p).sum() + 1


def test_the_options_in_numbers():
    logits = logits_of([0.5, 0.1, 0.25, 0.15])

    def probabilities(**options: Any) -> list[float]:
        return [round(p, 4) for p in token_probabilities(logits, SamplingParams(**options)).tolist()]

    assert probabilities(temperature=1.0) == [0.5, 0.1, 0.25, 0.15]
    assert probabilities(temperature=1.0, top_k=2) == [0.6667, 0, 0.3333, 0]
    assert probabilities(temperature=1.0, top_k=100) == [0.5, 0.1, 0.25, 0.15]
    assert probabilities(temperature=1.0, top_p=0.6) == [0.6667, 0, 0.3333, 0]
    assert probabilities(temperature=1.0, top_p=0.01) == [1, 0, 0, 0]
    assert probabilities(temperature=0.5) == [0.7246, 0.029, 0.1812, 0.0652]  # squares, of 0.345
    assert probabilities(temperature=0.0) == [1, 0, 0, 0]
    # top_p counts what top_k has left: of 2/3 and 1/3, the first alone reaches 0.6.
    assert probabilities(temperature=1.0, top_k=2, top_p=0.6) == [1, 0, 0, 0]


def test_a_token_that_is_impossible_stays_so():
    logits = torch.tensor([0.0, float("-inf"), 0.0])
    assert token_probabilities(logits, SamplingParams(temperature=2.0)).tolist() == [0.5, 0, 0.5]


def test_half_precision_logits_are_counted_in_float32():
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    probabilities = token_probabilities(logits, SamplingParams(temperature=1.0))
    assert probabilities.dtype == torch.float32
    torch.testing.assert_close(probabilities, logits.float().softmax(-1), rtol=1e-4, atol=1e-7)


def test_without_top_p_no_token_of_a_large_vocabulary_is_ruled_out():
    logits = 4 * torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    probabilities = token_probabilities(logits, SamplingParams(temperature=1.0))
    assert (probabilities > 0).all()
    assert (token_probabilities(logits, SamplingParams(temperature=1.0, top_p=0.99)) == 0).any()


def test_logits_are_left_as_they_were():
    logits = torch.randn(2, 30, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    params = SamplingParams(temperature=0.7, top_k=3, top_p=0.5)
    sample(logits, [params] * 2, [torch.Generator().manual_seed(i) for i in range(2)])
    assert torch.equal(logits, before)


# How often


def test_tokens_come_as_often_as_their_probabilities_say():
    logits = logits_of([0.4, 0.3, 0.2, 0.1]).repeat(4000, 1)
    generator = torch.Generator().manual_seed(0)
    params = SamplingParams(temperature=1.0, top_k=3)
    drawn = Counter(sample(logits, [params] * len(logits), [generator] * len(logits)))
    assert drawn.keys() == {0, 1, 2}
    for token, expected in ((0, 4 / 9), (1, 3 / 9), (2, 2 / 9)):
        assert drawn[token] / 4000 == pytest.approx(expected, abs=0.03)


def test_greedy_and_drawn_rows_stand_side_by_side():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(), SamplingParams(temperature=5.0), SamplingParams()]
    drawn = {tuple(sample(logits, params, [None, torch.Generator().manual_seed(i), None])) for i in range(20)}
    likeliest = logits.argmax(-1).tolist()
    assert {(first, last) for first, _, last in drawn} == {(likeliest[0], likeliest[2])}
    assert len({middle for _, middle, _ in drawn}) > 5


# Seeds


def make_engine(**options: Any) -> Engine:
    defaults = {"block_size": 4, "num_gpu_blocks": 64, "max_model_len": 64}
    return Engine(tiny_model("toy"), **defaults | options)


def drawn_tokens(engine: Engine, prompts: list[list[int]], params: Any) -> list[list[list[int]]]:
    outputs = engine.generate(prompts, params, use_tqdm=False)
    return [[o.token_ids for o in output.outputs] for output in outputs]


HOT = {"temperature": 3.0, "max_tokens": 8, "ignore_eos": True}


def test_a_seed_gives_the_same_tokens_alone_in_a_crowd_in_chunks_and_after_preemption():
    prompt, crowd = random_prompt(9), [random_prompt(11, seed) for seed in range(1, 5)]
    params = SamplingParams(seed=7, **HOT)
    alone = drawn_tokens(make_engine(), [prompt], params)[0]
    others = [SamplingParams(seed=i, **HOT) for i in range(4)]
    for options in (
        {},
        {"max_num_batched_tokens": 8},
        {"enable_prefix_caching": False, "block_size": 16},
        {"num_gpu_blocks": 6, "watermark": 0.0},
    ):
        for place in (0, 4):
            engine = make_engine(**options)
            prompts = [*crowd[:place], prompt, *crowd[place:]]
            tokens = drawn_tokens(engine, prompts, [*others[:place], params, *others[place:]])
            assert tokens[place] == alone, options
    assert engine.stats().preemptions > 0


def test_other_seeds_give_other_tokens():
    engine = make_engine()
    drawn = {str(drawn_tokens(engine, [random_prompt(9)], SamplingParams(seed=seed, **HOT))) for seed in range(6)}
    assert len(drawn) == 6


def test_without_a_seed_requests_differ_and_engines_of_the_same_seed_agree():
    prompt = random_prompt(9)
    first = drawn_tokens(make_engine(seed=3), [prompt] * 4, SamplingParams(**HOT))
    assert len({str(tokens) for tokens in first}) == 4
    assert drawn_tokens(make_engine(seed=3), [prompt] * 4, SamplingParams(**HOT)) == first
    assert drawn_tokens(make_engine(seed=4), [prompt] * 4, SamplingParams(**HOT)) != first


def test_several_outputs_of_one_prompt_are_drawn_apart():
    tokens = drawn_tokens(make_engine(), [random_prompt(9)], SamplingParams(n=5, seed=1, **HOT))[0]
    assert len({str(output) for output in tokens}) == 5


def test_no_draw_touches_torch_s_own_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    drawn_tokens(make_engine(), [random_prompt(9)], SamplingParams(**HOT))
    assert torch.equal(torch.rand(3), expected)


def test_a_seed_is_kept_when_a_step_fails_before_the_draw(monkeypatch):
    prompt = random_prompt(9)
    params = SamplingParams(seed=7, **HOT)
    alone = drawn_tokens(make_engine(), [prompt], params)[0]
    engine = make_engine()
    engine.add_request(prompt, params)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "execute", lambda step: (_ for _ in ()).throw(RuntimeError("once")))
        with pytest.raises(RuntimeError, match="once"):
            engine.step()
    while engine.has_unfinished_requests():
        finished = engine.step().finished
    assert [o.token_ids for o in finished[0].outputs] == alone


# When an output ends


def test_an_output_has_max_tokens_tokens_and_says_why_it_ended():
    engine = make_engine()
    prompt = random_prompt(9)
    for max_tokens in (1, 2, 7):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        output = engine.generate([prompt], params, use_tqdm=False)[0]
        assert len(output.token_ids) == max_tokens
        assert output.finish_reason == "length"


def greedy(**options: Any) -> Any:
    """What the model of letters says to "abcdefgh", in up to 12 tokens of two letters each."""
    engine = Engine(letters_model(), block_size=4, num_gpu_blocks=16, max_model_len=64)
    params = SamplingParams(**{"max_tokens": 12} | options)
    return engine.generate("abcdefgh", params, use_tqdm=False)[0]


def test_a_stop_token_ends_the_output_and_is_its_last_token():
    plain = greedy()
    stopped = greedy(stop_token_ids=[plain.token_ids[3], 9999])
    end = plain.token_ids.index(plain.token_ids[3]) + 1
    assert stopped.token_ids == plain.token_ids[:end]
    assert stopped.finish_reason == "stop"
    assert stopped.text == plain.text[: 2 * end]


@pytest.mark.parametrize(
    ("begin", "length"), [(6, 2), (6, 1), (7, 1), (7, 2), (7, 4), (6, 5), (5, 6)], ids=lambda number: str(number)
)
def test_a_stop_string_may_lie_within_a_token_or_over_several_and_is_cut_off(begin, length):
    plain = greedy()
    stop = plain.text[begin : begin + length]
    begin = plain.text.index(stop)
    stopped = greedy(stop=stop)
    assert stopped.text == plain.text[:begin]
    assert stopped.finish_reason == "stop"
    # It ends with the token that completes the string, and not one later.
    assert len(stopped.token_ids) == -(-(begin + length) // 2)
    assert stopped.token_ids == plain.token_ids[: len(stopped.token_ids)]


def test_of_several_stop_strings_the_first_in_the_text_counts():
    plain = greedy()
    stop = [plain.text[12:15], "never", plain.text[5:8]]
    assert greedy(stop=stop).text == plain.text[: min(plain.text.index(stop[0]), plain.text.index(stop[2]))]


def test_a_stop_string_that_does_not_come_changes_nothing():
    plain = greedy()
    stopped = greedy(stop=["zz", plain.text[-3:] + "a"])
    assert (stopped.text, stopped.token_ids, stopped.finish_reason) == (plain.text, plain.token_ids, "length")


def test_a_stop_string_in_the_prompt_does_not_end_the_output():
    plain = greedy()
    assert "cdef" not in plain.text
    assert greedy(stop="cdef").text == plain.text


def ends_with(engine: Engine, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `token` the model's own end token."""
    monkeypatch.setattr(engine.model.hf.generation_config, "eos_token_id", token)


@pytest.mark.parametrize("as_list", [False, True])
def test_the_model_s_own_end_token_ends_the_output_unless_it_is_ignored(monkeypatch, as_list):
    prompt = random_prompt(9)
    expected = own_tokens(tiny_model("toy"), prompt, 8)
    end = expected[2]
    assert end not in expected[:2]
    engine = make_engine()
    ends_with(engine, [end, 255] if as_list else end, monkeypatch)
    stopped = engine.generate([prompt], SamplingParams(max_tokens=8), use_tqdm=False)[0]
    assert stopped.token_ids == expected[:3]
    assert stopped.finish_reason == "stop"
    ignored = engine.generate([prompt], SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)[0]
    assert ignored.token_ids == expected
    assert ignored.finish_reason == "length"


def test_ignoring_the_end_token_does_not_ignore_stop_tokens(monkeypatch):
    prompt = random_prompt(9)
    expected = own_tokens(tiny_model("toy"), prompt, 8)
    params = SamplingParams(max_tokens=8, ignore_eos=True, stop_token_ids=[expected[2]])
    assert make_engine().generate([prompt], params, use_tqdm=False)[0].token_ids == expected[:3]


def test_stop_strings_need_a_tokenizer_to_be_found_with():
    engine = Engine(tiny_model("llama"), num_gpu_blocks=8, block_size=4)
    with pytest.raises(ValueError, match="without a tokenizer"):
        engine.add_request(random_prompt(4), SamplingParams(stop="x"))
    assert not engine.has_unfinished_requests()


# What makes no sense


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "n must be at least 1, not 0"),
        ({"temperature": -0.5}, "temperature must be 0 or more, not -0.5"),
        ({"temperature": float("nan")}, "temperature must be 0 or more, not nan"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, not 1.5"),
        ({"top_k": -1}, r"top_k must be 0 \(all\) or more, not -1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"stop": ""}, "stop must be strings, none of them empty"),
        ({"stop": ["a", ""]}, "stop must be strings, none of them empty"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(options, said):
    with pytest.raises(ValueError, match=said):
        SamplingParams(**options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_greedy_takes_the_first_of_equally_likely_tokens(dtype):
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [-5.0, -5.0, -6.0, -5.0], [0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    assert sample(logits, [SamplingParams()] * 3, [None] * 3) == [1, 0, 0]
    # A row of many columns, as computed in inference mode, where the winner stands twice far apart.
    with torch.inference_mode():
        wide = torch.zeros(5, 50_000, dtype=dtype)
        wide[:, [40_000, 45_000]] = 2.0
    assert sample(wide, [SamplingParams()] * 5, [None] * 5) == [40_000] * 5
