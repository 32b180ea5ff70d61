"""No record stops a worker: it is learned or it becomes a dead letter, and the records around it are learned."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.fold.checkpoint import Checkpoint, encode
from streampca.fold.fold import Fold
from streampca.formats.codec import REASONS, Codec
from streampca.formats.judge import Judge
from streampca.formats.record import PlainRecord, last_of
from streampca.pca.arrays import Array
from streampca.worker.config import WorkerConfig
from tests.fold.streams import D, fold_config, learn, vectors
from tests.formats.structured import READING, arrow, avro, avro_datum, avro_schema, memory, npy, protobuf, reading
from tests.worker.environment import TOPIC, Environment
from tests.worker.harness import WorkerFixture, make_worker, worker_config

AVRO = avro_schema({"type": "array", "items": "double"}, "v")
SCHEMAS = {"avro": memory(AVRO), "protobuf": memory(READING)}
FIELDS = {"avro": "v", "protobuf": "doubles", "arrow": "v"}
LARGEST = fold_config().learning.largest_value
FAR = 2**63 - 1  # milliseconds


ENCODE: dict[str, Callable[[Array], bytes]] = {
    "json": lambda row: str(row.tolist()).encode(),
    "float32": lambda row: row.astype("<f4").tobytes(),
    "float64": lambda row: row.astype("<f8").tobytes(),
    "npy": npy,
    "arrow": lambda row: arrow([row.tolist(), row.tolist()], kind=pa.list_(pa.float64(), D)),
    "avro": lambda row: avro(AVRO, avro_datum(row.tolist(), "v")),
    "protobuf": lambda row: protobuf(reading(sensor="a", doubles=row.tolist())),
}
CODECS = {kind: Codec(kind, Judge(D, LARGEST), FIELDS.get(kind, ""), SCHEMAS.get(kind)) for kind in ENCODE}
GOOD = vectors(60)
EDGES = [0.0, -0.0, 5e-324, 1e-160, 1e76, -LARGEST, 1.01 * LARGEST, 1e308, np.inf, -np.inf, np.nan]

# Mutations of bytes. Places are shares of the length.
SHARES = st.floats(0, 1)
PIECES = st.sampled_from(
    [b"", b"\0", b"\xff" * 4, b"\x80" * 12, b"[" * 300, b"1e999", b"\x7f\xff\xff\xff", b'"\\ud800"']
)
FLIP = st.tuples(st.just("flip"), SHARES, st.integers(0, 7))
CUT = st.tuples(st.just("cut"), SHARES, st.none())
SPLICE = st.tuples(st.just("splice"), SHARES, PIECES | st.binary(max_size=8))
OVERWRITE = st.tuples(st.just("overwrite"), SHARES, PIECES | st.binary(min_size=1, max_size=8))
REPEAT = st.tuples(st.just("repeat"), SHARES, st.sampled_from([2, 3, 50]))
MUTATIONS = st.lists(st.one_of(FLIP, FLIP, CUT, SPLICE, OVERWRITE, REPEAT), max_size=4) | st.just([])


def mutated(value: bytes, mutations: Sequence[tuple]) -> bytes:
    for action, share, how in mutations:
        at = int(share * len(value))
        if action == "flip" and at < len(value):
            value = value[:at] + bytes([value[at] ^ 1 << how]) + value[at + 1 :]
        elif action == "cut":
            value = value[:at]
        elif action == "splice":
            value = value[:at] + how + value[at:]
        elif action == "overwrite":
            value = value[:at] + how + value[at + len(how) :]
        elif action == "repeat":
            value = value[:at] + value[at : at + 64] * how + value[at + 64 :]
    return value


@st.composite
def pills(draw: st.DrawFn, kind: str) -> PlainRecord:
    """A record that may be anything, with the offset that it would like to have among the good ones."""
    row = np.array(GOOD[draw(st.integers(0, len(GOOD) - 1))])
    row[draw(st.integers(0, D - 1))] = draw(st.sampled_from([1.0, *EDGES]))
    encoded = draw(st.sampled_from([kind, kind, kind, *ENCODE]))
    with np.errstate(over="ignore"):
        value = mutated(ENCODE[encoded](row), draw(MUTATIONS))
    return PlainRecord(
        offset=draw(st.integers(0, len(GOOD))),
        value=draw(st.sampled_from([value] * 6 + [None, b""])),
        timestamp=draw(st.sampled_from([-1, 0, -FAR - 1, -2, FAR, FAR - 1, 10**12, 4 * 10**12]) | st.integers(-9, 9)),
        key=draw(st.none() | st.binary(max_size=9)),
        headers=draw(st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3)),
    )


def fill(env: Environment, kind: str, bad: Sequence[PlainRecord]) -> set[int]:
    """Append the good records with the others among them; returns the offsets of the good ones."""
    log, good = env.topic.logs[0], set()
    for i, row in enumerate([*GOOD, None]):
        here = [pill for pill in bad if pill.offset == i]
        if row is not None:
            here.append(PlainRecord(0, ENCODE[kind](row), 10**12 + i))
        for record in here:
            log.records.append(replace(record, offset=log.end, leader_epoch=0))
            log.end += 1
        good |= {log.end - 1} if row is not None else set()
    return good


def config_for(env: Environment, kind: str) -> WorkerConfig:
    env.fold_config = replace(env.fold_config, format=kind, field=FIELDS.get(kind, ""))
    config = worker_config(env.fold_config, on_bad_record="dead_letter", checkpoint_interval_s=100.0)
    return replace(config, fold=env.fold_config, codec=CODECS[kind])


def learned_alone(env: Environment, kind: str, rejected: dict[int, str]) -> bytes:
    """The checkpoint of the records that were not rejected, decoded one by one and learned in one batch."""
    log, config = env.topic.logs[0], env.fold_config
    kept = [record for record in log.records if record.offset not in rejected]
    decoded = [CODECS[kind].decode([record.value]) for record in kept]
    assert not any(one.rejects for one in decoded), "a record is neither learned nor a dead letter"
    filled = [(record, one.vectors) for record, one in zip(kept, decoded, strict=True) if len(one.vectors)]
    stamps, counts = [record.timestamp for record, _ in filled], np.array([len(V) for _, V in filled])
    V = np.concatenate([V for _, V in filled])
    assert np.abs(V).max() <= LARGEST, "a vector was learned that is too large or not finite"
    fold, _ = learn(Fold.empty(config.learning), V, stamps, log.end, config, counts)
    fold = replace(fold.reject(list(rejected.values())), last=last_of(log.records))
    return encode(Checkpoint(TOPIC, env.topic.id, 0, fold, config.as_dict()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODE)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_every_record_is_learned_or_a_dead_letter(kind: str, data: st.DataObject) -> None:
    env = Environment(fold_config=fold_config(half_life_seconds=data.draw(st.sampled_from([None, 9.0]))))
    config = config_for(env, kind)
    good = fill(env, kind, data.draw(st.lists(pills(kind), min_size=1, max_size=12), label="pills"))
    worker = make_worker(env, config, batch=data.draw(st.sampled_from([1, 9, 1000]), label="batch")).run()
    assert env.violations == []
    assert env.position() == env.topic.logs[0].end
    rejected = {offset: reason for _, offset, reason in env.dead_letters}
    assert len(rejected) == len(env.dead_letters)
    assert not good & rejected.keys()
    assert set(rejected.values()) <= set(REASONS)
    assert_letters_are_whole(env, worker)
    newest = env.newest()
    assert np.isfinite(newest.fold.state.C).all()
    assert encode(newest) == learned_alone(env, kind, rejected)


def assert_letters_are_whole(env: Environment, worker: WorkerFixture) -> None:
    """Each has its record's value, key, headers and, among these, its timestamp."""
    records = {record.offset: record for record in env.topic.logs[0].records}
    for (_, offset, _), letter in zip(env.dead_letters, worker.dead_letters.records, strict=True):
        record = records[offset]
        assert (letter.value, letter.key) == (record.value, record.key)
        assert letter.headers[-1] == ("__connect.errors.timestamp", b"%d" % record.timestamp)
        assert list(letter.headers[: len(record.headers)]) == list(record.headers)
