"""Which constants a kernel is launched with, and that nothing is launched which wasn't compiled ahead of time."""

import os
import subprocess
import sys

import pytest
import torch
from batches import make_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import interpreted

from pagedkv_lab.attention import Workspace
from pagedkv_lab.attention.triton_launch import (
    CHANNEL_BLOCK_SIZES,
    HEAD_DIMS,
    MAX_SPLITS,
    chip_of,
    choose_num_splits,
    refusal,
)
from pagedkv_lab.kv import LayerShape
from pagedkv_lab.kv.quantized import QuantizedKVPool
from pagedkv_lab.sizing import KVQuantization

triton_paged = interpreted("triton_paged")
triton_quantized = interpreted("triton_quantized")
triton_aot = interpreted("triton_aot")

#: GPUs, by compute capability: T4, A100, RTX 3090, RTX 4090, H100 and H200, B200.
CAPABILITIES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0)]


# Refusals


def test_bfloat16_is_refused_on_a_t4_with_what_to_do():
    assert "load the model as float16" in refusal((7, 5), "bfloat16", 64, 64, 32, 4)
    assert refusal((7, 5), "float16", 64, 64, 32, 4) is None
    assert refusal((8, 0), "bfloat16", 64, 64, 32, 4) is None


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (((7, 0), "float16", 64, 64, 4, 4), "7.0 is too old"),
        (((9, 0), "float64", 64, 64, 4, 4), "float64"),
        (((9, 0), "float16", 72, 72, 4, 4), "heads of 72"),
        (((9, 0), "float16", 128, 64, 4, 4), "keys of 128 and values of 64"),
        (((9, 0), "float16", 64, 64, 9, 4), "9 query heads"),
    ],
)
def test_what_can_t_run_is_refused_by_name(sizes, words):
    assert words in refusal(*sizes)


def test_keys_by_channel_need_a_block_that_is_a_tile():
    assert "block_size" in refusal((9, 0), "float16", 64, 64, 4, 4, block_size=8, keys_by_channel=True)
    assert refusal((9, 0), "float16", 64, 64, 4, 4, block_size=8) is None


@pytest.mark.parametrize(
    ("capability", "chip"), [((7, 5), 75), ((8, 0), 80), ((8, 6), 86), ((8, 7), 86), ((8, 9), 86), ((12, 0), 90)]
)
def test_a_gpu_is_launched_like_the_newest_chip_that_is_not_newer(capability, chip):
    assert chip_of(capability) == chip


# Splits


