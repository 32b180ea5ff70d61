"""The fold of one partition: a pure function of its records, independent of the batches in which they arrive.

Blocks are cut on the number of messages (pca/pending.py), never where a poll ends or on time. Messages that do not fill
a block are pending: part of the checkpoint, and learned provisionally for each published model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.fold.decoded import Batch
from streampca.fold.event_time import EventTime
from streampca.fold.record import LastRecord
from streampca.pca import learning
from streampca.pca.arrays import Array
from streampca.pca.learning import BLOCK, BeforeBlock, LearningConfig, ignore
from streampca.pca.losses import Losses
from streampca.pca.pending import Messages, learn_whole_blocks
from streampca.pca.state import State

EWMA_MESSAGES = 1000


@dataclass(frozen=True)
class FoldConfig:
    """All settings that change the bits of a fold. A checkpoint made with other ones is refused."""

    learning: LearningConfig
    half_life_messages: float | None = None
    half_life_seconds: float | None = None
    format: str = "json"
    field: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Names and values as stored in a checkpoint."""
        own = {name: value for name, value in vars(self).items() if name != "learning"}
        of_model = {name: value for name, value in vars(self.learning).items() if name != "impute"}
        return {
            **of_model,
            **own,
            "start": self.learning.start,
            "missing": "impute" if self.learning.impute else "refuse",
        }

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "FoldConfig":
        """The settings that `as_dict` has given."""
        given = dict(settings) | {"impute": settings["missing"] == "impute"}
        learning = LearningConfig(**{each.name: given[each.name] for each in fields(LearningConfig)})
        return cls(learning, **{each.name: given[each.name] for each in fields(cls) if each.name != "learning"})

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


