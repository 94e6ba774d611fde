"""A real model, where the bundled one is installed: its words in float32, equal to transformers' own.

Knows how it is loaded. Without it, or without what unpacks it, the section is not run, and says why.
"""

import torch

from gpu_checks.device import Device
from gpu_checks.models import random_model
from gpu_checks.record import NotRun, Section
from gpu_checks.serving import backend, serve_with
from gpu_checks.sizes import Sizes
from pagedkv_lab.bundled import BUNDLED_MODEL
from pagedkv_lab.engine import Engine, LoadedModel, load_model
from pagedkv_lab.errors import ModelUnavailable
from pagedkv_lab.measure.comparison import transformers_generate

PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, in a village by the sea, there lived",
)


def run(section: Section, device: Device, sizes: Sizes) -> None:
    model = _load(device)
    new_tokens = 2 if device.dry_run else 32
    prompts = [[7, 8, 9]] if device.dry_run else [model.encode(prompt) for prompt in PROMPTS]
    section.facts |= {"model": model.name, "dtype": "float32"}
    expected = [transformers_generate(model, [prompt], new_tokens)[0][0] for prompt in prompts]
    engine = Engine(
        model, num_gpu_blocks=64, max_num_seqs=4, max_model_len=sizes.max_model_len, attn_backend=backend(device)
    )
    got = serve_with(engine)(prompts, new_tokens)
    for prompt, ours, theirs in zip(prompts, got, expected, strict=True):
        # `generate` ends at the model's own end token; ours was told to go on.
        section.check(
            f"{len(prompt)} tokens of prompt go on as transformers' own",
            ours[: len(theirs)] == theirs,
            text=model.decode(ours),
            attn_backend=engine.attn_backend,
        )


def _load(device: Device) -> LoadedModel:
    if device.dry_run:
        return random_model("small", torch.float32, device.torch_device)
    try:
        return load_model(BUNDLED_MODEL, dtype=torch.float32, device=str(device.torch_device))
    except (ModelUnavailable, ImportError) as error:
        raise NotRun(f"{type(error).__name__}: {error}") from error
