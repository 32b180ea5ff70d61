"""Brokers that begin to report topic ids, as after an upgrade from Kafka 2.7: the topic is still the same."""

import pytest

from streampca.errors import TopicReplacedError
from streampca.sources.memory import Do
from tests.fold.streams import vectors
from tests.worker.environment import Environment
from tests.worker.harness import make_worker


@pytest.fixture
def env() -> Environment:
    env = Environment(2)
    for partition in (0, 1):
        env.send(partition, vectors(300, seed=partition))
    env.topic.id = ""
    return env


def report(env: Environment, topic_id: str) -> Do:
    return Do(lambda: setattr(env.topic, "id", topic_id))


def test_ids_that_appear_while_it_runs_are_no_replacement(env: Environment) -> None:
    worker = make_worker(env, script=[50, report(env, "id-1"), 50, report(env, ""), 50, report(env, "id-1"), 50])
    worker.run()
    assert {env.checkpoints.newest(p).topic_id for p in (0, 1)} == {"id-1"}  # type: ignore[union-attr]
    newest = env.models.newest()
    assert newest
    assert (newest.version, newest.topic_id) == (600, "id-1")


def test_ids_that_appear_between_runs_are_no_replacement(env: Environment) -> None:
    make_worker(env).run()
    env.topic.id = "id-1"
    env.send(1, vectors(50, seed=9))
    make_worker(env).run()
    newest = env.models.newest()
    assert newest
    assert (newest.version, newest.topic_id) == (650, "id-1")


def test_another_id_after_the_first_is_a_replacement(env: Environment) -> None:
    worker = make_worker(env, script=[50, report(env, "id-1"), 50, report(env, "id-2"), 50])
    with pytest.raises(TopicReplacedError):
        worker.run()
