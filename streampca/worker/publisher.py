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
from streampca.fold.fold import FoldConfig
from streampca.fold.merging import FoldMerger
from streampca.fold.model_file import PublishedModel
from streampca.fold.past_scores import PastScoresBuilder
from streampca.pca.arrays import F64, Array
from streampca.pca.axes import make_model
from streampca.pca.model import Model
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.stores.parallel_requests import Answer
from streampca.worker.missing import find_partitions_behind_model

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

        A publication is due once it takes at most a tenth of the time since the last one began. `owned` are the
        partitions of this worker.
        """
        is_publisher = min(all_partitions, default=0) in owned
        # Expect the shorter of the last two times, so that a single slow publication does not delay the next one.
        expected_s = min(self._last_took_s, self._second_last_took_s)
        may_take_s = _MAX_SHARE_OF_TIME * (now - self._began_at)
        is_due = expected_s <= may_take_s
        if is_publisher and is_due:
            self._began_at = now
        return is_publisher and is_due

    def end(self, took_s: float) -> None:
        """Note how long the publication took that has ended."""
        self._second_last_took_s = self._last_took_s
        self._last_took_s = took_s


class ListedCheckpoints(NamedTuple):
    """The newest checkpoints of all partitions, as they were listed."""

    stored: Checkpoints
    offsets: Mapping[int, int]  # of the newest checkpoints, by partition
    own_checkpoints: Sequence[Checkpoint]  # this worker has their folds in memory, so they need not be read

    @property
    def topic_id(self) -> str:
        """Id of the topic that this worker reads; "" if it is not known."""
        return self.own_checkpoints[0].topic_id if self.own_checkpoints else ""


class CheckpointReader:
    """Reads the newest checkpoints of all partitions, and caches as many of them as fit in memory."""

    def __init__(self, fold_config: FoldConfig) -> None:
        self._fold_config = fold_config
        self._cache: dict[int, Checkpoint] = {}
        self.unreadable: dict[int, str] = {}  # by partition, why the last `read` could not read its checkpoint

    def read(self, listed: ListedCheckpoints) -> Iterator[Checkpoint]:
        """Yield the newest checkpoint of each partition. Checkpoints that cannot be read are noted in `unreadable`.

        Each is adapted to this worker's settings: if it has learned nothing yet, it gets these settings. Raises
        `StoreBusyError`.
        """
        self.unreadable = {}
        in_memory = self._find_in_memory(listed)  # cached checkpoints, and this worker's own: they were adapted before
        to_read = {partition: offset for partition, offset in listed.offsets.items() if partition not in in_memory}
        # Threads read the checkpoints. `answers` yields one answer for each partition in `to_read`, in its order, which
        # is also the order of `listed.offsets`.
        answers = listed.stored.load_newest(to_read).take_in_order()
        for partition in listed.offsets:
            if partition in in_memory:
                yield in_memory[partition]
                continue
            answer_of_partition = next(answers)
            newest = self._adapt_and_cache(answer_of_partition)  # None: it was deleted, or cannot be read
            if newest is not None:
                yield newest

    def _adapt_and_cache(self, answer: Answer[Checkpoint | None]) -> Checkpoint | None:
        """Return the checkpoint that was read, adapted to this worker's settings, and cache it.

        Returns None if it was deleted, or cannot be read; the latter is noted in `unreadable`.
        """
        try:
            newest = answer.result()
        except StoreBusyError:
            raise
        except StoreError as error:
            self.unreadable[answer.partition] = str(error)
            return None
        if newest is None:  # deleted since the listing
            return None
        adapted = newest.adapt_to(self._fold_config)
        self._cache_if_small_enough(adapted)
        return adapted

    def _find_in_memory(self, listed: ListedCheckpoints) -> dict[int, Checkpoint]:
        """Return, by partition, the listed checkpoints that need not be read: cached ones, and this worker's own."""
        in_memory = {}
        for checkpoint in [*self._cache.values(), *listed.own_checkpoints]:
            is_newest = listed.offsets.get(checkpoint.partition) == checkpoint.fold.position
            if is_newest:
                in_memory[checkpoint.partition] = checkpoint
        return in_memory

    def _cache_if_small_enough(self, checkpoint: Checkpoint) -> None:
        """Cache a copy of a checkpoint if it is small enough. The state of the copy has learned the pending vectors.

        So the copy has no pending vectors. The publisher scores pending vectors when a checkpoint was read from the
        store, and would score the same vectors again if the copy had them.
        """
        fold = checkpoint.fold
        state_after_pending = fold.provisional(self._fold_config.learning)  # has learned the pending vectors
        cached = replace(checkpoint, fold=replace(fold, state=state_after_pending).without_pending())
        self._cache.pop(checkpoint.partition, None)
        nbytes_with_others = cached.fold.nbytes + sum(other.fold.nbytes for other in self._cache.values())
        if nbytes_with_others <= CACHED_BYTES:
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
        self._checkpoint_reader = CheckpointReader(fold_config)
        self._newest_model: PublishedModel | None = None  # in the store, as far as this worker knows

    def publish(self, stored: Checkpoints, own_checkpoints: Sequence[Checkpoint] = ()) -> Publication | None:
        """Write the model of the newest checkpoints, and return it.

        Returns None if there is nothing new to publish. Raises `PartitionsMissingError`.
        """
        listed = ListedCheckpoints(stored, stored.newest_offsets(), own_checkpoints)
        # The model that this worker knows is compared first: that needs no request to the store.
        if self._is_published(listed):
            return None
        models = self.models.snapshot()
        self._update_newest_model(models)
        if self._is_published(listed):  # by another worker
            return None
        # The listing may be stale: another worker may have saved later checkpoints, and made the newest model of them.
        if find_partitions_behind_model(self._newest_model, listed.offsets, listed.topic_id):
            listed = self._list_again(stored, own_checkpoints)
        publication = self._merge_newest(listed)
        if publication is None:
            return None
        # If all new records were rejected, the model has the same version as the newest one.
        has_learned_nothing = self._newest_model and publication.model.version <= self._newest_model.version
        if has_learned_nothing:
            return None
        was_saved = models.save(publication.model)
        if not was_saved:  # the store has this version, or newer ones
            return None
        self._newest_model = publication.model
        return publication

    def _list_again(self, stored: Checkpoints, own_checkpoints: Sequence[Checkpoint]) -> ListedCheckpoints:
        """List the checkpoints anew, since another worker may have saved the missing ones after the listing.

        Raises `PartitionsMissingError` if checkpoints are still missing.
        """
        stored_now = stored.snapshot()
        listed = ListedCheckpoints(stored_now, stored_now.newest_offsets(), own_checkpoints)
        _raise_if_missing(find_partitions_behind_model(self._newest_model, listed.offsets, listed.topic_id))
        return listed

    def _merge_newest(self, listed: ListedCheckpoints) -> Publication | None:
        """Return the merge of the newest checkpoints as the next version; None if too little was learned.

        Raises `PartitionsMissingError`.
        """
        # The newest model has not learned the new vectors, so it scores them. Without a model with valid past scores,
        # past scores begin anew, and a merge of these checkpoints without their pending vectors scores these vectors.
        newest = self._find_model_with_valid_scores()
        scoring_model = newest.model if newest else self._merge_without_pending(listed)
        reader = self._checkpoint_reader
        publication = self._merge(reader.read(listed), scoring_model)
        # If the newest checkpoint of a partition is damaged, an older checkpoint was merged. Then the merge may lack
        # records that the newest model has learned, and must not be published. An empty merge lacks all of them.
        merged_positions = publication.model.positions if publication else {}
        why_behind = find_partitions_behind_model(self._newest_model, merged_positions, listed.topic_id)
        _raise_if_missing(why_behind | reader.unreadable)
        return publication

    def _update_newest_model(self, models: Models) -> None:
        """Read the newest model from the store, unless this worker knows it already."""
        if self._newest_model is None or models.versions()[-1:] != [self._newest_model.version]:
            self._newest_model = models.newest()  # another worker may have published it

    def _is_published(self, listed: ListedCheckpoints) -> bool:
        """Return whether the newest known model was made of the listed checkpoints, of the same topic."""
        if self._newest_model is None or listed.offsets != self._newest_model.positions:
            return False
        topic_ids = {self._newest_model.topic_id, listed.topic_id}
        is_an_id_unknown = "" in topic_ids
        return is_an_id_unknown or len(topic_ids) == 1

    def _find_model_with_valid_scores(self) -> PublishedModel | None:
        """Return the newest known model; None if its past scores are not valid for the next model.

        They are valid if both models have the same number of components.
        """
        if self._newest_model and self._newest_model.model.n_components == self._fold_config.learning.components:
            return self._newest_model
        return None

    def _merge_without_pending(self, listed: ListedCheckpoints) -> Model | None:
        """Merge these checkpoints without their pending vectors to a model; None if all learned vectors are pending."""
        merger = self._create_merger()
        components = self._fold_config.learning.components
        # Read the checkpoints anew: the states in the cache of `_checkpoint_reader` have learned the pending vectors.
        new_reader = CheckpointReader(self._fold_config)
        for checkpoint in new_reader.read(listed):
            merger.add_partition(replace(checkpoint, fold=checkpoint.fold.without_pending()))
        state = merger.state(columns=components)  # with only the axes that the model needs
        return make_model(state, components) if state else None

    def _merge(self, checkpoints: Iterable[Checkpoint], scoring_model: Model | None) -> Publication | None:
        """Merge checkpoints to the next version of the model; None if too little was learned.

        `scoring_model` scores the pending vectors that the previous version has not learned. Their scores are added to
        the past scores of the previous version. Without `scoring_model`, nothing is scored.
        """
        merger = self._create_merger()
        scores_builder = self._continue_past_scores()
        event_time_ms = -1  # unknown
        for checkpoint in checkpoints:
            merger.add_partition(checkpoint)
            event_time_ms = max(event_time_ms, checkpoint.fold.event_time.now_ms)
            new_pending = self._select_new_pending(checkpoint)
            if scoring_model and len(new_pending) and new_pending.shape[1] == scoring_model.dimensions:
                scores_builder.collect_scores(scoring_model, new_pending)
        merged = merger.merge()
        if merged is None or merged.stats.learned < _MIN_MESSAGES:
            return None
        # Compute the p-values before the new scores are added: new vectors are compared with past vectors only.
        p_values = scores_builder.p_values()
        previous = self._newest_model
        learned_before = previous.version if previous else 0  # a version is how many vectors the model has learned
        newly_learned = merged.stats.learned - learned_before
        # Older scores keep e^(−newly_learned / weight) of their weight, since the model forgets older vectors as fast.
        scores_builder.add_collected_to_histograms(newly_learned, model_weight=merged.state.weight)
        model = merged.make_published_model(self._fold_config, scores_builder.histograms, self._now(), previous)
        return Publication(model=model, p_values=p_values, event_time_ms=event_time_ms)

    def _select_new_pending(self, checkpoint: Checkpoint) -> Array:
        """Return the pending vectors (n, d) that the newest known model has not learned, in float64.

        A fold does not know the offsets of its pending vectors. So one vector is taken for each offset that the model
        has not learned, from the newest vector back. The number is approximate.
        """
        positions = self._newest_model.positions if self._newest_model else {}
        learned_position = max(positions.get(checkpoint.partition, 0), 0)  # -1, nothing was read, counts as 0
        fold = checkpoint.fold
        new_offsets = max(fold.position - learned_position, 0)  # 0: the checkpoint is older than the model
        count = min(new_offsets, len(fold.pending))
        first = len(fold.pending) - count
        return fold.pending[first:].astype(np.float64)

    def _continue_past_scores(self) -> PastScoresBuilder:
        """Return a builder that begins with the past scores of the newest model.

        If these are not valid for the next model, the builder begins without scores.
        """
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
