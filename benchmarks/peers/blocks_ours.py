"""Our block layer in the `blocks` suite. See blocks_worker.py for what is timed."""

from benchmarks.peers.blocks_worker import BLOCK_SIZE, answer_rounds
from pagedkv_lab.blocks import BlockManager, BlockTable
from pagedkv_lab.blocks.hashing import hash_blocks


class Sequence:
    """What the manager reads of a sequence, with plain attributes as the engine's has."""

    name, extra_keys = "request", ()
    last_id = 0

    def __init__(self, token_ids: list[int]):
        Sequence.last_id += 1
        self.seq_id = Sequence.last_id
        self.token_ids = list(token_ids)
        self.num_computed_tokens = 0
        self.block_keys: list[bytes] = []


class Ours:
    """The manager as the scheduler uses it; for blocks alone, a table on the manager's allocator."""

    def __init__(self, num_blocks: int):
        self.manager = BlockManager(num_blocks, BLOCK_SIZE)
        self.new_request = Sequence

    def allocate_and_free(self, count):
        table = BlockTable(self.manager.allocator)
        table.append_blocks(count)
        table.free_all()

    def hash(self, seq):
        seq.block_keys += hash_blocks(None, seq.token_ids, BLOCK_SIZE)

    remember_hashes = hash

    def look_up(self, seq):
        return self.manager.lookup(seq)

    def take(self, seq, hits):
        assert self.manager.can_admit(seq, hits)
        seq.num_computed_tokens = self.manager.admit(seq, hits)
        self.manager.append(seq, len(seq.token_ids) - seq.num_computed_tokens)

    def step_done(self, seq):
        seq.num_computed_tokens = len(seq.token_ids)
        self.manager.commit_step()

    def free(self, seq):
        self.manager.free(seq)

    def decode(self, seq, tokens):
        append = self.manager.append
        for token in tokens:
            seq.token_ids.append(token)
            append(seq, 1)
            seq.num_computed_tokens += 1

    def grow(self, seq, tokens):
        for token in tokens:
            seq.token_ids.append(token)
            seq.num_computed_tokens += 1

    def decode_and_hash(self, seq, tokens):
        # `append` hashes a block that it fills.
        append, commit_step = self.manager.append, self.manager.commit_step
        for token in tokens:
            seq.token_ids.append(token)
            append(seq, 1)
            seq.num_computed_tokens += 1
            commit_step()


if __name__ == "__main__":
    answer_rounds(Ours)
