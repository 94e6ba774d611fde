"""The engine's options: each is documented, refused where it makes no sense, and changes what it says it changes."""

import inspect
import math
import re
from dataclasses import fields
from typing import Any

import pytest
from tiny_models import assert_all_back, own_tokens, random_prompt, tiny_model

from pagedkv_lab.attention import BACKENDS
from pagedkv_lab.engine import ContiguousEngine, Engine, SamplingParams, StepReport
from pagedkv_lab.engine.config import EngineConfig

OPTIONS = [field.name for field in fields(EngineConfig)]


def make_engine(**options: Any) -> Engine:
    return Engine(tiny_model("toy"), **{"block_size": 4, "num_gpu_blocks": 64, "max_model_len": 64} | options)


def add(engine: Engine, *prompts: list[int], max_tokens: int = 4, **params: Any) -> list[int]:
    params = {"max_tokens": max_tokens, "ignore_eos": True} | params
    return [engine.add_request(prompt, SamplingParams(**params)) for prompt in prompts]


def run(engine: Engine) -> tuple[list[StepReport], dict[int, list[int]]]:
    """Run everything to the end. Returns the reports, and each request's tokens by its id."""
    reports, tokens = [], {}
    while engine.has_unfinished_requests():
        reports.append(engine.step())
        tokens |= {output.request_id: output.token_ids for output in reports[-1].finished}
    assert_all_back(engine)
    return reports, tokens


PROMPTS = [random_prompt(length, seed) for seed, length in enumerate((9, 13, 6, 11))]


# Documented


def documented() -> dict[str, str]:
    """Option by option, what the docstring says of it."""
    text = inspect.cleandoc(EngineConfig.__doc__)
    entries = re.findall(r"^(\w+): (.+(?:\n    .+)*)", text, flags=re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}


def test_every_option_is_documented_and_no_other():
    assert sorted(documented()) == sorted(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_s_documentation_is_a_sentence(name):
    words = documented()[name]
    assert len(words.split()) >= 3, words
    assert words.endswith(".")


def test_an_option_that_does_not_exist_is_named():
    with pytest.raises(TypeError, match="blocksize"):
        make_engine(blocksize=4)


# Refused


OUT_OF_RANGE = [
    *((name, value) for name in ("block_size", "max_num_seqs") for value in (0, -1)),
    *(
        (name, value)
        for name in ("num_gpu_blocks", "kv_cache_memory_bytes", "max_model_len", "max_num_batched_tokens")
        for value in (0, -5)
    ),
    *(("gpu_memory_utilization", value) for value in (0, -0.1, 1.01, math.nan)),
    *(("watermark", value) for value in (-0.01, 1, 1.5, math.nan)),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_the_option_s_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, not {re.escape(repr(value))}$"):
        make_engine(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 1, "num_gpu_blocks": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": 1},
        {"kv_cache_memory_bytes": 1},
        {"gpu_memory_utilization": 1.0, "watermark": 0},
        {"gpu_memory_utilization": 1e-9, "watermark": 0.999},
    ],
)
def test_the_ends_of_the_ranges_are_within_them(options):
    EngineConfig(**options).resolve(64)


def test_an_attention_backend_that_is_not_known_is_refused_with_the_names_of_those_that_are():
    with pytest.raises(ValueError, match=r"attn_backend 'flash' is not known.*reference, torch_paged"):
        make_engine(attn_backend="flash")


def test_a_longest_sequence_above_the_model_s_own_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="max_model_len 2049 is above the model's own maximum of 2048 positions"):
        make_engine(max_model_len=2049)


def test_the_contiguous_engine_refuses_above_the_model_s_own_length_too():
    with pytest.raises(ValueError, match="max_model_len 4096 is above the model's own maximum of 2048"):
        ContiguousEngine(tiny_model("toy"), max_model_len=4096, num_gpu_blocks=1)


@pytest.mark.parametrize("name", ["block_size", "enable_prefix_caching", "parts"])
def test_the_contiguous_engine_refuses_what_means_nothing_without_paging(name):
    with pytest.raises(ValueError, match=f"{name} means nothing to the contiguous engine"):
        ContiguousEngine(tiny_model("toy"), max_model_len=64, num_gpu_blocks=1, **{name: None})


def test_without_chunks_a_step_must_take_the_longest_prompt():
    with pytest.raises(ValueError, match=r"raise max_num_batched_tokens \(63\) to max_model_len \(64\)"):
        make_engine(enable_chunked_prefill=False, max_num_batched_tokens=63)
    make_engine(enable_chunked_prefill=False, max_num_batched_tokens=64)


@pytest.mark.parametrize(
    ("options", "model_max_len", "max_model_len", "max_num_batched_tokens"),
    [
        ({}, 512, 512, 2048),
        ({}, 8192, 8192, 2048),
        ({"max_model_len": 100}, 512, 100, 2048),
        ({"enable_chunked_prefill": False}, 512, 512, 2048),
        ({"enable_chunked_prefill": False}, 8192, 8192, 8192),
    ],
)
def test_what_is_left_out_is_taken_from_the_model(options, model_max_len, max_model_len, max_num_batched_tokens):
    config = EngineConfig(**options)
    config.resolve(model_max_len)
    assert (config.max_model_len, config.max_num_batched_tokens) == (max_model_len, max_num_batched_tokens)


# Each one changes something


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_num_seqs_is_how_many_run_at_once(limit):
    engine = make_engine(max_num_seqs=limit)
    ids = add(engine, *PROMPTS)
    reports, tokens = run(engine)
    assert max(report.num_scheduled for report in reports) == limit
    assert [tokens[i] for i in ids] == [own_tokens(engine.model, prompt, 4) for prompt in PROMPTS]


