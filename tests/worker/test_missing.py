"""What was there must still be there: checkpoints and backfills that are deleted, or cannot be read.

Models do not shrink, owners write again what they hold, and what one partition lacks stops no other partition.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import obstore
import pytest
from hypothesis import given, strategies as st

from streampca.consumer_group.events import (
    CheckpointSaved,
    ModelPublished,
    PartitionsAssigned,
    PartitionsMissing,
    RestoreFailed,
)
from streampca.errors import (
    DamagedFileError,
    ForeignStoreError,
    PartitionsMissingError,
    StoreBusyError,
    StoreError,
    TopicReplacedError,
)
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.partitions import backfill_partition, partition_name
from streampca.stores import identity
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.object_store import ObjectStore
from streampca.worker.missing import find_partitions_behind_model, refuse_missing
from streampca.worker.publisher import Publisher
from streampca.worker.writer import CheckpointWriter
from tests.errors import refusal
from tests.example_models import numbered
from tests.fold.streams import CONFIG, make_checkpoint, make_fold, vectors
from tests.in_memory import Step
from tests.worker.environment import TOPIC, Environment, make_filled_environment
from tests.worker.harness import SynchronousExecutor, WorkerFixture, make_worker, make_worker_config

BACKFILL = backfill_partition(0)


@pytest.fixture
def env() -> Environment:
    """Of a group that has learned a backfill of 40 rows and 100 records of each of two partitions."""
    env = make_filled_environment(100, 100)
    config = env.fold_config
    env.checkpoints.save(Checkpoint(TOPIC, "", BACKFILL, make_fold(vectors(40), config), config.as_dict()))
    make_worker(env).run()
    assert env.models.versions()[-1] == 240
    return env


def delete(env: Environment, partition: int) -> None:
    """Delete the checkpoints of a partition, as an expiry rule does."""
    for name in env.store.names(f"checkpoints/{TOPIC}/{partition_name(partition)}"):
        env.store.delete(name)


def causes(worker: WorkerFixture) -> list[set[int]]:
    """The partitions of each report of what is missing."""
    return [set(event.causes) for event in worker.recorder.of_type(PartitionsMissing)]


@pytest.mark.parametrize("partition", [0, 1])
def test_what_is_deleted_while_its_owner_runs_is_written_again_though_nothing_arrives(
    env: Environment, partition: int
) -> None:
    before = env.newest(partition)

    def assert_written() -> None:
        assert env.position(partition) == 100

    worker = make_worker(env, script=[1, lambda: delete(env, partition), *[None] * 3, assert_written]).run()
    assert causes(worker) == []
    assert env.newest(partition).fold.position == before.fold.position
    env.send(1, vectors(50, seed=5))
    make_worker(env).run()
    assert env.models.versions()[-1] == 290


def test_what_is_deleted_just_before_the_end_is_written_again(env: Environment) -> None:
    """The next owner could not."""
    worker = make_worker(env, make_worker_config(env.fold_config, checkpoint_interval_s=1e9), [1, 1])
    worker.source.stop = lambda cause: (delete(env, 1), worker.stop(cause))  # type: ignore[assignment,return-value]
    worker.run()
    assert env.position(1) == 100


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_written_again_into_another_store(env: Environment, replaced: bool) -> None:
    """Nor do models shrink; partitions whose checkpoints are there are saved."""

    def delete_with_identity() -> None:
        delete(env, 0)
        env.store.delete(identity.NAME)
        if replaced:
            identity.ensure(env.store)

    more: Step = lambda: env.send(1, vectors(50, seed=5))  # noqa: E731
    worker = make_worker(env, script=[1, delete_with_identity, None, more, 100, None, None]).run()
    assert env.position(0) is None
    assert env.position(1) == 150
    assert causes(worker) == [{0}]
    assert env.models.versions()[-1] == 240


def test_into_an_empty_store_nothing_is_written(env: Environment) -> None:
    """Not even the first checkpoint of a new partition."""
    checkpoints = Checkpoints(env.store, TOPIC)
    checkpoints.ensure_identity()
    newest = checkpoints.newest(0)
    assert newest
    env.store._files.clear()
    for partition in (0, 7):
        text = refusal(StoreError, checkpoints.save, replace(newest, partition=partition))
        assert "this store's own store.json" in text
    assert env.store._files == {}


def make_bucket(folder: Path) -> ObjectStore:
    bucket = ObjectStore("s3://bucket")
    bucket._bucket = obstore.store.MemoryStore()
    return bucket


@pytest.mark.parametrize("open_store", [DirectoryStore, make_bucket])
def test_folders_and_buckets_get_back_what_is_gone_while_they_are_the_same_store(
    open_store: Callable[[Path], Store], tmp_path: Path
) -> None:
    """Which the publisher of another process finds missing."""
    store = open_store(tmp_path)
    checkpoints, models = Checkpoints(store, TOPIC), Models(store, TOPIC)
    checkpoints.ensure_identity()
    writer = CheckpointWriter(checkpoints, Publisher(models, CONFIG, lambda: 0.0), SynchronousExecutor())
    held = [make_checkpoint(make_fold(vectors(30), CONFIG), CONFIG, partition) for partition in (0, 1)]
    saved = writer.start(held, publish=True).result()
    assert [type(event) for event in saved.events] == [CheckpointSaved, CheckpointSaved, ModelPublished]
    other = Publisher(models, CONFIG, lambda: 0.0)
    for folder in ("0", "1"):
        for name in store.names(f"checkpoints/{TOPIC}/{folder}"):
            store.delete(name)
    with pytest.raises(PartitionsMissingError) as missing:
        other.publish(Checkpoints(store, TOPIC))
    assert missing.value.causes.keys() == {0, 1}
    content = store.read(identity.NAME)
    store.delete(identity.NAME)
    assert writer.start([], publish=False, saved_before=held, rewrite_lost=True).result().events == []
    store.write(identity.NAME, content)
    rewritten = writer.start([], publish=False, saved_before=held, rewrite_lost=True).result()
    assert [event.partition for event in rewritten.events] == [0, 1]  # type: ignore[union-attr]
    assert other.publish(Checkpoints(store, TOPIC)) is None
    assert writer.start([], publish=False, saved_before=held, rewrite_lost=True).result().events == []


def test_where_a_later_checkpoint_is_listed_nothing_is_written_again(env: Environment) -> None:
    """An evicted worker holds what its partition's new owner has passed."""
    worker = make_worker(env, script=[1], stop_when_idle=False)
    later = env.newest(0)

    def overtake() -> None:
        delete(env, 0)
        env.checkpoints.save(replace(later, fold=replace(later.fold, position=130)))
        worker.stop("enough")

    worker.source._steps = iter([1, overtake, None])
    worker.run()
    assert env.checkpoints.offsets(0) == [130]


