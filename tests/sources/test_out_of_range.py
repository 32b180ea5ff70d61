"""What both clients' sources do after an answer that the log does not have a position; without a broker."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition as ConfluentTopicPartition
from kafka import TopicPartition
from kafka.errors import LogTruncationError, OffsetOutOfRangeError

from streampca.formats.record import Record
from streampca.settings.commands import ConsumerSettings
from streampca.sources.base import Source
from streampca.sources.confluent import source as confluent
from streampca.sources.events import OutOfRange
from streampca.sources.kafka_python import source as kafka_python
from tests.sources.reader import Reader

TOPIC = "t"
UNKNOWN_EPOCH = -1


class Log:
    """Partition 0 of the topic."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}  # offset → epoch of the leader that wrote the record
        self.earliest = 0
        self.end = 0
        self.wrong_answers = 0  # to how many fetches the broker will answer that it lacks the offset
        self.is_truncation_seen = False  # whether the client's next fetch finds out that the log was cut

    def append(self, count: int, epoch: int) -> None:
        self.epochs |= dict.fromkeys(range(self.end, self.end + count), epoch)
        self.end += count

    def cut(self, end: int) -> None:
        self.end = end
        self.epochs = {offset: epoch for offset, epoch in self.epochs.items() if offset < end}

    def fetch(self, start: int) -> dict[int, int] | None:
        """Return the records from offset `start` on; None if the broker answers that the log lacks the offset."""
        if self.wrong_answers:
            self.wrong_answers -= 1
            return None
        if not self.earliest <= start <= self.end:
            return None
        return {offset: epoch for offset, epoch in self.epochs.items() if offset >= start}


class KafkaPythonConsumer:
    """kafka-python's consumer of the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next = 0
        self._is_paused = False
        self._subscription = SimpleNamespace(position=lambda tp: SimpleNamespace(offset=self._next))
        self._fetcher = SimpleNamespace(_paused_partition_records={})
        self._coordinator = SimpleNamespace(fenced=None)

    def assign(self, tps: Sequence[TopicPartition]) -> None: ...

    def group_metadata(self) -> SimpleNamespace:
        return SimpleNamespace(generation_id=-1)

    def pause(self, *tps: TopicPartition) -> None:
        self._is_paused = True

    def resume(self, *tps: TopicPartition) -> None:
        self._is_paused = False

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._next = offset

    def poll(self, timeout_ms: int) -> Mapping[TopicPartition, list[Record]]:
        tp = TopicPartition(TOPIC, 0)
        if self._is_paused:
            return {}
        if self._log.is_truncation_seen:
            raise LogTruncationError({tp: self._log.earliest})
        fetched = self._log.fetch(self._next)
        if fetched is None:
            raise OffsetOutOfRangeError({tp: self._next})
        self._next = self._log.end
        return {tp: [Record(offset, b"", leader_epoch=epoch) for offset, epoch in fetched.items()]} if fetched else {}

    def highwater(self, tp: TopicPartition) -> int:
        return self._log.end

    def beginning_offsets(self, tps: Sequence[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, self._log.earliest)

    def end_offsets(self, tps: Sequence[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, self._log.end)


class ConfluentConsumer:
    """confluent-kafka's consumer of the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next: int | None = None  # None: nothing is fetched

    def assign(self, tps: Sequence[ConfluentTopicPartition]) -> None:
        self._next = tps[0].offset if tps else None

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        if self._next is None:
            return []
        if self._log.is_truncation_seen:
            return [self._fail("Partition log truncation detected", KafkaError._LOG_TRUNCATION)]
        fetched = self._log.fetch(self._next)
        if fetched is None:
            return [self._fail("fetch failed", KafkaError.OFFSET_OUT_OF_RANGE)]
        self._next = self._log.end
        return [
            Message(topic=TOPIC, partition=0, offset=offset, value=b"", leader_epoch=epoch)
            for offset, epoch in fetched.items()
        ]

    def _fail(self, reason: str, cause: int) -> Message:
        """Fetch nothing more, and report it as `rd_kafka_offset_reset` of librdkafka does."""
        text = f"{reason}: {KafkaError(cause).str()} (broker 1)"
        message = Message(topic=TOPIC, partition=0, offset=self._next, error=KafkaError(_AUTO_OFFSET_RESET, text))
        self._next = None
        return message

    def get_watermark_offsets(self, tp: ConfluentTopicPartition, **options: Any) -> tuple[int, int]:
        return self._log.earliest, self._log.end


_AUTO_OFFSET_RESET = KafkaError._AUTO_OFFSET_RESET


class Connection:
    """A connection to a broker that always answers."""

    connected = True
    last_failure = ""
    translate_errors = nullcontext

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def start(self, *client: Any, **options: Any) -> Any:
        """Return the consumer, as kafka-python's connection does; without arguments, the connection."""
        return self._consumer if client else self

    def log_outages(self) -> None: ...

    def partitions(self) -> frozenset[int]:
        return frozenset({0})


