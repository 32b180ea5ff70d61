"""Ends a process in which some code holds the interpreter's lock for so long that no Python thread runs.

The kernel measures the time, in two steps:

1. When a timer runs out, a thread of the C library, which does not need the interpreter's lock, calls `alarm`.
2. Some seconds later the alarm ends the process: faulthandler writes the stacks of all threads to stderr, and `_exit`
   follows.

If a process was stopped (a frozen container, a paused virtual machine), the timer may have run out when the process
runs again. The process then renews the timer within the seconds of step 2, and renewing also cancels the alarm.

Only Linux has such timers. On other systems such a process is not noticed.
"""

import ctypes
import faulthandler
import signal
import sys
from typing import ClassVar

_GRACE_S = 3  # from the end of the timer to the alarm; several times the interval at which the timer is renewed
_STDERR = 2
_SIGEV_THREAD = 2  # when the timer runs out, a thread of the C library calls a function
_CLOCK_MONOTONIC = 1
_RELATIVE_TIME = 0  # the time of a timer is counted from now


class _SigEvent(ctypes.Structure):
    """`struct sigevent`, which says what happens when a timer runs out."""

    _fields_: ClassVar = [
        ("argument", ctypes.c_size_t),  # of the function
        ("signal", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("unused", ctypes.c_byte * 40),  # the structure has 64 bytes
    ]


class KernelAlarm:
    """Ends the process unless `renew` is called again in time. On other systems than Linux it does nothing."""

    def start(self) -> None:
        """Create the timer, which does not run before `renew` is called.

        When the timer runs out, it calls the C function `alarm`, so that the kernel sends SIGALRM some seconds later,
        whose handler ends the process. If the timer ran out while the process was suspended, the process has these
        seconds to call `renew` after it continues.
        Raises `OSError` if the kernel refuses a timer.
        """
        if sys.platform != "linux":
            return
        self._c_library = ctypes.CDLL(None, use_errno=True)
        c_alarm = ctypes.cast(self._c_library["alarm"], ctypes.c_void_p)
        call_of_alarm = _SigEvent(kind=_SIGEV_THREAD, function=c_alarm, argument=_GRACE_S)
        self._timer = ctypes.c_void_p()
        result = self._c_library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(call_of_alarm), ctypes.byref(self._timer))
        if result != 0:
            raise OSError(ctypes.get_errno(), "the kernel has refused a timer")
        self._set_handler_of_alarm()

    def _set_handler_of_alarm(self) -> None:
        """Set two handlers of SIGALRM: faulthandler, which writes the stacks of all threads, and then C's `_exit`.

        With the signal's default action instead of `_exit`, the first process of a container would ignore the signal.
        """
        c_exit = ctypes.cast(self._c_library["_exit"], ctypes.c_void_p)
        self._c_signal = self._c_library.signal
        self._c_signal.restype = ctypes.c_void_p
        # C's `signal` sets a handler, and returns the handler that was set before, which `stop` restores.
        self._handler_before = ctypes.c_void_p(self._c_signal(signal.SIGALRM, c_exit))
        # With `chain`, faulthandler calls the handler that was set before it: `_exit`.
        faulthandler.register(signal.SIGALRM, file=_STDERR, chain=True)

    def renew(self, within_s: float) -> None:
        """Set the timer to `within_s`. If it runs out before the next call, the process ends some seconds later."""
        if sys.platform != "linux":
            return
        interval_and_time = (ctypes.c_long * 4)(0, 0, int(within_s), 0)  # each in seconds and nanoseconds
        no_old_time = None  # the time that was left is not needed
        self._c_library.timer_settime(self._timer, _RELATIVE_TIME, ctypes.byref(interval_and_time), no_old_time)
        # If the timer ran out while the process was stopped (SIGSTOP), it has called C's `alarm` (see `start`), which
        # would end the process some seconds later: cancel this alarm.
        signal.alarm(0)

    def stop(self) -> None:
        """Delete the timer, and restore the handler of the signal."""
        if sys.platform != "linux":
            return
        self._c_library.timer_delete(self._timer)
        signal.alarm(0)  # if the timer has run out already, it has started an alarm: cancel it
        faulthandler.unregister(signal.SIGALRM)  # which `start` has set to handle the alarm
        # The handler before is a C function, which Python's `signal.signal` does not accept.
        self._c_signal(signal.SIGALRM, self._handler_before)
