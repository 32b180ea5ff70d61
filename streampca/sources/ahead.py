"""Reads ahead: any source, in a thread of its own, while the worker learns what was read before.

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
from streampca.stream.record import Assigned, Event, Lost, OutOfRange, Records, Revoked, Standing, values_of

_POLL_S = 0.1  # a call waits so long at most while nothing comes
_IDLE_S = 0.005  # after a poll that brought nothing: not all sources wait
_CLOSE_S = 3.0


@dataclass
class _Read:
    """What one poll brought."""

    events: list[Event]
    error: BaseException | None = None
    records: int = field(init=False)
    size: int = field(init=False)  # bytes of values

    def __post_init__(self) -> None:
        batches = [event.records for event in self.events if isinstance(event, Records)]
        self.records = sum(map(len, batches))
        self.size = sum(len(value) for batch in batches for value in values_of(batch) if value is not None)

    @property
    def must_be_handled_first(self) -> bool:
        return self.error is not None or any(isinstance(e, Assigned | Revoked | Lost) for e in self.events)

    def taken_away(self) -> frozenset[int]:
        """Partitions that are ours no more once this is handled."""
        return frozenset().union(*(e.partitions for e in self.events if isinstance(e, Revoked | Lost)))

    def without(self, partitions: frozenset[int]) -> "_Read":
        """The rest, without what was read of these partitions."""
        return _Read(
            [e for e in self.events if not (isinstance(e, Records | OutOfRange) and e.partition in partitions)]
        )


class Ahead:
    """See `streampca.sources.base.Source`."""

    def __init__(self, source: Source, most_records: int, most_bytes: int) -> None:
        self._source, self._most_records, self._most_bytes = source, most_records, most_bytes
        self._changed = threading.Condition()
        self._queue: deque[_Read] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._first: _Read | None = None  # polls no further before this is handled
        self._handed: _Read | None = None
        self._closed = self._ended = False
        self._partitions, self._standing = source.partitions(), source.standing()
        self._thread = threading.Thread(target=self._run, name="reading", daemon=True)
        self._thread.start()

    def topic_id(self) -> str:
        return str(self._do(self._source.topic_id).result())

    def partitions(self) -> frozenset[int]:
        return self._partitions

    def standing(self) -> Standing:
        return self._standing

    def poll(self, timeout_s: float) -> Sequence[Event]:
        with self._changed:
            if self._closed:
                raise ValueError("the source is closed")
            if self._handed is self._first:
                self._first = None
            self._changed.notify()
            self._changed.wait_for(lambda: self._queue, timeout_s)
            self._handed = read = self._queue.popleft() if self._queue else _Read([])
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
                self._partitions, self._standing = self._source.partitions(), self._source.standing()

    def _may_read(self) -> bool:
        return (
            self._first is None
            and sum(read.records for read in self._queue) < self._most_records
            and sum(read.size for read in self._queue) < self._most_bytes
        )

    def _read(self) -> None:
        try:
            read = _Read(list(self._source.poll(_POLL_S)))
        except BaseException as error:  # the worker's to handle, whatever it is
            read = _Read([], error)
        if read.events or read.error:
            self._put(read)
        else:
            with self._changed:
                self._changed.wait_for(lambda: self._calls, _IDLE_S)

    def _put(self, read: _Read) -> None:
        with self._changed:
            self._throw_away(read.taken_away())
            if read.must_be_handled_first:
                self._first = read
            self._queue.append(read)
            self._changed.notify_all()

    def _seek(self, positions: Mapping[int, int | None]) -> None:
        ours = {p: position for p, position in positions.items() if p not in self._going()}
        self._source.seek(ours)
        with self._changed:
            self._throw_away(frozenset(ours))

    def _pause(self, partitions: frozenset[int]) -> None:
        self._source.pause(partitions - self._going())
        with self._changed:
            self._throw_away(partitions)

    def _commit(self, positions: Mapping[int, int]) -> None:
        try:
            self._source.commit(positions)
        except Exception as error:  # nobody waits for it
            self._put(_Read([], error))

    def _going(self) -> frozenset[int]:
        """Partitions that the source has given up already, which the worker has not been told yet."""
        return self._first.taken_away() if self._first is not None and self._first is not self._handed else frozenset()

    def _throw_away(self, partitions: frozenset[int]) -> None:
        """Of what waits, what was read of these."""
        if partitions:
            kept = (read if read.must_be_handled_first else read.without(partitions) for read in self._queue)
            self._queue = deque(read for read in kept if read.events or read.error)

    def _end(self) -> None:
        self._ended = True
        self._source.close()


def _carry_out(call: Callable[[], Any], done: Future[Any]) -> None:
    try:
        done.set_result(call())
    except BaseException as error:  # the caller's to handle
        done.set_exception(error)
