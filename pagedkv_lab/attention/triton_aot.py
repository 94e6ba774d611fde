"""Compiles the Triton kernels for GPUs that aren't here, and says whether they fit.

Knows every constant that `triton_launch` can hand out, and Triton's compiler, which needs no GPU and no driver to
write a GPU's machine code. Does not run anything.

    python -m pagedkv_lab.attention.triton_aot          a selection, in a minute or two
    python -m pagedkv_lab.attention.triton_aot --all    every variant that can be launched

A variant passes if it compiles, no register is spilled to memory, and its shared memory fits the chip. The exit status
is 1 where one doesn't.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations, product
from typing import Any, NamedTuple

from pagedkv_lab.attention import triton_launch
from pagedkv_lab.attention.triton_launch import CHANNEL_BLOCK_SIZES, DTYPES, HEAD_DIMS, SHARED_MEMORY, Launch

#: Query heads a KV head: one of each number of rows that a launch may have. The others are launched like the next.
GROUPS = (1, 2, 4, 8, 16)

#: Each kernel's parameters that aren't plain 32-bit integers or constants; "*" points to numbers of the model's dtype,
#: "*data" to those of a quantized pool.
_TYPES = {
    **dict.fromkeys(("query", "output", "key", "value", "key_pool", "value_pool", "tail_keys", "tail_values"), "*"),
    **dict.fromkeys(("key_data", "value_data"), "*data"),
    **dict.fromkeys(("key_scale", "key_zero", "value_scale", "value_zero"), "*fp16"),
    **dict.fromkeys(("partial_outputs", "partial_lses"), "*fp32"),
    **dict.fromkeys(("block_tables", "context_lens", "sequences", "query_starts", "query_lens", "pieces"), "*i32"),
    **dict.fromkeys(("tail_rows", "touched"), "*i32"),
    "slots": "*i64",
    **dict.fromkeys(("scale", "softcap"), "fp32"),
    **dict.fromkeys(("query_token_stride", "query_head_stride", "table_stride"), "i64"),
    **dict.fromkeys(("key_token_stride", "key_head_stride", "value_token_stride", "value_head_stride"), "i64"),
}
_SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


class Variant(NamedTuple):
    """One kernel as it would be compiled for one chip: constants by name, sorted; warps, stages, registers."""

    kernel: str
    chip: int
    dtype: str
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    max_registers: int | None = None

    @classmethod
    def of(cls, kernel: str, chip: int, dtype: str, launch: Launch, **flags: bool) -> "Variant":
        constants = {name: int(given) for name, given in (launch.constants | flags).items()}
        return cls(kernel, chip, dtype, tuple(sorted(constants.items())), *launch[1:])

    def __str__(self) -> str:
        constants = " ".join(f"{name}={given}" for name, given in self.constants)
        return f"{self.kernel} sm_{self.chip} {self.dtype} {constants} warps={self.num_warps} stages={self.num_stages}"


def variants() -> list[Variant]:
    """Everything that can be launched, each variant once."""
    return list(dict.fromkeys(_variants()))


def _variants() -> Iterator[Variant]:
    for chip, dtype, dim in product(SHARED_MEMORY, DTYPES, HEAD_DIMS):
        if triton_launch.refusal((chip // 10, chip % 10), dtype, dim, dim, 1, 1):
            continue
        of = partial(Variant.of, chip=chip, dtype=dtype)
        for group, capped in product(GROUPS, (False, True)):
            for kernel, how in (("decode", triton_launch.decode_launch), ("prefill", triton_launch.prefill_launch)):
                launch = how(chip, dtype, dim, group)
                yield of(f"{kernel}_kernel", launch=launch, CAPPED=capped, UPCAST=False)
        for splits in range(2, triton_launch.MAX_SPLITS + 1):
            yield of("merge_kernel", launch=triton_launch.merge_launch(dim, splits))
        yield of("write_kernel", launch=triton_launch.write_launch(dim))
        for bits, channel_block_size in product((8, 4), (None, *CHANNEL_BLOCK_SIZES)):
            for group, decode in product(GROUPS, (True, False)):
                launch = triton_launch.quantized_launch(
                    chip, dtype, dim, group, bits, channel_block_size, decode=decode
                )
                yield of("quantized_kernel", launch=launch, UPCAST=False)
            if channel_block_size:
                launch = triton_launch.fill_blocks_launch(dim, bits, channel_block_size)
                yield of("fill_blocks_kernel", launch=launch)
            else:
                yield of("write_tokens_kernel", launch=triton_launch.write_tokens_launch(dim, bits))


def selection(everything: Iterable[Variant]) -> list[Variant]:
    """As few variants as show, for each kernel, every chip with every dtype and size, and every other pair of these.

    Greedy: the first variant that shows most pairs not shown before, until all are.
    """
    chosen = []
    by_kernel: dict[str, dict[Variant, set]] = {}
    for variant in everything:
        facts = [("chip", variant.chip), ("dtype", variant.dtype), *variant.constants]
        by_kernel.setdefault(variant.kernel, {})[variant] = set(combinations(facts, 2))
    for pairs_of in by_kernel.values():
        missing = set().union(*pairs_of.values())
        while missing:
            best = max(pairs_of, key=lambda variant: len(pairs_of[variant] & missing))
            missing -= pairs_of[best]
            chosen.append(best)
    return chosen


def compile_variant(variant: Variant) -> Any:
    """The compiled kernel (`asm["ptx"]`, `asm["cubin"]`, `metadata.shared`), for a chip that needn't be here.

    Raises what Triton raises where it can't be compiled or spills registers; MemoryError where it needs more shared
    memory than the chip has.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = kernels()[variant.kernel]
    constants = dict(variant.constants)
    types = {
        name: "constexpr" if name in constants else _type(name, variant.dtype, constants) for name in kernel.arg_names
    }
    # What a launch finds out about a pointer: it begins at a multiple of 16 bytes. Of the others it doesn't ask.
    aligned = {
        (parameter.num,): [["tt.divisibility", 16]]
        for parameter in kernel.params
        if types[parameter.name].startswith("*") and not parameter.do_not_specialize
    }
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=aligned)
    options = {
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "ptx_options": "--warn-on-spills --warning-as-error",
    }
    if variant.max_registers is not None:
        options["maxnreg"] = variant.max_registers
    compiled = triton.compile(source, target=GPUTarget("cuda", variant.chip, 32), options=options)
    if compiled.metadata.shared > SHARED_MEMORY[variant.chip]:
        raise MemoryError(f"{compiled.metadata.shared:,} bytes of shared memory, the chip has less")
    return compiled


