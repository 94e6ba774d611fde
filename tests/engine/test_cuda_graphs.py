"""Decode as CUDA graphs, on a simulated GPU: the same tokens as without, and no Python of ours in a replay."""

import gc
import logging
import os
import weakref
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import static_backend
import torch
from simulated_gpu import SimulatedGpu
from tiny_models import CONFIGS, assert_all_back, own_tokens, random_model, random_prompt, tiny_model

from pagedkv_lab.attention import reference
from pagedkv_lab.engine import Engine, LoadedModel, Parts, SamplingParams
from pagedkv_lab.engine import engine as engine_module
from pagedkv_lab.engine.cuda_graphs import DecodeGraphs, DecodeInput, batch_buckets
from pagedkv_lab.engine.staging import Staging

OPTIONS = {
    "block_size": 4, "num_gpu_blocks": 120, "max_model_len": 48, "max_num_seqs": 12, "model_impl": "transformers",
}  # fmt: skip


@pytest.fixture
def gpu(monkeypatch):
    """A simulated GPU under every engine of the test, with a backend that can be recorded."""
    gpu = SimulatedGpu()
    monkeypatch.setattr(engine_module, "gpu_of", lambda device: gpu)
    monkeypatch.setattr(
        engine_module, "choose_backend", lambda name, device: ("triton_paged", static_backend.paged_attention)
    )
    return gpu


def make_engine(model="llama", **options) -> Engine:
    return Engine(model if isinstance(model, LoadedModel) else tiny_model(model), **OPTIONS | options)


def serve(engine: Engine, requests, late=()) -> list[list[list[int]]]:
    """Each request's outputs, as tokens. late: (step, request) of those that come later."""
    ids = [engine.add_request(*request) for request in requests]
    late, outputs = list(late), {}
    while engine.has_unfinished_requests() or late:
        while late and engine.stats().steps >= late[0][0]:
            ids.append(engine.add_request(*late.pop(0)[1]))
        outputs |= {output.request_id: output for output in engine.step().finished}
        engine.manager.check_invariants()
    assert_all_back(engine)
    return [[list(o.token_ids) for o in outputs[i].outputs] for i in ids]


def watch_buckets(engine: Engine) -> list[int]:
    """The sizes of the steps that are replayed, as they come."""
    sizes, run = [], engine.runner.graphs.run

    def watched(token_ids, *rest):
        sizes.append(len(token_ids))
        return run(token_ids, *rest)

    engine.runner.graphs.run = watched
    return sizes


# Buckets


def test_buckets_have_vllm_s_shape_and_end_with_the_largest_batch():
    assert batch_buckets(1) == [1]
    assert batch_buckets(5) == [1, 2, 4, 5]
    assert batch_buckets(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert batch_buckets(256)[-3:] == [240, 248, 256]
    assert batch_buckets(300)[-4:] == [256, 272, 288, 300]
    assert batch_buckets(5000)[-2:] == [496, 512]


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 8, 9, 64, 200, 256])
def test_a_step_takes_the_smallest_bucket_that_holds_it(largest):
    graphs = DecodeGraphs(SimulatedGpu(), None, None, max_num_seqs=largest, table_width=1)
    for size in range(1, largest + 1):
        bucket = graphs.bucket_of(size)
        assert bucket >= size
        assert not any(size <= other < bucket for other in graphs.buckets)
        assert bucket - size <= 7


# What is copied to the device


class Recorder:
    """A model that says which inputs a replay found, in its logits: (B, 6)."""

    def __init__(self, max_num_seqs=8, table_width=3):
        self.gpu, self.seen = SimulatedGpu(), None
        self.graphs = DecodeGraphs(
            self.gpu, Staging(self.gpu), self.make_decode, max_num_seqs=max_num_seqs, table_width=table_width
        )

    def make_decode(self, inputs: DecodeInput):
        *rows, tables = inputs[:5]
        return lambda: torch.stack([*(row.double() for row in rows), tables[:, 0].double(), tables[:, 1].double()], 1)

    def run(self, num_seqs, first=10, width=2):
        base = np.arange(first, first + num_seqs)
        tables = np.stack([base + 400, base + 500, base + 600], 1).astype(np.int32)[:, :width]
        return self.graphs.run(base, base + 100, base + 200, (base + 300).astype(np.int32), tables)


