"""Bad records end a member only if nothing was learned."""

from dataclasses import replace

import pytest

from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from tests.fold.streams import D, fold_config, vectors
from tests.worker.environment import POISON, make_environment, make_filled_environment
from tests.worker.harness import make_worker, make_worker_config, run_until_refused

SENDING = make_worker_config(on_bad_record="dead_letter")


def test_wrong_settings_neither_send_nor_save_and_all_is_learned_later() -> None:
    """The wrong number of dimensions, then the right one: the bytes are as if it had been right from the start."""
    env = make_environment(vectors(300), [])
    wrong = fold_config(dimensions=D + 1)
    codec = Codec("float64", Judge.of(wrong.learning))
    for _ in range(2):  # a supervisor restarts it
        message = run_until_refused(make_worker(env, replace(SENDING, fold=wrong, codec=codec)))
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
    env = make_environment([POISON] * bad)
    env.send(0, vectors(good))
    make_worker(env, SENDING).run()
    assert [offset for _, offset, _ in env.dead_letters] == list(range(bad))
    env.assert_complete()


@pytest.mark.parametrize("counts", [(300, 0), (0, 300)])
def test_bad_records_end_no_worker_that_has_learned(counts: tuple[int, int]) -> None:
    """In this partition or in another one; after a restart, the model has the bytes of the undisturbed run."""
    env = make_filled_environment(*counts)
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
    env = make_filled_environment(good)
    env.send(0, [POISON, None] * 120)
    if good:
        make_worker(env, SENDING).run()
        assert len(env.dead_letters) == 120
        env.assert_complete()
    else:
        assert "100 records in a row were rejected" in run_until_refused(make_worker(env, SENDING))
        assert env.dead_letters == []


def test_an_operator_may_leave_out_the_first_records() -> None:
    env = make_environment([POISON] * 1200)
    run_until_refused(make_worker(env, SENDING))
    make_worker(env, make_worker_config(on_bad_record="skip")).run()
    assert env.dead_letters == []
    env.assert_complete()
