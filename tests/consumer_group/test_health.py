"""When a member is healthy, and when it is ready."""

import pytest

from streampca.consumer_group import events
from streampca.consumer_group.health import Failure, HealthListener
from streampca.sources.events import SourceStatus
from tests.waiting import Clock
from tests.worker.environment import notify

MEMBER, NON_MEMBER = (events.SourcePolled(SourceStatus(connected=True, member=is_one)) for is_one in (True, False))
ASSIGNED = events.PartitionsAssigned({0: 5})


@pytest.fixture
def health(clock: Clock) -> HealthListener:
    return HealthListener(clock)


def test_healthy_while_the_loop_has_run_within_a_minute_and_five_minutes_before_it_starts(
    health: HealthListener, clock: Clock
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
        notify(health, *[events.LoopTicked()] * has_run)
        expected = silence_s and Failure("loop", f"the loop has not run for {silence_s} s")
        assert health.why_unhealthy() == expected


def test_ready_from_the_first_assignment_until_it_stops(health: HealthListener) -> None:
    assert health.why_not_ready() == Failure("group", "no place in the consumer group yet")
    health.notify(ASSIGNED)
    assert health.why_not_ready() is None
    health.notify(events.MemberStopping("SIGTERM"))
    assert health.why_not_ready() == Failure("stopping", "stopping: SIGTERM")
    assert health.why_unhealthy() is None


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
def test_when_a_worker_is_ready(
    health: HealthListener, clock: Clock, timeline: list[tuple[float, events.MemberEvent, bool]]
) -> None:
    for seconds, event, is_ready in timeline:
        clock.now += seconds
        health.notify(event)
        assert (health.why_not_ready() is None) == is_ready
    assert is_ready or health.why_not_ready() == ("group", "no place in the consumer group yet")
