"""transformers' own modules on a CPU, made faster where one kernel does what several did.

Knows linear layers and RMS norms by what they compute. Does not know which model they are in.

For the models that `llama` doesn't run: while a step runs, the modules' forward functions are exchanged, and
afterwards the model is what it was.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from pagedkv_lab.engine.linear import PackedLinear, can_pack, has_memory_for

Forward = Callable[[torch.Tensor], torch.Tensor]


def faster_modules(hf: Any) -> list[tuple[nn.Module, Forward]]:
    """Modules of `hf` and the functions to run in their place; none where nothing is gained or memory is short.

    Packed weights are a copy: they take the bytes of the linear layers once more, and don't follow later changes.
    """
    if hf.device.type != "cpu" or not can_pack(hf.dtype):
        return []
    modules = [m for m in hf.modules() if not (m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m))]
    linears = [m for m in modules if type(m) in (nn.Linear, Conv1D) and m.weight.dtype == hf.dtype]
    found: list[tuple[nn.Module, Forward]] = [(m, norm) for m in modules if (norm := _one_kernel_norm(m))]
    if has_memory_for(m.weight.nbytes for m in linears):
        found += [(m, PackedLinear(m.weight if type(m) is nn.Linear else m.weight.T, m.bias)) for m in linears]
    return found


def _one_kernel_norm(module: nn.Module) -> Forward | None:
    """An RMS norm (Zhang and Sennrich 2019) in one kernel instead of six, where that is what the module computes."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or not isinstance(weight, torch.Tensor) or not isinstance(eps, float):
        return None

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    x = torch.linspace(-3, 3, 4 * len(weight)).view(4, -1).sin().to(weight.dtype)
    tolerance = 1e-5 if weight.dtype == torch.float32 else 0.05
    return norm if torch.allclose(norm(x), module(x), rtol=tolerance, atol=tolerance) else None  # Gemma's isn't one
