"""Asks brokers about a topic, on confluent-kafka."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]  # it exports them in another way

from streampca.sources.client_connection import TOPIC_EXISTS
from streampca.sources.confluent.connection import ConfluentConnection

_ANSWER_S = 6.0


class ConfluentAdmin(ConfluentConnection):
    """See `streampca.sources.base.Admin`."""

    def brokers(self) -> list[tuple[str, str, int]]:
        cluster = self._answer_or_source_error(self._admin.describe_cluster(request_timeout=_ANSWER_S))
        return [(node.id_string, node.host, node.port) for node in cluster.nodes]

    def log_ends(self) -> dict[int, tuple[int, int]]:
        tps = [TopicPartition(self._topic, partition) for partition in self.require_topic().in_sync]
        spec: Any = OffsetSpec  # it has no types
        # Both requests are sent before the first answer is waited for.
        earliest = self._admin.list_offsets(dict.fromkeys(tps, spec.earliest()), request_timeout=_ANSWER_S)
        latest = self._admin.list_offsets(dict.fromkeys(tps, spec.latest()), request_timeout=_ANSWER_S)
        ends = {}
        for tp in tps:
            start = self._answer_or_source_error(earliest[tp]).offset
            end = self._answer_or_source_error(latest[tp]).offset
            ends[tp.partition] = (start, end)
        return ends

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        topic = NewTopic(self._topic, partitions, replicas, config=dict(configs))
        try:
            self._admin.create_topics([topic], request_timeout=_ANSWER_S)[self._topic].result()
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() != TOPIC_EXISTS:
                raise self.messages.not_created(error.code(), error.str()) from None

    def close(self) -> None:
        """Do nothing: the client closes its connections when it is no longer referenced."""
