"""The worker's metrics for Prometheus, kept by a listener."""

import time
from collections.abc import Mapping

import numpy as np

from streampca.consumer_group.listener import (
    BatchLearned,
    CheckpointPostponed,
    CheckpointSaved,
    MemberEvent,
    ModelPublished,
    OffsetsSkipped,
    PartitionResumed,
    PartitionsAssigned,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RecordRejected,
    RestoreFailed,
)
from streampca.consumer_group.metrics import MemberMetrics, MetricTables
from streampca.worker.listeners.histogram import BulkHistogram

_RATIO_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_P_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)

# The metrics' names after "streampca_", with their help texts.
_COUNTERS: tuple[tuple[str, list[str], str], ...] = (
    ("messages", ["outcome"], "Messages processed, by outcome: learned or rejected."),
    ("learn_seconds", [], "Time spent learning."),
    ("dead_letters", ["reason"], "Records rejected, by reason."),
    ("vectors_with_gaps", [], "Vectors that lack entries, with missing=impute."),
    ("offset_gap_messages", [], "Offsets skipped: removed by retention, or replaced as the log was truncated."),
    ("rebalances", ["event"], "Rebalance events: partitions assigned, revoked or lost."),
    ("restore_failures", [], "Attempts to restore assigned partitions from the store that failed."),
    ("checkpoints_postponed", [], "Checkpoint writes postponed after a failure."),
    ("publish_failures", [], "Attempts to publish a model that failed."),
)
_GAUGES = (
    ("partitions_owned", "Partitions assigned to this worker."),
    ("broker_connected", "1 while a broker answers, otherwise 0; then lag and offsets are stale."),
    ("loop_last_tick_timestamp_seconds", "Time of the worker loop's last iteration."),
    ("published_version", "Version of the last model published: the number of messages learned."),
    ("explained_variance_ratio", "Share of the variance explained by the last model published."),
)
_GAUGES_BY_PARTITION = (
    ("loss_ewma", "Relative residual, exponentially weighted over the last 1000 messages or so."),
    ("pinv_error", "Largest entry of |C†C − I| at the last checkpoint."),
    (
        "unseen_variance_ratio",
        "Variance along the strongest direction that the factor could not see until recently, by the smallest served "
        "one, at the last checkpoint; 0 without any.",
    ),
    ("missing_entries_ratio", "Share of the entries that messages lack, forgotten as the model forgets."),
    ("consumer_lag_messages", "Consumer lag: messages behind the log's end."),
    ("next_offset", "Offset of the next message to learn."),
    ("event_time_lag_seconds", "Age of the newest record learned, by its own timestamp, when it was learned."),
    ("stalled", "1 while records cannot be decoded because the schema registry does not answer, otherwise 0."),
    ("timestamps_ahead", "Records with a timestamp more than a day ahead of their partition's event time."),
    ("checkpoint_last_success_timestamp_seconds", "Time of the last checkpoint written."),
)
_DURATIONS = (
    ("checkpoint_duration_seconds", "Time to write a checkpoint."),
    ("publish_duration_seconds", "Time to merge the partitions' states and write a model."),
)
_TABLES = MetricTables("streampca_", _COUNTERS, _GAUGES, _GAUGES_BY_PARTITION, _DURATIONS)


class WorkerMetrics(MemberMetrics):
    """The metrics of one worker and its partitions, in a registry of their own; all with the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, _TABLES)
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
            case BatchLearned():
                self._on_batch(event)
            case RecordRejected():
                self._counters["messages"].labels("rejected").inc()
                self._counters["dead_letters"].labels(event.reason).inc()
            case CheckpointSaved():
                self._on_checkpoint(event)
            case CheckpointPostponed():
                self._counters["checkpoints_postponed"].inc()
            case ModelPublished(model, seconds, p_values):
                self._durations["publish_duration_seconds"].observe(seconds)
                self._gauges["published_version"].set(model.version)
                self._gauges["explained_variance_ratio"].set(float(model.model.explained_variance_ratio.sum()))
                if p_values is not None:
                    self._p_values.observe(p_values)
            case PublishFailed():
                self._counters["publish_failures"].inc()
            case PartitionStalled(partition, lag):
                self._set(partition, stalled=1, consumer_lag_messages=lag)
            case PartitionResumed(partition):
                self._set(partition, stalled=0)
            case OffsetsSkipped(_, position, to):
                self._counters["offset_gap_messages"].inc(max(to - position, 0))
            case RestoreFailed():
                self._counters["restore_failures"].inc()
            case PartitionsAssigned(positions):
                self._on_assignment(positions)
            case PartitionsReleased(_, lost):
                self._counters["rebalances"].labels("lost" if lost else "revoked").inc()

    def _on_assignment(self, positions: Mapping[int, int]) -> None:
        self._counters["rebalances"].labels("assigned").inc()
        for partition in positions:
            self._set(partition, stalled=0)

    def _on_batch(self, batch: BatchLearned) -> None:
        self._counters["messages"].labels("learned").inc(batch.messages)
        self._counters["learn_seconds"].inc(batch.seconds)
        fold, stats = batch.fold, batch.fold.stats
        self._set(
            batch.partition,
            consumer_lag_messages=batch.lag,
            next_offset=fold.position,
            timestamps_ahead=fold.event_time.ahead,
        )
        self._counters["vectors_with_gaps"].inc(batch.gaps)
        if fold.state.gaps is not None:
            self._set(batch.partition, missing_entries_ratio=float(fold.state.gaps.entries.mean()))
        if stats.last_ms >= 0:
            self._set(batch.partition, event_time_lag_seconds=time.time() - stats.last_ms / 1000)
        if stats.norm_ewma > 0:
            self._set(batch.partition, loss_ewma=stats.loss_ewma / stats.norm_ewma)
        if batch.losses:
            residual, norm = (np.concatenate(column) for column in zip(*batch.losses, strict=True))
            self._loss_ratio.observe(residual[norm > 0] / norm[norm > 0])

    def _on_checkpoint(self, event: CheckpointSaved) -> None:
        self._durations["checkpoint_duration_seconds"].observe(event.seconds)
        self._set(event.partition, checkpoint_last_success_timestamp_seconds=time.time())
        if event.fold.state.rank:
            self._set(event.partition, pinv_error=event.fold.state.pinv_error)
            self._set(event.partition, unseen_variance_ratio=event.unseen_variance_ratio)
