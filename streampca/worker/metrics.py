"""The metrics of a worker: what every member counts, its checkpoints and its models."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from streampca.consumer_group.events import (
    BatchLearned,
    CheckpointPostponed,
    CheckpointSaved,
    ModelPublished,
    OffsetsSkipped,
    PartitionsAssigned,
    PartitionsMissing,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RecordRejected,
    RecordsSkipped,
    RestoreBegun,
    RestoreFailed,
)
from streampca.consumer_group.member import Change
from streampca.consumer_group.metrics import PARTITION, MemberMetrics, MetricsTable
from streampca.pca.state import Losses

# The upper bounds of the buckets of histograms.
_RATIOS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_P_VALUES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)


class BulkHistogram(Collector):
    """A histogram that observes whole arrays at once; prometheus_client's takes a microsecond for each value."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        """`bounds` are the inclusive upper bounds of the buckets, ascending; one up to +Inf is added.

        `labels` must be empty. It is a parameter because every type in a `MetricsTable` is called with labels.
        """
        self._name = name
        self._documentation = documentation
        self._bounds = np.array(bounds)
        # One tuple, so that a scrape never sees new counts with an old sum.
        self._counts_and_sum = (np.zeros(len(bounds) + 1, np.int64), 0.0)
        registry.register(self)

    def observe(self, values: NDArray[np.float64]) -> None:
        """Count the values in their buckets, and add them to the sum."""
        counts, total = self._counts_and_sum
        buckets = np.searchsorted(self._bounds, values)
        new_counts = counts + np.bincount(buckets, minlength=len(counts))
        self._counts_and_sum = (new_counts, total + float(np.sum(values)))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram. Of each bucket, Prometheus expects the number of all values up to its upper bound."""
        counts, total = self._counts_and_sum
        cumulative = np.cumsum(counts)
        names = [floatToGoString(bound) for bound in [*self._bounds, np.inf]]  # type: ignore[no-untyped-call]
        buckets = [(name, float(count)) for name, count in zip(names, cumulative, strict=True)]
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=total)


_TABLE: MetricsTable = {
    (Counter, ("outcome",)): {"messages": "Messages processed, by outcome: learned, rejected or skipped."},
    (Counter, ("reason",)): {
        "records_rejected": "Records rejected, by reason.",
        "records_skipped": "Records skipped, by reason; no_value: a tombstone, or null at `field`; where: not meant.",
    },
    (Counter, ("event",)): {"rebalances": "Rebalance events: partitions assigned, revoked or lost."},
    (Counter, ()): {
        "learn_seconds": "Time spent learning.",
        "vectors_with_gaps": "Vectors that lack entries, with missing=impute.",
        "offset_gap_messages": "Offsets skipped: removed by retention, or replaced in a truncated log.",
        "restore_failures": "Attempts to restore assigned partitions from the store that failed.",
        "checkpoints_postponed": "Checkpoint writes postponed after a failure.",
        "publish_failures": "Attempts to publish a model that failed.",
        "odd_timestamps": "Records with a timestamp outside 1990 to 2100, with half_life_seconds.",
    },
    (Gauge, ()): {
        "published_version": "Version of the last model published: the number of messages learned.",
        "partitions_missing": "Partitions and backfills that models wait for, or whose checkpoints cannot be read.",
        "explained_variance_ratio": "Share of the variance explained by the last model published.",
    },
    (Gauge, PARTITION): {
        "loss_ewma": "Relative residual, exponentially weighted over about the last 1000 messages.",
        "pinv_error": "Largest entry of |S CᵀC − I| after the last block, S as updated through it.",
        "clipped_messages": "Messages that were too far from the mean to be learned as they are, and were moved "
        "towards it.",
        "missing_entries_ratio": "Share of entries that messages lack, forgotten as models forget.",
        "consumer_lag_messages": "Consumer lag: messages behind the log's end.",
        "next_offset": "Offset of the next message to learn.",
        "event_time_lag_seconds": "Age of the newest record, by its timestamp, when it was learned.",
        "stalled": "1 while the schema registry does not answer, so that records cannot be decoded.",
        "timestamps_ahead": "Records with a timestamp more than a day ahead of the event time.",
        "checkpoint_last_success_timestamp_seconds": "Time of the last checkpoint written.",
    },
    (Histogram, ()): {
        "checkpoint_duration_seconds": "Time to write a checkpoint.",
        "publish_duration_seconds": "Time to merge the partitions' states and write a model.",
    },
    (partial(BulkHistogram, bounds=_RATIOS), ()): {
        "prequential_loss_ratio": "Relative residual ‖r‖²/‖y‖² of each message, scored before it was learned.",
    },
    (partial(BulkHistogram, bounds=_P_VALUES), ()): {
        "p_value": "p-values of the messages pending at each publication; uniform unless the stream changes.",
    },
}