@pytest.mark.parametrize("partition", [0, 1, BACKFILL])
@pytest.mark.parametrize("expired", [False, True])
def test_what_nobody_holds_makes_models_wait_and_stops_no_other_partition(
    env: Environment, partition: int, expired: bool
) -> None:
    """A partition is not learned again from its earliest record as if it were new, also without committed offsets."""
    delete(env, partition)
    if expired:
        env.topic.committed.clear()
    for other in (0, 1):
        env.send(other, vectors(50, seed=5))
    worker = make_worker(env, script=[1000] * 20).run()
    assert causes(worker) == [{partition}]
    [event] = worker.recorder.of_type(PartitionsMissing)
    assert f"streampca reset --drop {partition_name(partition)}" in event.cause
    positions = {other: env.position(other) for other in (0, 1)}
    assert positions == {0: 150, 1: 150} | ({partition: None} if partition < BACKFILL else {})
    assert worker.recorder.of_type(RestoreFailed) == worker.recorder.of_type(ModelPublished) == []
    assert env.models.versions()[-1] == 240
    assert env.violations == []


def test_models_go_on_when_what_was_missing_is_back(env: Environment) -> None:
    files = {name: env.store.read(name) for name in env.store.names(f"checkpoints/{TOPIC}/0")}
    delete(env, 0)
    env.send(0, vectors(50, seed=5))

    def restore() -> None:
        for name, data in files.items():
            env.store.write(name, data)

    worker = make_worker(env, script=[*[None] * 5, restore, *[1000] * 20]).run()
    assert causes(worker) == [{0}, set()]
    env.assert_complete()
    assert env.models.versions()[-1] == 290


