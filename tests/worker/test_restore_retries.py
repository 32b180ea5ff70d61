"""A worker that cannot restore its partitions waits for the store and stays in the group."""

from collections.abc import Callable

from streampca.consumer_group.listener import PartitionsAssigned, PublishFailed, RestoreFailed
from streampca.errors import StoreError
from streampca.sources.memory import Do
from tests.stream.streams import vectors
from tests.worker.environment import TOPIC, Environment
from tests.worker.harness import make_worker


def learned(partitions: int = 1) -> Environment:
    env = Environment(partitions)
    for partition in range(partitions):
        env.send(partition, vectors(100, seed=partition))
    make_worker(env).run()
    for partition in range(partitions):
        env.send(partition, vectors(30, seed=partition + 7))
    return env


def away(env: Environment) -> Callable[[bool], None]:
    """Makes all reads of the env's files fail, or succeed again."""
    read, is_away = env.store.read, [False]

    def read_or_fail(name: str) -> bytes:
        if is_away[0]:
            raise StoreError(f"cannot read {name}: Stale file handle")
        return read(name)

    env.store.read = read_or_fail  # type: ignore[method-assign]
    return lambda value: is_away.__setitem__(0, value)


def test_a_store_that_cannot_be_read_at_an_assignment_is_waited_for() -> None:
    env = learned(2)
    set_away = away(env)
    script = [Do(lambda: set_away(True)), *[1000] * 4, Do(lambda: set_away(False)), *[1000] * 30]
    worker = make_worker(env, script=[1000, Do(env.topic.rebalance), *script])
    worker.run()
    assert worker.recorder.of_type(RestoreFailed)
    assert worker.recorder.of_type(PartitionsAssigned)[1:] == [PartitionsAssigned({0: 130, 1: 130})]
    env.assert_complete()


def test_partitions_that_wait_for_the_store_can_be_revoked_and_assigned_again() -> None:
    env = learned(2)
    set_away = away(env)
    script = [Do(lambda: set_away(True)), *[1000] * 4, Do(env.topic.rebalance), *[1000] * 4]
    worker = make_worker(
        env, script=[1000, Do(env.topic.rebalance), *script, Do(lambda: set_away(False)), *[1000] * 30]
    )
    worker.run()
    assert worker.recorder.of_type(RestoreFailed)
    assert len(worker.recorder.of_type(PartitionsAssigned)) == 2
    env.assert_complete()


def test_a_stale_listing_is_waited_for_instead_of_starting_over() -> None:
    env = learned()
    folder = f"checkpoints/{TOPIC}/0"
    real = env.store.names
    stale = [f"{folder}/{5:020d}.npz"]
    left = [stale] * 4  # the start lists twice, and so does the assignment

    def names(of: str) -> list[str]:
        return left.pop() if of == folder and left else real(of)

    env.topic.committed.clear()
    env.store.names = names  # type: ignore[method-assign]
    worker = make_worker(env, script=[*[1000] * 30])
    worker.run()
    assert worker.recorder.of_type(RestoreFailed)
    assert worker.recorder.of_type(PartitionsAssigned) == [PartitionsAssigned({0: 100})]
    env.assert_complete()


def test_a_stale_listing_of_a_partition_leaves_no_model_without_it() -> None:
    env = learned(2)
    before = env.models.versions()
    folder = f"checkpoints/{TOPIC}/1"
    real = env.store.names
    worker = make_worker(env, script=[1000, Do(lambda: hide.append(True)), 1000, 1000, 1000, 1000])
    hide: list[bool] = []
    env.store.names = lambda of: [f"{folder}/{5:020d}.npz"] if hide and of == folder else real(of)  # type: ignore[method-assign]
    env.send(0, vectors(20, seed=50))
    worker.run()
    versions = [version for version in env.models.versions() if version not in before]
    assert all(version >= 200 for version in versions)
    assert worker.recorder.of_type(PublishFailed) or versions
