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
_NO_ANSWER_YET = "it has not answered yet"  # of the store, while a save runs


class Saving(NamedTuple):
    """Whether the saves of a member succeed, or the commits of transform. Times are monotonic seconds.

    A record waits for a save from when it was read. Records that were not read yet do not count: a partition that waits
    for a schema registry, a token, a model or the end of a transaction is never overdue.
    """

    due_after_s: float  # how soon a record should be saved after it was read
    # Step of a save, such as "topic", or "restore" → why it has failed last. The newest failure is the last one.
    failures: Mapping[str, str] = {}  # since the last save that has succeeded
    is_saving: bool = False  # at the last tick, the store had not answered a save yet
    overdue_s: float = 0.0  # how long the save of the oldest record was overdue at the last tick
    # While brokers do not answer the member's client, it tries from time to time whether they answer a new Kafka
    # client. If they do, restarting the process helps.
    try_new_client_at: float = 0.0  # when to try a new client next
    was_new_client_answered: bool = False  # at the last try

    @property
    def has_stopped(self) -> bool:
        return self.overdue_s >= STOPPED_AFTER_S

    @property
    def cause(self) -> str:
        """All failures since the last save, in one line."""
        return "; ".join(f"{step}: {cause}" for step, cause in self._failures_now.items()) or "no failure"

    @property
    def unanswered_step(self) -> str:
        """The step of a save at which brokers do not answer, such as "topic", if saves have stopped for this reason.

        "" if saves have not stopped, or have stopped for another reason.
        """
        if not self.has_stopped or not self._failures_now:
            return ""
        step, newest_cause = list(self._failures_now.items())[-1]  # the newest failure comes last
        # The step "dead letters" fails only if brokers do not answer, so its cause need not say so.
        is_unanswered = step == "dead letters" or NO_ANSWER in newest_cause
        return step if is_unanswered else ""

    @property
    def _failures_now(self) -> Mapping[str, str]:
        """The failures, of which a save that is running now counts as the newest."""
        return _add_failure(self.failures, "store", _NO_ANSWER_YET) if self.is_saving else self.failures

    def after(self, event: MemberEvent, partitions: PartitionStates, now: float) -> "Saving":
        """Return how saving stands after an event; `partitions` are the states after the event.

        A failure is noted under the step of a save that has failed.
        """
        match event:
            case CheckpointSaved() | TransactionEnded(outcome="committed"):
                # A save has succeeded, so it does not matter any more whether brokers have answered a new Kafka client.
                return self._replace(failures={}, was_new_client_answered=False)
            case TransactionEnded(cause=cause):  # not committed
                return self._replace(failures=_add_failure(self.failures, "transaction", cause))
            case RestoreFailed(cause=cause):  # transform restores its partitions after each failed transaction
                return self._replace(failures=_add_failure(self.failures, "restore", cause))
            case CheckpointPostponed(cause=cause, failed_step=step):
                return self._replace(failures=_add_failure(self.failures, step, cause))
            case LoopTicked(is_saving=is_saving):
                unsaved_since = partitions.unsaved_since  # None: all records are saved
                overdue_s = 0.0 if unsaved_since is None else max(now - unsaved_since - self.due_after_s, 0.0)
                return self._replace(is_saving=is_saving, overdue_s=overdue_s)
        return self

    def after_new_client(self, now: float, *, is_answered: bool) -> "Saving":
        """Return how saving stands after a new Kafka client was tried, which brokers have answered or not."""
        return self._replace(was_new_client_answered=is_answered, try_new_client_at=now + _TRY_NEW_CLIENT_EVERY_S)

    @property
    def would_restart_help(self) -> bool:
        """Whether brokers answer a new client, while they do not answer the member's own client."""
        return self.unanswered_step != "" and self.was_new_client_answered

    def must_try_new_client(self, now: float) -> bool:
        """Whether it is time to see if a new client gets answers, since the member's own client gets none."""
        return self.unanswered_step != "" and now >= self.try_new_client_at


def _add_failure(failures: Mapping[str, str], step: str, cause: str) -> Mapping[str, str]:
    """Return the failures with one more, of a step of a save, as the newest. It replaces the step's earlier failure."""
    earlier = {other_step: earlier_cause for other_step, earlier_cause in failures.items() if other_step != step}
    return earlier | {step: cause}
