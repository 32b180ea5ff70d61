"""The log and the metrics of a worker: what every member reports, its checkpoints and its models."""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import structlog
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from streampca.consumer_group import events
from streampca.consumer_group.listeners import PARTITION, MemberLog, MemberMetrics, Row
from streampca.fold.model_file import PublishedModel
from streampca.formats.epoch import describe_odd_timestamp
from streampca.formats.errors import NO_VALUE

log = structlog.get_logger()

_RATIO_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_P_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)

_ODD_TIMES = "timestamps outside 1990 to 2100"
_TABLE: tuple[Row, ...] = (
    (Counter, "messages", ("outcome",), "Messages processed, by outcome: learned, rejected or skipped."),
    (Counter, "learn_seconds", (), "Time spent learning."),
    (Counter, "records_rejected", ("reason",), "Records rejected, by reason."),
    (Counter, "records_skipped", ("reason",), "Records skipped, by reason; no_value: a tombstone, or null at `field`."),
    (Counter, "vectors_with_gaps", (), "Vectors that lack entries, with missing=impute."),
    (Counter, "offset_gap_messages", (), "Offsets skipped: removed by retention, or replaced in a truncated log."),
    (Counter, "rebalances", ("event",), "Rebalance events: partitions assigned, revoked or lost."),
    (Counter, "restore_failures", (), "Attempts to restore assigned partitions from the store that failed."),
    (Counter, "checkpoints_postponed", (), "Checkpoint writes postponed after a failure."),
    (Counter, "publish_failures", (), "Attempts to publish a model that failed."),
    (Gauge, "published_version", (), "Version of the last model published: the number of messages learned."),
    (Gauge, "explained_variance_ratio", (), "Share of the variance explained by the last model published."),
    (Gauge, "loss_ewma", PARTITION, "Relative residual, exponentially weighted over about the last 1000 messages."),
    (Gauge, "pinv_error", PARTITION, "Largest entry of |S CᵀC − I| after the last block, S as updated through it."),
    (Gauge, "clipped_messages", PARTITION, "Messages that were too far from the mean to be learned as they are, and "
     "were moved towards it."),
    (Gauge, "missing_entries_ratio", PARTITION, "Share of entries that messages lack, forgotten as models forget."),
    (Gauge, "consumer_lag_messages", PARTITION, "Consumer lag: messages behind the log's end."),
    (Gauge, "next_offset", PARTITION, "Offset of the next message to learn."),
    (Gauge, "event_time_lag_seconds", PARTITION, "Age of the newest record, by its timestamp, when it was learned."),
    (Gauge, "stalled", PARTITION, "1 while the schema registry does not answer, so that records cannot be decoded."),
    (Gauge, "timestamps_ahead", PARTITION, "Records with a timestamp more than a day ahead of the event time."),
    (Counter, "odd_timestamps", (), "Records with a timestamp outside 1990 to 2100, with half_life_seconds."),
    (Gauge, "checkpoint_last_success_timestamp_seconds", PARTITION, "Time of the last checkpoint written."),
    (Histogram, "checkpoint_duration_seconds", (), "Time to write a checkpoint."),
    (Histogram, "publish_duration_seconds", (), "Time to merge the partitions' states and write a model."),
)  # fmt: skip


