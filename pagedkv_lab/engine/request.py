"""What is served: a request, the sequences that work on it, and what comes out.

A request is what the caller handed in. A sequence is one line of tokens with a block table of its own: one
a request, `n` of them once the prompt is computed and parallel sampling forks it. The scheduler and the
block manager deal in sequences only.
"""

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

from pagedkv_lab.engine.sampling import SamplingParams


class Sequence:
    """One line of tokens: the prompt and what has been generated. `index` counts a request's sequences from 0."""

    def __init__(
        self,
        seq_id: int,
        request: "Request",
        index: int = 0,
        *,
        extra_keys: tuple[tuple[str, str], ...] = (),
        generator: torch.Generator | None = None,
    ):
        self.seq_id, self.request, self.index = seq_id, request, index
        self.token_ids: list[int] = list(request.prompt_token_ids)
        self.prompt_len = len(request.prompt_token_ids)
        self.num_computed_tokens = 0
        self.block_keys: list[Hashable] = []
        self.extra_keys, self.generator = extra_keys, generator
        self.forks_to_come = request.params.n - 1 if index == 0 else 0
        self.parent_id: int | None = None  # the sequence that it was forked from
        self.num_preemptions = 0
        self.finish_reason: str | None = None
        self.text: str = ""

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def name(self) -> str:
        """For messages: "request 3", or "request 3, output 1" where there are several."""
        name = f"request {self.request.request_id}"
        return name if self.request.params.n == 1 else f"{name}, output {self.index}"

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.prompt_len :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that are known and not yet through the model: 1 in decode, more in prefill."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether all but the newest output token are computed."""
        num_tokens = len(self.token_ids)
        return num_tokens > self.prompt_len and num_tokens - self.num_computed_tokens == 1

    def fork(self, seq_id: int, index: int, generator: torch.Generator | None) -> "Sequence":
        """A sequence that goes on from here by itself."""
        child = Sequence(seq_id, self.request, index, extra_keys=self.extra_keys, generator=generator)
        child.token_ids = list(self.token_ids)
        child.block_keys = list(self.block_keys)
        child.num_computed_tokens = self.num_computed_tokens
        child.forks_to_come, child.parent_id = 0, self.seq_id
        return child


@dataclass
class Request:
    """A prompt, what was asked of it, and the sequences that work on it. label: what a view calls the prompt."""

    request_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    prompt: str | None = None
    arrival_time: float = field(default_factory=time.perf_counter)
    first_token_time: float | None = None
    finish_time: float | None = None
    num_cached_tokens: int | None = None
    sequences: list[Sequence] = field(default_factory=list)
    label: str | None = None

    @property
    def is_finished(self) -> bool:
        return all(seq.finish_reason is not None for seq in self.sequences)


@dataclass(frozen=True)
class CompletionOutput:
    """One output of a request. finish_reason: "stop", "length" or "abort"."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None


@dataclass(frozen=True)
class RequestOutput:
    """What came of a request. With n > 1, `outputs` has them all; `text` and the like are of the first.

    num_cached_tokens: prompt tokens that were found in the prefix cache when the request was first let in.
    ttft_s: seconds from arrival to the first token (TTFT). tpot_s: seconds a token after that (TPOT). None
    where there was no such token. num_preemptions: how often its sequences lost their blocks.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    num_preemptions: int

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[0].finish_reason

    @classmethod
    def of(cls, request: Request) -> "RequestOutput":
        sequences = sorted(request.sequences, key=lambda seq: seq.index)
        ttft = tpot = None
        if request.first_token_time is not None:
            ttft = request.first_token_time - request.arrival_time
            later_tokens = max(seq.num_output_tokens for seq in sequences) - 1
            if later_tokens > 0 and request.finish_time is not None:
                tpot = (request.finish_time - request.first_token_time) / later_tokens
        return cls(
            request.request_id,
            request.prompt,
            request.prompt_token_ids,
            [CompletionOutput(s.index, s.text, s.output_token_ids, s.finish_reason) for s in sequences],
            request.num_cached_tokens or 0,
            ttft,
            tpot,
            sum(seq.num_preemptions for seq in sequences),
        )
