"""Kill it anywhere: the model is the same, bit for bit (proofs 1 and 2). The workers read on either client in turn."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streampca.stream.checkpoint import decode
from tests.guarantees.harness import BOTH, Group, WorkerProcess, as_json, folded, group, temporaries, vectors
from tests.kafka_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

PARTITIONS, MESSAGES, KILLS = 4, 50_000, 24
LIFE = MESSAGES // (KILLS + 1)  # messages sent while a worker lives that will be killed


def fill(broker: Broker, topic: str, count: int, seed: int) -> None:
    """`count` more messages, unevenly over the partitions."""
    shares = np.array_split(vectors(count, seed), [count // 8, count // 3, count // 2])
    producer = broker.producer()
    try:
        sent = [
            producer.send(topic, value, partition=partition)
            for partition, rows in enumerate(shares)
            for value in as_json(rows)
        ]
        producer.flush(60)
        for future in sent:
            future.get(1)
    finally:
        producer.close()


def uninterrupted(broker: Broker, topic: str, folder: Path) -> dict[int, bytes]:
    """The checkpoints of one worker that reads the whole topic undisturbed, under another group and store."""
    with group(broker, topic, folder, group_id=f"{topic}-undisturbed") as calm:
        calm.start(checkpoint_interval_s=2)
        calm.wait_until_learned(120)
        return calm.files()


def assert_same_bits(members: Group, folder: Path) -> None:
    """As an uninterrupted worker's files, to the byte; and what they hold as an account of our own."""
    files = members.files()
    assert files == uninterrupted(members.broker, members.topic, folder)
    expected = folded(members.broker, members.topic)
    assert files.keys() == expected.keys()
    for partition, data in files.items():
        fold = decode(data).fold
        assert fold.position == expected[partition].position
        assert fold.stats == expected[partition].stats
        assert fold.state.C.tobytes() == expected[partition].state.C.tobytes()
        assert fold.pending.tobytes() == expected[partition].pending.tobytes()


def learned(members: Group) -> int:
    return sum(checkpoint.fold.stats.learned for checkpoint in members.newest().values())


def test_kill_9_at_random_moments_changes_no_bit(broker: Broker, topic: str, tmp_path: Path) -> None:
    rng = random.Random(20)
    broker.create_topic(topic, PARTITIONS)
    during_write = 0
    with group(broker, topic, tmp_path / "killed", BOTH, max_poll_records=25) as members:
        for life in range(KILLS):
            counts = iter([LIFE // 2, *[LIFE // 16] * 8])
            fill(broker, topic, next(counts), seed=rng.randrange(2**31))
            worker = members.start(checkpoint_interval_s=rng.choice([0.02, 0.1, 0.3]))
            members.wait(lambda w=worker: w.count("partitions assigned"), "an assignment")
            members.wait_for_progress(worker, saves=rng.randrange(0, 6))
            during_write += kill_during_write(worker, members, counts, rng) if life % 3 == 0 else kill_soon(worker, rng)
            fill(broker, topic, sum(counts), seed=rng.randrange(2**31))
            members.committed_is_never_ahead()
        fill(broker, topic, MESSAGES - KILLS * LIFE, seed=KILLS)
        members.start()
        members.wait_until_learned(120)
        assert learned(members) == MESSAGES
        members.committed_is_never_ahead()
        assert_same_bits(members, tmp_path / "calm")
    assert during_write >= 3, "too few kills hit a checkpoint that was being written"


def kill_soon(worker: WorkerProcess, rng: random.Random) -> int:
    time.sleep(rng.uniform(0, 0.3))  # the moment is the point: it is drawn, not waited for
    worker.kill()
    return 0


def kill_during_write(worker: WorkerProcess, members: Group, counts: Iterator[int], rng: random.Random) -> int:
    """Kill when a temporary file shows, as more and more is sent; 1 if one is left, 0 if none was seen."""
    for count in counts:
        fill(members.broker, members.topic, count, seed=rng.randrange(2**31))
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            if temporaries(members.store):
                worker.kill()
                return int(bool(temporaries(members.store)))
    worker.kill()
    return 0


def test_workers_that_join_leave_and_are_killed_change_no_bit(broker: Broker, topic: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    broker.create_topic(topic, PARTITIONS)
    with group(broker, topic, tmp_path / "restless", BOTH, max_poll_records=25, checkpoint_interval_s=0.1) as members:
        running: list[WorkerProcess] = []
        for step in range(12):
            fill(broker, topic, MESSAGES // 12 if step else MESSAGES - 11 * (MESSAGES // 12), seed=100 + step)
            while len(running) < 2:
                running.append(members.start())
                members.wait(lambda w=running[-1]: w.count("partitions assigned"), "an assignment")
            time.sleep(rng.uniform(0, 0.5))
            leaver = running.pop(rng.randrange(2))
            if rng.random() < 0.5:
                leaver.kill()
            else:
                assert leaver.stop() < 5, "SIGTERM took too long"
                assert leaver.process.returncode == 0, leaver.text()[-2000:]
            members.committed_is_never_ahead()
        members.wait_until_learned(120)
        assert learned(members) == MESSAGES
        assert_same_bits(members, tmp_path / "calm")
