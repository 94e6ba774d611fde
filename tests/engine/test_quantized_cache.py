"""The engine on a quantized pool: which tokens may depend on what, and that nothing is read that nobody holds.

int8 has a scale for each token, so rule 10 holds as ever: its tokens are the same however they are computed (on a model
whose likeliest token is never a near tie; rounding may decide another one's). int4 keeps partly filled blocks exact, so
its tokens depend on how a prompt was cut, and the rule holds where it was not cut.
"""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_token_equality import Scenario, assert_it_all_happened, busy_scenario, scenarios, serve
from tiny_models import CONFIGS, assert_all_back, own_tokens, random_model, random_prompt, tiny_model

from pagedkv_lab import sizing
from pagedkv_lab.attention import BACKENDS, reference
from pagedkv_lab.engine import ContiguousEngine, Engine, LoadedModel, Parts, SamplingParams
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.runner import ModelRunner
from pagedkv_lab.errors import PagedKVError, PartError, UnsupportedModel
from pagedkv_lab.kv import QuantizedKVPool

QUANTIZED = ("int8", "int4")
BLOCK_SIZE = 4


def make_engine(kv_cache_dtype: str, name: str = "toy", **options: Any) -> Engine:
    defaults = {"block_size": BLOCK_SIZE, "num_gpu_blocks": 64, "max_model_len": 64, "max_num_seqs": 8}
    return Engine(tiny_model(name), **(defaults | options), kv_cache_dtype=kv_cache_dtype)


@cache
def alone(name: str, kv_cache_dtype: str, prompt: tuple[int, ...], max_tokens: int, **options: Any) -> list[int]:
    """The tokens of one prompt in an engine of its own: room for all, computed in one piece, nothing cached."""
    engine = make_engine(kv_cache_dtype, name, enable_prefix_caching=False, **options)
    return engine.generate([list(prompt)], SamplingParams(max_tokens=max_tokens), use_tqdm=False)[0].token_ids


def assert_as_alone(name: str, kv_cache_dtype: str, scenario: Scenario) -> None:
    scenario.options["kv_cache_dtype"] = kv_cache_dtype
    for (prompt, params), tokens in zip(scenario.requests, serve(tiny_model(name), scenario), strict=True):
        assert tokens == [alone(name, kv_cache_dtype, tuple(prompt), params.max_tokens)] * params.n


def poison(engine: Engine) -> None:
    """NaN in every block and every tail that nobody can ask for."""
    pool, allocator = engine.runner.pool, engine.manager.allocator
    snapshot = engine.snapshot()
    unknown = torch.tensor([allocator.ref_count(b) == 0 and not snapshot.state[b] for b in range(pool.num_blocks)])
    for side in (*pool.keys, *pool.values):
        side.scale[unknown] = float("nan")
    if pool.tails:
        held = {int(pool.tails.row_of[b]) for b in range(pool.num_blocks) if allocator.ref_count(b)}
        unused = torch.tensor([row not in held for row in range(pool.tails.num_tails)])
        for tail in (*pool.tail_keys, *pool.tail_values):
            tail[unused] = float("nan")


# Which tokens may depend on what


def run_property(name: str, examples: int, *, contiguous: bool = False) -> Any:
    busy = busy_scenario(contiguous)
    seen = busy.seen

    @settings(max_examples=examples)
    @given(scenarios(contiguous))
    @example(busy)
    def tokens_are_those_of_the_prompt_alone(scenario: Scenario) -> None:
        assert_as_alone(name, "int8", scenario)
        if scenario is not busy:
            seen.update(scenario.seen)
        seen.update(examples=1)

    tokens_are_those_of_the_prompt_alone()
    return seen


def test_int8_nothing_changes_the_tokens_of_the_toy_model():
    assert_it_all_happened(run_property("toy", 40), 0.08)


@pytest.mark.parametrize("name", CONFIGS)
def test_int8_nothing_changes_the_tokens_of_other_architectures(name):
    run_property(name, 6)


def test_int8_the_contiguous_engine_makes_the_same_tokens_too():
    assert run_property("toy", 10, contiguous=True)["copied"] > 0


