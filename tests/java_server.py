"""A server of tests that runs in a JVM and answers HTTP; and what happens where such a thing cannot run."""

import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest

from tests.broker_process import BrokerUnavailableError
from tests.maven import maven
from tests.waiting import wait_until

T = TypeVar("T")

START_TIMEOUT_S = 60
_UNPACK_OPTIONS: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4


def available(make: Callable[[], T], what: str) -> T:
    """What `make` returns; if that cannot run here, the test is skipped, or fails in CI."""
    try:
        return make()
    except BrokerUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no {what} in CI: {error}")
        pytest.skip(f"no {what} here: {error}")


def program(server: str, name: str, artifact: str) -> Path:
    """A program from Maven Central, unpacked if it is an archive, by its name in the folder STREAMPCA_…_CACHE.

    Downloaded unless it is there.
    """
    cache = Path(os.environ.get(f"STREAMPCA_{server.upper()}_CACHE") or Path.home() / ".cache" / f"streampca-{server}")
    if (cached := cache / name).exists():
        return cached
    if shutil.which("mvn") is None:
        raise BrokerUnavailableError(f"mvn is not installed, and {name} is not in {cache}")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        copying = ("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}")
        if output := maven(*copying, folder=Path(folder)):
            raise BrokerUnavailableError(f"mvn failed: {output}")
        (copied,) = Path(folder).iterdir()
        if copied.name.endswith(".tar.gz"):
            shutil.unpack_archive(copied, Path(folder) / "unpacked", **_UNPACK_OPTIONS)
            copied = Path(folder) / "unpacked"
        with suppress(OSError):  # another process was faster: its files are the same
            copied.rename(cached)
    return cached


class JavaServer(ABC):
    """One server process, which can be started again after it was stopped."""

    name: str  # in messages

    def __init__(self, log: Path) -> None:
        """Runs in the folder of its log. Raises `BrokerUnavailableError` without Java."""
        if shutil.which("java") is None:
            raise BrokerUnavailableError("java is not installed")
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _arguments(self) -> list[str]:
        """Of `java`."""

    @abstractmethod
    def _probe(self) -> str:
        """A URL that answers with 200 once the server is ready."""

    def start(self) -> None:
        """Start the process; return when it is ready."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                ["java", "-XX:TieredStopAtLevel=1", *self._arguments()],
                cwd=self._log.parent, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        wait_until(self._is_ready, START_TIMEOUT_S, f"the {self.name}'s startup")

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        """Of the process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def leave(self) -> None:
        """Leave the process, if this object has started one, to whoever kills it."""
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # otherwise `Popen` warns that it still runs
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the {self.name} ended: {self._log.read_text()[-2000:]}"
        with (
            suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(self._probe(), timeout=10) as answer,  # noqa: S310 - ours
        ):
            return bool(answer.status == 200)
        return False
