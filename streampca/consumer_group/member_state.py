"""The state of a member: its connection, partitions and saves, and what is wrong with it."""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

from streampca.consumer_group.events import (
    BatchLearned,
    BatchTransformed,
    CheckpointPostponed,
    CheckpointSaved,
    LoopTicked,
    MemberEnded,
    MemberEvent,
    MemberStopping,
    ModelPublished,
    ModelVersionFixed,
    PartitionsAssigned,
    PartitionsMissing,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RestoreBegun,
    RestoreFailed,
    StartDelayed,
    TransactionEnded,
)
from streampca.consumer_group.partition_state import PartitionStates
from streampca.consumer_group.saving import Saving
from streampca.errors import NO_ANSWER
from streampca.sources.events import SourceStatus

# A member that has no partitions for this long is a standby. Earlier, an assignment without partitions does not mean
# much: a second one often follows it.
_STANDBY_AFTER_S = 10.0

_ENDED = ""  # in place of the cause of a problem: the problem has ended, or there was none

ProblemKey: TypeAlias = type
"""The class of the event that reports a problem, such as `RestoreFailed`, or one of the two keys below."""

# Class of an event → the keys of the problems in `MemberState.problems` that each such event ends.
_ENDS_PROBLEMS: Mapping[type, Collection[ProblemKey]] = {
    PartitionsAssigned: [RestoreFailed],
    PartitionsMissing: [RestoreFailed, PublishFailed],
    PartitionsReleased: [RestoreFailed, PartitionsMissing],
    ModelPublished: [PublishFailed],
    LoopTicked: [StartDelayed],
}


# Keys of problems that ticks of the loop show.
NO_BROKER_ANSWERS: ProblemKey = LoopTicked
SAVING_HAS_STOPPED: ProblemKey = Saving


class Moment(NamedTuple):
    """A time on two clocks."""

    monotonic_s: float  # to measure how long something takes
    unix_s: float  # seconds since 1970


class Problem(NamedTuple):
    """Something that is wrong with a member."""

    cause: str
    since: float  # monotonic, seconds


