"""What a benchmark writes down: requests with their times, and a report that holds one thing against another.

Knows numbers, and the names of what can be wrong with a report. Judges nothing, and measures nothing.
"""

from dataclasses import dataclass

#: What can be wrong with a `BenchmarkReport`, by name.
FLAWS = {
    "no_warm_up": "A side had no warm-up run: its first run pays for what happens only once.",
    "not_the_median": "The time that a side goes by is not the median of its runs.",
    "counts_prompt_tokens": "A side counts other tokens than those of its outputs.",
    "other_requests": "The two sides did not have the same requests: lengths of prompts or of outputs differ.",
    "other_batch_size": "The two sides did not run the same number of requests at once.",
    "other_cache": "One side found more of its prompts in the prefix cache, from before the run, than the other.",
    "within_the_spread": "The times overlap: a run of the slower side took no longer than a run of the faster one.",
}


@dataclass(frozen=True)
class RequestRecord:
    """One request: when it came and when its last token was there, in seconds on one clock, and its tokens."""

    arrival: float
    finish: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Side:
    """One of the two in a report.

    prompt_lens, output_lens: tokens of each request, the same requests in each run.
    batch_size: requests that ran at once. cached_tokens: tokens of these prompts that lay in the prefix cache already
        when a timed run began.
    warmup_runs: runs before the timed ones. seconds: how long each timed run took.
    reported_seconds, counted_tokens: what its tokens a second are made of.
    """

    prompt_lens: tuple[int, ...]
    output_lens: tuple[int, ...]
    batch_size: int
    cached_tokens: int
    warmup_runs: int
    seconds: tuple[float, ...]
    reported_seconds: float
    counted_tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.counted_tokens / self.reported_seconds


@dataclass(frozen=True)
class BenchmarkReport:
    """Two sides, and a claim: the second makes `speedup` times the tokens a second of the first."""

    before: Side
    after: Side

    @property
    def speedup(self) -> float:
        return self.after.tokens_per_second / self.before.tokens_per_second

    def __str__(self) -> str:
        rows = [(name, getattr(self.before, name), getattr(self.after, name)) for name in vars(self.before)]
        lines = [f"{name:<17} {_say(before):<26} {_say(after)}" for name, before, after in rows]
        rates = [f"{side.tokens_per_second:.1f}" for side in (self.before, self.after)]
        lines.append(f"{'tokens a second':<17} {rates[0]:<26} {rates[1]}, {self.speedup:.1f} times as many")
        return "\n".join([f"{'':<17} {'before':<26} after", *lines])


def _say(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
