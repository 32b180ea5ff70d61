"""Processes of Apache Kafka in KRaft mode, and the test broker's, on free loopback ports.

Its jars are downloaded from Maven Central once and cached in the folder STREAMPCA_BROKER_CACHE.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TransactionalIdNotFoundError

from tests import class_archive
from tests.broker_config import MECHANISMS, PASSWORD, USER, configure, write_keystore
from tests.certificates import KEY_PASSWORD, Certificates
from tests.maven import maven
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, wait_until

POM = Path(__file__).with_name("broker-pom.xml")
STOP_TIMEOUT_S = 20
CLUSTER_ID = "c3RyZWFtcGNhLXRlc3RzMA"  # 16 bytes in base64, as the tool demands


class BrokerUnavailableError(Exception):
    """This machine cannot run the broker; the message says what is missing, such as Java or Maven."""


def jars() -> Path:
    """The folder of the broker's jars, downloaded from Maven Central unless they are cached."""
    cache = Path(os.environ.get("STREAMPCA_BROKER_CACHE") or Path.home() / ".cache" / "streampca-broker")
    lib = cache / "lib"
    if any(lib.glob("kafka_2.13-4.1.0.jar")):
        return lib
    if shutil.which("mvn") is None:
        raise BrokerUnavailableError("mvn is not installed, and the broker's jars are not in the cache")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        unpacked = Path(folder) / "lib"
        shutil.copy(POM, Path(folder) / "pom.xml")
        if output := maven("dependency:copy-dependencies", f"-DoutputDirectory={unpacked}", folder=Path(folder)):
            raise BrokerUnavailableError(f"mvn failed: {output}")
        with suppress(OSError):  # another process was faster: its jars are the same
            unpacked.rename(lib)
    return lib


class KafkaProcess:
    """One process of Kafka, which keeps its configuration and data between `end` and `launch`."""

    def __init__(self, folder: Path) -> None:
        """The `folder` must be missing or empty. Raises `BrokerUnavailableError`."""
        if shutil.which("java") is None:
            raise BrokerUnavailableError("java is not installed")
        self.folder, self.lib = folder, jars()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def format(self, *options: str) -> None:
        """Make the folder for data; the configuration is there."""
        archive = class_archive.options(self.lib.parent)
        words = ["kafka.tools.StorageTool", "format", "-c", "server.properties", *options]
        subprocess.run(self._java(*archive, *words), cwd=self.folder, capture_output=True, check=True, timeout=60)

    def launch(self, *options: str) -> None:
        """Start the process, without waiting for it."""
        with (self.folder / "broker.log").open("ab") as out:
            self.process = subprocess.Popen(
                self._java(*options, "-XX:TieredStopAtLevel=1", "kafka.Kafka", "server.properties"),
                cwd=self.folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def end(self, *, kill: bool) -> None:
        """Kill the process, like a power failure, or shut it down, which takes some seconds."""
        process, self.process = self.process, None
        if process is None:
            return
        (process.kill if kill else process.terminate)()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _java(self, *words: str) -> list[str]:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(self.folder / 'jwks.json').as_uri()}"
        return ["java", "-Dlog4j2.configurationFile=log4j2.properties", allowed, "-cp", f"{self.lib}/*", *words]


