"""PagedKV Lab's engine, its options as they come."""

from statistics import mean

import torch

from benchmarks.peers.engine_protocol import main
from pagedkv_lab.engine import Engine, LoadedModel, SamplingParams, load_model
from pagedkv_lab.sizing import GiB


def load(folder: str, dtype: str, model_impl: str = "auto"):
    loaded = load_model(folder, dtype=dtype, device="cpu")
    # Token ids in, token ids out: nobody here turns tokens into text.
    engine = Engine(
        LoadedModel(loaded.hf, None, loaded.name),
        max_model_len=2048,
        kv_cache_memory_bytes=2 * GiB,
        model_impl=model_impl,
    )

    def serve(prompts, max_tokens):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        outputs = engine.generate(prompts, params, use_tqdm=False)
        return [output.token_ids for output in outputs], mean(output.ttft_s for output in outputs)

    facts = {
        "threads": torch.get_num_threads(),
        "options": {
            "attn_backend": engine.attn_backend,
            "block_size": engine.block_size,
            "model_impl": engine.runner.model_impl,
        },
        "bytes": {"weights": loaded.weight_bytes, "kv_a_token": engine.plan.bytes_per_token},
    }
    return facts, serve


if __name__ == "__main__":
    main(load)
