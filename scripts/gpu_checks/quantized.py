"""int8 and int4 caches: what the kernels write against what torch writes, and what they read against plain numbers.

Knows `kv.QuantizedKVPool`'s layouts. A pool is filled as an engine fills it: prompts first, then token by token, so
that blocks fill up on the way. Its numbers are then made plain in float64, and the reference attends to those: how
much quantizing loses is not the question here. All that no sequence wrote gets a scale of NaN.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.workloads import Workload
from gpu_checks.batches import TOLERANCE, Batch, error_of, make_batch
from gpu_checks.correctness import around_a_block, refuse_what_is_unsupported
from gpu_checks.device import Device
from gpu_checks.models import random_model
from gpu_checks.record import Section
from gpu_checks.serving import backend, prompts_of, serve_with
from gpu_checks.sizes import Config, Sizes
from pagedkv_lab.attention import Workspace, triton_paged, triton_quantized
from pagedkv_lab.engine import Engine
from pagedkv_lab.kv import LayerShape, QuantizedKVPool
from pagedkv_lab.kv.quantize import QuantizedTensor, dequantize
from pagedkv_lab.sizing import KVQuantization

INT8, INT4 = KVQuantization(8, "token"), KVQuantization(4, "channel")
OTHERS = (KVQuantization(8, "channel"), KVQuantization(4, "token"))
#: Tokens of each sequence that come one by one, after its prompt.
ONE_BY_ONE = 3


def run(section: Section, device: Device, sizes: Sizes) -> None:
    configs = [replace(c, block_size=max(16, c.block_size)) for c in sizes.quantized_configs]
    pairs = [(kind, config) for config in configs for kind in (INT8, INT4)]
    pairs[2:2] = [(kind, configs[0]) for kind in OTHERS]
    with section.trying("engine"):
        check_engine(section, device, sizes)
    for kind, config in section.in_time(pairs, lambda pair: name_of(*pair)):
        with section.trying(name_of(kind, config)):
            refuse_what_is_unsupported(device, config)
            check_kernels(section, device, sizes, kind, config)


def name_of(kind: KVQuantization, config: Config) -> str:
    return f"int{kind.bits}, keys by {kind.key_axis}, {config}"


@dataclass
class Filled:
    """A pool of one layer that holds a batch's keys and values, and what they are in plain numbers."""

    pool: QuantizedKVPool
    layer: Any
    plain: Batch  # float64


def check_kernels(section: Section, device: Device, sizes: Sizes, kind: KVQuantization, config: Config) -> None:
    """Writes first: the reads then are of what torch wrote, so that the two fail apart."""
    name, tolerance = name_of(kind, config), TOLERANCE[config.dtype]
    lengths = [(context, 1) for context in around_a_block(config, sizes)]
    decode = make_batch(config, lengths, device.torch_device, seed=11)
    by_torch, by_kernels = fill(decode, kind, device), fill(decode, kind, device, with_kernels=True)
    _check_writes(section, name, by_torch, by_kernels, kind)

    exact = by_torch.plain.exact()
    for splits in sizes.splits:
        workspace = Workspace()
        lens = torch.from_numpy(decode.context_lens).to(device.torch_device)
        workspace.put(triton_paged.METADATA, triton_paged.decode_metadata(decode.block_tables, lens, splits))
        got = attend(decode, by_torch, workspace=workspace)
        section.within(f"{name}, decode, splits {splits}", error_of(got, exact), tolerance)
    section.within(f"{name}, decode, splits auto", error_of(attend(decode, by_torch), exact), tolerance)
    mixed = make_batch(config, [lengths[0], *sizes.prompts, *sizes.chunks], device.torch_device, seed=12)
    filled = fill(mixed, kind, device)
    section.within(f"{name}, mixed", error_of(attend(mixed, filled), filled.plain.exact()), tolerance)


def attend(batch: Batch, filled: Filled, **more: Any) -> torch.Tensor:
    lengths = batch.context_lens, batch.query_lens
    return triton_quantized.paged_attention(
        batch.query, filled.layer, batch.block_tables, *lengths, **batch.options, **more
    )


def fill(batch: Batch, kind: KVQuantization, device: Device, *, with_kernels: bool = False) -> Filled:
    """Write the batch's keys and values into a new pool, in 1 + ONE_BY_ONE steps."""
    num_blocks, size, heads, dim = batch.key_pool.shape
    num_seqs = len(batch.context_lens)
    pool = QuantizedKVPool(
        [LayerShape(heads, dim, dim)],
        num_blocks,
        size,
        kind,
        num_tails=kind.num_tails(num_seqs),
        dtype=batch.query.dtype,
        device=device.torch_device,
    )
    tables = batch.block_tables.cpu().numpy()
    done = np.zeros(num_seqs, np.int32)
    for step in range(1 + ONE_BY_ONE):
        upto = np.maximum(batch.context_lens - (ONE_BY_ONE - step), 0)
        slots = np.concatenate([_slots(tables[s], done[s], upto[s], size) for s in range(num_seqs)])
        runs = upto > 0
        pool.begin_step([], slots, tables[runs], upto[runs])
        where = torch.from_numpy(slots).to(device.torch_device)
        new = [side.view(-1, heads, dim)[where] for side in (batch.key_pool, batch.value_pool)]
        if with_kernels:
            _write_with_kernels(pool, where, *new)
        else:
            pool.write(0, where, *new)
        done = upto
    written = torch.zeros(num_blocks * size, dtype=torch.bool, device=device.torch_device)
    written[torch.from_numpy(np.concatenate([_slots(t, 0, n, size) for t, n in zip(tables, done, strict=True)]))] = True
    return Filled(pool, pool.layer(0), _plain_and_poisoned(batch, pool, written.view(num_blocks, size)))


