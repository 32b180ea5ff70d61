"""Merges the newest checkpoints of all partitions into a model and writes it as the next version.

A model is a function of the positions of its folds, and of the clock only if timestamps are ahead of it. The signs of
its axes follow the previous version, so that coordinates do not flip.
"""

from collections.abc import Callable, Sequence

from streampca.pca.axes import model_of
from streampca.pca.jackknife import jackknife
from streampca.pca.merge import merge
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.stream import compatibility
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import FoldConfig, FoldStats
from streampca.stream.model_file import PublishedModel

_FEWEST = 2  # messages that define a direction


class Publisher:
    """Writes models. Two workers may publish at once: the same positions give the same version."""

    def __init__(
        self, checkpoints: Checkpoints, models: Models, fold_config: FoldConfig, now: Callable[[], float]
    ) -> None:
        self._checkpoints, self._models, self._fold_config, self._now = checkpoints, models, fold_config, now

    def publish(
        self, just_saved: Sequence[Checkpoint] = (), stored: Checkpoints | None = None
    ) -> PublishedModel | None:
        """Write the model of the newest checkpoints; None if it exists already, or there are too few messages.

        `just_saved` are checkpoints in memory, which are not read from the store if they are the newest; `stored` is a
        snapshot of the checkpoints, by default a new one.
        """
        stored, models = stored or self._checkpoints.snapshot(), self._models.snapshot()
        saved = {checkpoint.partition: checkpoint for checkpoint in just_saved}
        folds = [found for p in stored.partitions() if (found := _newest(stored, p, saved.get(p)))]
        topic_id = _topic_id(folds)
        for checkpoint in folds:
            compatibility.refuse_other_settings(checkpoint, self._fold_config)
            compatibility.refuse_other_topic(checkpoint, topic_id)
        version = sum(checkpoint.fold.stats.learned for checkpoint in folds)
        newest = models.newest()
        if version < _FEWEST or (newest and version <= newest.version):
            return None
        model = self._merged(folds, newest)
        return model if models.save(model) else None

    def _merged(self, folds: list[Checkpoint], previous: PublishedModel | None) -> PublishedModel:
        learning_config = self._fold_config.learning
        elapsed = _elapsed([checkpoint.fold.event_time.now_ms for checkpoint in folds], int(1000 * self._now()))
        states = [checkpoint.fold.provisional(learning_config) for checkpoint in folds]
        decay = [self._fold_config.decay(e) for e in elapsed]
        state = merge(states, learning_config.columns, decay)
        error = jackknife(states, learning_config.components, learning_config.columns, decay)
        all_stats = [checkpoint.fold.stats for checkpoint in folds]
        first = [t.first_ms for t in all_stats if t.first_ms >= 0]
        return PublishedModel(
            version=sum(stats.learned for stats in all_stats),
            model=model_of(state, learning_config.components, previous.model.components if previous else None),
            topic=folds[0].topic,
            topic_id=_topic_id(folds),
            positions={checkpoint.partition: checkpoint.fold.position for checkpoint in folds},
            rejected=sum(sum(stats.rejected.values()) for stats in all_stats),
            **_losses(all_stats),
            first_timestamp_ms=min(first, default=-1),
            last_timestamp_ms=max(stats.last_ms for stats in all_stats),
            published_at=self._now(),
            settings=self._fold_config.as_dict(),
            subspace_error=error.subspace if error else None,
            axis_errors=error.axes.tolist() if error else None,
        )


def _newest(stored: Checkpoints, partition: int, just_saved: Checkpoint | None) -> Checkpoint | None:
    if just_saved and stored.offsets(partition)[-1:] == [just_saved.fold.position]:
        return just_saved
    return stored.newest(partition)


def _elapsed(times: Sequence[int], now_ms: int) -> list[int]:
    """Milliseconds from the time of each partition (-1: unknown) to the common one, the latest not in the future.

    A partition whose timestamps are ahead counts as current: it must not make the others count for nothing.
    """
    common = min(max(times), now_ms)
    return [max(common - time, 0) if time >= 0 else 0 for time in times]


def _losses(all_stats: list[FoldStats]) -> dict[str, float | None]:
    """The mean losses over all partitions, weighted by the messages that each has scored."""
    scored = sum(stats.scored for stats in all_stats)
    if not scored:
        return {"loss": None, "loss_ratio": None, "loss_ewma": None}

    def mean(name: str) -> float:
        return sum(stats.scored / scored * float(getattr(stats, name)) for stats in all_stats)

    norm, norm_ewma = mean("norm"), mean("norm_ewma")
    return {
        "loss": mean("loss"),
        "loss_ratio": mean("loss") / norm if norm else 0.0,
        "loss_ewma": mean("loss_ewma") / norm_ewma if norm_ewma else 0.0,
    }


def _topic_id(checkpoints: Sequence[Checkpoint]) -> str:
    """The topic's id; some checkpoints may have been written before the brokers gave it one."""
    return next((checkpoint.topic_id for checkpoint in checkpoints if checkpoint.topic_id), "")
