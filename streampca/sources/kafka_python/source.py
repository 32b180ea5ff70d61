"""A member of a Kafka consumer group, on kafka-python.

kafka-python calls a listener during a rebalance, from within its `poll`. Our listener notes the event and raises an
error. Then the client suspends the rebalance, and its `poll` raises the error. So our `poll` can return the event, and
the worker handles it in its own thread and time, while heartbeats continue. Our next `poll` lets the rebalance proceed.
No thread waits for another, so none can hang.
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
from streampca.sources.client_source import (
    EARLIEST,
    FETCH_BYTES,
    FETCH_BYTES_OF_ALL,
    UNKNOWN,
    ClientSource,
    member_intervals,
)
from streampca.sources.events import Assigned, Lost, Revoked, SourceStatus
from streampca.sources.kafka_python import patches
from streampca.sources.kafka_python.connection import KafkaPythonConnection

_COMMIT_TIMEOUT_MS = 1000
_CLOSE_TIMEOUT_MS = 2000
_OFFSETS_TIMEOUT_MS = 3000

log = structlog.get_logger()


class _SuspendError(Exception):
    """Raised to the client: suspend this rebalance until the worker has handled the event."""


class KafkaPythonSource(ClientSource, ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """See `streampca.sources.base.Source`."""

    client_error = KafkaError
    _connection: KafkaPythonConnection

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings.topic)
        self._connection = KafkaPythonConnection(settings, settings.topic)
        self._consumer = self._connection.start(KafkaConsumer, **_consumer_options(settings))
        self._revoked: set[TopicPartition] = set()  # in this rebalance; their event `Revoked` was noted
        self._is_static_member = settings.group_instance_id is not None
        self._partitions_before: frozenset[int] = frozenset()  # the topic's, at the last poll
        # The client logs what its listener raises as errors, with a traceback.
        logging.getLogger("kafka.coordinator.consumer").addFilter(_is_not_suspension)
        if settings.group:
            self._consumer.subscribe([settings.topic], listener=self)
            self._connection.wait_for_partitions()
        else:
            self._assigned = self._connection.partitions()
            self._consumer.assign([TopicPartition(self._topic, partition) for partition in self._assigned])
            self._prepare_assigned(self._assigned)

    def _fetch(self, timeout_s: float) -> Mapping[int, Sequence[Record]]:
        fetched: Mapping[TopicPartition, list[Record]] = {}
        self._rejoin_if_partitions_were_added()
        try:
            fetched = self._consumer.poll(int(timeout_s * 1000))
            patches.raise_if_replaced(self._consumer)
        except (OffsetOutOfRangeError, LogTruncationError) as error:
            is_truncated = isinstance(error, LogTruncationError)
            tps = error.divergent_offsets if is_truncated else error.args[0]  # by partition
            self._consumer.pause(*tps)  # until `seek`: the client would request the same offsets again
            self._note_out_of_range(tp.partition for tp in tps)
        except RetriableError as error:
            log.debug("poll failed, retrying", error=one_line(error))
            self._seek_back()
        except KafkaError as error:
            is_suspension = bool(self._rebalances)  # raised since our listener has suspended a rebalance
            if not is_suspension:
                raise self._connection.source_error(error) from None
        return {tp.partition: records for tp, records in fetched.items()}

    def _fetched_up_to(self, partition: int) -> tuple[int, int]:
        tp = TopicPartition(self._topic, partition)
        position = patches.fetch_position(self._consumer, tp)
        end = self._consumer.highwater(tp)
        if position is None or end is None:  # nothing was fetched yet
            return UNKNOWN, UNKNOWN
        return position, end

    def status(self) -> SourceStatus:
        return SourceStatus(
            connected=self._connection.connected,
            member=patches.is_member(self._consumer),
            cause=self._connection.last_failure,
            blocked_since=self._blocked_since,
        )

    def _start_fetching(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            tp = TopicPartition(self._topic, partition)
            offset = self._fetch_offset(partition)
            if offset == EARLIEST:
                self._consumer.seek_to_beginning(tp)
            else:
                self._consumer.seek(tp, offset)
            patches.drop_paused_records(self._consumer, tp)
            self._consumer.resume(tp)

    def _stop_fetching(self, partitions: Collection[int]) -> None:
        self._consumer.pause(*(TopicPartition(self._topic, partition) for partition in partitions))

    def _commit(self, offsets: Mapping[int, Committed]) -> None:
        self._consumer.commit(self.convert_offsets(offsets), timeout_ms=_COMMIT_TIMEOUT_MS)

    def convert_offsets(self, offsets: Mapping[int, Committed]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return offsets in the form in which the client commits them.

        The metadata end with a zero byte, since librdkafka reads them to the next one.
        """
        return {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, f"{metadata}\0", leader_epoch=-1)
            for partition, (offset, metadata) in offsets.items()
        }

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        tps = [TopicPartition(self._topic, partition) for partition in partitions]
        with self._connection.explained_errors("the committed offsets"):
            return patches.committed_offsets(self._consumer, tps, _OFFSETS_TIMEOUT_MS)

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        tps = [TopicPartition(self._topic, partition) for partition in partitions]
        found = {}  # partition → its first record with this timestamp or a later one; None if there is none
        with self._connection.explained_errors("the offsets"):
            ends = self._consumer.end_offsets(tps, _OFFSETS_TIMEOUT_MS)
            if time_ms is not None:
                found = self._consumer.offsets_for_times(dict.fromkeys(tps, time_ms))
        return {tp.partition: found[tp].offset if found.get(tp) else ends[tp] for tp in tps}

    def _leave(self) -> None:
        try:
            self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)
        except KafkaError as error:
            log.warning("the group was not left in order", error=one_line(error))

    def _rejoin_if_partitions_were_added(self) -> None:
        """If the topic has new partitions, make a static member join the group again.

        When the leader of a group has restarted with its `group_instance_id`, it does not know that it still leads, and
        does not look for new partitions. So each static member does.
        """
        before = self._partitions_before
        partitions = self.partitions()
        self._partitions_before = partitions
        if self._is_static_member and before and partitions - before:
            patches.rejoin_group(self._consumer)

    def _prepare_assigned(self, partitions: Collection[int]) -> Any:
        for partition in partitions:
            tp = TopicPartition(self._topic, partition)
            self._consumer.pause(tp)
            # Without a position the client would continue at the committed offset. Any will do while it is paused.
            self._consumer.seek(tp, 0)
        metadata = self._consumer.group_metadata()
        has_joined = metadata.generation_id >= 0
        return metadata if has_joined else None

    def _seek_back(self) -> None:
        """Fetch again from where records were returned to.

        A poll that fails may have moved the client's position past records that it does not return.
        """
        for partition in self._progress:
            position = patches.fetch_position(self._consumer, TopicPartition(self._topic, partition))
            if position is not None and position > self._fetch_offset(partition):
                self._start_fetching([partition])

    def _log_offsets(self, partition: int) -> tuple[int, int] | None:
        tp = TopicPartition(self._topic, partition)
        with suppress(TimeoutError), self._connection.explained_errors("the offsets"):
            earliest = self._consumer.beginning_offsets([tp], _OFFSETS_TIMEOUT_MS)
            ends = self._consumer.end_offsets([tp], _OFFSETS_TIMEOUT_MS)
            return earliest[tp], ends[tp]
        return None

    # The client's thread calls these methods, while the worker's thread waits in the client's poll.

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        patches.rejoin_group(self._consumer)  # kafka-python may forget the rebalance once it is suspended
        new = set(revoked) - self._revoked  # the client calls this again when the rebalance proceeds
        self._revoked |= new
        self._suspend(Revoked, new)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._revoked = set()
        self._suspend(Assigned, assigned)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        new = set(lost) - self._revoked
        self._revoked = set()
        self._suspend(Lost, new)

    def _suspend(self, event: type[Assigned | Revoked | Lost], partitions: Collection[TopicPartition]) -> None:
        """Note the event for the next poll to return, and let the client suspend the rebalance."""
        if partitions and not self._closed:
            self._add_rebalance(event, partitions)
            raise _SuspendError


def _is_not_suspension(record: logging.LogRecord) -> bool:
    """Return whether the log record is about something else than the error with which we suspend a rebalance."""
    return not (record.exc_info and isinstance(record.exc_info[1], _SuspendError))


def _consumer_options(settings: ConsumerSettings) -> dict[str, Any]:
    intervals = member_intervals(settings)
    return {
        "group_id": settings.group or None,
        "group_instance_id": settings.group_instance_id,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",  # a position out of range is an event, not a silent jump
        "isolation_level": "read_committed",
        "max_poll_records": base.MAX_POLL_RECORDS,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "fetch_max_bytes": FETCH_BYTES_OF_ALL,
        "max_poll_interval_ms": intervals.longest_poll_ms,
        "session_timeout_ms": intervals.session_ms,
        "heartbeat_interval_ms": intervals.heartbeat_ms,
        # Every rebalance revokes all partitions and assigns all. That is more work than with the cooperative protocol,
        # but a member never keeps a partition through a rebalance that it missed.
        "partition_assignment_strategy": (patches.PatchedRangeAssignor,),
    }
