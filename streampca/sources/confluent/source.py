"""A member of a Kafka consumer group, on confluent-kafka (librdkafka).

librdkafka fetches records in threads of its own. During a rebalance it runs callbacks, within `consume`, and expects
them to call `assign` or `unassign`. Our callbacks assign an empty list, so fetching stops at once. After a revocation
the group waits, while heartbeats continue, until our next poll calls `unassign`. When the caller seeks, the partitions
that it reads are assigned, each with its position. So this module never seeks, never pauses, and never reads from the
group's committed offsets.
"""

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import methodcaller
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from streampca.settings.commands import ConsumerSettings
from streampca.sources import base
from streampca.sources.base import Committed
from streampca.sources.client_connection import one_line
from streampca.sources.client_source import UNKNOWN, ClientSource, log_failed_commit
from streampca.sources.confluent.batch import ConfluentBatch
from streampca.sources.confluent.connection import ConfluentConnection, parse_committed
from streampca.sources.confluent.options import consumer_options, create
from streampca.sources.events import Assigned, Lost, Revoked, SourceStatus

_LONGEST_WAIT_S = 0.05  # for a message at once: a rebalance event is returned at most this much later
_OFFSETS_TIMEOUT_S = 3.0
_CLOSE_TIMEOUT_S = 2.0
_CHECK_MEMBER_EVERY_S = 1.0  # not more often: asking for the member's id waits for a thread of librdkafka
_CHECK_GROUP_EVERY_S = 10.0

log = structlog.get_logger()


