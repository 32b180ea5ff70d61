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

_SETTLED_AFTER_S = 10.0  # in a group without partitions: another assignment often follows a first empty one

_ENDED_BY: Mapping[type, type] = {  # event → the event that has reported the problem which ends
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

    A value: `after` changes nothing, and returns the state after an event. Log, metrics, status reports and health are
    made of it, and keep nothing about the member themselves. Counters of events are not part of it, unless a status
    report shows them.
    """

    started: Moment
    ticked: Moment  # at the loop's last turn, or the last attempt to start
    saving: Saving
    has_run: bool = False  # the loop has begun
    has_ended: bool = False
    start_needs: str = ""  # what the start waits for
    stop_cause: str = ""  # empty until the member is to stop

    connection: SourceStatus | None = None  # None: not known yet
    is_member: bool = False  # of its consumer group
    member_since: float = 0.0  # or since when it is not a member
    has_joined: bool = False  # it was given partitions, or is a member without any for good
    was_assigned: bool = False  # partitions, ever

    # By the event that reports them; `Saving`: that it has stopped, `LoopTicked`: that no broker answers.
    problems: Mapping[type, Problem] = {}
    partitions: PartitionStates = PartitionStates()
    has_caught_up: bool = False  # all partitions have been read to their end since the last assignment

    messages: int = 0
    last_message: float = -math.inf
    outputs: int = 0  # of transform, also those of open transactions
    committed: Mapping[str, int] = {}  # of transform: records of all committed transactions, by outcome
    committed_at: float | None = None  # of transform, seconds since 1970
    model_version: int | None = None  # published last by a worker, or used last by transform
    fixed_version: int | None = None  # of the only model that transform may use

    @property
    def why_no_model(self) -> str | None:
        """Why transform has no model to start with; None if it does not wait for one."""
        problem = self.problems.get(StartDelayed)
        return problem.cause if problem and self.start_needs == "model" else None

    def after(self, event: MemberEvent, now: Moment) -> "MemberState":
        """The state after an event."""
        partitions = self.partitions.after(event, now.ticks)
        saving = self.saving.after(event, partitions, now.ticks)
        changed = self._replace(partitions=partitions, saving=saving)
        state = changed._replace(problems=self._problems_after(event, changed, now.ticks))
        match event:
            case StartDelayed(needs, cause):
                no_broker = SourceStatus(connected=False, member=False, cause=cause)
                connection = no_broker if needs == "brokers" else None
                return state._replace(ticked=now, start_needs=needs, connection=connection)
            case LoopTicked(status):
                return state._replace(ticked=now, has_run=True)._polled(status, now.ticks)
            case PartitionsAssigned():
                return state._replace(has_joined=True, was_assigned=True, has_caught_up=False)
            case PartitionsReleased(_, lost):  # a member whose partitions are revoked stays in the group
                return state._replace(has_joined=not lost, is_member=self.is_member and not lost)
            case BatchLearned(messages=messages):
                return state._handled(messages, now.ticks)
            case BatchTransformed(messages=messages):
                handled = state._handled(messages, now.ticks)
                return handled._replace(outputs=self.outputs + event.outputs, model_version=event.version)
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

    def _polled(self, status: SourceStatus, now: float) -> "MemberState":
        if status.member != self.is_member:
            return self._replace(connection=status, is_member=status.member, member_since=now)
        is_settled = now - self.member_since >= _SETTLED_AFTER_S  # a standby without partitions, too
        return self._replace(connection=status, has_joined=self.is_member if is_settled else self.has_joined)

    def _handled(self, messages: int, now: float) -> "MemberState":
        """The state after a batch was learned or transformed."""
        return self._replace(
            has_caught_up=self.has_caught_up or all(state.is_at_end for state in self.partitions.values()),
            messages=self.messages + messages,
            last_message=now if messages else self.last_message,
        )

    def _problems_after(self, event: MemberEvent, changed: "MemberState", now: float) -> Mapping[type, Problem]:
        """The problems after an event that has `changed` partitions and saves."""
        kind = type(event)
        causes = {}  # empty: the problem has ended
        if kind in _ENDED_BY:
            causes[_ENDED_BY[kind]] = ""
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
                is_away = not status.connected and self.was_assigned
                reason = f": {status.cause}" if status.cause else ""
                causes[kind] = f"{NO_ANSWER}{reason}" if is_away else ""
                if not changed.saving.overdue_s:
                    causes[Saving] = ""
                elif changed.saving.has_stopped and Saving not in self.problems:
                    causes[Saving] = changed.saving.why
        problems = dict(self.problems)
        for kind, cause in causes.items():
            since = problems[kind].since if kind in problems else now
            problems[kind] = Problem(cause, since)
        return {kind: problem for kind, problem in problems.items() if problem.cause}
