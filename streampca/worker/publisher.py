"""Merges the newest checkpoints of all partitions into models, and publishes them.

A model depends only on the positions of its folds; if timestamps are ahead of the clock, also on the clock. The owner
of the lowest partition publishes. The longer publishing takes, the less often it publishes.

Each request to a bucket costs money. So a worker keeps its own checkpoints in memory, and caches the checkpoints of
other workers.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streampca.errors import PartitionsMissingError, StoreBusyError, StoreError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger
from streampca.fold.model_file import PublishedModel
from streampca.fold.past_scores import PastScoresBuilder
from streampca.pca.arrays import F64, Array
from streampca.pca.axes import make_model
from streampca.pca.model import Model
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.worker.missing import find_missing

_MIN_MESSAGES = 2  # one vector has no direction from the mean
CACHED_BYTES = 64 * 2**20  # without a limit, memory would grow with the number of partitions
_MAX_SHARE_OF_TIME = 0.1  # of publishing, which competes with learning, and delays checkpoints


class PublishSchedule:
    """Decides who publishes, and when."""

    def __init__(self) -> None:
        self._began_at = -math.inf  # when the last publication began, in seconds
        self._last_took_s = 0.0  # the last publication
        self._second_last_took_s = 0.0

    def begin_if_due(self, owned: Collection[int], all_partitions: Collection[int], now: float) -> bool:
        """Begin a publication if this worker must publish now, and return whether it must.

        `owned` are the partitions of this worker, and `all_partitions` those of the topic. The owner of the topic's
        lowest partition publishes. If publishing takes t seconds, the next publication is due 10 t after the last one
        began, so at most a tenth of the time is spent on it. If `now` is infinite, a publication is always due.
        """
        is_publisher = min(all_partitions, default=0) in owned
        # The shorter of two times: if the store hangs during one publication, the next one is not delayed.
        took_s = min(self._last_took_s, self._second_last_took_s)
        is_due = took_s <= _MAX_SHARE_OF_TIME * (now - self._began_at)
        if is_publisher and is_due:
            self._began_at = now
        return is_publisher and is_due

    def end(self, took_s: float) -> None:
        """Note how long the publication took that has ended."""
        self._second_last_took_s = self._last_took_s
        self._last_took_s = took_s


class NewestCheckpoints:
    """Reads the newest checkpoints of all partitions, and caches as many of them as fit in memory."""

    def __init__(self, fold_config: FoldConfig) -> None:
        self._fold_config = fold_config
        self._cache: dict[int, Checkpoint] = {}

    def read(
        self,
        stored: Checkpoints,
        offsets: Mapping[int, int],
        in_memory: Sequence[Checkpoint],
        unreadable: dict[int, str],
    ) -> Iterator[Checkpoint]:
        """Yield the newest checkpoint of each partition. `offsets` has the offset of this checkpoint, by partition.

        A checkpoint at its offset that is cached or `in_memory` is not read from the store. All further checkpoints are
        read side by side. If a checkpoint cannot be read, it is left out, and the cause is added to `unreadable`,
        by partition. Raises `StoreBusyError` if the store does not answer.
        """
        known = self._find_known(offsets, in_memory)
        sizes = stored.sizes({partition: at for partition, at in offsets.items() if partition not in known})
        # The answers come in the order of `offsets`, one for each partition that is not known. If a newest checkpoint
        # is damaged, the answer is an older one.
        answers = stored.for_each(sizes, stored.newest).take_in_order()
        for partition in offsets:
            # `adapt_to` raises if other settings were learned. If nothing was learned, it takes the settings of this
            # worker.
            if partition in known:
                yield known[partition].adapt_to(self._fold_config)
                continue
            try:
                newest = next(answers).result()
            except StoreBusyError:
                raise
            except StoreError as error:
                unreadable[partition] = str(error)
                continue
            if newest is not None:
                usable = newest.adapt_to(self._fold_config)
                self._cache_if_it_fits(usable)
                yield usable

    def _find_known(self, offsets: Mapping[int, int], in_memory: Iterable[Checkpoint]) -> dict[int, Checkpoint]:
        """Return the checkpoints at these offsets that are in memory or cached, by partition."""
        known = {}
        for checkpoint in [*self._cache.values(), *in_memory]:  # if both have a partition, the later one replaces it
            if offsets.get(checkpoint.partition) == checkpoint.fold.position:
                known[checkpoint.partition] = checkpoint
        return known

    def _cache_if_it_fits(self, checkpoint: Checkpoint) -> None:
        """Learn the pending vectors of a checkpoint into its state, drop them, and cache the result if it fits.

        A merge of the cached checkpoint gives the same state, since a merge learns pending vectors anyway. Only scores
        need the vectors themselves, and they are scored only once: by the caller, when the checkpoint is read.
        """
        fold = checkpoint.fold
        # `provisional` returns the state after the pending vectors, and does not change the fold.
        state_after_pending = fold.provisional(self._fold_config.learning)
        cached = replace(checkpoint, fold=replace(fold, state=state_after_pending).without_pending())
        self._cache.pop(checkpoint.partition, None)
        nbytes = cached.fold.nbytes + sum(other.fold.nbytes for other in self._cache.values())
        if nbytes <= CACHED_BYTES:
            self._cache[checkpoint.partition] = cached


class Publication(NamedTuple):
    """A model that was published."""

    model: PublishedModel
    p_values: F64 | None  # of the messages newly scored for it; None if no version before had past scores
    event_time_ms: int  # the latest event time of its partitions; -1 if unknown


class Publisher:
    """Writes models. Two workers may write at the same time: the same positions give the same version."""

    def __init__(self, models: Models, fold_config: FoldConfig, now: Callable[[], float]) -> None:
        self.models = models
        self._fold_config = fold_config
        self._now = now  # seconds since 1970
        self._inputs = NewestCheckpoints(fold_config)
        self._newest: PublishedModel | None = None  # in the store, as far as this worker knows

    def publish(self, stored: Checkpoints, in_memory: Sequence[Checkpoint] = ()) -> Publication | None:
        """Write the model of the newest checkpoints, and return it.

        Returns None if it exists already, or if there are too few messages. Checkpoints `in_memory` that are the newest
        are not read from the store. Raises `PartitionsMissingError` if the model would contain less of a partition than
        the newest model does.
        """
        topic_id = in_memory[0].topic_id if in_memory else ""  # "": unknown
        offsets = stored.newest_offsets()
        # First compare with the model that this worker knows, which needs no request to the store.
        if self._is_newest(offsets, topic_id):
            return None
        models = self.models.snapshot()
        self._update_newest(models)
        if self._is_newest(offsets, topic_id):  # another worker has published this model
            return None
        if find_missing(self._newest, offsets, topic_id):
            # Perhaps another worker has saved and published since `stored` was listed: list again.
            stored = stored.snapshot()
            offsets = stored.newest_offsets()
            _refuse(find_missing(self._newest, offsets, topic_id))  # raises if any partition is missing
        publication = self._merge_newest(stored, offsets, in_memory, topic_id)
        if publication is None:  # too few messages
            return None
        # The version does not increase if nothing was learned, for example if all new records were rejected.
        if self._newest and publication.model.version <= self._newest.version:
            return None
        is_saved = models.save(publication.model)  # not if another worker has written this version
        if not is_saved:
            return None
        self._newest = publication.model
        return publication

    def _merge_newest(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Sequence[Checkpoint], topic_id: str
    ) -> Publication | None:
        """Return the merge of the newest checkpoints as the next version; None if there are too few messages.

        Raises `PartitionsMissingError` if the merge lacks a checkpoint that could not be read, or contains less of a
        partition than the newest model does.
        """
        # A model must not score vectors that it has learned. So the pending vectors are scored by the newest published
        # model. If its number of components has changed, so that scores are not comparable, they are scored by a merge
        # of these checkpoints without their pending vectors.
        earlier = self._find_model_with_valid_scores()
        scored_by = earlier.model if earlier else self._merge_without_pending(stored, offsets, in_memory)
        unreadable: dict[int, str] = {}
        # An iterator. While `_merge` takes checkpoints from it, it reads them, and adds to `unreadable` why it cannot.
        checkpoints = self._inputs.read(stored, offsets, in_memory, unreadable)
        publication = self._merge(checkpoints, scored_by)
        # If the newest checkpoint of a partition was damaged, an older one was read, which may hold too little.
        merged_positions = publication.model.positions if publication else {}
        _refuse(find_missing(self._newest, merged_positions, topic_id) | unreadable)
        return publication

    def _update_newest(self, models: Models) -> None:
        """Read the newest model from the store, unless it is the one that this worker knows."""
        if self._newest is not None:
            newest_version = models.versions()[-1:]  # [] if there is none
            if newest_version == [self._newest.version]:
                return
        self._newest = models.newest()  # perhaps another worker has published it

    def _is_newest(self, offsets: Mapping[int, int], topic_id: str) -> bool:
        """Return whether the newest known model was made of the checkpoints at these offsets, of the same topic.

        After a move to another cluster, other records may have the offsets of the newest model.
        """
        if self._newest is None or offsets != self._newest.positions:
            return False
        newest_id = self._newest.topic_id
        is_an_id_unknown = not newest_id or not topic_id  # "": unknown
        return is_an_id_unknown or newest_id == topic_id

    def _find_model_with_valid_scores(self) -> PublishedModel | None:
        """Return the newest known model if its past scores are valid for the next model; otherwise None.

        They are not valid if the number of components has changed, because the same vectors then have other scores.
        """
        if self._newest and self._newest.model.n_components == self._fold_config.learning.components:
            return self._newest
        return None

    def _merge_without_pending(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Sequence[Checkpoint]
    ) -> Model | None:
        """Merge these checkpoints without their pending vectors to a model; None if all learned vectors are pending.

        Checkpoints that cannot be read are left out: `_merge_newest` reads them again, and reports them.
        """
        merger = self._create_merger()
        components = self._fold_config.learning.components
        # A new reader without a cache, because cached states have learned the pending vectors.
        reader = NewestCheckpoints(self._fold_config)
        for checkpoint in reader.read(stored, offsets, in_memory, unreadable={}):
            merger.add_partition(replace(checkpoint, fold=checkpoint.fold.without_pending()))
        state = merger.state(columns=components)  # at most as many axes as the model has components
        return make_model(state, components) if state else None

    def _merge(self, checkpoints: Iterable[Checkpoint], scored_by: Model | None) -> Publication | None:
        """Merge checkpoints to the next version of the model. Returns None if there are too few messages.

        The model `scored_by` scores the pending vectors that the previous version has not learned, and past scores give
        their p-values. Without `scored_by`, these vectors get no p-values.
        """
        merger = self._create_merger()
        previous = self._newest
        positions_before = previous.positions if previous else {}
        learned_before = previous.version if previous else 0
        scores_builder = PastScoresBuilder(self._fold_config.learning.components)
        # If the newest model has as many components as the next one, its scores are comparable, and its histograms go
        # on. Otherwise, the histograms begin empty, and `scored_by` is another model, which only scores the pending
        # vectors.
        model_with_valid_scores = self._find_model_with_valid_scores()
        if model_with_valid_scores and model_with_valid_scores.past_scores:
            scores_builder.histograms = model_with_valid_scores.past_scores
        event_time_ms = -1
        for checkpoint in checkpoints:
            merger.add_partition(checkpoint)
            event_time_ms = max(event_time_ms, checkpoint.fold.event_time.now_ms)
            # Only vectors that the previous version has not learned: a model must not score what it has learned.
            new_pending = _select_pending(checkpoint.fold, positions_before.get(checkpoint.partition, 0))
            # An earlier model may have other dimensions than the vectors, and cannot score them then.
            if scored_by and len(new_pending) and new_pending.shape[1] == scored_by.dimensions:
                scores_builder.score(scored_by, new_pending)
        merged = merger.merge()
        if merged is None or merged.stats.learned < _MIN_MESSAGES:
            return None
        p_values = scores_builder.p_values()  # by the past scores alone, before the new scores are added to them
        messages_since_previous = merged.stats.learned - learned_before
        # Past scores lose weight with these messages, then the new scores are added. The larger the weight of the
        # model, the slower the past scores lose theirs.
        scores_builder.add_new_scores(messages_since_previous, model_weight=merged.state.weight)
        model = merged.make_published_model(self._fold_config, scores_builder.histograms, self._now(), previous)
        return Publication(model=model, p_values=p_values, event_time_ms=event_time_ms)

    def _create_merger(self) -> FoldMerger:
        now_ms = int(1000 * self._now())
        return FoldMerger(self._fold_config, now_ms)


def _refuse(missing: Mapping[int, str]) -> None:
    """Raise `PartitionsMissingError` if a partition is missing."""
    if missing:
        raise PartitionsMissingError(missing)


def _select_pending(fold: Fold, position: int) -> Array:
    """Return the pending vectors (n, d) of a fold that come from a position on, in float64.

    A fold does not know the offsets of its pending vectors. So this takes as many of the newest ones as there are
    offsets from the position on. These are too many if some offsets hold no vector, such as deletes, and too few if a
    value holds several vectors.
    """
    offsets_from_position = fold.position - max(position, 0)
    n = min(offsets_from_position, len(fold.pending))
    first = len(fold.pending) - n
    return fold.pending[first:].astype(np.float64)
