"""Processes of Apache Kafka in KRaft mode.

Their JVMs start in about half the processor time with a class archive. The first one writes it when it ends; later
ones, of any test process or run, map it into their memory. Java itself checks that it belongs to these jars.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.java_server import JavaProcess, downloaded

POM = Path(__file__).with_name("broker-pom.xml")
CLUSTER_ID = "c3RyZWFtcGNhLXRlc3RzMA"  # 16 bytes in base64, as the tool demands


class KafkaProcess(JavaProcess):
    """One process, which keeps its configuration and data between `end` and `launch`."""

    def __init__(self, folder: Path) -> None:
        """The `folder` must be missing or empty. Raises `ServerUnavailableError`."""
        super().__init__(folder / "broker.log")
        self.folder = folder
        lib = downloaded("broker", "kafka-4.1.0", "dependency:copy-dependencies", pom=POM)
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(folder / 'jwks.json').as_uri()}"
        self._options = ["-Dlog4j2.configurationFile=log4j2.properties", allowed, "-cp", f"{lib}/*"]
        java = Path(shutil.which("java") or "").resolve()
        self._archive = lib / f"classes-{java.stat().st_mtime_ns}.jsa"  # another version of Java refuses it

    def format(self, *options: str) -> None:
        """Make the folder for data; the configuration is there."""
        words = [*self._with_archive(), "kafka.tools.StorageTool", "format", "-c", "server.properties", *options]
        subprocess.run(["java", *words], cwd=self.folder, capture_output=True, check=True, timeout=60)

    def launch(self, *options: str) -> None:
        """Start the process, without waiting for it."""
        super().launch(*self._with_archive(), *options, "kafka.Kafka", "server.properties")

    def ensure_archive(self, run: Callable[[str], bool]) -> None:
        """Write an archive unless there is one; nothing is written where that is impossible.

        `run` starts the server with the given option and stops it; it returns whether the JVM ended by itself.
        """
        folder = self._archive.parent
        if self._archive.is_file() or not os.access(folder, os.W_OK):
            return
        with (folder / "classes.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
            if self._archive.is_file():  # another process was faster
                return
            unfinished = self._archive.with_suffix(".unfinished")
            unfinished.unlink(missing_ok=True)
            if run(f"-XX:ArchiveClassesAtExit={unfinished}"):
                with suppress(FileNotFoundError):  # Java could not write it
                    unfinished.replace(self._archive)

    def _with_archive(self) -> list[str]:
        return [*self._options, *([f"-XX:SharedArchiveFile={self._archive}"] if self._archive.is_file() else [])]
