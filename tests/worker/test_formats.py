"""Workers on values that hold many vectors, and on values whose schemas a registry knows, which may be away."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.errors import BadRecordError, SourceError
from streampca.pca.arrays import Array
from streampca.sources.memory import Do, Pause
from streampca.stream.checkpoint import Checkpoint, encode
from streampca.stream.codec import Codec
from streampca.stream.fold import Fold
from streampca.stream.formats.schemas import MemorySchemas, WriterSchema
from streampca.worker.listener import BatchLearned, PartitionResumed, PartitionStalled
from streampca.worker.loop import WorkerConfig
from tests.stream.streams import D
from tests.stream.structured import arrow, avro, avro_datum, avro_schema, memory
from tests.worker.harness import TOPIC, Cast, Stage, cast, many, worker_config

SCHEMA = avro_schema({"type": "array", "items": "double"}, "v")


def plan_for(stage: Stage, kind: str, schemas: MemorySchemas | None = None, **options: object) -> WorkerConfig:
    codec = Codec(kind, D, stage.fold_config.learning.largest_value, field="v", schemas=schemas)
    stage.fold_config = replace(stage.fold_config, format=kind, field="v")
    return replace(worker_config(stage.fold_config, **options), fold=stage.fold_config, codec=codec)


def arrows(V: Array, counts: Iterable[int]) -> list[bytes]:
    """Messages of so many vectors each."""
    ends = np.cumsum(list(counts))
    kind = pa.list_(pa.float64(), D)
    return [arrow(part.tolist(), kind=kind) for part in np.split(V, ends[:-1])]


def avros(V: Array) -> list[bytes]:
    return [avro(SCHEMA, avro_datum(row.tolist(), "v")) for row in V]


def newest(stage: Stage) -> bytes:
    found = stage.checkpoints.newest(0)
    assert found is not None
    return encode(found)


def learned_whole(stage: Stage, V: Array, counts: list[int], position: int, rejected: list[str] = []) -> bytes:  # noqa: B006
    fold, _ = Fold.empty(stage.fold_config.learning).learn(
        V, [-1] * len(counts), position, stage.fold_config, np.array(counts)
    )
    return encode(Checkpoint(TOPIC, stage.topic.id, 0, fold.reject(rejected), stage.fold_config.as_dict()))


@settings(deadline=None, max_examples=30)
@given(
    counts=st.lists(st.sampled_from([1, 2, 5, 19, 20, 63, 64, 65, 130]), min_size=1, max_size=8),
    polls=st.lists(st.integers(1, 4), max_size=6),
    kills=st.lists(st.sampled_from(["poll", "seek", "commit", "write", "written", "flush", "topic_id"]), max_size=3),
    at=st.integers(1, 6),
)
def test_arrow_whatever_the_polls_and_wherever_a_worker_dies(
    counts: list[int], polls: list[int], kills: list[str], at: int
) -> None:
    """The checkpoint at the log's end is, to the byte, what one pass makes; positions are those of messages."""

    class KilledError(BaseException):
        pass

    stage, V = Stage(), many(sum(counts))
    own = plan_for(stage, "arrow")
    stage.send(0, arrows(V, counts))
    for kill in kills:
        calls = 0

        def die(name: str, kill: str = kill) -> None:
            nonlocal calls
            calls += name == kill
            if calls >= at:
                raise KilledError

        try:
            cast(stage, own, polls, hook=die).run()
        except KilledError:
            stage.topic.evict(stage.topic._members[-1])
    cast(stage, own, polls).run()
    assert stage.violations == []
    assert newest(stage) == learned_whole(stage, V, counts, len(counts))


def test_arrow_a_message_that_cannot_be_learned_is_put_aside_whole() -> None:
    stage, V = Stage(), many(90)
    bad = np.array(V[:30])
    bad[17, 2] = np.nan
    stage.send(0, [*arrows(V[:40], [40]), *arrows(bad, [30]), *arrows(V[40:], [50])])
    one = cast(stage, plan_for(stage, "arrow", bad_records="dead_letter"))
    one.run()
    assert stage.letters == [(0, 1, "not_finite")]
    assert newest(stage) == learned_whole(stage, V, [40, 50], 3, ["not_finite"])


def test_arrow_without_dead_letters_the_worker_stops_before_the_message() -> None:
    stage, V = Stage(), many(90)
    stage.send(0, [*arrows(V, [40, 50]), b"?", *arrows(V, [90])])
    with pytest.raises(BadRecordError, match="offset 2"):
        cast(stage, plan_for(stage, "arrow")).run()
    assert newest(stage) == learned_whole(stage, V, [40, 50], 2)


