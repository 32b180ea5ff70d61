"""The throughput of a worker beside a bare consumer's: `python -m benchmarks.throughput`.

From a real broker on this machine, messages a second of a real `streampca worker`, and of a process with the same
client, codec and threads that learns nothing (benchmarks/bare_consumer.py). In turn; medians.
"""

from dataclasses import replace
from statistics import median

import orjson

from benchmarks.bare_consumer import Topic
from benchmarks.brokers import broker_of, parser_with_broker
from benchmarks.children import output_of
from benchmarks.report import Bar, publish
from benchmarks.workers import CLIENTS, PARTITIONS, Load, Rate, fill, rate_of_worker
from tests.broker_client import BrokerClient

PART, RUNS = "throughput", 5
LOADS = (
    Load("float32", 64, 8, 800_000),
    Load("float32", 784, 20, 140_000),
    Load("float32", 3072, 20, 50_000),
    Load("json", 784, 20, 40_000),
)
BARS = {("float32", "kafka-python"): 0.85, ("float32", "confluent"): 0.7, ("json", "kafka-python"): 0.85,
        ("json", "confluent"): 0.85}  # fmt: skip


def main() -> None:
    """Measure and write."""
    given = parser_with_broker(__doc__).parse_args()
    loads = [replace(LOADS[0], messages=20_000)] if given.smallest else LOADS
    lines = [
        "| format | d × k | client | bare consumer, messages/s | worker, messages/s | worker's share |",
        "|---|---|---|---|---|---|",
    ]
    bars: list[Bar] = []
    with broker_of(given) as broker:
        for load in loads:
            broker.create_topic(load.topic, PARTITIONS)
            fill(broker, load)
            for client in CLIENTS:
                line, bar = row(broker, load, client, 1 if given.smallest else RUNS)
                print(line, flush=True)
                lines.append(line)
                bars.append(bar)
            broker.delete_topic(load.topic)
    publish(PART, given, lines, bars)


def row(broker: BrokerClient, load: Load, client: str, runs: int) -> tuple[str, Bar]:
    """One line of the table, and its bar."""
    pairs = [(bare_rate(broker, load, client), rate_of_worker(broker, load, client)) for _ in range(runs)]
    bare, worker = median(b.messages for b, _ in pairs), median(w.messages for _, w in pairs)
    share = median(w.messages / b.messages for b, w in pairs)
    metric = f"Share of the bare consumer's throughput, {load.format}, {load.d} × {load.k}, {client}"
    line = f"| {load.format} | {load.d} × {load.k} | {client} | {bare:,.0f} | {worker:,.0f} | {share:.2f} |"
    return line, Bar(metric, share, "≥", BARS[load.format, client], "×")


def bare_rate(broker: BrokerClient, load: Load, client: str) -> Rate:
    """Of the bare consumer."""
    topic = Topic(broker.bootstrap, load.topic, client, load.format, load.d, load.k, load.messages)
    return Rate(*orjson.loads(output_of("bare_consumer", orjson.dumps(topic._asdict()).decode())))


if __name__ == "__main__":
    main()
