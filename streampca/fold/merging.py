"""Merges folds into one, and makes a published model of it. With a half-life in seconds, older folds count less.

Each fold loses the weight that it would lose from its own event time to the latest event time of all folds. An event
time later than the clock counts as the clock's time: otherwise a partition with timestamps in the future would take the
weight of all other partitions. A fold without an event time keeps its weight.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from streampca.fold.checkpoint import Checkpoint
from streampca.fold.event_time import EventTime
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel
from streampca.fold.names import Names
from streampca.fold.stats import FoldStats
from streampca.pca import axes
from streampca.pca.jackknife import SamplingError, estimate_sampling_error
from streampca.pca.learning_config import F_COLUMNS_WITH_COVARIANCE
from streampca.pca.merge import StateMerger
from streampca.pca.past_scores import PastScores
from streampca.pca.state import State

_NO_TIME = -1  # the event time of a fold with too few messages


@dataclass(frozen=True, eq=False)
class MergedFold:
    """The merged state of folds, and everything else that a model of this state needs."""

    state: State
    stats: FoldStats
    sampling_error: SamplingError | None = None
    topic: str = ""
    topic_id: str = ""
    positions: dict[int, int] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)  # recent loss of each partition that has one
    names: Names = None

    @classmethod
    def from_fold(cls, fold: Fold, config: FoldConfig) -> "MergedFold":
        """Return a single fold, with its pending messages learned, as if it were merged."""
        state = axes.decompose(fold.provisional(config.learning), config.learning.components)
        return cls(state=state, stats=fold.stats, names=config.names)

    def make_published_model(
        self, config: FoldConfig, past_scores: PastScores, published_at: float, previous: PublishedModel | None = None
    ) -> PublishedModel:
        """Make the next version of the model. Its axes keep the signs of the previous version."""
        error = self.sampling_error
        previous_components = previous.model.components if previous else None
        return PublishedModel(
            version=self.stats.learned,
            model=axes.make_model(self.state, config.learning.components, previous_components),
            topic=self.topic,
            topic_id=self.topic_id,
            positions=self.positions,
            stats=self.stats.summarise_for_model(),
            partition_losses=self.losses,
            published_at=published_at,
            settings=config.as_dict(),
            subspace_error=error.subspace_square if error else None,  # a square: expected Σ sin² of the angles
            axis_errors=error.axis_angles.tolist() if error else None,
            past_scores=past_scores if past_scores.weight else None,
            names=self.names,
        )


class FoldMerger:
    """Merges folds one after the other.

    The result depends only on the folds and their order. At most one fold is in memory, in addition to the merged one.
    """

    def __init__(self, config: FoldConfig, clock_ms: int | None = None) -> None:
        """Prepare to merge. An event time later than `clock_ms` counts as `clock_ms`; None: no limit."""
        self._config = config
        self._clock_ms = clock_ms
        self._merged_time_ms = _NO_TIME  # the latest event time of the merged folds; their weights are as of this time
        self._merger = StateMerger(config.learning.columns)
        self._stats: list[FoldStats] = []
        self._topic = ""
        self._topic_id = ""
        self._names = config.names
        self._positions: dict[int, int] = {}
        self._losses: dict[int, float] = {}  # by partition

    def add_partition(self, checkpoint: Checkpoint) -> None:
        """Merge the fold of a partition.

        Raises `TopicReplacedError` if earlier checkpoints have another topic id, `SettingsError` if they have other
        names.
        """
        checkpoint.refuse_other_topic(self._topic_id)
        self._names = checkpoint.agree_on_names(self._names)
        self._topic = checkpoint.topic
        self._topic_id = self._topic_id or checkpoint.topic_id
        self._positions[checkpoint.partition] = checkpoint.fold.position
        loss = checkpoint.fold.stats.recent_loss
        if loss is not None:
            self._losses[checkpoint.partition] = loss
        self.add(checkpoint.fold)

    def append(self, fold: Fold) -> None:
        """Merge a fold that continues the stream of the earlier folds.

        With a half-life in messages, the earlier folds lose weight first.
        """
        half_life = self._config.half_life_messages
        if half_life:
            self._merger.fade(2.0 ** (-fold.stats.learned / half_life))
        time_ms = fold.event_time.now_ms
        if time_ms == _NO_TIME:  # too few messages for an event time
            time_ms = fold.stats.last_ms  # the latest timestamp; _NO_TIME if no message has a timestamp
        self._add(fold, time_ms)

    def add(self, fold: Fold) -> None:
        """Merge a fold of another stream.

        With a half-life in seconds, either this fold or the merged folds lose weight: those with the earlier time.
        """
        self._add(fold, fold.event_time.now_ms)

    def _add(self, fold: Fold, time_ms: int) -> None:
        """Merge a fold that has learned messages until this time.

        With a half-life in seconds, the weights of this fold and of the merged folds are first faded to one time: the
        later of their two times.
        """
        if self._clock_ms is not None:  # None: no limit
            # A fold from the future would take the weight of all others.
            time_ms = min(time_ms, self._clock_ms)
        latest_ms = max(time_ms, self._merged_time_ms)
        # Only the weights with the earlier time are faded. For the others, the share left is 1.
        self._merger.fade(self._compute_share_left(self._merged_time_ms, latest_ms))
        state = fold.provisional(self._config.learning)  # has also learned the pending vectors
        self._merger.add(state, self._compute_share_left(time_ms, latest_ms))
        self._merged_time_ms = latest_ms
        self._stats.append(fold.stats)

    def _compute_share_left(self, from_ms: int, to_ms: int) -> float:
        """Return the share of a weight that is left at the later time: 1 if the earlier time is unknown."""
        return 1.0 if from_ms == _NO_TIME else self._config.compute_decay(to_ms - from_ms)

    def state(self, columns: int) -> State | None:
        """Return the merged state with at most `columns` columns in C; None if no message was learned."""
        if not self._merger.weight:
            return None
        return self._merger.state(columns, self._config.learning.dtype)

    def merge(self) -> MergedFold | None:
        """Return the merged folds with all that a model needs; None if no message was learned."""
        components = self._config.learning.components
        # If values are missing, `make_model` corrects the variances of the components. For this it needs the variances
        # along the next axes, F_COLUMNS_WITH_COVARIANCE of them. They are computed even if no value is missing.
        state = self.state(columns=components + F_COLUMNS_WITH_COVARIANCE)
        if state is None:
            return None
        # The merger has dealt the folds to several groups, and has merged each group by itself. How far the states of
        # the groups differ shows the sampling error.
        group_states = self._merger.groups()
        return MergedFold(
            state=state,
            stats=FoldStats.total(self._stats),
            sampling_error=estimate_sampling_error(group_states, state, components),
            topic=self._topic,
            topic_id=self._topic_id,
            positions=self._positions,
            losses=self._losses,
            names=self._names,
        )

    def make_fold(self, position: int) -> Fold:
        """Make a fold at this position, without axes that are only rounding errors. The fold can learn more records."""
        learning_config = self._config.learning
        empty = Fold.empty(learning_config)
        merged_state = self.state(columns=learning_config.columns)  # None if no message was learned
        state = merged_state or empty.state
        # Learning computes (CᵀC)⁻¹, which would overflow if C had columns of length nearly 0: they are left out. The
        # variance of an axis is the squared length of its column.
        is_column_kept = learning_config.limits.are_kept(state.variance)
        return replace(
            empty,
            position=position,
            state=replace(state, C=np.ascontiguousarray(state.C[:, is_column_kept])),
            event_time=EventTime(self._merged_time_ms),
            stats=FoldStats.total(self._stats),
        )
