"""Bad records end a member only if nothing was learned; first records wait until they could be compared."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streampca.consumer_group.events import BatchLearned, PartitionsReleased
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.pca.arrays import Array
from streampca.worker.checkpointer import WorkerConfig
from tests.fold.streams import D, fold_config, vectors
from tests.in_memory import Step
from tests.transform.harness import DEAD, OUTPUT, Member, World
from tests.worker.environment import POISON, Environment, environment_of, filled_with
from tests.worker.harness import WorkerFixture, make_worker, refused, worker_config

SENDING = worker_config(on_bad_record="dead_letter")


def test_wrong_settings_neither_send_nor_save_and_all_is_learned_later() -> None:
    """The wrong number of dimensions, then the right one: the bytes are as if it had been right from the start."""
    env = environment_of(vectors(300), [])
    wrong = fold_config(dimensions=D + 1)
    codec = Codec("float64", Judge.of(wrong.learning))
    for _ in range(2):  # a supervisor restarts it
        message = refused(make_worker(env, replace(SENDING, fold=wrong, codec=codec)))
    assert "partition 0 of readings: 100 records in a row were rejected, from offset 0 on" in message
    assert f"all as wrong_length, such as offset 0: {8 * D} bytes are not {D + 1} numbers" in message
    assert "reads all of them again" in message
    assert env.calls("send") == []
    assert {entry[1] for entry in env.calls("save")} <= {1}
    env.send(1, vectors(150, seed=1))
    make_worker(env, SENDING).run()
    assert env.dead_letters == []
    env.assert_complete()


@pytest.mark.parametrize(("bad", "good"), [(99, 1), (99, 0), (1, 0)])
def test_fewer_bad_records_are_sent_at_once(bad: int, good: int) -> None:
    env = environment_of([POISON] * bad)
    env.send(0, vectors(good))
    make_worker(env, SENDING).run()
    assert [offset for _, offset, _ in env.dead_letters] == list(range(bad))
    env.assert_complete()


@pytest.mark.parametrize("counts", [(300, 0), (0, 300)])
def test_bad_records_end_no_worker_that_has_learned(counts: tuple[int, int]) -> None:
    """In this partition or in another one; after a restart, the model has the bytes of the undisturbed run."""
    env = filled_with(*counts)
    make_worker(env, SENDING).run()
    env.send(0, [POISON] * 120)
    for partition in (0, 1):
        env.send(partition, vectors(50, seed=partition))
    make_worker(env, SENDING).run()
    assert env.dead_letters == [(0, offset, "wrong_length") for offset in range(counts[0], counts[0] + 120)]
    env.assert_complete()


@pytest.mark.parametrize("good", [0, 1])
def test_deletes_between_the_first_bad_records_do_not_hide_a_wrong_setting(good: int) -> None:
    """A vector before the hundredth bad record does: then the setting is right."""
    env = filled_with(good)
    env.send(0, [POISON, None] * 120)
    if good:
        make_worker(env, SENDING).run()
        assert len(env.dead_letters) == 120
        env.assert_complete()
    else:
        assert "100 records in a row were rejected" in refused(make_worker(env, SENDING))
        assert env.dead_letters == []


def test_an_operator_may_leave_out_the_first_records() -> None:
    env = environment_of([POISON] * 1200)
    refused(make_worker(env, SENDING))
    make_worker(env, worker_config(on_bad_record="skip")).run()
    assert env.dead_letters == []
    env.assert_complete()


# The first records.


def config(env: Environment, kind: str = "float64", **options: Any) -> WorkerConfig:
    return replace(worker_config(env.fold_config, **options), codec=Codec(kind, Judge.of(env.fold_config.learning)))


def foreign(V: Array) -> list[bytes]:
    """As Java's ByteBuffer writes them."""
    return [row.astype(">f8").tobytes() for row in V]