class WorkerLog(MemberLog):
    """Logs the worker's events."""

    activity = "learning"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._batches: dict[int, events.BatchLearned] = {}  # partition → its latest batch
        self._saved_positions: dict[int, int] = {}
        self._model: PublishedModel | None = None

    def notify(self, event: events.MemberEvent) -> None:
        super().notify(event)
        match event:
            case events.BatchLearned():
                self._batches[event.partition] = event
                if event.odd_times and _ODD_TIMES not in self._causes:  # once, whatever the others are
                    self._fails(
                        _ODD_TIMES,
                        f"half_life_seconds depends on {describe_odd_timestamp(event.odd_times[0])}",
                        "warning",
                    )
                if self._catches_up(event.partition, event.messages, event.lag) and (
                    learned := sum(latest.fold.stats.learned for latest in self._batches.values())
                ):
                    log.info("caught up", partitions=len(self._lags), learned=learned)
            case events.CheckpointSaved(partition, fold, seconds):
                self._ends("checkpoint postponed", "checkpoint saved again")
                self._saved_positions[partition] = position = fold.position
                log.debug("checkpoint saved", partition=partition, next_offset=position, seconds=round(seconds, 4))
            case events.CheckpointPostponed(cause):
                self._fails("checkpoint postponed", cause)
            case events.ModelPublished(model, seconds):
                self._on_model(model, seconds)
            case events.PublishFailed(cause):
                self._fails("publishing failed", cause)
            case events.PartitionsAssigned(positions):
                self._saved_positions |= {p: position for p, position in positions.items() if position >= 0}
            case events.PartitionsReleased(partitions):
                for partition in partitions:
                    self._batches.pop(partition, None)
                    self._saved_positions.pop(partition, None)

    def ended(self) -> None:
        """Log the last line: where the next worker will resume."""
        log.info(
            "worker ended",
            learned=self._messages,
            rejected=self._rejected.total(),
            saved_up_to={str(p): position for p, position in sorted(self._saved_positions.items())},
            last_model=self._model and self._model.version,
        )

    def _on_model(self, model: PublishedModel, seconds: float) -> None:
        self._ends("publishing failed", "model published again")
        write = log.debug if self._model else log.info  # later versions are in the lines about progress
        self._model = model
        write(
            "model published",
            version=model.version,
            explained_variance_ratio=round(float(model.model.explained_variance_ratio.sum()), 5),
            loss_ewma=None if model.stats.loss_ewma is None else round(model.stats.loss_ewma, 5),
            partitions=len(model.positions),
            seconds=round(seconds, 3),
        )

    def _state(self) -> dict[str, object]:
        stats = [batch.fold.stats for batch in self._batches.values()]
        norm = sum(s.norm_ewma for s in stats)
        loss = sum(s.loss_ewma for s in stats)
        return super()._state() | {
            "loss": round(loss / norm, 5) if norm else None,  # the share that projection loses of recent messages
            "last_model": self._model and self._model.version,
        }


class WorkerMetrics(MemberMetrics):
    """The metrics of one worker and its partitions, in a registry of their own; all with the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__("worker", topic, "streampca_", _TABLE)
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

    def notify(self, event: events.MemberEvent) -> None:
        super().notify(event)
        match event:
            case events.BatchLearned():
                self._on_batch(event)
            case events.RecordRejected():
                self._metrics["messages"].labels("rejected").inc()
                self._metrics["records_rejected"].labels(event.reason).inc()
            case events.RecordsSkipped(count):
                self._metrics["messages"].labels("skipped").inc(count)
                self._metrics["records_skipped"].labels(NO_VALUE).inc(count)
            case events.CheckpointSaved(partition, fold, seconds):
                self._metrics["checkpoint_duration_seconds"].observe(seconds)
                self._set(partition, checkpoint_last_success_timestamp_seconds=time.time())
                if fold.state.rank:
                    self._set(partition, pinv_error=fold.state.pinv_error)
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
                self._metrics["rebalances"].labels("assigned").inc()
                for partition in positions:
                    self._set(partition, stalled=0)
            case events.PartitionsReleased(_, lost):
                self._metrics["rebalances"].labels("lost" if lost else "revoked").inc()

    def _on_batch(self, batch: events.BatchLearned) -> None:
        self._metrics["messages"].labels("learned").inc(batch.messages)
        self._metrics["learn_seconds"].inc(batch.seconds)
        fold, stats = batch.fold, batch.fold.stats
        self._set(
            batch.partition,
            consumer_lag_messages=batch.lag,
            next_offset=fold.position,
            timestamps_ahead=fold.event_time.ahead,
            clipped_messages=fold.state.clipped,
        )
        self._metrics["vectors_with_gaps"].inc(batch.incomplete)
        self._metrics["odd_timestamps"].inc(len(batch.odd_times))
        if fold.state.missing is not None:
            self._set(batch.partition, missing_entries_ratio=float(fold.state.missing.mean()))
        if stats.last_ms >= 0:
            self._set(batch.partition, event_time_lag_seconds=time.time() - stats.last_ms / 1000)
        if (loss := stats.recent_loss) is not None:
            self._set(batch.partition, loss_ewma=loss)
        if batch.losses:
            residual, norm = (np.concatenate(column) for column in zip(*batch.losses, strict=True))
            self._loss_ratio.observe(residual[norm > 0] / norm[norm > 0])


class BulkHistogram(Collector):
    """A histogram that observes whole arrays; prometheus_client's takes a microsecond a value."""

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
        buckets = [(name, float(count)) for name, count in zip(names, np.cumsum(counts), strict=True)]
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=total)
