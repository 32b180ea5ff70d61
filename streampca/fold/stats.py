"""Counts and losses of the records that a fold has learned."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from streampca.fold import npz
from streampca.fold.model_file import ModelStats
from streampca.pca.state import Losses

_NO_TIME = -1  # no timestamp is known
_COUNTS = ("learned", "skipped", "gap", "with_loss")  # fields of `FoldStats` that are summed over partitions
_MEANS = ("loss", "norm", "loss_ewma", "norm_ewma")  # fields that are averaged over messages with a loss
_EWMA_MESSAGES = 1000  # about how many messages the exponentially weighted means remember
_LOSS_GROUP = 256  # messages whose losses are summed together; another number would change the last bits of the sums


@dataclass(frozen=True)
class FoldStats:
    """Counts and losses of a partition since its first record, in the form of a checkpoint's header."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    learned: npz.Count  # vectors, including the pending ones
    rejected: Mapping[str, npz.Count]  # rejected records by reason
    gap: npz.Count  # lost offsets: Kafka's retention removed them before they were read
    with_loss: npz.Count  # how many messages have a loss: all after the first block
    loss: npz.Finite  # mean ‖r‖², each message projected before it was learned
    norm: npz.Finite  # mean ‖y‖² of the messages with a loss
    loss_ewma: npz.Finite  # ‖r‖² and ‖y‖², exponentially weighted over about 1000 messages
    norm_ewma: npz.Finite
    first_ms: npz.Milliseconds  # the earliest and the latest timestamp that was learned
    last_ms: npz.Milliseconds
    skipped: npz.Count = 0  # deletes; a header without it has 0

    @property
    def messages(self) -> int:
        """Number of messages that were received: learned and rejected ones, and deletes."""
        return self.learned + sum(self.rejected.values()) + self.skipped

    @property
    def loss_ratio(self) -> float | None:
        """Σ‖r‖²/Σ‖y‖² of all messages with a loss; None before there is one."""
        if not self.with_loss:
            return None
        return self.loss / self.norm if self.norm else 0.0

    @property
    def recent_loss(self) -> float | None:
        """‖r‖²/‖y‖² over about the last 1000 messages; None if they have ‖y‖² = 0, or if no message has a loss yet."""
        return self.loss_ewma / self.norm_ewma if self.norm_ewma > 0 else None

    def summarise_for_model(self) -> ModelStats:
        """Return what a published model keeps. Losses are None if no vector was compared with a model."""
        loss = None
        recent_loss = None
        has_messages_with_loss = self.with_loss > 0
        if has_messages_with_loss:
            loss = self.loss
            # `self.recent_loss` is None if all recent vectors equal the mean: then nothing was lost.
            recent_loss = self.recent_loss or 0.0
        return ModelStats(
            rejected=sum(self.rejected.values()),
            loss=loss,
            loss_ratio=self.loss_ratio,
            loss_ewma=recent_loss,  # the ratio ‖r‖²/‖y‖² of recent messages, not of all
            first_timestamp_ms=self.first_ms,
            last_timestamp_ms=self.last_ms,
        )

    @classmethod
    def total(cls, stats_of_partitions: Sequence["FoldStats"]) -> "FoldStats":
        """Return the stats of several partitions together.

        Losses are averaged by the numbers of messages with a loss.
        """
        counts = {name: sum(getattr(stats, name) for stats in stats_of_partitions) for name in _COUNTS}
        loss_count = max(counts["with_loss"], 1)
        means: dict[str, Any] = {
            name: float(sum(stats.with_loss / loss_count * getattr(stats, name) for stats in stats_of_partitions))
            for name in _MEANS
        }
        rejected = Counter[str]()
        for stats in stats_of_partitions:
            rejected += Counter(stats.rejected)
        known_first_ms = [stats.first_ms for stats in stats_of_partitions if stats.first_ms != _NO_TIME]
        return cls(
            rejected=dict(rejected),
            first_ms=min(known_first_ms, default=_NO_TIME),
            last_ms=max((stats.last_ms for stats in stats_of_partitions), default=_NO_TIME),
            **counts,
            **means,
        )

    def with_losses(self, losses: Iterable[Losses]) -> "FoldStats":
        """Return the stats after whole blocks with these losses.

        Each block is divided into groups of 256 messages, and the losses are added group by group. So the rounding is
        the same whether the blocks come in one call or in several.
        """
        stats = self
        for block in losses:
            for start in range(0, len(block.residual), _LOSS_GROUP):
                group = slice(start, start + _LOSS_GROUP)
                stats = stats._after_messages(block.residual[group], block.norm[group])
        return stats

    def _after_messages(self, squared_residuals: NDArray[Any], squared_norms: NDArray[Any]) -> "FoldStats":
        """Return the stats after n more messages: ‖r‖² (n,) of their residuals, ‖y‖² (n,) of their centred vectors."""
        n = len(squared_norms)
        mean_loss = float(np.add.reduce(squared_residuals)) / n
        mean_norm = float(np.add.reduce(squared_norms)) / n
        count_before = self.with_loss  # how many messages had a loss before
        count_after = count_before + n
        # In the plain means `loss` and `norm`, each message has the same weight: the new messages have this share.
        new_share = n / count_after
        # In the exponentially weighted means, the earlier messages have this share.
        earlier_share = (1 - 1 / _EWMA_MESSAGES) ** n if count_before > 0 else 0.0
        return replace(
            self,
            with_loss=count_after,
            loss=self.loss + (mean_loss - self.loss) * new_share,
            norm=self.norm + (mean_norm - self.norm) * new_share,
            loss_ewma=earlier_share * self.loss_ewma + (1 - earlier_share) * mean_loss,
            norm_ewma=earlier_share * self.norm_ewma + (1 - earlier_share) * mean_norm,
        )

    def with_messages(self, timestamps: NDArray[np.int64], vector_count: int) -> "FoldStats":
        """Return the stats after more vectors from records with these timestamps (−1: unknown)."""
        stats = replace(self, learned=self.learned + vector_count)
        known_ms = timestamps[timestamps >= 0]
        if not len(known_ms):
            return stats
        first_ms = int(known_ms.min())
        if self.first_ms != _NO_TIME:
            first_ms = min(self.first_ms, first_ms)
        return replace(stats, first_ms=first_ms, last_ms=max(self.last_ms, int(known_ms.max())))

    def with_rejects(self, reasons: Sequence[str], skipped: int) -> "FoldStats":
        """Return the stats after records were rejected for these reasons, and deletes were skipped."""
        rejected = self.rejected
        if reasons:
            rejected = dict(Counter(self.rejected) + Counter(reasons))
        return replace(self, rejected=rejected, skipped=self.skipped + skipped)
