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
    """Decides who publishes, and when.

    The owner of the topic's lowest partition publishes. Publishing takes at most a tenth of its time.
    """

    def __init__(self) -> None:
        self._began_at = -math.inf  # when the last publication began, in seconds
        self._last_took_s = 0.0  # the last publication
        self._second_last_took_s = 0.0

    def begin_if_due(self, owned: Collection[int], all_partitions: Collection[int], now: float) -> bool:
        """Begin a publication if this worker must publish now, and return whether it must.

        `owned` are the partitions of this worker.
        """
        is_publisher = min(all_partitions, default=0) in owned
        # The shorter time: one slow publication does not delay the next.
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
        """Yield the newest checkpoint of each partition; `offsets` holds their offsets.

        Adds the causes of checkpoints that cannot be read to `unreadable`. Raises `StoreBusyError`.
        """
        known = self._find_known(offsets, in_memory)
        to_read = {partition: offset for partition, offset in offsets.items() if partition not in known}
        sizes = stored.sizes(to_read)  # they limit how many are read at once
        # The answers come in the order of `offsets`.
        answers = stored.for_each(sizes, stored.newest).take_in_order()
        for partition in offsets:
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
            if newest is not None:  # None: deleted since the listing
                usable = newest.adapt_to(self._fold_config)
                self._cache_if_it_fits(usable)
                yield usable

    def _find_known(self, offsets: Mapping[int, int], in_memory: Iterable[Checkpoint]) -> dict[int, Checkpoint]:
        """Return, by partition, the checkpoints at these offsets that are cached or `in_memory`."""
        known = {}
        for checkpoint in [*self._cache.values(), *in_memory]:
            if offsets.get(checkpoint.partition) == checkpoint.fold.position:
                known[checkpoint.partition] = checkpoint
        return known

    def _cache_if_it_fits(self, checkpoint: Checkpoint) -> None:
        """Learn the pending vectors of a checkpoint, and cache it if it fits.

        Pending vectors are scored only once, when the checkpoint is read.
        """
        fold = checkpoint.fold
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
        self._checkpoint_reader = NewestCheckpoints(fold_config)
        self._newest_model: PublishedModel | None = None  # in the store, as far as this worker knows

    def publish(self, stored: Checkpoints, in_memory: Sequence[Checkpoint] = ()) -> Publication | None:
        """Write the model of the newest checkpoints, and return it.

        Returns None if there is nothing new to publish. Raises `PartitionsMissingError`.
        """
        topic_id = in_memory[0].topic_id if in_memory else ""
        offsets = stored.newest_offsets()
        # This comparison needs no request to the store.
        if self._is_published(offsets, topic_id):
            return None
        models = self.models.snapshot()
        self._update_newest_model(models)
        if self._is_published(offsets, topic_id):
            return None
        if find_missing(self._newest_model, offsets, topic_id):
            # Another worker may have saved since the listing.
            stored = stored.snapshot()
            offsets = stored.newest_offsets()
            _raise_if_missing(find_missing(self._newest_model, offsets, topic_id))
        publication = self._merge_newest(stored, offsets, in_memory, topic_id)
        if publication is None:
            return None
        # The new records may all be rejected ones.
        if self._newest_model and publication.model.version <= self._newest_model.version:
            return None
        is_saved = models.save(publication.model)
        if not is_saved:
            return None
        self._newest_model = publication.model
        return publication

    def _merge_newest(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Sequence[Checkpoint], topic_id: str
    ) -> Publication | None:
        """Return the merge of the newest checkpoints as the next version; None if too little was learned.

        Raises `PartitionsMissingError`.
        """
        # New vectors are scored by a model that has not learned them.
        earlier = self._find_model_with_valid_scores()
        scored_by = earlier.model if earlier else self._merge_without_pending(stored, offsets, in_memory)
        unreadable: dict[int, str] = {}
        checkpoints = self._checkpoint_reader.read(stored, offsets, in_memory, unreadable)
        publication = self._merge(checkpoints, scored_by)  # reads them, and so fills `unreadable`
        # If a newest checkpoint is damaged, an older one was merged.
        merged_positions = publication.model.positions if publication else {}
        _raise_if_missing(find_missing(self._newest_model, merged_positions, topic_id) | unreadable)
        return publication

    def _update_newest_model(self, models: Models) -> None:
        """Read the newest model from the store, unless this worker knows it already."""
        if self._newest_model is not None:
            newest_version = models.versions()[-1:]
            if newest_version == [self._newest_model.version]:
                return
        self._newest_model = models.newest()  # another worker may have published it

    def _is_published(self, offsets: Mapping[int, int], topic_id: str) -> bool:
        """Return whether the newest known model was made of the checkpoints at these offsets, of the same topic."""
        if self._newest_model is None or offsets != self._newest_model.positions:
            return False
        newest_id = self._newest_model.topic_id
        is_an_id_unknown = not newest_id or not topic_id  # "": unknown
        return is_an_id_unknown or newest_id == topic_id

    def _find_model_with_valid_scores(self) -> PublishedModel | None:
        """Return the newest known model if its past scores are valid for the next model; otherwise None.

        With another number of components, they are not.
        """
        if self._newest_model and self._newest_model.model.n_components == self._fold_config.learning.components:
            return self._newest_model
        return None

    def _merge_without_pending(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Sequence[Checkpoint]
    ) -> Model | None:
        """Merge these checkpoints without their pending vectors to a model; None if all learned vectors are pending."""
        merger = self._create_merger()
        components = self._fold_config.learning.components
        # A new reader, since cached states have learned the pending vectors.
        reader = NewestCheckpoints(self._fold_config)
        for checkpoint in reader.read(stored, offsets, in_memory, unreadable={}):
            merger.add_partition(replace(checkpoint, fold=checkpoint.fold.without_pending()))
        state = merger.state(columns=components)
        return make_model(state, components) if state else None

    def _merge(self, checkpoints: Iterable[Checkpoint], scored_by: Model | None) -> Publication | None:
        """Merge checkpoints to the next version of the model; None if too little was learned.

        The model `scored_by` scores the vectors that the previous version has not learned.
        """
        merger = self._create_merger()
        previous = self._newest_model
        positions_before = previous.positions if previous else {}
        learned_before = previous.version if previous else 0  # number of vectors
        scores_builder = self._continue_past_scores()
        event_time_ms = -1
        for checkpoint in checkpoints:
            merger.add_partition(checkpoint)
            event_time_ms = max(event_time_ms, checkpoint.fold.event_time.now_ms)
            new_pending = _select_pending(checkpoint.fold, positions_before.get(checkpoint.partition, 0))
            if scored_by and len(new_pending) and new_pending.shape[1] == scored_by.dimensions:
                scores_builder.score(scored_by, new_pending)
        merged = merger.merge()
        if merged is None or merged.stats.learned < _MIN_MESSAGES:
            return None
        p_values = scores_builder.p_values()  # by the past scores alone
        messages_since_previous = merged.stats.learned - learned_before
        scores_builder.add_new_scores(messages_since_previous, model_weight=merged.state.weight)
        model = merged.make_published_model(self._fold_config, scores_builder.histograms, self._now(), previous)
        return Publication(model=model, p_values=p_values, event_time_ms=event_time_ms)

    def _continue_past_scores(self) -> PastScoresBuilder:
        """Return a builder that adds to the past scores of the newest model; to none if they are not valid any more."""
        builder = PastScoresBuilder(self._fold_config.learning.components)
        model = self._find_model_with_valid_scores()
        if model and model.past_scores:
            builder.histograms = model.past_scores
        return builder

    def _create_merger(self) -> FoldMerger:
        now_ms = int(1000 * self._now())
        return FoldMerger(self._fold_config, now_ms)


def _raise_if_missing(missing: Mapping[int, str]) -> None:
    """Raise `PartitionsMissingError` if a partition is missing."""
    if missing:
        raise PartitionsMissingError(missing)


def _select_pending(fold: Fold, position: int) -> Array:
    """Return the pending vectors (n, d) of a fold that come from a position on, in float64.

    The number is approximate: a fold does not know the offsets of its pending vectors.
    """
    offsets_from_position = fold.position - max(position, 0)
    count = min(offsets_from_position, len(fold.pending))
    first = len(fold.pending) - count
    return fold.pending[first:].astype(np.float64)
