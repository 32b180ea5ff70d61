"""The fold of one partition: what was learned from its records, with their counts and losses.

A fold is a pure function of the records: the number of messages decides where a block ends, and neither polls nor time
do. Messages that do not fill a block are pending. They are part of the checkpoint; each published model has learned
them, and the fold itself learns them when their block is full.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from streampca.fold import npz
from streampca.fold.event_time import EventTime
from streampca.fold.model_file import ModelStats
from streampca.fold.names import Names
from streampca.formats.record import Batch, LastRecord
from streampca.pca.arrays import Array
from streampca.pca.learning import LEARN_BLOCK, BeforeBlock, LearningConfig, Messages, learn, learn_whole_blocks
from streampca.pca.state import Losses, State

_EWMA_MESSAGES = 1000


@dataclass(frozen=True)
class FoldStats:
    """Counts and losses of a partition since its first record, in the form of a checkpoint's header."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    learned: npz.Count  # vectors, including the pending ones
    rejected: Mapping[str, npz.Count]  # rejected records by reason
    gap: npz.Count  # offsets that Kafka's retention removed before they were read
    with_loss: npz.Count  # messages with a loss: all after the first block
    loss: npz.Finite  # mean ‖r‖², each message projected before it was learned
    norm: npz.Finite  # mean ‖y‖² of the messages with a loss
    loss_ewma: npz.Finite  # ‖r‖² and ‖y‖², exponentially weighted over about 1000 messages
    norm_ewma: npz.Finite
    first_ms: npz.Milliseconds  # the earliest and the latest timestamp that was learned
    last_ms: npz.Milliseconds
    skipped: npz.Count = 0  # deletes; a header without it has 0

    @property
    def loss_ratio(self) -> float | None:
        """Σ‖r‖²/Σ‖y‖² of all messages with a loss; None before the first."""
        if not self.with_loss:
            return None
        return self.loss / self.norm if self.norm else 0.0

    @property
    def recent_loss(self) -> float | None:
        """‖r‖²/‖y‖² over about the last 1000 messages; None before the first."""
        return self.loss_ewma / self.norm_ewma if self.norm_ewma > 0 else None

    def of_model(self) -> ModelStats:
        """Return the part that a published model keeps."""
        has_loss = self.with_loss > 0
        return ModelStats(
            rejected=sum(self.rejected.values()),
            loss=self.loss if has_loss else None,
            loss_ratio=self.loss_ratio,
            loss_ewma=(self.recent_loss or 0.0) if has_loss else None,
            first_timestamp_ms=self.first_ms,
            last_timestamp_ms=self.last_ms,
        )

    @classmethod
    def total(cls, parts: Sequence["FoldStats"]) -> "FoldStats":
        """Return the stats of several partitions together; without parts, those of no message.

        A mean of losses weighs each part by the number of its messages with a loss.
        """
        with_loss = sum(stats.with_loss for stats in parts)

        def mean(name: str) -> float:
            if not with_loss:
                return 0.0
            return sum(stats.with_loss / with_loss * float(getattr(stats, name)) for stats in parts)

        rejected = sum((Counter(stats.rejected) for stats in parts), Counter[str]())
        return cls(
            learned=sum(stats.learned for stats in parts),
            rejected=dict(rejected),
            skipped=sum(stats.skipped for stats in parts),
            gap=sum(stats.gap for stats in parts),
            with_loss=with_loss,
            loss=mean("loss"),
            norm=mean("norm"),
            loss_ewma=mean("loss_ewma"),
            norm_ewma=mean("norm_ewma"),
            first_ms=min((stats.first_ms for stats in parts if stats.first_ms >= 0), default=-1),
            last_ms=max((stats.last_ms for stats in parts), default=-1),
        )

    def with_losses(self, losses: Iterable[Losses]) -> "FoldStats":
        """Return the stats after whole blocks with these losses.

        The losses are summed in groups of 256, and every block consists of whole groups. So the sums do not depend on
        how many blocks a batch completes.
        """
        stats = self
        for losses_of_blocks in losses:
            for start in range(0, len(losses_of_blocks.residual), LEARN_BLOCK):
                group = slice(start, start + LEARN_BLOCK)
                stats = stats._with_group(losses_of_blocks.residual[group], losses_of_blocks.norm[group])
        return stats

    def _with_group(self, residual: NDArray[Any], norm: NDArray[Any]) -> "FoldStats":
        """Return the stats after n more messages with these ‖r‖² and ‖y‖², (n,) each."""
        n = len(norm)
        mean_residual = float(np.add.reduce(residual)) / n
        mean_norm = float(np.add.reduce(norm)) / n
        with_loss = self.with_loss + n
        past = (1 - 1 / _EWMA_MESSAGES) ** n if self.with_loss else 0.0
        return replace(
            self,
            with_loss=with_loss,
            loss=self.loss + (mean_residual - self.loss) * (n / with_loss),
            norm=self.norm + (mean_norm - self.norm) * (n / with_loss),
            loss_ewma=past * self.loss_ewma + (1 - past) * mean_residual,
            norm_ewma=past * self.norm_ewma + (1 - past) * mean_norm,
        )

    def with_messages(self, timestamps: NDArray[np.int64], vector_count: int) -> "FoldStats":
        """Return the stats after `vector_count` vectors of records with these timestamps (−1: unknown) were learned."""
        stats = replace(self, learned=self.learned + vector_count)
        known = timestamps[timestamps >= 0]
        if not len(known):
            return stats
        first_ms = int(known.min())
        if self.first_ms >= 0:
            first_ms = min(self.first_ms, first_ms)
        return replace(stats, first_ms=first_ms, last_ms=max(self.last_ms, int(known.max())))

    def with_rejects(self, reasons: Sequence[str], skipped: int) -> "FoldStats":
        """Return the stats after records that were rejected for these reasons, and `skipped` deletes."""
        rejected = self.rejected
        if reasons:
            rejected = dict(Counter(self.rejected) + Counter(reasons))
        return replace(self, rejected=rejected, skipped=self.skipped + skipped)


