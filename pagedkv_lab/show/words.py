"""What happens to blocks, in words, for the log beside the pool.

Knows names and numbers. Does not know where they come from.
"""

from collections.abc import Hashable, Sequence


def hit(blocks: Sequence[int], name: str, num_tokens: int) -> str:
    return f"{_blocks(blocks)} hit by {name}: {_count(num_tokens, 'token')} not computed"


def allocated(blocks: Sequence[int], name: str) -> str:
    return f"{_blocks(blocks)} taken by {name}"


def evicted(blocks: Sequence[int], name: str, num_left: int, *, oldest_first: bool) -> str:
    """num_left: free blocks that can still be found. oldest_first: whether those freed longest ago go first."""
    one, total = len(blocks) == 1, len(blocks) + num_left
    if not num_left:
        what = f"the {'last' if one else f'last {total}'} that could still be found"
    elif oldest_first:
        what = f"the {'oldest' if one else f'{len(blocks)} oldest'} of {total} that could still be found"
    else:
        what = f"{len(blocks)} of {total} that could still be found"
    return f"{_blocks(blocks)} evicted for {name}: {what}"


def copied(source: int, destination: int, name: str) -> str:
    return f"block {source} copied to block {destination} for {name}, which writes into it while others read it"


def forked(name: str, num_blocks: int) -> str:
    return f"{name} forks off and shares {_count(num_blocks, 'block')}"


def gave_back(name: str, reason: str | None, num_blocks: int, num_findable: int) -> str:
    """reason: the finish reason, or None for one that goes back to the queue (it gave way, or its step failed)."""
    names = {"abort": "aborted", "length": "finished (length)", "stop": "finished"}
    how = "has to be computed again" if reason is None else names.get(reason, reason)
    stay = f", {num_findable} of them still findable" if num_findable else ""
    return f"{name} {how}: {_count(num_blocks, 'block')} back{stay}"


def short_key(key: Hashable) -> str:
    """The first eight characters of a block's key, whatever a learner's hash function returns."""
    if isinstance(key, bytes):
        return key.hex()[:8]
    if isinstance(key, int):
        return f"{key & 0xFFFFFFFF:08x}"
    return str(key)[:8]


def clip(text: str, length: int = 200) -> str:
    """The end of a long text, which is where the question is."""
    return text if len(text) <= length else "…" + text[1 - length :]


def _blocks(blocks: Sequence[int]) -> str:
    if len(blocks) == 1:
        return f"block {blocks[0]}"
    if len(blocks) <= 4:
        return f"blocks {', '.join(map(str, blocks[:-1]))} and {blocks[-1]}"
    return f"{len(blocks)} blocks ({', '.join(map(str, blocks[:3]))}, …)"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
