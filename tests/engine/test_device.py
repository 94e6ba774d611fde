"""What a GPU changes in the engine, without one: copies, waits, the dtype, the backend, and what must be installed."""

import inspect
import logging
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import static_backend
import torch
from packaging.requirements import Requirement
from simulated_gpu import SimulatedGpu, Waits
from tiny_models import own_tokens, random_prompt, tiny_model

from pagedkv_lab.attention import triton_launch
from pagedkv_lab.engine import Engine, SamplingParams, load_model, models, sampling
from pagedkv_lab.engine import engine as engine_module
from pagedkv_lab.engine.device import CudaDevice, gpu_of
from pagedkv_lab.engine.sampling import sample, token_probabilities
from pagedkv_lab.engine.staging import Staging
from pagedkv_lab.errors import ModelUnavailable


def test_the_simulated_gpu_is_asked_what_a_real_one_is_asked():
    def methods(of: type) -> dict[str, inspect.Signature]:
        return {name: inspect.signature(f) for name, f in inspect.getmembers(of, inspect.isfunction) if name[0] != "_"}

    real, simulated = methods(CudaDevice), methods(SimulatedGpu)
    assert set(real) <= set(simulated)
    for name, signature in real.items():
        assert simulated[name] == signature, name


def test_a_model_on_the_cpu_has_no_gpu():
    assert gpu_of(torch.device("cpu")) is None
    assert Engine(tiny_model("toy"), num_gpu_blocks=4, max_model_len=64).runner.gpu is None


# A capture, on a torch.cuda that only notes what it is asked


@pytest.fixture
def cuda(monkeypatch):
    """What torch.cuda is asked for, in order. Its streams and graphs do nothing."""
    asked = []

    class Stream:
        def wait_stream(self, other):
            asked.append(("wait", self, other))

    class Graph:
        def replay(self):
            asked.append("replay")

    class Recording:
        def __init__(self, graph, **options):
            self.options = options

        def __enter__(self):
            asked.append(("begin", self.options["pool"], self.options["stream"]))

        def __exit__(self, *error):
            asked.append("end")
            if error[0]:
                raise RuntimeError("capture was invalidated")  # and leaves its stream the current one, as torch does

    @contextmanager
    def stream(new):
        before, state.current = state.current, new
        try:
            yield
        finally:
            state.current = before

    state = SimpleNamespace(asked=asked, current=Stream())
    state.main = state.current
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(major=9, minor=0, multi_processor_count=132),
    )
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Recording)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: state.current)
    return state


def test_a_function_runs_as_usual_before_it_is_recorded_both_on_one_side_stream(cuda):
    gpu = gpu_of(torch.device("cuda"))
    assert (gpu.capability, gpu.num_multiprocessors) == ((9, 0), 132)
    for pool in ("pool", "another"):
        cuda.asked.clear()
        replay = gpu.capture(lambda: cuda.asked.append(("run", cuda.current)), pool)
        side = gpu._side_stream
        assert side is not cuda.main
        assert cuda.asked == [
            ("wait", side, cuda.main),
            ("run", side),
            ("begin", pool, side),
            ("run", side),
            "end",
            ("wait", cuda.main, side),
        ]
        assert cuda.current is cuda.main
    replay()
    assert cuda.asked[-1] == "replay"


def test_after_a_capture_that_failed_the_old_stream_is_the_current_one(cuda):
    gpu = gpu_of(torch.device("cuda"))
    times = []

    def function():
        times.append(None)
        if len(times) == 2:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError):
        gpu.capture(function, "pool")
    assert cuda.current is cuda.main


# Copies of a step's arrays


def some_arrays(seed: int) -> list[np.ndarray | None]:
    random = np.random.default_rng(seed)
    wide = random.integers(0, 1000, (5, 9), np.int32)
    return [
        wide[:, : seed % 9 + 1],  # a view, not in one piece
        random.integers(-1, 1 << 40, seed % 7),
        None,
        random.integers(0, 9, 3, np.int32),
        np.zeros(0, np.int64),
    ]


