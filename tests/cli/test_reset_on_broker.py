"""`streampca reset` against the real broker."""

from pathlib import Path

import pytest
from kafka import TopicPartition
from kafka.errors import CoordinatorNotAvailableError, NoError
from kafka.structs import OffsetAndMetadata

from streampca.stores.identity import StoreIdentity
from tests.cli.test_commands_on_broker import doctor
from tests.command_line import assert_one_line, printed, run
from tests.guarantees.harness import BOTH_CLIENTS
from tests.kafka_broker import Broker
from tests.waiting import wait_until

pytestmark = pytest.mark.broker


def commit(broker: Broker, group: str, offsets: dict[tuple[str, int], int], metadata: str = "") -> None:
    ended = f"{metadata}\0"  # as workers commit it: librdkafka reads on until there is a zero
    committed = {TopicPartition(*of): OffsetAndMetadata(offset, ended, -1) for of, offset in offsets.items()}

    def attempt() -> bool:
        try:
            errors = broker.admin.alter_group_offsets(group, committed)
        except CoordinatorNotAvailableError:  # a new broker creates the topic of all offsets first
            return False
        return all(error is NoError for error in errors.values())

    wait_until(attempt, 30, "the group's coordinator")


def test_reset_deletes_the_offsets_of_the_topic_alone(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, 2)
    broker.create_topic(f"{topic}-other")
    commit(broker, topic, {(topic, 0): 5, (topic, 1): 7, (f"{topic}-other", 0): 3})
    reset = ("reset", "--topic", topic, "--group-id", topic, "--bootstrap-servers", broker.bootstrap)
    assert run(*reset).returncode != 0  # nobody answers the question
    assert broker.committed(topic, topic) == {0: 5, 1: 7}
    assert "0: 5, 1: 7" in printed(*reset, "--yes")
    assert broker.committed(topic, topic) == {}
    assert broker.committed(topic, f"{topic}-other") == {0: 3}
    assert "no committed offsets" in printed(*reset, "--yes")


def test_doctor_reports_a_store_that_is_behind_the_group(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, 1)
    broker.produce(topic, 0, [b"[1, 2, 3, 4]"] * 9)
    commit(broker, topic, {(topic, 0): 5})
    code, lines = doctor(broker, topic, tmp_path, STREAMPCA_GROUP_ID=topic)
    assert code == 1
    assert lines["checkpoints"].startswith("✗ the consumer group has committed offset 5 of partition 0")


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_doctor_reports_another_store_than_the_groups(broker: Broker, topic: str, tmp_path: Path, client: str) -> None:
    broker.create_topic(topic, 2)
    other = StoreIdentity("ab" * 16, "s3://bucket/other", "worker-7")
    commit(broker, topic, {(topic, 1): 0}, other.as_metadata())
    environment = {"STREAMPCA_GROUP_ID": topic, "STREAMPCA_KAFKA_CLIENT": client}
    code, lines = doctor(broker, topic, tmp_path / "store", **environment)
    assert code == 1
    assert lines["checkpoints"].startswith("✗ the consumer group's worker of partition 1")
    for part in (str(other), other.id, str(tmp_path / "store"), "streampca reset"):
        assert part in lines["checkpoints"]
    assert f"{tmp_path / 'store'} can be written and read; it has no id yet" in lines["store"]
    assert not (tmp_path / "store" / "store.json").exists()


def test_reset_moves_to_no_place_that_is_not_there(broker: Broker, topic: str, tmp_path: Path) -> None:
    """A checkpoint beyond the end could not be undone."""
    broker.create_topic(topic, 2)
    broker.produce(topic, 0, [b"[1]"] * 9)
    broker.produce(topic, 1, [b"[1]"] * 4)
    reset = ("reset", "--topic", topic, "--group-id", topic, "--bootstrap-servers", broker.bootstrap, "--yes")
    reset = (*reset, "--store", tmp_path)
    assert_one_line(run(*reset, "--to", 5), "--to 5: partition 1 ends at 4; move one alone by --partition", code=2)
    assert_one_line(run(*reset, "--to", 10, "--partition", 0), "--to 10: partition 0 ends at 9", code=2)
    assert_one_line(run(*reset, "--to", 1, "--partition", 2), f"{topic} has no partition 2; the last is 1", code=2)
    assert_one_line(run(*reset, "--partition", 0), "--partition needs --to", code=2)  # it would delete all offsets
    assert not list(tmp_path.rglob("*.npz"))
    printed(*reset, "--to", 9, "--partition", 0)
    assert [path.name for path in tmp_path.rglob("*.npz")] == [f"{9:020d}.npz"]
