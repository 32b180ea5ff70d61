"""Where reading resumes: a log that lost records, and partitions whose records cannot be decoded for now."""

import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest

from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.events import (
    OffsetsSkipped,
    PartitionsAssigned,
    PartitionsReleased,
    PartitionStalled,
)  # fmt: skip
from streampca.consumer_group.first_records import FirstRecords
from streampca.consumer_group.in_flight import InFlight
from streampca.errors import OffsetGapError, SourceError, StoreError, TopicReplacedError
from streampca.fold.checkpoint import encode
from streampca.fold.fold import Fold
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.schemas import WriterSchema
from streampca.sources.events import OutOfRange, Undecoded, decode_records
from streampca.transform.position import Position
from streampca.worker.checkpointer import WorkerConfig
from streampca.worker.loop import Learned
from tests.errors import refusal
from tests.fold.streams import vectors
from tests.formats.structured import memory
from tests.in_memory import MemorySource, MemoryTopic
from tests.in_memory.schemas import MemorySchemas
from tests.members import make_member
from tests.worker.environment import (
    POISON,
    TOPIC,
    Environment,
    EventRecorder,
    N,
    make_environment,
    make_filled_environment,
)
from tests.worker.harness import (
    SCHEMA,
    SynchronousExecutor,
    WorkerFixture,
    act_at_polls,
    hide_broker_at_lookup,
    learn_in_one_batch,
    make_avro_values,
    make_config_for,
    make_worker,
    make_worker_config,
    run_until,
)


@pytest.mark.parametrize("on_offset_gap", ["fail", "earliest", "latest"])
@pytest.mark.parametrize("position", [50, 70, 90, 91])
def test_a_log_that_lost_records_that_were_read_is_refused(on_offset_gap: str, position: int) -> None:
    policy = make_worker_config(on_offset_gap=on_offset_gap)
    with pytest.raises(SourceError, match=rf"^partition 3 .* {position} .*50 to 90.* lost .* group_id$"):
        policy.choose_resume_offset(OutOfRange(partition=3, position=position, earliest=50, latest=90))


@pytest.fixture
def filled() -> Environment:
    return make_filled_environment(N)


@pytest.fixture
def trimmed(filled: Environment) -> Environment:
    """An environment learned up to 100 where retention has removed everything before 180."""
    run_until(filled, 100)
    filled.topic.trim(0, 180)
    return filled


def figures(env: Environment) -> tuple[int, int, int]:
    """Position, learned messages and gap of the newest checkpoint."""
    fold = env.newest().fold
    return fold.position, fold.stats.learned, fold.stats.gap


def test_lost_records_stop_the_worker_and_the_error_names_the_setting(trimmed: Environment) -> None:
    text = refusal(OffsetGapError, make_worker(trimmed, make_worker_config(on_offset_gap="fail")).run)
    assert re.match(rf"partition 0 of {TOPIC}: offset 100 was removed by retention.* 180; set on_offset_gap ", text)
    assert trimmed.calls("save", "commit") == []


@pytest.mark.parametrize(("policy", "position"), [("earliest", 180), ("latest", N)])
def test_lost_records_are_skipped_by_policy_and_counted_once(trimmed: Environment, policy: str, position: int) -> None:
    """Although the broker is away when it is asked whether the topic is the same."""
    away = hide_broker_at_lookup(trimmed, 3)
    worker = make_worker(trimmed, make_worker_config(on_offset_gap=policy), hook=away).run()
    assert [entry[1] for entry in trimmed.calls("seek")] == [{0: 100}, {0: 100}, {0: position}]
    assert worker.recorder.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 100, position)]
    assert figures(trimmed) == (N, 100 + N - position, position - 100)


def test_a_log_that_ends_before_the_checkpoint_is_an_error(filled: Environment) -> None:
    make_worker(filled).run()
    log = filled.topic.logs[0]
    del log.records[200:]
    log.end = 200
    assert "lost data" in refusal(OffsetGapError, make_worker(filled, make_worker_config(on_offset_gap="earliest")).run)
    assert filled.position() == N


