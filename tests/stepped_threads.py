"""Threads for requests to a store, in which nothing happens but what a test wants: no time passes."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class SteppedFuture(Future[Any]):
    """A future that never waits: without a time limit, it lets calls end until its own has ended."""

    def __init__(self, threads: "SteppedThreads") -> None:
        super().__init__()
        self._threads = threads

    def exception(self, timeout: float | None = None) -> BaseException | None:
        while timeout is None and not self.done():
            self._threads.end(1)
        return super().exception(0)


class SteppedThreads(Executor):
    """Threads whose calls end when `end` is called, in the order in which they began.

    A call for a partition in `held` does not end. A call that is no partition's is one for all of them, as a listing.
    """

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.begun: list[int] = []  # the partitions of the calls, in their order
        self.most_at_once = 0
        self._calls: list[tuple[tuple[Any, ...], SteppedFuture, Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = SteppedFuture(self)
        self._calls.append((args, future, lambda: fn(*args, **kwargs)))
        self.begun.extend(args)
        self.most_at_once = max(self.most_at_once, len(self._calls))
        return future

    def end(self, count: int) -> None:
        """Let this number of calls end."""
        for call in [call for call in self._calls if not self.held.intersection(call[0])][:count]:
            self._calls.remove(call)
            _, future, run = call
            try:
                future.set_result(run())
            except BaseException as error:
                future.set_exception(error)
