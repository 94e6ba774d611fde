"""What the suite `engine` serves: prompts of random token ids, and so many output tokens for each.

Knows token ids. Does not know who serves them.
"""

from dataclasses import dataclass
from random import Random

VOCAB_SIZE = 49_152  # SmolLM2's


@dataclass(frozen=True)
class Workload:
    """Requests that begin with the same tokens, go on with their own, and get output_tokens each."""

    name: str
    requests: int
    shared_tokens: int
    own_tokens: int
    output_tokens: int

    def prompts(self, round_name: int | str) -> list[list[int]]:
        """The prompts of one round: always the same for a round, others for each, so that no prefix cache finds
        the last round's. What is shared is shared within a round."""
        random = Random(f"{self.name} {round_name}")
        shared = random.choices(range(VOCAB_SIZE), k=self.shared_tokens)
        return [shared + random.choices(range(VOCAB_SIZE), k=self.own_tokens) for _ in range(self.requests)]


#: Prefix-heavy, decode-heavy, and one sequence alone.
WORKLOADS = (
    Workload("P", requests=16, shared_tokens=1024, own_tokens=64, output_tokens=64),
    Workload("D", requests=16, shared_tokens=0, own_tokens=128, output_tokens=128),
    Workload("S", requests=1, shared_tokens=0, own_tokens=128, output_tokens=128),
)
QUICK_WORKLOADS = (
    Workload("P", requests=4, shared_tokens=256, own_tokens=16, output_tokens=8),
    Workload("D", requests=4, shared_tokens=0, own_tokens=32, output_tokens=16),
    Workload("S", requests=1, shared_tokens=0, own_tokens=32, output_tokens=16),
)
