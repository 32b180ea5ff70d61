"""Makes the state of a member of its events, and tells observers of each change."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from streampca.consumer_group.events import LoopTicked, MemberEnded, MemberEvent
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
    """Ignores every change; subclasses handle the changes that they want."""

    def observe(self, change: Change) -> None:
        """A member's event has happened. Called in the loop's thread, so it must return quickly and never raise."""


class Member:
    """Holds the state of a member, which any thread may read, and tells observers of its changes, in order.

    A context manager: its exit reports `MemberEnded`, unless a crash has caused it.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        save_due_after_s: float,
        can_new_client_save: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """A record should be saved `save_due_after_s` after it was read.

        If brokers do not answer the member's client at a step of a save ("dead letters", "topic", "transaction" or
        "restore"), the member calls `can_new_client_save(step)`. The call asks the brokers with a new Kafka client,
        which may take seconds, and returns whether they would accept a save. If so, restarting the process helps.
        """
        self._observers = observers
        self._can_new_client_save = can_new_client_save
        self._clock = clock
        self._unix_clock = unix_clock
        now = self.now()
        saving = Saving(save_due_after_s)
        # The start counts as a tick of the loop.
        self.state = MemberState(started=now, last_tick_at=now, saving=saving, membership_since=now.monotonic_s)

    def now(self) -> Moment:
        """Return the time on both clocks."""
        return Moment(monotonic_s=self._clock(), unix_s=self._unix_clock())

    def notify(self, event: MemberEvent) -> None:
        """Make the member's state after an event, and tell the observers.

        If saves have stopped because brokers do not answer, a tick of the loop also tries a new Kafka client from time
        to time. This may take seconds.
        """
        old_state = self.state
        now = self.now()
        new_state = old_state.after(event, now)
        if isinstance(event, LoopTicked) and new_state.saving.must_try_new_client(now.monotonic_s):
            new_state = self._try_new_client(new_state, now.monotonic_s)
        self.state = new_state
        for observer in self._observers:
            observer.observe(Change(event, before=old_state, after=new_state, now=now))

    def _try_new_client(self, state: MemberState, now: float) -> MemberState:
        """Return the state with the result of trying whether a new Kafka client could save."""
        is_answered = self._can_new_client_save(state.saving.unanswered_step)
        return state._replace(saving=state.saving.after_new_client(now, is_answered=is_answered))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, StreampcaError):  # any other error is a crash
            self.notify(MemberEnded(str(error or "")))
