"""A real Apache Kafka broker for tests: one KRaft process on free loopback ports, started in about three seconds.

    broker = Broker(folder); broker.start(); broker.create_topic("readings", 4); broker.stop(); broker.start()

It keeps its ports and data between `stop` (or `kill`) and `start`, so a test can simulate an outage.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.broker_client import BrokerClient
from tests.broker_config import MECHANISMS, PASSWORD, SASL, USER
from tests.broker_process import BrokerProcess

__all__ = ["MECHANISMS", "PASSWORD", "SASL", "USER", "Broker"]


class Broker(BrokerProcess, BrokerClient):
    """A broker process with helpers for topics, records and groups."""

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
