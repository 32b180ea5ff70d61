"""Members of both roles on three brokers of which each leaves once: the same bits, and each record has one output."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from streampca.errors import NoBrokerError
from streampca.settings.commands import WorkerSettings
from streampca.sources.clients import create_admin
from tests.broker_cluster import NODES, BrokerCluster
from tests.guarantees.harness import BOTH_CLIENTS, D, K, as_json, group, vectors
from tests.guarantees.test_transform import BAD, assert_each_once, members
from tests.guarantees.test_transform_outages import Supervised
from tests.java_server import available
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

PARTITIONS, CHUNK = 4, 300
READ_S = 180.0  # longest time until all is read after a broker has left: a member that hangs ends after 60 s


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with available(lambda: BrokerCluster(tmp_path_factory.mktemp("cluster")), "broker") as three:
        yield three


def send(cluster: BrokerCluster, topic: str, seed: int) -> None:
    """Send records to all partitions, one of them bad."""
    for partition in range(PARTITIONS):
        cluster.produce(topic, partition, [BAD, *as_json(vectors(CHUNK, 10 * seed + partition))])


def test_each_record_is_learned_and_transformed_once_while_each_broker_leaves(
    cluster: BrokerCluster, topic: str, tmp_path: Path
) -> None:
    """Each broker in turn, the leader of a partition, is killed or shut down while records arrive, and returns."""
    options = {"poll_records": 50, "dead_letter_topic": cluster.create_topic(f"{topic}-rejected")}
    with (
        members(cluster, topic, tmp_path) as transforming,
        group(cluster, topic, tmp_path / "workers", BOTH_CLIENTS, **options) as workers,
    ):
        supervised = Supervised(transforming, [{"kafka_client": client} for client in BOTH_CLIENTS])
        for _ in BOTH_CLIENTS:
            workers.start()
        for turn in range(len(NODES)):
            send(cluster, topic, 2 * turn)
            node = cluster.leader(topic)
            cluster.leave(node, kill=turn % 2 == 0)
            send(cluster, topic, 2 * turn + 1)
            workers.wait_until_learned(READ_S)
            supervised.wait_until_read(READ_S)
            cluster.start(node)
            cluster.wait_until_in_sync(topic)
        workers.assert_same_bits()
        workers.assert_commits_not_ahead()
        assert_each_once(cluster, topic)


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_the_ends_of_a_log_are_right_or_not_known_while_its_leader_leaves(
    cluster: BrokerCluster, topic: str, client: str
) -> None:
    cluster.create_topic(topic, PARTITIONS)
    send(cluster, topic, 0)
    settings = WorkerSettings(
        topic=topic, dimensions=D, components=K, bootstrap_servers=cluster.bootstrap, kafka_client=client
    )
    with closing(create_admin(settings, topic)) as admin:
        right = admin.log_bounds()
        assert right == dict.fromkeys(range(PARTITIONS), (0, CHUNK + 1))
        node = cluster.leader(topic)
        cluster.leave(node, kill=True)

        def are_known() -> bool:
            try:
                log_bounds = admin.log_bounds()
            except NoBrokerError:
                return False
            assert log_bounds == right
            return True

        wait_until(are_known, READ_S, "the new leaders")
    cluster.start(node)
    cluster.wait_until_in_sync(topic)
