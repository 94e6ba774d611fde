"""Ctrl-C waits until the books are in order.

The interrupt button of a notebook raises KeyboardInterrupt between any two bytecodes. Between "reference
count raised" and "block noted in the table" that would leak a block for good.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back KeyboardInterrupt inside the block and raise it at its end. For short sections only.

    Off the main thread Python delivers no signals, so there is nothing to hold back.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    caught: list[Any] = []
    signal.signal(signal.SIGINT, lambda *args: caught.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])
