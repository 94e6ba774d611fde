"""The device under test: clocks, graphs and memory counters of a GPU, and a stand-in for all of them without one.

Knows torch.cuda and NVML. Does not know what is run or measured. The stand-in runs the same calls on a CPU, so that a
dry run goes through the same code; what it says about time and memory means nothing.
"""

import gc
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple

import torch

Call = Callable[[], Any]


class Timing(NamedTuple):
    """Milliseconds of one call, a value a round, and how they were taken: "graph" or "stream"."""

    values: tuple[float, ...]
    how: str

    @property
    def median(self) -> float:
        return median(self.values)


class CudaDevice:
    """One NVIDIA GPU: the current one."""

    dry_run = False

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self.properties = torch.cuda.get_device_properties(self.torch_device)
        self.capability: tuple[int, int] = torch.cuda.get_device_capability(self.torch_device)
        self.name = torch.cuda.get_device_name(self.torch_device)
        self.num_multiprocessors: int = self.properties.multi_processor_count
        self.l2_bytes: int = getattr(self.properties, "L2_cache_size", 64 << 20)
        self.half_dtype = torch.bfloat16 if self.capability >= (8, 0) else torch.float16
        self._uuid = _uuid(self.properties)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def capture(self, call: Call) -> tuple[Call, Any]:
        """Record a call's kernels as a CUDA graph. Returns what replays it, and what the call returned: tensors that
        each replay fills anew. The call has to have run before, so that its kernels are compiled."""
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        # The outer block brings the old stream back after a failure too.
        with torch.cuda.stream(side):
            call()
            with torch.cuda.graph(graph, stream=side):
                result = call()
        torch.cuda.current_stream().wait_stream(side)
        return graph.replay, result

    def time(self, calls: Sequence[Call], rounds: int) -> Timing:
        """Milliseconds a call, where all are run one after the other.

        As one CUDA graph, so that only the GPU's time counts, and not Python's for launching: a decode kernel can be
        shorter than its launch. Where a call can't be captured, on the stream as it comes.
        """

        def run_all() -> None:
            for call in calls:
                call()

        calls[0]()
        run_all()
        self.synchronize()
        how, run = "stream", run_all
        with suppress(RuntimeError):
            run, how = self.capture(run_all)[0], "graph"
        run()
        self.synchronize()
        values = []
        for _ in range(rounds):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            values.append(begin.elapsed_time(end) / len(calls))
        return Timing(tuple(values), how)

    def free_bytes(self) -> int:
        """What a new tensor could take: free on the device, or held by torch's allocator and unused."""
        held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + held

    def empty_cache(self) -> None:
        """Give back what nobody needs. An engine that is gone may be held by a cycle: that is collected first."""
        gc.collect()
        torch.cuda.empty_cache()

    def start_peak(self) -> None:
        """Forget the peaks so far, and give back what torch's allocator holds unused."""
        self.synchronize()
        self.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def memory(self) -> dict[str, int | str]:
        """Bytes: torch's peaks since `start_peak`, what is allocated now, and what NVML says is used on the device.

        torch keeps what it has taken until empty_cache, so NVML's figure right after a run is its peak too. It counts
        everybody on the device, and the CUDA context (some hundred MB) with them.
        """
        self.synchronize()
        used = nvml_used_bytes(self._uuid)
        return {
            "allocated_peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
            "allocated_bytes": torch.cuda.memory_allocated(),
            "nvml_used_bytes": "not available" if used is None else used,
        }

    def about(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "capability": list(self.capability),
            "multiprocessors": self.num_multiprocessors,
            "memory_bytes": self.properties.total_memory,
            "l2_bytes": self.l2_bytes,
            "nvidia_smi": _nvidia_smi(self._uuid),
        }


class DryDevice:
    """A CPU that answers as a GPU would. capability: which GPU it plays, in questions that need no kernel."""

    dry_run = True
    name = "dry run"
    num_multiprocessors = 4
    l2_bytes = 1 << 12
    # The interpreter multiplies bfloat16 wrongly where nothing is done about it; float16 it does right.
    half_dtype = torch.float16

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self.torch_device = torch.device("cpu")
        self.capability = capability

    def synchronize(self) -> None:
        pass

    def capture(self, call: Call) -> tuple[Call, Any]:
        """A replay runs the call again and copies what it returns to where the first result lies, as a graph does."""
        result = call()

        def replay() -> None:
            again = call()
            if isinstance(result, torch.Tensor):
                result.copy_(again)

        return replay, result

    def time(self, calls: Sequence[Call], rounds: int) -> Timing:
        started = time.perf_counter()
        for call in calls[:1]:
            call()
        return Timing(((time.perf_counter() - started) * 1e3,), "dry run")

    def free_bytes(self) -> int:
        return 1 << 30

    def empty_cache(self) -> None:
        pass

    def start_peak(self) -> None:
        pass

    def memory(self) -> dict[str, int | str]:
        keys = ("allocated_peak_bytes", "reserved_peak_bytes", "allocated_bytes", "nvml_used_bytes")
        return dict.fromkeys(keys, "not available")

    def about(self) -> dict[str, Any]:
        return {"name": self.name, "capability": list(self.capability)}


Device = CudaDevice | DryDevice


def copy_bandwidth(device: Device, rounds: int = 9) -> dict[str, float]:
    """Bytes a second of one large copy on the device, read and written bytes both counted: the median, and the best.

    The copy is many times larger than the last cache.
    """
    num_bytes = 1 << 16 if device.dry_run else min(2 << 30, device.free_bytes() // 4)
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device.torch_device)
    target = torch.zeros_like(source)
    timing = device.time([lambda: target.copy_(source)], rounds)
    return {
        "bytes": num_bytes,
        "bytes_per_s": 2 * num_bytes / timing.median * 1e3,
        "best_bytes_per_s": 2 * num_bytes / min(timing.values) * 1e3,
    }


# NVML: by its Python package where there is one, else by the command that every driver brings


def _uuid(properties: Any) -> str | None:
    """As NVML writes it: a program may see one of several GPUs, and numbers differ then."""
    uuid = str(getattr(properties, "uuid", "") or "")
    return (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}") if uuid else None


def nvml_used_bytes(uuid: str | None) -> int | None:
    """Bytes in use on the device, by whomever; None where nobody can tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            by_uuid = pynvml.nvmlDeviceGetHandleByUUID
            handle = by_uuid(uuid) if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # not installed, no driver, not allowed in this container: each has its own class
        used = _ask_nvidia_smi(["memory.used"], uuid).get("memory.used", "")
        return int(float(used) * (1 << 20)) if used.replace(".", "", 1).isdigit() else None


def _nvidia_smi(uuid: str | None) -> dict[str, str] | str:
    """What nvidia-smi says of the driver, the clocks and the power, as it writes it."""
    fields = [
        *("driver_version", "pstate", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem"),
        *("temperature.gpu", "power.draw", "power.limit", "memory.used", "ecc.mode.current"),
    ]
    return _ask_nvidia_smi(fields, uuid) or "not available"


def _ask_nvidia_smi(fields: list[str], uuid: str | None) -> dict[str, str]:
    """The fields by name (MHz, MiB, W as bare numbers); {} where there is no nvidia-smi or it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    for which in ([f"--id={uuid}"] if uuid else [], []):
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([*command, *which], capture_output=True, text=True, timeout=20, check=True)
            values = [value.strip() for value in done.stdout.strip().splitlines()[0].split(",")]
            if len(values) == len(fields):
                return dict(zip(fields, values, strict=True))
    return {}
