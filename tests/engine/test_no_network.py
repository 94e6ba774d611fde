"""The demo's engine on the bundled model where nobody may use the network."""

import json
import os
import subprocess
import sys

#: Run in a process of its own: sockets are refused before the package is imported, and the hub isn't switched off.
CODE = """
import json, socket

def refused(*args, **options):
    attempts.append(repr(args[-1:]))
    raise OSError("no network here")

attempts = []
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refused

import torch
torch.set_num_threads(1)

from pagedkv_lab.engine import load_model
from pagedkv_lab.measure.comparison import compare

prompts = [[{"role": "user", "content": f"What is {n} plus {n}?"}] for n in (2, 3)]
result = compare(load_model(device="cpu"), prompts, max_tokens=3, max_model_len=96)
print(json.dumps(result.to_json() | {"attempts": attempts}))
"""


def test_the_bundled_model_is_loaded_and_compared_with_sockets_refused():
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["attempts"] == [], "it worked, but it asked for the network"
    assert result["model"] == "SmolLM2-135M-Instruct"
    assert result["tokens_equal_transformers"]
    assert result["blocks_leaked"] == 0
    assert [run["name"] for run in result["runs"]] == ["contiguous", "paged", "paged+prefix"]
    assert result["output_tokens"] > 0
