"""Where a partition begins that has no checkpoint, and starts while the store does not answer."""

from pathlib import Path

import pytest

from streampca.errors import SettingsError, StoreBusyError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.fold.partitions import backfill_partition
from streampca.settings.worker import WorkerSettings
from tests.fold.streams import fold_config, fold_of, vectors
from tests.worker.environment import TOPIC, Environment
from tests.worker.harness import make_worker, worker_config

CONFIG = fold_config()


@pytest.fixture
def env() -> Environment:
    """A topic of two partitions with a message each second."""
    env = Environment(2)
    for second in range(100):
        for partition in (0, 1):
            env.send(partition, vectors(1, seed=second), 1000 * second)
    return env


def backfill(env: Environment, number: int, until: str) -> None:
    config = worker_config().fold
    fold: Fold = fold_of(vectors(300), config)
    checkpoint = Checkpoint(TOPIC, "", backfill_partition(number), fold, config.as_dict(), until)
    env.checkpoints.save(checkpoint)


def learned(env: Environment, start: str | int) -> list[int]:
    """The messages that a worker learns of each partition."""
    make_worker(env, worker_config(start=start)).run()
    assert env.violations == []
    newest = [env.checkpoints.newest(partition) for partition in (0, 1)]
    assert [each.fold.position for each in newest if each] == [100, 100]
    return [each.fold.stats.learned for each in newest if each]


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", [100, 100]), (30_000, [70, 70]), (29_001, [70, 70]), (0, [100, 100])]
)
def test_a_partition_begins_at_the_earliest_record_or_a_time(
    env: Environment, start: str | int, expected: list[int]
) -> None:
    assert learned(env, start) == expected


def test_latest_is_saved_at_once_so_that_no_crash_moves_it(env: Environment) -> None:
    make_worker(env, worker_config(start="latest", checkpoint_interval_s=1e9), stop_when_idle=True).run()
    env.send(0, vectors(5))
    assert learned_after_latest(env) == [5, 0]


def learned_after_latest(env: Environment) -> list[int]:
    make_worker(env, worker_config(start="latest")).run()
    return [found.fold.stats.learned for p in (0, 1) if (found := env.checkpoints.newest(p))]


@pytest.mark.parametrize(
    ("untils", "expected"),
    [
        (["30000"], [70, 70]),
        (["0:40,1:10"], [60, 90]),
        (["0:40"], [60, 100]),
        (["0:40", ""], [60, 100]),  # older files, learned later
        (["30000", "0:40"], [60, 70]),
        ([""], [100, 100]),
    ],
)
def test_a_partition_begins_where_the_backfills_end(env: Environment, untils: list[str], expected: list[int]) -> None:
    """Where the last of them ends, in each partition."""
    for number, until in enumerate(untils):
        backfill(env, number, until)
    assert learned(env, "backfill") == expected
    newest = env.models.newest()
    assert newest is not None
    assert newest.version == 300 * len(untils) + sum(expected)


def test_a_checkpoint_goes_before_any_start(env: Environment) -> None:
    make_worker(env, worker_config()).run()
    backfill(env, 0, "0:40,1:40")
    assert learned(env, "backfill") == [100, 100]


def test_a_backfill_that_is_missing_is_an_error(env: Environment) -> None:
    with pytest.raises(SettingsError, match="the store holds none of readings"):
        make_worker(env, worker_config(start="backfill")).run()


def test_a_start_that_is_no_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="start: "):
        WorkerSettings.read(None, topic="t", dimensions=2, components=1, start="yesterday")


def test_a_start_while_the_store_is_busy_waits(env: Environment) -> None:
    """Whatever it asks for first: the identity, a checkpoint, or both again when partitions are assigned."""
    make_worker(env, worker_config()).run()
    for faults in range(1, 5):
        env.send(0, vectors(10, seed=faults))
        env.store.fail_reads(faults, StoreBusyError("cannot read: 503 (a retry may help)"))
        make_worker(env, worker_config(), script=[10] * 40).run()
        assert env.position() == 100 + 10 * faults
        env.assert_complete()
