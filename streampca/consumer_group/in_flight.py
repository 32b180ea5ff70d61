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
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

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
    nbytes: int  # 0 for decoding: the records are counted as `_Decoding`
    is_decoding: bool
    result: Future[Any]
    handle: Callable[[Any], object]


class _Decoding(NamedTuple):
    """Records in decoding: their result was not handled yet."""

    records: Records
    nbytes: int
    handle: Callable[[Vectors | Undecoded], object]


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
        """A task decodes records, or works on decoded records; tasks of one partition run one at a time, in order.

        At most `limit_bytes` of records and vectors are in flight; the records of one poll may exceed it. `decode` may
        return only the first of the records, if their vectors are large. `check_threads` raises the error of a thread
        of the process that has died, which ends the loop. `new_future` creates the result of a task; only the
        simulation in the tests replaces the default.
        """
        self._executor = executor
        self._decode_records = decode
        self._limit_bytes = limit_bytes
        self._check_threads = check_threads
        self._new_future = new_future
        self._tasks: deque[_Task] = deque()  # in the order of their submission
        self._queues: dict[int, PartitionQueue] = {}  # by partition, runs the functions of its tasks
        self._decodings: dict[int, deque[_Decoding]] = {}  # by partition; a task in `_tasks` decodes each of them
        # By partition, the result of the last task that works on decoded records.
        self._newest_work: dict[int, Future[R]] = {}
        self._nbytes = 0  # of all tasks and all records in decoding

    def next_events(self, source: Source, timeout_s: float) -> Sequence[Event]:
        """Poll a source for its events. If too much is in flight, wait for the oldest result instead."""
        self._check_threads()  # raises if a thread of the process has died
        is_full = self._count_batches() >= _MOST_BATCHES or self._nbytes >= self._limit_bytes
        if self._tasks and is_full:
            oldest = self._tasks[0].result
            with suppress(TimeoutError):
                oldest.exception(timeout_s)  # only waits: `handle_ended` raises the error of the task
            return []
        # While tasks are in flight, the poll is short, so that the loop handles their results soon.
        events = source.poll(_BUSY_POLL_S if self._tasks else timeout_s)
        # `OutOfRange` comes last. To handle it, the loop waits for results, and a result may drop the records in flight
        # of a partition, to read them again later. If more records of this partition followed in the same poll, they
        # would be handled now, and once more when they are read again.
        out_of_range = [event for event in events if isinstance(event, OutOfRange)]
        others = [event for event in events if not isinstance(event, OutOfRange)]
        return others + out_of_range

    def decode(self, records: Records, handle: Callable[[Vectors | Undecoded], object]) -> None:
        """Decode records in a thread, behind earlier tasks of their partition; `handle` gets the result in the loop."""
        decoding = _Decoding(records, records.nbytes, handle)
        self._decodings.setdefault(records.partition, deque()).append(decoding)
        self._nbytes += decoding.nbytes
        self._submit_decoding(decoding)

    def work(
        self, partition: int, nbytes: int, function: Callable[[R | None], R], handle: Callable[[R], object]
    ) -> None:
        """Call a function in a thread, behind earlier tasks of its partition; `handle` gets its result in the loop.

        The function is called with the result of the partition's last work, or with None if this result was handled
        before `work` was called: then the caller has it.
        """
        last_work = self._newest_work.get(partition)  # None: its result was handled, which has removed it

        def continue_last_work() -> R:
            # The last work has ended: tasks of a partition run one at a time. If it has failed, this raises its error.
            last_result = None if last_work is None else last_work.result()
            return function(last_result)

        task = self._submit(partition, continue_last_work, handle, nbytes=nbytes, is_decoding=False)
        self._newest_work[partition] = task.result

    def handle_ended(self) -> None:
        """Handle the results of ended tasks in their order, up to the first task that has not ended."""
        while self._tasks and self._tasks[0].result.done():
            self._handle_oldest()

    def finish(self, partition: int) -> None:
        """Handle all results of a partition, and wait for those that are still to come.

        Results of other partitions that were submitted before are handled, too.
        """
        while any(task.partition == partition for task in self._tasks):
            self._handle_oldest()

    def drop(self, partitions: Collection[int]) -> None:
        """Drop what is in flight of these partitions: this member or another one will read it again."""
        self.drop_decodings(partitions)  # tasks that decode, and the records that they decode
        self._drop_tasks(partitions, only_decodings=False)  # tasks that work on decoded records
        for partition in partitions:
            self._newest_work.pop(partition, None)  # otherwise the next work would continue from a dropped result
            queue = self._queues.pop(partition, None)
            if queue is not None:
                queue.clear()  # a function that runs already goes on, but its result is not handled

    def drop_decodings(self, partitions: Collection[int]) -> None:
        """Drop the records of these partitions that are in decoding. Work on decoded records continues."""
        self._drop_tasks(partitions, only_decodings=True)
        for partition in partitions:
            # The bytes of records in decoding are counted here: `_drop_tasks` has taken off none for these tasks.
            dropped = self._decodings.pop(partition, ())
            self._nbytes -= sum(decoding.nbytes for decoding in dropped)

    def close(self) -> None:
        """Drop everything, without waiting for the threads."""
        self._tasks.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _count_batches(self) -> int:
        """Return the number of batches in decoding, or in work."""
        in_decoding = sum(map(len, self._decodings.values()))
        in_work = sum(not task.is_decoding for task in self._tasks)
        return in_decoding + in_work

    def _submit(
        self, partition: int, function: Callable[[], Any], handle: Callable[[Any], object], *,
        nbytes: int, is_decoding: bool,
    ) -> _Task:  # fmt: skip
        """Run a function in a thread, behind earlier tasks of its partition; `handle` gets its result in the loop."""
        task = _Task(partition, nbytes, is_decoding, self._new_future(), handle)
        self._tasks.append(task)
        self._nbytes += nbytes
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(self._executor)
        queue.add(function, task.result)
        return task

    def _submit_decoding(self, decoding: _Decoding) -> None:
        decode = partial(self._decode_records, decoding.records)
        self._submit(decoding.records.partition, decode, self._handle_decoded, nbytes=0, is_decoding=True)

    def _handle_decoded(self, decoded: Vectors | Undecoded) -> None:
        """Hand the result of a partition's oldest decoding to its handler."""
        partition = decoded.partition
        decodings = self._decodings[partition]
        oldest = decodings.popleft()
        self._nbytes -= oldest.nbytes
        if isinstance(decoded, Vectors) and decoded.next != oldest.records.next:
            # Only the first records were decoded, since their vectors are large. The rest of them becomes the oldest
            # item of `decodings`.
            self._decode_rest(oldest, decoded_count=len(decoded.records))
        if not decodings:
            del self._decodings[partition]
        oldest.handle(decoded)

    def _decode_rest(self, decoding: _Decoding, decoded_count: int) -> None:
        """Decode the remaining records of a decoding, before all later records of the partition.

        If vectors are large, a decoding stops early, after its first `decoded_count` records.
        """
        records = decoding.records
        rest = replace(records, records=records.records[decoded_count:])
        decoding_of_rest = _Decoding(rest, rest.nbytes, handle=decoding.handle)
        # `_drop_tasks` and `_submit_decoding` do not change `_nbytes`: tasks that decode have no bytes themselves.
        self._nbytes += decoding_of_rest.nbytes
        decodings = self._decodings[records.partition]
        decodings.appendleft(decoding_of_rest)
        # The later records were submitted already. Their tasks are dropped and submitted again, behind the rest.
        self._drop_tasks([records.partition], only_decodings=True)
        for to_submit in decodings:
            self._submit_decoding(to_submit)

    def _handle_oldest(self) -> None:
        """Wait for the result of the oldest task, and hand it to its handler. Raises the error of the task."""
        task = self._tasks.popleft()
        self._nbytes -= task.nbytes
        try:
            result = watchdog.wait_for_result(task.result)
        except Exception:
            if task.is_decoding:  # earlier records of the partition may still be in work: handle them before the error
                self.drop_decodings([task.partition])
                self.finish(task.partition)
            raise
        # If no later work of the partition was submitted, the next work begins without a result: the loop has this one.
        if self._newest_work.get(task.partition) is task.result:
            del self._newest_work[task.partition]
        task.handle(result)

    def _drop_tasks(self, partitions: Collection[int], *, only_decodings: bool) -> None:
        """Drop the tasks of these partitions; with `only_decodings`, only those that decode."""
        kept = deque[_Task]()
        for task in self._tasks:
            is_kept_kind = only_decodings and not task.is_decoding
            if is_kept_kind or task.partition not in partitions:
                kept.append(task)
            else:
                self._nbytes -= task.nbytes
        self._tasks = kept
