"""Polls a source and decodes its records in a thread, while the worker learns the previous ones.

Only this thread uses the source: it executes all calls, in their order, between two polls. Decoded events wait in a
queue that is bounded in records and bytes (the last poll may exceed the bounds). Records that become large when decoded
are decoded in several steps, so that the bound holds between these as well. The contract of `sources.base` holds:
- After a rebalance event or an error the thread does not poll until the worker has taken it and called `poll` again,
  which says that it was handled. So a revoked partition stays ours until then.
- The thread does not poll, which joins the group, before the worker does.
- Queued records of partitions that are revoked, lost, paused or repositioned by `seek` are dropped.
If the thread dies, `poll` raises its error after the queued events, and every call raises it.
If the worker hangs, the queue stays full, the source is not polled, and the group removes the worker, as it should.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from streampca.formats.record import NO_RECORDS, LastRecord
from streampca.process import watchdog
from streampca.sources.base import Committed, Source
from streampca.sources.events import (
    Event,
    EventQueue,
    Lost,
    Records,
    Revoked,
    SourceStatus,
    Vectors,
    partition_of,
)  # fmt: skip

_POLL_S = 0.1  # longest time that a call waits for a poll without records
_IDLE_S = 0.005  # pause after an empty poll: not every source waits for records
_CLOSE_S = 3.0


@dataclass(frozen=True)
class Threads:
    """Creates threads, conditions and futures: the standard library's, or those that a simulation runs step by step."""

    thread: Callable[..., threading.Thread] = threading.Thread
    condition: Callable[[], threading.Condition] = threading.Condition
    future: Callable[[], Future[Any]] = Future


class Prefetch:
    """A `streampca.sources.base.Source` of decoded records."""

    def __init__(
        self,
        source: Source,
        max_records: int,
        max_bytes: int,
        decode: Callable[[Records], Event],
        threads: Threads = Threads(),
    ) -> None:
        """Start the thread. It calls `decode`, too; an error of `decode` is raised by the worker's `poll`."""
        self._source, self._max_records, self._max_bytes = source, max_records, max_bytes
        self._decode = decode
        self._threads, self._changed = threads, threads.condition()
        self._queue = EventQueue()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._undecoded: deque[Event] = deque()  # the rest of the last poll; only the thread uses it
        self._error: BaseException | None = None  # to be raised after the queued events
        self._blocked = False  # no polling until the queued events, or the error, were handled
        self._begun = self._closed = False
        self._failure: BaseException | None = None  # that ended the thread
        self._partitions, self._status = source.partitions(), source.status()
        self._thread = threads.thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def topic_id(self) -> str:
        return str(self._done(self._source.topic_id))

    def partitions(self) -> frozenset[int]:
        return self._partitions

    def status(self) -> SourceStatus:
        return self._status

    def poll(self, timeout_s: float) -> Sequence[Event]:
        with self._changed:
            if self._closed:
                raise ValueError("the source is closed")
            self._begun = True
            if not self._queue and not self._error:
                self._blocked = False
            self._changed.notify()
            self._changed.wait_for(lambda: self._queue or self._error or self._failure, timeout_s)
            if events := self._queue.take():
                return events
            error, self._error = self._error or self._failure, None
        if error is not None:
            raise error
        return []

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        self._done(partial(self._seek, positions, last))

    def pause(self, partitions: frozenset[int]) -> None:
        self._done(partial(self._pause, partitions))

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        self._do(partial(self._commit, positions, metadata))

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        return dict(self._done(partial(self._source.committed, partitions)))

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        return dict(self._done(partial(self._source.offsets_at, partitions, time_ms)))

    def close(self) -> None:
        if self._closed:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)
        if self._failure is not None:  # the thread has died before it could close the source
            with contextlib.suppress(Exception):
                self._source.close()

    def _done(self, call: Callable[[], Any]) -> Any:
        """Wait until the thread has executed the call; returns its result."""
        return watchdog.result_of(self._do(call))

    def _do(self, call: Callable[[], Any]) -> Future[Any]:
        """Make the thread execute the call; wake it up if it waits."""
        done = self._threads.future()
        with self._changed:
            if self._closed:
                raise ValueError("the source is closed")
            if self._failure is not None:
                raise self._failure
            self._calls.append((call, done))
            self._changed.notify_all()
        return done

    # All methods below run in the thread.

    def _run(self) -> None:
        try:
            while not self._closed or self._calls:
                watchdog.tick()
                self._step()
            self._source.close()
        except BaseException as error:  # the worker handles it
            self._fail(error)

    def _step(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._closed or self._may_poll(), _POLL_S)
            requested = self._calls.popleft() if self._calls else None
            polls = self._may_poll()
        if requested is not None:
            call, done = requested
            try:
                done.set_result(call())
            except BaseException as error:  # the caller handles it
                done.set_exception(error)
        elif polls:
            self._poll()
        self._partitions, self._status = self._source.partitions(), self._source.status()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            calls, self._calls = self._calls, deque()
            self._changed.notify_all()
        for _, done in calls:
            done.set_exception(error)

    def _may_poll(self) -> bool:
        has_room = self._queue.records < self._max_records and self._queue.size < self._max_bytes
        return self._begun and not self._blocked and not self._closed and has_room

    def _poll(self) -> None:
        try:
            if not self._undecoded:
                self._undecoded.extend(self._source.poll(_POLL_S))
            if not self._undecoded:
                with self._changed:
                    self._changed.wait_for(lambda: self._calls, _IDLE_S)
            is_whole = True
            while self._undecoded and is_whole:
                event, is_whole = self._decode_next()
                self._put(event)
        except BaseException as error:  # the worker handles it
            self._put_error(error)

    def _decode_next(self) -> tuple[Event, bool]:
        """The next event, decoded, and whether it is whole; if not, its rest is the next one."""
        event = self._undecoded.popleft()
        if not isinstance(event, Records):
            return event, True
        decoded = self._decode(event)
        if not isinstance(decoded, Vectors) or decoded.next == event.next:
            return decoded, True
        self._undecoded.appendleft(replace(event, records=event.records[len(decoded.records) :]))
        return decoded, False

    def _put(self, event: Event) -> None:
        with self._changed:
            if isinstance(event, Revoked | Lost):
                self._queue.drop(event.partitions)
            self._blocked = self._blocked or partition_of(event) is None
            self._queue.put(event)
            self._changed.notify_all()

    def _put_error(self, error: BaseException) -> None:
        with self._changed:
            self._error, self._blocked = error, True
            self._changed.notify_all()

    def _seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord]) -> None:
        ours = {p: position for p, position in positions.items() if p not in self._queue.released()}
        self._source.seek(ours, {p: record for p, record in last.items() if p in ours})
        self._drop(frozenset(ours))

    def _pause(self, partitions: frozenset[int]) -> None:
        self._source.pause(partitions - self._queue.released())
        self._drop(partitions)

    def _drop(self, partitions: frozenset[int]) -> None:
        with self._changed:
            self._queue.drop(partitions)
            self._undecoded = deque(event for event in self._undecoded if partition_of(event) not in partitions)

    def _commit(self, positions: Mapping[int, int], metadata: str) -> None:
        try:
            self._source.commit(positions, metadata)
        except Exception as error:  # no caller waits for it
            self._put_error(error)
