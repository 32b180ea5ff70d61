"""Threads, conditions, futures and executors for production code, which run in a process of the simulation."""

import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from streampca.sources.prefetch import Threads
from tests.simulation.scheduler import KilledError, Process, Scheduler, Task


def threads_of(process: Process) -> Threads:
    """What `Prefetch` needs."""
    return Threads(
        thread=lambda target, **options: process.thread(target),  # type: ignore[arg-type, return-value]
        condition=lambda: _Condition(process.scheduler),  # type: ignore[arg-type, return-value]
        future=lambda: _Future(process.scheduler),
    )


class _Condition:
    """Holding it needs no lock as long as its holder makes no call, which is checked."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._waiting, self._held_at = scheduler, list[Task](), -1

    def __enter__(self) -> "_Condition":
        self._held_at = self._scheduler.steps
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not KilledError:
            assert self._held_at == self._scheduler.steps, "a call was made while a lock was held"

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        scheduler = self._scheduler
        deadline = scheduler.now + timeout if timeout is not None else math.inf
        while not (result := predicate()) and scheduler.now < deadline:
            self._waiting.append(scheduler.current)
            scheduler.suspend(deadline)
        self._held_at = scheduler.steps
        return result

    def notify(self, n: int = 1) -> None:
        for task in self._waiting:  # the others notice that there is nothing for them
            self._scheduler.wake(task)
        self._waiting.clear()

    notify_all = notify


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
    """Its calls run in threads of the process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = _Future(self._process.scheduler)

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except KilledError:
                raise
            except BaseException as error:
                future.set_exception(error)

        self._process.start(run)
        return future
