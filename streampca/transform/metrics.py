"""The metrics of `streampca transform`: what every member counts, its transactions and its models."""

from prometheus_client import Counter, Gauge, Histogram

from streampca.consumer_group.events import (
    BatchTransformed,
    TransactionEnded,
)
from streampca.consumer_group.member import Change
from streampca.consumer_group.metrics import PARTITION, MemberMetrics, MetricsTable

_TABLE: MetricsTable = {
    (Counter, ("outcome",)): {
        "records": "Records of committed transactions, by outcome: read, written, rejected or skipped.",
        "transactions": "Transactions by outcome: committed, aborted (a rebalance, or a record that was refused) or "
        "failed.",
    },
    (Counter, ()): {
        "timestamps_replaced": "Outputs with the time of sending, as their topic does not keep their own.",
    },
    (Gauge, ()): {"model_version": "Version of the model that was used last."},
    (Gauge, PARTITION): {"lag_messages": "Messages behind the log's end."},
    (Histogram, ()): {"commit_duration_seconds": "Time to commit a transaction."},
}
_OUTCOMES = {"records": ("read", "written", "rejected", "skipped"), "transactions": ("committed", "aborted", "failed")}


class TransformMetrics(MemberMetrics):
    """The metrics of one member and its partitions, in a registry of their own; the topic is a label of each."""

    def __init__(self, topic: str) -> None:
        super().__init__("transform", topic, "streampca_transform_", _TABLE)
        # Create the counters of all outcomes at 0: the first increase of a counter that begins above 0 would be missed.
        for name, outcomes in _OUTCOMES.items():
            for outcome in outcomes:
                self._metrics[name].labels(outcome)

    def observe(self, change: Change) -> None:
        """Set gauges to the values of an event, and increase counters by them."""
        super().observe(change)
        match change.event:
            case BatchTransformed(partition, version=version, lag=lag):
                self._record(model_version=version)
                self._record(label=partition, lag_messages=lag)
            case TransactionEnded(outcome, counts, seconds):
                self._record(label=outcome, transactions=1)
                if outcome == "committed":
                    self._record(commit_duration_seconds=seconds, timestamps_replaced=counts["replaced"])
                    for record_outcome in _OUTCOMES["records"]:  # read, written, rejected, skipped
                        self._record(label=record_outcome, records=counts[record_outcome])
