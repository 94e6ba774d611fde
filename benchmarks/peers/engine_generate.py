"""transformers' `generate`: all prompts as one batch, padded on the left to the longest (ours are all as long)."""

import torch
import transformers

from benchmarks.peers.engine_protocol import main


def load(folder: str, dtype: str):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    # Nothing ends an output before its time.
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def serve(prompts, max_tokens):
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = model.generate(ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)
        return out[:, width:].tolist(), None

    return {"threads": torch.get_num_threads(), "options": {"attention": model.config._attn_implementation}}, serve


if __name__ == "__main__":
    main(load)
