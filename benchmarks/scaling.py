"""One worker and two, on the same topic: `python -m benchmarks.scaling`.

8 partitions, d = 3072, k = 100, so that learning and not the broker is the limit, with either client. The workers have
their partitions before the records come to be read: they are stopped by a signal while the topic is filled, and go on
together. Messages a second between the first and the last tenth, all workers together. Medians of five runs of each, in
turn.
Writes benchmarks/results/scaling.md.
"""

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.bars import RESULTS, Bar, record
from benchmarks.daemon import CLIENTS, Load, fill, learned, sustained
from benchmarks.machine import machine
from tests.guarantees.harness import WorkerProcess, group
from tests.kafka_broker import Broker, wait_until

PART, PARTITIONS, RUNS = "scaling", 8, 5
BAR = 1.8


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--messages", type=int, default=64_000)
    given = parser.parse_args()
    rates: dict[tuple[str, int], list[float]] = {(client, workers): [] for client in CLIENTS for workers in (1, 2)}
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as broker:
        for run in range(given.runs):
            for client, workers in rates:
                topic = f"{client}-{workers}-run-{run}"
                rates[client, workers].append(rate(broker, client, workers, topic, given.messages))
    lines, bars = ["| client | one worker, messages/s | two | ratio | bar |", "|---|---|---|---|---|"], []
    for client in CLIENTS:
        one, two = median(rates[client, 1]), median(rates[client, 2])
        lines.append(f"| {client} | {one:,.0f} | {two:,.0f} | {two / one:.2f} | ≥ {BAR} |")
        bars.append(Bar(PART, f"two workers beside one, 8 partitions, two cores, {client}", two / one, "≥", BAR, "×"))
    text = "\n".join(lines)
    print(text)
    head = f"# Workers\n\nd = 3072, k = 100, {PARTITIONS} partitions. Made by `python -m benchmarks.{PART}`.\n\n"
    (RESULTS / f"{PART}.md").write_text(f"{head}{text}\n\n{machine()} The broker runs on the same cores.\n")
    record(PART, bars)


def rate(broker: Broker, client: str, workers: int, topic: str, messages: int) -> float:
    """Of so many workers, on a topic of its own."""
    load = Load("float32", 3072, 100, messages, topic)
    broker.create_topic(topic, PARTITIONS)
    settings = {"dimensions": load.d, "components": load.k, "format": load.format, "log_level": "info",
                "checkpoint_interval_s": 5, "session_timeout_s": 300}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, group(broker, topic, Path(folder), [client], **settings) as members:
        for _ in range(workers):
            members.start()
        wait_until(lambda: all(owned(w) == PARTITIONS // workers for w in members.workers), 60, "the partitions")
        for worker in members.workers:
            os.kill(worker.process.pid, signal.SIGSTOP)
        fill(broker, load, messages, PARTITIONS)
        for worker in members.workers:
            os.kill(worker.process.pid, signal.SIGCONT)
        samples = [(time.perf_counter(), 0)]
        while samples[-1][1] < messages:
            time.sleep(0.05)
            samples.append((time.perf_counter(), sum(learned(address(w)) for w in members.workers)))
    broker.delete_topic(topic)
    return sustained(samples, messages)


def address(worker: WorkerProcess) -> str:
    """Of its metrics."""
    return str(wait_until(lambda: [e["metrics"] for e in worker.events() if "metrics" in e], 30)[0])


def owned(worker: WorkerProcess) -> int:
    """How many partitions it has, as its log says."""
    counts = [len(e["read_from"]) for e in worker.events() if e["event"] == "partitions assigned"]
    return counts[-1] if counts else 0


if __name__ == "__main__":
    main()
