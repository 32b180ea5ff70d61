"""The metrics of `streampca transform` for Prometheus, kept by a listener."""

import contextlib
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from streampca.member.listener import (
    BatchTransformed,
    Listener,
    LoopTicked,
    MemberEvent,
    PartitionsAssigned,
    PartitionsReleased,
    RecordRejected,
    SourcePolled,
    TransactionEnded,
)
from streampca.metrics import LabelledRegistry, StoreMetrics

_PREFIX = "streampca_transform_"
_COUNTERS = (
    ("records", "outcome", "Records of committed transactions, by outcome: read, written or rejected."),
    ("transactions", "outcome", "Transactions by outcome: committed, aborted (a rebalance) or failed."),
)
_OUTCOMES = {"records": ("read", "written", "rejected"), "transactions": ("committed", "aborted", "failed")}
_GAUGES = (
    ("partitions_owned", "Partitions assigned to this member."),
    ("broker_connected", "1 while a broker answers, otherwise 0; then the lag is stale."),
    ("loop_last_tick_timestamp_seconds", "Time of the loop's last iteration."),
    ("model_version", "Version of the model that was used last."),
)


class TransformMetrics(Listener):
    """The metrics of one member and its partitions, in a registry of their own; all with the topic."""

    def __init__(self, topic: str) -> None:
        self.registry: CollectorRegistry = LabelledRegistry(topic=topic)
        ProcessCollector(registry=self.registry)
        self.store = StoreMetrics()
        self.store.register(self.registry)
        self._counters = {
            name: Counter(_PREFIX + name, text, [label], registry=self.registry) for name, label, text in _COUNTERS
        }
        self._gauges = {name: Gauge(_PREFIX + name, text, registry=self.registry) for name, text in _GAUGES}
        self._lag = Gauge(
            _PREFIX + "lag_messages", "Messages behind the log's end.", ["partition"], registry=self.registry
        )
        self._duration = Histogram(
            _PREFIX + "commit_duration_seconds", "Time to commit a transaction.", registry=self.registry
        )
        for name, outcomes in _OUTCOMES.items():  # from the start, so that rates can be computed
            for outcome in outcomes:
                self._counters[name].labels(outcome)
        self._owned: set[int] = set()
        self._open = {"read": 0, "written": 0, "rejected": 0}  # in the transaction that has not ended

    def notify(self, event: MemberEvent) -> None:
        match event:
            case LoopTicked():
                self._gauges["loop_last_tick_timestamp_seconds"].set_to_current_time()
            case SourcePolled(status):
                self._gauges["broker_connected"].set(status.connected)
            case BatchTransformed():
                self._on_batch(event)
            case RecordRejected():
                self._open["rejected"] += 1
                self._open["read"] += 1
            case TransactionEnded():
                self._on_end(event)
            case PartitionsAssigned(positions):
                self._owned |= set(positions)
                self._gauges["partitions_owned"].set(len(self._owned))
            case PartitionsReleased(partitions):
                self._on_release(partitions)

    def _on_batch(self, event: BatchTransformed) -> None:
        self._open["read"] += event.messages
        self._open["written"] += event.outputs
        self._gauges["model_version"].set(event.version)
        self._lag.labels(str(event.partition)).set(event.lag)

    def _on_end(self, event: TransactionEnded) -> None:
        self._counters["transactions"].labels(event.outcome).inc()
        if event.outcome == "committed":
            self._duration.observe(event.seconds)
            for outcome, count in self._open.items():
                self._counters["records"].labels(outcome).inc(count)
        self._open = dict.fromkeys(self._open, 0)

    def _on_release(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            with contextlib.suppress(KeyError):  # older prometheus_client: the gauge was never set
                self._lag.remove(str(partition))
        self._owned -= set(partitions)
        self._gauges["partitions_owned"].set(len(self._owned))
