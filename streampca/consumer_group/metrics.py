"""The metrics of a member for Prometheus, kept by a listener, whatever the member does with its records."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from streampca.consumer_group import events
from streampca.process.metrics import LabelledRegistry, StoreMetrics

Row = tuple[type[Counter] | type[Gauge] | type[Histogram], str, Sequence[str], str]
"""Kind, name after a prefix, labels and help text of a metric."""

MEMBER_METRICS: tuple[Row, ...] = (
    (Gauge, "partitions_owned", (), "Partitions assigned to this member."),
    (Gauge, "broker_connected", (), "1 while a broker answers, otherwise 0; then lag and offsets are stale."),
    (Gauge, "loop_last_tick_timestamp_seconds", (), "Time of the loop's last iteration."),
)
_PARTITION = ("partition",)


class MemberMetrics(events.Listener):
    """The metrics of one member and its partitions, in a registry of their own; all with the topic."""

    def __init__(self, topic: str, prefix: str, table: Iterable[Row]) -> None:
        self.registry: CollectorRegistry = LabelledRegistry(topic=topic)
        ProcessCollector(registry=self.registry)
        self.store = StoreMetrics()
        self.store.register(self.registry)
        rows = (*MEMBER_METRICS, *table)
        self._metrics: dict[str, Any] = {
            name: kind(prefix + name, text, labels, registry=self.registry) for kind, name, labels, text in rows
        }
        self._by_partition = [self._metrics[name] for _, name, labels, _ in rows if labels == _PARTITION]
        self._owned: set[int] = set()

    def notify(self, event: events.MemberEvent) -> None:
        match event:
            case events.LoopTicked():
                self._metrics["loop_last_tick_timestamp_seconds"].set_to_current_time()
            case events.SourcePolled(status):
                self._metrics["broker_connected"].set(status.connected)
            case events.PartitionsAssigned(positions):
                self._own(self._owned.union(positions))
            case events.PartitionsReleased(partitions):
                self._own(self._owned.difference(partitions))
                self._remove(partitions)

    def _set(self, partition: int, **values: float) -> None:
        for name, value in values.items():
            self._metrics[name].labels(str(partition)).set(value)

    def _own(self, partitions: set[int]) -> None:
        self._owned = partitions
        self._metrics["partitions_owned"].set(len(partitions))

    def _remove(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            for gauge in self._by_partition:
                with contextlib.suppress(KeyError):  # older prometheus_client: the gauge was never set
                    gauge.remove(str(partition))