def test_all_arrays_of_a_step_go_over_in_one_copy_and_arrive_as_they_were():
    gpu = SimulatedGpu()
    staging = Staging(gpu)
    for seed in range(30):
        arrays = some_arrays(seed)
        tensors = staging.upload(arrays)
        assert gpu.num_copies == seed + 1
        for array, tensor in zip(arrays, tensors, strict=True):
            if array is None:
                assert tensor is None
            else:
                assert tensor.numpy().dtype == array.dtype
                assert np.array_equal(tensor.numpy(), array)
                assert tensor.numel() == 0 or tensor.data_ptr() % 16 == 0


def test_pinned_memory_is_not_written_to_while_its_copy_is_under_way():
    """The simulated GPU copies when it is waited for and no sooner, so an early write would arrive."""
    staging = Staging(SimulatedGpu(late_copies=True))
    sizes = [8, 4, 8, 100, 8, 3, 200, 1]
    arrived = []
    for number, size in enumerate(sizes):
        staging.begin(size)[:] = number
        into = torch.full((size,), 255, dtype=torch.uint8)
        staging.send(into)
        arrived.append(into)
    for _ in range(2):
        staging.begin(1)
    for number, into in enumerate(arrived):
        assert (into == number).all(), number


def test_two_steps_may_be_under_way_at_once():
    """Waiting for the step before would have the CPU stand still while the GPU works, and then the other way round."""
    staging = Staging(SimulatedGpu(late_copies=True))
    into = [torch.zeros(4, dtype=torch.uint8) for _ in range(2)]
    for each in into:
        staging.begin(4)[:] = 7
        staging.send(each)
    assert not any(each.any() for each in into)


@pytest.fixture
def gpu(monkeypatch):
    """A simulated GPU under every engine of the test, with the backend of the tests."""
    gpu = SimulatedGpu()
    monkeypatch.setattr(engine_module, "gpu_of", lambda device: gpu)
    monkeypatch.setattr(
        engine_module, "choose_backend", lambda name, device: (name or "triton_paged", static_backend.paged_attention)
    )
    monkeypatch.setattr(static_backend, "refusal", None)
    return gpu


def make_engine(name="llama", **options) -> Engine:
    defaults = {"block_size": 4, "num_gpu_blocks": 120, "max_model_len": 64, "model_impl": "transformers"}
    return Engine(tiny_model(name), **defaults | options)


def test_every_step_is_one_copy(gpu):
    engine = make_engine(max_num_seqs=4)
    for seed in range(3):
        engine.add_request(random_prompt(5 + seed, seed), SamplingParams(max_tokens=4 + 3 * seed))
    while engine.has_unfinished_requests():
        before = gpu.num_copies
        engine.step()
        assert gpu.num_copies == before + 1


# Waits

WAYS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 1},
    "top_k and top_p": {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "seed": 2},
    "forks": {"temperature": 1.0, "n": 4, "seed": 3},
}


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "phi"])
@pytest.mark.parametrize("eager", [False, True])
def test_a_step_waits_for_the_device_once_for_its_tokens(gpu, monkeypatch, eager, name):
    engine = make_engine(name, enforce_eager=eager, max_num_seqs=12, max_num_batched_tokens=16)
    for way, (seed, params) in zip(WAYS, enumerate(WAYS.values()), strict=True):
        assert way
        engine.add_request(random_prompt(8, seed), SamplingParams(max_tokens=5, **params))
    fetches, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: fetches.append(tensor) or tolist(tensor))
    monkeypatch.setattr(sampling, "_likeliest", lambda logits: logits.max(dim=-1).indices)  # as on a GPU
    monkeypatch.setattr(engine.runner.pool, "copy_blocks", lambda copies: None)  # what it copies is not looked at here
    while engine.has_unfinished_requests():
        fetches.clear()
        with Waits() as waits:
            report = engine.step()
        assert waits.seen == []
        assert len(fetches) == bool(report.tokens)
    assert engine.stats().output_tokens == 5 * 3 + 5 * 4


