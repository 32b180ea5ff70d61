"""Errors of threads end the process: one that has lost a thread looks alive, and does only a part of its work."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class ThreadFailures:
    """While entered, keeps the first error that ends a thread, for the main thread to raise."""

    def __init__(self) -> None:
        self.notify: Callable[[], object] = lambda: None
        """Called in the thread that fails."""
        self._first: BaseException | None = None

    def raise_first(self) -> None:
        """Raise the error that has ended a thread, if there is one."""
        if self._first is not None:
            raise self._first

    def __enter__(self) -> Self:
        self._before, threading.excepthook = threading.excepthook, self._failed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        threading.excepthook = self._before

    def _failed(self, failure: threading.ExceptHookArgs) -> None:
        self._first = self._first or failure.exc_value or failure.exc_type()
        self.notify()
