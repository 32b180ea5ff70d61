"""With more workers than partitions, the spare worker is ready and takes over."""

from pathlib import Path

import httpx
import pytest

from tests.guarantees.harness import BOTH_CLIENTS, as_json, group, vectors
from tests.kafka_broker import Broker
from tests.ports import free_ports

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_worker_without_a_partition_is_ready_and_takes_over(
    broker: Broker, topic: str, tmp_path: Path, client: str
) -> None:
    broker.create_topic(topic, 1)
    broker.produce(topic, 0, as_json(vectors(300, seed=1)))
    ports = free_ports(2)

    def ready(port: int) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    with group(broker, topic, tmp_path, [client]) as members:
        for port in ports:
            members.start(metrics_port=port)
        members.wait(lambda: all(map(ready, ports)), "two ready workers")
        figures = [httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text for port in ports]
        owned = [f'streampca_partitions_owned{{topic="{topic}"}} {n}.0' in text for text in figures for n in (0, 1)]
        assert sorted((owned[:2], owned[2:])) == [[False, True], [True, False]]
        members.workers[0 if owned[1] else 1].stop()
        broker.produce(topic, 0, as_json(vectors(300, seed=2)))
        members.wait_until_learned()
