"""What a worker costs beside reading: `python -m benchmarks.daemon` (`--quick`: one run of each, of fewer messages).

From a real broker on this machine, messages a second of a real `streampca worker`, and of a loop that reads the same
topic with the same client, options and batch size and throws the messages away (for JSON: that calls `orjson.loads`
on each). Both as a process of their own, in turn; the rate is taken between the first and the last tenth of the
stream, so that starting and ending do not count. Medians of five runs. Writes benchmarks/results/daemon.md, and the
ratios with their bars.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from kafka import KafkaConsumer

from benchmarks import bars
from benchmarks.machine import machine
from streampca.settings import WorkerSettings
from streampca.sources.confluent import client as confluent_client
from streampca.sources.kafka_python import source
from tests.guarantees.harness import group
from tests.kafka_broker import Broker, wait_until

RESULT = Path(__file__).parent / "results" / "daemon.md"
PARTITIONS, RUNS = 4, 5
CLIENTS = ("kafka-python", "confluent")
BARS = {("float32", "kafka-python"): 0.85, ("float32", "confluent"): 0.7, ("json", "kafka-python"): 0.85,
        ("json", "confluent"): 0.85}  # fmt: skip


@dataclass(frozen=True)
class Load:
    """What the topic holds."""

    format: str
    d: int
    k: int
    messages: int
    name: str = ""

    @property
    def topic(self) -> str:
        return self.name or f"{self.format}-{self.d}"


LOADS = (
    Load("float32", 64, 8, 800_000),
    Load("float32", 784, 20, 140_000),
    Load("float32", 3072, 20, 50_000),
    Load("json", 784, 20, 40_000),
)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--client", choices=CLIENTS, action="append")
    parser.add_argument("--load", action="append", help="float32-64, float32-784, float32-3072, json-784")
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    loads = [load for load in LOADS if not given.load or load.topic in given.load]
    kept: list[bars.Bar] = []
    lines = [
        "| values | d × k | client | reading only, messages/s | worker, messages/s | ratio | bar |",
        "|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as broker:
        for load in loads:
            count = load.messages // (5 if given.quick else 1)
            broker.create_topic(load.topic, PARTITIONS)
            fill(broker, load, count)
            for client in given.client or CLIENTS:
                line, bar = row(broker, load, count, client, 1 if given.quick else RUNS, given.dtype)
                lines.append(line)
                kept.append(bar)
                print(line, flush=True)
            broker.delete_topic(load.topic)
    if not given.quick and not given.client and not given.load:
        bars.record("daemon", kept)
        RESULT.write_text(
            f"# A worker beside a loop that only reads\n\nMade by `python -m benchmarks.daemon`; {PARTITIONS} "
            f"partitions, dtype {given.dtype}; worker, broker and loop share the machine.\n\n"
            + "\n".join(lines)
            + f"\n\n{machine()}\n"
        )


def row(broker: Broker, load: Load, count: int, client: str, runs: int, dtype: str) -> tuple[str, bars.Bar]:
    """One line of the table, and the ratio with its bar."""
    pairs = [(rate_of_reading(broker, load, count, client), rate_of_worker(broker, load, count, client, dtype))
             for _ in range(runs)]  # fmt: skip
    reading, working = median(r for r, _ in pairs), median(w for _, w in pairs)
    ratio, bar = median(w / r for r, w in pairs), BARS[load.format, client]
    line = (
        f"| {load.format} | {load.d} × {load.k} | {client} | {reading:,.0f} | {working:,.0f} | {ratio:.2f} | ≥ {bar} |"
    )
    what = f"a worker's messages/s, of reading alone: {load.format}, {load.d} × {load.k}, {client}"
    return line, bars.Bar("daemon", what, round(ratio, 3), "≥", bar, "×")


def fill(broker: Broker, load: Load, count: int, partitions: int = PARTITIONS) -> None:
    """Vectors of a plane of k dimensions with noise, evenly over the partitions of a topic that is there."""
    rng = np.random.default_rng(0)
    plane = rng.standard_normal((load.k, load.d))
    rows = rng.standard_normal((2000, load.k)) @ plane + rng.standard_normal((2000, load.d))
    values = (
        [orjson.dumps(row.round(6).tolist()) for row in rows]
        if load.format == "json"
        else [row.tobytes() for row in rows.astype("<f4")]
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "queue.buffering.max.kbytes": 200_000})
    for i in range(count):
        while True:
            try:
                producer.produce(load.topic, values[i % len(values)], partition=i % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def sustained(samples: list[tuple[float, int]], count: int) -> float:
    """Messages a second between the first and the last tenth."""
    inner = [(t, n) for t, n in samples if 0.1 * count <= n <= 0.9 * count]
    (t0, n0), (t1, n1) = inner[0], inner[-1]
    return (n1 - n0) / (t1 - t0)


def rate_of_worker(broker: Broker, load: Load, count: int, client: str, dtype: str) -> float:
    """Of `streampca worker` with its default rhythm, by its own metrics."""
    settings = {"dimensions": load.d, "components": load.k, "format": load.format, "dtype": dtype,
                "log_level": "info", "checkpoint_interval_s": 5, "session_timeout_s": 6}  # fmt: skip
    name = f"{load.topic}-{time.monotonic_ns()}"
    with (
        tempfile.TemporaryDirectory() as folder,
        group(broker, load.topic, Path(folder), [client], **settings, group_id=name) as members,
    ):
        worker = members.start()
        url = wait_until(lambda: [e["metrics"] for e in worker.events() if "metrics" in e], 30)[0]
        samples = [(time.perf_counter(), 0)]
        deadline = time.monotonic() + 600
        while samples[-1][1] < count:
            time.sleep(0.05)
            samples.append((time.perf_counter(), learned(url)))
            assert time.monotonic() < deadline, worker.text()[-2000:]
        worker.stop()
    return sustained(samples, count)


def learned(url: str) -> int:
    """Messages learned, as the worker tells."""
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - our own
        for line in answer.read().decode().splitlines():
            if line.startswith('streampca_messages_total{outcome="learned"}'):
                return int(float(line.split()[-1]))
    return 0


def rate_of_reading(broker: Broker, load: Load, count: int, client: str) -> float:
    """Of a process that does nothing else."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.daemon",
        "read",
        broker.bootstrap,
        load.topic,
        str(count),
        client,
        load.format,
    ]
    found = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)  # noqa: S603 - ourselves
    return float(found.stdout)


