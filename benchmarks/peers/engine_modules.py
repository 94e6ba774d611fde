"""PagedKV Lab's engine on transformers' modules instead of its own forward pass: what the latter is worth."""

from functools import partial

from benchmarks.peers.engine_pagedkv import load
from benchmarks.peers.engine_protocol import main

if __name__ == "__main__":
    main(partial(load, model_impl="transformers"))
