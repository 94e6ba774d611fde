"""Whether an attention backend can serve a model on its device, and what it brings besides attention.

Knows what the layers ask for and what a backend says of itself. Does not know how one works.

A backend of plain functions gets a step's lengths from the host. One with kernels of its own (`triton_paged`) brings
more: it writes keys and values to slots, -1 for nowhere, and it attends by metadata that lie on the device. That is
what CUDA graphs need. Such a backend is known by its module.
"""

import logging
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pagedkv_lab.attention import PagedAttention, choose_backend
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.hf_attention import LayerCall

logger = logging.getLogger(__name__)

FALLBACK = "torch_paged"


def kernels_of(attention: PagedAttention) -> ModuleType | None:
    """The module of a backend that brings `write_kv` and `decode_metadata`; None for any other."""
    module = sys.modules.get(getattr(attention, "__module__", ""))
    return module if hasattr(module, "write_kv") and hasattr(module, "decode_metadata") else None


def quantized_kernels_of(attention: PagedAttention) -> ModuleType | None:
    """The module that does for a quantized pool what `kernels_of` does for a plain one; None where there is none."""
    kernels = kernels_of(attention)
    return kernels.quantized_kernels() if hasattr(kernels, "quantized_kernels") else None


def this_or_fallback(
    name: str, attention: PagedAttention, hf: Any, calls: Sequence[LayerCall], config: EngineConfig
) -> tuple[str, PagedAttention]:
    """The backend itself where it can serve this model (`hf`), else FALLBACK, with a warning that says why.

    calls: what each layer asks of its attention. Raises ValueError, instead of the warning, where the backend was
    asked for by name.
    """
    why = _why_not(attention, hf, calls, config)
    if why is None:
        return name, attention
    if config.attn_backend is not None:
        raise ValueError(f"attn_backend {name!r} can't serve this model: {why}")
    logger.warning("attention runs on %s and not on %s: %s", FALLBACK, name, why)
    return choose_backend(FALLBACK, hf.device)


def _why_not(attention: PagedAttention, hf: Any, calls: Sequence[LayerCall], config: EngineConfig) -> str | None:
    """Why this backend can't run one of the layers, in its own words; None where it can run all."""
    quantization = config.kv_quantization
    pool = {
        "block_size": config.block_size,
        "keys_by_channel": quantization is not None and quantization.key_axis == "channel",
    }
    if kernels := kernels_of(attention):
        for shape, num_heads in dict.fromkeys((call.shape, call.num_heads) for call in calls):
            sizes = shape.key_dim, shape.value_dim, num_heads, shape.num_kv_heads
            if why := kernels.supports(hf.device, hf.dtype, *sizes, **pool):
                return why
    return None
