"""The throughput of one worker and of two on the same topic: `python -m benchmarks.scaling`.

8 partitions, d = 3072, k = 100, so that learning and not the broker is the limit, with either client. The workers have
their partitions before there are records: they are stopped by a signal while the topic is filled, and then continued
together. Messages a second of all workers together; medians of five runs of each, in turn.
"""

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.report import Bar, publish
from benchmarks.workers import (
    CLIENTS,
    LEARNED,
    Load,
    broker_of,
    counted,
    fill,
    metrics_url,
    parser_with_broker,
    samples_until,
    sustained,
)  # fmt: skip
from experiments.report import table
from tests.broker_client import BrokerClient
from tests.guarantees.harness import group
from tests.guarantees.worker_process import WorkerProcess

PART, PARTITIONS, RUNS = "scaling", 8, 5
BAR = 1.8
FULL, SMALLEST = Load("float32", 3072, 100, 64_000), Load("float32", 64, 8, 20_000)


def main() -> None:
    """Measure and write."""
    given = parser_with_broker(__doc__).parse_args()
    clients = CLIENTS[:1] if given.smallest else CLIENTS
    rates: dict[tuple[str, int], list[float]] = {(client, workers): [] for client in clients for workers in (1, 2)}
    with broker_of(given) as broker:
        for run in range(1 if given.smallest else RUNS):
            for client, workers in rates:
                topic = f"{client}-{workers}-run-{run}"
                load = SMALLEST if given.smallest else FULL
                rates[client, workers].append(rate(broker, load, client, workers, topic))
    medians = {key: median(found) for key, found in rates.items()}
    speed_up = {client: medians[client, 2] / medians[client, 1] for client in clients}
    rows = [[c, f"{medians[c, 1]:,.0f}", f"{medians[c, 2]:,.0f}", f"{speed_up[c]:.2f}×"] for c in clients]
    bar = Bar("Speed-up with two workers, 8 partitions, kafka-python", [speed_up["kafka-python"]], "≥", BAR, "×")
    publish(PART, given, table(["client", "one worker, messages/s", "two workers", "speed-up"], rows), [bar])


def rate(broker: BrokerClient, load: Load, client: str, workers: int, topic: str) -> float:
    """Of so many workers, on a topic of its own."""
    load = replace(load, name=topic)
    broker.create_topic(topic, PARTITIONS)
    settings = {"dimensions": load.d, "components": load.k, "format": load.format, "log_level": "info",
                "checkpoint_interval_s": 5, "session_timeout_s": 300}  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        group(broker, topic, Path(folder), [client], False, **settings) as members,
    ):
        for _ in range(workers):
            members.start()
        members.wait(lambda: all(owned(w) == PARTITIONS // workers for w in members.workers), "the partitions", 120)
        for worker in members.workers:
            os.kill(worker.process.pid, signal.SIGSTOP)
        fill(broker, load, PARTITIONS)
        for worker in members.workers:
            os.kill(worker.process.pid, signal.SIGCONT)
        urls = [metrics_url(worker.log) for worker in members.workers]
        samples = samples_until(load.messages, lambda: sum(counted(url, LEARNED) for url in urls))
    broker.delete_topic(topic)
    return sustained(samples)


def owned(worker: WorkerProcess) -> int:
    """How many partitions a worker has, by its log."""
    counts = [len(e["read_from"]) for e in worker.events() if e["event"] == "partitions assigned"]
    return counts[-1] if counts else 0


if __name__ == "__main__":
    main()
