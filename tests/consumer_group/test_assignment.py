"""Partitions whose records cannot be decoded for now: none is lost, and the others continue."""

import itertools
from collections.abc import Callable

import pytest

from streampca.consumer_group.listener import PartitionResumed, PartitionStalled
from streampca.errors import OffsetGapError, SourceError
from streampca.fold.checkpoint import encode
from streampca.formats.schemas import MemorySchemas, WriterSchema
from streampca.sources.memory import Do, Pause
from tests.fold.streams import vectors
from tests.fold.structured import memory
from tests.worker.environment import Environment
from tests.worker.harness import SCHEMA, WorkerFixture, avros, config_for, learned_in_one_batch, make_worker


def run_with(env: Environment, schemas: MemorySchemas, script: list[object], **options: object) -> WorkerFixture:
    worker = make_worker(env, config_for(env, "avro", schemas, **options), script)  # type: ignore[arg-type]
    worker.run()
    return worker


def set_away(schemas: MemorySchemas, *, away: bool) -> Do:
    return Do(lambda: setattr(schemas, "away", away))


def at_poll(worker: WorkerFixture, actions: dict[int, Callable[[], None]]) -> None:
    """Act before polls of these numbers; the first is 1."""
    polls = itertools.count(1)

    def act(name: str) -> None:
        if name == "poll" and (action := actions.get(next(polls))):
            action()

    worker.source._hook = act


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
    assert encode(env.newest()) == learned_in_one_batch(env, V, [1] * 100, 100)


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
    at_poll(worker, {13: lambda: worker.stop("enough")})
    worker.run()
    assert env.position() == 30
    assert len(worker.recorder.of_type(PartitionStalled)) >= 2
    assert worker.recorder.of_type(PartitionResumed) == []
    schemas.away, schemas.schemas[2] = False, SCHEMA
    make_worker(env, config_for(env, "avro", schemas)).run()
    assert encode(env.newest()) == learned_in_one_batch(env, V, [1] * 60, 60)


def test_a_stalled_partition_is_released_in_a_rebalance() -> None:
    env, V, schemas = Environment(partitions=2), vectors(40), memory(SCHEMA)
    schemas.away = True
    env.send(0, avros(V))
    env.send(1, avros(V))
    first = make_worker(env, config_for(env, "avro", schemas), [5, Do(env.topic.rebalance), *([Pause()] * 3)])
    first.source.stop = None
    at_poll(first, {9: lambda: setattr(schemas, "away", False), 31: lambda: first.stop("enough")})
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


class FlakySchemas(MemorySchemas):
    """Does not answer the first few requests."""

    def __init__(self, failures: int) -> None:
        super().__init__(memory(SCHEMA).schemas)
        self.failures = failures

    def get(self, schema_id: int) -> WriterSchema:
        self.failures -= 1
        if self.failures >= 0:
            raise TimeoutError("the schema registry does not answer")
        return super().get(schema_id)


@pytest.mark.parametrize("prefetch", [1, 10, 10_000])
@pytest.mark.parametrize("failures", [1, 2, 3, pytest.param(8, marks=pytest.mark.slow)])
def test_a_flaky_registry_loses_no_record(prefetch: int, failures: int) -> None:
    """It may answer for a batch that was read after one that still waits."""
    env, V = Environment(), vectors(100)
    env.send(0, avros(V))
    config = config_for(env, "avro", FlakySchemas(failures), bad_records="dead_letter")
    worker = make_worker(env, config, batch=10, prefetch=prefetch)
    worker.run()
    assert env.dead_letters == []
    assert "does not answer" in worker.recorder.of_type(PartitionStalled)[0].cause
    assert encode(env.newest()) == learned_in_one_batch(env, V, [1] * 100, 100)
