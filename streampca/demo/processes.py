"""The processes of the demo: a broker in memory, and child processes, each of which logs to a file of its own."""

import contextlib
import ctypes
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from streampca.errors import StreampcaError, explain_missing_extra
from streampca.settings.given_values import PREFIX

_MAX_PRINTED_CHARACTERS = 110  # of a record's value
# Systems give outgoing connections ports above these. If `free_port` returned such a port, a connection could take it
# before a process listens on it.
_PORTS = range(10_000, 20_000)
_STOP_TIMEOUT_S = 10.0

# The program `streampca`. kafka-python cannot negotiate a version of the protocol with librdkafka's mock cluster, so
# the program sets the version that the cluster speaks.
_STREAMPCA_PROGRAM = """
from streampca.cli.app import main
from streampca.sources.kafka_python import connection
connection.api_version = (2, 1)
main()
"""


class EmbeddedBroker:
    """An in-memory Kafka broker: librdkafka's mock cluster, which is part of confluent-kafka.

    It retains some 5 MB per partition, has four partitions a topic and creates topics on demand. It runs as long as
    this object lives. Raises `SettingsError` if confluent-kafka is not installed.
    """

    def __init__(self, *topics: str) -> None:
        """Start the broker, and create these topics."""
        with explain_missing_extra("worker", needed_by="the demo"):
            from confluent_kafka import Producer
        settings = {
            "log_level": 0,
            "test.mock.num.brokers": 1,  # starts the broker, inside this client
            "bootstrap.servers": "embedded",  # replaced by the broker's address
        }
        client = Producer(settings)
        _remove_rebalance_delay(client)
        broker = next(iter(client.list_topics(timeout=10).brokers.values()))
        self.address = f"{broker.host}:{broker.port}"
        self.partitions: dict[str, list[int]] = {}
        for topic in topics:
            metadata = client.list_topics(topic, timeout=10).topics[topic]  # this also creates the topic
            self.partitions[topic] = list(metadata.partitions)
        self._client = client  # the broker stops when its client is deleted


def _remove_rebalance_delay(client: Any) -> None:
    """Let the client's mock broker assign partitions as soon as a member joins a group.

    Python has no function for this, so functions of librdkafka are called.
    """
    from confluent_kafka import cimpl

    with contextlib.suppress(AttributeError):  # an older librdkafka lacks a function
        library = ctypes.CDLL(cimpl.__file__)  # the extension module, which links librdkafka
        # librdkafka's handle, a pointer, follows the fields that every Python object has.
        handle = ctypes.c_void_p.from_address(id(client) + object.__basicsize__)
        library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        cluster = ctypes.c_void_p(library.rd_kafka_handle_mock_cluster(handle))
        delay_ms = ctypes.c_int32(0)
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, delay_ms)


def open_consumer(broker: EmbeddedBroker, topic: str) -> Any:
    """Open a consumer that reads a topic of the broker from its beginning."""
    from confluent_kafka import Consumer, TopicPartition

    consumer: Any = Consumer({"bootstrap.servers": broker.address, "group.id": "demo", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in broker.partitions[topic]])
    return consumer


def poll_record(consumer: Any) -> str | None:
    """Return the headers and the beginning of the value of the next record; None if there is no record yet."""
    message = consumer.poll(0)  # does not wait
    if message is None or message.error():
        return None
    headers = "  ".join(f"{name} {text.decode()}" for name, text in message.headers() or ())
    value = message.value().decode()
    if len(value) > _MAX_PRINTED_CHARACTERS:
        value = f"{value[:_MAX_PRINTED_CHARACTERS]} …"
    return f"  {headers}\n  {value}\n"


class ChildProcess(subprocess.Popen[bytes]):
    """A process that runs a `streampca` command. It gets its settings as environment variables.

    It does not inherit the settings of its parent.
    """

    def __init__(self, command: Sequence[str], settings: Mapping[str, object], log: Path) -> None:
        """Start the command, such as `["produce", "--rate", "100"]`, with these settings.

        Its output goes to the file `log`.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        variables = {PREFIX + name.upper(): str(value) for name, value in settings.items()}
        self.command = command[0]
        self.log = log
        with log.open("wb") as output:
            super().__init__(
                [sys.executable, "-c", _STREAMPCA_PROGRAM, *command],
                env={**inherited, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C must reach only the demo, which stops its children in order
            )

    def verify(self) -> None:
        """If the process has exited, raise `StreampcaError` with the last line of its log.

        If that line is a JSON event, only its "error" is used.
        """
        code = self.poll()
        if code is None:
            return
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        cause = lines[-1].removeprefix("streampca: ") if lines else "it logged nothing"
        with contextlib.suppress(ValueError, TypeError, KeyError):
            cause = json.loads(cause)["error"]
        raise StreampcaError(f"{self.command} exited with code {code}: {cause}")


class Children:
    """The processes that the demo has started."""

    def __init__(self, settings_by_command: Mapping[str, Mapping[str, object]], folder: Path) -> None:
        """Each command writes its log into the folder."""
        self._settings_by_command = settings_by_command
        self._folder = folder
        self.started: dict[str, ChildProcess] = {}  # by command

    def start(self, command: str, *arguments: str) -> None:
        """Start a `streampca` command with its settings."""
        self.started[command] = ChildProcess(
            [command, *arguments], self._settings_by_command[command], log=self._folder / f"{command}.log"
        )

    def read_log(self, command: str) -> str:
        """Return what a command has logged so far."""
        return self.started[command].log.read_text(encoding="utf-8")

    def stop(self) -> None:
        """Stop all processes."""
        stop(self.started.values())


def stop(children: Collection[ChildProcess]) -> None:
    """Terminate all children, and kill those that have not ended after ten seconds."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    for child in children:
        try:
            child.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def free_port(preferred: int) -> int:
    """Return the preferred port if it is free, otherwise a random free port. With 0, no port is preferred."""
    ports_to_try = random.sample(_PORTS, 20)
    if preferred:
        ports_to_try.insert(0, preferred)
    for port in ports_to_try:
        # `create_server` raises if another process listens on the port.
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as server:
            return int(server.getsockname()[1])
    raise StreampcaError("no free port on 127.0.0.1")
