"""Workers on messages of several vectors, and on messages whose schemas a registry serves."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.consumer_group.listener import BatchLearned, PartitionResumed, PartitionStalled
from streampca.errors import OffsetGapError, SourceError
from streampca.fold.checkpoint import Checkpoint, encode
from streampca.fold.codec import Codec
from streampca.fold.fold import Fold
from streampca.fold.record import LastRecord
from streampca.formats.schemas import MemorySchemas, WriterSchema
from streampca.pca.arrays import Array
from streampca.sources.memory import Do, Pause
from streampca.worker.loop import WorkerConfig
from tests.fold.streams import D, vectors
from tests.fold.structured import arrow, avro, avro_datum, avro_schema, memory
from tests.worker.environment import TOPIC, Environment
from tests.worker.harness import WorkerFixture, make_worker, worker_config

SCHEMA = avro_schema({"type": "array", "items": "double"}, "v")


def config_for(env: Environment, kind: str, schemas: MemorySchemas | None = None, **options: object) -> WorkerConfig:
    codec = Codec(kind, D, env.fold_config.learning.largest_value, field="v", schemas=schemas)
    env.fold_config = replace(env.fold_config, format=kind, field="v")
    return replace(worker_config(env.fold_config, **options), fold=env.fold_config, codec=codec)


def arrows(V: Array, counts: Iterable[int]) -> list[bytes]:
    """Messages with these numbers of vectors."""
    ends = np.cumsum(list(counts))
    kind = pa.list_(pa.float64(), D)
    return [arrow(part.tolist(), kind=kind) for part in np.split(V, ends[:-1])]


def avros(V: Array, schema_id: int = 1) -> list[bytes]:
    return [avro(SCHEMA, avro_datum(row.tolist(), "v"), schema_id) for row in V]


def newest(env: Environment) -> bytes:
    found = env.checkpoints.newest(0)
    assert found is not None
    return encode(found)


def learned_in_one_batch(
    env: Environment, V: Array, counts: list[int], position: int, rejected: Sequence[str] = ()
) -> bytes:
    config = env.fold_config
    fold, _ = Fold.empty(config.learning).learn(V, [-1] * len(counts), position, config, np.array(counts))
    fold = fold.reject(rejected).after(LastRecord(position - 1, 0))
    return encode(Checkpoint(TOPIC, env.topic.id, 0, fold, config.as_dict()))


@settings(deadline=None, max_examples=30)
@given(
    counts=st.lists(st.sampled_from([1, 2, 5, 19, 20, 63, 64, 65, 130]), min_size=1, max_size=8),
    polls=st.lists(st.integers(1, 4), max_size=6),
    kills=st.lists(st.sampled_from(["poll", "seek", "commit", "write", "written", "flush", "topic_id"]), max_size=3),
    at=st.integers(1, 6),
)
def test_arrow_gives_the_same_checkpoint_for_any_polls_and_kills(
    counts: list[int], polls: list[int], kills: list[str], at: int
) -> None:
    """The final checkpoint has the bytes of one undisturbed run; positions count messages."""

    class KilledError(BaseException):
        pass

    env, V = Environment(), vectors(sum(counts))
    config = config_for(env, "arrow")
    env.send(0, arrows(V, counts))
    for kill in kills:
        calls = 0

        def die(name: str, kill: str = kill) -> None:
            nonlocal calls
            calls += name == kill
            if calls >= at:
                raise KilledError

        try:
            make_worker(env, config, polls, hook=die).run()
        except KilledError:
            for member in env.topic._members[-1:]:  # none, if it was killed before it joined
                env.topic.evict(member)
    make_worker(env, config, polls).run()
    assert env.violations == []
    assert newest(env) == learned_in_one_batch(env, V, counts, len(counts))


def test_arrow_a_message_with_one_bad_vector_is_rejected_whole() -> None:
    env, V = Environment(), vectors(90)
    bad = np.array(V[:30])
    bad[17, 2] = np.nan
    env.send(0, [*arrows(V[:40], [40]), *arrows(bad, [30]), *arrows(V[40:], [50])])
    worker = make_worker(env, config_for(env, "arrow", bad_records="dead_letter"))
    worker.run()
    assert env.dead_letters == [(0, 1, "not_finite")]
    assert newest(env) == learned_in_one_batch(env, V, [40, 50], 3, ["not_finite"])


def test_arrow_the_version_is_the_number_of_vectors() -> None:
    env, V = Environment(), vectors(90)
    env.send(0, arrows(V, [40, 50]))
    worker = make_worker(env, config_for(env, "arrow"))
    worker.run()
    assert env.models.versions()[-1] == 90
    assert sum(batch.messages for batch in worker.recorder.of_type(BatchLearned)) == 2


def run_with(env: Environment, schemas: MemorySchemas, script: list[object], **options: object) -> WorkerFixture:
    worker = make_worker(env, config_for(env, "avro", schemas, **options), script)  # type: ignore[arg-type]
    worker.run()
    return worker


def set_away(schemas: MemorySchemas, *, away: bool) -> Do:
    return Do(lambda: setattr(schemas, "away", away))


def test_an_unavailable_registry_loses_no_record() -> None:
    env, V, schemas = Environment(), vectors(100), memory(SCHEMA)
    schemas.away = True
    env.send(0, avros(V))
    script: list[object] = [10, *([Pause()] * 5), set_away(schemas, away=False), *([Pause()] * 5)]
    worker = run_with(env, schemas, script, bad_records="dead_letter")
    assert env.dead_letters == []
    stalled = worker.recorder.of_type(PartitionStalled)[0]
    assert (stalled.partition, stalled.lag) == (0, 100)
    assert "does not answer" in stalled.cause
    assert worker.recorder.of_type(PartitionResumed) == [PartitionResumed(0)]
    assert newest(env) == learned_in_one_batch(env, V, [1] * 100, 100)


def test_a_log_that_is_cut_while_the_registry_is_away_is_noticed() -> None:
    env, V, schemas = Environment(), vectors(100), memory(SCHEMA)
    env.send(0, [*avros(V[:80]), *avros(V[80:], 2)])

    def cut_and_grow() -> None:
        schemas.away = False
        env.topic.truncate(0, 60)
        env.send(0, avros(vectors(90, seed=7)))

    script: list[object] = [80, set_away(schemas, away=True), 20, Do(cut_and_grow), *([Pause()] * 5)]
    with pytest.raises(OffsetGapError, match="offset 80 follows records that are not in the log any more"):
        run_with(env, schemas, script)
    assert env.position() == 80


def test_messages_before_the_registry_failed_are_saved() -> None:
    env, V, schemas = Environment(), vectors(60), memory(SCHEMA)
    env.send(0, [*avros(V[:30]), *avros(V[30:], 2)])
    worker = make_worker(
        env, config_for(env, "avro", schemas), [30, set_away(schemas, away=True), *([30] * 4)], stop_when_idle=False
    )
    polls = 0

    def count(name: str) -> None:
        nonlocal polls
        polls += name == "poll"
        if polls > 12:
            worker.stop("enough")

    worker.source._hook = count
    worker.run()
    assert env.position() == 30
    assert len(worker.recorder.of_type(PartitionStalled)) >= 2
    assert worker.recorder.of_type(PartitionResumed) == []
    schemas.away, schemas.schemas[2] = False, SCHEMA
    make_worker(env, config_for(env, "avro", schemas)).run()
    assert newest(env) == learned_in_one_batch(env, V, [1] * 60, 60)


def test_a_stalled_partition_is_released_in_a_rebalance() -> None:
    env, V, schemas = Environment(partitions=2), vectors(40), memory(SCHEMA)
    schemas.away = True
    env.send(0, avros(V))
    env.send(1, avros(V))
    first = make_worker(env, config_for(env, "avro", schemas), [5, Do(env.topic.rebalance), *([Pause()] * 3)])
    first.source.stop = None
    polls = 0

    def count(name: str) -> None:
        nonlocal polls
        polls += name == "poll"
        if polls == 9:
            schemas.away = False
        if polls > 30:
            first.stop("enough")

    first.source._hook = count
    first.run()
    assert env.violations == []
    assert [env.position(p) for p in (0, 1)] == [40, 40]


def test_a_registry_that_denies_access_ends_the_worker() -> None:
    class ForbiddenSchemas(MemorySchemas):
        def get(self, schema_id: int) -> WriterSchema:
            raise SourceError("the schema registry refuses us")

    env = Environment()
    env.send(0, avros(vectors(5)))
    with pytest.raises(SourceError, match="refuses us"):
        run_with(env, ForbiddenSchemas({}), [])
    assert env.position() is None
