"""A store that is not the one the consumer group has written: nothing is learned twice, and nothing is deleted."""

import itertools
import re
from unittest import mock

import pytest
from structlog.testing import capture_logs

from streampca.consumer_group.committed import format_store_metadata
from streampca.consumer_group.events import CheckpointPostponed, PartitionsAssigned, RestoreFailed
from streampca.errors import ForeignStoreError
from streampca.sources.base import Committed
from streampca.stores import identity
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.worker.group_store import compare_store
from tests.errors import refusal
from tests.fold.streams import vectors
from tests.in_memory import MemorySource
from tests.worker.environment import TOPIC, Environment, make_filled_environment
from tests.worker.harness import WorkerFixture, make_worker

two_partitions = pytest.mark.parametrize("env", [2], indirect=True)


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Environment:
    """Of a group that has learned and committed 100 records of each partition: of one, or as many as a test says."""
    partitions = getattr(request, "param", 1)
    env = make_filled_environment(*[100] * partitions)
    make_worker(env).run()
    assert env.topic.committed == dict.fromkeys(range(partitions), 100)
    env.journal.clear()
    return env


def without_checkpoints(env: Environment) -> MemoryStore:
    """The env's store with nothing but its identity: restored from an old backup, or listed late."""
    store = MemoryStore()
    store.write(identity.NAME, env.store.read(identity.NAME))
    return store


def leave_unanswered(worker: WorkerFixture, question: int | None) -> None:
    """Let one question about committed offsets fail, of those that are asked in turn; None: none."""
    ask, questions = worker.source.committed, itertools.count()

    def committed() -> dict[int, Committed]:
        if next(questions) == question:
            raise TimeoutError("no broker answers")
        return ask()

    worker.source.committed = committed  # type: ignore[method-assign]


@two_partitions
def test_another_store_is_refused_before_the_group_is_joined(env: Environment) -> None:
    ours = env.store
    env.store = MemoryStore()
    calls: list[str] = []
    worker = make_worker(env, hook=calls.append, stop_when_idle=False)
    text = refusal(ForeignStoreError, worker.run)
    ids = [identity.ensure(ours).id, "(id none yet)"]
    for part in ("partition 0", TOPIC, *ids, "memory on host", "mount the volume", "streampca reset"):
        assert part in text
    assert env.store.names("checkpoints") == []
    assert identity.find(env.store) is None
    assert env.calls("seek", "save", "commit") == []
    assert "poll" not in calls
    assert worker.recorder.of_type(PartitionsAssigned) == []


@two_partitions
@pytest.mark.parametrize("replaced", [False, True])
def test_a_deleted_or_replaced_identity_can_be_written_back_as_the_error_shows_it(
    env: Environment, replaced: bool
) -> None:
    env.store.delete(identity.NAME)
    if replaced:
        identity.ensure(env.store)
    files = dict(env.store._files)
    text = refusal(ForeignStoreError, make_worker(env, stop_when_idle=False).run)
    assert "store.json was deleted or replaced" in text
    assert "set store to the group's" in text
    assert env.store._files == files  # above all, no other identity
    [shown] = re.findall(r"\{[^{}]*\}", text)
    env.store.write(identity.NAME, shown.encode())
    env.send(1, vectors(50, seed=5))
    make_worker(env).run()
    assert env.position(1) == 150


@two_partitions
def test_an_identity_that_is_deleted_while_the_store_is_examined_is_not_replaced(env: Environment) -> None:
    ours, checkpoints = identity.ensure(env.store), Checkpoints(env.store, TOPIC)
    committed = MemorySource(env.topic).committed()
    take_snapshot = checkpoints.snapshot

    def delete_first() -> Checkpoints:
        env.store.delete(identity.NAME)
        return take_snapshot()

    with mock.patch.object(checkpoints, "snapshot", delete_first):
        assert compare_store(checkpoints, committed).identity == ours
    assert identity.find(env.store) is None


