"""Linear layers on a CPU, with the weights laid out once in the order in which oneDNN reads them.

Knows a weight matrix and its bias. Does not know models.

torch's own `F.linear` takes the weights as they lie, row after row, at every call. oneDNN's kernels want them
in small tiles. Laying them out once costs a second copy of the weights in memory, and then a product with few
rows runs as fast as the weights come from memory. Microseconds on two cores of an AMD EPYC (Zen 4, AVX-512), 576 to
3,072 features, by `F.linear` and packed, in turn: float32 610 and 295 with 1 row, 814 and 406 with 16 rows, 39,400 and
33,500 with 2,048 rows; bfloat16 217 and 136, 342 and 207, 17,400 and 16,700.

The operators are those that torch's inductor calls. They have no stable Python name, so `can_pack` tries them on
numbers, once for a dtype, and whoever asks goes on with `F.linear` where they are missing or wrong.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from pagedkv_lab.engine.ram import free_ram

Made = TypeVar("Made")

_MADE: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


class PackedLinear:
    """`x @ weight.T + bias`, and a residual added in the same pass over the output.

    weight: (out_features, in_features), float32 or bfloat16, on the CPU; bias: (out_features,) or None. Both are
    copied: later changes of the originals are not seen.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.out_features, self.in_features = weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self._bias = None if bias is None else bias.detach().clone()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: (..., in_features). Returns (..., out_features)."""
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """linear(x) + residual; residual: (..., out_features)."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether packed linears work here in this dtype: tried on numbers, against `F.linear`."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    try:
        with torch.inference_mode():
            weight = torch.linspace(-1, 1, 24 * 40).sin().view(24, 40).to(dtype)
            x, other = weight[:5].cos(), weight[5:10, :24].contiguous()
            linear, plain = PackedLinear(weight, weight[:, 0]), F.linear(x, weight, weight[:, 0])
            pairs = (
                (linear(x), plain),
                (linear(x[None]), plain[None]),
                (linear.plus(x, other), plain + other),
            )
            tolerance = 1e-4 if dtype == torch.float32 else 0.1
            return all(torch.allclose(got, wanted, rtol=tolerance, atol=tolerance) for got, wanted in pairs)
    except (AttributeError, RuntimeError):
        return False  # another torch, another processor


def has_memory_for(nbytes: Iterable[int]) -> bool:
    """Whether packed copies of so many bytes leave the machine a quarter of them to spare."""
    return free_ram() > 1.25 * sum(nbytes)


def made_once(hf: Any, make: Callable[[], Made]) -> Made:
    """`make()`, or what it gave the last time for this model: engines on one model share its packed weights.

    Made anew where a weight is another tensor by now, or has been written to.
    """
    weights = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in hf.parameters())
    known = _MADE.get(hf)
    if known is None or known[0] != weights:
        known = _MADE[hf] = (weights, make())
    return known[1]
