"""Asks brokers about a topic, on confluent-kafka."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]  # it exports them in another way

from streampca.sources.client_connection import EXISTS
from streampca.sources.confluent.connection import Connection

_ANSWER_S = 6.0


class ConfluentAdmin(Connection):
    """See `streampca.sources.base.Admin`."""

    def brokers(self) -> list[tuple[str, str, int]]:
        cluster = self._result(self._admin.describe_cluster(request_timeout=_ANSWER_S))
        return [(node.id_string, node.host, node.port) for node in cluster.nodes]

    def log_ends(self) -> dict[int, tuple[int, int]]:
        tps = [TopicPartition(self._topic, partition) for partition in self.require_topic().in_sync]
        at: Any = OffsetSpec  # it has no types
        first, end = (
            self._admin.list_offsets(dict.fromkeys(tps, spec), request_timeout=_ANSWER_S)
            for spec in (at.earliest(), at.latest())
        )
        return {tp.partition: (self._result(first[tp]).offset, self._result(end[tp]).offset) for tp in tps}

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        topic = NewTopic(self._topic, partitions, replicas, config=dict(configs))
        try:
            self._admin.create_topics([topic], request_timeout=_ANSWER_S)[self._topic].result()
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() != EXISTS:
                raise self.messages.not_created(error.code(), error.str()) from None

    def close(self) -> None:
        """The client closes its connections when it is no longer referenced."""
