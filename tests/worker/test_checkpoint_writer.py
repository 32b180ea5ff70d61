"""Saving checkpoints in a thread: learning continues, revocation waits."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from streampca.consumer_group.events import CheckpointPostponed
from streampca.errors import StoreError
from streampca.sources.events import Assigned
from tests.errors import refusal
from tests.in_memory import MemorySource
from tests.worker.environment import Environment, N
from tests.worker.harness import RUN_TIMEOUT_S, WorkerFixture, make_raising_hook, make_worker


class SlowDisk:
    """A hook that holds the first write of a file until `released` is set."""

    def __init__(self) -> None:
        self.reached, self.released = threading.Event(), threading.Event()

    def __call__(self, name: str) -> None:
        if name == "write":
            self.reached.set()
            assert self.released.wait(RUN_TIMEOUT_S)


class SaveThread(ThreadPoolExecutor):
    """Saves in a thread. The first publication, before anything is learned, is waited for: it would delay a save."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if not args[0]:  # no checkpoints
            wait([future])
        return future


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with SaveThread(1) as executor:
        yield executor


def test_learning_continues_while_the_disk_is_slow(filled: Environment, thread: ThreadPoolExecutor) -> None:
    disk = SlowDisk()

    def assert_all_learned_and_nothing_saved() -> None:
        assert disk.reached.wait(RUN_TIMEOUT_S)
        assert worker.recorder.positions[0] == N
        assert filled.calls("save", "commit") == []
        disk.released.set()

    script = [100, 100, 100, assert_all_learned_and_nothing_saved]
    worker: WorkerFixture = make_worker(filled, script=script, hook=disk, save_executor=thread)
    worker.run()
    assert disk.released.is_set()
    filled.assert_complete()


def test_a_save_writes_the_fold_as_it_was_when_the_save_started(
    filled: Environment, thread: ThreadPoolExecutor
) -> None:
    disk = SlowDisk()
    make_worker(filled, script=[100, 100, disk.released.set, 100], hook=disk, save_executor=thread).run()
    saved = [entry[2] for entry in filled.calls("save")]
    assert (saved[0], saved[-1]) == (100, N)
    filled.assert_complete()


@pytest.mark.parametrize("env", [(N, N)], indirect=True)
def test_a_partition_is_released_after_the_running_save(env: Environment, thread: ThreadPoolExecutor) -> None:
    disk = SlowDisk()
    others: list[MemorySource] = []
    saved_when_assigned: list[int | None] = []

    def join() -> None:
        assert disk.reached.wait(RUN_TIMEOUT_S)
        others.append(MemorySource(env.topic))
        threading.Timer(0.05, disk.released.set).start()

    def poll() -> None:
        if any(isinstance(event, Assigned) for event in others[0].poll(0)):
            saved_when_assigned.append(env.position(1))

    script = [100, 100, join, poll, 0, poll, 0, poll, 100, poll]
    make_worker(env, script=script, hook=disk, save_executor=thread).run()
    assert saved_when_assigned == [200]


def test_an_unexpected_exception_in_a_save_ends_the_worker(filled: Environment, thread: ThreadPoolExecutor) -> None:
    bug = make_raising_hook(ZeroDivisionError(), "write")
    refusal(ZeroDivisionError, make_worker(filled, script=[100] * 3, hook=bug, save_executor=thread).run)
    assert filled.calls("commit") == []


@pytest.mark.parametrize("env", [(100, 100)], indirect=True)
def test_checkpoints_saved_before_the_disk_was_full_are_committed(env: Environment, thread: ThreadPoolExecutor) -> None:
    full_after_first_save = make_raising_hook(StoreError("disk full"), "write", lambda: env.calls("save"))
    worker = make_worker(env, script=[100, 100], hook=full_after_first_save, save_executor=thread).run()
    assert env.calls("save") == [("save", 0, 100)]
    assert env.topic.committed == {0: 100}
    assert CheckpointPostponed("disk full") in worker.recorder.of_type(CheckpointPostponed)


def test_only_one_save_runs_at_a_time(filled: Environment, thread: ThreadPoolExecutor) -> None:
    checkpointer = make_worker(filled, save_executor=thread).worker._checkpointer
    checkpointer.start_save({}, publish=True)
    assert "one save at a time" in refusal(RuntimeError, checkpointer.start_save, {}, publish=True)
    checkpointer.finish_save(wait=True)
    assert not checkpointer.is_saving
