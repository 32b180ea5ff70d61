"""`streampca produce` against the real broker."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import assert_fatal, printed, run
from tests.kafka_broker import Broker

pytestmark = pytest.mark.broker


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.npy"
    np.save(path, np.random.default_rng(0).standard_normal((1001, 4)))
    return path


def test_produce_sends_every_row_once_and_evenly(broker: Broker, topic: str, vectors: Path) -> None:
    broker.create_topic(topic, 3)
    output = printed("produce", vectors, "--topic", topic, "--bootstrap-servers", broker.bootstrap)
    assert "sent 1,001 messages of 4 dimensions" in output
    rows: dict[int, list[list[float]]] = {p: [] for p in range(3)}
    for record in broker.read_all(topic):
        rows[record.partition].append(json.loads(record.value))
    for p, sent in rows.items():
        assert np.array_equal(sent, np.load(vectors)[p::3])


def test_produce_limits_the_rate(broker: Broker, topic: str, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.zeros((60, 2)))
    broker.create_topic(topic, 1)
    options = ("--topic", topic, "--bootstrap-servers", broker.bootstrap, "--rate", 30)
    begun = time.time()  # the first record's own time may be late, and the next ones then follow at once
    printed("produce", tmp_path / "v.npy", *options)
    timestamps = [record.timestamp for record in broker.read_all(topic)]
    assert len(timestamps) == 60
    assert timestamps[-1] - 1000 * begun > 1900


def test_produce_reports_missing_topics_and_bad_rows(broker: Broker, topic: str, tmp_path: Path, vectors: Path) -> None:
    options = ("--topic", topic, "--bootstrap-servers", broker.bootstrap)
    assert_fatal(run("produce", vectors, *options), f"there is no topic {topic}")
    broker.create_topic(topic, 1)
    (tmp_path / "v.csv").write_text("1,2\n3,4\n5\n")
    assert_fatal(run("produce", tmp_path / "v.csv", *options), "row 3: 1 numbers, but 2")