def test_records_removed_before_the_first_poll_are_not_lost() -> None:
    env = make_filled_environment(100)
    worker = make_worker(env, make_worker_config(on_offset_gap="fail"))
    original_poll = worker.source.poll
    out_of_range = iter([OutOfRange(0, 0, 40, 100)])

    def poll(timeout_s: float) -> Any:
        if worker.recorder.of_type(PartitionsAssigned) and (event := next(out_of_range, None)):
            env.topic.trim(0, 40)
            return [event]
        return original_poll(timeout_s)

    worker.source.poll = poll  # type: ignore[method-assign]
    worker.run()
    assert env.calls("seek") == [("seek", {0: None}), ("seek", {0: None})]
    assert figures(env) == (100, 60, 0)


def test_a_replaced_topic_is_not_mistaken_for_lost_records(trimmed: Environment) -> None:
    script = [lambda: trimmed.topic.create(1), 10]
    refusal(TopicReplacedError, make_worker(trimmed, make_worker_config(on_offset_gap="earliest"), script).run)
    assert trimmed.calls("save", "commit") == []


def cut_and_grow_log(env: Environment) -> None:
    """Lose the last 40 of 100 records; append 90 others."""
    env.topic.truncate(0, 60)
    env.send(0, vectors(90, seed=7))


@pytest.fixture
def env() -> Environment:
    """A topic whose first 100 records have been learned."""
    env = make_filled_environment(100)
    make_worker(env).run()
    return env


def test_the_worker_stops_and_changes_nothing(env: Environment) -> None:
    before = env.newest()
    cut_and_grow_log(env)
    words = rf"partition 0 of {TOPIC}: offset 100 .* cut at offset 60 or before .* group_id, .* on_offset_gap "
    assert re.match(words, refusal(OffsetGapError, make_worker(env).run))
    assert encode(env.newest()) == encode(before)
    assert env.checkpoints.offsets(0) == [100]


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(("policy", "position", "learned"), [("earliest", 100, 150), ("latest", 150, 100)])
def test_the_worker_resumes_as_on_offset_gap_allows(
    env: Environment, running: bool, policy: str, position: int, learned: int
) -> None:
    if not running:
        cut_and_grow_log(env)
    script = [10, 10, lambda: cut_and_grow_log(env)] if running else []
    worker = make_worker(env, make_worker_config(env.fold_config, on_offset_gap=policy), script).run()
    assert worker.recorder.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 60, position, truncated=True)]
    assert figures(env) == (150, learned, position - 60)
    assert make_worker(env).run().recorder.of_type(OffsetsSkipped) == []


@pytest.mark.parametrize(
    "change",
    [lambda topic: (topic.truncate(0, 100), topic.skip(0, 5)), lambda topic: topic.trim(0, 103)],
    ids=["cut", "retention"],
)
def test_offsets_without_a_record_behind_the_last_one_may_vanish(
    env: Environment, change: Callable[[MemoryTopic], object]
) -> None:
    env.topic.skip(0, 5)
    make_worker(env).run()
    assert env.position() == 105
    change(env.topic)
    env.send(0, vectors(50, seed=3))
    make_worker(env).run()
    assert figures(env) == (155, 150, 0)


def test_a_checkpoint_without_the_last_record_is_used_unchecked(env: Environment) -> None:
    newest = env.newest()
    assert newest.fold.last == (99, 0)
    old = replace(newest, fold=replace(newest.fold, last=None))
    env.store.write(f"checkpoints/{TOPIC}/0/{100:020d}.npz", encode(old))
    cut_and_grow_log(env)
    make_worker(env).run()
    assert env.position() == 150


# --- records that cannot be decoded for now ---------------------------------------------------------------------------


def run_with(env: Environment, schemas: MemorySchemas, script: list[object], **options: object) -> WorkerFixture:
    return make_worker(env, make_config_for(env, "avro", schemas, **options), script).run()  # type: ignore[arg-type]


