"""Asks brokers about a topic, on confluent-kafka."""

from collections.abc import Mapping
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
        earliest_requests = self._admin.list_offsets(dict.fromkeys(tps, spec.earliest()), request_timeout=_ANSWER_S)
        latest_requests = self._admin.list_offsets(dict.fromkeys(tps, spec.latest()), request_timeout=_ANSWER_S)
        log_bounds = {}
        for tp in tps:
            earliest = self._require_answer(earliest_requests[tp]).offset
            high_watermark = self._require_answer(latest_requests[tp]).offset
            if min(earliest, high_watermark) < 0:  # librdkafka reports no error
                raise self.broker_errors.unreachable_error(f"the leader of partition {tp.partition} does not answer")
            log_bounds[tp.partition] = (earliest, high_watermark)
        return log_bounds

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
