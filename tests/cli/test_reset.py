"""`streampca reset` against the real broker: where a worker continues can be moved, never backwards."""

import shutil
import subprocess
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import TopicPartition
from kafka.errors import CoordinatorNotAvailableError, NoError
from kafka.structs import OffsetAndMetadata

from streampca.cli.reset import read_newest_checkpoints
from streampca.errors import DamagedFileError
from streampca.fold.checkpoint import Checkpoint, encode
from streampca.formats.record import LastRecord
from streampca.settings.kafka import KafkaSettings
from streampca.sources.kafka_python.connection import KafkaPythonAdmin
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.process_status import ProcessStatus, ProcessStatuses
from tests.command_line import assert_one_line, printed, run, variables
from tests.errors import refusal
from tests.fold.streams import make_checkpoint, make_fold
from tests.guarantees.harness import BOTH_CLIENTS, CONFIG, D, K, as_json, group, vectors
from tests.kafka_broker import Broker
from tests.waiting import PATIENCE_S, wait_until


def commit(broker: Broker, group: str, offsets: dict[tuple[str, int], int], metadata: str = "") -> None:
    """Commit the offsets of these topics and partitions for a group, which has no members."""
    with_zero = f"{metadata}\0"  # as workers commit it: librdkafka reads on until there is a zero
    committed = {}
    for (topic, partition), offset in offsets.items():
        committed[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, with_zero, -1)

    def attempt() -> bool:
        try:
            errors = broker.admin.alter_group_offsets(group, committed)
        except CoordinatorNotAvailableError:  # a new broker creates the topic of all offsets first
            return False
        return all(error is NoError for error in errors.values())

    wait_until(attempt, what="the group's coordinator")


def reset_command(broker: Broker, topic: str, *options: object) -> list[object]:
    """The command line that resets the topic for the group with the name of the topic."""
    return ["reset", "--topic", topic, "--group-id", topic, "--bootstrap-servers", broker.bootstrap, *options]


def test_reset_deletes_only_the_offsets_of_the_topic(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, 2)
    broker.create_topic(f"{topic}-other")
    commit(broker, topic, {(topic, 0): 5, (topic, 1): 7, (f"{topic}-other", 0): 3})
    reset = reset_command(broker, topic)
    assert run(*reset).returncode != 0  # nobody answers the question
    assert broker.committed(topic, topic) == {0: 5, 1: 7}
    assert "0: 5, 1: 7" in printed(*reset, "--yes")
    assert broker.committed(topic, topic) == {}
    assert broker.committed(topic, f"{topic}-other") == {0: 3}
    assert "no committed offsets" in printed(*reset, "--yes")


