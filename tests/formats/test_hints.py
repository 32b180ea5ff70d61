"""What a message proposes, done as it says, makes the same record or setting one that is read."""

import gzip
import json
import re
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from streampca.demo.processes import EmbeddedBroker
from streampca.formats.codec import Codec
from tests.formats.structured import codec, only_reject
from tests.formats.test_json import message_pack

ROW = [1.5, -2.0, 0.25]
TEXTS = {"json": json.dumps(ROW).encode(), "csv": b"1.5,-2.0,0.25"}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zstd": lambda text: pa.compress(text, "zstd", asbytes=True),
    "lz4": lambda text: pa.compress(text, "lz4", asbytes=True),
}
TOPIC = "packed"


@pytest.fixture(scope="module")
def broker() -> EmbeddedBroker:
    return EmbeddedBroker(TOPIC)


def message_of(reader: Codec, value: bytes) -> str:
    return only_reject(reader.decode([value]))[1]


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("compression", PACKED)
def test_a_producer_with_the_setting_that_is_proposed_sends_what_is_read(
    broker: EmbeddedBroker, kind: str, compression: str
) -> None:
    reader = codec(kind)
    message = message_of(reader, PACKED[compression](TEXTS[kind]))
    proposed = re.search(r"compressed \((\w+)\): set (\S+) of the producer", message)
    assert proposed
    codec_name = {"zlib": "gzip"}.get(proposed[1], proposed[1])  # Kafka has no zlib: gzip is the same compression
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0, proposed[2]: codec_name})
    offsets: list[int] = []
    for _ in range(50):  # a batch that is worth compressing
        producer.produce(
            TOPIC, TEXTS[kind], partition=0, on_delivery=lambda error, sent: offsets.append(error or sent.offset())
        )
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, offsets[0])])
    values = [record.value() for record in consumer.consume(50, timeout=20)]
    consumer.close()
    assert reader.decode(values).vectors.tolist() == [ROW] * 50


REWRITTEN: dict[str, tuple[Callable[[Any], bytes], dict[str, Callable[[Any], bytes]]]] = {
    # how the value was written; by what the message says: how it is to be written
    "UTF-16": (
        lambda row: json.dumps(row).encode("utf-16"),
        {"write UTF-8": lambda row: json.dumps(row).encode("utf-8")},
    ),
    "MessagePack": (message_pack, {"write JSON": lambda row: json.dumps(row).encode()}),
    "a sparse vector": (
        lambda row: json.dumps({"v": {"indices": [0, 1, 2], "values": row}}).encode(),
        {"write dense ones, arrays of all numbers with the zeros": lambda row: json.dumps({"v": row}).encode()},
    ),
    "numbers in quotes": (
        lambda row: json.dumps([str(number) for number in row]).encode(),
        {"numbers have no quotes": lambda row: json.dumps(row).encode()},
    ),
}


@pytest.mark.parametrize("written", REWRITTEN)
def test_a_value_that_is_written_as_the_message_says_is_read(written: str) -> None:
    write, remedies = REWRITTEN[written]
    value = write(ROW)
    field = "v.values" if b'"indices"' in value else ""
    message = message_of(codec("json", field), value)
    [rewrite] = [remedy for hint, remedy in remedies.items() if hint in message]
    assert codec("json", field.removesuffix(".values")).decode([rewrite(ROW)]).vectors.tolist() == [ROW]


NULL = {"temp": 1, "hum": None, "press": 3}
ABSENT = {"temp": 1, "press": 3}
UNMET = {"values": [{"id": "a", "v": 1}, {"id": "b", "v": 2, "q": False}, {"id": "c", "v": 3}]}


@pytest.mark.parametrize(
    ("field", "record", "where"),
    [
        ("temp,hum,press", NULL, ""),
        ("temp,hum,press", ABSENT, ""),
        ("v", {"v": [1, None, 3]}, ""),
        ("v", {"v": [1, float("nan"), 3]}, ""),
        ("values[id=a].v,values[id=b].v,values[id=c].v", UNMET, "values.q!=false"),
        ("values[id=a].v,values[id=x].v,values[id=c].v", UNMET, ""),
    ],
)
def test_missing_impute_is_proposed_where_it_reads_the_record(field: str, record: object, where: str) -> None:
    value = json.dumps(record).encode()
    assert "missing=impute learns vectors with gaps" in message_of(codec("json", field, where=where), value)
    decoded = codec("json", field, where=where, min_observed=1).decode([value])
    assert str(decoded.vectors.tolist()) == "[[1.0, nan, 3.0]]"


@pytest.mark.parametrize(
    ("field", "record"),
    [("temp,hum,press", {"temp": 1, "hum": "wet", "press": 3}), ("v", {"w": [1, 2]}), ("a,b,c", {"x": 1}),
     ("temp,hum.x,press", {"temp": 1, "hum": 2, "press": 3}), ("v", {"v": [1, [2], 3]})],
)  # fmt: skip
def test_missing_impute_is_not_proposed_where_it_would_not_help(field: str, record: object) -> None:
    value = json.dumps(record).encode()
    assert "impute" not in message_of(codec("json", field), value)
    assert len(codec("json", field, min_observed=1).decode([value]).rejects) == 1
