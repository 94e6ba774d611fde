"""What happens to blocks, as the manager tells it to whoever listens.

Knows block numbers and who they were for. Does not know who listens: with nobody there, nothing is told and nothing
is paid.
"""

from typing import Any, Literal, NamedTuple


class BlockEvent(NamedTuple):
    """One thing that happened to blocks of one sequence.

    kind: "hit" (found in the cache and shared), "allocate" (taken from the free queue), "copy" (`blocks` are source
        and destination), "fork" (now shared with `seq`), "findable" (full, and can be found by their key from here
        on), "forget" (a failed step never filled them), "free" (given back; others may still hold them).
    seq: the sequence; None for "forget".
    blocks: in the order of its table. num_tokens: for "hit", the tokens that need not be computed.
    """

    kind: Literal["hit", "allocate", "copy", "fork", "findable", "forget", "free"]
    seq: Any
    blocks: tuple[int, ...]
    num_tokens: int = 0