OpenSource = Callable[[Log], Source]


@pytest.fixture(params=["kafka-python", "confluent"])
def open_source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpenSource:
    """Return a function that opens a source without a group on a log."""
    settings = ConsumerSettings(topic=TOPIC)

    def open_kafka_python(log: Log) -> Source:
        connection = Connection(KafkaPythonConsumer(log))
        monkeypatch.setattr(kafka_python, "KafkaPythonConnection", lambda *_: connection)
        return kafka_python.KafkaPythonSource(settings)

    def open_confluent(log: Log) -> Source:
        consumer = ConfluentConsumer(log)
        monkeypatch.setattr(confluent, "ConfluentConnection", lambda *_: Connection(consumer))
        monkeypatch.setattr(confluent, "create", lambda *_: consumer)
        return confluent.ConfluentSource(settings)

    return open_kafka_python if request.param == "kafka-python" else open_confluent


def read_ten(open_source: OpenSource, epoch: int = 0) -> tuple[Log, Reader]:
    """Read a log of ten records."""
    log = Log()
    log.append(10, epoch)
    reader = Reader(open_source(log))
    reader.source.seek({0: 0})
    reader.poll_times(2, timeout_s=0)
    assert reader.offsets(0) == list(range(10))
    return log, reader


@pytest.mark.parametrize("wrong_answers", [1, 3])
def test_a_wrong_answer_is_no_cut_if_the_log_still_has_the_record_before(
    open_source: OpenSource, wrong_answers: int
) -> None:
    """Such as from a replica that lags behind."""
    log, reader = read_ten(open_source)
    for _ in range(2):
        log.wrong_answers = wrong_answers
        reader.poll_times(wrong_answers + 2, timeout_s=0)
        log.append(5, epoch=1)
        reader.poll_times(2, timeout_s=0)
    assert reader.events_of_type(OutOfRange) == []
    assert reader.offsets(0) == list(range(20))


@pytest.mark.parametrize("removed", [(9,), (7, 8, 9)])
def test_a_wrong_answer_is_no_cut_if_compaction_has_removed_the_record_before(
    open_source: OpenSource, removed: tuple[int, ...]
) -> None:
    log, reader = read_ten(open_source)
    for offset in removed:
        del log.epochs[offset]
    log.wrong_answers = 1
    log.append(5, epoch=0)
    reader.poll_times(4, timeout_s=0)
    assert reader.events_of_type(OutOfRange) == []
    assert reader.offsets(0) == list(range(15))


def test_a_wrong_answer_is_no_cut_if_retention_has_removed_the_record_before(open_source: OpenSource) -> None:
    log, reader = read_ten(open_source)
    log.earliest = 10
    log.epochs.clear()
    log.wrong_answers = 1
    reader.poll_times(3, timeout_s=0)
    log.append(5, epoch=0)
    reader.poll_times(2, timeout_s=0)
    assert reader.events_of_type(OutOfRange) == []
    assert reader.offsets(0) == list(range(15))


def test_a_log_that_was_cut_during_reading_and_has_grown_again_has_diverged(open_source: OpenSource) -> None:
    log, reader = read_ten(open_source)
    log.cut(5)
    log.append(20, epoch=1)
    log.wrong_answers = 1  # right when it was given: the log had not grown yet
    reader.poll_times(5, timeout_s=0)
    assert reader.events_of_type(OutOfRange) == [OutOfRange(0, 10, earliest=0, latest=25, diverged=9)]
    assert reader.offsets(0) == list(range(10))


def test_a_log_that_was_cut_during_reading_and_is_shorter_is_out_of_range(open_source: OpenSource) -> None:
    log, reader = read_ten(open_source)
    log.cut(5)
    reader.poll_times(5, timeout_s=0)
    assert reader.events_of_type(OutOfRange) == [OutOfRange(0, 10, earliest=0, latest=5)]


def test_a_cut_that_the_client_has_seen_is_not_searched_in_the_log(open_source: OpenSource) -> None:
    """The log has no record any more that could be compared."""
    log, reader = read_ten(open_source)
    log.cut(5)
    log.append(20, epoch=1)
    del log.epochs[9]
    log.is_truncation_seen = True
    reader.poll_times(3, timeout_s=0)
    assert reader.events_of_type(OutOfRange) == [OutOfRange(0, 10, earliest=0, latest=25, diverged=9)]


def test_if_the_epoch_of_the_record_before_is_unknown_an_answer_counts_as_a_cut(open_source: OpenSource) -> None:
    """Otherwise records might be skipped in a log that was cut and has grown again."""
    log, reader = read_ten(open_source, epoch=UNKNOWN_EPOCH)
    log.wrong_answers = 1
    reader.poll_times(3, timeout_s=0)
    assert reader.events_of_type(OutOfRange) == [OutOfRange(0, 10, earliest=0, latest=10, diverged=9)]