class BrokerProcess(KafkaProcess):
    """One broker with its ports."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.plain, self.sasl, self.tokens, self.tls, self.mutual, *others = free_ports(8)
        self.controller, self.proxied, self.proxy = others
        """The proxied listener, without authentication, is for a proxy, if a test starts one."""
        self._admin: KafkaAdminClient | None = None

    @property
    def bootstrap(self) -> str:
        """host:port of the listener without authentication."""
        return f"127.0.0.1:{self.plain}"

    @property
    def sasl_bootstrap(self) -> str:
        """host:port of the listener with authentication by password (see SASL)."""
        return f"127.0.0.1:{self.sasl}"

    @property
    def tokens_bootstrap(self) -> str:
        """host:port of the listener with authentication by tokens (see tests/token_server.py)."""
        return f"127.0.0.1:{self.tokens}"

    @property
    def tls_bootstrap(self) -> str:
        """host:port of the TLS listener with authentication by password."""
        return f"127.0.0.1:{self.tls}"

    @property
    def mutual_bootstrap(self) -> str:
        """host:port of the TLS listener with authentication by client certificate."""
        return f"127.0.0.1:{self.mutual}"

    @property
    def certificates(self) -> Certificates:
        """The certificates of the broker, its authority and a client."""
        return Certificates(self.folder)

    @property
    def certificate_login(self) -> dict[str, Any]:
        """The settings for authentication by the client's certificate."""
        files = self.certificates
        return {
            "security_protocol": "SSL", "bootstrap_servers": self.mutual_bootstrap, "ssl_cafile": files.authority,
            "ssl_certfile": files.client, "ssl_keyfile": files.client_key, "ssl_password": KEY_PASSWORD,
        }  # fmt: skip

    def renew_certificates(self) -> None:
        """Replace all certificates, with a new authority; the broker loads them at its next start."""
        write_keystore(self.folder, self.certificates.make())

    @property
    def admin(self) -> KafkaAdminClient:
        """An admin client, created on first use and closed with the broker."""
        self._assert_running()
        if self._admin is None:
            self._admin = KafkaAdminClient(bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=30_000)
        return self._admin

    def start(self) -> None:
        """Start the process with the same ports and data as before; return when it is ready."""
        assert not self.running
        if not (self.folder / "server.properties").exists():
            self._configure()
        class_archive.ensure(self.lib.parent, self._write_archive)
        self._start(*class_archive.options(self.lib.parent))

    def stop(self) -> None:
        """Shut the process down cleanly; its data remain."""
        self.end(kill=False)

    def kill(self) -> None:
        """Kill the process, like a power failure."""
        self.end(kill=True)

    def end(self, *, kill: bool) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        super().end(kill=kill)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the process: connections stay open, and the kernel takes new ones, but nothing comes over them."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # returns when it has stopped
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)
            wait_until(self._is_ready)  # the cluster may have given it up meanwhile

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _start(self, *options: str) -> None:
        self.launch(*options, "-Xmx512m")
        wait_until(self._is_ready, PATIENCE_S, "the broker's startup")

    def _write_archive(self, option: str) -> bool:
        """Run it once with this option; return whether it ended cleanly, not killed because it took too long."""
        self._start(option)
        process = self.process
        self.stop()
        return process is not None and process.returncode == 128 + signal.SIGTERM

    def _configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = {"PLAINTEXT": self.plain, "LOGIN": self.sasl, "TOKENS": self.tokens, "SECURE": self.tls}
        ports["MUTUAL"] = self.mutual
        configure(self.folder, ports, (self.proxied, self.proxy), self.controller, self.certificates.make())
        options = ["--standalone", "-t", CLUSTER_ID]
        for mechanism in MECHANISMS[1:]:
            options += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        self.format(*options)

    def _assert_running(self) -> None:
        assert self.running, f"the broker ended: {(self.folder / 'broker.log').read_text()[-2000:]}"

    def _is_ready(self) -> bool:
        self._assert_running()
        with suppress(OSError, KafkaError):
            # A refused connection is cheaper than a failing client. All ports, since the first one opens
            # before the others.
            for port in (self.plain, self.sasl, self.tokens, self.tls, self.mutual, self.proxied):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            cluster = self.admin.describe_cluster()
            topics = self.admin.describe_topics()
            led = all(p["leader_id"] >= 0 for t in topics for p in t["partitions"])
            return bool(cluster["brokers"]) and led and self._coordinates()
        return False

    def _coordinates(self) -> bool:
        """True once groups and transactions have coordinators, which read their topics first; else `KafkaError`."""
        self.admin.list_group_offsets({"nobody": None})
        with suppress(TransactionalIdNotFoundError):
            self.admin.describe_transactions(["nobody"])
        return True
