"""Workers whose store is a bucket: killed, joining and leaving, and through outages they learn the same bits."""

import random
import time
import uuid
from pathlib import Path

import httpx
import pytest

from tests.guarantees.harness import BOTH_CLIENTS, as_json, group, vectors
from tests.guarantees.test_exactly_once import assert_all_learned_once
from tests.guarantees.worker_process import WorkerProcess
from tests.kafka_broker import Broker
from tests.object_server import Fault, S3Proxy
from tests.ports import free_ports
from tests.s3_process import BUCKET
from tests.sidecar.process import SidecarProcess
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

PARTITIONS, ROUNDS, MESSAGES = 4, 16, 16_000


@pytest.fixture
def url(proxy: S3Proxy) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def test_workers_that_are_killed_join_and_leave_give_the_bits_of_a_disk(
    broker: Broker, topic: str, tmp_path: Path, proxy: S3Proxy, url: str
) -> None:
    """Twelve of them are killed, four leave in peace."""
    rng = random.Random(15)
    broker.create_topic(topic, PARTITIONS)
    settings = {"store": url, "poll_records": 25, "checkpoint_interval_s": 0.05}
    with group(broker, topic, tmp_path / "killed", BOTH_CLIENTS, **settings) as members:
        running: list[WorkerProcess] = []
        for step in range(ROUNDS):
            while len(running) < 2:
                running.append(members.start())
            members.wait(lambda w=running[0]: w.count("partitions assigned"), "an assignment")
            writes = proxy.requests["write"]
            for partition in range(PARTITIONS):
                rows = vectors(MESSAGES // ROUNDS // PARTITIONS, seed=PARTITIONS * step + partition)
                broker.produce(topic, partition, as_json(rows))
            leaving = running.pop(0)
            if step % 4 == 3:
                assert leaving.stop() == 0, leaving.text()[-2000:]
                continue
            deadline = time.monotonic() + rng.choice([0.0, 0.3, 2.0])
            while proxy.requests["write"] == writes and time.monotonic() < deadline:
                time.sleep(0.001)
            leaving.kill()
            members.assert_commits_not_ahead()
        assert_all_learned_once(members, MESSAGES, tmp_path / "undisturbed")


def test_learning_continues_while_the_store_is_away(
    broker: Broker, new_topic: str, tmp_path: Path, proxy: S3Proxy, url: str
) -> None:
    """It does not show what was written, hangs, answers 503: nothing is lost, and the log tells begin and end."""
    (metrics_port,) = free_ports(1)
    with (
        # While the store is away, a worker that the group evicts could restore nothing.
        group(
            broker, new_topic, tmp_path, store=url, metrics_port=metrics_port, session_timeout_s=PATIENCE_S
        ) as members,
        SidecarProcess(url, topic=new_topic) as sidecar,
    ):
        proxy.begin(Fault("status", 404, "NoSuchKey", only="read"))
        worker = members.start()
        members.wait(lambda: worker.count("waiting for the store"), "a start that waits")
        proxy.end()
        broker.produce(new_topic, 0, as_json(vectors(1000, seed=1)))
        members.wait_until_learned()
        ready = f"{sidecar.wait_for_url()}/readyz"
        members.wait(lambda: httpx.get(ready, timeout=60).status_code == 200, "a model")
        resumed = worker.count("checkpoint saved again")  # after a broker that was slow
        proxy.begin(Fault("hang"))
        broker.produce(new_topic, 0, as_json(vectors(1000, seed=2)))
        members.wait(lambda: metric(metrics_port, "streampca_next_offset") == 2000, "learning during the outage")
        members.wait(lambda: worker.count("checkpoint postponed") and metric(metrics_port, '="error"'), "an error")
        members.wait(lambda: "store cannot be read" in httpx.get(ready, timeout=60).text, "a sidecar that is not ready")
        proxy.begin(Fault("status", 503, "SlowDown"))
        broker.produce(new_topic, 0, as_json(vectors(1000, seed=3)))
        members.wait(lambda: metric(metrics_port, "streampca_next_offset") == 3000, "learning during the outage")
        proxy.end()
        members.wait_until_learned()
        members.wait(lambda: httpx.get(ready, timeout=60).status_code == 200, "a sidecar that is ready again")
        members.wait(lambda: worker.count("checkpoint saved again") > resumed, "the end of the outage")
        assert worker.count("checkpoint saved again") == resumed + 1
        members.assert_commits_not_ahead()
        members.assert_same_bits()
        assert worker.stop() == 0


def metric(port: int, name: str) -> float:
    """The sum of the samples of `streampca_…` whose line contains this."""
    lines = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if name in line and line.startswith("streampca_"))
