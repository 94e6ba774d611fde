"""A GPU that isn't there: what the engine asks of `CudaDevice`, done on the CPU, and as unforgiving as CUDA.

A graph is a tape of tensor operations and interpreted Triton launches. A replay runs the tape on the same tensors with
the same numbers, and no Python of the engine's: what was computed on the host while it was recorded stays as it was.
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten

#: Operations whose result Python needs before it can go on, and (lift) tensors made of Python's numbers, which reach a
#: GPU by a copy that is waited for. In a recording they are an error.
WAITS = {
    aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.nonzero.default,
    aten.masked_select.default, aten._unique2.default, aten.unique_dim.default, aten.multinomial.default,
    aten.repeat_interleave.Tensor, aten.lift_fresh.default, aten.lift.default,
}  # fmt: skip


def waits(func: Any, args: tuple) -> bool:
    """Whether this operation looks at numbers: one of WAITS, or an index by a mask, whose result has that many rows."""
    by_mask = func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default) and any(
        index is not None and index.dtype == torch.bool for index in args[1]
    )
    return func in WAITS or by_mask


class Waits(TorchDispatchMode):
    """While it is entered, notes each operation that a GPU would have had to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if waits(func, args):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def has_address(leaf: Any) -> bool:
    """Whether it is a tensor in plain memory: a CPU's packed weights are not."""
    return isinstance(leaf, torch.Tensor) and not leaf.is_mkldnn


class Address:
    """A tensor as a graph knows it: its memory belongs to somebody else, who may free it."""

    def __init__(self, tensor: torch.Tensor):
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._view = tensor.storage_offset(), tensor.size(), tensor.stride()
        self._dtype = tensor.dtype

    def tensor(self) -> torch.Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        assert storage is not None, "a graph reads or writes memory that was freed after it was captured"
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._view)


class Tape(TorchDispatchMode):
    """While it is entered, records what is computed. `replay` computes it again, in place.

    It owns what was computed on it, as a graph does its pool. All other tensors it only knows the addresses of.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[Callable[[], None]] = []
        self._own: dict[int, torch.Tensor] = {}

    def _addresses(self, arguments: Any) -> Any:
        def address(leaf: Any) -> Any:
            if not has_address(leaf) or leaf.untyped_storage()._cdata in self._own:
                return leaf
            return Address(leaf)

        return tree_map(address, arguments)

    @staticmethod
    def _tensors(arguments: Any) -> Any:
        return tree_map(lambda leaf: leaf.tensor() if isinstance(leaf, Address) else leaf, arguments)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if waits(func, args):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        inputs = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if has_address(t)}
        for tensor in tree_leaves(result):
            if has_address(tensor) and tensor.untyped_storage()._cdata not in inputs:
                self._own[tensor.untyped_storage()._cdata] = tensor
        arguments, before = self._addresses((args, kwargs)), self._addresses(result)

        def again() -> None:
            args, kwargs = self._tensors(arguments)
            after = func(*args, **kwargs)
            for old, new in zip(tree_leaves(self._tensors(before)), tree_leaves(after), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        self._operations.append(again)
        return result

    def launch(self, kernel: Any, *args: Any, **options: Any) -> None:
        """A launch of an interpreted Triton kernel."""
        with _disable_current_modes():
            kernel(*args, **options)
        arguments = self._addresses((args, options))

        def again() -> None:
            args, options = self._tensors(arguments)
            kernel(*args, **options)

        self._operations.append(again)

    @torch.inference_mode()
    def replay(self) -> None:
        for again in self._operations:
            again()


@contextmanager
def launches_on(tape: Tape):
    """Record launches of Triton kernels, where Triton is imported and interpreted."""
    try:
        from triton.runtime.interpreter import InterpretedFunction
    except ModuleNotFoundError:
        yield
        return
    run = InterpretedFunction.run
    InterpretedFunction.run = lambda self, *args, **options: tape.launch(run, self, *args, **options)
    try:
        yield
    finally:
        InterpretedFunction.run = run


class SimulatedGpu:
    """Has the methods of `CudaDevice`. `late_copies` has a copy happen when it is waited for, as late as a GPU may.

    Memory is what tests `take` and `give`, and `graph_bytes` for each graph; a cache keeps what is given back.
    """

    def __init__(self, *, late_copies: bool = False, total: int = 1 << 30, graph_bytes: Callable[[int], int] = int):
        self.device = torch.device("cpu")
        self.capability, self.num_multiprocessors = (8, 0), 4
        self.late_copies, self.graph_bytes = late_copies, graph_bytes
        self.total, self.used, self.cached, self.peak, self.emptied = total, 0, 0, 0, 0
        self.num_copies = self.num_graphs = self.num_replays = 0

    # Memory

    def take(self, num_bytes: int) -> None:
        from_cache = min(num_bytes, self.cached)
        self.cached -= from_cache
        self.used += num_bytes
        self.peak = max(self.peak, self.used + self.cached)

    def give(self, num_bytes: int) -> None:
        self.used -= num_bytes
        self.cached += num_bytes

    def free_bytes(self) -> int:
        return self.total - self.used - self.cached

    def total_bytes(self) -> int:
        return self.total

    def reserved_bytes(self) -> int:
        return self.used + self.cached

    def peak_reserved_bytes(self) -> int:
        return self.peak

    def start_peak(self) -> None:
        self.peak = self.used + self.cached

    def empty_cache(self) -> None:
        self.cached = 0
        self.emptied += 1

    # Copies

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.full((num_bytes,), 0x55, dtype=torch.uint8)  # not zero: pinned memory is anybody's

    def copy(self, source: torch.Tensor, into: torch.Tensor) -> Callable[[], None]:
        self.num_copies += 1
        under_way = [source]

        def arrive() -> None:
            if under_way:
                into.copy_(under_way.pop())
                source.fill_(0x55)  # whoever reads the host's array from now on reads this

        if not self.late_copies:
            arrive()
        return arrive

    # Graphs

    def graph_pool(self) -> Any:
        return object()

    def capture(self, function: Callable[[], None], pool: Any) -> Callable[[], None]:
        function()
        tape = Tape()
        with launches_on(tape), tape:
            function()
        self.take(self.graph_bytes(self.num_graphs))
        self.num_graphs += 1

        def replay() -> None:
            self.num_replays += 1
            tape.replay()

        return replay
