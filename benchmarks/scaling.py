"""The throughput of one worker and of two on the same topic: `python -m benchmarks.scaling`.

8 partitions, d = 3072, k = 100, so that learning and not the broker is the limit, with either client. The workers have
their partitions before there are records: they are stopped by a signal while the topic is filled, and then continued
together. Messages a second of all workers together; medians of five runs of each, in turn.
"""

import os
import signal
import time
from dataclasses import replace
from statistics import median

from benchmarks.report import Bar, publish
from benchmarks.workers import CLIENTS, LEARNED, Load, broker_of, fill, group_of, owned, parser_with_broker, rate_of
from experiments.report import table
from tests.broker_client import BrokerClient

PART, PARTITIONS, RUNS, BAR = "scaling", 8, 5, 1.8
FULL, SMALLEST = Load("float32", 3072, 100, 64_000), Load("float32", 64, 8, 20_000)


def main() -> None:
    """Measure and write."""
    options = parser_with_broker(__doc__).parse_args()
    clients = CLIENTS[:1] if options.smallest else CLIENTS
    rates: dict[tuple[str, int], list[float]] = {(client, workers): [] for client in clients for workers in (1, 2)}
    with broker_of(options) as broker:
        for _ in range(1 if options.smallest else RUNS):
            for client, workers in rates:
                rates[client, workers].append(rate(broker, SMALLEST if options.smallest else FULL, client, workers))
    medians = {case: median(figures) for case, figures in rates.items()}
    speed_up = {client: medians[client, 2] / medians[client, 1] for client in clients}
    rows = [[c, f"{medians[c, 1]:,.0f}", f"{medians[c, 2]:,.0f}", f"{speed_up[c]:.2f}×"] for c in clients]
    bar = Bar("Speed-up with two workers, 8 partitions, kafka-python", [speed_up["kafka-python"]], "≥", BAR, "×")
    publish(PART, options, table(["client", "one worker, messages/s", "two workers", "speed-up"], rows), [bar])


def rate(broker: BrokerClient, load: Load, client: str, workers: int) -> float:
    """Messages a second of all workers together, on a topic of their own."""
    load = replace(load, name=f"scaling-{time.monotonic_ns()}")
    broker.create_topic(load.topic, PARTITIONS)
    with group_of(broker, load, client, session_timeout_s=300) as members:
        for _ in range(workers):
            members.start()
        share = PARTITIONS // workers
        members.wait(lambda: all(len(owned(w)) == share for w in members.workers), "the partitions", 120)
        for worker in members.workers:
            os.kill(worker.process.pid, signal.SIGSTOP)
        fill(broker, load, PARTITIONS)
        for worker in members.workers:
            os.kill(worker.process.pid, signal.SIGCONT)
        together = rate_of([worker.log for worker in members.workers], LEARNED, load.messages)
    broker.delete_topic(load.topic)
    return together


if __name__ == "__main__":
    main()
