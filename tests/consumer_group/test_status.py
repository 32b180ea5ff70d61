"""The worker's status file: its content, how often it is written, and that its failures do not disturb the worker."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from streampca.cli.member import name_of_process
from streampca.consumer_group.listener import (
    BatchLearned,
    CheckpointPostponed,
    CheckpointSaved,
    LoopTicked,
    MemberEvent,
    MemberStopping,
    ModelPublished,
    PartitionResumed,
    PartitionsAssigned,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    SourcePolled,
)
from streampca.consumer_group.status import StatusListener
from streampca.errors import BadRecordError, StoreError
from streampca.fold.events import SourceStatus
from streampca.stores.base import is_part
from streampca.stores.memory import MemoryStore
from streampca.stores.process_status import ProcessStatus, ProcessStatuses
from tests.fold.streams import fold_config, fold_of, vectors
from tests.worker.environment import TOPIC, Environment
from tests.worker.harness import SynchronousExecutor, make_worker, worker_config

NAME = "host-7"
FILE = f"workers/{TOPIC}/{NAME}.json"


class Clocks:
    """The wall clock and the monotonic clock, a constant apart."""

    def __init__(self) -> None:
        self.ticks = 500.0

    def wall(self) -> float:
        return 1e9 + self.ticks

    def monotonic(self) -> float:
        return self.ticks


class CountingStore(MemoryStore):
    """Counts its writes."""

    writes = 0

    def write(self, name: str, data: bytes) -> None:
        self.writes += 1
        super().write(name, data)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def listener(store: CountingStore, clocks: Clocks) -> StatusListener:
    return StatusListener(ProcessStatuses(store, TOPIC), NAME, clocks.wall, clocks.monotonic, SynchronousExecutor())


def read_status(store: MemoryStore) -> ProcessStatus:
    [report] = ProcessStatuses(store, TOPIC).all()
    return report


def run_loop(listener: StatusListener, clocks: Clocks, seconds: float) -> None:
    """Tick five times a second for this many seconds."""
    for _ in range(round(seconds * 5)):
        clocks.ticks += 0.2
        listener.notify(LoopTicked())


def learned(messages: int = 5, lag: int = 3, partition: int = 0) -> BatchLearned:
    return BatchLearned(partition, fold_of(vectors(messages), fold_config()), messages, [], 0.1, lag)


def test_states_from_start_to_stop(listener: StatusListener, store: CountingStore, clocks: Clocks) -> None:
    with listener:
        first = read_status(store)
        assert (first.name, first.state, first.trouble, first.partitions) == (NAME, "starting", None, {})
        assert first.started_at == first.updated_at == 1e9 + 500
        clocks.ticks += 1
        listener.notify(PartitionsAssigned({1: -1, 0: 40}))
        assigned = read_status(store)
        assert (assigned.state, assigned.updated_at) == ("waiting", 1e9 + 501)
        assert list(assigned.partitions) == ["0", "1"]
        assert assigned.partitions["0"].model_dump() == {
            "position": 40, "lag": None, "learned": None, "rejected": None, "loss_ewma": None,
            "shortened": None,
        }  # fmt: skip
        listener.notify(learned(200, lag=3))
        run_loop(listener, clocks, 4)
        assert read_status(store).state == "learning"
        run_loop(listener, clocks, 5)
        assert read_status(store).state == "waiting"
        listener.notify(MemberStopping("SIGTERM"))
        assert read_status(store).state == "stopping"
    last = read_status(store)
    assert (last.state, last.trouble, last.partitions, last.messages_per_second) == ("stopped", None, {}, 0)
    assert last.started_at == 1e9 + 500


def test_partition_figures_come_from_its_fold(listener: StatusListener, store: CountingStore) -> None:
    batch = learned(300, lag=7)
    fold = batch.fold.reject(["not_finite", "not_finite", "wrong_length"])
    listener.notify(replace(batch, fold=fold))
    listener.notify(MemberStopping("now"))
    partition = read_status(store).partitions["0"]
    assert (partition.position, partition.lag, partition.learned, partition.rejected) == (fold.position, 7, 300, 3)
    assert partition.loss_ewma == pytest.approx(fold.stats.loss_ewma / fold.stats.norm_ewma)
    assert 0 < (partition.loss_ewma or 0) < 1


def test_infinite_losses_are_left_out(listener: StatusListener, store: CountingStore) -> None:
    batch = learned(300)
    stats = replace(batch.fold.stats, loss_ewma=float("inf"))
    listener.notify(replace(batch, fold=replace(batch.fold, stats=stats)))
    listener.notify(MemberStopping("now"))
    assert read_status(store).partitions["0"].loss_ewma is None


def test_the_rate_covers_the_last_ten_seconds(listener: StatusListener, store: CountingStore, clocks: Clocks) -> None:
    with listener:
        for _ in range(50):
            listener.notify(learned(100))
            run_loop(listener, clocks, 1)
        assert read_status(store).messages_per_second == pytest.approx(100, rel=0.1)
        run_loop(listener, clocks, 20)
        idle = read_status(store)
        assert (idle.messages_per_second, idle.state) == (0, "waiting")


def test_released_partitions_are_removed_immediately(listener: StatusListener, store: CountingStore) -> None:
    listener.notify(PartitionsAssigned({0: 1, 1: 2}))
    listener.notify(PartitionsReleased([0], lost=False))
    assert list(read_status(store).partitions) == ["1"]
    listener.notify(PartitionsReleased([1, 5], lost=True))
    assert read_status(store).partitions == {}


def test_written_every_few_seconds_at_any_loop_speed(
    listener: StatusListener, store: CountingStore, clocks: Clocks
) -> None:
    with listener:
        before = store.writes
        for _ in range(3000):  # 30 seconds
            clocks.ticks += 0.01
            listener.notify(LoopTicked())
            listener.notify(learned(1))
            listener.notify(SourcePolled(SourceStatus(connected=True, member=True)))
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
def test_an_error_is_shown_until_it_is_resolved(
    listener: StatusListener, store: CountingStore, clocks: Clocks, begin: MemberEvent, end: MemberEvent
) -> None:
    with listener:
        listener.notify(PartitionsAssigned({0: 1, 1: 1}))
        listener.notify(begin)
        listener.notify(learned(partition=1))
        run_loop(listener, clocks, 4)
        assert read_status(store).trouble == "disk full"
        listener.notify(end)
        run_loop(listener, clocks, 4)
        assert read_status(store).trouble is None


def test_the_lag_of_a_stalled_partition_is_updated(listener: StatusListener, store: CountingStore) -> None:
    listener.notify(PartitionsAssigned({0: 1, 1: 1}))
    listener.notify(learned(300, lag=7))
    listener.notify(PartitionStalled(0, 8, "no registry"))
    listener.notify(PartitionStalled(1, 9, "no registry"))
    listener.notify(MemberStopping("now"))
    partitions = read_status(store).partitions
    assert [(partitions[p].lag, partitions[p].learned) for p in "01"] == [(8, 300), (9, None)]


def test_resolving_one_error_keeps_the_other(listener: StatusListener, store: CountingStore) -> None:
    listener.notify(CheckpointPostponed("disk full"))
    listener.notify(PublishFailed("no folds"))
    listener.notify(ModelPublished(None, 0.1))  # type: ignore[arg-type]  # not looked at
    listener.notify(MemberStopping("now"))
    assert read_status(store).trouble == "disk full"


def test_a_lost_broker_is_shown_but_not_before_the_first_connection(
    listener: StatusListener, store: CountingStore, clocks: Clocks
) -> None:
    away, connected = SourceStatus(connected=False, member=False), SourceStatus(connected=True, member=True)
    with listener:
        listener.notify(SourcePolled(away))
        run_loop(listener, clocks, 4)
        assert read_status(store).trouble is None
        listener.notify(PartitionsAssigned({0: 1}))
        listener.notify(SourcePolled(away))
        run_loop(listener, clocks, 4)
        assert read_status(store).trouble == "no broker answers"
        listener.notify(SourcePolled(connected))
        run_loop(listener, clocks, 4)
        assert read_status(store).trouble is None


def test_the_last_status_has_the_error_that_ended_the_worker(listener: StatusListener, store: CountingStore) -> None:
    with pytest.raises(BadRecordError), listener:
        raise BadRecordError("partition 3, offset 7: no vector")
    assert (read_status(store).state, read_status(store).trouble) == ("stopped", "partition 3, offset 7: no vector")


def test_an_unexpected_exception_leaves_the_last_status(listener: StatusListener, store: CountingStore) -> None:
    listener.notify(PartitionsAssigned({0: 1}))
    with pytest.raises(ZeroDivisionError), listener:
        raise ZeroDivisionError
    assert read_status(store).state == "waiting"


def test_a_failed_write_is_retried_at_the_next_interval(
    listener: StatusListener, store: CountingStore, clocks: Clocks
) -> None:
    store.write(FILE, b"{")
    store.fail_reads(1)
    store.fail_writes(2)
    store.writes = 0
    with listener:
        listener.notify(PartitionsAssigned({0: 1}))
        attempts = store.writes
        run_loop(listener, clocks, 2.8)
        assert store.writes == attempts == 2
        run_loop(listener, clocks, 0.4)
        assert read_status(store).partitions["0"].position == 1


def test_old_and_damaged_status_files_are_removed_at_the_start(
    listener: StatusListener, store: CountingStore, clocks: Clocks
) -> None:
    statuses = ProcessStatuses(store, TOPIC)
    for name, age in (("old", 3601.0), ("recent", 3599.0)):
        statuses.write(
            ProcessStatus(name=name, state="stopped", trouble=None, started_at=0, updated_at=clocks.wall() - age,
                   messages_per_second=0, partitions={})
        )  # fmt: skip
    store.write(f"workers/{TOPIC}/broken.json", b"{")
    store.write("workers/other/old.json", b"{")
    with listener:
        assert store.names(f"workers/{TOPIC}") == [FILE, f"workers/{TOPIC}/recent.json"]
        assert store.names("workers/other") == ["workers/other/old.json"]


def test_the_process_name_is_a_valid_file_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_part(name_of_process())
    for host in ("näme/../x y", "h" * 300, "", ".."):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        assert is_part(f"{name_of_process()}.json")


# --- in a worker ----------------------------------------------------------------------------------------------------


def run_with_status(env: Environment, store: MemoryStore, **options: Any) -> None:
    worker = make_worker(env, worker_config(env.fold_config, **options), [40, 40, 40])
    with StatusListener(ProcessStatuses(store, TOPIC), NAME) as listener:
        worker.add_listener(listener)
        worker.run()


def test_failing_status_writes_do_not_disturb_the_worker(monkeypatch: pytest.MonkeyPatch, store: CountingStore) -> None:
    """Every tick attempts a write, and every write fails."""

    def fail(name: str, data: bytes) -> None:
        raise StoreError(f"cannot write {name}: No space left on device")

    monkeypatch.setattr(store, "write", fail)
    monkeypatch.setattr("streampca.consumer_group.status._REPORT_EVERY_S", 0.0)
    env = Environment()
    env.send(0, vectors(300))
    run_with_status(env, store)
    env.assert_complete()


class HangingStore(MemoryStore):
    """A store whose writes do not return until `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released, self.writes = threading.Event(), threading.Event(), 0

    def write(self, name: str, data: bytes) -> None:
        self.writes += 1
        self.entered.set()
        self.released.wait(20)
        super().write(name, data)


def test_a_store_that_hangs_does_not_stop_the_loop(clocks: Clocks) -> None:
    store = HangingStore()
    with StatusListener(ProcessStatuses(store, TOPIC), NAME, clocks.wall, clocks.monotonic) as listener:
        assert store.entered.wait(20)
        listener.notify(PartitionsAssigned({0: 5}))
        run_loop(listener, clocks, seconds=60)  # returns, and starts no second write
        assert store.writes == 1
        assert store.names("workers") == []
        store.released.set()
    assert read_status(store).state == "stopped"
