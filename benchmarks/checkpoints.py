"""The cost of checkpoints and models in throughput: `python -m benchmarks.checkpoints`.

One worker of 8 partitions, d = 3072, k = 100, on a source without a broker and a store on this disk, at the default
checkpoint interval. Its throughput while a save is under way is compared with its throughput between the saves of the
same run, so that a machine whose speed changes from run to run does not blur the result. Medians of five runs.
"""

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from threadpoolctl import threadpool_limits

from benchmarks.endless_source import EndlessSource
from benchmarks.report import Bar, parser, publish
from streampca.commands.worker import worker_config_of
from streampca.consumer_group.listener import Listener
from streampca.settings import WorkerSettings
from streampca.sources.base import NoDeadLetters
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.loop import Worker
from streampca.worker.publisher import Publisher

PART, PARTITIONS, BATCH = "checkpoints", 8, 256
BAR = 2.0  # percent


class Size(NamedTuple):
    """What is measured, and for how long."""

    d: int
    k: int
    runs: int
    seconds: float  # of a run
    warm_up: float  # seconds before them
    interval_s: float  # between checkpoints


FULL = Size(3072, 100, 5, 30.0, 4.0, WorkerSettings.model_fields["checkpoint_interval_s"].default)
SMALLEST = Size(64, 8, 1, 1.0, 0.2, 0.1)


class Look(NamedTuple):
    """The worker at one of its polls."""

    time: float
    messages: int
    saving: bool


def main() -> None:
    """Measure and write."""
    given = parser(__doc__).parse_args()
    size = SMALLEST if given.smallest else FULL
    runs = [parts_of(looks(size)) for _ in range(size.runs)]
    idle, saving, share, cost = (median(column) for column in zip(*runs, strict=True))
    lines = [
        "| messages/s between saves | during a save | share of the time | cost in throughput |",
        "|---|---|---|---|",
        f"| {idle:,.0f} | {saving:,.0f} | {share:.1%} | {cost:.2f} % |",
    ]
    metric = f"Cost of checkpoints in throughput, {size.d} × {size.k}, {PARTITIONS} partitions"
    publish(PART, given, lines, [Bar(metric, cost, "≤", BAR, "%")])


def looks(size: Size) -> list[Look]:
    """One worker at its polls, once it is warm."""
    settings = WorkerSettings(
        topic="endless", dimensions=size.d, components=size.k, format="float32",
        checkpoint_interval_s=size.interval_s,
    )  # fmt: skip
    config = worker_config_of(settings)
    found: list[Look] = []
    started = time.perf_counter()

    def look(read: int) -> None:
        now = time.perf_counter() - started
        if now > size.warm_up:
            found.append(Look(now, read, writer.busy))
        if now > size.warm_up + size.seconds:
            worker.stop("measured")

    with tempfile.TemporaryDirectory(dir=".") as folder, threadpool_limits(1):
        store = DirectoryStore(Path(folder))
        checkpoints = Checkpoints(store, settings.topic)
        publisher = Publisher(checkpoints, Models(store, settings.topic), config.fold, time.time)
        source = EndlessSource(size.d, size.k, PARTITIONS, BATCH, look)
        writer = CheckpointWriter(checkpoints, publisher)
        worker = Worker(config, source, NoDeadLetters(), writer, Listener())
        worker.run()
    return found


def parts_of(found: list[Look]) -> tuple[float, float, float, float]:
    """Messages a second between and during saves, the share of the time of saves, and their cost in percent."""
    seconds, messages = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for before, after in pairwise(found):
        seconds[before.saving] += after.time - before.time
        messages[before.saving] += after.messages - before.messages
    if not seconds[True]:
        raise RuntimeError("nothing was saved while it was measured")
    idle, total = messages[False] / seconds[False], sum(seconds.values())
    cost = 100 * (1 - sum(messages.values()) / total / idle)
    return idle, messages[True] / seconds[True], seconds[True] / total, cost


if __name__ == "__main__":
    main()
