"""Merges the newest checkpoints of all partitions into a model and writes it as the next version.

A model is a function of the positions of its folds, and of the clock only if timestamps are ahead of it. The signs of
its axes follow the previous version, so that coordinates do not flip; so do the past scores of its p-values.

Many partitions are merged by ranges (ranges.py): other workers write subtotals, and the publisher merges these. A
model may then be behind the newest checkpoints of a range, by one publication.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from streampca.errors import DamagedFileError
from streampca.pca.axes import model_of
from streampca.pca.jackknife import sampling_error
from streampca.pca.merge import Merger, pooled
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.stream import compatibility
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import FoldConfig, FoldStats
from streampca.stream.model_file import PublishedModel
from streampca.stream.subtotal import Subtotal
from streampca.worker import ranges
from streampca.worker.merging import Total, subtotal_of
from streampca.worker.past_scores import PastScores

_FEWEST = 2  # messages that define a direction


class Publisher:
    """Writes models and subtotals. Two workers may do so at once: the same positions give the same version."""

    def __init__(
        self, checkpoints: Checkpoints, models: Models, fold_config: FoldConfig, now: Callable[[], float]
    ) -> None:
        self._checkpoints, self._models, self._fold_config, self._now = checkpoints, models, fold_config, now
        self._published: PublishedModel | None = None

    def merge_ranges(
        self, numbers: Collection[int], just_saved: Sequence[Checkpoint] = (), stored: Checkpoints | None = None
    ) -> None:
        """Write the subtotals of these ranges at their newest checkpoints; for the arguments, see `publish`."""
        stored = stored or self._checkpoints.snapshot()
        offsets_of = ranges.split(_offsets(stored))
        for number in numbers:
            offsets = offsets_of.get(number, {})
            if offsets and sum(offsets.values()) not in stored.subtotals.progress(number):
                stored.subtotals.save(number, self._subtotal(offsets, just_saved, stored))

    def publish(
        self, just_saved: Sequence[Checkpoint] = (), stored: Checkpoints | None = None, *, complete: bool = True
    ) -> PublishedModel | None:
        """Write the model of the newest checkpoints; None if it exists already, or there are too few messages.

        `just_saved` are checkpoints in memory, which are not read from the store if they are the newest; `stored` is a
        snapshot of the checkpoints, by default a new one. Not `complete`: it may be behind the newest checkpoints.
        """
        stored, models = stored or self._checkpoints.snapshot(), self._models.snapshot()
        offsets, last = _offsets(stored), self._published
        if last and offsets == last.positions and last.version in models.versions():
            return None
        newest = models.newest()
        published = newest.positions if newest else {}
        model = self._merged(self._parts(offsets, just_saved, stored, None if complete else published), newest)
        if model is None or (newest and model.version <= newest.version):
            return None
        written = models.save(model)
        self._published = model
        return model if written else None

    def _parts(
        self,
        offsets: Mapping[int, int],
        just_saved: Sequence[Checkpoint],
        stored: Checkpoints,
        published: Mapping[int, int] | None,
    ) -> Iterator[Subtotal]:
        """What is merged into a model. With the positions that are `published`, it suffices to be ahead of them."""
        by_range = ranges.split(offsets)
        if not by_range:
            yield from self._folds(offsets, just_saved, stored)
        for number, of_range in by_range.items():
            wanted = sum(of_range.values())
            lowest = wanted if published is None else min(wanted, 1 + sum(published.get(p, 0) for p in of_range))
            yield self._stored(number, lowest, wanted, stored) or self._subtotal(of_range, just_saved, stored)

    def _stored(self, number: int, lowest: int, highest: int, stored: Checkpoints) -> Subtotal | None:
        """The newest subtotal of a range whose progress is between these."""
        for progress in reversed(stored.subtotals.progress(number)):
            if lowest <= progress <= highest:
                try:
                    found = stored.subtotals.load(number, progress)
                except (FileNotFoundError, DamagedFileError):  # pruned since it was listed, or to be merged again
                    continue
                return found if found.settings == self._fold_config.as_dict() else None
        return None

    def _subtotal(self, offsets: Mapping[int, int], just_saved: Sequence[Checkpoint], stored: Checkpoints) -> Subtotal:
        return subtotal_of(self._folds(offsets, just_saved, stored), self._fold_config, self._now_ms())

    def _folds(
        self, offsets: Mapping[int, int], just_saved: Sequence[Checkpoint], stored: Checkpoints
    ) -> Iterator[Subtotal]:
        for checkpoint in _newest(stored, offsets, just_saved):
            yield Subtotal.of(compatibility.with_settings(checkpoint, self._fold_config), self._fold_config.learning)

    def _merged(self, parts: Iterable[Subtotal], previous: PublishedModel | None) -> PublishedModel | None:
        config = self._fold_config.learning
        merger = Merger(config.columns)
        total, past_scores = Total(merger, self._fold_config, self._now_ms()), PastScores(previous)
        for part in parts:
            total.add(part)
            past_scores.add(part)
        stats = total.stats
        if stats.learned < _FEWEST:
            return None
        groups = merger.groups()
        state = pooled(groups, config.columns, config.dtype)
        error = sampling_error(groups, config.components, config.columns)
        published = PublishedModel(
            version=stats.learned,
            model=model_of(state, config.components, previous.model.components if previous else None),
            topic=total.topic,
            topic_id=total.topic_id,
            positions=total.positions,
            rejected=sum(stats.rejected.values()),
            **_losses(stats),
            first_timestamp_ms=stats.first_ms,
            last_timestamp_ms=stats.last_ms,
            published_at=self._now(),
            settings=self._fold_config.as_dict(),
            subspace_error=error.subspace if error else None,
            axis_errors=error.axes.tolist() if error else None,
        )
        return past_scores.calibrated(published)

    def _now_ms(self) -> int:
        return int(1000 * self._now())


def _offsets(stored: Checkpoints) -> dict[int, int]:
    """The newest offset of each partition."""
    return {p: found[-1] for p in stored.partitions() if (found := stored.offsets(p))}


def _newest(stored: Checkpoints, offsets: Mapping[int, int], just_saved: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    """The newest checkpoints, by partition; at most one that is not in memory already is held at a time."""
    saved = {(checkpoint.partition, checkpoint.fold.position): checkpoint for checkpoint in just_saved}
    for partition, offset in offsets.items():
        if found := saved.get((partition, offset)) or stored.newest(partition, trusted=True):
            yield found


def _losses(stats: FoldStats) -> dict[str, Any]:
    """The mean losses over all partitions."""
    if not stats.scored:
        return {"loss": None, "loss_ratio": None, "loss_ewma": None}
    return {
        "loss": stats.loss,
        "loss_ratio": stats.loss / stats.norm if stats.norm else 0.0,
        "loss_ewma": stats.loss_ewma / stats.norm_ewma if stats.norm_ewma else 0.0,
    }
