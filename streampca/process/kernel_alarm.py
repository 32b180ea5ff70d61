"""Ends a process of which some code holds the interpreter's lock too long, so that no thread of Python runs.

The kernel counts, in two steps. At its end a timer calls `alarm` of the C library, in a thread that needs no lock; and
only that alarm ends the process: faulthandler writes the stacks of all threads to stderr, and `_exit` follows. If a
process was stopped (a frozen container, a paused virtual machine), the timer may be at its end when the process runs
again; but then the alarm has only begun, and whoever renews the timer ends the alarm, too.

Only Linux has such timers; elsewhere nothing is noticed.
"""

import contextlib
import ctypes
import faulthandler
import signal
import sys
from collections.abc import Callable, Iterator
from typing import ClassVar

_GRACE_S = 3  # of the alarm: several times the interval at which the timer is renewed
_STDERR, _CALL_IN_A_THREAD = 2, 2
_MONOTONIC = 1  # a clock


class _TimerEnd(ctypes.Structure):
    """`struct sigevent`: what happens at the end of a timer."""

    _fields_: ClassVar = [
        ("argument", ctypes.c_size_t),
        ("signal", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("rest", ctypes.c_byte * 40),
    ]


@contextlib.contextmanager
def kernel_alarm() -> Iterator[Callable[[float], None]]:
    """The function that renews the timer: the process ends unless it is called again within that time, in seconds."""
    if sys.platform != "linux":
        yield lambda within_s: None
        return
    c_library, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    alarm, exit_at_once = (ctypes.cast(c_library[name], ctypes.c_void_p) for name in ("alarm", "_exit"))
    set_handler = c_library.signal
    set_handler.restype = ctypes.c_void_p
    end = _TimerEnd(argument=_GRACE_S, kind=_CALL_IN_A_THREAD, function=alarm)
    if c_library.timer_create(_MONOTONIC, ctypes.byref(end), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "the kernel gives no timer")

    def renew(within_s: float) -> None:
        interval_and_time = (ctypes.c_long * 4)(0, 0, int(within_s), 0)  # seconds and nanoseconds of each
        c_library.timer_settime(timer, 0, ctypes.byref(interval_and_time), None)
        signal.alarm(0)

    # The first process of a container ignores a signal that has no handler. This one takes the signal's number, 14, as
    # the exit code.
    handler_before = ctypes.c_void_p(set_handler(signal.SIGALRM, exit_at_once))
    faulthandler.register(signal.SIGALRM, file=_STDERR, chain=True)
    try:
        yield renew
    finally:
        c_library.timer_delete(timer)
        signal.alarm(0)
        faulthandler.unregister(signal.SIGALRM)
        set_handler(signal.SIGALRM, handler_before)
