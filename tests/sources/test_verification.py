"""While the last record of one partition is verified, the others are read, each record once."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from streampca.sources.confluent.source import ConfluentSource
from streampca.stream.record import last_of
from tests.background import every
from tests.kafka_broker import Broker, wait_until
from tests.sources.backends import OnConfluent
from tests.sources.reader import Reader

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("patient")]


@pytest.fixture
def log(broker: Broker, topic: str) -> Iterator[OnConfluent]:
    log = OnConfluent(broker, topic, 2)
    yield log
    log.close()


def test_a_partition_that_was_verified_does_not_make_others_return_records_again(
    log: OnConfluent, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(0, [b"%d" % i for i in range(100)])
    log.append(1, [b"1", b"2", b"3"])
    source = log.open(poll_records=5)
    assert isinstance(source, ConfluentSource)
    reader = Reader(source)
    reader.assigned()
    source.seek({0: None, 1: None})
    reader.read_to({0: 100, 1: 3})
    last = last_of(reader.records(1))
    assert last
    verification, consume = source._verification, source._consume
    source.seek({0: 0, 1: 3}, {1: last})
    reader.events = []
    verified = [wait_until(lambda: (found := verification.poll())[0] and found)]
    answers: list[tuple[list[int], dict[int, int]]] = []
    monkeypatch.setattr(verification, "poll", lambda: answers.pop() if answers else ([], {}))

    def consume_and_finish_verifying(timeout_s: float) -> object:
        """The answer of the verification arrives while records of the other partition are read."""
        messages = consume(timeout_s)
        if verified and any(not message.error() for message in messages):
            answers.append(verified.pop())
            source._max_records = 7  # so that a batch read again would not look like the one before
        return messages

    monkeypatch.setattr(source, "_consume", consume_and_finish_verifying)
    reader.until(lambda: reader.next(1) == 3 and reader.next(0) == 100)
    assert reader.offsets(0) == list(range(100))
    assert reader.records(1) == []


@contextmanager
def growing(log: OnConfluent) -> Iterator[None]:
    """Append to both partitions all the time."""
    producer = Producer({"bootstrap.servers": log.broker.bootstrap})

    def send() -> None:
        for partition in (0, 1):
            producer.produce(log.topic, b"more", partition=partition)
        producer.poll(0)

    with every(0.005, send):
        yield
    producer.flush(10)


def test_partitions_that_grow_are_all_verified(log: OnConfluent) -> None:
    for partition in (0, 1):
        log.append(partition, [b"%d" % i for i in range(10)])
    source = log.open()
    reader = Reader(source)
    reader.assigned()
    source.seek({0: None, 1: None})
    reader.read_to({0: 10, 1: 10})
    last = {p: found for p in (0, 1) if (found := last_of(reader.records(p)))}
    with growing(log):
        source.seek({0: 10, 1: 10}, last)
        reader.until(lambda: all((reader.next(p) or 0) > 10 for p in (0, 1)))
