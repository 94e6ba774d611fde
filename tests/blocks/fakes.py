"""A stand-in for what the block layer serves: a sequence without a request and without a model."""

from dataclasses import dataclass, field

from pagedkv_lab.blocks import BlockManager


@dataclass
class FakeSequence:
    """What the manager reads of a sequence (`SequenceLike`)."""

    seq_id: int
    token_ids: list[int]
    salt: str | None = None
    num_computed_tokens: int = 0
    block_keys: list = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"request {self.seq_id}"

    @property
    def extra_keys(self) -> tuple[tuple[str, str], ...]:
        return () if self.salt is None else (("cache_salt", self.salt),)

    def fork(self, seq_id: int) -> "FakeSequence":
        return FakeSequence(seq_id, list(self.token_ids), self.salt, self.num_computed_tokens, list(self.block_keys))


def admit(manager: BlockManager, seq: FakeSequence) -> list[int]:
    """Let the sequence in with all its hits, as the scheduler does. Returns the hit blocks."""
    hits = manager.lookup(seq)
    seq.num_computed_tokens = manager.admit(seq, hits)
    return hits


def compute(manager: BlockManager, seq: FakeSequence, num_tokens: int | None = None) -> range:
    """Room for the sequence's next tokens (all, if not said otherwise), which then count as computed."""
    num_tokens = len(seq.token_ids) - seq.num_computed_tokens if num_tokens is None else num_tokens
    writes = manager.append(seq, num_tokens)
    assert writes is not None, "no room"
    seq.num_computed_tokens += num_tokens
    return writes


def serve(manager: BlockManager, seq: FakeSequence) -> list[int]:
    """Let the sequence in and compute all its tokens in one step. Returns the hit blocks."""
    hits = admit(manager, seq)
    compute(manager, seq)
    manager.commit_step()
    return hits
