"""Is every kernel right on this chip? Against the reference in float64, on the same rounded numbers.

Knows kernels, shapes and tolerances. Each combination of dtype, head dim and group is compiled here when it first
runs, so most of the time goes into that. A combination that breaks is a failed check, and the next one runs.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from gpu_checks.batches import TOLERANCE, Batch, error_of, make_batch
from gpu_checks.device import Device
from gpu_checks.record import NotRun, Section
from gpu_checks.sizes import Config, Sizes
from gpu_checks.varlen import VarlenRefused, varlen_attention
from pagedkv_lab.attention import Workspace, triton_launch, triton_paged

#: float32 TF32 would be a hundred times past this, so that rounding on the way is seen.
CAPABILITY_OF_A_T4 = (7, 5)


def run(section: Section, device: Device, sizes: Sizes) -> None:
    """Cheap and telling ones first: should time run out, the rest is named as not run."""
    section.facts["tolerance"] = TOLERANCE
    section.facts["error"] = "largest absolute error over the largest number of the result, or over 1"
    checks: list[tuple[str, Callable[[], None]]] = []
    for config in sizes.configs:
        checks += [
            (f"decode {config}", lambda c=config: check_decode(section, device, sizes, c)),
            (f"prefill {config}", lambda c=config: check_prefill(section, device, sizes, c)),
        ]
    half = str(device.half_dtype).removeprefix("torch.")
    first = next(config for config in sizes.configs if config.dtype == half)
    special = [
        ("refusals", lambda: check_refusals(section)),
        *((f"write_kv {c}", lambda c=c: check_write(section, device, c)) for c in _one_a_dtype(sizes)),
        *((f"padding rows {c}", lambda c=c: check_padding(section, device, sizes, c)) for c in _one_a_dtype(sizes)),
        (f"CUDA graph {first}", lambda: check_graph(section, device, sizes, first)),
        (f"many blocks {first}", lambda: check_many_blocks(section, device, sizes, first)),
        *((f"varlen {c}", lambda c=c: check_varlen(section, device, sizes, c)) for c in _for_varlen(sizes)),
    ]
    for name, body in section.in_time([*checks[:2], *special, *checks[2:]], name=lambda check: check[0]):
        with section.trying(name):
            body()


def _one_a_dtype(sizes: Sizes) -> list[Config]:
    return list({config.dtype: config for config in reversed(sizes.configs) if not config.softcap}.values())


def _for_varlen(sizes: Sizes) -> Iterator[Config]:
    """torch's kernel knows 16 bits only. 64 and 128 are the dims of nearly all models."""
    for config in sizes.configs:
        if config.dtype != "float32" and config.head_dim in (64, 128) and not config.softcap:
            yield config


def refuse_what_is_unsupported(device: Device, config: Config) -> None:
    heads = config.num_kv_heads * config.group
    sizes = (config.head_dim, config.head_dim, heads, config.num_kv_heads)
    if why := triton_paged.supports(device.torch_device, getattr(torch, config.dtype), *sizes):
        raise NotRun(f"refused: {why}")


def around_a_block(config: Config, sizes: Sizes) -> list[int]:
    size = config.block_size
    return [size - 1, size, size + 1, *sizes.lengths]


def _with_splits(batch: Batch, num_splits: int) -> torch.Tensor:
    """A decode step as the engine's CUDA graphs run it: lengths and tables on the device, so many splits."""
    workspace = Workspace()
    lens = torch.from_numpy(batch.context_lens).to(batch.query.device)
    workspace.put(triton_paged.METADATA, triton_paged.decode_metadata(batch.block_tables, lens, num_splits))
    return batch.run(triton_paged.paged_attention, workspace=workspace)


# The checks


