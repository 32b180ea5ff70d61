"""Learning can be proven again, and where a worker continues can be moved, never backwards."""

from pathlib import Path

import pytest

from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from tests.command_line import assert_one_line, printed, run, variables
from tests.guarantees.harness import BOTH_CLIENTS, D, Group, K, as_json, group, vectors
from tests.kafka_broker import Broker
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.broker


def words_of(members: Group, *words: object) -> list[object]:
    return [*words, "--topic", members.topic, "--bootstrap-servers", members.broker.bootstrap, "--store", members.store]


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_an_audit_finds_the_same_bytes_and_notices_others(
    broker: Broker, topic: str, tmp_path: Path, client: str
) -> None:
    broker.create_topic(topic)
    dead = broker.create_topic(f"{topic}-dead")
    with group(broker, topic, tmp_path, [client], dead_letter_topic=dead) as members:
        members.start()
        for seed in range(3):
            broker.produce(topic, 0, [*as_json(vectors(700, seed)), b"no vector"])
            members.wait_until_learned()
        members.workers[0].stop()
        audit = words_of(members, "audit")
        model = variables({"dimensions": D, "components": K})
        for start in ([], ["--from", 0]):
            output = printed(*audit, *start, **model)
            assert "2103" in output
            assert "the checkpoint has the same bytes" in output
        assert "2,103 records learned again" in output
        assert_one_line(run(*audit, "--to", 5, **model), "must be two checkpoints of partition 0, or 0", code=2)
        checkpoints = Checkpoints(DirectoryStore(members.store), topic)
        (newest,) = members.newest().values()
        wrong = newest.fold.reject(["no_value"])
        (members.store / f"checkpoints/{topic}/0/{2103:020d}.npz").unlink()
        checkpoints.save(type(newest)(topic, newest.topic_id, 0, wrong, newest.settings))
        assert_one_line(run(*audit, "--from", 0, **model), "the checkpoint has other bytes")


def test_a_reset_moves_where_workers_continue_but_never_back(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, 2)
    for partition in range(2):
        broker.produce(topic, partition, as_json(vectors(400, partition)))
    # A worker that is evicted before it commits does so at its next checkpoint, and is no active member.
    with group(broker, topic, tmp_path, BOTH_CLIENTS, session_timeout_s=PATIENCE_S) as members:
        reset = [*words_of(members, "reset"), "--group-id", topic, "--yes"]
        assert "partition 1 continues at offset 300" in printed(*reset, "--to", 300, "--partition", 1)
        members.start()
        members.wait_until_learned()
        members.wait(lambda: len(broker.committed(topic, topic)) == 2, "committed offsets")
        assert_one_line(run(*reset, "--to", "latest"), "has active members")
        members.workers[0].stop()
        assert {p: checkpoint.fold.stats.learned for p, checkpoint in members.newest().items()} == {0: 400, 1: 100}
        assert_one_line(run(*reset, "--to", "earliest"), "records would be learned twice", code=2)
        for partition in range(2):
            broker.produce(topic, partition, as_json(vectors(200, 7)))
        assert "continues at offset 600" in printed(*reset, "--to", "latest")
        broker.produce(topic, 0, as_json(vectors(50, 8)))
        members.start()
        members.wait_until_learned()
        counts = {p: (newest.fold.stats.learned, newest.fold.stats.gap) for p, newest in members.newest().items()}
    assert counts == {0: (450, 200), 1: (100, 200)}
