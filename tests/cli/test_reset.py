"""`streampca reset` against the real broker: where a worker continues can be moved, never backwards."""

from pathlib import Path

from kafka import TopicPartition
from kafka.errors import CoordinatorNotAvailableError, NoError
from kafka.structs import OffsetAndMetadata

from tests.command_line import assert_one_line, printed, run
from tests.guarantees.harness import BOTH_CLIENTS, as_json, group, vectors
from tests.kafka_broker import Broker
from tests.waiting import PATIENCE_S, wait_until


def commit(broker: Broker, group: str, offsets: dict[tuple[str, int], int], metadata: str = "") -> None:
    ended = f"{metadata}\0"  # as workers commit it: librdkafka reads on until there is a zero
    committed = {TopicPartition(*of): OffsetAndMetadata(offset, ended, -1) for of, offset in offsets.items()}

    def attempt() -> bool:
        try:
            errors = broker.admin.alter_group_offsets(group, committed)
        except CoordinatorNotAvailableError:  # a new broker creates the topic of all offsets first
            return False
        return all(error is NoError for error in errors.values())

    wait_until(attempt, what="the group's coordinator")


def test_reset_deletes_the_offsets_of_the_topic_alone(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, 2)
    broker.create_topic(f"{topic}-other")
    commit(broker, topic, {(topic, 0): 5, (topic, 1): 7, (f"{topic}-other", 0): 3})
    reset = ("reset", "--topic", topic, "--group-id", topic, "--bootstrap-servers", broker.bootstrap)
    assert run(*reset).returncode != 0  # nobody answers the question
    assert broker.committed(topic, topic) == {0: 5, 1: 7}
    assert "0: 5, 1: 7" in printed(*reset, "--yes")
    assert broker.committed(topic, topic) == {}
    assert broker.committed(topic, f"{topic}-other") == {0: 3}
    assert "no committed offsets" in printed(*reset, "--yes")


def test_a_reset_moves_the_position_of_workers_but_never_back(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, 2)
    for partition in range(2):
        broker.produce(topic, partition, as_json(vectors(400, partition)))
    # A worker that is evicted before it commits does so at its next checkpoint, and is no active member.
    with group(broker, topic, tmp_path, BOTH_CLIENTS, session_timeout_s=PATIENCE_S) as members:
        reset = ["reset", "--topic", topic, "--group-id", topic, "--bootstrap-servers", broker.bootstrap, "--yes"]
        reset += ["--store", str(members.store)]
        assert "partition 1 continues at offset 300" in printed(*reset, "--to", 300, "--partition", 1)
        members.learn()
        members.wait(lambda: len(broker.committed(topic, topic)) == 2, "committed offsets")
        assert_one_line(run(*reset, "--to", "latest"), "has active members")
        members.workers[0].stop()
        assert {p: checkpoint.fold.stats.learned for p, checkpoint in members.newest().items()} == {0: 400, 1: 100}
        assert_one_line(run(*reset, "--to", "earliest"), "records would be learned twice", code=2)
        for partition in range(2):
            broker.produce(topic, partition, as_json(vectors(200, 7)))
        assert "continues at offset 600" in printed(*reset, "--to", "latest")
        broker.produce(topic, 0, as_json(vectors(50, 8)))
        members.learn()
        counts = {p: (newest.fold.stats.learned, newest.fold.stats.gap) for p, newest in members.newest().items()}
    assert counts == {0: (450, 200), 1: (100, 200)}
