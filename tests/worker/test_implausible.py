"""Implausible records are bad records like all others: the worker stops, skips them or makes dead letters."""

from dataclasses import replace

import numpy as np
import pytest

from streampca.errors import BadRecordError
from streampca.stream.checkpoint import Checkpoint, encode
from streampca.stream.record import last_of
from tests.stream.streams import D, vectors
from tests.worker.environment import POISON, TOPIC, Environment
from tests.worker.harness import make_worker, worker_config

BATCHES = [1, 13, 1000]
CLEAN = vectors(400)
BAD = [(100, "wrong_length"), (131, "implausible"), (132, "wrong_length"), (400, "implausible")]  # offsets


@pytest.fixture
def env() -> Environment:
    env, far, start = Environment(), np.full((1, D), 1e100), 0
    for offset, reason in BAD:
        end = start + offset - env.topic.logs[0].end
        env.send(0, CLEAN[start:end])
        env.send(0, far if reason == "implausible" else [POISON])
        start = end
    env.send(0, CLEAN[start:])
    return env


def expected(env: Environment) -> bytes:
    """The checkpoint of the clean stream, with the position and the rejects of this one."""
    clean = Environment()
    clean.send(0, CLEAN)
    checkpoint = clean.expected(0)
    fold = checkpoint.fold.reject([reason for _, reason in BAD]).at(env.topic.logs[0].end)
    fold = fold.after(last_of(env.topic.logs[0].records))
    return encode(Checkpoint(TOPIC, env.topic.id, 0, fold, checkpoint.settings))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("prefetch", [None, 50])
def test_an_implausible_record_is_a_dead_letter_and_changes_no_bit(
    env: Environment, batch: int, prefetch: int | None
) -> None:
    make_worker(
        env, worker_config(bad_records="dead_letter", checkpoint_interval_s=60), batch=batch, prefetch=prefetch
    ).run()
    assert env.dead_letters == [(0, offset, reason) for offset, reason in BAD]
    newest = env.checkpoints.newest(0)
    assert newest is not None
    assert encode(newest) == expected(env)


@pytest.mark.parametrize("batch", BATCHES)
def test_the_worker_stops_at_the_first_bad_record_whatever_its_reason(env: Environment, batch: int) -> None:
    for offset, reason in BAD[:3]:
        with pytest.raises(
            BadRecordError, match=rf"partition 0 of readings, offset {offset}: .*\({reason}\); .*correct format"
        ):
            make_worker(env, worker_config(bad_records="stop", checkpoint_interval_s=60), batch=batch).run()
        assert env.position() == offset
        records = env.topic.logs[0].records
        records[offset] = replace(records[offset], value=CLEAN[0].tobytes())  # mended


@pytest.mark.parametrize("batch", BATCHES)
def test_they_are_learned_if_the_factor_is_zero(env: Environment, batch: int) -> None:
    make_worker(
        env, worker_config(bad_records="skip", checkpoint_interval_s=60, implausible_factor=0), batch=batch
    ).run()
    newest = env.checkpoints.newest(0)
    assert newest is not None
    assert dict(newest.fold.stats.rejected) == {"wrong_length": 2}
