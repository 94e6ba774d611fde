"""Timing that can be believed: the machine by name, everybody in turn, the median with its spread.

Two numbers may stand side by side only where they were made under the same conditions. So whoever is compared
takes turns, round by round: a machine that slows down (heat, a neighbour on the same chip) then slows everybody.
The median of the rounds stands for each of them, since one disturbed round does not move it, and all single
values stay beside it, since their spread says which differences mean nothing.

Knows clocks, rounds and machines. Does not know what is timed.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, TypeVar

import psutil

from pagedkv_lab.sizing import MiB, human_bytes

T = TypeVar("T")


@dataclass(frozen=True)
class Machine:
    """Where something ran. cores: those that this process may use. memory_bytes: all RAM. system: its name."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str

    def __str__(self) -> str:
        return (
            f"{self.cores} core{'s' * (self.cores != 1)} of {self.cpu}, "
            f"{human_bytes(self.memory_bytes)} RAM, {self.system}"
        )


def machine() -> Machine:
    """This machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    system = f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}"
    return Machine(_cpu_name(), cores, psutil.virtual_memory().total, system)


def _cpu_name() -> str:
    """The processor's name as its maker gives it; the architecture where nobody tells."""
    try:
        if sys.platform == "linux":
            with open("/proc/cpuinfo", encoding="utf-8") as lines:
                name = next(line.partition(":")[2] for line in lines if line.startswith("model name"))
        elif sys.platform == "darwin":
            asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        else:
            name = platform.processor()
    except (OSError, StopIteration, subprocess.CalledProcessError):
        name = ""
    return " ".join(name.split()) or platform.machine()


def num_threads() -> int:
    """Threads that torch and numba start here: $OMP_NUM_THREADS, or one a core."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else machine().cores


def versions(*packages: str) -> dict[str, str]:
    """Python's version and those of the packages that are installed, by name."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Samples:
    """The same thing measured several times: at least one value, in the order of the rounds, all in one unit."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        """Distance from the lowest to the highest value, as a share of the median. 0.1 is 10 %."""
        return (max(self.values) - min(self.values)) / self.median

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the median, and every single value."""
        return {"median": self.median, "values": list(self.values)}

    def __str__(self) -> str:
        return f"{self.median:.4g} ({min(self.values):.4g}-{max(self.values):.4g})"


def in_turn(
    contestants: Mapping[str, Callable[[int], T]],
    rounds: int | Mapping[str, int],
    *,
    pause_s: float = 0.0,
    announce: Callable[[str, int], None] | None = None,
) -> dict[str, list[T]]:
    """Everybody runs once, then everybody once more, and so on. Returns what the runs returned, by name, in order.

    contestants: functions of the round's number, which counts from 0.
    rounds: how often each of them runs; a mapping gives each its own number, for those that take too long.
    pause_s: seconds of rest before each run, in which threads that still spin for the last one go to sleep.
    announce: called with the name and the round before each run.

    Every round begins with somebody else, so that nobody always runs on the caches that the same other one left.
    """
    names = list(contestants)
    wanted = {name: rounds if isinstance(rounds, int) else rounds[name] for name in names}
    results: dict[str, list[T]] = {name: [] for name in names}
    for number in range(max(wanted.values(), default=0)):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if number >= wanted[name]:
                continue
            if announce is not None:
                announce(name, number)
            time.sleep(pause_s)
            results[name].append(contestants[name](number))
    return results


def copy_bandwidth(num_bytes: int = 512 * MiB, tries: int = 5) -> float:
    """Bytes a second that memory gives and takes: one large copy, read and written bytes both counted, best of `tries`.

    The best and not the median, because this is a bound: what the machine can do where nothing disturbs it. The
    tensor must be many times larger than the last cache, or the caches are measured.
    """
    import torch

    source = torch.ones(num_bytes, dtype=torch.uint8)
    target = torch.zeros_like(source)  # written once, so that its pages exist before the clock runs
    seconds = []
    for _ in range(tries):
        started = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - started)
    return 2 * num_bytes / min(seconds)
