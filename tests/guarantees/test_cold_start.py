"""The first start on a machine: a real worker whose cache of compiled code is empty, on the real broker."""

from pathlib import Path

import pytest

from tests.guarantees.harness import SHAPE, as_json, group, vectors
from tests.guarantees.test_exactly_once import assert_same_bits
from tests.kafka_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

ROOM = SHAPE.learning.start + SHAPE.learning.block - 1  # messages of a partition that are learned without
N = 12_000  # more than what is handed over at once, so that the client holds back the rest of a held partition


@pytest.mark.parametrize(("client", "stops"), [("kafka-python", False), ("confluent", True)])
def test_it_learns_while_it_compiles_and_all_else_then(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, stops: bool
) -> None:
    """Or it is stopped meanwhile: it saves at once, and the next worker goes on, with the code that it has left."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    broker.create_topic(topic, 2)
    for partition in range(2):
        broker.produce(topic, partition, as_json(vectors(N, seed=partition)))
    with group(broker, topic, tmp_path / "cold", [client]) as members:
        cold = members.start()
        members.wait(lambda: members.positions() == {0: ROOM, 1: ROOM}, "what is learned without")
        assert cold.count("compiling what learns, which is not in the cache yet") == 1
        assert cold.count("compiled") == cold.count("model published") == 0
        if stops:
            cold.process.terminate()
            assert cold.wait(120) == 0
            assert members.positions() == {0: ROOM, 1: ROOM}
            told = [line["event"] for line in cold.events()]
            order = [
                "stopping",
                "waiting for the compilation, which cannot be broken off",
                "compiled",
                "model published",
            ]
            assert [event for event in told if event in order] == order
            members.start()
        members.wait_until_learned(120)
        assert [worker.count("compiled") for worker in members.workers] == [1, 0][: len(members.workers)]
        assert not any("Traceback" in worker.text() for worker in members.workers)
        assert_same_bits(members, tmp_path / "calm")
