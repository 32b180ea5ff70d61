"""Asks brokers about a topic, on confluent-kafka."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]  # it exports them in another way

from streampca.sources.broker_errors import TOPIC_EXISTS
from streampca.sources.confluent.connection import ConfluentConnection

_ANSWER_S = 6.0


class ConfluentAdmin(ConfluentConnection):
    """See `streampca.sources.base.Admin`."""

    def brokers(self) -> list[tuple[str, str, int]]:
        cluster = self._require_answer(self._admin.describe_cluster(request_timeout=_ANSWER_S))
        return [(node.id_string, node.host, node.port) for node in cluster.nodes]

    def log_bounds(self) -> dict[int, tuple[int, int]]:
        """Return the earliest offset and the high watermark of each partition."""
        tps = [TopicPartition(self._topic, partition) for partition in self.require_topic().partitions]
        spec: Any = OffsetSpec  # it has no types
        # Both are sent before the first answer is awaited.
        earliest = self._admin.list_offsets(dict.fromkeys(tps, spec.earliest()), request_timeout=_ANSWER_S)
        latest = self._admin.list_offsets(dict.fromkeys(tps, spec.latest()), request_timeout=_ANSWER_S)
        bounds = {}
        for tp in tps:
            first_offset = self._require_offset(tp.partition, earliest[tp])
            end = self._require_offset(tp.partition, latest[tp])
            bounds[tp.partition] = (first_offset, end)
        return bounds

    def _require_offset(self, partition: int, request: "Future[Any]") -> int:
        """Wait for the answer to a request for an offset of a partition."""
        offset: int = self._require_answer(request).offset
        if offset < 0:  # librdkafka reports no error
            raise self.broker_errors.unreachable_error(f"the leader of partition {partition} does not answer")
        return offset

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        """Create the topic, unless somebody else has created it meanwhile."""
        topic = NewTopic(self._topic, partitions, replicas, config=dict(configs))
        try:
            self._admin.create_topics([topic], request_timeout=_ANSWER_S)[self._topic].result()
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() != TOPIC_EXISTS:
                raise self.broker_errors.creation_error(error.code(), error.str()) from None

    def close(self) -> None:
        """Do nothing: the client closes its connections when it is no longer referenced."""
