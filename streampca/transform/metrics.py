"""The metrics of `streampca transform` for Prometheus, kept by a listener."""

from prometheus_client import Counter, Gauge, Histogram

from streampca.consumer_group.listener import BatchTransformed, MemberEvent, RecordRejected, TransactionEnded
from streampca.consumer_group.metrics import MemberMetrics, Row

_TABLE: tuple[Row, ...] = (
    (Counter, "records", ("outcome",), "Records of committed transactions, by outcome: read, written or rejected."),
    (Counter, "transactions", ("outcome",), "Transactions by outcome: committed, aborted (a rebalance) or failed."),
    (Gauge, "model_version", (), "Version of the model that was used last."),
    (Gauge, "lag_messages", ("partition",), "Messages behind the log's end."),
    (Histogram, "commit_duration_seconds", (), "Time to commit a transaction."),
)
_OUTCOMES = {"records": ("read", "written", "rejected"), "transactions": ("committed", "aborted", "failed")}


class TransformMetrics(MemberMetrics):
    """The metrics of one member and its partitions, in a registry of their own; all with the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, "streampca_transform_", _TABLE)
        for name, outcomes in _OUTCOMES.items():  # from the start, so that rates can be computed
            for outcome in outcomes:
                self._metrics[name].labels(outcome)
        self._open = {"read": 0, "written": 0, "rejected": 0}  # in the transaction that has not ended

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case BatchTransformed():
                self._on_batch(event)
            case RecordRejected():
                self._open["rejected"] += 1
                self._open["read"] += 1
            case TransactionEnded():
                self._on_end(event)

    def _on_batch(self, event: BatchTransformed) -> None:
        self._open["read"] += event.messages
        self._open["written"] += event.outputs
        self._metrics["model_version"].set(event.version)
        self._set(event.partition, lag_messages=event.lag)

    def _on_end(self, event: TransactionEnded) -> None:
        self._metrics["transactions"].labels(event.outcome).inc()
        if event.outcome == "committed":
            self._metrics["commit_duration_seconds"].observe(event.seconds)
            for outcome, count in self._open.items():
                self._metrics["records"].labels(outcome).inc(count)
        self._open = dict.fromkeys(self._open, 0)
