"""transformers' continuous batching in the `blocks` suite. See blocks_worker.py for what is timed.

Its `PagedAttentionCache` with pages of 16 tokens, made for a model of one layer with a head of one number, so that
the tensors that come with it stay small. Block sharing is on.

It keeps no hashes with a request: `search_prefix_match` computes them. A full hit is 127 of 128 blocks. Where no
block is left it evicts all cached ones at once, as its scheduler does; one prompt in 64 pays for that and the median
does not show it.
"""

import torch
from transformers import LlamaConfig
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import compute_block_hash
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.requests import RequestState

from benchmarks.peers.blocks_worker import BLOCK_SIZE, PROMPT_TOKENS, answer_rounds

MODEL = LlamaConfig(
    num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, hidden_size=2, head_dim=2, vocab_size=8
)


class Transformers:
    """The cache as its scheduler uses it."""

    def __init__(self, num_blocks: int):
        config = ContinuousBatchingConfig(
            page_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            max_batch_tokens=PROMPT_TOKENS,
            max_requests_per_batch=16,
            max_memory_percent=0.5,
            allow_block_sharing=True,
        )
        self.cache = PagedAttentionCache(MODEL, config, "cpu", DistributedHelper(None, None), torch.float16)
        assert self.cache.num_blocks == num_blocks, f"{self.cache.num_blocks} blocks, not {num_blocks}"
        self.blank = RequestState("blank", [])
        self.last_id = 0

    def new_request(self, prompt):
        self.last_id += 1
        return RequestState(str(self.last_id), prompt)

    def allocate_and_free(self, count):
        assert self.cache.can_store_request_tokens(self.blank, count * BLOCK_SIZE)
        self.cache.free_blocks(self.blank.request_id)

    def hash(self, request):
        tokens, key = request.initial_tokens, None
        for at in range(0, len(tokens), BLOCK_SIZE):
            key = compute_block_hash(key, tokens[at : at + BLOCK_SIZE])

    def remember_hashes(self, request):
        pass

    def look_up(self, request):
        return self.cache.search_prefix_match(request.request_id, request.initial_tokens)

    def take(self, request, num_hit_tokens):
        request.position_offset = num_hit_tokens
        num_tokens = len(request.initial_tokens) - num_hit_tokens
        if not self.cache.can_store_request_tokens(request, num_tokens):
            self.cache.evict_cached_blocks()
            assert self.cache.can_store_request_tokens(request, num_tokens)
        request.complete_blocks = self.cache.count_new_complete_blocks(request, num_tokens)

    def step_done(self, request):
        self.cache.mark_complete_blocks(request, request.complete_blocks)
        request.position_offset = len(request.initial_tokens)

    def free(self, request):
        self.cache.free_blocks(request.request_id)

    def decode(self, request, tokens):
        can_store = self.cache.can_store_request_tokens
        for token in tokens:
            request.generated_tokens.append(token)
            can_store(request, 1)
            request.position_offset += 1

    def grow(self, request, tokens):
        for token in tokens:
            request.generated_tokens.append(token)
            request.position_offset += 1

    def decode_and_hash(self, request, tokens):
        cache = self.cache
        for token in tokens:
            request.generated_tokens.append(token)
            cache.can_store_request_tokens(request, 1)
            complete_blocks = cache.count_new_complete_blocks(request, 1)
            cache.mark_complete_blocks(request, complete_blocks)
            request.position_offset += 1


if __name__ == "__main__":
    answer_rounds(Transformers, "transformers")
