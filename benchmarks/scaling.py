"""The throughput of several workers on the same topic: `python -m benchmarks.scaling [--workers 1,2,4,8]`.

8 partitions, d = 3072, k = 100, so that learning and not the broker is the limit, with either client. The workers have
their partitions before there are records: they are stopped by a signal while the topic is filled, and then continued
together. Messages a second of all workers together; medians of five runs of each, in turn. The bar is for two workers.
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
    arguments = parser_with_broker(__doc__)
    arguments.add_argument(
        "--workers", default="1,2", help="how many: divisors of 8, of which each is compared with the first"
    )
    options = arguments.parse_args()
    numbers = [int(n) for n in options.workers.split(",")]
    clients = CLIENTS[:1] if options.smallest else CLIENTS
    rates: dict[tuple[str, int], list[float]] = {(client, n): [] for client in clients for n in numbers}
    with broker_of(options) as broker:
        for _ in range(1 if options.smallest else RUNS):
            for client, n in rates:
                rates[client, n].append(rate(broker, SMALLEST if options.smallest else FULL, client, n))
    medians = {case: median(figures) for case, figures in rates.items()}
    speed_up = {(client, n): medians[client, n] / medians[client, numbers[0]] for client, n in medians}
    rows = [[client, str(n), f"{medians[client, n]:,.0f}", f"{speed_up[client, n]:.2f}×"] for client, n in medians]
    bars = []
    if numbers == [1, 2]:
        metric = "Speed-up with two workers, 8 partitions, kafka-python"
        bars.append(Bar(metric, [speed_up["kafka-python", 2]], "≥", BAR, "×"))
    publish(PART, options, table(["client", "workers", "messages/s", "speed-up"], rows), bars)


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
