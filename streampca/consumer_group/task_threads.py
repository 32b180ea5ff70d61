"""Threads for a member's tasks, in which the tasks of one partition run one after the other."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any

from threadpoolctl import threadpool_limits

from streampca.process import watchdog
from streampca.process.machine import count_usable_cores

_MOST_THREADS = 4


def create_threads() -> Executor:
    """Create the threads for a member's tasks: one for each core, at most four, and each with one thread of BLAS."""
    return ThreadPoolExecutor(
        max_workers=min(count_usable_cores(), _MOST_THREADS),
        thread_name_prefix="task",
        initializer=partial(threadpool_limits, 1),
    )


class PartitionQueue:
    """The functions of one partition, which run one after the other in any thread of an executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = Lock()
        # Functions to call, and where their results go. The first one runs in a thread, the others wait.
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()

    def add(self, function: Callable[[], Any], result: Future[Any]) -> None:
        """Call a function in a thread when all earlier functions have ended; `result` gets its result or error."""
        with self._lock:
            self._calls.append((function, result))
            is_first = len(self._calls) == 1  # a running call stays in `_calls`
        if is_first:
            self._executor.submit(self._run_first)

    def clear(self) -> None:
        """Forget the functions that have not begun."""
        with self._lock:
            while len(self._calls) > 1:  # the first one is running
                self._calls.pop()

    def _run_first(self) -> None:
        """Run the first function in this thread, and submit the next one."""
        function, result = self._calls[0]  # it stays there while it runs
        watchdog.tick()  # the watchdog ends the process if the function hangs
        try:
            result.set_result(function())
        except BaseException as error:  # the loop raises it
            result.set_exception(error)
        finally:
            watchdog.forget()  # an idle thread does not hang
        with self._lock:
            self._calls.popleft()
            has_next = bool(self._calls)
        if has_next:
            self._executor.submit(self._run_first)
