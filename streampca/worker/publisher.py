"""Merges the newest checkpoints of all partitions into a model and writes it as the next version.

A model is a function of the positions of its folds, and of the clock only if timestamps are ahead of it. The signs of
its axes follow the previous version, so that coordinates do not flip.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from streampca.pca.axes import model_of
from streampca.pca.jackknife import sampling_error
from streampca.pca.merge import Merger, pooled
from streampca.pca.state import State
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
        self._published: PublishedModel | None = None

    def publish(
        self, just_saved: Sequence[Checkpoint] = (), stored: Checkpoints | None = None
    ) -> PublishedModel | None:
        """Write the model of the newest checkpoints; None if it exists already, or there are too few messages.

        `just_saved` are checkpoints in memory, which are not read from the store if they are the newest; `stored` is a
        snapshot of the checkpoints, by default a new one.
        """
        stored, models = stored or self._checkpoints.snapshot(), self._models.snapshot()
        offsets = {p: found[-1] for p in stored.partitions() if (found := stored.offsets(p))}
        last = self._published
        if last and offsets == last.positions and last.version in models.versions():
            return None
        newest = models.newest()
        model = self._merged(_newest(stored, offsets, just_saved), newest)
        if model is None or (newest and model.version <= newest.version):
            return None
        written = models.save(model)
        self._published = model
        return model if written else None

    def _merged(self, checkpoints: Iterable[Checkpoint], previous: PublishedModel | None) -> PublishedModel | None:
        learning_config, parts = self._fold_config.learning, []
        timed = _TimedMerger(self._fold_config, int(1000 * self._now()))
        topic, topic_id = "", ""
        for checkpoint in checkpoints:
            compatibility.refuse_other_settings(checkpoint, self._fold_config)
            compatibility.refuse_other_topic(checkpoint, topic_id)
            topic, topic_id = checkpoint.topic, topic_id or checkpoint.topic_id
            timed.add(checkpoint.fold.provisional(learning_config), checkpoint.fold.event_time.now_ms)
            parts.append(_Part(checkpoint.partition, checkpoint.fold.position, checkpoint.fold.stats))
        version = sum(part.stats.learned for part in parts)
        if version < _FEWEST:
            return None
        groups = timed.merger.groups()
        state = pooled(groups, learning_config.columns, learning_config.dtype)
        error = sampling_error(groups, learning_config.components, learning_config.columns)
        all_stats = [part.stats for part in parts]
        first = [t.first_ms for t in all_stats if t.first_ms >= 0]
        return PublishedModel(
            version=version,
            model=model_of(state, learning_config.components, previous.model.components if previous else None),
            topic=topic,
            topic_id=topic_id,
            positions={part.partition: part.position for part in parts},
            rejected=sum(sum(stats.rejected.values()) for stats in all_stats),
            **_losses(all_stats),
            first_timestamp_ms=min(first, default=-1),
            last_timestamp_ms=max(stats.last_ms for stats in all_stats),
            published_at=self._now(),
            settings=self._fold_config.as_dict(),
            subspace_error=error.subspace if error else None,
            axis_errors=error.axes.tolist() if error else None,
        )


class _Part(NamedTuple):
    """What a model says about one partition."""

    partition: int
    position: int
    stats: FoldStats


class _TimedMerger:
    """Merges states, each decayed to the latest of their times that is not in the future.

    A partition whose timestamps are ahead counts as current: it must not make the others count for nothing.
    """

    def __init__(self, fold_config: FoldConfig, now_ms: int) -> None:
        self.merger = Merger(fold_config.learning.columns)
        self._decay, self._now_ms, self._latest_ms = fold_config.decay, now_ms, -1

    def add(self, state: State, time_ms: int) -> None:
        """Add a state of this time (-1: unknown, counts as current)."""
        time_ms = min(time_ms, self._now_ms)
        if time_ms > self._latest_ms >= 0:
            self.merger.fade(self._decay(time_ms - self._latest_ms))
        self._latest_ms = max(time_ms, self._latest_ms)
        self.merger.add(state, self._decay(self._latest_ms - time_ms) if time_ms >= 0 else 1.0)


def _newest(stored: Checkpoints, offsets: Mapping[int, int], just_saved: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    """The newest checkpoints, by partition; at most one that is not in memory already is held at a time."""
    saved = {(checkpoint.partition, checkpoint.fold.position): checkpoint for checkpoint in just_saved}
    for partition, offset in offsets.items():
        if found := saved.get((partition, offset)) or stored.newest(partition, trusted=True):
            yield found


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
