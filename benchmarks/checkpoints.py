"""What checkpoints and models cost beside learning: `python -m benchmarks.checkpoints`.

One worker of 8 partitions, d = 3072, k = 100, on a source without a broker and a store on this disk: messages a second
at the default checkpoint interval, against the same worker that never saves. In turn; medians of five rounds.
Writes benchmarks/results/checkpoints.md.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from threadpoolctl import threadpool_limits

from benchmarks.bars import RESULTS, Bar, record
from benchmarks.endless import Endless
from benchmarks.machine import machine
from streampca.commands.worker import worker_config_of
from streampca.settings import WorkerSettings
from streampca.sources.base import NoDeadLetters
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.listener import Listener
from streampca.worker.loop import Worker, WorkerConfig
from streampca.worker.publisher import Publisher

PART, D, K, PARTITIONS, BATCH = "checkpoints", 3072, 100, 8, 256
ROUNDS, SECONDS, WARM = 5, 20.0, 4.0
BAR = 2.0  # percent


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    settings = WorkerSettings(topic="endless", dimensions=D, components=K, format="float32")
    saving = worker_config_of(settings)
    never = replace(saving, checkpoint_interval_s=1e9, checkpoint_messages=10**12)
    rates: dict[str, list[float]] = {"never": [], "saving": []}
    for _ in range(rounds):
        for name, worker_config in (("never", never), ("saving", saving)):
            rates[name].append(rate(worker_config, settings))
    without, with_ = median(rates["never"]), median(rates["saving"])
    cost = 100 * (1 - with_ / without)
    text = (
        f"| messages/s without saving | at the default interval of {saving.checkpoint_interval_s:g} s | cost |\n"
        f"|---|---|---|\n| {without:,.0f} | {with_:,.0f} | {cost:.1f} % |"
    )
    print(text)
    head = f"# Checkpoints\n\nd = {D}, k = {K}, {PARTITIONS} partitions. Made by `python -m benchmarks.{PART}`.\n\n"
    (RESULTS / f"{PART}.md").write_text(f"{head}{text}\n\n{machine()}\n")
    record(PART, [Bar(PART, f"checkpoints' share of throughput, {D}×{K}, 8 partitions", cost, "≤", BAR, "%")])


def rate(worker_config: WorkerConfig, settings: WorkerSettings) -> float:
    """Messages a second of one worker, once it is warm."""
    marks: list[tuple[float, int]] = []
    started = time.perf_counter()

    def look(read: int) -> None:
        now = time.perf_counter()
        if now - started > WARM:
            marks.append((now, read))
        if now - started > WARM + SECONDS:
            worker.stop("measured")

    with tempfile.TemporaryDirectory(dir=".") as folder, threadpool_limits(1):
        store = DirectoryStore(Path(folder))
        checkpoints = Checkpoints(store, settings.topic)
        publisher = Publisher(checkpoints, Models(store, settings.topic), worker_config.fold, time.time)
        source = Endless(D, K, PARTITIONS, BATCH, look)
        worker = Worker(worker_config, source, NoDeadLetters(), CheckpointWriter(checkpoints, publisher), Listener())
        worker.run()
    (began, before), (ended, after) = marks[0], marks[-1]
    return (after - before) / (ended - began)


if __name__ == "__main__":
    main()