class WorkerMetrics(MemberMetrics):
    """The metrics of one worker and its partitions, in a registry of their own; the topic is a label of each.

    In each call of `_record`, the keywords are the names of metrics, and `label` is the value of the label that they
    have in addition to the topic: an outcome, a reason or a partition.
    """

    def __init__(self, topic: str) -> None:
        super().__init__("worker", topic, "streampca_", _TABLE)

    def observe(self, change: Change) -> None:
        """Update the metrics that an event changes."""
        super().observe(change)
        match change.event:
            case BatchLearned():
                self._on_batch(change.event, change.now.unix_s)
            case RecordRejected(reason=reason):
                self._record(label="rejected", messages=1)
                self._record(label=reason, records_rejected=1)
            case RecordsSkipped(count, reason=reason):
                self._record(label="skipped", messages=count)
                self._record(label=reason, records_skipped=count)
            case CheckpointSaved(partition, fold, seconds):
                has_learned_block = fold.state.rank > 0  # otherwise there are no axes
                self._record(checkpoint_duration_seconds=seconds)
                self._record(
                    label=partition,
                    checkpoint_last_success_timestamp_seconds=change.now.unix_s,
                    # How far the updated inverse of CᵀC was from the exact inverse.
                    pinv_error=fold.state.pinv_error if has_learned_block else None,
                )
            case CheckpointPostponed():
                self._record(checkpoints_postponed=1)
            case ModelPublished(model, seconds, p_values):
                self._record(
                    publish_duration_seconds=seconds,
                    published_version=model.version,
                    explained_variance_ratio=float(model.model.explained_variance_ratio.sum()),
                    p_value=p_values,
                )
            case PartitionsMissing(causes):
                self._record(partitions_missing=len(causes))
            case PublishFailed():
                self._record(publish_failures=1)
            case PartitionStalled(partition, lag):
                self._record(label=partition, stalled=1, consumer_lag_messages=lag)
            case OffsetsSkipped(_, position, to):
                self._record(offset_gap_messages=max(to - position, 0))  # a counter refuses a negative number
            case RestoreFailed():
                self._record(restore_failures=1)
            case RestoreBegun():  # once for each assignment; `PartitionsAssigned` comes when partitions are restored
                self._record(label="assigned", rebalances=1)
            case PartitionsAssigned(positions):
                for partition in positions:
                    self._record(label=partition, stalled=0)
            case PartitionsReleased(_, lost):
                self._record(partitions_missing=0)  # the missing ones are reported again
                self._record(label="lost" if lost else "revoked", rebalances=1)

    def _on_batch(self, batch: BatchLearned, now: float) -> None:
        """Update the metrics that a batch changes. `now` is in seconds since 1970."""
        fold = batch.fold
        missing_shares = fold.state.missing  # by dimension; None: no gaps
        newest_ms = fold.stats.last_ms  # negative: unknown
        # Labelled by outcome.
        self._record(label="learned", messages=batch.messages)
        # Without a label.
        self._record(
            learn_seconds=batch.seconds, vectors_with_gaps=batch.incomplete, odd_timestamps=len(batch.odd_timestamps)
        )
        # Labelled by partition. `_record` leaves a metric as it is if its value is None.
        self._record(
            label=batch.partition,
            consumer_lag_messages=batch.lag,
            next_offset=fold.position,
            stalled=0,  # records could be decoded
            timestamps_ahead=fold.event_time.ahead,
            clipped_messages=fold.state.clipped,
            missing_entries_ratio=None if missing_shares is None else float(missing_shares.mean()),
            event_time_lag_seconds=now - newest_ms / 1000 if newest_ms >= 0 else None,
            loss_ewma=fold.stats.recent_loss,
        )
        if batch.losses:  # without a label; a batch without a learned block has no losses
            self._record(prequential_loss_ratio=_compute_loss_ratios(batch.losses))


def _compute_loss_ratios(all_losses: Sequence[Losses]) -> NDArray[np.float64]:
    """Return ‖r‖²/‖y‖² of each message with ‖y‖² > 0."""
    r_squared = np.concatenate([losses.residual for losses in all_losses])
    y_squared = np.concatenate([losses.norm for losses in all_losses])
    is_not_zero = y_squared > 0
    ratios: NDArray[np.float64] = r_squared[is_not_zero] / y_squared[is_not_zero]
    return ratios