def test_max_num_seqs_keeps_places_for_the_outputs_that_a_prompt_will_fork_into():
    engine = make_engine(max_num_seqs=4)
    add(engine, PROMPTS[0], n=3)
    add(engine, PROMPTS[1], n=2)
    reports, _ = run(engine)
    assert max(report.num_scheduled for report in reports) == 3


@pytest.mark.parametrize("limit", [1, 5, 8, 16])
def test_max_num_batched_tokens_is_how_many_a_step_computes(limit):
    engine = make_engine(max_num_batched_tokens=limit)
    ids = add(engine, *PROMPTS)
    reports, tokens = run(engine)
    computed = [report.num_prefill_tokens + report.num_decode_tokens for report in reports]
    assert max(computed) == limit
    assert [tokens[i] for i in ids] == [own_tokens(engine.model, prompt, 4) for prompt in PROMPTS]


def prefills(reports: list[StepReport]) -> dict[int, list[int]]:
    """By request, the sizes of the pieces in which its prompt was computed."""
    pieces: dict[int, list[int]] = {}
    for report in reports:
        for request_id, _, tokens, kind in report.ran:
            if kind == "prefill":
                pieces.setdefault(request_id, []).append(tokens)
    return pieces


@pytest.mark.parametrize("chunked", [True, False])
def test_enable_chunked_prefill_is_whether_prompts_are_computed_in_pieces(chunked):
    engine = make_engine(max_model_len=16, max_num_batched_tokens=16, enable_chunked_prefill=chunked)
    ids = add(engine, *PROMPTS, max_tokens=3)
    reports, tokens = run(engine)
    split = {request_id for request_id, pieces in prefills(reports).items() if len(pieces) > 1}
    assert bool(split) == chunked
    assert {i: sum(pieces) for i, pieces in prefills(reports).items()} == dict(zip(ids, map(len, PROMPTS), strict=True))
    assert [tokens[i] for i in ids] == [own_tokens(engine.model, prompt, 3) for prompt in PROMPTS]


@pytest.mark.parametrize(("watermark", "let_in"), [(0.0, 2), (0.3, 1)])
def test_watermark_keeps_blocks_free_for_those_that_run(watermark, let_in):
    engine = make_engine(num_gpu_blocks=10, watermark=watermark)
    add(engine, random_prompt(16, 1), random_prompt(16, 2), max_tokens=2)  # 4 blocks each; the second leaves 2
    first = engine.step()
    assert first.num_scheduled == let_in
    assert first.pool.used == 4 * let_in
    run(engine)


def test_watermark_keeps_nobody_out_of_an_empty_pool():
    engine = make_engine(num_gpu_blocks=10, watermark=0.9)
    add(engine, random_prompt(36, 1), max_tokens=2)  # 9 of the 10 blocks
    assert engine.step().num_scheduled == 1
    run(engine)


@pytest.mark.parametrize(("enabled", "hits"), [(True, 12), (False, 0)])
def test_enable_prefix_caching_is_whether_full_blocks_are_found_again(enabled, hits):
    engine = make_engine(enable_prefix_caching=enabled)
    prompt = random_prompt(14)  # 3 full blocks of 4
    for expected in (0, hits):
        [output] = engine.generate([prompt], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
        assert output.num_cached_tokens == expected
        assert output.token_ids == own_tokens(engine.model, prompt, 3)
    assert engine.stats().pool.cached == (4 if enabled else 0), "the prompt's 3 blocks and the one that output filled"


@pytest.mark.parametrize(("block_size", "blocks"), [(1, 13), (4, 4), (16, 1)])
def test_block_size_is_how_many_tokens_share_a_block(block_size, blocks):
    engine = make_engine(block_size=block_size)
    add(engine, random_prompt(13))
    assert engine.step().pool.used == blocks
    run(engine)


def test_num_gpu_blocks_is_the_size_of_the_pool():
    engine = make_engine(num_gpu_blocks=9)
    assert engine.stats().pool == (9, 9, 0, 0)
    assert [len(tensor) for tensor in engine.runner.pool.keys] == [9, 9]


@pytest.mark.parametrize("length", [12, 20])
def test_max_model_len_is_where_an_output_ends(length):
    engine = make_engine(max_model_len=length)
    prompt = random_prompt(9)
    [output] = engine.generate([prompt], SamplingParams(max_tokens=50, ignore_eos=True), use_tqdm=False)
    assert output.token_ids == own_tokens(engine.model, prompt, length - 9)
    assert output.finish_reason == "length"


def samples(engine_seed: int, **params: Any) -> list[int]:
    engine = make_engine(seed=engine_seed)
    params = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True, **params)
    return engine.generate([random_prompt(5)], params, use_tqdm=False)[0].token_ids


def test_seed_is_where_samples_start_from_that_have_no_seed_of_their_own():
    assert samples(1) == samples(1)
    assert samples(1) != samples(2)


def test_seed_changes_nothing_for_a_request_that_brings_its_own():
    assert samples(1, seed=7) == samples(2, seed=7)
    assert samples(1, seed=7) != samples(1, seed=8)


@pytest.mark.parametrize("name", BACKENDS)
def test_attn_backend_is_the_function_that_attends(monkeypatch, name):
    calls = []
    function = BACKENDS[name]
    monkeypatch.setitem(BACKENDS, name, lambda *args, **options: calls.append(name) or function(*args, **options))
    engine = make_engine(attn_backend=name)
    assert engine.attn_backend == name
    prompt = random_prompt(9)
    [output] = engine.generate([prompt], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    assert output.token_ids == own_tokens(engine.model, prompt, 3)
    assert calls == [name] * 3 * 2, "three steps of two layers"


def test_without_a_name_the_backend_is_one_of_those_with_a_name():
    assert make_engine().attn_backend in BACKENDS
