"""A worker that is started with wrong settings ends: it rejects no stream, and takes no partition from the others."""

import shutil
from pathlib import Path

import pytest

from tests.guarantees.harness import BOTH_CLIENTS, D, as_json, group, vectors
from tests.kafka_broker import Broker
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


def test_with_the_right_dimensions_everything_is_learned_after_all(broker: Broker, topic: str, tmp_path: Path) -> None:
    """Both clients have their turn, as two restarts of a supervisor; the third partition is empty at first."""
    dead = broker.create_topic(f"{topic}-dead")
    broker.create_topic(topic, 3)
    for partition in range(2):
        broker.produce(topic, partition, as_json(vectors(1500, seed=partition)))
    with group(broker, topic, tmp_path, BOTH_CLIENTS, dead_letter_topic=dead) as members:
        for _ in BOTH_CLIENTS:
            worker = members.start(dimensions=D + 1)
            assert worker.wait() == 3
            assert f"{D} numbers, not {D + 1}" in worker.text()
        assert broker.end_offsets(dead) == {0: 0}
        assert members.positions() == {}
        broker.produce(topic, 2, as_json(vectors(300, seed=2)))
        members.learn()
        members.assert_same_bits()
    assert broker.end_offsets(dead) == {0: 0}


@pytest.mark.parametrize("clients", [BOTH_CLIENTS, BOTH_CLIENTS[::-1]], ids=["kafka-python first", "confluent first"])
def test_a_worker_with_another_store_takes_no_partition(
    broker: Broker, topic: str, tmp_path: Path, clients: tuple[str, str]
) -> None:
    broker.create_topic(topic, 4)
    # A busy machine must not evict the first worker: no partition may move.
    with group(broker, topic, tmp_path, clients, session_timeout_s=PATIENCE_S) as members:
        first = members.start()
        broker.produce(topic, 2, as_json(vectors(300, seed=1)))
        members.wait_until_learned()
        members.wait(lambda: broker.committed(topic, topic).get(2) == 300, "a commit")
        second = members.start(store=tmp_path / "other")
        assert second.wait() == 2, second.text()[-2000:]
        (refusal,) = (event["error"] for event in second.events() if event["event"] == "fatal error")
        for part in (f"of {topic} saved to", str(members.store), str(tmp_path / "other"), "streampca reset"):
            assert part in refusal
        assert second.events()[0]["store"] == str(tmp_path / "other")
        assert second.count("partitions assigned") == 0
        broker.produce(topic, 1, as_json(vectors(300, seed=2)))
        members.wait_until_learned()
        assigned = [event["read_from"] for event in first.events() if event["event"] == "partitions assigned"]
        assert sorted(partition for positions in assigned for partition in positions) == ["0", "1", "2", "3"]  # once
        assert first.count("partitions revoked") == 0
        first.stop()
        shutil.copytree(members.store, tmp_path / "moved")
        heir = members.start(store=tmp_path / "moved", kafka_client=clients[1])
        members.wait(lambda: heir.count("partitions assigned"), "an assignment from the copy")
        assert heir.stop() == 0
