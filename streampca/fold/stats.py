"""Counts and losses of a partition, and of several together."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from streampca.fold import npz
from streampca.pca.learning import LEARN_BLOCK
from streampca.pca.state import Losses

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
