"""A member's state as its events come, and who is told of it."""

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

    A context manager around the member's run, whose end is an event too, unless a crash ends it.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        save_due_after_s: float,
        could_save: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """`could_save` says whether a new client would be answered; it may take some seconds. `clock` is monotonic."""
        self._observers, self._could_save = observers, could_save
        self._clock, self._unix_clock = clock, unix_clock
        now = self.now()
        self.state = MemberState(now, now, Saving(save_due_after_s), member_since=now.ticks)

    def now(self) -> Moment:
        return Moment(self._clock(), self._unix_clock())

    def notify(self, event: MemberEvent) -> None:
        before, now = self.state, self.now()
        after = before.after(event, now)
        if isinstance(event, LoopTicked) and after.saving.must_try_new_client(now.ticks):
            after = after.after(NewClientTried(self._could_save(after.saving.silent)), now)
        self.state = after
        for observer in self._observers:
            observer.observe(Change(event, before, after, now))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, StreampcaError):
            self.notify(MemberEnded(str(error or "")))
