"""What the runbook promises of restoring and replaying, on a store in memory."""

from streampca.worker.listener import BatchLearned, ModelPublished
from tests.worker.harness import TOPIC, Stage, cast, many, worker_config


def learned_stage() -> Stage:
    """Two partitions, learned to their ends in several saves."""
    stage = Stage(partitions=2)
    for partition in (0, 1):
        stage.send(partition, many(200, seed=partition))
    cast(stage, worker_config(), [60] * 8).worker.run()
    stage.assert_complete()
    return stage


def remove(stage: Stage, folder: str) -> None:
    for name in stage.files.names(folder):
        stage.files.delete(name)


def test_a_backup_of_any_moment_is_gone_on_from_to_the_same_bits() -> None:
    stage = Stage(partitions=2)
    for partition in (0, 1):
        stage.send(partition, many(100, seed=partition))
    cast(stage, worker_config(), [50] * 4).worker.run()
    folders = [f"checkpoints/{TOPIC}/0", f"checkpoints/{TOPIC}/1", f"models/{TOPIC}"]
    backup = {name: stage.files.read(name) for folder in folders for name in stage.files.names(folder)}
    for partition in (0, 1):
        stage.send(partition, many(100, seed=partition + 2))
    cast(stage, worker_config(), [50] * 4).worker.run()
    for folder in folders:
        remove(stage, folder)
    for name, data in backup.items():
        stage.files.write(name, data)
    assert stage.models.versions()[-1] == 200
    cast(stage, worker_config(), [50] * 4).worker.run()
    stage.assert_complete()
    assert stage.models.versions()[-1] == 400


def test_models_that_are_not_behind_hold_publishing_back_until_they_are_removed() -> None:
    stage = learned_stage()
    before = stage.models.versions()
    remove(stage, f"checkpoints/{TOPIC}/1")
    behind = cast(stage, worker_config(), [60] * 8)
    behind.worker.run()
    assert behind.heard.of(ModelPublished) == []
    assert stage.models.versions() == before
    remove(stage, f"models/{TOPIC}")
    stage.send(0, many(1, seed=9))
    ahead = cast(stage, worker_config(), [60] * 8)
    ahead.worker.run()
    assert ahead.heard.of(ModelPublished)[-1].model.version == 401


def test_one_partition_is_learned_afresh_when_its_checkpoints_are_removed() -> None:
    stage = learned_stage()
    untouched = stage.files.names(f"checkpoints/{TOPIC}/0")
    remove(stage, f"checkpoints/{TOPIC}/1")
    remove(stage, f"models/{TOPIC}")
    again = cast(stage, worker_config(), [60] * 8)
    again.worker.run()
    stage.assert_complete()
    assert stage.files.names(f"checkpoints/{TOPIC}/0") == untouched
    assert sum(batch.messages for batch in again.heard.of(BatchLearned)) == 200
    assert stage.models.versions()[-1] == 400
