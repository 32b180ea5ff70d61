"""Bad records end a worker only if it has learned nothing: then a setting is wrong, and nothing is sent or saved."""

from dataclasses import replace
from typing import Any

import pytest

from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.worker.config import WorkerConfig
from tests.fold.streams import D, fold_config, vectors
from tests.worker.environment import POISON, environment_of, filled_with
from tests.worker.harness import make_worker, refused, worker_config


def config(**options: Any) -> WorkerConfig:
    return worker_config(**{"on_bad_record": "dead_letter"} | options)


def test_wrong_settings_neither_send_nor_save_and_all_is_learned_later() -> None:
    """The wrong number of dimensions, then the right one: the bytes are as if it had been right from the start."""
    env = environment_of(vectors(300), [])
    wrong = fold_config(dimensions=D + 1)
    codec = Codec("float64", Judge.of(wrong.learning))
    for _ in range(2):  # a supervisor restarts it
        message = refused(make_worker(env, replace(config(), fold=wrong, codec=codec)))
    assert "partition 0 of readings: 100 records in a row were rejected, from offset 0 on" in message
    assert f"all as wrong_length, such as offset 0: {8 * D} bytes are not {D + 1} numbers" in message
    assert "reads all of them again" in message
    assert env.calls("send") == []
    assert {entry[1] for entry in env.calls("save")} <= {1}
    env.send(1, vectors(150, seed=1))
    make_worker(env, config()).run()
    assert env.dead_letters == []
    env.assert_complete()


@pytest.mark.parametrize(("bad", "good"), [(99, 1), (99, 0), (1, 0)])
def test_fewer_bad_records_are_sent_at_once(bad: int, good: int) -> None:
    env = environment_of([POISON] * bad)
    env.send(0, vectors(good))
    make_worker(env, config()).run()
    assert [offset for _, offset, _ in env.dead_letters] == list(range(bad))
    env.assert_complete()


@pytest.mark.parametrize("good", [0, 1])
def test_deletes_between_the_first_bad_records_do_not_hide_a_wrong_setting(good: int) -> None:
    """A vector before the hundredth bad record does: then the setting is right."""
    env = filled_with(good)
    env.send(0, [POISON, None] * 120)
    if good:
        make_worker(env, config()).run()
        assert len(env.dead_letters) == 120
        env.assert_complete()
    else:
        assert "100 records in a row were rejected" in refused(make_worker(env, config()))
        assert env.dead_letters == []


def test_an_operator_may_leave_out_the_first_records() -> None:
    env = environment_of([POISON] * 1200)
    refused(make_worker(env, config()))
    make_worker(env, config(on_bad_record="skip")).run()
    assert env.dead_letters == []
    env.assert_complete()
