"""Makes the state of a member of its events, and tells observers of each change."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from streampca.consumer_group.events import Listener, LoopTicked, MemberEnded, MemberEvent, NewClientTried
from streampca.consumer_group.member_state import MemberState, Moment
from streampca.consumer_group.saving import Saving
from streampca.errors import StreampcaError


class Change(NamedTuple):
    """An event, and a member's states before and after it."""

    event: MemberEvent
    before: MemberState
    after: MemberState
    now: Moment


class Observer:
    """Ignores every change; subclasses handle those that they want."""

    def observe(self, change: Change) -> None:
        """A member's event has happened. Called in the loop's thread, so it must return quickly and never raise."""


class Member(Listener):
    """Holds the state of a member, which any thread may read, and tells observers of its changes, in order.

    A context manager: its exit reports `MemberEnded`, unless a crash has caused it.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        save_due_after_s: float,
        could_save: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """`could_save` says whether a new client would get an answer from what a save waits for; it may take seconds.

        `clock` is monotonic.
        """
        self._observers = observers
        self._could_save = could_save
        self._clock = clock
        self._unix_clock = unix_clock
        now = self.now()
        saving = Saving(save_due_after_s)
        self.state = MemberState(started=now, ticked=now, saving=saving, membership_since=now.ticks)

    def now(self) -> Moment:
        return Moment(self._clock(), self._unix_clock())

    def notify(self, event: MemberEvent) -> None:
        before = self.state
        now = self.now()
        after = before.after(event, now)
        if isinstance(event, LoopTicked) and after.saving.must_try_new_client(now.ticks):
            is_answered = self._could_save(after.saving.unanswered)
            after = after.after(NewClientTried(is_answered), now)
        self.state = after
        for observer in self._observers:
            observer.observe(Change(event, before, after, now))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, StreampcaError):
            self.notify(MemberEnded(str(error or "")))