def test_a_topic_that_was_created_again_is_not_begun_beside_models_of_the_old_one(env: Environment) -> None:
    """No checkpoint tells that it is another topic, until a person restores them."""
    files = {name: env.store.read(name) for p in (0, 1) for name in env.store.names(f"checkpoints/{TOPIC}/{p}")}
    for partition in (0, 1):
        delete(env, partition)
    env.topic.create(2)
    env.send(0, vectors(50, seed=5))
    worker = make_worker(env, script=[1000] * 20).run()
    assert causes(worker) == [{0, 1}]
    assert (env.position(0), env.position(1)) == (None, None)
    assert env.models.versions()[-1] == 240
    for name, data in files.items():
        env.store.write(name, data)
    assert "in the checkpoint of partition 0" in refusal(TopicReplacedError, make_worker(env).run)


def test_the_store_is_refused_if_no_partition_is_at_the_groups_offset(env: Environment) -> None:
    for partition in (0, 1):
        delete(env, partition)
    text = refusal(ForeignStoreError, make_worker(env, stop_when_idle=False).run)
    assert "is the volume mounted" in text


def refuse_to_read(env: Environment, partition: int, error: StoreError, until: Callable[[], bool]) -> None:
    """Let the store refuse to read a partition's checkpoints as long as `until` says no."""
    read = env.store.read

    def refuse(name: str) -> bytes:
        if name.startswith(f"checkpoints/{TOPIC}/{partition_name(partition)}/") and not until():
            raise error
        return read(name)

    env.store.read = refuse  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("partition", "error"),
    [
        *((partition, StoreError("cannot read: 403")) for partition in (0, 1, BACKFILL)),
        *((partition, StoreBusyError("cannot read: 500")) for partition in (0, 1)),
    ],
)
def test_a_checkpoint_that_cannot_be_read_leaves_only_its_partition_alone(
    env: Environment, partition: int, error: StoreError
) -> None:
    """No older one is taken. All goes on when it can be read."""
    for other in (0, 1):
        env.send(other, vectors(50, seed=5))
    is_readable: list[bool] = []
    learned: list[int | None] = []

    def end() -> None:
        learned.extend(env.position(other) for other in (0, 1))
        assert env.models.versions()[-1] == 240
        is_readable.append(True)

    refuse_to_read(env, partition, error, lambda: bool(is_readable))
    worker = make_worker(env, script=[*[1000] * 30, end, *[1000] * 30])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_check_store", lambda: None)  # it is busy only later
        worker.run()
    assert learned == [100 if other == partition else 150 for other in (0, 1)]
    assert causes(worker) == [{partition}, set()]
    if not isinstance(error, StoreBusyError):
        assert worker.recorder.of_type(RestoreFailed) == []
    env.assert_complete()
    assert env.models.versions()[-1] == 340


