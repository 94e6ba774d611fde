"""Attention over a paged cache: one signature (`reference.paged_attention` states it), several backends.

`choose_backend` is the one place that knows which backends there are and which suits a device.
"""

import logging
from collections.abc import Callable
from importlib.util import find_spec

import torch

from pagedkv_lab.attention import numba_paged, reference, torch_paged
from pagedkv_lab.attention.workspace import Workspace

logger = logging.getLogger(__name__)

PagedAttention = Callable[..., torch.Tensor]

#: Backends that run on any device. On a GPU there is one more, TRITON, which is imported only where it is chosen.
BACKENDS: dict[str, PagedAttention] = {
    "reference": reference.paged_attention,
    "torch_paged": torch_paged.paged_attention,
    "numba_paged": numba_paged.paged_attention,
}
TRITON = "triton_paged"

__all__ = ["BACKENDS", "TRITON", "PagedAttention", "Workspace", "choose_backend"]


def choose_backend(name: str | None = None, device: torch.device | str = "cpu") -> tuple[str, PagedAttention]:
    """The backend called `name`, or the fastest one for the device. Returns its name and function.

    Raises ValueError for a name that isn't known, for one whose package is not installed, and for triton_paged on a
    device that Triton's kernels don't run on. Sizes and dtypes that they don't take are refused later, by
    `triton_paged.supports`, because they are the model's.
    """
    on_gpu = torch.device(device).type == "cuda"
    if name is None and on_gpu:
        name = TRITON if find_spec("triton") else "torch_paged"
        if name != TRITON:
            logger.warning("Triton is not installed, so attention runs on torch's kernels: pip install triton")
    if name is None:
        name = "numba_paged" if numba_paged.HAS_NUMBA else "torch_paged"
    if name == TRITON:
        return name, _triton_paged(on_gpu)
    if name not in BACKENDS:
        raise ValueError(f"attn_backend {name!r} is not known; choose one of {', '.join([*BACKENDS, TRITON])}")
    if name == "numba_paged" and not numba_paged.HAS_NUMBA:
        raise ValueError("attn_backend 'numba_paged' needs numba 0.62 or newer: pip install -U numba")
    return name, BACKENDS[name]


def _triton_paged(on_gpu: bool) -> PagedAttention:
    if not find_spec("triton"):
        raise ValueError(f"attn_backend {TRITON!r} needs Triton: pip install triton")
    from pagedkv_lab.attention import triton_paged

    if not on_gpu and not triton_paged.INTERPRETED:
        raise ValueError(
            f"attn_backend {TRITON!r} runs on a CUDA GPU. Without one, set TRITON_INTERPRET=1 before Python starts: "
            "the kernels are then interpreted, thousands of times slower, and right"
        )
    return triton_paged.paged_attention
