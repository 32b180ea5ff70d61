"""Both clients read compressed topics."""

from collections.abc import Sequence

import pytest
from kafka import codec

from streampca.errors import SourceError
from tests.kafka_broker import Broker
from tests.sources.backends import OnConfluent, OnKafka
from tests.sources.reader import Reader

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("patient")]

VALUES = [b"[%d, 2.5, -1e-3]" % i for i in range(3000)]


def produce(broker: Broker, topic: str, compression: str | None, values: Sequence[bytes]) -> None:
    producer = broker.producer(compression_type=compression, linger_ms=50)
    for value in values:
        producer.send(topic, value, partition=0)
    producer.flush(60)
    producer.close()


@pytest.mark.parametrize("kind", [OnKafka, OnConfluent])
def test_a_topic_may_mix_all_compressions(broker: Broker, topic: str, kind: type[OnKafka]) -> None:
    log = kind(broker, topic, 1)
    try:
        for place, compression in enumerate(["lz4", "zstd", "snappy", "gzip", None]):
            produce(broker, topic, compression, VALUES[place * 600 : (place + 1) * 600])
        reader = assigned(log)
        reader.read_to({0: len(VALUES)})
        assert reader.values(0) == VALUES
    finally:
        log.close()


@pytest.mark.parametrize(("compression", "library"), [("lz4", "lz4"), ("zstd", "zstd"), ("snappy", "snappy")])
def test_without_its_library_the_error_says_what_to_install(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, compression: str, library: str
) -> None:
    log = OnKafka(broker, topic, 1)
    try:
        produce(broker, topic, compression, VALUES[:10])
        monkeypatch.setattr(codec, library, None)
        reader = assigned(log)
        with pytest.raises(SourceError) as refusal:
            reader.read_to({0: 10})
        assert compression in str(refusal.value)
        assert "pip install" in str(refusal.value)
        assert "\n" not in str(refusal.value)
    finally:
        log.close()


def assigned(log: OnKafka) -> Reader:
    reader = Reader(log.open())
    reader.assigned()
    reader.source.seek({0: None})
    return reader
