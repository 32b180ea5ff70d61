"""The log of a member, whatever it does with its records."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

import structlog

from streampca.consumer_group.events import (
    CheckpointPostponed,
    ElementsReordered,
    FieldNamesWithoutNumbers,
    LoopTicked,
    MemberStopping,
    OffsetsSkipped,
    PartitionsAssigned,
    PartitionsMissing,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RecordRejected,
    RecordsSkipped,
    RestoreBegun,
    RestoreFailed,
    StartDelayed,
    TransactionEnded,
)
from streampca.consumer_group.member import Change, Observer
from streampca.consumer_group.member_state import SAVING_HAS_STOPPED, MemberState, Problem
from streampca.consumer_group.policy import RECORDS_TO_JUDGE_SETTINGS, explain_all_skipped
from streampca.errors import RETRY_MAY_HELP
from streampca.sources.events import SourceStatus

log = structlog.get_logger()

_NUMBERS = re.compile(r"[0-9]+")
_PROGRESS_EVERY_S = 60.0
_LONGEST_DELAY_PAUSE_S = 60.0  # between two lines about a start that waits
_FIRST_RESTORING_PAUSE_S = 5.0  # before the first line about partitions that are being restored
# Key of a problem, see `MemberState` → the log's words when the problem begins, and when it has ended.
_PROBLEM_LINES: Mapping[type, tuple[str, str]] = {
    RestoreFailed: ("restoring failed", "partitions restored"),
    PartitionStalled: ("decoding stalled", "decoding resumed"),
    CheckpointPostponed: ("checkpoint postponed", "checkpoint saved again"),
    PublishFailed: ("publishing failed", "model published again"),
    PartitionsMissing: ("partitions missing", "no partition is missing"),
    TransactionEnded: ("transaction failed", "transactions committed again"),
    SAVING_HAS_STOPPED: ("saving has stopped", "no save is overdue"),
}


class MemberLog(Observer):
    """Logs what changes in a member's state, its partitions, the records without vectors, and progress every minute.

    Subclasses log what a member does with vectors.
    """

    activity: str  # what a member does while messages arrive, for the lines about progress

    def __init__(self) -> None:
        self._rejected: Counter[str] = Counter()  # records, by reason
        self._skipped = 0  # records
        self._has_warned_of_reordered_elements = False
        # When, in monotonic seconds, the next line may be logged about a delayed start, or about restoring.
        self._next_delay_log_at = 0.0
        self._next_restoring_log_at = 0.0
        self._restoring_pause_s = _FIRST_RESTORING_PAUSE_S  # before the next line; the pause doubles with each line
        # As of the last line about progress.
        self._last_progress_at = 0.0  # monotonic seconds
        self._messages_at_last_progress = 0
        self._last_activity = ""

    def observe(self, change: Change) -> None:
        """Log what an event means for the user."""
        # When partitions are released, their problems end, but nothing has recovered.
        if not isinstance(change.event, PartitionsReleased):
            log_problems(change.before.problems, change.after.problems)
        match change.event:
            case LoopTicked(status):
                self._log_restoring(change.after, change.now.monotonic_s)
                self._on_tick(change.after, status, change.now.monotonic_s)
            case RestoreBegun():
                self._on_restore_begun(change.now.monotonic_s)
            case RecordRejected():
                self._on_reject(change.event)
            case RecordsSkipped():
                self._on_skipped(change.event)
            case ElementsReordered(message) if not self._has_warned_of_reordered_elements:
                self._has_warned_of_reordered_elements = True
                log.warning("elements change their places", message=message)
            case FieldNamesWithoutNumbers(message):  # sent at most once; the names are in the setting `field`
                log.warning("names without numbers", message=message)
            case OffsetsSkipped(partition, lost_from, to, truncated):
                happened = "log truncated, offsets skipped" if truncated else "offsets removed by retention"
                log.error(happened, partition=partition, position=lost_from, to=to)
            case PartitionsAssigned(positions):
                read_from = {str(p): "earliest" if at < 0 else at for p, at in sorted(positions.items())}
                log.info("partitions assigned", read_from=read_from)
            case PartitionsReleased(partitions, lost=True):  # the group has removed this member
                log.warning("partitions lost", partitions=sorted(partitions))
            case PartitionsReleased(partitions):  # the member stays in the group
                log.info("partitions revoked", partitions=sorted(partitions))
            case StartDelayed():
                self._on_delay(change.event, change.after.started.monotonic_s, change.now.monotonic_s)
            case MemberStopping(cause):
                log.info("stopping", cause=cause)

    def _progress_fields(self, state: MemberState) -> dict[str, object]:
        """Return the fields of a line about progress."""
        return {
            "partitions": len(state.partitions),
            "lag": sum(partition.lag or 0 for partition in state.partitions.values()),
            "rejected": self._rejected.total(),
            "skipped": self._skipped,
        }

    def _on_delay(self, event: StartDelayed, started: float, now: float) -> None:
        """Log what a start waits for, after pauses that grow to a minute; times are monotonic seconds."""
        if now < self._next_delay_log_at:
            return
        waited_s = now - started
        log.warning(f"waiting for {event.waits_for}", cause=event.cause, waited_s=round(waited_s))
        self._next_delay_log_at = now + min(1 + waited_s, _LONGEST_DELAY_PAUSE_S)

    def _on_skipped(self, event: RecordsSkipped) -> None:
        """Count skipped records. Warn once when there are 100 and no vector was accepted."""
        skipped_before = self._skipped
        self._skipped += event.count
        has_reached_limit = skipped_before < RECORDS_TO_JUDGE_SETTINGS <= self._skipped
        if has_reached_limit and not event.accepted_any:
            log.warning("no record has a vector", skipped=self._skipped, message=explain_all_skipped(event.reason))

    def _on_reject(self, event: RecordRejected) -> None:
        """Log a rejected record: the 1st, 10th, 100th … with a reason as a warning, all others at `debug`."""
        self._rejected[event.reason] += 1
        count = self._rejected[event.reason]
        is_power_of_ten = str(count).rstrip("0") == "1"
        write = log.warning if is_power_of_ten else log.debug
        write(
            "record rejected",
            partition=event.partition,
            offset=event.offset,
            reason=event.reason,
            message=event.message,
            count=count,
        )

    def _on_restore_begun(self, now: float) -> None:
        """Let the first line about restoring come in five seconds, if partitions are left to restore by then."""
        self._restoring_pause_s = _FIRST_RESTORING_PAUSE_S
        self._next_restoring_log_at = now + _FIRST_RESTORING_PAUSE_S

    def _log_restoring(self, state: MemberState, now: float) -> None:
        """Log how many partitions are left to restore, after pauses that double.

        While a problem keeps partitions from being restored, only the problem is logged.
        """
        has_failed = RestoreFailed in state.problems or PartitionsMissing in state.problems
        if not state.left_to_restore or has_failed or now < self._next_restoring_log_at:
            return
        log.info("restoring partitions", left=state.left_to_restore, restored=len(state.partitions))
        self._restoring_pause_s = min(2 * self._restoring_pause_s, _PROGRESS_EVERY_S)
        self._next_restoring_log_at = now + self._restoring_pause_s

    def _on_tick(self, state: MemberState, status: SourceStatus, now: float) -> None:
        """Log progress once a minute. If no messages have arrived, log why, unless the last line said the same."""
        # Before the first line, the minute begins at the start of the member.
        minute_began_at = max(self._last_progress_at, state.started.monotonic_s)
        seconds = now - minute_began_at
        if seconds < _PROGRESS_EVERY_S:
            return
        messages = state.messages - self._messages_at_last_progress
        fields = self._progress_fields(state)
        if messages:
            activity = self.activity  # such as "learning"
            log.info(activity, messages=messages, per_second=round(messages / seconds, 1), **fields)
        else:
            activity = _why_no_messages(state, status)
            if activity != self._last_activity:
                log.info(activity, **fields, **_waiting_details(status))
        self._last_progress_at = now
        self._messages_at_last_progress = state.messages
        self._last_activity = activity


def log_problems(before: Mapping[type, Problem], after: Mapping[type, Problem]) -> None:
    """Log the problems that have begun, have another cause now, or have ended."""
    for event_type, (line_at_begin, line_at_end) in _PROBLEM_LINES.items():
        old = before.get(event_type)
        new = after.get(event_type)
        if new is None and old is not None:
            log.info(line_at_end, after=old.cause)
        # A cause that differs only in numbers is not logged again.
        if new is not None and (old is None or _simplify_cause(new.cause) != _simplify_cause(old.cause)):
            log.error(line_at_begin, cause=new.cause)


def _why_no_messages(state: MemberState, status: SourceStatus) -> str:
    """Return the words of the log for a member to which no messages arrive."""
    if not status.connected:
        return "waiting for broker"
    if not status.member:
        return "waiting to join group"
    if state.partitions.are_stalled:
        return "waiting for schema registry"
    if status.blocked_since:
        return "waiting for a transaction to end"
    if state.left_to_restore:
        return "restoring partitions"
    return "idle" if state.partitions else "standing by"


def _waiting_details(status: SourceStatus) -> dict[str, object]:
    """Return more fields of a line about a member to which no messages arrive."""
    if not (status.connected and status.member):
        return {"cause": status.cause}
    if status.blocked_since:  # an open transaction blocks a partition
        return {"since": datetime.fromtimestamp(status.blocked_since, UTC).isoformat()}
    return {}


def _simplify_cause(cause: str) -> str:
    """Return a cause without its numbers, such as those in names of files.

    All causes with the words "a retry may help" become the same cause.
    """
    return RETRY_MAY_HELP if RETRY_MAY_HELP in cause else _NUMBERS.sub("", cause)
