"""Everything that uses kafka-python's internals, each with the fault of version 3.0.12 that it works around.

`KafkaConnectionManager._connect`
    A refused login is forgotten and retried for ever: it is kept, and raised by the next request. A connection that
    opens but fails to initialise is retried without a pause: it is backed off from.
`KafkaConnectionManager._build_transport`, `_sock_recv`
    What a broker sends just before it closes the connection is dropped, above all the reason of a refused login: it is
    read. Notes also when anything was received, since connections can go dead silently.
`KafkaConnectionManager._conns`
    No public method says whether a broker is connected.
`KafkaConnectionManager.cluster.config`
    `allow_auto_create_topics` is not passed on: a deleted topic would be created again.
`KafkaConnectionManager._net.sleep`
    A coroutine on its loop has no public way to wait.
`KafkaNetClient.connection_delay`
    Returns seconds, but the producer expects milliseconds, and spins.
`KafkaConsumer._coordinator.fetch_committed_offsets`
    `committed()` takes one partition, and a request for each.
`KafkaConsumer._coordinator.request_rejoin`
    A rebalance caused by changed partitions is forgotten if the poll ends before the group answers, or if the change is
    undone meanwhile: the member is left without partitions and without heartbeat.
`KafkaConsumer._coordinator._handle_heartbeat_response`
    A member that another one with its `group_instance_id` has replaced only stops its heartbeats: the error is kept,
    for the next poll to raise.
`KafkaConsumer._coordinator.stable`
    No public method says whether the group counts the consumer as a member.
`KafkaConsumer._fetcher._paused_partition_records`
    Of several partitions that are resumed, only one gets the records back that were fetched before the pause, and
    nothing is fetched of the others until these are read.
`KafkaConsumer._subscription.position`
    `position()` goes through all partitions at each call.
`KafkaConsumer._subscription.seek`
    `seek()` takes no leader epoch, with which the client verifies that the log still holds the record before.
`kafka.record.memory_records.DefaultRecordBatch`
    A record with a header whose name is not UTF-8 makes its whole batch a corrupt one, for ever: such names are read
    with surrogate escapes, and written as the same bytes. A compressed batch is unpacked whatever its size: beyond a
    limit, one record stands for all of its records.
`KafkaConsumer._fetcher`: `Fetcher._append`, `Fetcher.PartitionRecords.take`
    A poll is limited in records, not in bytes, and compressed records may be large: it is limited in both.
`KafkaProducer._sender.force_close`
    `close` waits without limit while records are unsent.
`KafkaProducer._transaction_manager`
    `commit_transaction` and its like wait without limit.
`RangePartitionAssignor.assign`
    Of members with and without a `group_instance_id`, it forgets some.
Logger `kafka.coordinator.consumer`
    Every exception of a rebalance listener is logged with a traceback: source.py filters those it raises on purpose.

The client class is passed to `KafkaConsumer` and `KafkaProducer` by their option `kafka_client`.
"""

import time
from collections.abc import Iterable
from itertools import islice
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer import group
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import (
    AuthorizationError,
    FencedInstanceIdError,
    IllegalSaslStateError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.structs import OffsetAndMetadata

from streampca.sources.base import Committed
from streampca.sources.broker_errors import one_line
from streampca.sources.kafka_python.decompression import BatchTooLargeError, decompress
from streampca.stream.record import LastRecord, UnreadValue

_POLL_BYTES = 16 * 2**20  # values returned by one poll; the last batch may exceed it

_REFUSALS = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError, AuthorizationError)


class PatchedConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Connections that keep a refusal, the last failure, and when anything was received."""

    refusal: KafkaError | None = None
    last_failure: str = ""
    received_at: float = 0.0  # monotonic

    def __init__(self, net: NetworkSelector, **configs: Any) -> None:
        super().__init__(net, **configs)
        self.cluster.config["allow_auto_create_topics"] = False

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return super().get_connection(*args, **kwargs)

    async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
        transport = await super()._build_transport(*args, **kwargs)
        receive = transport._sock_recv

        def receive_all() -> tuple[bytes, BaseException | None]:
            data, error = receive()
            if data:
                self.received_at = time.monotonic()
            return data, None if data else error  # the next call finds the end of the connection again

        transport._sock_recv = receive_all
        return transport

    async def _connect(self, node: Any, conn: Any, *args: Any, **kwargs: Any) -> None:
        await super()._connect(node, conn, *args, **kwargs)
        if conn.init_future.is_done and conn.init_future.failed():
            error = conn.init_future.exception
            self.last_failure = f"{node.host}:{node.port}: {one_line(error)}"
            if isinstance(error, _REFUSALS):
                self.refusal = error
            if not self.connection_delay(node.node_id):
                self.update_backoff(node.node_id)

    async def sleep(self, seconds: float) -> None:
        """Wait within a coroutine that the manager runs."""
        await self._net.sleep(seconds)

    @property
    def connected(self) -> bool:
        """Whether any broker is connected."""
        return any(conn.connected for conn in list(self._conns.values()))


class PatchedNetClient(KafkaNetClient):  # type: ignore[misc]
    """The client with delays in milliseconds."""

    def connection_delay(self, node_id: Any) -> float:
        """How long to wait before connecting to a node again, in milliseconds."""
        delay_s: float = super().connection_delay(node_id)
        return delay_s * 1000


class RawName(str):
    """A header's name of any bytes: those that are not UTF-8 are surrogate escapes, and are written as they were."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> bytes:
        return super().encode(encoding, "surrogateescape")


