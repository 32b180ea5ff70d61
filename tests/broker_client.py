"""Topics, records and groups of a broker by its address, for tests and benchmarks."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Self

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import (
    InvalidReplicationFactorError,
    KafkaError,
    MetadataEmptyBrokerList,
    TopicAlreadyExistsError,
)
from kafka.protocol.consumer import IsolationLevel
from kafka.serializer import Serializer

from tests.waiting import PATIENCE_S, wait_until


class _Unboxed(Serializer):  # type: ignore[misc]  # kafka-python has no types
    def serialize(self, topic: str, headers: Any, data: tuple[bytes | None]) -> bytes | None:
        return data[0]


class BrokerClient:
    """Topics, records and groups of the broker at the address `bootstrap`."""

    bootstrap: str  # host:port, or several
    replication = 1  # of topics
    admin: KafkaAdminClient

    def create_topic(self, name: str, partitions: int = 1, **configs: str | int) -> str:
        """Create a topic; return its name when it takes records. Options have _ instead of dots (`retention_ms=1`)."""
        options = {key.replace("_", "."): str(value) for key, value in configs.items()}
        topic = {"num_partitions": partitions, "replication_factor": self.replication, "configs": options}

        def is_created() -> bool:
            with suppress(InvalidReplicationFactorError):  # until a frozen broker sends its next heartbeat
                with suppress(TopicAlreadyExistsError):  # the client asks twice if the first answer is lost
                    self.admin.create_topics({name: topic})
                return True
            return False

        wait_until(is_created, what=f"the creation of {name}")
        self._wait_for_leaders(name, partitions)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic; return when the broker no longer lists it."""
        self.admin.delete_topics([name])
        wait_until(lambda: name not in self.admin.list_topics(), PATIENCE_S, f"removal of {name}")

    def add_partitions(self, name: str, total: int) -> None:
        """Increase a topic's partitions to `total`; return when all take records."""
        self.admin.create_partitions({name: total})
        self._wait_for_leaders(name, total)

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Return when all take records. They are listed earlier, and clients that send again may change the order."""
        latest = {TopicPartition(topic, partition): OffsetSpec.LATEST for partition in range(partitions)}

        def lead() -> bool:
            with suppress(KafkaError):
                return len(self.admin.list_partition_offsets(latest)) == partitions
            return False

        wait_until(lead, PATIENCE_S, f"the leaders of {topic}")

    def _described(self, topic: str) -> Sequence[Any]:
        (described,) = self.admin.describe_topics([topic])
        return list(described["partitions"])

    def delete_records(self, name: str, partition: int, before: int) -> None:
        """Delete the records before an offset, like retention does."""
        self.admin.delete_records({TopicPartition(name, partition): before})

    def producer(self, **configs: Any) -> KafkaProducer:
        """A producer for this broker; the caller closes it."""
        return KafkaProducer(**{"bootstrap_servers": self.bootstrap, "acks": "all", "linger_ms": 5} | configs)

    def produce(
        self, topic: str, partition: int, values: Iterable[bytes | None], timestamp_ms: int | None = None
    ) -> None:
        """Append values to a partition; return when all are acknowledged."""
        # The client refuses records with neither key nor value, unless a serializer returns None.
        with closing(self.producer(value_serializer=_Unboxed())) as producer:
            sent = [producer.send(topic, (v,), partition=partition, timestamp_ms=timestamp_ms) for v in values]
            producer.flush(PATIENCE_S)
            for future in sent:
                future.get(1)

    def produce_aborted(self, topic: str, partition: int, values: Iterable[bytes]) -> None:
        """Append values in an aborted transaction; return when its marker is written, at the log's last offset."""
        with closing(self.producer(transactional_id=f"{topic}-{time.monotonic_ns()}")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value, partition=partition)
            producer.flush(20)
            producer.abort_transaction()
        self.settled_ends(topic)  # the broker writes the marker after it has answered

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition. Ask again while a broker that has just started names no broker."""

        def ask() -> dict[int, int] | None:
            with (
                suppress(MetadataEmptyBrokerList),
                closing(KafkaConsumer(bootstrap_servers=self.bootstrap)) as consumer,
            ):
                partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
                return {tp.partition: offset for tp, offset in consumer.end_offsets(partitions).items()}
            return None

        return dict(wait_until(ask, PATIENCE_S, f"an answer about the ends of {topic}"))

    def settled_ends(self, topic: str) -> dict[int, int]:
        """Each partition's end offset, once no transaction is open.

        A commit returns before it is written to all partitions; until then its records cannot be read.
        """

        def settled() -> dict[int, int] | None:
            with suppress(KafkaError):  # a broker has just left
                latest = {
                    TopicPartition(topic, p["partition_index"]): OffsetSpec.LATEST for p in self._described(topic)
                }
                levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
                readable, written = (self.admin.list_partition_offsets(latest, level) for level in levels)
                ends = {tp.partition: end.offset for tp, end in readable.items()}
                if ends == {tp.partition: end.offset for tp, end in written.items()}:
                    return ends
            return None

        return dict(wait_until(settled, PATIENCE_S, f"the end of the transactions in {topic}"))

    def read_all(self, topic: str) -> list[ConsumerRecord]:
        """All committed records of a topic, partition by partition, once no transaction is open."""
        ends = {TopicPartition(topic, p): end for p, end in sorted(self.settled_ends(topic).items())}
        options = {"bootstrap_servers": self.bootstrap, "isolation_level": "read_committed"}
        with closing(KafkaConsumer(**options)) as consumer:
            consumer.assign(list(ends))
            consumer.seek_to_beginning()
            read: dict[TopicPartition, list[ConsumerRecord]] = {tp: [] for tp in ends}
            deadline = time.monotonic() + PATIENCE_S
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                assert time.monotonic() < deadline, f"{topic} could not be read to its end"
                for tp, records in consumer.poll(200, max_records=100_000).items():
                    read[tp] += records
            return [record for records in read.values() for record in records]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The group's committed offset of each partition that has one."""
        try:
            offsets: Mapping[str, Mapping[TopicPartition, Any]] = self.admin.list_group_offsets({group: None})
        except KafkaError:
            return {}
        return {
            tp.partition: committed.offset
            for tp, committed in offsets.get(group, {}).items()
            if tp.topic == topic and committed.offset >= 0
        }

    def members(self, group: str) -> Sequence[Any]:
        return list(self.admin.describe_groups([group])[group]["members"])


class RunningBroker(BrokerClient):
    """A broker that someone else starts and stops; on exit, the topics created here are deleted."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap, bootstrap_timeout_ms=30_000)
        self._created: set[str] = set()

    def create_topic(self, name: str, partitions: int = 1, **configs: str | int) -> str:
        self._created.add(super().create_topic(name, partitions, **configs))
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._created & set(self.admin.list_topics()):
            self.delete_topic(name)
        self.admin.close()
