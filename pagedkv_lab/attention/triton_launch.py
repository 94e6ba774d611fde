"""With which constants a Triton kernel is launched: a finite list, so that all of it can be compiled ahead of time.

Knows chips by their compute capability, dtypes by name, sizes. Does not know Triton, nor tensors.

Every launch takes its constants from `attention_launch` or `write_launch`, whose arguments `refusal` has let through.
The ahead-of-time tests compile what these two give for every argument there is, for every chip: what is launched has
been compiled before, without a register spill and within the chip's shared memory.
"""

from typing import NamedTuple

#: Chips for which kernels are compiled ahead of time, and the bytes of shared memory a program may have there (CUDA
#: C++ Programming Guide, table "Technical specifications per compute capability"). sm_89 is launched like sm_86, and
#: what is newer than sm_90 like sm_90.
SHARED_MEMORY = {75: 64 * 1024, 80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}

#: Numbers of a head. 16 is the toy model's.
HEAD_DIMS = (16, 64, 80, 96, 128, 256)
DTYPES = ("float16", "bfloat16", "float32")

#: Query heads of one program, at most. Where more share a KV head, several programs read its tokens.
MAX_HEADS = 16

#: One tile holds one block where keys are quantized by channel.
CHANNEL_BLOCK_SIZES = (16, 32)

#: Splits of a sequence's tokens, at most.
MAX_SPLITS = 32

#: A multiprocessor is taken to be busy from this share on, and a context of so many tiles is not worth a split.
_FULL, _FEW_TILES = 0.8, 4


class Launch(NamedTuple):
    """Constants of one kernel: its capital arguments by name, warps a program, stages of the loop's pipeline.

    max_registers: what a thread may have, 255 at most; None leaves it to the assembler. On newer chips that one would
    rather spill a few registers than have fewer programs at a time, which is no good in a loop that waits for memory.
    """

    constants: dict[str, int]
    num_warps: int
    num_stages: int
    max_registers: int | None = None


def chip_of(capability: tuple[int, int]) -> int:
    """The entry of SHARED_MEMORY by which a GPU of this compute capability is launched."""
    major, minor = capability
    number = 10 * major + minor
    return max(chip for chip in SHARED_MEMORY if chip <= number)


def refusal(
    capability: tuple[int, int],
    dtype: str,
    head_dim: int,
    value_dim: int,
    num_heads: int,
    num_kv_heads: int,
    *,
    block_size: int = 16,
    keys_by_channel: bool = False,
) -> str | None:
    """Why the kernels can't run this, in words that name it; None where they can. dtype: its name, "float16"."""
    major, minor = capability
    if capability < (7, 5):
        return f"a GPU of compute capability {major}.{minor} is too old: Triton compiles for 7.5 and newer"
    if dtype not in DTYPES:
        return f"{dtype} is not among {', '.join(DTYPES)}"
    if dtype == "bfloat16" and capability < (8, 0):
        return f"bfloat16 needs compute capability 8.0, and this GPU has {major}.{minor}: load the model as float16"
    if head_dim != value_dim:
        return f"keys of {head_dim} and values of {value_dim} numbers a head: they must be equal"
    if head_dim not in HEAD_DIMS:
        return f"heads of {head_dim} numbers are not among {', '.join(map(str, HEAD_DIMS))}"
    if num_heads % num_kv_heads:
        return f"{num_heads} query heads can't share {num_kv_heads} KV heads evenly"
    if keys_by_channel and block_size not in CHANNEL_BLOCK_SIZES:
        sizes = ", ".join(map(str, CHANNEL_BLOCK_SIZES))
        return f"keys quantized by channel need a block_size among {sizes}, not {block_size}"
    return None


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def width(head_dim: int) -> int:
    """Columns of a tile: a head's numbers, rounded up to a power of two; a matrix product takes 16 at least."""
    return max(16, power_of_two(head_dim))


def _has_tensor_cores(chip: int, dtype: str) -> bool:
    """Whether Triton has a product of tiles done by tensor cores. Where not, threads multiply and add, number by
    number, and operands and sums lie in registers, of which there are few: so tiles are small there."""
    return chip > 75 and dtype != "float32"


def _max_registers(chip: int) -> int | None:
    return 255 if chip > 80 else None


