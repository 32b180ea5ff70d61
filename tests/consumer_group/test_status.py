"""The worker's status file: its content, how often it is written, and that its failures do not disturb the worker."""

import threading
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from structlog.typing import EventDict

from streampca.consumer_group import events
from streampca.consumer_group.member import Member
from streampca.consumer_group.process import process_name
from streampca.consumer_group.status import StatusReports
from streampca.errors import BadRecordError
from streampca.sources.events import SourceStatus
from streampca.stores.base import Store, is_part
from streampca.stores.directory import DirectoryStore
from streampca.stores.process_status import ProcessStatus, ProcessStatuses, TransformStatus
from tests.example_models import numbered
from tests.fold.streams import fold_config, make_fold, vectors
from tests.in_memory.store import FaultyStore
from tests.waiting import PATIENCE_S
from tests.worker.environment import TOPIC
from tests.worker.harness import SynchronousExecutor

NAME = "host-7"
FILE = f"workers/{TOPIC}/{NAME}.json"
CONNECTED = SourceStatus(connected=True, member=True)


class CountingStore(FaultyStore):
    """Counts its writes."""

    writes = 0

    def write(self, name: str, data: bytes) -> None:
        self.writes += 1
        super().write(name, data)


class ReportedMember:
    """A member with its status reports, their store, and its clocks, which are a constant apart."""

    def __init__(
        self,
        store: Store,
        executor: Executor | None = None,
        output_topic: str | None = None,
        name: str = NAME,
        group: str = "blue",
    ) -> None:
        self.store, self.ticks, self.status = store, 500.0, CONNECTED
        self.reports = ProcessStatuses(store, TOPIC)
        self._status = StatusReports(self.reports, name, output_topic, group, executor)
        self._member = Member([self._status], 600.0, lambda _: False, lambda: self.ticks, lambda: 1e9 + self.ticks)

    def __enter__(self) -> Self:
        self._status.begin(self._member.state)
        self._member.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._member.__exit__(kind, error, traceback)

    def notify(self, *happened: events.MemberEvent) -> None:
        for event in happened:
            self._member.notify(event)

    def run(self, seconds: float) -> None:
        """Tick five times a second for this many seconds."""
        for _ in range(round(seconds * 5)):
            self.ticks += 0.2
            self.notify(events.LoopTicked(self.status))

    def report(self, *happened: events.MemberEvent) -> ProcessStatus:
        """The report in the store, after these events."""
        self.notify(*happened)
        [report] = self.reports.all()
        return report


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def member(store: CountingStore) -> ReportedMember:
    return ReportedMember(store, SynchronousExecutor())


STOP = events.MemberStopping("now")  # writes a report at once


def learned(messages: int = 5, lag: int = 3, partition: int = 0) -> events.BatchLearned:
    return events.BatchLearned(partition, make_fold(vectors(messages), fold_config()), messages, [], 0.1, lag)


def test_a_status_has_each_state_from_start_to_stop(member: ReportedMember) -> None:
    with member:
        first = member.report()
        assert (first.name, first.state, first.trouble, first.partitions) == (NAME, "starting", None, {})
        assert first.started_at == first.updated_at == 1e9 + 500
        member.ticks += 1
        assigned = member.report(events.PartitionsAssigned({1: -1, 0: 40}))
        assert (assigned.state, assigned.updated_at) == ("waiting", 1e9 + 501)
        assert list(assigned.partitions) == ["0", "1"]
        assert assigned.partitions["0"].model_dump() == {
            "position": 40, "lag": None, "learned": None, "rejected": None, "loss_ewma": None,
            "clipped": None,
        }  # fmt: skip
        member.notify(learned(200, lag=3))
        for seconds, state in ((4, "learning"), (5, "waiting")):
            member.run(seconds)
            assert member.report().state == state
        assert member.report(STOP).state == "stopping"
    last = member.report()
    assert (last.state, last.trouble, last.partitions, last.messages_per_second) == ("stopped", None, {}, 0)
    assert last.started_at == 1e9 + 500


def test_partition_figures_come_from_its_fold(member: ReportedMember) -> None:
    batch = learned(300, lag=7)
    fold = batch.fold.count_rejects(["not_finite", "not_finite", "wrong_length"])
    partition = member.report(replace(batch, fold=fold), STOP).partitions["0"]
    assert (partition.position, partition.lag, partition.learned, partition.rejected) == (fold.position, 7, 300, 3)
    assert partition.loss_ewma == pytest.approx(fold.stats.loss_ewma / fold.stats.norm_ewma)
    assert 0 < (partition.loss_ewma or 0) < 1
    infinite = replace(fold, stats=replace(fold.stats, loss_ewma=float("inf")))
    assert member.report(replace(batch, fold=infinite), STOP).partitions["0"].loss_ewma is None