class ConfluentSource(ClientSource):
    """See `streampca.sources.base.Source`."""

    client_error = KafkaException
    _connection: ConfluentConnection

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings.topic)
        self._max_records = base.MAX_POLL_RECORDS
        self._connection = ConfluentConnection(settings, settings.topic).start()
        self._memberships: deque[Any] = deque()  # the group's metadata of each assignment in `_rebalances`
        self._group = settings.group  # "": no group
        self._is_member = False
        self._subscribed = False
        if not self._group:
            self._assigned = self._connection.partitions()
        self._revoking = False  # the group waits until the revocation is handled
        self._member_id = ""  # at the last assignment
        self._check_member_at = 0.0  # by time.monotonic
        self._check_group_at = 0.0  # by time.monotonic
        self._errors: list[KafkaError] = []  # of the client, not handled yet
        self._ends_reached: dict[int, int] = {}  # by the last fetch, partition → its end
        callbacks = {"error_cb": self._errors.append, "on_commit": _on_commit}
        self._consumer = create(Consumer, consumer_options(settings) | callbacks)

    def _fetch(self, timeout_s: float) -> Mapping[int, ConfluentBatch]:
        if self._is_member and not self._assigned:
            self._rejoin_if_unassigned()
        if self._group and not self._subscribed:
            # Not before the first poll: librdkafka joins the group at once, and then the group waits for our polls.
            self._subscribe()
            self._subscribed = True
        if self._revoking:  # the caller has handled the revocation, since it polls again
            self._revoking = False
            self._consumer.unassign()
        messages = self._consume(timeout_s)
        if self._rebalances:
            return {}
        failed = [message for message in messages if message.error()]
        self._ends_reached = self._handle_failed(failed)
        self._raise_errors()
        if failed:
            messages = [message for message in messages if not message.error()]
        arrived: dict[int, list[Message]] = {}
        for partition, run in groupby(messages, methodcaller("partition")):  # a run: messages of one partition in a row
            arrived.setdefault(partition, []).extend(run)
        return {partition: ConfluentBatch(batch) for partition, batch in arrived.items()}

    def _rejoin_if_unassigned(self) -> None:
        """If nobody in the group reads the topic, although this user may read it, join the group again.

        If the leader of the group may not read the topic for a moment, it assigns no partition to anybody, and
        librdkafka does not assign again. The brokers are asked every ten seconds.
        """
        now = time.monotonic()
        if now < self._check_group_at:
            return
        self._check_group_at = now + _CHECK_GROUP_EVERY_S
        if self._connection.is_unassigned(self._group) and self._may_read():
            self._subscribe()

    def _may_read(self) -> bool:
        """Return whether this user may read the topic. The answer also tells the client of the topic's partitions."""
        try:
            topics = self._consumer.list_topics(self._topic, timeout=_OFFSETS_TIMEOUT_S).topics
        except KafkaException:
            return False
        return topics[self._topic].error is None

    def _subscribe(self) -> None:
        """Join the group. If this member leads the group already, it then assigns the partitions again."""
        self._consumer.subscribe([self._topic], self._on_assign, self._on_revoke, self._on_lost)

    def _fetched_up_to(self, partition: int) -> tuple[int, int]:
        # The client does not tell its position, except at the end of the partition.
        _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
        return self._ends_reached.get(partition, UNKNOWN), end

    def _prepare_assigned(self, partitions: Collection[int]) -> Any:
        return self._memberships.popleft()  # `_on_assign` has stopped fetching

    def status(self) -> SourceStatus:
        # If a member without partitions is removed from the group, librdkafka does not call `_on_lost`. But when the
        # member joins again, it gets another id.
        now = time.monotonic()
        if self._is_member and now >= self._check_member_at:
            self._check_member_at = now + _CHECK_MEMBER_EVERY_S
            self._is_member = self._consumer.memberid() == self._member_id
        return SourceStatus(
            connected=self._connection.connected,
            member=self._is_member,
            cause=self._connection.last_failure,
            blocked_since=self._blocked_since,
        )

    def _commit(self, offsets: Mapping[int, Committed]) -> None:
        self._consumer.commit(offsets=self.convert_offsets(offsets))

    def convert_offsets(self, offsets: Mapping[int, Committed]) -> list[TopicPartition]:
        """Return offsets in the form in which the client commits them."""
        return [TopicPartition(self._topic, partition, *committed) for partition, committed in offsets.items()]

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        tps = [TopicPartition(self._topic, partition) for partition in partitions]
        try:
            answer = self._consumer.committed(tps, timeout=_OFFSETS_TIMEOUT_S) if tps else []
        except KafkaException as error:
            raise self._connection.lookup_error("the committed offsets", error.args[0]) from None
        for tp in answer:
            if tp.error is not None:
                raise TimeoutError(f"the committed offsets are not known: {tp.error.str()}")
        return parse_committed(answer)

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        try:
            # In a request for timestamps, the client reads them from the field of offsets.
            tps = [TopicPartition(self._topic, partition, time_ms or 0) for partition in partitions]
            offsets = {}
            for tp in tps:
                _, end = self._consumer.get_watermark_offsets(tp, timeout=_OFFSETS_TIMEOUT_S)
                offsets[tp.partition] = end
            found: list[TopicPartition] = []
            if time_ms is not None:
                found = self._consumer.offsets_for_times(tps, timeout=_OFFSETS_TIMEOUT_S)
        except KafkaException as error:
            raise self._connection.lookup_error("the offsets", error.args[0]) from None
        for tp in found:
            if tp.offset >= 0:  # negative: no record has such a timestamp
                offsets[tp.partition] = tp.offset
        return offsets

    def _leave(self) -> None:
        # In a thread: `close` has no timeout, and takes long while brokers are away.
        closing = threading.Thread(target=self._consumer.close, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)
        if closing.is_alive():
            log.warning("the group was not left in order", error=f"no answer within {_CLOSE_TIMEOUT_S:.0f} s")

    def _consume(self, timeout_s: float) -> list[Message]:
        """Return all messages fetched so far. If there are none, wait for the first, or until a rebalance begins."""
        deadline = time.monotonic() + timeout_s
        try:
            messages: list[Message] = self._consumer.consume(self._max_records, 0)
            while not messages and not self._rebalances:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                messages = self._consumer.consume(1, min(left_s, _LONGEST_WAIT_S))
                if messages:
                    messages += self._consumer.consume(self._max_records - 1, 0)
        except KafkaException as error:
            self._errors.append(error.args[0])
            return []
        return messages

    def _start_fetching(self, partitions: Collection[int]) -> None:
        self._assign_all_that_are_read()

    def _stop_fetching(self, partitions: Collection[int]) -> None:
        self._assign_all_that_are_read()

    def _assign_all_that_are_read(self) -> None:
        if self._rebalances:
            return  # soon none of the partitions is ours
        self._consumer.assign([TopicPartition(self._topic, p, self._fetch_offset(p)) for p in self._progress])

    def _handle_failed(self, messages: Iterable[Any]) -> dict[int, int]:
        """Handle the messages that are not records: note errors and positions out of range.

        Return the ends that were reached, by partition.
        """
        ends: dict[int, int] = {}
        for message in messages:
            error = message.error()
            code = error.code()
            partition = message.partition()
            if code == KafkaError._PARTITION_EOF:
                ends[partition] = message.offset()
            elif code == KafkaError._AUTO_OFFSET_RESET:
                self._note_out_of_range([partition])
            elif code == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._group:
                pass  # librdkafka asks for the group that a reader without a group must name, see `consumer_options`
            else:
                self._errors.append(error)
        return ends

    def _raise_errors(self) -> None:
        """Raise `SourceError` if the client has reported an error that waiting cannot fix."""
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
            earliest, end = self._consumer.get_watermark_offsets(tp, timeout=_OFFSETS_TIMEOUT_S)
        except KafkaException as error:  # most likely the broker is away
            self._errors.append(error.args[0])
            return None
        return earliest, end

    def _on_assign(self, consumer: Consumer, assigned: Sequence[TopicPartition]) -> None:
        consumer.assign([])  # nothing is fetched before `seek`
        self._is_member = True
        self._member_id = self._consumer.memberid()
        self._check_group_at = time.monotonic() + _CHECK_GROUP_EVERY_S
        if assigned:
            self._memberships.append(consumer.consumer_group_metadata())
        self._add_rebalance(Assigned, assigned)

    def _on_revoke(self, consumer: Consumer, revoked: Sequence[TopicPartition]) -> None:
        self._is_member = False
        if not self._closed:
            # Without this call, librdkafka would call `unassign` itself, and the group would not wait until the
            # revocation is handled.
            consumer.assign([])
            self._revoking = True
            self._add_rebalance(Revoked, revoked)

    def _on_lost(self, consumer: Consumer, lost: Sequence[TopicPartition]) -> None:
        self._is_member = False
        if not self._revoking:  # else the event `Revoked` of them exists already, and the worker may be handling it
            self._add_rebalance(Lost, lost)
        self._revoking = False


def _on_commit(error: KafkaError | None, offsets: Any) -> None:
    if error is not None and error.code() != KafkaError._NO_OFFSET:  # no offset to commit: not a failure
        log_failed_commit(error.str())
