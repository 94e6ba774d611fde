"""Views: pictures of the pool and of the sizing arithmetic, and the package's own source as course text.

A view reads snapshots and numbers; it never reaches into a part. Colours are in `style`.
"""

from pagedkv_lab.show.figures import (
    bytes_per_token,
    contiguous_against_paged,
    memory_by_kind,
    users_that_fit,
    waste_by_block_size,
)
from pagedkv_lab.show.pool import pool_picture, pool_text
from pagedkv_lab.show.source import show_source

__all__ = [
    "bytes_per_token",
    "contiguous_against_paged",
    "memory_by_kind",
    "pool_picture",
    "pool_text",
    "show_source",
    "users_that_fit",
    "waste_by_block_size",
]
