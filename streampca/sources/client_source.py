"""The source of either client: the positions that it reads from, gaps in the log, and commits."""

import bisect
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog

from streampca.formats.record import NO_RECORDS, LastRecord, Record
from streampca.settings.commands import ConsumerSettings
from streampca.sources.base import MAX_POLL_INTERVAL_S, Committed, Source
from streampca.sources.client_connection import ClientConnection, one_line
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked

EARLIEST = -2  # a position that is not known yet; librdkafka's number for it
_STANDS_S = 20.0  # so long a partition stands still before it is asked why
FETCH_BYTES = 4 * 2**20  # of one partition at once: many messages of any usual size
# Of all partitions of a broker at once. With kafka-python's default, 50 MiB, 30 partitions of large records took 300 to
# 700 MiB more: an answer is held several times, as bytes, as records, and in the queue.
FETCH_BYTES_OF_ALL = 4 * FETCH_BYTES

log = structlog.get_logger()


class ClientSource(Source, ABC):
    """See `streampca.sources.base.Source`.

    Where the last record before a position is known, reading starts with it: a log that was cut and has grown again
    holds another one there. A record that compaction has removed cannot be compared.

    Without a group, all partitions are its own from the start.
    """

    client_error: type[Exception]  # what the client raises
    _connection: ClientConnection

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.membership: Any = None  # the group's metadata of the last assignment returned; None without one
        self._rebalances: list[Assigned | Revoked | Lost] = []  # events not returned yet
        self._assigned: frozenset[int] = frozenset()  # by the events returned so far
        self._reported: dict[int, tuple[int, int]] = {}  # partitions being read: (next, end) as last returned
        self._last: dict[int, LastRecord] = {}  # not compared yet
        self._out_of_range: dict[int, int] = {}  # partition → position, not returned yet
        self._behind: dict[int, tuple[int, float]] = {}  # partition → where it stands behind its end, and since when
        self._look_at = 0.0  # for open transactions
        self._blocked_since: float | None = None  # by one of them
        self._closed = False

    @abstractmethod
    def _fetch(self, timeout_s: float) -> Mapping[int, Sequence[Record]]:
        """New records by partition; empty if a rebalance has begun. Raises `SourceError`."""

    @abstractmethod
    def _reached(self, partition: int) -> tuple[int, int]:
        """The offset that the client has reached, and the partition's end; negative if unknown."""

    @abstractmethod
    def _joined(self, partitions: Collection[int]) -> Any:
        """Fetch nothing of new partitions before `seek`; returns the group's metadata."""

    @abstractmethod
    def _read(self, partitions: Collection[int]) -> None:
        """Let the client fetch these partitions, each from its `_start`."""

    @abstractmethod
    def _stop_reading(self, partitions: Collection[int]) -> None:
        """Let the client fetch these partitions no more."""

    @abstractmethod
    def _log_offsets(self, partition: int) -> tuple[int, int] | None:
        """The earliest offset and the end of a partition; None if no broker answers."""

    @abstractmethod
    def _commit(self, offsets: Mapping[int, Committed]) -> None:
        """Commit the offsets; raises `client_error`."""

    @abstractmethod
    def _leave(self) -> None:
        """Leave the group, and close the client."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        fetched = {} if self._rebalances else self._fetch(timeout_s)
        self._connection.watch()
        if self._rebalances:
            return [self._take_rebalance_event()]
        events: list[Event] = []
        for partition in list(self._reported):
            events += self._records(partition, fetched.get(partition, ()), *self._reached(partition))
        if not events:
            self._look_for_open_transactions(time.time())
        return [*self._out_of_range_events(), *events]

    def _look_for_open_transactions(self, now: float) -> None:
        """Ask now and then whether partitions that stand still end there for readers of committed records."""
        stands = {p: next_ for p, (next_, end) in self._reported.items() if 0 <= next_ < end}
        before = self._behind
        self._behind = {p: before[p] if before.get(p, (-1, 0))[0] == at else (at, now) for p, at in stands.items()}
        still = {p: since for p, (_, since) in self._behind.items() if now - since >= _STANDS_S}
        if not still:
            self._blocked_since = None
        elif self._connection.connected and now >= self._look_at:
            self._look_at = now + _STANDS_S
            with contextlib.suppress(TimeoutError):
                ends = self.offsets_at(still, None)
                self._blocked_since = min((since for p, since in still.items() if ends[p] <= stands[p]), default=None)

    def topic_id(self) -> str:
        return self._connection.topic_id()

    def partitions(self) -> frozenset[int]:
        return self._connection.partitions() | self._assigned

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        if unknown := positions.keys() - self._assigned:
            raise ValueError(f"partition {min(unknown)} is not assigned")
        for partition, position in positions.items():
            self._forget(partition)
            self._reported[partition] = (EARLIEST if position is None else position, -1)
        self._last |= last
        self._read(positions)

    def pause(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._forget(partition)
        self._stop_reading(partitions)

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        if not self._connection.connected or not positions:
            return
        try:
            self._commit({partition: Committed(position, metadata) for partition, position in positions.items()})
        except self.client_error as error:
            log_failed_commit(error)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._leave()

    def _add_rebalance(self, kind: type[Assigned | Revoked | Lost], partitions: Collection[Any]) -> None:
        """Let a later poll return an event of these partitions, which are the client's own objects."""
        if partitions:
            self._rebalances.append(kind(frozenset(tp.partition for tp in partitions)))

    def _forget(self, partition: int) -> None:
        for notes in (self._reported, self._last, self._out_of_range):
            notes.pop(partition, None)

    def _take_rebalance_event(self) -> Event:
        event = self._rebalances.pop(0)
        is_assignment = isinstance(event, Assigned)
        self._assigned = event.partitions if is_assignment else frozenset()
        self._connection.last_failure = ""
        self._reported, self._last, self._out_of_range = {}, {}, {}
        self.membership = self._joined(event.partitions) if is_assignment else None
        return event

    def _start(self, partition: int) -> int:
        """The offset that the client reads a partition from."""
        return self._last[partition].offset if partition in self._last else self._reported[partition][0]

    def _note_out_of_range(self, partitions: Iterable[int]) -> None:
        """Expect nothing of partitions whose positions the log does not have."""
        for partition in partitions:
            if partition in self._reported:  # else it is known already
                self._out_of_range[partition], _ = self._reported.pop(partition)

    def _records(self, partition: int, records: Sequence[Record], reached: int, end: int) -> Iterable[Event]:
        """The event of a partition with new records, or with a position or end that moved without any."""
        before, last = self._reported[partition], self._last.get(partition)
        position = before[0]
        if last is not None:
            is_other = records and records[0].offset == last.offset and records[0].leader_epoch != last.leader_epoch
            is_short = 0 <= end <= reached < position
            if is_other or is_short:
                self._note_out_of_range([partition])
                if is_other:
                    del self._last[partition]
                return
            if not records and reached <= last.offset:
                return
            del self._last[partition]
            records = records[bisect.bisect_left(records, position, key=lambda record: record.offset) :]
        next_ = max(position, reached, records[-1].offset + 1 if records else -1)
        end = before[1] if end < 0 else end  # librdkafka forgets it when a fetch fails, but still returns records
        now = (next_, max(end, next_))
        if now != before and next_ >= 0 and (records or end >= 0):
            self._reported[partition] = now
            yield Records(partition, records, *now)

    def _out_of_range_events(self) -> list[Event]:
        events: list[Event] = []
        for partition, position in list(self._out_of_range.items()):
            if (offsets := self._log_offsets(partition)) is None:  # a later poll asks again
                continue
            first, end = offsets
            last = self._last.pop(partition, None)
            if position == EARLIEST:
                self.seek({partition: None})
            elif last and first <= position <= end:  # retention has removed it, or a new leader has caught up
                self.seek({partition: position}, {partition: last} if last.offset >= first else NO_RECORDS)
            else:
                del self._out_of_range[partition]
                diverged = position - 1 if first <= position <= end else None  # the last record, at least
                events.append(OutOfRange(partition, position, first, end, diverged))
        return events


def member_intervals_ms(settings: ConsumerSettings) -> tuple[int, int, int]:
    """The longest time between polls, the timeout of a session, and the interval of heartbeats."""
    session_s = settings.session_timeout_s
    return int(max(MAX_POLL_INTERVAL_S, session_s) * 1000), int(session_s * 1000), int(min(3.0, session_s / 10) * 1000)


def log_failed_commit(error: object) -> None:
    """Log that the offsets of a commit do not show how far the checkpoints are."""
    log.warning("offsets not committed; lag tools will show older ones", error=one_line(error))