@dataclass(frozen=True, eq=False)
class Fold:
    """What was learned from a partition up to `position`."""

    position: int  # the next offset to read; −1 if nothing was read yet
    state: State
    pending: Array  # (p, d): vectors that do not fill a block; NaN where an entry is missing
    retention: NDArray[np.float64]  # (p,): ρ of each pending vector
    event_time: EventTime
    stats: FoldStats
    last: LastRecord | None = None  # before `position`; None if nothing was read, or if its leader epoch is unknown

    @classmethod
    def empty(cls, learning_config: LearningConfig) -> "Fold":
        """Return the fold before the first record."""
        d = learning_config.dimensions
        dtype = learning_config.dtype
        return cls(
            position=-1,
            state=State.empty(d, dtype),
            pending=np.zeros((0, d), dtype),
            retention=np.zeros(0),
            event_time=EventTime(),
            stats=FoldStats.total([]),
        )

    @property
    def is_first_start(self) -> bool:
        """Whether nothing was learned or rejected."""
        return not self.stats.learned and not self.stats.rejected

    def take(
        self, batch: Batch, config: "FoldConfig", before_block: BeforeBlock | None = None
    ) -> tuple["Fold", list[Losses]]:
        """Learn a batch: return the next fold and the losses of the blocks that were completed.

        Everything that learns uses this step. Vectors are learned, rejects and deletes are counted, and the position
        moves past the batch. How a stream is divided into batches changes no bit of the fold.
        """
        decoded = batch.decoded
        event_time, steps_ms = self.event_time.advance(batch.timestamps)
        V = np.ascontiguousarray(decoded.vectors, config.learning.dtype)
        retention = config.retention(_steps_of_vectors(steps_ms, decoded.counts))
        state, pending, losses = learn_whole_blocks(
            config.learning,
            self.state,
            Messages(self.pending, self.retention),
            Messages(V, retention),
            before_block,
        )
        fold = Fold(
            position=max(batch.next, self.position),
            state=state,
            pending=pending.V,
            retention=pending.retention,
            event_time=event_time,
            stats=self.stats.with_messages(batch.timestamps, len(V)).with_losses(losses),
            last=batch.last if len(batch.records) else self.last,
        )
        return fold.reject([reject.reason for reject in decoded.rejects], len(decoded.skipped)), losses

    def reject(self, reasons: Sequence[str], skipped: int = 0) -> "Fold":
        """Return the fold after records that were rejected for these reasons, and `skipped` deletes."""
        return replace(self, stats=self.stats.with_rejects(reasons, skipped))

    def at(self, position: int) -> "Fold":
        """Return the fold at this position, or at its own if that is further. Nothing is learned."""
        return replace(self, position=max(position, self.position))

    def skip(self, position: int, lost_from: int | None = None) -> "Fold":
        """Return the fold at a later position, and count the offsets in between as lost.

        They are counted from `lost_from`, by default from the fold's position. If nothing was read yet, none is lost.
        """
        if lost_from is None:
            lost_from = self.position
        lost = max(position - lost_from, 0) if self.position >= 0 else 0
        stats = replace(self.stats, gap=self.stats.gap + lost)
        return replace(self, position=position, last=None, stats=stats)

    def without_pending(self) -> "Fold":
        """Return the fold without its pending messages, at the same position."""
        return replace(self, pending=self.pending[:0], retention=self.retention[:0])

    def provisional(self, learning_config: LearningConfig) -> State:
        """Return the state after the pending messages, for a model. The fold itself does not learn them yet."""
        state, _ = learn(self.state, self.pending, self.retention, learning_config)
        return state