def test_the_rate_covers_the_last_ten_seconds(member: ReportedMember) -> None:
    with member:
        member.notify(events.PartitionsAssigned({0: 0}))
        for _ in range(50):
            member.notify(learned(100))
            member.run(1)
        assert member.report().messages_per_second == pytest.approx(100, rel=0.1)
        member.run(20)
        idle = member.report()
        assert (idle.messages_per_second, idle.state) == (0, "waiting")


def test_a_status_is_written_every_few_seconds_at_any_loop_speed(member: ReportedMember, store: CountingStore) -> None:
    with member:
        before = store.writes
        for _ in range(3000):  # 30 seconds
            member.ticks += 0.01
            member.notify(learned(1), events.LoopTicked(CONNECTED))
        assert 8 <= store.writes - before <= 10


@pytest.mark.parametrize(
    ("group", "output_topic", "lines"),
    [("green", None, 1), ("blue", None, 0), ("streampca-transform-readings", "out", 0)],
)
def test_a_worker_logs_once_that_workers_of_another_group_save_to_its_store(
    member: ReportedMember, logs: list[EventDict], group: str, output_topic: str | None, lines: int
) -> None:
    other = ReportedMember(member.store, SynchronousExecutor(), output_topic, "other-2", group)
    with member, other:
        other.notify(events.PartitionsAssigned({0: 1}))
        for _ in range(3):
            member.notify(events.PartitionsAssigned({0: 1}))
        found = [line for line in logs if line["event"] == "store shared with another group"]
        # Both are told: each has found the other's report.
        assert [(line["group"], line["others"]) for line in found] == [(group, ["blue"]), ("blue", [group])][
            : 2 * lines
        ]


def test_a_worker_that_has_ended_shares_no_store(member: ReportedMember, logs: list[EventDict]) -> None:
    with ReportedMember(member.store, SynchronousExecutor(), name="other-2", group="green") as other:
        other.notify(events.PartitionsAssigned({0: 1}))
    with member:
        member.notify(events.PartitionsAssigned({0: 1}))
    assert [line for line in logs if line["event"] == "store shared with another group"] == []


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (events.CheckpointPostponed("disk full"), events.CheckpointSaved(0, learned().fold, 0.1)),
        (events.PublishFailed("disk full"), events.ModelPublished(numbered(7), 0.1)),
        (events.PartitionStalled(0, 7, "disk full"), learned()),
        (events.PartitionStalled(0, 7, "disk full"), events.PartitionsReleased([0], lost=True)),
    ],
)
def test_an_error_is_shown_until_it_is_resolved(
    member: ReportedMember, begin: events.MemberEvent, end: events.MemberEvent
) -> None:
    with member:
        member.notify(events.PartitionsAssigned({0: 1, 1: 1}), begin, learned(partition=1))
        member.run(4)
        assert member.report().trouble == "disk full"
        member.notify(end)
        member.run(4)
        assert member.report().trouble is None


def test_the_lag_of_a_stalled_partition_is_updated(member: ReportedMember) -> None:
    stalled = [events.PartitionStalled(0, 8, "no registry"), events.PartitionStalled(1, 9, "no registry")]
    partitions = member.report(events.PartitionsAssigned({0: 1, 1: 1}), learned(300, lag=7), *stalled, STOP).partitions
    assert [(partitions[p].lag, partitions[p].learned) for p in "01"] == [(8, 300), (9, None)]


def test_resolving_one_error_keeps_the_other(member: ReportedMember) -> None:
    published = events.ModelPublished(numbered(7), 0.1)
    report = member.report(events.CheckpointPostponed("disk full"), events.PublishFailed("no folds"), published, STOP)
    assert report.trouble == "disk full"


def test_a_lost_broker_is_shown_but_not_before_the_first_connection(member: ReportedMember) -> None:
    away = SourceStatus(connected=False, member=False)
    with member:
        for happened, status, trouble in (
            ([], away, None),
            ([events.PartitionsAssigned({0: 1})], away, "no broker answers"),
            ([], CONNECTED, None),
        ):
            member.status = status
            member.notify(*happened)
            member.run(4)
            assert member.report().trouble == trouble


@pytest.mark.parametrize(
    ("error", "state", "trouble"),
    [(BadRecordError("offset 7: no vector"), "stopped", "offset 7: no vector"), (ZeroDivisionError(), "waiting", None)],
)
def test_the_last_status_has_the_error_that_ended_the_worker_but_no_bug(
    member: ReportedMember, error: Exception, state: str, trouble: str | None
) -> None:
    member.notify(events.PartitionsAssigned({0: 1}))
    with pytest.raises(type(error)), member:
        raise error
    assert (member.report().state, member.report().trouble) == (state, trouble)