@pytest.mark.parametrize("kv_cache_dtype", QUANTIZED)
def test_the_tokens_are_seldom_those_of_the_exact_cache_and_often_begin_like_them(kv_cache_dtype):
    """On models of random numbers, which are as sensitive as it gets: were they always equal, nothing would be
    quantized; were they never, nothing would be read right."""
    prompts = [tuple(random_prompt(20, seed)) for seed in range(12)]
    pairs = [(alone("toy", kv_cache_dtype, p, 12), own_tokens(tiny_model("toy"), list(p), 12)) for p in prompts]
    assert sum(mine[:1] == own[:1] for mine, own in pairs) >= 6
    assert any(mine != own for mine, own in pairs)


#: Prompts that are computed whole, in a pool with room for all.
WHOLE_PROMPTS = st.lists(
    st.tuples(
        st.builds(
            lambda begin, length, end: random_prompt(length, begin) + random_prompt(end, 11),
            st.sampled_from([0, 0, 1]),
            st.sampled_from([16, 17, 20, 9, 32, 31, 3]),
            st.sampled_from([0, 0, 5]),
        ),
        st.builds(SamplingParams, max_tokens=st.integers(1, 9), n=st.sampled_from([1, 1, 1, 3])),
    ),
    min_size=2,
    max_size=5,
)


@pytest.mark.parametrize("name", ["toy", "gpt2", "gemma2"])
@settings(max_examples=15)
@given(requests=WHOLE_PROMPTS, late=st.integers(0, 2), block_size=st.sampled_from([1, 4, 16]))
def test_int4_prefix_caching_and_batching_change_no_tokens_where_prompts_are_computed_whole(
    name, requests, late, block_size
):
    expected = None
    for enable_prefix_caching in (False, True):
        options = {
            "max_model_len": 64, "block_size": block_size, "num_gpu_blocks": 640 // block_size, "max_num_seqs": 16,
            "enable_chunked_prefill": False, "enable_prefix_caching": enable_prefix_caching, "kv_cache_dtype": "int4",
        }  # fmt: skip
        tokens = serve(tiny_model(name), Scenario(requests, options, late=min(late, len(requests) - 1)))
        expected = expected or tokens
        assert tokens == expected
    own_options = {"block_size": block_size, "num_gpu_blocks": 64}
    for (prompt, params), outputs in zip(requests, expected, strict=True):
        assert outputs == [alone(name, "int4", tuple(prompt), params.max_tokens, **own_options)] * params.n


def test_int4_prompts_that_come_again_hit_the_cache_and_say_the_same():
    engine = make_engine("int4")
    prompts = [random_prompt(16), random_prompt(16) + random_prompt(7, 1), random_prompt(23, 2)]
    first, again = (engine.generate(prompts, SamplingParams(max_tokens=8), use_tqdm=False) for _ in range(2))
    assert [out.token_ids for out in first] == [out.token_ids for out in again]
    assert [out.num_cached_tokens for out in again] == [15, 20, 20]
    assert_all_back(engine)


def test_int4_a_sequence_that_is_computed_again_goes_on_like_a_prompt_of_its_tokens(monkeypatch):
    """What it said before is a part of its prompt then, and full blocks of it are seen quantized."""
    prompt = random_prompt(10)
    engine = make_engine("int4", enable_prefix_caching=False)
    engine.add_request(prompt, SamplingParams(max_tokens=16))
    for _ in range(7):
        engine.step()
    said = list(engine.requests()[1].sequences[0].output_token_ids)
    monkeypatch.setattr(engine.runner, "_forward", fail)
    with pytest.raises(ZeroDivisionError):
        engine.step()
    monkeypatch.undo()
    done = []
    while not done:
        done = engine.step().finished
    assert done[0].token_ids == said + alone("toy", "int4", tuple(prompt + said), 16 - len(said))


def fail(*args: Any, **kwargs: Any) -> None:
    raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize(
    ("make", "kv_cache_dtype"), [*((Engine, dtype) for dtype in QUANTIZED), (ContiguousEngine, "int8")]
)
def test_all_outputs_of_a_prompt_say_the_same(make, kv_cache_dtype):
    options = {"block_size": BLOCK_SIZE, "num_gpu_blocks": 32} if make is Engine else {"num_gpu_blocks": 4}
    engine = make(tiny_model("toy"), max_model_len=32, kv_cache_dtype=kv_cache_dtype, **options)
    output = engine.generate([random_prompt(6)], SamplingParams(n=4, max_tokens=9), use_tqdm=False)[0]
    assert len({tuple(o.token_ids) for o in output.outputs}) == 1
    assert engine.stats().copied_blocks == 3
    if make is Engine:
        assert output.token_ids == alone("toy", kv_cache_dtype, tuple(random_prompt(6)), 9)


