"""The throughput of `streampca transform` beside a bare loop's: `python -m benchmarks.transform`.

From a real broker on this machine, messages a second of a real `streampca transform` that writes coordinates and the
residual as float32, and of a process with the same client, batches and transactions that computes nothing
(benchmarks/bare.py). In turn; medians.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks import workers
from benchmarks.report import Bar, beside, publish
from experiments.report import table
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.broker_client import BrokerClient
from tests.example_models import numbered
from tests.guarantees.worker_process import own_interpreter

PART, RUNS, BAR = "transform", 9, 0.6
WITHOUT_BAR = (784, "confluent")  # the bare loop looks at no byte of the records, and costs half of what transform does
WRITTEN = 'streampca_transform_records_total{outcome="written",'  # the series
LOADS = (workers.Load("float32", 64, 8, 800_000), workers.Load("float32", 784, 20, 300_000))
FEWER = {"kafka-python": 16, "confluent": 1}


def main() -> None:
    """Measure and write."""
    options = workers.parser_with_broker(__doc__).parse_args()
    rows, shares = [], []
    with workers.broker_of(options) as broker:
        for full in [replace(LOADS[0], messages=10_000)] if options.smallest else LOADS:
            cells = [f"{full.d} × {full.k}"]
            for client in workers.CLIENTS:
                load = replace(full, messages=full.messages // FEWER[client])
                rate, share = measured(broker, load, client, 1 if options.smallest else RUNS)
                cells += [f"{rate:,.0f}", f"{share:.2f}"]
                if (load.d, client) != WITHOUT_BAR:
                    shares.append(share)
            rows.append(cells)
            print(cells, flush=True)
    bar = Bar("Transform throughput, share of a bare transactional loop's", shares, "≥", BAR, "×")
    publish(PART, options, table(["d × k", *workers.RATE_HEADS], rows), [bar])


def measured(broker: BrokerClient, load: workers.Load, client: str, runs: int) -> tuple[float, float]:
    """Transform's messages a second, and its share of the bare loop's."""
    broker.create_topic(load.topic, workers.PARTITIONS)
    workers.fill(broker, load)

    def bare_loop() -> float:
        output = broker.create_topic(f"bare-{time.monotonic_ns()}", workers.PARTITIONS)
        rate = workers.bare_rate("loop", broker, load, client, output=output, size=4 * (load.k + 1))
        broker.delete_topic(output)
        return rate

    rate, _, share = beside(bare_loop, lambda: transform_rate(broker, load, client), runs)
    broker.delete_topic(load.topic)
    return rate, share


def transform_rate(broker: BrokerClient, load: workers.Load, client: str) -> float:
    """Messages a second of `streampca transform` with its default intervals, by its own metrics."""
    output = broker.create_topic(f"projected-{time.monotonic_ns()}", workers.PARTITIONS)
    with tempfile.TemporaryDirectory() as folder:
        store, log = Path(folder) / "store", Path(folder) / "log"
        Models(DirectoryStore(store), load.topic).save(numbered(7, d=load.d, k=load.k))
        with transforming(broker, load, client, store, output, log):
            rate = workers.rate_of([log], WRITTEN, load.messages)
    broker.delete_topic(output)
    return rate


@contextmanager
def transforming(
    broker: BrokerClient, load: workers.Load, client: str, store: Path, output: str, log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """`streampca transform` of this topic, in a group of its own, killed at the end."""
    settings = {
        "bootstrap_servers": broker.bootstrap, "topic": load.topic, "output_topic": output, "store": store,
        "transform_group_id": output, "format": load.format, "output_format": "float32", "kafka_client": client,
        "metrics_port": 0,
    }  # fmt: skip
    environment = {f"STREAMPCA_{name.upper()}": str(value) for name, value in settings.items()}
    with own_interpreter(["transform"], {**os.environ, **environment}, log) as process:
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    main()
