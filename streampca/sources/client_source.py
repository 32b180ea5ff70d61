"""A source, as far as it is the same for both clients.

It keeps the positions that it reads from, finds out what is wrong with a position that the log does not have, looks for
open transactions, and commits.
"""

import bisect
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from streampca.formats.record import NO_RECORDS, LastRecord, Record
from streampca.settings.commands import ConsumerSettings
from streampca.sources.base import MAX_POLL_INTERVAL_S, Committed, Source
from streampca.sources.client_connection import ClientConnection, one_line
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked

EARLIEST = -2  # position of the earliest record, whose offset is not known yet; librdkafka's number for it
UNKNOWN = -1  # an offset that the client does not know
_STANDSTILL_S = 20.0  # a partition whose position did not change for this long is searched for open transactions
FETCH_BYTES = 4 * 2**20  # of one partition at once: many messages of any usual size
# Of all partitions of a broker at once. With kafka-python's default, 50 MiB, 30 partitions of large records took 300 to
# 700 MiB more: an answer is held several times, as bytes, as records, and in the queue.
FETCH_BYTES_OF_ALL = 4 * FETCH_BYTES

log = structlog.get_logger()


class _Progress(NamedTuple):
    """How far a partition was returned: the next offset, and the end of the partition."""

    next: int  # may be EARLIEST
    end: int  # may be UNKNOWN


class _Standstill(NamedTuple):
    """A position before the end of its partition, and since when it has not changed."""

    position: int
    since: float  # seconds since 1970


