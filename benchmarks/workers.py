"""A peer in a process of its own, which works when it is asked to and sleeps otherwise.

Parent and worker talk in lines of JSON: requests on the worker's stdin, answers on its stdout. A worker that
waits is blocked in a read and takes no processor time. What it prints on stderr is kept, to be quoted should it die.

Knows processes and pipes. Does not know what is asked.
"""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


class WorkerDied(Exception):
    """The worker ended, or gave no answer in time. The message says why, as far as the worker told."""


class Worker:
    """Starts `command` in the folder `cwd`; `env` is added to this process's own environment.

    As a context manager it ends its process, whatever happens: an interrupted run leaves nobody behind.

    Raises OSError where there is no such command.
    """

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker is
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which then ends its workers.
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | dict(env or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one request and wait for its answer. Raises WorkerDied."""
        with suppress(BrokenPipeError):  # it has ended, and `answer` will say how
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        return self.answer(timeout_s)

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next line that the worker says; after `timeout_s` seconds without one it is ended. Raises WorkerDied."""
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.close(patience_s=0)
            raise WorkerDied(f"no answer within {timeout_s:.0f} s") from None
        if line is None:
            self._answers.put(None)  # for whoever asks again
            raise WorkerDied(f"it ended with status {self._process.wait()}{self._last_words()}")
        return json.loads(line)

    def close(self, patience_s: float = 10.0) -> None:
        """End the process: it sees the end of its input; what is still there after `patience_s` is killed."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(10.0 if kind is None else 0.0)

    def _read(self) -> None:
        """Move lines from the pipe to the queue, and None where the pipe ends."""
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _last_words(self) -> str:
        """The last line that the worker printed on stderr, as a rule an exception's, in brackets; "" if none."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1].strip()})" if lines else ""