@given(
    num_sequences=st.integers(1, 512),
    num_kv_heads=st.integers(1, 32),
    longest=st.integers(0, 200_000),
    num_multiprocessors=st.sampled_from([8, 40, 108, 132]),
    tile=st.sampled_from([16, 32, 64, 128]),
)
def test_there_are_never_more_splits_than_tiles_or_than_a_kernel_takes(
    num_sequences, num_kv_heads, longest, num_multiprocessors, tile
):
    splits = choose_num_splits(num_sequences, num_kv_heads, longest, num_multiprocessors, tile)
    assert 1 <= splits <= max(1, min(MAX_SPLITS, -(-longest // tile)))
    if num_sequences * num_kv_heads >= num_multiprocessors:
        assert splits == 1


def test_one_long_sequence_fills_the_gpu():
    """4 KV heads on 132 multiprocessors: at least 80 % of them work at once."""
    splits = choose_num_splits(1, 4, 8192, 132, 64)
    assert 4 * splits >= 0.8 * 132 * -(-4 * splits // 132)


def test_a_short_context_is_not_split():
    assert choose_num_splits(1, 1, 4 * 64, 132, 64) == 1
    assert choose_num_splits(1, 1, 4 * 64 + 1, 132, 64) > 1


# What is launched has been compiled


class Recorder:
    """Stands in a kernel's place and notes what it would be compiled for."""

    def __init__(self, kernel, chip: int, launched: set):
        self.kernel, self.chip, self.launched = kernel, chip, launched

    def __getitem__(self, grid: tuple[int, ...]):
        assert all(extent >= 1 for extent in grid)
        return self.launch

    def launch(self, *arguments, num_warps: int, num_stages: int, maxnreg: int | None = None, **constants) -> None:
        names = [name for name in self.kernel.arg_names if name not in constants]
        assert len(arguments) == len(names), "an argument is missing, or has no parameter"
        given = dict(zip(names, arguments, strict=True))
        dtypes = {triton_paged.dtype_name(given[n].dtype) for n in names if triton_aot._TYPES.get(n) == "*"}
        assert len(dtypes) == 1
        for name, argument in given.items():
            assert of_type(argument, triton_aot._type(name, *dtypes, constants)), (name, argument)
        sorted_constants = tuple(sorted((name, int(given)) for name, given in constants.items()))
        variant = (self.kernel.fn.__name__, self.chip, *dtypes, sorted_constants, num_warps, num_stages, maxnreg)
        self.launched.add(triton_aot.Variant(*variant))


TORCH = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "i32": torch.int32, "i64": torch.int64,
    "i8": torch.int8, "u8": torch.uint8,
}  # fmt: skip


def of_type(argument, kind: str) -> bool:
    """Whether Triton takes the argument for what was compiled."""
    if kind.startswith("*"):
        return isinstance(argument, torch.Tensor) and argument.dtype == TORCH[kind[1:]]
    if kind == "fp32":
        return isinstance(argument, float)
    return type(argument) is int and (kind == "i64" or -(2**31) <= argument < 2**31)


@pytest.fixture(scope="module")
def compiled() -> set:
    return set(triton_aot.variants())


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_nothing_is_launched_that_was_not_compiled_ahead_of_time(capability, dtype, compiled, monkeypatch):
    """Steps of all kinds for a GPU that isn't here, with recorders for kernels."""
    launched: set = set()
    chip = chip_of(capability)

    def supports(device, dtype, *sizes, **more):
        return refusal(capability, triton_paged.dtype_name(dtype), *sizes, **more)

    for module in (triton_paged, triton_quantized):
        monkeypatch.setattr(module, "gpu", lambda device: (capability, 100))
        monkeypatch.setattr(module, "refused", supports)
        monkeypatch.setattr(module, "INTERPRETED", False)
    for kernels in (triton_paged.kernels, triton_quantized.kernels):
        for name, kernel in triton_aot.kernels().items():
            if hasattr(kernels, name):
                monkeypatch.setattr(kernels, name, Recorder(kernel, chip, launched))

    @settings(max_examples=60)
    @given(
        dim=st.sampled_from(HEAD_DIMS),
        group=st.integers(1, 70),
        lengths=st.lists(st.sampled_from([(1, 1), (40, 1), (700, 1), (9, 9), (50, 13)]), min_size=1, max_size=3),
        block_size=st.sampled_from([1, 7, *CHANNEL_BLOCK_SIZES]),
        window=st.sampled_from([None, 5]),
        softcap=st.sampled_from([None, 2.0]),
        quantization=st.sampled_from([None, (8, "token"), (4, "token"), (8, "channel"), (4, "channel")]),
    )
    def steps(dim, group, lengths, block_size, window, softcap, quantization):
        batch = make_batch(
            lengths, block_size=block_size, num_kv_heads=1, group=group, key_dim=dim, sliding_window=window,
            softcap=softcap,
        ).to(dtype)  # fmt: skip
        tables = (batch.block_tables, batch.context_lens, batch.query_lens)
        new = torch.zeros(3, 1, dim, dtype=dtype)
        if quantization is None:
            batch.run(triton_paged.paged_attention, workspace=Workspace())
            triton_paged.write_kv(new, new, batch.key_pool, batch.value_pool, torch.arange(3))
            return
        pool = QuantizedKVPool(
            [LayerShape(1, dim, dim)], 4, block_size, KVQuantization(*quantization), num_tails=2, dtype=dtype
        )
        layer = pool.layer(0)
        if quantization[1] == "channel":
            if block_size not in CHANNEL_BLOCK_SIZES:
                with pytest.raises(ValueError, match="block_size"):
                    triton_quantized.paged_attention(batch.query, layer, *tables, **batch.options)
                return
            layer = layer._replace(tail_rows=torch.zeros(len(lengths), dtype=torch.int32))
            triton_quantized.fill_blocks(new, new, layer, torch.zeros(5, 2, dtype=torch.int32))
        else:
            triton_quantized.write_tokens(new, new, layer, torch.arange(3))
        triton_quantized.paged_attention(batch.query, layer, *tables, **batch.options)

    if capability == (7, 5) and dtype == torch.bfloat16:
        with pytest.raises(ValueError, match="load the model as float16"):
            make_batch([(9, 1)], key_dim=64).to(dtype).run(triton_paged.paged_attention)
        assert not launched
        return
    steps()
    names = {variant.kernel for variant in launched}
    assert names == triton_aot.kernels().keys(), "the steps above reach every kernel"
    assert launched <= compiled, f"not compiled ahead of time: {sorted(map(str, launched - compiled))[:3]}"


# Compiling ahead of time


def test_the_selection_shows_every_kernel_with_every_chip_dtype_size_and_number_of_rows(compiled):
    def facts(variants) -> set:
        return {
            (v.kernel, *fact)
            for v in variants
            for fact in [("chip", v.chip), ("dtype", v.dtype), ("on", v.chip, v.dtype), *v.constants]
        }

    selection = triton_aot.selection(triton_aot.variants())
    assert facts(selection) == facts(compiled)
    assert len(selection) < len(compiled) / 10


# `make kernels` compiles the selection and `make aot` all of it, in processes of their own.
TOO_LARGE = """
from pagedkv_lab.attention import triton_aot
from pagedkv_lab.attention.triton_launch import Launch
constants = {"DIM": 128, "WIDTH": 128, "ROWS": %d, "TILE": %d}
launch = Launch(constants, 4, %d)
too_large = triton_aot.Variant.of("decode_kernel", 75, "%s", launch, CAPPED=False, UPCAST=False)
triton_aot.variants = lambda: [too_large]
raise SystemExit(triton_aot.main(["--jobs", "1"]))
"""


@pytest.mark.parametrize(
    ("rows", "tile", "stages", "dtype", "words"),
    [
        (64, 32, 1, "float32", "Registers are spilled"),
        (16, 128, 1, "float16", "bytes of shared memory"),
        (1, 32, 1, "float16", ""),
    ],
)
def test_a_kernel_that_spills_or_does_not_fit_is_told_and_fails(rows, tile, stages, dtype, words):
    environment = {name: given for name, given in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", TOO_LARGE % (rows, tile, stages, dtype)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert words in done.stdout
    assert f"{0 if words else 1} of 1 variants" in done.stdout
    assert done.returncode == (1 if words else 0), done.stdout + done.stderr
    assert done.stdout.count("\n") < 10, "the assembly is not shown"
