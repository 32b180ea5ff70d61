"""A real schema registry for tests: Apicurio in memory, with Confluent's API, started in about three seconds."""

import signal
from pathlib import Path

from tests.certificates import Certificates
from tests.java_server import JavaServer, downloaded
from tests.ports import free_ports

VERSION = "3.0.9"  # the last version that runs on Java 17
ARTIFACT = f"-Dartifact=io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


class RegistryProcess(JavaServer):
    """One registry process; it forgets its schemas when it stops."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "registry.log")
        self._program = next(downloaded("registry", VERSION, "dependency:copy", ARTIFACT).glob("*-runner.jar"))
        self._port, self._tls_port = free_ports(2)
        self.certificates = Certificates(folder).make()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    @property
    def tls_url(self) -> str:
        """The same over TLS, with a certificate signed by `certificates.authority`."""
        return f"https://127.0.0.1:{self._tls_port}/apis/ccompat/v7"

    def _arguments(self) -> list[str]:
        options = {
            "host": "127.0.0.1", "port": self._port, "ssl-port": self._tls_port,
            "insecure-requests": "enabled", "ssl.certificate.files": self.certificates.server,
            "ssl.certificate.key-files": self.certificates.server_key,
        }  # fmt: skip
        properties = [f"-Dquarkus.http.{name}={value}" for name, value in options.items()]
        return ["-Xmx384m", *properties, "-jar", str(self._program)]

    def _probe(self) -> str:
        return f"{self.url}/subjects"

    def freeze(self) -> None:
        """Suspend the process: it keeps its schemas but does not respond."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process."""
        self.process.send_signal(signal.SIGCONT)
