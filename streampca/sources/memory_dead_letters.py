"""Dead letters in memory, beside `streampca.sources.memory`."""

from streampca.errors import SourceError
from streampca.sources.dead_letter_headers import errors_as_headers
from streampca.stream.record import PlainRecord, Record


class MemoryDeadLetters:
    """See `streampca.sources.base.DeadLetters`. `away` holds acknowledgements back, `refusal` is raised by `flush`."""

    def __init__(self, topic: str = "memory") -> None:
        self._topic = topic
        self._unanswered: list[Record] = []
        self.records: list[Record] = []  # acknowledged, as a reader of the dead-letter topic would see them
        self.away = False
        self.refusal: SourceError | None = None

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        headers = [*record.headers, *errors_as_headers(self._topic, partition, record.offset, reason, message)]
        self._unanswered.append(PlainRecord(-1, record.value, record.timestamp, record.key, headers))

    def flush(self, timeout_s: float) -> None:
        if self.refusal is not None and self._unanswered:
            raise self.refusal
        if self.away and self._unanswered:
            raise TimeoutError(f"{len(self._unanswered)} dead letters are not acknowledged yet")
        self.records += self._unanswered
        self._unanswered = []

    def close(self) -> None:
        self._unanswered = []
