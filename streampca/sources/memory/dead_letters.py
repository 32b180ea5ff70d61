"""Dead letters in memory, for tests."""

from streampca.errors import SourceError
from streampca.fold.record import PlainRecord, Record
from streampca.sources.dead_letter_headers import dead_letter_headers


class MemoryDeadLetters:
    """See `streampca.sources.base.DeadLetters`. While `away` nothing is acknowledged; `flush` raises `refusal`."""

    def __init__(self, topic: str = "memory") -> None:
        self._topic = topic
        self._unacknowledged: list[Record] = []
        self.records: list[Record] = []  # acknowledged: what a reader of the dead-letter topic sees
        self.away = False
        self.refusal: SourceError | None = None

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        headers = dead_letter_headers(self._topic, partition, record, reason, message)
        self._unacknowledged.append(PlainRecord(-1, record.value, key=record.key, headers=headers))

    def flush(self, timeout_s: float) -> None:
        if self.refusal is not None and self._unacknowledged:
            raise self.refusal
        if self.away and self._unacknowledged:
            raise TimeoutError(f"{len(self._unacknowledged)} dead letters are not acknowledged yet")
        self.records += self._unacknowledged
        self._unacknowledged = []

    def close(self) -> None:
        self._unacknowledged = []
