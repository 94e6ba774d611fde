"""How large everything is: on a GPU, and in a dry run, where the interpreter takes milliseconds for what a GPU does in
a microsecond. Knows numbers only.
"""

from dataclasses import dataclass
from itertools import product

#: (query heads, KV heads, head dim): TinyLlama's, Llama 3's 8B, and one without groups.
TINYLLAMA, GROUP_OF_4, NO_GROUP = (32, 4, 64), (32, 8, 128), (32, 32, 128)
MANY, SINGLE = (32, 2048), 8192


@dataclass(frozen=True)
class Config:
    """One combination for the checks of kernels. group: query heads a KV head."""

    dtype: str
    head_dim: int
    group: int
    block_size: int
    num_kv_heads: int = 2
    sliding_window: int | None = None
    softcap: float | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}, dim {self.head_dim}, group {self.group}, blocks of {self.block_size}"
        text += f", window {self.sliding_window}" if self.sliding_window else ""
        return text + (f", softcap {self.softcap:g}" if self.softcap else "")


@dataclass(frozen=True)
class Sizes:
    """lengths: contexts of decode batches beside those around a block's edge. prompts, chunks: (context, queries).
    cells: (query heads, KV heads, dim), sequences, context. many: from how many sequences of how many tokens on the
    bandwidth has a goal; single: and for one sequence of how many. decode_batches: the goal's first."""

    configs: tuple[Config, ...]
    quantized_configs: tuple[Config, ...]
    lengths: tuple[int, ...]
    prompts: tuple[tuple[int, int], ...]
    chunks: tuple[tuple[int, int], ...]
    splits: tuple[int, ...]
    many_blocks_numbers: int
    cells: tuple[tuple[tuple[int, int, int], int, int], ...]
    quantized_cells: tuple[tuple[tuple[int, int, int], int, int], ...]
    many: tuple[int, int]
    single: int
    rounds: int
    decode_batches: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int
    graph_batches: tuple[int, ...]
    memory_requests: int
    max_model_len: int


def _configs(dtypes: tuple[str, ...], dims: tuple[int, ...], groups: tuple[int, ...]) -> tuple[Config, ...]:
    """Every dtype with every dim, and with every group; block sizes in turn. Then windows and softcaps.

    Not the full product: each combination of dtype, dim and group is compiled on the spot, and that takes a second.
    """
    blocks = (16, 8, 32)
    plain = [
        Config(dtype, dim, groups[(i + j) % len(groups)], blocks[(i + j) % 3])
        # The dims of the outer loop: should time run out, each dtype has had its first ones.
        for (j, dim), (i, dtype) in product(enumerate(dims), enumerate(dtypes))
    ]
    masked = [Config(dtype, dims[0], groups[-1], 16, sliding_window=24) for dtype in dtypes]
    capped = [Config(dtype, dims[-1], groups[1 % len(groups)], 16, softcap=30.0) for dtype in dtypes]
    both = [Config(dtypes[0], dims[0], groups[0], 8, sliding_window=9, softcap=5.0)]
    return (*plain, *masked, *capped, *both)


def _cells() -> tuple[tuple[tuple[int, int, int], int, int], ...]:
    """The goals' cells first, in case that time runs out, and of those the smallest first."""
    shapes = (TINYLLAMA, GROUP_OF_4, NO_GROUP)
    every = list(product(shapes, (1, 8, 32, 128, 256), (512, 2048, 8192)))
    ends = [cell for cell in every if cell[1:] in (MANY, (1, SINGLE))]
    goals = [cell for cell in every if cell[1] >= MANY[0] and cell[2] >= MANY[1]]
    return tuple(dict.fromkeys([*ends, *goals, *every]))


_FULL = _configs(("bfloat16", "float16", "float32"), (64, 128, 80, 256, 96), (8, 4, 1, 3))
_DRY = _configs(("float16", "float32"), (64, 80), (4, 1))

FULL = Sizes(
    configs=_FULL,
    quantized_configs=_FULL,
    lengths=(1, 129, 700, 1500),
    prompts=((1, 1), (17, 17), (200, 200)),
    chunks=((64, 1), (300, 50), (517, 130), (33, 32)),
    splits=(1, 2, 5),
    many_blocks_numbers=2**31 + 2**20,
    cells=_cells(),
    quantized_cells=tuple((shape, 32, context) for context in (2048, 8192) for shape in (TINYLLAMA, GROUP_OF_4)),
    many=MANY,
    single=SINGLE,
    rounds=7,
    decode_batches=(32, 1, 8, 128, 256),
    prompt_tokens=128,
    output_tokens=128,
    shared_tokens=1024,
    graph_batches=(1, 32),
    memory_requests=8,
    max_model_len=2048,
)

DRY = Sizes(
    configs=_DRY,
    quantized_configs=_DRY[:1],
    lengths=(1, 33),
    prompts=((5, 5),),
    chunks=((21, 1), (20, 4)),
    splits=(1, 2),
    many_blocks_numbers=2**16,
    cells=(((4, 2, 64), 2, 32), ((4, 2, 64), 1, 48)),
    quantized_cells=(((4, 2, 64), 2, 32),),
    many=(2, 32),
    single=48,
    rounds=1,
    decode_batches=(2, 1),
    prompt_tokens=5,
    output_tokens=3,
    shared_tokens=16,
    graph_batches=(1, 2),
    memory_requests=2,
    max_model_len=64,
)
