"""Either client on a real broker: compressed topics, answers that come too late, and what closed clients leave open."""

import gc
import re
import time
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition, codec
from kafka.structs import OffsetAndMetadata

from streampca.errors import SourceError
from streampca.sources.confluent import source as confluent
from streampca.sources.events import Assigned
from streampca.sources.kafka_python import source as kafka_python
from tests.errors import refusal
from tests.kafka_broker import Broker
from tests.sources.backends import OnConfluent, OnKafka
from tests.sources.reader import start_reading
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("long_timeouts")]

VALUES = [b"[%d, 2.5, -1e-3]" % i for i in range(3000)]
CYCLES = 8


def produce(log: OnKafka, compression: str | None, values: list[bytes]) -> None:
    with closing(log.broker.producer(compression_type=compression, linger_ms=50)) as producer:
        for value in values:
            producer.send(log.topic, value, partition=0)
        producer.flush(60)


def test_a_topic_may_mix_all_compressions(log: OnKafka) -> None:
    for i, compression in enumerate(["lz4", "zstd", "snappy", "gzip", None]):
        produce(log, compression, VALUES[i * 600 : (i + 1) * 600])
    reader = start_reading(log.open(), {0: None})
    reader.read_to({0: len(VALUES)})
    assert reader.values(0) == VALUES


@pytest.mark.parametrize("kind", [OnKafka], indirect=True)
def test_without_the_library_of_a_compression_the_error_says_what_to_install(
    log: OnKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(log, "zstd", VALUES[:10])
    monkeypatch.setattr(codec, "zstd", None)
    reader = start_reading(log.open(), {0: None})
    assert re.search(r"zstd.*pip install", refusal(SourceError, reader.read_to, {0: 10}))


def test_a_late_answer_is_not_returned_by_a_later_call(log: OnKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    member = log.open()
    commit(log, 1)
    assert member.committed()[0].offset == 1
    with log.broker.frozen(), monkeypatch.context() as hurry:
        hurry.setattr(kafka_python, "_OFFSETS_TIMEOUT_MS", 300)
        hurry.setattr(confluent, "_OFFSETS_TIMEOUT_S", 0.3)
        refusal(TimeoutError, member.committed)
    commit(log, 2)
    assert member.committed()[0].offset == 2


def commit(log: OnKafka, offset: int) -> None:
    """Commit an offset of partition 0, as a member does."""
    servers = log.broker.bootstrap
    partition = TopicPartition(log.topic, 0)
    with closing(KafkaConsumer(bootstrap_servers=servers, group_id=log.topic, enable_auto_commit=False)) as member:
        member.assign([partition])
        member.commit({partition: OffsetAndMetadata(offset, "", -1)})


@pytest.mark.parametrize("kind", [OnKafka], indirect=True)
def test_an_assignment_that_arrives_between_two_polls_is_returned_by_the_next(log: OnKafka) -> None:
    member, deadline = log.open(), time.monotonic() + PATIENCE_S
    coordinator = member._consumer._coordinator  # type: ignore[attr-defined]
    while (join := coordinator._join_task) is None or not join.succeeded():
        if join is None or join.failed():  # the first answer is an id for the member
            assert list(member.poll(0)) == []
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert list(member.poll(PATIENCE_S)) == [Assigned(frozenset({0}))]
    assert member.membership.generation_id == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("client", [OnKafka, OnConfluent])
def test_clients_that_come_and_go_leave_no_descriptor_open(broker: Broker, topic: str, client: type[OnKafka]) -> None:
    backend = client(broker, topic, 1)
    open_after = [count_descriptors_after_use(backend) for _ in range(CYCLES)]
    assert open_after[-1] <= open_after[0], open_after


def count_descriptors_after_use(backend: OnKafka) -> int:
    """Ask the broker with a new client, close it, and return how many descriptors this process has open."""
    backend.open().topic_id()
    backend.opened.pop().close()
    gc.collect()  # kafka-python leaves some sockets to it
    return len(list(Path("/dev/fd").iterdir()))