@pytest.mark.parametrize("unanswered", [None, 2])
def test_members_that_join_together_with_two_stores_notice_each_other(unanswered: int | None) -> None:
    """Neither could know before: the group had no offsets. Nor if it does not answer then: it is asked again."""
    env = make_filled_environment(100, 100)
    other = identity.StoreIdentity("ab" * 16, "/mnt/other", "host-2")

    def commit_elsewhere() -> None:
        env.topic.committed[1], env.topic.metadata[1] = 50, format_store_metadata(other)

    worker = make_worker(env, script=[10, commit_elsewhere] * 20)
    leave_unanswered(worker, unanswered)
    assert "partition 1 of readings saved to the store /mnt/other on host" in refusal(ForeignStoreError, worker.run)
    assert len(env.calls("commit")) <= 3 + (unanswered is not None)


@two_partitions
def test_a_group_that_does_not_answer_is_asked_again_when_partitions_are_assigned(env: Environment) -> None:
    env.store = MemoryStore()
    worker = make_worker(env, stop_when_idle=False)
    leave_unanswered(worker, 0)
    assert "is another one" in refusal(ForeignStoreError, worker.run)
    assert env.calls("seek", "commit") == []


@two_partitions
def test_an_empty_store_is_refused_when_the_group_has_committed_offsets(env: Environment) -> None:
    env.store = without_checkpoints(env)
    worker = make_worker(env, stop_when_idle=False)
    text = refusal(ForeignStoreError, worker.run)
    for part in ("offset 100 of partition 0", TOPIC, "no checkpoint of it", "mounted", "streampca reset"):
        assert part in text
    assert worker.recorder.of_type(PartitionsAssigned) == []
    assert env.store.names("checkpoints") == []


def test_a_store_that_is_behind_the_group_is_refused(env: Environment) -> None:
    before = env.checkpoints.newest(0)
    env.send(0, vectors(50, seed=5))
    make_worker(env).run()
    other = Checkpoints(without_checkpoints(env), TOPIC)
    other.save(before)
    env.store = other._store  # type: ignore[assignment]
    with pytest.raises(ForeignStoreError, match=r"offset 150 of partition 0.*no checkpoint beyond offset 100"):
        make_worker(env, stop_when_idle=False).run()
    assert other.offsets(0) == [100]


@pytest.mark.parametrize("moved", [0, 40, 100, 140])
def test_offsets_that_another_tool_has_set_move_nothing_and_are_logged(env: Environment, moved: int) -> None:
    env.send(0, vectors(50, seed=5))
    env.topic.committed[0], env.topic.metadata[0] = moved, ""
    with capture_logs() as logged:
        make_worker(env).run()
    env.assert_complete()
    said = [line for line in logged if line["event"] == "committed offsets ignored"]
    assert [line["offsets"] for line in said] == ([{0: moved}] if moved != 100 else [])
    assert all("streampca reset --to" in line["cause"] for line in said)


def test_the_worker_waits_a_while_for_the_store_before_it_refuses(env: Environment) -> None:
    """A network file system may show a folder as it was up to a minute ago."""
    true, env.store = env.store, without_checkpoints(env)

    def mount() -> None:
        for name in true.names(f"checkpoints/{TOPIC}/0"):
            env.store.write(name, true.read(name))

    env.checkpoints = Checkpoints(env.store, TOPIC)
    env.send(0, vectors(50, seed=5))
    worker = make_worker(env, script=[1, 1, 1, 1, mount, *[1000] * 20]).run()
    assert worker.recorder.of_type(RestoreFailed)
    assert worker.recorder.of_type(PartitionsAssigned) == [PartitionsAssigned({0: 100})]
    env.assert_complete()


def test_a_worker_saves_nothing_while_its_volume_is_unmounted(env: Environment) -> None:
    env.send(0, vectors(150, seed=5))
    volume: dict[str, bytes] = {}
    bare_folder: dict[str, bytes] = {}

    def unmount() -> None:
        volume.update(env.store._files)
        env.store._files = {}

    def mount() -> None:
        bare_folder.update(env.store._files)
        env.store._files = dict(volume)

    worker = make_worker(env, script=[50, unmount, 50, 50, mount, *[50] * 5]).run()
    assert bare_folder == {}
    causes = [event.cause for event in worker.recorder.of_type(CheckpointPostponed)]
    assert len(causes) >= 2
    assert all("no longer holds the checkpoint of partition 0 at offset 150" in cause for cause in causes)
    env.assert_complete()
