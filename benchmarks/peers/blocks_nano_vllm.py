"""nano-vllm's block manager in the `blocks` suite. See blocks_worker.py for what is timed.

Takes a checkout of nano-vllm as its argument. Only the block manager and the sequence are imported, under an empty
package: the rest of nano-vllm needs CUDA. Its block size is set to 16, where its engine takes multiples of 256.

It keeps no hashes with a sequence: `can_allocate` computes them and `allocate` computes those of hits again. A full
hit is 127 of 128 blocks, the last one is always computed. `allocate_and_free` is `allocate` without hits and
`deallocate`: what it does for a sequence's blocks, and no more.
"""

import sys
from pathlib import Path
from types import ModuleType

from benchmarks.peers.blocks_worker import BLOCK_SIZE, PROMPT_TOKENS, answer_rounds


def import_from(checkout: Path):
    """Its BlockManager and Sequence, without what its packages import beside them."""
    for name in ("nanovllm", "nanovllm.engine"):
        package = ModuleType(name)
        package.__path__ = [str(checkout / name.replace(".", "/"))]
        sys.modules[name] = package
    from nanovllm.engine.block_manager import BlockManager
    from nanovllm.engine.sequence import Sequence

    Sequence.block_size = BLOCK_SIZE
    return BlockManager, Sequence


class NanoVllm:
    """The block manager as its scheduler uses it."""

    def __init__(self, num_blocks: int):
        self.manager = BlockManager(num_blocks, BLOCK_SIZE)
        self.new_request = Sequence
        self.blank = Sequence([0] * PROMPT_TOKENS)

    def allocate_and_free(self, count):
        assert count == self.blank.num_blocks
        self.manager.allocate(self.blank, 0)
        self.manager.deallocate(self.blank)

    def hash(self, seq):
        compute_hash, h = self.manager.compute_hash, -1
        for i in range(seq.num_blocks):
            h = compute_hash(seq.block(i), h)

    def remember_hashes(self, seq):
        pass

    def look_up(self, seq):
        return self.manager.can_allocate(seq)

    def take(self, seq, num_cached_blocks):
        assert num_cached_blocks >= 0
        self.manager.allocate(seq, num_cached_blocks)
        seq.num_scheduled_tokens = seq.num_tokens - seq.num_cached_tokens

    def step_done(self, seq):
        self.manager.hash_blocks(seq)
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0

    def free(self, seq):
        self.manager.deallocate(seq)

    def decode(self, seq, tokens):
        can_append, may_append = self.manager.can_append, self.manager.may_append
        for token in tokens:
            seq.append_token(token)
            can_append(seq)
            may_append(seq)
            seq.num_scheduled_tokens = 1
            seq.num_cached_tokens += 1

    def grow(self, seq, tokens):
        for token in tokens:
            seq.append_token(token)
            seq.num_scheduled_tokens = 1
            seq.num_cached_tokens += 1

    def decode_and_hash(self, seq, tokens):
        manager = self.manager
        can_append, may_append, hash_blocks = manager.can_append, manager.may_append, manager.hash_blocks
        for token in tokens:
            seq.append_token(token)
            can_append(seq)
            may_append(seq)
            seq.num_scheduled_tokens = 1
            hash_blocks(seq)
            seq.num_cached_tokens += 1


if __name__ == "__main__":
    BlockManager, Sequence = import_from(Path(sys.argv[1]))
    answer_rounds(NanoVllm, "xxhash")
