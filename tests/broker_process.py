"""Processes of Apache Kafka in KRaft mode."""

import subprocess
from pathlib import Path

from tests import class_archive
from tests.java_server import JavaProcess, downloaded

POM = Path(__file__).with_name("broker-pom.xml")
CLUSTER_ID = "c3RyZWFtcGNhLXRlc3RzMA"  # 16 bytes in base64, as the tool demands


class KafkaProcess(JavaProcess):
    """One process, which keeps its configuration and data between `end` and `launch`."""

    def __init__(self, folder: Path) -> None:
        """The `folder` must be missing or empty. Raises `ServerUnavailableError`."""
        super().__init__(folder / "broker.log")
        self.folder = folder
        self.lib = downloaded("broker", "kafka-4.1.0", "dependency:copy-dependencies", pom=POM)
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(folder / 'jwks.json').as_uri()}"
        self._options = ["-Dlog4j2.configurationFile=log4j2.properties", allowed, "-cp", f"{self.lib}/*"]

    def format(self, *options: str) -> None:
        """Make the folder for data; the configuration is there."""
        words = [*class_archive.options(self.lib), "kafka.tools.StorageTool", "format", "-c", "server.properties"]
        command = ["java", *self._options, *words, *options]
        subprocess.run(command, cwd=self.folder, capture_output=True, check=True, timeout=60)

    def launch(self, *options: str) -> None:
        """Start the process, without waiting for it."""
        super().launch(*self._options, *options, "kafka.Kafka", "server.properties")
