"""Transactions and dead letters in memory, for tests."""

import itertools
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
from tests.in_memory.coordinator import RefusedError
from tests.in_memory.source import MemorySource
from tests.in_memory.topic import MemoryTopic


class MemoryTransactions:
    """See `streampca.sources.base.Transactions`. The topic's coordinator decides what becomes of them."""

    _numbers = itertools.count()

    def __init__(self, topic: MemoryTopic, source: MemorySource, id_: str = "") -> None:
        """Another producer of the same `id_` fences this one; without, the id is its own."""
        self._topic, self._source, self._coordinator = topic, source, topic.coordinator
        self._id = id_ or f"producer-{next(self._numbers)}"
        self._epoch: int | None = None
        self._sent: list[Outgoing] = []  # of the open transaction
        self._unsent: list[Outgoing] = []  # of these, those that no broker has yet
        self._open = False
        self.configs, self.takes = dict[str, str](), range(2**63)  # the topic's, and the timestamps that it takes
        self.takes_time_of_sending = True  # else this machine's clock is wrong
        self.takes_bytes = 2**63  # a record for outputs
        self.failures: list[str] = []  # what the next commits fail with: "before", or "after" they have happened

    @property
    def _is_reachable(self) -> bool:
        return not self._topic.away

    def partitions(self, topic: str) -> int:
        self._request("partitions")
        return len(self._topic.logs)

    def topic_configs(self) -> Mapping[str, str]:
        return self.configs

    def recover(self) -> None:
        if self._epoch is None:
            self._request("recover")
            self._epoch = self._coordinator.begin(self._id)
            self._forget()

    def send(self, records: Iterable[OutgoingFields]) -> None:
        self._begun()
        self._open = True
        new = list(map(Outgoing._make, records))
        self._sent += new
        self._unsent += new
        self._call("send")
        if self._is_reachable:
            self._write()
        self._call("sent")

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        epoch, generation = self._begun(), self._source.membership
        if generation is None:
            self._fail(TransactionFailedError("the group has given this member up"))
        self._reach("add offsets")
        self._write()
        self._refuse_records()
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "before":
            self._fail(TransactionFailedError(failure))
        try:
            self._coordinator.add_offsets(self._id, epoch, (self._source, generation), offsets)
            self._reach("commit")
            self._coordinator.commit(self._id, epoch)
        except RefusedError as error:
            self._fail(TransactionFailedError(str(error)))
        self._forget()
        self._reach("committed")
        if failure:
            self._fail(TransactionFailedError(failure))

    def abort(self) -> None:
        if self._epoch is None or not self._open:
            return
        self._forget()
        self._call("abort")
        try:
            if not self._is_reachable:
                raise RefusedError("no broker answers")
            self._wait_for_the_last()
            self._coordinator.abort(self._id, self._epoch)
        except RefusedError:
            self._epoch = None

    def close(self) -> None:
        self.abort()
        self._epoch = None

    def _begun(self) -> int:
        if self._epoch is None:
            raise TransactionFailedError("the last transaction has failed")
        return self._epoch

    def _write(self) -> None:
        self._wait_for_the_last()
        records, self._unsent = self._unsent, []
        try:
            self._coordinator.write(self._id, self._begun(), records)
        except RefusedError as error:
            self._fail(TransactionFailedError(str(error)))

    def _refuse_records(self) -> None:
        """Fail if the topics do not take a record."""
        if not all(map(self._takes, self._sent)):
            self._fail(RecordRefusedError("invalid timestamp", 32))
        sizes = [record_size(r.value, r.key, r.headers) for r in self._sent if r.topic == "projected"]
        if too_large := [size for size in sizes if size > self.takes_bytes]:
            self._fail(RecordRefusedError("a record is too large", 10, too_large[0]))

    def _takes(self, record: Outgoing) -> bool:
        return record.timestamp in self.takes if record.timestamp >= 0 else self.takes_time_of_sending

    def _forget(self) -> None:
        """Nothing is open."""
        self._sent, self._unsent, self._open = [], [], False

    def _fail(self, error: TransactionFailedError) -> NoReturn:
        self._forget()
        self._epoch = None
        raise error

    # In the simulation, these take time.

    def _call(self, name: str) -> None:
        """A step of the client."""

    def _request(self, name: str) -> None:
        """Ask a broker. Raises `TimeoutError`."""
        self._topic.require_broker()

    def _reach(self, name: str) -> None:
        """Take a step of a transaction; without an answer, it has failed."""
        if not self._is_reachable:
            self._fail(TransactionFailedError("no broker answers"))

    def _wait_for_the_last(self) -> None:
        """Wait until the transaction before is visible."""


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
