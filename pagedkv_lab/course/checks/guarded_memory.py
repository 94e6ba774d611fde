"""Memory with room around it: a kernel that reads or writes beside a tensor does no harm, and it shows.

Triton's interpreter reads and writes wherever a pointer leads, as a GPU does. One step past the end of a small tensor
would end the process, or change somebody else's numbers.

Knows tensors and the room around them. Does not know kernels. Imports torch, so import it late.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Numbers on either side of a tensor.
ROOM = 1 << 16
#: What the room around a new tensor is full of: a number that no kernel writes by chance, NaN least of all.
_UNTOUCHED = 12345.0


def with_room(tensor: torch.Tensor, around: float) -> torch.Tensor:
    """A copy of a tensor, contiguous, in the middle of memory that is full of `around`."""
    memory = torch.full((tensor.numel() + 2 * ROOM,), around, dtype=tensor.dtype, device=tensor.device)
    return memory[ROOM : ROOM + tensor.numel()].view(tensor.shape).copy_(tensor)


class GuardedMemory(TorchDispatchMode):
    """While it lasts, new tensors have room around them; what is new and empty holds NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operator(*args, **(kwargs or {}))
        is_new = isinstance(made, torch.Tensor) and all(each.alias_info is None for each in operator._schema.returns)
        if not is_new or not made.numel() or not made.is_contiguous() or not made.dtype.is_floating_point:
            return made
        if "empty" in operator._schema.name:
            made.fill_(float("nan"))
        self.made.append(with_room(made, _UNTOUCHED))
        return self.made[-1]

    @property
    def written_beside(self) -> bool:
        """Whether anything was written into the room around the tensors."""
        for tensor in self.made:
            memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
            if (memory[:ROOM] != _UNTOUCHED).any() or (memory[-ROOM:] != _UNTOUCHED).any():
                return True
        return False
