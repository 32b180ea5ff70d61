"""Merges the states of partitions, each decayed to the latest of their times that is not in the future.

A partition whose timestamps are ahead counts as current: it must not make the others count for nothing.
"""

from collections.abc import Iterable

from streampca.pca.arrays import Array
from streampca.pca.merge import Merger, Pool
from streampca.pca.state import State
from streampca.stream import compatibility
from streampca.stream.fold import FoldConfig, FoldStats
from streampca.stream.subtotal import RECENT, Subtotal


class Total:
    """What is known of all partitions that were added."""

    def __init__(self, pool: Pool | Merger, fold_config: FoldConfig, now_ms: int) -> None:
        """The states are merged in `pool`; `now_ms` is the time by the clock."""
        self._pool, self._fold_config, self._now_ms = pool, fold_config, now_ms
        self.topic, self.topic_id = "", ""
        self.positions: dict[int, int] = {}
        self.time_ms = -1
        self._stats: list[FoldStats] = []

    def add(self, part: Subtotal) -> None:
        """Merge the state of one or more partitions (of time -1: unknown, counts as current).

        Raises `SettingsError` or `TopicReplacedError` if it does not fit the worker, or the parts before.
        """
        compatibility.refuse_other_settings(part, self._fold_config)
        compatibility.refuse_other_topic(part, self.topic_id)
        self.topic, self.topic_id = part.topic, self.topic_id or part.topic_id
        self.positions |= part.positions
        self._stats.append(part.stats)
        decay, time_ms = self._fold_config.decay, min(part.time_ms, self._now_ms)
        if time_ms > self.time_ms >= 0:
            self._pool.fade(decay(time_ms - self.time_ms))
        self.time_ms = max(time_ms, self.time_ms)
        self._pool.add(part.state, decay(self.time_ms - time_ms) if time_ms >= 0 else 1.0)

    @property
    def stats(self) -> FoldStats:
        """The stats of all partitions together."""
        return FoldStats.total(self._stats)


def subtotal_of(parts: Iterable[Subtotal], fold_config: FoldConfig, now_ms: int) -> Subtotal:
    """The parts as one. There must be one."""
    pool = Pool(fold_config.learning.columns)
    total = Total(pool, fold_config, now_ms)
    recent: dict[int, Array] = {}
    for part in parts:
        total.add(part)
        recent |= {partition: rows[-RECENT:].copy() for partition, rows in part.recent.items()}
    config, settings = fold_config.learning, fold_config.as_dict()
    state = pool.state(dtype=config.dtype) if pool.weight else State.empty(config.dimensions, config.dtype)
    return Subtotal(total.topic, total.topic_id, total.positions, state, total.time_ms, total.stats, settings, recent)
