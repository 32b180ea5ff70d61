"""Reads and decodes ahead: any source, in a thread of its own, while the worker learns what was read before.

The source is touched by that thread alone; calls are carried out by it, in their order, between two polls. What it
hands over waits in a queue that is bounded in records and bytes (one poll more can come on top). The promises of
`sources.base` hold as they do without it:
- after an event of a rebalance, or an error, the thread polls no further until it was taken and the next `poll` says
  that it was handled: what is revoked stays ours until then;
- what was read of partitions that are revoked, lost, paused or sought anew is thrown away where it waits.
A worker that hangs empties no queue, so the source is not polled, and the group gives it up as it should.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streampca.sources.base import Source
from streampca.stream.record import Assigned, Event, Lost, Records, Revoked, SourceStatus, Undecoded, Vectors

_POLL_S = 0.1  # a call waits so long at most while nothing comes
_IDLE_S = 0.005  # after a poll that brought nothing: not all sources wait
_CLOSE_S = 3.0


@dataclass
class _Read:
    """What one poll brought, decoded."""

    events: list[Event]
    error: BaseException | None = None
    records: int = field(init=False)
    size: int = field(init=False)  # bytes

    def __post_init__(self) -> None:
        self.records = sum(e.count for e in self.events if isinstance(e, Records | Vectors | Undecoded))
        self.size = sum(e.nbytes for e in self.events if isinstance(e, Records | Vectors))

    @property
    def must_be_handled_first(self) -> bool:
        return self.error is not None or any(isinstance(e, Assigned | Revoked | Lost) for e in self.events)

    def taken_away(self) -> frozenset[int]:
        """Partitions that are ours no more once this is handled."""
        return frozenset().union(*(e.partitions for e in self.events if isinstance(e, Revoked | Lost)))

    def without(self, partitions: frozenset[int]) -> "_Read":
        """The rest, without what was read of these partitions."""
        return _Read(
            [e for e in self.events if isinstance(e, Assigned | Revoked | Lost) or e.partition not in partitions]
        )


class _Queue:
    """What was read and waits, in order; how much that is."""

    def __init__(self) -> None:
        self._reads: deque[_Read] = deque()
        self.records = self.size = 0

    def __len__(self) -> int:
        return len(self._reads)

    def put(self, read: _Read) -> None:
        self._reads.append(read)
        self.records, self.size = self.records + read.records, self.size + read.size

    def take(self) -> _Read:
        read = self._reads.popleft()
        self.records, self.size = self.records - read.records, self.size - read.size
        return read

    def throw_away(self, partitions: frozenset[int]) -> None:
        """What was read of these."""
        reads, self._reads, self.records, self.size = self._reads, deque(), 0, 0
        for read in reads:
            kept = read if read.must_be_handled_first else read.without(partitions)
            if kept.events or kept.error:
                self.put(kept)


class Prefetch:
    """See `streampca.sources.base.Source`."""

    def __init__(
        self,
        source: Source,
        most_records: int,
        most_bytes: int,
        decode: Callable[[Records], Event] = lambda records: records,
    ) -> None:
        """`decode` is called in the thread that reads; what it raises is raised by the worker's poll."""
        self._source, self._most_records, self._most_bytes = source, most_records, most_bytes
        self._decode = decode
        self._changed = threading.Condition()
        self._queue = _Queue()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._first: _Read | None = None  # polls no further before this is handled
        self._handed: _Read | None = None
        self._closed = self._ended = False
        self._partitions, self._status = source.partitions(), source.status()
        self._thread = threading.Thread(target=self._run, name="reading", daemon=True)
        self._thread.start()

    def topic_id(self) -> str:
        return str(self._do(self._source.topic_id).result())

    def partitions(self) -> frozenset[int]:
        return self._partitions

    def status(self) -> SourceStatus:
        return self._status

    def poll(self, timeout_s: float) -> Sequence[Event]:
        with self._changed:
            if self._closed:
                raise ValueError("the source is closed")
            if self._handed is self._first:
                self._first = None
            self._changed.notify()
            self._changed.wait_for(lambda: self._queue, timeout_s)
            self._handed = read = self._queue.take() if self._queue else _Read([])
        if read.error is not None:
            raise read.error
        return read.events

    def seek(self, positions: Mapping[int, int | None]) -> None:
        self._do(partial(self._seek, positions)).result()

    def pause(self, partitions: frozenset[int]) -> None:
        self._do(partial(self._pause, partitions)).result()

    def commit(self, positions: Mapping[int, int]) -> None:
        self._do(partial(self._commit, positions))

    def close(self) -> None:
        if self._closed:
            return
        self._do(self._end)
        self._closed = True
        self._thread.join(_CLOSE_S)

    def _do(self, call: Callable[[], Any]) -> Future[Any]:
        """Let the thread do it, and wake it up if it waits."""
        done: Future[Any] = Future()
        with self._changed:
            if self._closed:
                raise ValueError("the source is closed")
            self._calls.append((call, done))
            self._changed.notify_all()
        return done

    # What follows runs in the thread.

    def _run(self) -> None:
        while not self._ended:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._may_read(), _POLL_S)
                call = self._calls.popleft() if self._calls else None
                reads = call is None and self._may_read()
            if call is not None:
                _carry_out(*call)
            elif reads:
                self._read()
            if not self._ended:
                self._partitions, self._status = self._source.partitions(), self._source.status()

    def _may_read(self) -> bool:
        return self._first is None and self._queue.records < self._most_records and self._queue.size < self._most_bytes

    def _read(self) -> None:
        events: list[Event] = []
        error: BaseException | None = None
        try:
            for event in self._source.poll(_POLL_S):
                events.append(self._decode(event) if isinstance(event, Records) else event)
        except BaseException as failure:  # the worker's to handle, whatever it is
            error = failure
        if events:
            self._put(_Read(events))
        if error:
            self._put(_Read([], error))
        if not events and not error:
            with self._changed:
                self._changed.wait_for(lambda: self._calls, _IDLE_S)

    def _put(self, read: _Read) -> None:
        with self._changed:
            self._queue.throw_away(read.taken_away())
            if read.must_be_handled_first:
                self._first = read
            self._queue.put(read)
            self._changed.notify_all()

    def _seek(self, positions: Mapping[int, int | None]) -> None:
        ours = {p: position for p, position in positions.items() if p not in self._going()}
        self._source.seek(ours)
        with self._changed:
            self._queue.throw_away(frozenset(ours))

    def _pause(self, partitions: frozenset[int]) -> None:
        self._source.pause(partitions - self._going())
        with self._changed:
            self._queue.throw_away(partitions)

    def _commit(self, positions: Mapping[int, int]) -> None:
        try:
            self._source.commit(positions)
        except Exception as error:  # nobody waits for it
            self._put(_Read([], error))

    def _going(self) -> frozenset[int]:
        """Partitions that the source has given up already, which the worker has not been told yet."""
        return self._first.taken_away() if self._first is not None and self._first is not self._handed else frozenset()

    def _end(self) -> None:
        self._ended = True
        self._source.close()


def _carry_out(call: Callable[[], Any], done: Future[Any]) -> None:
    try:
        done.set_result(call())
    except BaseException as error:  # the caller's to handle
        done.set_exception(error)
