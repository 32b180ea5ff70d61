"""The metrics of a member, whatever it does with its records."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from streampca.consumer_group.events import LoopTicked, PartitionsAssigned, PartitionsReleased, StartDelayed
from streampca.consumer_group.member import Change, Observer
from streampca.process.metrics import LabelledRegistry, StoreMetrics

PARTITION = ("partition",)

MetricsTable = Mapping[tuple[Callable[..., Any], Sequence[str]], Mapping[str, str]]
"""Type and names of the labels → name of the metric, without its prefix → help text."""

MEMBER_METRICS: MetricsTable = {
    (Gauge, ()): {
        "partitions_owned": "Partitions assigned to this member.",
        "broker_connected": "1 while a broker answers, otherwise 0; then lag and offsets are stale.",
        "loop_last_tick_timestamp_seconds": "Time of the loop's last iteration.",
        "save_overdue_seconds": "Time since a save of records was due that has not happened; 0 if none is.",
    }
}


class MemberMetrics(Observer):
    """The metrics of one member and its partitions, in a registry of their own; the topic is a label of each."""

    def __init__(self, role: str, topic: str, prefix: str, table: MetricsTable) -> None:
        """`table` holds the metrics that only this role has."""
        self.registry: CollectorRegistry = LabelledRegistry(role, topic=topic)
        ProcessCollector(registry=self.registry)
        self.store = StoreMetrics()
        self.store.register(self.registry)
        self._metrics: dict[str, Any] = {}
        self._by_partition: list[Any] = []  # the gauges with the label `partition`
        # An item of a table: type and labels of its metrics, then the help text of each metric by its name.
        for (metric_type, labels), help_by_name in [*MEMBER_METRICS.items(), *table.items()]:
            for name, help_text in help_by_name.items():
                metric = metric_type(prefix + name, help_text, labels, registry=self.registry)
                self._metrics[name] = metric
                if labels == PARTITION:
                    self._by_partition.append(metric)

    def observe(self, change: Change) -> None:
        match change.event:
            case StartDelayed():  # a start that waits must not look hung
                self._record(loop_last_tick_timestamp_seconds=change.now.unix_s)
            case LoopTicked(status):
                self._record(
                    loop_last_tick_timestamp_seconds=change.now.unix_s,
                    save_overdue_seconds=change.after.saving.overdue_s,
                    broker_connected=status.connected,
                )
            case PartitionsAssigned() | PartitionsReleased():
                owned = change.after.partitions.keys()
                self._record(partitions_owned=len(owned))
                released = change.before.partitions.keys() - owned
                self._remove_gauges(released)

    def _remove_gauges(self, partitions: Iterable[int]) -> None:
        """Remove the gauges of partitions that other members own now."""
        for partition in partitions:
            for gauge in self._by_partition:
                with contextlib.suppress(KeyError):  # older releases of prometheus_client raise it for an unset gauge
                    gauge.remove(str(partition))

    def _record(self, *, label: object = None, **values: Any) -> None:
        """Set, increase or observe the metrics that are named; a value of None is left out.

        `label` is the value of their label, if they have one.
        """
        for name, value in values.items():
            if value is None:
                continue
            metric = self._metrics[name] if label is None else self._metrics[name].labels(label)
            if isinstance(metric, Gauge):
                metric.set(value)
            elif isinstance(metric, Counter):
                metric.inc(value)
            else:  # a histogram
                metric.observe(value)
