"""Headers whose names are not UTF-8: a valid record is learned, and a rejected one keeps all that can be read of it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from streampca.sources.confluent.batch import UNREADABLE_HEADERS
from streampca.sources.kafka_python.patches.batches import PatchedRecordBatch, RawName
from tests.guarantees.harness import as_json, group, vectors
from tests.kafka_broker import Broker

NAME = RawName("\udcffx\udcfe")  # the bytes ff 78 fe
HEADERS = [("é", b"1"), (NAME, b"2"), ("c", b"\xff")]


def produce(broker: Broker, topic: str, values: Sequence[bytes]) -> None:
    producer = broker.producer(compression_type="gzip" if len(values) % 2 else None)
    for value in values:
        producer.send(topic, value, headers=HEADERS)
    producer.flush(30)
    producer.close()


def test_names_are_read_and_written_as_they_are() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 100_000)
    for offset in range(5):
        headers = HEADERS if offset % 2 else [("a", None)]
        builder.append(offset, timestamp=7, key=b"k", value=b"v%d" % offset, headers=headers)
    data = bytes(builder.build())
    assert b"\xffx\xfe" in data
    records = list(PatchedRecordBatch(data))
    assert [record.value for record in records] == [b"v%d" % offset for offset in range(5)]
    assert [record.key for record in records] == [b"k"] * 5
    assert records[1].headers == records[3].headers == HEADERS
    assert records[4].headers == [("a", None)]
    assert [name.encode() for name, _ in records[1].headers] == ["é".encode(), b"\xffx\xfe", b"c"]


@pytest.mark.broker
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("client", "kept"),
    [("kafka-python", HEADERS), ("confluent", UNREADABLE_HEADERS)],
    ids=["kafka-python", "confluent"],
)
def test_a_worker_learns_or_rejects_such_records(
    broker: Broker, topic: str, tmp_path: Path, client: str, kept: Sequence[tuple[str, bytes]]
) -> None:
    dead = broker.create_topic(f"{topic}-dead", 1)
    broker.create_topic(topic, 1)
    good = as_json(vectors(201, seed=3))
    produce(broker, topic, [*good[:100], b"poison", *good[100:], b"poison 2"])
    produce(broker, topic, [b"poison 3"])
    with group(broker, topic, tmp_path, [client], dead_letter_topic=dead) as members:
        members.start()
        members.wait_until_learned()
        stats = members.newest()[0].fold.stats
    assert (stats.learned, dict(stats.rejected)) == (201, {"undecodable": 3})
    letters = broker.read_all(dead)
    assert [letter.value for letter in letters] == [b"poison", b"poison 2", b"poison 3"]
    for letter, offset in zip(letters, (100, 202, 203), strict=True):
        assert letter.headers[: len(kept)] == list(kept)
        assert dict(letter.headers)["__connect.errors.offset"] == b"%d" % offset
