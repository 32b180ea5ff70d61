"""Answers of brokers that arrive too late for the call that has asked: between two polls, or before another call."""

import time
from contextlib import closing

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from streampca.fold.events import Assigned
from streampca.sources.clients import create_client
from streampca.sources.confluent import source as confluent
from streampca.sources.kafka_python import source as kafka_python
from streampca.sources.kafka_python.source import KafkaPythonSource
from tests.kafka_broker import Broker
from tests.sources.backends import settings_for
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("patient")]


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_an_answer_that_came_too_late_is_not_that_of_a_later_call(
    broker: Broker, topic: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic(topic)
    with closing(create_client(settings_for(broker, topic, kafka_client=client))) as member:
        commit(broker, topic, 1)
        assert member.committed([0])[0].offset == 1
        with broker.frozen(), monkeypatch.context() as hurry:
            hurry.setattr(kafka_python, "_OFFSETS_TIMEOUT_MS", 300)
            hurry.setattr(confluent, "_OFFSETS_S", 0.3)
            with pytest.raises(TimeoutError):
                member.committed([0])
        commit(broker, topic, 2)
        assert member.committed([0])[0].offset == 2


def test_an_assignment_that_arrives_between_two_polls_is_that_of_the_next_one(broker: Broker, topic: str) -> None:
    broker.create_topic(topic)
    with closing(KafkaPythonSource(settings_for(broker, topic))) as member:
        coordinator, deadline = member._consumer._coordinator, time.monotonic() + PATIENCE_S

        while (join := coordinator._join_task) is None or not join.succeeded():
            if join is None or join.is_done:  # the first answer is an id for the member
                assert list(member.poll(0)) == []
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert list(member.poll(PATIENCE_S)) == [Assigned(frozenset({0}))]
        assert member.membership.generation_id == 1


def commit(broker: Broker, topic: str, offset: int) -> None:
    """Commit an offset of partition 0, as a member does."""
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=topic, enable_auto_commit=False)) as member:
        partition = TopicPartition(topic, 0)
        member.assign([partition])
        member.commit({partition: OffsetAndMetadata(offset, "", -1)})
