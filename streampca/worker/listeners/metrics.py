"""The worker's metrics for Prometheus: a listener that counts."""

import contextlib
import time
from collections.abc import Iterable, Mapping

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from streampca.stream.fold import Fold
from streampca.stream.model_file import PublishedModel
from streampca.stream.record import SourceStatus
from streampca.worker.listener import Learned, Listener
from streampca.worker.listeners.histogram import BulkHistogram

_RATIO_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class WorkerMetrics(Listener):
    """Everything that one worker tells of its partitions, in a registry of its own."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._of_partitions: list[Gauge] = []

        def count(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        def time_of(name: str, text: str) -> Histogram:
            return Histogram(name, text, registry=registry)

        def of_partition(name: str, text: str) -> Gauge:
            made = Gauge(name, text, ("topic", "partition"), registry=registry)
            self._of_partitions.append(made)
            return made

        # What is learned.
        self._messages = count("streampca_messages", "Messages handled, by outcome: learned or rejected.", "outcome")
        self._learn_seconds = count("streampca_learn_seconds", "Time spent on learning.")
        self._loss_ratio = BulkHistogram(
            "streampca_prequential_loss_ratio",
            "‖r‖²/‖y‖² of each message, scored before it was learned.",
            registry=registry,
            buckets=_RATIO_BUCKETS,
        )
        self._loss_ewma = of_partition(
            "streampca_loss_ewma", "The same ratio of each partition, over its last 1000 messages or so."
        )
        self._pinv_error = of_partition("streampca_pinv_error", "‖C†C − I‖, the largest entry, at the last checkpoint.")

        # How far it is.
        self._lag = of_partition("streampca_consumer_lag_messages", "Offsets between us and the log's end.")
        self._next = of_partition("streampca_next_offset", "Offset of each partition to be learned next.")
        self._time_lag = of_partition(
            "streampca_event_time_lag_seconds",
            "Age of the newest record learned, by its own timestamp, when it was learned.",
        )
        self._stalled = of_partition(
            "streampca_stalled",
            "1 while a partition's records cannot be decoded, since the schema registry does not answer.",
        )

        # What cannot be learned.
        self._rejected = count("streampca_dead_letters", "Records that could not be learned, by reason.", "reason")
        self._gap = count("streampca_offset_gap_messages", "Offsets that retention removed before they were read.")
        self._ahead = of_partition(
            "streampca_timestamps_ahead", "Records more than a day ahead of their partition's time."
        )

        # The worker and its group.
        self._owned = gauge("streampca_partitions_owned", "Partitions that this worker learns.")
        self._connected = gauge(
            "streampca_broker_connected",
            "1 while a broker answers, 0 while none does: then lag and offsets stand still.",
        )
        self._ticked_at = gauge("streampca_loop_last_tick_timestamp_seconds", "When the loop last came round.")
        self._rebalances = count("streampca_rebalances", "Times that partitions came or went, by event.", "event")

        # What is on disk.
        self._saved_at = of_partition(
            "streampca_checkpoint_last_success_timestamp_seconds",
            "When the last checkpoint of a partition was written.",
        )
        self._save_seconds = time_of("streampca_checkpoint_duration_seconds", "Time to write one checkpoint.")
        self._postponed = count("streampca_checkpoints_postponed", "Times that saving failed and was put off.")
        self._version = gauge("streampca_published_version", "Version of the model published last: messages learned.")
        self._explained = gauge(
            "streampca_explained_variance_ratio",
            "Share of the variance that the served components explain, of the model published last.",
        )
        self._publish_seconds = time_of(
            "streampca_publish_duration_seconds", "Time to merge the folds and write a model."
        )
        self._unpublished = count("streampca_publish_failures", "Times that publishing a model failed and was put off.")

    def ticked(self) -> None:
        self._ticked_at.set_to_current_time()

    def polled(self, status: SourceStatus) -> None:
        self._connected.set(status.connected)

    def assigned(self, positions: Mapping[int, int]) -> None:
        self._rebalances.labels("assigned").inc()
        self._owned.inc(len(positions))

    def released(self, partitions: Iterable[int], *, lost: bool) -> None:
        partitions = list(partitions)
        self._rebalances.labels("lost" if lost else "revoked").inc()
        self._owned.dec(len(partitions))
        for partition in partitions:
            for gauge in self._of_partitions:
                with contextlib.suppress(KeyError):  # of older prometheus_client, where the gauge was never set
                    gauge.remove(self._topic, str(partition))

    def learned(self, batch: Learned) -> None:
        where, stats = (self._topic, str(batch.partition)), batch.fold.stats
        self._messages.labels("learned").inc(batch.messages)
        self._learn_seconds.inc(batch.seconds)
        self._lag.labels(*where).set(batch.lag)
        self._stalled.labels(*where).set(0)
        self._next.labels(*where).set(batch.fold.position)
        self._ahead.labels(*where).set(batch.fold.clock.ahead)
        if stats.last_ms >= 0:
            self._time_lag.labels(*where).set(time.time() - stats.last_ms / 1000)
        if stats.norm_ewma > 0:
            self._loss_ewma.labels(*where).set(stats.loss_ewma / stats.norm_ewma)
        if batch.scores:
            residual, norm = (np.concatenate(column) for column in zip(*batch.scores, strict=True))
            self._loss_ratio.observe(residual[norm > 0] / norm[norm > 0])

    def stalled(self, partition: int, lag: int, cause: str) -> None:
        self._stalled.labels(self._topic, str(partition)).set(1)
        self._lag.labels(self._topic, str(partition)).set(lag)

    def rejected(self, partition: int, offset: int, reason: str, message: str) -> None:
        self._messages.labels("rejected").inc()
        self._rejected.labels(reason).inc()

    def skipped(self, partition: int, position: int, to: int) -> None:
        self._gap.inc(max(to - position, 0))

    def saved(self, partition: int, fold: Fold, seconds: float) -> None:
        self._save_seconds.observe(seconds)
        self._saved_at.labels(self._topic, str(partition)).set_to_current_time()
        if fold.state.rank:
            self._pinv_error.labels(self._topic, str(partition)).set(fold.state.pinv_error)

    def postponed(self, cause: str) -> None:
        self._postponed.inc()

    def unpublished(self, cause: str) -> None:
        self._unpublished.inc()

    def published(self, model: PublishedModel, seconds: float) -> None:
        self._publish_seconds.observe(seconds)
        self._version.set(model.version)
        self._explained.set(float(model.model.explained_variance_ratio.sum()))


def described(registry: CollectorRegistry) -> dict[str, str]:
    """Name, as Prometheus shows it, and meaning of every metric of ours in a registry."""
    families = [family for family in registry.collect() if family.name.startswith("streampca_")]
    return {f.name + ("_total" if f.type == "counter" else ""): f.documentation for f in families}
