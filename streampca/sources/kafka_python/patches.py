"""Workarounds for bugs of kafka-python 3.0.12, in its internals; importing this module patches all clients.

No released version mends these bugs: the branch for 3.1 has the same code, as of 17 August 2026, though much of
`kafka.net` has moved. Before pyproject.toml allows 3.1, try it without each workaround.

Each item names the bug, the code of kafka-python that has it, and what we do instead.

Connections. Consumers and producers get our client class by their option `kafka_client`.
- A refused login is retried for ever, or never again, and a failed connection is retried without a growing pause
  (`_connect`, `_auth_failures`). We raise the refusal in each request until the login is tried again, and make the
  pause grow after every failure.
- If a broker closes a connection, the bytes that it has sent just before are dropped, such as the reason of a refused
  login (`_build_transport`, `_sock_recv`). We read them.
- If a connection is reset before its handshake, or its certificates cannot be read, it fails with an `OSError`
  (`_build_transport`), which ends the poll, or the refresh of metadata for ever. We raise `KafkaConnectionError`.
- A request to a broker that has just left the metadata raises an error that counts as final (`get_connection`). We
  raise an error that is retried.
- If a broker says nothing, the handshake never ends (`KafkaSSLTransport.handshake`). We give it a deadline.
- No public method tells whether a broker is connected. We look at `KafkaConnectionManager._conns`.
- `allow_auto_create_topics` is not passed on (`KafkaConnectionManager.cluster.config`), so a deleted topic would be
  created again. We pass it on.
- The producer's thread spins: it takes seconds for milliseconds (`KafkaNetClient.connection_delay`), and it does not
  pause after a refused login (`maybe_connect`). We convert the delay, and do not raise the refusal there.

A consumer's membership in its group (`KafkaConsumer._coordinator`).
- If an assignment arrives between two polls, it is dropped, and the group is joined again, which is another rebalance
  of all members (`join_group_async`, `_do_join_and_sync_async`). We keep the assignment for the next poll.
- A rebalance after changed partitions is forgotten if the poll ends before the group answers, or if the change is
  undone meanwhile (`request_rejoin`): the member would have neither partitions nor heartbeat. We request it again.
- If another member with the same `group_instance_id` has replaced a member, this one only stops its heartbeats
  (`_handle_heartbeat_response`). We raise the error in the next poll.
- If some members have a `group_instance_id` and some have none, `RangePartitionAssignor.assign` may forget members. We
  sort the members.
- If the user of the group's leader may not read the topic for a moment, the leader assigns no partition to anybody, and
  does not assign again (`_perform_assignment`). We let it join again as soon as it knows partitions (`need_rejoin`).
- While a heartbeat is due or unanswered, a poll does not wait, and each turn of its loop leaves a task behind until the
  pending fetch ends (`time_to_next_poll`). We let it wait, since the client's own thread sends the heartbeats.
- If a request for offsets has timed out, its answer is returned by the next call (`_offset_fetch_futures`). We drop it.
- `committed()` sends a request for each partition. We use `fetch_committed_offsets`, which asks for all at once.
- No public method tells whether the group counts the consumer as a member. We ask `stable`.

Fetching.
- After several paused partitions are resumed, the records that were buffered of one are returned, and the other
  partitions are not fetched until these records are consumed (`KafkaConsumer._fetcher._paused_partition_records`). We
  drop the buffered records.
- `position()` goes through all partitions at each call. We use `KafkaConsumer._subscription.position`.

Producers.
- `close` waits for records that are not sent, and raises if they are not sent in time. We call `_sender.force_close`
  before.
- `commit_transaction` and similar methods wait without limit. We use the `_transaction_manager`, with a deadline.
"""

import contextlib
import math
import ssl
import time
from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.consumer import group
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net import manager
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport

from streampca.sources.base import Committed
from streampca.sources.client_connection import ClientConnection, one_line

_REFUSALS = (
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
    errors.AuthorizationError,
)
_HANDSHAKE_TIMEOUT_S = 5.0


