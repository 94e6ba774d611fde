"""What a backend may keep between calls: buffers for good, and results for the length of one step.

A step calls attention once a layer, with the same tables each time. What depends on the tables alone (which
slots to read, which to mask) is worked out in the first layer and found again by the others. And a large
buffer that is allocated anew for each layer costs more in page faults than the gather into it.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch


class Workspace:
    """One per runner. `begin_step` forgets the last step's results and keeps the buffers."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._step: dict[Hashable, Any] = {}

    def begin_step(self) -> None:
        self._step.clear()

    def once_a_step(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """`make()`, called only the first time in a step that `key` is asked for."""
        if key not in self._step:
            self._step[key] = make()
        return self._step[key]

    def put(self, key: Hashable, made: Any) -> None:
        """What `once_a_step(key, ...)` finds in this step: for one who has made it already."""
        self._step[key] = made

    def buffer(self, name: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """An uninitialised tensor of this shape, with the dtype and device of `like`. Overwritten by the next
        call under the same name."""
        size = 1
        for extent in shape:
            size *= extent
        held = self._buffers.get(name)
        if held is None or held.numel() < size or held.dtype != like.dtype or held.device != like.device:
            # An eighth to spare, so that a context that grows token by token doesn't reallocate each step.
            held = self._buffers[name] = torch.empty(size + size // 8, dtype=like.dtype, device=like.device)
        return held[:size].view(shape)
