"""What a served run writes down: tokens, times, and the cache in its fullest moment."""

import pytest
import torch

from pagedkv_lab.engine import ContiguousEngine, Engine, LoadedModel, SamplingParams, load_model
from pagedkv_lab.measure.serving import Served, serve

#: Prompts of 34 to 36 tokens that share the first 33: a byte is a token of the toy.
PROMPTS = [list(("The house rules of the library: " + tail).encode()) for tail in ("ab", "ac", "ade", "aefg")]
PARAMS = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (4, 6, 3, 5)]
TOKEN_BYTES = 512  # 2 (key and value) × 2 layers × 2 KV heads × 16 numbers × 4 bytes


@pytest.fixture(scope="module")
def toy() -> LoadedModel:
    torch.set_num_threads(1)
    return load_model("toy", device="cpu")


def on_blocks(toy: LoadedModel, **options) -> Served:
    return serve(Engine(toy, num_gpu_blocks=64, max_model_len=128, block_size=8, **options), PROMPTS, PARAMS)


def test_tokens_are_those_that_generate_gives(toy):
    engine = Engine(toy, num_gpu_blocks=64, max_model_len=128, block_size=8)
    outputs = engine.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert [list(tokens) for tokens in on_blocks(toy).token_ids] == [output.token_ids for output in outputs]


def test_each_request_has_a_record_with_its_tokens_and_times(toy):
    records = on_blocks(toy).records
    assert [record.prompt_tokens for record in records] == [len(prompt) for prompt in PROMPTS]
    assert [record.output_tokens for record in records] == [4, 6, 3, 5]
    assert all(record.arrival < record.finish for record in records)
    by_finish = sorted(range(4), key=lambda number: records[number].finish)
    assert by_finish == [2, 0, 3, 1], "all ran together, so those with fewer tokens were done first"


def test_the_fullest_moment_of_a_paged_cache(toy):
    run = on_blocks(toy, enable_prefix_caching=False)
    assert run.block_size == 8
    assert [len(table) for table in run.tables] == [5, 5, 5, 5]
    assert len({block for table in run.tables for block in table}) == 20
    assert run.reserved_bytes == 20 * 8 * TOKEN_BYTES
    # Two output tokens each: the newest one's keys and values are not there yet. With three, the third request is done.
    assert run.num_tokens == tuple(len(prompt) + 1 for prompt in PROMPTS)
    assert (run.hit_rate, run.leaked) == (0, 0)


def test_shared_blocks_are_reserved_once(toy):
    run = on_blocks(toy)
    shared = set.intersection(*map(set, run.tables))
    assert len(shared) == 4, "32 tokens in full blocks"
    assert run.reserved_bytes == (4 + 4) * 8 * TOKEN_BYTES
    assert run.hit_rate == pytest.approx(3 * 32 / sum(map(len, PROMPTS)))


def test_the_fullest_moment_of_a_contiguous_cache(toy):
    run = serve(ContiguousEngine(toy, num_gpu_blocks=2, max_model_len=128), PROMPTS, PARAMS)
    assert run.block_size == 128
    assert [len(table) for table in run.tables] == [1, 1]
    assert run.reserved_bytes == 2 * 128 * TOKEN_BYTES


def test_a_display_hears_of_every_step(toy):
    steps = []
    engine = Engine(toy, num_gpu_blocks=64, max_model_len=128)
    serve(engine, PROMPTS, PARAMS, on_step=lambda: steps.append(1))
    assert len(steps) == engine.stats().steps