def test_the_watch_for_waits_sees_them():
    with Waits() as waits:
        tensor = torch.arange(4.0)
        _ = tensor[1].item(), bool(tensor[0] == 0), tensor[tensor > 1], torch.multinomial(tensor, 1), tensor[[1, 2]]
    assert len(waits.seen) >= 5


def test_draws_are_those_of_torch_s_multinomial():
    logits = 3 * torch.randn(40, 500, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=0.7, top_k=100, top_p=0.95)
    drawn = sample(logits, [params] * 40, [torch.Generator().manual_seed(i) for i in range(40)])
    wanted = [
        int(torch.multinomial(token_probabilities(row, params), 1, generator=torch.Generator().manual_seed(i)))
        for i, row in enumerate(logits)
    ]
    assert drawn == wanted


def test_several_may_draw_from_one_row():
    logits = torch.eye(3, 5) * 50
    params = [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(), SamplingParams(temperature=1.0)]
    generators = [None, torch.Generator().manual_seed(0), None, torch.Generator().manual_seed(1)]
    assert sample(logits, params, generators, [2, 2, 0, 1]) == [2, 2, 0, 1]


# Dtype and model


def chip(monkeypatch, *capability: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)


@pytest.mark.parametrize(
    ("capability", "stored", "computed"),
    [
        ((7, 5), torch.bfloat16, torch.float16),
        ((7, 0), torch.bfloat16, torch.float16),
        ((7, 5), torch.float16, torch.float16),
        ((7, 5), torch.float32, torch.float32),
        ((8, 0), torch.bfloat16, torch.bfloat16),
        ((9, 0), torch.bfloat16, torch.bfloat16),
        ((9, 0), None, torch.float16),
    ],
)
def test_a_gpu_computes_in_the_checkpoint_s_dtype_and_a_t4_never_in_bfloat16(monkeypatch, capability, stored, computed):
    chip(monkeypatch, *capability)
    assert models._default_dtype(SimpleNamespace(dtype=stored), "cuda") == computed
    assert models._default_dtype(SimpleNamespace(dtype=stored), "cuda:1") == computed
    assert models._default_dtype(SimpleNamespace(dtype=stored), "cpu") == torch.float32


@pytest.fixture
def asked(monkeypatch):
    """(name, dtype, device) of what is loaded; nothing is. Everything can be had."""
    asked = []

    def load_folder(name, dtype, device):
        asked.append((str(name), dtype, device))
        return tiny_model("toy").hf, None

    monkeypatch.setattr(models, "_load_folder", load_folder)
    monkeypatch.setattr(models, "_bundled_dense_copy", lambda: Path("dense"))
    return asked


