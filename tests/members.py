"""Members without a loop: tests tell them of events, and read what observers make of these."""

import time
from collections.abc import Callable

from streampca.consumer_group.events import MemberEvent
from streampca.consumer_group.member import Member, Observer
from streampca.consumer_group.member_state import MemberState, Moment
from streampca.consumer_group.saving import Saving


def make_member(
    *observers: Observer,
    clock: Callable[[], float] = lambda: 0.0,
    save_due_after_s: float = 600.0,
    can_new_client_save: Callable[[str], bool] = lambda needs: False,
) -> Member:
    """A member with these observers; its clocks stand still, but for the given one and `time.time`."""
    return Member(observers, save_due_after_s, can_new_client_save, clock, lambda: time.time())


def make_first_state(save_due_after_s: float = 600.0, ticks: float = 0.0) -> MemberState:
    now = Moment(ticks, 1e9 + ticks)
    return MemberState(now, now, Saving(save_due_after_s))


def notify(member: Member, *happened: MemberEvent) -> None:
    """Notify a member of these events, in order."""
    for event in happened:
        member.notify(event)
