"""How many blocks the pool gets: the arithmetic of `sizing`, on a real model and a real budget.

Knows the model's layers, the budget and the sizing functions. Does not allocate anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.parts import Parts
from pagedkv_lab.errors import PagedKVError, PartError
from pagedkv_lab.kv import LayerShape
from pagedkv_lab.sizing import blocks_for, human_bytes

#: On a CPU the pool may take this share of the free RAM (before gpu_memory_utilization): the rest of the
#: machine is not ours.
CPU_SHARE_OF_FREE_RAM = 0.25


@dataclass(frozen=True)
class PoolPlan:
    """A number of blocks and how it came about. `print(plan)` shows the arithmetic; sizes in bytes."""

    model_name: str
    num_blocks: int
    block_size: int
    bytes_per_token: int
    budget_bytes: int | None
    max_model_len: int
    lines: tuple[str, ...]

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.block_size * self.bytes_per_token

    def __str__(self) -> str:
        return "\n".join(self.lines)


def free_memory(device: torch.device) -> tuple[int, str]:
    """Bytes that the pool may count on, and where the number comes from in words."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0], "free GPU memory after the weights and one full step"
    free = psutil.virtual_memory().available
    return int(free * CPU_SHARE_OF_FREE_RAM), f"{CPU_SHARE_OF_FREE_RAM:.0%} of the {human_bytes(free)} of free RAM"


def plan_pool(
    config: EngineConfig,
    parts: Parts,
    layers: Sequence[LayerShape],
    *,
    model_name: str,
    dtype: torch.dtype,
    device: torch.device,
) -> PoolPlan:
    """Plan the pool: num_gpu_blocks if given, else as many blocks as the budget holds.

    Raises PagedKVError where not one block fits, PartError where a learner's sizing function says something
    that the pool's tensors contradict.
    """
    exact = sum(layer.numbers_per_token for layer in layers) * dtype.itemsize
    layer = layers[0]
    uniform = set(layers) == {layer} and layer.key_dim == layer.value_dim
    if uniform:
        shape = (len(layers), layer.num_kv_heads, layer.key_dim, dtype.itemsize)
        bytes_per_token = parts.size("kv_bytes_per_token", *shape)
        formula = "2 (key and value) × {} layers × {} KV heads × {} numbers × {} bytes".format(*shape)
        if bytes_per_token != exact:
            what = f"it says {bytes_per_token:,} bytes; one token of this pool's tensors weighs {exact:,} bytes"
            raise PartError("kv_bytes_per_token", f"kv_bytes_per_token{shape}", what)
    else:
        bytes_per_token, formula = exact, f"the sum over {len(layers)} layers of different shapes"

    block_bytes = config.block_size * bytes_per_token
    lines = [
        f"KV pool for {model_name} ({str(dtype).removeprefix('torch.')}, {device.type})",
        f"  one token  {formula} = {bytes_per_token:,} bytes ({human_bytes(bytes_per_token)})",
        f"  one block  {config.block_size} tokens × {human_bytes(bytes_per_token)} = {human_bytes(block_bytes)}",
    ]
    budget = None
    if config.num_gpu_blocks is not None:
        num_blocks = config.num_gpu_blocks
        size = human_bytes(num_blocks * block_bytes)
        lines.append(f"  blocks     {num_blocks:,}, as asked (num_gpu_blocks) = {size}")
    else:
        if config.kv_cache_memory_bytes is not None:
            budget = config.kv_cache_memory_bytes
            lines.append(f"  budget     {human_bytes(budget)}, as asked (kv_cache_memory_bytes)")
        else:
            free, source = free_memory(device)
            budget = int(free * config.gpu_memory_utilization)
            lines.append(
                f"  budget     {human_bytes(free)} ({source}) × {config.gpu_memory_utilization:.2f} = "
                f"{human_bytes(budget)}; {human_bytes(free - budget)} stays free"
            )
        num_blocks = parts.size("num_blocks_that_fit", budget, config.block_size, bytes_per_token)
        if num_blocks * block_bytes > budget:
            what = f"it says {num_blocks:,} blocks, which take {human_bytes(num_blocks * block_bytes)}"
            raise PartError("num_blocks_that_fit", f"num_blocks_that_fit({budget}, ...)", what)
        if num_blocks < 1:
            raise PagedKVError(
                f"No block fits: one takes {human_bytes(block_bytes)} and the budget is {human_bytes(budget)}. "
                "Raise kv_cache_memory_bytes or gpu_memory_utilization, or lower block_size."
            )
        lines.append(f"  blocks     {human_bytes(budget)} / {human_bytes(block_bytes)} = {num_blocks:,}, rounded down")
    slots = num_blocks * config.block_size
    longest = num_blocks // blocks_for(config.max_model_len, config.block_size)
    lines.append(
        f"  holds      {num_blocks:,} × {config.block_size} = {slots:,} tokens: "
        f"{longest:,} sequence{'s' * (longest != 1)} of max_model_len = {config.max_model_len:,}, or more shorter ones"
    )
    return PoolPlan(
        model_name, num_blocks, config.block_size, bytes_per_token, budget, config.max_model_len, tuple(lines)
    )
