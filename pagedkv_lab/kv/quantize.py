"""Numbers in 8 or 4 bits: steps of a common size for a group of them.

Knows groups, steps and how two half bytes share a byte. Does not know pools, blocks in use or sequences.

A number x is kept as a whole number n with x ~ n x scale + zero. One scale serves a group. What the group is decides
how much is lost, since the step must span the largest number in it:

- axis "token": the numbers of one token in one head.
- axis "channel": one channel of a head, over the tokens of a block. Keys have a few channels that are always far
  larger than the others; by token, those make everybody's step coarse (KIVI: Liu et al. 2024, section 3).
"""

from typing import NamedTuple

import torch

#: Which dimension of (..., tokens, heads, D) shares a scale.
GROUP_DIM = {"token": -1, "channel": -3}


class QuantizedTensor(NamedTuple):
    """data x scale + zero. Shapes for x of (..., tokens, heads, D):

    data: int8, of x's shape, -127 to 127; or uint8 (..., tokens, heads, D // 2), two numbers of 0 to 15 in a byte.
    scale: float16, x's shape without the dimension that shares it: (..., tokens, heads) for axis "token",
        (..., heads, D) for axis "channel".
    zero: like scale; None in 8 bits, whose steps lie on both sides of 0.
    """

    data: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Those that there are."""
        return [tensor for tensor in self if tensor is not None]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def quantize(x: torch.Tensor, bits: int, axis: str) -> QuantizedTensor:
    """x, (..., tokens, heads, D), in 8 bits (symmetric: the largest is 127 steps) or 4 (15 steps from the minimum).

    The numbers are counted in steps of the scale as float16 holds it, so that its rounding costs no accuracy twice:
    what comes back is off by half a step at most, and by float16's rounding at a group's ends. A group of equal
    numbers has scale 0. A scale that float16 can't hold (above 65,504) makes NaN, which is not overlooked.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    dim = GROUP_DIM[axis]
    if bits == 8:
        scale = (x.abs().amax(dim) / 127).half()
        return QuantizedTensor(_in_steps(x, scale, dim).clamp(-127, 127).to(torch.int8), scale, None)
    low, high = x.aminmax(dim=dim)
    scale, zero = ((high - low) / 15).half(), low.half()
    steps = _in_steps(x - zero.to(x.dtype).unsqueeze(dim), scale, dim)
    return QuantizedTensor(pack(steps.clamp(0, 15).to(torch.uint8)), scale, zero)


def dequantize(tensor: QuantizedTensor, axis: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What `quantize` kept, (..., tokens, heads, D) in `dtype`; the arithmetic is done in float32 at least."""
    exact = torch.promote_types(dtype, torch.float32)
    dim = GROUP_DIM[axis]
    data = unpack(tensor.data) if tensor.data.dtype == torch.uint8 else tensor.data
    x = data.to(exact) * tensor.scale.to(exact).unsqueeze(dim)
    if tensor.zero is not None:
        x += tensor.zero.to(exact).unsqueeze(dim)
    return x.to(dtype)


def pack(numbers: torch.Tensor) -> torch.Tensor:
    """(..., D) uint8 of 0 to 15 -> (..., D // 2): byte j holds number j in its low half, number j + D // 2 above.

    Halves of the row and not neighbours: a kernel that reads the bytes then has two whole halves of a vector.
    """
    low, high = numbers.chunk(2, dim=-1)
    return low | high << 4


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """(..., D // 2) bytes -> (..., D) uint8 of 0 to 15."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _in_steps(x: torch.Tensor, scale: torch.Tensor, dim: int) -> torch.Tensor:
    """x / scale to the nearest whole number; 0 where the scale is 0."""
    step = scale.to(x.dtype).unsqueeze(dim)
    return torch.where(step > 0, x / step, 0.0).round()
