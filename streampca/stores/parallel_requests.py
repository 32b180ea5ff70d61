"""Requests to a store that run side by side in threads: a bucket answers each only after some time.

A worker may own a thousand partitions. If it waited for each request before it made the next one, it could neither
restore nor save them while the group waits.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from threading import Thread
from typing import Any, Generic, NamedTuple, TypeVar

from streampca.errors import StoreBusyError

R = TypeVar("R")

REQUESTS_AT_ONCE = 16
BYTES_AT_ONCE = 64 * 2**20


class Answer(NamedTuple, Generic[R]):
    """The end of a request for a partition; `result` raises the error of a request that has failed."""

    partition: int
    result: Callable[[], R]


class ParallelRequests(Generic[R]):
    """Calls a function for each of many partitions, in threads; R is the type of its results.

    At most 16 calls are in flight at once, and at most 64 MiB; a single call may exceed 64 MiB. A call is in flight
    until its answer was taken. If the store is busy, no further calls begin. Only one thread may take the answers.
    """

    def __init__(self, threads: Executor, function: Callable[[int], R], sizes: Mapping[int, int]) -> None:
        """`sizes` are the bytes that each call reads or writes, by partition, in the order of the calls."""
        self._threads = threads
        self._function = function
        self._sizes = sizes
        self._waiting = deque(sizes)
        self._in_flight: dict[int, Future[R]] = {}  # by partition, in the order of their beginning
        self._begin_calls()

    @property
    def have_ended(self) -> bool:
        """Whether all answers were taken."""
        return not self._in_flight

    def take_ended(self, timeout_s: float) -> list[Answer[R]]:
        """Wait for calls to end. Then take the answers of all calls that have ended, and begin further calls.

        The calls are waited for in their order, each for at most `timeout_s`. If a call does not end in time, the calls
        after it are not waited for.
        """
        for future in self._in_flight.values():
            if not wait_for_end(future, timeout_s):
                break
        ended = [partition for partition, future in self._in_flight.items() if future.done()]
        answers = [self._take(partition) for partition in ended]
        self._begin_calls()
        return answers

    def take_in_order(self) -> Iterator[Answer[R]]:
        """Wait for the answers, and take them in the order of the partitions; later calls run meanwhile."""
        while self._in_flight:
            partition = next(iter(self._in_flight))
            self._in_flight[partition].exception()  # waits, and does not raise the error
            answer = self._take(partition)
            self._begin_calls()
            yield answer

    def _take(self, partition: int) -> Answer[R]:
        future = self._in_flight.pop(partition)
        if isinstance(future.exception(), StoreBusyError):
            self._waiting.clear()  # no further calls begin
        return Answer(partition, future.result)

    def _begin_calls(self) -> None:
        while self._waiting and self._has_room(self._waiting[0]):
            partition = self._waiting.popleft()
            self._in_flight[partition] = self._threads.submit(self._function, partition)

    def _has_room(self, partition: int) -> bool:
        """Return whether the call for a partition may begin beside the calls in flight."""
        if not self._in_flight:  # a single call may be larger than the limit
            return True
        bytes_in_flight = sum(self._sizes[partition_in_flight] for partition_in_flight in self._in_flight)
        has_request = len(self._in_flight) < REQUESTS_AT_ONCE
        has_bytes = bytes_in_flight + self._sizes[partition] <= BYTES_AT_ONCE
        return has_request and has_bytes


def wait_for_end(future: Future[Any], timeout_s: float) -> bool:
    """Wait for a future, for `timeout_s` at most, and return whether it has ended. Its error is not raised."""
    with suppress(TimeoutError):
        future.exception(timeout_s)  # waits
    return future.done()


class RequestThreads(Executor):
    """Runs each call in a thread of its own. A request that hangs does not keep the process from ending."""

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Call `fn` in a new thread, and return the future of its result."""
        future: Future[R] = Future()

        def call() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # whoever takes the result raises it
                future.set_exception(error)

        Thread(target=call, name="store request", daemon=True).start()
        return future
