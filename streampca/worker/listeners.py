"""The log and the metrics of a worker: what every member reports, its checkpoints and its models."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import structlog
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
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RecordRejected,
    RecordsSkipped,
    RestoreFailed,
)
from streampca.consumer_group.listeners import PARTITION, MemberLog, MemberMetrics, MetricsTable
from streampca.consumer_group.member import Change
from streampca.consumer_group.member_state import MemberState
from streampca.fold.fold import Fold
from streampca.formats.epoch import describe_odd_timestamp
from streampca.formats.errors import NO_VALUE

log = structlog.get_logger()

_RATIOS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_P_VALUES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)


class BulkHistogram(Collector):
    """A histogram that observes whole arrays at once; prometheus_client's takes a microsecond for each value."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        """`bounds` are the inclusive upper bounds of the buckets, ascending; a bucket up to +Inf is added.

        `labels` must be empty.
        """
        self._name = name
        self._documentation = documentation
        self._bounds = np.array(bounds)
        # Counts of the buckets, and the sum of the values: one tuple, so that a scrape sees both before or after.
        self._counts_and_sum = (np.zeros(len(bounds) + 1, np.int64), 0.0)
        registry.register(self)

    def observe(self, values: NDArray[np.float64]) -> None:
        counts, total = self._counts_and_sum
        buckets = np.searchsorted(self._bounds, values)
        new_counts = counts + np.bincount(buckets, minlength=len(counts))
        self._counts_and_sum = (new_counts, total + float(np.sum(values)))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        counts, total = self._counts_and_sum
        names = [floatToGoString(bound) for bound in [*self._bounds, np.inf]]  # type: ignore[no-untyped-call]
        buckets = [(name, float(count)) for name, count in zip(names, np.cumsum(counts), strict=True)]
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=total)


_TABLE: MetricsTable = {
    (Counter, ("outcome",)): {"messages": "Messages processed, by outcome: learned, rejected or skipped."},
    (Counter, ("reason",)): {
        "records_rejected": "Records rejected, by reason.",
        "records_skipped": "Records skipped, by reason; no_value: a tombstone, or null at `field`.",
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


class WorkerLog(MemberLog):
    """Logs what every member logs, and the checkpoints and models of a worker."""

    activity = "learning"

    def __init__(self) -> None:
        super().__init__()
        self._has_warned_of_timestamps = False

    def observe(self, change: Change) -> None:
        super().observe(change)
        state = change.after
        match change.event:
            case BatchLearned(odd_timestamps=[first, *_]) if not self._has_warned_of_timestamps:
                cause = f"half_life_seconds depends on {describe_odd_timestamp(first)}"
                log.warning("timestamps outside 1990 to 2100", cause=cause)
                self._has_warned_of_timestamps = True
            case CheckpointSaved(partition, fold, seconds):
                log.debug("checkpoint saved", partition=partition, next_offset=fold.position, seconds=round(seconds, 4))
            case ModelPublished(model, seconds):
                is_first = change.before.model_version is None  # later versions are in the lines about progress
                write = log.info if is_first else log.debug
                write(
                    "model published",
                    version=model.version,
                    explained_variance_ratio=round(float(model.model.explained_variance_ratio.sum()), 5),
                    loss_ewma=None if model.stats.loss_ewma is None else round(model.stats.loss_ewma, 5),
                    partitions=len(model.positions),
                    seconds=round(seconds, 3),
                )
        if state.has_caught_up and not change.before.has_caught_up:
            learned = sum(fold.stats.learned for fold in _folds(state))
            if learned:
                log.info("caught up", partitions=len(state.partitions), learned=learned)

    def ended(self, state: MemberState) -> None:
        """Log the last line: where the next worker will resume."""
        saved = {str(p): partition.saved_up_to for p, partition in sorted(state.partitions.items())}
        log.info(
            "worker ended",
            learned=state.messages,
            rejected=self._rejected.total(),
            saved_up_to={p: position for p, position in saved.items() if position >= 0},
            last_model=state.model_version,
        )

    def _figures(self, state: MemberState) -> dict[str, object]:
        stats = [fold.stats for fold in _folds(state)]
        norm = sum(s.norm_ewma for s in stats)
        loss = sum(s.loss_ewma for s in stats)
        return super()._figures(state) | {
            "loss": round(loss / norm, 5) if norm else None,  # the share that projection loses of recent messages
            "last_model": state.model_version,
        }


def _folds(state: MemberState) -> list[Fold]:
    """Return the folds of the partitions of which a batch was learned."""
    return [partition.fold for partition in state.partitions.values() if partition.fold]


class WorkerMetrics(MemberMetrics):
    """The metrics of one worker and its partitions, in a registry of their own; the topic is a label of each."""

    def __init__(self, topic: str) -> None:
        super().__init__("worker", topic, "streampca_", _TABLE)

    def observe(self, change: Change) -> None:
        super().observe(change)
        match change.event:
            case BatchLearned():
                self._on_batch(change.event, change.now.unix)
            case RecordRejected(reason=reason):
                self._record("rejected", messages=1)
                self._record(reason, records_rejected=1)
            case RecordsSkipped(count):
                self._record("skipped", messages=count)
                self._record(NO_VALUE, records_skipped=count)
            case CheckpointSaved(partition, fold, seconds):
                self._record(checkpoint_duration_seconds=seconds)
                self._record(
                    partition,
                    checkpoint_last_success_timestamp_seconds=change.now.unix,
                    pinv_error=fold.state.pinv_error if fold.state.rank else None,
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
            case PublishFailed():
                self._record(publish_failures=1)
            case PartitionStalled(partition, lag):
                self._record(partition, stalled=1, consumer_lag_messages=lag)
            case OffsetsSkipped(_, position, to):
                self._record(offset_gap_messages=max(to - position, 0))
            case RestoreFailed():
                self._record(restore_failures=1)
            case PartitionsAssigned(positions):
                self._record("assigned", rebalances=1)
                for partition in positions:
                    self._record(partition, stalled=0)
            case PartitionsReleased(_, lost):
                self._record("lost" if lost else "revoked", rebalances=1)

    def _on_batch(self, batch: BatchLearned, now: float) -> None:
        fold = batch.fold
        stats = fold.stats
        missing = fold.state.missing
        self._record("learned", messages=batch.messages)
        self._record(
            learn_seconds=batch.seconds, vectors_with_gaps=batch.incomplete, odd_timestamps=len(batch.odd_timestamps)
        )
        self._record(
            batch.partition,
            consumer_lag_messages=batch.lag,
            next_offset=fold.position,
            stalled=0,
            timestamps_ahead=fold.event_time.ahead,
            clipped_messages=fold.state.clipped,
            missing_entries_ratio=None if missing is None else float(missing.mean()),
            event_time_lag_seconds=now - stats.last_ms / 1000 if stats.last_ms >= 0 else None,
            loss_ewma=stats.recent_loss,
        )
        if batch.losses:
            residual, norm = (np.concatenate(column) for column in zip(*batch.losses, strict=True))
            is_not_zero = norm > 0
            self._record(prequential_loss_ratio=residual[is_not_zero] / norm[is_not_zero])
