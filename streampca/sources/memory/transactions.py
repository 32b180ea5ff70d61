"""Transactions in memory, for tests: records and offsets become visible together, or not at all."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from streampca.sources.base import Committed
from streampca.sources.memory.source import MemorySource
from streampca.sources.memory.topic import MemoryTopic
from streampca.sources.transactions import Outgoing, OutgoingFields, TransactionFailedError


class MemoryTransactions:
    """See `streampca.sources.transactions.Transactions`. `written` is what a reader of committed records sees."""

    def __init__(self, topic: MemoryTopic, source: MemorySource, written: dict[str, list[Outgoing]]) -> None:
        self._topic, self._source, self._written = topic, source, written
        self._sent: list[Outgoing] = []
        self._ready = False
        self.failures: list[str] = []  # what the next commits fail with: "before", or "after" they have happened

    def partitions(self, topic: str) -> int:
        if self._topic.away:
            raise TimeoutError("no broker answers")
        return len(self._topic.logs)

    def recover(self) -> None:
        if self._topic.away:
            raise TimeoutError("no broker answers")
        self._sent, self._ready = [], True

    def send(self, records: Iterable[OutgoingFields]) -> None:
        self._check()
        self._sent += map(Outgoing._make, records)

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        self._check()
        failure = self.failures.pop(0) if self.failures else ""
        with self._topic.lock:
            if failure == "before" or not self._source.may_commit(offsets.keys()):
                self._fail(failure or "the group has given this member up")
            for record in self._sent:
                self._written[record.topic].append(record)
            for partition, (offset, metadata) in offsets.items():
                self._source.commit({partition: offset}, metadata)
        self._sent = []
        if failure:
            self._fail(failure)

    def abort(self) -> None:
        self._sent = []

    def close(self) -> None:
        self.abort()
        self._ready = False

    def _check(self) -> None:
        if not self._ready:
            raise TransactionFailedError("the last transaction has failed")
        if self._topic.away:
            self._fail("no broker answers")

    def _fail(self, cause: str) -> None:
        self._ready = False
        raise TransactionFailedError(cause)


def written_records() -> dict[str, list[Outgoing]]:
    """An empty value of `MemoryTransactions.written`: by topic."""
    return defaultdict(list)
