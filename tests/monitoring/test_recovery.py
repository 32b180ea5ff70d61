"""The runbook's procedures for restoring and replaying, on a store in memory."""

from streampca.consumer_group.listener import BatchLearned, ModelPublished
from tests.stream.streams import vectors
from tests.worker.environment import TOPIC, Environment
from tests.worker.harness import make_worker, worker_config


def learned_environment() -> Environment:
    """Two partitions, learned to their ends in several saves."""
    env = Environment(partitions=2)
    for partition in (0, 1):
        env.send(partition, vectors(200, seed=partition))
    make_worker(env, worker_config(), [60] * 8).run()
    env.assert_complete()
    return env


def remove(env: Environment, folder: str) -> None:
    for name in env.store.names(folder):
        env.store.delete(name)


def reset(env: Environment) -> None:
    """Delete the group's committed offsets, as `streampca reset` does."""
    env.topic.committed.clear()


def test_restoring_a_backup_gives_the_same_bytes() -> None:
    env = Environment(partitions=2)
    for partition in (0, 1):
        env.send(partition, vectors(100, seed=partition))
    make_worker(env, worker_config(), [50] * 4).run()
    folders = [f"checkpoints/{TOPIC}/0", f"checkpoints/{TOPIC}/1", f"models/{TOPIC}"]
    backup = {name: env.store.read(name) for folder in folders for name in env.store.names(folder)}
    for partition in (0, 1):
        env.send(partition, vectors(100, seed=partition + 2))
    make_worker(env, worker_config(), [50] * 4).run()
    for folder in folders:
        remove(env, folder)
    for name, data in backup.items():
        env.store.write(name, data)
    assert env.models.versions()[-1] == 200
    reset(env)
    make_worker(env, worker_config(), [50] * 4).run()
    env.assert_complete()
    assert env.models.versions()[-1] == 400


def test_newer_models_block_publishing_until_they_are_removed() -> None:
    env = learned_environment()
    before = env.models.versions()
    remove(env, f"checkpoints/{TOPIC}/1")
    reset(env)
    behind = make_worker(env, worker_config(), [60] * 8)
    behind.run()
    assert behind.recorder.of_type(ModelPublished) == []
    assert env.models.versions() == before
    remove(env, f"models/{TOPIC}")
    env.send(0, vectors(1, seed=9))
    ahead = make_worker(env, worker_config(), [60] * 8)
    ahead.run()
    assert ahead.recorder.of_type(ModelPublished)[-1].model.version == 401


def test_one_partition_is_learned_again_when_its_checkpoints_are_removed() -> None:
    env = learned_environment()
    untouched = env.store.names(f"checkpoints/{TOPIC}/0")
    remove(env, f"checkpoints/{TOPIC}/1")
    remove(env, f"models/{TOPIC}")
    reset(env)
    again = make_worker(env, worker_config(), [60] * 8)
    again.run()
    env.assert_complete()
    assert env.store.names(f"checkpoints/{TOPIC}/0") == untouched
    assert sum(batch.messages for batch in again.recorder.of_type(BatchLearned)) == 200
    assert env.models.versions()[-1] == 400
