"""vLLM's KV cache manager in the `blocks` suite, in an interpreter that has vLLM. See blocks_worker.py.

One group of full attention, prefix caching on, hashes by sha256 (its default) and kept with the request: they are
computed when a request is made, so a full hit finds them there. It always computes the last block of a full hit.
`allocate_and_free` is the block pool alone, which is the least that it can do.
"""

import os
from importlib.metadata import distributions

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from benchmarks.peers.blocks_worker import BLOCK_SIZE, answer_rounds

PARAMS = SamplingParams(max_tokens=1 << 20)


class Vllm:
    """The cache manager as its scheduler uses it."""

    def __init__(self, num_blocks: int):
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
        # Block 0 is never handed out.
        config = KVCacheConfig(num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        self.manager = KVCacheManager(
            config, max_model_len=1 << 20, scheduler_block_size=BLOCK_SIZE, hash_block_size=BLOCK_SIZE
        )
        self.hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self.last_id = 0

    def new_request(self, prompt):
        self.last_id += 1
        request = Request(str(self.last_id), prompt, PARAMS, None)
        request._block_hasher = self.hasher  # given later, so that the hashes are computed when they are timed
        return request

    def allocate_and_free(self, count):
        pool = self.manager.block_pool
        pool.free_blocks(reversed(pool.get_new_blocks(count)))

    def hash(self, request):
        request.update_block_hashes()

    remember_hashes = hash

    def look_up(self, request):
        if not request.block_hashes:
            request.update_block_hashes()
        return self.manager.get_computed_blocks(request)

    def take(self, request, found):
        hits, num_hit_tokens, *_ = found
        blocks = self.manager.allocate_slots(request, request.num_tokens - num_hit_tokens, num_hit_tokens, hits)
        assert blocks is not None

    def step_done(self, request):
        request.num_computed_tokens = request.num_tokens

    def free(self, request):
        self.manager.free(request)

    def decode(self, request, tokens):
        allocate_slots = self.manager.allocate_slots
        for token in tokens:
            request._output_token_ids.append(token)
            request._all_token_ids.append(token)
            allocate_slots(request, 1)
            request.num_computed_tokens += 1

    def grow(self, request, tokens):
        for token in tokens:
            request._output_token_ids.append(token)
            request._all_token_ids.append(token)
            request.num_computed_tokens += 1

    def decode_and_hash(self, request, tokens):
        # A block is hashed when its last token is appended, and can be found once that token has its slot.
        allocate_slots = self.manager.allocate_slots
        for token in tokens:
            request.append_output_token_ids(token)
            allocate_slots(request, 1)
            request.num_computed_tokens += 1


if __name__ == "__main__":
    init_none_hash(sha256)
    # The CPU builds on PyPI go by names of their own.
    answer_rounds(Vllm, next(found.name for found in distributions() if found.name.startswith("vllm")))
