"""The helper that runs the broker keeps its own promises: others build proofs on it."""

import pytest

from tests.conftest import new_broker
from tests.kafka_broker import Broker

pytestmark = pytest.mark.broker


def test_what_is_produced_can_be_read(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, partitions=2)
    broker.produce(topic, 1, [b"a", None, b"b"], timestamp_ms=17)
    records = broker.read_all(topic)
    assert [(r.partition, r.offset, r.value, r.timestamp) for r in records] == [
        (1, 0, b"a", 17), (1, 1, None, 17), (1, 2, b"b", 17),
    ]  # fmt: skip
    assert broker.end_offsets(topic) == {0: 0, 1: 3}


def test_ports_and_data_outlive_a_kill_and_a_stop(tmp_path_factory: pytest.TempPathFactory) -> None:
    with new_broker(tmp_path_factory) as broker:
        address = broker.bootstrap
        broker.create_topic("kept")
        broker.produce("kept", 0, [b"1", b"2"])
        for end in (broker.kill, broker.stop):
            end()
            assert not broker.running
            broker.start()
            assert broker.bootstrap == address
            assert [r.value for r in broker.read_all("kept")] == [b"1", b"2"]
