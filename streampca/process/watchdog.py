"""Ends a process of which a loop hangs, whatever code hangs: with exit code 1, and its threads' stacks on stderr.

Python's faulthandler does it, from a thread that needs no GIL. Loops tick, and so does every retry of a wait.
"""

import faulthandler
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")
HANG_S, STORE_S = 60.0, 300.0  # longer than a step of any loop, and than any request to a store
_STDERR, _EXACT_S = 2, 1.0
_watched: dict[threading.Thread, float] | None = None  # when each thread must have ticked again, in monotonic time


@contextmanager
def watching() -> Iterator[None]:
    """Watch the threads that tick; outside of this, ticks do nothing."""
    global _watched
    _watched = {}
    try:
        yield
    finally:
        _watched = None
        faulthandler.cancel_dump_traceback_later()


def tick(within_s: float | None = None) -> None:
    """End the process unless this thread ends or ticks again within that time, by default `HANG_S`."""
    watched, thread, due = _watched, threading.current_thread(), time.monotonic() + (within_s or HANG_S)
    if watched is not None and abs(due - watched.get(thread, 0.0)) >= _EXACT_S:
        watched[thread] = due
        first = min(due for thread, due in list(watched.items()) if thread.is_alive())
        faulthandler.dump_traceback_later(max(first - time.monotonic(), 0.001), exit=True, file=_STDERR)


def forget() -> None:
    """Stop watching this thread until it ticks again."""
    if _watched is not None:
        _watched.pop(threading.current_thread(), None)


def result_of(future: Future[T]) -> T:
    """Wait for another thread, whose own matter it is how long it takes."""
    while not future.done():
        tick()
        with suppress(TimeoutError):
            future.exception(_EXACT_S)
    return future.result()
