"""Views: the live pool, recordings of it, pictures, and the package's own source as course text.

A view reads reports, snapshots and numbers; it never reaches into a part. Colours are in `style`.

The names are loaded when they are first used: a picture needs no torch, and arithmetic no widget.
"""

from importlib import import_module
from typing import Any

_NAMES_IN = {
    "figures": (
        "attention_reads",
        "block_table_arrows",
        "bytes_per_token",
        "contiguous_against_paged",
        "copy_on_write",
        "course_map",
        "footprint_over_time",
        "hash_chains",
        "hit_rate_by_capacity",
        "latency_distributions",
        "memory_by_kind",
        "memory_over_time",
        "schedule_gantt",
        "users_that_fit",
        "waste_by_block_size",
    ),
    "playground": ("Playground",),
    "pool": ("pool_picture", "pool_text"),
    "reads": ("CannotFollow", "reads_by_sequence", "record_reads"),
    "recording": ("Recording", "record"),
    "replaying": ("replay",),
    "source": ("show_source",),
    "view": ("PoolView",),
    "watching": ("watch",),
}
_MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(f"pagedkv_lab.show.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
