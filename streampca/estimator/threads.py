"""One BLAS thread while the estimator computes: more take many times the processor time for blocks of rows.

They would also round otherwise: with one the bits are those of a worker and of `streampca fit`.
"""

from contextlib import ContextDecorator
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController

_controller = cache(ThreadpoolController)  # finding the libraries takes milliseconds


class OneThread(ContextDecorator):
    """Limits BLAS in the whole process to one thread, from the first that enters to the last that leaves."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._limits: list[Any] = []

    def __enter__(self) -> None:
        with self._lock:
            self._limits.append(_controller().limit(limits=1))

    def __exit__(self, *_: object) -> None:
        with self._lock:  # the first limit is restored last, whoever set it: the others found one thread
            self._limits.pop().restore_original_limits()


one_thread = OneThread()
