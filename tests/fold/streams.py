"""Small streams and their folds, shared by the tests of the fold, the checkpoint and the worker."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from streampca.fold import checkpoint as files
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.record import Batch, Decoded
from streampca.pca.arrays import Array
from streampca.pca.learning import LearningConfig
from streampca.pca.state import Losses

D = 5
WARM_UP = 20  # messages; fewer than the default, so that streams can be short


def vectors(n: int, d: int = D, seed: int = 0, dtype: str = "float64") -> Array:
    """Correlated messages (n, d) with a non-zero mean."""
    random = np.random.default_rng(seed)
    spread = random.standard_normal((d, d)) * np.logspace(0, -1, d)
    return (random.standard_normal((n, d)) @ spread + random.standard_normal(d)).astype(dtype)


def fold_config(
    half_life_messages: float | None = None, half_life_seconds: float | None = None, **learning_config: Any
) -> FoldConfig:
    """A small configuration; `learning_config` overrides fields of its LearningConfig."""
    defaults: dict[str, Any] = {"dimensions": D, "components": 2, "oversampling": 1, "warm_up": WARM_UP}
    return FoldConfig(LearningConfig(**defaults | learning_config), half_life_messages, half_life_seconds)


CONFIG = fold_config()


def make_fold(V: Array, fold_config: FoldConfig, timestamps: Sequence[int] | None = None) -> Fold:
    """The fold after all messages in one batch, at the offsets from 0 on."""
    if timestamps is None:
        timestamps = [-1] * len(V)
    position = len(V) or -1
    fold, _ = learn(Fold.empty(fold_config.learning), V, timestamps, position, fold_config)
    return fold


def learn(
    fold: Fold,
    V: Array,
    timestamps: Sequence[int],
    position: int,
    fold_config: FoldConfig,
    counts: Sequence[int] | None = None,
) -> tuple[Fold, list[Losses]]:
    """Take a batch of records with these timestamps, which ends at `position`.

    `counts` are the numbers of vectors of the records; None: one each.
    """
    n = len(timestamps)
    if counts is None:
        counts = [1] * n
    decoded = Decoded(V, indices=np.arange(n), rejects=[], counts=np.array(counts, np.int64))
    return fold.take(Batch(decoded, np.array(timestamps, np.int64), (), position), fold_config)


def make_checkpoint(
    fold: Fold, fold_config: FoldConfig, partition: int = 0, topic: str = "readings"
) -> files.Checkpoint:
    return files.Checkpoint(topic, "id-1", partition, fold, fold_config.as_dict())


def bits(fold: Fold, fold_config: FoldConfig) -> bytes:
    """The fold's checkpoint: two folds are equal if and only if these bytes are."""
    return files.encode(make_checkpoint(fold, fold_config))
