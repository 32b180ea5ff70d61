"""Topics for the contract tests, on a real broker or in memory."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from kafka.admin import MemberToRemove

from streampca.formats.record import Record
from streampca.settings.commands import WorkerSettings
from streampca.sources import base
from streampca.sources.base import DeadLetters, Source, Transactions
from streampca.sources.clients import create_dead_letters, create_transactions
from streampca.sources.confluent.source import ConfluentSource
from streampca.sources.kafka_python.source import KafkaPythonSource
from tests.in_memory import MemoryDeadLetters, MemorySource, MemoryTopic, MemoryTransactions
from tests.kafka_broker import Broker
from tests.sources.reader import Reader
from tests.waiting import PATIENCE_S


class _Backend:
    """A topic with its producers, administrator and consumer group; the siblings below have the same methods."""

    output: str  # the topic that transactions write to

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened: list[Source] = []
        self._transactions: list[Transactions] = []

    def open(self, poll_records: int = base.MAX_POLL_RECORDS, **settings: Any) -> Source:
        """Open another member of the group, which `close` closes."""
        with mock.patch.object(base, "MAX_POLL_RECORDS", poll_records):
            self.opened.append(self._open(**settings))
        return self.opened[-1]

    def join(self, **settings: Any) -> tuple[Source, Transactions]:
        """Open another member, which has partitions and is ready for a transaction."""
        source = self.open(**settings)
        transactions = self._create_transactions(source, **settings)
        self._transactions.append(transactions)
        Reader(source).wait_for_assignment()
        transactions.recover()
        return source, transactions

    def close(self) -> None:
        for transactions in self._transactions:
            transactions.close()
        for source in self.opened:
            source.close()


class InMemory(_Backend):
    def __init__(self, topic: str, partitions: int) -> None:
        super().__init__(topic)
        self.topic = MemoryTopic(partitions, topic)
        self.output = "output"

    def _open(self, **settings: Any) -> Source:
        return MemorySource(self.topic, batch=base.MAX_POLL_RECORDS)

    def _create_transactions(self, source: Any, **settings: Any) -> Transactions:
        return MemoryTransactions(self.topic, source)

    def read_output(self) -> Sequence[Any]:
        """Return the committed records of the output topic."""
        return self.topic.coordinator.written[self.output]

    def append(self, partition: int, values: Sequence[bytes | None], timestamp_ms: int | None = None) -> None:
        self.topic.append(partition, *values, timestamp=-1 if timestamp_ms is None else timestamp_ms)

    def append_aborted(self, partition: int, values: Sequence[bytes]) -> None:
        """Append an aborted transaction: its records and its marker are offsets without a record."""
        self.topic.skip(partition, len(values) + 1)

    def trim(self, partition: int, start: int) -> None:
        self.topic.trim(partition, start)

    def log_size(self, partition: int) -> int:
        """Return the size of a partition's log, to which `truncate` can cut it later."""
        return self.topic.logs[partition].end

    def truncate(self, sizes: Mapping[int, int]) -> None:
        """Cut the logs of partitions to earlier sizes, as an unclean leader election does."""
        for partition, size in sizes.items():
            self.topic.truncate(partition, size)

    def recreate(self) -> None:
        self.topic.create(len(self.topic.logs))

    def add_partitions(self, total: int) -> None:
        self.topic.add_partitions(total)

    def evict_all(self) -> None:
        for source in self.opened:
            self.topic.evict(source)  # type: ignore[arg-type]

    def read_committed_offsets(self) -> dict[int, int]:
        return self.topic.committed

    def open_dead_letters(self) -> tuple[DeadLetters, Callable[[], Sequence[Record]]]:
        """Return a writer of dead letters, and a function that reads the acknowledged letters."""
        letters = MemoryDeadLetters(self.topic.name)
        return letters, lambda: letters.records


class OnKafka(_Backend):
    source: Callable[[WorkerSettings], Source] = KafkaPythonSource
    client = "kafka-python"

    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        super().__init__(topic)
        self.broker = broker
        self.topic = broker.create_topic(topic, partitions)
        self.count = partitions

    def settings(self, **settings: Any) -> WorkerSettings:
        return settings_for(self.broker, self.topic, **{"kafka_client": self.client} | settings)

    def _open(self, **settings: Any) -> Source:
        return self.source(self.settings(**settings))

    def _create_transactions(self, source: Any, **settings: Any) -> Transactions:
        self.output = f"{self.name}-output"
        if self.output not in self.broker.admin.list_topics():
            self.broker.create_topic(self.output, self.count, max_message_bytes=100_000)
        return create_transactions(self.settings(**settings), source, [self.output])

    def read_output(self) -> Sequence[Any]:
        return self.broker.read_all(self.output)

    def append(self, partition: int, values: Sequence[bytes | None], timestamp_ms: int | None = None) -> None:
        self.broker.produce(self.topic, partition, values, timestamp_ms)

    def append_aborted(self, partition: int, values: Sequence[bytes]) -> None:
        self.broker.produce_aborted(self.topic, partition, values)

    def trim(self, partition: int, start: int) -> None:
        self.broker.delete_records(self.topic, partition, start)

    def log_size(self, partition: int) -> int:
        return self.broker.log_file(self.topic, partition).stat().st_size

    def truncate(self, sizes: Mapping[int, int]) -> None:
        self.broker.truncate_logs(self.topic, sizes)

    def recreate(self) -> None:
        self.broker.delete_topic(self.topic)
        self.broker.create_topic(self.topic, self.count)

    def add_partitions(self, total: int) -> None:
        self.broker.add_partitions(self.topic, total)

    def evict_all(self) -> None:
        members = [MemberToRemove(member_id=member["member_id"]) for member in self.broker.members(self.topic)]
        self.broker.admin.remove_group_members(self.topic, members)

    def read_committed_offsets(self) -> dict[int, int]:
        return self.broker.committed(self.topic, self.topic)

    def open_dead_letters(self) -> tuple[DeadLetters, Callable[[], Sequence[Record]]]:
        dead = self.broker.create_topic(f"{self.topic}-dead")
        return create_dead_letters(self.settings(dead_letter_topic=dead)), lambda: self.broker.read_all(dead)


class OnConfluent(OnKafka):
    source = ConfluentSource
    client = "confluent"


Backend = InMemory | OnKafka


def settings_for(broker: Broker, topic: str, **settings: Any) -> WorkerSettings:
    """Return a worker's settings, with a group named like the topic, which removes no member of a busy machine."""
    values: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap, "topic": topic, "group_id": topic, "store": Path("unused"),
        "dimensions": 2, "components": 1, "session_timeout_s": PATIENCE_S,
    }  # fmt: skip
    return WorkerSettings(**values | settings)
