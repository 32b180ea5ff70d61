"""Whether a member saves its records in time, and if not, why."""

from collections.abc import Mapping
from typing import NamedTuple

from streampca.consumer_group.events import (
    CheckpointPostponed,
    CheckpointSaved,
    LoopTicked,
    MemberEvent,
    NewClientTried,
    RestoreFailed,
    TransactionEnded,
)
from streampca.consumer_group.partition_state import PartitionStates
from streampca.errors import NO_ANSWER

STOPPED_AFTER_S = 300.0  # once a save is overdue for this long, saving has stopped
_TRY_NEW_CLIENT_EVERY_S = 60.0
_NO_ANSWER_YET = "it has not answered yet"


class Saving(NamedTuple):
    """How the saves of a member go, or the commits of transform; times are monotonic seconds.

    A record waits for a save from when it was read. Records that were not read yet do not count: a partition that waits
    for a schema registry, a token, a model or the end of a transaction is never overdue.
    """

    due_after_s: float  # the longest time from when a record is read until it should be saved
    failures: Mapping[str, str] = {}  # since the last save: what a save waits for → cause, the newest failure last
    overdue_s: float = 0.0  # how long the save of the oldest record was overdue at the last tick
    unanswered: str = ""  # when saving has stopped: what a save waits for, and does not answer; "": no such thing
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
        """Return how the saves go after an event; `partitions` are the states after it."""
        match event:
            case CheckpointSaved() | TransactionEnded("committed"):
                return self._replace(failures={})
            case RestoreFailed(cause) | TransactionEnded(cause=cause):
                return self._with_failure("transaction", cause)
            case CheckpointPostponed(cause, waits_for):
                return self._with_failure(waits_for, cause)
            case LoopTicked(is_saving=is_saving):
                reported = {waits_for: cause for waits_for, cause in self.failures.items() if cause != _NO_ANSWER_YET}
                saving = self._replace(failures=reported)
                if is_saving:
                    saving = saving._with_failure("store", _NO_ANSWER_YET)
                return saving._after_tick(partitions.unsaved_since, now)
            case NewClientTried(is_answered):
                try_again_at = now + _TRY_NEW_CLIENT_EVERY_S
                return self._replace(is_new_client_answered=is_answered, try_new_client_at=try_again_at)
        return self

    @property
    def would_restart_help(self) -> bool:
        """Whether a new client is answered, while the member's own is not."""
        return self.unanswered != "" and self.is_new_client_answered

    def must_try_new_client(self, now: float) -> bool:
        """Whether it is time to see if a new client gets answers, since the member's own client gets none."""
        return self.unanswered != "" and now >= self.try_new_client_at

    def _with_failure(self, waits_for: str, cause: str) -> "Saving":
        earlier = dict(self.failures)
        earlier.pop(waits_for, None)  # so that the new cause is the last one
        return self._replace(failures=earlier | {waits_for: cause})

    def _after_tick(self, unsaved_since: float | None, now: float) -> "Saving":
        overdue_s = 0.0 if unsaved_since is None else max(now - self.due_after_s - unsaved_since, 0.0)
        saving = self._replace(overdue_s=overdue_s, unanswered="")
        if not saving.has_stopped or not self.failures:
            return saving
        waits_for, cause = list(self.failures.items())[-1]
        is_unanswered = waits_for == "dead letters" or NO_ANSWER in cause
        return saving._replace(unanswered=waits_for) if is_unanswered else saving
