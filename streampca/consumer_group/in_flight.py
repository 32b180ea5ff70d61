"""Decodes, learns and projects the records of partitions in threads, while the loop of a member polls.

Only pure functions run in threads: one decodes records, another works on the decoded ones: it learns or projects them.
The loop alone touches the source, dead letters, transactions and folds; it submits functions and handles the results.

- The tasks of one partition run one at a time, in the order in which they were submitted.
- Results are handled in the order of submission over all partitions, whichever thread ends first.
- Records are submitted for decoding before the results of earlier records were handled, so that threads have something
  to do while the loop polls.
- The results of dropped tasks are never handled, though their functions may still run to the end. Nothing of them was
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
_BUSY_POLL_S = 0.002  # longest time that a poll waits for records while tasks are in flight


def create_threads() -> Executor:
    """Create the threads for a member's tasks: one for each core, at most four, and each with one thread of BLAS."""
    return ThreadPoolExecutor(
        max_workers=min(usable_cores(), _MOST_THREADS),
        thread_name_prefix="task",
        initializer=partial(threadpool_limits, 1),
    )


@dataclass(eq=False)
class _Task:
    """A function that runs in a thread, and what the loop does with its result."""

    partition: int
    nbytes: int  # 0 for decoding: the records are counted as `_Decoding`
    is_decoding: bool
    result: Future[Any]
    handle: Callable[[Any], object]


