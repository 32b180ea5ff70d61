"""`streampca doctor` for transform against the real broker: topics, rights, and what the group has committed."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType
from kafka.structs import OffsetAndMetadata

from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.command_line import doctor as run_doctor
from tests.example_models import numbered
from tests.guarantees.harness import BOTH_CLIENTS
from tests.kafka_broker import PASSWORD, USER, Broker

pytestmark = [pytest.mark.broker, pytest.mark.parametrize("client", BOTH_CLIENTS)]


@pytest.fixture
def store(tmp_path: Path, topic: str) -> Path:
    """A store with a model."""
    Models(DirectoryStore(tmp_path), topic).save(numbered(7))
    return tmp_path


def doctor(topic: str, store: Path, **environment: str) -> tuple[int, dict[str, str]]:
    """Run `doctor` for transform; return its exit code and, by the name of the check, its line."""
    return run_doctor("--topic", topic, "--output-topic", f"{topic}-out", "--store", store, **environment)


def test_both_roles_pass(broker: Broker, topic: str, store: Path, client: str) -> None:
    broker.create_topic(topic, 2)
    broker.create_topic(f"{topic}-out", 3)
    broker.produce(topic, 0, [json.dumps([0.0] * 5).encode()])
    environment = {"STREAMPCA_BOOTSTRAP_SERVERS": broker.bootstrap, "STREAMPCA_KAFKA_CLIENT": client}
    code, alone = doctor(topic, store, **environment)
    assert (code, {line[0] for line in alone.values()}) == (0, {"✓"}), alone
    assert alone["output topic"] == f"✓ {topic}-out has 3 partitions and may be written to"
    assert alone["transactions"].endswith(f"begin with streampca-transform-{topic}-")
    assert alone["transform group"] == f"✓ streampca-transform-{topic} has offsets of 0 of 2 partitions, 1 behind"
    assert "a vector of 5 numbers" in alone["newest record"]
    both = {**environment, "STREAMPCA_DIMENSIONS": "5", "STREAMPCA_COMPONENTS": "2"}
    code, lines = doctor(topic, store, **both)
    assert (code, {line[0] for line in lines.values()}) == (0, {"✓"}), lines
    assert lines.keys() == alone.keys() | {"store", "consumer group", "checkpoints"}


def test_mistakes_are_found_before_transform_is_started(broker: Broker, topic: str, store: Path, client: str) -> None:
    broker.create_topic(topic, 2)
    environment = {"STREAMPCA_BOOTSTRAP_SERVERS": broker.bootstrap, "STREAMPCA_KAFKA_CLIENT": client}
    code, lines = doctor(topic, store, **environment)
    assert code == 1
    assert f"✗ there is no topic {topic}-out" in lines["output topic"]
    assert lines["transactions"].startswith("–")
    broker.create_topic(f"{topic}-out", 1)
    group = f"streampca-transform-{topic}"
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group)) as member:
        member.commit({TopicPartition(topic, 1): OffsetAndMetadata(0, "k=3 d=5\0", -1)})
    code, lines = doctor(topic, store, **environment)
    assert code == 1
    assert f"✗ {topic}-out has 1 partitions, fewer than {topic}: add some" in lines["output topic"]
    assert f"✗ {topic}-out holds outputs of 3 components of 5 dimensions" in lines["transform group"]


def test_missing_rights_are_named(broker: Broker, topic: str, store: Path, client: str) -> None:
    for name in (topic, f"{topic}-out", f"{topic}-dead"):
        broker.create_topic(name)
    secure = {
        "STREAMPCA_BOOTSTRAP_SERVERS": broker.sasl_bootstrap, "STREAMPCA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "STREAMPCA_SASL_MECHANISM": "PLAIN", "STREAMPCA_SASL_USERNAME": USER, "STREAMPCA_SASL_PASSWORD": PASSWORD,
        "STREAMPCA_KAFKA_CLIENT": client, "STREAMPCA_DEAD_LETTER_TOPIC": f"{topic}-dead",
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
    code, lines = doctor(topic, store, **secure)
    assert code == 1
    assert {name for name, line in lines.items() if line[0] == "✗"} == {"dead-letter topic", "transactions"}
    assert f"does not allow this user: writing to topic {topic}-dead; grant it the right" in lines["dead-letter topic"]
    assert f"the rights Write and Describe for transactional ids that begin with {ids}" in lines["transactions"]
