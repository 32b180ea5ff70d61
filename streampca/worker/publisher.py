"""Merges the newest checkpoints of all partitions into models, and publishes them.

A model depends only on the positions of its folds; if timestamps are ahead of the clock, also on the clock. The owner
of the lowest partition publishes. The longer publishing takes, the less often it publishes.

Each request to a bucket costs money. So a worker keeps its own checkpoints in memory, and caches those of the others.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streampca.consumer_group.events import Listener, MemberEvent, ModelPublished
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger
from streampca.fold.model_file import PublishedModel
from streampca.fold.past_scores import PastScoresBuilder
from streampca.pca.arrays import F64, Array
from streampca.pca.axes import model_of
from streampca.pca.model import Model
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models

_MIN_MESSAGES = 2  # one vector has no direction from the mean
CACHED_BYTES = 64 * 2**20  # without a limit, memory would grow with the number of partitions
_SHARE_OF_TIME = 0.1  # of publishing at most: it competes with learning, and delays checkpoints


class PublishSchedule(Listener):
    """Decides who publishes and when; events tell it how long publications took."""

    def __init__(self) -> None:
        self._began_at = -math.inf  # seconds
        self._last_took_s = (0.0, 0.0)  # of the last two publications, the newer one last

    def notify(self, event: MemberEvent) -> None:
        if isinstance(event, ModelPublished):
            _, newer = self._last_took_s
            self._last_took_s = (newer, event.seconds)

    def begin_if_due(self, owned: Collection[int], of_topic: Collection[int], now: float) -> bool:
        """Begin a publication if it is due, and return whether it is.

        `owned` are the partitions of this worker, `of_topic` all. If `now` is infinite, it is due for any owner.
        """
        is_publisher = min(of_topic, default=0) in owned
        took_s = min(self._last_took_s)  # the shorter, so that a store that hangs once does not delay the next one
        is_due = is_publisher and took_s <= _SHARE_OF_TIME * (now - self._began_at)
        if is_due:
            self._began_at = now
        return is_due


class NewestCheckpoints:
    """Reads the newest checkpoints of all partitions, and caches as many of them as fit in memory."""

    def __init__(self, fold_config: FoldConfig) -> None:
        self._fold_config = fold_config
        self._cache: dict[int, Checkpoint] = {}

    def read(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Iterable[Checkpoint]
    ) -> Iterator[Checkpoint]:
        """Yield the checkpoint of each partition at its offset; checkpoints `in_memory` are not read.

        They come one at a time, so that memory holds only one that is neither cached nor `in_memory`.
        """
        ours = {checkpoint.partition: checkpoint for checkpoint in in_memory}
        for partition, offset in offsets.items():
            candidates = (ours.get(partition), self._cache.get(partition))
            known = [checkpoint for checkpoint in candidates if checkpoint and checkpoint.fold.position == offset]
            if known:
                yield known[0].usable_by(self._fold_config)
                continue
            newest = stored.newest(partition)  # an older one, if the newest is damaged
            if newest is not None:
                usable = newest.usable_by(self._fold_config)
                self._put(usable)
                yield usable

    def _put(self, checkpoint: Checkpoint) -> None:
        """Cache a checkpoint in a smaller form: its state has learned its pending vectors, which are dropped.

        It is merged like the checkpoint itself. Its pending vectors are scored only once, when it is read.
        """
        fold = checkpoint.fold
        state = fold.provisional(self._fold_config.learning)
        cached = replace(checkpoint, fold=replace(fold, state=state).without_pending())
        self._cache.pop(checkpoint.partition, None)
        nbytes = sum(map(_nbytes, self._cache.values())) + _nbytes(cached)
        if nbytes <= CACHED_BYTES:
            self._cache[checkpoint.partition] = cached


class Publication(NamedTuple):
    """A model that was published."""

    model: PublishedModel
    p_values: F64 | None  # of the messages newly scored for it; None if no version before had past scores


class Publisher:
    """Writes models. Two workers may write at the same time: the same positions give the same version."""

    def __init__(self, models: Models, fold_config: FoldConfig, now: Callable[[], float]) -> None:
        self._models = models
        self._fold_config = fold_config
        self._now = now
        self._inputs = NewestCheckpoints(fold_config)
        self._newest: PublishedModel | None = None  # in the store, as far as this worker knows

    def publish(self, stored: Checkpoints, in_memory: Iterable[Checkpoint] = ()) -> Publication | None:
        """Write the model of the newest checkpoints, and return it.

        Returns None if it exists already, or if there are too few messages. Checkpoints `in_memory` that are the newest
        are not read from the store.
        """
        stored_offsets = {partition: stored.offsets(partition) for partition in stored.partitions()}
        offsets = {partition: kept[-1] for partition, kept in stored_offsets.items() if kept}
        if self._newest and offsets == self._newest.positions:
            return None
        models = self._models.snapshot()
        if self._newest is None or models.versions()[-1:] != [self._newest.version]:
            self._newest = models.newest()
        if self._newest and offsets == self._newest.positions:
            return None
        # The model that scores pending vectors must not have learned them.
        scored_by = self._newest.model if self._newest else self._merge_without_pending(stored, offsets, in_memory)
        publication = self._merge(self._inputs.read(stored, offsets, in_memory), scored_by)
        if publication is None or (self._newest and publication.model.version <= self._newest.version):
            return None
        if not models.save(publication.model):
            return None  # another worker has written it
        self._newest = publication.model
        return publication

    def _merge_without_pending(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Iterable[Checkpoint]
    ) -> Model | None:
        """Return the model of these checkpoints without their pending vectors."""
        folds = self._merged_folds()
        components = self._fold_config.learning.components
        for checkpoint in NewestCheckpoints(self._fold_config).read(stored, offsets, in_memory):
            folds.add_partition(replace(checkpoint, fold=checkpoint.fold.without_pending()))
        state = folds.state(components)
        return model_of(state, components) if state else None

    def _merge(self, checkpoints: Iterable[Checkpoint], scored_by: Model | None) -> Publication | None:
        """Return the next version, with the p-values of its pending vectors; None if there are too few messages."""
        folds = self._merged_folds()
        previous = self._newest
        past = PastScoresBuilder(self._fold_config.learning.components)
        if previous and previous.past_scores:
            past.entered = previous.past_scores
        for checkpoint in checkpoints:
            folds.add_partition(checkpoint)
            published_up_to = previous.positions.get(checkpoint.partition, 0) if previous else 0
            V = _pending_after(checkpoint.fold, published_up_to)
            if scored_by and len(V) and V.shape[1] == scored_by.dimensions:
                past.score(scored_by, V)
        merged = folds.merged()
        if merged is None or merged.stats.learned < _MIN_MESSAGES:
            return None
        p_values = past.p_values()
        learned_before = previous.version if previous else 0
        past.enter(merged.stats.learned - learned_before, merged.state.weight)
        return Publication(merged.published(self._fold_config, past.entered, self._now(), previous), p_values)

    def _merged_folds(self) -> FoldMerger:
        return FoldMerger(self._fold_config, int(1000 * self._now()))


def _pending_after(fold: Fold, position: int) -> Array:
    """Return the pending vectors (n, d) that may be at or after a position: at most one for each offset from there."""
    n = min(fold.position - max(position, 0), len(fold.pending))
    return fold.pending[len(fold.pending) - n :].astype(np.float64)


def _nbytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the arrays in the state of a checkpoint."""
    arrays = (value for value in vars(checkpoint.fold.state).values() if isinstance(value, np.ndarray))
    return sum(array.nbytes for array in arrays)
