"""Peers side by side: each a worker that has loaded the model, asked in turn for the same workload.

Knows who takes part, whose turn it is, and who dropped out and why. Does not know how anybody serves.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.workers import Worker, WorkerDied
from benchmarks.workloads import Workload
from pagedkv_lab.measure.timing import in_turn, num_threads

ROOT = Path(__file__).resolve().parents[1]
#: Output tokens of the run before the first round, in which kernels are chosen, compiled and paged in.
WARM_UP_TOKENS = 8
#: Seconds of rest before each run: the threads of whoever ran last stop spinning and leave the cores.
PAUSE_S = 0.5
START_TIMEOUT_S, RUN_TIMEOUT_S = 300.0, 1200.0


@dataclass(frozen=True)
class Peer:
    """Somebody who serves. command: runs the worker, less its two arguments, the model's folder and the dtype.

    workloads, dtypes: what it is asked to do. rounds: fewer than there are, for one that takes minutes a run.
    """

    name: str
    command: tuple[str, ...]
    workloads: str = "PDS"
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    rounds: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class Lineup:
    """The workers of all peers that can do `dtype`. As a context manager: they are there inside, and end with it.

    facts: what each worker said of itself when it had loaded the model, by name.
    dropped: who did not come up or did not get through, as {"peer", "dtype", "workload", "why"}.
    """

    def __init__(self, peers: list[Peer], dtype: str, say: Callable[[str], None], pause_s: float = PAUSE_S):
        self.peers = {peer.name: peer for peer in peers if dtype in peer.dtypes}
        self.dtype, self.say, self.pause_s = dtype, say, pause_s
        self.facts: dict[str, dict[str, Any]] = {}
        self.dropped: list[dict[str, Any]] = []
        self._workers: dict[str, Worker] = {}
        self._ends = ExitStack()

    def start(self, model_folder: Path) -> None:
        """Start the workers one after the other, and wait until each has loaded the model."""
        threads = str(num_threads())
        for peer in self.peers.values():
            self.say(f"{self.dtype}: starting {peer.name}")
            env = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"} | dict(peer.env)
            command = [*peer.command, str(model_folder), self.dtype]
            try:
                self._workers[peer.name] = self._ends.enter_context(Worker(command, ROOT, env))
                self.facts[peer.name] = self._workers[peer.name].answer(START_TIMEOUT_S)
            except (WorkerDied, OSError) as error:
                self._drop(peer.name, None, error)

    def rounds(self, workload: Workload, rounds: int) -> dict[str, list[dict[str, Any]]]:
        """A warm-up for everybody, then the rounds. Returns the answers of each peer, in order.

        Who drops out on the way has fewer answers than the others, or none.
        """
        names = [name for name in self._workers if workload.name in self.peers[name].workloads]
        wanted = {name: min(rounds, self.peers[name].rounds or rounds) for name in names}
        where = f"{self.dtype} {workload.name}"
        for name in names:
            self.say(f"{where}: warming up {name}")
            self._ask(name, workload, "warm-up", min(WARM_UP_TOKENS, workload.output_tokens))

        def contestant(name: str) -> Callable[[int], dict[str, Any] | None]:
            return lambda number: self._ask(name, workload, number, workload.output_tokens)

        answers = in_turn(
            {name: contestant(name) for name in names},
            wanted,
            pause_s=self.pause_s,
            announce=lambda name, number: self.say(f"{where}: round {number + 1} of {wanted[name]}, {name}"),
        )
        return {name: [answer for answer in answers[name] if answer is not None] for name in names}

    def _ask(
        self, name: str, workload: Workload, round_name: int | str, max_tokens: int
    ) -> dict[str, Any] | None:
        """One run of one peer; None from somebody who has dropped out, in this run or an earlier one."""
        if name not in self._workers:
            return None
        prompts = workload.prompts(round_name)
        try:
            answer = self._workers[name].ask({"prompts": prompts, "max_tokens": max_tokens}, RUN_TIMEOUT_S)
            lengths = [len(tokens) for tokens in answer["token_ids"]]
            if lengths != [max_tokens] * len(prompts):
                raise WorkerDied(f"asked for {len(prompts)} outputs of {max_tokens} tokens, it made {lengths}")
        except WorkerDied as error:
            self._drop(name, workload.name, error)
            return None
        return answer

    def _drop(self, name: str, workload: str | None, error: Exception) -> None:
        if worker := self._workers.pop(name, None):
            worker.close(patience_s=0)
        self.dropped.append({"peer": name, "dtype": self.dtype, "workload": workload, "why": str(error)})
        self.say(f"{name} drops out: {error}")

    def __enter__(self) -> "Lineup":
        return self

    def __exit__(self, *error: Any) -> None:
        self._ends.__exit__(*error)