class ClientSource(Source, ABC):
    """See `streampca.sources.base.Source`.

    If the last record before a position is known, the client begins to fetch with this record. If a log was cut and has
    grown again, it holds another record at this offset. If compaction has removed the record, it cannot be compared.

    Without a group, all partitions are assigned to the source from the start.
    """

    client_error: type[Exception]  # what the client raises
    _connection: ClientConnection

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.membership: Any = None  # the group's metadata, for transactions; None while no partition is assigned
        self._closed = False

        # What the group has decided:
        self._rebalances: list[Assigned | Revoked | Lost] = []  # events that `poll` has not returned yet
        self._assigned: frozenset[int] = frozenset()  # partitions that are ours, by the events that it has returned

        # What is read, by partition:
        self._progress: dict[int, _Progress] = {}  # of each partition that is being read
        self._last_records: dict[int, LastRecord] = {}  # the last one before its position, until the log has shown it
        self._out_of_range: dict[int, int] = {}  # a position that the log does not have, until `OutOfRange` is returned

        # The search for open transactions, with times in seconds since 1970:
        self._standing: dict[int, _Standstill] = {}  # of each partition that was not read to its end
        self._look_for_transactions_at = 0.0
        self._blocked_since: float | None = None  # since when an open transaction has blocked a partition

    @abstractmethod
    def _fetch(self, timeout_s: float) -> Mapping[int, Sequence[Record]]:
        """Return new records by partition; none if a rebalance has begun. Raises `SourceError`."""

    @abstractmethod
    def _fetched_up_to(self, partition: int) -> tuple[int, int]:
        """Return the next offset that the client will fetch, and the partition's end; negative if unknown."""

    @abstractmethod
    def _prepare_assigned(self, partitions: Collection[int]) -> Any:
        """Let the client fetch nothing of new partitions before `seek`, and return the group's metadata."""

    @abstractmethod
    def _start_fetching(self, partitions: Collection[int]) -> None:
        """Let the client fetch these partitions, each from its `_fetch_offset`."""

    @abstractmethod
    def _stop_fetching(self, partitions: Collection[int]) -> None:
        """Let the client not fetch these partitions any more."""

    @abstractmethod
    def _log_offsets(self, partition: int) -> tuple[int, int] | None:
        """Ask for the earliest offset and the end of a partition; None if no broker answers."""

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
        for partition in list(self._progress):
            reached, end = self._fetched_up_to(partition)
            records = self._take_records(partition, fetched.get(partition, ()), reached=reached, end=end)
            if records is not None:
                events.append(records)
        if not events:
            self._look_for_open_transactions(time.time())
        return [*self._out_of_range_events(), *events]

    def _look_for_open_transactions(self, now: float) -> None:
        """If positions do not change, find out whether an open transaction is the reason.

        Readers see nothing behind the first record of an open transaction: for them, the partition ends there, before
        its high watermark.
        """
        standing = {}
        for partition, (position, end) in self._progress.items():
            if 0 <= position < end:
                standstill = self._standing.get(partition)
                if standstill is None or standstill.position != position:
                    standstill = _Standstill(position, since=now)
                standing[partition] = standstill
        self._standing = standing
        long_standing = {p: standstill for p, standstill in standing.items() if now - standstill.since >= _STANDSTILL_S}
        if not long_standing:
            self._blocked_since = None
        elif self._connection.connected and now >= self._look_for_transactions_at:
            self._look_for_transactions_at = now + _STANDSTILL_S
            with contextlib.suppress(TimeoutError):
                ends = self.offsets_at(long_standing, None)  # where committed records end
                blocked = [stand for partition, stand in long_standing.items() if ends[partition] <= stand.position]
                self._blocked_since = min((stand.since for stand in blocked), default=None)

    def topic_id(self) -> str:
        return self._connection.topic_id()

    def partitions(self) -> frozenset[int]:
        return self._connection.partitions() | self._assigned

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        unknown = positions.keys() - self._assigned
        if unknown:
            raise ValueError(f"partition {min(unknown)} is not assigned")
        for partition, position in positions.items():
            self._forget(partition)
            self._progress[partition] = _Progress(next=EARLIEST if position is None else position, end=UNKNOWN)
        self._last_records |= last
        self._start_fetching(positions)

    def pause(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._forget(partition)
        self._stop_fetching(partitions)

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
        """Stop expecting records of a partition."""
        self._progress.pop(partition, None)
        self._last_records.pop(partition, None)
        self._out_of_range.pop(partition, None)

    def _take_rebalance_event(self) -> Event:
        event = self._rebalances.pop(0)
        self._connection.last_failure = ""  # a failure before this event does not explain a later outage
        self._progress = {}
        self._last_records = {}
        self._out_of_range = {}
        if isinstance(event, Assigned):
            self._assigned = event.partitions
            self.membership = self._prepare_assigned(event.partitions)
        else:
            self._assigned = frozenset()
            self.membership = None
        return event

    def _fetch_offset(self, partition: int) -> int:
        """Return the offset from which the client fetches a partition: that of the last record before it, if known."""
        last = self._last_records.get(partition)
        return self._progress[partition].next if last is None else last.offset

    def _note_out_of_range(self, partitions: Iterable[int]) -> None:
        """Note that the log does not have the positions of these partitions, and stop expecting records of them."""
        for partition in partitions:
            if partition in self._progress:  # a client may report a partition again
                self._out_of_range[partition] = self._progress.pop(partition).next

    def _take_records(self, partition: int, records: Sequence[Record], reached: int, end: int) -> Records | None:
        """Return the event of a partition with new records, or whose next offset or end has moved; else None.

        `reached` is the next offset that the client will fetch, and `end` the partition's end; negative if unknown.
        """
        before = self._progress[partition]
        if partition in self._last_records:
            if not self._holds_last_record(partition, records, reached=reached, end=end):
                return None
            new_from = bisect.bisect_left(records, before.next, key=lambda record: record.offset)
            records = records[new_from:]
        after_records = records[-1].offset + 1 if records else UNKNOWN
        next_ = max(before.next, reached, after_records)
        if end < 0:
            end = before.end  # librdkafka forgets it when a fetch fails, but still returns records
        is_known = next_ >= 0 and (bool(records) or end >= 0)  # not before the first answer to a fetch
        progress = _Progress(next=next_, end=max(end, next_))
        if progress == before or not is_known:
            return None
        self._progress[partition] = progress
        return Records(partition=partition, records=records, next=progress.next, end=progress.end)

    def _holds_last_record(self, partition: int, records: Sequence[Record], reached: int, end: int) -> bool:
        """Return whether the log holds the last record before a partition's position, as far as it can be compared.

        If the record was not fetched yet, the answer is no, and the next poll asks again. If the log holds another
        record in its place, or ends before the position, the position is out of range.
        """
        last = self._last_records[partition]
        is_fetched = bool(records) and records[0].offset == last.offset
        if is_fetched and records[0].leader_epoch != last.leader_epoch:  # another record
            self._note_out_of_range([partition])
            del self._last_records[partition]
            return False
        if 0 <= end <= reached < self._progress[partition].next:  # the log ends before the position
            self._note_out_of_range([partition])
            return False
        if not records and reached <= last.offset:  # not fetched yet
            return False
        del self._last_records[partition]
        return True

    def _out_of_range_events(self) -> list[Event]:
        """Ask which offsets the log has, and return `OutOfRange` for positions that it does not have.

        A position that was out of range only for a moment is read again.
        """
        events: list[Event] = []
        for partition, position in list(self._out_of_range.items()):
            offsets = self._log_offsets(partition)
            if offsets is None:
                continue  # a later poll asks again
            earliest, end = offsets
            is_in_log = earliest <= position <= end
            last = self._last_records.pop(partition, None)  # None if it is unknown, or the log holds another record
            if position == EARLIEST:  # the record was deleted after the client had asked which one is the earliest
                self.seek({partition: None})
            elif last and is_in_log:  # retention has removed the last record, or a new leader has caught up
                can_be_compared = last.offset >= earliest
                self.seek({partition: position}, {partition: last} if can_be_compared else NO_RECORDS)
            else:
                del self._out_of_range[partition]
                diverged = position - 1 if is_in_log else None  # the log holds another record before the position
                events.append(
                    OutOfRange(partition=partition, position=position, earliest=earliest, latest=end, diverged=diverged)
                )
        return events


class MemberIntervals(NamedTuple):
    """The intervals by which a group recognises that a member is gone, milliseconds."""

    longest_poll_ms: int  # between two polls
    session_ms: int  # without a heartbeat
    heartbeat_ms: int


def member_intervals(settings: ConsumerSettings) -> MemberIntervals:
    """Return the intervals for the session timeout in the settings."""
    session_s = settings.session_timeout_s
    return MemberIntervals(
        longest_poll_ms=int(max(MAX_POLL_INTERVAL_S, session_s) * 1000),
        session_ms=int(session_s * 1000),
        heartbeat_ms=int(min(3.0, session_s / 10) * 1000),
    )


def log_failed_commit(error: object) -> None:
    """Log that lag tools will show older offsets than those that are saved, because a commit has failed."""
    log.warning("offsets not committed; lag tools will show older ones", error=one_line(error))
