"""A member of a Kafka consumer group, on confluent-kafka (librdkafka), whose own threads fetch the records.

After a rebalance (rebalance.py) librdkafka has no partitions. Those that the worker reads are assigned to it later,
each with its position. So this module never seeks, never pauses, and never reads the group's committed offsets.
"""

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import methodcaller
from typing import Any

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from streampca.settings import ConsumerSettings
from streampca.sources import base
from streampca.sources.base import Committed
from streampca.sources.confluent import client
from streampca.sources.confluent.batch import ConfluentBatch, Message
from streampca.sources.confluent.connection import Connection
from streampca.sources.confluent.rebalance import RebalanceListener
from streampca.stream.events import Assigned, Event, OutOfRange, Records, SourceStatus
from streampca.stream.record import NO_RECORDS, LastRecord

_MAX_WAIT_S = 0.05  # an event of a rebalance is returned after at most so long
_OFFSETS_S = 3.0
_CLOSE_S = 2.0

log = structlog.get_logger()


class ConfluentSource:
    """See `streampca.sources.base.Source`."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._topic, self._max_records = settings.topic, base.MAX_POLL_RECORDS
        self._connection = Connection(settings, settings.topic)
        self._rebalance = RebalanceListener()
        self._assigned: frozenset[int] = frozenset()  # by the events returned so far
        self._member_id = ""
        self._errors: list[KafkaError] = []  # of the client, not handled yet
        self._reported: dict[int, tuple[int, int]] = {}  # partitions being read: (next, end) as last returned
        self._last: dict[int, LastRecord] = {}  # read again first: a log that was cut has another one there
        self._out_of_range: dict[int, int] = {}  # partition → position, not returned yet
        self._subscribed = self._closed = False
        callbacks = {"error_cb": self._errors.append, "on_commit": _log_failed_commit}
        self._consumer = client.create(Consumer, client.consumer_options(settings) | callbacks)

    @property
    def membership(self) -> Any:
        """The group's metadata of the last assignment returned; None without one."""
        return self._rebalance.membership

    def topic_id(self) -> str:
        return self._connection.topic_id()

    def partitions(self) -> frozenset[int]:
        return self._connection.partitions() | self._assigned

    def poll(self, timeout_s: float) -> Sequence[Event]:
        if not self._subscribed:  # not earlier: librdkafka joins the group at once, and then the group waits for polls
            self._consumer.subscribe([self._topic], **self._rebalance.callbacks())
            self._subscribed = True
        self._rebalance.proceed(self._consumer)
        messages = [] if self._rebalance.events else self._consume(timeout_s)
        self._connection.watch()
        if self._rebalance.events:  # drops the messages: they were read before the rebalance
            return [self._next_rebalance_event()]
        failed = [message for message in messages if message.error()]
        ends = self._handle_failed(failed)
        good = [message for message in messages if not message.error()] if failed else messages
        self._raise_errors()
        records = self._records(good, ends)
        return [*self._out_of_range_events(), *records]

    def status(self) -> SourceStatus:
        # `on_lost` is not called for a member without partitions; but a member that joins again gets another id.
        known, self._member_id = self._member_id, self._consumer.memberid()
        return SourceStatus(self._connection.connected, member=self._rebalance.is_member and self._member_id == known)

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        for partition, position in positions.items():
            if partition not in self._assigned:
                raise ValueError(f"partition {partition} is not assigned")
            self._out_of_range.pop(partition, None)
            self._reported[partition] = (OFFSET_BEGINNING if position is None else position, -1)
            self._last.pop(partition, None)
        self._last |= last
        self._assign()

    def pause(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._reported.pop(partition, None)
            self._last.pop(partition, None)
        self._assign()

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        if not self._connection.connected or not positions:
            return
        offsets = {partition: Committed(position, metadata) for partition, position in positions.items()}
        try:
            self._consumer.commit(offsets=self.named(offsets))
        except KafkaException as error:
            _log_failed_commit(error.args[0], [])

    def named(self, offsets: Mapping[int, Committed]) -> list[TopicPartition]:
        """Offsets as the client commits them."""
        return [TopicPartition(self._topic, partition, *committed) for partition, committed in offsets.items()]

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        wanted = [TopicPartition(self._topic, partition) for partition in partitions]
        try:
            found = self._consumer.committed(wanted, timeout=_OFFSETS_S) if wanted else []
        except KafkaException as error:
            if client.is_final(error.args[0]):
                raise self._connection.source_error(error.args[0]) from None
            raise TimeoutError(f"the committed offsets are not known: {error.args[0].str()}") from None
        for tp in found:
            if tp.error is not None:
                raise TimeoutError(f"the committed offsets are not known: {tp.error.str()}")
        return client.committed(found)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._rebalance.closing = True
        # Takes long when brokers are away, and has no timeout.
        closing = threading.Thread(target=self._consumer.close, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            log.warning("the group was not left in order", error=f"no answer within {_CLOSE_S:.0f} s")

    def _next_rebalance_event(self) -> Event:
        """Apply and return the first event; others may follow with the next polls."""
        event = self._rebalance.take()
        self._assigned = event.partitions if isinstance(event, Assigned) else frozenset()
        self._reported, self._out_of_range, self._last = {}, {}, {}
        return event

    def _consume(self, timeout_s: float) -> list[Message]:
        """All messages fetched so far; if there are none, wait for the first."""
        deadline = time.monotonic() + timeout_s
        try:
            messages: list[Message] = self._consumer.consume(self._max_records, 0)
            while not messages and not self._rebalance.events and (left_s := deadline - time.monotonic()) > 0:
                messages = self._consumer.consume(1, min(left_s, _MAX_WAIT_S))
                if messages:
                    messages += self._consumer.consume(self._max_records - 1, 0)
        except KafkaException as error:
            self._errors.append(error.args[0])
            return []
        return messages

    def _assign(self) -> None:
        """Let the client fetch the partitions that are being read, each from its position, or the record before it."""
        if not self._rebalance.events:  # else soon none of them is ours
            positions = {partition: next_ for partition, (next_, _) in self._reported.items()}
            positions |= {p: last.offset for p, last in self._last.items() if p in positions}
            self._consumer.assign([TopicPartition(self._topic, p, position) for p, position in positions.items()])

    def _handle_failed(self, messages: Iterable[Message]) -> dict[int, int]:
        """Note positions out of range, and errors; returns the ends that were reached, by partition."""
        ends: dict[int, int] = {}
        for message in messages:
            error, partition = message.error(), message.partition()
            if error.code() == KafkaError._PARTITION_EOF:
                ends[partition] = message.offset()
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                position, _ = self._reported.pop(partition, (OFFSET_BEGINNING, -1))
                self._out_of_range[partition] = message.offset() if position == OFFSET_BEGINNING else position
            else:
                self._errors.append(error)
        return ends

    def _raise_errors(self) -> None:
        """Raise `SourceError` for the errors that waiting cannot fix."""
        errors = list(self._errors)
        self._errors.clear()  # the client appends to this very list
        for error in errors:
            log.debug("client error, retrying", error=error.str())
            if client.is_final(error):
                raise self._connection.source_error(error)

    def _records(self, messages: Sequence[Message], ends: Mapping[int, int]) -> list[Event]:
        """One event for each partition with new records, or with a position or end that moved without any."""
        arrived: dict[int, list[Message]] = {}
        for partition, run in groupby(messages, methodcaller("partition")):
            arrived.setdefault(partition, []).extend(run)
        events: list[Event] = []
        for partition, before in list(self._reported.items()):
            batch = self._after_last(partition, arrived.get(partition, []), ends.get(partition, -1))
            if partition in self._last or partition in self._out_of_range:
                continue
            next_ = max(before[0], ends.get(partition, -1), batch[-1].offset() + 1 if batch else -1)
            _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
            now = (next_, max(end, next_))
            if now != before and next_ >= 0 and end >= 0:  # negative until the first fetch
                self._reported[partition] = now
                events.append(Records(partition, ConfluentBatch(batch), *now))
        return events

    def _after_last(self, partition: int, batch: list[Message], end: int) -> list[Message]:
        """The messages from the position on; notes it as out of range if another record is before it.

        A record that compaction has removed cannot be compared.
        """
        last, (position, _) = self._last.get(partition), self._reported[partition]
        if last is None or (not batch and end < 0):
            return batch
        del self._last[partition]
        is_other = batch and batch[0].offset() == last.offset and batch[0].leader_epoch() != last.leader_epoch
        if is_other or 0 <= end < position:
            del self._reported[partition]
            self._out_of_range[partition] = position
        return [message for message in batch if message.offset() >= position]

    def _out_of_range_events(self) -> list[Event]:
        events: list[Event] = []
        for partition, position in list(self._out_of_range.items()):
            try:
                tp = TopicPartition(self._topic, partition)
                first, last = self._consumer.get_watermark_offsets(tp, timeout=_OFFSETS_S)
            except KafkaException as error:  # most likely the broker is away: a later poll asks again
                self._errors.append(error.args[0])
                continue
            del self._out_of_range[partition]
            before = self._last.pop(partition, None)
            if before and before.offset < first <= position <= last:  # retention has removed what comes before
                self._reported[partition] = (position, -1)
                self._assign()
                continue
            replaced = position - 1 if first <= position <= last else None  # the last record, at least
            events.append(OutOfRange(partition, position, first, last, replaced))
        return events


def _log_failed_commit(error: KafkaError | None, offsets: Any) -> None:
    if error is not None and error.code() != KafkaError._NO_OFFSET:
        log.warning("offsets not committed; lag tools will show older ones", error=error.str())
