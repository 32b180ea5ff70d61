"""Merges the newest checkpoints of all partitions into a model and writes it as the next version.

A model is a function of the positions of its folds, and of the clock only if timestamps are ahead of it. The signs of
its axes follow the previous version, so that coordinates do not flip; so do the past scores of its p-values.

The owner of the lowest partition publishes. Where this takes long, it publishes less often.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import FoldConfig, FoldStats
from streampca.fold.model_file import PublishedModel
from streampca.pca.arrays import F64
from streampca.pca.axes import model_of
from streampca.pca.jackknife import GUARD, sampling_error
from streampca.pca.merge import pooled
from streampca.pca.model import Model
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.worker.merge_inputs import MergeInputs
from streampca.worker.merging import Total
from streampca.worker.past_scores import PastScores

_MIN_MESSAGES = 2  # they define a direction
_SHARE = 0.1  # of the time that publishing may take: it competes with learning, and delays checkpoints


def publishes(partitions: Collection[int], of_topic: Collection[int]) -> bool:
    """Whether the owner of these partitions publishes the model of all."""
    return bool(partitions) and min(of_topic, default=0) in partitions


def is_due(since_s: float, took_s: Collection[float]) -> bool:
    """Whether to publish again, this long after the start of the last publication.

    `took_s` are the durations of the last ones; the shortest counts, so that a store that hangs once changes nothing.
    """
    return min(took_s, default=0.0) <= _SHARE * since_s


class Publication(NamedTuple):
    """A version that was written."""

    model: PublishedModel
    p_values: F64 | None  # of the messages newly scored for it; None if no version before had past scores


class Publisher:
    """Writes models. Two workers may do so at once: the same positions give the same version."""

    def __init__(
        self, checkpoints: Checkpoints, models: Models, fold_config: FoldConfig, now: Callable[[], float]
    ) -> None:
        self._checkpoints, self._models, self._fold_config, self._now = checkpoints, models, fold_config, now
        self._inputs = MergeInputs(fold_config)
        self._newest: PublishedModel | None = None  # in the store, as far as this worker knows

    def publish(self, in_memory: Iterable[Checkpoint] = (), stored: Checkpoints | None = None) -> Publication | None:
        """Write the model of the newest checkpoints; None if it exists already, or there are too few messages.

        `in_memory` are checkpoints that are not read if they are the newest; `stored` is a snapshot of the checkpoints,
        by default a new one.
        """
        stored = stored or self._checkpoints.snapshot()
        offsets = {p: found[-1] for p in stored.partitions() if (found := stored.offsets(p))}
        if self._newest and offsets == self._newest.positions:
            return None
        models = self._models.snapshot()
        if self._newest is None or models.versions()[-1:] != [self._newest.version]:
            self._newest = models.newest()
        newest = self._newest
        if newest and offsets == newest.positions:
            return None
        scored_by = newest.model if newest else self._without_pending(stored, offsets, in_memory)
        checkpoints = self._inputs.read(stored, offsets, in_memory)
        merged = self._merged(checkpoints, newest, PastScores(scored_by, newest))
        if merged is None or (newest and merged.model.version <= newest.version):
            return None
        if not models.save(merged.model):
            return None  # another worker has written it
        self._newest = merged.model
        return merged

    def _without_pending(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Iterable[Checkpoint]
    ) -> Model | None:
        """The model of these checkpoints without their pending messages, by which those are scored."""
        config, total = self._fold_config.learning, Total(self._fold_config, int(1000 * self._now()))
        for checkpoint in MergeInputs(self._fold_config).read(stored, offsets, in_memory):
            total.add(replace(checkpoint, fold=checkpoint.fold.without_pending()))
        groups = total.groups()
        return (
            model_of(pooled(groups, config.columns, config.components, config.dtype), config.components)
            if groups
            else None
        )

    def _merged(
        self, checkpoints: Iterable[Checkpoint], previous: PublishedModel | None, past_scores: PastScores
    ) -> Publication | None:
        config = self._fold_config.learning
        total = Total(self._fold_config, int(1000 * self._now()))
        for checkpoint in checkpoints:
            total.add(checkpoint)
            past_scores.add(checkpoint)
        stats = total.stats
        if stats.learned < _MIN_MESSAGES:
            return None
        groups = total.groups()
        state = pooled(groups, config.columns, config.components + GUARD, config.dtype)
        error = sampling_error(groups, state, config.components)
        published = PublishedModel(
            version=stats.learned,
            model=model_of(state, config.components, previous.model.components if previous else None),
            topic=total.topic,
            topic_id=total.topic_id,
            positions=total.positions,
            rejected=sum(stats.rejected.values()),
            **_losses(stats),
            partition_losses=total.losses,
            first_timestamp_ms=stats.first_ms,
            last_timestamp_ms=stats.last_ms,
            published_at=self._now(),
            settings=self._fold_config.as_dict(),
            subspace_error=error.subspace if error else None,
            axis_errors=error.axes.tolist() if error else None,
        )
        return Publication(*past_scores.calibrated(published))


def _losses(stats: FoldStats) -> dict[str, Any]:
    """The mean losses over all partitions."""
    if not stats.with_loss:
        return {"loss": None, "loss_ratio": None, "loss_ewma": None}
    return {
        "loss": stats.loss,
        "loss_ratio": stats.loss / stats.norm if stats.norm else 0.0,
        "loss_ewma": stats.recent_loss or 0.0,
    }
