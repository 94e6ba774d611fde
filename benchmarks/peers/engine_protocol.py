"""A worker's side of the `engine` suite: load a model, then serve one batch of prompts for each line on stdin.

Knows the protocol. Does not know who serves. Imports the standard library only, since it also runs under the
interpreters of others.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

#: Serves a batch: (prompts as token ids, output tokens for each) -> (output tokens of each, mean seconds to the
#: first token or None where that isn't known).
Serve = Callable[[list[list[int]], int], tuple[list[list[int]], float | None]]
#: Loads a model: (its folder, the name of a dtype) -> (what should be known of this peer, its Serve).
Load = Callable[[str, str], tuple[dict[str, Any], Serve]]


def main(load: Load) -> None:
    """Say what was loaded, then answer until stdin ends. The clock runs while `Serve` does, and not longer."""
    # Answers get the pipe for themselves: what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    facts, serve = load(*sys.argv[1:])
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.perf_counter()
        token_ids, ttft_s = serve(request["prompts"], request["max_tokens"])
        seconds = time.perf_counter() - started
        answer = {"seconds": seconds, "token_ids": token_ids, "ttft_s": ttft_s}
        print(json.dumps(answer), file=answers, flush=True)
