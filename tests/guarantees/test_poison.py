"""Every message, with or without gaps, is learned once, is a delete, or is a dead letter with its reason."""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from threadpoolctl import threadpool_limits

from streampca.fold import checkpoint
from streampca.fold.fold import Fold
from streampca.formats.judge import Judge
from streampca.pca import axes
from streampca.sources.events import Records, decode_records
from tests.formats.structured import stream
from tests.guarantees.harness import BOTH_CLIENTS, CODEC, CONFIG, D, K, as_json, group, vectors
from tests.guarantees.worker_process import WorkerProcess
from tests.kafka_broker import Broker
from tests.pca.streams import excess
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

MESSAGES, GAPPY = 20_000, 4000
POISON = [
    (b'{"not": "an array"}', "undecodable"),
    (b"[1, 2, 3", "undecodable"),
    (b"\xff\xfe\x00", "undecodable"),
    (b"[" + b",".join([b"NaN"] * D) + b"]", "not_finite"),
    (b"[" + b",".join([b"1e400"] * D) + b"]", "not_finite|undecodable"),
    (b"[1, 2, 3]", "wrong_length"),
    (b"[" + b",".join([b"1"] * 200_000) + b"]", "wrong_length"),
    (b"[" + b",".join([b"1e200"] * D) + b"]", "too_large"),
]


def stream_with_poison(seed: int) -> tuple[list[bytes | None], dict[int, tuple[bytes | None, str]], np.ndarray]:
    """A stream with 1 % bad records and 1 % tombstones: all values, the bad ones by offset, and the vectors."""
    rng = random.Random(seed)
    clean = vectors(MESSAGES, seed)
    values: list[bytes | None] = []
    poison = {}
    for value in as_json(clean):
        if rng.random() < 0.01:
            poison[len(values)] = bad = rng.choice(POISON)
            values.append(bad[0])
        if rng.random() < 0.01:
            values.append(None)
        values.append(value)
    return values, poison, clean


@pytest.mark.parametrize(("kills", "clients"), [(0, ["confluent"]), (4, BOTH_CLIENTS)])
def test_poison_goes_to_the_dead_letter_topic_and_changes_no_bit(
    broker: Broker, new_topic: str, tmp_path: Path, kills: int, clients: Sequence[str]
) -> None:
    values, poison, clean = stream_with_poison(seed=11 + kills)
    assert {reason for _, reason in poison.values()} == {reason for _, reason in POISON}
    dead_letter_topic = f"{new_topic}-dead"
    broker.create_topic(dead_letter_topic, 1, max_message_bytes=4_000_000)
    broker.produce(new_topic, 0, values)
    with group(
        broker, new_topic, tmp_path, clients, dead_letter_topic=dead_letter_topic, poll_records=25,
        checkpoint_interval_s=0.1, session_timeout_s=2 if kills else PATIENCE_S,  # whoever is evicted repeats some
    ) as members:  # fmt: skip
        for saves in range(1, kills + 1):
            worker = members.start()
            members.wait_for_progress(worker, saves)
            worker.kill()
            assert_acknowledged_before_saved(broker, dead_letter_topic, poison, members.positions().get(0, 0))
        members.learn(120)
        assert sum(members.rejected_beside(clean).values()) == len(poison)
        assert members.newest()[0].fold.stats.skipped == values.count(None) > 0
    assert_dead_letters(broker, new_topic, dead_letter_topic, poison, repeats=bool(kills))


def read_dead_letters(broker: Broker, topic: str) -> list[tuple[int, bytes | None, dict[str, bytes]]]:
    return [(int(dict(r.headers)["__connect.errors.offset"]), r.value, dict(r.headers)) for r in broker.read_all(topic)]


@pytest.mark.parametrize("client", BOTH_CLIENTS)
def test_a_quiet_beginning_is_learned_and_so_is_what_follows(
    broker: Broker, new_topic: str, tmp_path: Path, client: str
) -> None:
    """As of a sensor that is idle at first. And a vector that is absurdly long is learned, but outweighs no others."""
    signal = vectors(5000, seed=3)
    signal[100] = 1e8
    quiet = 7.0 + 1e-4 * np.round(np.random.default_rng(1).standard_normal((200, D)))
    dead_letter_topic = broker.create_topic(f"{new_topic}-dead", 1)
    broker.produce(new_topic, 0, as_json(np.vstack([quiet, signal])))
    with group(broker, new_topic, tmp_path, [client], dead_letter_topic=dead_letter_topic) as members:
        members.learn()
        found = members.newest()[0].fold
    assert (found.stats.learned, sum(found.stats.rejected.values())) == (5200, 0)
    ordinary = np.delete(signal, 100, axis=0)
    assert excess(axes.find_principal_axes(found.state, K)[0], np.cov(ordinary.T, bias=True)) <= 0.01


def assert_acknowledged_before_saved(broker: Broker, dead_letter_topic: str, poison: dict, position: int) -> None:
    """Every bad record before the checkpoint's position is in the dead-letter topic."""
    acknowledged = {offset for offset, _, _ in read_dead_letters(broker, dead_letter_topic)}
    assert {offset for offset in poison if offset < position} <= acknowledged


