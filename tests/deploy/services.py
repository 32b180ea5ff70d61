"""The compose file's services, on a broker of the tests."""

import httpx

from tests.deploy import files
from tests.kafka_broker import Broker


def environment(broker: Broker, topic: str) -> dict[str, str]:
    """The environment of docker-compose.yml's services, with this broker and topic."""
    shipped = {name: str(value) for name, value in files.services()["worker"]["environment"].items()}
    del shipped["STREAMPCA_STORE"]  # the container's
    return shipped | {
        "STREAMPCA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "STREAMPCA_TOPIC": topic,
        "STREAMPCA_DEAD_LETTER_TOPIC": f"{topic}-dead",
        "STREAMPCA_GROUP_ID": topic,
    }


def memory_limit(service: str) -> int:
    """A service's limit of memory, in bytes."""
    limit = files.services()[service]["deploy"]["resources"]["limits"]["memory"]
    return int(limit[:-1]) * {"M": 1 << 20, "G": 1 << 30}[limit[-1]]


def is_ready(url: str) -> bool:
    """Whether a URL answers with 200."""
    try:
        return httpx.get(url, timeout=30).is_success
    except httpx.TransportError:
        return False
