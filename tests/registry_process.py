"""A real schema registry for tests: Apicurio in memory, with Confluent's API, started in about three seconds.

It is downloaded from Maven Central once and cached in the folder STREAMPCA_REGISTRY_CACHE.
"""

import os
import shutil
import signal
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.broker_process import BrokerUnavailableError
from tests.certificates import Certificates
from tests.java_server import JavaServer
from tests.maven import maven
from tests.ports import free_ports

VERSION = "3.0.9"  # the last version that runs on Java 17
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_UNPACK_OPTIONS: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4


def application() -> Path:
    """The folder of the registry's program, downloaded from Maven Central unless it is cached."""
    cache = Path(os.environ.get("STREAMPCA_REGISTRY_CACHE") or Path.home() / ".cache" / "streampca-registry")
    home = cache / VERSION
    if home.is_dir():
        return home
    if shutil.which("mvn") is None:
        raise BrokerUnavailableError("mvn is not installed, and the registry is not in the cache")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        copying = ("dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}")
        if output := maven(*copying, folder=Path(folder)):
            raise BrokerUnavailableError(f"mvn failed: {output}")
        unpacked = Path(folder) / "fresh"
        shutil.unpack_archive(next(Path(folder).glob("*.tar.gz")), unpacked, **_UNPACK_OPTIONS)
        with suppress(OSError):  # another process was faster: its files are the same
            unpacked.rename(home)
    return home


class RegistryProcess(JavaServer):
    """One registry process; it forgets its schemas when it stops."""

    name = "registry"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "registry.log")
        self._program = next(application().glob("*-runner.jar"))
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
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