@dataclass(frozen=True)
class FoldConfig:
    """All settings that change the bits of a fold, and the names of the dimensions.

    A checkpoint that was made with other settings is refused.
    """

    learning: LearningConfig
    half_life_messages: float | None = None
    half_life_seconds: float | None = None
    format: str = "json"
    field: str = ""
    names: Names = None

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in the form that a checkpoint keeps."""
        missing = "impute" if self.learning.impute else "refuse"
        settings = vars(self.learning) | vars(self) | {"start": self.learning.start, "missing": missing}
        not_kept = ("names", "learning", "impute", "factor")
        return {name: value for name, value in settings.items() if name not in not_kept}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], names: Names = None) -> "FoldConfig":
        """Return the configuration that `as_dict` turned into these settings."""
        # `as_dict` leaves out `factor`, which only tests set, and writes `impute` as `missing`.
        settings = dict(settings) | {"impute": settings["missing"] == "impute", "factor": False}
        learning = LearningConfig(**{field.name: settings[field.name] for field in fields(LearningConfig)})
        own_names = [field.name for field in fields(cls) if field.name not in ("learning", "names")]
        own = {name: settings[name] for name in own_names}
        return cls(learning=learning, names=names, **own)

    def retention(self, steps_ms: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ρ of each message (n,), the share of the earlier weight that it leaves.

        `steps_ms` (n,) are the times by which the messages advanced the event time.
        """
        if self.half_life_messages:
            return np.full(len(steps_ms), 2.0 ** (-1.0 / self.half_life_messages))
        retention = np.ones(len(steps_ms))
        if self.half_life_seconds:
            per_ms = 1.0 / (self.half_life_seconds * 1000.0)
            # Powers are computed only where time advanced: rarely, if thousands of records arrive in a second.
            advances = np.flatnonzero(steps_ms)
            retention[advances] = [2.0 ** (-float(step) * per_ms) for step in steps_ms[advances]]
        return retention

    def decay(self, elapsed_ms: int) -> float:
        """Return the share of a fold's weight that is left after this time without a message."""
        if not self.half_life_seconds:
            return 1.0
        elapsed_half_lives = elapsed_ms / (self.half_life_seconds * 1000.0)
        return float(2.0**-elapsed_half_lives)


def _steps_of_vectors(steps_ms: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the time step of each vector, from those of the records and their numbers of vectors.

    The whole step of a record is that of its first vector; its other vectors have none.
    """
    vector_count = int(counts.sum())
    if len(steps_ms) == vector_count:  # each record has one vector
        return steps_ms
    first_vectors = np.cumsum(counts) - counts
    steps = np.zeros(vector_count, np.int64)
    steps[first_vectors] = steps_ms
    return steps
