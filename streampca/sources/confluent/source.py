"""The fast source: one member of a Kafka consumer group, on confluent-kafka (librdkafka).

librdkafka calls back during a rebalance, from within `consume`, and wants the answer to be a call of `assign` or
`unassign`. Both callbacks answer with an empty assignment: reading stops at once, and after a revocation the group
waits, heartbeats going on, until `unassign` is called, which the next poll does. What is assigned to librdkafka later
are the partitions that are being read, each with the position to read from; so there is no seeking, no pausing and no
offset of the group's in it.

Fetching runs in librdkafka's own threads. What is asked of the cluster beside the records (the topic's id, its
partitions, whether a broker is there) is asked through kafka-python, in the words that the other source has for it.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import methodcaller
from typing import Any

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as TopicPartitionOfLink

from streampca.errors import SourceError
from streampca.settings import WorkerSettings
from streampca.sources.confluent.client import ConfluentBatch, Message, connected, final
from streampca.sources.kafka_python.connection import Connection
from streampca.stream.record import Assigned, Event, Lost, OutOfRange, Records, Revoked, SourceStatus

_SLICE_S = 0.05  # an event of the group is handed over after so long at most
_OFFSETS_S = 3.0
_CLOSE_S = 2.0
_EARLIEST = -1  # a position that is not known yet

log = structlog.get_logger()


class ConfluentSource:
    """See `streampca.sources.base.Source`."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._topic, self._most = settings.topic, settings.max_poll_records
        self._connection = Connection(settings, settings.topic)
        self._asker = self._connection.start(KafkaConsumer)
        self._asker.assign([TopicPartitionOfLink(settings.topic, 0)])  # it reads nothing, but hears of new partitions
        self._news: list[Assigned | Revoked | Lost] = []
        self._owned: frozenset[int] = frozenset()  # as told
        self._giving_up = False  # the group waits until what was revoked is handled
        self._member, self._member_id = False, ""
        self._errors: list[KafkaError] = []  # of the client, not told yet
        self._reported: dict[int, tuple[int, int]] = {}  # partitions being read: (next, end) as last handed over
        self._astray: dict[int, int] = {}  # positions that are out of range, not told yet
        self._closed = False
        try:
            self._consumer = connected(settings, self._errors, _note_commit)
        except SourceError:
            self._asker.close()
            raise
        self._consumer.subscribe([settings.topic], self._on_assign, self._on_revoke, self._on_lost)

    def topic_id(self) -> str:
        return self._connection.topic_id()

    def partitions(self) -> frozenset[int]:
        return self._connection.partitions() | self._owned

    def poll(self, timeout_s: float) -> Sequence[Event]:
        if self._giving_up and not self._news:
            self._giving_up = False
            self._consumer.unassign()
        messages = [] if self._news else self._consume(timeout_s)
        self._connection.watch()
        if self._news:  # records that came with it were read before the rebalance
            return [self._take_news()]
        failed = [message for message in messages if message.error()]
        ends = self._note_failed(failed)
        whole = [message for message in messages if not message.error()] if failed else messages
        self._raise_errors()
        return [*self._out_of_range(), *self._records(whole, ends)]

    def status(self) -> SourceStatus:
        # A member that has no partitions is told of no loss; but who joins again does so under another name.
        known, self._member_id = self._member_id, self._consumer.memberid()
        return SourceStatus(self._connection.answering, member=self._member and self._member_id == known)

    def seek(self, positions: Mapping[int, int | None]) -> None:
        for partition, position in positions.items():
            if partition not in self._owned:
                raise ValueError(f"partition {partition} is not assigned")
            self._astray.pop(partition, None)
            self._reported[partition] = (_EARLIEST if position is None else position, -1)
        self._read_on()

    def pause(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._reported.pop(partition, None)
        self._read_on()

    def commit(self, positions: Mapping[int, int]) -> None:
        if not self._connection.connected or not positions:
            return
        try:
            self._consumer.commit(offsets=[TopicPartition(self._topic, p, o) for p, o in positions.items()])
        except KafkaException as error:
            _note_commit(error.args[0], [])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # It can take longer when brokers are away, and cannot be told a time.
        closing = threading.Thread(target=self._consumer.close, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            log.warning("the group was not left in order", error=f"no answer within {_CLOSE_S:.0f} s")
        self._asker.close()

    def _take_news(self) -> Event:
        """Hand over one event of a rebalance; what it means for us holds from now on, although more may be waiting."""
        event = self._news.pop(0)
        self._owned = event.partitions if isinstance(event, Assigned) else frozenset()
        self._reported, self._astray = {}, {}
        return event

    def _consume(self, timeout_s: float) -> list[Message]:
        """What is there; if nothing is, what comes first within the time, with what came along."""
        deadline = time.monotonic() + timeout_s
        try:
            messages: list[Message] = self._consumer.consume(self._most, 0)
            while not messages and not self._news and (left_s := deadline - time.monotonic()) > 0:
                messages = self._consumer.consume(1, min(left_s, _SLICE_S))
                if messages:
                    messages += self._consumer.consume(self._most - 1, 0)
        except KafkaException as error:
            self._errors.append(error.args[0])
            return []
        return messages

    def _read_on(self) -> None:
        """Let the client read what is to be read, all from where we are; unless all is to be given up soon."""
        if self._news:
            return
        self._consumer.assign([
            TopicPartition(self._topic, partition, OFFSET_BEGINNING if next_ == _EARLIEST else next_)
            for partition, (next_, _) in self._reported.items()
        ])  # fmt: skip

    def _note_failed(self, messages: Iterable[Message]) -> dict[int, int]:
        """Sort what is no record: the ends that were reached, by partition; positions astray, and errors, are kept."""
        ends: dict[int, int] = {}
        for message in messages:
            error, partition = message.error(), message.partition()
            if error.code() == KafkaError._PARTITION_EOF:
                ends[partition] = message.offset()
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._reported.pop(partition, None)
                self._astray[partition] = message.offset()
            else:
                self._errors.append(error)
        return ends

    def _raise_errors(self) -> None:
        """Raise `SourceError` for what waiting cannot cure."""
        told = list(self._errors)
        self._errors.clear()  # the client holds on to this very list
        for error in told:
            log.debug("the client failed, trying again", error=error.str())
            if cause := final(error):
                raise self._connection.refused(cause)

    def _records(self, messages: Sequence[Message], ends: Mapping[int, int]) -> list[Event]:
        """What is new of each partition: records, or a position or an end that moved without any."""
        arrived: dict[int, list[Message]] = {}
        for partition, run in groupby(messages, methodcaller("partition")):
            arrived.setdefault(partition, []).extend(run)
        events: list[Event] = []
        for partition, before in self._reported.items():
            batch = arrived.get(partition, [])
            next_ = max(before[0], ends.get(partition, -1), batch[-1].offset() + 1 if batch else -1)
            _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
            now = (next_, max(end, next_))
            if now != before and next_ >= 0 and end >= 0:  # else not fetched yet
                self._reported[partition] = now
                events.append(Records(partition, ConfluentBatch(batch), *now))
        return events

    def _out_of_range(self) -> list[Event]:
        events: list[Event] = []
        for partition, position in list(self._astray.items()):
            try:
                tp = TopicPartition(self._topic, partition)
                first, last = self._consumer.get_watermark_offsets(tp, timeout=_OFFSETS_S)
            except KafkaException as error:  # most likely the broker is away: tell it at a later poll
                self._errors.append(error.args[0])
                continue
            del self._astray[partition]
            events.append(OutOfRange(partition, position, first, last))
        return events

    def _on_assign(self, consumer: Consumer, assigned: Sequence[TopicPartition]) -> None:
        consumer.assign([])
        self._member = True
        self._tell(Assigned(_numbers(assigned)))

    def _on_revoke(self, consumer: Consumer, revoked: Sequence[TopicPartition]) -> None:
        self._member = False
        if not self._closed:
            consumer.assign([])  # not `unassign`, which is what happens without an answer: so the group waits for us
            self._giving_up = True
            self._tell(Revoked(_numbers(revoked)))

    def _on_lost(self, consumer: Consumer, lost: Sequence[TopicPartition]) -> None:
        self._member = False
        if not self._giving_up:  # else it is told as revoked, and late for nothing but the group
            self._tell(Lost(_numbers(lost)))
        self._giving_up = False

    def _tell(self, event: Assigned | Revoked | Lost) -> None:
        if event.partitions:
            self._news.append(event)


def _numbers(partitions: Iterable[TopicPartition]) -> frozenset[int]:
    return frozenset(tp.partition for tp in partitions)


def _note_commit(error: KafkaError | None, offsets: Any) -> None:
    if error is not None and error.code() != KafkaError._NO_OFFSET:
        log.warning("offsets not committed; lag tools will show older ones", error=error.str())
