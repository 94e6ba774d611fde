"""`pagedkv doctor`: can the course run here, and if not, which command mends it?

Knows what the course needs of a machine. Bounds come from the installed packages' own metadata, so
that pyproject.toml stays the one list. Runs where torch, transformers or anything else is missing.
"""

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

from pagedkv_lab.sizing import MiB, human_bytes

PACKAGE = "pagedkv_lab"
#: Bytes of disk that the unpacked bundled model takes, rounded up.
UNPACKED_BYTES = 600 * MiB
INSTALL_TORCH = "python -m pip install torch (with CUDA on Linux; smaller builds: pytorch.org/get-started)"


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, and what to do unless it is "ok".

    The course runs without what is "optional"; with a "problem" it can't run.
    """

    what: str
    state: Literal["ok", "optional", "problem"]
    says: str
    remedy: str | None = None


def examine(hub: bool = False) -> list[Finding]:
    """Everything that the course needs of this machine, always in the same order. Never raises.

    hub: also try to reach the Hugging Face hub; nothing else here touches the network.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python, _packages, _torch, _devices, _nvml, _bundled_model, _cache_folder, _jupyter, _kernels,
    ]  # fmt: skip
    if hub:
        checks.append(_hub)
    can_do_without = (_devices, _nvml, _kernels, _hub)
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except Exception as error:  # a machine can be broken in more ways than are listed here
            what = check.__name__.strip("_").replace("_", " ")
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            state = "optional" if check in can_do_without else "problem"
            findings.append(Finding(what, state, f"can't be looked at ({reason})"))
    return findings


def doctor(hub: bool = False, file: TextIO | None = None) -> int:
    """Examine this machine and print a line a finding. 0: the course can run; 1: it can't yet."""
    file = file or sys.stdout
    findings = examine(hub)
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        remedy = f": {finding.remedy}" if finding.remedy else ""
        lines.append((finding.state, f"{finding.what:<{width}}  {finding.says}{remedy}"))
    problems = sum(finding.state == "problem" for finding in findings)
    summary = "The course can run here."
    if problems:
        summary = f"The course can't run here yet: {problems} problem{'s' if problems > 1 else ''} above."
    _print(lines, summary, file)
    return 1 if problems else 0


