"""A member of a Kafka consumer group, on confluent-kafka (librdkafka), whose own threads fetch the records.

librdkafka runs callbacks during a rebalance, within `consume`, and expects them to call `assign` or `unassign`. Here
they assign nothing: fetching stops at once, and after a revocation the group waits, while heartbeats continue, until
the next poll calls `unassign`. The partitions that the worker reads are assigned later, each with its position. So this
module never seeks, never pauses, and never reads the group's committed offsets.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import methodcaller
from typing import Any

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from streampca.formats.record import Columns, Record
from streampca.settings.commands import ConsumerSettings
from streampca.sources import base
from streampca.sources.base import Committed
from streampca.sources.client_connection import one_line
from streampca.sources.client_source import ClientSource, log_failed_commit
from streampca.sources.confluent.connection import Connection, committed
from streampca.sources.confluent.options import consumer_options, create
from streampca.sources.events import Assigned, Lost, Revoked, SourceStatus

_MAX_WAIT_S = 0.05  # longest delay of a rebalance event
_OFFSETS_S = 3.0
_CLOSE_S = 2.0
_CHECK_MEMBER_S = 1.0  # asking for the id of the member waits for a thread of librdkafka

log = structlog.get_logger()


class ConfluentBatch(Columns):
    """Messages of one partition; a record is created only when it is indexed."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ConfluentBatch(self._messages[index])
        message = self._messages[index]
        return Record(**{name: read(message) for name, read in _FIELDS.items()})

    def column(self, name: str) -> list[Any]:
        return list(map(_FIELDS[name], self._messages))


