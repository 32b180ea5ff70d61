"""The runbook's procedures: its own command lines, run on real workers, a real broker and a real store."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.command_line import printed, succeeded
from tests.example_models import models_in
from tests.guarantees.harness import D, Group, K, as_json, group, vectors
from tests.kafka_broker import Broker
from tests.monitoring.test_rules import section
from tests.sidecar.process import SidecarProcess
from tests.waiting import is_ready, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(200)]

BACKUP_SECTION = section("Back up and restore")
ROUNDS = 4


class Shell:
    """Runs command lines of the page with its placeholders replaced."""

    def __init__(self, store: Path, topic: str) -> None:
        self.names = {"STORE": store, "BACKUP": store.parent / "backup", "TOPIC": topic, "PARTITION": 1}

    def __call__(self, line: str) -> None:
        for name, value in self.names.items():
            line = re.sub(rf"\b{name}\b", str(value), line)
        outcome = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)
        pruned = "tar" in line and outcome.returncode == 1  # tar warns of a checkpoint that was pruned meanwhile
        assert outcome.returncode == 0 or pruned, f"{line}: {outcome.stderr}"


def lines(text: str, prefix: str) -> list[str]:
    """The command lines with a prefix, in inline code and code blocks."""
    return [line for line in re.findall(r"`+\n?([^`]+?)\n?`+", text) if line.startswith(prefix)]


def run_command(members: Group, *words: str) -> str:
    """Run a streampca command with the workers' settings and return its output."""
    return printed(*words, **members._environment({}))


def produce(members: Group, round_: int) -> None:
    for partition in (0, 1):
        members.broker.produce(members.topic, partition, as_json(vectors(1000, seed=2 * round_ + partition)))


@pytest.fixture
def members(broker: Broker, topic: str, tmp_path: Path) -> Iterator[Group]:
    broker.create_topic(topic, 2)
    with group(broker, topic, tmp_path) as members:
        yield members


@pytest.fixture
def shell(members: Group) -> Shell:
    return Shell(members.store, members.topic)


@pytest.fixture
def learned(members: Group, shell: Shell) -> Group:
    """Two partitions, learned to the end by a worker that has stopped; a backup was made while it ran."""
    members.start()
    (backup_command,) = lines(BACKUP_SECTION, "tar -C STORE --exclude")
    for round_ in range(ROUNDS):
        produce(members, round_)
        if round_ == 1:
            members.wait(lambda: members.positions().keys() == {0, 1}, "checkpoints of both partitions")
            members.wait(lambda: models_in(members.store, members.topic).versions(), "a model")
            shell(backup_command)
    members.wait_until_learned()
    members.workers[0].stop()
    return members


def assert_relearned(members: Group, bits: dict[int, bytes]) -> None:
    """Start a worker and check that it arrives at the same bits and a model of all messages."""
    worker = members.learn()
    assert members.files() == bits
    members.assert_same_bits()
    models = models_in(members.store, members.topic)
    members.wait(lambda: models.versions()[-1:] == [ROUNDS * 2000], "a model of everything")
    worker.stop()


def test_back_up_and_restore(learned: Group, shell: Shell) -> None:
    bits = learned.files()
    learned.store.rename(learned.folder / "away")
    learned.store.mkdir()
    shell(*lines(BACKUP_SECTION, "tar -C STORE -xf BACKUP.tar"))
    run_command(learned, "reset", "--yes")
    assert learned.positions() != {0: ROUNDS * 1000, 1: ROUNDS * 1000}, "the backup must be older"
    assert learned.topic in run_command(learned, "inspect", str(learned.store))
    assert "✗" not in run_command(learned, "doctor")
    assert_relearned(learned, bits)


