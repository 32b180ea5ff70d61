"""Ends a process in which some code holds the interpreter's lock for so long that no Python thread runs.

The kernel measures the time, in two steps:

1. When a timer runs out, it calls the C library's `alarm`, in a thread that does not need the interpreter's lock.
2. Some seconds later the alarm ends the process: faulthandler writes the stacks of all threads to stderr, and `_exit`
   follows.

If a process was stopped (a frozen container, a paused virtual machine), the timer may have run out when the process
runs again. The process then renews the timer within the seconds of step 2, and renewing also cancels the alarm.

Only Linux has such timers. On other systems such a process is not noticed.
"""

import contextlib
import ctypes
import faulthandler
import signal
import sys
from collections.abc import Callable, Iterator
from typing import ClassVar

_GRACE_S = 3  # from the end of the timer to the alarm; several times the interval at which the timer is renewed
_STDERR = 2
_SIGEV_THREAD = 2  # the timer calls a function in a new thread
_CLOCK_MONOTONIC = 1


class _TimerEnd(ctypes.Structure):
    """`struct sigevent`, which tells the kernel what to do when a timer runs out."""

    _fields_: ClassVar = [
        ("argument", ctypes.c_size_t),
        ("signal", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("rest", ctypes.c_byte * 40),
    ]


@contextlib.contextmanager
def kernel_alarm() -> Iterator[Callable[[float], None]]:
    """Yield a function that renews the timer.

    Its argument is a time in seconds. The process ends unless the function is called again within this time.
    """
    if sys.platform != "linux":
        yield lambda within_s: None
        return
    c_library = ctypes.CDLL(None, use_errno=True)
    alarm = ctypes.cast(c_library["alarm"], ctypes.c_void_p)
    exit_at_once = ctypes.cast(c_library["_exit"], ctypes.c_void_p)
    set_handler = c_library.signal
    set_handler.restype = ctypes.c_void_p
    timer = ctypes.c_void_p()
    end = _TimerEnd(argument=_GRACE_S, kind=_SIGEV_THREAD, function=alarm)
    if c_library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(end), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "the kernel gives no timer")

    def renew(within_s: float) -> None:
        # Each time has seconds and nanoseconds. An interval of 0 means that the timer runs out only once.
        interval_and_time = (ctypes.c_long * 4)(0, 0, int(within_s), 0)
        c_library.timer_settime(timer, 0, ctypes.byref(interval_and_time), None)
        signal.alarm(0)

    # The first process of a container ignores signals without a handler, so `_exit` is made the handler. It gets the
    # number of the signal, 14, which becomes the exit code.
    handler_before = ctypes.c_void_p(set_handler(signal.SIGALRM, exit_at_once))
    faulthandler.register(signal.SIGALRM, file=_STDERR, chain=True)
    try:
        yield renew
    finally:
        c_library.timer_delete(timer)
        signal.alarm(0)
        faulthandler.unregister(signal.SIGALRM)
        set_handler(signal.SIGALRM, handler_before)
