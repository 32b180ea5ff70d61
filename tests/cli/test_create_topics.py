"""`streampca create-topics` against the real broker."""

from pathlib import Path

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from tests.cli.test_doctor_on_broker import worker_doctor
from tests.command_line import assert_one_line, printed, run
from tests.kafka_broker import Broker

pytestmark = pytest.mark.usefixtures("client")


def count_partitions(broker: Broker, *names: str) -> dict[str, int]:
    """Return the number of partitions of each of these topics that exists."""
    described = broker.admin.describe_topics(list(names))
    return {topic["name"]: len(topic["partitions"]) for topic in described if not topic["error_code"]}


def test_create_topics_creates_what_a_worker_needs_and_can_be_repeated(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    dead, output = f"{topic}-dead", f"{topic}-output"
    words = ("create-topics", "--topic", topic, "--partitions", "3", "--bootstrap-servers", broker.bootstrap)
    set_for_all = {"STREAMPCA_DEAD_LETTER_TOPIC": dead, "STREAMPCA_OUTPUT_TOPIC": output}
    first, second = run(*words, **set_for_all), run(*words, **set_for_all)
    for outcome, action in ((first, "created"), (second, "exists")):
        assert (outcome.returncode, outcome.stderr) == (0, "")
        lines = [f"{topic}: {action}, partitions: 3", f"{dead}: {action}, partitions: 1"]
        assert outcome.stdout.splitlines() == [*lines, f"{output}: {action}, partitions: 3"]
    assert count_partitions(broker, topic, dead, output) == {topic: 3, dead: 1, output: 3}
    code, doctor_lines = worker_doctor(broker, topic, tmp_path, STREAMPCA_DEAD_LETTER_TOPIC=dead)
    assert code == 0, doctor_lines


def test_the_broker_decides_the_partitions_and_an_existing_topic_keeps_them(broker: Broker, topic: str) -> None:
    words = ("create-topics", "--topic", topic, "--bootstrap-servers", broker.bootstrap)
    for more, text in (([], "created, partitions: 1"), (["--partitions", 5], "exists, partitions: 1, not 5; it stays")):
        outcome = run(*words, *more)
        assert (outcome.returncode, outcome.stdout.startswith(f"{topic}: {text}")) == (0, True), outcome
        assert count_partitions(broker, topic, f"{topic}-dead") == {topic: 1}


def test_dead_letters_may_be_larger_than_their_records(broker: Broker, topic: str) -> None:
    broker.admin.create_topics({topic: {"num_partitions": 1, "configs": {"max.message.bytes": "3000000"}}})
    words = ("--topic", topic, "--dead-letter-topic", f"{topic}-dead", "--bootstrap-servers", broker.bootstrap)
    printed("create-topics", *words)
    dead = ConfigResource(ConfigResourceType.TOPIC, f"{topic}-dead")
    config = broker.admin.describe_configs([dead])["topic"][f"{topic}-dead"]
    assert int(config["max.message.bytes"]["value"]) > 3_000_000


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_dead_letter_topic_is_refused(broker: Broker, topic: str, policy: str) -> None:
    broker.create_topic(f"{topic}-dead", cleanup_policy=policy)
    words = ("--topic", topic, "--dead-letter-topic", f"{topic}-dead", "--bootstrap-servers", broker.bootstrap)
    assert_one_line(run("create-topics", *words), f"dead-letter topic {topic}-dead")


def test_a_new_dead_letter_topic_is_not_compacted_whatever_the_brokers_default(broker: Broker, topic: str) -> None:
    words = ("--topic", topic, "--dead-letter-topic", f"{topic}-dead", "--bootstrap-servers", broker.bootstrap)
    printed("create-topics", *words)
    dead = ConfigResource(ConfigResourceType.TOPIC, f"{topic}-dead")
    policy = broker.admin.describe_configs([dead])["topic"][f"{topic}-dead"]["cleanup.policy"]
    assert policy["value"] == "delete"
    assert "TOPIC" in str(policy["config_source"]).upper()  # set for the topic, so no default counts


def test_a_refusal_of_the_broker_is_a_one_line_error(broker: Broker, topic: str) -> None:
    words = ("create-topics", "--topic", topic, "--bootstrap-servers", broker.bootstrap)
    assert_one_line(run(*words, "--replication-factor", 3), f"topic {topic} cannot be created: ")
    assert count_partitions(broker, topic) == {}
