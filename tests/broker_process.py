"""The process of the broker that tests run against: Apache Kafka in KRaft mode, on free loopback ports.

The jars come from Maven Central once, into the cache folder that STREAMPCA_BROKER_CACHE names.
"""

import base64
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from tests.maven import maven
from tests.ports import free_ports

POM = Path(__file__).with_name("broker-pom.xml")
START_TIMEOUT_S = 40
STOP_TIMEOUT_S = 20

# What a client of the SASL listener must know: `KafkaProducer(bootstrap_servers=broker.sasl_bootstrap, **SASL)`.
USER, PASSWORD = "alice", "alice-secret"
SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": USER,
    "sasl_plain_password": PASSWORD,
}

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},LOGIN://127.0.0.1:{sasl},SECURE://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},LOGIN://127.0.0.1:{sasl},SECURE://127.0.0.1:{tls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \\
  required user_{user}="{password}";
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \\
  required user_{user}="{password}";
listener.name.secure.ssl.keystore.location=keystore.p12
listener.name.secure.ssl.keystore.type=PKCS12
listener.name.secure.ssl.keystore.password={password}
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.retention.ms=-1
log.retention.check.interval.ms=1000
log.initial.task.delay.ms=1000
log.cleaner.backoff.ms=500
log.segment.delete.delay.ms=1000
file.delete.delay.ms=1000
"""

_LOG4J = """
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class BrokerUnavailableError(Exception):
    """This machine cannot run the broker (no Java, no Maven); its text says what is missing."""


def jars() -> Path:
    """The folder of the broker's jars; copied from Maven Central when they are not in the cache yet."""
    cache = Path(os.environ.get("STREAMPCA_BROKER_CACHE") or Path.home() / ".cache" / "streampca-broker")
    lib = cache / "lib"
    if any(lib.glob("kafka_2.13-4.1.0.jar")):
        return lib
    if shutil.which("mvn") is None:
        raise BrokerUnavailableError("mvn is not installed, and the broker's jars are not in the cache")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        fresh = Path(folder) / "lib"
        shutil.copy(POM, Path(folder) / "pom.xml")
        if said := maven("dependency:copy-dependencies", f"-DoutputDirectory={fresh}", folder=Path(folder)):
            raise BrokerUnavailableError(f"mvn failed: {said}")
        with suppress(OSError):  # another process was faster: its jars are the same
            fresh.rename(lib)
    return lib


def wait_until(condition: Callable[[], Any], timeout_s: float = 20, what: str = "the condition") -> Any:
    """The first true value of `condition`; fails the test when there is none within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(0.02)
    return value


def make_keystore(keystore: Path, certificate: Path) -> None:
    """A key with a certificate for 127.0.0.1, and that certificate alone, by the JDK's own tool."""
    store = ["-keystore", str(keystore), "-storetype", "PKCS12", "-storepass", PASSWORD, "-alias", "broker"]
    name = ["-dname", "CN=broker", "-ext", "SAN=IP:127.0.0.1", "-keyalg", "EC", "-validity", "2"]
    for words in (["-genkeypair", *name], ["-exportcert", "-rfc", "-file", str(certificate)]):
        subprocess.run(["keytool", *words, *store], capture_output=True, check=True, timeout=60)


@dataclass
class BrokerProcess:
    """One broker process with its ports and data; `folder` must be empty at first."""

    folder: Path
    plain: int = field(init=False)
    sasl: int = field(init=False)
    tls: int = field(init=False)
    controller: int = field(init=False)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _admin: KafkaAdminClient | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if shutil.which("java") is None:
            raise BrokerUnavailableError("java is not installed")
        self._lib = jars()
        self.plain, self.sasl, self.tls, self.controller = free_ports(4)

    @property
    def bootstrap(self) -> str:
        """host:port to give to clients."""
        return f"127.0.0.1:{self.plain}"

    @property
    def sasl_bootstrap(self) -> str:
        """host:port of the listener that asks for user and password (see SASL)."""
        return f"127.0.0.1:{self.sasl}"

    @property
    def tls_bootstrap(self) -> str:
        """host:port of the listener that speaks TLS and asks for user and password."""
        return f"127.0.0.1:{self.tls}"

    @property
    def certificate(self) -> Path:
        """What a client of `tls_bootstrap` verifies the broker with, PEM."""
        return self.folder / "broker.pem"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def admin(self) -> KafkaAdminClient:
        """A client for administration; made when first asked for, closed with the broker."""
        self._must_run()
        if self._admin is None:
            self._admin = KafkaAdminClient(bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=30_000)
        return self._admin

    # Life.

    def start(self) -> None:
        """Start the process, on the ports and data it had before, and return when it answers."""
        assert not self.running
        if not (self.folder / "server.properties").exists():
            self._format()
        with (self.folder / "broker.log").open("ab") as out:
            self.process = subprocess.Popen(
                self._java("-Xmx512m", "-XX:TieredStopAtLevel=1", "kafka.Kafka", "server.properties"),
                cwd=self.folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        wait_until(self._answers, START_TIMEOUT_S, "an answer of the broker")

    def stop(self) -> None:
        """End the process in order; its data stay."""
        self._end(lambda process: process.terminate())

    def kill(self) -> None:
        """End the process at once, as a power cut would."""
        self._end(lambda process: process.kill())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _end(self, signal: Callable[[subprocess.Popen[bytes]], None]) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self.process is None:
            return
        signal(self.process)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _format(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(_LOG4J)
        make_keystore(self.folder / "keystore.p12", self.certificate)
        ports = {"plain": self.plain, "sasl": self.sasl, "tls": self.tls, "controller": self.controller}
        properties = _PROPERTIES.format(**ports, data=self.folder / "data", user=USER, password=PASSWORD)
        (self.folder / "server.properties").write_text(properties)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if cluster.startswith("-"):  # the tool would take it for an option
            cluster = "A" + cluster[1:]
        formatting = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", "server.properties"]
        subprocess.run(self._java(*formatting), cwd=self.folder, capture_output=True, check=True, timeout=60)

    def _must_run(self) -> None:
        assert self.running, f"the broker ended: {(self.folder / 'broker.log').read_text()[-2000:]}"

    def _java(self, *words: str) -> list[str]:
        return ["java", "-Dlog4j2.configurationFile=log4j2.properties", "-cp", f"{self._lib}/*", *words]

    def _answers(self) -> bool:
        self._must_run()
        with suppress(OSError, KafkaError):
            # Ports open before there are answers, and say so for less than a client's failure costs.
            # All of them: it answers at the first before it tries to open the last.
            for port in (self.plain, self.sasl, self.tls):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            cluster = self.admin.describe_cluster()
            topics = self.admin.describe_topics()
            return bool(cluster["brokers"]) and all(p["leader_id"] >= 0 for t in topics for p in t["partitions"])
        return False
