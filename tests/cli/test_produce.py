"""`streampca produce` against the real broker."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import assert_one_line, printed, run
from tests.kafka_broker import Broker

pytestmark = pytest.mark.usefixtures("client")


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
    assert_one_line(run("produce", vectors, *options), f"there is no topic {topic}")
    broker.create_topic(topic, 1)
    (tmp_path / "v.csv").write_text("1,2\n3,4\n5\n")
    refused = run("produce", tmp_path / "v.csv", *options)
    note, error = refused.stderr.splitlines()
    assert (refused.returncode, note.endswith("the first line is a row")) == (1, True)
    assert "row 3: 1 cells, not 2" in error


def test_numbers_are_sent_by_the_names_of_the_setting(broker: Broker, topic: str, tmp_path: Path) -> None:
    """`--field` says where the file has them, and its columns may lie in another order."""
    (tmp_path / "v.csv").write_text("id;hum;temp\n7;48;21.5\n")
    np.save(tmp_path / "v.npy", np.ones((1, 2)))
    broker.create_topic(topic, 1)
    options = ("--topic", topic, "--bootstrap-servers", broker.bootstrap)
    named = {"STREAMPCA_FIELD": "at.temp,at.hum"}
    (tmp_path / "whole.csv").write_text("hum,temp\n48,21.5\n50,22\n")
    assert "its columns temp, hum" in run("produce", tmp_path / "whole.csv", *options, **named).stderr
    assert "read in their order" in run("produce", tmp_path / "v.npy", *options, **named).stderr
    refused = run("produce", tmp_path / "v.csv", *options, "--field", "hum,id", **named)
    assert_one_line(refused, "has the columns hum, id, but the dimensions are temp, hum")
    sent = [json.loads(record.value)["at"] for record in broker.read_all(topic)]
    assert sent == [{"temp": 21.5, "hum": 48}, {"temp": 22, "hum": 50}, {"temp": 1, "hum": 1}]