def set_away(schemas: MemorySchemas, *, away: bool) -> Callable[[], None]:
    return lambda: setattr(schemas, "away", away)


def test_a_log_that_is_cut_while_the_registry_is_away_is_noticed() -> None:
    V, schemas = vectors(100), memory(SCHEMA)
    env = make_environment([*make_avro_values(V[:80]), *make_avro_values(V[80:], 2)])

    def cut_and_grow() -> None:
        schemas.away = False
        env.topic.truncate(0, 60)
        env.send(0, make_avro_values(vectors(90, seed=7)))

    script: list[object] = [80, set_away(schemas, away=True), 20, cut_and_grow, *([None] * 5)]
    assert "offset 80 follows records that are not in the log any more" in refusal(
        OffsetGapError, run_with, env, schemas, script
    )
    assert env.position() == 80


def test_messages_before_the_registry_failed_are_saved() -> None:
    env, V, schemas = Environment(), vectors(60), memory(SCHEMA)
    env.send(0, [*make_avro_values(V[:30]), *make_avro_values(V[30:], 2)])
    worker = make_worker(
        env,
        make_config_for(env, "avro", schemas),
        [30, set_away(schemas, away=True), *([30] * 4)],
        stop_when_idle=False,
    )
    act_at_polls(worker, {13: lambda: worker.stop("enough")})
    member = make_member()
    worker.also_notify(member.notify).run()
    assert env.position() == 30
    assert len(worker.recorder.of_type(PartitionStalled)) >= 2
    assert member.state.partitions.are_stalled
    schemas.away, schemas.schemas[2] = False, SCHEMA
    make_worker(env, make_config_for(env, "avro", schemas)).run()
    assert encode(env.newest()) == learn_in_one_batch(env, V, [1] * 60, 60)


def test_a_registry_that_denies_access_ends_the_worker() -> None:
    class ForbiddenSchemas(MemorySchemas):
        def get(self, schema_id: int | str) -> WriterSchema:
            raise SourceError("the schema registry refuses us")

    env = make_environment(make_avro_values(vectors(5)))
    assert "refuses us" in refusal(SourceError, run_with, env, ForbiddenSchemas({}), [])
    assert env.position() is None


class FlakySchemas(MemorySchemas):
    """Does not answer the first few requests."""

    def __init__(self, failures: int) -> None:
        super().__init__(memory(SCHEMA).schemas)
        self.failures = failures

    def get(self, schema_id: int | str) -> WriterSchema:
        self.failures -= 1
        if self.failures >= 0:
            raise TimeoutError("the schema registry does not answer")
        return super().get(schema_id)


@pytest.mark.parametrize("limit_bytes", [1, 1000, 10**6])
@pytest.mark.parametrize("failures", [1, 2, 3, pytest.param(8, marks=pytest.mark.slow)])
def test_a_flaky_registry_loses_no_record(limit_bytes: int, failures: int) -> None:
    """It may answer for a batch that was read after one that still waits."""
    env, V = Environment(), vectors(100)
    env.send(0, make_avro_values(V))
    config = make_config_for(env, "avro", FlakySchemas(failures), on_bad_record="dead_letter")
    member = make_member()
    worker = make_worker(env, config, batch=10, threads=ThreadPoolExecutor(2), limit_bytes=limit_bytes)
    worker.also_notify(member.notify).run()
    assert env.dead_letters == []
    stalled = worker.recorder.of_type(PartitionStalled)[0]
    assert (stalled.partition, stalled.lag) == (0, 100)
    assert "does not answer" in stalled.cause
    assert not member.state.partitions.are_stalled
    assert encode(env.newest()) == learn_in_one_batch(env, V, [1] * 100, 100)


# --- what was read, and not handled -----------------------------------------------------------------------------------


def guess_type(env: Environment, **options: Any) -> WorkerConfig:
    """Whose first records are compared: bad ones, which hold no numbers, do not wait."""
    return replace(make_worker_config(**options), codec=Codec("float64", Judge.of(env.fold_config.learning)))


