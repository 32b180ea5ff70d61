"""Laws of a member's state: it is a value, what goes wrong ends, and it is all that log and status reports need."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from structlog.typing import EventDict

from streampca.consumer_group.events import (
    BatchLearned,
    BatchTransformed,
    CheckpointPostponed,
    CheckpointSaved,
    ElementsReordered,
    FieldNamesWithoutNumbers,
    LoopTicked,
    MemberEnded,
    MemberEvent,
    MemberStopping,
    ModelPublished,
    ModelVersionFixed,
    OffsetsSkipped,
    PartitionsAssigned,
    PartitionsMissing,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RecordRejected,
    RecordsSkipped,
    RestoreBegun,
    RestoreFailed,
    StartDelayed,
    TransactionEnded,
)
from streampca.consumer_group.log import log_problems
from streampca.consumer_group.member_state import MemberState, Moment, Problem
from streampca.consumer_group.partition_state import PartitionState, PartitionStates
from streampca.consumer_group.saving import Saving
from streampca.consumer_group.status import make_report
from streampca.fold.fold import Fold
from streampca.pca.learning import LearningConfig
from streampca.sources.events import SourceStatus
from streampca.stores.process_status import ProcessStatuses
from tests.example_models import numbered
from tests.in_memory.store import FaultyStore
from tests.members import make_first_state

FOLD = Fold.empty(LearningConfig(3, 2))
COUNTS = {"all": 4, "read": 4, "written": 3, "rejected": 1}
MODEL = numbered(7)
NO_PARTITIONS = PartitionStates()
NO_ANSWER = "no broker answers at kafka:9092"


def learned(partition: int, position: int, lag: int = 0) -> BatchLearned:
    return BatchLearned(partition, replace(FOLD, position=position), 1, [], 0.0, lag)


def saved(partition: int, position: int) -> CheckpointSaved:
    return CheckpointSaved(partition, replace(FOLD, position=position), 0.0)


def tick(*, connected: bool = True, member: bool = True, is_saving: bool = False) -> LoopTicked:
    return LoopTicked(SourceStatus(connected, member), is_saving)


PARTITIONS, OFFSETS, CAUSES = st.integers(0, 70), st.integers(0, 50), st.sampled_from(["full", NO_ANSWER])
KINDS: dict[type, st.SearchStrategy[MemberEvent]] = {
    StartDelayed: st.builds(StartDelayed, st.sampled_from(["the store", "brokers", "model"]), CAUSES),
    PartitionsAssigned: st.builds(PartitionsAssigned, st.dictionaries(PARTITIONS, st.integers(-1, 50))),
    RestoreBegun: st.builds(RestoreBegun, st.integers(0, 50)),
    RestoreFailed: st.builds(RestoreFailed, CAUSES),
    PartitionsReleased: st.builds(PartitionsReleased, st.lists(PARTITIONS), st.booleans()),
    BatchLearned: st.builds(learned, PARTITIONS, OFFSETS, st.integers(0, 1)),
    BatchTransformed: st.builds(BatchTransformed, PARTITIONS, OFFSETS, OFFSETS, st.just(7), st.integers(0, 1), OFFSETS),
    TransactionEnded: st.builds(
        TransactionEnded, st.sampled_from(["committed", "aborted", "failed"]), st.just(COUNTS), st.just(0.1), CAUSES
    ),
    ModelVersionFixed: st.just(ModelVersionFixed(7, [])),
    RecordRejected: st.just(RecordRejected(0, 1, "undecodable", "?")),
    ElementsReordered: st.just(ElementsReordered("elements change their places")),
    FieldNamesWithoutNumbers: st.just(FieldNamesWithoutNumbers("none")),
    RecordsSkipped: st.just(RecordsSkipped(1, accepted_any=False)),
    PartitionStalled: st.builds(PartitionStalled, PARTITIONS, OFFSETS, CAUSES),
    OffsetsSkipped: st.builds(OffsetsSkipped, PARTITIONS, OFFSETS, OFFSETS),
    CheckpointSaved: st.builds(saved, PARTITIONS, OFFSETS),
    CheckpointPostponed: st.builds(CheckpointPostponed, CAUSES, st.sampled_from(["dead letters", "topic", "store"])),
    ModelPublished: st.just(ModelPublished(MODEL, 0.1)),
    PublishFailed: st.builds(PublishFailed, CAUSES),
    PartitionsMissing: st.builds(PartitionsMissing, st.dictionaries(PARTITIONS, CAUSES)),
    LoopTicked: st.builds(tick, connected=st.booleans(), member=st.booleans(), is_saving=st.booleans()),
    MemberStopping: st.just(MemberStopping("SIGTERM")),
    MemberEnded: st.builds(MemberEnded, st.sampled_from(["", "an error"])),
}
EVENTS = st.one_of(*KINDS.values())
TIMELINES = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 20.0, 400.0]), EVENTS), max_size=30)


def after(timeline: list[tuple[float, MemberEvent]], state: MemberState | None = None) -> tuple[MemberState, Moment]:
    state = state or make_first_state(save_due_after_s=5.0)
    now = state.last_tick_at
    for seconds, event in timeline:
        now = Moment(now.monotonic_s + seconds, now.unix_s + seconds)
        state = state.after(event, now)
    return state, now


def test_every_event_has_a_strategy() -> None:
    assert set(KINDS) == set(MemberEvent.__args__)


def shown(state: MemberState) -> str:
    """All that a state holds; its partitions have no text of their own."""
    return repr((state._replace(partitions=NO_PARTITIONS), state.partitions._ranges))


@given(TIMELINES, EVENTS)
def test_the_state_after_an_event_is_a_function_that_changes_nothing(
    timeline: list[tuple[float, MemberEvent]], event: MemberEvent
) -> None:
    state, now = after(timeline)
    before = shown(state)
    first = state.after(event, now)
    assert shown(state) == before
    assert first == state.after(event, now)
    assert shown(state) == before


BEGINS: dict[type, tuple[MemberEvent, ...]] = {
    StartDelayed: (StartDelayed("brokers", "x"),),
    RestoreFailed: (RestoreFailed("x"),),
    PartitionStalled: (PartitionStalled(0, 5, "x"), PartitionStalled(40, 5, "x")),
    CheckpointPostponed: (CheckpointPostponed("x"),),
    PublishFailed: (PublishFailed("x"),),
    PartitionsMissing: (PartitionsMissing({0: "x"}),),
    TransactionEnded: (TransactionEnded("failed", COUNTS, 0.0, "x"),),
    LoopTicked: (tick(connected=False),),
    Saving: (learned(0, 9), tick()),
}
ENDS: dict[type, list[tuple[MemberEvent, ...]]] = {
    StartDelayed: [(tick(),)],
    RestoreFailed: [
        (PartitionsAssigned({1: 5}),),
        (PartitionsReleased([1], lost=False),),
        (PartitionsMissing({}),),
    ],
    PartitionStalled: [(learned(0, 9), learned(40, 9)), (learned(0, 9), PartitionsReleased([40], lost=True))],
    CheckpointPostponed: [(saved(0, 5),)],
    PublishFailed: [(ModelPublished(MODEL, 0.1),), (PartitionsMissing({}),)],
    PartitionsMissing: [(PartitionsMissing({}),), (PartitionsReleased([1], lost=False),)],
    TransactionEnded: [(TransactionEnded("committed", COUNTS, 0.1),)],
    LoopTicked: [(tick(),)],
    Saving: [
        (saved(0, 9), tick()),
        (TransactionEnded("committed", COUNTS, 0.1), tick()),
        (PartitionsReleased([0], lost=True), tick()),
    ],
}


@pytest.mark.parametrize("name", BEGINS)
def test_every_problem_that_begins_also_ends(name: type) -> None:
    """Only the error that ends a member stays."""
    owned, now = after([(0.0, PartitionsAssigned({0: 1, 40: 1}))])
    timeline: list[tuple[float, MemberEvent]] = [(0.0, event) for event in BEGINS[name]]
    timeline[-1] = (400.0 * (name is Saving), BEGINS[name][-1])
    begun, now = after(timeline, owned)
    assert begun.problems.keys() == {name}
    assert begun.problems[name].since == now.monotonic_s
    assert after([(7.0, BEGINS[name][-1])], begun)[0].problems[name].since == now.monotonic_s  # still the same one
    for ends in ENDS[name]:
        *most, _ = ends
        assert after([(0.0, event) for event in most], begun)[0].problems.keys() == {name}
        assert after([(0.0, event) for event in ends], begun)[0].problems == {}


def test_a_failed_save_is_over_when_what_waited_is_saved_whatever_else_was_saved() -> None:
    """The store may refuse the checkpoint of one partition, and take the others."""
    read = [(0.0, learned(partition, 9)) for partition in (0, 40)]
    failed, _ = after([*read, (1.0, CheckpointPostponed("x")), (1.0, saved(40, 9)), (1.0, learned(40, 12))])
    assert failed.problems.keys() == {CheckpointPostponed}
    assert after([(1.0, saved(40, 12))], failed)[0].problems.keys() == {CheckpointPostponed}
    assert after([(1.0, saved(0, 9))], failed)[0].problems == {}
    assert after([(1.0, PartitionsReleased([0], lost=False)), (0.0, saved(40, 12))], failed)[0].problems == {}


@given(TIMELINES)
def test_no_other_problem_begins(timeline: list[tuple[float, MemberEvent]]) -> None:
    assert after(timeline)[0].problems.keys() <= BEGINS.keys() | {MemberEnded}


@given(TIMELINES)
def test_equal_states_have_no_difference_to_log(timeline: list[tuple[float, MemberEvent]]) -> None:
    state, _ = after(timeline)
    lines: list[EventDict] = []
    with pytest.MonkeyPatch.context() as patch:
        for level in ("info", "error"):
            patch.setattr(f"streampca.consumer_group.log.log.{level}", lambda *line, **_: lines.append(line))
        log_problems(state.problems, dict(state.problems))
        assert lines == []
        log_problems({}, {RestoreFailed: Problem("x", 0.0)})
        assert len(lines) == 1


@given(TIMELINES, st.sampled_from([None, "projected"]))
def test_a_status_report_is_read_as_it_was_written(
    timeline: list[tuple[float, MemberEvent]], output_topic: str | None
) -> None:
    state, now = after(timeline)
    report = make_report(state, now, "host-7", 12.5, output_topic)
    reports = ProcessStatuses(FaultyStore(), "readings")
    reports.write(report)
    assert reports.all() == [report]
    owned = {} if state.has_ended else state.partitions
    assert {int(p): status.position for p, status in report.partitions.items()} == {
        p: partition.position for p, partition in owned.items()
    }


@pytest.mark.parametrize("count", [1, 32, 1000, 5000])
@pytest.mark.parametrize(
    "of_one",
    [
        lambda p: learned(p, 9),
        lambda p: BatchTransformed(p, 1, 1, 7, 0, 9),
        lambda p: saved(p, 5),
        lambda p: PartitionStalled(p, 3, "x"),
        lambda p: OffsetsSkipped(p, 5, 9),
    ],
)
def test_an_event_of_one_partition_copies_few_of_a_thousand(count: int, of_one: Callable[[int], MemberEvent]) -> None:
    """The range of the partition; all others are the same objects as before."""
    state, now = after([(0.0, PartitionsAssigned(dict.fromkeys(range(count), 5)))])
    for partition in (0, count // 2, count - 1):
        before = state.partitions._ranges
        ranges = state.after(of_one(partition), now).partitions._ranges
        assert [index for index, states in ranges.items() if states is not before[index]] == [partition // 32]
        assert max(map(len, ranges.values())) <= 32


@given(TIMELINES)
def test_the_oldest_unsaved_record_is_that_of_all_partitions(timeline: list[tuple[float, MemberEvent]]) -> None:
    """It is asked for after each event, so that what was computed for earlier states is used."""
    state, _ = after([])
    for step in timeline:
        state, _ = after([step], state)
        times = [partition.unsaved_since for partition in state.partitions.values()]
        oldest = min((time for time in times if time is not None), default=None)
        assert state.partitions.unsaved_since == oldest


@pytest.mark.parametrize("event", [tick(), CheckpointPostponed("x"), PublishFailed("x"), MemberStopping("x")])
def test_an_event_of_no_partition_copies_none(event: MemberEvent) -> None:
    state, now = after([(0.0, PartitionsAssigned(dict.fromkeys(range(1000), 5)))])
    assert state.after(event, now).partitions is state.partitions


@given(st.lists(st.tuples(st.booleans(), st.dictionaries(st.integers(0, 200), st.integers(0, 9)))))
def test_the_states_of_partitions_are_a_mapping(steps: list[tuple[bool, dict[int, int]]]) -> None:
    states, expected = PartitionStates(), dict[int, PartitionState]()
    for is_release, numbers in steps:
        if is_release:
            states = states.after(PartitionsReleased(list(numbers), lost=False), 0.0)
            expected = {p: state for p, state in expected.items() if p not in numbers}
        else:
            changed = {p: PartitionState(position) for p, position in numbers.items()}
            states |= changed
            expected |= changed
        assert states == expected
        assert (len(states), sorted(states), sorted(states.values())) == (
            len(expected),
            sorted(expected),
            sorted(expected.values()),
        )


@pytest.mark.parametrize(
    ("event", "is_stalled"),
    [
        (learned(0, 9), False),
        (BatchTransformed(0, 0, 0, 7, 0, 9), False),
        (PartitionsReleased([0], lost=False), False),
        (PartitionsAssigned({0: 5}), True),  # transform restores partitions after a failure: nothing is decoded yet
        (saved(0, 5), True),
        (learned(1, 9), True),
    ],
)
def test_a_stall_ends_with_a_batch_of_the_partition(event: MemberEvent, is_stalled: bool) -> None:
    state, _ = after([(0.0, PartitionsAssigned({0: 5, 1: 5})), (1.0, PartitionStalled(0, 3, "x")), (1.0, event)])
    assert state.partitions.are_stalled == is_stalled
    assert (PartitionStalled in state.problems) == is_stalled
