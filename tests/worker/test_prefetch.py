"""Workers with a prefetch thread write the same checkpoints, to the byte, whatever happens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from streampca.consumer_group.listener import BatchLearned, PartitionsReleased, PartitionStalled
from streampca.errors import BadRecordError, SourceError
from streampca.sources.memory import Do, Step
from streampca.stream.events import Records
from streampca.stream.formats.schemas import MemorySchemas, WriterSchema
from tests.broker_process import PATIENCE_S, wait_until
from tests.stream.streams import fold_config, vectors
from tests.stream.structured import memory
from tests.worker.environment import POISON, Environment
from tests.worker.harness import WorkerFixture, make_worker, worker_config
from tests.worker.test_formats import SCHEMA, avros, config_for, learned_in_one_batch, newest

PARTITIONS = 3


@pytest.mark.slow
# Nothing is shrunk: an example that runs into the harness's deadline takes long enough once.
@settings(deadline=None, max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    counts=st.lists(st.integers(0, 200), min_size=PARTITIONS, max_size=PARTITIONS),
    polls=st.lists(st.integers(1, 40), max_size=8),
    prefetch=st.sampled_from([1, 30, 10_000]),
    rebalances=st.booleans(),
)
def test_same_checkpoints_for_any_polls_and_queue(
    counts: list[int], polls: list[int], prefetch: int, rebalances: bool
) -> None:
    env, bad = Environment(PARTITIONS, fold_config(half_life_seconds=2.0)), (POISON, None)
    for partition, count in enumerate(counts):
        for start in range(0, count, 20):
            env.send(partition, vectors(count, seed=partition)[start : start + 20], 10**12 + 30 * start)
            env.send(partition, bad, 10**12 + 50 * start)
    script: list[Step] = []
    for poll in polls:
        script += [poll, *[Do(env.topic.rebalance)] * rebalances, poll]
    # Without a limit: rejects that come first after a rebalance would be held back at the end.
    config = worker_config(env.fold_config, bad_records="dead_letter", max_rejected_share=1.0)
    worker = make_worker(env, config, script, prefetch=prefetch)
    worker.run()
    env.assert_complete()
    logs = enumerate(env.topic.logs)
    rejected = {(p, record.offset) for p, log in logs for record in log.records if record.value in bad}
    assert {(p, offset) for p, offset, _ in env.dead_letters} == rejected


@contextmanager
def running(worker: WorkerFixture) -> Iterator[list[BaseException]]:
    """Run a worker in a thread and stop it at the end; yields a list that receives its exception, if it fails."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, daemon=True)  # if it hangs, the test run still ends
    thread.start()
    try:
        yield failures
    finally:
        worker.stop("end of test")
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.slow
def test_joining_and_evicted_workers() -> None:
    """Prefetched batches of a partition that is assigned to another worker are discarded."""
    env = Environment(PARTITIONS)
    config = worker_config(env.fold_config, checkpoint_interval_s=30.0)
    for partition in range(PARTITIONS):
        env.send(partition, vectors(3000, seed=partition))

    def ends() -> dict[int, int]:
        return {partition: log.end for partition, log in enumerate(env.topic.logs)}

    def send_more() -> None:
        if first.recorder.positions == ends():  # it may have been quick
            for partition in range(PARTITIONS):
                env.send(partition, vectors(20, seed=partition))

    first = make_worker(env, config, batch=7, stop_when_idle=False, prefetch=200)
    with running(first) as failures:
        wait_until(lambda: len(first.recorder.of_type(BatchLearned)) > 5)
        second = make_worker(env, config, batch=7, stop_when_idle=False, prefetch=200)
        with running(second) as others:
            wait_until(lambda: second.recorder.of_type(BatchLearned) or send_more())
            with env.topic.lock:
                env.topic.evict(second.source)
            wait_until(lambda: any(event.lost for event in second.recorder.of_type(PartitionsReleased)))
        wait_until(lambda: first.recorder.positions == ends())
    assert failures == others == []
    assert any(not event.lost for event in first.recorder.of_type(PartitionsReleased))
    env.assert_complete()


def test_decoding_runs_in_the_prefetch_thread_only() -> None:
    env, threads = Environment(), set()
    config = worker_config(env.fold_config)
    original = config.codec.vectors_of

    def vectors_of(event: Records) -> object:
        threads.add(threading.current_thread().name)
        return original(event)

    object.__setattr__(config.codec, "vectors_of", vectors_of)  # frozen
    env.send(0, vectors(300))
    make_worker(env, config, [40] * 4, prefetch=50).run()
    assert threads == {"prefetch"}
    env.assert_complete()


def test_a_bad_record_stops_the_worker_after_the_last_good_one() -> None:
    env = Environment()
    env.send(0, vectors(90))
    env.send(0, [POISON])
    env.send(0, vectors(50))
    with pytest.raises(BadRecordError, match="offset 90"):
        make_worker(env, worker_config(env.fold_config), prefetch=1000).run()
    assert env.position() == 90


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
def test_an_unavailable_registry_loses_no_record(prefetch: int, failures: int) -> None:
    """It may answer for a batch that was read after one that still waits."""
    env, V = Environment(), vectors(100)
    env.send(0, avros(V))
    config = config_for(env, "avro", FlakySchemas(failures), bad_records="dead_letter")
    worker = make_worker(env, config, batch=10, prefetch=prefetch)
    worker.run()
    assert env.dead_letters == []
    assert "does not answer" in worker.recorder.of_type(PartitionStalled)[0].cause
    assert newest(env) == learned_in_one_batch(env, V, [1] * 100, 100)


def test_a_registry_that_denies_access_ends_the_worker_after_saving() -> None:
    class ForbiddenSchemas(MemorySchemas):
        def get(self, schema_id: int) -> WriterSchema:
            if schema_id == 2:
                raise SourceError("the schema registry refuses us")
            return super().get(schema_id)

    env, V = Environment(partitions=2), vectors(60)
    env.send(0, avros(V))
    env.send(1, [value.replace(b"\0\0\0\0\1", b"\0\0\0\0\2", 1) for value in avros(V)])
    config = config_for(env, "avro", ForbiddenSchemas(memory(SCHEMA).schemas))
    with pytest.raises(SourceError, match="refuses us"):
        make_worker(env, config, prefetch=1000).run()
    assert env.position(0) == 60
    assert env.position(1) in (None, 0)
