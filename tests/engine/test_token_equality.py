"""Rule 10: whatever the cache, the batching and the pool do, the tokens are the model's own.

Greedy decoding in float32, held against transformers' `generate` of each prompt by itself.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import CONFIGS, assert_all_back, own_tokens, random_prompt, tiny_model

from pagedkv_lab.attention import BACKENDS, reference
from pagedkv_lab.engine import ContiguousEngine, Engine, LoadedModel, Parts, SamplingParams
from pagedkv_lab.sizing import blocks_for

MAX_MODEL_LEN = 64

# Prompts: a beginning, cut anywhere, and perhaps an end of its own. So several of them are equal, one begins
# with the other, they share a beginning, or they share nothing.
PROMPTS = st.builds(
    lambda begin, length, end, end_length: (
        random_prompt(length, begin) + random_prompt(end_length if end else 0, 10 + end)
    ),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([32, 17, 16, 33, 40, 31, 20, 15, 8, 5, 4, 3, 1]),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([1, 4]),
)


@dataclass
class Scenario:
    """Some requests, and an engine to put them through."""

    requests: list[tuple[list[int], SamplingParams]]
    options: dict[str, Any]
    contiguous: bool = False
    late: int = 0  # how many of the requests come when the others are already running
    seen: Counter = field(default_factory=Counter)


@st.composite
def scenarios(draw: st.DrawFn, contiguous: bool = False) -> Scenario:
    num_requests = draw(st.sampled_from([4, 3, 6, 5, 2, 1]))
    requests = [
        (draw(PROMPTS), SamplingParams(max_tokens=draw(st.sampled_from([8, 12, 5, 2, 1])))) for _ in range(num_requests)
    ]
    if draw(st.integers(0, 2)) == 0:
        i = draw(st.integers(0, num_requests - 1))
        requests[i] = (requests[i][0], SamplingParams(n=4, max_tokens=requests[i][1].max_tokens))
    late = draw(st.integers(0, num_requests - 1))

    chunked = draw(st.booleans())
    options: dict[str, Any] = {
        "max_model_len": MAX_MODEL_LEN,
        "enable_chunked_prefill": chunked,
        "max_num_batched_tokens": draw(st.integers(8, 40) if chunked else st.integers(MAX_MODEL_LEN, 200)),
        "max_num_seqs": draw(st.sampled_from([4, 5, 64])),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.3])),
        "attn_backend": draw(st.sampled_from([None, None, *BACKENDS])),
        "model_impl": draw(st.sampled_from(["auto", "transformers"])),
    }
    if contiguous:
        options["num_gpu_blocks"] = draw(st.integers(1, 5))
        return Scenario(requests, options, contiguous=True, late=late)
    block_size = draw(st.sampled_from([1, 4, 16, 32]))
    needed = [blocks_for(len(prompt) + params.max_tokens - 1, block_size) for prompt, params in requests]
    # Most often hardly more than the longest request needs by itself, so that the others are thrown out.
    pool = max(needed) + draw(st.sampled_from([0, 1, 2, 5, sum(needed)]))
    options |= {
        "block_size": block_size,
        "num_gpu_blocks": pool,
        "enable_prefix_caching": draw(st.booleans()),
    }
    return Scenario(requests, options, late=late)


def serve(model: LoadedModel, scenario: Scenario) -> list[list[list[int]]]:
    """Run the requests. Returns each one's outputs, as tokens; the books are checked after every step."""
    make = ContiguousEngine if scenario.contiguous else Engine
    engine = make(model, **scenario.options)
    early = scenario.requests[: len(scenario.requests) - scenario.late]
    ids = [engine.add_request(*request) for request in early]
    done = {}
    while engine.has_unfinished_requests():
        report = engine.step()
        engine.manager.check_invariants()
        done |= {output.request_id: output for output in report.finished}
        if report.step == 2 or not engine.has_unfinished_requests():
            late = scenario.requests[len(ids) :]
            ids += [engine.add_request(*request) for request in late]
    assert_all_back(engine)
    stats = engine.stats()
    scenario.seen.update(
        preempted=stats.preemptions > 0,
        hit=stats.hit_tokens > 0,
        copied=stats.copied_blocks > 0,
        chunked=scenario.options["enable_chunked_prefill"]
        and any(len(p) > scenario.options["max_num_batched_tokens"] for p, _ in scenario.requests),
    )
    return [[output.token_ids for output in done[request_id].outputs] for request_id in ids]


