"""Real workers on a real broker, for the benchmarks: topics full of vectors, and how fast they are learned."""

import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from confluent_kafka import Producer

from benchmarks.children import cpu_seconds
from tests.broker_client import BrokerClient
from tests.guarantees.harness import group
from tests.guarantees.worker_process import WorkerProcess
from tests.kafka_broker import wait_until

CLIENTS = ("kafka-python", "confluent")
PARTITIONS = 4
TIMEOUT_S = 600
LEARNED = 'streampca_messages_total{outcome="learned",'  # the series


@dataclass(frozen=True)
class Load:
    """What a topic holds."""

    format: str
    d: int
    k: int
    messages: int
    name: str = ""

    @property
    def topic(self) -> str:
        return self.name or f"{self.format}-{self.d}-{self.k}"


class Sample(NamedTuple):
    """How far a process was at one time."""

    time: float  # seconds
    messages: int
    cpu: float  # seconds


class Rate(NamedTuple):
    """The speed of a process, and what it costs."""

    messages: float  # a second
    cpu_us: float  # of processor time, a message


def fill(broker: BrokerClient, load: Load, partitions: int = PARTITIONS) -> None:
    """Produce vectors near a k-dimensional plane, evenly over the partitions of a topic that exists."""
    rng = np.random.default_rng(0)
    plane = rng.standard_normal((load.k, load.d))
    rows = rng.standard_normal((2000, load.k)) @ plane + rng.standard_normal((2000, load.d))
    values = (
        [orjson.dumps(row.round(6).tolist()) for row in rows]
        if load.format == "json"
        else [row.tobytes() for row in rows.astype("<f4")]
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "queue.buffering.max.kbytes": 200_000})
    for i in range(load.messages):
        while True:
            try:
                producer.produce(load.topic, values[i % len(values)], partition=i % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def sustained(samples: Sequence[Sample]) -> Rate:
    """The rate between the first and the last tenth of the messages, so that starting and ending do not count."""
    count = samples[-1].messages
    inner = [s for s in samples if 0.1 * count <= s.messages <= 0.9 * count]
    if len({s.messages for s in inner}) < 2:  # only with very few messages
        inner = list(samples)
    first, last = inner[0], inner[-1]
    messages = last.messages - first.messages
    return Rate(messages / (last.time - first.time), 1e6 * (last.cpu - first.cpu) / messages)


def rate_of_worker(broker: BrokerClient, load: Load, client: str, dtype: str = "float32") -> Rate:
    """Of `streampca worker` with its default intervals, by its own metrics."""
    settings = {"dimensions": load.d, "components": load.k, "format": load.format, "dtype": dtype,
                "log_level": "info", "checkpoint_interval_s": 5, "session_timeout_s": 6}  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        group(
            broker, load.topic, Path(folder), [client], False, **settings, group_id=f"w-{time.monotonic_ns()}"
        ) as members,
    ):
        worker = members.start()
        samples = sampled([worker], load.messages)
        worker.stop()
    return sustained(samples)


def sampled(workers: Sequence[WorkerProcess], count: int) -> list[Sample]:
    """Watch workers until together they have learned `count` messages."""
    urls = [metrics_url(worker) for worker in workers]

    def sample() -> Sample:
        for worker in workers:
            worker.assert_alive_or_end_expected()
        messages = sum(counted(url, LEARNED) for url in urls)
        return Sample(time.perf_counter(), messages, sum(cpu_seconds(w.process.pid) for w in workers))

    return until_count(sample, count)


def until_count(sample: Callable[[], Sample], count: int) -> list[Sample]:
    """Samples, 20 a second, until one has reached `count` messages."""
    samples = [sample()]
    while samples[-1].messages < count:
        time.sleep(0.05)
        samples.append(sample())
        if samples[-1].time - samples[0].time > TIMEOUT_S:
            raise TimeoutError(f"{samples[-1].messages} of {count} messages within {TIMEOUT_S} s")
    return samples


def metrics_url(worker: WorkerProcess) -> str:
    """Where a worker serves its metrics, as its log says."""

    def found() -> list[str]:
        worker.assert_alive_or_end_expected()
        return [event["metrics"] for event in worker.events() if "metrics" in event]

    return str(wait_until(found, 120, "the worker's start")[0])


def counted(url: str, series: str) -> int:
    """The value of the first series that begins so, among a process's metrics; 0 without any."""
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - our own
        for line in answer.read().decode().splitlines():
            if line.startswith(series):
                return int(float(line.split()[-1]))
    return 0
