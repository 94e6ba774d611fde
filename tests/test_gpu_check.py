"""scripts/gpu_check.py without a GPU: its logic on Triton's interpreter, and what it leaves when things go wrong.

The day it meets a GPU is not the day to find out that a failure in the middle loses everything, or that a wrong kernel
passes. What a GPU alone can show (times, graphs, counters) is not shown here.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "gpu_check.py"

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
sys.path.append(str(ROOT / "scripts"))

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gpu_checks import correctness, device, main, record, report, sizes  # noqa: E402

from pagedkv_lab.attention import reference, triton_paged  # noqa: E402


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"OMP_NUM_THREADS": "1"} | more


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    """The whole command, once: its results and what it printed."""
    file = tmp_path_factory.mktemp("gpu-check") / "results.json"
    done = subprocess.run(
        command("--dry-run", "--json", file), capture_output=True, text=True, timeout=240, env=environment()
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads(file.read_text()), done


# The dry run


def test_a_dry_run_goes_through_every_section_and_everything_passes(dry_run):
    result, done = dry_run
    failed = [c for s in result["sections"].values() for c in s["checks"] if not c["passed"]]
    assert failed == []
    assert {name: s["status"] for name, s in result["sections"].items()} == {name: "done" for name, *_ in main.SECTIONS}
    assert result["summary"]["finished"]
    assert done.returncode == 0


def test_a_dry_run_checks_every_kernel(dry_run):
    result, _ = dry_run
    names = [check["name"] for section in result["sections"].values() for check in section["checks"]]
    for kernel in ("decode", "prefill", "write_kv", "padding rows", "CUDA graph", "many blocks", "int8", "int4",
                   "tokens equal to transformers' own, float32"):  # fmt: skip
        assert any(name.startswith(kernel) for name in names), kernel


def test_no_figure_of_a_dry_run_passes_for_a_measurement(dry_run):
    result, done = dry_run
    assert result["dry_run"] is True
    rows = [row for section in result["sections"].values() for row in section["measured"]]
    assert rows
    assert all(row["not_a_measurement"] for row in rows)
    assert set(result["summary"]["goals"].values()) == {"not judged in a dry run"}
    assert done.stdout.count(report.DRY_RUN) == 2


def test_the_table_says_what_was_found(dry_run):
    result, done = dry_run
    for name, title, *_ in main.SECTIONS:
        assert f"{name}: {title}" in done.stdout
    counts = result["summary"]
    assert f"{counts['checks_passed']} checks passed, {counts['checks_failed']} failed" in done.stdout
    assert "TinyLlama" not in done.stdout  # a dry run serves a small model, and doesn't say otherwise
    assert done.stdout.strip().splitlines()[-1].startswith("written to ")


def test_a_dry_run_writes_nowhere_beside_the_results_of_real_runs(dry_run):
    assert not list((ROOT / "benchmarks" / "results").glob("gpu-dry*"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_ends_with_2(tmp_path):
    done = subprocess.run(command("--json", tmp_path / "r.json"), capture_output=True, text=True, env=environment())
    assert done.returncode == 2
    assert len(done.stdout.strip().splitlines()) == 1
    assert "No CUDA GPU" in done.stdout
    assert not (tmp_path / "r.json").exists()


@pytest.fixture(scope="module")
def bare_machine(tmp_path_factory):
    """A folder of packages with PyTorch, Triton, transformers and numpy, what those require, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    wanted, there = ["torch", "triton", "transformers", "numpy"], set()
    while wanted:
        package = distribution(wanted.pop())
        if package.name in there:
            continue
        there.add(package.name)
        lines = map(Requirement, package.requires or ())
        wanted += [line.name for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
        for top in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(package.locate_file(top))
    assert not there & {"psutil", "accelerate", "platformdirs", "numba", "pytest", "nvidia-ml-py", "matplotlib"}
    return folder


def test_it_needs_nothing_but_torch_triton_transformers_and_numpy(bare_machine, tmp_path):
    sections = [word for name in ("machine", "serving", "memory", "bundled") for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, "-S", *command("--dry-run", "--json", tmp_path / "r.json", *sections)[1:]],
        capture_output=True, text=True, timeout=200, env=environment(PYTHONPATH=str(bare_machine)),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["sections"]["machine"]["facts"]["versions"]["nvidia-ml-py"] == "not installed"
    assert result["sections"]["serving"]["checks_passed"] > 0


# When things go wrong, with sections that do nothing but that

FAKE_SECTIONS = """
import time
from gpu_checks.record import NotRun

def good(section, device, sizes):
    section.check("one", True)
    section.measure("figure", value=1.0)

def breaks(section, device, sizes):
    section.check("before", True)
    raise ZeroDivisionError("by zero, of all things")

def one_case_breaks(section, device, sizes):
    for case in section.in_time([1, 2, 3]):
        with section.trying(f"case {case}"):
            section.check(f"case {case}", 1 / (case - 2) != 0)

def impossible(section, device, sizes):
    raise NotRun("there is none of it here")

def slow(section, device, sizes):
    section.check("it began", True)
    section._save.__self__.save()
    print("slow began", flush=True)
    time.sleep(60)

def many_cases(section, device, sizes):
    for case in section.in_time(range(1000)):
        section.check(f"case {case}", True)
        time.sleep(0.05)
"""

DRIVER = """
import sys
sys.path[:0] = [{folder!r}, {scripts!r}, {root!r}]
import time
from gpu_checks import main
main.SECTIONS = tuple((name, f"title of {{name}}", 10, f"fake_sections:{{name}}") for name in {sections!r})
sys.exit(main.main(sys.argv[1:], time.monotonic(), "doc"))
"""


@pytest.fixture
def start(tmp_path):
    """Starts the command with these sections; results go to tmp_path / "r.json"."""
    (tmp_path / "fake_sections.py").write_text(FAKE_SECTIONS)

    def start(*sections: str, minutes: float = 6) -> subprocess.Popen:
        code = DRIVER.format(folder=str(tmp_path), scripts=str(SCRIPT.parent), root=str(ROOT), sections=sections)
        arguments = ["--dry-run", "--json", str(tmp_path / "r.json"), "--minutes", str(minutes)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment(), **pipes)

    return start


def finish(process: subprocess.Popen, tmp_path: Path) -> tuple[int, dict, str]:
    """Exit status, results, and all that was printed."""
    out, err = process.communicate(timeout=60)
    return process.returncode, json.loads((tmp_path / "r.json").read_text()), out + err


def wait_for(process: subprocess.Popen, words: str) -> None:
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"it ended without saying {words!r}")


