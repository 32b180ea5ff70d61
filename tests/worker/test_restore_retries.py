"""A worker that cannot restore its partitions waits for the store and stays in the group."""

from collections.abc import Callable

from streampca.errors import StoreError
from streampca.sources.memory import Do
from streampca.worker.listener import PartitionsAssigned, PublishFailed, RestoreFailed
from tests.worker.harness import TOPIC, Stage, cast, many


def learned(partitions: int = 1) -> Stage:
    stage = Stage(partitions)
    for partition in range(partitions):
        stage.send(partition, many(100, seed=partition))
    cast(stage).run()
    for partition in range(partitions):
        stage.send(partition, many(30, seed=partition + 7))
    return stage


def away(stage: Stage) -> Callable[[bool], None]:
    """Makes all reads of the stage's files fail, or succeed again."""
    read, is_away = stage.files.read, [False]

    def read_or_fail(name: str) -> bytes:
        if is_away[0]:
            raise StoreError(f"cannot read {name}: Stale file handle")
        return read(name)

    stage.files.read = read_or_fail  # type: ignore[method-assign]
    return lambda value: is_away.__setitem__(0, value)


def test_a_store_that_cannot_be_read_at_an_assignment_is_waited_for() -> None:
    stage = learned(2)
    set_away = away(stage)
    script = [Do(lambda: set_away(True)), *[1000] * 4, Do(lambda: set_away(False)), *[1000] * 30]
    actor = cast(stage, script=[1000, Do(stage.topic.rebalance), *script])
    actor.run()
    assert actor.heard.of(RestoreFailed)
    assert actor.heard.of(PartitionsAssigned)[1:] == [PartitionsAssigned({0: 130, 1: 130})]
    stage.assert_complete()


def test_partitions_that_wait_for_the_store_can_be_revoked_and_assigned_again() -> None:
    stage = learned(2)
    set_away = away(stage)
    script = [Do(lambda: set_away(True)), *[1000] * 4, Do(stage.topic.rebalance), *[1000] * 4]
    actor = cast(stage, script=[1000, Do(stage.topic.rebalance), *script, Do(lambda: set_away(False)), *[1000] * 30])
    actor.run()
    assert actor.heard.of(RestoreFailed)
    assert len(actor.heard.of(PartitionsAssigned)) == 2
    stage.assert_complete()


def test_a_stale_listing_is_waited_for_instead_of_starting_over() -> None:
    stage = learned()
    folder = f"checkpoints/{TOPIC}/0"
    real = stage.files.names
    stale = [f"{folder}/{5:020d}.npz"]
    left = [stale] * 4  # the start lists twice, and so does the assignment

    def names(of: str) -> list[str]:
        return left.pop() if of == folder and left else real(of)

    stage.topic.committed.clear()
    stage.files.names = names  # type: ignore[method-assign]
    actor = cast(stage, script=[*[1000] * 30])
    actor.run()
    assert actor.heard.of(RestoreFailed)
    assert actor.heard.of(PartitionsAssigned) == [PartitionsAssigned({0: 100})]
    stage.assert_complete()


def test_a_stale_listing_of_a_partition_leaves_no_model_without_it() -> None:
    stage = learned(2)
    before = stage.models.versions()
    folder = f"checkpoints/{TOPIC}/1"
    real = stage.files.names
    actor = cast(stage, script=[1000, Do(lambda: hide.append(True)), 1000, 1000, 1000, 1000])
    hide: list[bool] = []
    stage.files.names = lambda of: [f"{folder}/{5:020d}.npz"] if hide and of == folder else real(of)  # type: ignore[method-assign]
    stage.send(0, many(20, seed=50))
    actor.run()
    versions = [version for version in stage.models.versions() if version not in before]
    assert all(version >= 200 for version in versions)
    assert actor.heard.of(PublishFailed) or versions
