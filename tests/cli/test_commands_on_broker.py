"""`produce` and `doctor` against the real broker."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import assert_fatal, printed, run
from tests.command_line import doctor as run_doctor
from tests.kafka_broker import PASSWORD, USER, Broker

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


def doctor(broker: Broker, topic: str, store: Path, **environment: str) -> tuple[int, dict[str, str]]:
    """Run `doctor` for a worker; return its exit code and, by the name of the check, its line."""
    words = ("--topic", topic, "--dimensions", 4, "--components", 2, "--store", store)
    return run_doctor(*words, "--bootstrap-servers", broker.bootstrap, **environment)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_doctor_says_when_records_carry_float32(broker: Broker, topic: str, tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((5, 4)).astype(dtype))
    broker.create_topic(topic, 1)
    options = ("--topic", topic, "--bootstrap-servers", broker.bootstrap, "--format", "npy")
    printed("produce", tmp_path / "v.npy", *options)
    for asked in ({}, {"STREAMPCA_DTYPE": "float32"}):
        _, lines = doctor(broker, topic, tmp_path / "store", STREAMPCA_FORMAT="npy", **asked)
        assert ("dtype=float32" in lines["newest record"]) == (dtype == "float32" and not asked)


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_doctor_and_produce_over_tls_with_a_login(
    broker: Broker, topic: str, tmp_path: Path, vectors: Path, client: str
) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}-dead")
    secure = {
        "STREAMPCA_BOOTSTRAP_SERVERS": broker.tls_bootstrap, "STREAMPCA_SECURITY_PROTOCOL": "SASL_SSL",
        "STREAMPCA_SASL_MECHANISM": "SCRAM-SHA-512", "STREAMPCA_SASL_USERNAME": USER,
        "STREAMPCA_SASL_PASSWORD": PASSWORD, "STREAMPCA_SSL_CAFILE": str(broker.certificates.authority),
        "STREAMPCA_TOPIC": topic, "STREAMPCA_DIMENSIONS": "4", "STREAMPCA_COMPONENTS": "2",
        "STREAMPCA_STORE": str(tmp_path / "store"), "STREAMPCA_KAFKA_CLIENT": client,
        "STREAMPCA_DEAD_LETTER_TOPIC": f"{topic}-dead",
    }  # fmt: skip
    printed("produce", vectors, **secure)
    code, lines = run_doctor(**secure)
    assert (code, {line[0] for line in lines.values()}) == (0, {"✓"}), lines
    assert lines["broker"] == f"✓ {broker.tls_bootstrap} answers {client} (SASL_SSL, logged in as {USER})"
    assert "1 partitions and 1,001 records" in lines["topic"]
    assert "0 of 1 partitions, 1,001 behind" in lines["consumer group"]
    assert "a vector of 4 numbers" in lines["newest record"]
    wrong = run("doctor", **secure | {"STREAMPCA_SSL_CAFILE": str(vectors)})
    assert wrong.returncode == 1
    assert "✗ broker: ssl_cafile" in wrong.stdout


def test_doctor_reports_failed_checks(broker: Broker, topic: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, lines = doctor(broker, topic, tmp_path)
    assert (code, lines["broker"][0], lines["newest record"][0]) == (1, "✓", "–")
    assert f"✗ there is no topic {topic}" in lines["topic"]
    broker.create_topic(topic)
    broker.produce(topic, 0, [b"[1, 2]"])
    environment = {"STREAMPCA_DEAD_LETTER_TOPIC": f"{topic}-absent"}
    code, lines = doctor(broker, topic, tmp_path / "file" / "store", **environment)
    assert (code, lines["broker"][0], lines["topic"][0]) == (1, "✓", "✓")
    assert {name for name, line in lines.items() if line[0] == "✗"} >= {"store", "dead-letter topic", "newest record"}
    assert "2 numbers, not 4" in lines["newest record"]


def test_doctor_of_an_absent_broker(tmp_path: Path) -> None:
    options = ("--topic", "t", "--dimensions", 4, "--components", 2, "--bootstrap-servers", "127.0.0.1:1")
    outcome = run("doctor", *options, STREAMPCA_STORE=str(tmp_path), timeout=40)
    assert outcome.returncode == 1
    assert "✗ broker: no broker answers at 127.0.0.1:1" in outcome.stdout
    assert "✓ store" in outcome.stdout
    assert outcome.stdout.endswith("\n1 check failed\n")
