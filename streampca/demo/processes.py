"""The processes of the demo: a broker in memory, and children, each logging to a file."""

import contextlib
import ctypes
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streampca.errors import StreampcaError, naming_the_extra
from streampca.settings.base import PREFIX

_SHOWN = 110  # characters of a value
_PORTS = range(10_000, 20_000)  # systems give others to connections, which might take one before a process listens

# kafka-python cannot negotiate a version with librdkafka's mock cluster, which speaks this one.
_PROGRAM = """
from streampca.cli.app import main
from streampca.sources.kafka_python import connection
connection.api_version = (2, 1)
main()
"""


class EmbeddedBroker:
    """An in-memory Kafka broker: librdkafka's mock cluster, which is part of confluent-kafka.

    It retains some 5 MB per partition, has four partitions a topic and creates topics on demand. It runs as long as
    this object lives. Raises `SettingsError` without confluent-kafka.
    """

    def __init__(self, *topics: str) -> None:
        with naming_the_extra("the demo", "worker"):
            from confluent_kafka import Producer
        client = Producer({"log_level": 0, "test.mock.num.brokers": 1, "bootstrap.servers": "embedded"})
        _assign_at_once(client)
        broker = next(iter(client.list_topics(timeout=10).brokers.values()))
        self.address = f"{broker.host}:{broker.port}"
        self.partitions = {t: list(client.list_topics(t, timeout=10).topics[t].partitions) for t in topics}
        self._client = client


def _assign_at_once(client: Any) -> None:
    """Let the first member of a group wait for no others: 3 s by default, for which the client has no option."""
    from confluent_kafka import cimpl

    with contextlib.suppress(AttributeError):  # an older librdkafka
        library = ctypes.CDLL(cimpl.__file__)  # also finds the functions of librdkafka
        handle = ctypes.c_void_p.from_address(id(client) + object.__basicsize__)  # its first field
        library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        cluster = ctypes.c_void_p(library.rd_kafka_handle_mock_cluster(handle))
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, ctypes.c_int32(0))


def first_record(broker: EmbeddedBroker, topic: str) -> Generator[str, None, None]:
    """Yield "" until the topic has a record, and then its headers and value; never waits."""
    from confluent_kafka import Consumer, TopicPartition

    consumer: Any = Consumer({"bootstrap.servers": broker.address, "group.id": "demo", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in broker.partitions[topic]])
    with contextlib.closing(consumer):
        while (message := consumer.poll(0)) is None or message.error():
            yield ""
        value = message.value().decode()
        headers = "  ".join(f"{name} {text.decode()}" for name, text in message.headers() or ())
        yield f"  {headers}\n  {value[:_SHOWN]}{' …' if len(value) > _SHOWN else ''}\n"


class ChildProcess(subprocess.Popen[bytes]):
    """A `streampca` command with its settings as environment variables; the parent's settings are not inherited."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, object], log: Path) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        variables = {PREFIX + name.upper(): str(value) for name, value in settings.items()}
        self.command, self.log = command[0], log
        with log.open("wb") as output:
            super().__init__(
                [sys.executable, "-c", _PROGRAM, *command],
                env={**inherited, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C must reach only the demo, which stops its children in order
            )

    def verify(self) -> None:
        """Raise `StreampcaError` with the error in the last line of its log, or with the line, if it has exited."""
        if (code := self.poll()) is not None:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            cause = lines[-1].removeprefix("streampca: ") if lines else "it logged nothing"
            with contextlib.suppress(ValueError, TypeError, KeyError):
                cause = json.loads(cause)["error"]
            raise StreampcaError(f"{self.command} exited with code {code}: {cause}")


def free_port(preferred: int) -> int:
    """`preferred` if it is free and not 0, otherwise one of `_PORTS` that is."""
    for port in (*([preferred] if preferred else []), *random.sample(_PORTS, 20)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as server:
            return int(server.getsockname()[1])
    raise StreampcaError("no free port on 127.0.0.1")


def stop(children: list[ChildProcess]) -> None:
    """Terminate all children; kill those that do not end in time."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + 10.0
    for child in children:
        try:
            child.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
