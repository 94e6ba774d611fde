"""The suite `perplexity`: what a quantized cache costs in quality, on the bundled model and a fixed text.

The text goes through the engine's runner as a prompt that is computed in pieces of one block: every key and value is
written into the pool, and read from it as it lies there. So a query reads even the tokens of its own block quantized,
which is the hardest case: in decode, int4 keeps a block exact until it is full. The model is told the true next token
each time; perplexity is e to the mean of how surprised it was.

Knows caches and the text. Does not know time.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from pagedkv_lab.attention import choose_backend
from pagedkv_lab.bundled import BUNDLED_MODEL
from pagedkv_lab.engine import LoadedModel, load_model
from pagedkv_lab.engine.runner import ModelRunner, StepInput
from pagedkv_lab.sizing import KV_CACHE_DTYPES, KVQuantization, blocks_for

TEXT = Path(__file__).with_name("perplexity_text.txt")
BLOCK_SIZE = 16
QUICK_TOKENS = 128


@dataclass(frozen=True)
class Cache:
    """A way to keep keys and values. goal: perplexity that it may cost."""

    name: str
    quantization: KVQuantization | None
    goal: float | None = None


AUTO = Cache("auto", None)
CACHES = (
    AUTO,
    Cache("int8", KV_CACHE_DTYPES["int8"], goal=0.02),
    Cache("int8, keys by channel", KVQuantization(8, "channel")),
    Cache("int4, keys by token", KVQuantization(4, "token")),
    Cache("int4", KV_CACHE_DTYPES["int4"], goal=0.5),
)


class Scorer:
    """The bundled model, and the first `num_tokens` tokens of the text (None: all)."""

    def __init__(self, num_tokens: int | None = None):
        self.model: LoadedModel = load_model(BUNDLED_MODEL, device="cpu")
        self.token_ids = self.model.encode(TEXT.read_text(encoding="utf-8"))[:num_tokens]
        self.runner = ModelRunner(self.model.hf, self.model.name, choose_backend(None, "cpu")[1])

    def surprise(self, cache: Cache, block_size: int = BLOCK_SIZE) -> torch.Tensor:
        """-log p of each token but the first, given those before it: (number of tokens - 1,) float32."""
        num_inputs = len(self.token_ids) - 1
        num_blocks = blocks_for(num_inputs, block_size)
        self.runner.allocate(num_blocks, block_size, cache.quantization, num_tails=2)
        table = np.arange(num_blocks, dtype=np.int32)[None]
        surprise = []
        for start in range(0, num_inputs, block_size):
            end = min(start + block_size, num_inputs)
            positions = np.arange(start, end)
            logits = self.runner.execute(
                StepInput(
                    token_ids=np.array(self.token_ids[start:end]),
                    positions=positions,
                    query_lens=np.array([end - start], np.int32),
                    context_lens=np.array([end], np.int32),
                    block_tables=table,
                    write_slots=positions,
                    write_rows=None,
                    sample_rows=positions - start,
                )
            )
            next_tokens = torch.tensor(self.token_ids[start + 1 : end + 1])
            surprise.append(F.cross_entropy(logits.float(), next_tokens, reduction="none"))
        return torch.cat(surprise)

    def bytes_per_token(self, cache: Cache) -> tuple[float, float]:
        """Data and scales that one token takes in the cache."""
        if cache.quantization is None:
            return sum(layer.numbers_per_token for layer in self.runner.layers) * self.model.dtype.itemsize, 0
        data = sum(cache.quantization.data_bytes(*layer) for layer in self.runner.layers)
        scales = sum(cache.quantization.scale_bytes(*layer[:2], BLOCK_SIZE) for layer in self.runner.layers)
        return data, scales / BLOCK_SIZE


def run(*, quick: bool, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Score the text with every cache. quick: its first words only."""
    scorer = Scorer(QUICK_TOKENS if quick else None)
    rows, exact = [], None
    for cache in CACHES:
        say(f"{cache.name}: {len(scorer.token_ids) - 1:,} tokens")
        surprise = scorer.surprise(cache)
        exact = surprise if exact is None else exact
        rows.append(_row(cache, surprise, exact, *scorer.bytes_per_token(cache)))
    return {
        "model": scorer.model.name,
        "dtype": str(scorer.model.dtype).removeprefix("torch."),
        "text": TEXT.name,
        "predicted_tokens": len(scorer.token_ids) - 1,
        "block_size": BLOCK_SIZE,
        "rows": rows,
    }


def _row(cache: Cache, surprise: torch.Tensor, exact: torch.Tensor, data: float, scales: float) -> dict[str, Any]:
    """increase: perplexity above that of `exact`. standard_error: of the increase, from the tokens' differences."""
    perplexity, plain = math.exp(surprise.mean()), math.exp(exact.mean())
    return {
        "cache": cache.name,
        "perplexity": perplexity,
        "increase": perplexity - plain,
        "standard_error": plain * (surprise - exact).std().item() / math.sqrt(len(exact)),
        "goal": cache.goal,
        "data_bytes_per_token": data,
        "scale_bytes_per_token": scales,
    }


def table(result: dict[str, Any]) -> str:
    """The result as text for a terminal."""
    return "\n".join(_lines(result))


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield f"{'keys and values':<24}{'perplexity':>12}{'increase':>20}{'goal':>8}{'data/token':>12}{'scales/token':>14}"
    for row in result["rows"]:
        increase = f"{row['increase']:+.3f} ± {row['standard_error']:.3f}" if row["cache"] != AUTO.name else ""
        goal = "" if row["goal"] is None else f"{row['goal']:+g}"
        sizes = f"{row['data_bytes_per_token']:>12,g}{row['scale_bytes_per_token']:>14,g}"
        yield f"{row['cache']:<24}{row['perplexity']:>12.3f}{increase:>20}{goal:>8}{sizes}"
    yield (
        f"{result['model']}, {result['predicted_tokens']:,} predicted tokens of {result['text']}, blocks of "
        f"{result['block_size']}; auto is {result['dtype']}; ± is one standard error; sizes in bytes"
    )
