"""The suite `view` between its processes: which arms there are, the cells of a round, and how a place is asked for one.

A place is a kernel and what hangs on it, in a worker process that owns both. Knows lines of JSON and the text of
cells. Does not know Jupyter.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]

#: What the engine decodes with: nothing that follows it; a view that was made and is not shown; and one that is shown,
#: ten frames a second. On a page the shown view stays where it is all the time: in turns without, it stands still.
ARMS = NO_VIEW, NOT_SHOWN, SHOWN = "no view", "not shown", "shown"

#: The cells of a notebook, besides the one that `set_up` gives. `ask` is set before.
SHOW, DECODE = "rounds.show()", "result = rounds.decode(*ask)"


def set_up(options: dict[str, Any]) -> str:
    """The cell that makes `rounds`. options: those of `view_kernel.Rounds`."""
    return (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from benchmarks.peers.view_kernel import Rounds\n"
        f"rounds = Rounds(**{options!r})"
    )


class Place(Protocol):
    """facts: what should be known of it, ready for JSON."""

    facts: dict[str, Any]

    def decode(self, arms: list[str], turns: int, steps: int, pause_s: float) -> dict[str, Any]:
        """`Rounds.decode` in a cell, and the frames that arrived of those that were sent."""

    def frame_costs(self, num_blocks: int, num_frames: int) -> dict[str, Any]:
        """`Rounds.frame_costs`, and the bytes of each frame."""


def main(place: Callable[[dict[str, Any]], AbstractContextManager[Place]]) -> None:
    """Open the place, say what it is, then answer until stdin ends. The options are the command's one argument."""
    # Answers get the pipe for themselves: what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with place(json.loads(sys.argv[1])) as opened:
        print(json.dumps(opened.facts), file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(getattr(opened, request.pop("do"))(**request)), file=answers, flush=True)
