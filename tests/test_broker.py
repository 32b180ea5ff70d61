"""The test broker works as other tests rely on."""

import socket
from pathlib import Path

import pytest

from tests.kafka_broker import Broker
from tests.ports import free_ports

pytestmark = pytest.mark.broker


def test_produced_records_can_be_read(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, partitions=2)
    broker.produce(topic, 1, [b"a", None, b"b"], timestamp_ms=17)
    records = broker.read_all(topic)
    assert [(r.partition, r.offset, r.value, r.timestamp) for r in records] == [
        (1, 0, b"a", 17), (1, 1, None, 17), (1, 2, b"b", 17),
    ]  # fmt: skip
    assert broker.end_offsets(topic) == {0: 0, 1: 3}


def test_ports_and_data_survive_kill_and_stop(stoppable: Broker, topic: str) -> None:
    broker = stoppable
    address = broker.bootstrap
    broker.create_topic(topic)
    broker.produce(topic, 0, [b"1", b"2"])
    for end in (broker.kill, broker.stop):
        end()
        assert not broker.running
        broker.start()
        assert broker.bootstrap == address
        assert [r.value for r in broker.read_all(topic)] == [b"1", b"2"]


@pytest.mark.usefixtures("broker")  # can a broker run here?
def test_start_fails_if_a_port_is_in_use(tmp_path: Path) -> None:
    """One that never ran: the ports of the shared one have lingering connections, so that nothing can bind to them."""
    unused = Broker(tmp_path)
    for port in (unused.plain, unused.tls):
        with socket.socket() as other:  # bound but not listening, like an outgoing connection
            other.bind(("127.0.0.1", port))
            with pytest.raises(AssertionError, match="the broker ended"):
                unused.start()


def test_free_ports_are_unique_and_outside_the_ephemeral_range() -> None:
    ports = free_ports(20) + free_ports(20)
    assert len(set(ports)) == 40
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert max(ports) < client.getsockname()[1]
