"""A member of a Kafka consumer group, on kafka-python.

kafka-python calls a listener during a rebalance, from within its `poll`; here these calls become events. The listener
records the event and raises, on which the client suspends the rebalance and its `poll` raises. So our `poll` returns
the event, the worker handles it in its own thread and time, while heartbeats continue, and the next `poll` lets the
rebalance proceed. No thread waits for another, so none can hang.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError, RetriableError
from kafka.structs import OffsetAndMetadata

from streampca.formats.record import Record
from streampca.settings.commands import ConsumerSettings
from streampca.sources import base
from streampca.sources.base import Committed
from streampca.sources.client_connection import one_line
from streampca.sources.client_source import EARLIEST, FETCH_BYTES, FETCH_BYTES_OF_ALL, ClientSource, member_intervals_ms
from streampca.sources.events import Assigned, Lost, Revoked, SourceStatus
from streampca.sources.kafka_python import patches
from streampca.sources.kafka_python.connection import Connection

_COMMIT_TIMEOUT_MS = 1000
_CLOSE_TIMEOUT_MS = 2000
_OFFSETS_TIMEOUT_MS = 3000

log = structlog.get_logger()


class _SuspendError(Exception):
    """Raised to the client: suspend this rebalance until the worker has handled the event."""


class KafkaPythonSource(ClientSource, ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """See `streampca.sources.base.Source`."""

    client_error = KafkaError
    _connection: Connection

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings.topic)
        self._connection = Connection(settings, settings.topic)
        self._consumer = self._connection.start(KafkaConsumer, **_consumer_options(settings))
        self._revoked: set[TopicPartition] = set()  # their event is recorded, and handled by the next callback
        self._has_identity, self._known_partitions = settings.group_instance_id is not None, frozenset[int]()
        # The client logs what its listener raises as errors, with a traceback.
        logging.getLogger("kafka.coordinator.consumer").addFilter(_is_not_ours)
        if settings.group:
            self._consumer.subscribe([settings.topic], listener=self)
            self._connection.await_partitions()
        else:
            self._assigned = self._connection.partitions()
            self._consumer.assign([TopicPartition(self._topic, partition) for partition in self._assigned])
            self._joined(self._assigned)

    def _fetch(self, timeout_s: float) -> Mapping[int, Sequence[Record]]:
        fetched: Mapping[TopicPartition, list[Record]] = {}
        self._rejoin_if_partitions_were_added()
        try:
            fetched = self._consumer.poll(int(timeout_s * 1000))
            patches.raise_if_replaced(self._consumer)
        except (OffsetOutOfRangeError, LogTruncationError) as error:
            partitions = error.divergent_offsets if isinstance(error, LogTruncationError) else error.args[0]
            self._consumer.pause(*partitions)  # until `seek`: the client would request the same offsets again
            self._note_out_of_range(tp.partition for tp in partitions)
        except RetriableError as error:
            log.debug("poll failed, retrying", error=one_line(error))
            self._rewind()
        except KafkaError as error:
            if not self._rebalances:  # else the listener has raised it
                raise self._connection.source_error(error) from None
        return {tp.partition: records for tp, records in fetched.items()}

    def _reached(self, partition: int) -> tuple[int, int]:
        tp = TopicPartition(self._topic, partition)
        position, end = patches.position_of(self._consumer, tp), self._consumer.highwater(tp)
        return (position, end) if position is not None and end is not None else (-1, -1)  # not fetched yet

    def status(self) -> SourceStatus:
        is_member, cause = patches.is_member(self._consumer), self._connection.last_failure
        return SourceStatus(self._connection.connected, is_member, cause, self._blocked_since)

    def _read(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            tp, start = TopicPartition(self._topic, partition), self._start(partition)
            if start == EARLIEST:
                self._consumer.seek_to_beginning(tp)
            else:
                self._consumer.seek(tp, start)
            patches.drop_paused_records(self._consumer, tp)
            self._consumer.resume(tp)

    def _stop_reading(self, partitions: Collection[int]) -> None:
        self._consumer.pause(*(TopicPartition(self._topic, partition) for partition in partitions))

    def _commit(self, offsets: Mapping[int, Committed]) -> None:
        self._consumer.commit(self.named(offsets), timeout_ms=_COMMIT_TIMEOUT_MS)

    def named(self, offsets: Mapping[int, Committed]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Offsets as the client commits them. librdkafka reads metadata to the next zero, so they end with one."""
        return {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, f"{metadata}\0", -1)
            for partition, (offset, metadata) in offsets.items()
        }

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        tps = [TopicPartition(self._topic, partition) for partition in partitions]
        with self._connection.answers("the committed offsets"):
            return patches.committed_offsets(self._consumer, tps, _OFFSETS_TIMEOUT_MS)

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        tps = [TopicPartition(self._topic, partition) for partition in partitions]
        with self._connection.answers("the offsets"):
            ends = self._consumer.end_offsets(tps, _OFFSETS_TIMEOUT_MS)
            at = {} if time_ms is None else self._consumer.offsets_for_times(dict.fromkeys(tps, time_ms))
        return {tp.partition: at[tp].offset if at.get(tp) else ends[tp] for tp in tps}

    def _leave(self) -> None:
        try:
            self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)
        except KafkaError as error:
            log.warning("the group was not left in order", error=one_line(error))

    def _rejoin_if_partitions_were_added(self) -> None:
        """A leader with an identity does not learn that it still leads after a restart, so every member rejoins."""
        before, self._known_partitions = self._known_partitions, self.partitions()
        if self._has_identity and before and self._known_partitions - before:
            patches.rejoin_group(self._consumer)

    def _joined(self, partitions: Collection[int]) -> Any:
        for partition in partitions:
            tp = TopicPartition(self._topic, partition)
            self._consumer.pause(tp)
            self._consumer.seek(tp, 0)  # without a position the client would continue at the committed offset
        metadata = self._consumer.group_metadata()
        return metadata if metadata.generation_id >= 0 else None

    def _rewind(self) -> None:
        """Seek back to what was returned: a poll that fails may have moved past records that it does not return."""
        for partition in self._reported:
            position = patches.position_of(self._consumer, TopicPartition(self._topic, partition))
            if position is not None and position > self._start(partition):
                self._read([partition])

    def _log_offsets(self, partition: int) -> tuple[int, int] | None:
        tp = TopicPartition(self._topic, partition)
        with suppress(TimeoutError), self._connection.answers("the offsets"):
            first = self._consumer.beginning_offsets([tp], _OFFSETS_TIMEOUT_MS)
            return first[tp], self._consumer.end_offsets([tp], _OFFSETS_TIMEOUT_MS)[tp]
        return None

    # The client's thread calls these, while the worker's waits in the client's poll.

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        patches.rejoin_group(self._consumer)  # kafka-python may forget the rebalance once it is suspended
        new = set(revoked) - self._revoked
        self._revoked |= new
        self._suspend(Revoked, new)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._revoked = set()
        self._suspend(Assigned, assigned)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        new, self._revoked = set(lost) - self._revoked, set()
        self._suspend(Lost, new)

    def _suspend(self, kind: type[Assigned | Revoked | Lost], partitions: Collection[TopicPartition]) -> None:
        if partitions and not self._closed:
            self._add_rebalance(kind, partitions)
            raise _SuspendError


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], _SuspendError))


def _consumer_options(settings: ConsumerSettings) -> dict[str, Any]:
    longest_poll_ms, session_ms, heartbeat_ms = member_intervals_ms(settings)
    return {
        "group_id": settings.group or None,
        "group_instance_id": settings.group_instance_id,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",  # a position out of range is an event, not a silent jump
        "isolation_level": "read_committed",
        "max_poll_records": base.MAX_POLL_RECORDS,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "fetch_max_bytes": FETCH_BYTES_OF_ALL,
        "max_poll_interval_ms": longest_poll_ms,
        "session_timeout_ms": session_ms,
        "heartbeat_interval_ms": heartbeat_ms,
        # Every rebalance revokes all and assigns all: more work than the cooperative protocol, but no partition
        # is ever kept across a generation that this member missed.
        "partition_assignment_strategy": (patches.PatchedRangeAssignor,),
    }
