"""The baselines of `benchmarks.throughput` and `benchmarks.transform`, with a worker's Kafka options, and of `serving`.

`consumer`: one thread reads and decodes with the worker's codec, and hands the vectors to the main thread through a
bounded queue, which counts them. `loop`: consumes and produces in transactions like `streampca transform`, a value of
the same size for each record, and computes nothing. `python -m benchmarks.bare consumer '{"bootstrap": …}'` prints
messages a second. `server`: a FastAPI application that parses the body and answers as many bytes; prints its address.
"""

import gc
import io
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from benchmarks.workers import PARTITIONS, Sample, sustained
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.process.machine import keep_freed_memory
from streampca.transform.loop import TRANSACTION_RECORDS, TRANSACTION_S

_QUEUED_BATCHES = 5
# As a worker's.
MAX_POLL_RECORDS = 2000
_FETCH_BYTES = 4 * 2**20  # of one partition
_SWITCH_INTERVAL_S = 0.0005
_GARBAGE = 10_000  # objects between two collections
_KAFKA_PYTHON = {
    "enable_auto_commit": False, "auto_offset_reset": "earliest", "isolation_level": "read_committed",
    "max_poll_records": MAX_POLL_RECORDS, "max_partition_fetch_bytes": _FETCH_BYTES, "metrics_enabled": False,
}  # fmt: skip
_CONFLUENT = {
    "enable.auto.commit": False, "enable.auto.offset.store": False, "auto.offset.reset": "earliest",
    "isolation.level": "read_committed", "check.crcs": True, "max.partition.fetch.bytes": _FETCH_BYTES,
    "fetch.max.bytes": 4 * _FETCH_BYTES, "fetch.queue.backoff.ms": 10,
}  # fmt: skip

Step = Callable[[], int]  # returns the number of messages


class Bare(NamedTuple):
    """What is read and written, and with which client."""

    bootstrap: str
    topic: str
    client: str
    messages: int
    format: str
    d: int
    k: int
    output: str = ""  # of the loop
    size: int = 0  # bytes of an output


def main(kind: str, bare: Bare) -> None:
    """Read to the end and print the rate."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(_GARBAGE)
    keep_freed_memory()
    kafka_python = bare.client == "kafka-python"
    if kind == "consumer":
        step = decoding(bare, values_by_kafka_python(bare) if kafka_python else values_by_confluent(bare))
    else:
        step = transactions_by_kafka_python(bare) if kafka_python else transactions_by_confluent(bare)
    samples: list[Sample] = [(time.perf_counter(), 0)]
    while (done := samples[-1][1]) < bare.messages:
        done += step()
        samples.append((time.perf_counter(), done))
    print(sustained(samples))


def decoding(bare: Bare, batches: Iterator[list[Any]]) -> Step:
    """Takes the next decoded batch."""
    codec = Codec(bare.format, Judge(bare.d, 1e30, "float32"))
    decoded: queue.Queue[int] = queue.Queue(_QUEUED_BATCHES)

    def read() -> None:
        for values in batches:
            decoded.put(len(codec.decode(values).vectors))

    threading.Thread(target=read, daemon=True).start()
    return lambda: decoded.get(timeout=60)


def values_by_kafka_python(bare: Bare) -> Iterator[list[Any]]:
    """Batches of values, each of one partition."""
    consumer = KafkaConsumer(bootstrap_servers=bare.bootstrap, **_KAFKA_PYTHON)
    consumer.assign([TopicPartition(bare.topic, p) for p in range(PARTITIONS)])
    consumer.seek_to_beginning()
    while True:
        for records in consumer.poll(200).values():
            yield [record.value for record in records]


def values_by_confluent(bare: Bare) -> Iterator[list[Any]]:
    """Batches of values."""
    consumer = Consumer({"bootstrap.servers": bare.bootstrap, "group.id": "bare", **_CONFLUENT})
    consumer.assign([ConfluentPartition(bare.topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    while True:
        if values := [m.value() for m in consumer.consume(MAX_POLL_RECORDS, 0.2) if not m.error()]:
            yield values


def transactions_by_kafka_python(bare: Bare) -> Step:
    """Makes one transaction."""
    name, value = f"{bare.output}-bare", bytes(bare.size)
    consumer = KafkaConsumer(bare.topic, bootstrap_servers=bare.bootstrap, group_id=name, **_KAFKA_PYTHON)
    producer = KafkaProducer(
        bootstrap_servers=bare.bootstrap, transactional_id=name, linger_ms=5, metrics_enabled=False
    )
    producer.init_transactions()

    def step() -> int:
        producer.begin_transaction()
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        count, until = 0, time.perf_counter() + TRANSACTION_S
        while count < TRANSACTION_RECORDS and time.perf_counter() < until:
            for partition, records in consumer.poll(100).items():
                for record in records:
                    producer.send(bare.output, value, record.key, record.headers, partition.partition, record.timestamp)
                offsets[partition] = OffsetAndMetadata(records[-1].offset + 1, "", -1)
                count += len(records)
        if offsets:
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()
        return count

    return step


def transactions_by_confluent(bare: Bare) -> Step:
    """Makes one transaction."""
    name, value = f"{bare.output}-bare", bytes(bare.size)
    servers = {"bootstrap.servers": bare.bootstrap}
    consumer = Consumer({**servers, "group.id": name, **_CONFLUENT})
    producer = Producer({**servers, "transactional.id": name, "linger.ms": 5, "delivery.report.only.error": True})
    producer.init_transactions()
    consumer.subscribe([bare.topic])

    def step() -> int:
        producer.begin_transaction()
        offsets: dict[int, int] = {}
        count, until = 0, time.perf_counter() + TRANSACTION_S
        while count < TRANSACTION_RECORDS and time.perf_counter() < until:
            messages: list[Any] = consumer.consume(MAX_POLL_RECORDS, 0.1)
            for message in messages:
                partition = message.partition()
                producer.produce(
                    bare.output, value, message.key(), partition=partition, timestamp=message.timestamp()[1],
                    headers=message.headers(),
                )  # fmt: skip
                offsets[partition] = message.offset() + 1
            count += len(messages)
        if offsets:
            partitions = [ConfluentPartition(bare.topic, p, o) for p, o in offsets.items()]
            producer.send_offsets_to_transaction(partitions, consumer.consumer_group_metadata())
        producer.commit_transaction()
        return count

    return step


def serve(kind: str, size: int, dimensions: int) -> None:
    """Parse each body, answer `size` bytes."""
    import uvicorn  # only this process needs them
    from fastapi import FastAPI, Request, Response

    from streampca.process.listening import listen

    app, answer = FastAPI(), b"x" * size
    parsers: dict[str, Callable[[bytes], Any]] = {
        "json": orjson.loads,
        "npy": lambda body: np.load(io.BytesIO(body), allow_pickle=False),
        "raw": lambda body: np.frombuffer(body, "<f4").reshape(-1, dimensions),
        "v2": lambda body: parsers["raw"](body[len(body) % (4 * dimensions) :]),
    }
    parse = parsers[kind]

    @app.post("/")
    async def echo(request: Request) -> Response:
        parse(await request.body())
        return Response(answer, media_type="application/json")

    listening = listen("127.0.0.1", 0, "port")
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])


if __name__ == "__main__":
    options = orjson.loads(sys.argv[2])
    serve(**options) if sys.argv[1] == "server" else main(sys.argv[1], Bare(**options))
