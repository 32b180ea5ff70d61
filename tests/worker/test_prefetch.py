"""Workers with a prefetch thread write the same checkpoints, to the byte, whatever happens."""

import threading

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from streampca.consumer_group.listener import PartitionStalled
from streampca.fold.events import Records
from streampca.formats.schemas import MemorySchemas, WriterSchema
from streampca.sources.memory import Do, Step
from tests.fold.streams import fold_config, vectors
from tests.fold.structured import memory
from tests.worker.environment import POISON, Environment
from tests.worker.harness import make_worker, worker_config
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
    config = worker_config(env.fold_config, bad_records="dead_letter")
    worker = make_worker(env, config, script, prefetch=prefetch)
    worker.run()
    env.assert_complete()
    logs = enumerate(env.topic.logs)
    rejected = {(p, record.offset) for p, log in logs for record in log.records if record.value in bad}
    assert {(p, offset) for p, offset, _ in env.dead_letters} == rejected


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