@pytest.mark.parametrize("kv_cache_dtype", QUANTIZED)
def test_a_fork_goes_on_like_its_parent_and_neither_disturbs_the_other(kv_cache_dtype):
    engine = make_engine(kv_cache_dtype)
    prompt = random_prompt(9)
    parent = engine.add_request(prompt, SamplingParams(max_tokens=14))
    for _ in range(3):
        engine.step()
    child = engine.fork(parent, SamplingParams(max_tokens=14))
    stranger = engine.fork(parent, SamplingParams(max_tokens=14, temperature=1.5, seed=1))
    done = {}
    while engine.has_unfinished_requests():
        done |= {out.request_id: out.token_ids for out in engine.step().finished}
    assert done[parent] == done[child] == alone("toy", kv_cache_dtype, tuple(prompt), 14)
    assert done[stranger] != done[parent]
    assert_all_back(engine)


# What is read, and what is not


@pytest.mark.parametrize("kv_cache_dtype", QUANTIZED)
def test_blocks_and_tails_that_nobody_holds_are_never_read(kv_cache_dtype):
    options = {"num_gpu_blocks": 14, "max_num_batched_tokens": 9, "enable_prefix_caching": False, "max_num_seqs": 5}
    outputs = []
    for poisoned in (False, True):
        engine = make_engine(kv_cache_dtype, **options)
        for seed, params in enumerate((SamplingParams(max_tokens=9), SamplingParams(n=3, max_tokens=11))):
            for _ in range(2):
                engine.add_request(random_prompt(11, seed), params)
        done = {}
        while engine.has_unfinished_requests():
            if poisoned:
                poison(engine)
            done |= {out.request_id: [o.token_ids for o in out.outputs] for out in engine.step().finished}
        assert engine.stats().preemptions > 0
        assert engine.stats().copied_blocks > 0
        outputs.append(done)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("kv_cache_dtype", QUANTIZED)
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("side", ["keys", "values"])
def test_a_wrong_scale_would_show_in_the_logits(monkeypatch, kv_cache_dtype, layer, side):
    logits = []
    for factor in (1, 1, 1.5):
        engine = make_engine(kv_cache_dtype)
        engine.add_request(random_prompt(13), SamplingParams(max_tokens=8))
        engine.step()
        getattr(engine.runner.pool, side)[layer].scale.mul_(factor)
        execute = engine.runner.execute
        monkeypatch.setattr(engine.runner, "execute", lambda step: logits.append(execute(step).clone()) or logits[-1])  # noqa: B023
        engine.step()
    assert torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2], atol=1e-2)


@pytest.mark.parametrize("attn_backend", BACKENDS)
@pytest.mark.parametrize("kv_cache_dtype", QUANTIZED)
def test_every_backend_and_anybodys_attention_reads_it(kv_cache_dtype, attn_backend):
    prompts, params = [random_prompt(13), random_prompt(8, 2)], SamplingParams(max_tokens=10)
    expected = [alone("toy", kv_cache_dtype, tuple(prompt), 10) for prompt in prompts]
    for options in ({"attn_backend": attn_backend}, {"parts": Parts(paged_attention=BACKENDS[attn_backend])}):
        engine = make_engine(kv_cache_dtype, **options)
        assert [out.token_ids for out in engine.generate(prompts, params, use_tqdm=False)] == expected


def test_the_contiguous_engine_takes_int8_and_refuses_what_waits_for_full_blocks():
    prompt = random_prompt(13)
    engine = ContiguousEngine(tiny_model("toy"), max_model_len=48, num_gpu_blocks=2, kv_cache_dtype="int8")
    (output,) = engine.generate(prompt, SamplingParams(max_tokens=10), use_tqdm=False)
    assert output.token_ids == alone("toy", "int8", tuple(prompt), 10)
    with pytest.raises(ValueError, match="'int8' or 'auto'"):
        ContiguousEngine(tiny_model("toy"), max_model_len=48, num_gpu_blocks=2, kv_cache_dtype="int4")


# When something breaks


