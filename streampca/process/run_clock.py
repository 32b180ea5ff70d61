"""Counts the time in which a process runs, and ends it if no thread of Python does so for too long.

A thread of compiled code counts, which needs no interpreter's lock: so it also counts while other code holds that lock.
A stop of the process (a frozen container, a paused virtual machine) lasts one look, however long it is.
"""

import contextlib
import faulthandler
import signal
import threading
from collections.abc import Callable, Iterator

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

_LOOKS_A_SECOND = 20
_LOOK_US = 1_000_000 // _LOOKS_A_SECOND
_STDERR, _EXIT_CODE = 2, 14  # the number of SIGALRM, which Windows lacks
_COUNTED, _READ, _ENDS = range(3)  # of the counters: looks, looks when Python has read them, 1 at the end
# Of the C library.
_sleep_us = types.ExternalFunction("usleep", types.intc(types.uintc))
_raise_signal = types.ExternalFunction("raise", types.intc(types.intc))
_exit_at_once = types.ExternalFunction("_exit", types.void(types.intc))


def _count(counters: NDArray[np.int64], limit: int) -> None:
    """If the counters were not read for `limit` looks, end the process, with the stacks that the signal writes."""
    while not counters[_ENDS]:
        _sleep_us(_LOOK_US)
        counters[_COUNTED] += 1
        if counters[_COUNTED] - counters[_READ] >= limit and not counters[_ENDS]:
            _raise_signal(_EXIT_CODE)
            _exit_at_once(_EXIT_CODE)


_count_without_lock = njit(nogil=True)(_count)  # not cached: numba's cache fails in a read-only folder


@contextlib.contextmanager
def run_clock(limit_s: float) -> Iterator[Callable[[], float]]:
    """Count; yields a function that returns the seconds so far. The process ends if `limit_s` pass between two calls.

    It ends with exit code 14, and the stacks of its threads on stderr.
    """
    counters, limit = np.zeros(3, np.int64), int(limit_s * _LOOKS_A_SECOND)

    def ran_s() -> float:
        counters[_READ] = counters[_COUNTED]
        return float(counters[_READ] / _LOOKS_A_SECOND)

    counters[_ENDS] = 1
    _count_without_lock(counters, limit)  # compiles it, which needs the lock
    counters[_ENDS] = 0
    faulthandler.register(signal.SIGALRM, file=_STDERR)
    thread = threading.Thread(target=_count_without_lock, args=(counters, limit), name="run clock", daemon=True)
    thread.start()
    try:
        yield ran_s
    finally:
        counters[_ENDS] = 1
        thread.join()
        faulthandler.unregister(signal.SIGALRM)
