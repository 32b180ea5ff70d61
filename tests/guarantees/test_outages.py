"""Broker outages, faulty connections, stalled handshakes, replaced topics and records removed by retention."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.faulty_proxy import FaultyProxy
from tests.guarantees.harness import BOTH_CLIENTS, as_json, group, vectors, with_polls_of
from tests.guarantees.test_transform import PARTITIONS, assert_each_once, members
from tests.java_server import available
from tests.kafka_broker import Broker
from tests.ports import free_ports

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

OUTAGE_S = 10
CHANGED_ADDRESS_S = 180  # longest time until members have found brokers at other addresses
FAULTS = {"cut": 3, "slow": 500, "silent": 1}  # how many of each
SILENCE_S = 2.5  # longer than the session


# While a file exists, its workers learn 400 records a second, so that a broker has time to stop.
SLOW = """
import pathlib, time
from streampca.sources.client_source import ClientSource as source
poll, file = source.poll, pathlib.Path({file!r})
source.poll = lambda *given: (time.sleep(0.05 * file.exists()), poll(*given))[1]
"""


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_broker_outage_changes_no_bit(stoppable: Broker, topic: str, tmp_path: Path, client: str) -> None:
    stoppable.create_topic(topic, 2)
    rows = np.split(vectors(16_000, seed=3), [200, 400, 7950, 15_500, 15_750])
    (slow := tmp_path / "slow").touch()
    with group(stoppable, topic, tmp_path, [client], checkpoint_interval_s=0.3) as members:
        worker = members.start(SLOW.format(file=str(slow)) + with_polls_of(20))
        for part in range(4):
            stoppable.produce(topic, part % 2, as_json(rows[part]))
            members.wait(lambda part=part: len(members.positions()) > min(part, 1), "first checkpoints")
        stoppable.stop()  # some progress is not in any checkpoint yet
        slow.unlink()
        assert members.positions() != {0: 7750, 1: 7750}, "the broker must stop before everything is learned"
        time.sleep(OUTAGE_S)  # the length of the outage is what is tested
        assert worker.process.poll() is None, worker.text()[-2000:]
        stoppable.start()
        for partition in (0, 1):
            stoppable.produce(topic, partition, as_json(rows[4 + partition]))
        members.wait_until_learned(120)
        members.assert_commits_not_ahead()
        members.assert_same_bits()
        logged = [e for e in worker.events() if e["level"] in ("warning", "error") and "logger" not in e]
        assert 1 <= len(logged) <= 6, f"the outage must be logged once: {logged}"
        assert worker.stop() == 0


@pytest.fixture
def movable(tmp_path: Path) -> Iterator[Broker]:
    """A broker of this test alone, which may change its address."""
    with available(lambda: Broker(tmp_path / "broker"), "broker") as own:
        yield own


def produce_everywhere(broker: Broker, topic: str, count: int) -> None:
    """Send so many records to each partition."""
    for partition in range(PARTITIONS):
        broker.produce(topic, partition, as_json(vectors(count, seed=partition)))


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_members_go_on_after_all_brokers_have_changed_address(
    movable: Broker, new_topic: str, tmp_path: Path, client: str
) -> None:
    """The bootstrap address stays, as that of a load balancer does. Members have nothing to save meanwhile."""
    (port,) = free_ports(1)
    at = {"bootstrap_servers": f"127.0.0.1:{port}", "kafka_client": client}
    with (
        FaultyProxy(port, movable.port) as balancer,
        members(movable, new_topic, tmp_path / "transform") as transforming,
        group(movable, new_topic, tmp_path / "workers", [client], **at) as learning,
    ):
        produce_everywhere(movable, new_topic, 100)
        learning.learn()
        transforming.start(**at)
        transforming.wait_for_all()
        movable.move()
        balancer.target = movable.port
        produce_everywhere(movable, new_topic, 50)
        learning.wait_until_learned(CHANGED_ADDRESS_S)
        transforming.wait(lambda: transforming.position() == PARTITIONS * 150, "all records", CHANGED_ADDRESS_S)
        learning.assert_same_bits()
        assert_each_once(movable, new_topic)


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_sigterm_stops_a_worker_during_an_outage(
    stoppable: Broker, new_topic: str, tmp_path: Path, client: str
) -> None:
    stoppable.produce(new_topic, 0, as_json(vectors(500, seed=5)))
    with group(stoppable, new_topic, tmp_path, [client]) as members:
        worker = members.learn()
        stoppable.stop()
        assert worker.stop() == 0, worker.text()[-2000:]


@pytest.mark.parametrize("client", BOTH_CLIENTS)
@pytest.mark.parametrize("is_running", [False, True])
def test_a_replaced_topic_is_refused(
    broker: Broker, new_topic: str, tmp_path: Path, client: str, is_running: bool
) -> None:
    broker.produce(new_topic, 0, as_json(vectors(500, seed=1)))
    with group(broker, new_topic, tmp_path, [client]) as members:
        worker = members.learn()
        if not is_running:
            worker.stop()
        files = members.files()
        broker.delete_topic(new_topic)
        broker.create_topic(new_topic, 1)
        broker.produce(new_topic, 0, as_json(vectors(800, seed=2)))
        refused = worker if is_running else members.start()
        assert refused.wait(60) == 1
        text = refused.text()
        assert "deleted and created again" in text or (is_running and "does not exist" in text)
        assert "Traceback" not in text
        assert members.files() == files


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_start_whose_handshake_stalls_waits(stoppable: Broker, new_topic: str, tmp_path: Path, client: str) -> None:
    stoppable.produce(new_topic, 0, as_json(vectors(500, seed=5)))
    with group(stoppable, new_topic, tmp_path, [client], **stoppable.certificate_login) as members:
        with stoppable.frozen():
            worker = members.start()
            members.wait(lambda: worker.count("waiting for brokers"), "a start that waits")
        members.wait_until_learned()


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_faulty_network_changes_no_bit(broker: Broker, topic: str, tmp_path: Path, client: str) -> None:
    broker.create_topic(topic, 2)
    parts = [as_json(rows) for rows in np.array_split(vectors(8000, seed=6), 8)]
    settings = {"bootstrap_servers": f"127.0.0.1:{broker.proxy}", "poll_records": 100}
    with (
        FaultyProxy(broker.proxy, broker.proxied) as proxy,
        group(broker, topic, tmp_path, [client], **settings) as members,
    ):
        for i, fault in enumerate(["", *FAULTS]):
            proxy.begin(fault)
            for partition in (0, 1):
                broker.produce(topic, partition, parts[2 * i + partition])
            if not fault:
                worker = members.start()
            else:
                members.wait(lambda fault=fault: proxy.faults >= FAULTS[fault], f"faults: {fault}")  # type: ignore[misc]
            if fault == "silent":
                time.sleep(SILENCE_S)  # the length of the fault is what is tested
            proxy.reset()
            members.wait_until_learned()
            members.assert_commits_not_ahead()
        members.assert_same_bits()
        assert sum(checkpoint.fold.stats.learned for checkpoint in members.newest().values()) == 8000
        assert worker.stop() == 0
