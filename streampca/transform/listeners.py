"""The log and the metrics of `streampca transform`: what every member reports, its transactions and its models."""

import time
from collections.abc import Callable

import structlog
from prometheus_client import Counter, Gauge, Histogram

from streampca.consumer_group import events
from streampca.consumer_group.events import MemberEvent
from streampca.consumer_group.listeners import MemberLog, MemberMetrics, Row

log = structlog.get_logger()

_TABLE: tuple[Row, ...] = (
    (
        Counter,
        "records",
        ("outcome",),
        "Records of committed transactions, by outcome: read, written, rejected or skipped.",
    ),
    (
        Counter,
        "transactions",
        ("outcome",),
        "Transactions by outcome: committed, aborted (a rebalance, or a record that was refused) or failed.",
    ),
    (Counter, "timestamps_replaced", (), "Outputs with the time of sending, as their topic does not keep their own."),
    (Gauge, "model_version", (), "Version of the model that was used last."),
    (Gauge, "lag_messages", ("partition",), "Messages behind the log's end."),
    (Histogram, "commit_duration_seconds", (), "Time to commit a transaction."),
)
_OUTCOMES = {"records": ("read", "written", "rejected", "skipped"), "transactions": ("committed", "aborted", "failed")}


class TransformLog(MemberLog):
    """Logs the events of a member."""

    activity = "transforming"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._version: int | None = None
        self._committed = self._written = 0

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case events.BatchTransformed():
                if event.version != self._version:
                    write = log.debug if self._version is not None else log.info
                    write("model in use", version=event.version)
                self._version = event.version
                self._written += event.outputs
                if self._catches_up(event.partition, event.messages, event.lag):
                    log.info("caught up", partitions=len(self._lags), read=self._messages)
            case events.TransactionEnded("committed"):
                self._ends("transaction failed", "transactions committed again")
                self._committed += event.counts["all"]
            case events.TransactionEnded("failed"):
                self._fails("transaction failed", event.cause)
            case events.ModelFixed(version, []):
                log.warning("model version not pinned", version=version, remedy=f"streampca pin {version}")
            case events.ModelFixed(version, pins):
                log.info("model version fixed", version=version, pins=pins)

    def ended(self) -> None:
        log.info("transform ended", committed=self._committed, **self._state())

    def _state(self) -> dict[str, object]:
        return super()._state() | {"written": self._written, "model": self._version}


class TransformMetrics(MemberMetrics):
    """The metrics of one member and its partitions, in a registry of their own; all with the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__("transform", topic, "streampca_transform_", _TABLE)
        for name, outcomes in _OUTCOMES.items():  # from the start, so that rates can be computed
            for outcome in outcomes:
                self._metrics[name].labels(outcome)

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case events.BatchTransformed():
                self._metrics["model_version"].set(event.version)
                self._set(event.partition, lag_messages=event.lag)
            case events.TransactionEnded():
                self._metrics["transactions"].labels(event.outcome).inc()
                if event.outcome == "committed":
                    self._metrics["commit_duration_seconds"].observe(event.seconds)
                    self._metrics["timestamps_replaced"].inc(event.counts["replaced"])
                    for outcome in _OUTCOMES["records"]:
                        self._metrics["records"].labels(outcome).inc(event.counts[outcome])