class _RawBytes(bytearray):
    """Bytes whose slices are decoded as `RawName`."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _RawBytes(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> str:
        return RawName(super().decode(encoding, "surrogateescape"))


class PatchedRecordBatch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch whose headers may have names of any bytes, and that is unpacked only up to a limit."""

    _buffer: Any
    _pos: int
    _decompressed: bool

    def _maybe_uncompress(self) -> None:
        if self._decompressed or self.compression_type == self.CODEC_NONE:
            super()._maybe_uncompress()
            return
        self._assert_has_codec(self.compression_type)
        packed, self._pos, self._decompressed = bytes(memoryview(self._buffer)[self._pos :]), 0, True
        try:
            self._buffer = decompress(self.compression_type, packed)
        except BatchTooLargeError as error:
            self._buffer, self._num_records, self._too_large = bytearray(), 1, str(error)
            self._read_msg = self._unread_record  # type: ignore[method-assign]

    def _unread_record(self) -> Any:
        """A record in place of all, at the last offset: it comes again from wherever reading resumes."""
        count, first, last = self.records_count, self.base_offset, self.last_offset
        value = UnreadValue(f"{count} records, offsets {first} to {last}, are in a batch that {self._too_large}")
        return DefaultRecord(0, self.last_offset, self.max_timestamp, self.timestamp_type, None, value, [])

    def _read_msg(self, *args: Any) -> Any:
        try:
            return super()._read_msg(*args)
        except UnicodeDecodeError:
            self._buffer = _RawBytes(self._buffer)  # for all its records: copying it for each would take long
            return super()._read_msg(*args)


class PatchedPartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Fetched records of one partition, of which no more are taken at once than make `_POLL_BYTES`."""

    taken_bytes = 0

    def take(self, n: int | None = None) -> list[Any]:
        self._maybe_raise_next_inline_exception()
        records: list[Any] = []
        self.taken_bytes = 0
        try:
            for record in islice(self.record_iterator, n):
                records.append(record)
                self.taken_bytes += record.serialized_value_size
                if self.taken_bytes >= _POLL_BYTES:
                    break
        except Exception as error:
            if not records:
                raise
            self._next_inline_exception = error  # raised by the next call
        return records


class PatchedFetcher(Fetcher):  # type: ignore[misc]
    """Returns no more records at once, of all partitions, than make about `_POLL_BYTES`."""

    PartitionRecords = PatchedPartitionRecords
    _polled_bytes = 0

    def _append(self, drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        if not drained:
            self._polled_bytes = 0
        appended: int = super()._append(drained, part, max_records, update_offsets)
        self._polled_bytes += part.taken_bytes if appended else 0
        return max_records if self._polled_bytes >= _POLL_BYTES else appended  # all of them: the poll ends


class PatchedCoordinator(ConsumerCoordinator):  # type: ignore[misc]
    """Keeps the error of a member that was replaced."""

    replaced: FencedInstanceIdError | None = None

    def _handle_heartbeat_response(self, *args: Any) -> None:
        try:
            super()._handle_heartbeat_response(*args)
        except FencedInstanceIdError as error:
            self.replaced = error
            raise


class PatchedRangeAssignor(RangePartitionAssignor):  # type: ignore[misc]
    """Assigns to all members: it groups them by whether they have an identity, but only neighbours."""

    @classmethod
    def assign(cls, cluster: Any, members: Iterable[Any]) -> Any:
        return super().assign(cluster, sorted(members, key=lambda member: member.group_instance_id is None))


memory_records.DefaultRecordBatch = PatchedRecordBatch
group.Fetcher = PatchedFetcher
group.ConsumerCoordinator = PatchedCoordinator


def position_of(consumer: KafkaConsumer, partition: TopicPartition) -> int | None:
    """The next offset to fetch; None while it is not known."""
    position = consumer._subscription.position(partition)
    return None if position is None else int(position.offset)


def seek_behind(consumer: KafkaConsumer, partition: TopicPartition, last: LastRecord) -> None:
    """Fetch from behind a record; the client raises `LogTruncationError` if the log does not hold it any more."""
    consumer._subscription.seek(partition, OffsetAndMetadata(last.offset + 1, "", last.leader_epoch))


def drop_paused_records(consumer: KafkaConsumer, partition: TopicPartition) -> None:
    """Drop what was fetched of a partition before it was paused."""
    consumer._fetcher._paused_partition_records.pop(partition, None)


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
    found = consumer._coordinator.fetch_committed_offsets(list(partitions), timeout_ms=timeout_ms)
    # librdkafka commits the zero at the end of a C string, too.
    return {tp.partition: Committed(known.offset, (known.metadata or "").rstrip("\0")) for tp, known in found.items()}


def is_member(consumer: KafkaConsumer) -> bool:
    """Whether the group is settled and counts the consumer in."""
    return bool(consumer._coordinator.stable())


def abort_sending(producer: KafkaProducer) -> None:
    """Give up the records that are not sent yet."""
    producer._sender.force_close()


def transactional(producer: KafkaProducer, method: str, *arguments: Any, timeout_s: float) -> None:
    """Call a method of the producer's transactions. Raises `KafkaTimeoutError` if it takes longer."""
    result = getattr(producer._transaction_manager, method)(*arguments)
    producer._sender.wakeup()
    if not result.wait(timeout_s * 1000):
        raise KafkaTimeoutError(f"no answer within {timeout_s:g} s")