class PatchedSSLTransport(KafkaSSLTransport):  # type: ignore[misc]
    """A connection whose handshake ends in time."""

    async def handshake(self) -> None:
        """Make the TLS handshake, within some seconds."""
        timeout_at = time.monotonic() + _HANDSHAKE_TIMEOUT_S
        try:
            while True:
                try:
                    self._sock.do_handshake()
                    return
                except ssl.SSLWantReadError:
                    await self._net.wait_read(self._sock, timeout_at)
                except ssl.SSLWantWriteError:
                    await self._net.wait_write(self._sock, timeout_at)
        except BaseException:
            self._sock.close()  # no connection was made, so nobody else will close the socket
            raise


class PatchedConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Connections of one client. They keep refused logins, and note the last failure in their `owner`."""

    def __init__(self, net: NetworkSelector, owner: ClientConnection, **configs: Any) -> None:
        super().__init__(net, **configs)
        self._owner = owner
        self.cluster.config["allow_auto_create_topics"] = False

    async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
        """Open a connection that returns all bytes that it receives before it reports its end."""
        try:
            transport = await super()._build_transport(*args, **kwargs)
        except OSError as error:
            raise errors.KafkaConnectionError(one_line(error)) from error
        receive = transport._sock_recv

        def receive_before_error() -> tuple[bytes, BaseException | None]:
            data, error = receive()
            if data:
                return data, None  # the next call finds the end of the connection again
            return data, error

        transport._sock_recv = receive_before_error
        return transport

    async def _connect(self, node: Any, conn: Any, reset_backoff_on_connect: bool = True, **timeout: Any) -> None:
        """Connect to a broker. If that fails, note why, and pause longer before the next attempt."""
        # The overridden method would also reset the pause after a failure.
        await super()._connect(node, conn, reset_backoff_on_connect=False, **timeout)
        connected = conn.init_future
        if not connected.is_done:
            return
        if connected.failed():
            error = connected.exception
            self._owner.last_failure = f"{node.host}:{node.port}: {one_line(error)}"
            if isinstance(error, _REFUSALS):
                self._auth_failures[node.node_id] = error
            if not self.connection_delay(node.node_id):
                self.update_backoff(node.node_id)
        elif reset_backoff_on_connect:
            self.reset_backoff(node.node_id)

    def get_connection(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        """Connect to a broker. If it has left the metadata, raise `NodeNotReadyError`, which is retried."""
        try:
            return super().get_connection(node_id, *args, **kwargs)
        except errors.UnknownBrokerIdError:
            raise errors.NodeNotReadyError(node_id) from None

    def maybe_raise_auth_failure(self, node_id: Any) -> None:
        """Raise the refusal of the last login, until the login is tried again."""
        error = self._auth_failures.get(node_id)
        if error is not None and self.connection_delay(node_id):
            raise error.with_traceback(None)  # else each raise would add frames to its traceback

    @property
    def connected(self) -> bool:
        """Whether any broker is connected now."""
        return any(conn.connected for conn in list(self._conns.values()))


class PatchedNetClient(KafkaNetClient):  # type: ignore[misc]
    """The client with delays in milliseconds."""

    def connection_delay(self, node_id: Any) -> float:
        """Return the pause before connecting to a node again, in milliseconds."""
        return 1000 * float(super().connection_delay(node_id))

    def maybe_connect(self, node_id: Any, **options_of_producer: Any) -> None:
        """Connect to a broker, unless it is too early. If the login was refused, raise that.

        It is not raised in the thread of a producer, which would spin; only this thread passes options.
        """
        is_producer = bool(options_of_producer)
        with contextlib.suppress(*_REFUSALS if is_producer else ()):
            super().maybe_connect(node_id)


class PatchedCoordinator(ConsumerCoordinator):  # type: ignore[misc]
    """Keeps an assignment until a poll takes it, and the error of a member that was replaced."""

    replaced: errors.FencedInstanceIdError | None = None
    _assigned_nothing = False  # this member leads the group, and knew no partition when it assigned
    _kept_assignment: Any = None  # that no poll has taken yet
    _kept_generation: Any = None  # the group's generation that it belongs to

    async def _do_join_and_sync_async(self) -> Any:
        """Join the group. If no poll has taken the assignment of this generation yet, return that one instead."""
        assignment = self._kept_assignment
        if assignment is None or self._kept_generation is not self._generation:
            self._assigned_nothing = False
            assignment = await super()._do_join_and_sync_async()
            self._kept_generation = self._generation
            self._kept_assignment = assignment
        return assignment

    async def _on_join_complete_async(self, *args: Any) -> None:
        """Take the assignment: a poll calls this."""
        self._kept_generation = None
        self._kept_assignment = None
        await super()._on_join_complete_async(*args)

    def _perform_assignment(self, *args: Any) -> Any:
        assignments = super()._perform_assignment(*args)
        self._assigned_nothing = not any(assignment.partitions() for assignment in assignments.values())
        return assignments

    def need_rejoin(self) -> bool:
        """Return whether to join again: also if this leader has assigned nothing, and knows partitions now."""
        if self._assigned_nothing and self._knows_partitions():
            return True
        return bool(super().need_rejoin())

    def _knows_partitions(self) -> bool:
        return any(self._cluster.partitions_for_topic(topic) for topic in self._subscription.subscription)

    def time_to_next_poll(self) -> float:
        """Return how long a poll may wait before the next heartbeat: without limit, since another thread sends it."""
        return math.inf

    def _handle_heartbeat_response(self, *args: Any) -> None:
        """If another member has replaced this one, keep the error, see `raise_if_replaced`."""
        try:
            super()._handle_heartbeat_response(*args)
        except errors.FencedInstanceIdError as error:
            self.replaced = error
            raise


class PatchedRangeAssignor(RangePartitionAssignor):  # type: ignore[misc]
    """Assigns partitions to all members.

    The overridden method groups members by whether they have a `group_instance_id`, and expects those of each group
    beside each other.
    """

    @classmethod
    def assign(cls, cluster: Any, members: Iterable[Any]) -> Any:
        return super().assign(cluster, sorted(members, key=lambda member: member.group_instance_id is None))


# kafka-python looks these classes up in the modules that use them.
manager.KafkaSSLTransport = PatchedSSLTransport
group.ConsumerCoordinator = PatchedCoordinator


def rejoin_group(consumer: KafkaConsumer) -> None:
    """Ask for a rebalance at the next poll."""
    consumer._coordinator.request_rejoin()


def raise_if_replaced(consumer: KafkaConsumer) -> None:
    """Raise `FencedInstanceIdError` if another member has joined with the consumer's `group_instance_id`."""
    if consumer._coordinator.replaced is not None:
        raise consumer._coordinator.replaced


