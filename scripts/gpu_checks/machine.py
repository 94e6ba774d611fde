"""Where this runs: the GPU, its driver and clocks, versions, and which state of the project. Knows no kernels."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from gpu_checks.device import Device
from gpu_checks.record import Section
from gpu_checks.sizes import Sizes

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "triton", "transformers", "numpy", "nvidia-ml-py")


def run(section: Section, device: Device, sizes: Sizes) -> None:
    section.facts |= device.about() | {"versions": versions(), "cuda": torch.version.cuda, "commit": commit()}


def versions() -> dict[str, str]:
    """Python's and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def commit() -> str | None:
    """The checkout's commit, "-dirty" behind it where files differ from it; None where git can't say."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def gpu_name(device: Device) -> str:
    """For a file's name: "nvidia-h200"."""
    words: list[Any] = "".join(c if c.isalnum() else " " for c in device.name.lower()).split()
    return "-".join(words)