def assert_equal_to_generate(model: LoadedModel, scenario: Scenario) -> None:
    outputs = serve(model, scenario)
    for (prompt, params), tokens in zip(scenario.requests, outputs, strict=True):
        assert tokens == [own_tokens(model, prompt, params.max_tokens)] * params.n


def busy_scenario(contiguous: bool = False) -> Scenario:
    """One in which everything happens: long prompts in pieces, hits, forks that copy, and a pool that runs out."""
    requests = [(random_prompt(33), SamplingParams(max_tokens=12)) for _ in range(3)]
    requests.insert(1, (random_prompt(33), SamplingParams(max_tokens=12, n=4)))
    options = {
        "max_model_len": MAX_MODEL_LEN,
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 64,
        "watermark": 0.0,
    }
    if contiguous:
        return Scenario(requests, options | {"num_gpu_blocks": 3}, contiguous=True, late=1)
    paging = {"block_size": 4, "num_gpu_blocks": blocks_for(33 + 12 - 1, 4) + 4, "enable_prefix_caching": True}
    return Scenario(requests, options | paging, late=1)


def run_property(model_name: str, examples: int, *, contiguous: bool = False) -> Counter:
    """The property over `examples` scenarios, and the busy one. Returns in how many of them what happened."""
    model = tiny_model(model_name)
    seen: Counter = Counter()

    @settings(max_examples=examples)
    @given(scenarios(contiguous))
    @example(busy_scenario(contiguous))
    def tokens_are_the_model_s_own(scenario: Scenario) -> None:
        assert_equal_to_generate(model, scenario)
        seen.update(scenario.seen, examples=1)

    tokens_are_the_model_s_own()
    return seen


def assert_it_all_happened(seen: Counter, share: float) -> None:
    """The property is worth little if the pools were roomy or nothing was shared."""
    for what in ("preempted", "hit", "copied", "chunked"):
        assert seen[what] >= max(1, share * seen["examples"]), (what, seen)


@pytest.mark.parametrize("name", ["toy", *CONFIGS])
def test_in_the_busy_scenario_everything_happens(name):
    scenario = busy_scenario()
    serve(tiny_model(name), scenario)
    assert all(scenario.seen[what] for what in ("preempted", "hit", "copied", "chunked")), scenario.seen


@pytest.mark.parametrize("attn_backend", BACKENDS)
@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
@pytest.mark.parametrize("name", ["toy", *CONFIGS])
def test_rule_10_no_backend_and_no_forward_pass_changes_the_tokens(name, model_impl, attn_backend):
    scenario = busy_scenario()
    scenario.options |= {"model_impl": model_impl, "attn_backend": attn_backend}
    assert_equal_to_generate(tiny_model(name), scenario)


def test_rule_10_nothing_changes_the_tokens_of_the_toy_model():
    assert_it_all_happened(run_property("toy", 120), 0.08)


@pytest.mark.parametrize("name", CONFIGS)
def test_rule_10_nothing_changes_the_tokens_of_other_architectures(name):
    assert_it_all_happened(run_property(name, 25), 0.0)


def test_rule_10_the_contiguous_engine_makes_the_same_tokens_too():
    seen = run_property("toy", 40, contiguous=True)
    assert seen["copied"] > 0, seen  # forks copy their row
    assert seen["hit"] == 0, "the baseline shares nothing"


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_rule_10_the_contiguous_engine_makes_the_same_tokens_with_other_architectures(name):
    run_property(name, 8, contiguous=True)