def test_arrow_the_version_is_the_number_of_vectors() -> None:
    stage, V = Stage(), many(90)
    stage.send(0, arrows(V, [40, 50]))
    one = cast(stage, plan_for(stage, "arrow"))
    one.run()
    assert stage.models.versions()[-1] == 90
    assert sum(batch.messages for batch in one.heard.of(BatchLearned)) == 2


def run_with(stage: Stage, schemas: MemorySchemas, script: list[object], **options: object) -> Cast:
    one = cast(stage, plan_for(stage, "avro", schemas, **options), script)  # type: ignore[arg-type]
    one.run()
    return one


def away(schemas: MemorySchemas, *, is_away: bool) -> Do:
    return Do(lambda: setattr(schemas, "away", is_away))


def test_a_registry_that_is_away_costs_no_record() -> None:
    stage, V, schemas = Stage(), many(100), memory(SCHEMA)
    schemas.away = True
    stage.send(0, avros(V))
    waits: list[object] = [10, *([Pause()] * 5), away(schemas, is_away=False), *([Pause()] * 5)]
    one = run_with(stage, schemas, waits, bad_records="dead_letter")
    assert stage.letters == []
    stalled = one.heard.of(PartitionStalled)[0]
    assert (stalled.partition, stalled.lag) == (0, 100)
    assert "does not answer" in stalled.cause
    assert one.heard.of(PartitionResumed) == [PartitionResumed(0)]
    assert newest(stage) == learned_whole(stage, V, [1] * 100, 100)


def test_what_was_learned_before_the_registry_went_away_is_saved() -> None:
    stage, V, schemas = Stage(), many(60), memory(SCHEMA)
    other = [avro(SCHEMA, avro_datum(row.tolist(), "v"), 2) for row in V[30:]]
    stage.send(0, [*avros(V[:30]), *other])
    one = cast(stage, plan_for(stage, "avro", schemas), [30, away(schemas, is_away=True), *([30] * 4)], ends=False)
    polls = 0

    def count(name: str) -> None:
        nonlocal polls
        polls += name == "poll"
        if polls > 12:
            one.worker.stop("enough")

    one.source._hook = count
    one.run()
    assert stage.position() == 30
    assert len(one.heard.of(PartitionStalled)) >= 2
    assert one.heard.of(PartitionResumed) == []
    schemas.away, schemas.schemas[2] = False, SCHEMA
    cast(stage, plan_for(stage, "avro", schemas)).run()
    assert newest(stage) == learned_whole(stage, V, [1] * 60, 60)


def test_a_held_partition_that_goes_to_another_worker_is_let_go() -> None:
    stage, V, schemas = Stage(partitions=2), many(40), memory(SCHEMA)
    schemas.away = True
    stage.send(0, avros(V))
    stage.send(1, avros(V))
    first = cast(stage, plan_for(stage, "avro", schemas), [5, Do(stage.topic.rebalance), *([Pause()] * 3)])
    first.source.stop = None
    seen = 0

    def count(name: str) -> None:
        nonlocal seen
        seen += name == "poll"
        if seen == 9:
            schemas.away = False
        if seen > 30:
            first.worker.stop("enough")

    first.source._hook = count
    first.run()
    assert stage.violations == []
    assert [stage.position(p) for p in (0, 1)] == [40, 40]


def test_a_schema_that_the_registry_does_not_know_is_the_record_s_fault() -> None:
    stage, V, schemas = Stage(), many(50), memory(SCHEMA)
    stage.send(0, [*avros(V[:20]), avro(SCHEMA, avro_datum([0.0] * D, "v"), 9), *avros(V[20:])])
    one = run_with(stage, schemas, [], bad_records="dead_letter")
    assert stage.letters == [(0, 20, "unknown_schema")]
    assert one.heard.of(PartitionStalled) == []
    assert newest(stage) == learned_whole(stage, V, [1] * 50, 51, ["unknown_schema"])


def test_a_registry_that_refuses_us_ends_the_worker() -> None:
    class Closed(MemorySchemas):
        def get(self, schema_id: int) -> WriterSchema:
            raise SourceError("the schema registry refuses us")

    stage = Stage()
    stage.send(0, avros(many(5)))
    with pytest.raises(SourceError, match="refuses us"):
        run_with(stage, Closed({}), [])
    assert stage.position() is None
