"""PagedKV Lab: how LLM servers manage KV-cache memory, learned by building it.

The names below are loaded when they are first used: importing the package imports neither torch nor
transformers, so that sizing and block management work without them.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ENGINE_NAMES = (
    "ContiguousEngine",
    "Engine",
    "LoadedModel",
    "Parts",
    "RequestOutput",
    "SamplingParams",
    "StepReport",
    "load_model",
)

__all__ = ["__version__", *_ENGINE_NAMES]


def __getattr__(name: str) -> Any:
    if name in _ENGINE_NAMES:
        return getattr(import_module("pagedkv_lab.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
