"""The throughput of a worker beside a bare consumer's: `python -m benchmarks.throughput`.

From a real broker on this machine, messages a second of a real `streampca worker`, and of a process with the same
client, codec and threads that learns nothing (benchmarks/bare.py). In turn; medians.
"""

from dataclasses import replace
from functools import partial

from benchmarks import workers
from benchmarks.report import Bar, beside, publish
from experiments.report import table
from tests.broker_client import BrokerClient

PART, RUNS = "throughput", 5
LOADS = {  # and the bars, by client: the share of a bare consumer's rate
    workers.Load("float32", 64, 8, 800_000): {"kafka-python": 0.8, "confluent": 0.3},
    workers.Load("float32", 784, 20, 140_000): {"kafka-python": 0.6, "confluent": 0.15},
    workers.Load("float32", 3072, 20, 140_000): {"kafka-python": 0.55, "confluent": 0.25},
    workers.Load("json", 784, 20, 40_000): {"kafka-python": 0.6, "confluent": 0.15},
}


def main() -> None:
    """Measure and write."""
    options = workers.parser_with_broker(__doc__).parse_args()
    smallest, least = next(iter(LOADS.items()))
    loads = {replace(smallest, messages=20_000): least} if options.smallest else LOADS
    rows, bars = [], []
    with workers.broker_of(options) as broker:
        for load, least in loads.items():
            broker.create_topic(load.topic, workers.PARTITIONS)
            workers.fill(broker, load)
            cells = [name := f"{load.format}, {load.d} × {load.k}"]
            for client in workers.CLIENTS:
                rate, share = measured(broker, load, client, 1 if options.smallest else RUNS)
                cells += [f"{rate:,.0f}", f"{share:.2f}"]
                metric = f"Worker, share of a bare {client} consumer's throughput, {name}"
                bars.append(Bar(metric, [share], "≥", least[client], "×"))
            rows.append(cells)
            print(cells, flush=True)
            broker.delete_topic(load.topic)
    publish(PART, options, table(["format, d × k", *workers.RATE_HEADS], rows), bars)


def measured(broker: BrokerClient, load: workers.Load, client: str, runs: int) -> tuple[float, float]:
    """A worker's messages a second, and its share of the bare consumer's."""
    bare = partial(workers.bare_rate, "consumer", broker, load, client)
    rate, _, share = beside(bare, lambda: worker_rate(broker, load, client), runs)
    return rate, share


def worker_rate(broker: BrokerClient, load: workers.Load, client: str) -> float:
    """Messages a second of `streampca worker`, by its own metrics."""
    with workers.group_of(broker, load, client, dtype="float32", session_timeout_s=6) as members:
        worker = members.start()
        rate = workers.rate_of([worker.log], workers.LEARNED, load.messages)
        worker.stop()
    return rate


if __name__ == "__main__":
    main()
