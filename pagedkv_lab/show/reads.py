"""Which slots of a pool a piece of torch code reads, and in which order: a tensor that keeps a log.

Knows tensors of a pool's shape. Does not know attention: any function that takes such a tensor can be watched.

How it follows: beside the data goes a tensor of the same shape that holds each number's own place in the pool. What
merely moves numbers (slicing, indexing, gather, view, permute) is done to both, so that it is always known where a
number came from. As soon as numbers are copied or computed with, their places are in the second tensor: they have
been read. The recorded tensor has no memory of its own, so nothing can read past the log; what the log can't follow
is refused in words.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pagedkv_lab.errors import PagedKVError

# Operators by their name in torch.ops.aten. These copy numbers from one place to another:
_COPIES = {"index", "index_select", "gather", "take", "embedding", "masked_select", "clone", "repeat", "flip", "roll"}
# These compute, and read every number of their inputs. So does all that torch itself calls pointwise.
_READ_ALL = {
    "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "cat", "stack", "copy", "_to_copy", "_local_scalar_dense", "equal",
    "sum", "mean", "amax", "amin", "max", "min", "logsumexp", "_softmax", "_log_softmax", "cumsum", "prod", "any",
    "all", "linalg_vector_norm", "std", "var", "argmax", "argmin", "_safe_softmax", "copy_",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
}  # fmt: skip
# These look at shape and type only.
_READ_NOTHING = {"_fused_sdp_choice"} | {f"{new}_like" for new in ("empty", "zeros", "ones", "full", "rand", "randn")}
_READ_NOTHING |= {f"new_{what}" for what in ("empty", "zeros", "ones", "full", "empty_strided")}


class CannotFollow(PagedKVError):
    """Recorded memory was used in a way that doesn't show what is read."""

    def __init__(self, what: str, why: str = "does not show which slots it reads"):
        super().__init__(
            f"The reads can't be followed through {what}: it {why}. Take the slots you need from the recorded pool "
            "first (with [], index_select or gather); with those you can do anything."
        )


class RecordedPool(torch.Tensor):
    """A pool, or a view of one, that notes what is read from it. Made by `record_reads`; never written to."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: torch.Tensor, places: torch.Tensor, log: "_Log"):
        self = torch.Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=data.dtype, device=data.device
        )
        self._data, self._places, self._log = data, places, log
        return self

    @property
    def reads(self) -> np.ndarray:
        """Slots (block x block_size + offset) in the order in which they were read, int64.

        A slot stands there as often as any one of its numbers was read: once, where each head was read once, each
        at its own time; twice, where two query heads read the same KV head.
        """
        return self._log.slots()

    def forget_reads(self) -> None:
        """Start again with an empty log."""
        self._log.places.clear()

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"RecordedPool(shape {tuple(self.shape)}, {self.dtype}, {len(self.reads)} reads so far)"

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return _follow(operator, args, kwargs or {})

    def _refuse(self, *args, **kwargs):
        raise CannotFollow("numpy(), data_ptr() and the like", "hands out the memory itself")

    numpy = data_ptr = tolist = untyped_storage = __array__ = __dlpack__ = __deepcopy__ = _refuse


def record_reads(pool: torch.Tensor) -> RecordedPool:
    """`pool` (num_blocks, block_size, ...) under observation: pass it on in its place, then look at `reads`.

    Raises TypeError for what is no tensor, ValueError for one of less than two dimensions.
    """
    if not isinstance(pool, torch.Tensor):
        raise TypeError(f"only reads of a torch tensor can be recorded, not of a {type(pool).__name__}")
    if pool.dim() < 2 or not pool.numel():
        raise ValueError(f"a pool is (num_blocks, block_size, ...) and not empty; this one is {tuple(pool.shape)}")
    if isinstance(pool, RecordedPool):
        pool = pool._data
    pool = pool.detach()
    # The same strides as the pool, so that each view of the one is a view of the other.
    places = torch.empty_strided(pool.shape, pool.stride(), dtype=torch.int64, device=pool.device)
    places.copy_(torch.arange(pool.numel(), device=pool.device).view(pool.shape))
    return RecordedPool(pool, places, _Log(pool[0, 0].numel()))


def reads_by_sequence(
    attention: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    **options: Any,
) -> list[np.ndarray]:
    """The key slots that `attention` reads for each sequence, in order: it is called with one sequence at a time.

    The arguments are those of `attention.reference.paged_attention`. Raises CannotFollow.
    """
    reads, start = [], 0
    for s, query_len in enumerate(query_lens):
        keys, values = record_reads(key_pool), record_reads(value_pool)
        own = slice(start, start := start + int(query_len))
        attention(
            query[own], keys, values, block_tables[s : s + 1], context_lens[s : s + 1], query_lens[s : s + 1], **options
        )
        reads.append(keys.reads)
    return reads


class _Log:
    """Places in the pool, in reading order; `numbers_per_slot` of them are one slot's."""

    def __init__(self, numbers_per_slot: int):
        self.numbers_per_slot = numbers_per_slot
        self.places: list[np.ndarray] = []

    def note(self, places: torch.Tensor) -> None:
        self.places.append(places.reshape(-1).cpu().numpy())

    def slots(self) -> np.ndarray:
        places = np.concatenate([np.empty(0, np.int64), *self.places])
        # Each slot is followed by one of its numbers: the one that was read most often (of several, the first).
        numbers, counts = np.unique(places, return_counts=True)
        slots = numbers // self.numbers_per_slot
        order = np.lexsort((numbers, -counts, slots))
        _, first = np.unique(slots[order], return_index=True)
        return places[np.isin(places, numbers[order[first]])] // self.numbers_per_slot


