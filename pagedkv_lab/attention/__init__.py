"""Attention over a paged cache: one signature (`reference.paged_attention` states it), several backends.

`choose_backend` is the one place that knows which backends there are and which suits a device.
"""

from collections.abc import Callable

import torch

from pagedkv_lab.attention import reference, torch_paged
from pagedkv_lab.attention.workspace import Workspace

PagedAttention = Callable[..., torch.Tensor]

BACKENDS: dict[str, PagedAttention] = {
    "reference": reference.paged_attention,
    "torch_paged": torch_paged.paged_attention,
}

__all__ = ["BACKENDS", "PagedAttention", "Workspace", "choose_backend"]


def choose_backend(name: str | None = None, device: torch.device | str = "cpu") -> tuple[str, PagedAttention]:
    """The backend called `name`, or the fastest one for the device. Returns its name and function.

    Raises ValueError for a name that isn't in BACKENDS.
    """
    if name is None:
        name = "torch_paged"
    if name not in BACKENDS:
        raise ValueError(f"attn_backend {name!r} is not known; choose one of {', '.join(BACKENDS)}")
    return name, BACKENDS[name]