def test_a_partition_that_is_gone_is_dropped_and_learned_like_a_new_one(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Doctor names it, and nothing is dropped while workers run."""
    broker.create_topic(topic, 2)
    for partition in range(2):
        broker.produce(topic, partition, as_json(vectors(400, partition)))
    with group(broker, topic, tmp_path, BOTH_CLIENTS, session_timeout_s=PATIENCE_S) as members:
        reset = reset_command(broker, topic, "--yes", "--store", members.store)
        members.learn()
        members.wait(lambda: len(broker.committed(topic, topic)) == 2, "committed offsets")
        assert_one_line(run(*reset, "--drop", "0"), "has active members")
        members.workers[0].stop()
        assert_one_line(run(*reset, "--drop", "zero"), "must be the number of a partition", code=2)
        assert_one_line(run(*reset, "--drop", "0", "--to", "latest"), "goes with neither", code=2)
        assert_one_line(run(*reset, "--drop", "backfill-0"), "has no backfill-0", code=2)
        shutil.rmtree(members.store / "checkpoints" / topic / "0")
        assert f"deleted partition 0 of {topic}" in printed(*reset, "--drop", "0")
        assert broker.committed(topic, topic).keys() == {1}
        assert not list((members.store / "models" / topic).glob("*.npz"))
        broker.produce(topic, 0, as_json(vectors(50, 8)))
        members.learn()
        counts = {p: newest.fold.stats.learned for p, newest in members.newest().items()}
    assert counts == {0: 450, 1: 400}


def test_a_reset_moves_the_position_of_workers_but_never_back(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, 2)
    for partition in range(2):
        broker.produce(topic, partition, as_json(vectors(400, partition)))
    # A worker must not be evicted: it would commit at its next checkpoint, while the group has no active member.
    with group(broker, topic, tmp_path, BOTH_CLIENTS, session_timeout_s=PATIENCE_S) as members:
        reset = reset_command(broker, topic, "--yes", "--store", members.store)
        assert "partition 1 continues at offset 300" in printed(*reset, "--to", 300, "--partition", 1)
        members.learn()
        members.wait(lambda: len(broker.committed(topic, topic)) == 2, "committed offsets")
        assert_one_line(run(*reset, "--to", "latest"), "has active members")
        members.workers[0].stop()
        assert {p: checkpoint.fold.stats.learned for p, checkpoint in members.newest().items()} == {0: 400, 1: 100}
        assert_one_line(run(*reset, "--to", "earliest"), "records would be learned twice", code=2)
        for partition in range(2):
            broker.produce(topic, partition, as_json(vectors(200, 7)))
        assert "continues at offset 600" in printed(*reset, "--to", "latest")
        broker.produce(topic, 0, as_json(vectors(50, 8)))
        members.learn()
        counts = {p: (newest.fold.stats.learned, newest.fold.stats.gap) for p, newest in members.newest().items()}
    assert counts == {0: (450, 200), 1: (100, 200)}


class MovedTopic:
    """A topic of two partitions with 50 records each, and a store that was learned from a topic with another id."""

    def __init__(self, broker: Broker, topic: str, folder: Path) -> None:
        self.broker = broker
        self.topic = topic
        self.store = folder / "store"
        broker.create_topic(topic, 2)
        for partition in range(2):
            broker.produce(topic, partition, as_json(vectors(50, partition)))
        with closing(KafkaPythonAdmin(KafkaSettings(bootstrap_servers=broker.bootstrap), topic)) as admin:
            self.id = admin.require_topic().id
        self.checkpoints = Checkpoints(open_store(str(self.store)), topic)
        for partition in range(2):
            self.learn(partition, 40)
            self.learn(partition, 80)

    def learn(self, partition: int, position: int, topic_id: str = "former-id") -> None:
        fold = replace(make_fold(vectors(position, partition), CONFIG), last=LastRecord(position - 1, 7))
        saved = Checkpoint(self.topic, topic_id, partition, fold, CONFIG.as_dict())
        self.checkpoints.save(saved)

    def reset(self, *options: object, **settings: object) -> subprocess.CompletedProcess[str]:
        own_settings = {"topic": self.topic, "bootstrap_servers": self.broker.bootstrap, "store": self.store}
        return run("reset", *options, **variables(own_settings | settings))

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.store.rglob("*.npz")}

    def refuses(self, words: str, *options: object, code: int = 2, **settings: object) -> None:
        """The command fails with these words, and changes no checkpoint."""
        before = self.files()
        assert_one_line(self.reset(*options, "--yes", **settings), words, code=code)
        assert self.files() == before

    def newest(self) -> dict[int, Checkpoint]:
        found = {partition: self.checkpoints.newest(partition) for partition in self.checkpoints.partitions()}
        return {partition: checkpoint for partition, checkpoint in found.items() if checkpoint}


@pytest.fixture
def moved(broker: Broker, topic: str, tmp_path: Path) -> MovedTopic:
    return MovedTopic(broker, topic, tmp_path)


def test_a_reset_refuses_a_topic_with_another_id(moved: MovedTopic) -> None:
    commit(moved.broker, f"streampca-{moved.topic}", {(moved.topic, 0): 80})
    for options in ((), ("--to", "latest"), ("--to", 50, "--partition", 1)):
        moved.refuses("is not the topic that was read before", *options, code=1)
    moved.refuses("is not the topic that was read before", "--adopt-settings", dimensions=D, components=K, code=1)
    assert moved.broker.committed(f"streampca-{moved.topic}", moved.topic) == {0: 80}


def test_adopting_a_topic_demands_an_offset_of_each_partition(moved: MovedTopic) -> None:
    for to in ("0:30", "0:30,1:20,2:0"):
        moved.refuses("must name an offset of each of these partitions", "--adopt-topic", "--to", to)
    moved.refuses("partition 1 ends at 50", "--adopt-topic", "--to", "0:30,1:51")
    moved.refuses("--adopt-topic needs --to", "--adopt-topic")
    moved.refuses("must be worker or transform", "--adopt-topic", "--to", "latest", "--role", "sidecar")
    moved.refuses("the store holds no checkpoint", "--adopt-topic", "--to", "latest", store=moved.store / "other")
    moved.learn(2, 5)
    moved.refuses("has 2 partitions here", "--adopt-topic", "--to", "latest")
    before = moved.files()
    assert moved.reset("--adopt-topic", "--to", "latest").returncode  # nobody answers the question
    assert moved.files() == before


def test_an_adopted_topic_is_continued_where_the_operator_says(moved: MovedTopic) -> None:
    """Also behind the position before. Nothing counts as lost, and no offset of the topic before remains."""
    before = moved.newest()
    commit(moved.broker, f"streampca-{moved.topic}", {(moved.topic, 0): 80}, "by a mirror")
    done = moved.reset("--adopt-topic", "--to", "0:30,1:50", "--yes")
    assert (done.returncode, done.stdout.count("former-id")) == (0, 2), done.stdout + done.stderr
    assert moved.broker.committed(f"streampca-{moved.topic}", moved.topic) == {}
    after = moved.newest()
    for partition, position in {0: 30, 1: 50}.items():
        assert moved.checkpoints.offsets(partition) == [position]
        fold = replace(before[partition].fold, position=position, last=None)
        assert encode(after[partition]) == encode(replace(before[partition], topic_id=moved.id, fold=fold))


def test_adopting_a_topic_can_be_repeated_and_leaves_what_was_adopted(moved: MovedTopic) -> None:
    """It was killed after the first partition, from which a worker has learned since; the third is new."""
    moved.broker.add_partitions(moved.topic, 3)
    before = moved.checkpoints.newest(0)
    fold = replace(before.fold, position=33)
    moved.checkpoints.replace(before, replace(before, topic_id=moved.id, fold=fold))
    adopt = ("--adopt-topic", "--to", "0:30,1:20,2:0", "--yes")
    assert moved.reset(*adopt).returncode == 0
    assert {p: (found.fold.position, found.topic_id) for p, found in moved.newest().items()} == {
        0: (33, moved.id), 1: (20, moved.id), 2: (0, moved.id),
    }  # fmt: skip
    files = moved.files()
    assert "nothing to adopt" in moved.reset(*adopt).stdout
    assert moved.files() == files


def test_transform_continues_in_an_adopted_topic_with_the_shape_of_its_outputs(moved: MovedTopic) -> None:
    group = f"streampca-transform-{moved.topic}"
    commit(moved.broker, group, {(moved.topic, 0): 80}, "k=2 d=5 topic=former-id last=79@7")
    files = moved.files()
    done = moved.reset("--adopt-topic", "--to", "latest", "--role", "transform", "--yes")
    assert (done.returncode, done.stdout.count("former-id")) == (0, 1), done.stdout + done.stderr
    assert moved.files() == files
    committed = moved.broker.admin.list_group_offsets({group: None})[group]
    found = {tp.partition: (at.offset, at.metadata.rstrip("\0").strip()) for tp, at in committed.items()}
    assert found == {0: (50, f"k=2 d=5 topic={moved.id}"), 1: (50, f"topic={moved.id}")}
    done = moved.reset("--adopt-topic", "--to", "earliest", "--yes", output_topic="out")
    assert done.returncode == 0
    assert {p: newest.fold.position for p, newest in moved.newest().items()} == {0: 0, 1: 0}
    assert moved.broker.committed(group, moved.topic) == {0: 50, 1: 50}  # it has continued already


def test_settings_are_adopted_after_a_question(moved: MovedTopic) -> None:
    for partition in range(2):
        moved.learn(partition, 90, moved.id)
    learned = {"dimensions": D, "components": K}
    assert "nothing to adopt" in moved.reset("--adopt-settings", "--yes", **learned).stdout
    now = learned | {"components": K + 1, "half_life_messages": 1000}
    files = moved.files()
    assert moved.reset("--adopt-settings", **now).returncode  # nobody answers the question
    assert moved.files() == files
    moved.refuses("cannot continue with standardize=False (now True)", "--adopt-settings", **now, standardize=True)
    ProcessStatuses(open_store(str(moved.store)), moved.topic).write(
        ProcessStatus(
            name="host-7", state="learning", trouble=None, started_at=0.0, updated_at=time.time(),
            messages_per_second=0.0, partitions={},
        )
    )  # fmt: skip
    assert "warning: host-7 reported within the last minute" in moved.reset("--adopt-settings", **now).stderr
    assert "cannot be combined" in moved.reset("--adopt-settings", "--to", "latest", **now).stderr
    text = moved.reset("--adopt-settings", "--yes", **now).stdout
    assert text.count(f"components={K} (now {K + 1}), half_life_messages=None (now 1000.0)") == 2
    for partition, newest in moved.newest().items():
        assert (newest.fold.position, newest.fold.stats.learned) == (90, 90)
        assert newest.settings["components"] == K + 1
        assert moved.checkpoints.offsets(partition) == [90]


def test_no_older_checkpoint_is_taken_for_a_damaged_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(open_store(str(tmp_path)), "readings")
    for position in (30, 40):
        checkpoints.save(make_checkpoint(make_fold(vectors(position, 0), CONFIG), CONFIG))
    assert [newest.fold.position for newest in read_newest_checkpoints(checkpoints)] == [40]
    newest_file = max(tmp_path.rglob("*.npz"))
    newest_file.write_bytes(newest_file.read_bytes()[:-100])
    text = refusal(DamagedFileError, list, read_newest_checkpoints(checkpoints))
    assert "partition 0 at offset 40 cannot be read" in text
    assert "continue from the one at offset 30" in text


def test_a_time_without_a_zone_is_refused_before_brokers_are_asked() -> None:
    servers = "127.0.0.1:9"  # nobody listens there
    done = run("reset", "--yes", "--topic", "t", "--to", "2026-01-31T12:00", "--bootstrap-servers", servers)
    assert_one_line(done, "the time '2026-01-31T12:00' has no zone", code=2)
