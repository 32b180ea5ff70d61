"""Decodes, learns and projects the records of partitions in threads, while the loop of a member polls.

Only pure functions run in threads: one decodes records, another works on the decoded ones: it learns or projects them.
The loop alone touches the source, dead letters, transactions and folds; it submits functions and handles the results.

- The tasks of one partition run one at a time, in the order in which they were submitted.
- Results are handled in the order of submission over all partitions, whichever thread ends first.
- Records are submitted for decoding before the results of earlier records were handled, so that threads have something
  to do while the loop polls.
- A work task learns or projects decoded records. It gets the result of the partition's previous work task, so that it
  need not wait until the loop has handled this result.
- The results of dropped tasks are never handled, though their functions may still run to the end. Nothing of them was
  sent, so their records can be read again.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from streampca.consumer_group.task_threads import PartitionQueue
from streampca.process import watchdog
from streampca.sources.base import Source
from streampca.sources.events import Event, OutOfRange, Records, Undecoded, Vectors

R = TypeVar("R")

_MOST_BATCHES = 12
_BUSY_POLL_S = 0.002  # longest time that a poll waits for records while tasks are in flight


@dataclass(eq=False)
class _Task:
    """A function that runs in a thread, and what the loop does with its result."""

    partition: int
    nbytes: int  # of what the function decodes, learns or projects
    future: Future[Any]  # of the function's result
    handle: Callable[[Any], object]  # called in the loop with the result


@dataclass(eq=False)
class _Decoding(_Task):
    """A task that decodes records."""

    batch: Records


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
        """At most `limit_bytes` are in flight; the records of one poll may exceed it.

        `decode` returns `Undecoded` if the records cannot be decoded for now. It may decode only the first of the
        records; then it is called again for the rest. `check_threads` raises the error of a dead thread. Tests that
        simulate time pass their own `new_future`.
        """
        self._executor = executor
        self._decode_records = decode
        self._limit_bytes = limit_bytes
        self._check_threads = check_threads
        self._new_future = new_future
        self._tasks: deque[_Task] = deque()  # to decode, and to learn or project, in the order of submission
        self._queues: dict[int, PartitionQueue] = {}  # by partition; a queue runs the partition's tasks in order
        # By partition: the future of its newest work task, until the loop handles the result. The next work task of the
        # partition starts from this result. Without one, it starts from the loop's own state, such as a fold.
        self._newest_work: dict[int, Future[R]] = {}

    def poll(self, source: Source, timeout_s: float) -> Sequence[Event]:
        """Poll a source for its events. If too much is in flight, wait for the oldest result instead."""
        self._check_threads()
        is_full = len(self._tasks) >= _MOST_BATCHES or self._nbytes >= self._limit_bytes
        if self._tasks and is_full:
            oldest = self._tasks[0].future
            with suppress(TimeoutError):
                oldest.exception(timeout_s)  # only waits: `handle_ended` raises the error
            return []
        events = source.poll(_BUSY_POLL_S if self._tasks else timeout_s)
        # Put `OutOfRange` last: False is sorted before True. Its handler finishes or drops all that is in flight of the
        # partition. If it came first, the records of this poll would be handled after the loss that they precede.
        return sorted(events, key=lambda event: isinstance(event, OutOfRange))

    def decode(self, records: Records, handle: Callable[[Vectors | Undecoded], object]) -> None:
        """Decode records in a thread, after earlier tasks of their partition; `handle` gets the result in the loop."""
        task = _Decoding(records.partition, records.nbytes, self._new_future(), handle, records)
        self._submit(task, partial(self._decode_records, records))

    def submit_work(self, batch: Vectors, function: Callable[[R | None], R], handle: Callable[[R], object]) -> None:
        """Let a function work on a batch in a thread; in the loop, `handle` then gets the function's result.

        The function is called after earlier tasks of the partition. If the loop has not handled the result of the
        previous work task yet, the function gets this result, and starts from it. Otherwise it gets None, and starts
        from the loop's own state, such as a fold.
        """
        previous_work = self._newest_work.get(batch.partition)  # None: all results were handled or dropped

        def start_from_previous_result() -> R:
            # The previous task has ended. If it has failed, this raises its error again.
            previous_result = None if previous_work is None else previous_work.result()
            return function(previous_result)

        task = _Task(batch.partition, batch.nbytes, self._new_future(), handle)
        self._submit(task, start_from_previous_result)
        self._newest_work[batch.partition] = task.future

    def handle_ended(self) -> None:
        """Handle the results of ended tasks in their order, up to the first task that has not ended."""
        while self._tasks and self._tasks[0].future.done():
            self._handle_oldest()

    def finish(self, partition: int) -> None:
        """Handle all results of a partition, waiting for those that are still to come.

        Earlier results of other partitions are handled, too.
        """
        while any(task.partition == partition for task in self._tasks):
            self._handle_oldest()

    def drop(self, partitions: Collection[int]) -> None:
        """Drop what is in flight of these partitions, which will be read again."""
        self._tasks = deque(task for task in self._tasks if task.partition not in partitions)
        for partition in partitions:
            self._newest_work.pop(partition, None)  # the next work task then starts from the loop's own state
            queue = self._queues.pop(partition, None)
            if queue is not None:
                queue.clear()  # otherwise its waiting functions would still run, though nobody needs their results

    def drop_decodings(self, partition: int) -> None:
        """Drop the records of a partition that are in decoding. Work on decoded records continues."""
        dropped = self._decodings_of(partition)
        self._tasks = deque(task for task in self._tasks if task not in dropped)

    def close(self) -> None:
        """Drop everything, without waiting for the threads."""
        self._tasks.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def _nbytes(self) -> int:
        """Bytes of all records and vectors in flight."""
        return sum(task.nbytes for task in self._tasks)

    def _decodings_of(self, partition: int) -> list[_Decoding]:
        """Return the tasks that decode records of a partition, in the order of the records."""
        return [task for task in self._tasks if isinstance(task, _Decoding) and task.partition == partition]

    def _submit(self, task: _Task, function: Callable[[], Any]) -> None:
        """Call the function of a task in a thread, after earlier tasks of its partition."""
        self._tasks.append(task)
        queue = self._queues.setdefault(task.partition, PartitionQueue(self._executor))
        queue.add(function, task.future)

    def _handle_oldest(self) -> None:
        """Wait for the result of the oldest task, and hand it to its handler. Raises the error of the task."""
        task = self._tasks.popleft()
        try:
            result = watchdog.wait_for_result(task.future)
        except Exception:
            if isinstance(task, _Decoding):
                # Drop the later records. Earlier records may still be learned or projected: handle them first.
                self.drop_decodings(task.partition)
                self.finish(task.partition)
            raise
        is_newest_work = self._newest_work.get(task.partition) is task.future
        if is_newest_work:  # `handle` below puts the result into the loop's state, from which the next work then starts
            del self._newest_work[task.partition]
        if isinstance(task, _Decoding) and isinstance(result, Vectors):
            self._decode_rest(task, decoded=result)  # does nothing if all records were decoded
        task.handle(result)

    def _decode_rest(self, decoding: _Decoding, decoded: Vectors) -> None:
        """If only the first records of a batch were decoded, decode the rest, before later batches of the partition."""
        batch = decoding.batch
        is_all_decoded = decoded.next == batch.next
        if is_all_decoded:
            return
        decoded_count = len(decoded.records)
        rest = replace(batch, records=batch.records[decoded_count:])
        # Drop the decoding of the later batches, and add it again after the rest. `decoding` itself has ended, and is
        # not in flight any more.
        later_decodings = self._decodings_of(decoding.partition)
        self.drop_decodings(decoding.partition)
        self.decode(rest, decoding.handle)
        for later in later_decodings:
            self.decode(later.batch, later.handle)
