"""Merge folds into one, and publish it as a model; each fold is decayed to the latest of their times.

No time is later than the clock, which is an argument: a partition whose timestamps are ahead counts as current, and
does not make the other partitions count for nothing. A fold without a time counts as current.
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


@dataclass(frozen=True, eq=False)
class MergedFold:
    """The state of folds together, for a model, and what it is made of."""

    state: State
    stats: FoldStats
    error: SamplingError | None = None
    topic: str = ""
    topic_id: str = ""
    positions: dict[int, int] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)  # of partitions with a loss
    names: Names = None

    @classmethod
    def alone(cls, fold: Fold, config: FoldConfig) -> "MergedFold":
        """One fold, with nothing to merge."""
        state = axes.decomposed(fold.provisional(config.learning), config.learning.components)
        return cls(state, fold.stats, names=config.names)

    def published(
        self, config: FoldConfig, past_scores: PastScores, published_at: float, previous: PublishedModel | None = None
    ) -> PublishedModel:
        """The next version. The signs of its axes follow the previous one, so that coordinates do not flip."""
        stats, error, signs = self.stats, self.error, previous.model.components if previous else None
        return PublishedModel(
            version=stats.learned,
            model=axes.model_of(self.state, config.learning.components, signs),
            topic=self.topic,
            topic_id=self.topic_id,
            positions=self.positions,
            stats=stats.of_model(),
            partition_losses=self.losses,
            published_at=published_at,
            settings=config.as_dict(),
            subspace_error=error.subspace if error else None,
            axis_errors=error.axes.tolist() if error else None,
            past_scores=past_scores if past_scores.weight else None,
            names=self.names,
        )


class FoldMerger:
    """Merges folds one by one; a function of their sequence, whose memory does not grow with it."""

    def __init__(self, config: FoldConfig, now_ms: int = sys.maxsize) -> None:
        """`now_ms` is the time by the clock."""
        self._config, self._now_ms, self._time_ms = config, now_ms, -1
        self._merger = StateMerger(config.learning.columns)
        self._stats: list[FoldStats] = []
        self._topic, self._topic_id, self._names = "", "", config.names
        self._positions: dict[int, int] = {}
        self._losses: dict[int, float] = {}

    def add_partition(self, checkpoint: Checkpoint) -> None:
        """Merge the fold of a partition.

        Raises `TopicReplacedError` if an earlier one is of another topic, and `SettingsError` if it has other names.
        """
        checkpoint.refuse_other_topic(self._topic_id)
        self._names = checkpoint.agreed_names(self._names)
        self._topic, self._topic_id = checkpoint.topic, self._topic_id or checkpoint.topic_id
        self._positions[checkpoint.partition] = checkpoint.fold.position
        if (loss := checkpoint.fold.stats.recent_loss) is not None:
            self._losses[checkpoint.partition] = loss
        self.add(checkpoint.fold)

    def append(self, fold: Fold) -> None:
        """Merge a fold that continues the stream, so a half-life in messages decays what came before."""
        if half_life := self._config.half_life_messages:
            self._merger.fade(2.0 ** (-fold.stats.learned / half_life))
        is_short = fold.event_time.now_ms < 0  # too few messages for a time
        self.add(replace(fold, event_time=EventTime(fold.stats.last_ms)) if is_short else fold)

    def add(self, fold: Fold) -> None:
        """Merge a fold of another stream."""
        decay, time_ms = self._config.decay, min(fold.event_time.now_ms, self._now_ms)
        if time_ms > self._time_ms >= 0:
            self._merger.fade(decay(time_ms - self._time_ms))
        self._time_ms = max(time_ms, self._time_ms)
        share = decay(self._time_ms - time_ms) if time_ms >= 0 else 1.0
        self._merger.add(fold.provisional(self._config.learning), share)
        self._stats.append(fold.stats)

    def state(self, columns: int) -> State | None:
        """The pooled state with up to `columns` columns; None without messages."""
        return self._merger.state(columns, self._config.learning.dtype) if self._merger.weight else None

    def merged(self) -> MergedFold | None:
        """All that a model needs; None without messages."""
        components = self._config.learning.components
        if (state := self.state(components + GUARD)) is None:
            return None
        error = sampling_error(self._merger.groups(), state, components)
        origin = self._topic, self._topic_id, self._positions
        return MergedFold(state, FoldStats.total(self._stats), error, *origin, self._losses, self._names)

    def fold(self, position: int) -> Fold:
        """The fold that continues all merged folds, at this position."""
        learning = self._config.learning
        empty = Fold.empty(learning)
        state = self.state(learning.columns) or empty.state
        ascending = state.variance[::-1]
        kept = state.rank - 1 - learning.limits.of(ascending)  # longest first
        state = replace(state, C=np.ascontiguousarray(state.C[:, kept]))  # shorter ones would overflow (CᵀC)⁻¹
        stats = FoldStats.total(self._stats)
        return replace(empty, position=position, state=state, event_time=EventTime(self._time_ms), stats=stats)
