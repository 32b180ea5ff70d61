"""Processor time and memory of publishing a model of many partitions: `python -m benchmarks.publishing`.

The checkpoints lie in a memory disk where there is one, and all are new. Each is read, its pending messages (128 on
average) are learned, and it is merged. Memory is the peak of what that allocates.
"""

import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.report import Bar, parser, publish
from streampca.pca.arrays import F64
from streampca.pca.learning import BLOCK, LearningConfig
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.stream import checkpoint as files
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import Fold, FoldConfig
from streampca.worker.publisher import Publisher

PART, TOPIC, KINDS = "publishing", "many", 4
DIRECTIONS = 300  # of the made-up vectors, beside noise
MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - if it is there
GROWTH_BAR = 1.25


class Size(NamedTuple):
    """What is measured."""

    partitions: int
    d: int
    k: int


FULL = (Size(64, 3072, 100), Size(256, 3072, 100), Size(1000, 784, 20))
SMALLEST = (Size(64, 30, 3), Size(128, 30, 3))


class Result(NamedTuple):
    """What was measured."""

    seconds: float  # of a processor
    peak: float  # MiB


def main() -> None:
    """Measure and write."""
    given = parser(__doc__).parse_args()
    lines = [
        "| partitions | d × k | seconds | peak, MiB |",
        "|---|---|---|---|",
    ]
    peaks = []
    sizes = SMALLEST if given.smallest else FULL
    for size in sizes:
        found, shape = measured(size), f"{size.d} × {size.k}"
        lines.append(f"| {size.partitions:,} | {shape} | {found.seconds:.2f} | {found.peak:.0f} |")
        peaks.append(found.peak)
    few, more = sizes[:2]
    metric = f"Memory to publish {more.partitions} partitions, as a multiple of that for {few.partitions}"
    publish(PART, given, lines, [Bar(metric, peaks[1] / peaks[0], "≤", GROWTH_BAR, "×")])


def measured(size: Size) -> Result:
    """The processor time and the memory of one publication."""
    fold_config = FoldConfig(LearningConfig(size.d, size.k), format="float32")
    disk = MEMORY_DISK if MEMORY_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(dir=disk) as folder, threadpool_limits(1):
        store = DirectoryStore(Path(folder))
        fill(store, size.partitions, fold_config)
        started = time.process_time()
        publisher(store, fold_config).publish()
        seconds = time.process_time() - started
        tracemalloc.start()
        publisher(store, fold_config).publish()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return Result(seconds, peak / 2**20)


def publisher(store: Store, fold_config: FoldConfig) -> Publisher:
    """One that has published nothing."""
    return Publisher(Checkpoints(store, TOPIC), Models(MemoryStore(), TOPIC), fold_config, time.time)


def fill(store: Store, partitions: int, fold_config: FoldConfig) -> None:
    """Write a checkpoint of each partition, of a few long streams with different numbers of pending messages."""
    random = np.random.default_rng(0)
    d = fold_config.learning.dimensions
    mixing = random.standard_normal((min(d, DIRECTIONS), d)) / np.arange(1, min(d, DIRECTIONS) + 1)[:, None]

    def vectors(n: int) -> F64:
        return random.standard_normal((n, len(mixing))) @ mixing + 0.01 * random.standard_normal((n, d))

    def learned(fold: Fold, n: int) -> Fold:
        return fold.learn(vectors(n), np.full(n, 10**12), max(fold.position, 0) + n, fold_config)[0]

    start = fold_config.learning.settled
    folds = [learned(Fold.empty(fold_config.learning), start) for _ in range(KINDS)]
    for partition in range(partitions):
        fold = learned(folds[partition % KINDS], 1 + 37 * partition % BLOCK)
        checkpoint = Checkpoint(TOPIC, "", partition, fold, fold_config.as_dict())
        store.write(f"checkpoints/{TOPIC}/{partition}/{fold.position:020d}.npz", files.encode(checkpoint))


if __name__ == "__main__":
    main()
