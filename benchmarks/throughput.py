"""The throughput of a worker beside a bare consumer's, and beside its learner's: `python -m benchmarks.throughput`.

From a real broker on this machine, messages a second of a real `streampca worker`; of a process with the same client,
codec and threads that learns nothing (benchmarks/bare.py); and of the learner alone, `Fold.take` in one thread of this
process. In turn; medians. With `--json` stdout is a list of the figures, and no page is written.
"""

import sys
import time
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np
import orjson
from threadpoolctl import threadpool_limits

from benchmarks import workers
from benchmarks.report import Bar, in_turn, publish
from experiments.report import table
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.record import batch_of_rows
from streampca.pca.learning import LearningConfig
from streampca.process.machine import count_usable_cores
from tests.broker_client import BrokerClient

PART, RUNS, ROOMY = "throughput", 5, 8  # cores, of which worker and broker have their own
LOADS = {  # and the bars, by client: the share of a bare consumer's rate
    workers.Load("float32", 64, 8, 800_000): {"kafka-python": 0.8, "confluent": 0.3},
    workers.Load("float32", 784, 20, 140_000): {"kafka-python": 0.65, "confluent": 0.25},
    workers.Load("float32", 3072, 20, 140_000): {"kafka-python": 0.55, "confluent": 0.25},
    workers.Load("json", 784, 20, 40_000): {"kafka-python": 0.6, "confluent": 0.15},
}
OF_LEARNER = {"float32, 64 × 8": 0.5, "float32, 784 × 20": 0.75}  # bars on a roomy machine, with confluent


def main() -> None:
    """Measure and write."""
    arguments = workers.parser_with_broker(__doc__)
    arguments.add_argument("--json", action="store_true", help="print only the figures, as JSON; write nothing")
    options = arguments.parse_args()
    smallest, least = next(iter(LOADS.items()))
    loads = {replace(smallest, messages=20_000): least} if options.smallest else LOADS
    figures, rows, bars = [], [], []
    with workers.broker_of(options) as broker:
        for load, least in loads.items():
            broker.create_topic(load.topic, workers.PARTITIONS)
            workers.fill(broker, load)
            name = f"{load.format}, {load.d} × {load.k}"
            cells, of_load = [name], {"dimensions": load.d, "components": load.k, "format": load.format}
            for client in workers.CLIENTS:
                rate, of_bare, of_learner = measured(broker, load, client, 1 if options.smallest else RUNS)
                shares = {"share_of_bare": of_bare, "share_of_learner": of_learner}
                figures.append({**of_load, "client": client, "rate": rate, **shares})
                cells += [f"{rate:,.0f}", f"{of_bare:.2f}"]
                metric = f"Worker, share of a bare {client} consumer's throughput, {name}"
                bars.append(Bar(metric, [of_bare], "≥", least[client], "×"))
            if name in OF_LEARNER and count_usable_cores() >= ROOMY:
                bars.append(
                    Bar(f"Worker, share of its learner's rate, {name}", [of_learner], "≥", OF_LEARNER[name], "×")
                )
            rows.append([*cells, f"{rate / of_learner:,.0f}"])
            print(rows[-1], file=sys.stderr, flush=True)
            broker.delete_topic(load.topic)
    if options.json:
        return print(orjson.dumps(figures).decode())
    publish(PART, options, table(["format, d × k", *workers.RATE_HEADS, "learner alone, messages/s"], rows), bars)


def measured(broker: BrokerClient, load: workers.Load, client: str, runs: int) -> list[float]:
    """A worker's messages a second, and its shares of the bare consumer's and of the learner's."""
    bare = partial(workers.bare_rate, "consumer", broker, load, client)
    rates = in_turn(runs, lambda: worker_rate(broker, load, client), bare, lambda: learner_rate(load))
    return [median(rates[0]), *(median(w / o for w, o in zip(rates[0], other, strict=True)) for other in rates[1:])]


def worker_rate(broker: BrokerClient, load: workers.Load, client: str) -> float:
    """Messages a second of `streampca worker`, by its own metrics."""
    with workers.group_of(broker, load, client, dtype="float32", session_timeout_s=6) as members:
        worker = members.start()
        rate = workers.rate_of([worker.log], workers.LEARNED, load.messages)
        worker.stop()
    return rate


def learner_rate(load: workers.Load) -> float:
    """Messages a second that one thread learns of a partition, without a broker."""
    config = FoldConfig(LearningConfig(load.d, load.k, dtype="float32"), format=load.format)
    rows, fold = workers.rows_of(load).astype(np.float32), Fold.empty(config.learning)
    samples: list[workers.Sample] = [(time.perf_counter(), 0)]
    with threadpool_limits(1):
        while (done := samples[-1][1]) < load.messages / workers.PARTITIONS:
            fold, _ = fold.take(batch_of_rows(rows, done + len(rows)), config)
            samples.append((time.perf_counter(), done + len(rows)))
    return workers.sustained(samples)


if __name__ == "__main__":
    main()
