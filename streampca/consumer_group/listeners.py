"""The log and the metrics of a member, whatever it does with its records."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import product, starmap
from typing import Any

import prometheus_client
import structlog
from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector

from streampca.consumer_group import events
from streampca.consumer_group.policy import ALL_DELETES, FIRST
from streampca.errors import RETRY_MAY_HELP
from streampca.process.metrics import LabelledRegistry, StoreMetrics
from streampca.sources.events import SourceStatus

log = structlog.get_logger()

_NUMBERS = re.compile(r"[0-9]+")
_PROGRESS_EVERY_S = 60.0
_UNSAVED = "saving has stopped"

Row = tuple[type[prometheus_client.Counter] | type[Gauge] | type[Histogram], str, Sequence[str], str]
"""Kind, name after a prefix, labels and help text of a metric."""

MEMBER_METRICS: tuple[Row, ...] = (
    (Gauge, "partitions_owned", (), "Partitions assigned to this member."),
    (Gauge, "broker_connected", (), "1 while a broker answers, otherwise 0; then lag and offsets are stale."),
    (Gauge, "loop_last_tick_timestamp_seconds", (), "Time of the loop's last iteration."),
    (Gauge, "save_overdue_seconds", (), "Time since a save of records was due that has not happened; 0 if none is."),
)
PARTITION = ("partition",)


class MemberLog(events.Listener):
    """Logs events of the group and of records, and progress every minute; subclasses log what they do with records.

    A failure that repeats is logged only once until it is over. `clock` is monotonic.
    """

    activity: str  # what a member does that has records

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._causes: dict[str, str] = {}  # of failures that are not over
        self._stalled: set[int] = set()
        self._lags: dict[int, int | None] = {}  # of every partition owned; None until it is known
        self._caught_up = False  # since the last assignment
        self._rejected: Counter[str] = Counter()
        self._skipped = 0
        self._messages = self._messages_before = 0  # in all, and until the last line about progress
        self._started_at = self._log_delay_at = self._progress_at = clock()
        self._logged_activity = ""

    def notify(self, event: events.MemberEvent) -> None:
        match event:
            case events.SourcePolled(status):
                self._on_poll(status)
            case events.RecordRejected():
                self._on_reject(event)
            case events.RecordsSkipped(count, accepted_any):
                self._skipped += count
                if self._skipped - count < FIRST <= self._skipped and not accepted_any:
                    log.warning("no record has a vector", skipped=self._skipped, message=ALL_DELETES)
            case events.PartitionStalled(partition, lag, cause):
                self._stalled.add(partition)
                self._lags[partition] = lag
                self._fails("decoding stalled", cause)
            case events.PartitionResumed(partition):
                self._stalled.discard(partition)
                if not self._stalled:
                    self._ends("decoding stalled", "decoding resumed")
            case events.OffsetsSkipped(partition, position, to, truncated):
                cause = "log truncated, offsets skipped" if truncated else "offsets removed by retention"
                log.error(cause, partition=partition, position=position, to=to)
            case events.RestoreFailed(cause):
                self._fails("restoring failed", cause)
            case events.PartitionsAssigned(positions):
                self._ends("restoring failed", "partitions restored")
                self._lags |= dict.fromkeys(positions)
                self._caught_up = False
                read_from = {str(p): "earliest" if at < 0 else at for p, at in sorted(positions.items())}
                log.info("partitions assigned", read_from=read_from)
            case events.PartitionsReleased():
                self._on_release(event)
            case events.StartDelayed(needs, cause) if (now := self._clock()) >= self._log_delay_at:
                waited_s = now - self._started_at
                log.warning(f"waiting for {needs}", cause=cause, waited_s=round(waited_s))
                self._log_delay_at = now + min(1 + waited_s, _PROGRESS_EVERY_S)
            case events.SaveOverdue(seconds, failures):
                if seconds >= events.SAVING_STOPPED_S and _UNSAVED not in self._causes:
                    self._fails(_UNSAVED, "; ".join(starmap("{}: {}".format, failures.items())) or "no failure")
                elif not seconds:
                    self._ends(_UNSAVED, "no save is overdue")
            case events.MemberStopping(cause):
                log.info("stopping", cause=cause)

    def _state(self) -> dict[str, object]:
        """The fields of a line about progress."""
        return {
            "partitions": len(self._lags),
            "lag": sum(lag or 0 for lag in self._lags.values()),
            "rejected": self._rejected.total(),
            "skipped": self._skipped,
        }

    def _fails(self, failure: str, cause: str, level: str = "error") -> None:
        """Log a failure that is retried when it begins, and when its cause changes."""
        if _kind(cause) != _kind(self._causes.get(failure, "")):
            getattr(log, level)(failure, cause=cause)
        self._causes[failure] = cause

    def _ends(self, failure: str, recovered: str) -> None:
        if cause := self._causes.pop(failure, ""):
            log.info(recovered, after=cause)

    def _catches_up(self, partition: int, messages: int, lag: int) -> bool:
        """Count a batch; returns True if all partitions are at their end now, first since the assignment."""
        self._messages += messages
        self._lags[partition] = lag
        before = self._caught_up
        self._caught_up = before or all(lag is not None and lag <= 0 for lag in self._lags.values())
        return self._caught_up and not before

    def _on_release(self, event: events.PartitionsReleased) -> None:
        for partition in event.partitions:
            self._lags.pop(partition, None)
            self._stalled.discard(partition)
        if not self._stalled:  # where they stall again, that is logged again
            self._causes.pop("decoding stalled", None)
        write = log.warning if event.lost else log.info
        write("partitions lost" if event.lost else "partitions revoked", partitions=sorted(event.partitions))

    def _on_reject(self, event: events.RecordRejected) -> None:
        self._rejected[event.reason] += 1
        count = self._rejected[event.reason]
        write = log.warning if count == 10 ** (len(str(count)) - 1) else log.debug  # the 1st, 10th, 100th, …
        write(
            "record rejected",
            partition=event.partition,
            offset=event.offset,
            reason=event.reason,
            message=event.message,
            count=count,
        )

    def _on_poll(self, status: SourceStatus) -> None:
        """Log progress every minute while messages arrive; otherwise once, when the reason for the silence changes."""
        now = self._clock()
        if (seconds := now - self._progress_at) < _PROGRESS_EVERY_S:
            return
        messages = self._messages - self._messages_before
        activity = self.activity if messages else self._waits_for(status)
        if messages:
            log.info(activity, messages=messages, per_second=round(messages / seconds, 1), **self._state())
        elif activity != self._logged_activity:
            log.info(activity, **self._state(), **_details(status))
        self._progress_at, self._messages_before, self._logged_activity = now, self._messages, activity

    def _waits_for(self, status: SourceStatus) -> str:
        if not status.connected:
            return "waiting for broker"
        if not status.member:
            return "waiting to join group"
        if self._stalled:
            return "waiting for schema registry"
        if status.blocked_since:
            return "waiting for a transaction to end"
        return "idle" if self._lags else "standing by"


def _details(status: SourceStatus) -> dict[str, object]:
    """The cause of what a member waits for, or since when."""
    if not (status.connected and status.member):
        return {"cause": status.cause}
    return {"since": datetime.fromtimestamp(status.blocked_since, UTC).isoformat()} if status.blocked_since else {}


def _kind(cause: str) -> str:
    """The cause without numbers of files; one for all that may end by themselves, as requests fail in many ways."""
    return RETRY_MAY_HELP if RETRY_MAY_HELP in cause else _NUMBERS.sub("", cause)


class MemberMetrics(events.Listener):
    """The metrics of one member and its partitions, in a registry of their own; all with the topic."""

    def __init__(self, role: str, topic: str, prefix: str, table: Iterable[Row]) -> None:
        self.registry: CollectorRegistry = LabelledRegistry(role, topic=topic)
        ProcessCollector(registry=self.registry)
        self.store = StoreMetrics()
        self.store.register(self.registry)
        rows = (*MEMBER_METRICS, *table)
        self._metrics: dict[str, Any] = {
            name: kind(prefix + name, text, labels, registry=self.registry) for kind, name, labels, text in rows
        }
        self._by_partition = [self._metrics[name] for _, name, labels, _ in rows if labels == PARTITION]
        self._owned: set[int] = set()

    def notify(self, event: events.MemberEvent) -> None:
        match event:
            case events.LoopTicked() | events.StartDelayed():
                self._metrics["loop_last_tick_timestamp_seconds"].set_to_current_time()
            case events.SourcePolled(status):
                self._metrics["broker_connected"].set(status.connected)
            case events.SaveOverdue(seconds):
                self._metrics["save_overdue_seconds"].set(seconds)
            case events.PartitionsAssigned(positions):
                self._own(self._owned.union(positions))
            case events.PartitionsReleased(partitions):
                self._own(self._owned.difference(partitions))
                for partition, gauge in product(partitions, self._by_partition):
                    with contextlib.suppress(KeyError):  # older prometheus_client: the gauge was never set
                        gauge.remove(str(partition))

    def _set(self, partition: int, **values: float) -> None:
        for name, value in values.items():
            self._metrics[name].labels(str(partition)).set(value)

    def _own(self, partitions: set[int]) -> None:
        self._owned = partitions
        self._metrics["partitions_owned"].set(len(partitions))