def test_a_section_that_breaks_is_recorded_and_the_others_run(start, tmp_path):
    status, result, printed = finish(start("good", "breaks", "good"), tmp_path)
    assert status == 1
    broken = result["sections"]["breaks"]
    assert broken["status"] == "broken"
    assert broken["error"]["type"] == "ZeroDivisionError"
    assert broken["error"]["message"] == "by zero, of all things"
    assert "fake_sections.py" in broken["error"]["traceback"]
    assert [check["name"] for check in broken["checks"]] == ["before"]
    assert result["sections"]["good"]["status"] == "done"
    assert result["summary"]["broken"] == ["breaks"]
    assert "broke off: ZeroDivisionError: by zero" in printed


def test_a_case_that_breaks_has_failed_and_the_others_run(start, tmp_path):
    status, result, printed = finish(start("one_case_breaks"), tmp_path)
    section = result["sections"]["one_case_breaks"]
    assert status == 1
    assert [(c["name"], c["passed"]) for c in section["checks"]] == [
        ("case 1", True), ("case 2", False), ("case 3", True),
    ]  # fmt: skip
    assert section["checks"][1]["raised"]["type"] == "ZeroDivisionError"
    assert "FAILED case 2: ZeroDivisionError" in printed


def test_what_can_t_run_here_is_listed_and_is_no_failure(start, tmp_path):
    status, result, _ = finish(start("impossible", "good"), tmp_path)
    assert status == 0
    assert result["sections"]["impossible"]["status"] == "not run: there is none of it here"
    assert result["sections"]["impossible"]["checks_passed"] == 0


