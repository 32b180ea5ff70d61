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
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from streampca.settings.commands import ConsumerSettings
from streampca.sources import base
from streampca.sources.base import Committed
from streampca.sources.broker_errors import one_line
from streampca.sources.client_source import ClientSource, log_failed_commit
from streampca.sources.confluent.batch import ConfluentBatch
from streampca.sources.confluent.connection import ConfluentConnection
from streampca.sources.confluent.options import consumer_options, create
from streampca.sources.events import Assigned, Lost, Revoked
from streampca.sources.read_positions import UNKNOWN, Reached

_LONGEST_WAIT_S = 0.05  # for a message at once: a rebalance event is returned at most this much later
_OFFSETS_TIMEOUT_S = 3.0
_CLOSE_TIMEOUT_S = 2.0
_CHECK_MEMBER_EVERY_S = 1.0  # not more often: asking for the member's id waits for a thread of librdkafka
_CHECK_GROUP_EVERY_S = 10.0
_TRUNCATION = KafkaError(KafkaError._LOG_TRUNCATION).str()

log = structlog.get_logger()


class ConfluentSource(ClientSource):
    """See `streampca.sources.base.Source`."""

    client_error = KafkaException
    _connection: ConfluentConnection

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings.topic)
        self._max_records = base.MAX_POLL_RECORDS  # limit of what one poll returns
        self._connection = ConfluentConnection(settings, settings.topic).start()
        self._group = settings.group  # "": no group
        if not self._group:  # without a group, all partitions are assigned to this consumer
            self._assigned = self._connection.partitions()
        self._has_subscribed = False  # whether this consumer has asked to join the group, in its first poll
        self._has_joined = False  # whether this consumer is a member of the group, as last found
        # A revocation has three steps: 1. the client calls `_on_revoke`; 2. `poll` returns `Revoked`, which the worker
        # handles; 3. the next poll gives the partitions up. This is True from step 1 to step 3.
        self._is_revoking = False
        # For each event `Assigned` that `poll` has not returned yet: the group's metadata at this assignment. Commits
        # need them.
        self._queued_group_metadata: deque[Any] = deque()
        # The group has given this id to this member at the last assignment. If the client's id differs from it, the
        # group has removed this member.
        self._member_id = ""
        self._next_member_check_at = 0.0  # when to compare the ids again, by time.monotonic
        # If the group's leader may not read the topic, it assigns none of the topic's partitions, so nobody reads them.
        # This is when to ask a broker again whether anybody does, by time.monotonic.
        self._next_group_check_at = 0.0
        self._errors: list[KafkaError] = []  # of the client, not handled yet
        self._ends_reached: dict[int, int] = {}  # partition that the last fetch has read to its end → this end
        callbacks = {"error_cb": self._errors.append, "on_commit": _on_commit}
        self._consumer = create(Consumer, consumer_options(settings) | callbacks)

    def _fetch(self, timeout_s: float) -> Mapping[int, ConfluentBatch]:
        """Return new records by partition; none if a rebalance has begun. The first call joins the group."""
        self._update_membership()
        messages = self._consume(timeout_s)
        if self._rebalances:  # drop the messages: after the rebalance, the caller seeks to where it reads on
            return {}
        # If a partition ends, or cannot be fetched, librdkafka reports this in a message with an error.
        error_messages = [message for message in messages if message.error()]
        self._ends_reached = {}
        for message in error_messages:
            self._note_end_or_error(message)  # adds an end to `_ends_reached`
        self._raise_permanent_errors()
        if error_messages:
            messages = [message for message in messages if not message.error()]
        return _group_by_partition(messages)

    def _update_membership(self) -> None:
        """Join the group, if this is the first poll; end a revocation; join again if nobody reads the topic."""
        # A consumer joins in its first poll, not when it is created: a member that does not poll yet would hold up the
        # group's rebalance.
        if self._group and not self._has_subscribed:
            self._subscribe()
        if self._is_revoking:  # the caller polls again, so it has handled the event `Revoked` of the last poll
            self._is_revoking = False
            self._consumer.unassign()
        has_no_partition = self._has_joined and not self._assigned
        if has_no_partition:
            self._rejoin_if_nobody_reads()

    def _rejoin_if_nobody_reads(self) -> None:
        """If nobody in the group reads the topic, although this user may, join the group again.

        A leader that briefly lacks the right to read assigns no partition, and does not assign again.
        """
        now = time.monotonic()
        if now < self._next_group_check_at:
            return
        self._next_group_check_at = now + _CHECK_GROUP_EVERY_S
        if self._connection.is_unassigned(self._group) and self._may_read():
            self._subscribe()

    def _may_read(self) -> bool:
        """Ask a broker whether this user may read the topic. The client also learns the topic's partitions."""
        try:
            topics = self._consumer.list_topics(self._topic, timeout=_OFFSETS_TIMEOUT_S).topics
        except KafkaException:
            return False
        return topics[self._topic].error is None

    def _subscribe(self) -> None:
        """Join the group, so that its leader assigns the partitions."""
        self._consumer.subscribe([self._topic], self._on_assign, self._on_revoke, self._on_lost)
        self._has_subscribed = True

    def _fetched_to(self, partition: int) -> Reached:
        """Return the end of a partition if the last fetch has read up to it, and the end that the client knows."""
        _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
        return Reached(next=self._ends_reached.get(partition, UNKNOWN), end=end)

    def _pause_until_seek(self, partitions: Collection[int]) -> None:
        """Do nothing: `_on_assign` has assigned an empty list, so the client fetches nothing until the caller seeks."""

    def _take_group_metadata(self) -> Any:
        return self._queued_group_metadata.popleft()

    def _is_member(self) -> bool:
        # For a member without partitions, librdkafka does not call `_on_lost`: only the member's id changes.
        now = time.monotonic()
        if self._has_joined and now >= self._next_member_check_at:
            self._next_member_check_at = now + _CHECK_MEMBER_EVERY_S
            self._has_joined = self._consumer.memberid() == self._member_id
        return self._has_joined

    def _commit(self, offsets: Mapping[int, Committed]) -> None:
        self._consumer.commit(offsets=self.convert_offsets(offsets))

    def convert_offsets(self, offsets: Mapping[int, Committed]) -> list[TopicPartition]:
        """Return offsets in the form in which the client commits them."""
        return [TopicPartition(self._topic, partition, *committed) for partition, committed in offsets.items()]

    def committed(self) -> dict[int, Committed]:
        """Ask for the group's committed offsets of all partitions; a partition without one is left out."""
        tps = [TopicPartition(self._topic, partition) for partition in self.partitions()]
        with self._connection.translate_errors("the committed offsets"):
            answer = self._consumer.committed(tps, timeout=_OFFSETS_TIMEOUT_S)
        committed = {}
        for tp in answer:
            if tp.error is not None:
                raise TimeoutError(f"the committed offsets are not known: {tp.error.str()}")
            is_committed = tp.offset >= 0
            if is_committed:
                committed[tp.partition] = Committed(tp.offset, _read_metadata(tp))
        return committed

    def _find_committed_ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Ask brokers where the committed records of partitions end.

        The client reads only the records of committed transactions, so brokers answer with the end of these records.
        """
        ends = {}
        with self._connection.translate_errors("the offsets"):
            for partition in partitions:
                tp = TopicPartition(self._topic, partition)
                _, end = self._consumer.get_watermark_offsets(tp, timeout=_OFFSETS_TIMEOUT_S)
                ends[partition] = end
        return ends

    def _find_first_at(self, partitions: Collection[int], time_ms: int) -> dict[int, int]:
        # `offsets_for_times` expects the timestamp in the field `offset` of each `TopicPartition`.
        questions = [TopicPartition(self._topic, partition, time_ms) for partition in partitions]
        with self._connection.translate_errors("the offsets"):
            answer = self._consumer.offsets_for_times(questions, timeout=_OFFSETS_TIMEOUT_S)
        return {tp.partition: tp.offset for tp in answer if tp.offset >= 0}  # negative: no such record

    def _leave(self) -> None:
        """Leave the group, and close the consumer, within some seconds."""
        # `close` has no timeout, so a thread calls it.
        closing = threading.Thread(target=self._consumer.close, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)
        if closing.is_alive():
            log.warning("the group was not left in order", error=f"no answer within {_CLOSE_TIMEOUT_S:.0f} s")

    def _consume(self, timeout_s: float) -> list[Message]:
        """Return all messages fetched so far. If there are none, wait for the first, or for a rebalance to begin."""
        deadline = time.monotonic() + timeout_s
        try:
            messages: list[Message] = self._consumer.consume(self._max_records, 0)
            while not messages and not self._rebalances:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                # For more than one message, `consume` would wait until it has them all. It waits only briefly, since a
                # rebalance does not end this wait.
                messages = self._consumer.consume(1, min(left_s, _LONGEST_WAIT_S))
                if messages:
                    messages += self._consumer.consume(self._max_records - 1, 0)
        except KafkaException as error:
            self._errors.append(error.args[0])
            return []
        return messages

    def _start_fetching(self, partitions: Collection[int]) -> None:
        """Let the client fetch all partitions that are being read, each from its position, and no others.

        `partitions` is not used: the client takes only the whole list of what it fetches.
        """
        if self._rebalances:
            # A rebalance has begun, and the positions still belong to the assignment before it. After the event
            # `Assigned`, the caller seeks, which calls this method again.
            return
        tps = []
        for partition in self._positions.by_partition:
            tps.append(TopicPartition(self._topic, partition, self._positions.offset_to_fetch_from(partition)))
        self._consumer.assign(tps)

    _stop_fetching = _start_fetching  # both assign what is to be read now

    def _note_end_or_error(self, message: Any) -> None:
        """Note that the client has read a partition to its end, or has failed to read it."""
        error = message.error()
        partition = message.partition()
        match error.code():
            case KafkaError._PARTITION_EOF:
                self._ends_reached[partition] = message.offset()
            case KafkaError._AUTO_OFFSET_RESET if _TRUNCATION in error.str():  # only the text names the cause
                self._positions.stop_as_truncated(partition)
            case KafkaError._AUTO_OFFSET_RESET:
                self._positions.stop_as_out_of_range(partition)
            case KafkaError.GROUP_AUTHORIZATION_FAILED if not self._group:
                pass  # without a group, `group.id` is only a placeholder
            case _:
                self._errors.append(error)

    def _raise_permanent_errors(self) -> None:
        """Raise `SourceError` if the client has reported an error that waiting cannot fix; log all others."""
        errors = list(self._errors)
        self._errors.clear()  # the client appends to this list
        for error in errors:
            text = one_line(error.str())
            self._connection.last_failure = text
            log.debug("client error, retrying", error=text)
            if self._connection.must_raise(error):
                raise self._connection.source_error(error)

    def _find_offset_range(self, partition: int) -> tuple[int, int] | None:
        try:
            tp = TopicPartition(self._topic, partition)
            earliest, end = self._consumer.get_watermark_offsets(tp, timeout=_OFFSETS_TIMEOUT_S)
        except KafkaException as error:
            self._errors.append(error.args[0])
            return None
        return earliest, end

    def _on_assign(self, consumer: Consumer, assigned: Sequence[TopicPartition]) -> None:
        """Let the next `poll` return `Assigned`. The client calls this when the group assigns partitions."""
        consumer.assign([])  # nothing is fetched before `seek`
        self._has_joined = True
        self._member_id = self._consumer.memberid()
        self._next_group_check_at = time.monotonic() + _CHECK_GROUP_EVERY_S
        if assigned:  # without partitions, the caller has nothing to seek, and needs no event
            # Until `poll` returns the event `Assigned`, another rebalance may change the group's metadata: keep them
            # as they are now in this queue, from which `_take_group_metadata` takes them.
            self._queued_group_metadata.append(consumer.consumer_group_metadata())
            self._add_rebalance(Assigned, assigned)

    def _on_revoke(self, consumer: Consumer, revoked: Sequence[TopicPartition]) -> None:
        """Let the next `poll` return `Revoked`. The client calls this when the group revokes partitions."""
        self._has_joined = False
        if not self._closed:
            # `assign([])` only stops fetching. The group waits while the worker saves. Then our next poll calls
            # `unassign`, which gives the partitions up.
            consumer.assign([])
            self._is_revoking = True
            self._add_rebalance(Revoked, revoked)

    def _on_lost(self, consumer: Consumer, lost: Sequence[TopicPartition]) -> None:
        """Let the next `poll` return `Lost`. The client calls this when the group has removed this member."""
        self._has_joined = False
        # If a revocation has begun, `_on_revoke` has added the event `Revoked` for these partitions. The worker gives
        # the partitions up because of `Revoked`, so it needs no event `Lost`.
        if not self._is_revoking:
            self._add_rebalance(Lost, lost)
        self._is_revoking = False  # the revocation is over: the next `poll` need not call `unassign`


def _read_metadata(partition: TopicPartition) -> str:
    """Return the metadata of a committed offset; "" if the client cannot read them as text.

    Fault of confluent-kafka: if metadata do not end with a zero byte, it reads beyond their end. The bytes there need
    not be text.
    """
    try:
        return partition.metadata or ""
    except UnicodeDecodeError:
        return ""


def _group_by_partition(messages: Iterable[Message]) -> dict[int, ConfluentBatch]:
    """Return the batch of each partition. `groupby` is an optimisation, since messages come in long runs."""
    grouped: dict[Any, list[Message]] = {}
    for partition, run in groupby(messages, Message.partition):
        grouped.setdefault(partition, []).extend(run)
    return {partition: ConfluentBatch(batch) for partition, batch in grouped.items()}


def _on_commit(error: KafkaError | None, offsets: Any) -> None:
    """Log a failed commit, except one without an offset to commit. The client calls this."""
    if error is not None and error.code() != KafkaError._NO_OFFSET:
        log_failed_commit(error.str())