@pytest.mark.parametrize("policy", ["stop", "skip", "dead_letter"])
@pytest.mark.parametrize("batch", [1, 30, 1000])
def test_a_worker_ends_before_it_learns_saves_or_sends(batch: int, policy: str) -> None:
    """Most of these records are also bad ones: not finite, or too large."""
    env = environment_of(foreign(vectors(300)))
    worker = make_worker(env, config(env, on_bad_record=policy), batch=batch)
    message = refused(worker)
    assert message.startswith("partition 0 of readings: ")
    assert "plausible as >f8, " in message
    assert message.endswith("skip this test with format=<f8 if the numbers are right")
    assert worker.recorder.of_type(BatchLearned) == []
    assert env.calls("send", "publish") == []
    assert env.position(0) is None
    make_worker(env, config(env, ">f8", on_bad_record="stop")).run()
    assert env.newest(0).fold.stats.learned == 300


def test_the_first_records_are_learned_when_100_were_seen() -> None:
    env = filled_with(250)
    worker = make_worker(env, config(env), [40, 40, 40, 90]).run()  # the last one reads them again
    assert env.calls("seek") == [("seek", {0: None})] * 2
    assert [event.fold.position for event in worker.recorder.of_type(BatchLearned)] == [90, 250]
    assert [entry[2] for entry in env.calls("save")] == [90, 250]
    env.assert_complete()


def test_100_records_at_once_are_learned_at_once() -> None:
    env = filled_with(250)
    make_worker(env, config(env), [100]).run()
    assert env.calls("seek") == [("seek", {0: None})]
    assert [entry[2] for entry in env.calls("save")] == [100, 250]


def test_first_records_are_held_back_for_a_minute_at_most() -> None:
    """The clock advances by a second or two in a turn."""
    env = filled_with(10)
    script: list[Step] = [10, *[None] * 20, lambda: env.send(0, vectors(5, seed=1)), 5, *[None] * 60]
    make_worker(env, config(env), script).run()
    assert [entry[2] for entry in env.calls("save")] == [15]
    env.assert_complete()
    env.journal.clear()
    env.send(0, vectors(5, seed=2))
    make_worker(env, config(env), [5, None]).run()  # a partition with a checkpoint does not wait
    assert [entry[2] for entry in env.calls("save")] == [20]


def test_records_after_the_minute_are_compared_with_the_first_ones() -> None:
    env = filled_with(15)
    script: list[Step] = [15, *[None] * 80, lambda: env.send(0, foreign(vectors(84))), *[1] * 84]
    assert "decades" in refused(make_worker(env, config(env, on_bad_record="skip"), script, batch=1))
    assert env.position(0) is not None


def test_records_held_back_when_a_worker_stops_are_left_to_the_next_one() -> None:
    env = environment_of([*[row.tobytes() for row in vectors(20)], POISON])
    script: list[Step] = [21, lambda: worker.stop("SIGTERM"), None]
    worker: WorkerFixture = make_worker(env, config(env, on_bad_record="dead_letter"), script)
    worker.run()
    assert env.calls("send", "save", "commit") == []
    make_worker(env, config(env, on_bad_record="dead_letter"), [21, *[None] * 80]).run()
    assert env.dead_letters == [(0, 20, "wrong_length")]
    env.assert_complete()


@pytest.mark.parametrize("again", ["rebalance", "eviction"])
def test_the_minute_begins_anew_when_the_partition_comes_back(again: str) -> None:
    """The clock advances by two seconds in a turn: each wait is shorter than a minute, and both together are longer."""
    env = filled_with(15)
    give_up = env.topic.rebalance if again == "rebalance" else lambda: env.topic.evict(worker.source)
    script: list[Step] = [15, *[None] * 22, give_up, *[15] * 4, *[None] * 18, lambda: worker.stop("SIGTERM"), None]
    worker: WorkerFixture = make_worker(env, config(env), script)
    worker.run()
    assert worker.recorder.of_type(PartitionsReleased)
    assert worker.recorder.of_type(BatchLearned) == []


@pytest.mark.parametrize("batch", [5, 1000])
def test_transform_ends_before_it_writes(batch: int) -> None:
    world = World(0)
    world.topic.append(0, *foreign(np.random.default_rng(0).normal(size=(150, 5))))
    message = refused(Member(world, batch=batch, kind="float64", on_bad_record="dead_letter"))
    assert "plausible as >f8, " in message
    assert not world.written[OUTPUT] + world.written[DEAD]
    assert not world.topic.committed.get(0)
