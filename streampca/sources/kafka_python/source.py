"""A member of a Kafka consumer group, on kafka-python.

kafka-python calls a listener during a rebalance, from within its `poll`; here these calls become events. The listener
records the event and raises, on which the client suspends the rebalance and its `poll` raises. So our `poll` returns
the event, the worker handles it in its own thread and time, while heartbeats continue, and the next `poll` lets the
rebalance proceed. No thread waits for another, so none can hang.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError, RetriableError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from streampca.settings import ConsumerSettings
from streampca.sources import base
from streampca.sources.base import Committed
from streampca.sources.broker_errors import one_line
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.patches.fetching import drop_paused_records, position_of, seek_behind
from streampca.sources.kafka_python.patches.membership import (
    PatchedRangeAssignor,
    committed_offsets,
    is_member,
    raise_if_replaced,
    rejoin_group,
)
from streampca.sources.kafka_python.rebalance import RebalanceListener
from streampca.stream.events import Assigned, Event, OutOfRange, Records, SourceStatus
from streampca.stream.record import NO_RECORDS, LastRecord, Record

_COMMIT_TIMEOUT_MS = 1000
_CLOSE_TIMEOUT_MS = 2000
_OFFSETS_TIMEOUT_MS = 3000
_EARLIEST = -1  # a position that is not known yet
_FETCH_BYTES = 4 * 1024 * 1024  # of one partition at once: many messages of any usual size

log = structlog.get_logger()


class KafkaPythonSource:
    """See `streampca.sources.base.Source`."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._topic = settings.topic
        self._connection = Connection(settings, settings.topic)
        self._consumer = self._connection.start(KafkaConsumer, **_consumer_options(settings))
        self._rebalance = RebalanceListener(partial(rejoin_group, self._consumer))
        # Partitions being read: (next, end) as last returned; end is −1 after a seek.
        self._reported: dict[int, tuple[int, int]] = {}
        # Not returned yet: partition → position, and where the log diverges from what was read, if known.
        self._out_of_range: dict[int, tuple[int, int | None]] = {}
        self.membership: ConsumerGroupMetadata | None = None  # of the last assignment returned
        self._closed = False
        self._has_identity, self._known_partitions = settings.group_instance_id is not None, frozenset[int]()
        self._consumer.subscribe([settings.topic], listener=self._rebalance)

    def topic_id(self) -> str:
        return self._connection.topic_id()

    def partitions(self) -> frozenset[int]:
        return self._connection.partitions()

    def poll(self, timeout_s: float) -> Sequence[Event]:
        fetched: Mapping[TopicPartition, list[Record]] = {}
        self._rejoin_if_partitions_were_added()
        try:
            fetched = self._consumer.poll(int(timeout_s * 1000))
            raise_if_replaced(self._consumer)
        except (OffsetOutOfRangeError, LogTruncationError) as error:
            self._note_out_of_range(error)
        except RetriableError as error:
            log.debug("poll failed, retrying", error=one_line(error))
            self._rewind()
        except KafkaError as error:
            if not self._rebalance.events:  # else the listener has raised it
                raise self._connection.source_error(error) from None
        self._connection.watch()
        if self._rebalance.events:
            return self._take_rebalance_events()
        return [*self._out_of_range_events(), *self._records(fetched)]

    def status(self) -> SourceStatus:
        return SourceStatus(self._connection.connected, member=is_member(self._consumer))

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        for partition, position in positions.items():
            tp = TopicPartition(self._topic, partition)
            if position is None:
                self._consumer.seek_to_beginning(tp)
            else:
                self._consumer.seek(tp, position)
            if partition in last:
                seek_behind(self._consumer, tp, last[partition])
            self._out_of_range.pop(partition, None)
            self._reported[partition] = (_EARLIEST if position is None else position, -1)
            drop_paused_records(self._consumer, tp)
            self._consumer.resume(tp)

    def pause(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._consumer.pause(TopicPartition(self._topic, partition))
            self._reported.pop(partition, None)

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        if not self._connection.connected:
            return
        offsets = {partition: Committed(position, metadata) for partition, position in positions.items()}
        try:
            self._consumer.commit(self.named(offsets), timeout_ms=_COMMIT_TIMEOUT_MS)
        except KafkaError as error:
            log.warning("offsets not committed; lag tools will show older ones", error=one_line(error))

    def named(self, offsets: Mapping[int, Committed]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Offsets as the client commits them. librdkafka reads metadata to the next zero, so they end with one."""
        return {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, f"{metadata}\0", -1)
            for partition, (offset, metadata) in offsets.items()
        }

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        wanted = [TopicPartition(self._topic, partition) for partition in partitions]
        try:
            return committed_offsets(self._consumer, wanted, _OFFSETS_TIMEOUT_MS)
        except RetriableError as error:
            raise TimeoutError(f"the committed offsets are not known: {one_line(error)}") from None
        except KafkaError as error:
            raise self._connection.source_error(error) from None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._rebalance.closing = True
        try:
            self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)
        except KafkaError as error:
            log.warning("the group was not left in order", error=one_line(error))

    def _rejoin_if_partitions_were_added(self) -> None:
        """A leader with an identity does not learn that it still leads after a restart, so every member rejoins."""
        before, self._known_partitions = self._known_partitions, self.partitions()
        if self._has_identity and before and self._known_partitions - before:
            rejoin_group(self._consumer)

    def _take_rebalance_events(self) -> Sequence[Event]:
        """Apply and return the events of a rebalance."""
        events, self._rebalance.events = self._rebalance.events, []
        for event in events:
            self._forget(event.partitions)
            self.membership = None
            if isinstance(event, Assigned):
                found = self._consumer.group_metadata()
                self.membership = found if found.generation_id >= 0 else None
                self._pause_new(event.partitions)
        return events

    def _pause_new(self, partitions: Iterable[int]) -> None:
        """Fetch nothing until `seek`. Without a position the client would continue at the group's committed offset."""
        for partition in partitions:
            tp = TopicPartition(self._topic, partition)
            self._consumer.pause(tp)
            self._consumer.seek(tp, 0)

    def _forget(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._reported.pop(partition, None)
            self._out_of_range.pop(partition, None)

    def _records(self, fetched: Mapping[TopicPartition, Sequence[Record]]) -> list[Event]:
        """One event for each partition with new records, or with a position or end that moved without any."""
        events: list[Event] = []
        for partition in self._reported:
            tp = TopicPartition(self._topic, partition)
            position = position_of(self._consumer, tp)
            end = self._consumer.highwater(tp)
            if position is None or end is None:  # not fetched yet
                continue
            before, records = self._reported[partition], fetched.get(tp, ())
            next_ = max(position, before[0])
            now = (next_, max(end, next_))
            if now != before:
                self._reported[partition] = now
                events.append(Records(partition, records, *now))
        return events

    def _rewind(self) -> None:
        """Seek back to what was returned: a poll that fails may have moved past records that it does not return."""
        for partition, (next_, _) in list(self._reported.items()):
            position = position_of(self._consumer, TopicPartition(self._topic, partition))
            if position is not None and position > next_:
                self.seek({partition: None if next_ == _EARLIEST else next_})

    def _note_out_of_range(self, error: OffsetOutOfRangeError | LogTruncationError) -> None:
        """Pause the partitions until `seek`: the client would request the same offsets again."""
        truncated = isinstance(error, LogTruncationError)
        for tp, found in (error.divergent_offsets if truncated else error.args[0]).items():
            if self._reported.pop(tp.partition, None):  # else it is known already
                self._consumer.pause(tp)
                position = position_of(self._consumer, tp) or 0 if truncated else found
                self._out_of_range[tp.partition] = position, found.offset if truncated and found else None

    def _out_of_range_events(self) -> list[Event]:
        if not self._out_of_range:
            return []
        tps = [TopicPartition(self._topic, partition) for partition in self._out_of_range]
        try:
            first = self._consumer.beginning_offsets(tps, _OFFSETS_TIMEOUT_MS)
            last = self._consumer.end_offsets(tps, _OFFSETS_TIMEOUT_MS)
        except RetriableError:  # the broker is away: a later poll asks again
            return []
        except KafkaError as error:
            raise self._connection.source_error(error) from None
        positions, self._out_of_range = self._out_of_range, {}
        events: list[Event] = []
        for tp in tps:
            position, diverged = positions[tp.partition]
            if diverged is None and first[tp] <= position <= last[tp]:
                diverged = position - 1  # the last record, at least
            events.append(OutOfRange(tp.partition, position, first[tp], last[tp], diverged))
        return events


def _consumer_options(settings: ConsumerSettings) -> dict[str, Any]:
    return {
        "group_id": settings.group,
        "group_instance_id": settings.group_instance_id,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",  # a position out of range is an event, not a silent jump
        "isolation_level": "read_committed",
        "max_poll_records": base.MAX_POLL_RECORDS,
        "max_partition_fetch_bytes": _FETCH_BYTES,
        "max_poll_interval_ms": int(max(base.MAX_POLL_INTERVAL_S, settings.session_timeout_s) * 1000),
        "session_timeout_ms": int(settings.session_timeout_s * 1000),
        "heartbeat_interval_ms": int(min(3.0, settings.session_timeout_s / 10) * 1000),
        # Every rebalance revokes all and assigns all: more work than the cooperative protocol, but no partition
        # is ever kept across a generation that this member missed.
        "partition_assignment_strategy": (PatchedRangeAssignor,),
    }