def check_decode(section: Section, device: Device, sizes: Sizes, config: Config) -> None:
    refuse_what_is_unsupported(device, config)
    batch = make_batch(config, [(context, 1) for context in around_a_block(config, sizes)], device.torch_device)
    exact, tolerance = batch.exact(), TOLERANCE[config.dtype]
    for splits in sizes.splits:
        section.within(f"decode {config}, splits {splits}", error_of(_with_splits(batch, splits), exact), tolerance)
    got = batch.run(triton_paged.paged_attention)
    section.within(f"decode {config}, splits auto", error_of(got, exact), tolerance)


def check_prefill(section: Section, device: Device, sizes: Sizes, config: Config) -> None:
    refuse_what_is_unsupported(device, config)
    decoding = [(context, 1) for context in around_a_block(config, sizes)[:3]]
    for kind, lengths in {
        "whole prompts": list(sizes.prompts),
        "chunks behind cached tokens": list(sizes.chunks),
        "mixed with decode": [decoding[0], *sizes.prompts, *decoding[1:], *sizes.chunks],
    }.items():
        batch = make_batch(config, lengths, device.torch_device, seed=1)
        got = batch.run(triton_paged.paged_attention)
        section.within(f"prefill {config}, {kind}", error_of(got, batch.exact()), TOLERANCE[config.dtype])


def check_padding(section: Section, device: Device, sizes: Sizes, config: Config) -> None:
    """Rows of length 0, as CUDA graphs have them: nothing is read for them, and their output is 0."""
    refuse_what_is_unsupported(device, config)
    batch = make_batch(config, [(context, 1) for context in (sizes.lengths[-1], 0, 3, 0)], device.torch_device, seed=2)
    exact = batch.exact()
    for splits in sizes.splits:
        got = _with_splits(batch, splits)
        name = f"padding rows {config}, splits {splits}"
        section.within(f"{name}: the others", error_of(got, exact), TOLERANCE[config.dtype])
        section.check(f"{name}: they are 0", bool((got[[1, 3]] == 0).all()))


def check_write(section: Section, device: Device, config: Config) -> None:
    """The write kernel against indexing, bit for bit; slots below 0 are written nowhere."""
    refuse_what_is_unsupported(device, config)
    heads, dim, num_slots = config.num_kv_heads, config.head_dim, 8 * config.block_size
    generator = torch.Generator().manual_seed(3)
    slots = torch.randperm(num_slots, generator=generator)[:21]
    slots[[0, 7, 20]] = -1

    def random() -> torch.Tensor:
        """(21, heads, dim), as transformers hands them over: a transposed view of (heads, 21, dim)."""
        numbers = torch.randn(heads, 21, dim, generator=generator).to(getattr(torch, config.dtype))
        return numbers.to(device.torch_device).transpose(0, 1)

    key, value = random(), random()
    pools = [torch.full((8, config.block_size, heads, dim), 7.0, dtype=key.dtype, device=key.device) for _ in "kv"]
    expected = [pool.clone() for pool in pools]
    for pool, new in zip(expected, (key, value), strict=True):
        pool.view(num_slots, heads, dim)[slots[slots >= 0].to(pool.device)] = new[slots >= 0]
    triton_paged.write_kv(key, value, *pools, slots.to(device.torch_device))
    for name, pool, wanted in zip(("keys", "values"), pools, expected, strict=True):
        section.check(f"write_kv {config}, {name}", torch.equal(pool, wanted))


