"""The metrics of a member for Prometheus, kept by a listener, whatever the member does with its records."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from streampca.consumer_group.listener import (
    Listener,
    LoopTicked,
    MemberEvent,
    PartitionsAssigned,
    PartitionsReleased,
    SourcePolled,
)
from streampca.metrics import LabelledRegistry, StoreMetrics

Named = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class MetricTables:
    """The names of metrics after a prefix, with their help texts; those of counters with their labels between."""

    prefix: str
    counters: Sequence[tuple[str, Sequence[str], str]]
    gauges: Named  # partitions_owned, broker_connected and loop_last_tick_timestamp_seconds among them
    gauges_by_partition: Named
    durations: Named


class MemberMetrics(Listener):
    """The metrics of one member and its partitions, in a registry of their own; all with the topic."""

    def __init__(self, topic: str, tables: MetricTables) -> None:
        self.registry: CollectorRegistry = LabelledRegistry(topic=topic)
        ProcessCollector(registry=self.registry)
        self.store = StoreMetrics()
        self.store.register(self.registry)
        prefix, registry = tables.prefix, self.registry
        self._counters = {
            name: Counter(prefix + name, text, labels, registry=registry) for name, labels, text in tables.counters
        }
        self._gauges = {name: Gauge(prefix + name, text, registry=registry) for name, text in tables.gauges}
        self._by_partition = {
            name: Gauge(prefix + name, text, ["partition"], registry=registry)
            for name, text in tables.gauges_by_partition
        }
        self._durations = {name: Histogram(prefix + name, text, registry=registry) for name, text in tables.durations}
        self._owned: set[int] = set()

    def notify(self, event: MemberEvent) -> None:
        match event:
            case LoopTicked():
                self._gauges["loop_last_tick_timestamp_seconds"].set_to_current_time()
            case SourcePolled(status):
                self._gauges["broker_connected"].set(status.connected)
            case PartitionsAssigned(positions):
                self._own(self._owned.union(positions))
            case PartitionsReleased(partitions):
                self._own(self._owned.difference(partitions))
                self._remove(partitions)

    def _set(self, partition: int, **values: float) -> None:
        for name, value in values.items():
            self._by_partition[name].labels(str(partition)).set(value)

    def _own(self, partitions: set[int]) -> None:
        self._owned = partitions
        self._gauges["partitions_owned"].set(len(partitions))

    def _remove(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            for gauge in self._by_partition.values():
                with contextlib.suppress(KeyError):  # older prometheus_client: the gauge was never set
                    gauge.remove(str(partition))