def decode_launch(chip: int, dtype: str, head_dim: int, group: int) -> Launch:
    """How `decode_kernel` runs. One program's rows are the group's query heads."""
    rows, columns = min(MAX_HEADS, power_of_two(group)), width(head_dim)
    row_bytes = columns * (4 if dtype == "float32" else 2)
    if not _has_tensor_cores(chip, dtype):
        tile = 16 if row_bytes > 256 else 32
    else:
        # Keys and values of a tile are 16 to 32 KB together: enough in flight to hide the memory's latency.
        tile = 16 if columns == 256 else min(128, 16 * 1024 // row_bytes)
    constants = {"DIM": head_dim, "WIDTH": columns, "ROWS": rows, "TILE": tile}
    stages = 2 if chip in (75, 86) else 3
    if dtype == "float32":
        if columns == 256:
            constants["ROWS"], stages = min(rows, 8), 2
        return Launch(constants, 8 if (columns, rows) == (128, 1) else 4, stages)
    return Launch(constants, 4, stages, _max_registers(chip))


def prefill_launch(chip: int, dtype: str, head_dim: int, group: int) -> Launch:
    """How `prefill_kernel` runs. One program's rows are queries, each with the query heads of the group."""
    columns = width(head_dim)
    if not _has_tensor_cores(chip, dtype):
        rows, tile, warps = 16, 32 if columns <= 64 else 16, 8 if columns == 128 else 4
    elif columns == 256:
        rows, tile, warps = 64, 32, 8
    else:
        rows, tile, warps = 128, 32 if columns == 128 and chip < 90 else 64, 8
    constants = {"DIM": head_dim, "WIDTH": columns, "ROWS": rows, "HEADS": MAX_HEADS, "TILE": tile}
    if (chip, dtype, columns) == (75, "float32", 256):
        return Launch(constants, 8, 2, 255)
    return Launch(constants, warps, 2)


def merge_launch(head_dim: int, splits: int) -> Launch:
    """How `merge_kernel` runs: one program takes all splits of a head."""
    return Launch({"DIM": head_dim, "WIDTH": width(head_dim), "SPLITS": 8 if splits <= 8 else MAX_SPLITS}, 4, 1)


def write_launch(head_dim: int) -> Launch:
    """How `write_kernel` runs: 512 numbers at a time."""
    return Launch({"DIM": head_dim, "TILE": 512}, 4, 1)


def half_width(head_dim: int) -> int:
    """Columns of half a head, as the quantized kernels work: rounded up like `width`."""
    return width(head_dim // 2)


def quantized_launch(
    chip: int, dtype: str, head_dim: int, group: int, bits: int, channel_block_size: int | None, *, decode: bool
) -> Launch:
    """How `quantized_kernel` runs. channel_block_size: where keys are quantized by channel; a tile is a block then."""
    columns, tensor_cores = half_width(head_dim), _has_tensor_cores(chip, dtype)
    if decode:
        plain = decode_launch(chip, dtype, head_dim, group).constants
        rows = heads = next(rows for rows in (1, 4, 16) if rows >= plain["ROWS"])
        tile = min(64 if columns == 32 else 32, plain["TILE"])
        warps = 8 if rows == 16 and head_dim >= 128 else 4
    else:
        plain = prefill_launch(chip, dtype, head_dim, group).constants
        rows, heads, tile = min(16 if columns == 16 else 32, plain["ROWS"]), MAX_HEADS, min(32, plain["TILE"])
        warps = 8 if columns == 128 else 4
    if not tensor_cores:
        warps = 4 if rows == 1 else 8
        if head_dim == 256:
            rows, heads = min(rows, 4), min(heads, 4)
    if (rows, head_dim, bits) == (1, 128, 4) and channel_block_size:
        warps = 2  # with four, each thread would hold more than it has registers for, on triton 3.7.1
    constants = {
        "DIM": head_dim, "WIDTH": columns, "ROWS": rows, "HEADS": heads, "TILE": channel_block_size or tile,
        "BITS": bits, "BY_CHANNEL": channel_block_size is not None,
    }  # fmt: skip
    return Launch(constants, warps, 2, 255)


def write_tokens_launch(head_dim: int, bits: int) -> Launch:
    """How `write_tokens_kernel` runs: a program has one head of one token."""
    return Launch({"DIM": head_dim, "WIDTH": half_width(head_dim), "BITS": bits}, 1, 1)


def fill_blocks_launch(head_dim: int, bits: int, block_size: int) -> Launch:
    """How `fill_blocks_kernel` runs: a program has one head of one block."""
    constants = {"DIM": head_dim, "WIDTH": half_width(head_dim), "BLOCK_SIZE": block_size, "BITS": bits}
    return Launch(constants, 8 if head_dim == 256 else 4, 1)


def choose_num_splits(
    num_sequences: int, num_kv_heads: int, longest: int, num_multiprocessors: int, tile: int = 64
) -> int:
    """Into how many parts the tokens of each sequence are cut, so that the GPU is full.

    longest: tokens of the longest context. tile: tokens of a tile.

    One part where sequences and heads fill the GPU, or the context is short. Else the fewest parts with which the last
    wave of programs is nearly as full as it gets: "nearly" is 85 % of the best.
    """
    programs = num_sequences * num_kv_heads
    tiles = -(-longest // tile)
    if programs >= _FULL * num_multiprocessors or tiles <= _FEW_TILES:
        return 1

    def fullness(splits: int) -> float:
        waves = programs * splits / num_multiprocessors
        return waves / -(-programs * splits // num_multiprocessors)

    choices = range(1, min(MAX_SPLITS, tiles, num_multiprocessors) + 1)
    best = max(map(fullness, choices))
    return next(splits for splits in choices if fullness(splits) >= 0.85 * best)
