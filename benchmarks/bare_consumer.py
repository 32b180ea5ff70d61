"""The baseline of `benchmarks.throughput`: a bare consumer with the worker's codec, which learns nothing.

As in a worker, one thread reads and decodes, and hands the vectors to the main thread through a bounded queue. There
they are only counted. `python -m benchmarks.bare_consumer '{"bootstrap": …}'` prints messages a second, and the
processor time of a message in µs.
"""

import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, TopicPartition

from benchmarks.workers import PARTITIONS, Sample, sustained
from streampca.commands.process import keep_freed_memory
from streampca.pca.learning import LearningConfig
from streampca.sources.base import MAX_POLL_RECORDS
from streampca.stream.codec import Codec

_QUEUED_BATCHES = 5
FETCH_BYTES = 4 * 2**20  # of one partition, as a worker
SWITCH_INTERVAL_S = 0.0005  # as a worker


class Topic(NamedTuple):
    """What is read, and with which client."""

    bootstrap: str
    topic: str
    client: str
    format: str
    d: int
    k: int
    messages: int


def main(topic: Topic) -> None:
    """Read to the end and print the rate."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory()
    largest = LearningConfig(topic.d, topic.k, dtype="float32").largest_value
    codec = Codec(topic.format, topic.d, largest, "float32")
    decoded: queue.Queue[int] = queue.Queue(_QUEUED_BATCHES)

    def read() -> None:
        batches = {"kafka-python": with_kafka_python, "confluent": with_confluent}[topic.client]
        for values in batches(topic):
            decoded.put(len(codec.decode(values).vectors))

    threading.Thread(target=read, daemon=True).start()
    samples = [Sample(time.perf_counter(), 0, time.process_time())]
    while (done := samples[-1].messages) < topic.messages:
        done += decoded.get(timeout=60)
        samples.append(Sample(time.perf_counter(), done, time.process_time()))
    print(orjson.dumps(list(sustained(samples))).decode())


def with_kafka_python(topic: Topic) -> Iterator[list[Any]]:
    """Batches of values, each of one partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=topic.bootstrap, enable_auto_commit=False, isolation_level="read_committed",
        max_poll_records=MAX_POLL_RECORDS, max_partition_fetch_bytes=FETCH_BYTES, metrics_enabled=False,
    )  # fmt: skip
    consumer.assign([TopicPartition(topic.topic, p) for p in range(PARTITIONS)])
    consumer.seek_to_beginning()
    while True:
        for records in consumer.poll(200).values():
            yield [record.value for record in records]


def with_confluent(topic: Topic) -> Iterator[list[Any]]:
    """Batches of values."""
    options = {
        "bootstrap.servers": topic.bootstrap, "group.id": "bare", "enable.auto.commit": False,
        "enable.auto.offset.store": False, "isolation.level": "read_committed", "check.crcs": True,
        "max.partition.fetch.bytes": FETCH_BYTES, "fetch.max.bytes": 4 * FETCH_BYTES,
        "fetch.queue.backoff.ms": 10,
    }  # fmt: skip
    consumer = Consumer(options)
    consumer.assign([ConfluentPartition(topic.topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    while True:
        if values := [m.value() for m in consumer.consume(MAX_POLL_RECORDS, 0.2) if not m.error()]:
            yield values


if __name__ == "__main__":
    main(Topic(**orjson.loads(sys.argv[1])))
