"""An S3 server for tests over real HTTP: Adobe's S3Mock, started in some four seconds.

It is downloaded from Maven Central once and cached in the folder STREAMPCA_S3_CACHE.
"""

import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.broker_process import BrokerUnavailableError, wait_until
from tests.maven import maven
from tests.ports import free_ports

VERSION = "4.11.0"
ARTIFACT = f"com.adobe.testing:s3mock:{VERSION}:jar:exec"
BUCKET = "bucket"
START_TIMEOUT_S = 60


def program() -> Path:
    """The server's jar, downloaded from Maven Central unless it is cached."""
    cache = Path(os.environ.get("STREAMPCA_S3_CACHE") or Path.home() / ".cache" / "streampca-s3")
    jar = cache / f"s3mock-{VERSION}-exec.jar"
    if jar.is_file():
        return jar
    if shutil.which("mvn") is None:
        raise BrokerUnavailableError("mvn is not installed, and the S3 server is not in the cache")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        copying = ("dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}")
        if output := maven(*copying, folder=Path(folder)):
            raise BrokerUnavailableError(f"mvn failed: {output}")
        (Path(folder) / jar.name).replace(jar)  # another process may have been faster: its jar is the same
    return jar


class S3Process:
    """One server process with an empty bucket; it forgets everything when it stops."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("java") is None:
            raise BrokerUnavailableError("java is not installed")
        self._program, self._folder = program(), folder
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that lead a client here, or to a proxy at `endpoint`."""
        return {
            "AWS_ACCESS_KEY_ID": "a-key-id",
            "AWS_SECRET_ACCESS_KEY": "a-secret-key",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Start the process; return when it is ready."""
        mock = "--com.adobe.testing.s3mock"
        options = [
            f"{mock}.http-port={self.port}", "--server.port=0", "--server.address=127.0.0.1",
            f"{mock}.store.root={self._folder / 'objects'}", f"{mock}.store.initial-buckets={BUCKET}",
            "--logging.level.root=WARN",
        ]  # fmt: skip
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", self._program, *options],
                cwd=self._folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        wait_until(self._is_ready, START_TIMEOUT_S, "the S3 server's startup")

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self._folder / "s3.log"

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the S3 server ended: {self._log.read_text()[-2000:]}"
        with (
            suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(f"{self.endpoint}/{BUCKET}?list-type=2", timeout=10) as answer,  # noqa: S310 - ours
        ):
            return answer.status == 200
        return False