# The tokens would show it


def forgets_the_oldest_token(query, key_pool, value_pool, block_tables, context_lens, query_lens, **options):
    """Right in all but one thing: where a sequence has more than four tokens, nobody sees its first one."""
    oldest = [int(table[0]) for table, length in zip(block_tables, context_lens, strict=True) if length > 4]
    key_pool, value_pool = key_pool.clone(), value_pool.clone()
    value_pool[oldest, 0] = 0
    return reference.paged_attention(query, key_pool, value_pool, block_tables, context_lens, query_lens, **options)


def reads_a_neighbour_s_block(query, key_pool, value_pool, block_tables, context_lens, query_lens, **options):
    """The second block of each table is mistaken for the first."""
    tables = block_tables.clone()
    if tables.shape[1] > 1:
        tables[:, 1] = torch.where(torch.tensor(context_lens) > 4, tables[:, 0], tables[:, 1])
    return reference.paged_attention(query, key_pool, value_pool, tables, context_lens, query_lens, **options)


@pytest.mark.parametrize("wrong", [forgets_the_oldest_token, reads_a_neighbour_s_block])
@pytest.mark.parametrize("name", ["toy", *CONFIGS])
def test_a_wrong_attention_shows_in_the_tokens_of_every_model_here(name, wrong):
    model = tiny_model(name)
    prompts = [random_prompt(length, seed) for seed, length in enumerate((8, 8, 8, 8))]
    engine = Engine(
        model, parts=Parts(paged_attention=wrong), block_size=4, num_gpu_blocks=32, max_model_len=MAX_MODEL_LEN
    )
    outputs = engine.generate(prompts, SamplingParams(max_tokens=8), use_tqdm=False)
    assert [out.token_ids for out in outputs] != [own_tokens(model, prompt, 8) for prompt in prompts]


# The corners, one by one


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_rule_10_a_pool_for_one_request_serves_five_by_turns(block_size, enable_prefix_caching):
    model = tiny_model("toy")
    prompts = [random_prompt(20, seed) for seed in (0, 0, 1, 2, 3)]
    scenario = Scenario(
        [(prompt, SamplingParams(max_tokens=12)) for prompt in prompts],
        {
            "block_size": block_size,
            "num_gpu_blocks": blocks_for(31, block_size) + (block_size < 32),
            "enable_prefix_caching": enable_prefix_caching,
            "enable_chunked_prefill": True,
            "max_num_batched_tokens": 8,
            "max_model_len": MAX_MODEL_LEN,
        },
    )
    assert_equal_to_generate(model, scenario)


def test_rule_10_prompts_that_come_again_and_again_hit_the_cache_and_say_the_same():
    model = tiny_model("toy")
    engine = Engine(model, block_size=4, num_gpu_blocks=24, max_model_len=MAX_MODEL_LEN)
    prompts = [random_prompt(16), random_prompt(16) + random_prompt(7, 1), random_prompt(12), random_prompt(23, 2)]
    expected = [own_tokens(model, prompt, 8) for prompt in prompts]
    cached = []
    for _ in range(4):
        outputs = engine.generate(prompts, SamplingParams(max_tokens=8), use_tqdm=False)
        assert [output.token_ids for output in outputs] == expected
        cached.append(sum(output.num_cached_tokens for output in outputs))
        assert_all_back(engine)
    assert cached[1] > cached[0]


