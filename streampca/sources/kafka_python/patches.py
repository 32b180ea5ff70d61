"""Workarounds for bugs of kafka-python 3.0.12, in its internals; importing this module patches all clients.

No version ends them yet: its branch for 3.1 has the same code, as of 17 August 2026, though much of `kafka.net` has
moved. Try without each before pyproject.toml allows 3.1.

Connections; the client class is passed to consumers and producers by their option `kafka_client`.
- A refused login is retried for ever, or never again, and a failed connection without a growing pause (`_connect`,
  `_auth_failures`): requests raise the refusal until the login is tried again, and every failure is backed off from.
- What a broker sends just before it closes the connection is dropped, above all the reason of a refused login
  (`_build_transport`, `_sock_recv`): it is read.
- A connection that is reset before its handshake, or whose certificates cannot be read, fails with an `OSError`
  (`_build_transport`), which ends the refresh of metadata for ever, or the poll: it becomes a `KafkaConnectionError`.
- A request to a broker that has just left the metadata raises an error that counts as final (`get_connection`).
- The handshake waits without end for a broker that says nothing (`KafkaSSLTransport.handshake`): it has a deadline.
- No public method says whether a broker is connected (`KafkaConnectionManager._conns`).
- `allow_auto_create_topics` is not passed on (`KafkaConnectionManager.cluster.config`): a deleted topic would be
  created again.
- The producer spins (`KafkaNetClient.connection_delay`: seconds for milliseconds; `maybe_connect`: refused logins).

A consumer's membership in its group (`KafkaConsumer._coordinator`).
- An assignment that arrives between two polls is dropped, and the group joined again: another rebalance of all
  (`join_group_async`, `_do_join_and_sync_async`): it is kept for the next poll.
- A rebalance after changed partitions is forgotten if the poll ends before the group answers, or if the change is
  undone meanwhile (`request_rejoin`): the member would have neither partitions nor heartbeat.
- A member that another one with its `group_instance_id` has replaced only stops its heartbeats
  (`_handle_heartbeat_response`): the next poll raises the error.
- Of members with and without a `group_instance_id`, `RangePartitionAssignor.assign` forgets some: they are sorted.
- A leader whose user may not read the topic for a moment assigns no partition to anybody, and leaves it at that
  (`_perform_assignment`): it joins again once it knows partitions (`need_rejoin`).
- While a heartbeat is due or unanswered, a poll does not wait, and each turn of its loop leaves a task behind until the
  pending fetch ends (`time_to_next_poll`): it waits, since the client's own thread sends the heartbeats.
- A request for offsets that timed out answers the next call (`_offset_fetch_futures`): it is forgotten.
- `committed()` asks for one partition a request (`fetch_committed_offsets`): all are asked for at once.
- No public method says whether the group counts the consumer as a member (`stable`).

Fetching.
- After several paused partitions are resumed, the records buffered of one are returned, and the others are not fetched
  until these are consumed (`KafkaConsumer._fetcher._paused_partition_records`): they are dropped.
- `position()` goes through all partitions at each call (`KafkaConsumer._subscription.position`).

Producers.
- `close` gives nothing up while records are unsent, and raises if they are not sent in time (`_sender.force_close`).
- `commit_transaction` and its like wait without limit (`_transaction_manager`).
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
_HANDSHAKE_S = 5.0


class PatchedSSLTransport(KafkaSSLTransport):  # type: ignore[misc]
    """A connection whose handshake ends in time."""

    async def handshake(self) -> None:
        """Shake hands."""
        timeout_at = time.monotonic() + _HANDSHAKE_S
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
            self._sock.close()  # nobody else knows of it
            raise


class PatchedConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Connections that keep refusals, and note the last failure in their `owner`."""

    def __init__(self, net: NetworkSelector, owner: ClientConnection, **configs: Any) -> None:
        super().__init__(net, **configs)
        self._owner = owner
        self.cluster.config["allow_auto_create_topics"] = False

    async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
        try:
            transport = await super()._build_transport(*args, **kwargs)
        except OSError as error:
            raise errors.KafkaConnectionError(one_line(error)) from error
        receive = transport._sock_recv

        def receive_all() -> tuple[bytes, BaseException | None]:
            data, error = receive()
            return data, None if data else error  # the next call finds the end of the connection again

        transport._sock_recv = receive_all
        return transport

    async def _connect(self, node: Any, conn: Any, reset_backoff_on_connect: bool = True, **timeout: Any) -> None:
        await super()._connect(node, conn, reset_backoff_on_connect=False, **timeout)  # it also resets after failures
        if not conn.init_future.is_done:
            return
        if conn.init_future.failed():
            error = conn.init_future.exception
            self._owner.last_failure = f"{node.host}:{node.port}: {one_line(error)}"
            if isinstance(error, _REFUSALS):
                self._auth_failures[node.node_id] = error
            if not self.connection_delay(node.node_id):
                self.update_backoff(node.node_id)
        elif reset_backoff_on_connect:
            self.reset_backoff(node.node_id)

    def get_connection(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        """Connect to a broker. Raises `NodeNotReadyError`, also of a broker that has left the metadata."""
        try:
            return super().get_connection(node_id, *args, **kwargs)
        except errors.UnknownBrokerIdError:
            raise errors.NodeNotReadyError(node_id) from None

    def maybe_raise_auth_failure(self, node_id: Any) -> None:
        """Raise the refusal of the last login, until the login is tried again."""
        error = self._auth_failures.get(node_id)
        if error is not None and self.connection_delay(node_id):
            raise error.with_traceback(None)  # else each time adds its frames

    @property
    def connected(self) -> bool:
        """Return whether any broker is connected now."""
        return any(conn.connected for conn in list(self._conns.values()))


class PatchedNetClient(KafkaNetClient):  # type: ignore[misc]
    """The client with delays in milliseconds."""

    def connection_delay(self, node_id: Any) -> float:
        """Return the pause before connecting to a node again, in milliseconds."""
        return 1000 * float(super().connection_delay(node_id))

    def maybe_connect(self, node_id: Any, **of_producer: Any) -> None:
        """Connect, unless it is too early; raises a refused login, but not to a producer's thread, which would spin."""
        with contextlib.suppress(*_REFUSALS if of_producer else ()):
            super().maybe_connect(node_id)


class PatchedCoordinator(ConsumerCoordinator):  # type: ignore[misc]
    """Keeps an assignment until a poll takes it, and the error of a member that was replaced."""

    replaced: errors.FencedInstanceIdError | None = None
    _assigned_nothing = False  # as the leader of the group's generation, since it knew no partition
    _waiting: tuple[Any, Any] = (None, None)  # the group's generation and the assignment that no poll has taken

    async def _do_join_and_sync_async(self) -> Any:
        generation, assignment = self._waiting
        if assignment is None or generation is not self._generation:
            self._assigned_nothing = False
            assignment = await super()._do_join_and_sync_async()
            self._waiting = self._generation, assignment
        return assignment

    async def _on_join_complete_async(self, *args: Any) -> None:
        self._waiting = None, None
        await super()._on_join_complete_async(*args)

    def _perform_assignment(self, *args: Any) -> Any:
        assignments = super()._perform_assignment(*args)
        self._assigned_nothing = not any(assignment.partitions() for assignment in assignments.values())
        return assignments

    def need_rejoin(self) -> bool:
        """Return whether to join again, also if partitions are known of which this leader has assigned none."""
        if self._assigned_nothing and any(map(self._cluster.partitions_for_topic, self._subscription.subscription)):
            return True
        return bool(super().need_rejoin())

    def time_to_next_poll(self) -> float:
        """Return the time that the next heartbeat allows a poll: any, since another thread sends it."""
        return math.inf

    def _handle_heartbeat_response(self, *args: Any) -> None:
        try:
            super()._handle_heartbeat_response(*args)
        except errors.FencedInstanceIdError as error:
            self.replaced = error
            raise


class PatchedRangeAssignor(RangePartitionAssignor):  # type: ignore[misc]
    """Assigns to all members: it groups them by whether they have an identity, but only neighbours."""

    @classmethod
    def assign(cls, cluster: Any, members: Iterable[Any]) -> Any:
        return super().assign(cluster, sorted(members, key=lambda member: member.group_instance_id is None))


# They are looked up there.
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
    """Those partitions of one topic for which the group has committed an offset."""
    consumer._coordinator._offset_fetch_futures.clear()
    offsets = consumer._coordinator.fetch_committed_offsets(list(partitions), timeout_ms=timeout_ms)
    # librdkafka also commits the zero at the end of a C string.
    return {tp.partition: Committed(at.offset, (at.metadata or "").rstrip("\0")) for tp, at in offsets.items()}


def is_member(consumer: KafkaConsumer) -> bool:
    """Return whether the group is settled and counts the consumer in."""
    return bool(consumer._coordinator.stable())


def position_of(consumer: KafkaConsumer, partition: TopicPartition) -> int | None:
    """The next offset to fetch; None while it is not known."""
    position = consumer._subscription.position(partition)
    return None if position is None else int(position.offset)


def drop_paused_records(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """Drop what was fetched of a partition before it was paused."""
    consumer._fetcher._paused_partition_records.pop(partition, None)


def drop(producer: KafkaProducer, timeout_s: float) -> None:
    """Give up the records that are not sent yet, and close the producer, within about twice that time."""
    producer._sender.force_close()
    with contextlib.suppress(errors.KafkaTimeoutError):  # its thread is late, and ends by itself
        producer.close(timeout=timeout_s)


def transactional(producer: KafkaProducer, method: str, *arguments: Any, deadline: float) -> None:
    """Call a method of the producer's transactions. Raises `KafkaTimeoutError` at the deadline (`time.monotonic`)."""
    result = getattr(producer._transaction_manager, method)(*arguments)
    producer._sender.wakeup()
    if not result.wait(max(deadline - time.monotonic(), 0) * 1000):
        raise errors.KafkaTimeoutError("the brokers did not answer in time")