class ConfluentSource(ClientSource):
    """See `streampca.sources.base.Source`."""

    client_error = KafkaException
    _connection: Connection

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings.topic)
        self._max_records = base.MAX_POLL_RECORDS
        self._connection = Connection(settings, settings.topic).start()
        self._memberships: deque[Any] = deque()  # the group's metadata of the assignments in `_rebalances`
        self._is_alone, self._is_member = not settings.group, False
        self._subscribed = self._is_alone
        if self._is_alone:
            self._assigned = self._connection.partitions()
        self._revoking = False  # the group waits until the revocation is handled
        self._member_id = ""  # at the last assignment
        self._check_member_at = 0.0  # monotonic
        self._errors: list[KafkaError] = []  # of the client, not handled yet
        self._ends: dict[int, int] = {}  # reached by the last fetch
        callbacks = {"error_cb": self._errors.append, "on_commit": _on_commit}
        self._consumer = create(Consumer, consumer_options(settings) | callbacks)

    def _fetch(self, timeout_s: float) -> Mapping[int, ConfluentBatch]:
        if not self._subscribed:  # not earlier: librdkafka joins the group at once, and then the group waits for polls
            self._consumer.subscribe([self._topic], self._on_assign, self._on_revoke, self._on_lost)
            self._subscribed = True
        if self._revoking:  # the revocation is handled by now
            self._revoking = False
            self._consumer.unassign()
        messages = self._consume(timeout_s)
        if self._rebalances:
            return {}
        failed = [message for message in messages if message.error()]
        self._ends = self._handle_failed(failed)
        self._raise_errors()
        good = [message for message in messages if not message.error()] if failed else messages
        arrived: dict[int, list[Message]] = {}
        for partition, run in groupby(good, methodcaller("partition")):
            arrived.setdefault(partition, []).extend(run)
        return {partition: ConfluentBatch(batch) for partition, batch in arrived.items()}

    def _reached(self, partition: int) -> tuple[int, int]:
        _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
        return self._ends.get(partition, -1), end

    def _joined(self, partitions: Collection[int]) -> Any:
        return self._memberships.popleft()

    def status(self) -> SourceStatus:
        # `on_lost` is not called for a member without partitions; but a member that joins again gets another id.
        now = time.monotonic()
        if self._is_member and now >= self._check_member_at:
            self._check_member_at = now + _CHECK_MEMBER_S
            self._is_member = self._consumer.memberid() == self._member_id
        connection = self._connection
        return SourceStatus(connection.connected, self._is_member, connection.last_failure, self._blocked_since)

    def _commit(self, offsets: Mapping[int, Committed]) -> None:
        self._consumer.commit(offsets=self.named(offsets))

    def named(self, offsets: Mapping[int, Committed]) -> list[TopicPartition]:
        """Offsets as the client commits them."""
        return [TopicPartition(self._topic, partition, *committed) for partition, committed in offsets.items()]

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        tps = [TopicPartition(self._topic, partition) for partition in partitions]
        try:
            answer = self._consumer.committed(tps, timeout=_OFFSETS_S) if tps else []
        except KafkaException as error:
            raise self._connection.lookup_error("the committed offsets", error.args[0]) from None
        for tp in answer:
            if tp.error is not None:
                raise TimeoutError(f"the committed offsets are not known: {tp.error.str()}")
        return committed(answer)

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        try:
            tps = [TopicPartition(self._topic, partition, time_ms or 0) for partition in partitions]
            ends = {tp.partition: self._consumer.get_watermark_offsets(tp, timeout=_OFFSETS_S)[1] for tp in tps}
            at = [] if time_ms is None else self._consumer.offsets_for_times(tps, timeout=_OFFSETS_S)
        except KafkaException as error:
            raise self._connection.lookup_error("the offsets", error.args[0]) from None
        return ends | {tp.partition: tp.offset for tp in at if tp.offset >= 0}

    def _leave(self) -> None:
        # Takes long when brokers are away, and has no timeout.
        closing = threading.Thread(target=self._consumer.close, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            log.warning("the group was not left in order", error=f"no answer within {_CLOSE_S:.0f} s")

    def _consume(self, timeout_s: float) -> list[Message]:
        """All messages fetched so far; if there are none, wait for the first."""
        deadline = time.monotonic() + timeout_s
        try:
            messages: list[Message] = self._consumer.consume(self._max_records, 0)
            while not messages and not self._rebalances and (left_s := deadline - time.monotonic()) > 0:
                messages = self._consumer.consume(1, min(left_s, _MAX_WAIT_S))
                if messages:
                    messages += self._consumer.consume(self._max_records - 1, 0)
        except KafkaException as error:
            self._errors.append(error.args[0])
            return []
        return messages

    def _read(self, partitions: Collection[int]) -> None:
        if not self._rebalances:  # else soon none of them is ours
            self._consumer.assign([TopicPartition(self._topic, p, self._start(p)) for p in self._reported])

    _stop_reading = _read  # all that are still read are assigned

    def _handle_failed(self, messages: Iterable[Any]) -> dict[int, int]:
        """Note positions out of range, and errors; returns the ends that were reached, by partition."""
        ends: dict[int, int] = {}
        for message in messages:
            error, partition = message.error(), message.partition()
            if error.code() == KafkaError._PARTITION_EOF:
                ends[partition] = message.offset()
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._note_out_of_range([partition])
            elif not self._is_alone or error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                self._errors.append(error)
        return ends

    def _raise_errors(self) -> None:
        """Raise `SourceError` for the errors that waiting cannot fix."""
        errors = list(self._errors)
        self._errors.clear()  # the client appends to this very list
        for error in errors:
            self._connection.last_failure = one_line(error.str())
            log.debug("client error, retrying", error=self._connection.last_failure)
            if self._connection.is_final(error):
                raise self._connection.source_error(error)

    def _log_offsets(self, partition: int) -> tuple[int, int] | None:
        try:
            tp = TopicPartition(self._topic, partition)
            first, end = self._consumer.get_watermark_offsets(tp, timeout=_OFFSETS_S)
        except KafkaException as error:  # most likely the broker is away
            self._errors.append(error.args[0])
            return None
        return first, end

    def _on_assign(self, consumer: Consumer, assigned: Sequence[TopicPartition]) -> None:
        consumer.assign([])
        self._is_member, self._member_id = True, self._consumer.memberid()
        if assigned:
            self._memberships.append(consumer.consumer_group_metadata())
        self._add_rebalance(Assigned, assigned)

    def _on_revoke(self, consumer: Consumer, revoked: Sequence[TopicPartition]) -> None:
        self._is_member = False
        if not self._closed:
            consumer.assign([])  # makes the group wait for us; without it librdkafka calls `unassign` itself
            self._revoking = True
            self._add_rebalance(Revoked, revoked)

    def _on_lost(self, consumer: Consumer, lost: Sequence[TopicPartition]) -> None:
        self._is_member = False
        if not self._revoking:  # else the event `Revoked` exists already, and the worker may not be done with it
            self._add_rebalance(Lost, lost)
        self._revoking = False


def _timestamp(message: Message) -> int:
    kind, timestamp = message.timestamp()
    return -1 if kind == TIMESTAMP_NOT_AVAILABLE else int(timestamp)


def _headers(message: Any) -> Sequence[tuple[str, bytes | None]]:
    try:
        return message.headers() or ()
    except UnicodeDecodeError:  # a name is not UTF-8: the client returns none of them
        return [("__connect.errors.headers", b"a header name is not UTF-8")]


_FIELDS: Mapping[str, Callable[[Message], Any]] = {
    "offset": Message.offset,  # called so, it takes a quarter of the time of `methodcaller`
    "value": Message.value,
    "timestamp": _timestamp,
    "key": Message.key,
    "headers": _headers,
    "leader_epoch": Message.leader_epoch,
}


def _on_commit(error: KafkaError | None, offsets: Any) -> None:
    if error is not None and error.code() != KafkaError._NO_OFFSET:
        log_failed_commit(error.str())
