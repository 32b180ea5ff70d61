"""Three real Kafka brokers that replicate each other's partitions, for tests in which some of them are away."""

from contextlib import suppress
from pathlib import Path
from typing import Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from tests.broker_client import BrokerClient
from tests.broker_process import CLUSTER_ID, KafkaProcess
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, wait_until

NODES = (1, 2, 3)

_PROPERTIES = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs=data
auto.create.topics.enable=false
default.replication.factor=3
min.insync.replicas=2
offsets.topic.num.partitions=3
transaction.state.log.num.partitions=3
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
controller.quorum.election.timeout.ms=500
controller.quorum.fetch.timeout.ms=1000
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
"""


class BrokerCluster(BrokerClient):
    """Topics have three replicas and take records while two of them are in sync."""

    replication = len(NODES)

    def __init__(self, folder: Path) -> None:
        self._brokers = {node: KafkaProcess(folder / str(node)) for node in NODES}
        ports = free_ports(2 * len(NODES))
        self._ports, self._controllers = ports[: len(NODES)], ports[len(NODES) :]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def __enter__(self) -> Self:
        try:
            for node in NODES:
                self._format(node)
                self.start(node)
            wait_until(lambda: self.alive() == set(NODES), PATIENCE_S, "the cluster's startup")
        except BaseException:
            self._kill()
            raise
        self._connect()
        return self

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        self.wait_until_in_sync(topic)

    def _reconnect(self) -> None:
        """The client keeps asking a coordinator or leader that has left."""
        self.admin.close()
        self._connect()

    def _connect(self) -> None:
        self.admin = KafkaAdminClient(bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=30_000)

    def __exit__(self, *_: object) -> None:
        self.admin.close()
        self._kill()

    def _kill(self) -> None:
        for broker in self._brokers.values():
            broker.end(kill=True)

    def start(self, node: int) -> None:
        """Start a broker, without waiting for it."""
        self._brokers[node].launch("-Xmx256m")

    def leave(self, node: int, *, kill: bool) -> None:
        """Kill a broker, or shut it down, which moves its partitions first."""
        self._brokers[node].end(kill=kill)
        self._reconnect()

    def alive(self) -> set[int]:
        """The brokers that the cluster knows."""
        with suppress(KafkaError), KafkaAdminClient(bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=2000) as now:
            return {broker["broker_id"] for broker in now.describe_cluster()["brokers"]}
        return set()

    def leader(self, topic: str) -> int:
        """The broker that leads the first partition of a topic."""
        return int(self._described(topic)[0]["leader_id"])

    def wait_until_in_sync(self, topic: str) -> None:
        """Return when all brokers are back, and have all records of a topic."""

        def in_sync() -> bool:
            try:
                return all(len(partition["isr_nodes"]) == len(NODES) for partition in self._described(topic))
            except KafkaError:
                self._reconnect()
                return False

        wait_until(in_sync, PATIENCE_S, f"all replicas of {topic}")
        self._reconnect()  # to brokers that the client does not know yet

    def _format(self, node: int) -> None:
        broker = self._brokers[node]
        broker.folder.mkdir(parents=True)
        (broker.folder / "log4j2.properties").write_text("rootLogger.level = error\n")
        voters = ",".join(f"{other}@127.0.0.1:{port}" for other, port in zip(NODES, self._controllers, strict=True))
        index = NODES.index(node)
        properties = _PROPERTIES.format(
            node=node, voters=voters, port=self._ports[index], controller=self._controllers[index]
        )
        (broker.folder / "server.properties").write_text(properties)
        broker.format("-t", CLUSTER_ID)
