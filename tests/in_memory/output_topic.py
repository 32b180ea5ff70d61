"""Reads an output topic in memory, as `streampca.sources.clients.open_reader` does on a broker."""

from collections.abc import Collection, Mapping, Sequence

from streampca.formats.record import NO_RECORDS, LastRecord, Record
from streampca.sources.events import Records
from streampca.sources.topic_reader import TopicReader
from tests.in_memory.topic import MemoryTopic


class CommittedLog:
    """The part of a source that `TopicReader` uses: it reads the committed records of an output topic."""

    def __init__(self, topic: MemoryTopic, name: str) -> None:
        self._topic, self._name = topic, name
        self._read: dict[int, int] = {}  # partition → position

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        """The end of the committed records: the first record of a transaction that has not ended."""
        self._topic.require_broker()
        return {partition: self._committed_end(partition) for partition in partitions}

    def seek(self, positions: Mapping[int, int], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        self._read = dict(positions)

    def poll(self, timeout_s: float) -> Sequence[Records]:
        read, self._read = self._read, {}
        return [self._records_from(partition, start) for partition, start in read.items()]

    def close(self) -> None:
        pass

    def _committed_end(self, partition: int) -> int:
        log = self._topic.coordinator.logs[self._name, partition]
        return next((offset for offset, (transaction, _) in enumerate(log) if not transaction.is_visible), len(log))

    def _records_from(self, partition: int, start: int) -> Records:
        log, end = self._topic.coordinator.logs[self._name, partition], self._committed_end(partition)
        records = [
            Record(offset, outgoing.value, outgoing.timestamp, outgoing.key, outgoing.headers)
            for offset, (transaction, outgoing) in enumerate(log)
            if start <= offset < end and transaction.state == "committed"
        ]
        return Records(partition, records, end, len(log))


def open_outputs(topic: MemoryTopic, name: str, partitions: int) -> TopicReader:
    """Open a reader of the output topic."""
    coordinator = topic.coordinator
    log_bounds = {p: (coordinator.first[name, p], len(coordinator.logs[name, p])) for p in range(partitions)}
    return TopicReader(CommittedLog(topic, name), name, log_bounds)  # type: ignore[arg-type]
