"""Learning can be proven again: `streampca audit` against the real broker."""

from dataclasses import replace
from pathlib import Path

import pytest

from streampca.cli.audit import choose_checkpoints
from streampca.errors import SettingsError
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from tests.command_line import assert_one_line, printed, run, variables
from tests.guarantees.harness import D, K, as_json, group, vectors
from tests.kafka_broker import Broker


@pytest.mark.parametrize(
    ("offsets", "given", "chosen"),
    [
        ([601], (None, None), (0, 601)),
        ([601, 900, 1200], (None, None), (601, 1200)),
        ([601, 900, 1200], (900, None), (900, 1200)),
        ([601, 900], (None, 900), (601, 900)),
        ([601, 900], (None, 601), (0, 601)),  # no checkpoint is older
        ([601], (0, None), (0, 601)),
    ],
)
def test_an_audit_starts_at_the_oldest_checkpoint_or_at_0(
    offsets: list[int], given: tuple[int | None, int | None], chosen: tuple[int, int]
) -> None:
    assert choose_checkpoints(offsets, 0, *given, workers_begin_at_0=True) == chosen


@pytest.mark.parametrize(
    ("offsets", "given", "workers_begin_at_0"),
    [
        ([], (None, None), True),
        ([0], (None, None), True),
        ([601], (601, None), True),
        ([601, 900], (900, 601), True),
        ([601], (None, None), False),  # a worker with start=latest has not learned the first records
    ],
)
def test_an_audit_without_two_checkpoints_is_refused(
    offsets: list[int], given: tuple[int | None, int | None], workers_begin_at_0: bool
) -> None:
    with pytest.raises(SettingsError, match="must be two checkpoints of partition 0, or 0"):
        choose_checkpoints(offsets, 0, *given, workers_begin_at_0=workers_begin_at_0)


def test_an_audit_finds_the_same_bytes_and_refuses_other_bytes(
    broker: Broker, topic: str, tmp_path: Path, client: str
) -> None:
    broker.create_topic(topic)
    dead = broker.create_topic(f"{topic}-dead")
    with group(broker, topic, tmp_path, [client], dead_letter_topic=dead) as members:
        members.start()
        for seed in range(3):
            broker.produce(topic, 0, [*as_json(vectors(700, seed)), b"no vector"])
            members.wait_until_learned()
        broker.produce_aborted(topic, 0, [b"[9]"])
        members.wait_until_learned()
        members.workers[0].stop()
        audit = ["audit", "--topic", topic, "--bootstrap-servers", broker.bootstrap, "--store", members.store]
        model = variables({"dimensions": D, "components": K})
        for start in ([], ["--from", 0]):
            output = printed(*audit, *start, **model)
            assert "2105" in output
            assert "the checkpoint has the same bytes" in output
        assert "2,103 records learned again" in output
        assert_one_line(run(*audit, **model, STREAMPCA_CENTER="false"), "made with center=True (now False)", code=2)
        assert_one_line(run(*audit, "--to", 5, **model), "must be two checkpoints of partition 0, or 0", code=2)
        checkpoints = Checkpoints(DirectoryStore(members.store), topic)
        (newest,) = members.newest().values()
        state = newest.fold.state
        wrong = replace(newest.fold, state=replace(state, mean=state.mean + 1.0))
        (members.store / f"checkpoints/{topic}/0/{2105:020d}.npz").unlink()
        checkpoints.save(type(newest)(topic, newest.topic_id, 0, wrong, newest.settings))
        assert_one_line(run(*audit, "--from", 0, **model), "the checkpoint has other bytes")


def test_an_audit_of_records_that_retention_has_deleted_says_how_many_are_left(
    broker: Broker, topic: str, tmp_path: Path, client: str
) -> None:
    broker.create_topic(topic)
    model = variables({"dimensions": D, "components": K})
    with group(broker, topic, tmp_path, [client]) as members:
        members.start()
        broker.produce(topic, 0, as_json(vectors(700, 0)))
        members.wait_until_learned()
        members.workers[0].stop()
        audit = ["audit", "--topic", topic, "--bootstrap-servers", broker.bootstrap, "--store", members.store]
        for earliest, left in ((300, 400), (700, 0)):
            broker.delete_records(topic, 0, earliest)
            text = f"700 messages were learned, and the topic now holds {left} of them; compaction or retention"
            assert_one_line(run(*audit, "--from", 0, **model), text)


def test_an_audit_from_0_of_a_worker_that_began_later_says_so(
    broker: Broker, topic: str, tmp_path: Path, client: str
) -> None:
    broker.create_topic(topic)
    model = variables({"dimensions": D, "components": K})
    broker.produce(topic, 0, as_json(vectors(300, 0)))
    with group(broker, topic, tmp_path, [client], start="latest") as members:
        worker = members.start()
        members.wait(lambda: worker.count("partitions assigned"), "an assignment")
        broker.produce(topic, 0, as_json(vectors(700, 1)))
        members.wait_until_learned()
        worker.stop()
        audit = ["audit", "--topic", topic, "--bootstrap-servers", broker.bootstrap, "--store", members.store]
        text = "700 messages were learned, and the topic holds 1,000 there, so the worker did not begin at 0"
        assert_one_line(run(*audit, "--from", 0, **model), text)
