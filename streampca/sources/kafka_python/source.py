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
from streampca.sources.broker_errors import one_line
from streampca.sources.client_source import (
    FETCH_BYTES,
    FETCH_BYTES_OF_ALL,
    ClientSource,
    choose_intervals,
)
from streampca.sources.events import Assigned, Lost, Revoked
from streampca.sources.kafka_python import client_internals
from streampca.sources.kafka_python.connection import KafkaPythonConnection
from streampca.sources.kafka_python.patched_group import PatchedRangeAssignor
from streampca.sources.read_positions import EARLIEST, UNKNOWN, Reached

_COMMIT_TIMEOUT_MS = 1000
_CLOSE_TIMEOUT_MS = 2000
_OFFSETS_TIMEOUT_MS = 3000

log = structlog.get_logger()


class _SuspendError(Exception):
    """Our listener raises it, so that the client suspends a rebalance until the worker has handled the event."""


class KafkaPythonSource(ClientSource, ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """See `streampca.sources.base.Source`."""

    client_error = KafkaError
    _connection: KafkaPythonConnection

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings.topic)
        self._connection = KafkaPythonConnection(settings, settings.topic)
        self._consumer = self._connection.start(KafkaConsumer, **_consumer_options(settings))
        self._revoked: set[TopicPartition] = set()  # partitions with an event `Revoked` in the current rebalance
        self._is_static_member = settings.group_instance_id is not None
        self._partitions_before = self._connection.partitions()  # all partitions of the topic, at the last poll
        # Our listener raises `_SuspendError` to end the client's poll, so that the worker can handle a rebalance before
        # it proceeds. The client would log this error as a failure.
        logging.getLogger("kafka.coordinator.consumer").addFilter(_is_not_suspend_error)
        if settings.group:
            self._consumer.subscribe([settings.topic], listener=self)
            self._connection.wait_for_partitions()
        else:  # without a group, all partitions are assigned to this consumer
            self._assigned = self._connection.partitions()
            self._consumer.assign([TopicPartition(self._topic, partition) for partition in self._assigned])
            self._pause_until_seek(self._assigned)

    def _fetch(self, timeout_s: float) -> Mapping[int, Sequence[Record]]:
        """Return new records by partition; none if a rebalance begins."""
        self._rejoin_if_partitions_were_added()
        fetched: Mapping[TopicPartition, list[Record]] = {}
        try:
            fetched = self._consumer.poll(int(timeout_s * 1000))
            client_internals.raise_if_fenced(self._consumer)
        except (OffsetOutOfRangeError, LogTruncationError) as error:
            self._stop_partitions_out_of_range(error)
        except RetriableError as error:
            log.debug("poll failed, retrying", error=one_line(error))
            self._refetch_lost_records()  # the failed poll may have fetched records, which the client has dropped
        except KafkaError as error:
            # When a rebalance begins, our listener adds its event and raises `_SuspendError` to end the poll. The
            # client raises a `KafkaError` instead. Then nothing has failed.
            has_rebalance_begun = bool(self._rebalances)
            if not has_rebalance_begun:
                raise self._connection.source_error(error) from None
        return {tp.partition: records for tp, records in fetched.items()}

    def _stop_partitions_out_of_range(self, error: OffsetOutOfRangeError | LogTruncationError) -> None:
        """Stop reading the partitions in an error of the client, since their logs do not hold the positions to read."""
        is_truncated = isinstance(error, LogTruncationError)
        offsets_by_tp = error.divergent_offsets if is_truncated else error.args[0]
        self._consumer.pause(*offsets_by_tp)
        for tp in offsets_by_tp:
            if is_truncated:
                self._positions.stop_as_truncated(tp.partition)
            else:
                self._positions.stop_as_out_of_range(tp.partition)

    def _fetched_to(self, partition: int) -> Reached:
        """Return the next offset that the client fetches of a partition, and the partition's end, if both are known."""
        tp = TopicPartition(self._topic, partition)
        position = client_internals.next_fetch_offset(self._consumer, tp)
        end = self._consumer.highwater(tp)
        if position is None or end is None:
            return Reached(next=UNKNOWN, end=UNKNOWN)
        return Reached(next=position, end=end)

    def _is_member(self) -> bool:
        return client_internals.is_member(self._consumer)

    def _start_fetching(self, partitions: Collection[int]) -> None:
        """Let the client fetch these partitions, each from its position."""
        for partition in partitions:
            tp = TopicPartition(self._topic, partition)
            offset = self._positions.offset_to_fetch_from(partition)
            if offset == EARLIEST:
                self._consumer.seek_to_beginning(tp)
            else:
                self._consumer.seek(tp, offset)
            client_internals.drop_paused_records(self._consumer, tp)  # they were fetched from an earlier position
            self._consumer.resume(tp)

    def _stop_fetching(self, partitions: Collection[int]) -> None:
        self._consumer.pause(*(TopicPartition(self._topic, partition) for partition in partitions))

    def _commit(self, offsets: Mapping[int, Committed]) -> None:
        self._consumer.commit(self.convert_offsets(offsets), timeout_ms=_COMMIT_TIMEOUT_MS)

    def convert_offsets(self, offsets: Mapping[int, Committed]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return offsets in the form in which the client commits them.

        Metadata get a zero byte at their end, because members on confluent-kafka read them up to a zero byte.
        """
        return {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, f"{metadata}\0", leader_epoch=-1)
            for partition, (offset, metadata) in offsets.items()
        }

    def committed(self) -> dict[int, Committed]:
        tps = [TopicPartition(self._topic, partition) for partition in self.partitions()]
        with self._connection.translate_errors("the committed offsets"):
            return client_internals.read_committed_offsets(self._consumer, tps, _OFFSETS_TIMEOUT_MS)

    def _find_committed_ends(self, partitions: Collection[int]) -> dict[int, int]:
        tps = [TopicPartition(self._topic, partition) for partition in partitions]
        with self._connection.translate_errors("the offsets"):
            ends = self._consumer.end_offsets(tps, _OFFSETS_TIMEOUT_MS)
        return {tp.partition: end for tp, end in ends.items()}

    def _find_first_at(self, partitions: Collection[int], time_ms: int) -> dict[int, int]:
        times = {TopicPartition(self._topic, partition): time_ms for partition in partitions}
        with self._connection.translate_errors("the offsets"):
            answer = self._consumer.offsets_for_times(times)
        return {tp.partition: first.offset for tp, first in answer.items() if first is not None}

    def _leave(self) -> None:
        try:
            self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)
        except KafkaError as error:
            log.warning("the group was not left in order", error=one_line(error))

    def _rejoin_if_partitions_were_added(self) -> None:
        """If the topic has new partitions, let a static member join the group again, so that they are assigned.

        The leader of a group assigns new partitions. But a static member that leads its group and restarts does not
        know that it leads, so it never looks for new partitions.
        """
        partitions = self.partitions()
        has_new_partitions = not partitions <= self._partitions_before
        if self._is_static_member and has_new_partitions:
            client_internals.rejoin_group(self._consumer)
        self._partitions_before = partitions

    def _pause_until_seek(self, partitions: Collection[int]) -> None:
        """Pause newly assigned partitions until the caller seeks."""
        for partition in partitions:
            tp = TopicPartition(self._topic, partition)
            self._consumer.pause(tp)
            # Nothing is read at 0, since the partition is paused. Without a position, the client would ask for the
            # committed offset.
            self._consumer.seek(tp, 0)

    def _take_group_metadata(self) -> Any:
        """Return the group's metadata; None if no group was joined."""
        metadata = self._consumer.group_metadata()
        has_joined = metadata.generation_id >= 0
        return metadata if has_joined else None

    def _refetch_lost_records(self) -> None:
        """Let the client go back to our positions after a failed poll, since the poll's records are lost."""
        for partition in list(self._positions.by_partition):
            client_offset = client_internals.next_fetch_offset(self._consumer, TopicPartition(self._topic, partition))
            our_offset = self._positions.offset_to_fetch_from(partition)
            if client_offset is not None and client_offset > our_offset:
                self._start_fetching([partition])

    def _find_offset_range(self, partition: int) -> tuple[int, int] | None:
        """Ask brokers for the earliest offset and the end of a partition; None if no broker answers."""
        tp = TopicPartition(self._topic, partition)
        with suppress(TimeoutError), self._connection.translate_errors("the offsets"):
            earliest = self._consumer.beginning_offsets([tp], _OFFSETS_TIMEOUT_MS)
            ends = self._consumer.end_offsets([tp], _OFFSETS_TIMEOUT_MS)
            return earliest[tp], ends[tp]
        return None

    # The client's thread calls these methods, while the worker's thread waits in the client's poll.

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Let our poll return `Revoked`, and suspend the rebalance until the worker has handled the event.

        1. The first call adds the event and raises `_SuspendError`. The client suspends the rebalance.
        2. Our poll ends and returns the event, which the worker handles.
        3. Our next poll lets the client call this again. No partition is newly revoked, so the rebalance proceeds.
        """
        # If `_SuspendError` is raised below, it ends the client's poll, and the client may forget the rebalance. So ask
        # for the rebalance again; in the second call, this changes nothing.
        client_internals.rejoin_group(self._consumer)
        newly_revoked = set(revoked) - self._revoked
        self._revoked |= newly_revoked
        self._suspend_rebalance(Revoked, newly_revoked)  # raises `_SuspendError` if any is newly revoked

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._revoked = set()
        self._suspend_rebalance(Assigned, assigned)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        not_revoked = set(lost) - self._revoked  # revoked partitions have an event already
        self._revoked = set()
        self._suspend_rebalance(Lost, not_revoked)

    def _suspend_rebalance(
        self, event_type: type[Assigned | Revoked | Lost], partitions: Collection[TopicPartition]
    ) -> None:
        """Add an event for our poll. Then raise `_SuspendError`, which ends the client's poll.

        Without partitions, there is nothing to handle: no error is raised, and the client proceeds with the rebalance.
        """
        if partitions and not self._closed:
            self._add_rebalance(event_type, partitions)
            raise _SuspendError


def _is_not_suspend_error(record: logging.LogRecord) -> bool:
    """Return False for a record of the client's log that reports our `_SuspendError`."""
    return not record.exc_info or not isinstance(record.exc_info[1], _SuspendError)


def _consumer_options(settings: ConsumerSettings) -> dict[str, Any]:
    """Return the options of the consumer, besides those of its connection."""
    intervals = choose_intervals(settings)
    return {
        "group_id": settings.group or None,
        "group_instance_id": settings.group_instance_id,
        "client_rack": settings.rack or "",
        "enable_auto_commit": False,
        "auto_offset_reset": "none",  # a position that is out of range is an error
        "isolation_level": "read_committed",
        "max_poll_records": base.MAX_POLL_RECORDS,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "fetch_max_bytes": FETCH_BYTES_OF_ALL,
        "max_poll_interval_ms": intervals.longest_poll_ms,
        "session_timeout_ms": intervals.session_ms,
        "heartbeat_interval_ms": intervals.heartbeat_ms,
        # A member that has missed a rebalance must lose its partitions. So the assignor must be eager, as the range
        # assignor is: each rebalance takes all partitions from all members. kafka-python's own range assignor may leave
        # out members if only some have a `group_instance_id`.
        "partition_assignment_strategy": (PatchedRangeAssignor,),
    }