@dataclass(frozen=True)
class FoldStats:
    """Counts and losses of a partition since its first record."""

    learned: int = 0  # vectors, including the pending ones
    rejected: Mapping[str, int] = field(default_factory=dict)  # rejected records by reason
    gap: int = 0  # offsets that Kafka's retention removed before they were read
    with_loss: int = 0  # messages with a loss: all but those of the first block
    loss: float = 0.0  # mean ‖r‖², each message projected before it was learned
    norm: float = 0.0  # mean ‖y‖² of the same
    loss_ewma: float = 0.0  # the same means, exponentially weighted over about 1000 messages
    norm_ewma: float = 0.0
    first_ms: int = -1  # the least and the greatest timestamp learned
    last_ms: int = -1

    @property
    def recent_loss(self) -> float | None:
        """‖r‖²/‖y‖² over about the last 1000 messages; None before the first."""
        return self.loss_ewma / self.norm_ewma if self.norm_ewma > 0 else None

    @classmethod
    def total(cls, parts: Sequence["FoldStats"]) -> "FoldStats":
        """The stats of several partitions together; the losses weighted by the messages that have one."""
        with_loss = sum(stats.with_loss for stats in parts)

        def mean(name: str) -> float:
            return sum(s.with_loss / with_loss * float(getattr(s, name)) for s in parts) if with_loss else 0.0

        rejected: dict[str, int] = {}
        for stats in parts:
            for reason, count in stats.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + count
        return cls(
            learned=sum(stats.learned for stats in parts),
            rejected=rejected,
            gap=sum(stats.gap for stats in parts),
            with_loss=with_loss,
            loss=mean("loss"),
            norm=mean("norm"),
            loss_ewma=mean("loss_ewma"),
            norm_ewma=mean("norm_ewma"),
            first_ms=min((stats.first_ms for stats in parts if stats.first_ms >= 0), default=-1),
            last_ms=max((stats.last_ms for stats in parts), default=-1),
        )

    def with_losses(self, losses: Losses) -> "FoldStats":
        """The stats after whole blocks with these losses: summed by 256, of which every block is a multiple."""
        stats = self
        for start in range(0, len(losses.residual), BLOCK):
            residual, norm = (float(np.add.reduce(part[start : start + BLOCK])) for part in losses)
            stats = stats._with_block(min(BLOCK, len(losses.residual) - start), residual, norm)
        return stats

    def _with_block(self, n: int, residual: float, norm: float) -> "FoldStats":
        """The stats after n more messages with these sums of ‖r‖² and ‖y‖²."""
        residual, norm, with_loss = residual / n, norm / n, self.with_loss + n
        kept = (1 - 1 / EWMA_MESSAGES) ** n if self.with_loss else 0.0
        return replace(
            self,
            with_loss=with_loss,
            loss=self.loss + (residual - self.loss) * (n / with_loss),
            norm=self.norm + (norm - self.norm) * (n / with_loss),
            loss_ewma=kept * self.loss_ewma + (1 - kept) * residual,
            norm_ewma=kept * self.norm_ewma + (1 - kept) * norm,
        )

    def with_messages(self, timestamps: NDArray[np.int64], vectors: int) -> "FoldStats":
        """The stats after learning this number of vectors, from records with these timestamps."""
        known = timestamps[timestamps >= 0]
        if not len(known):
            return replace(self, learned=self.learned + vectors)
        first, last = int(known.min()), int(known.max())
        return replace(
            self,
            learned=self.learned + vectors,
            first_ms=min(self.first_ms, first) if self.first_ms >= 0 else first,
            last_ms=max(self.last_ms, last),
        )

    def with_rejects(self, reasons: Sequence[str]) -> "FoldStats":
        """The stats after records that were rejected for these reasons."""
        counts = dict(self.rejected)
        for reason in reasons:
            counts[reason] = counts.get(reason, 0) + 1
        return replace(self, rejected=counts) if reasons else self


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
        pending = np.zeros((0, learning_config.dimensions), learning_config.dtype)
        return cls(
            -1,
            State.empty(learning_config.dimensions, learning_config.dtype),
            pending,
            np.zeros(0),
            EventTime(),
            FoldStats(),
        )

    def take(self, batch: Batch, config: FoldConfig, before_block: BeforeBlock = ignore) -> tuple["Fold", list[Losses]]:
        """The next fold: (fold, records) → fold, the one step of all that learns. Also returns the losses.

        Vectors are learned, rejects are counted, and the position moves behind the batch. How a stream is cut into
        batches changes no bit.
        """
        decoded = batch.decoded
        fold, losses = self.learn(decoded.vectors, batch.timestamps, batch.next, config, decoded.counts, before_block)
        fold = fold.reject([reject.reason for reject in decoded.rejects])
        return fold.after(batch.last) if len(batch.records) else fold, losses

    def learn(
        self,
        vectors: Array,
        timestamps: Sequence[int] | NDArray[np.int64],
        position: int,
        fold_config: FoldConfig,
        counts: NDArray[np.int64] | None = None,
        before_block: BeforeBlock = ignore,
    ) -> tuple["Fold", list[Losses]]:
        """Learn vectors (n, d) of records with these timestamps, all before `position`; also returns the losses.

        `counts` holds the number of vectors in each record, at least one; None: one each. A record's time passes before
        its first vector.
        """
        timestamps = np.asarray(timestamps, np.int64)
        event_time, steps = self.event_time.advance(timestamps)
        V = np.ascontiguousarray(vectors, fold_config.learning.dtype)
        if counts is not None and len(V) > len(timestamps):
            steps = _at_first_vectors(steps, counts)
        new, waiting = Messages(V, fold_config.retention(steps)), Messages(self.pending, self.retention)
        state, pending, losses = learn_whole_blocks(fold_config.learning, self.state, waiting, new, before_block)
        stats = self.stats.with_messages(timestamps, len(V)) if len(V) else self.stats
        for of_blocks in losses:
            stats = stats.with_losses(of_blocks)
        return Fold(max(position, self.position), state, *pending, event_time, stats, self.last), losses

    def reject(self, reasons: Sequence[str]) -> "Fold":
        """Count records that were rejected for these reasons."""
        return replace(self, stats=self.stats.with_rejects(reasons))

    def at(self, position: int) -> "Fold":
        """Advance the position; nothing is learned."""
        return replace(self, position=max(position, self.position))

    def after(self, last: LastRecord | None) -> "Fold":
        """Note the last record that was learned or rejected."""
        return replace(self, last=last)

    def skip(self, position: int, lost_from: int | None = None) -> "Fold":
        """Continue from a later position, and count the offsets from `lost_from` (None: from the fold's position)."""
        lost = position - (self.position if lost_from is None else lost_from) if self.position >= 0 else 0
        return replace(self, position=position, last=None, stats=replace(self.stats, gap=self.stats.gap + max(lost, 0)))

    def without_pending(self) -> "Fold":
        """The fold as if the pending messages were not there; its position stays."""
        return replace(self, pending=self.pending[:0], retention=self.retention[:0])

    def provisional(self, learning_config: LearningConfig) -> State:
        """The state after the pending messages too, for publishing."""
        if not len(self.pending):
            return self.state
        return learning.learn(self.state, self.pending, self.retention, learning_config)[0]


def _at_first_vectors(steps: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Time steps of records as time steps of their vectors: each passes before the record's first vector."""
    of_vectors = np.zeros(counts.sum(), np.int64)
    of_vectors[np.cumsum(counts) - counts] = steps
    return of_vectors
