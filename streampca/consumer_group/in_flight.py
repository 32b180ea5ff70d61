"""Work on the records of partitions that runs in threads, while the loop of a member polls.

Only pure functions travel to a thread: the decoding of records, and what a role makes of the decoded ones. The loop
alone touches the source, dead letters, transactions and folds; it submits work and collects the results.

- The tasks of one partition run one at a time, in the order in which they were submitted.
- Results are handled in the order of submission over all partitions, so threads change the order of nothing.
- Records are decoded ahead of the work on earlier ones of their partition, so that threads have something to do while
  the loop polls.
- Results that were dropped are never handled, though their functions may still run to the end. Nothing of them was
  sent, so their records can be read again.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

from threadpoolctl import threadpool_limits

from streampca.process import watchdog
from streampca.process.machine import usable_cores
from streampca.sources.base import Source
from streampca.sources.events import Event, OutOfRange, Records, Undecoded, Vectors

R = TypeVar("R")

_MOST_BATCHES = 12
_MOST_THREADS = 4
_BUSY_POLL_S = 0.002  # longest time that a poll waits for records while there are results to come


def threads() -> Executor:
    """Threads for the tasks of a member, as many as it has cores but at most four, each with one thread of BLAS."""
    return ThreadPoolExecutor(
        max_workers=min(usable_cores(), _MOST_THREADS),
        thread_name_prefix="task",
        initializer=partial(threadpool_limits, 1),
    )


@dataclass(eq=False)
class _Task:
    """A function that runs in a thread, and what the loop does with its result."""

    partition: int
    nbytes: int
    is_decoding: bool
    result: Future[Any]
    handle: Callable[[Any], object]


class InFlight(Generic[R]):
    """Decodes the records of partitions, and works on them, in threads; the loop handles the results of type R."""

    def __init__(
        self,
        executor: Executor,
        decode: Callable[[Records], Vectors | Undecoded],
        limit_bytes: int,
        check_threads: Callable[[], None] = lambda: None,
        new_future: Callable[[], Future[Any]] = Future,
    ) -> None:
        """At most `limit_bytes` of records and vectors are in flight, but for the records of one poll.

        `decode` may return the first of the records alone, if their vectors are large. `check_threads` raises the error
        of any thread of the process that has died, which ends the loop.
        """
        self._executor, self._decode, self._limit_bytes = executor, decode, limit_bytes
        self._check_threads, self._new_future = check_threads, new_future
        self._tasks: deque[_Task] = deque()  # in the order of their submission
        self._queues: dict[int, _Queue] = {}  # by partition
        self._unread: dict[int, deque[_Unread]] = {}  # by partition; a task decodes each of them
        self._newest: dict[int, Future[R]] = {}  # by partition, the result of the last work in flight
        self._nbytes = 0  # of all tasks and all unread records

    def next_events(self, source: Source, timeout_s: float) -> Sequence[Event]:
        """Poll a source. If too much is in flight, wait for the oldest result instead."""
        self._check_threads()
        if self._tasks and (self._batches >= _MOST_BATCHES or self._nbytes >= self._limit_bytes):
            with suppress(TimeoutError):
                self._tasks[0].result.exception(timeout_s)
            return []
        events = source.poll(_BUSY_POLL_S if self._tasks else timeout_s)
        # Records come before gaps: while a gap is handled, results may pause partitions of which records were polled.
        return sorted(events, key=lambda event: isinstance(event, OutOfRange))

    def read(self, records: Records, handle: Callable[[Vectors | Undecoded], object]) -> None:
        """Decode records in a thread, behind earlier ones of their partition; `handle` gets them in the loop."""
        unread = _Unread(records, records.nbytes, handle)
        self._unread.setdefault(records.partition, deque()).append(unread)
        self._nbytes += unread.nbytes
        self._decode_in_thread(unread)

    def work(self, partition: int, nbytes: int, work: Callable[[R | None], R], handle: Callable[[R], object]) -> None:
        """Run `work` in a thread, behind earlier tasks of its partition; `handle` gets its result in the loop.

        `work` gets the result of the partition's work before it, or None if that was handled before this call.
        """
        before = self._newest.get(partition)

        def in_turn() -> R:
            return work(None if before is None else before.result())

        task = self._submit(partition, in_turn, handle, nbytes=nbytes, is_decoding=False)
        self._newest[partition] = task.result

    def handle_ended(self) -> None:
        """Handle the results that have come, from the oldest on, up to the first one that has not come yet."""
        while self._tasks and self._tasks[0].result.done():
            self._handle_oldest()

    def finish(self, partition: int) -> None:
        """Wait until all of a partition that is in flight was handled."""
        while any(task.partition == partition for task in self._tasks):
            self._handle_oldest()

    def drop(self, partitions: Collection[int]) -> None:
        """Drop what is in flight of these partitions: it will be read again, by this member or another one."""
        self.stop_reading(partitions)
        self._drop_tasks(lambda task: task.partition in partitions)
        for partition in partitions:
            self._newest.pop(partition, None)
            queue = self._queues.pop(partition, None)
            if queue is not None:
                queue.clear()

    def stop_reading(self, partitions: Collection[int]) -> None:
        """Drop records of these partitions that were not handed to the loop after decoding."""
        self._drop_tasks(lambda task: task.is_decoding and task.partition in partitions)
        for partition in partitions:
            self._nbytes -= sum(unread.nbytes for unread in self._unread.pop(partition, ()))

    def close(self) -> None:
        """Drop everything, without waiting for the threads."""
        self._tasks.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def _batches(self) -> int:
        """Batches that are worked on, and those that are not decoded yet."""
        unread = sum(map(len, self._unread.values()))
        return unread + sum(not task.is_decoding for task in self._tasks)

    def _submit(
        self, partition: int, function: Callable[[], Any], handle: Callable[[Any], object], *,
        nbytes: int, is_decoding: bool,
    ) -> _Task:  # fmt: skip
        task = _Task(partition, nbytes, is_decoding, self._new_future(), handle)
        self._tasks.append(task)
        self._nbytes += nbytes
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _Queue(self._executor)
        queue.add(function, task.result)
        return task

    def _decode_in_thread(self, unread: "_Unread") -> None:
        decode = partial(self._decode, unread.records)
        self._submit(unread.records.partition, decode, self._decoded, nbytes=0, is_decoding=True)

    def _decoded(self, decoded: Vectors | Undecoded) -> None:
        """Hand the first unread records of a partition to the loop."""
        partition = decoded.partition
        unread = self._unread[partition]
        records, nbytes, handle = unread.popleft()
        self._nbytes -= nbytes
        if isinstance(decoded, Vectors) and decoded.next != records.next:
            # Their vectors are large, so the rest comes next. What was decoded behind it is decoded again.
            self._drop_tasks(lambda task: task.is_decoding and task.partition == partition)
            rest = replace(records, records=records.records[len(decoded.records) :])
            unread.appendleft(_Unread(rest, rest.nbytes, handle))
            self._nbytes += unread[0].nbytes
            for waiting in unread:
                self._decode_in_thread(waiting)
        if not unread:
            del self._unread[partition]
        handle(decoded)

    def _handle_oldest(self) -> None:
        task = self._tasks.popleft()
        self._nbytes -= task.nbytes
        try:
            result = watchdog.result_of(task.result)
        except Exception:
            if task.is_decoding:  # earlier records of the partition may still be worked on: they are handled first
                self.stop_reading([task.partition])
                self.finish(task.partition)
            raise
        if self._newest.get(task.partition) is task.result:
            del self._newest[task.partition]
        task.handle(result)

    def _drop_tasks(self, is_dropped: Callable[[_Task], bool]) -> None:
        self._nbytes -= sum(task.nbytes for task in self._tasks if is_dropped(task))
        self._tasks = deque(task for task in self._tasks if not is_dropped(task))


class _Unread(NamedTuple):
    """Records that the loop has not handled, and their bytes."""

    records: Records
    nbytes: int
    handle: Callable[[Vectors | Undecoded], object]


class _Queue:
    """The functions of one partition, which run one after the other in any thread of an executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._lock = executor, Lock()
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()  # the first one is running

    def add(self, function: Callable[[], Any], result: Future[Any]) -> None:
        """Run a function after those that were added before, and set its result, or the error that it raises."""
        with self._lock:
            self._waiting.append((function, result))
            is_alone = len(self._waiting) == 1
        if is_alone:
            self._executor.submit(self._run_first)

    def clear(self) -> None:
        """Forget the functions that have not begun."""
        with self._lock:
            while len(self._waiting) > 1:
                self._waiting.pop()

    def _run_first(self) -> None:
        function, result = self._waiting[0]
        watchdog.tick()
        try:
            result.set_result(function())
        except BaseException as error:  # the loop raises it when it handles the result
            result.set_exception(error)
        finally:
            watchdog.forget()  # a thread without a task need not tick
        with self._lock:
            self._waiting.popleft()
            has_next = bool(self._waiting)
        if has_next:
            self._executor.submit(self._run_first)
