"""The log and the metrics of `streampca transform`: what every member reports, its transactions and its models."""

import structlog
from prometheus_client import Counter, Gauge, Histogram

from streampca.consumer_group.events import (
    BatchTransformed,
    ModelFixed,
    TransactionEnded,
)
from streampca.consumer_group.listeners import PARTITION, MemberLog, MemberMetrics, MetricsTable
from streampca.consumer_group.member import Change
from streampca.consumer_group.member_state import MemberState

log = structlog.get_logger()

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


class TransformLog(MemberLog):
    """Logs what every member logs, and the models and the progress of a member of transform."""

    activity = "transforming"

    def observe(self, change: Change) -> None:
        super().observe(change)
        before, state = change.before, change.after
        if state.model_version != before.model_version:
            is_first = before.model_version is None
            write = log.info if is_first else log.debug
            write("model in use", version=state.model_version)
        if state.has_caught_up and not before.has_caught_up:
            log.info("caught up", partitions=len(state.partitions), read=state.messages)
        match change.event:
            case ModelFixed(version, []):
                log.warning("model version not pinned", version=version, remedy=f"streampca pin {version}")
            case ModelFixed(version, pins):
                log.info("model version fixed", version=version, pins=pins)

    def ended(self, state: MemberState) -> None:
        log.info("transform ended", committed=state.committed.get("all", 0), **self._figures(state))

    def _figures(self, state: MemberState) -> dict[str, object]:
        return super()._figures(state) | {"written": state.outputs, "model": state.model_version}


class TransformMetrics(MemberMetrics):
    """The metrics of one member and its partitions, in a registry of their own; the topic is a label of each."""

    def __init__(self, topic: str) -> None:
        super().__init__("transform", topic, "streampca_transform_", _TABLE)
        for name, outcomes in _OUTCOMES.items():  # a counter that begins above 0 has no rate at first
            for outcome in outcomes:
                self._metrics[name].labels(outcome)

    def observe(self, change: Change) -> None:
        super().observe(change)
        match change.event:
            case BatchTransformed(partition, version=version, lag=lag):
                self._record(model_version=version)
                self._record(partition, lag_messages=lag)
            case TransactionEnded(outcome, counts, seconds):
                self._record(outcome, transactions=1)
                if outcome == "committed":
                    self._record(commit_duration_seconds=seconds, timestamps_replaced=counts["replaced"])
                    for name in _OUTCOMES["records"]:
                        self._record(name, records=counts[name])
