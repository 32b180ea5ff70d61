"""The worker's report of itself: what it says when, how seldom it is written, and that it disturbs nothing."""

from dataclasses import replace
from typing import Any

import pytest

from streampca.errors import BadRecordError, StoreError
from streampca.stores.base import is_part
from streampca.stores.memory import MemoryStore
from streampca.stores.worker_status import WorkerStatus, WorkerStatuses
from streampca.stream.record import SourceStatus
from streampca.worker.listener import (
    BatchLearned,
    CheckpointPostponed,
    CheckpointSaved,
    LoopTicked,
    ModelPublished,
    PartitionResumed,
    PartitionsAssigned,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    SourcePolled,
    WorkerEvent,
    WorkerStopping,
)
from streampca.worker.listeners.status import StatusListener, name_of_process
from tests.stream.streams import fold_config, fold_of, vectors
from tests.worker.harness import POISON, TOPIC, Stage, cast, many, worker_config

NAME = "host-7"
FILE = f"workers/{TOPIC}/{NAME}.json"


class Time:
    """Both clocks: seconds since 1970 and ticks, apart by a constant."""

    def __init__(self) -> None:
        self.ticks = 500.0

    def wall(self) -> float:
        return 1e9 + self.ticks


class Counting(MemoryStore):
    """How often it was written to."""

    writes = 0

    def write(self, name: str, data: bytes) -> None:
        self.writes += 1
        super().write(name, data)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store() -> Counting:
    return Counting()


@pytest.fixture
def reporter(store: Counting, time: Time) -> StatusListener:
    return StatusListener(WorkerStatuses(store, TOPIC), NAME, time.wall, lambda: time.ticks)


def report(store: MemoryStore) -> WorkerStatus:
    [found] = WorkerStatuses(store, TOPIC).all()
    return found


def later(reporter: StatusListener, time: Time, seconds: float) -> None:
    """The loop goes round five times a second for so long."""
    for _ in range(round(seconds * 5)):
        time.ticks += 0.2
        reporter.notify(LoopTicked())


def learned(messages: int = 5, lag: int = 3, partition: int = 0) -> BatchLearned:
    return BatchLearned(partition, fold_of(vectors(messages), fold_config()), messages, [], 0.1, lag)


def test_a_life_from_start_to_stop(reporter: StatusListener, store: Counting, time: Time) -> None:
    with reporter:
        first = report(store)
        assert (first.name, first.state, first.trouble, first.partitions) == (NAME, "starting", None, {})
        assert first.started_at == first.updated_at == 1e9 + 500
        time.ticks += 1
        reporter.notify(PartitionsAssigned({1: -1, 0: 40}))
        given = report(store)
        assert (given.state, given.updated_at) == ("waiting", 1e9 + 501)
        assert list(given.partitions) == ["0", "1"]
        assert given.partitions["0"].model_dump() == {
            "position": 40, "lag": None, "learned": None, "rejected": None, "loss_ewma": None
        }  # fmt: skip
        reporter.notify(learned(200, lag=3))
        later(reporter, time, 4)
        assert report(store).state == "learning"
        later(reporter, time, 5)
        assert report(store).state == "waiting"
        reporter.notify(WorkerStopping("SIGTERM"))
        assert report(store).state == "stopping"
    last = report(store)
    assert (last.state, last.trouble, last.partitions, last.messages_per_second) == ("stopped", None, {}, 0)
    assert last.started_at == 1e9 + 500


def test_figures_of_a_partition_are_its_folds(reporter: StatusListener, store: Counting) -> None:
    batch = learned(300, lag=7)
    fold = batch.fold.reject(["not_finite", "not_finite", "wrong_length"])
    reporter.notify(replace(batch, fold=fold))
    reporter.notify(WorkerStopping("now"))
    told = report(store).partitions["0"]
    assert (told.position, told.lag, told.learned, told.rejected) == (fold.position, 7, 300, 3)
    assert told.loss_ewma == pytest.approx(fold.stats.loss_ewma / fold.stats.norm_ewma)
    assert 0 < (told.loss_ewma or 0) < 1