def _follow(operator, args: tuple, kwargs: dict) -> Any:
    """Run one operator of torch on the data, and note what it reads."""
    name, overload = operator._schema.name.removeprefix("aten::"), operator._overloadname
    result = operator.decompose(*args, **kwargs)  # where it is made of other operators, those are followed
    if result is not NotImplemented:
        return result
    arguments = operator._schema.arguments
    passed = list(zip(arguments, args, strict=False)) + [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]
    for argument, value in passed:
        if argument.alias_info and argument.alias_info.is_write and _recorded(value):
            raise CannotFollow(f"{name}, a write", "changes the pool, and reading must not")

    result = operator(*_replaced(args, "_data"), **_replaced(kwargs, "_data"))
    recorded = [found for _, value in passed for found in _recorded(value)]
    is_view = any(a.alias_info and not a.alias_info.is_write for a in arguments) or name == "_unsafe_view"
    moves = (is_view and name != "as_strided" and overload != "dtype") or name in _COPIES
    if moves and len(recorded) == 1:
        elsewhere = {"out": torch.empty(0, dtype=torch.int64, device=recorded[0].device)} if "out" in kwargs else {}
        places = operator(*_replaced(args, "_places"), **_replaced(kwargs, "_places") | elsewhere)
        if is_view:
            return _wrapped(result, places, recorded[0]._log)
        recorded[0]._log.note(places)
    elif name in _READ_ALL or torch.Tag.pointwise in operator.tags:
        for tensor in recorded:
            tensor._log.note(tensor._places)
    elif name not in _READ_NOTHING:
        raise CannotFollow(f"torch's {name}")
    return result


def _wrapped(result: Any, places: Any, log: _Log) -> Any:
    if isinstance(result, torch.Tensor):
        return RecordedPool(result, places, log)
    return [_wrapped(one, place, log) for one, place in zip(result, places, strict=True)]


def _recorded(value: Any) -> list[RecordedPool]:
    if isinstance(value, list | tuple):
        return [found for one in value for found in _recorded(one)]
    return [value] if isinstance(value, RecordedPool) else []


def _replaced(value: Any, by: str) -> Any:
    """`value` with the data, or the places, of each recorded tensor in its stead."""
    if isinstance(value, dict):
        return {key: _replaced(one, by) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(one, by) for one in value)
    return getattr(value, by) if isinstance(value, RecordedPool) else value