def test_a_replay_reads_this_step_s_numbers_and_padding_rows_read_nothing():
    model = Recorder()
    model.graphs.capture()
    for num_seqs, first in ((3, 10), (5, 50), (1, 7), (8, 20), (3, 1)):
        logits = model.run(num_seqs, first)
        wanted = torch.arange(first, first + num_seqs)[:, None] + torch.tensor([0, 100, 200, 300, 400, 500])
        assert torch.equal(logits, wanted.double())
        bucket = model.graphs.bucket_of(num_seqs)
        padding = DecodeInput(*(tensor[num_seqs:bucket] for tensor in model.graphs.buffers[:5]))
        assert not any(field.any() for field in (padding.token_ids, padding.positions, padding.context_lens))
        assert (padding.write_slots == -1).all()


def test_a_quantized_pool_s_tails_go_over_in_the_same_copy():
    gpu = SimulatedGpu()

    def make_decode(inputs: DecodeInput):
        return lambda: torch.cat([inputs.tail_rows[:, None], inputs.touched.T], 1).double()

    graphs = DecodeGraphs(gpu, Staging(gpu), make_decode, max_num_seqs=8, table_width=3, with_tails=True)
    graphs.capture()
    for num_seqs, num_touched in ((5, 3), (8, 8), (3, 0), (1, 1)):
        rows = np.arange(num_seqs)
        tables = np.zeros((num_seqs, 2), np.int32)
        tail_rows, touched = rows + 50, np.arange(5 * num_touched).reshape(5, num_touched) + 1
        copies = gpu.num_copies
        logits = graphs.run(rows, rows, rows, rows, tables, tail_rows, touched)
        assert gpu.num_copies == copies + 1
        assert logits[:, 0].tolist() == tail_rows.tolist()
        assert logits[:num_touched, 1:].tolist() == touched.T.tolist()
        assert not logits[num_touched:, 1:].any()  # a count of 0: nothing is written
        assert (graphs.buffers.tail_rows[num_seqs : graphs.bucket_of(num_seqs)] == -1).all()


def test_a_step_is_one_copy_and_one_replay():
    model = Recorder()
    model.graphs.capture()
    for num_seqs in (1, 3, 8):
        copies, replays = model.gpu.num_copies, model.gpu.num_replays
        model.run(num_seqs)
        assert (model.gpu.num_copies, model.gpu.num_replays) == (copies + 1, replays + 1)


def test_the_addresses_that_graphs_read_never_change():
    model = Recorder()
    model.graphs.capture()
    before = [tensor.data_ptr() for tensor in model.graphs.buffers[:5]]
    logits = model.run(8).data_ptr()
    model.run(2)
    assert [tensor.data_ptr() for tensor in model.graphs.buffers[:5]] == before
    assert model.run(5).data_ptr() == logits
    assert all(address % 16 == 0 for address in before)


def test_the_largest_bucket_is_captured_first_and_all_are_by_default():
    model = Recorder(max_num_seqs=12)
    order, capture = [], model.graphs._capture
    model.graphs._capture = lambda bucket: order.append(bucket) or capture(bucket)
    model.graphs.capture()
    assert order == [12, 8, 4, 2, 1]
    assert model.graphs.captured == [1, 2, 4, 8, 12]


def test_while_graphs_are_captured_every_row_is_padding():
    """A capture runs the model: what it wrote into the pool would be somebody's cache."""
    model = Recorder()
    model.graphs.capture()
    model.run(8)
    seen = []
    model.graphs._make_decode = lambda inputs: lambda: (
        seen.append([t.clone() for t in inputs[:5]]), torch.zeros(len(inputs[0]), 6, dtype=torch.float64)
    )[1]  # fmt: skip
    model.graphs.capture()
    assert len(seen) == 2 * len(model.graphs.buckets)
    for token_ids, positions, write_slots, context_lens, tables in seen:
        assert not any(t.any() for t in (token_ids, positions, context_lens, tables))
        assert (write_slots == -1).all()