def test_losses_that_json_cannot_hold_are_left_out(reporter: StatusListener, store: Counting) -> None:
    batch = learned(300)
    stats = replace(batch.fold.stats, loss_ewma=float("inf"))
    reporter.notify(replace(batch, fold=replace(batch.fold, stats=stats)))
    reporter.notify(WorkerStopping("now"))
    assert report(store).partitions["0"].loss_ewma is None


def test_the_rate_is_of_the_last_ten_seconds(reporter: StatusListener, store: Counting, time: Time) -> None:
    with reporter:
        for _ in range(50):
            reporter.notify(learned(100))
            later(reporter, time, 1)
        assert report(store).messages_per_second == pytest.approx(100, rel=0.1)
        later(reporter, time, 20)
        idle = report(store)
        assert (idle.messages_per_second, idle.state) == (0, "waiting")


def test_released_partitions_leave_the_report_at_once(reporter: StatusListener, store: Counting) -> None:
    reporter.notify(PartitionsAssigned({0: 1, 1: 2}))
    reporter.notify(PartitionsReleased([0], lost=False))
    assert list(report(store).partitions) == ["1"]
    reporter.notify(PartitionsReleased([1, 5], lost=True))
    assert report(store).partitions == {}


def test_it_is_written_every_few_seconds_however_fast_the_loop_goes(
    reporter: StatusListener, store: Counting, time: Time
) -> None:
    with reporter:
        before = store.writes
        for _ in range(3000):  # 30 seconds
            time.ticks += 0.01
            reporter.notify(LoopTicked())
            reporter.notify(learned(1))
            reporter.notify(SourcePolled(SourceStatus(connected=True, member=True)))
        assert 8 <= store.writes - before <= 10


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (CheckpointPostponed("disk full"), CheckpointSaved(0, learned().fold, 0.1)),
        (PublishFailed("disk full"), ModelPublished(None, 0.1)),  # type: ignore[arg-type]  # not looked at
        (PartitionStalled(0, 7, "disk full"), PartitionResumed(0)),
        (PartitionStalled(0, 7, "disk full"), PartitionsReleased([0], lost=True)),
    ],
)
def test_trouble_is_told_until_it_is_over(
    reporter: StatusListener, store: Counting, time: Time, begin: WorkerEvent, end: WorkerEvent
) -> None:
    with reporter:
        reporter.notify(PartitionsAssigned({0: 1, 1: 1}))
        reporter.notify(begin)
        reporter.notify(learned(partition=1))
        later(reporter, time, 4)
        assert report(store).trouble == "disk full"
        reporter.notify(end)
        later(reporter, time, 4)
        assert report(store).trouble is None


def test_the_lag_of_a_partition_that_cannot_be_decoded_grows_on(reporter: StatusListener, store: Counting) -> None:
    reporter.notify(PartitionsAssigned({0: 1, 1: 1}))
    reporter.notify(learned(300, lag=7))
    reporter.notify(PartitionStalled(0, 8, "no registry"))
    reporter.notify(PartitionStalled(1, 9, "no registry"))
    reporter.notify(WorkerStopping("now"))
    told = report(store).partitions
    assert [(told[p].lag, told[p].learned) for p in "01"] == [(8, 300), (9, None)]


def test_one_trouble_does_not_end_with_another(reporter: StatusListener, store: Counting) -> None:
    reporter.notify(CheckpointPostponed("disk full"))
    reporter.notify(PublishFailed("no folds"))
    reporter.notify(ModelPublished(None, 0.1))  # type: ignore[arg-type]  # not looked at
    reporter.notify(WorkerStopping("now"))
    assert report(store).trouble == "disk full"


