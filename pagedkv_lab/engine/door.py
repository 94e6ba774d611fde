"""The door: what may come in, and what it is called.

Knows prompts, params and the engine's limits. Does not know the engine.
"""

from collections.abc import Mapping
from typing import Any

from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.sampling import SamplingParams
from pagedkv_lab.errors import RequestTooLong
from pagedkv_lab.sizing import blocks_for


def refuse_what_never_fits(config: EngineConfig, num_gpu_blocks: int, prompt_len: int, params: SamplingParams) -> None:
    """Raise RequestTooLong, with the numbers, for a request that could not run even if it were alone."""
    limit = config.max_model_len
    if prompt_len >= limit:
        raise RequestTooLong(
            f"The prompt has {prompt_len} tokens and max_model_len is {limit}: there is no room for output. "
            "Shorten the prompt, or raise max_model_len."
        )
    # The last token's keys and values are never needed, so it takes no slot.
    longest = min(prompt_len + params.max_tokens, limit) - 1
    needed = blocks_for(longest, config.block_size)
    if needed > num_gpu_blocks:
        raise RequestTooLong(
            f"The request may grow to {longest} tokens in the cache, which are {needed} blocks of "
            f"{config.block_size}, and the whole pool has {num_gpu_blocks}. Lower max_tokens (now "
            f"{params.max_tokens}), shorten the prompt ({prompt_len} tokens), or raise num_gpu_blocks."
        )
    if params.n > config.max_num_seqs:
        raise RequestTooLong(
            f"n = {params.n} sequences can't run at once with max_num_seqs = {config.max_num_seqs}: "
            "lower n, or raise max_num_seqs."
        )


def is_one_prompt(prompts: Any) -> bool:
    """Text, a list of messages and a list of ids are one prompt; a list of any of those is many."""
    return isinstance(prompts, str | Mapping) or (
        len(prompts) > 0 and all(isinstance(p, Mapping) or hasattr(p, "__index__") for p in prompts)
    )


def label(prompt: Any) -> str | None:
    """What a reader would call this prompt: the text, or the last message of a chat; None for token ids."""
    if isinstance(prompt, str):
        return prompt
    last = prompt[-1]
    return str(last.get("content", "")) if isinstance(last, Mapping) else None
