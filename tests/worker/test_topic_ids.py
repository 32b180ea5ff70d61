"""Brokers that begin to report topic ids, as after an upgrade from Kafka 2.7: the topic is still the same."""

import pytest

from streampca.errors import TopicReplacedError
from streampca.sources.memory import Do
from tests.worker.harness import Stage, cast, many


@pytest.fixture
def stage() -> Stage:
    stage = Stage(2)
    for partition in (0, 1):
        stage.send(partition, many(300, seed=partition))
    stage.topic.id = ""
    return stage


def report(stage: Stage, topic_id: str) -> Do:
    return Do(lambda: setattr(stage.topic, "id", topic_id))


def test_ids_that_appear_while_it_runs_are_no_replacement(stage: Stage) -> None:
    actor = cast(stage, script=[50, report(stage, "id-1"), 50, report(stage, ""), 50, report(stage, "id-1"), 50])
    actor.run()
    assert {stage.checkpoints.newest(p).topic_id for p in (0, 1)} == {"id-1"}  # type: ignore[union-attr]
    newest = stage.models.newest()
    assert newest
    assert (newest.version, newest.topic_id) == (600, "id-1")


def test_ids_that_appear_between_runs_are_no_replacement(stage: Stage) -> None:
    cast(stage).run()
    stage.topic.id = "id-1"
    stage.send(1, many(50, seed=9))
    cast(stage).run()
    newest = stage.models.newest()
    assert newest
    assert (newest.version, newest.topic_id) == (650, "id-1")


def test_another_id_after_the_first_is_a_replacement(stage: Stage) -> None:
    actor = cast(stage, script=[50, report(stage, "id-1"), 50, report(stage, "id-2"), 50])
    with pytest.raises(TopicReplacedError):
        actor.run()
