"""Attention over a paged cache: one signature (`reference.paged_attention` states it), several backends.

`choose_backend` is the one place that knows which backends there are and which suits a device.
"""

from collections.abc import Callable

import torch

from pagedkv_lab.attention import numba_paged, reference, torch_paged
from pagedkv_lab.attention.workspace import Workspace

PagedAttention = Callable[..., torch.Tensor]

BACKENDS: dict[str, PagedAttention] = {
    "reference": reference.paged_attention,
    "torch_paged": torch_paged.paged_attention,
    "numba_paged": numba_paged.paged_attention,
}

__all__ = ["BACKENDS", "PagedAttention", "Workspace", "choose_backend"]


def choose_backend(name: str | None = None, device: torch.device | str = "cpu") -> tuple[str, PagedAttention]:
    """The backend called `name`, or the fastest one for the device. Returns its name and function.

    Raises ValueError for a name that isn't in BACKENDS, and for one whose package is not installed.
    """
    if name is None:
        name = "numba_paged" if torch.device(device).type == "cpu" and numba_paged.HAS_NUMBA else "torch_paged"
    if name not in BACKENDS:
        raise ValueError(f"attn_backend {name!r} is not known; choose one of {', '.join(BACKENDS)}")
    if name == "numba_paged" and not numba_paged.HAS_NUMBA:
        raise ValueError("attn_backend 'numba_paged' needs numba 0.62 or newer: pip install -U numba")
    return name, BACKENDS[name]
