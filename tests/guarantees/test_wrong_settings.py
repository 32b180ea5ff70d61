"""A worker that is started with wrong settings rejects no stream: it ends, and learns all of it once they are right."""

from pathlib import Path

import pytest

from tests.guarantees.harness import BOTH_CLIENTS, D, as_json, group, vectors
from tests.kafka_broker import Broker

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
        members.start()
        members.wait_until_learned()
        members.assert_same_bits()
    assert broker.end_offsets(dead) == {0: 0}
