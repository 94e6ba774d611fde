"""torch's own paged attention (torch.nn.attention.varlen, FlashAttention's kernels), as a judge and as a peer.

Knows its arguments, which have grown from version to version, and that it refuses much: chips before sm_80, float32,
pages that are not multiples of what its kernel was built for. Whatever it refuses is said in its own words.
"""

from collections.abc import Callable

import numpy as np
import torch

from gpu_checks.batches import Batch
from gpu_checks.device import Device


class VarlenRefused(Exception):
    """It can't do this here; the reason in its own words."""


def varlen_attention(batch: Batch, device: Device) -> torch.Tensor:
    """Attention over the batch's pages, (T, Hq, D). Raises VarlenRefused."""
    return prepare_varlen(batch, device)()


def prepare_varlen(batch: Batch, device: Device, *, poisoned: bool = True) -> Callable[[], torch.Tensor]:
    """A function that attends; all that it needs is on the device by now. Raises VarlenRefused.

    poisoned: the pool holds NaN where nobody wrote. Its kernel may load a whole page before it masks, and a weight of 0
    times NaN is NaN, so it gets a copy with zeros there.
    """
    if device.dry_run:
        raise VarlenRefused("it runs on CUDA only")
    if device.capability < (8, 0):
        raise VarlenRefused(f"it needs sm_80, and this is sm_{device.capability[0]}{device.capability[1]}")
    if batch.options["softcap"] is not None:
        raise VarlenRefused("it knows no softcap")
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise VarlenRefused(f"this torch has none: {error}") from error

    def starts(lengths: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)).to(device.torch_device)

    used = torch.from_numpy(batch.context_lens).to(device.torch_device)
    query_starts, key_starts = starts(batch.query_lens), starts(batch.context_lens)
    window = batch.options["sliding_window"]
    tables = batch.block_tables[:, : -(-int(batch.context_lens.max()) // batch.key_pool.shape[1])].contiguous()
    key_pool, value_pool = batch.key_pool, batch.value_pool
    if poisoned:
        key_pool, value_pool = key_pool.nan_to_num(nan=0.0), value_pool.nan_to_num(nan=0.0)
    longest = (int(batch.query_lens.max()), int(batch.context_lens.max()))

    def attend() -> torch.Tensor:
        return varlen_attn(
            batch.query,
            key_pool,
            value_pool,
            query_starts,
            key_starts,
            *longest,
            scale=batch.options["scale"],
            window_size=(-1, 0) if window is None else (window - 1, 0),
            enable_gqa=True,
            seqused_k=used,
            block_table=tables,
        )

    try:
        attend()
        torch.cuda.synchronize()
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise VarlenRefused(f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}") from error
    return attend
