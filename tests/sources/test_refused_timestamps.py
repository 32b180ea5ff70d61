"""Dead letters whose timestamps their topic refuses are sent again without them, and nothing else is lost with them."""

import time
from pathlib import Path

import pytest

from streampca.errors import SourceError
from streampca.sources.kafka_python.dead_letters import KafkaPythonDeadLetters
from streampca.stream.record import PlainRecord
from tests.guarantees.harness import as_json, group, vectors
from tests.kafka_broker import Broker
from tests.sources.backends import OnKafka

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

HOUR_MS = 3_600_000


@pytest.mark.parametrize("refused", [{3}, {0, 3, 4, 19}, set(range(20))])
def test_refused_timestamps_become_headers(broker: Broker, topic: str, refused: set[int]) -> None:
    log = OnKafka(broker, topic, 1)
    dead = broker.create_topic(f"{topic}-dead", message_timestamp_after_max_ms=HOUR_MS)
    letters = KafkaPythonDeadLetters(log.settings(dead_letter_topic=dead))
    now = int(time.time() * 1000)
    times = [now + 10 * HOUR_MS + i if i in refused else now - 1000 + i for i in range(20)]
    for offset, timestamp in enumerate(times):
        letters.send(0, PlainRecord(offset, b"x", timestamp, b"key", [("a", b"1")]), "undecodable", "no")
    letters.flush(20)
    letters.flush(0)
    letters.close()
    found = {int(dict(r.headers)["__connect.errors.offset"]): r for r in broker.read_all(dead)}
    assert len(broker.read_all(dead)) == 20
    assert sorted(found) == list(range(20))
    for offset, record in found.items():
        headers = dict(record.headers)
        assert (record.value, record.key, headers["a"]) == (b"x", b"key", b"1")
        if offset in refused:
            assert headers["__connect.errors.timestamp"] == b"%d" % times[offset]
            assert abs(record.timestamp - now) < HOUR_MS
        else:
            assert "__connect.errors.timestamp" not in headers
            assert record.timestamp == times[offset]


def test_a_letter_that_is_refused_for_another_reason_is_an_error(broker: Broker, topic: str) -> None:
    """A compacted topic accepts no record without a key."""
    log = OnKafka(broker, topic, 1)
    dead = broker.create_topic(f"{topic}-dead", cleanup_policy="compact")
    letters = KafkaPythonDeadLetters(log.settings(dead_letter_topic=dead))
    letters.send(0, PlainRecord(0, b"x", 1), "undecodable", "no")
    letters.send(0, PlainRecord(1, b"x", 1), "undecodable", "no")
    for _ in range(2):  # it stays unacknowledged
        with pytest.raises(SourceError):
            letters.flush(10)
    letters.close()


def test_a_worker_saves_what_it_learned_before_and_after(broker: Broker, topic: str, tmp_path: Path) -> None:
    dead = broker.create_topic(f"{topic}-dead", 1, message_timestamp_after_max_ms=HOUR_MS)
    broker.create_topic(topic, 1, message_timestamp_after_max_ms=2**62)
    good = as_json(vectors(600, seed=5))
    later = int(time.time() * 1000) + 5 * HOUR_MS
    broker.produce(topic, 0, good[:300])
    broker.produce(topic, 0, [b"poison"], later)
    broker.produce(topic, 0, good[300:])
    with group(broker, topic, tmp_path, dead_letter_topic=dead) as members:
        members.start()
        members.wait_until_learned()
        stats = members.newest()[0].fold.stats
    assert (stats.learned, dict(stats.rejected)) == (600, {"undecodable": 1})
    [letter] = broker.read_all(dead)
    assert dict(letter.headers)["__connect.errors.timestamp"] == b"%d" % later
