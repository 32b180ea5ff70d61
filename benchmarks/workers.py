"""Real workers on a real broker, for the benchmarks: topics full of vectors, and how fast they are learned."""

import argparse
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from confluent_kafka import Producer

from benchmarks.report import parser
from streampca.pca.arrays import Array
from tests.broker_client import BrokerClient, RunningBroker
from tests.guarantees.harness import Group, group
from tests.guarantees.worker_process import WorkerProcess
from tests.kafka_broker import Broker
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]
CLIENTS = ("kafka-python", "confluent")
PARTITIONS = 4
TIMEOUT_S = 600
RATE_HEADS = [f"{client}, {words}" for client in CLIENTS for words in ("messages/s", "share")]
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


Sample = tuple[float, int]  # a time in seconds, and the messages that were done by then


def parser_with_broker(description: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark on a broker."""
    options = parser(description)
    options.add_argument("--broker", metavar="HOST:PORT", help="use this running broker instead of starting one")
    return options


@contextmanager
def broker_of(options: argparse.Namespace) -> Iterator[BrokerClient]:
    """The running broker that the options name; without one, a broker that is started here and stopped at the end."""
    if options.broker:
        with RunningBroker(options.broker) as running:
            yield running
    else:
        with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as started:
            yield started


def start(module: str, *words: str) -> "subprocess.Popen[str]":
    """Start `python -m benchmarks.<module>`, whose stdout the caller reads; its stderr is ours."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)  # noqa: S603 - our own module


def rows_of(load: Load) -> Array:
    """2,000 vectors near a k-dimensional plane, which a load repeats."""
    rng = np.random.default_rng(0)
    plane = rng.standard_normal((load.k, load.d))
    return rng.standard_normal((2000, load.k)) @ plane + rng.standard_normal((2000, load.d))


def fill(broker: BrokerClient, load: Load, partitions: int = PARTITIONS) -> None:
    """Produce the vectors of a load, evenly over the partitions of a topic that exists."""
    rows = rows_of(load)
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


def sustained(samples: Sequence[Sample]) -> float:
    """Messages a second between the first and the last tenth, so that starting and ending do not count."""
    count = samples[-1][1]
    inner = [sample for sample in samples if 0.1 * count <= sample[1] <= 0.9 * count]
    if len({done for _, done in inner}) < 2:  # only with very few messages
        inner = list(samples)
    (began, first), (ended, last) = inner[0], inner[-1]
    return (last - first) / (ended - began)


def bare_rate(kind: str, broker: BrokerClient, load: Load, client: str, **options: Any) -> float:
    """Messages a second of a baseline of benchmarks/bare.py, in a process of its own."""
    of_all = {"bootstrap": broker.bootstrap, "topic": load.topic, "client": client, "messages": load.messages,
              "format": load.format, "d": load.d, "k": load.k}  # fmt: skip
    with start("bare", kind, orjson.dumps(of_all | options).decode()) as child:
        try:
            out = child.communicate(timeout=TIMEOUT_S)[0]
        finally:
            child.kill()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, child.args)
    return float(out)


@contextmanager
def group_of(broker: BrokerClient, load: Load, client: str, **settings: Any) -> Iterator[Group]:
    """A new consumer group with a new store, which learns a topic with one client; killed at the end."""
    defaults = {"dimensions": load.d, "components": load.k, "format": load.format, "log_level": "info",
                "checkpoint_interval_s": 5, "group_id": f"w-{time.monotonic_ns()}"}  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        group(broker, load.topic, Path(folder), [client], False, **defaults | settings) as members,
    ):
        yield members


def owned(worker: WorkerProcess) -> set[int]:
    """The partitions that a worker reads, by its log, which names them one by one if they are restored one by one."""
    partitions = set[int]()
    for event in worker.events():
        match event["event"]:
            case "partitions assigned":
                partitions |= {int(partition) for partition in event["read_from"]}
            case "partitions revoked" | "partitions lost":
                partitions -= set(event["partitions"])
    return partitions


def rate_of(logs: Iterable[Path], series: str, count: int) -> float:
    """Messages a second that processes do together until they have done `count`, by their metrics."""
    urls = [metrics_url(log) for log in logs]
    return sustained(samples_until(count, lambda: sum(counted(url, series) for url in urls)))


def samples_until(count: int, messages: Callable[[], int]) -> list[Sample]:
    """Samples, 20 a second, until `count` messages are done."""
    samples = [(time.perf_counter(), 0)]  # all may be done before the first look
    while samples[-1][1] < count:
        time.sleep(0.05)
        samples.append((time.perf_counter(), messages()))
        if samples[-1][0] - samples[0][0] > TIMEOUT_S:
            raise TimeoutError(f"{samples[-1][1]} of {count} messages within {TIMEOUT_S} s")
    return samples


def metrics_url(log: Path) -> str:
    """Where a process serves its metrics, as its log says; waits for its start."""

    def urls() -> list[str]:
        events = (orjson.loads(line) for line in log.read_text().splitlines() if line.endswith("}"))
        return [event["metrics"] for event in events if "metrics" in event]

    return str(wait_until(urls, 120, "the start")[0])


def counted(url: str, series: str) -> int:
    """The value of the first series that begins so, among a process's metrics; 0 without any."""
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - our own
        for line in answer.read().decode().splitlines():
            if line.startswith(series):
                return int(float(line.split()[-1]))
    return 0
