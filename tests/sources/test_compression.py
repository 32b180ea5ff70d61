"""Both clients read compressed topics."""

from collections.abc import Sequence

import pytest
from kafka import codec

from streampca.errors import SourceError
from tests.kafka_broker import Broker
from tests.sources.backends import OnKafka
from tests.sources.reader import reading

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("patient")]

VALUES = [b"[%d, 2.5, -1e-3]" % i for i in range(3000)]


def produce(broker: Broker, topic: str, compression: str | None, values: Sequence[bytes]) -> None:
    producer = broker.producer(compression_type=compression, linger_ms=50)
    for value in values:
        producer.send(topic, value, partition=0)
    producer.flush(60)
    producer.close()


def test_a_topic_may_mix_all_compressions(log: OnKafka) -> None:
    for i, compression in enumerate(["lz4", "zstd", "snappy", "gzip", None]):
        produce(log.broker, log.topic, compression, VALUES[i * 600 : (i + 1) * 600])
    reader = reading(log.open(), {0: None})
    reader.read_to({0: len(VALUES)})
    assert reader.values(0) == VALUES


@pytest.mark.parametrize("kind", [OnKafka], indirect=True)
def test_without_its_library_the_error_says_what_to_install(log: OnKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(log.broker, log.topic, "zstd", VALUES[:10])
    monkeypatch.setattr(codec, "zstd", None)
    reader = reading(log.open(), {0: None})
    with pytest.raises(SourceError, match=r"zstd.*pip install") as refusal:
        reader.read_to({0: 10})
    assert "\n" not in str(refusal.value)
