"""Asks brokers about a topic, on kafka-python."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.errors import KafkaError

from streampca.settings.kafka import KafkaSettings
from streampca.sources.client_connection import EXISTS
from streampca.sources.kafka_python.connection import Connection


class KafkaPythonAdmin(Connection):
    """See `streampca.sources.base.Admin`."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        super().__init__(settings, topic)
        self.client = self.connect(KafkaAdminClient)

    def brokers(self) -> list[tuple[str, str, int]]:
        with self.answers():
            brokers = self.client.describe_cluster()["brokers"]
        return [(str(b.get("broker_id", b.get("node_id"))), b["host"], b["port"]) for b in brokers]

    def topic_configs(self) -> dict[str, str]:
        resource, configs = ConfigResource(ConfigResourceType.TOPIC, self._topic), dict[str, Any]()
        with suppress(KafkaError):
            configs = self.client.describe_configs([resource], config_filter="all")["topic"][self._topic]
        return {name: config["value"] for name, config in configs.items() if config["value"] is not None}

    def log_ends(self) -> dict[int, tuple[int, int]]:
        tps = [TopicPartition(self._topic, partition) for partition in self.require_topic().in_sync]
        with self.answers():
            first, end = (
                self.client.list_partition_offsets(dict.fromkeys(tps, at))
                for at in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
            )
        return {tp.partition: (first[tp].offset, end[tp].offset) for tp in tps}

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        options = {"num_partitions": partitions, "replication_factor": replicas, "configs": configs}
        with self.answers():
            (answer,) = self.client.create_topics({self._topic: options}, raise_errors=False)["topics"]
        if (code := answer["error_code"]) not in (0, EXISTS):
            raise self.messages.not_created(code, answer["error_message"])

    def close(self) -> None:
        self.client.close()