def test_a_worker_that_can_read_nothing_retries(env: Environment) -> None:
    env.store.fail_reads(4, StoreError("cannot read: Input/output error"))
    worker = make_worker(env, script=[1000] * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_check_store", lambda: None)
        worker.run()
    assert worker.recorder.of_type(PartitionsAssigned)
    env.send(0, vectors(50, seed=5))
    make_worker(env).run()
    env.assert_complete()


def test_a_start_ends_if_nothing_can_be_read(env: Environment) -> None:
    read = env.store.read

    def refuse(name: str) -> bytes:
        if name.startswith("checkpoints/"):
            raise StoreError("cannot read: 403")
        return read(name)

    env.store.read = refuse  # type: ignore[method-assign]
    assert "cannot read: 403" in refusal(StoreError, make_worker(env, stop_when_idle=False).run)


def test_a_damaged_checkpoint_makes_no_smaller_model(env: Environment) -> None:
    """Its partition is learned again from the one before it; models wait until it has passed the newest model."""
    env.send(0, vectors(50, seed=5))
    make_worker(env).run()
    env.store.damage(f"checkpoints/{TOPIC}/0/{150:020d}.npz")
    env.send(1, vectors(500, seed=6))
    worker = make_worker(env, script=[10] * 200, batch=10).run()
    assert causes(worker) == [{0}, set()]
    assert "up to offset 150, but its newest checkpoint is older" in worker.recorder.of_type(PartitionsMissing)[0].cause
    assert all(event.model.positions[0] >= 150 for event in worker.recorder.of_type(ModelPublished))
    env.assert_complete()
    assert env.models.versions()[-1] == 790


@pytest.mark.parametrize("error", [StoreError("403"), DamagedFileError("not finite"), StoreBusyError("503")])
def test_a_save_that_fails_for_one_partition_keeps_no_other_from_being_saved(
    env: Environment, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the store is busy. An error that no retry mends ends the worker when the others are saved."""
    save = Checkpoints.save

    def fail(self: Checkpoints, checkpoint: Checkpoint) -> None:
        if checkpoint.partition == 0:
            raise error
        save(self, checkpoint)

    monkeypatch.setattr(Checkpoints, "save", fail)
    for partition in (0, 1):
        env.send(partition, vectors(50, seed=5))
    worker = make_worker(env, script=[1000, 1000])
    if isinstance(error, DamagedFileError):
        refusal(DamagedFileError, worker.run)
    else:
        worker.run()
    assert env.position(0) == 100
    assert env.position(1) == 150
    assert env.topic.committed == {0: 100, 1: env.position(1)}


POSITIONS = st.dictionaries(st.sampled_from([0, 1, 2, BACKFILL, BACKFILL + 1]), st.integers(0, 3))


@given(POSITIONS, POSITIONS, st.sampled_from(["", "id-1", "id-2"]))
def test_a_model_misses_what_it_contains_and_checkpoints_do_not(
    positions: dict[int, int], offsets: dict[int, int], topic_id: str
) -> None:
    """Of another topic, the offsets say nothing about its partitions, but each must have a checkpoint."""
    model = replace(numbered(7), positions=positions, topic_id="id-1")
    missing = find_partitions_behind_model(model, offsets, topic_id)
    compared = {p for p in positions if p >= BACKFILL or topic_id != "id-2"}
    needed = {p: at if p in compared else 0 for p, at in positions.items()}
    assert missing.keys() == {p for p, at in needed.items() if offsets.get(p, -1) < at}
    assert all(partition_name(p) in text for p, text in missing.items())
    assert (
        find_partitions_behind_model(model, positions, topic_id)
        == find_partitions_behind_model(None, offsets, topic_id)
        == {}
    )


@pytest.mark.parametrize("partition", [0, BACKFILL])
def test_doctor_names_what_is_missing(env: Environment, partition: int) -> None:
    source = make_worker(env).source
    committed = source.committed()
    refuse_missing(env.checkpoints, env.models, committed, env.topic.id)
    delete(env, partition)
    text = refusal(PartitionsMissingError, refuse_missing, env.checkpoints, env.models, committed, env.topic.id)
    assert partition_name(partition) in text
    assert str(BACKFILL) not in text
    assert "damaged" not in text