def _slots(table: np.ndarray, begin: int, end: int, size: int) -> np.ndarray:
    position = np.arange(begin, end)
    return table[position // size].astype(np.int64) * size + position % size


def _write_with_kernels(pool: QuantizedKVPool, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if not len(slots):
        return
    if pool.touched is None:
        triton_quantized.write_tokens(key, value, pool.layer(0), slots)
    else:
        touched = torch.from_numpy(np.stack(pool.touched)).to(slots.device)
        triton_quantized.fill_blocks(key, value, pool.layer(0), touched)


def _plain_and_poisoned(batch: Batch, pool: QuantizedKVPool, written: torch.Tensor) -> Batch:
    """The pool's numbers in float64 as a batch of their own; in the pool, NaN for what nobody wrote.

    written: (num_blocks, block_size), the slots that hold a token.
    """
    full = written.all(dim=1)
    sides = []
    for tensor, axis, tails in (
        (pool.keys[0], pool.quantization.key_axis, pool.tail_keys),
        (pool.values[0], "token", pool.tail_values),
    ):
        numbers = dequantize(tensor, axis, torch.float64)
        kept = full[:, None].expand_as(written) if tails else written  # what is read of the quantized side
        if tails:
            unused = set(range(len(tails[0])))
            for block, row in enumerate(pool.tails.row_of.tolist()):
                if row >= 0:
                    numbers[block] = tails[0][row].double()
                    tails[0][row][~written[block]] = float("nan")
                    unused.remove(row)
            tails[0][sorted(unused)] = float("nan")
        for scale in tensor.tensors[1:]:
            scale[~full if axis == "channel" else ~kept] = float("nan")
        sides.append(numbers)
    return replace(batch, query=batch.query.double(), key_pool=sides[0], value_pool=sides[1])


def _check_writes(section: Section, name: str, torch_s: Filled, kernels: Filled, kind: KVQuantization) -> None:
    """What both wrote, in plain numbers: a number at a tie may go to either side, so one step apart is allowed."""
    blocks = torch_s.plain.block_tables.unique().long()
    for side, axis in (("key", kind.key_axis), ("value", "token")):
        wanted, got = (getattr(f.plain, f"{side}_pool")[blocks] for f in (torch_s, kernels))
        scale = _scale_of(torch_s.layer, side, axis, wanted.shape)[blocks]
        steps = (got - wanted).abs() / scale.clamp(min=1e-12)
        # What lies in a tail has no step: there, equal or not at all.
        apart = torch.where(scale.isnan(), torch.where(got == wanted, 0.0, float("inf")), steps)
        finite = bool(torch.isfinite(got).all())
        equal = (got == wanted).double().mean().item()
        section.within(f"{name}, {side}s written: steps apart", apart.max().item() if finite else float("nan"), 1.1)
        section.check(f"{name}, {side}s written: equal but for ties", equal > 0.99, equal=equal)


def _scale_of(layer: Any, side: str, axis: str, shape: torch.Size) -> torch.Tensor:
    """The step of every number, (num_blocks, block_size, Hkv, D) float64. NaN where nothing was quantized."""
    tensor: QuantizedTensor = getattr(layer, f"{side}s")
    dim = 1 if axis == "channel" else 3
    return tensor.scale.double().unsqueeze(dim).expand(len(tensor.scale), *shape[1:])


def check_engine(section: Section, device: Device, sizes: Sizes) -> None:
    """A small model in float32 on a quantized cache: on Triton's kernels it says what it says on torch's."""
    model = random_model("small", torch.float32, device.torch_device)
    lengths, new_tokens = ((5, 17), 3) if device.dry_run else ((1, 15, 16, 17, 40, 100, 257), 32)
    prompts = [prompts_of(Workload(f"quantized {n}", 1, 0, n, 1), 0, model)[0] for n in lengths]
    for dtype in ("int8", "int4"):
        said = {}
        for name in (backend(device), "torch_paged"):
            engine = Engine(
                model,
                kv_cache_dtype=dtype,
                attn_backend=name,
                num_gpu_blocks=256,
                max_num_seqs=8,
                max_model_len=sizes.max_model_len,
            )
            said[engine.attn_backend] = serve_with(engine)(prompts, new_tokens)
        on_triton = "triton_paged" in said
        tokens = list(said.values())
        equal = sum(a == b for a, b in zip(tokens[0], tokens[-1], strict=True))
        section.check(
            f"engine, kv_cache_dtype {dtype}: tokens on Triton's kernels equal those on torch's",
            on_triton and equal == len(prompts),
            equal=equal,
            of=len(prompts),
            backends=list(said),
        )