def test_graphs_that_nobody_needs_give_their_memory_back_at_once():
    """Not when Python happens to collect garbage: the planner looks at what is free right afterwards."""
    model = Recorder()
    model.graphs.capture()
    model.run(3)
    graphs, buffers = weakref.ref(model.graphs), weakref.ref(model.graphs.buffers.token_ids)
    gc.disable()
    try:
        del model.graphs
        assert graphs() is None
        assert buffers() is None
    finally:
        gc.enable()


FITS = {
    "one token each": (3, 3, 3, 2, True),
    "as many as fit": (8, 8, 8, 2, True),
    "too many": (9, 9, 9, 2, False),
    "a prompt among them": (5, 3, 3, 2, False),
    "one is not sampled": (3, 3, 2, 2, False),
    "a table that is too wide": (3, 3, 3, 4, False),
}


@pytest.mark.parametrize("case", FITS)
def test_a_step_is_replayed_where_every_sequence_has_one_token(case):
    model = Recorder(max_num_seqs=8, table_width=3)
    num_tokens, num_seqs, num_samples, width, fits = FITS[case]
    arrays = np.zeros(num_tokens, np.int64), np.zeros(num_samples, np.int64), np.zeros((num_seqs, width), np.int32)
    assert not model.graphs.fit(*arrays)  # nothing is captured yet
    model.graphs.capture()
    assert model.graphs.fit(*arrays) is fits


# The whole engine


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2"])
def test_the_tokens_are_those_of_the_model_whatever_the_batch(gpu, name):
    """Sequences come and go, so that the batch crosses the edges of buckets both ways."""
    engine = make_engine(name)
    sizes = watch_buckets(engine)
    lengths = [3, 7, 4, 9, 1, 5, 8, 2, 6, 11]
    max_tokens = [30, 3, 9, 5, 12, 2, 20, 7, 4, 10]
    requests = [
        (random_prompt(n, seed), SamplingParams(max_tokens=m))
        for seed, (n, m) in enumerate(zip(lengths, max_tokens, strict=True))
    ]
    late = [(2, requests[6]), (3, requests[7]), (3, requests[8]), (6, requests[9])]
    outputs = serve(engine, requests[:6], late)
    assert outputs == [[own_tokens(tiny_model(name), p, params.max_tokens)] for p, params in requests]
    assert {engine.runner.graphs.bucket_of(size) for size in sizes} >= {1, 2, 4, 8}
    assert any(a < b for a, b in pairwise(sizes))
    assert any(a > b for a, b in pairwise(sizes))
    assert gpu.num_replays == len(sizes) > 10


def eager_and_replayed(requests, **options):
    """The same requests with and without graphs. Returns both outputs and the engine with graphs."""
    eager, graphs = make_engine(enforce_eager=True, **options), make_engine(**options)
    assert eager.runner.graphs is None
    outputs = serve(eager, requests), serve(graphs, requests)
    return *outputs, graphs


def test_forks_that_copy_on_write_say_the_same(gpu):
    requests = [(random_prompt(6), SamplingParams(n=5, max_tokens=9, temperature=1.0, seed=3))] * 2
    eager, replayed, engine = eager_and_replayed(requests)
    assert eager == replayed
    assert len({tuple(tokens) for tokens in replayed[0]}) > 1
    assert engine.stats().copied_blocks > 0
    assert gpu.num_replays > 5


