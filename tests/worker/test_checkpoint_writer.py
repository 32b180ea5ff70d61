"""Saving in a thread: what learning waits for, and what it does not."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from streampca.errors import StoreError
from streampca.sources.memory import Do, MemorySource
from streampca.stream.record import Assigned
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.listener import CheckpointPostponed
from streampca.worker.publisher import Publisher
from tests.worker.harness import Cast, Stage, cast, many

_PATIENCE_S = 20.0
N = 400


class SlowDisk:
    """A hook that holds the first write of a file until `let_go` is set."""

    def __init__(self) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()

    def __call__(self, name: str) -> None:
        if name == "write":
            self.reached.set()
            assert self.let_go.wait(_PATIENCE_S)


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def full() -> Stage:
    stage = Stage()
    stage.send(0, many(N))
    return stage


def test_learning_goes_on_while_the_disk_is_slow(full: Stage, thread: ThreadPoolExecutor) -> None:
    disk = SlowDisk()

    def everything_is_learned_before_anything_is_saved() -> None:
        assert disk.reached.wait(_PATIENCE_S)
        assert worker.heard.positions[0] == N
        assert full.calls("save", "commit") == []
        disk.let_go.set()

    script = [100, 100, 100, 100, Do(everything_is_learned_before_anything_is_saved)]
    worker: Cast = cast(full, script=script, hook=disk, saves_in=thread)
    worker.run()
    assert disk.let_go.is_set()
    full.assert_complete()


def test_what_is_saved_is_the_fold_as_it_was_when_the_save_began(full: Stage, thread: ThreadPoolExecutor) -> None:
    disk = SlowDisk()
    worker = cast(full, script=[100, 100, 100, Do(disk.let_go.set), 100], hook=disk, saves_in=thread)
    worker.run()
    saved = [entry[2] for entry in full.calls("save")]
    assert saved[0] == 100
    assert saved[-1] == N
    full.assert_complete()


def test_a_partition_is_let_go_only_when_the_save_under_way_has_ended(thread: ThreadPoolExecutor) -> None:
    stage = Stage(partitions=2)
    for partition in (0, 1):
        stage.send(partition, many(N, seed=partition))
    disk = SlowDisk()
    others: list[MemorySource] = []
    saved_when_granted: list[int | None] = []

    def join() -> None:
        assert disk.reached.wait(_PATIENCE_S)
        others.append(MemorySource(stage.topic))
        threading.Timer(0.05, disk.let_go.set).start()

    def look() -> None:
        if any(isinstance(event, Assigned) for event in others[0].poll(0)):
            saved_when_granted.append(stage.position(1))

    looks = Do(look)
    cast(stage, script=[100, 100, Do(join), looks, 0, looks, 0, looks, 100, looks], hook=disk, saves_in=thread).run()
    assert saved_when_granted == [200]
    assert stage.violations == []


def test_a_full_disk_is_told_in_the_loop_and_tried_again(full: Stage, thread: ThreadPoolExecutor) -> None:
    full.files.fail_writes(1)
    worker = cast(full, script=[100] * 4, saves_in=thread)
    worker.run()
    assert len(worker.heard.of(CheckpointPostponed)) == 1
    full.assert_complete()


def test_a_bug_while_saving_ends_the_worker(full: Stage, thread: ThreadPoolExecutor) -> None:
    def bug(name: str) -> None:
        if name == "write":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cast(full, script=[100] * 4, hook=bug, saves_in=thread).run()
    assert full.calls("commit") == []


def test_one_save_at_a_time(full: Stage, thread: ThreadPoolExecutor) -> None:
    writer = CheckpointWriter(
        full.checkpoints, Publisher(full.checkpoints, full.models, full.fold_config, lambda: 0.0), thread
    )
    assert writer.take_result(wait=True) is None
    writer.start([full.expected(0)], publish=True)
    with pytest.raises(RuntimeError):
        writer.start([], publish=False)
    result = writer.take_result(wait=True)
    assert result is not None
    assert [checkpoint.partition for checkpoint, _ in result.saved] == [0]
    assert result.published is not None
    assert not writer.busy


def test_what_was_saved_before_the_disk_was_full_counts(thread: ThreadPoolExecutor) -> None:
    stage = Stage(partitions=2)
    for partition in (0, 1):
        stage.send(partition, many(100, seed=partition))

    def full_after_one(name: str) -> None:
        if name == "write" and stage.calls("save"):
            raise StoreError("disk full")

    worker = cast(stage, script=[100, 100], hook=full_after_one, saves_in=thread)
    worker.run()
    assert stage.calls("save") == [("save", 0, 100)]
    assert stage.topic.committed == {0: 100}
    assert CheckpointPostponed("disk full") in worker.heard.of(CheckpointPostponed)