def _print(lines: list[tuple[str, str]], summary: str, file: TextIO) -> None:
    """Colours in a terminal, plain lines anywhere else, and where rich itself is missing."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        file.write("".join(f"{state:<9} {line}\n" for state, line in lines) + summary + "\n")
        return
    console = Console(file=file, highlight=False)
    colours = {"ok": "green", "optional": "yellow", "problem": "bold red"}
    for state, line in lines:
        console.print(Text.assemble((f"{state:<9} ", colours[state]), line), soft_wrap=True)
    console.print(Text(summary, style="bold"), soft_wrap=True)


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    try:
        needs = importlib.metadata.metadata(PACKAGE)["Requires-Python"] or ""
    except importlib.metadata.PackageNotFoundError:
        yield Finding("Python", "ok", version)
        yield Finding(PACKAGE, "problem", "is not installed", "python -m pip install -e .")
        return
    if _admits(needs, version):
        yield Finding("Python", "ok", f"{version} ({needs})")
    else:
        yield Finding("Python", "problem", f"{version}, the course needs {needs}", "install a newer Python")


def _packages() -> Iterator[Finding]:
    if _import("packaging.requirements") is None:
        says = "is not installed, so that no versions can be compared"
        yield Finding("packaging", "problem", says, "python -m pip install packaging")
    for name, bounds in _declared(PACKAGE):
        yield _package(name, bounds, missing="problem")


def _torch() -> Iterator[Finding]:
    # The package declares no torch, that is the environment's; transformers says which ones it works with.
    bounds = dict(_declared("transformers", extra="torch")).get("torch", "")
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        yield Finding("torch", "problem", "is not installed", INSTALL_TORCH)
        return
    except Exception as error:  # a library that doesn't load, a numpy that doesn't fit
        reason = " ".join(str(error).split())
        yield Finding("torch", "problem", f"is installed but broken ({reason})", INSTALL_TORCH)
        return
    if _admits(bounds, torch.__version__):
        yield Finding("torch", "ok", f"{torch.__version__}{f' ({bounds})' if bounds else ''}")
    else:
        says = f"{torch.__version__}, transformers needs {bounds}"
        yield Finding("torch", "problem", says, f'python -m pip install "torch{bounds}"')


def _devices() -> Iterator[Finding]:
    torch = _import("torch")
    psutil = _import("psutil")
    threads = torch.get_num_threads() if torch else os.cpu_count() or 1
    memory = ""
    if psutil:
        ram = psutil.virtual_memory()
        memory = f", {human_bytes(ram.total)} of memory, {human_bytes(ram.available)} of it free"
    yield Finding("CPU", "ok", f"{threads} thread{'s' if threads > 1 else ''}{memory}")
    if not torch:
        return
    if not torch.cuda.is_available():
        yield Finding("GPU", "ok", "none that torch can use; the course runs on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        says = f"{gpu.name}, {human_bytes(gpu.total_memory)}, compute capability {gpu.major}.{gpu.minor}"
        yield Finding(f"GPU {index}", "ok", says)
    yield _gpu_attention(min(torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())))


def _gpu_attention(capability: tuple[int, int]) -> Finding:
    """What attention runs on, and in which dtype, on a GPU of this compute capability."""
    what, dtypes = "GPU attention", "float16, bfloat16 or float32"
    if capability < (8, 0):
        dtypes = f"float16 or float32 (compute capability {'.'.join(map(str, capability))} has no bfloat16)"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        says = "by torch's kernels, slower: triton is not installed"
        return Finding(what, "optional", says, "python -m pip install triton")
    launch = _import("pagedkv_lab.attention.triton_launch")
    if launch and (why := launch.refusal(capability, "float16", 64, 64, 1, 1)):
        return Finding(what, "ok", f"by torch's kernels, slower: {why}")
    return Finding(what, "ok", f"by our kernels (triton {version}), models in {dtypes}")


def _nvml() -> Iterator[Finding]:
    pynvml = _import("pynvml")
    if pynvml is None:
        return  # nvidia-ml-py has its line among the packages
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if error.value in absent:
            yield Finding("NVML", "ok", "no NVIDIA driver; nothing is missing on a machine without its GPUs")
        else:
            yield Finding("NVML", "optional", f"does not answer ({error})", "run nvidia-smi to see why")
        return
    try:
        driver, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
    finally:
        pynvml.nvmlShutdown()
    driver = driver.decode() if isinstance(driver, bytes) else driver
    torch = _import("torch")
    if count and torch and not torch.cuda.is_available():
        says = f"driver {driver} sees {count} GPU{'s' if count > 1 else ''}, torch {torch.__version__} none"
        yield Finding("NVML", "optional", says, "install a torch for its CUDA (pytorch.org/get-started)")
    else:
        yield Finding("NVML", "ok", f"driver {driver}, {count} GPU{'s' if count != 1 else ''}")


def _bundled_model() -> Iterator[Finding]:
    bundled = _import("pagedkv_lab.bundled")
    if bundled is None:
        yield Finding("bundled model", "optional", "not looked at", "install the packages above first")
        return
    gguf = bundled.bundled_gguf()
    if gguf is None:
        yield Finding("bundled model", "problem", "is not installed", bundled.INSTALL_BUNDLED)
        return
    unpacked = bundled.dense_copy_path(gguf).is_dir()
    size = human_bytes(gguf.stat().st_size)
    state = "unpacked" if unpacked else "will be unpacked when it is first loaded (once, about 15 s)"
    yield Finding("bundled model", "ok", f"{bundled.BUNDLED_MODEL}, {size}, {state}")


def _cache_folder() -> Iterator[Finding]:
    bundled = _import("pagedkv_lab.bundled")
    if bundled is None:
        return  # said above
    folder, gguf = bundled.cache_dir(), bundled.bundled_gguf()
    if gguf and bundled.dense_copy_path(gguf).is_dir():
        yield Finding("cache folder", "ok", f"{_short(folder)}, nothing more has to be written there")
        return
    elsewhere = "export PAGEDKV_CACHE=FOLDER, with a folder of yours that can be written"
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        # Trying beats asking for permissions: root has them all, even on a disk that is mounted read-only.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        says = f"{_short(folder)} can't be written ({error.strerror})"
        yield Finding("cache folder", "problem", says, elsewhere)
        return
    free = shutil.disk_usage(existing).free
    if free < UNPACKED_BYTES:
        says = f"{_short(folder)} has {human_bytes(free)} free, the model takes {human_bytes(UNPACKED_BYTES)}"
        yield Finding("cache folder", "problem", says, elsewhere)
    else:
        yield Finding("cache folder", "ok", f"{_short(folder)} can be written, {human_bytes(free)} free")


def _jupyter() -> Iterator[Finding]:
    for name, bounds in _declared(PACKAGE, extra="lab"):
        yield _package(name, bounds, missing="optional", why="it opens the notebooks; so does an editor")
    yield _package("ipykernel", "", missing="problem", why="notebooks run in it")


def _kernels() -> Iterator[Finding]:
    for extra, why in (
        ("cpu", "attention on a CPU is compiled with it; without it, it runs on torch's kernels, slower"),
        ("gpu", "the GPU kernels need it"),
    ):
        for name, bounds in _declared(PACKAGE, extra=extra):
            yield _package(name, bounds, missing="optional", why=why)


def _hub() -> Iterator[Finding]:
    import urllib.error
    import urllib.request

    hub = _import("huggingface_hub.constants")
    if hub is None:
        yield Finding("hub", "optional", "not looked at", "install the packages above first")
        return
    if hub.HF_HUB_OFFLINE:
        yield Finding("hub", "optional", "is switched off by HF_HUB_OFFLINE", "unset HF_HUB_OFFLINE")
        return
    try:
        with urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=5):
            pass
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            yield Finding("hub", "optional", f"{hub.ENDPOINT} answers with {error.code}", "try again later")
            return
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        says = f"{hub.ENDPOINT} can't be reached ({reason})"
        yield Finding("hub", "optional", says, "only models beside the bundled one need a network")
        return
    yield Finding("hub", "ok", f"{hub.ENDPOINT} answers")


def _declared(package: str, extra: str = "") -> Iterator[tuple[str, str]]:
    """Requirements that an installed package declares for this machine, as (name, version bounds).

    With `extra`, only what that extra adds. Nothing where the package, or `packaging`, isn't installed.
    """
    requirements = _import("packaging.requirements")
    try:
        declared = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return
    if requirements is None:
        return
    for line in map(requirements.Requirement, declared):
        without, with_extra = (
            line.marker is None or line.marker.evaluate({"extra": name}) for name in ("", extra)
        )
        if with_extra and not (extra and without):
            yield line.name, str(line.specifier)


def _package(name: str, bounds: str, missing: Literal["optional", "problem"], why: str = "") -> Finding:
    """The finding on one package, by its metadata: importing all of them would take many seconds."""
    install = f'python -m pip install "{name}{bounds}"'
    reason = f" ({why})" if why else ""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, missing, f"is not installed{reason}", install)
    if not _admits(bounds, version):
        return Finding(name, missing, f"{version} is installed, it must be {bounds}{reason}", install)
    return Finding(name, "ok", f"{version} ({bounds})" if bounds else version)


def _admits(bounds: str, version: str) -> bool:
    """Whether `version` lies within bounds like ">=2.1"."""
    specifiers = _import("packaging.specifiers")
    return specifiers is None or specifiers.SpecifierSet(bounds).contains(version, prereleases=True)


def _import(name: str):
    """The module, or None where it, or something that it needs, is missing or broken."""
    try:
        return importlib.import_module(name)
    except Exception:  # a broken package may raise anything
        return None


def _short(folder: Path) -> str:
    """The path with the home folder as ~."""
    try:
        return str(Path("~") / folder.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(folder)