def test_rule_10_a_turn_that_takes_up_the_last_answer_hits_its_blocks_too():
    model = tiny_model("toy")
    engine = Engine(model, block_size=4, num_gpu_blocks=40, max_model_len=128)
    conversation = new = random_prompt(10)
    for turn in range(4):
        output = engine.generate([conversation], SamplingParams(max_tokens=7), use_tqdm=False)[0]
        assert output.token_ids == own_tokens(model, conversation, 7)
        if turn:
            # All that the last turn left in the cache: prompt and answer, but for the answer's last token.
            assert output.num_cached_tokens == (len(conversation) - len(new) - 1) // 4 * 4
        new = random_prompt(5, 20 + turn)
        conversation = conversation + output.token_ids + new


def test_rule_10_a_sequence_that_reaches_the_model_s_maximum_length_ends_there():
    model = tiny_model("llama")
    prompt = random_prompt(240)
    engine = Engine(model, block_size=16, num_gpu_blocks=16)
    output = engine.generate([prompt], SamplingParams(max_tokens=100), use_tqdm=False)[0]
    assert output.token_ids == own_tokens(model, prompt, 16)
    assert output.finish_reason == "length"
    assert_all_back(engine)


def test_rule_10_the_model_generates_by_itself_as_before_while_an_engine_holds_it():
    model = tiny_model("qwen3")
    prompt = random_prompt(12)
    implementation = model.hf.config._attn_implementation

    def generate() -> list[int]:
        with torch.inference_mode():
            return model.hf.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=0).tolist()

    before = generate()
    engine = Engine(model, num_gpu_blocks=8, max_model_len=MAX_MODEL_LEN)
    engine.add_request(prompt, SamplingParams(max_tokens=6))
    engine.step()
    assert generate() == before
    assert model.hf.config._attn_implementation == implementation


def test_rule_10_two_engines_on_one_model_do_not_meet():
    model = tiny_model("toy")
    prompts = [random_prompt(14), random_prompt(15, 3)]
    engines = [Engine(model, block_size=4, num_gpu_blocks=12, max_model_len=MAX_MODEL_LEN) for _ in prompts]
    for engine, prompt in zip(engines, prompts, strict=True):
        engine.add_request(prompt, SamplingParams(max_tokens=9))
    done = []
    while any(engine.has_unfinished_requests() for engine in engines):
        for engine in engines:
            done += engine.step().finished
    assert {tuple(output.token_ids) for output in done} == {tuple(own_tokens(model, p, 9)) for p in prompts}


# The bundled model, a handful


@pytest.fixture(scope="module")
def bundled() -> LoadedModel:
    from pagedkv_lab.engine.models import bundled_gguf, load_model

    if bundled_gguf() is None:
        pytest.fail("the bundled model is not installed: run `make lab`")
    return load_model("SmolLM2-135M-Instruct", device="cpu")


@pytest.mark.parametrize(
    ("options", "contiguous"),
    [
        ({"block_size": 16, "num_gpu_blocks": 64}, False),
        ({"block_size": 4, "num_gpu_blocks": 13, "max_num_batched_tokens": 8}, False),
        ({"block_size": 1, "num_gpu_blocks": 128, "enable_prefix_caching": False}, False),
        ({"block_size": 32, "num_gpu_blocks": 2, "max_num_batched_tokens": 24}, False),
        ({"num_gpu_blocks": 2}, True),
    ],
    ids=["roomy", "tight", "no-cache", "two-blocks", "contiguous"],
)
def test_rule_10_the_bundled_model_says_what_it_says_by_itself(bundled, options, contiguous):
    begin = bundled.encode("The library opens at nine in the morning. On Saturdays it opens at ten, and on Sundays")
    prompts = [begin + bundled.encode(end) for end in (" it", " the doors", " the doors")] + [begin[:16]]
    requests = [(prompt, SamplingParams(max_tokens=8)) for prompt in prompts]
    requests[0] = (prompts[0], SamplingParams(n=2, max_tokens=8))
    options = {"max_model_len": MAX_MODEL_LEN, "max_num_batched_tokens": 64, "enable_chunked_prefill": True} | options
    assert_equal_to_generate(bundled, Scenario(requests, options, contiguous=contiguous))