def test_a_step_that_copies_blocks_copies_them_before_it_is_replayed(gpu):
    """Forks of a prompt write their first token in a decode step, into copies of its last block."""
    engine = make_engine()
    steps, begin_step = [], engine.runner.pool.begin_step
    engine.runner.pool.begin_step = lambda copies, *rest: steps.append(bool(copies)) or begin_step(copies, *rest)
    replays = gpu.num_replays
    prompt = random_prompt(6)
    outputs = serve(engine, [(prompt, SamplingParams(n=3, max_tokens=5))])
    assert outputs == [[own_tokens(tiny_model("llama"), prompt, 5)] * 3]
    assert steps[0] is False
    assert True in steps
    assert gpu.num_replays - replays == len(steps) - 1  # all but the prompt, the copying steps too


def test_prompts_that_are_found_in_the_cache_say_the_same_and_write_nothing(gpu):
    """A prompt that hits completely computes its last token only: a decode step, whose token has no slot."""
    prompts = [random_prompt(16), random_prompt(16), random_prompt(8), random_prompt(16)]
    engine = make_engine()
    params = SamplingParams(max_tokens=6)
    first = serve(engine, [(prompts[0], params)])
    replays = gpu.num_replays
    slots = watch_slots(engine)
    again = serve(engine, [(prompt, params) for prompt in prompts])
    assert engine.stats().hit_tokens > 40
    assert again == [first[0], first[0], [own_tokens(tiny_model("llama"), prompts[2], 6)], first[0]]
    assert gpu.num_replays > replays
    assert any((row == -1).any() for row in slots)


def watch_slots(engine: Engine) -> list[np.ndarray]:
    slots, run = [], engine.runner.graphs.run
    engine.runner.graphs.run = lambda *arrays: slots.append(arrays[2].copy()) or run(*arrays)
    return slots


def test_preempted_sequences_say_the_same(gpu):
    requests = [(random_prompt(9, seed), SamplingParams(max_tokens=20)) for seed in range(5)]
    eager, replayed, engine = eager_and_replayed(requests, num_gpu_blocks=14, enable_prefix_caching=False)
    assert eager == replayed == [[own_tokens(tiny_model("llama"), prompt, 20)] for prompt, _ in requests]
    assert engine.stats().preemptions > 0
    assert gpu.num_replays > 10


def test_an_engine_goes_on_after_a_step_that_failed(gpu, monkeypatch):
    engine = make_engine()
    prompts = [random_prompt(5, seed) for seed in range(3)]
    ids = [engine.add_request(prompt, SamplingParams(max_tokens=6)) for prompt in prompts]
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner.graphs, "run", lambda *arrays: (_ for _ in ()).throw(RuntimeError("device lost")))
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step()
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {o.request_id: list(o.outputs[0].token_ids) for o in engine.step().finished}
    assert [outputs[i] for i in ids] == [own_tokens(tiny_model("llama"), prompt, 6) for prompt in prompts]
    assert_all_back(engine)


def test_the_model_has_its_own_attention_back_after_capture_and_replay(gpu):
    model = tiny_model("llama")
    before = model.hf.config._attn_implementation
    engine = make_engine()
    assert model.hf.config._attn_implementation == before
    serve(engine, [(random_prompt(3), SamplingParams(max_tokens=4))])
    assert model.hf.config._attn_implementation == before


# Without graphs


def test_enforce_eager_captures_nothing(gpu):
    engine = make_engine(enforce_eager=True)
    assert engine.runner.graphs is None
    assert serve(engine, [(random_prompt(3), SamplingParams(max_tokens=4))])
    assert gpu.num_graphs == gpu.num_replays == 0


def test_a_backend_that_needs_the_lengths_on_the_host_runs_without_graphs(gpu):
    engine = make_engine(parts=Parts(paged_attention=reference.paged_attention))
    assert engine.attn_backend == "yours"
    assert engine.runner.graphs is None
    prompt = random_prompt(5)
    assert serve(engine, [(prompt, SamplingParams(max_tokens=4))]) == [[own_tokens(tiny_model("llama"), prompt, 4)]]


def test_a_quantized_pool_runs_without_graphs(gpu):
    engine = make_engine(kv_cache_dtype="int8")
    assert engine.runner.graphs is None
    assert serve(engine, [(random_prompt(5), SamplingParams(max_tokens=4))])


