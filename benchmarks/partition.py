"""One partition that a thread or process learns, for the benchmark `threads`."""

import time
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.record import batch_of_rows
from streampca.pca.learning import LearningConfig

_ROWS = 1024  # in a batch


class Partition(NamedTuple):
    """How much is learned."""

    d: int
    k: int
    batches: int


def learn(partition: Partition) -> tuple[float, float]:
    """Learn a partition in one BLAS thread, and return when this began and ended."""
    rows = np.random.default_rng(0).standard_normal((_ROWS, partition.d)).astype(np.float32)
    config = FoldConfig(LearningConfig(partition.d, partition.k, dtype="float32"), format="float32")
    start_s = time.perf_counter()
    fold = Fold.empty(config.learning)
    with threadpool_limits(1):
        for number in range(1, partition.batches + 1):
            fold, _ = fold.take(batch_of_rows(rows, number * _ROWS), config)
    return start_s, time.perf_counter()


def learn_together(partition: Partition, barrier: Any, times: Any) -> None:
    """Learn a partition in a process that begins when the others have loaded what they need."""
    learn(partition._replace(batches=2))
    barrier.wait()
    times.put(learn(partition))
