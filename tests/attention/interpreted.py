"""Triton's modules for tests, run by its interpreter (conftest.py sets TRITON_INTERPRET)."""

import importlib
import os
from importlib.util import find_spec
from types import ModuleType

import pytest


def need_triton() -> None:
    """Skip the module that calls this where Triton isn't installed; with PAGEDKV_REQUIRE_TRITON=1 (CI) fail there."""
    if find_spec("triton") is None and os.environ.get("PAGEDKV_REQUIRE_TRITON") != "1":
        why = "Triton is not installed, so its kernels were NOT tested: pip install triton"
        pytest.skip(why, allow_module_level=True)


def interpreted(name: str) -> ModuleType:
    """`pagedkv_lab.attention.<name>`."""
    need_triton()
    return importlib.import_module(f"pagedkv_lab.attention.{name}")