def test_a_model_that_can_not_be_captured_runs_without_and_says_so_once(gpu, caplog):
    """Rotary embeddings that grow with the longest position look at it on the host."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config_class, arguments = CONFIGS["llama"]
    model = LoadedModel(random_model(config_class, **arguments | {"rope_parameters": rope}), None, "dynamic")
    with caplog.at_level(logging.WARNING, logger="pagedkv_lab"):
        engine = make_engine(model)
        prompt = random_prompt(5)
        outputs = serve(engine, [(prompt, SamplingParams(max_tokens=6))])
    (warning,) = [record.message for record in caplog.records]
    assert warning.startswith("decode runs without CUDA graphs, which is slower: this model can't be captured (")
    assert "operation not permitted when stream is capturing" in warning
    assert engine.runner.graphs is None
    assert gpu.num_replays == 0
    assert outputs == [[own_tokens(model, prompt, 6)]]


# The simulation itself


def test_the_simulated_gpu_replays_numbers_of_the_host_as_they_were():
    """Were it to run the Python again, a graph that reads the host would look right here and be wrong on a GPU."""
    gpu, host = SimulatedGpu(), SimpleNamespace(number=1)
    static, out = torch.zeros(2), torch.zeros(2)

    def function() -> None:
        out.copy_(static * 2 + host.number)

    replay = gpu.capture(function, gpu.graph_pool())
    host.number = 100
    static.fill_(5)
    replay()
    assert out.tolist() == [11, 11]


def test_the_simulated_gpu_does_not_keep_memory_alive_for_a_graph():
    gpu = SimulatedGpu()
    held = [torch.ones(1000)]
    out = torch.zeros(1000)
    replay = gpu.capture(lambda: out.copy_(held[0] + 1), gpu.graph_pool())
    replay()
    held.clear()
    with pytest.raises(AssertionError, match="memory that was freed after it was captured"):
        replay()


LOOKS = [lambda t: t.max().item(), lambda t: bool(t[0] > 1), lambda t: t[t > 1].sum(), torch.nonzero]


@pytest.mark.parametrize("look", LOOKS)
def test_the_simulated_gpu_refuses_to_record_a_look_at_a_number(look):
    gpu = SimulatedGpu()
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        gpu.capture(lambda: look(torch.ones(3)), gpu.graph_pool())


# Triton's kernels, interpreted


#: One layer with heads as narrow as the kernels take.
TRITON_SHAPE = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.3,
    "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


@pytest.fixture
def triton_gpu(monkeypatch):
    """A simulated GPU with the real backend, whose kernels are interpreted."""
    if os.environ.get("PAGEDKV_REQUIRE_TRITON") != "1":  # in CI, missing is a failure
        pytest.importorskip("triton")
    from pagedkv_lab.attention import triton_paged

    assert triton_paged.INTERPRETED, "tests/conftest.py sees to that"
    gpu = SimulatedGpu()
    monkeypatch.setattr(engine_module, "gpu_of", lambda device: gpu)
    return gpu


def test_triton_s_kernels_say_the_same_when_they_are_replayed(triton_gpu):
    model = LoadedModel(random_model("LlamaConfig", **TRITON_SHAPE), None, "sixteen")
    options = {"attn_backend": "triton_paged", "max_num_seqs": 4, "block_size": 16, "num_gpu_blocks": 12}
    engine = make_engine(model, **options)
    assert engine.runner.graphs.captured == [1, 2, 4]
    prompts = [random_prompt(3), random_prompt(17, 1), random_prompt(16, 2)]
    max_tokens = [6, 2, 4]
    requests = [(p, SamplingParams(max_tokens=m)) for p, m in zip(prompts, max_tokens, strict=True)]
    outputs = serve(engine, requests)
    assert outputs == [[own_tokens(model, p, m)] for p, m in zip(prompts, max_tokens, strict=True)]
    assert triton_gpu.num_replays >= 4
