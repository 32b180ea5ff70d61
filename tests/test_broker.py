"""The helper that runs the broker keeps its own promises: others build proofs on it."""

import socket

import pytest

from tests.conftest import new_broker
from tests.kafka_broker import Broker
from tests.ports import free_ports

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


@pytest.mark.parametrize("which", ["plain", "tls"])
def test_a_port_taken_meanwhile_is_told_at_the_start(tmp_path_factory: pytest.TempPathFactory, which: str) -> None:
    with new_broker(tmp_path_factory) as broker:
        broker.stop()
        with socket.socket() as thief:  # bound and silent, as an outgoing connection is
            thief.bind(("127.0.0.1", getattr(broker, which)))
            with pytest.raises(AssertionError, match="the broker ended"):
                broker.start()
        broker.start()


def test_ports_are_given_once_and_never_to_outgoing_connections() -> None:
    given = free_ports(20) + free_ports(20)
    assert len(set(given)) == 40
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert max(given) < client.getsockname()[1]
