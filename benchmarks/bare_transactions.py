"""The baseline of `benchmarks.transform`: a loop that consumes and produces in transactions, and computes nothing.

It writes a value of the same size for each record, with the batches of `streampca transform`, and commits the offsets
in the same transaction. `python -m benchmarks.bare_transactions '{"bootstrap": …}'` prints messages a second, and the
processor time of a message in µs.
"""

import sys
import time
from typing import Any, NamedTuple

import orjson
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from benchmarks.bare_consumer import FETCH_BYTES, SWITCH_INTERVAL_S
from benchmarks.workers import Sample, sustained
from streampca.sources.base import MAX_POLL_RECORDS
from streampca.transform.loop import TRANSACTION_RECORDS, TRANSACTION_S


class Loop(NamedTuple):
    """What is read and written, and with which client."""

    bootstrap: str
    topic: str
    output: str
    client: str
    size: int  # bytes of an output
    messages: int


def main(loop: Loop) -> None:
    """Read to the end and print the rate."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    step = {"kafka-python": with_kafka_python, "confluent": with_confluent}[loop.client](loop)
    samples = [Sample(time.perf_counter(), 0, time.process_time())]
    while (done := samples[-1].messages) < loop.messages:
        done += step()
        samples.append(Sample(time.perf_counter(), done, time.process_time()))
    print(orjson.dumps(list(sustained(samples))).decode())


def with_kafka_python(loop: Loop) -> Any:
    """A function that makes one transaction and returns the number of its records."""
    consumer = KafkaConsumer(
        loop.topic, bootstrap_servers=loop.bootstrap, group_id=f"{loop.output}-bare", enable_auto_commit=False,
        auto_offset_reset="earliest", isolation_level="read_committed", max_poll_records=MAX_POLL_RECORDS,
        max_partition_fetch_bytes=FETCH_BYTES, metrics_enabled=False,
    )  # fmt: skip
    producer = KafkaProducer(
        bootstrap_servers=loop.bootstrap, transactional_id=f"{loop.output}-bare", linger_ms=5, metrics_enabled=False
    )
    producer.init_transactions()
    value = bytes(loop.size)

    def step() -> int:
        producer.begin_transaction()
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        count, until = 0, time.perf_counter() + TRANSACTION_S
        while count < TRANSACTION_RECORDS and time.perf_counter() < until:
            for partition, records in consumer.poll(100).items():
                for record in records:
                    producer.send(loop.output, value, record.key, record.headers, partition.partition, record.timestamp)
                offsets[partition] = OffsetAndMetadata(records[-1].offset + 1, "", -1)
                count += len(records)
        if offsets:
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()
        return count

    return step


def with_confluent(loop: Loop) -> Any:
    """A function that makes one transaction and returns the number of its records."""
    consumer = Consumer({
        "bootstrap.servers": loop.bootstrap, "group.id": f"{loop.output}-bare", "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "isolation.level": "read_committed", "check.crcs": True,
        "max.partition.fetch.bytes": FETCH_BYTES, "fetch.max.bytes": 4 * FETCH_BYTES, "fetch.queue.backoff.ms": 10,
    })  # fmt: skip
    producer = Producer({
        "bootstrap.servers": loop.bootstrap, "transactional.id": f"{loop.output}-bare", "linger.ms": 5,
        "delivery.report.only.error": True,
    })  # fmt: skip
    producer.init_transactions()
    consumer.subscribe([loop.topic])
    value = bytes(loop.size)

    def step() -> int:
        producer.begin_transaction()
        offsets: dict[int, int] = {}
        count, until = 0, time.perf_counter() + TRANSACTION_S
        while count < TRANSACTION_RECORDS and time.perf_counter() < until:
            messages: list[Any] = consumer.consume(MAX_POLL_RECORDS, 0.1)
            for message in messages:
                partition = message.partition()
                producer.produce(
                    loop.output, value, message.key(), partition=partition, timestamp=message.timestamp()[1],
                    headers=message.headers(),
                )  # fmt: skip
                offsets[partition] = message.offset() + 1
            count += len(messages)
        if offsets:
            partitions = [ConfluentPartition(loop.topic, p, o) for p, o in offsets.items()]
            producer.send_offsets_to_transaction(partitions, consumer.consumer_group_metadata())
        producer.commit_transaction()
        return count

    return step


if __name__ == "__main__":
    main(Loop(**orjson.loads(sys.argv[1])))