def read(bootstrap: str, topic: str, count: str, client: str, kind: str) -> None:
    """The loop: prints its rate."""
    settings = WorkerSettings(
        bootstrap_servers=bootstrap, topic=topic, group_id=f"loop-{time.monotonic_ns()}", dimensions=2, components=1
    )
    done, samples = 0, [(time.perf_counter(), 0)]
    for records in {"kafka-python": with_kafka_python, "confluent": with_confluent}[client](settings):
        if kind == "json":
            for record in records:
                orjson.loads(record.value() if client == "confluent" else record.value)
        done += len(records)
        samples.append((time.perf_counter(), done))
        if done >= int(count):
            break
    print(sustained(samples, int(count)))


def with_kafka_python(settings: WorkerSettings) -> Iterator[list[Any]]:
    """Batches of records."""
    consumer = KafkaConsumer(**source._options(settings))
    consumer.assign([source.TopicPartition(settings.topic, p) for p in range(PARTITIONS)])
    consumer.seek_to_beginning()
    while True:
        yield from consumer.poll(200).values()


def with_confluent(settings: WorkerSettings) -> Iterator[list[Any]]:
    """Batches of messages, in which errors count for nothing."""
    consumer = Consumer(confluent_client.consumer_options(settings))
    consumer.assign([TopicPartition(settings.topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    while True:
        yield [message for message in consumer.consume(settings.max_poll_records, 0.2) if not message.error()]


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        read(*sys.argv[2:])
    else:
        main()