@pytest.mark.parametrize("on_offset_gap", ["fail", "earliest", "latest"])
@pytest.mark.parametrize("handled", [0, 5])
@pytest.mark.parametrize("end", [5, 20, 39])
def test_a_log_that_is_cut_behind_what_was_handled_loses_nothing(on_offset_gap: str, handled: int, end: int) -> None:
    """Records that were compared, and not handled, are read again, as the log holds them now."""
    env = make_environment([POISON] * handled)
    env.topic.skip(0, 5 - handled)

    def cut_and_grow() -> None:
        env.topic.truncate(0, end)
        env.send(0, vectors(150, seed=7))

    script = [1000, lambda: env.send(0, vectors(35)), 1000, None, cut_and_grow, *[1000] * 4]
    config = guess_type(env, on_bad_record="skip", on_offset_gap=on_offset_gap)
    worker = make_worker(env, config, script).run()
    assert worker.recorder.of_type(OffsetsSkipped) == []
    assert figures(env) == (end + 150, end - 5 + 150, 0)
    env.assert_complete()


@pytest.mark.parametrize(("policy", "learned"), [("earliest", 150), ("latest", 0)])
def test_where_handled_records_are_lost_only_those_count(policy: str, learned: int) -> None:
    env = make_environment([POISON] * 5)

    def cut_and_grow() -> None:
        env.topic.truncate(0, 3)
        env.send(0, vectors(152, seed=7))

    script = [5, lambda: env.send(0, vectors(35)), 35, None, cut_and_grow, *[1000] * 4]
    config = guess_type(env, on_bad_record="skip", on_offset_gap=policy)
    worker = make_worker(env, config, script).run()
    position = 5 if policy == "earliest" else 155
    assert worker.recorder.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 3, position, truncated=True)]
    assert figures(env) == (155, learned, position - 3)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("restored", [frozenset(), frozenset({1}), frozenset({0, 1})])
def test_all_that_is_released_is_reported_whether_it_was_restored_or_not(restored: frozenset[int], lost: bool) -> None:
    """A partition that stalls may be revoked while it waits to be restored again: its stall is over, too."""
    env, recorder = make_filled_environment(10, 10), EventRecorder()
    source, config = MemorySource(env.topic), guess_type(env)
    source.poll(0), source.poll(0)
    answers = iter([frozenset({0, 1}), restored])

    def restore(partitions: Collection[int]) -> Iterator[dict[int, Fold]]:
        found = next(answers)
        if not found:
            raise StoreError("away")
        yield {p: Fold.empty(env.fold_config.learning) for p in found}

    first_records = FirstRecords(TOPIC, config.codec)
    in_flight = InFlight[Learned](SynchronousExecutor(), partial(decode_records, config.codec), limit_bytes=1000)
    assignment = Assignment[Fold](config, source, in_flight, restore, recorder.notify, first_records)
    assignment.assign({0, 1})
    assignment._pause_undecoded(Undecoded(0, 0, 10, "the registry is away"))
    assignment.restart()
    assignment.retry_when_due(0.0)
    assignment.retry_when_due(100.0)
    assert assignment.progress.keys() == restored
    assignment.release({0, 1}, lost=lost)
    assert assignment.progress == {}
    assert recorder.of_type(PartitionsReleased) == [PartitionsReleased([0, 1], lost)]


def test_partitions_that_wait_to_be_restored_again_are_reported_as_released() -> None:
    """They were reported as assigned before."""
    recorder, unused = EventRecorder(), mock.Mock()

    def restore(partitions: Collection[int]) -> Iterator[dict[int, Position]]:
        yield {p: Position(5) for p in partitions}

    assignment = Assignment[Position](unused, unused, unused, restore, recorder.notify, unused)
    assignment.assign([0, 1])
    assignment.restart()
    assignment.release([0], lost=False)
    assert recorder.of_type(PartitionsReleased) == [PartitionsReleased([0], lost=False)]
