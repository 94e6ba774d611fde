"""Two threads, one of them stopped in the middle of a call: every place where it can stop is tried, one by one.

Threads that merely run side by side meet in the bad moment once in a million times, and never in a test. Here the
first thread is stopped before its instruction 0, 1, 2, ... (bytecode, so also in the middle of `count += 1`), the
second makes its whole call meanwhile, and then the first goes on. A call that is guarded by a lock can't be disturbed
like this: the second thread waits at the lock, and after a moment the first one is let go.

Knows threads and Python's trace functions. Does not know what the calls do.
"""

import linecache
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

#: How long the second thread may take before it counts as waiting for the first. Calls take microseconds.
PATIENCE_SECONDS = 0.002
#: The same where it has waited at the last few stops already: it stands at a lock, which is held over many of them.
SHORT_PATIENCE_SECONDS = 0.0004
#: Code in which nobody is stopped.
_NOT_THEIRS = frozenset({__file__, threading.__file__})


@dataclass
class Call:
    """A call that a thread makes, and what came of it.

    done: it came back, or raised `error`. waited: the other one had to go on first.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    value: Any = None
    error: BaseException | None = None
    done: bool = False
    waited: bool = False

    def run(self) -> None:
        try:
            self.value = self.function(*self.args)
        except BaseException as error:
            self.error = error
        self.done = True


@dataclass
class _Stop:
    """Where the first thread stops: before the instruction number `at` of its call."""

    at: int
    stopped: bool = False
    line: str = ""
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename in _NOT_THEIRS:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if self.at == 0:
                self.stopped = True
                # No line belongs to some instructions of a generator, such as one that is a context manager.
                self.line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0).strip()
                self.reached.set()
                self.go_on.wait()
            self.at -= 1
        return self.trace


def meet(first: Call, second: Call, at: int, seconds: float, patience: float) -> str | None:
    """Run both calls, the second while the first stands before its instruction `at`. Both are filled in.

    Returns the line of code at which the first one stood ("" where its text isn't known), or None where the call has
    fewer instructions: then the second one was not run. A call that did not come back within `seconds` is not `done`;
    its thread is left to itself.
    """
    stop = _Stop(at)

    def run_first() -> None:
        sys.settrace(stop.trace)
        first.run()
        sys.settrace(None)
        stop.reached.set()

    threads = [threading.Thread(target=run_first, daemon=True), threading.Thread(target=second.run, daemon=True)]
    threads[0].start()
    stop.reached.wait(seconds)
    if not stop.stopped:  # it ended before, or hangs
        return None
    threads[1].start()
    threads[1].join(patience)
    second.waited = not second.done
    stop.go_on.set()
    for thread in threads:
        thread.join(seconds)
    return stop.line