def kernels() -> dict[str, Any]:
    """The kernels by name."""
    from pagedkv_lab.attention import triton_kernels, triton_quantized_kernels

    modules = (triton_kernels, triton_quantized_kernels)
    return {name: found for module in modules for name, found in vars(module).items() if name.endswith("_kernel")}


def _type(name: str, dtype: str, constants: dict[str, int]) -> str:
    """A parameter's type, as Triton writes it."""
    kind = _TYPES.get(name, "i32")
    return {"*": f"*{_SHORT[dtype]}", "*data": "*i8" if constants.get("BITS") == 8 else "*u8"}.get(kind, kind)


def _try(variant: Variant) -> tuple[Variant, str | None, int]:
    """In a process of its own: what went wrong, in one line, and the shared memory in bytes."""
    out = os.dup(1)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)  # Triton prints all of the assembly where a register is spilled
    try:
        return variant, None, compile_variant(variant).metadata.shared
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines()]
        telling = next((line for line in lines if "error   :" in line), lines[-1] if lines else type(error).__name__)
        return variant, telling, 0
    finally:
        os.dup2(out, 1)
        os.close(out)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pagedkv_lab.attention.triton_aot", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every variant, not a selection")
    parser.add_argument("--chip", type=int, action="append", choices=SHARED_MEMORY, help="only this one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (default: one a core)")
    arguments = parser.parse_args(argv)
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as it has been; Triton 3.9 warns that it will change
    import triton
    from tqdm import tqdm

    wanted = [variant for variant in variants() if variant.chip in (arguments.chip or SHARED_MEMORY)]
    todo = wanted if arguments.all else selection(wanted)
    failed, most = [], dict.fromkeys(sorted({variant.chip for variant in todo}), 0)
    # A cache of its own: what is tested is that it compiles now.
    with tempfile.TemporaryDirectory() as cache, ProcessPoolExecutor(arguments.jobs) as processes:
        os.environ["TRITON_CACHE_DIR"] = cache
        for variant, wrong, shared in tqdm(processes.map(_try, todo, chunksize=4), total=len(todo), unit="kernel"):
            most[variant.chip] = max(most[variant.chip], shared)
            if wrong:
                failed.append(variant)
                print(f"{variant}: {wrong}", flush=True)
    print(f"triton {triton.__version__}: {len(todo) - len(failed)} of {len(todo)} variants compile without a spill")
    for chip, shared in most.items():
        print(f"  sm_{chip}: {shared:,} of {SHARED_MEMORY[chip]:,} bytes of shared memory at most")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
