"""The throughput of `streampca transform` beside a bare loop's: `python -m benchmarks.transform`.

From a real broker on this machine, messages a second of a real `streampca transform` that writes coordinates and the
residual as float32, and of a process with the same client, batches and transactions that computes nothing
(benchmarks/bare_transactions.py). In turn; medians.
"""

import os
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import orjson

from benchmarks.bare_transactions import Loop
from benchmarks.brokers import broker_of, parser_with_broker
from benchmarks.children import cpu_seconds, output_of
from benchmarks.report import Bar, publish
from benchmarks.workers import CLIENTS, PARTITIONS, Load, Rate, Sample, counted, fill, sustained, until_count
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.api.known import known
from tests.broker_client import BrokerClient
from tests.guarantees.worker_process import own_interpreter
from tests.kafka_broker import wait_until

PART, RUNS, BAR = "transform", 9, 0.6
WRITTEN = 'streampca_transform_records_total{outcome="written",'  # the series
LOADS = (Load("float32", 64, 8, 800_000), Load("float32", 784, 20, 300_000))
FEWER = {"kafka-python": 16, "confluent": 1}


def main() -> None:
    """Measure and write."""
    given = parser_with_broker(__doc__).parse_args()
    loads = [replace(LOADS[0], messages=10_000)] if given.smallest else LOADS
    lines = ["| d × k | client | bare loop, messages/s | transform, messages/s | share |", "|---|---|---|---|---|"]
    bars: list[Bar] = []
    with broker_of(given) as broker:
        for load, client in product(loads, CLIENTS):
            line, bar = row(broker, load, client, 1 if given.smallest else RUNS)
            print(line, flush=True)
            lines.append(line)
            bars.append(bar)
    publish(PART, given, lines, bars)


def row(broker: BrokerClient, load: Load, client: str, runs: int) -> tuple[str, Bar]:
    """One line of the table, and its bar."""
    load = replace(load, messages=load.messages // FEWER[client])
    broker.create_topic(load.topic, PARTITIONS)
    fill(broker, load)
    pairs = [(bare_rate(broker, load, client), rate(broker, load, client)) for _ in range(runs)]
    broker.delete_topic(load.topic)
    bare, ours = median(b.messages for b, _ in pairs), median(o.messages for _, o in pairs)
    share = median(o.messages / b.messages for b, o in pairs)
    metric = f"Transform's share of a bare transactional loop's throughput, {load.d} × {load.k}, {client}"
    return f"| {load.d} × {load.k} | {client} | {bare:,.0f} | {ours:,.0f} | {share:.2f} |", Bar(
        metric, share, "≥", BAR, "×"
    )


def bare_rate(broker: BrokerClient, load: Load, client: str) -> Rate:
    """Of the bare loop."""
    output = broker.create_topic(f"bare-{time.monotonic_ns()}", PARTITIONS)
    loop = Loop(broker.bootstrap, load.topic, output, client, 4 * (load.k + 1), load.messages)
    found = Rate(*orjson.loads(output_of("bare_transactions", orjson.dumps(loop._asdict()).decode())))
    broker.delete_topic(output)
    return found


def rate(broker: BrokerClient, load: Load, client: str) -> Rate:
    """Of `streampca transform` with its default intervals, by its own metrics."""
    output = broker.create_topic(f"projected-{time.monotonic_ns()}", PARTITIONS)
    with tempfile.TemporaryDirectory() as folder:
        store, log = Path(folder) / "store", Path(folder) / "log"
        Models(DirectoryStore(store), load.topic).save(known(7, d=load.d, k=load.k))
        settings = {
            "bootstrap_servers": broker.bootstrap, "topic": load.topic, "output_topic": output, "store": store,
            "transform_group_id": output, "format": load.format, "output_format": "float32", "kafka_client": client,
            "metrics_port": 0, "log_format": "json",
        }  # fmt: skip
        environment = {f"STREAMPCA_{name.upper()}": str(value) for name, value in settings.items()}
        with own_interpreter(["transform"], {**os.environ, **environment}, log) as process:
            try:
                url = str(wait_until(lambda: metrics_url(log), 60, "the start"))
                samples = until_count(
                    lambda: Sample(time.perf_counter(), counted(url, WRITTEN), cpu_seconds(process.pid)), load.messages
                )
            finally:
                process.kill()
    broker.delete_topic(output)
    return sustained(samples)


def metrics_url(log: Path) -> str | None:
    """Where the process serves its metrics, as its log says."""
    events = [orjson.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return next((str(event["metrics"]) for event in events if "metrics" in event), None)


if __name__ == "__main__":
    main()
