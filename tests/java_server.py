"""Servers of tests that run in a JVM, and what happens where such a thing cannot run.

Programs are downloaded from Maven Central once and cached in the folder STREAMPCA_…_CACHE.
"""

import fcntl
import os
import shutil
import subprocess
import tarfile
import tempfile
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from tests.service import Service
from tests.waiting import is_ready, wait_until

T = TypeVar("T")

START_TIMEOUT_S, STOP_TIMEOUT_S = 60, 20
MAVEN_LOCK = Path.home() / ".cache" / "streampca-maven.lock"
_UNPACK_OPTIONS: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4


class ServerUnavailableError(Exception):
    """This machine cannot run the server; the message says what is missing, such as Java or Maven."""


def unavailable(reason: str) -> NoReturn:
    """Skip the test for this reason, or fail in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def available(make: Callable[[], T], what: str) -> T:
    """What `make` returns; if that cannot run here, the test is skipped, or fails in CI."""
    try:
        return make()
    except ServerUnavailableError as error:
        unavailable(f"no {what}: {error}")


def downloaded(server: str, name: str, *goal: str, pom: Path | None = None) -> Path:
    """A file or folder in the server's cache; if it is missing, Maven's goal downloads it.

    That is all that the goal copies; of a single archive its contents, of a single file the file itself.
    """
    cache = Path(os.environ.get(f"STREAMPCA_{server.upper()}_CACHE") or Path.home() / ".cache" / f"streampca-{server}")
    if (cached := cache / name).exists():
        return cached
    if shutil.which("mvn") is None:
        raise ServerUnavailableError(f"mvn is not installed, and {name} is not in {cache}")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        if pom is not None:
            shutil.copy(pom, Path(folder) / "pom.xml")
        copies = Path(folder) / "copies"
        _maven(*goal, f"-DoutputDirectory={copies}", folder=Path(folder))
        paths = list(copies.iterdir())
        copied = paths[0] if len(paths) == 1 else copies
        if copied.name.endswith(".tar.gz"):
            shutil.unpack_archive(copied, Path(folder) / "unpacked", **_UNPACK_OPTIONS)
            copied = Path(folder) / "unpacked"
        with suppress(OSError):  # another process was faster: its files are the same
            copied.rename(cached)
    return cached


def _maven(*words: str, folder: Path) -> None:
    """Run a goal in a folder. One process at a time: concurrent ones may corrupt their shared repository."""
    MAVEN_LOCK.parent.mkdir(parents=True, exist_ok=True)
    with MAVEN_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        outcome = subprocess.run(
            ["mvn", "-q", "-B", *words], cwd=folder, capture_output=True, text=True, timeout=600, check=False
        )
    if outcome.returncode:
        raise ServerUnavailableError(f"mvn failed: {(outcome.stdout + outcome.stderr).strip()[-500:]}")


class JavaProcess:
    """One process, which can be launched again after it has ended."""

    def __init__(self, log: Path) -> None:
        """Runs in the folder of its log. Raises `ServerUnavailableError` without Java."""
        if shutil.which("java") is None:
            raise ServerUnavailableError("java is not installed")
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self, *arguments: str) -> None:
        """Start `java`, without waiting for the server."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                ["java", "-XX:TieredStopAtLevel=1", *arguments],
                cwd=self.log.parent, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
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

    def assert_running(self) -> None:
        assert self.running, f"the server ended: {self.log.read_text()[-2000:]}"


class JavaServer(JavaProcess, Service):
    """A process that answers HTTP."""

    @abstractmethod
    def _arguments(self) -> list[str]:
        """Of `java`."""

    @abstractmethod
    def _probe(self) -> str:
        """A URL that answers with 200 once the server is ready."""

    def start(self) -> None:
        """Start the process; return when it is ready."""
        self.launch(*self._arguments())
        wait_until(self._is_ready, START_TIMEOUT_S, f"the startup of {type(self).__name__}")

    def stop(self) -> None:
        """Kill the process."""
        self.end(kill=True)

    def _is_ready(self) -> bool:
        self.assert_running()
        return is_ready(self._probe())
