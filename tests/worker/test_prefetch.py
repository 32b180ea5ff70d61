"""Workers with a prefetch thread write the same checkpoints, to the byte, whatever happens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from streampca.errors import BadRecordError, SourceError
from streampca.sources.memory import Do, Step
from streampca.stream.formats.schemas import MemorySchemas, WriterSchema
from streampca.stream.record import Records
from streampca.worker.listener import BatchLearned, PartitionsReleased, PartitionStalled
from tests.kafka_broker import wait_until
from tests.stream.streams import fold_config
from tests.stream.structured import memory
from tests.worker.harness import POISON, Cast, Stage, cast, many, worker_config
from tests.worker.test_formats import SCHEMA, avros, learned_whole, newest, plan_for

PARTITIONS = 3


@pytest.mark.slow
# Nothing is shrunk: an example that runs into the harness's deadline takes long enough once.
@settings(deadline=None, max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    counts=st.lists(st.integers(0, 200), min_size=PARTITIONS, max_size=PARTITIONS),
    polls=st.lists(st.integers(1, 40), max_size=8),
    ahead=st.sampled_from([1, 30, 10_000]),
    rebalances=st.booleans(),
)
def test_whatever_the_polls_and_the_queue(counts: list[int], polls: list[int], ahead: int, rebalances: bool) -> None:
    stage, bad = Stage(PARTITIONS, fold_config(half_life_seconds=2.0)), (POISON, None)
    for partition, count in enumerate(counts):
        for start in range(0, count, 20):
            stage.send(partition, many(count, partition)[start : start + 20], 10**12 + 30 * start)
            stage.send(partition, bad, 10**12 + 50 * start)
    script: list[Step] = []
    for poll in polls:
        script += [poll, *[Do(stage.topic.rebalance)] * rebalances, poll]
    one = cast(stage, worker_config(stage.fold_config, bad_records="dead_letter"), script, ahead=ahead)
    one.run()
    stage.assert_complete()
    logs = enumerate(stage.topic.logs)
    put_aside = {(p, record.offset) for p, log in logs for record in log.records if record.value in bad}
    assert {(p, offset) for p, offset, _ in stage.letters} == put_aside


@contextmanager
def at_work(one: Cast) -> Iterator[list[BaseException]]:
    """A worker in a thread, stopped at the end; why it failed, if it did."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            one.run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, daemon=True)  # if it hangs, the test run still ends
    thread.start()
    try:
        yield failures
    finally:
        one.worker.stop("the test is over")
        thread.join(20)
        assert not thread.is_alive()


def test_workers_that_join_and_are_given_up_for_dead() -> None:
    """What one had decoded ahead of a partition that goes to another one is thrown away."""
    stage = Stage(PARTITIONS)
    own = worker_config(stage.fold_config, checkpoint_interval_s=30.0)
    for partition in range(PARTITIONS):
        stage.send(partition, many(3000, partition))
    first = cast(stage, own, batch=7, ends=False, ahead=200)
    with at_work(first) as failures:
        wait_until(lambda: len(first.heard.of(BatchLearned)) > 5)
        second = cast(stage, own, batch=7, ends=False, ahead=200)
        with at_work(second) as others:
            wait_until(lambda: second.heard.of(BatchLearned))
            with stage.topic.lock:
                stage.topic.evict(second.source)
            wait_until(lambda: any(event.lost for event in second.heard.of(PartitionsReleased)))
        wait_until(lambda: first.heard.positions == dict.fromkeys(range(PARTITIONS), 3000))
    assert failures == others == []
    assert any(not event.lost for event in first.heard.of(PartitionsReleased))
    stage.assert_complete()


def test_decoding_is_the_reading_thread_s_alone() -> None:
    stage, threads = Stage(), set()
    own = worker_config(stage.fold_config)
    plain = own.codec.vectors_of

    def vectors_of(event: Records) -> object:
        threads.add(threading.current_thread().name)
        return plain(event)

    object.__setattr__(own.codec, "vectors_of", vectors_of)  # frozen
    stage.send(0, many(300))
    cast(stage, own, [40] * 4, ahead=50).run()
    assert threads == {"prefetch"}
    stage.assert_complete()


def test_a_bad_record_stops_the_worker_behind_the_last_good_one() -> None:
    stage = Stage()
    stage.send(0, many(90))
    stage.send(0, [POISON])
    stage.send(0, many(50))
    with pytest.raises(BadRecordError, match="offset 90"):
        cast(stage, worker_config(stage.fold_config), ahead=1000).run()
    assert stage.position() == 90


class Patchy(MemorySchemas):
    """Does not answer the first few times."""

    def __init__(self, failures: int) -> None:
        super().__init__(memory(SCHEMA).schemas)
        self.failures = failures

    def get(self, schema_id: int) -> WriterSchema:
        self.failures -= 1
        if self.failures >= 0:
            raise TimeoutError("the schema registry does not answer")
        return super().get(schema_id)


@pytest.mark.parametrize("ahead", [1, 10, 10_000])
@pytest.mark.parametrize("failures", [1, 2, 3, 8])
def test_a_registry_that_is_away_costs_no_record(ahead: int, failures: int) -> None:
    """It may be back for a batch that was read behind one that waits for it."""
    stage, V = Stage(), many(100)
    stage.send(0, avros(V))
    own = plan_for(stage, "avro", Patchy(failures), bad_records="dead_letter")
    one = cast(stage, own, batch=10, ahead=ahead)
    one.run()
    assert stage.letters == []
    assert "does not answer" in one.heard.of(PartitionStalled)[0].cause
    assert newest(stage) == learned_whole(stage, V, [1] * 100, 100)


def test_a_registry_that_refuses_us_ends_the_worker_with_all_before_it_saved() -> None:
    class Closed(MemorySchemas):
        def get(self, schema_id: int) -> WriterSchema:
            if schema_id == 2:
                raise SourceError("the schema registry refuses us")
            return super().get(schema_id)

    stage, V = Stage(partitions=2), many(60)
    stage.send(0, avros(V))
    stage.send(1, [value.replace(b"\0\0\0\0\1", b"\0\0\0\0\2", 1) for value in avros(V)])
    own = plan_for(stage, "avro", Closed(memory(SCHEMA).schemas))
    with pytest.raises(SourceError, match="refuses us"):
        cast(stage, own, ahead=1000).run()
    assert stage.position(0) == 60
    assert stage.position(1) in (None, 0)
