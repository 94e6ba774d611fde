"""What the engine asks of a GPU: its memory, copies that nobody waits for, and graphs.

Knows torch.cuda; the engine calls it here and nowhere else, apart from loading a model. Does not know models, steps or
pools. The tests put an object with the same methods in its place, so that all around it runs on a CPU.
"""

from collections.abc import Callable
from typing import Any

import torch


class CudaDevice:
    """One GPU. Sizes are in bytes.

    capability: the chip's compute capability, (9, 0) for sm_90. num_multiprocessors: how many programs of a kernel
    run at a time, at least.
    """

    def __init__(self, device: torch.device):
        self.device = device
        properties = torch.cuda.get_device_properties(device)
        self.capability: tuple[int, int] = (properties.major, properties.minor)
        self.num_multiprocessors: int = properties.multi_processor_count
        self._side_stream: torch.cuda.Stream | None = None

    # Memory

    def free_bytes(self) -> int:
        """What nobody has taken, as the driver counts it: what torch's allocator keeps for later is taken."""
        return torch.cuda.mem_get_info(self.device)[0]

    def total_bytes(self) -> int:
        """What the device has."""
        return torch.cuda.mem_get_info(self.device)[1]

    def reserved_bytes(self) -> int:
        """What torch's allocator has taken from the driver, for tensors and for later."""
        return torch.cuda.memory_reserved(self.device)

    def peak_reserved_bytes(self) -> int:
        """The largest `reserved_bytes` since `start_peak`."""
        return torch.cuda.max_memory_reserved(self.device)

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def empty_cache(self) -> None:
        """Give back to the driver what torch's allocator keeps for later. Waits for the device."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    # Copies

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """(num_bytes,) uint8 of RAM that the device reads by itself, so that a copy of it runs beside the CPU."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: torch.Tensor, into: torch.Tensor) -> Callable[[], None]:
        """Queue a copy of pinned memory to the device. Returns at once, with a function that waits for its end.

        Until then the source must not be written to. What is queued on the device afterwards sees the copy.
        """
        into.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event.synchronize

    # Graphs

    def graph_pool(self) -> Any:
        """A pool of memory for graphs that never run at the same time: each reuses what the others computed in."""
        return torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], None], pool: Any) -> Callable[[], None]:
        """Record the kernels that `function` launches. Returns a function that launches them again, as one.

        A replay is the kernels and their arguments: addresses and numbers as they were now, no Python. So `function`
        reads what changes from tensors that stay where they are, and must not look at a number on the device.

        The function runs twice, first as usual: kernels are compiled and libraries set up at their first call, which
        can't be recorded. Both on a stream of its own, as torch asks for ("CUDA semantics", section CUDA graphs).

        Raises RuntimeError for what can't be recorded.
        """
        with torch.cuda.device(self.device):
            if self._side_stream is None:
                self._side_stream = torch.cuda.Stream()
            side, graph = self._side_stream, torch.cuda.CUDAGraph()
            side.wait_stream(torch.cuda.current_stream())
            # The outer one also brings the old stream back after a failure, where `torch.cuda.graph` does not.
            with torch.cuda.stream(side):
                function()
                # thread_local: another thread, such as one that draws the pool, may use the device meanwhile.
                with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                    function()
            torch.cuda.current_stream().wait_stream(side)
        return graph.replay


def gpu_of(device: torch.device) -> CudaDevice | None:
    """The GPU that a model lies on, None for a model on the CPU."""
    return CudaDevice(device) if device.type == "cuda" else None