def committed_offsets(
    consumer: KafkaConsumer, partitions: Iterable[TopicPartition], timeout_ms: int
) -> dict[int, Committed]:
    """Ask for the group's committed offsets of partitions of one topic; a partition without one is left out."""
    consumer._coordinator._offset_fetch_futures.clear()  # else the answer may be that of a request that timed out
    offsets = consumer._coordinator.fetch_committed_offsets(list(partitions), timeout_ms=timeout_ms)
    committed = {}
    for tp, offset_and_metadata in offsets.items():
        metadata = (offset_and_metadata.metadata or "").rstrip("\0")  # librdkafka commits the zero that ends a C string
        committed[tp.partition] = Committed(offset_and_metadata.offset, metadata)
    return committed


def is_member(consumer: KafkaConsumer) -> bool:
    """Return whether no rebalance is in progress, and the group counts the consumer in."""
    return bool(consumer._coordinator.stable())


def fetch_position(consumer: KafkaConsumer, partition: TopicPartition) -> int | None:
    """Return the next offset to fetch; None while it is not known."""
    position = consumer._subscription.position(partition)
    return None if position is None else int(position.offset)


def drop_paused_records(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """Drop the records of a partition that were fetched before it was paused."""
    consumer._fetcher._paused_partition_records.pop(partition, None)


def drop(producer: KafkaProducer, timeout_s: float) -> None:
    """Give up the records that are not sent yet, and close the producer, within about twice `timeout_s`."""
    producer._sender.force_close()
    with contextlib.suppress(errors.KafkaTimeoutError):  # its thread did not end in time; it will end by itself
        producer.close(timeout=timeout_s)


def call_transactional(producer: KafkaProducer, method: str, *arguments: Any, deadline: float) -> None:
    """Call a method of the producer's transaction manager, and wait for the brokers' answer.

    Raises `KafkaTimeoutError` at the deadline (by `time.monotonic`).
    """
    result = getattr(producer._transaction_manager, method)(*arguments)
    producer._sender.wakeup()  # its thread sends the request
    timeout_ms = max(deadline - time.monotonic(), 0) * 1000
    if not result.wait(timeout_ms):
        raise errors.KafkaTimeoutError("the brokers did not answer in time")