def test_a_copy_of_the_store_is_continued_in_another_place(learned: Group) -> None:
    """Needs no reset: the copy has the same id, and its checkpoints are at the group's offsets."""
    moved = learned.folder / "moved"
    shutil.copytree(learned.store, moved)
    learned.store.rename(learned.folder / "away")
    learned.settings = {"store": moved}
    produce(learned, ROUNDS)
    learned.learn()
    learned.assert_same_bits()
    assert "✗" not in run_command(learned, "doctor")
    assert not learned.store.exists()


def damage(members: Group, partition: int | str) -> None:
    for path in (members.store / "checkpoints" / members.topic / str(partition)).glob("*.npz"):
        path.write_bytes(path.read_bytes()[:-100])


def test_one_damaged_partition_is_restored(learned: Group, shell: Shell) -> None:
    bits = learned.files()
    damage(learned, 1)
    assert_refused(learned)
    shell(*lines(BACKUP_SECTION, "rm -r STORE"))
    run_command(learned, "reset", "--yes")
    assert_relearned(learned, bits)


def test_a_damaged_backfill_is_restored(members: Group, shell: Shell) -> None:
    """The topic is learned further after the backup; afterwards, each model contains the backfill and the topic."""
    np.save(members.folder / "past.npy", vectors(500, seed=99))
    # Not forked from a process of the tests: a forked process may have no children.
    command = [sys.executable, "-m", "streampca", "backfill", members.folder / "past.npy"]
    succeeded(*command, env=os.environ | members._environment({}))
    members.start()
    produce_and_wait_for_model(members, 0)
    shell(*lines(BACKUP_SECTION, "tar -C STORE --exclude"))
    produce_and_wait_for_model(members, 1)
    members.workers[0].stop()
    (backfill,) = (members.store / "checkpoints" / members.topic / "backfill-0").glob("*.npz")
    bits = backfill.read_bytes()
    damage(members, "backfill-0")
    assert_refused(members, "backfill-0")
    shell.names["PARTITION"] = "backfill-0"
    shell(*lines(BACKUP_SECTION, "rm -r STORE"))
    run_command(members, "reset", "--yes")
    assert backfill.read_bytes() == bits
    members.start()
    produce_and_wait_for_model(members, 2)
    assert "✗" not in run_command(members, "doctor")


def produce_and_wait_for_model(members: Group, round_: int) -> None:
    """Produce a round; wait for the model of a backfill of 500 rows and of all rounds so far."""
    produce(members, round_)
    models = models_in(members.store, members.topic)
    members.wait(lambda: models.versions()[-1:] == [500 + (round_ + 1) * 2000], "a model of everything")


def test_one_damaged_partition_is_learned_again(learned: Group) -> None:
    bits = learned.files()
    damage(learned, 1)
    assert_refused(learned)
    (command,) = lines(section("Reset and replay"), "streampca reset")
    words = command.replace("PARTITION", "1").split()
    run_command(learned, *words[1:], "--yes")
    assert_relearned(learned, bits)


def assert_refused(members: Group, partition: str = "1") -> None:
    """A worker ends where a checkpoint is damaged and no older one is whole."""
    worker = members.start()
    assert worker.wait() == 1
    assert f"every checkpoint of partition {partition} is damaged" in worker.text()


def test_another_model_is_learned_beside_the_old_one(learned: Group) -> None:
    refused = learned.start(components=K + 1)
    assert refused.wait() == 2
    assert "start over with another store folder" in refused.text()
    learned.start()  # the old one continues
    other = learned.folder / "other"
    learned.start(components=K + 1, store=other, group_id=f"{learned.topic}-other")
    models = models_in(other, learned.topic)
    learned.wait(lambda: models.versions()[-1:] == [ROUNDS * 2000], "a model of everything")
    with SidecarProcess(other, topic=learned.topic) as sidecar:
        url = sidecar.wait_for_url()
        wait_until(lambda: is_ready(f"{url}/readyz"))
        model = httpx.get(f"{url}/v1/model", timeout=60).json()
    assert (model["version"], model["dimensions"], model["components"]) == (ROUNDS * 2000, D, K + 1)
