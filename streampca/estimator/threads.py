"""Limits BLAS to one thread while the estimator computes.

For blocks of rows, more threads take many times the processor time. They would also change the last bits, which are
those of a worker and of `streampca fit` with one thread.
"""

from contextlib import ContextDecorator
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController

_find_libraries = cache(ThreadpoolController)  # finding them takes milliseconds


class OneThread(ContextDecorator):
    """A context and decorator inside of which BLAS has one thread, in the whole process.

    Several threads of Python may be inside at once: the limit ends when the last of them leaves.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._limits: list[Any] = []

    def __enter__(self) -> None:
        with self._lock:
            self._limits.append(_find_libraries().limit(limits=1))

    def __exit__(self, *_: object) -> None:
        # The first limit, which is restored last, remembers how many threads BLAS had.
        with self._lock:
            self._limits.pop().restore_original_limits()


one_thread = OneThread()
