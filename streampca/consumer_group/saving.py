"""Whether a member saves its records in time, and if not, why."""

from collections.abc import Mapping
from typing import NamedTuple

from streampca.consumer_group.events import (
    CheckpointPostponed,
    CheckpointSaved,
    LoopTicked,
    MemberEvent,
    RestoreFailed,
    TransactionEnded,
)
from streampca.consumer_group.partition_state import PartitionStates
from streampca.errors import NO_ANSWER

STOPPED_AFTER_S = 300.0  # once a save is overdue for this long, saving has stopped
_TRY_NEW_CLIENT_EVERY_S = 60.0
_NO_ANSWER_YET = "it has not answered yet"  # cause of a failure that is a save which is still running


class Saving(NamedTuple):
    """Whether the saves of a member succeed, or the commits of transform. Times are monotonic seconds.

    A record waits for a save from when it was read. Records that were not read yet do not count: a partition that waits
    for a schema registry, a token, a model or the end of a transaction is never overdue.
    """

    due_after_s: float  # how soon a record should be saved after it was read
    # Since the last save: what a save waits for → cause, the newest failure last.
    failures: Mapping[str, str] = {}
    overdue_s: float = 0.0  # how long the save of the oldest record was overdue at the last tick
    # What saves wait for, such as "topic", if they have stopped since brokers do not answer; otherwise "".
    unanswered_wait: str = ""
    try_new_client_at: float = 0.0
    is_new_client_answered: bool = False

    @property
    def has_stopped(self) -> bool:
        return self.overdue_s >= STOPPED_AFTER_S

    @property
    def cause(self) -> str:
        """All failures since the last save, in one line."""
        return "; ".join(f"{waits_for}: {cause}" for waits_for, cause in self.failures.items()) or "no failure"

    def after(self, event: MemberEvent, partitions: PartitionStates, now: float) -> "Saving":
        """Return how saving stands after an event; `partitions` are the states after the event."""
        match event:
            case CheckpointSaved() | TransactionEnded("committed"):
                return self._replace(failures={})
            # The records of a failed transaction are saved only after the partitions are restored.
            case TransactionEnded(cause=cause) | RestoreFailed(cause):
                return self._with_failure("transaction", cause)
            case CheckpointPostponed(cause, waits_for):
                return self._with_failure(waits_for, cause)
            case LoopTicked(is_saving=is_saving):
                return self._after_tick(partitions.unsaved_since, now, is_saving=is_saving)
        return self

    def after_new_client(self, now: float, *, is_answered: bool) -> "Saving":
        """Return how saving stands after a new Kafka client was tried, which brokers have answered or not."""
        return self._replace(is_new_client_answered=is_answered, try_new_client_at=now + _TRY_NEW_CLIENT_EVERY_S)

    @property
    def would_restart_help(self) -> bool:
        """Whether brokers answer a new client, while they do not answer the member's own client."""
        return self.unanswered_wait != "" and self.is_new_client_answered

    def must_try_new_client(self, now: float) -> bool:
        """Whether it is time to see if a new client gets answers, since the member's own client gets none."""
        return self.unanswered_wait != "" and now >= self.try_new_client_at

    def _with_failure(self, waits_for: str, cause: str) -> "Saving":
        """Return a copy with a failure as the newest one. `waits_for` is what a save waits for."""
        failures = dict(self.failures)
        failures.pop(waits_for, None)  # the newest failure must be last
        failures[waits_for] = cause
        return self._replace(failures=failures)

    def _after_tick(self, unsaved_since: float | None, now: float, *, is_saving: bool) -> "Saving":
        """Return how saving stands at a tick of the loop.

        The oldest unsaved record was read at `unsaved_since`; None: all records are saved.
        """
        overdue_s = 0.0
        if unsaved_since is not None:
            overdue_s = max(now - self.due_after_s - unsaved_since, 0.0)
        saving = self._with_running_save(is_saving=is_saving)._replace(overdue_s=overdue_s)
        unanswered_wait = saving._find_unanswered_wait()
        return saving._replace(unanswered_wait=unanswered_wait)

    def _with_running_save(self, *, is_saving: bool) -> "Saving":
        """Return a copy in which a save that is running now counts as a failure of the store, and no earlier one."""
        failures = {waits_for: cause for waits_for, cause in self.failures.items() if cause != _NO_ANSWER_YET}
        saving = self._replace(failures=failures)
        return saving._with_failure("store", _NO_ANSWER_YET) if is_saving else saving

    def _find_unanswered_wait(self) -> str:
        """Return what saves wait for, such as "topic", if they have stopped without an answer; otherwise ""."""
        if not self.has_stopped or not self.failures:
            return ""
        waits_for, newest_cause = list(self.failures.items())[-1]
        if waits_for == "dead letters":  # they fail only without an answer
            return waits_for
        return waits_for if NO_ANSWER in newest_cause else ""
