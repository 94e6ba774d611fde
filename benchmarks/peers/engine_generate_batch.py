"""transformers' `generate_batch`: continuous batching over a paged cache of its own.

On a CPU its attention reads a mask over all of the cache, so a cache as large as the memory is slow. It gets one
that just holds the requests, small pages and no second batch in flight: the fastest of the settings tried.
"""

import torch
import transformers
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.peers.engine_protocol import main

PAGE_SIZE = 32


def load(folder: str, dtype: str):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def serve(prompts, max_tokens):
        pages = sum(-(-(len(prompt) + max_tokens) // PAGE_SIZE) for prompt in prompts)
        outputs = model.generate_batch(
            prompts,
            # No token has the id -1, so nothing ends an output before its time.
            transformers.GenerationConfig(
                do_sample=False, max_new_tokens=max_tokens, eos_token_id=-1, pad_token_id=0
            ),
            ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                allow_block_sharing=True,
                num_blocks=pages + 16,
                max_batch_tokens=2048,
                use_async_batching=False,
            ),
        )
        return [output.generated_tokens for output in outputs.values()], None

    return {"threads": torch.get_num_threads(), "options": {"page_size": PAGE_SIZE}}, serve


if __name__ == "__main__":
    main(load)
