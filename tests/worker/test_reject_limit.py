"""A worker ends when most records are rejected, before these are sent, saved or committed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.consumer_group.listener import RecordRejected
from streampca.consumer_group.rejects import RejectWindow
from streampca.errors import RejectLimitError, exit_code_of
from streampca.stream.codec import Codec
from streampca.stream.decoded import Decoded, Reject
from streampca.stream.events import Vectors
from streampca.stream.record import PlainRecord
from streampca.worker.loop import WorkerConfig
from tests.stream.streams import D, fold_config, vectors
from tests.worker.environment import POISON, Environment
from tests.worker.harness import WorkerFixture, make_worker, worker_config

Script = Sequence[Any]
FOREVER = 10**9  # seconds: no save before the end


def config(**options: Any) -> WorkerConfig:
    return worker_config(**{"bad_records": "dead_letter"} | options)


def refused(worker: WorkerFixture) -> str:
    with pytest.raises(RejectLimitError) as error:
        worker.run()
    assert exit_code_of(error.value) == 3
    return str(error.value)


def batch_of(first: int, good: Sequence[bool]) -> tuple[Vectors, list[Reject]]:
    records = [PlainRecord(first + place, b"") for place in range(len(good))]
    rejects = [Reject(place, "wrong_length", "") for place, is_good in enumerate(good) if not is_good]
    nothing = Decoded(np.zeros((0, D)), np.zeros(0, np.int64), [], np.zeros(0, np.int64))
    return Vectors(0, nothing, np.zeros(0, np.int64), records, first + len(good), first + len(good)), rejects


@st.composite
def runs(draw: st.DrawFn) -> list[bool]:
    """Records, good or not, in runs with shares of their own."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    parts = draw(st.lists(st.tuples(st.integers(1, 900), st.sampled_from([0.0, 0.4, 0.5, 0.6, 1.0])), max_size=5))
    return [bool(good) for n, share in parts for good in random.random(n) >= share]


@settings(deadline=None, max_examples=60)
@given(good=runs(), size=st.sampled_from([1, 7, 100, 2000]), share=st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]))
def test_the_limit_is_exceeded_at_the_same_record_whatever_the_batches(
    good: list[bool], size: int, share: float
) -> None:
    bad = np.cumsum([0, *(not is_good for is_good in good)])
    among_last = [int(bad[n] - bad[max(n - 1000, 0)]) for n in range(len(bad))]
    exceeded = [n for n, rejected in enumerate(among_last) if rejected > share * 1000 or n == 100 == rejected]
    expected = min(exceeded, default=None) if share < 1 else None
    window, found = RejectWindow(share), None
    for first in range(0, len(good), size):
        if window.add(*batch_of(first, good[first : first + size])):
            found = window._seen
            break
        recent = good[: first + size][-10:]
        assert window.is_suspicious == (recent.count(False) > share * len(recent))
    assert found == expected


@pytest.mark.parametrize("batch", [5, 30, 1000])
def test_first_records_that_all_fail_are_neither_sent_nor_saved_and_are_learned_later(batch: int) -> None:
    """The wrong number of dimensions, then the right one: the bytes are as if it had been right from the start."""
    env = Environment(partitions=2)  # nothing is in the other one
    env.send(0, vectors(300))
    wrong = fold_config(dimensions=D + 1)
    codec = Codec("float64", D + 1, wrong.learning.largest_value)
    for _ in range(2):  # a supervisor restarts it
        message = refused(make_worker(env, replace(config(), fold=wrong, codec=codec), batch=batch))
    assert "partition 0 of readings: the first 100 records were rejected, the first at offset 0" in message
    assert f"all as wrong_length, such as offset 0: {8 * D} bytes are not {D + 1} numbers" in message
    assert "reads all of them again" in message
    assert env.calls("send") == []
    assert {entry[1] for entry in env.calls("save")} <= {1}
    env.send(1, vectors(150, seed=1))
    make_worker(env, config(), batch=batch).run()
    assert env.dead_letters == []
    env.assert_complete()


def test_a_stream_that_turns_bad_is_saved_up_to_there() -> None:
    env = Environment(partitions=2)
    env.send(0, vectors(2000))
    env.send(0, [POISON] * 600)
    env.send(1, vectors(50))
    message = refused(make_worker(env, config(), batch=100))
    assert "501 of the last 1000 records were rejected, the first at offset 2000" in message
    assert (env.position(0), env.position(1)) == (2000, 50)
    assert env.dead_letters == []
    make_worker(env, config(max_rejected_share=1.0), batch=100).run()
    assert [offset for _, offset, _ in env.dead_letters] == list(range(2000, 2600))
    env.assert_complete()


def test_rejects_that_were_sent_before_are_counted_in_the_message() -> None:
    env = Environment()
    good = vectors(1000)
    for i in range(0, 1000, 2):  # two of three fail, but never six of the last ten at the end of a batch
        env.send(0, [POISON, *[row.tobytes() for row in good[i : i + 2]], *[POISON] * 3])
    message = refused(make_worker(env, config(), batch=3))
    passed = len(env.dead_letters)
    assert 0 < passed <= 501
    assert f"reads all but {passed} of them again" in message
    assert [offset for _, offset, _ in env.dead_letters] == sorted({offset for _, offset, _ in env.dead_letters})


def test_half_of_the_records_may_fail() -> None:
    env = Environment()
    for row in vectors(1500):
        env.send(0, [row.tobytes(), POISON])
    make_worker(env, config(), batch=64).run()
    assert len(env.dead_letters) == 1500
    env.assert_complete()


@pytest.mark.parametrize("bad_records", ["dead_letter", "skip"])
def test_without_a_limit_all_may_fail(bad_records: str) -> None:
    env = Environment()
    env.send(0, [POISON] * 1200)
    make_worker(env, config(bad_records=bad_records, max_rejected_share=1.0)).run()
    env.assert_complete()


def test_skipping_stops_at_the_limit_too() -> None:
    env = Environment()
    env.send(0, [POISON] * 100)
    refused(make_worker(env, config(bad_records="skip"), batch=10))
    assert env.position() is None


def test_a_bad_record_on_a_quiet_topic_is_sent_after_a_minute() -> None:
    env = Environment()
    env.send(0, [POISON])
    worker = make_worker(env, config(), [1, *[0] * 40])
    worker.run()  # every round takes two seconds of the test' clock
    assert [offset for _, offset, _ in env.dead_letters] == [0]

    env.assert_complete()


def test_a_bad_record_is_sent_at_once_when_a_good_one_follows() -> None:
    env = Environment()
    env.send(0, [POISON])
    env.send(0, vectors(1))
    make_worker(env, config(), batch=1).run()
    assert env.dead_letters == [(0, 0, "wrong_length")]
    env.assert_complete()


def test_held_records_are_read_again_by_the_next_owner() -> None:
    env = Environment()
    env.send(0, vectors(20))
    env.send(0, [POISON] * 9)
    worker = make_worker(env, config(checkpoint_interval_s=FOREVER), batch=20)
    worker.run()
    assert len(worker.recorder.of_type(RecordRejected)) == 9
    assert env.dead_letters == []
    assert env.position() == 20
    env.send(0, vectors(20))
    make_worker(env, config(), batch=20).run()
    assert [offset for _, offset, _ in env.dead_letters] == list(range(20, 29))