@pytest.mark.parametrize("kv_cache_dtype", QUANTIZED)
@pytest.mark.parametrize("at", range(0, 16, 3))
def test_a_step_that_breaks_off_between_two_layers_spoils_nothing(monkeypatch, kv_cache_dtype, at):
    """Half of its layers are written then. The tails must still last, too: as few as sequences may run."""
    prompts = [random_prompt(13), random_prompt(13), random_prompt(6, 2)]
    engine = make_engine(kv_cache_dtype, max_num_seqs=5, max_num_batched_tokens=64, enable_prefix_caching=at % 2 == 0)
    write, calls = QuantizedKVPool.write, []

    def breaks_once(self: QuantizedKVPool, *args: Any) -> None:
        calls.append(1)
        if len(calls) == at + 1:
            fail()
        write(self, *args)

    monkeypatch.setattr(QuantizedKVPool, "write", breaks_once)
    params = [SamplingParams(max_tokens=9), SamplingParams(max_tokens=5), SamplingParams(n=3, max_tokens=7)]
    for prompt, param in zip(prompts, params, strict=True):
        engine.add_request(prompt, param)
    failed, done = 0, []
    while engine.has_unfinished_requests():
        poison(engine)
        try:
            done += engine.step().finished
        except ZeroDivisionError:
            failed += 1
    assert failed == 1
    assert_all_back(engine)
    if kv_cache_dtype == "int8":
        for out in done:
            expected = alone("toy", "int8", tuple(out.prompt_token_ids), len(out.token_ids))
            assert [o.token_ids for o in out.outputs] == [expected] * len(out.outputs)
    # And those that come afterwards say what they say in a new engine.
    for prompt in prompts:
        output = engine.generate([[*prompt, 5]], SamplingParams(max_tokens=7), use_tqdm=False)[0]
        assert output.token_ids == alone("toy", kv_cache_dtype, (*prompt, 5), 7)


def test_int4_a_pool_that_starts_anew_after_a_broken_part_has_all_its_tails(monkeypatch):
    engine = make_engine("int4", max_num_seqs=1)
    for _ in range(4):  # more often than there are tails
        engine.add_request(random_prompt(6), SamplingParams(max_tokens=4))
        engine.step()
        monkeypatch.setattr(engine.scheduler, "schedule", break_a_part)
        with pytest.raises(PartError):
            engine.step()
        monkeypatch.undo()
        assert (engine.runner.pool.tails.row_of == -1).all()
        done = []
        while not done:
            done = engine.step().finished
    assert_all_back(engine)


def break_a_part() -> None:
    raise PartError("Scheduler", "schedule()", "it is broken on purpose")


def test_int4_two_tails_for_each_sequence_last_in_the_tightest_engine():
    """Chunks that end anywhere, forks, a pool that runs out: all with the tails of max_num_seqs sequences."""
    scenario = busy_scenario()
    scenario.options |= {"max_num_seqs": 4, "max_num_batched_tokens": 7, "kv_cache_dtype": "int4"}
    serve(tiny_model("toy"), scenario)
    assert all(scenario.seen[what] for what in ("preempted", "hit", "copied", "chunked")), scenario.seen


@settings(max_examples=40)
@given(scenarios())
def test_int4_whatever_happens_each_request_gets_its_tokens_and_the_books_are_right(scenario):
    scenario.options["kv_cache_dtype"] = "int4"
    outputs = serve(tiny_model("toy"), scenario)  # checks the books after every step
    for (_, params), tokens in zip(scenario.requests, outputs, strict=True):
        assert [len(t) for t in tokens] == [params.max_tokens] * params.n


# What it weighs


@pytest.mark.parametrize("block_size", [4, 7, 16])
@pytest.mark.parametrize("kv_cache_dtype", QUANTIZED)
def test_the_plan_counts_data_scales_and_tails_as_the_tensors_do(kv_cache_dtype, block_size):
    engine = make_engine(kv_cache_dtype, block_size=block_size, num_gpu_blocks=9)
    pool = engine.runner.pool
    assert engine.plan.pool_bytes == pool.nbytes
    assert engine.plan.tail_bytes == sum(tail.nbytes for tail in (*pool.tail_keys, *pool.tail_values))
    assert engine.plan.num_tails == (16 if kv_cache_dtype == "int4" else 0)
    assert engine.plan.block_bytes * 9 == sum(side.nbytes for side in (*pool.keys, *pool.values))
    assert engine.plan.bytes_per_token * block_size == engine.plan.block_bytes


