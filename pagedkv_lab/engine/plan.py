"""How many blocks the pool gets: the arithmetic of `sizing`, on a real model and a real budget.

Knows the model's layers, the budget and the sizing functions. Does not allocate anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.parts import Parts
from pagedkv_lab.engine.ram import free_ram
from pagedkv_lab.errors import PagedKVError, PartError, UnsupportedModel
from pagedkv_lab.kv import LayerShape
from pagedkv_lab.sizing import blocks_for, human_bytes

#: On a CPU the pool may take this share of the free RAM (before gpu_memory_utilization): the rest of the
#: machine is not ours.
CPU_SHARE_OF_FREE_RAM = 0.25


@dataclass(frozen=True)
class PoolPlan:
    """A number of blocks and how it came about. `print(plan)` shows the arithmetic; sizes in bytes.

    block_bytes: a block's keys and values, its scales included where they are quantized. tail_bytes: all `num_tails`
    tails of a quantized pool together; 0 where it has none.
    """

    model_name: str
    num_blocks: int
    block_size: int
    block_bytes: int
    num_tails: int
    tail_bytes: int
    budget_bytes: int | None
    max_model_len: int
    lines: tuple[str, ...]

    @property
    def bytes_per_token(self) -> int | float:
        """A token's keys and values, and its share of a block's scales: a whole number but for odd block sizes."""
        whole, rest = divmod(self.block_bytes, self.block_size)
        return self.block_bytes / self.block_size if rest else whole

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.block_bytes + self.tail_bytes

    def __str__(self) -> str:
        return "\n".join(self.lines)


def free_memory(device: torch.device) -> tuple[int, str]:
    """Bytes that the pool may count on, and where the number comes from in words."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0], "free GPU memory after the weights and one full step"
    free = free_ram()
    return int(free * CPU_SHARE_OF_FREE_RAM), f"{CPU_SHARE_OF_FREE_RAM:.0%} of the {human_bytes(free)} of free RAM"


def plan_pool(
    config: EngineConfig,
    parts: Parts,
    layers: Sequence[LayerShape],
    *,
    model_name: str,
    dtype: torch.dtype,
    device: torch.device,
    free: tuple[int, str] | None = None,
) -> PoolPlan:
    """Plan the pool: num_gpu_blocks if given, else as many blocks as the budget holds.

    Raises PagedKVError where not one block fits, UnsupportedModel where kv_cache_dtype can't hold this model's heads,
    PartError where a learner's sizing function says something that the pool's tensors contradict.
    """
    block_size, quantization = config.block_size, config.kv_quantization
    dtype_name = str(dtype).removeprefix("torch.")
    exact = sum(layer.numbers_per_token for layer in layers) * dtype.itemsize
    if quantization is None:
        itemsize, data_bytes, scale_bytes, num_tails = dtype.itemsize, exact, 0, 0
    else:
        try:
            for layer in layers:
                quantization.check(layer.key_dim, layer.value_dim)
        except ValueError as error:
            raise UnsupportedModel(f"{model_name}: {error}") from error
        itemsize, data_bytes = quantization.bits / 8, sum(quantization.data_bytes(*layer) for layer in layers)
        scale_bytes = sum(quantization.scale_bytes(layer.num_kv_heads, layer.key_dim, block_size) for layer in layers)
        num_tails = quantization.num_tails(config.max_num_seqs)
    formula = _ask_for_bytes_per_token(parts, layers, itemsize, data_bytes)
    block_bytes, tail_bytes = block_size * data_bytes + scale_bytes, num_tails * block_size * exact

    stored = "" if quantization is None else f"; keys and values in {config.kv_cache_dtype}"
    of_scales = f" + {human_bytes(scale_bytes)} of scales" if scale_bytes else ""
    lines = [
        f"KV pool for {model_name} ({dtype_name}, {device.type}{stored})",
        f"  one token  {formula} = {data_bytes:,} bytes ({human_bytes(data_bytes)})",
        f"  one block  {block_size} tokens × {human_bytes(data_bytes)}{of_scales} = {human_bytes(block_bytes)}",
    ]
    if num_tails:
        lines.append(
            f"  tails      2 × {config.max_num_seqs} (max_num_seqs) = {num_tails} partly filled blocks in {dtype_name} "
            f"= {human_bytes(tail_bytes)}"
        )
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
            free, source = free or free_memory(device)
            budget = int(free * config.gpu_memory_utilization)
            lines.append(
                f"  budget     {human_bytes(free)} ({source}) × {config.gpu_memory_utilization:.2f} = "
                f"{human_bytes(budget)}; {human_bytes(free - budget)} stays free"
            )
        room = max(0, budget - tail_bytes)
        num_blocks = _ask_for_num_blocks(parts, room, block_size, block_bytes)
        if num_blocks < 1:
            beside = f"{num_tails} tails take {human_bytes(tail_bytes)}, " * bool(num_tails)
            raise PagedKVError(
                f"No block fits: {beside}one takes {human_bytes(block_bytes)} and the budget is {human_bytes(budget)}. "
                f"Raise kv_cache_memory_bytes or gpu_memory_utilization, or lower block_size"
                + " or max_num_seqs" * bool(num_tails)
                + "."
            )
        left = f"({human_bytes(budget)} - {human_bytes(tail_bytes)})" if num_tails else human_bytes(budget)
        lines.append(f"  blocks     {left} / {human_bytes(block_bytes)} = {num_blocks:,}, rounded down")
    slots = num_blocks * block_size
    longest = num_blocks // blocks_for(config.max_model_len, block_size)
    lines.append(
        f"  holds      {num_blocks:,} × {block_size} = {slots:,} tokens: "
        f"{longest:,} sequence{'s' * (longest != 1)} of max_model_len = {config.max_model_len:,}, or more shorter ones"
    )
    return PoolPlan(
        model_name, num_blocks, block_size, block_bytes, num_tails, tail_bytes, budget, config.max_model_len,
        tuple(lines),
    )  # fmt: skip


def _ask_for_bytes_per_token(parts: Parts, layers: Sequence[LayerShape], itemsize: float, exact: int) -> str:
    """Ask the sizing function what a token weighs, scales apart, and hold it against the truth. Returns the formula."""
    layer = layers[0]
    if set(layers) != {layer} or layer.key_dim != layer.value_dim:
        return f"the sum over {len(layers)} layers of different shapes"
    shape = (len(layers), layer.num_kv_heads, layer.key_dim, int(itemsize) if itemsize >= 1 else itemsize)
    answer = parts.size("kv_bytes_per_token", *shape)
    if answer != exact:
        what = f"it says {answer:,} bytes; one token of this pool's tensors weighs {exact:,} bytes"
        raise PartError("kv_bytes_per_token", f"kv_bytes_per_token{shape}", what)
    return "2 (key and value) × {} layers × {} KV heads × {} numbers × {} bytes".format(*shape)


def _ask_for_num_blocks(parts: Parts, budget: int, block_size: int, block_bytes: int) -> int:
    """Ask the sizing function how many blocks the budget holds. Raises PartError where it says more than that."""
    bytes_per_token, rest = divmod(block_bytes, block_size)
    if rest:  # a token's share of the scales is no whole number: a block is then one thing of so many bytes
        block_size, bytes_per_token = 1, block_bytes
    num_blocks = parts.size("num_blocks_that_fit", budget, block_size, bytes_per_token)
    if num_blocks * block_bytes > budget:
        what = f"it says {num_blocks:,} blocks, which take {human_bytes(num_blocks * block_bytes)}"
        raise PartError("num_blocks_that_fit", f"num_blocks_that_fit({budget}, ...)", what)
    return num_blocks
