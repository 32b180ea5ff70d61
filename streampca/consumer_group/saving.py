"""Whether records are saved in time, and what a save lacks if they are not, whatever the cause."""

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

STOPPED_AFTER_S = 300.0  # that a save is overdue
_TRY_EVERY_S = 60.0
_NO_ANSWER_YET = "it has not answered yet"


class Saving(NamedTuple):
    """The saves of a member, or its commits; times are monotonic seconds.

    A record waits for a save from when it was read; lag does not count. So a partition that waits for a schema
    registry, a token, a model or the end of a transaction is never late.
    """

    due_after_s: float  # of a record, after it was read
    failures: Mapping[str, str] = {}  # since the last save, by what a save needs, the newest last
    overdue_s: float = 0.0  # how long a save had been due at the last tick
    silent: str = ""  # what does not answer the member's client, if a save had been due for long at the last tick
    try_again_at: float = 0.0
    is_new_client_answered: bool = False

    @property
    def has_stopped(self) -> bool:
        return self.overdue_s >= STOPPED_AFTER_S

    @property
    def why(self) -> str:
        """What a save lacks."""
        return "; ".join(f"{needs}: {cause}" for needs, cause in self.failures.items()) or "no failure"

    def after(self, event: MemberEvent, partitions: PartitionStates, now: float) -> "Saving":
        """The saves after an event that has left these partitions."""
        match event:
            case CheckpointSaved() | TransactionEnded("committed"):
                return self._replace(failures={})
            case RestoreFailed(cause) | TransactionEnded(cause=cause):
                return self._failed("transaction", cause)
            case CheckpointPostponed(cause, needs):
                return self._failed(needs, cause)
            case LoopTicked(is_saving=is_saving):
                others = {needs: cause for needs, cause in self.failures.items() if cause != _NO_ANSWER_YET}
                state = self._replace(failures=others)
                awaited = state._failed("store", _NO_ANSWER_YET) if is_saving else state
                return awaited._ticked(partitions.unsaved_since, now)
            case NewClientTried(is_answered):
                return self._replace(is_new_client_answered=is_answered, try_again_at=now + _TRY_EVERY_S)
        return self

    @property
    def would_restart_help(self) -> bool:
        """Whether a new client is answered, while the member's own is not."""
        return self.silent != "" and self.is_new_client_answered

    def must_try_new_client(self, now: float) -> bool:
        """Whether to try if a new client is answered, since the member's own is not."""
        return self.silent != "" and now >= self.try_again_at

    def _failed(self, needs: str, cause: str) -> "Saving":
        others = {name: earlier for name, earlier in self.failures.items() if name != needs}
        return self._replace(failures=others | {needs: cause})

    def _ticked(self, unsaved_since: float | None, now: float) -> "Saving":
        overdue_s = 0.0 if unsaved_since is None else max(now - self.due_after_s - unsaved_since, 0.0)
        needs, cause = list(self.failures.items())[-1] if self.failures else ("", "")
        is_silent = overdue_s >= STOPPED_AFTER_S and (needs == "dead letters" or NO_ANSWER in cause)
        return self._replace(overdue_s=overdue_s, silent=needs if is_silent else "")
