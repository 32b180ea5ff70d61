"""Asks brokers about a topic, on confluent-kafka."""

from collections.abc import Iterable, Mapping
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
        earliest = self._list_offsets(tps, spec.earliest())
        latest = self._list_offsets(tps, spec.latest())
        return {tp.partition: (earliest[tp], latest[tp]) for tp in tps}

    def _list_offsets(self, tps: Iterable[TopicPartition], which: Any) -> dict[TopicPartition, int]:
        """Ask for the earliest or the latest offset of each partition."""
        offsets = {}
        for tp, request in self._admin.list_offsets(dict.fromkeys(tps, which), request_timeout=_ANSWER_S).items():
            offset = self._require_answer(request).offset
            if offset < 0:  # librdkafka reports no error
                raise self.broker_errors.unreachable_error(f"the leader of partition {tp.partition} does not answer")
            offsets[tp] = offset
        return offsets

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
