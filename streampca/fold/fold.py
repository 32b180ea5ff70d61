"""The fold of one partition: a pure function of its records, independent of the batches in which they arrive.

Blocks are cut on the number of messages, never where a poll ends or on time. Messages that do not fill a block are
pending: part of the checkpoint, and learned provisionally for each published model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.fold.event_time import EventTime
from streampca.fold.names import Names
from streampca.fold.stats import FoldStats
from streampca.formats.batch import Batch
from streampca.formats.record import LastRecord
from streampca.pca import learning
from streampca.pca.arrays import Array
from streampca.pca.learning import BeforeBlock, LearningConfig, Messages, learn_whole_blocks
from streampca.pca.state import Losses, State


@dataclass(frozen=True, eq=False)
class Fold:
    """The state of a partition up to `position`, the next offset to read (-1: nothing read yet)."""

    position: int
    state: State
    pending: Array  # (p, d): vectors that do not fill a block; NaN where an entry is missing
    retention: NDArray[np.float64]  # (p,): their ρ
    event_time: EventTime
    stats: FoldStats
    last: LastRecord | None = None  # before `position`; None: nothing read yet, or its leader epoch is unknown

    @classmethod
    def empty(cls, learning_config: LearningConfig) -> "Fold":
        """The fold before the first record."""
        d, dtype = learning_config.dimensions, learning_config.dtype
        return cls(-1, State.empty(d, dtype), np.zeros((0, d), dtype), np.zeros(0), EventTime(), FoldStats.total([]))

    @property
    def is_first_start(self) -> bool:
        """Whether nothing was learned or rejected."""
        return not self.stats.learned and not self.stats.rejected

    def take(
        self, batch: Batch, config: "FoldConfig", before_block: BeforeBlock | None = None
    ) -> tuple["Fold", list[Losses]]:
        """(fold, records) → fold: the one step of all that learns. Returns the next fold and the losses.

        Vectors are learned, rejects and deletes are counted, and the position moves behind the batch. How a stream is
        cut into batches changes no bit.
        """
        vectors, _, rejects, counts, skipped = batch.decoded
        event_time, steps = self.event_time.advance(batch.timestamps)
        V = np.ascontiguousarray(vectors, config.learning.dtype)
        new, waiting = Messages(V, config.retention(_of_vectors(steps, counts))), Messages(self.pending, self.retention)
        state, pending, losses = learn_whole_blocks(config.learning, self.state, waiting, new, before_block)
        stats = self.stats.with_messages(batch.timestamps, len(V)).with_losses(losses)
        last = batch.last if len(batch.records) else self.last
        fold = Fold(max(batch.next, self.position), state, *pending, event_time, stats, last)
        return fold.reject([reject.reason for reject in rejects], len(skipped)), losses

    def reject(self, reasons: Sequence[str], skipped: int = 0) -> "Fold":
        """Count records that were rejected for these reasons, and skipped deletes."""
        return replace(self, stats=self.stats.with_rejects(reasons, skipped))

    def at(self, position: int) -> "Fold":
        """Advance the position; nothing is learned."""
        return replace(self, position=max(position, self.position))

    def skip(self, position: int, lost_from: int | None = None) -> "Fold":
        """Continue from a later position, and count the offsets from `lost_from` (None: from the fold's position)."""
        lost = position - (self.position if lost_from is None else lost_from) if self.position >= 0 else 0
        return replace(self, position=position, last=None, stats=replace(self.stats, gap=self.stats.gap + max(lost, 0)))

    def without_pending(self) -> "Fold":
        """The fold as if the pending messages were not there; its position stays."""
        return replace(self, pending=self.pending[:0], retention=self.retention[:0])

    def provisional(self, learning_config: LearningConfig) -> State:
        """The state after the pending messages too, for publishing."""
        return learning.learn(self.state, self.pending, self.retention, learning_config)[0]


@dataclass(frozen=True)
class FoldConfig:
    """All settings that change the bits of a fold, and the names. A checkpoint made with other ones is refused."""

    learning: LearningConfig
    half_life_messages: float | None = None
    half_life_seconds: float | None = None
    format: str = "json"
    field: str = ""
    names: Names = None

    def as_dict(self) -> dict[str, Any]:
        """Names and values as stored in a checkpoint."""
        derived = {"start": self.learning.start, "missing": "impute" if self.learning.impute else "refuse"}
        settings = vars(self.learning) | vars(self) | derived
        return {
            name: value for name, value in settings.items() if name not in ("names", "learning", "impute", "factor")
        }

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], names: Names = None) -> "FoldConfig":
        settings = dict(settings) | {"impute": settings["missing"] == "impute", "factor": False}
        learning = LearningConfig(**{field.name: settings[field.name] for field in fields(LearningConfig)})
        own = [field.name for field in fields(cls) if field.name not in ("learning", "names")]
        return cls(learning, **{name: settings[name] for name in own}, names=names)

    def retention(self, steps_ms: NDArray[np.int64]) -> NDArray[np.float64]:
        """ρ of each message, the share of the past that it keeps, from the time by which it advanced the event time."""
        if self.half_life_messages:
            return np.full(len(steps_ms), 2.0 ** (-1.0 / self.half_life_messages))
        if self.half_life_seconds:
            per_ms = 1.0 / (self.half_life_seconds * 1000.0)
            kept = np.ones(len(steps_ms))
            advances = np.flatnonzero(steps_ms)  # few, where thousands of records arrive in a second
            kept[advances] = [2.0 ** (-float(step) * per_ms) for step in steps_ms[advances]]
            return kept
        return np.ones(len(steps_ms))

    def decay(self, elapsed_ms: int) -> float:
        """Share of a fold's weight that is left after this time without a message."""
        return 2.0 ** (-elapsed_ms / (self.half_life_seconds * 1000.0)) if self.half_life_seconds else 1.0


def _of_vectors(steps: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The time steps of the records' vectors: a record's time passes before its first vector."""
    if len(steps) == (n := int(counts.sum())):  # one vector each
        return steps
    of_vectors = np.zeros(n, np.int64)
    of_vectors[np.cumsum(counts) - counts] = steps
    return of_vectors
