"""The state of a member: its connection, partitions and saves, and what is wrong with it."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from streampca.consumer_group.events import (
    BatchLearned,
    BatchTransformed,
    CheckpointPostponed,
    CheckpointSaved,
    LoopTicked,
    MemberEnded,
    MemberEvent,
    MemberStopping,
    ModelFixed,
    ModelPublished,
    PartitionsAssigned,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RestoreFailed,
    StartDelayed,
    TransactionEnded,
)
from streampca.consumer_group.partition_state import PartitionStates
from streampca.consumer_group.saving import Saving
from streampca.errors import NO_ANSWER
from streampca.sources.events import SourceStatus

_STANDBY_AFTER_S = 10.0  # a member without partitions; before, a second assignment often follows an empty first one

# An event → the event that reported the problem which the first one ends.
_ENDS_PROBLEM: Mapping[type, type] = {
    PartitionsAssigned: RestoreFailed,
    PartitionsReleased: RestoreFailed,
    CheckpointSaved: CheckpointPostponed,
    ModelPublished: PublishFailed,
    LoopTicked: StartDelayed,
}


class Moment(NamedTuple):
    """A time on two clocks."""

    ticks: float  # monotonic, seconds
    unix: float  # seconds since 1970


class Problem(NamedTuple):
    """Something that is wrong with a member."""

    cause: str
    since: float  # monotonic, seconds


class MemberState(NamedTuple):
    """What is known of a member; times are monotonic seconds, unless said otherwise.

    The state is immutable: `after` returns the state after an event. Log, metrics, status reports and health are made
    of it. It counts events only as far as a status report shows the count; log and metrics keep their own counters.
    """

    started: Moment
    ticked: Moment  # at the loop's last turn, or the last attempt to start
    saving: Saving
    has_run: bool = False  # the loop has begun
    has_ended: bool = False
    start_waits_for: str = ""  # at the last attempt to start that had to wait
    stop_cause: str = ""  # empty until the member is to stop

    connection: SourceStatus | None = None  # None: not known yet
    is_member: bool = False  # of its consumer group
    membership_since: float = 0.0  # when `is_member` changed last
    has_joined: bool = False  # partitions were assigned, or the member is a standby: the group has none for it
    was_assigned: bool = False  # partitions were assigned at least once, and may have been released since

    # Type of the event that reports a problem → problem. `LoopTicked`: no broker answers; `Saving`: saving has stopped.
    problems: Mapping[type, Problem] = {}
    partitions: PartitionStates = PartitionStates()
    has_caught_up: bool = False  # all partitions have been read to their end since the last assignment

    messages: int = 0
    last_message_at: float = -math.inf
    outputs: int = 0  # of transform, also those of open transactions
    committed: Mapping[str, int] = {}  # of transform: records of all committed transactions, by outcome
    committed_at: float | None = None  # of transform, seconds since 1970
    model_version: int | None = None  # published last by a worker, or used last by transform
    fixed_version: int | None = None  # of the only model that transform may use

    @property
    def why_no_model(self) -> str | None:
        """Why transform has no model to start with; None if it does not wait for one."""
        problem = self.problems.get(StartDelayed)
        return problem.cause if problem and self.start_waits_for == "model" else None

    def after(self, event: MemberEvent, now: Moment) -> "MemberState":
        """Return the state after an event."""
        partitions = self.partitions.after(event, now.ticks)
        saving = self.saving.after(event, partitions, now.ticks)
        changed = self._replace(partitions=partitions, saving=saving)
        state = changed._replace(problems=self._problems_after(event, changed, now.ticks))
        match event:
            case StartDelayed(waits_for, cause):
                no_broker = SourceStatus(connected=False, member=False, cause=cause)
                connection = no_broker if waits_for == "brokers" else None
                return state._replace(ticked=now, start_waits_for=waits_for, connection=connection)
            case LoopTicked(status):
                return state._replace(ticked=now, has_run=True)._after_poll(status, now.ticks)
            case PartitionsAssigned():
                return state._replace(has_joined=True, was_assigned=True, has_caught_up=False)
            case PartitionsReleased(_, lost):  # revoked: the member stays in the group; lost: it is not in it
                return state._replace(has_joined=not lost, is_member=self.is_member and not lost)
            case BatchLearned(messages=messages):
                return state._after_batch(messages, now.ticks)
            case BatchTransformed(messages=messages):
                transformed = state._after_batch(messages, now.ticks)
                return transformed._replace(outputs=self.outputs + event.outputs, model_version=event.version)
            case TransactionEnded("committed", counts):
                return state._replace(committed=Counter(self.committed) + Counter(counts), committed_at=now.unix)
            case ModelPublished(model):
                return state._replace(model_version=model.version)
            case ModelFixed(version):
                return state._replace(fixed_version=version)
            case MemberStopping(cause):
                return state._replace(stop_cause=cause)
            case MemberEnded():
                return state._replace(has_ended=True)
        return state

    def _after_poll(self, status: SourceStatus, now: float) -> "MemberState":
        state = self._replace(connection=status)
        if status.member != self.is_member:
            return state._replace(is_member=status.member, membership_since=now)
        if now - self.membership_since >= _STANDBY_AFTER_S:  # a member that still has no partitions is a standby
            return state._replace(has_joined=self.is_member)
        return state

    def _after_batch(self, messages: int, now: float) -> "MemberState":
        return self._replace(
            has_caught_up=self.has_caught_up or all(state.is_at_end for state in self.partitions.values()),
            messages=self.messages + messages,
            last_message_at=now if messages else self.last_message_at,
        )

    def _problems_after(self, event: MemberEvent, changed: "MemberState", now: float) -> Mapping[type, Problem]:
        """Return the problems after an event; `changed` is the state with the partitions and saves after it."""
        kind = type(event)
        causes = {}  # of the problems that the event changes; an empty cause: the problem has ended
        if kind in _ENDS_PROBLEM:
            causes[_ENDS_PROBLEM[kind]] = ""
        if PartitionStalled in self.problems and not changed.partitions.are_stalled:
            causes[PartitionStalled] = ""
        match event:
            case (
                StartDelayed(cause=cause) | RestoreFailed(cause) | CheckpointPostponed(cause) | PublishFailed(cause)
                | PartitionStalled(cause=cause) | TransactionEnded("failed", cause=cause) | MemberEnded(cause)
            ):  # fmt: skip
                causes[kind] = cause
            case TransactionEnded("committed"):
                causes[kind] = ""
            case LoopTicked(status):
                is_disconnected = not status.connected and self.was_assigned
                no_answer = f"{NO_ANSWER}: {status.cause}" if status.cause else NO_ANSWER
                causes[LoopTicked] = no_answer if is_disconnected else ""
                if not changed.saving.overdue_s:
                    causes[Saving] = ""
                elif changed.saving.has_stopped and Saving not in self.problems:
                    causes[Saving] = changed.saving.cause
        problems = dict(self.problems)
        for reported_by, cause in causes.items():
            before = problems.get(reported_by)
            since = now if before is None else before.since
            problems[reported_by] = Problem(cause, since)
        return {reported_by: problem for reported_by, problem in problems.items() if problem.cause}
