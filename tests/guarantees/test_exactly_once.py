"""Killed workers learn the same model, bit for bit, with both Kafka clients; test_object_store also rebalances."""

import random
import time
from pathlib import Path

import numpy as np
import pytest

from tests.forked import COMMAND_LINE
from tests.guarantees.harness import BOTH_CLIENTS, Group, as_json, group, vectors
from tests.guarantees.worker_process import WorkerProcess
from tests.kafka_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

PARTITIONS, MESSAGES, KILLS = 4, 26_000, 12
MESSAGES_PER_KILL = MESSAGES // (KILLS + 1)  # sent while one worker runs until it is killed


_HANGING_DISK = """
import threading
from pathlib import Path
from streampca.stores import directory

write_durably, folder = directory._write_durably, Path({folder!r})

def write(path, data):
    if "checkpoints" not in path.parts or not (folder / "wanted").exists():
        return write_durably(path, data)
    path.write_bytes(data[: len(data) // 2])
    (folder / "hangs").touch()
    threading.Event().wait()

directory._write_durably = write
"""


class HangingDisk:
    """The disk of workers that are started with `program`: it hangs in the middle of a write when a test wants it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._wanted, self._hangs = folder / "wanted", folder / "hangs"
        self.program = _HANGING_DISK.format(folder=str(folder)) + COMMAND_LINE

    def hang(self) -> None:
        """The next write of a checkpoint stops after half of its bytes, and so do all that follow."""
        self._wanted.touch()

    def hangs(self) -> bool:
        return self._hangs.exists()

    def recover(self) -> None:
        """Later writes succeed; those that have stopped wait forever."""
        for file in (self._wanted, self._hangs):
            file.unlink(missing_ok=True)


def fill(broker: Broker, topic: str, count: int, seed: int) -> None:
    """Send `count` messages, unevenly distributed over the partitions."""
    for partition, rows in enumerate(np.split(vectors(count, seed), [count // 8, count // 3, count // 2])):
        broker.produce(topic, partition, as_json(rows))


def uninterrupted(broker: Broker, topic: str, folder: Path) -> dict[int, bytes]:
    """The checkpoints of one worker that reads the whole topic undisturbed, with another group and store."""
    with group(broker, topic, folder, group_id=f"{topic}-undisturbed") as members:
        members.learn(120, checkpoint_interval_s=2)
        return members.files()


def assert_all_learned_once(members: Group, messages: int, folder: Path) -> None:
    """The files have the bytes of an uninterrupted worker's, and the folds that this process computes."""
    members.wait_until_learned(120)
    assert sum(checkpoint.fold.stats.learned for checkpoint in members.newest().values()) == messages
    members.assert_commits_not_ahead()
    members.assert_same_bits()
    assert members.files() == uninterrupted(members.broker, members.topic, folder)


def test_workers_killed_at_random_moments_give_the_same_bits(broker: Broker, topic: str, tmp_path: Path) -> None:
    rng = random.Random(20)
    broker.create_topic(topic, PARTITIONS)
    disk = HangingDisk(tmp_path / "disk")
    with group(broker, topic, tmp_path / "killed", BOTH_CLIENTS, poll_records=25) as members:
        for kill in range(KILLS):
            fill(broker, topic, MESSAGES_PER_KILL // 2, seed=rng.randrange(2**31))
            worker = members.start(disk.program, checkpoint_interval_s=rng.choice([0.02, 0.1, 0.3]))
            members.wait(lambda w=worker: w.count("partitions assigned"), "an assignment")
            members.wait_for_progress(worker, saves=rng.randrange(0, 6))
            if kill % 3 == 0:
                disk.hang()
            fill(broker, topic, MESSAGES_PER_KILL // 4, seed=rng.randrange(2**31))
            if kill % 3 == 0:
                kill_during_write(worker, members, disk)
            else:
                time.sleep(rng.uniform(0, 0.3))  # a random moment is what is tested
                worker.kill()
            fill(broker, topic, MESSAGES_PER_KILL // 4, seed=rng.randrange(2**31))
            members.assert_commits_not_ahead()
        fill(broker, topic, MESSAGES - KILLS * MESSAGES_PER_KILL, seed=KILLS)
        members.start()
        assert_all_learned_once(members, MESSAGES, tmp_path / "undisturbed")


def kill_during_write(worker: WorkerProcess, members: Group, disk: HangingDisk) -> None:
    """Kill the worker when a write has stopped in the middle."""
    members.wait(disk.hangs, "the write of a checkpoint")
    worker.kill()
    disk.recover()
    assert [path for path in members.store.glob("checkpoints/*/*/*") if path.suffix != ".npz"], "a temporary file"
