"""Transactions and dead letters in memory, for tests."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NoReturn

from streampca.formats.record import Record
from streampca.sources.base import (
    Committed,
    DeadLetters,
    Outgoing,
    OutgoingFields,
    RecordRefusedError,
    TransactionFailedError,
)
from streampca.sources.dead_letters import dead_letter_headers
from streampca.sources.record_size import record_size
from tests.in_memory.source import MemorySource
from tests.in_memory.topic import MemoryTopic


class MemoryTransactions:
    """See `streampca.sources.base.Transactions`. `written` is what a reader of committed records sees, by topic."""

    def __init__(self, topic: MemoryTopic, source: MemorySource, written: defaultdict[str, list[Outgoing]]) -> None:
        self._topic, self._source, self._written = topic, source, written
        self._sent: list[Outgoing] = []
        self._ready = False
        self.configs, self.takes = dict[str, str](), range(2**63)  # the topic's, and the timestamps that it takes
        self.takes_time_of_sending = True  # else this machine's clock is wrong
        self.takes_bytes = 2**63  # a record for outputs
        self.failures: list[str] = []  # what the next commits fail with: "before", or "after" they have happened

    def partitions(self, topic: str) -> int:
        self._topic.require_broker()
        return len(self._topic.logs)

    def topic_configs(self) -> Mapping[str, str]:
        return self.configs

    def recover(self) -> None:
        self._topic.require_broker()
        self._sent, self._ready = [], True

    def send(self, records: Iterable[OutgoingFields]) -> None:
        self._check()
        self._sent += map(Outgoing._make, records)

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        self._check()
        if not all(map(self._takes, self._sent)):
            self._fail(RecordRefusedError("invalid timestamp", 32))
        sizes = [record_size(r.value, r.key, r.headers) for r in self._sent if r.topic == "projected"]
        if too_large := [size for size in sizes if size > self.takes_bytes]:
            self._fail(RecordRefusedError("a record is too large", 10, too_large[0]))
        failure = self.failures.pop(0) if self.failures else ""
        with self._topic.lock:
            if failure == "before" or not self._source.may_commit(offsets.keys()):
                self._fail(TransactionFailedError(failure or "the group has given this member up"))
            for record in self._sent:
                self._written[record.topic].append(record)
            for partition, (offset, metadata) in offsets.items():
                self._source.commit({partition: offset}, metadata)
        self._sent = []
        if failure:
            self._fail(TransactionFailedError(failure))

    def abort(self) -> None:
        self._sent = []

    def close(self) -> None:
        self.abort()
        self._ready = False

    def _takes(self, record: Outgoing) -> bool:
        return record.timestamp in self.takes if record.timestamp >= 0 else self.takes_time_of_sending

    def _check(self) -> None:
        if not self._ready:
            raise TransactionFailedError("the last transaction has failed")
        if self._topic.away:
            self._fail(TransactionFailedError("no broker answers"))

    def _fail(self, error: TransactionFailedError) -> NoReturn:
        self._ready = False
        raise error


class MemoryDeadLetters(DeadLetters):
    """See `streampca.sources.base.DeadLetters`. While `away` nothing is acknowledged."""

    def __init__(self, topic: str = "memory") -> None:
        self._topic = topic
        self._unacknowledged: list[Record] = []
        self.records: list[Record] = []  # acknowledged: what a reader of the dead-letter topic sees
        self.away = False

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        headers = dead_letter_headers(self._topic, partition, record, reason, message)
        self._unacknowledged.append(Record(-1, record.value, key=record.key, headers=headers))

    def flush(self, timeout_s: float) -> None:
        if self.away and self._unacknowledged:
            raise TimeoutError(f"{len(self._unacknowledged)} dead letters are not acknowledged yet")
        self.records += self._unacknowledged
        self._unacknowledged = []

    def close(self) -> None:
        self._unacknowledged = []
