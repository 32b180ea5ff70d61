"""The fold of one partition, with its counts and losses: a pure function of its records, however they are batched.

Blocks are cut on the number of messages, never where a poll ends or on time. Messages that do not fill a block are
pending: part of the checkpoint, and learned provisionally for each published model.
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
    """Counts and losses of a partition since its first record, as a checkpoint's header has them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    learned: npz.Count  # vectors, including the pending ones
    rejected: Mapping[str, npz.Count]  # rejected records by reason
    gap: npz.Count  # offsets that Kafka's retention removed before they were read
    with_loss: npz.Count  # messages with a loss: all after the first block
    loss: npz.Finite  # mean ‖r‖², each message projected before it was learned
    norm: npz.Finite  # mean ‖y‖² of the same
    loss_ewma: npz.Finite  # the same means, exponentially weighted over about 1000 messages
    norm_ewma: npz.Finite
    first_ms: npz.Milliseconds  # the least and the greatest timestamp learned
    last_ms: npz.Milliseconds
    skipped: npz.Count = 0  # deletes: records without a value, or with null in place of a vector; in the header if any

    @property
    def loss_ratio(self) -> float | None:
        """Σ‖r‖²/Σ‖y‖² of all messages with a loss; None before the first."""
        return (self.loss / self.norm if self.norm else 0.0) if self.with_loss else None

    @property
    def recent_loss(self) -> float | None:
        """‖r‖²/‖y‖² over about the last 1000 messages; None before the first."""
        return self.loss_ewma / self.norm_ewma if self.norm_ewma > 0 else None

    def of_model(self) -> ModelStats:
        """The part that a model keeps."""
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
        """The stats of several partitions together; the losses weighted by the messages that have one."""
        with_loss = sum(stats.with_loss for stats in parts)

        def mean(name: str) -> float:
            return sum(s.with_loss / with_loss * float(getattr(s, name)) for s in parts) if with_loss else 0.0

        return cls(
            learned=sum(stats.learned for stats in parts),
            rejected=dict(sum((Counter(stats.rejected) for stats in parts), Counter[str]())),
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
        """The stats after whole blocks with these losses: summed by 256, of which every block is a multiple."""
        stats = self
        for of_blocks in losses:
            for start in range(0, len(of_blocks.residual), LEARN_BLOCK):
                residual, norm = (part[start : start + LEARN_BLOCK] for part in of_blocks)
                stats = stats._with_block(len(norm), float(np.add.reduce(residual)), float(np.add.reduce(norm)))
        return stats

    def _with_block(self, n: int, residual: float, norm: float) -> "FoldStats":
        """The stats after n more messages with these sums of ‖r‖² and ‖y‖²."""
        residual, norm, with_loss = residual / n, norm / n, self.with_loss + n
        past = (1 - 1 / _EWMA_MESSAGES) ** n if self.with_loss else 0.0
        return replace(
            self,
            with_loss=with_loss,
            loss=self.loss + (residual - self.loss) * (n / with_loss),
            norm=self.norm + (norm - self.norm) * (n / with_loss),
            loss_ewma=past * self.loss_ewma + (1 - past) * residual,
            norm_ewma=past * self.norm_ewma + (1 - past) * norm,
        )

    def with_messages(self, timestamps: NDArray[np.int64], vectors: int) -> "FoldStats":
        """The stats after learning this number of vectors, from records with these timestamps."""
        stats, timestamps = replace(self, learned=self.learned + vectors), timestamps[timestamps >= 0]
        if not len(timestamps):
            return stats
        first, last = int(timestamps.min()), int(timestamps.max())
        first = min(self.first_ms, first) if self.first_ms >= 0 else first
        return replace(stats, first_ms=first, last_ms=max(self.last_ms, last))

    def with_rejects(self, reasons: Sequence[str], skipped: int) -> "FoldStats":
        """The stats after records that were rejected for these reasons, and skipped deletes."""
        rejected = dict(Counter(self.rejected) + Counter(reasons)) if reasons else self.rejected
        return replace(self, rejected=rejected, skipped=self.skipped + skipped)


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
        return learn(self.state, self.pending, self.retention, learning_config)[0]


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
