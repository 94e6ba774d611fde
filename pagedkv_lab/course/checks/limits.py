"""Run somebody else's function, but not for ever, and say what came of it.

Knows clocks, signals and threads. Does not know what the function is for.
"""

import ctypes
import gc
import io
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

#: Seconds that one call of a learner's function may take. Right answers take microseconds.
CALL_SECONDS = 2.0
#: What a call prints is kept up to here: an endless loop that prints must not fill the memory.
MAX_PRINTED_CHARS = 2_000
#: How often the stop is repeated, because the function may swallow it (`while True: try: ... except: pass`).
_REPEAT_SECONDS = 0.0005
#: How long a thread that doesn't stop is waited for before it is left to itself.
_GRACE_SECONDS = 2.0


class TimeUp(BaseException):
    """Raised inside the function when its time is over. Not an Exception: `except Exception` lets it through."""


@dataclass(frozen=True)
class Outcome:
    """What came of a call: a value, or an error, or the end of its time; and what it printed meanwhile."""

    value: Any = None
    error: BaseException | None = None
    timed_out: bool = False
    printed: str = ""


def call_with_limit(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    seconds: float = CALL_SECONDS,
) -> Outcome:
    """Call `function` and come back within about `seconds`, whatever it does in Python.

    Works on the main thread (a timer signal) and off it, or where there are no timer signals (a worker thread).
    KeyboardInterrupt passes through: it is the learner's own stop button. A single call into C that never
    returns, such as `sum(itertools.count())`, can't be stopped from inside the process.
    """

    def work() -> Any:
        return function(*args, **(kwargs or {}))

    printed = _Printed()
    with redirect_stdout(printed):
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
            outcome = _on_this_thread(work, seconds)
        else:
            outcome = _on_a_worker(work, seconds)
    if isinstance(outcome.error, KeyboardInterrupt):
        raise outcome.error
    return Outcome(outcome.value, outcome.error, outcome.timed_out, printed.getvalue())


def _on_this_thread(work: Callable[[], Any], seconds: float) -> Outcome:
    """A timer signal raises TimeUp inside `work`, again and again; then whoever had the timer before gets it back."""

    def ring(signum: int, frame: FrameType | None) -> None:
        # No collection from here on: what is raised inside somebody's callback from it gets lost, with a message.
        gc.disable()
        # Only inside the function: a ring on the way out must hit neither this module nor the notebook.
        frames = []
        while frame is not None and frame.f_code is not work.__code__:
            frames.append(frame)
            frame = frame.f_back
        if frame is not None:
            _raise_in_handlers(frames)
            raise TimeUp

    old_trace, collects = sys.gettrace(), gc.isenabled()
    old_handler = signal.signal(signal.SIGALRM, ring)
    started = time.monotonic()
    old_delay, old_interval = signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)
    try:
        return _outcome_of(work)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(old_trace)
        if collects:
            gc.enable()
        signal.signal(signal.SIGALRM, old_handler if old_handler is not None else signal.SIG_DFL)
        if old_delay:
            left = max(_REPEAT_SECONDS, old_delay - (time.monotonic() - started))
            signal.setitimer(signal.ITIMER_REAL, left, old_interval)


def _raise_in_handlers(frames: Sequence[FrameType]) -> None:
    """From now on raise TimeUp in the first `except` block of these frames that catches one.

    `while True: try: ... except: pass` swallows every ring that comes inside the `try`, and nearly all of them do.
    What is raised inside the `except` block gets out.
    """

    def in_handler(frame: FrameType, event: str, arg: Any) -> Any:
        if event in ("line", "opcode") and isinstance(sys.exc_info()[1], TimeUp):
            raise TimeUp
        return in_handler

    for frame in frames:
        frame.f_trace, frame.f_trace_opcodes = in_handler, True
    # Frames are traced only while there is a function like this one; it says that new frames are not to be.
    sys.settrace(lambda frame, event, arg: None)


def _on_a_worker(work: Callable[[], Any], seconds: float) -> Outcome:
    outcomes: list[Outcome] = []

    def body() -> None:
        with suppress(TimeUp):  # one that arrives on the way out
            outcomes.append(_outcome_of(work))

    worker = threading.Thread(target=body, daemon=True)
    worker.start()
    worker.join(seconds)
    give_up = time.monotonic() + _GRACE_SECONDS
    while worker.is_alive() and time.monotonic() < give_up:
        thread_id = ctypes.c_ulong(worker.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(TimeUp))
        worker.join(_REPEAT_SECONDS)
    return outcomes[0] if outcomes else Outcome(timed_out=True)


def _outcome_of(work: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(value=work())
    except TimeUp:
        return Outcome(timed_out=True)
    except BaseException as error:  # SystemExit too: a learner's exit() must not close the notebook
        return Outcome(error=error)


class _Printed(io.StringIO):
    """Keeps the first MAX_PRINTED_CHARS characters and drops the rest."""

    def write(self, text: str) -> int:
        room = MAX_PRINTED_CHARS - self.tell()
        if room > 0:
            super().write(text[:room])
        return len(text)
