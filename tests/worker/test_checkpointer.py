"""The order of saving, where partitions resume and begin, and what is refused."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from unittest import mock

import pytest
from structlog.testing import capture_logs

from streampca.consumer_group.events import CheckpointPostponed, ModelPublished, PartitionsMissing, PublishFailed
from streampca.errors import (
    DamagedFileError,
    SettingsError,
    StoreBusyError,
    StoreError,
    StreampcaError,
    TopicReplacedError,
)
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.fold.partitions import backfill_partition
from streampca.worker.checkpointer import WorkerConfig
from streampca.worker.group_store import GroupStore
from tests.errors import refusal
from tests.fold.streams import fold_config, make_fold, vectors
from tests.in_memory.store import Crash
from tests.worker.environment import TOPIC, Environment, N, SpySource, SpyStore, make_filled_environment
from tests.worker.harness import (
    act_at_polls,
    hide_broker_at_lookup,
    make_worker,
    make_worker_config,
    run_until,
)


@pytest.mark.parametrize("env", [(150, 150)], indirect=True)
def test_all_partitions_are_saved_after_one_flush_and_one_topic_lookup_then_published_and_committed(
    env: Environment,
) -> None:
    make_worker(env, make_worker_config(on_bad_record="dead_letter"), [50, 50, 50]).run()
    at_start, at_assignment, *later = env.calls("flush", "topic id", "save", "publish", "commit")
    assert at_start == at_assignment == ("topic id",)
    assert later == [
        entry
        for n in (50, 100, 150)
        for entry in [
            ("flush",), ("topic id",), ("save", 0, n), ("save", 1, n), ("publish", 2 * n), ("commit", {0: n, 1: n}),
        ]
    ]  # fmt: skip


def test_restart_without_new_messages_writes_nothing(filled: Environment) -> None:
    make_worker(filled).run()
    filled.journal.clear()
    make_worker(filled).run()
    assert filled.calls("save", "publish", "commit", "flush") == []
    assert filled.calls("seek") == [("seek", {0: N})]


@pytest.mark.parametrize("env", [(50, 50)], indirect=True)
def test_unchanged_partitions_are_not_saved_again(env: Environment) -> None:
    make_worker(env, script=[50, None, lambda: env.send(1, vectors(5, seed=9)), 10, None]).run()
    assert env.calls("save") == [("save", 0, 50), ("save", 1, 50), ("save", 1, 55)]
    assert env.calls("commit") == [("commit", {0: 50, 1: 50}), ("commit", {1: 55})]


def test_worker_leaves_the_group_when_the_disk_stays_full(filled: Environment) -> None:
    filled.store.fail_writes(100)
    make_worker(filled, script=[50] * 6).run()
    assert filled.calls("save", "publish") == []
    assert filled.topic.committed == {}
    assert filled.journal[-1] == ("close",)


def test_failed_publishing_is_retried(filled: Environment) -> None:
    faults: list[StreampcaError] = [StoreError("disk full"), DamagedFileError("damaged")]

    def fail_writing_models(name: str) -> None:
        if name == "write" and filled.journal[-1][0] == "save" and faults:  # after the checkpoint, the model
            raise faults.pop(0)

    worker = make_worker(filled, script=[100, 100, 100], hook=fail_writing_models).run()
    assert worker.recorder.of_type(PublishFailed) == [PublishFailed("disk full"), PublishFailed("damaged")]
    assert [event.model.version for event in worker.recorder.of_type(ModelPublished)] == [N]
    assert worker.recorder.of_type(CheckpointPostponed) == []
    filled.assert_complete()


def test_a_broker_away_at_the_start_says_later_which_topic_it_is(filled: Environment) -> None:
    run_until(filled, 100)
    make_worker(filled, hook=hide_broker_at_lookup(filled, 1)).run()
    filled.assert_complete()


def test_a_topic_replaced_during_a_run_ends_the_worker_without_saving(filled: Environment) -> None:
    before = filled.topic.id

    def replace_topic() -> None:
        filled.topic.create(1)
        filled.send(0, vectors(400, seed=5))

    text = refusal(TopicReplacedError, make_worker(filled, script=[100, 100, replace_topic, 100]).run)
    ids = f"its id is {filled.topic.id}, but was {before} while it was being read"
    assert f"{TOPIC} is not the topic that was read before ({ids})" in text
    assert "what was learned since the last checkpoint is dropped" in text
    assert filled.position() == 200
    assert filled.topic.committed == {}  # deleted with the old topic; the worker commits nothing for the new one
    assert filled.journal[-1] == ("close",)


@pytest.mark.parametrize("poll", [1, 4])
def test_a_topic_replaced_before_anything_was_saved_is_read_from_its_start(filled: Environment, poll: int) -> None:
    """By a member that waited for partitions, or lost them before the first save."""
    worker = make_worker(filled, make_worker_config(filled.fold_config, checkpoint_interval_s=1e9))

    def lose_all_and_replace() -> None:
        filled.topic.evict(worker.source)
        filled.topic.create(1)
        filled.send(0, vectors(400, seed=5))

    act_at_polls(worker, {poll: lose_all_and_replace})
    worker.run()
    filled.assert_complete()


def read_logged_names(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "dimensions named" in line]


def named_config(env: Environment, field: str, names: str) -> WorkerConfig:
    return make_worker_config(replace(env.fold_config, field=field, names=list(names) or None))


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        (("v", ""), ("a,b,c,d,e", "abcde"), "abcde"),  # the store adopts the settings' names
        (("a,b,c,d,e", "abcde"), ("v", ""), "abcde"),  # vectors without names are taken by position
        (("a,b,c,d,e", "abcde"), ("x.a,x.b,x.c,x.d,x.e", "abcde"), "abcde"),
        (("v", ""), ("v", ""), ""),
    ],
)
def test_a_restart_keeps_names_of_dimensions_that_only_one_side_has(
    env: Environment, before: tuple[str, str], after: tuple[str, str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env.send(0, vectors(100))
    make_worker(env, named_config(env, *before)).run()
    assert not read_logged_names(capsys)
    env.send(0, vectors(50, seed=1))
    make_worker(env, named_config(env, *after)).run()
    newest = env.models.newest()
    assert (env.newest().fold.position, newest.version) == (150, 150)
    assert env.newest().names == newest.names == (list(names) or None)
    logged = read_logged_names(capsys)
    assert bool(logged) == (before[1] != after[1])
    assert all("names='a, b, c, d, e'" in line for line in logged)


def test_a_worker_without_names_takes_those_of_a_backfill(env: Environment) -> None:
    config = env.fold_config
    backfill = Checkpoint(TOPIC, "", backfill_partition(0), make_fold(vectors(40), config), config.as_dict())
    env.checkpoints.save(replace(backfill, names=list("abcde")))
    env.send(0, vectors(100))
    make_worker(env, make_worker_config(config)).run()
    newest = env.models.newest()
    assert newest.version == 140
    assert env.newest().names == newest.names == list("abcde")


def test_a_topic_replaced_between_runs_is_refused_before_reading(filled: Environment) -> None:
    make_worker(filled).run()
    before = filled.topic.id
    filled.topic.create(1)
    filled.send(0, vectors(400, seed=5))
    filled.journal.clear()
    words = (
        f"id is {filled.topic.id}, but was {before} in the checkpoint of partition 0.*bootstrap_servers.*"
        "`streampca reset --adopt-topic`.*another store folder$"
    )
    with pytest.raises(TopicReplacedError, match=words):
        make_worker(filled).run()
    assert filled.calls("save", "commit", "seek", "publish") == []


def test_settings_that_differ_from_the_checkpoint_are_refused_by_name(filled: Environment) -> None:
    """All of them, and no others."""
    make_worker(filled).run()
    filled.journal.clear()
    config = make_worker_config(fold_config(components=1, half_life_seconds=60.0))
    text = refusal(SettingsError, make_worker(filled, config).run)
    assert "partition 0 of readings was made with components=2 (now 1), half_life_seconds=None (now 60.0);" in text
    assert filled.calls("save", "commit", "seek", "publish") == []


@pytest.fixture
def timed() -> Environment:
    """A topic of two partitions with a message each second."""
    timed = Environment(2)
    for second in range(100):
        for partition in (0, 1):
            timed.send(partition, vectors(1, seed=second), 1000 * second)
    return timed


def backfill(timed: Environment, number: int, until: str) -> None:
    config = make_worker_config().fold
    fold: Fold = make_fold(vectors(300), config)
    timed.checkpoints.save(Checkpoint(TOPIC, "", backfill_partition(number), fold, config.as_dict(), until))


def learned(timed: Environment, start: str | int) -> list[int]:
    """The messages that a worker learns of each partition. Its log names the setting by which partitions begin."""
    with capture_logs() as logged:
        make_worker(timed, make_worker_config(start=start)).run()
    assert {line["start"] for line in logged if line["event"] == "partition begun"} <= {start}
    assert timed.violations == []
    folds = [timed.newest(partition).fold for partition in (0, 1)]
    assert [fold.position for fold in folds] == [100, 100]
    return [fold.stats.learned for fold in folds]


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", [100, 100]), (30_000, [70, 70]), (29_001, [70, 70]), (0, [100, 100])]
)
def test_a_partition_begins_at_the_earliest_record_or_a_time(
    timed: Environment, start: str | int, expected: list[int]
) -> None:
    assert learned(timed, start) == expected


def test_latest_is_saved_at_once_so_that_no_crash_moves_it(timed: Environment) -> None:
    make_worker(timed, make_worker_config(start="latest", checkpoint_interval_s=1e9)).run()
    timed.send(0, vectors(5))
    make_worker(timed, make_worker_config(start="latest")).run()
    assert [timed.newest(partition).fold.stats.learned for partition in (0, 1)] == [5, 0]


@pytest.mark.parametrize("messages", [0, 7])
def test_latest_is_committed_at_once_so_that_no_stale_listing_moves_it(env: Environment, messages: int) -> None:
    """Five messages come after a partition has begun, and the next worker lists no checkpoint at first."""
    env.send(0, vectors(messages))
    make_worker(env, make_worker_config(start="latest", checkpoint_interval_s=1e9)).run()
    env.send(0, vectors(5))
    listings: list[str] = []

    def stale_at_first(store: SpyStore, folder: str) -> list[str]:
        listings.append(folder)
        return env.store.names(folder) if len(listings) > 3 else []

    with mock.patch.object(SpyStore, "names", stale_at_first, create=True):
        make_worker(env, make_worker_config(start="latest"), [None] * 10).run()
    assert len(listings) > 3
    assert env.checkpoints.offsets(0)[0] == messages
    assert env.newest().fold.stats.learned == 5


@pytest.mark.parametrize("call", ["write", "written", "commit again"])
@pytest.mark.parametrize("next_start", ["latest", "earliest", 30_000])
def test_where_a_partition_begins_stays_if_its_first_owner_is_killed(
    env: Environment, call: str, next_start: str | int
) -> None:
    """Killed before, at or after its first save. The next owner lists no checkpoint, for as long as it runs."""
    env.send(0, vectors(7))
    calls: list[str] = []

    def die(name: str) -> None:
        calls.append(name)
        if name == call or (call == "commit again" and calls.count("commit") == 2):
            raise Crash

    with suppress(Crash):
        make_worker(env, make_worker_config(start="latest"), hook=die).run()
    for member in env.topic._members:
        env.topic.evict(member)
    env.send(0, vectors(5))
    with mock.patch.object(SpyStore, "names", return_value=[], create=True), capture_logs() as logged:
        make_worker(env, make_worker_config(start=next_start), [None] * 10).run()
    assert [line["start"] for line in logged if line["event"] == "partition begun"] == ["committed"]
    assert env.violations == []
    make_worker(env, make_worker_config(start=next_start)).run()
    assert env.checkpoints.offsets(0)[0] == 7
    assert env.newest().fold.stats.learned == 5


def test_a_partition_whose_beginning_the_group_does_not_take_waits(env: Environment) -> None:
    """Brokers refuse the commits of a worker that has lost the partition; the clients only log that."""
    env.send(0, vectors(7))
    with mock.patch.object(SpySource, "commit"):
        worker = make_worker(env, make_worker_config(start="latest"), [None] * 10).run()
    missing = worker.recorder.of_type(PartitionsMissing)[-1]
    assert missing.causes == {0: "the group did not take the offset where it begins"}
    assert env.calls("save") == []


def test_the_log_says_if_a_partition_begins_where_its_new_owner_has_committed(env: Environment) -> None:
    """This worker has lost the partition, and chosen the offset 7; the new owner has chosen the offset 5."""
    env.send(0, vectors(7))
    agreed = mock.patch.object(GroupStore, "agree_on_starts", return_value={0: 5})
    with agreed, capture_logs() as logged:
        make_worker(env, make_worker_config(start="latest"), [None] * 10).run()
    begun = [line for line in logged if line["event"] == "partition begun"]
    assert [(line["offset"], line["start"]) for line in begun] == [(5, "committed")]


def test_a_checkpoint_that_was_not_committed_is_written_again_and_then_committed(filled: Environment) -> None:
    """A worker was killed after it had saved, perhaps before the file was safe from a power failure."""
    make_worker(filled).run()
    filled.topic.committed.clear()
    filled.journal.clear()
    make_worker(filled).run()
    assert filled.calls("save", "commit") == [("save", 0, N), ("commit", {0: N})]


def test_where_a_partition_begins_is_not_saved_for_another_topic(timed: Environment) -> None:
    """Which was created after the restore had looked for the topic, and before it looked for the offset."""

    def replace_topic(name: str) -> None:
        if name == "topic_id" and len(timed.calls("topic id")) == 2:
            timed.topic.create(2)

    refusal(TopicReplacedError, make_worker(timed, make_worker_config(start="latest"), hook=replace_topic).run)
    assert timed.calls("save") == []


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
def test_a_partition_begins_where_the_backfills_end(timed: Environment, untils: list[str], expected: list[int]) -> None:
    """Where the last of them ends, in each partition."""
    for number, until in enumerate(untils):
        backfill(timed, number, until)
    assert learned(timed, "backfill") == expected
    assert timed.models.newest().version == 300 * len(untils) + sum(expected)


def test_a_partition_with_a_checkpoint_ignores_the_start_setting(timed: Environment) -> None:
    make_worker(timed, make_worker_config()).run()
    backfill(timed, 0, "0:40,1:40")
    assert learned(timed, "backfill") == [100, 100]


def test_a_backfill_that_is_missing_is_an_error(timed: Environment) -> None:
    assert "the store holds no backfill of readings" in refusal(
        SettingsError, make_worker(timed, make_worker_config(start="backfill")).run
    )


def test_a_start_while_the_store_is_busy_waits(timed: Environment) -> None:
    """Whatever it asks for first: the identity, a checkpoint, or both again when partitions are assigned."""
    make_worker(timed, make_worker_config()).run()
    for faults in range(1, 5):
        timed.send(0, vectors(10, seed=faults))
        timed.store.fail_reads(faults, StoreBusyError("cannot read: 503 (a retry may help)"))
        make_worker(timed, make_worker_config(), script=[10] * 40).run()
        assert timed.position() == 100 + 10 * faults
        timed.assert_complete()


@pytest.fixture
def two() -> Environment:
    two = make_filled_environment(300, 300)
    two.topic.id = ""
    return two


def report(two: Environment, topic_id: str) -> Callable[[], None]:
    return lambda: setattr(two.topic, "id", topic_id)


def test_ids_that_appear_while_it_runs_are_no_replacement(two: Environment) -> None:
    make_worker(two, script=[50, report(two, "id-1"), 50, report(two, ""), 50, report(two, "id-1"), 50]).run()
    assert {two.newest(p).topic_id for p in (0, 1)} == {"id-1"}
    assert (two.models.newest().version, two.models.newest().topic_id) == (600, "id-1")


def test_ids_that_appear_or_vanish_between_runs_are_no_replacement(two: Environment) -> None:
    make_worker(two).run()
    for topic_id, version in (("id-1", 650), ("", 700)):
        two.topic.id = topic_id
        two.send(1, vectors(50, seed=version))
        make_worker(two).run()
        assert (two.models.versions()[-1], two.newest(1).topic_id) == (version, topic_id)


def test_another_id_after_the_first_is_a_replacement(two: Environment) -> None:
    worker = make_worker(two, script=[50, report(two, "id-1"), 50, report(two, "id-2"), 50])
    text = refusal(TopicReplacedError, worker.run)
    assert "id-1" in text
    assert "id-2" in text