def assert_dead_letters(broker: Broker, topic: str, dead_letter_topic: str, poison: dict, *, repeats: bool) -> None:
    found = read_dead_letters(broker, dead_letter_topic)
    counts = Counter(offset for offset, _, _ in found)
    assert counts.keys() == poison.keys()
    assert repeats or set(counts.values()) == {1}
    first: dict[int, tuple] = {}
    for offset, value, headers in found:
        bad, reason = poison[offset]
        assert value == bad
        assert headers["__connect.errors.topic"] == topic.encode()
        assert headers["__connect.errors.partition"] == b"0"
        assert headers["__connect.errors.exception.class.name"].decode() in reason.split("|")
        assert headers["__connect.errors.exception.message"]
        assert first.setdefault(offset, (value, headers)) == (value, headers), "repeated dead letters are identical"


def test_without_a_dead_letter_topic_the_worker_stops_at_the_record(
    broker: Broker, new_topic: str, tmp_path: Path
) -> None:
    values = as_json(vectors(600, seed=1))
    values.insert(450, b"[1, 2]")
    broker.produce(new_topic, 0, values)
    with group(broker, new_topic, tmp_path, ["confluent", "kafka-python"]) as members:
        worker = members.start()
        assert worker.wait() == 1
        assert re.search("offset 450.*dead_letter_topic", worker.text())
        assert members.positions() == {0: 450}
        members.learn(on_bad_record="skip").stop()
        stats = members.newest()[0].fold.stats
        assert (stats.learned, dict(stats.rejected)) == (600, {"wrong_length": 1})
    assert CODEC.decode([values[450]]).rejects[0].reason == "wrong_length"


def test_a_kill_changes_no_bit_of_a_model_of_messages_with_nulls(
    broker: Broker, new_topic: str, tmp_path: Path
) -> None:
    V = np.round(vectors(GAPPY, seed=7), 4)
    missing = np.random.default_rng(1).random(V.shape) < 0.3
    missing[: GAPPY // 4] = False
    missing[2000, 1:] = True
    values = [json.dumps([None if gone else v for v, gone in zip(row, gaps, strict=True)]).encode()
              for row, gaps in zip(V.tolist(), missing, strict=True)]  # fmt: skip
    dead_letter_topic = broker.create_topic(f"{new_topic}-dead", 1)
    broker.produce(new_topic, 0, values)
    with group(
        broker, new_topic, tmp_path, BOTH_CLIENTS, dead_letter_topic=dead_letter_topic, missing="impute",
        poll_records=40, checkpoint_interval_s=0.1,
    ) as members:  # fmt: skip
        members.learn_with_kills(2)
        files, newest = members.files(), members.newest()[0]
    config = replace(CONFIG, learning=replace(CONFIG.learning, impute=True))
    codec = replace(CODEC, judge=Judge.of(config.learning))
    event = decode_records(codec, Records(0, broker.read_all(new_topic), GAPPY, GAPPY))
    with threadpool_limits(1):
        fold, _ = Fold.empty(config.learning).take(event, config)
    assert files[0] == checkpoint.encode(checkpoint.Checkpoint(new_topic, newest.topic_id, 0, fold, newest.settings))
    assert fold.state.missing is not None
    few = {int(place) for place in np.flatnonzero((~missing).sum(axis=1) < CONFIG.learning.min_observed)}
    assert {reject.reason for reject in event.decoded.rejects} <= {"too_few_observed"}
    assert {offset for offset, _, _ in read_dead_letters(broker, dead_letter_topic)} == few


LIMIT_MIB = 512  # docker-compose.yml and helm
MIB = 2**20
WIDE = 128  # dimensions: fewer vectors a MiB, which are learned sooner


def arrow(rows: np.ndarray, batches: int = 1) -> bytes:
    return stream(pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WIDE), "zstd", batches)


def peak_mib(worker: WorkerProcess) -> float:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_a_small_record_that_becomes_large_is_rejected(
    broker: Broker, new_topic: str, tmp_path: Path, client: str
) -> None:
    zeros = np.zeros((MIB // 8 // WIDE * 8, WIDE))  # 8 MiB
    good = [arrow(row[None]) for row in np.random.default_rng(2).standard_normal((300, WIDE))]
    large = [arrow(zeros)] * 60 + [arrow(zeros, 3)] * 12  # 480 MiB, and 12 times 24 MiB, all allowed
    bomb = arrow(zeros, 128)
    assert len(bomb) < 200_000
    dead = broker.create_topic(f"{new_topic}-dead", 1)
    broker.produce(new_topic, 0, [*good, bomb, *large, bomb])
    settings = {"dead_letter_topic": dead, "dimensions": WIDE, "format": "arrow", "field": "v"}
    with group(broker, new_topic, tmp_path, [client], False, **settings) as members:
        worker = members.learn(120)
        assert peak_mib(worker) < LIMIT_MIB
        stats = members.newest()[0].fold.stats
    assert dict(stats.rejected) == {"too_many_bytes": 2}
    assert stats.learned == len(good) + len(zeros) * (60 + 12 * 3)
    assert [record.value for record in broker.read_all(dead)] == [bomb, bomb]