def test_a_failed_write_is_retried_at_the_next_interval(member: ReportedMember, store: CountingStore) -> None:
    store.write(FILE, b"{")
    store.fail_reads(1)
    store.fail_writes(2)
    store.writes = 0
    with member:
        member.notify(events.PartitionsAssigned({0: 1}))
        attempts = store.writes
        member.run(2.8)
        assert store.writes == attempts == 2
        member.run(0.4)
        assert member.report().partitions["0"].position == 1


def test_old_and_damaged_status_files_are_removed_at_the_start(member: ReportedMember, store: CountingStore) -> None:
    report = member.report(STOP)
    for name, age in (("old", 3601.0), ("recent", 3599.0)):
        member.reports.write(report.model_copy(update={"name": name, "updated_at": report.updated_at - age}))
    store.write(f"workers/{TOPIC}/broken.json", b"{")
    store.write("workers/other/old.json", b"{")
    with member:
        assert store.names(f"workers/{TOPIC}") == [FILE, f"workers/{TOPIC}/recent.json"]
        assert store.names("workers/other") == ["workers/other/old.json"]


@pytest.mark.parametrize("host", ["pod-0.local", "näme/../x y", "h" * 300, "", ".."])
def test_the_process_name_is_a_valid_file_name(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert is_part(f"{process_name()}.json")


def test_the_status_of_transform_from_waiting_for_a_model_to_the_end(store: CountingStore) -> None:
    member = ReportedMember(store, SynchronousExecutor(), output_topic="projected")
    batch = events.BatchTransformed(0, messages=4, outputs=3, version=7, lag=5, next=9)
    with member:
        member.ticks += 4
        report = member.report(events.StartDelayed("model", "no model yet"))
        assert (report.state, report.trouble, report.transform.awaits) == ("starting", None, "no model yet")
        assert report.transform.model_dump(exclude={"awaits"}) == {
            "output_topic": "projected", "model_version": None, "written": 0, "rejected": 0, "committed_at": None
        }  # fmt: skip
        report = member.report(events.ModelVersionFixed(6, ["pinned"]), events.PartitionsReleased([], lost=False))
        assert report.transform.model_version == 6
        member.notify(events.LoopTicked(CONNECTED), events.PartitionsAssigned({0: -1, 1: 3}), batch)
        member.ticks += 1
        committed = events.TransactionEnded("committed", {"written": 3, "rejected": 1}, 0.2)
        failed = events.TransactionEnded("failed", {"written": 3, "rejected": 0}, 0.0, "fenced")
        member.notify(committed, batch, failed, batch)
        member.ticks += 60
        report = member.report(events.LoopTicked(CONNECTED))
        assert (report.state, report.trouble) == ("waiting", "fenced")
        assert report.transform == TransformStatus(
            output_topic="projected", model_version=7, awaits=None, written=3, rejected=1, committed_at=1e9 + 505
        )
        assert [(p.position, p.lag) for p in report.partitions.values()] == [(9, 5), (3, None)]
        released = events.PartitionsReleased([0, 5], lost=False)  # 5 had no figures yet
        report = member.report(committed, batch, released)
        assert (report.state, report.trouble, list(report.partitions)) == ("transforming", None, ["1"])
        assert report.transform.written == 6
    report = member.report()
    assert (report.state, report.partitions, report.transform.written) == ("stopped", {}, 6)


def test_a_status_does_not_create_a_store(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    with ReportedMember(store, output_topic="projected") as member:
        member.notify(events.StartDelayed("the store", "there is none"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store").mkdir()
    with ReportedMember(store, output_topic="projected") as member:
        pass
    assert [report.state for report in member.reports.all()] == ["stopped"]


def test_a_store_that_hangs_does_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch, store: CountingStore) -> None:
    entered, released, write = threading.Event(), threading.Event(), store.write

    def hang(name: str, data: bytes) -> None:
        entered.set()
        released.wait(PATIENCE_S)
        write(name, data)

    monkeypatch.setattr(store, "write", hang)
    member = ReportedMember(store)
    with member:
        assert entered.wait(PATIENCE_S)
        entered.clear()
        member.notify(events.PartitionsAssigned({0: 5}))
        member.run(seconds=60)  # returns, and starts no second write
        assert not entered.is_set()
        assert store.names("workers") == []
        released.set()
    assert member.report().state == "stopped"