class InFlight(Generic[R]):
    """The tasks of a member in threads; R is the type of the results of work on decoded records."""

    def __init__(
        self,
        executor: Executor,
        decode: Callable[[Records], Vectors | Undecoded],
        limit_bytes: int,
        check_threads: Callable[[], None] = lambda: None,
        new_future: Callable[[], Future[Any]] = Future,
    ) -> None:
        """At most `limit_bytes` of records and vectors are in flight; the records of one poll may exceed it.

        `decode` may return only the first of the records, if their vectors are large. If a thread of the process has
        died, `check_threads` raises its error, which ends the loop.
        """
        self._executor = executor
        self._decode_records = decode
        self._limit_bytes = limit_bytes
        self._check_threads = check_threads
        self._new_future = new_future
        self._tasks: deque[_Task] = deque()  # in the order of their submission
        self._queues: dict[int, _Queue] = {}  # by partition
        self._decodings: dict[int, deque[_Decoding]] = {}  # by partition; a task decodes each of them
        self._newest: dict[int, Future[R]] = {}  # by partition, the result of the last work in flight
        self._nbytes = 0  # of all tasks and all records in decoding

    def next_events(self, source: Source, timeout_s: float) -> Sequence[Event]:
        """Poll a source for its events. If too much is in flight, wait for the oldest result instead."""
        self._check_threads()
        if self._tasks and (self._batches >= _MOST_BATCHES or self._nbytes >= self._limit_bytes):
            with suppress(TimeoutError):
                self._tasks[0].result.exception(timeout_s)
            return []
        events = source.poll(_BUSY_POLL_S if self._tasks else timeout_s)
        # Records first: `OutOfRange` makes the loop handle results, and these may pause partitions of polled records.
        return sorted(events, key=lambda event: isinstance(event, OutOfRange))

    def decode(self, records: Records, handle: Callable[[Vectors | Undecoded], object]) -> None:
        """Decode records in a thread, behind earlier tasks of their partition; `handle` gets the result in the loop."""
        decoding = _Decoding(records, records.nbytes, handle)
        self._decodings.setdefault(records.partition, deque()).append(decoding)
        self._nbytes += decoding.nbytes
        self._submit_decoding(decoding)

    def work(self, partition: int, nbytes: int, work: Callable[[R | None], R], handle: Callable[[R], object]) -> None:
        """Run `work` in a thread, behind earlier tasks of its partition; `handle` gets its result in the loop.

        `work` gets the result of the partition's earlier work, or None if that was handled before this call.
        """
        earlier = self._newest.get(partition)

        def continue_from_earlier() -> R:
            return work(None if earlier is None else earlier.result())

        task = self._submit(partition, continue_from_earlier, handle, nbytes=nbytes, is_decoding=False)
        self._newest[partition] = task.result

    def handle_ended(self) -> None:
        """Handle the results of ended tasks in their order, up to the first task that has not ended."""
        while self._tasks and self._tasks[0].result.done():
            self._handle_oldest()

    def finish(self, partition: int) -> None:
        """Wait until all results of a partition are handled; older results of other partitions are handled, too."""
        while any(task.partition == partition for task in self._tasks):
            self._handle_oldest()

    def drop(self, partitions: Collection[int]) -> None:
        """Drop what is in flight of these partitions: this member or another one will read it again."""
        self.drop_decodings(partitions)
        self._drop_tasks(lambda task: task.partition in partitions)
        for partition in partitions:
            self._newest.pop(partition, None)
            queue = self._queues.pop(partition, None)
            if queue is not None:
                queue.clear()

    def drop_decodings(self, partitions: Collection[int]) -> None:
        """Drop records of these partitions that are in decoding; work on decoded ones continues."""
        self._drop_tasks(lambda task: task.is_decoding and task.partition in partitions)
        for partition in partitions:
            self._nbytes -= sum(decoding.nbytes for decoding in self._decodings.pop(partition, ()))

    def close(self) -> None:
        """Drop everything, without waiting for the threads."""
        self._tasks.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def _batches(self) -> int:
        """Number of batches in decoding, or in work."""
        in_decoding = sum(map(len, self._decodings.values()))
        in_work = sum(not task.is_decoding for task in self._tasks)
        return in_decoding + in_work

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

    def _submit_decoding(self, decoding: "_Decoding") -> None:
        decode = partial(self._decode_records, decoding.records)
        self._submit(decoding.records.partition, decode, self._handle_decoded, nbytes=0, is_decoding=True)

    def _handle_decoded(self, decoded: Vectors | Undecoded) -> None:
        """Hand the result of a partition's oldest decoding to its handler."""
        partition = decoded.partition
        decodings = self._decodings[partition]
        records, nbytes, handle = decodings.popleft()
        self._nbytes -= nbytes
        if isinstance(decoded, Vectors) and decoded.next != records.next:
            # Only the first records were decoded, since their vectors are large. The rest must be decoded before the
            # later records of the partition, which are therefore submitted again behind it.
            self._drop_tasks(lambda task: task.is_decoding and task.partition == partition)
            rest = replace(records, records=records.records[len(decoded.records) :])
            first = _Decoding(rest, rest.nbytes, handle)
            decodings.appendleft(first)
            self._nbytes += first.nbytes
            for decoding in decodings:
                self._submit_decoding(decoding)
        if not decodings:
            del self._decodings[partition]
        handle(decoded)

    def _handle_oldest(self) -> None:
        task = self._tasks.popleft()
        self._nbytes -= task.nbytes
        try:
            result = watchdog.result_of(task.result)
        except Exception:
            if task.is_decoding:  # earlier records of the partition may still be in work: handle them before the error
                self.drop_decodings([task.partition])
                self.finish(task.partition)
            raise
        if self._newest.get(task.partition) is task.result:
            del self._newest[task.partition]
        task.handle(result)

    def _drop_tasks(self, is_dropped: Callable[[_Task], bool]) -> None:
        self._nbytes -= sum(task.nbytes for task in self._tasks if is_dropped(task))
        self._tasks = deque(task for task in self._tasks if not is_dropped(task))


class _Decoding(NamedTuple):
    """Records in decoding: their result was not handled yet."""

    records: Records
    nbytes: int
    handle: Callable[[Vectors | Undecoded], object]


class _Queue:
    """The functions of one partition, which run one after the other in any thread of an executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = Lock()
        self._functions: deque[tuple[Callable[[], Any], Future[Any]]] = deque()  # with results; the first one runs

    def add(self, function: Callable[[], Any], result: Future[Any]) -> None:
        """Run a function after those that were added before, and set its result, or the error that it raises."""
        with self._lock:
            self._functions.append((function, result))
            is_first = len(self._functions) == 1
        if is_first:
            self._executor.submit(self._run_first)

    def clear(self) -> None:
        """Forget the functions that have not begun."""
        with self._lock:
            while len(self._functions) > 1:
                self._functions.pop()

    def _run_first(self) -> None:
        function, result = self._functions[0]
        watchdog.tick()
        try:
            result.set_result(function())
        except BaseException as error:  # the loop raises it when it handles the result
            result.set_exception(error)
        finally:
            watchdog.forget()  # a thread without a task need not tick
        with self._lock:
            self._functions.popleft()
            has_next = bool(self._functions)
        if has_next:
            self._executor.submit(self._run_first)
