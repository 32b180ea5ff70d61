"""What the processes that read a topic until they are stopped do at their start."""

import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

from prometheus_client import disable_created_metrics

# Longest time that the prefetch thread may hold the GIL while the learning thread, which releases it at every block,
# waits for it. With Python's default, ten times as long, learning waits more than it works.
_SWITCH_INTERVAL_S = 0.0005

# glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD (malloc.h), bytes. Its own, smaller defaults cost a sixth of the time
# that it takes to read vectors of 3072 floats.
_MALLOC_OPTIONS = {-3: 32 * 2**20, -1: 64 * 2**20}


def prepare() -> None:
    """Set what holds for the whole process: how threads take turns, how memory is freed, which metrics there are."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    keep_freed_memory()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # nobody uses them, and they double the number of series


def keep_freed_memory() -> None:
    """Make the C library reuse the memory of one batch for the next, instead of returning it to the system."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        for option, size in _MALLOC_OPTIONS.items():
            libc.mallopt(option, size)


def stop_on_signals(stop: Callable[[str], object]) -> None:
    """Call `stop` with the name of the signal on SIGTERM and SIGINT."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def name_of_process() -> str:
    """Host name and process id, in characters that a file of the store may have."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
    return f"{host[:200]}-{os.getpid()}"
