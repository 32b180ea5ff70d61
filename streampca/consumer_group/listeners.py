"""The log and the metrics of a member, whatever it does with its records."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

import prometheus_client
import structlog
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from streampca.consumer_group.events import (
    CheckpointPostponed,
    LoopTicked,
    MemberStopping,
    OffsetsSkipped,
    PartitionsAssigned,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RecordRejected,
    RecordsSkipped,
    RestoreFailed,
    StartDelayed,
    TransactionEnded,
)
from streampca.consumer_group.member import Change, Observer
from streampca.consumer_group.member_state import MemberState, Problem
from streampca.consumer_group.policy import ALL_DELETES, FIRST
from streampca.consumer_group.saving import Saving
from streampca.errors import RETRY_MAY_HELP
from streampca.process.metrics import LabelledRegistry, StoreMetrics
from streampca.sources.events import SourceStatus

log = structlog.get_logger()

_NUMBERS = re.compile(r"[0-9]+")
_PROGRESS_EVERY_S = 60.0
_LONGEST_DELAY_PAUSE_S = 60.0  # between two lines about a start that waits
_METHODS: Mapping[type, str] = {Gauge: "set", prometheus_client.Counter: "inc"}  # histograms: "observe"
# The event that reports a problem → the log's words when the problem begins, and when it has ended.
_PROBLEMS: Mapping[type, tuple[str, str]] = {
    RestoreFailed: ("restoring failed", "partitions restored"),
    PartitionStalled: ("decoding stalled", "decoding resumed"),
    CheckpointPostponed: ("checkpoint postponed", "checkpoint saved again"),
    PublishFailed: ("publishing failed", "model published again"),
    TransactionEnded: ("transaction failed", "transactions committed again"),
    Saving: ("saving has stopped", "no save is overdue"),
}

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


class MemberLog(Observer):
    """Logs what changes in a member's state, its partitions, the records without vectors, and progress every minute.

    Subclasses log what a member does with vectors.
    """

    activity: str  # what a member does while messages arrive, for the lines about progress

    def __init__(self) -> None:
        self._rejected: Counter[str] = Counter()
        self._skipped = 0
        self._log_delay_at = 0.0  # monotonic seconds, when a start that waits is logged next
        self._progress_at = 0.0  # monotonic seconds, when the last period of progress ended
        self._messages_until_progress = 0  # the member's messages at that time
        self._logged_activity = ""  # in that period

    def observe(self, change: Change) -> None:
        # Problems that end because partitions were released are not logged as ended: nothing has recovered.
        if not isinstance(change.event, PartitionsReleased):
            log_problems(change.before.problems, change.after.problems)
        match change.event:
            case LoopTicked(status):
                self._on_tick(change.after, status, change.now.ticks)
            case RecordRejected():
                self._on_reject(change.event)
            case RecordsSkipped(count, accepted_any):
                skipped_before = self._skipped
                self._skipped += count
                if not accepted_any and skipped_before < FIRST <= self._skipped:
                    log.warning("no record has a vector", skipped=self._skipped, message=ALL_DELETES)
            case OffsetsSkipped(partition, position, to, truncated):
                cause = "log truncated, offsets skipped" if truncated else "offsets removed by retention"
                log.error(cause, partition=partition, position=position, to=to)
            case PartitionsAssigned(positions):
                read_from = {str(p): "earliest" if at < 0 else at for p, at in sorted(positions.items())}
                log.info("partitions assigned", read_from=read_from)
            case PartitionsReleased(partitions, lost):
                if lost:
                    log.warning("partitions lost", partitions=sorted(partitions))
                else:
                    log.info("partitions revoked", partitions=sorted(partitions))
            case StartDelayed(waits_for, cause) if change.now.ticks >= self._log_delay_at:
                waited_s = change.now.ticks - change.after.started.ticks
                log.warning(f"waiting for {waits_for}", cause=cause, waited_s=round(waited_s))
                self._log_delay_at = change.now.ticks + min(1 + waited_s, _LONGEST_DELAY_PAUSE_S)
            case MemberStopping(cause):
                log.info("stopping", cause=cause)

    def _figures(self, state: MemberState) -> dict[str, object]:
        """Return the fields of a line about progress."""
        return {
            "partitions": len(state.partitions),
            "lag": sum(partition.lag or 0 for partition in state.partitions.values()),
            "rejected": self._rejected.total(),
            "skipped": self._skipped,
        }

    def _on_reject(self, event: RecordRejected) -> None:
        self._rejected[event.reason] += 1
        count = self._rejected[event.reason]
        is_power_of_ten = count == 10 ** (len(str(count)) - 1)
        write = log.warning if is_power_of_ten else log.debug
        write(
            "record rejected",
            partition=event.partition,
            offset=event.offset,
            reason=event.reason,
            message=event.message,
            count=count,
        )

    def _on_tick(self, state: MemberState, status: SourceStatus, now: float) -> None:
        """Every minute, log progress if messages have arrived; if none have, log why, but only if that has changed."""
        seconds = now - max(self._progress_at, state.started.ticks)
        if seconds < _PROGRESS_EVERY_S:
            return
        messages = state.messages - self._messages_until_progress
        activity = self.activity if messages else _why_no_messages(state, status)
        if messages:
            log.info(activity, messages=messages, per_second=round(messages / seconds, 1), **self._figures(state))
        elif activity != self._logged_activity:
            log.info(activity, **self._figures(state), **_waiting_details(status))
        self._progress_at = now
        self._messages_until_progress = state.messages
        self._logged_activity = activity


def log_problems(before: Mapping[type, Problem], after: Mapping[type, Problem]) -> None:
    """Log each problem that begins, or whose cause has changed, and each one that has ended."""
    for reported_by, (begun, ended) in _PROBLEMS.items():
        old = before.get(reported_by)
        new = after.get(reported_by)
        if new is not None and (old is None or _kind_of_cause(new.cause) != _kind_of_cause(old.cause)):
            log.error(begun, cause=new.cause)
        elif old is not None and new is None:
            log.info(ended, after=old.cause)


def _why_no_messages(state: MemberState, status: SourceStatus) -> str:
    if not status.connected:
        return "waiting for broker"
    if not status.member:
        return "waiting to join group"
    if state.partitions.are_stalled:
        return "waiting for schema registry"
    if status.blocked_since:
        return "waiting for a transaction to end"
    return "idle" if state.partitions else "standing by"


def _waiting_details(status: SourceStatus) -> dict[str, object]:
    """Return the fields of a line about a member without messages: the cause, or since when a transaction is open."""
    if not (status.connected and status.member):
        return {"cause": status.cause}
    return {"since": datetime.fromtimestamp(status.blocked_since, UTC).isoformat()} if status.blocked_since else {}


def _kind_of_cause(cause: str) -> str:
    """Return what is equal for two causes if a second line in the log would say nothing new.

    Numbers, such as those in names of files, make no difference. All failures that a retry may end are of one kind,
    since the requests of one outage fail in many ways.
    """
    return RETRY_MAY_HELP if RETRY_MAY_HELP in cause else _NUMBERS.sub("", cause)


class MemberMetrics(Observer):
    """The metrics of one member and its partitions, in a registry of their own; the topic is a label of each."""

    def __init__(self, role: str, topic: str, prefix: str, table: MetricsTable) -> None:
        self.registry: CollectorRegistry = LabelledRegistry(role, topic=topic)
        ProcessCollector(registry=self.registry)
        self.store = StoreMetrics()
        self.store.register(self.registry)
        self._metrics: dict[str, Any] = {}
        self._by_partition: list[Any] = []
        for (kind, labels), texts in (*MEMBER_METRICS.items(), *table.items()):
            group = {name: kind(prefix + name, text, labels, registry=self.registry) for name, text in texts.items()}
            self._metrics |= group
            if labels == PARTITION:
                self._by_partition += group.values()

    def observe(self, change: Change) -> None:
        match change.event:
            case StartDelayed():
                self._record(loop_last_tick_timestamp_seconds=change.now.unix)
            case LoopTicked(status):
                self._record(
                    loop_last_tick_timestamp_seconds=change.now.unix,
                    save_overdue_seconds=change.after.saving.overdue_s,
                    broker_connected=status.connected,
                )
            case PartitionsAssigned() | PartitionsReleased():
                owned = change.after.partitions.keys()
                self._record(partitions_owned=len(owned))
                released = change.before.partitions.keys() - owned
                for partition, gauge in product(released, self._by_partition):
                    with contextlib.suppress(KeyError):  # older prometheus_client: the gauge was never set
                        gauge.remove(str(partition))

    def _record(self, *labels: object, **values: Any) -> None:
        """Set gauges, add to counters, and observe in histograms, with these labels; a value of None is left out."""
        for name, value in values.items():
            if value is not None:
                metric = self._metrics[name].labels(*labels) if labels else self._metrics[name]
                getattr(metric, _METHODS.get(type(metric), "observe"))(value)