def test_a_kill_leaves_a_whole_file_with_all_that_came_before(start, tmp_path):
    process = start("good", "slow", "many_cases")
    wait_for(process, "slow began")
    process.kill()
    _, result, _ = finish(process, tmp_path)
    assert result["sections"]["good"]["status"] == "done"
    assert result["sections"]["good"]["measured"][0]["value"] == 1.0
    assert result["sections"]["slow"]["status"] == "running"
    assert result["sections"]["slow"]["checks_passed"] == 1
    assert result["sections"]["many_cases"]["status"] == "waiting"
    assert not result["summary"]["finished"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_plain_kill_write_what_there_is_and_show_it(start, tmp_path, how):
    process = start("good", "slow", "many_cases")
    wait_for(process, "slow began")
    process.send_signal(how)
    status, result, printed = finish(process, tmp_path)
    assert status == 130
    assert result["sections"]["slow"]["status"] == "interrupted"
    assert result["sections"]["many_cases"]["status"] == "waiting"
    assert "NOT FINISHED" in printed


def test_what_no_time_is_left_for_is_named_as_not_run(start, tmp_path):
    status, result, printed = finish(start("many_cases", "good", minutes=0.1), tmp_path)
    many = result["sections"]["many_cases"]
    assert 0 < many["checks_passed"] < 1000
    assert many["checks_passed"] + len(many["not_run"]) == 1000
    assert {case["why"] for case in many["not_run"]} == {"no time left"}
    assert result["sections"]["good"]["status"] == "done"  # its share was kept for it
    assert status == 0
    assert "(no time left)" in printed


def test_a_section_that_no_time_is_left_for_is_not_run(start, tmp_path):
    _, result, _ = finish(start("good", minutes=0), tmp_path)
    assert result["sections"]["good"]["status"] == "not run: no time left"
    assert result["summary"]["checks_passed"] == 0


def test_a_case_that_never_ends_is_stopped_when_the_time_is_over(start, tmp_path):
    began = time.monotonic()
    status, result, printed = finish(start("good", "slow", "many_cases", minutes=0.1), tmp_path)
    assert time.monotonic() - began < 40
    assert status == 1
    assert result["sections"]["slow"]["status"].startswith("stopped")
    assert result["sections"]["many_cases"]["status"] == "not run: no time left"
    assert result["sections"]["good"]["status"] == "done"
    assert "stopped" in printed


# Findings


@pytest.fixture
def section():
    return record.Section("a section", lambda: None)


@pytest.mark.parametrize("error", [float("nan"), float("inf"), 1.1e-3])
def test_no_tolerance_lets_a_large_error_or_a_nan_pass(section, error):
    section.within("a", error, 1e-3)
    section.within("b", 0.9e-3, 1e-3)
    assert section.failed == ["a"]


def test_a_file_with_nan_and_infinity_in_it_can_still_be_read(tmp_path):
    kept = record.Record({"dry_run": False}, tmp_path / "r.json", 0.0, float("inf"))
    kept.add("a", "a", 1)
    kept.sections["a"].measure("figure", value=float("nan"), values=[float("inf"), 1.0])
    kept.save()
    (row,) = json.loads((tmp_path / "r.json").read_text())["sections"]["a"]["measured"]
    assert (row["value"], row["values"]) == ("nan", ["inf", 1.0])


@pytest.mark.parametrize(
    ("reached", "state"),
    [
        ({"a": 0.9, "b": 0.86}, "met"),
        ({"a": 0.9}, "met in what ran"),
        ({"a": 0.9, "b": 0.84}, "missed"),
        ({"a": 0.1}, "missed"),
        ({}, "not measured"),
    ],
)
def test_a_goal_is_met_only_where_every_case_reached_it(section, reached, state):
    section.goal("85 %", 0.85, reached, of=2)
    assert section.goals[0]["state"] == state


def test_too_little_memory_for_a_case_is_no_failure(section):
    with section.trying("large"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 34 GB")
    assert section.failed == []
    assert section.not_run[0]["why"].startswith("out of memory")


# Wrong kernels

CONFIG = sizes.Config("float32", 64, 2, 8)
DEVICE = device.DryDevice()


def kernels(monkeypatch, attention):
    """`attention` in the place of Triton's: a function as the reference, which also finds lengths on the device."""

    def paged_attention(query, keys, values, tables, context_lens, query_lens, *, workspace=None, **options):
        if workspace is not None:
            metadata = workspace.once_a_step(triton_paged.METADATA, lambda: None)
            context_lens = metadata.context_lens.tolist()
        some = [i for i, n in enumerate(context_lens) if n]
        rows = torch.tensor([n > 0 for n in context_lens]).repeat_interleave(torch.tensor(list(query_lens)))
        lens = [context_lens[i] for i in some], [query_lens[i] for i in some]
        out = torch.zeros_like(query)
        out[rows] = attention(query[rows], keys, values, tables[some], *lens, **options)
        return out

    monkeypatch.setattr(triton_paged, "paged_attention", paged_attention)


def run_checks(section) -> list[str]:
    """Names of the checks that failed, of decode, prefill, padding and graphs."""
    for check in (correctness.check_decode, correctness.check_prefill, correctness.check_padding,
                  correctness.check_graph):  # fmt: skip
        with section.trying(check.__name__):
            check(section, DEVICE, sizes.DRY, CONFIG)
    return section.failed


def test_a_right_kernel_passes(monkeypatch, section):
    kernels(monkeypatch, reference.paged_attention)
    assert run_checks(section) == []
    assert len(section.checks) > 10


def test_a_kernel_that_rounds_to_tf32_fails_in_float32(monkeypatch, section):
    def to_tf32(x):
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)

    kernels(monkeypatch, lambda q, k, v, *rest, **options: reference.paged_attention(
        to_tf32(q), to_tf32(k), to_tf32(v), *rest, **options))  # fmt: skip
    assert any(name.startswith("decode") for name in run_checks(section))


def test_a_kernel_that_reads_a_block_of_nobody_fails(monkeypatch, section):
    """It reads on to the end of the last block: what lies there is NaN."""

    def reads_on(q, k, v, tables, context_lens, query_lens, **options):
        to_the_end = [-(-n // k.shape[1]) * k.shape[1] for n in context_lens]
        return reference.paged_attention(q, k, v, tables, to_the_end, query_lens, **options)

    kernels(monkeypatch, reads_on)
    failed = run_checks(section)
    assert failed
    assert {check["error"] for check in section.checks if check["name"] in failed and "error" in check} >= {"nan"}


def test_a_kernel_that_forgets_the_newest_token_fails(monkeypatch, section):
    def forgets(q, k, v, tables, context_lens, query_lens, **options):
        return reference.paged_attention(
            q, k, v, tables, [max(1, n - 1) for n in context_lens], [1] * len(query_lens), **options
        )

    kernels(monkeypatch, forgets)
    assert any(name.startswith("decode") for name in run_checks(section))


def test_a_kernel_that_knows_no_window_and_one_that_knows_no_softcap_fail(monkeypatch):
    for option in ("sliding_window", "softcap"):
        section = record.Section("a section", lambda: None)
        masked = sizes.Config("float32", 64, 2, 8, sliding_window=5, softcap=2.0)

        def ignores(*arguments, option=option, **options):
            return reference.paged_attention(*arguments, **(options | {option: None}))

        kernels(monkeypatch, ignores)
        with section.trying("decode"):
            correctness.check_decode(section, DEVICE, sizes.DRY, masked)
        assert section.failed, option


def test_a_padding_row_that_is_not_0_fails(monkeypatch, section):
    kernels(monkeypatch, reference.paged_attention)
    right = triton_paged.paged_attention

    def pads_with_one(query, *rest, **options):
        out = right(query, *rest, **options)
        out[out.abs().sum(dim=(1, 2)) == 0] = 1.0
        return out

    monkeypatch.setattr(triton_paged, "paged_attention", pads_with_one)
    assert any("they are 0" in name for name in run_checks(section))


def test_a_kernel_that_can_t_be_compiled_fails_and_the_others_run(monkeypatch, section):
    def refuses(*arguments, **options):
        raise RuntimeError("PassManager::run failed")

    kernels(monkeypatch, refuses)
    correctness.run(section, DEVICE, sizes.DRY)
    raised = [check for check in section.checks if "raised" in check]
    assert {check["raised"]["message"] for check in raised} == {"PassManager::run failed"}
    assert any(check["name"].startswith("write_kv") and check["passed"] for check in section.checks)


def test_a_write_that_goes_astray_fails(monkeypatch, section):
    right = triton_paged.write_kv
    monkeypatch.setattr(triton_paged, "write_kv", lambda k, v, keys, values, slots: right(
        k, v, keys, values, slots.clamp(min=0)))  # fmt: skip
    correctness.check_write(section, DEVICE, CONFIG)
    assert section.failed


# What a GPU must be asked


def test_every_dtype_meets_every_head_dim_and_every_group():
    """The pairs that decide what is compiled; the triples are not all there, since compiling takes its time."""
    configs = sizes.FULL.configs
    dtypes, dims, groups = ("bfloat16", "float16", "float32"), (64, 80, 96, 128, 256), (1, 3, 4, 8)
    assert {(c.dtype, c.head_dim) for c in configs} >= {(dtype, dim) for dtype in dtypes for dim in dims}
    assert {(c.dtype, c.group) for c in configs} >= {(dtype, group) for dtype in dtypes for group in groups}
    assert {c.block_size for c in configs} == {8, 16, 32}
    assert {c.dtype for c in configs if c.sliding_window} == set(dtypes)
    assert {c.dtype for c in configs if c.softcap} == set(dtypes)


def test_the_grid_is_the_one_that_the_goals_are_about():
    cells = sizes.FULL.cells
    assert len(cells) == len(set(cells)) == 3 * 5 * 3
    assert {cell[1:] for cell in cells[:6]} == {(32, 2048), (1, 8192)}


def test_figures_of_nvidia_smi_are_read_by_name(monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: "/bin/nvidia-smi")
    asked = []

    def run(command, **options):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="1024\n", stderr="")

    monkeypatch.setattr(device.subprocess, "run", run)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert device.nvml_used_bytes("GPU-1") == 1024 << 20
    assert "--id=GPU-1" in asked[0]


def test_where_nobody_knows_the_memory_in_use_it_says_so(monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device.nvml_used_bytes(None) is None


# The calls to torch.cuda, with something in its place that only keeps count


class FakeCuda:
    """As much of torch.cuda as CudaDevice calls. A replay runs nothing; an event's time is its number."""

    def __init__(self, *, can_capture: bool = True):
        self.log: list[str] = []
        outer, self.clock = self, 0.0

        class Stream:
            def wait_stream(self, other):
                pass

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                outer.clock += 1
                self.at = outer.clock

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return end.at - self.at

        class CUDAGraph:
            def replay(self):
                outer.log.append("replay")

        @contextmanager
        def stream(which):
            yield

        @contextmanager
        def graph(captured, stream):
            if not can_capture:
                raise RuntimeError("operation not permitted when stream is capturing")
            outer.log.append("capture")
            yield

        self.Stream, self.Event, self.CUDAGraph, self.stream, self.graph = Stream, Event, CUDAGraph, stream, graph
        self.current_stream = Stream
        self.properties = SimpleNamespace(
            multi_processor_count=132, L2_cache_size=60 << 20, total_memory=140 << 30, uuid="1-2"
        )

    def __getattr__(self, name):
        answers = {
            "current_device": 0, "get_device_properties": self.properties, "get_device_capability": (9, 0),
            "get_device_name": "NVIDIA H200", "mem_get_info": (100, 140), "memory_reserved": 30,
            "memory_allocated": 10, "max_memory_allocated": 20, "max_memory_reserved": 40,
            "synchronize": None, "empty_cache": None, "reset_peak_memory_stats": None,
        }  # fmt: skip
        if name not in answers:
            raise AttributeError(name)
        return lambda *arguments: answers[name]


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "pynvml", None)

    def on_a_gpu(**options) -> tuple[device.CudaDevice, FakeCuda]:
        fake = FakeCuda(**options)
        monkeypatch.setattr(torch, "cuda", fake)
        return device.CudaDevice(), fake

    return on_a_gpu


def test_on_a_gpu_a_time_is_that_of_graph_replays_and_of_one_call(on_a_gpu):
    gpu, fake = on_a_gpu()
    ran = []
    timing = gpu.time([lambda: ran.append("a"), lambda: ran.append("b")], rounds=3)
    assert timing.how == "graph"
    assert timing.values == (0.5, 0.5, 0.5)  # one tick of the clock for two calls
    assert fake.log == ["capture", *["replay"] * 4]  # the first one warms up
    assert ran[0] == "a"  # compiled before anything is captured


def test_on_a_gpu_what_can_t_be_captured_is_timed_as_it_comes_and_says_so(on_a_gpu):
    gpu, _ = on_a_gpu(can_capture=False)
    timing = gpu.time([lambda: None], rounds=2)
    assert timing == device.Timing((1.0, 1.0), "stream")


def test_on_a_gpu_memory_is_read_by_name(on_a_gpu):
    gpu, _ = on_a_gpu()
    gpu.start_peak()
    assert gpu.free_bytes() == 120  # free on the device, and held by torch without need
    torch_s = {"allocated_peak_bytes": 20, "reserved_peak_bytes": 40, "allocated_bytes": 10}
    assert gpu.memory() == torch_s | {"nvml_used_bytes": "not available"}
    assert gpu.half_dtype == torch.bfloat16
    assert gpu.about()["name"] == "NVIDIA H200"
    assert gpu.about()["nvidia_smi"] == "not available"


def test_results_of_a_gpu_go_beside_the_others_under_its_name(on_a_gpu):
    gpu, _ = on_a_gpu()
    assert main.default_file(gpu) == ROOT / "benchmarks" / "results" / "gpu-nvidia-h200.json"


@pytest.mark.parametrize(("arguments", "interpreted"), [([], None), (["--dry-run"], "1")])
def test_the_interpreter_is_for_dry_runs_only_whatever_the_environment_says(monkeypatch, arguments, interpreted):
    """On a GPU it would go unnoticed: right numbers, from no kernel at all."""
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreted is None else "0")
    monkeypatch.setattr(main, "find_device", lambda dry_run: None)
    assert main.main(arguments, 0.0, "") == main.NO_GPU
    assert os.environ.get("TRITON_INTERPRET") == interpreted
