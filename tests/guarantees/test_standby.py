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

    def owned(port: int) -> int:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
        return int(text.split(f'streampca_partitions_owned{{topic="{topic}"}} ')[1][0])

    with group(broker, topic, tmp_path, [client]) as members:
        for port in ports:
            members.start(metrics_port=port)
        members.wait(lambda: all(map(ready, ports)), "two ready workers")
        members.wait(lambda: sorted(map(owned, ports)) == [0, 1], "one owner, whom the rebalance may change")
        members.workers[0 if owned(ports[0]) else 1].stop()
        broker.produce(topic, 0, as_json(vectors(300, seed=2)))
        members.wait_until_learned()
