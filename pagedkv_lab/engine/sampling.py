"""From logits to tokens: what a request asks for, and the drawing.

Knows logits and sampling parameters. Does not know the cache, the model or the schedule.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the output of a request is drawn and when it ends. The names and meanings are vLLM's.

    n: output sequences per prompt. They share the prompt's blocks; whoever writes first copies.
    temperature: what logits are divided by; 0 takes the likeliest token every time (greedy) and is the default
        here, for results that can be repeated (vLLM's is 1).
    top_k: draw among this many likeliest tokens only; 0 means all.
    top_p: draw among the likeliest tokens that together reach this probability (Holtzman et al. 2020, section 3.1).
    max_tokens: output tokens at the most (the model's maximum length also ends an output).
    stop: strings that end the output; the text is cut before them.
    stop_token_ids: tokens that end the output, beside the model's own end tokens.
    ignore_eos: go on past the model's own end tokens.
    seed: makes the draws of this request repeatable, whatever else runs beside it. None takes the engine's seed.

    Raises ValueError for a value that makes no sense, naming it.
    """

    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    stop: str | Seq[str] = ()
    stop_token_ids: Seq[int] = ()
    ignore_eos: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for ok, name, wanted in (
            (self.n >= 1, "n", "at least 1"),
            (self.temperature >= 0, "temperature", "0 or more"),
            (0 < self.top_p <= 1, "top_p", "above 0 and at most 1"),
            (self.top_k >= 0, "top_k", "0 (all) or more"),
            (self.max_tokens >= 1, "max_tokens", "at least 1"),
            (all(isinstance(s, str) and s for s in stop), "stop", "strings, none of them empty"),
        ):
            if not ok:
                raise ValueError(f"{name} must be {wanted}, not {getattr(self, name)!r}")


def sample(
    logits: torch.Tensor,
    params: Seq[SamplingParams],
    generators: Seq[torch.Generator | None],
    rows: Seq[int] | None = None,
) -> list[int]:
    """One token for each of the params. logits: (R, vocab). rows: whose logits each one draws from; None: its own row.

    A draw depends on its own generator alone, so the same request draws the same tokens in any batch. All is computed
    where the logits lie, and the tokens come from there together: on a GPU, that is the one time a step waits for it.
    """
    rows = range(len(params)) if rows is None else rows
    each = list(zip(rows, params, generators, strict=True))
    drawn = [_draw(token_probabilities(logits[row], p), g) for row, p, g in each if p.temperature > 0]
    tokens = torch.cat([_likeliest(logits), *drawn]).tolist()
    likeliest, others = tokens[: len(logits)], iter(tokens[len(logits) :])
    return [next(others) if p.temperature > 0 else likeliest[row] for row, p, _ in each]


def _draw(probabilities: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """(1,): a token, drawn by its probability. probabilities: (vocab,).

    Each token waits for a time that is distributed exponentially, with its probability for a rate; the first one to
    come is drawn. `torch.multinomial` does just that, and first looks at the numbers, which on a GPU is a wait.
    """
    return (probabilities / torch.empty_like(probabilities).exponential_(generator=generator)).argmax().view(1)


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Each row's largest entry, the first of equals. On a CPU torch's argmax is the slowest way to it: for 16 rows of
    49,152 float32 it takes 0.33 ms and numpy's 0.05; in bfloat16 it takes 1.4 ms and torch's max 0.33.
    """
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.max(dim=-1).indices


def token_probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """(vocab,) probabilities after temperature, then top_k, then top_p. Float32 or wider, sums to 1."""
    if params.temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float32).index_fill_(0, logits.argmax().view(1), 1.0)
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / params.temperature
    ordered, order = scaled.sort(descending=True, stable=True)
    if params.top_k:
        ordered[params.top_k :].fill_(float("-inf"))
    probabilities = ordered.softmax(-1)
    if params.top_p < 1:  # at 1, rounding in the sum would cut off a large vocabulary's tail
        # A token stays while the likelier ones alone don't reach top_p, so the first always does.
        probabilities.masked_fill_(probabilities.cumsum(-1) - probabilities >= params.top_p, 0)
    probabilities /= probabilities.sum()
    return torch.zeros_like(probabilities).index_copy_(0, order, probabilities)
