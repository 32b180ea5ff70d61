"""The real source: one member of a Kafka consumer group, on kafka-python.

kafka-python calls back during a rebalance, from within its `poll`; here that becomes events. The trick is that the
listener refuses: it notes the event and raises, upon which the client gives up the rebalance for now and its `poll`
raises. So `poll` returns the event, the worker handles it in its own thread and time (heartbeats go on meanwhile),
and only the next `poll` lets the rebalance proceed. Nothing ever waits for anything, so nothing can hang.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError, RetriableError
from kafka.structs import OffsetAndMetadata

from streampca.settings import WorkerSettings
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.dead_letters import KafkaPythonDeadLetters
from streampca.sources.kafka_python.patches import one_line
from streampca.stream.record import Assigned, Event, Lost, OutOfRange, Record, Records, Revoked, SourceStatus

__all__ = ["KafkaPythonDeadLetters", "KafkaPythonSource"]

_COMMIT_TIMEOUT_MS = 1000
_CLOSE_TIMEOUT_MS = 2000
_OFFSETS_TIMEOUT_MS = 3000
_EARLIEST = -1  # a position that is not known yet
_FETCH_BYTES = 4 * 1024 * 1024  # of one partition at once: many messages of any length that is ordinary

log = structlog.get_logger()


class KafkaPythonSource:
    """See `streampca.sources.base.Source`."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._topic = settings.topic
        self._connection = Connection(settings, settings.topic)
        self._consumer = self._connection.start(KafkaConsumer, **_options(settings))
        self._news = _RebalanceListener(self._consumer._coordinator.request_rejoin)
        self._reported: dict[
            int, tuple[int, int]
        ] = {}  # partitions being read: (next, end) as last handed over; end −1 since seek
        self._astray: dict[int, int] = {}  # positions that are out of range, not told yet
        self._closed = False
        self._consumer.subscribe([settings.topic], listener=self._news)

    def topic_id(self) -> str:
        return self._connection.topic_id()

    def partitions(self) -> frozenset[int]:
        return self._connection.partitions()

    def poll(self, timeout_s: float) -> Sequence[Event]:
        fetched: Mapping[TopicPartition, list[Record]] = {}
        try:
            fetched = self._consumer.poll(int(timeout_s * 1000))
        except (OffsetOutOfRangeError, LogTruncationError) as error:
            self._note_astray(error)
        except RetriableError as error:
            log.debug("poll failed, trying again", error=one_line(error))
            self._rewind()
        except KafkaError as error:
            if not self._news.events:  # else it is our own refusal of a rebalance
                raise self._connection.refused(error) from None
        self._connection.watch()
        if self._news.events:
            return self._take_news()
        return [*self._out_of_range(), *self._records(fetched)]

    def status(self) -> SourceStatus:
        return SourceStatus(self._connection.answering, member=self._consumer._coordinator.stable())

    def seek(self, positions: Mapping[int, int | None]) -> None:
        for partition, position in positions.items():
            tp = TopicPartition(self._topic, partition)
            if position is None:
                self._consumer.seek_to_beginning(tp)
            else:
                self._consumer.seek(tp, position)
            self._astray.pop(partition, None)
            self._reported[partition] = (_EARLIEST if position is None else position, -1)
            # What kafka-python 3.0.12 had fetched when they were paused it gives back for one alone of several that are
            # resumed, and fetches nothing of the others as long as it has that. It is of before the seek anyway.
            self._consumer._fetcher._paused_partition_records.pop(tp, None)
            self._consumer.resume(tp)

    def pause(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._consumer.pause(TopicPartition(self._topic, partition))
            self._reported.pop(partition, None)

    def commit(self, positions: Mapping[int, int]) -> None:
        if not self._connection.connected:
            return
        offsets = {TopicPartition(self._topic, p): OffsetAndMetadata(o, "", -1) for p, o in positions.items()}
        try:
            self._consumer.commit(offsets, timeout_ms=_COMMIT_TIMEOUT_MS)
        except KafkaError as error:
            log.warning("offsets not committed; lag tools will show older ones", error=one_line(error))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._news.closing = True
        try:
            self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)
        except KafkaError as error:
            log.warning("the group was not left in order", error=one_line(error))

    def _take_news(self) -> Sequence[Event]:
        """Hand over the events of a rebalance, and bring the client to what they promise."""
        events, self._news.events = self._news.events, []
        for event in events:
            self._forget(event.partitions)
            if isinstance(event, Assigned):
                self._hold(event.partitions)
        return events

    def _hold(self, partitions: Iterable[int]) -> None:
        """Fetch nothing of these until `seek`: without a position of ours the client would use the committed one."""
        for partition in partitions:
            tp = TopicPartition(self._topic, partition)
            self._consumer.pause(tp)
            self._consumer.seek(tp, 0)

    def _forget(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._reported.pop(partition, None)
            self._astray.pop(partition, None)

    def _records(self, fetched: Mapping[TopicPartition, Sequence[Record]]) -> list[Event]:
        """What is new of each partition: records, or a position or an end that moved without any."""
        events: list[Event] = []
        for partition in self._reported:
            tp = TopicPartition(self._topic, partition)
            # Not consumer.position(), which looks through all partitions each time.
            position = self._consumer._subscription.position(tp)
            end = self._consumer.highwater(tp)
            if position is None or end is None:  # not fetched yet
                continue
            now = (position.offset, max(end, position.offset))
            if now != self._reported[partition]:
                self._reported[partition] = now
                events.append(Records(partition, fetched.get(tp, ()), next=now[0], end=now[1]))
        return events

    def _rewind(self) -> None:
        """Go back to what was handed over: a poll that fails may have passed over records that it had taken."""
        for partition, (next_, _) in list(self._reported.items()):
            position = self._consumer._subscription.position(TopicPartition(self._topic, partition))
            if position is not None and position.offset != next_:
                self.seek({partition: None if next_ == _EARLIEST else next_})

    def _note_astray(self, error: OffsetOutOfRangeError | LogTruncationError) -> None:
        """The client would ask for the same again: hold the partitions until the worker knows."""
        if isinstance(error, LogTruncationError):
            found = {tp: self._consumer._subscription.position(tp).offset for tp in error.divergent_offsets}
        else:
            found = error.args[0]
        for tp, position in found.items():
            self._consumer.pause(tp)
            self._reported.pop(tp.partition, None)
            self._astray[tp.partition] = position

    def _out_of_range(self) -> list[Event]:
        if not self._astray:
            return []
        tps = [TopicPartition(self._topic, partition) for partition in self._astray]
        try:
            first = self._consumer.beginning_offsets(tps, _OFFSETS_TIMEOUT_MS)
            last = self._consumer.end_offsets(tps, _OFFSETS_TIMEOUT_MS)
        except RetriableError:  # the broker is away: tell it at a later poll
            return []
        except KafkaError as error:
            raise self._connection.refused(error) from None
        astray, self._astray = self._astray, {}
        return [OutOfRange(tp.partition, astray[tp.partition], first[tp], last[tp]) for tp in tps]


def _options(settings: WorkerSettings) -> dict[str, Any]:
    return {
        "group_id": settings.group_id,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",  # a position out of range is an event, not a silent jump
        "isolation_level": settings.isolation_level,
        "max_poll_records": settings.max_poll_records,
        "max_partition_fetch_bytes": _FETCH_BYTES,
        "session_timeout_ms": int(settings.session_timeout_s * 1000),
        "heartbeat_interval_ms": int(min(3.0, settings.session_timeout_s / 10) * 1000),
        # Every rebalance revokes all and assigns all: more work than the cooperative protocol, but no partition
        # is ever kept across a generation that this member missed.
        "partition_assignment_strategy": (RangePartitionAssignor,),
    }


class _NotNowError(Exception):
    """Raised to the client: give up this rebalance until the worker has handled what it brings."""


class _RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """What a rebalance brings; filled in the client's thread, while the worker's waits in the client's poll."""

    def __init__(self, request_rejoin: Callable[[], None]) -> None:
        self._request_rejoin = request_rejoin
        self.events: list[Assigned | Revoked | Lost] = []
        self.closing = False
        self._given_up: frozenset[int] = frozenset()  # told as revoked, and handled by the time of the next call
        # The client logs our refusals as errors, with a traceback.
        logging.getLogger("kafka.coordinator.consumer").addFilter(_is_not_ours)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        # Called at the start of every rebalance. One that comes from changed partitions is forgotten by kafka-python
        # 3.0.12 when its poll ends before the group answers: the member then has no partitions and no heartbeat. It is
        # forgotten also when the change is undone before we have handled the event. Asking for it helps against both.
        self._request_rejoin()
        partitions = _numbers(revoked) - self._given_up
        self._given_up |= partitions
        self._tell(Revoked(partitions))

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._given_up = frozenset()
        self._tell(Assigned(_numbers(assigned)))

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        partitions = _numbers(lost) - self._given_up
        self._given_up = frozenset()
        self._tell(Lost(partitions))

    def _tell(self, event: Assigned | Revoked | Lost) -> None:
        if event.partitions and not self.closing:
            self.events.append(event)
            raise _NotNowError


def _numbers(partitions: Collection[TopicPartition]) -> frozenset[int]:
    return frozenset(tp.partition for tp in partitions)


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], _NotNowError))
