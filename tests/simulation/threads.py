"""Futures and executors for production code, which run in a process of the simulation."""

import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from streampca.consumer_group.in_flight import InFlight
from streampca.sources.events import Records, Undecoded, Vectors
from tests.simulation.scheduler import KilledError, Process, Scheduler, Task


def make_in_flight(
    process: Process, decode: Callable[[Records], Vectors | Undecoded], limit_bytes: int
) -> InFlight[Any]:
    """Tasks of a member that run in threads of its process."""
    return InFlight(
        ProcessExecutor(process, is_slow=True),
        decode,
        limit_bytes,
        new_future=lambda: _Future(process.scheduler),
    )


class _Future(Future[Any]):
    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def result(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        deadline = self._scheduler.now + timeout if timeout is not None else math.inf
        while not self.done() and self._scheduler.now < deadline:
            task = self._scheduler.current
            self.add_done_callback(lambda done, task=task: self._scheduler.wake(task))  # type: ignore[misc]
            self._scheduler.suspend(deadline)


class ProcessExecutor(Executor):
    """Its calls run in threads of the process; if it `is_slow`, anything may happen before and after each of them."""

    def __init__(self, process: Process, *, is_slow: bool = False) -> None:
        self._process, self._is_slow = process, is_slow

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = _Future(self._process.scheduler)

        def run() -> None:
            try:
                if self._is_slow:
                    self._process.call("task begins")
                result = fn(*args, **kwargs)
                if self._is_slow:
                    self._process.call("task ends")
                future.set_result(result)
            except KilledError:
                raise
            except BaseException as error:
                future.set_exception(error)

        self._process.start(run)
        return future


class SimulatedLock:
    """A lock whose waiting takes virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._is_held, self._waiting = scheduler, False, list[Task]()

    def acquire(self, timeout: float) -> bool:
        deadline = self._scheduler.now + timeout
        while self._is_held and self._scheduler.now < deadline:
            self._waiting.append(self._scheduler.current)
            self._scheduler.suspend(deadline)
        if self._is_held:
            return False
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        for task in self._waiting:
            self._scheduler.wake(task)
        self._waiting.clear()