@pytest.mark.parametrize("block_size", [4, 7])
@pytest.mark.parametrize("kv_cache_dtype", QUANTIZED)
def test_a_budget_holds_as_many_quantized_blocks_as_fit_beside_the_tails(kv_cache_dtype, block_size):
    engine = make_engine(kv_cache_dtype, block_size=block_size, num_gpu_blocks=None, kv_cache_memory_bytes=150_000)
    assert engine.runner.pool.nbytes <= 150_000 < engine.runner.pool.nbytes + engine.plan.block_bytes
    assert engine.runner.pool.num_blocks == engine.plan.num_blocks


def test_the_plan_tells_the_arithmetic_of_int8():
    plan = make_engine("int8", block_size=16, num_gpu_blocks=None, kv_cache_memory_bytes=2**20).plan
    assert str(plan).splitlines()[:5] == [
        "KV pool for toy (float32, cpu; keys and values in int8)",
        "  one token  2 (key and value) × 2 layers × 2 KV heads × 16 numbers × 1 bytes = 128 bytes (128 B)",
        "  one block  16 tokens × 128 B + 256 B of scales = 2.25 KiB",
        "  budget     1 MiB, as asked (kv_cache_memory_bytes)",
        "  blocks     1 MiB / 2.25 KiB = 455, rounded down",
    ]


def test_the_plan_tells_the_arithmetic_of_int4_with_its_tails():
    plan = make_engine("int4", block_size=16, num_gpu_blocks=None, kv_cache_memory_bytes=2**20).plan
    assert str(plan).splitlines()[1:6] == [
        "  one token  2 (key and value) × 2 layers × 2 KV heads × 16 numbers × 0.5 bytes = 64 bytes (64 B)",
        "  one block  16 tokens × 64 B + 512 B of scales = 1.5 KiB",
        "  tails      2 × 8 (max_num_seqs) = 16 partly filled blocks in float32 = 128 KiB",
        "  budget     1 MiB, as asked (kv_cache_memory_bytes)",
        "  blocks     (1 MiB - 128 KiB) / 1.5 KiB = 597, rounded down",
    ]


@pytest.mark.parametrize(("kv_cache_dtype", "itemsize"), [("auto", 4), ("int8", 1), ("int4", 0.5)])
def test_the_sizing_function_of_a_learner_is_asked_for_the_data_of_a_token(kv_cache_dtype, itemsize):
    asked = []

    def kv_bytes_per_token(*shape: Any) -> int:
        asked.append(shape)
        return sizing.kv_bytes_per_token(*shape)

    make_engine(kv_cache_dtype, parts=Parts(kv_bytes_per_token=kv_bytes_per_token))
    assert asked == [(2, 2, 16, itemsize)]
    with pytest.raises(PartError, match="it says 2 bytes; one token of this pool's tensors weighs"):
        make_engine(kv_cache_dtype, parts=Parts(kv_bytes_per_token=lambda *shape: 2))


def test_where_the_tails_leave_no_room_the_numbers_are_said_and_what_to_do():
    with pytest.raises(PagedKVError, match=r"16 tails take 32 KiB.* or max_num_seqs\.$"):
        make_engine("int4", num_gpu_blocks=None, kv_cache_memory_bytes=20_000)


# What is refused


def test_an_unknown_name_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="kv_cache_dtype must be auto, int8, int4, not 'fp8'"):
        EngineConfig(kv_cache_dtype="fp8")


def test_heads_of_an_odd_size_are_refused_in_int4_by_name_and_served_in_int8():
    odd = LoadedModel(random_model("GPT2Config", **CONFIGS["gpt2"][1] | {"n_embd": 36}), None, "odd heads")
    with pytest.raises(UnsupportedModel, match=r"odd heads: .*int4 packs two numbers .* have 9 a head: take int8"):
        Engine(odd, kv_cache_dtype="int4", num_gpu_blocks=8, max_model_len=32)
    engine = Engine(odd, kv_cache_dtype="int8", num_gpu_blocks=8, max_model_len=32)
    assert len(engine.generate([random_prompt(9)], SamplingParams(max_tokens=5), use_tqdm=False)[0].token_ids) == 5


def test_the_runner_makes_the_pool_that_it_is_asked_for():
    model = tiny_model("toy")
    runner = ModelRunner(model.hf, model.name, reference.paged_attention)
    runner.allocate(3, 4, sizing.KVQuantization(8, "channel"), 2)
    assert isinstance(runner.pool, QuantizedKVPool)
    assert runner.pool.keys[0].data.dtype == torch.int8
    assert runner.pool.tails.num_tails == 2
