"""Merges the states of partitions, each decayed to the latest of their times that is not in the future.

A partition whose timestamps are ahead counts as current: it must not make the others count for nothing.
"""

from streampca.fold import compatibility
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import FoldConfig, FoldStats
from streampca.pca.merge import Merger
from streampca.pca.state import State


class Total:
    """What is known of all partitions that were added."""

    def __init__(self, fold_config: FoldConfig, now_ms: int) -> None:
        """`now_ms` is the time by the clock."""
        self._fold_config, self._now_ms = fold_config, now_ms
        self._merger, self._time_ms = Merger(fold_config.learning.columns), -1
        self._stats: list[FoldStats] = []
        self.topic, self.topic_id = "", ""
        self.positions: dict[int, int] = {}
        self.losses: dict[int, float] = {}  # of partitions with a loss

    def add(self, checkpoint: Checkpoint) -> None:
        """Merge the state of a partition (of time -1: unknown, counts as current).

        Raises `TopicReplacedError` if it is not of the same topic as those before.
        """
        compatibility.refuse_other_topic(checkpoint, self.topic_id)
        self.topic, self.topic_id = checkpoint.topic, self.topic_id or checkpoint.topic_id
        fold, decay = checkpoint.fold, self._fold_config.decay
        self.positions[checkpoint.partition] = fold.position
        self._stats.append(fold.stats)
        if (loss := fold.stats.recent_loss) is not None:
            self.losses[checkpoint.partition] = loss
        time_ms = min(fold.event_time.now_ms, self._now_ms)
        if time_ms > self._time_ms >= 0:
            self._merger.fade(decay(time_ms - self._time_ms))
        self._time_ms = max(time_ms, self._time_ms)
        state = fold.provisional(self._fold_config.learning)
        self._merger.add(state, decay(self._time_ms - time_ms) if time_ms >= 0 else 1.0)

    @property
    def stats(self) -> FoldStats:
        """The stats of all partitions together."""
        return FoldStats.total(self._stats)

    def groups(self) -> list[State]:
        """The merged states, as `Merger.groups`."""
        return self._merger.groups()
