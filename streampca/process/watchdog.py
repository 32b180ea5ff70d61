"""Ends a process of which a loop hangs, whatever code hangs, with its threads' stacks on stderr.

Loops tick, and so does every retry of a wait. A thread looks four times a second whether all have. Only time in which
the process ran counts: from one look to the next is a quarter of a second, also if the process was stopped meanwhile.
The thread writes the stacks while it holds the interpreter's lock, so that no frame changes meanwhile, and ends the
process with exit code 1.

If hanging code holds the interpreter's lock, this thread does not run either, and the kernel ends the process with exit
code 14 (`streampca.process.kernel_alarm`).
"""

import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

from streampca.process.kernel_alarm import kernel_alarm

T = TypeVar("T")
HANG_S, STORE_S = 60.0, 300.0  # longer than a step of any loop, and than any request to a store
_STDERR, _LOOK_S, _WAIT_S = 2, 0.25, 1.0


class _Watch:
    """When each thread that ticks must have ticked again, in seconds that the process ran."""

    def __init__(self) -> None:
        self.ran_s = 0.0
        self.due: dict[threading.Thread, float] = {}

    def run(self, ended: threading.Event, renew_alarm: Callable[[float], None]) -> None:
        """Look again and again, until `ended` is set."""
        renew_alarm(HANG_S)
        while not ended.wait(_LOOK_S):
            renew_alarm(HANG_S)
            self.ran_s += _LOOK_S
            if any(due <= self.ran_s for thread, due in list(self.due.items()) if thread.is_alive()):
                os.write(_STDERR, b"Timeout: a loop hangs; the stacks of all threads:\n")
                faulthandler.dump_traceback(_STDERR)
                os._exit(1)


_watch: _Watch | None = None


@contextmanager
def watching() -> Iterator[None]:
    """Watch the threads that tick; outside of this, ticks do nothing."""
    global _watch
    watch, ended = _Watch(), threading.Event()
    with kernel_alarm() as renew_alarm:
        thread = threading.Thread(target=watch.run, args=(ended, renew_alarm), name="watchdog", daemon=True)
        thread.start()
        _watch = watch
        try:
            yield
        finally:
            _watch = None
            ended.set()
            thread.join()


def tick(within_s: float | None = None) -> None:
    """End the process unless this thread ends or ticks again within that time, by default `HANG_S`."""
    if (watch := _watch) is not None:
        watch.due[threading.current_thread()] = watch.ran_s + (within_s or HANG_S)


def forget() -> None:
    """Stop watching this thread until it ticks again."""
    if (watch := _watch) is not None:
        watch.due.pop(threading.current_thread(), None)


def result_of(future: Future[T]) -> T:
    """Wait for a future without limit; tick meanwhile, so that the watchdog does not end the process."""
    while not future.done():
        tick()
        with suppress(TimeoutError):
            future.exception(_WAIT_S)
    return future.result()
