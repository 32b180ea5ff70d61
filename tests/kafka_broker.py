"""A real Apache Kafka broker for tests: one KRaft process on free loopback ports, started in about three seconds.

    broker = Broker(folder); broker.start(); broker.create_topic("readings", 4); broker.stop(); broker.start()

It keeps its ports and data between `stop` (or `kill`) and `start`, so a test can simulate an outage.
"""

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TransactionalIdNotFoundError

from tests.broker_client import BrokerClient
from tests.broker_config import MECHANISMS, PASSWORD, SASL, USER, configure, write_keystore
from tests.broker_process import CLUSTER_ID, KafkaProcess
from tests.certificates import KEY_PASSWORD, Certificates
from tests.ports import free_ports
from tests.service import Service
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["MECHANISMS", "PASSWORD", "SASL", "USER", "Broker"]

# Listeners for clients: without authentication, by password, by tokens (tests/token_server.py), by password over TLS,
# and by a client's certificate.
LISTENERS = ("PLAINTEXT", "LOGIN", "TOKENS", "SECURE", "MUTUAL")


class Broker(KafkaProcess, BrokerClient, Service):
    """A broker process with helpers for topics, records and groups."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # The proxied listener, without authentication, is for a proxy, if a test starts one.
        *ports, self._controller, self.proxied, self.proxy = free_ports(len(LISTENERS) + 3)
        self._ports = dict(zip(LISTENERS, ports, strict=True))
        self.tokens = self._ports["TOKENS"]
        self.bootstrap, self.sasl_bootstrap, self.tokens_bootstrap, *secure = (f"127.0.0.1:{port}" for port in ports)
        self.tls_bootstrap, self.mutual_bootstrap = secure
        self.certificates = Certificates(folder)
        self._admin: KafkaAdminClient | None = None

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
    def port(self) -> int:
        """The port for clients without authentication."""
        return self._ports["PLAINTEXT"]

    @property
    def admin(self) -> KafkaAdminClient:
        """An admin client, created on first use and closed with the broker."""
        self.assert_running()
        if self._admin is None:
            self._admin = KafkaAdminClient(bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=30_000)
        return self._admin

    def start(self) -> None:
        """Start the process with the same ports and data as before; return when it is ready."""
        assert not self.running
        if not (self.folder / "server.properties").exists():
            self._configure()
        self.ensure_archive(self._write_archive)
        self._start()

    def stop(self) -> None:
        """Shut the process down cleanly; its data remain."""
        self.end(kill=False)

    def move(self) -> None:
        """Shut the process down, and start it at another port for clients without authentication."""
        self.stop()
        before, (after,) = self._ports["PLAINTEXT"], free_ports(1)
        properties = self.folder / "server.properties"
        properties.write_text(
            properties.read_text().replace(f"PLAINTEXT://127.0.0.1:{before}", f"PLAINTEXT://127.0.0.1:{after}")
        )
        self._ports["PLAINTEXT"] = after
        self.bootstrap = f"127.0.0.1:{after}"
        self.start()

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
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # returns when it has stopped
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)
            wait_until(self._is_ready)  # the cluster may have given it up meanwhile

    def log_file(self, topic: str, partition: int) -> Path:
        """The file of a partition's first records."""
        return self.folder / "data" / f"{topic}-{partition}" / f"{0:020d}.log"

    def truncate_logs(self, topic: str, sizes: Mapping[int, int]) -> None:
        """Cut logs to sizes that their files had earlier, like a disk that lost data; restarts the broker."""
        self.stop()
        for partition, size in sizes.items():
            file = self.log_file(topic, partition)
            os.truncate(file, size)
            for derived in file.parent.iterdir():
                if derived.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
                    derived.unlink()
        (self.folder / "data" / ".kafka_cleanshutdown").unlink()  # so that the broker recovers the log
        self.start()

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
        configure(self.folder, self._ports, (self.proxied, self.proxy), self._controller, self.certificates.make())
        user = f"[name={USER},password={PASSWORD}]"
        scram = [word for mechanism in MECHANISMS[1:] for word in ("--add-scram", f"{mechanism}={user}")]
        self.format("--standalone", "-t", CLUSTER_ID, *scram)

    def _is_ready(self) -> bool:
        self.assert_running()
        with suppress(OSError, KafkaError):
            # A refused connection is cheaper than a failing client. All ports, since the first one opens
            # before the others.
            for port in (*self._ports.values(), self.proxied):
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