def test_on_a_gpu_the_model_is_tinyllama_and_elsewhere_the_bundled_one(monkeypatch, asked):
    chip(monkeypatch, 7, 5)
    load_model()
    load_model(device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    load_model()
    tinyllama = "TinyLlama/TinyLlama-1.1B-Chat-v1.0"
    assert asked == [(tinyllama, None, "cuda"), ("dense", None, "cpu"), ("dense", None, "cpu")]


def test_the_dtype_that_is_asked_for_is_what_a_gpu_gets(monkeypatch, asked):
    chip(monkeypatch, 9, 0)
    load_model("some/model", dtype="bfloat16")
    load_model("some/model", dtype=torch.float32)
    load_model("some/model", dtype="auto")
    assert [dtype for _, dtype, _ in asked] == [torch.bfloat16, torch.float32, None]


def test_on_a_gpu_a_model_that_is_not_to_be_had_is_still_refused(monkeypatch):
    chip(monkeypatch, 9, 0)
    with pytest.raises(ModelUnavailable, match="hf download some-lab/some-model-1b"):
        load_model("some-lab/some-model-1b", device="cuda")


# Backend


def on_a_t4(dtype: torch.dtype) -> str | None:
    """What Triton's kernels say to TinyLlama's shape there."""
    return triton_launch.refusal((7, 5), str(dtype).removeprefix("torch."), 64, 64, 32, 4)


def test_bfloat16_on_a_t4_is_refused_with_what_to_do(gpu, monkeypatch):
    assert on_a_t4(torch.float16) is None
    monkeypatch.setattr(static_backend, "refusal", on_a_t4(torch.bfloat16))
    with pytest.raises(ValueError, match="attn_backend 'triton_paged' can't serve this model: bfloat16") as refused:
        make_engine(attn_backend="triton_paged")
    assert "load the model as float16" in str(refused.value)


def test_by_default_a_model_that_triton_s_kernels_can_not_take_runs_on_torch_s_and_the_log_says_why(
    gpu, monkeypatch, caplog
):
    monkeypatch.setattr(static_backend, "refusal", "heads of 24 numbers are not among 64, 128")
    with caplog.at_level(logging.WARNING, logger="pagedkv_lab"):
        engine = make_engine()
    (record,) = caplog.records
    assert record.message == (
        "attention runs on torch_paged and not on triton_paged: heads of 24 numbers are not among 64, 128"
    )
    assert engine.attn_backend == "torch_paged"
    assert engine.runner.graphs is None
    prompt = random_prompt(6)
    (output,) = engine.generate(prompt, SamplingParams(max_tokens=5), use_tqdm=False)
    assert list(output.outputs[0].token_ids) == own_tokens(tiny_model("llama"), prompt, 5)


def test_where_triton_s_kernels_can_run_nothing_is_logged(gpu, caplog):
    with caplog.at_level(logging.WARNING, logger="pagedkv_lab"):
        engine = make_engine()
    assert engine.attn_backend == "triton_paged"
    assert not caplog.records


@pytest.mark.parametrize(("kv_cache_dtype", "by_channel"), [("auto", False), ("int8", False), ("int4", True)])
def test_each_layer_s_own_shape_and_the_pool_s_are_asked_about(gpu, monkeypatch, kv_cache_dtype, by_channel):
    asked = []
    monkeypatch.setattr(static_backend, "supports", lambda *shape, **pool: asked.append((shape, pool)))
    make_engine("gemma2", kv_cache_dtype=kv_cache_dtype)
    (one,) = asked  # two layers, alike
    shape = (torch.device("cpu"), torch.float32, 8, 8, 4, 2)
    assert one == (shape, {"block_size": 4, "keys_by_channel": by_channel})


# What must be installed

NEEDED = ("torch", "triton", "transformers", "numpy")


def what_these_install(*names: str) -> set[str]:
    """The distributions among those of this environment that `pip install` of these brings."""
    found, open_ones = set(), list(names)
    while open_ones:
        name = open_ones.pop().lower().replace("_", "-")
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            needs = [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate({"extra": ""})]
            open_ones += [r.name for r in needs]
    return found


def test_the_engine_runs_where_only_torch_triton_transformers_and_numpy_are_installed(tmp_path):
    """Such a machine is one with a GPU and no network: a folder with nothing else in it stands for it."""
    for name in what_these_install(*NEEDED):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            source, link = Path(distribution.locate_file(top)), tmp_path / top
            if source.exists() and not link.exists():
                link.symlink_to(source)
    (tmp_path / "pagedkv_lab").symlink_to(Path(engine_module.__file__).parents[1])
    assert not {"psutil", "numba", "platformdirs", "matplotlib"} & {path.name for path in tmp_path.iterdir()}
    script = f"""
import sys
sys.path[1:1] = [{str(tmp_path)!r}]
from pagedkv_lab.engine import Engine, SamplingParams, load_model
for options in ({{}}, {{"model_impl": "transformers"}}, {{"attn_backend": "torch_paged"}}):
    engine = Engine(load_model("toy", device="cpu"), max_model_len=64, gpu_memory_utilization=1e-4, **options)
    (output,) = engine.generate("hello", SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)
    print(*output.outputs[0].token_ids)
"""
    command = [sys.executable, "-I", "-S", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    wanted = own_tokens(tiny_model("toy"), tiny_model("toy").encode("hello"), 8)
    assert done.stdout.splitlines() == [" ".join(map(str, wanted))] * 3
