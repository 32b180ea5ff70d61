"""Ends a process in which a loop hangs, with the stacks of its threads on stderr.

Each thread that runs a loop calls `tick` in every turn, and whenever it tries again while it waits. The watchdog's
thread checks four times a second whether one of them has not ticked in time. It then writes the stacks of all threads
and ends the process with exit code 1. It holds the interpreter's lock meanwhile, so that no frame changes.

Only the time in which the process runs counts. Each check counts as a quarter of a second, even if the process was
stopped for longer since the last check (a frozen container).

If the code that hangs holds the interpreter's lock, the watchdog's thread does not run. Then the kernel ends the
process with exit code 14, see `streampca.process.kernel_alarm`.
"""

import faulthandler
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

from streampca.process.kernel_alarm import KernelAlarm

T = TypeVar("T")
HANG_S = 60.0  # longer than any turn of a loop
STORE_S = 300.0  # longer than any request to a store
_STDERR = 2
_CHECK_EVERY_S = 0.25
_TICK_EVERY_S = 1.0  # while a thread waits for a future


class _Watch:
    """Ends the process when a thread has not ticked in time."""

    def __init__(self) -> None:
        self.running_time_s = 0.0  # the watchdog's clock: how long the process was running, and not stopped (SIGSTOP)
        self.due_s: dict[threading.Thread, float] = {}  # value of `running_time_s` by which a thread has to tick again

    def run(self, ended: threading.Event, alarm: KernelAlarm) -> None:
        """Until `ended` is set, renew the alarm, and end the process if a thread is overdue."""
        alarm.renew(HANG_S)  # if this thread cannot run for so long, the alarm ends the process
        while not ended.wait(_CHECK_EVERY_S):
            alarm.renew(HANG_S)
            # The running time is counted in checks. By the system's clock, which goes on while the process is stopped
            # (SIGSTOP), each thread would be overdue after a long stop.
            self.running_time_s += _CHECK_EVERY_S
            if self._is_any_overdue():
                os.write(_STDERR, b"Timeout: a loop hangs; the stacks of all threads:\n")
                faulthandler.dump_traceback(_STDERR)
                os._exit(1)

    def _is_any_overdue(self) -> bool:
        """Return whether a thread that still runs has not ticked in time."""
        threads_and_due_s = list(self.due_s.items())  # a copy, since other threads tick meanwhile
        return any(due_s <= self.running_time_s and thread.is_alive() for thread, due_s in threads_and_due_s)


_watch: _Watch | None = None  # None: `tick` does nothing


@contextmanager
def watch_threads() -> Iterator[None]:
    """While the block runs, end the process if a thread that has called `tick` does not call it again in time."""
    global _watch
    watch = _Watch()
    ended = threading.Event()
    alarm = KernelAlarm()  # ends the process if not even the watchdog's thread can run
    alarm.start()
    thread = threading.Thread(target=watch.run, args=(ended, alarm), name="watchdog", daemon=True)
    thread.start()
    _watch = watch  # from now on, `tick` has an effect
    try:
        yield
    finally:
        _watch = None
        ended.set()
        thread.join()
        alarm.stop()


def tick(within_s: float | None = None) -> None:
    """Let the watchdog end the process unless this thread ticks again within `within_s`, by default `HANG_S`.

    Outside of `watch_threads`, do nothing.
    """
    watch = _watch  # read once: another thread may leave `watch_threads` meanwhile
    if watch is not None:
        # The running time is the watchdog's clock. Unlike the system's clock, it does not go on while the process is
        # stopped.
        watch.due_s[threading.current_thread()] = watch.running_time_s + (within_s or HANG_S)


def forget() -> None:
    """Stop watching this thread until it ticks again."""
    watch = _watch  # read once, as in `tick`
    if watch is not None:
        watch.due_s.pop(threading.current_thread(), None)


def wait_for_result(future: Future[T]) -> T:
    """Wait for a future without limit. Return its result or raise its error.

    Calls `tick` meanwhile, so that the watchdog does not end the process.
    """
    while not future.done():
        tick()
        with suppress(TimeoutError):
            future.exception(timeout=_TICK_EVERY_S)  # only waits: it returns the future's error
    return future.result()
