"""Merges the newest checkpoints of all partitions into models, and publishes them.

A model is a function of the positions of its folds, and of the clock only if timestamps are ahead of it. The owner of
the lowest partition publishes. Where this takes long, it publishes less often.

Each request to a bucket costs money: a worker has its own checkpoints in memory, and caches what it reads of others.
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

_MIN_MESSAGES = 2  # they define a direction
CACHED_BYTES = 64 * 2**20  # what does not fit is read again, so that memory does not grow with the number of partitions
_SHARE = 0.1  # of the time that publishing may take: it competes with learning, and delays checkpoints


class PublishSchedule(Listener):
    """Decides who publishes and when; events tell it how long publications took."""

    def __init__(self) -> None:
        self._began_at = -math.inf  # seconds
        # Of the last two publications; the shorter counts, so that a store that hangs once changes nothing.
        self._took_s = (0.0, 0.0)

    def notify(self, event: MemberEvent) -> None:
        if isinstance(event, ModelPublished):
            self._took_s = self._took_s[1], event.seconds

    def begin_if_due(self, owned: Collection[int], of_topic: Collection[int], now: float) -> bool:
        """Begin a publication if it is due; returns whether it is. An infinite `now` is late enough for any owner."""
        is_owner = min(of_topic, default=0) in owned
        is_due = is_owner and min(self._took_s) <= _SHARE * (now - self._began_at)
        if is_due:
            self._began_at = now
        return is_due


class NewestCheckpoints:
    """Reads the newest checkpoints of all partitions, and caches what fits."""

    def __init__(self, fold_config: FoldConfig) -> None:
        self._fold_config = fold_config
        self._cache: dict[int, Checkpoint] = {}

    def read(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Iterable[Checkpoint]
    ) -> Iterator[Checkpoint]:
        """Yield the checkpoint of each partition at its offset; what is `in_memory` need not be read.

        Memory holds at most one checkpoint beyond the cache and `in_memory`.
        """
        ours = {checkpoint.partition: checkpoint for checkpoint in in_memory}
        for partition, offset in offsets.items():
            candidates = (ours.get(partition), self._cache.get(partition))
            known = [checkpoint for checkpoint in candidates if checkpoint and checkpoint.fold.position == offset]
            if known:
                yield known[0].usable_by(self._fold_config)
                continue
            read = stored.newest(partition)  # an older one, if the newest is damaged
            if read is not None:
                read = read.usable_by(self._fold_config)
                learned = replace(read.fold, state=read.fold.provisional(self._fold_config.learning)).without_pending()
                self._put(replace(read, fold=learned))  # as it is merged; what was pending need not be scored again
                yield read

    def _put(self, checkpoint: Checkpoint) -> None:
        self._cache.pop(checkpoint.partition, None)
        if sum(map(_nbytes, self._cache.values())) + _nbytes(checkpoint) <= CACHED_BYTES:
            self._cache[checkpoint.partition] = checkpoint


class Publication(NamedTuple):
    """A version that was written."""

    model: PublishedModel
    p_values: F64 | None  # of the messages newly scored for it; None if no version before had past scores


class Publisher:
    """Writes models. Two workers may do so at once: the same positions give the same version."""

    def __init__(self, models: Models, fold_config: FoldConfig, now: Callable[[], float]) -> None:
        self._models, self._fold_config, self._now = models, fold_config, now
        self._inputs = NewestCheckpoints(fold_config)
        self._newest: PublishedModel | None = None  # in the store, as far as this worker knows

    def publish(self, stored: Checkpoints, in_memory: Iterable[Checkpoint] = ()) -> Publication | None:
        """Write the model of the newest checkpoints; None if it exists already, or there are too few messages.

        `in_memory` are checkpoints that are not read if they are the newest.
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
        scored_by = self._newest.model if self._newest else self._without_pending(stored, offsets, in_memory)
        publication = self._merge(self._inputs.read(stored, offsets, in_memory), scored_by)
        if publication is None or (self._newest and publication.model.version <= self._newest.version):
            return None
        if not models.save(publication.model):
            return None  # another worker has written it
        self._newest = publication.model
        return publication

    def _without_pending(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Iterable[Checkpoint]
    ) -> Model | None:
        """The model of these checkpoints without their pending messages, to score the pending ones."""
        folds = self._merged_folds()
        components = self._fold_config.learning.components
        for checkpoint in NewestCheckpoints(self._fold_config).read(stored, offsets, in_memory):
            folds.add_partition(replace(checkpoint, fold=checkpoint.fold.without_pending()))
        state = folds.state(components)
        return model_of(state, components) if state else None

    def _merge(self, checkpoints: Iterable[Checkpoint], scored_by: Model | None) -> Publication | None:
        """The next version; its pending messages are scored by a model that has not learned them."""
        folds = self._merged_folds()
        previous = self._newest
        past = PastScoresBuilder(self._fold_config.learning.components)
        if previous and previous.past_scores:
            past.entered = previous.past_scores
        for checkpoint in checkpoints:
            folds.add_partition(checkpoint)
            V = _arrived(checkpoint.fold, previous.positions.get(checkpoint.partition, 0) if previous else 0)
            if scored_by and len(V) and V.shape[1] == scored_by.dimensions:
                past.score(scored_by, V)
        merged = folds.merged()
        if merged is None or merged.stats.learned < _MIN_MESSAGES:
            return None
        p_values = past.p_values()
        past.enter(merged.stats.learned - (previous.version if previous else 0), merged.state.weight)
        return Publication(merged.published(self._fold_config, past.entered, self._now(), previous), p_values)

    def _merged_folds(self) -> FoldMerger:
        return FoldMerger(self._fold_config, int(1000 * self._now()))


def _arrived(fold: Fold, position: int) -> Array:
    """The pending messages (n, d) that may have arrived after a position."""
    n = min(fold.position - max(position, 0), len(fold.pending))
    return fold.pending[len(fold.pending) - n :].astype(np.float64)


def _nbytes(checkpoint: Checkpoint) -> int:
    """Bytes of the arrays of a checkpoint's state."""
    arrays = (value for value in vars(checkpoint.fold.state).values() if isinstance(value, np.ndarray))
    return sum(array.nbytes for array in arrays)
