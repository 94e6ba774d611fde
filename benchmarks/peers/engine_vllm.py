"""vLLM's CPU backend, run by an interpreter that has vLLM."""

from importlib.metadata import distributions, version

import torch
from vllm import LLM, SamplingParams

from benchmarks.peers.engine_protocol import main


def load(folder: str, dtype: str):
    options = {"block_size": 32, "enable_prefix_caching": True, "enforce_eager": True, "max_model_len": 2048}
    llm = LLM(folder, dtype=dtype, kv_cache_memory_bytes=2 << 30, skip_tokenizer_init=True, **options)

    def serve(prompts, max_tokens):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs], None

    # The CPU builds on PyPI go by names of their own.
    name = next(dist.name for dist in distributions() if dist.name.startswith("vllm"))
    return {"threads": torch.get_num_threads(), "options": options, "versions": {name: version(name)}}, serve


if __name__ == "__main__":
    main(load)
