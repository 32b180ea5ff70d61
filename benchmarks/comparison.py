"""A worker beside the forty lines that one would write by hand: `python -m benchmarks.comparison`.

From a real broker on this machine, throughput and processor time of `streampca worker` with either client, and of
benchmarks/rival.py: confluent_kafka, scikit-learn's IncrementalPCA on 1,000 rows, joblib.dump every five seconds. In
turn; medians.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.brokers import broker_of, parser_with_broker
from benchmarks.children import cpu_seconds, start
from benchmarks.report import publish
from benchmarks.workers import CLIENTS, PARTITIONS, Load, Rate, Sample, fill, rate_of_worker, sustained
from tests.broker_client import BrokerClient

PART, RUNS, RIVAL = "comparison", 3, "written by hand"
LOADS = (Load("float32", 64, 8, 800_000), Load("float32", 784, 20, 140_000), Load("float32", 3072, 100, 30_000))


def main() -> None:
    """Measure and write."""
    given = parser_with_broker(__doc__).parse_args()
    loads = [replace(LOADS[0], messages=20_000)] if given.smallest else LOADS
    lines = [
        "| d × k | program | messages/s | speed-up | processor time a message, µs | share of the rival's |",
        "|---|---|---|---|---|---|",
    ]
    with broker_of(given) as broker:
        for load in loads:
            broker.create_topic(load.topic, PARTITIONS)
            fill(broker, load)
            lines += rows(broker, load, CLIENTS[-1:] if given.smallest else CLIENTS, 1 if given.smallest else RUNS)
            broker.delete_topic(load.topic)
    publish(PART, given, lines)


def rows(broker: BrokerClient, load: Load, clients: Sequence[str], runs: int) -> list[str]:
    """The lines of one size."""
    rates: dict[str, list[Rate]] = {name: [] for name in (RIVAL, *clients)}
    for _ in range(runs):
        rates[RIVAL].append(rate_of_rival(broker, load))
        for client in clients:
            rates[client].append(rate_of_worker(broker, load, client))
    medians = {name: Rate(*map(median, zip(*found, strict=True))) for name, found in rates.items()}
    lines = []
    for name, rate in medians.items():
        program = RIVAL if name == RIVAL else f"streampca worker, {name}"
        speed_up, cost = rate.messages / medians[RIVAL].messages, rate.cpu_us / medians[RIVAL].cpu_us
        lines.append(
            f"| {load.d} × {load.k} | {program} | {rate.messages:,.0f} | {speed_up:.1f}× "
            f"| {rate.cpu_us:.1f} | {cost:.2f} |"
        )
        print(lines[-1], flush=True)
    return lines


def rate_of_rival(broker: BrokerClient, load: Load) -> Rate:
    """By the lines that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        words = [broker.bootstrap, load.topic, f"rival-{time.monotonic_ns()}", str(load.d), str(load.k)]
        with start("rival", *words, str(Path(folder) / "pca.joblib")) as child:
            assert child.stdout is not None
            samples = []
            try:
                for line in child.stdout:
                    samples.append(Sample(time.perf_counter(), int(line), cpu_seconds(child.pid)))
                    if samples[-1].messages >= load.messages:
                        return sustained(samples)
            finally:
                child.kill()
    raise ChildProcessError(f"the rival ended with exit code {child.returncode} after {len(samples)} batches")


if __name__ == "__main__":
    main()
