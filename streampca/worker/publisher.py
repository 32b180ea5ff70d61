"""Merges the newest checkpoints of all partitions into a model and writes it as the next version.

A model is a function of the positions of its folds, and of the clock only if timestamps are ahead of it. The signs of
its axes follow the previous version, so that coordinates do not flip; so do the past scores of its p-values.

Many partitions are merged by ranges (ranges.py): other workers write subtotals, and the publisher merges these. A
model may then be behind the newest checkpoints of a range, by one publication.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from streampca.errors import StreampcaError
from streampca.pca.arrays import F64
from streampca.pca.axes import model_of
from streampca.pca.jackknife import sampling_error
from streampca.pca.merge import Merger, pooled
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import FoldConfig, FoldStats
from streampca.stream.model_file import PublishedModel
from streampca.stream.subtotal import Subtotal
from streampca.worker.merging import Total, subtotal_of
from streampca.worker.parts import PartCache, Parts
from streampca.worker.past_scores import PastScores

_FEWEST = 2  # messages that define a direction


class Publication(NamedTuple):
    """A version that was written."""

    model: PublishedModel
    p_values: F64 | None  # of the messages newly scored for it; None if no version before had past scores


class Publisher:
    """Writes models and subtotals. Two workers may do so at once: the same positions give the same version."""

    def __init__(
        self, checkpoints: Checkpoints, models: Models, fold_config: FoldConfig, now: Callable[[], float]
    ) -> None:
        self._checkpoints, self._models, self._fold_config, self._now = checkpoints, models, fold_config, now
        self._cache = PartCache()
        self._listed: Models | None = None  # a snapshot, valid while no other worker publishes
        self._newest: PublishedModel | None = None  # in the store, as far as this worker knows

    def forget(self) -> None:
        """List the models and read all parts again: another worker may have published."""
        self._listed, self._newest = None, None
        self._cache.clear()

    def parts(self, in_memory: Iterable[Checkpoint] = (), stored: Checkpoints | None = None) -> Parts:
        """What can be merged now. `in_memory` are checkpoints that are not read if they are the newest.

        `stored` is a snapshot of the checkpoints, by default a new one.
        """
        return Parts(stored or self._checkpoints.snapshot(), in_memory, self._cache, self._fold_config)

    def merge_ranges(self, numbers: Collection[int], parts: Parts | None = None) -> None:
        """Write the subtotals of these ranges at their newest checkpoints."""
        parts = parts or self.parts()
        for number in numbers:
            if number in parts.by_range and not parts.is_merged(number):
                parts.save(number, self._subtotal(parts, parts.by_range[number]))

    def publish(self, parts: Parts | None = None, *, complete: bool = True) -> Publication | None:
        """Write the model of the newest checkpoints; None if it exists already, or there are too few messages.

        Not `complete`: it may be behind the newest checkpoints.
        """
        try:
            return self._publish(parts or self.parts(), complete=complete)
        except StreampcaError:
            self.forget()  # whether it was written is not known
            raise

    def _publish(self, parts: Parts, *, complete: bool) -> Publication | None:
        self._listed = models = self._listed or self._models.snapshot()
        if self._newest is None or models.versions()[-1:] != [self._newest.version]:
            self._newest = models.newest()
        newest, published = self._newest, self._newest.positions if self._newest else {}
        if newest and parts.offsets == published:
            return None
        merged = self._merged(self._chosen(parts, None if complete else published), newest)
        if merged is None or (newest and merged.model.version <= newest.version):
            return None
        if not models.save(merged.model):
            self.forget()  # another worker has written it
            return None
        self._newest = merged.model
        return merged

    def _chosen(self, parts: Parts, published: Mapping[int, int] | None) -> Iterator[Subtotal]:
        """What is merged into a model. With the positions that are `published`, it suffices to be ahead of them."""
        if not parts.by_range:
            yield from parts.folds(parts.offsets)
        for number, of_range in parts.by_range.items():
            wanted = sum(of_range.values())
            lowest = wanted if published is None else min(wanted, 1 + sum(published.get(p, 0) for p in of_range))
            yield parts.subtotal(number, lowest) or self._subtotal(parts, of_range)

    def _subtotal(self, parts: Parts, offsets: Mapping[int, int]) -> Subtotal:
        return subtotal_of(parts.folds(offsets), self._fold_config, self._now_ms())

    def _merged(self, chosen: Iterable[Subtotal], previous: PublishedModel | None) -> Publication | None:
        config = self._fold_config.learning
        merger = Merger(config.columns)
        total, past_scores = Total(merger, self._fold_config, self._now_ms()), PastScores(previous)
        for part in chosen:
            total.add(part)
            past_scores.add(part)
        stats = total.stats
        if stats.learned < _FEWEST:
            return None
        groups = merger.groups()
        state = pooled(groups, config.columns, config.components, config.dtype)
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
        return Publication(*past_scores.calibrated(published))

    def _now_ms(self) -> int:
        return int(1000 * self._now())


def _losses(stats: FoldStats) -> dict[str, Any]:
    """The mean losses over all partitions."""
    if not stats.scored:
        return {"loss": None, "loss_ratio": None, "loss_ewma": None}
    return {
        "loss": stats.loss,
        "loss_ratio": stats.loss / stats.norm if stats.norm else 0.0,
        "loss_ewma": stats.loss_ewma / stats.norm_ewma if stats.norm_ewma else 0.0,
    }
