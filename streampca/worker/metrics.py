"""The worker's metrics for Prometheus, kept by a listener."""

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from streampca.consumer_group import listener as events
from streampca.consumer_group.listener import MemberEvent
from streampca.consumer_group.metrics import MemberMetrics, Row

_RATIO_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_P_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)

_PARTITION = ("partition",)
_TABLE: tuple[Row, ...] = (
    (Counter, "messages", ("outcome",), "Messages processed, by outcome: learned or rejected."),
    (Counter, "learn_seconds", (), "Time spent learning."),
    (Counter, "dead_letters", ("reason",), "Records rejected, by reason."),
    (Counter, "vectors_with_gaps", (), "Vectors that lack entries, with missing=impute."),
    (Counter, "offset_gap_messages", (), "Offsets skipped: removed by retention, or replaced in a truncated log."),
    (Counter, "rebalances", ("event",), "Rebalance events: partitions assigned, revoked or lost."),
    (Counter, "restore_failures", (), "Attempts to restore assigned partitions from the store that failed."),
    (Counter, "checkpoints_postponed", (), "Checkpoint writes postponed after a failure."),
    (Counter, "publish_failures", (), "Attempts to publish a model that failed."),
    (Gauge, "published_version", (), "Version of the last model published: the number of messages learned."),
    (Gauge, "explained_variance_ratio", (), "Share of the variance explained by the last model published."),
    (Gauge, "loss_ewma", _PARTITION, "Relative residual, exponentially weighted over about the last 1000 messages."),
    (Gauge, "pinv_error", _PARTITION, "Largest entry of |S CᵀC − I| after the last block, S as updated through it."),
    (Gauge, "shortened_messages", _PARTITION, "Messages that were too far from the mean to be learned as they are, and "
     "were moved towards it."),
    (Gauge, "missing_entries_ratio", _PARTITION, "Share of entries that messages lack, forgotten as models forget."),
    (Gauge, "consumer_lag_messages", _PARTITION, "Consumer lag: messages behind the log's end."),
    (Gauge, "next_offset", _PARTITION, "Offset of the next message to learn."),
    (Gauge, "event_time_lag_seconds", _PARTITION, "Age of the newest record, by its timestamp, when it was learned."),
    (Gauge, "stalled", _PARTITION, "1 while the schema registry does not answer, so that records cannot be decoded."),
    (Gauge, "timestamps_ahead", _PARTITION, "Records with a timestamp more than a day ahead of the event time."),
    (Gauge, "checkpoint_last_success_timestamp_seconds", _PARTITION, "Time of the last checkpoint written."),
    (Histogram, "checkpoint_duration_seconds", (), "Time to write a checkpoint."),
    (Histogram, "publish_duration_seconds", (), "Time to merge the partitions' states and write a model."),
)  # fmt: skip


class WorkerMetrics(MemberMetrics):
    """The metrics of one worker and its partitions, in a registry of their own; all with the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, "streampca_", _TABLE)
        self._loss_ratio = BulkHistogram(
            "streampca_prequential_loss_ratio",
            "Relative residual ‖r‖²/‖y‖² of each message, scored before it was learned.",
            registry=self.registry,
            buckets=_RATIO_BUCKETS,
        )
        self._p_values = BulkHistogram(
            "streampca_p_value",
            "p-values of the messages pending at each publication; uniform unless the stream changes.",
            registry=self.registry,
            buckets=_P_BUCKETS,
        )

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case events.BatchLearned():
                self._on_batch(event)
            case events.RecordRejected():
                self._metrics["messages"].labels("rejected").inc()
                self._metrics["dead_letters"].labels(event.reason).inc()
            case events.CheckpointSaved():
                self._on_checkpoint(event)
            case events.CheckpointPostponed():
                self._metrics["checkpoints_postponed"].inc()
            case events.ModelPublished(model, seconds, p_values):
                self._metrics["publish_duration_seconds"].observe(seconds)
                self._metrics["published_version"].set(model.version)
                self._metrics["explained_variance_ratio"].set(float(model.model.explained_variance_ratio.sum()))
                if p_values is not None:
                    self._p_values.observe(p_values)
            case events.PublishFailed():
                self._metrics["publish_failures"].inc()
            case events.PartitionStalled(partition, lag):
                self._set(partition, stalled=1, consumer_lag_messages=lag)
            case events.PartitionResumed(partition):
                self._set(partition, stalled=0)
            case events.OffsetsSkipped(_, position, to):
                self._metrics["offset_gap_messages"].inc(max(to - position, 0))
            case events.RestoreFailed():
                self._metrics["restore_failures"].inc()
            case events.PartitionsAssigned(positions):
                self._on_assignment(positions)
            case events.PartitionsReleased(_, lost):
                self._metrics["rebalances"].labels("lost" if lost else "revoked").inc()

    def _on_assignment(self, positions: Mapping[int, int]) -> None:
        self._metrics["rebalances"].labels("assigned").inc()
        for partition in positions:
            self._set(partition, stalled=0)

    def _on_batch(self, batch: events.BatchLearned) -> None:
        self._metrics["messages"].labels("learned").inc(batch.messages)
        self._metrics["learn_seconds"].inc(batch.seconds)
        fold, stats = batch.fold, batch.fold.stats
        self._set(
            batch.partition,
            consumer_lag_messages=batch.lag,
            next_offset=fold.position,
            timestamps_ahead=fold.event_time.ahead,
            shortened_messages=fold.state.shortened,
        )
        self._metrics["vectors_with_gaps"].inc(batch.gaps)
        if fold.state.gaps is not None:
            self._set(batch.partition, missing_entries_ratio=float(fold.state.gaps.entries.mean()))
        if stats.last_ms >= 0:
            self._set(batch.partition, event_time_lag_seconds=time.time() - stats.last_ms / 1000)
        if (loss := stats.recent_loss) is not None:
            self._set(batch.partition, loss_ewma=loss)
        if batch.losses:
            residual, norm = (np.concatenate(column) for column in zip(*batch.losses, strict=True))
            self._loss_ratio.observe(residual[norm > 0] / norm[norm > 0])

    def _on_checkpoint(self, event: events.CheckpointSaved) -> None:
        self._metrics["checkpoint_duration_seconds"].observe(event.seconds)
        self._set(event.partition, checkpoint_last_success_timestamp_seconds=time.time())
        if event.fold.state.rank:
            self._set(event.partition, pinv_error=event.fold.state.pinv_error)


class BulkHistogram(Collector):
    """As `prometheus_client.Histogram`, without its time of creation, but takes arrays: that takes a µs a value."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        """`buckets` are the inclusive upper bounds, ascending; the bucket up to +Inf is added."""
        self._name, self._documentation, self._bounds = name, documentation, np.array(buckets)
        self._seen = np.zeros(len(buckets) + 1, np.int64), 0.0  # replaced together, for a scrape
        registry.register(self)

    def observe(self, values: NDArray[np.float64]) -> None:
        counts, total = self._seen
        buckets = np.searchsorted(self._bounds, values)
        self._seen = counts + np.bincount(buckets, minlength=len(counts)), total + float(np.sum(values))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        counts, total = self._seen
        names = [floatToGoString(bound) for bound in [*self._bounds, np.inf]]  # type: ignore[no-untyped-call]
        cumulated = [float(count) for count in np.cumsum(counts)]
        buckets = list(zip(names, cumulated, strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=total)
