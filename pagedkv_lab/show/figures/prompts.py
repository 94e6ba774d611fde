"""Prompts as chains of keyed blocks: what they share, where they part, and which keys are worth a remark.

Knows tokens and keys. Does not know how keys are made, nor how chains are drawn.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise

from pagedkv_lab.show.figures.page import plural


@dataclass
class Chain:
    """One prompt: its tokens, and the keys of its full blocks."""

    name: str
    tokens: list[str]
    keys: list[Hashable]
    block_size: int

    @property
    def num_blocks(self) -> int:
        return -(-len(self.tokens) // self.block_size)

    def piece(self, i: int) -> list[str]:
        return self.tokens[i * self.block_size : (i + 1) * self.block_size]

    def past(self, i: int) -> tuple[str, ...]:
        """All tokens up to the end of block `i`."""
        return tuple(self.tokens[: (i + 1) * self.block_size])

    def shared_with(self, other: "Chain") -> int:
        """How many blocks from the start have the same keys and tokens."""
        count = 0
        while count < min(len(self.keys), len(other.keys)):
            if self.keys[count] != other.keys[count] or self.piece(count) != other.piece(count):
                break
            count += 1
        return count

    def parts_at(self, other: "Chain") -> int:
        """The first token that isn't the other's."""
        same = [a == b for a, b in zip(self.tokens, other.tokens, strict=False)]
        return same.index(False) if False in same else len(same)


def side_by_side(chains: list[Chain]) -> list[Chain]:
    """In the given order, but with those that share blocks next to each other."""
    order: list[Chain] = []
    for chain in chains:
        shared = [chain.shared_with(other) for other in order]
        place = len(order)
        if max(shared, default=0):
            place = max(i for i, count in enumerate(shared) if count == max(shared)) + 1
        order.insert(place, chain)
    return order


def note_on(block: int, row: int, chains: list[Chain]) -> tuple[str, str, bool]:
    """What is to be said of a block's key, in short and with a name, and whether it is a mistake."""
    chain = chains[row]
    if block >= len(chain.keys):
        return "", "", False
    for other in chains:
        for i, key in enumerate(other.keys):
            if key == chain.keys[block] and other.past(i) != chain.past(block):
                return "same key, other past", f"same key as {other.name}, block {i}, with another past", True
    for other in chains[:row]:
        same_tokens = block < len(other.keys) and other.piece(block) == chain.piece(block)
        if same_tokens and chain.keys[block] != other.keys[block]:
            return "same tokens, other key", f"same tokens as {other.name}, and another key", False
    return "", "", False


def chains_in_words(chains: list[Chain], block_size: int) -> str:
    says = [f"{plural(len(chains), 'prompt')} in blocks of {plural(block_size, 'token')}"]
    for chain in chains:
        rest = len(chain.tokens) - len(chain.keys) * block_size
        full = plural(len(chain.keys), "full block")
        says.append(f"{chain.name}: {full}" + (f" and {plural(rest, 'token')} without a key" if rest else ""))
    for chain, following in pairwise(chains):
        shared, place = chain.shared_with(following), chain.parts_at(following)
        parting = f"{chain.name} and {following.name} share {plural(shared, 'block')}"
        if place < min(len(chain.tokens), len(following.tokens)):
            here, there = chain.tokens[place], following.tokens[place]
            parting += f" and part at token {place + 1}, in block {place // block_size} (“{here}”, “{there}”)"
        says.append(parting)
    for row, chain in enumerate(chains):
        for block in range(len(chain.keys)):
            _, note, _ = note_on(block, row, chains)
            says += [f"{chain.name}, block {block}: {note}"] * bool(note)
    return "; ".join(says) + "."