class MemberState(NamedTuple):
    """What is known of a member; times are monotonic seconds, unless said otherwise.

    The state is immutable: `after` returns the state after an event. Log, metrics, status reports and health are made
    of it. The key of a problem is the class of the event that reports it, such as `RestoreFailed`. Two problems are not
    reported by an event of their own; their keys are `NO_BROKER_ANSWERS` and `SAVING_HAS_STOPPED`.
    """

    started: Moment
    last_tick_at: Moment  # of the loop, or of the last attempt to start
    saving: Saving
    has_run: bool = False  # the loop has begun
    has_ended: bool = False
    start_waits_for: str = ""  # at the last attempt to start that had to wait
    stop_cause: str = ""  # empty until the member is to stop

    connection: SourceStatus | None = None  # None: not known yet
    is_member: bool = False  # of its consumer group, and no rebalance is in progress
    membership_since: float = 0.0  # when `is_member` changed last
    # Whether the member is ready: partitions were assigned, or it has been in the group for a while without any, as a
    # standby. A short rebalance does not change this.
    has_joined: bool = False
    was_ever_assigned: bool = False  # partitions were assigned at least once, and may have been released since

    problems: Mapping[ProblemKey, Problem] = {}
    partitions: PartitionStates = PartitionStates()
    left_to_restore: int = 0  # partitions that the group has assigned, and that are not read yet
    has_caught_up: bool = False  # all partitions have been read to their end since the last assignment

    messages: int = 0
    last_message_at: float = -math.inf
    outputs: int = 0  # of transform, also those of open transactions
    committed: Mapping[str, int] = {}  # of transform: records of all committed transactions, by outcome
    committed_at: float | None = None  # of transform, seconds since 1970
    model_version: int | None = None  # published last by a worker, or used last by transform
    fixed_version: int | None = None  # the only version that transform may use; None: `model_version` names none

    @property
    def why_no_model(self) -> str | None:
        """Why transform has no model to start with; None if it does not wait for one."""
        problem = self.problems.get(StartDelayed)
        return problem.cause if problem and self.start_waits_for == "model" else None

    def after(self, event: MemberEvent, now: Moment) -> "MemberState":
        """Return the state after an event."""
        partitions = self.partitions.after(event, now.monotonic_s)
        saving = self.saving.after(event, partitions, now.monotonic_s)
        state = self._replace(partitions=partitions, saving=saving)
        problems = self._problems_after(event, state, now.monotonic_s)
        return state._replace(problems=problems)._update_other_fields(event, now)

    def _update_other_fields(self, event: MemberEvent, now: Moment) -> "MemberState":
        """Return the state after an event. The caller has already updated `partitions`, `saving` and `problems`."""
        match event:
            case StartDelayed():
                return self._after_start_delay(event, now)
            case LoopTicked(source_status):
                return self._after_tick(source_status, now)
            case RestoreBegun(partitions=count):
                return self._replace(left_to_restore=count)
            case PartitionsAssigned(positions):  # these partitions are restored now
                # After a failed transaction, partitions are restored again that `left_to_restore` does not count.
                left = max(self.left_to_restore - len(positions), 0)
                return self._replace(has_joined=True, was_ever_assigned=True, has_caught_up=False, left_to_restore=left)
            case PartitionsReleased(lost=True):  # the group has removed this member
                return self._replace(has_joined=False, is_member=False, left_to_restore=0)
            case PartitionsReleased():  # the member stays in the group
                return self._replace(has_joined=True, left_to_restore=0)
            case BatchLearned(messages=messages):
                return self._after_batch(messages, now.monotonic_s)
            case BatchTransformed(messages=messages, outputs=outputs, version=version):
                transformed = self._after_batch(messages, now.monotonic_s)
                return transformed._replace(outputs=self.outputs + outputs, model_version=version)
            case TransactionEnded("committed", counts):
                return self._replace(committed=Counter(self.committed) + Counter(counts), committed_at=now.unix_s)
            case ModelPublished(model):
                return self._replace(model_version=model.version)
            case ModelVersionFixed(version):  # transform may use only this version
                return self._replace(fixed_version=version)
            case MemberStopping(cause):
                return self._replace(stop_cause=cause)
            case MemberEnded():
                return self._replace(has_ended=True)
        return self

    def _after_start_delay(self, event: StartDelayed, now: Moment) -> "MemberState":
        """Return the state after an attempt to start that must be repeated."""
        connection = None
        if event.waits_for == "brokers":
            connection = SourceStatus(connected=False, member=False, cause=event.cause)
        return self._replace(last_tick_at=now, start_waits_for=event.waits_for, connection=connection)

    def _after_tick(self, status: SourceStatus, now: Moment) -> "MemberState":
        """Return the state after the loop has polled its source, which has this status now."""
        ticked = self._replace(last_tick_at=now, has_run=True, connection=status)
        if status.member != self.is_member:
            return ticked._replace(is_member=status.member, membership_since=now.monotonic_s)
        is_membership_settled = now.monotonic_s - self.membership_since >= _STANDBY_AFTER_S
        if is_membership_settled:
            # A member without partitions (a standby) gets no event `PartitionsAssigned`. So it counts as joined once it
            # has been in the group for `_STANDBY_AFTER_S`. A process that is not in the group has not joined.
            return ticked._replace(has_joined=self.is_member)
        return ticked

    def _after_batch(self, messages: int, now: float) -> "MemberState":
        """Return the state after a batch of messages was learned or projected."""
        are_at_end = not self.left_to_restore and all(state.is_at_end for state in self.partitions.values())
        return self._replace(
            has_caught_up=self.has_caught_up or are_at_end,
            messages=self.messages + messages,
            last_message_at=now if messages else self.last_message_at,
        )

    def _problems_after(self, event: MemberEvent, new_state: "MemberState", now: float) -> Mapping[ProblemKey, Problem]:
        """Return the problems after an event, by key; `new_state` has the partitions and saves after the event."""
        problems = dict(self.problems)
        for key, cause in self._find_changed_causes(event, new_state).items():
            if cause == _ENDED:
                problems.pop(key, None)
            else:
                since = problems[key].since if key in problems else now
                problems[key] = Problem(cause, since)
        return problems

    def _find_changed_causes(self, event: MemberEvent, new_state: "MemberState") -> Mapping[ProblemKey, str]:
        """Return the cause of each problem that an event reports, and `_ENDED` for each problem that the event ends.

        Problems that the event does not change are left out.
        """
        # Problems that any event of this class ends.
        causes = dict.fromkeys(_ENDS_PROBLEMS.get(type(event), ()), _ENDED)
        # `PartitionStalled` reports one partition. The problem ends when no partition is stalled any more.
        if PartitionStalled in self.problems and not new_state.partitions.are_stalled:
            causes[PartitionStalled] = _ENDED
        match event:
            case (
                StartDelayed(cause=cause) | RestoreFailed(cause=cause) | CheckpointPostponed(cause=cause)
                | PublishFailed(cause=cause) | PartitionStalled(cause=cause) | PartitionsMissing(cause=cause)
                | TransactionEnded(outcome="failed", cause=cause) | MemberEnded(cause=cause)
            ):  # fmt: skip
                # Two events may have an empty cause: `PartitionsMissing` if no partition is missing any more, and
                # `MemberEnded` if it was no error that has ended the member.
                causes[type(event)] = cause or _ENDED
            case TransactionEnded(outcome="committed"):
                causes[TransactionEnded] = _ENDED
            # `CheckpointSaved` reports one partition. The problem ends when the postponed records of all are saved.
            case CheckpointSaved() if self._has_postponed_save_succeeded(new_state):
                causes[CheckpointPostponed] = _ENDED
            case LoopTicked(status=status):
                causes |= self._find_changed_causes_of_tick(status, new_state.saving)
        return causes

    def _find_changed_causes_of_tick(self, status: SourceStatus, saving: Saving) -> Mapping[ProblemKey, str]:
        """Return the causes of the two problems that a tick of the loop shows: no broker answers, saving has stopped.

        The cause is `_ENDED` if there is no such problem now, also if there never was one. A problem that the tick does
        not change may be left out.
        """
        causes: dict[ProblemKey, str] = {}
        if status.connected:
            causes[NO_BROKER_ANSWERS] = _ENDED
        elif self.was_ever_assigned:  # a member that starts may not have connected yet, which is not a problem
            causes[NO_BROKER_ANSWERS] = f"{NO_ANSWER}: {status.cause}" if status.cause else NO_ANSWER
        had_stopped = SAVING_HAS_STOPPED in self.problems
        if not saving.overdue_s:  # no save is overdue
            causes[SAVING_HAS_STOPPED] = _ENDED
        elif saving.has_stopped and not had_stopped:  # later ticks do not change the first cause
            causes[SAVING_HAS_STOPPED] = saving.cause
        return causes

    def _has_postponed_save_succeeded(self, new_state: "MemberState") -> bool:
        """Return whether all records of a postponed save are saved in `new_state`. False if no save was postponed."""
        postponed = self.problems.get(CheckpointPostponed)
        if postponed is None:
            return False
        oldest_unsaved_read_at = new_state.partitions.unsaved_since
        if oldest_unsaved_read_at is None:  # all records are saved
            return True
        # The postponed records were read before the save was postponed. If all records that are unsaved now were read
        # later, the postponed ones are saved.
        return oldest_unsaved_read_at >= postponed.since