def test_a_broker_that_is_away_is_told_but_not_before_there_was_one(
    reporter: StatusListener, store: Counting, time: Time
) -> None:
    away, there = SourceStatus(connected=False, member=False), SourceStatus(connected=True, member=True)
    with reporter:
        reporter.notify(SourcePolled(away))
        later(reporter, time, 4)
        assert report(store).trouble is None
        reporter.notify(PartitionsAssigned({0: 1}))
        reporter.notify(SourcePolled(away))
        later(reporter, time, 4)
        assert report(store).trouble == "no broker answers"
        reporter.notify(SourcePolled(there))
        later(reporter, time, 4)
        assert report(store).trouble is None


def test_what_ended_it_is_in_its_last_report(reporter: StatusListener, store: Counting) -> None:
    with pytest.raises(BadRecordError), reporter:
        raise BadRecordError("partition 3, offset 7: no vector")
    assert (report(store).state, report(store).trouble) == ("stopped", "partition 3, offset 7: no vector")


def test_a_crash_leaves_the_last_report_as_it_was(reporter: StatusListener, store: Counting) -> None:
    reporter.notify(PartitionsAssigned({0: 1}))
    with pytest.raises(ZeroDivisionError), reporter:
        raise ZeroDivisionError
    assert report(store).state == "waiting"


def test_a_store_that_fails_is_left_alone_until_the_next_time(
    reporter: StatusListener, store: Counting, time: Time
) -> None:
    store.write(FILE, b"{")
    store.fail_reads(1)
    store.fail_writes(2)
    store.writes = 0
    with reporter:
        reporter.notify(PartitionsAssigned({0: 1}))
        tried = store.writes
        later(reporter, time, 2.8)
        assert store.writes == tried == 2
        later(reporter, time, 0.4)
        assert report(store).partitions["0"].position == 1


def test_outdated_and_damaged_reports_are_removed_at_the_start(
    reporter: StatusListener, store: Counting, time: Time
) -> None:
    reports = WorkerStatuses(store, TOPIC)
    for name, age in (("old", 3601.0), ("recent", 3599.0)):
        reports.write(
            WorkerStatus(name=name, state="stopped", trouble=None, started_at=0, updated_at=time.wall() - age,
                   messages_per_second=0, partitions={})
        )  # fmt: skip
    store.write(f"workers/{TOPIC}/broken.json", b"{")
    store.write("workers/other/old.json", b"{")
    with reporter:
        assert store.names(f"workers/{TOPIC}") == [FILE, f"workers/{TOPIC}/recent.json"]
        assert store.names("workers/other") == ["workers/other/old.json"]


def test_the_process_has_a_name_that_a_file_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_part(name_of_process())
    for host in ("näme/../x y", "h" * 300, "", ".."):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        assert is_part(f"{name_of_process()}.json")


# --- in a worker ----------------------------------------------------------------------------------------------------


def live(stage: Stage, store: MemoryStore, **options: Any) -> None:
    actor = cast(stage, worker_config(stage.fold_config, **options), [40, 40, 40])
    with StatusListener(WorkerStatuses(store, TOPIC), NAME) as reporter:
        actor.add_listener(reporter)
        actor.run()


def test_a_worker_that_ran_leaves_its_report(store: Counting) -> None:
    stage = Stage(partitions=2)
    for partition in (0, 1):
        stage.send(partition, many(100, seed=partition))
    live(stage, store)
    stage.assert_complete()
    assert (report(store).state, report(store).trouble) == ("stopped", None)


def test_a_worker_that_stopped_at_a_bad_record_says_why(store: Counting) -> None:
    stage = Stage()
    stage.send(0, [POISON])
    with pytest.raises(BadRecordError):
        live(stage, store)
    assert "offset 0" in str(report(store).trouble)


def test_no_report_that_fails_disturbs_a_worker(monkeypatch: pytest.MonkeyPatch, store: Counting) -> None:
    """A store on which reports cannot be written at all; every tick tries."""

    def refuse(name: str, data: bytes) -> None:
        raise StoreError(f"cannot write {name}: No space left on device")

    monkeypatch.setattr(store, "write", refuse)
    monkeypatch.setattr("streampca.worker.listeners.status._REPORT_EVERY_S", 0.0)
    stage = Stage()
    stage.send(0, many(300))
    live(stage, store)
    stage.assert_complete()
