"""Batches that members learn or transform give spans, which are linked to the traces of their records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streampca.consumer_group.events import BatchTransformed
from streampca.consumer_group.tracing import BatchSpans
from streampca.formats.record import Decoded, Record
from streampca.sources.events import Records, Vectors
from tests.guarantees.harness import BOTH_CLIENTS, as_json, group, vectors
from tests.guarantees.test_transform import PARTITIONS, members
from tests.kafka_broker import Broker
from tests.members import make_member
from tests.tracing.conftest import Receiver, attributes

PARENTS = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]
COUNT = 90


def send(broker: Broker, topic: str) -> None:
    """Records with headers of two traces, and others without."""
    producer = broker.producer()
    for place, value in enumerate(as_json(vectors(COUNT, 1))):
        headers = [("traceparent", PARENTS[place % 2].encode()), ("own", b"x")] if place % 3 else None
        producer.send(topic, value, b"key", headers, partition=place % PARTITIONS)
    producer.close()


def assert_spans_of_all_records(spans: list[Any], topic: str, consumer_group: str) -> None:
    read: dict[str, list[range]] = {str(partition): [] for partition in range(PARTITIONS)}
    linked = set()
    for span in spans:
        found = attributes(span)
        assert (span.kind, span.parent_span_id) == (span.SPAN_KIND_CONSUMER, b"")
        assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
        assert (found["messaging.system"], found["messaging.destination.name"]) == ("kafka", topic)
        assert found["messaging.consumer.group.name"] == consumer_group
        first = found["messaging.kafka.offset"]
        read[found["messaging.destination.partition.id"]].append(
            range(first, first + found["messaging.batch.message_count"])
        )
        linked |= {f"00-{link.trace_id.hex()}-{link.span_id.hex()}-01" for link in span.links}
    offsets = {partition: sorted(offset for part in parts for offset in part) for partition, parts in read.items()}
    assert sum(map(len, offsets.values())) == COUNT
    assert all(found == list(range(len(found))) for found in offsets.values())
    assert linked == set(PARENTS)


@pytest.mark.broker
@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_worker_exports_its_batches_and_learns_the_same(
    broker: Broker, topic: str, tmp_path: Path, receiver: Receiver, client: str
) -> None:
    broker.create_topic(topic, PARTITIONS)
    send(broker, topic)
    with group(broker, topic, tmp_path, [client]) as workers:
        worker = workers.learn()
        assert worker.stop() == 0, worker.text()
        assert_spans_of_all_records(receiver.wait_for(f"process {topic}"), topic, topic)
        workers.assert_same_bits()


@pytest.mark.broker
@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_transform_exports_its_batches_and_hands_on_the_headers(
    broker: Broker, topic: str, tmp_path: Path, receiver: Receiver, client: str
) -> None:
    with members(broker, topic, tmp_path) as running:
        send(broker, topic)
        process = running.start(kafka_client=client)
        running.wait_for_all()
        process.send_signal(15)
        assert process.wait(60) == 0, running.text()
        spans = receiver.wait_for(f"process {topic}")
    assert_spans_of_all_records(spans, topic, f"streampca-transform-{topic}")
    outputs = [dict(record.headers) for record in broker.read_all(f"{topic}-output")]
    handed_on = [headers["traceparent"].decode() for headers in outputs if "traceparent" in headers]
    assert (len(outputs), len(handed_on), set(handed_on)) == (COUNT, COUNT * 2 // 3, set(PARENTS))


def records(*parents: bytes | None) -> list[Record]:
    return [Record(offset, b"", headers=[("traceparent", parent)]) for offset, parent in enumerate(parents)]


def decode(event: Records) -> Vectors:
    """Half of the records, as codecs of large ones do."""
    taken, nothing = (
        event.records[: len(event.records) // 2],
        Decoded(np.zeros((0, 1)), np.zeros(0, int), [], np.zeros(0, int)),
    )
    return Vectors(nothing, np.zeros(0, int), taken, taken[-1].offset + 1, event.partition, event.end)


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exported: InMemorySpanExporter) -> BatchSpans:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return BatchSpans(provider.get_tracer("test"), "readings", "group")


def test_only_batches_that_are_processed_have_spans(spans: BatchSpans, exported: InMemorySpanExporter) -> None:
    begin, parents = spans.trace(decode), [parent.encode() for parent in PARENTS]
    begin(Records(0, records(*parents * 2), 4, 4))  # is dropped, and read again in other batches
    begin(Records(0, records(*parents * 3), 6, 6))
    begin(Records(1, records(*parents * 4), 8, 8))
    make_member(spans).notify(BatchTransformed(0, 3, 3, version=7, lag=0, next=3))
    (span,) = exported.get_finished_spans()
    assert (span.attributes["messaging.batch.message_count"], len(span.links)) == (3, 2)
    assert list(spans._open_spans) == [(1, 4)]


def test_links_are_distinct_valid_and_at_most_a_hundred(spans: BatchSpans, exported: InMemorySpanExporter) -> None:
    wrong = [None, b"", b"x", b"\xff", f"00-{0:032x}-{1:016x}-01".encode()]
    many = [f"00-{number:032x}-{1:016x}-01".encode() for number in range(1, 151)]
    read = records(*wrong, *many, *many)
    spans.trace(decode)(Records(0, read * 2, len(read), len(read)))
    make_member(spans).notify(BatchTransformed(0, 1, 1, version=7, lag=0, next=len(read)))
    (span,) = exported.get_finished_spans()
    assert [link.context.trace_id for link in span.links] == list(range(1, 101))
