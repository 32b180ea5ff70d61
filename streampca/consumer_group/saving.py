"""Notices that saving has stopped, whatever the cause: records wait for a save, or a commit, that is long due.

A partition waits while its position is past the last save; lag does not count. So one that waits for a schema registry,
a token, a model or the end of a transaction is never late.
"""

import time
from collections.abc import Callable, Iterable

from streampca.consumer_group import events
from streampca.errors import NO_ANSWER

_ASK_EVERY_S = 60.0
_NO_ANSWER_YET = "it has not answered yet"


class SavingWatch(events.Listener):
    """Passes events on, and adds a `SaveOverdue` to each turn; `clock` is monotonic."""

    def __init__(
        self,
        listener: events.Listener,
        due_after_s: float,
        could_save: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`could_save` says whether a new client would be answered; it may take some seconds."""
        self._listener, self._due_after_s, self._could_save, self._clock = listener, due_after_s, could_save, clock
        self._reached: dict[int, int] = {}  # positions past the last save, by partition
        self._since: dict[int, float] = {}  # when they began to wait
        self._failures: dict[str, str] = {}  # by what a save needs, the newest last
        self._answered, self._ask_at = False, 0.0

    def notify(self, event: events.MemberEvent) -> None:
        self._listener.notify(event)
        match event:
            case events.BatchLearned(partition, fold):
                self._reach(partition, fold.position)
            case events.BatchTransformed():
                self._reach(event.partition, event.next)
            case events.CheckpointSaved(partition, fold):
                self._failures.clear()
                reached = self._reached.get(partition, fold.position)
                self._drop([partition])
                if reached != fold.position:  # learned meanwhile
                    self._reach(partition, reached)
            case events.TransactionEnded("committed"):
                self._failures.clear()
                self._drop(list(self._since))
            case events.PartitionsReleased(partitions):
                self._drop(partitions)
            case events.PartitionsAssigned(positions):
                for partition in positions:  # transform reads them again after a transaction that failed
                    self._reached.pop(partition, None)
            case events.PartitionStalled(partition) | events.OffsetsSkipped(partition):
                if partition not in self._reached:
                    self._since.pop(partition, None)
            case events.SaveAwaited():
                self._fails("store", _NO_ANSWER_YET)
            case events.CheckpointPostponed(cause, needs):
                self._fails(needs, cause)
            case events.RestoreFailed(cause) | events.TransactionEnded(_, _, _, cause):
                self._fails("transaction", cause)
            case events.LoopTicked():
                now = self._clock()
                seconds = max(now - self._due_after_s - min(self._since.values(), default=now), 0.0)
                helps = seconds >= events.SAVING_STOPPED_S and self._restart_helps(now)
                self._listener.notify(events.SaveOverdue(seconds, dict(self._failures), helps))
                if self._failures.get("store") == _NO_ANSWER_YET:  # else the next turn says so again
                    self._failures.pop("store")

    def _reach(self, partition: int, position: int) -> None:
        self._reached[partition] = position
        self._since.setdefault(partition, self._clock())

    def _drop(self, partitions: Iterable[int]) -> None:
        """No record of these partitions waits any more."""
        for partition in partitions:
            self._reached.pop(partition, None)
            self._since.pop(partition, None)

    def _fails(self, needs: str, cause: str) -> None:
        self._failures.pop(needs, None)
        self._failures[needs] = cause

    def _restart_helps(self, now: float) -> bool:
        """Return whether the client that failed last is silent, while a new one is answered."""
        needs, cause = next(reversed(self._failures.items()), ("", ""))
        if needs != "dead letters" and NO_ANSWER not in cause:
            return False
        if now >= self._ask_at:
            self._answered, self._ask_at = self._could_save(needs), now + _ASK_EVERY_S
        return self._answered
