"""What tests and benchmarks do with a broker by its address, whoever started it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError
from kafka.serializer import Serializer

from tests.broker_process import wait_until


class _Unboxed(Serializer):  # type: ignore[misc]  # kafka-python has no types
    def serialize(self, topic: str, headers: Any, data: tuple[bytes | None]) -> bytes | None:
        return data[0]


class BrokerClient:
    """Topics, records and groups of the broker at the address `bootstrap`."""

    bootstrap: str  # host:port
    admin: KafkaAdminClient

    def create_topic(self, name: str, partitions: int = 1, **configs: str | int) -> str:
        """Create a topic and return its name. Options have _ instead of dots (`retention_ms=1000`)."""
        options = {key.replace("_", "."): str(value) for key, value in configs.items()}
        topic = {"num_partitions": partitions, "replication_factor": 1, "configs": options}
        self.admin.create_topics({name: topic}, wait_for_metadata=True)
        return name

    def configure_topic(self, name: str, **configs: str | int) -> None:
        """Change options of a topic, named as in `create_topic`."""
        options = {key.replace("_", "."): str(value) for key, value in configs.items()}
        self.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=options)])

    def delete_topic(self, name: str) -> None:
        """Delete a topic; return when the broker no longer lists it."""
        self.admin.delete_topics([name])
        wait_until(lambda: name not in self.admin.list_topics(), what=f"removal of {name}")

    def add_partitions(self, name: str, total: int) -> None:
        """Increase a topic's partitions to `total`."""
        self.admin.create_partitions({name: total})

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
        producer = self.producer(value_serializer=_Unboxed())
        try:
            sent = [producer.send(topic, (v,), partition=partition, timestamp_ms=timestamp_ms) for v in values]
            producer.flush(60)
            for future in sent:
                future.get(1)
        finally:
            producer.close()

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Each partition's end offset."""
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap)
        try:
            partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
            return {tp.partition: offset for tp, offset in consumer.end_offsets(partitions).items()}
        finally:
            consumer.close()

    def read_all(self, topic: str, committed: bool = True) -> list[ConsumerRecord]:
        """All current records of a topic, partition by partition."""
        isolation = "read_committed" if committed else "read_uncommitted"
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, isolation_level=isolation)
        try:
            partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
            ends = consumer.end_offsets(partitions)
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            found: dict[TopicPartition, list[ConsumerRecord]] = {tp: [] for tp in partitions}
            deadline = time.monotonic() + 60
            while any(consumer.position(tp) < ends[tp] for tp in partitions):
                assert time.monotonic() < deadline, f"{topic} could not be read to its end"
                for tp, records in consumer.poll(200, max_records=100_000).items():
                    found[tp] += records
            return [record for tp in partitions for record in found[tp]]
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The group's committed offset of each partition that has one."""
        try:
            offsets: Mapping[str, Mapping[TopicPartition, Any]] = self.admin.list_group_offsets({group: None})
        except KafkaError:
            return {}
        return {
            tp.partition: found.offset
            for tp, found in offsets.get(group, {}).items()
            if tp.topic == topic and found.offset >= 0
        }

    def members(self, group: str) -> Sequence[Any]:
        """The group's members, as the broker describes them."""
        members: Sequence[Any] = self.admin.describe_groups([group])[group]["members"]
        return members


class RunningBroker(BrokerClient):
    """A broker that someone else starts and stops; on exit, the topics created here are deleted."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap, bootstrap_timeout_ms=30_000)
        self._created: set[str] = set()

    def create_topic(self, name: str, partitions: int = 1, **configs: str | int) -> str:
        """As for every broker."""
        self._created.add(super().create_topic(name, partitions, **configs))
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name in self._created & set(self.admin.list_topics()):
            self.delete_topic(name)
        self.admin.close()