def check_graph(section: Section, device: Device, sizes: Sizes, config: Config) -> None:
    """A decode call captured once and replayed with other lengths, longer, shorter and 0, in the same buffers."""
    refuse_what_is_unsupported(device, config)
    longest = around_a_block(config, sizes)
    batch = make_batch(config, [(context, 1) for context in longest], device.torch_device, seed=4)
    lens = torch.from_numpy(np.array(longest, np.int32)).to(device.torch_device)
    workspace = Workspace()
    workspace.put(triton_paged.METADATA, triton_paged.decode_metadata(batch.block_tables, lens, sizes.splits[-1]))

    def step() -> torch.Tensor:
        return batch.run(triton_paged.paged_attention, workspace=workspace)

    lens.fill_(1)
    step()  # compiles
    replay, output = device.capture(step)
    for number, context_lens in enumerate((longest, [1] * len(longest), [0, *longest[1:]], longest)):
        lens.copy_(torch.tensor(context_lens, dtype=torch.int32))
        replay()
        device.synchronize()
        exact = batch.with_contexts(context_lens).exact()
        section.within(f"CUDA graph {config}, replay {number}", error_of(output, exact), TOLERANCE[config.dtype])


def check_many_blocks(section: Section, device: Device, sizes: Sizes, config: Config) -> None:
    """Blocks behind number 2^31 of a pool: an index of 32 bits is too short there."""
    refuse_what_is_unsupported(device, config)
    block_numbers = config.block_size * config.num_kv_heads * config.head_dim
    num_blocks = sizes.many_blocks_numbers // block_numbers
    needed = 2 * num_blocks * block_numbers * getattr(torch, config.dtype).itemsize
    if needed > 0.8 * device.free_bytes():
        raise NotRun(f"needs {needed / 1e9:.1f} GB for the pool")
    lengths = [(context, 1) for context in around_a_block(config, sizes)]
    batch = make_batch(config, [*lengths, sizes.chunks[-1]], device.torch_device, seed=5, num_blocks=num_blocks)
    got = batch.run(triton_paged.paged_attention)
    name = f"many blocks {config}"
    section.within(f"{name}, read", error_of(got, batch.exact()), TOLERANCE[config.dtype])
    slots = torch.tensor([num_blocks * config.block_size - 1], device=device.torch_device)
    key = torch.randn(1, config.num_kv_heads, config.head_dim).to(batch.query)
    triton_paged.write_kv(key, 2 * key, batch.key_pool, batch.value_pool, slots)
    written = torch.equal(batch.key_pool[-1, -1], key[0]) and torch.equal(batch.value_pool[-1, -1], 2 * key[0])
    section.check(f"{name}, write_kv", written)
    del batch
    device.empty_cache()


def check_varlen(section: Section, device: Device, sizes: Sizes, config: Config) -> None:
    """Against torch's own FlashAttention over the same pages, where it takes them. It knows nothing of ours."""
    refuse_what_is_unsupported(device, config)
    lengths = [*((context, 1) for context in sizes.lengths), *sizes.prompts, *sizes.chunks]
    refusals = []
    for pages in (16, 256):  # its first versions take pages of 256 tokens only
        paged = Config(config.dtype, config.head_dim, config.group, pages, sliding_window=config.sliding_window)
        batch = make_batch(paged, lengths, device.torch_device, seed=6)
        try:
            theirs = varlen_attention(batch, device)
        except VarlenRefused as refusal:
            refusals.append(f"pages of {pages}: {refusal}")
            continue
        exact, tolerance = batch.exact(), TOLERANCE[config.dtype]
        their_error = error_of(theirs, exact)
        if not their_error <= tolerance:
            # Then it is no judge, and ours is judged by the reference elsewhere.
            refusals.append(f"pages of {pages}: it is off by {their_error:.1e} against float64")
            continue
        got = batch.run(triton_paged.paged_attention)
        section.within(
            f"varlen {config}: pages of {pages}", error_of(got, theirs.double()), 2 * tolerance, their_error=their_error
        )
        return
    raise NotRun("varlen refused: " + "; ".join(refusals))


def check_refusals(section: Section) -> None:
    """What a chip can't run is refused by name: bfloat16 before sm_80. Needs no such chip."""
    why = triton_launch.refusal(CAPABILITY_OF_A_T4, "bfloat16", 64, 64, 32, 4)
    section.check("a T4 is refused bfloat16, by name", bool(why) and "bfloat16" in str(why), said=str(why))
