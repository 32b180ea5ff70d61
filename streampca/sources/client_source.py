"""What the sources of both Kafka clients share: the order of events, positions, and commits."""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from streampca.formats.record import NO_RECORDS, LastRecord, Record
from streampca.settings.commands import ConsumerSettings
from streampca.sources.base import MAX_POLL_INTERVAL_S, Committed, Source
from streampca.sources.broker_errors import one_line
from streampca.sources.client_connection import ClientConnection
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked, SourceStatus
from streampca.sources.read_positions import EARLIEST, Reached, ReadPositions
from streampca.sources.standstill import StandstillSearch

FETCH_BYTES = 4 * 2**20  # of one partition at once: many messages of any usual size
# Of all partitions of a broker at once. With kafka-python's default, 50 MiB, 30 partitions of large records took 300 to
# 700 MiB more: an answer is held several times, as bytes, as records, and in the queue.
FETCH_BYTES_OF_ALL = 4 * FETCH_BYTES

log = structlog.get_logger()


class ClientSource(Source, ABC):
    """See `streampca.sources.base.Source`.

    Without a group, all partitions are assigned to the source from the start.
    """

    client_error: type[Exception]  # what the client raises
    _connection: ClientConnection

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.membership: Any = None  # the group's metadata, for transactions; None while no partition is assigned
        self._closed = False
        self._rebalances: list[Assigned | Revoked | Lost] = []  # events that `poll` has not returned yet
        self._assigned: frozenset[int] = frozenset()  # as of the last event that `poll` has returned
        self._positions = ReadPositions()
        # Finds partitions whose reading stands still before their end because a transaction is open.
        self._standstills = StandstillSearch(self._find_committed_ends)

    @abstractmethod
    def _fetch(self, timeout_s: float) -> Mapping[int, Sequence[Record]]:
        """Return new records by partition; none if a rebalance has begun. Raises `SourceError`.

        The events of a rebalance are added to `_rebalances`.
        """

    @abstractmethod
    def _fetched_to(self, partition: int) -> Reached:
        """Return how far the client has fetched a partition; both offsets are negative if it does not know them."""

    @abstractmethod
    def _pause_until_seek(self, partitions: Collection[int]) -> None:
        """Let the client fetch nothing of newly assigned partitions until the caller seeks."""

    @abstractmethod
    def _take_group_metadata(self) -> Any:
        """Return the group's metadata at the assignment whose event `poll` returns now; None without a group."""

    @abstractmethod
    def _start_fetching(self, partitions: Collection[int]) -> None:
        """Let the client fetch these partitions, each from its `ReadPositions.offset_to_fetch_from`."""

    @abstractmethod
    def _stop_fetching(self, partitions: Collection[int]) -> None:
        """Let the client fetch these partitions no longer."""

    @abstractmethod
    def _find_offset_range(self, partition: int) -> tuple[int, int] | None:
        """Ask brokers for the earliest offset and the end of a partition; None if no broker answers."""

    @abstractmethod
    def _find_committed_ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Ask brokers where the committed records of partitions end. Raises `TimeoutError`."""

    @abstractmethod
    def _find_first_at(self, partitions: Collection[int], time_ms: int) -> dict[int, int]:
        """Ask brokers for the first offset of each partition at this time or later, if it has one.

        Raises `TimeoutError`.
        """

    @abstractmethod
    def _commit(self, offsets: Mapping[int, Committed]) -> None:
        """Commit the offsets; raises `client_error`."""

    @abstractmethod
    def _is_member(self) -> bool:
        """Return whether this consumer is a member of the group, and no rebalance is in progress; never waits."""

    @abstractmethod
    def _leave(self) -> None:
        """Leave the group, and close the client."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Return the next event of a rebalance; without a rebalance, all new records and `OutOfRange` events."""
        fetched: Mapping[int, Sequence[Record]] = {}
        if not self._rebalances:
            fetched = self._fetch(timeout_s)  # empty if a rebalance begins meanwhile: `_rebalances` has its events
        self._connection.log_outages()
        if self._rebalances:
            return [self._take_rebalance_event()]
        records_events = self._make_records_events(fetched)
        if not records_events:
            # Perhaps an open transaction blocks a partition: note since when each position has stood still.
            is_connected = self._connection.connected
            self._standstills.update(self._positions.by_partition, time.time(), is_connected=is_connected)
        return [*self._check_out_of_range(), *records_events]

    def status(self) -> SourceStatus:
        return SourceStatus(
            connected=self._connection.connected,
            member=self._is_member(),
            cause=self._connection.last_failure,
            blocked_since=self._standstills.blocked_since,
        )

    def topic_id(self) -> str:
        return self._connection.describe().id

    def partitions(self) -> frozenset[int]:
        return self._connection.partitions() | self._assigned

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        """Read these partitions from these positions; None stands for the earliest record.

        `last` holds the known last records before the positions, by which a truncated log is noticed.
        """
        unassigned = positions.keys() - self._assigned
        if unassigned:
            raise ValueError(f"partition {min(unassigned)} is not assigned")
        for partition, position in positions.items():
            self._positions.start(partition, position, last.get(partition))
        self._start_fetching(positions)

    def pause(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._positions.stop(partition)
        self._stop_fetching(partitions)

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        """Ask for the offset of each partition's first record at or after this time, or its end."""
        ends = self._find_committed_ends(partitions)
        return ends if time_ms is None else ends | self._find_first_at(partitions, time_ms)

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        """Commit offsets to the group. A failure is only logged."""
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

    def _add_rebalance(self, event_type: type[Assigned | Revoked | Lost], partitions: Collection[Any]) -> None:
        """Let a later poll return an event of these partitions."""
        if partitions:
            self._rebalances.append(event_type(frozenset(tp.partition for tp in partitions)))

    def _make_records_events(self, fetched: Mapping[int, Sequence[Record]]) -> list[Records]:
        """Return an event for each partition that has new records, or whose next offset or end has moved."""
        records_events = []
        for partition in list(self._positions.by_partition):  # `take_records` may remove a partition
            fetched_records = fetched.get(partition, ())
            reached = self._fetched_to(partition)
            event = self._positions.take_records(partition, fetched_records, reached)
            if event is not None:
                records_events.append(event)
        return records_events

    def _take_rebalance_event(self) -> Event:
        """Return the next event of a rebalance. Afterwards, no partition is read until the caller seeks."""
        event = self._rebalances.pop(0)
        self._connection.last_failure = ""  # it was noted before this rebalance
        self._positions = ReadPositions()  # empty: no records are returned until the caller seeks
        if isinstance(event, Assigned):
            self._assigned = event.partitions  # all partitions of this member, which has given up its earlier ones
            self._pause_until_seek(event.partitions)
            self.membership = self._take_group_metadata()
        else:
            self._assigned = frozenset()
            self.membership = None
        return event

    def _check_out_of_range(self) -> list[Event]:
        """Handle each position that a broker did not find: seek again if that may help, else return an `OutOfRange`."""
        events: list[Event] = []
        for partition, position in list(self._positions.out_of_range.items()):
            offset_range = self._find_offset_range(partition)
            if offset_range is None:
                continue  # no broker answers; a later poll asks again
            earliest, end = offset_range
            if position == EARLIEST:
                # The earliest record was deleted before the client fetched it: seek to the record that is earliest now.
                self.seek({partition: None})
                continue
            # The last record that was read. None if it is unknown, or if the log was already found to be truncated.
            last_record = self._positions.records_to_compare.get(partition)
            log_holds_position = earliest <= position <= end
            if log_holds_position and last_record is not None:
                # Either a broker has lagged behind for a moment, or the log was truncated and has grown again. After
                # the seek, the last record is compared with the log, which tells the two cases apart.
                self._seek_again(partition, position, last_record, earliest)
                continue
            diverged_offset: int | None = None  # the log begins after the position, or ends before it
            if log_holds_position:
                # There is no last record to compare (see above). So the log counts as truncated and grown again, with
                # another record at the offset before the position.
                diverged_offset = position - 1
            self._positions.stop(partition)
            events.append(OutOfRange(partition, position, earliest=earliest, latest=end, diverged=diverged_offset))
        return events

    def _seek_again(self, partition: int, position: int, last: LastRecord, earliest: int) -> None:
        """Seek to a position. If the log still holds the last record before it, fetch this record, to compare it."""
        is_last_in_log = last.offset >= earliest
        self.seek({partition: position}, last={partition: last} if is_last_in_log else NO_RECORDS)


class MemberIntervals(NamedTuple):
    """The intervals by which a group recognises that a member is gone, milliseconds."""

    longest_poll_ms: int  # between two polls
    session_ms: int  # without a heartbeat
    heartbeat_ms: int


def choose_intervals(settings: ConsumerSettings) -> MemberIntervals:
    """Return the intervals of a member with the session timeout in the settings."""
    session_s = settings.session_timeout_s
    return MemberIntervals(
        longest_poll_ms=int(max(MAX_POLL_INTERVAL_S, session_s) * 1000),
        session_ms=int(session_s * 1000),
        heartbeat_ms=int(min(3.0, session_s / 10) * 1000),
    )


def log_failed_commit(error: object) -> None:
    """Log that a commit has failed."""
    log.warning("offsets not committed; lag tools will show older ones", error=one_line(error))
