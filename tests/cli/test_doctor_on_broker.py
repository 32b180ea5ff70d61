"""`streampca doctor` against the real broker: topics, logins, rights, and what the groups have committed."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType
from kafka.structs import OffsetAndMetadata

from streampca.cli.doctor_topic import _explain_unreachable
from streampca.consumer_group.committed import format_store_metadata
from streampca.stores import identity
from streampca.stores.directory import DirectoryStore
from streampca.stores.identity import StoreIdentity
from tests.cli.test_produce import vectors as vectors
from tests.cli.test_reset import commit
from tests.command_line import doctor as run_doctor, printed, run
from tests.example_models import models_in, numbered
from tests.kafka_broker import PASSWORD, USER, Broker
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("client")


@pytest.fixture
def store(tmp_path: Path, topic: str) -> Path:
    """A store with a model of no partition, so that no checkpoint is missing."""
    models_in(tmp_path, topic).save(replace(numbered(7), positions={}))
    return tmp_path


def transform_doctor(topic: str, store: Path, **environment: str) -> tuple[int, dict[str, str]]:
    """Run `doctor` for transform; return its exit code and, by the name of the check, its line."""
    return run_doctor("--topic", topic, "--output-topic", f"{topic}-out", "--store", store, **environment)


def worker_doctor(broker: Broker, topic: str, store: Path, **environment: str) -> tuple[int, dict[str, str]]:
    """Run `doctor` for a worker; return its exit code and, by the name of the check, its line."""
    words = ("--topic", topic, "--dimensions", 4, "--components", 2, "--store", store)
    return run_doctor(*words, "--bootstrap-servers", broker.bootstrap, **environment)


def test_all_checks_pass_for_transform_alone_and_with_a_worker(broker: Broker, topic: str, store: Path) -> None:
    broker.create_topic(topic, 2)
    broker.create_topic(f"{topic}-out", 3)
    broker.produce(topic, 0, [json.dumps([0.0] * 5).encode()])
    environment = {"STREAMPCA_BOOTSTRAP_SERVERS": broker.bootstrap}
    code, alone = transform_doctor(topic, store, **environment)
    assert (code, {line[0] for line in alone.values()}) == (0, {"✓"}), alone
    assert alone["output topic"] == f"✓ {topic}-out has 3 partitions and may be written to"
    assert alone["transactions"].endswith(f"begin with streampca-transform-{topic}-")
    assert alone["transform group"] == f"✓ streampca-transform-{topic} has offsets of 0 of 2 partitions"
    assert alone["lag"] == f"✓ streampca-transform-{topic} is 1 records behind"
    assert "a vector of 5 numbers" in alone["newest record"]
    both = {**environment, "STREAMPCA_DIMENSIONS": "5", "STREAMPCA_COMPONENTS": "2"}
    code, lines = transform_doctor(topic, store, **both)
    assert (code, {line[0] for line in lines.values()}) == (0, {"✓"}), lines
    assert lines.keys() == alone.keys() | {"store", "consumer group", "checkpoints"}


def test_mistakes_are_found_before_transform_is_started(broker: Broker, topic: str, store: Path) -> None:
    broker.create_topic(topic, 2)
    environment = {"STREAMPCA_BOOTSTRAP_SERVERS": broker.bootstrap}
    code, lines = transform_doctor(topic, store, **environment)
    assert code == 1
    assert f"✗ there is no topic {topic}-out" in lines["output topic"]
    assert lines["transactions"].startswith("–")
    broker.create_topic(f"{topic}-out", 1)
    group = f"streampca-transform-{topic}"
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group)) as member:
        member.commit({TopicPartition(topic, 1): OffsetAndMetadata(0, "k=3 d=5\0", -1)})
    code, lines = transform_doctor(topic, store, **environment)
    assert code == 1
    assert f"✗ {topic}-out has 1 partitions, so partitions 1 of {topic} wait: add" in lines["output topic"]
    assert lines["transform group"].startswith("–")
    broker.add_partitions(f"{topic}-out", 2)
    code, lines = transform_doctor(topic, store, **environment)
    assert code == 1
    assert f"✗ {topic}-out holds outputs of 3 components of 5 dimensions" in lines["transform group"]


def test_doctor_compares_the_largest_records_of_the_topic_and_the_dead_letter_topic(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic, max_message_bytes=100_000)
    name = "size of dead letters"
    assert worker_doctor(broker, topic, tmp_path)[1][name] == "✓ no dead-letter topic"
    for size, expected in ((100_000 + 65_535, "warning: "), (100_000 + 65_536, "takes every record")):
        dead = broker.create_topic(f"{topic}-{size}", max_message_bytes=size)
        code, lines = worker_doctor(broker, topic, tmp_path, STREAMPCA_DEAD_LETTER_TOPIC=dead)
        assert code == 0, lines
        assert expected in lines[name]
        assert ("set max.message.bytes" in lines[name]) == (expected == "warning: ")


def test_a_compacted_output_topic_fails_where_outputs_have_no_key(broker: Broker, topic: str, store: Path) -> None:
    broker.create_topic(topic, cleanup_policy="compact")
    broker.create_topic(f"{topic}-out", cleanup_policy="compact,delete")
    environment = {"STREAMPCA_BOOTSTRAP_SERVERS": broker.bootstrap}
    value = json.dumps([0.0] * 5).encode()

    def check(**more: str) -> str:
        code, lines = transform_doctor(topic, store, **environment, **more)
        line = lines["keys of outputs"]
        assert (code != 0) == (line[0] == "✗"), lines
        assert "it is compacted" in lines["records"]
        return line

    assert check()[0] == "✓"  # nothing is known of the keys yet
    with closing(broker.producer()) as producer:
        producer.send(topic, value, key=b"a", partition=0).get(60)
    assert check()[0] == "✓"
    assert "Arrow outputs have no key" in check(STREAMPCA_OUTPUT_FORMAT="arrow")
    other = broker.create_topic(f"{topic}-keyless")
    broker.create_topic(f"{other}-out", cleanup_policy="compact")
    broker.produce(other, 0, [value])
    models_in(store, other).save(numbered(7))
    code, lines = transform_doctor(other, store, **environment)
    assert code == 1
    assert "the newest record of partition 0" in lines["keys of outputs"]


def test_doctor_names_missing_rights(broker: Broker, topic: str, store: Path) -> None:
    for name in (topic, f"{topic}-out", f"{topic}-dead"):
        broker.create_topic(name)
    secure = {
        "STREAMPCA_BOOTSTRAP_SERVERS": broker.sasl_bootstrap, "STREAMPCA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "STREAMPCA_SASL_MECHANISM": "PLAIN", "STREAMPCA_SASL_USERNAME": USER, "STREAMPCA_SASL_PASSWORD": PASSWORD,
        "STREAMPCA_DEAD_LETTER_TOPIC": f"{topic}-dead",
    }  # fmt: skip
    ids = f"streampca-transform-{topic}-"
    prefix = ResourcePattern(ResourceType.TRANSACTIONAL_ID, ids, ACLResourcePatternType.PREFIXED)
    dead = ResourcePattern(ResourceType.TOPIC, f"{topic}-dead")
    # Once a user has a right on a resource, nobody has another right on it.
    broker.admin.create_acls(
        [
            ACL(f"User:{USER}", "*", right, ACLPermissionType.ALLOW, resource)
            for right, resource in ((ACLOperation.DESCRIBE, prefix), (ACLOperation.READ, dead))
        ]
    )
    code, lines = transform_doctor(topic, store, **secure)
    assert code == 1
    assert {name for name, line in lines.items() if line[0] == "✗"} == {"dead-letter topic", "transactions"}
    assert f"does not allow this user: writing to topic {topic}-dead; grant it the right" in lines["dead-letter topic"]
    assert f"the rights Write and Describe for transactional ids that begin with {ids}" in lines["transactions"]


def test_open_transactions_are_a_failure_only_if_they_stand_still(broker: Broker, topic: str, store: Path) -> None:
    broker.create_topic(topic)
    environment = {"STREAMPCA_BOOTSTRAP_SERVERS": broker.bootstrap}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, json.dumps([0.0] * 5).encode())
    producer.flush(30)
    line = worker_doctor(broker, topic, store, **environment)[1]["open transactions"]
    assert line.startswith("✗ a transaction is open for 10 s and more in partitions [0]")
    producer.abort_transaction(30)
    assert worker_doctor(broker, topic, store, **environment)[1]["open transactions"] == "✓ none"


def test_an_advertised_address_that_cannot_be_reached_is_explained() -> None:
    assert _explain_unreachable("3", "kafka-3.invalid", 9092).startswith(
        "broker 3 advertises kafka-3.invalid:9092, which"
    )
    assert "refused" in _explain_unreachable("3", "127.0.0.1", free_ports(1)[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_doctor_says_when_records_carry_float32(broker: Broker, topic: str, tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((5, 4)).astype(dtype))
    broker.create_topic(topic, 1)
    options = ("--topic", topic, "--bootstrap-servers", broker.bootstrap, "--format", "npy")
    printed("produce", tmp_path / "v.npy", *options)
    for asked in ({}, {"STREAMPCA_DTYPE": "float32"}):
        _, lines = worker_doctor(broker, topic, tmp_path / "store", STREAMPCA_FORMAT="npy", **asked)
        assert ("dtype=float32" in lines["newest record"]) == (dtype == "float32" and not asked)


def test_doctor_finds_the_newest_vector_before_deletes_and_a_field_that_is_always_null(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    def check() -> str:
        return worker_doctor(broker, topic, tmp_path, STREAMPCA_FIELD="before")[1]["newest record"]

    broker.create_topic(topic, 1)
    broker.produce(topic, 0, [b'{"before": null, "after": [1, 2, 3, 4]}'] * 60)
    assert check().startswith("✓ none of the newest 60 records has a vector: all are tombstones or null at `field`")
    broker.produce(topic, 0, [b'{"before": [1, 2, 3, 4]}', *[None] * 30])
    assert check().startswith("✓ partition 0, offset 60 is a vector of 4 numbers")
    broker.produce(topic, 0, [None] * 100)
    assert check().startswith("✗ none of the newest 100 records has a vector")


def test_doctor_and_produce_connect_over_tls_with_a_login(
    broker: Broker, topic: str, tmp_path: Path, vectors: Path, client: str
) -> None:
    broker.create_topic(topic)
    broker.create_topic(f"{topic}-dead")
    secure = {
        "STREAMPCA_BOOTSTRAP_SERVERS": broker.tls_bootstrap, "STREAMPCA_SECURITY_PROTOCOL": "SASL_SSL",
        "STREAMPCA_SASL_MECHANISM": "SCRAM-SHA-512", "STREAMPCA_SASL_USERNAME": USER,
        "STREAMPCA_SASL_PASSWORD": PASSWORD, "STREAMPCA_SSL_CAFILE": str(broker.certificates.authority),
        "STREAMPCA_TOPIC": topic, "STREAMPCA_DIMENSIONS": "4", "STREAMPCA_COMPONENTS": "2",
        "STREAMPCA_STORE": str(tmp_path / "store"),
        "STREAMPCA_DEAD_LETTER_TOPIC": f"{topic}-dead",
    }  # fmt: skip
    printed("produce", vectors, **secure)
    code, lines = run_doctor(**secure)
    assert (code, {line[0] for line in lines.values()}) == (0, {"✓"}), lines
    assert lines["broker"] == f"✓ {broker.tls_bootstrap} answers {client} (SASL_SSL, logged in as {USER})"
    assert f"{topic} has 1 partitions; its id is " in lines["topic"]
    assert lines["records"] == f"✓ {topic} holds at most 1,001 records"
    assert lines["consumer group"].endswith("has offsets of 0 of 1 partitions")
    assert lines["lag"].endswith("is 1,001 records behind")
    assert "a vector of 4 numbers" in lines["newest record"]
    wrong = run("doctor", **secure | {"STREAMPCA_SSL_CAFILE": str(vectors)})
    assert wrong.returncode == 1
    assert "✗ broker: ssl_cafile" in wrong.stdout


def test_doctor_reports_failed_checks(broker: Broker, topic: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, lines = worker_doctor(broker, topic, tmp_path)
    assert (code, lines["broker"][0], lines["newest record"][0]) == (1, "✓", "–")
    assert f"✗ there is no topic {topic}" in lines["topic"]
    broker.create_topic(topic)
    broker.produce(topic, 0, [b"[1, 2]"])
    environment = {"STREAMPCA_DEAD_LETTER_TOPIC": f"{topic}-absent"}
    code, lines = worker_doctor(broker, topic, tmp_path / "file" / "store", **environment)
    assert (code, lines["broker"][0], lines["topic"][0]) == (1, "✓", "✓")
    assert {name for name, line in lines.items() if line[0] == "✗"} >= {"store", "dead-letter topic", "newest record"}
    assert "2 numbers, not 4" in lines["newest record"]


def test_doctor_reports_an_absent_broker_and_still_checks_the_store(tmp_path: Path) -> None:
    options = ("--topic", "t", "--dimensions", 4, "--components", 2, "--bootstrap-servers", "127.0.0.1:1")
    outcome = run("doctor", *options, STREAMPCA_STORE=str(tmp_path), timeout=40)
    assert outcome.returncode == 1
    assert "✗ broker: no broker answers at 127.0.0.1:1" in outcome.stdout
    assert "✓ store" in outcome.stdout
    assert outcome.stdout.endswith("\n1 check failed\n")


def test_doctor_reports_checkpoints_that_are_behind_the_group(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, 1)
    broker.produce(topic, 0, [b"[1, 2, 3, 4]"] * 9)
    commit(broker, topic, {(topic, 0): 5})  # as another tool does, whose offsets do not name a store
    code, lines = worker_doctor(broker, topic, tmp_path, STREAMPCA_GROUP_ID=topic)
    assert (code, lines["checkpoints"][0]) == (0, "✓")
    commit(broker, topic, {(topic, 0): 5}, format_store_metadata(identity.ensure(DirectoryStore(tmp_path))))
    code, lines = worker_doctor(broker, topic, tmp_path, STREAMPCA_GROUP_ID=topic)
    assert code == 1
    assert lines["checkpoints"].startswith("✗ the consumer group has committed offset 5 of partition 0")


def test_doctor_reports_another_store_than_the_groups(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, 2)
    other = StoreIdentity("ab" * 16, "s3://bucket/other", "worker-7")
    commit(broker, topic, {(topic, 1): 0}, format_store_metadata(other))
    environment = {"STREAMPCA_GROUP_ID": topic}
    code, lines = worker_doctor(broker, topic, tmp_path / "store", **environment)
    assert code == 1
    assert lines["checkpoints"].startswith("✗ the consumer group's worker of partition 1")
    for part in (str(other), other.id, str(tmp_path / "store"), "streampca reset"):
        assert part in lines["checkpoints"]
    assert f"{tmp_path / 'store'} can be written and read; its id is none yet" in lines["store"]
    assert not (tmp_path / "store" / "store.json").exists()
