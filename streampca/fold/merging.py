"""Merges folds into one, and makes a published model of it. With a half-life in seconds, older folds count less.

Each fold loses the weight that it would lose from its own event time to the latest event time of all folds. An event
time later than the clock counts as the clock's time: otherwise a partition with timestamps in the future would take the
weight of all other partitions. A fold without an event time keeps its weight.
"""

import sys
from dataclasses import dataclass, field, replace

import numpy as np

from streampca.fold.checkpoint import Checkpoint
from streampca.fold.event_time import EventTime
from streampca.fold.fold import Fold, FoldConfig, FoldStats
from streampca.fold.model_file import PublishedModel
from streampca.fold.names import Names
from streampca.pca import axes
from streampca.pca.jackknife import SamplingError, sampling_error
from streampca.pca.learning import GUARD
from streampca.pca.merge import StateMerger
from streampca.pca.past_scores import PastScores
from streampca.pca.state import State

_NO_TIME = -1  # the event time of a fold with too few messages


@dataclass(frozen=True, eq=False)
class MergedFold:
    """The merged state of folds, and everything else that a model of it needs."""

    state: State
    stats: FoldStats
    error: SamplingError | None = None
    topic: str = ""
    topic_id: str = ""
    positions: dict[int, int] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)  # recent loss of each partition that has one
    names: Names = None

    @classmethod
    def alone(cls, fold: Fold, config: FoldConfig) -> "MergedFold":
        """Return a single fold as if it were merged."""
        state = axes.decompose(fold.provisional(config.learning), config.learning.components)
        return cls(state=state, stats=fold.stats, names=config.names)

    def published(
        self, config: FoldConfig, past_scores: PastScores, published_at: float, previous: PublishedModel | None = None
    ) -> PublishedModel:
        """Return the next version of the model.

        The signs of its axes are those of the previous version, so that coordinates do not flip.
        """
        error = self.error
        signs_like = previous.model.components if previous else None
        return PublishedModel(
            version=self.stats.learned,
            model=axes.model_of(self.state, config.learning.components, signs_like),
            topic=self.topic,
            topic_id=self.topic_id,
            positions=self.positions,
            stats=self.stats.of_model(),
            partition_losses=self.losses,
            published_at=published_at,
            settings=config.as_dict(),
            subspace_error=error.subspace if error else None,
            axis_errors=error.axes.tolist() if error else None,
            past_scores=past_scores if past_scores.weight else None,
            names=self.names,
        )


class FoldMerger:
    """Merges folds one after the other.

    The result depends only on the folds and their order. At most one fold is in memory, in addition to the merged one.
    """

    def __init__(self, config: FoldConfig, now_ms: int = sys.maxsize) -> None:
        """`now_ms` is the time by the clock. Without it, event times in the future are not limited."""
        self._config = config
        self._now_ms = now_ms
        self._time_ms = _NO_TIME  # the latest event time so far, to which all folds were decayed
        self._merger = StateMerger(config.learning.columns)
        self._stats: list[FoldStats] = []
        self._topic = ""
        self._topic_id = ""
        self._names = config.names
        self._positions: dict[int, int] = {}
        self._losses: dict[int, float] = {}

    def add_partition(self, checkpoint: Checkpoint) -> None:
        """Merge the fold of a partition.

        Raises `TopicReplacedError` if earlier checkpoints are of another topic with this name, and `SettingsError` if
        they have other names of dimensions.
        """
        checkpoint.refuse_other_topic(self._topic_id)
        self._names = checkpoint.agreed_names(self._names)
        self._topic = checkpoint.topic
        self._topic_id = self._topic_id or checkpoint.topic_id
        self._positions[checkpoint.partition] = checkpoint.fold.position
        loss = checkpoint.fold.stats.recent_loss
        if loss is not None:
            self._losses[checkpoint.partition] = loss
        self.add(checkpoint.fold)

    def append(self, fold: Fold) -> None:
        """Merge a fold that continues the stream of the earlier ones: a half-life in messages decays these."""
        half_life = self._config.half_life_messages
        if half_life:
            self._merger.fade(2.0 ** (-fold.stats.learned / half_life))
        if fold.event_time.now_ms == _NO_TIME:  # it has too few messages for a median
            fold = replace(fold, event_time=EventTime(fold.stats.last_ms))
        self.add(fold)

    def add(self, fold: Fold) -> None:
        """Merge a fold of another stream."""
        time_ms = min(fold.event_time.now_ms, self._now_ms)
        latest_ms = max(time_ms, self._time_ms)
        share = 1.0
        if time_ms != _NO_TIME:  # bring the earlier folds and this one to the later time
            if self._time_ms != _NO_TIME:
                self._merger.fade(self._config.decay(latest_ms - self._time_ms))
            share = self._config.decay(latest_ms - time_ms)
        self._time_ms = latest_ms
        self._merger.add(fold.provisional(self._config.learning), share)
        self._stats.append(fold.stats)

    def state(self, columns: int) -> State | None:
        """Return the merged state with up to `columns` columns; None if no message was learned."""
        if not self._merger.weight:
            return None
        return self._merger.state(columns, self._config.learning.dtype)

    def merged(self) -> MergedFold | None:
        """Return all that a model needs; None if no message was learned."""
        components = self._config.learning.components
        state = self.state(components + GUARD)
        if state is None:
            return None
        return MergedFold(
            state=state,
            stats=FoldStats.total(self._stats),
            error=sampling_error(self._merger.groups(), state, components),
            topic=self._topic,
            topic_id=self._topic_id,
            positions=self._positions,
            losses=self._losses,
            names=self._names,
        )

    def fold(self, position: int) -> Fold:
        """Return a fold at this position from which learning can continue after all merged folds."""
        learning = self._config.learning
        empty = Fold.empty(learning)
        state = self.state(learning.columns) or empty.state
        # Columns that are too short are dropped, since (CᵀC)⁻¹ would overflow. `limits` counts columns from the
        # shortest one, and C begins with the longest.
        ascending = state.variance[::-1]
        kept = state.rank - 1 - learning.limits.select(ascending)
        state = replace(state, C=np.ascontiguousarray(state.C[:, kept]))
        stats = FoldStats.total(self._stats)
        return replace(empty, position=position, state=state, event_time=EventTime(self._time_ms), stats=stats)
