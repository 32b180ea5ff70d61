"""When a member is healthy, and when it is ready."""

import pytest

from streampca.consumer_group import events
from streampca.consumer_group.health import Failure, why_not_ready, why_unhealthy
from streampca.consumer_group.member import Member
from streampca.sources.events import SourceStatus
from tests.members import make_member, notify
from tests.waiting import Clock

MEMBER, NON_MEMBER = (events.LoopTicked(SourceStatus(connected=True, member=is_one)) for is_one in (True, False))
ASSIGNED = events.PartitionsAssigned({0: 5})


@pytest.fixture
def member(clock: Clock) -> Member:
    return make_member(clock=clock)


def test_a_member_is_healthy_if_its_loop_ran_in_the_last_minute_or_starts_within_five(
    member: Member, clock: Clock
) -> None:
    """Compiling takes long."""
    for seconds, has_run, silence_s in (
        (299, False, None),
        (2, False, 301),
        (0, True, None),
        (59, False, None),
        (2, False, 61),
        (0, True, None),
    ):
        clock.now += seconds
        notify(member, *[MEMBER] * has_run)
        expected = silence_s and Failure("loop", f"the loop has not run for {silence_s} s")
        assert why_unhealthy(member.state, member.now().monotonic_s) == expected


def test_a_member_is_ready_from_the_first_assignment_until_it_stops(member: Member) -> None:
    assert why_not_ready(member.state, member.now().monotonic_s) == Failure(
        "group", "no place in the consumer group yet"
    )
    member.notify(ASSIGNED)
    assert why_not_ready(member.state, member.now().monotonic_s) is None
    member.notify(events.MemberStopping("SIGTERM"))
    assert why_not_ready(member.state, member.now().monotonic_s) == Failure("stopping", "stopping: SIGTERM")
    assert why_unhealthy(member.state, member.now().monotonic_s) is None


@pytest.mark.parametrize(
    "timeline",
    [
        # More workers than partitions: after ten seconds as a member, an empty assignment is the last one.
        [(0, MEMBER, False), (9, MEMBER, False), (0, NON_MEMBER, False), (0, MEMBER, False), (9, MEMBER, False),
         (1, MEMBER, True), (0, NON_MEMBER, True), (10, NON_MEMBER, False)],
        # Partitions that are lost must come back; it has rejoined at the next poll already.
        [(0, MEMBER, False), (0, ASSIGNED, True), (100, events.PartitionsReleased([0], lost=False), True),
         (0, events.PartitionsReleased([0], lost=True), False), (0, MEMBER, False), (0, ASSIGNED, True)],
    ],
    ids=["standby", "lost partitions"],
)  # fmt: skip
def test_a_worker_is_ready_with_partitions_or_as_a_standby(
    member: Member, clock: Clock, timeline: list[tuple[float, events.MemberEvent, bool]]
) -> None:
    for seconds, event, is_ready in timeline:
        clock.now += seconds
        member.notify(event)
        assert (why_not_ready(member.state, member.now().monotonic_s) is None) == is_ready
    assert is_ready or why_not_ready(member.state, member.now().monotonic_s) == (
        "group",
        "no place in the consumer group yet",
    )
