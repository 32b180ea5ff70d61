"""Topics for the contract tests, on a real broker or in memory."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from kafka.admin import MemberToRemove

from streampca.fold.events import Event, Records
from streampca.fold.record import Record
from streampca.settings.worker import WorkerSettings
from streampca.sources import base
from streampca.sources.base import DeadLetters, Source
from streampca.sources.confluent.source import ConfluentSource
from streampca.sources.kafka_python.dead_letters import KafkaPythonDeadLetters
from streampca.sources.kafka_python.source import KafkaPythonSource
from streampca.sources.memory import MemoryDeadLetters, MemorySource, MemoryTopic
from streampca.sources.prefetch import Prefetch
from tests.kafka_broker import Broker


class Backend(ABC):
    """A topic with its producers, administrator and consumer group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened: list[Source] = []

    def open(self, poll_records: int = base.MAX_POLL_RECORDS, **settings: Any) -> Source:
        """Another member of the group, closed at the end of the test."""
        with mock.patch.object(base, "MAX_POLL_RECORDS", poll_records):
            self.opened.append(self._open(**settings))
        return self.opened[-1]

    def close(self) -> None:
        for source in self.opened:
            source.close()

    @abstractmethod
    def _open(self, **settings: Any) -> Source: ...
    @abstractmethod
    def append(self, partition: int, values: Sequence[bytes | None], timestamp_ms: int | None = None) -> None: ...
    @abstractmethod
    def append_aborted(self, partition: int, values: Sequence[bytes]) -> None:
        """Append an aborted transaction: its records and its marker are offsets without a record."""

    @abstractmethod
    def trim(self, partition: int, start: int) -> None: ...
    @abstractmethod
    def size(self, partition: int) -> int:
        """The size of the log, to which `truncate` can cut it later."""

    @abstractmethod
    def truncate(self, partition: int, size: int) -> None:
        """Cut the log to an earlier size, as an unclean leader election does."""

    @abstractmethod
    def recreate(self) -> None: ...
    @abstractmethod
    def add_partitions(self, total: int) -> None: ...
    @abstractmethod
    def evict_all(self) -> None: ...
    @abstractmethod
    def committed(self) -> dict[int, int]: ...
    @abstractmethod
    def dead_letters(self) -> tuple[DeadLetters, Callable[[], Sequence[Record]]]:
        """A dead-letter sink, and a function that reads the acknowledged letters."""


class InMemory(Backend):
    def __init__(self, topic: str, partitions: int) -> None:
        super().__init__(topic)
        self.topic = MemoryTopic(partitions, topic)

    def _open(self, **settings: Any) -> Source:
        return MemorySource(self.topic, batch=base.MAX_POLL_RECORDS)

    def append(self, partition: int, values: Sequence[bytes | None], timestamp_ms: int | None = None) -> None:
        self.topic.append(partition, *values, timestamp=-1 if timestamp_ms is None else timestamp_ms)

    def append_aborted(self, partition: int, values: Sequence[bytes]) -> None:
        self.topic.skip(partition, len(values) + 1)

    def trim(self, partition: int, start: int) -> None:
        self.topic.trim(partition, start)

    def size(self, partition: int) -> int:
        return self.topic.logs[partition].end

    def truncate(self, partition: int, size: int) -> None:
        self.topic.truncate(partition, size)

    def recreate(self) -> None:
        self.topic.create(len(self.topic.logs))

    def add_partitions(self, total: int) -> None:
        self.topic.add_partitions(total)

    def evict_all(self) -> None:
        for source in self.opened:
            assert isinstance(source, MemorySource)
            self.topic.evict(source)

    def committed(self) -> dict[int, int]:
        return self.topic.committed

    def dead_letters(self) -> tuple[DeadLetters, Callable[[], Sequence[Record]]]:
        letters = MemoryDeadLetters(self.topic.name)
        return letters, lambda: letters.records


def unchanged(records: Records) -> Event:
    """A decoder that changes nothing, so that prefetching sources return the same events as others."""
    return records


class InMemoryPrefetching(InMemory):
    """Prefetching with a low limit, so that the queue is sometimes full."""

    def __init__(self, topic: str, partitions: int) -> None:
        super().__init__(topic, partitions)
        self.members: list[tuple[Source, MemorySource]] = []

    def _open(self, **settings: Any) -> Source:
        member = MemorySource(self.topic, batch=base.MAX_POLL_RECORDS)
        source = Prefetch(member, max_records=20, max_bytes=1000, decode=unchanged)
        self.members.append((source, member))
        return source

    def evict_all(self) -> None:
        for source, member in self.members:
            if source in self.opened:
                self.topic.evict(member)


class OnKafka(Backend):
    source: Callable[[WorkerSettings], Source] = KafkaPythonSource

    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        super().__init__(topic)
        self.broker, self.topic, self.count = broker, broker.create_topic(topic, partitions), partitions

    def settings(self, **settings: Any) -> WorkerSettings:
        return settings_for(self.broker, self.topic, **settings)

    def _open(self, **settings: Any) -> Source:
        return self.source(self.settings(**settings))

    def append(self, partition: int, values: Sequence[bytes | None], timestamp_ms: int | None = None) -> None:
        self.broker.produce(self.topic, partition, values, timestamp_ms)

    def append_aborted(self, partition: int, values: Sequence[bytes]) -> None:
        producer = self.broker.producer(transactional_id=f"{self.topic}-{time.monotonic_ns()}")
        try:
            producer.init_transactions()
            producer.begin_transaction()
            for value in values:
                producer.send(self.topic, value, partition=partition)
            producer.flush(20)
            producer.abort_transaction()
        finally:
            producer.close()
        self.broker.settled_ends(self.topic)  # waits for the marker, which the broker writes after it has answered

    def trim(self, partition: int, start: int) -> None:
        self.broker.delete_records(self.topic, partition, start)

    def size(self, partition: int) -> int:
        return self.broker.log_file(self.topic, partition).stat().st_size

    def truncate(self, partition: int, size: int) -> None:
        self.broker.truncate_log(self.topic, partition, size)

    def recreate(self) -> None:
        self.broker.delete_topic(self.topic)
        self.broker.create_topic(self.topic, self.count)

    def add_partitions(self, total: int) -> None:
        self.broker.add_partitions(self.topic, total)

    def evict_all(self) -> None:
        members = [MemberToRemove(member_id=member["member_id"]) for member in self.broker.members(self.topic)]
        self.broker.admin.remove_group_members(self.topic, members)

    def committed(self) -> dict[int, int]:
        return self.broker.committed(self.topic, self.topic)

    def dead_letters(self) -> tuple[DeadLetters, Callable[[], Sequence[Record]]]:
        dead = self.broker.create_topic(f"{self.topic}-dead")
        return KafkaPythonDeadLetters(self.settings(dead_letter_topic=dead)), lambda: self.broker.read_all(dead)


class OnConfluent(OnKafka):
    source = ConfluentSource


class OnConfluentPrefetching(OnConfluent):
    def _open(self, **settings: Any) -> Source:
        return Prefetch(
            ConfluentSource(self.settings(**settings)), max_records=5000, max_bytes=1_000_000, decode=unchanged
        )


def settings_for(broker: Broker, topic: str, **settings: Any) -> WorkerSettings:
    """A worker's settings, in a group of the topic's name with a short session timeout."""
    values: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap, "topic": topic, "group_id": topic, "store": Path("unused"),
        "dimensions": 2, "components": 1, "session_timeout_s": 6,
    }  # fmt: skip
    return WorkerSettings(**values | settings)
