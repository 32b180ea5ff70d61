"""The worker in memory: what it learns and saves, when, and how it handles every error."""

from collections.abc import Iterator
from typing import Any

import pytest

from streampca.consumer_group.listener import (
    CheckpointPostponed,
    MemberStopping,
    ModelPublished,
    OffsetsSkipped,
    PartitionsAssigned,
    PartitionsReleased,
    PublishFailed,
    RecordRejected,
)
from streampca.errors import (
    BadRecordError,
    DamagedFileError,
    OffsetGapError,
    SettingsError,
    SourceError,
    StoreError,
    StreampcaError,
    TopicReplacedError,
)
from streampca.fold.events import Assigned, OutOfRange
from streampca.sources.memory import Do, MemorySource, Pause
from tests.fold.streams import fold_config, vectors
from tests.worker.environment import POISON, Environment
from tests.worker.harness import WorkerFixture, make_worker, worker_config
from tests.worker.spies import Hook

ONLY_AT_END: dict[str, Any] = {"checkpoint_interval_s": 1e9}
N = 300


@pytest.fixture
def env() -> Iterator[Environment]:
    env = Environment()
    yield env
    assert env.violations == []


@pytest.fixture
def filled(env: Environment) -> Environment:
    """An environment with one partition of N messages."""
    env.send(0, vectors(N))
    return env


def one_line_message(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


# What it learns and where it resumes.


@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_learns_every_message_of_every_partition(batch: int) -> None:
    env = Environment(partitions=3)
    for partition, n in enumerate((200, 10, 1)):
        env.send(partition, vectors(n, seed=partition))
    worker = make_worker(env, worker_config(checkpoint_interval_s=20.0), batch=batch)
    worker.run()
    assert worker.recorder.of_type(PartitionsAssigned) == [PartitionsAssigned({0: -1, 1: -1, 2: -1})]
    assert env.calls("seek") == [("seek", {0: None, 1: None, 2: None})]
    env.assert_complete()


def test_flush_and_topic_lookup_precede_save_and_save_precedes_commit(filled: Environment) -> None:
    worker = make_worker(filled, worker_config(bad_records="dead_letter"), [100, 100, 100])
    worker.run()
    order = [entry for entry in filled.journal if entry[0] in ("flush", "topic id", "save", "commit")]
    at_start, later = order[:1], order[1:]
    assert at_start == [("topic id",)]
    assert later == [
        entry
        for position in (100, 200, 300)
        for entry in [("flush",), ("topic id",), ("save", 0, position), ("commit", {0: position})]
    ]


def test_all_partitions_are_saved_after_one_flush_and_one_topic_lookup() -> None:
    env = Environment(partitions=2)
    for partition in (0, 1):
        env.send(partition, vectors(50, seed=partition))
    make_worker(env, script=[50]).run()
    names = [entry[0] for entry in env.calls("flush", "topic id", "save", "commit")][1:]
    assert names == ["flush", "topic id", "save", "save", "commit"]


@pytest.mark.parametrize("committed", [{}, {0: 0}, {0: 17}, {0: 150}])
def test_restart_resumes_at_the_checkpoint_not_the_committed_offset(
    filled: Environment, committed: dict[int, int]
) -> None:
    run_until(filled, 150)
    filled.topic.committed = dict(committed)
    make_worker(filled).run()
    assert filled.calls("seek") == [("seek", {0: 150})]
    filled.assert_complete()


def run_until(env: Environment, position: int) -> None:
    """Run a first worker up to this position, then clear its journal."""
    worker: WorkerFixture = make_worker(env, script=[position, Do(lambda: worker.stop("enough")), Pause()])
    worker.run()
    assert env.position() == position
    env.journal.clear()


def test_restart_without_new_messages_writes_nothing(filled: Environment) -> None:
    make_worker(filled).run()
    filled.journal.clear()
    make_worker(filled).run()
    assert filled.calls("save", "publish", "commit", "flush") == []
    assert filled.calls("seek") == [("seek", {0: N})]


def test_offsets_without_records_are_skipped_and_saved(env: Environment) -> None:
    env.send(0, vectors(30))
    env.topic.skip(0, 5)
    make_worker(env).run()
    assert env.position() == 35
    env.topic.skip(0, 5)
    make_worker(env).run()
    assert env.position() == 40
    env.send(0, vectors(30, seed=2))
    make_worker(env).run()
    assert env.position() == 70
    env.assert_complete()


def test_added_partitions_are_learned_from_their_start(filled: Environment) -> None:
    def add() -> None:
        filled.topic.add_partitions(3)
        filled.send(1, vectors(80, seed=1))
        filled.send(2, vectors(90, seed=2))

    make_worker(filled, script=[100, Do(add)]).run()
    filled.assert_complete()


# When it saves.


def test_saves_at_every_interval_and_at_the_end(filled: Environment) -> None:
    """The clock advances by one second at each reading: once in every iteration, and when a save is done."""
    make_worker(filled, worker_config(checkpoint_interval_s=4.5), [10] * 9).run()
    assert [entry[2] for entry in filled.calls("save")] == [40, 90, N]  # the assignment took an iteration


def test_unchanged_partitions_are_not_saved_again() -> None:
    env = Environment(partitions=2)
    for partition in (0, 1):
        env.send(partition, vectors(50, seed=partition))
    make_worker(env, script=[50, Pause(), Do(lambda: env.send(1, vectors(5, seed=9))), 10, Pause()]).run()
    assert env.calls("save") == [("save", 0, 50), ("save", 1, 50), ("save", 1, 55)]
    assert env.calls("commit") == [("commit", {0: 50, 1: 50}), ("commit", {1: 55})]


def test_stop_finishes_the_batch_saves_publishes_and_leaves_the_group(filled: Environment) -> None:
    stop = Do(lambda: worker.stop("SIGTERM"))
    worker: WorkerFixture = make_worker(filled, worker_config(**ONLY_AT_END), [100, stop, 50, 50])
    worker.run()
    assert filled.position() == 150
    assert filled.journal[-2:] == [("close",), ("publish", 150)]
    worker.stop("a second signal")
    assert worker.recorder.of_type(MemberStopping) == [MemberStopping("SIGTERM")]


# The group.


def test_revoked_partitions_are_saved_before_they_are_assigned_to_another_worker(filled: Environment) -> None:
    filled.topic.add_partitions(2)
    filled.send(1, vectors(90, seed=1))
    others: list[MemorySource] = []
    saved_when_assigned: list[Any] = []

    def poll() -> None:
        if any(isinstance(event, Assigned) for event in others[0].poll(0)):
            saved_when_assigned.append((filled.position(0), filled.position(1), dict(filled.topic.committed)))

    join, poll_other = Do(lambda: others.append(MemorySource(filled.topic))), Do(poll)
    worker = make_worker(filled, worker_config(**ONLY_AT_END), [40, 40, join, *[poll_other, 40] * 3, poll_other])
    worker.run()
    assert worker.recorder.of_type(PartitionsReleased) == [PartitionsReleased([0, 1], lost=False)]
    assert saved_when_assigned == [(80, 80, {0: 80, 1: 80})]
    assert worker.recorder.of_type(PartitionsAssigned) == [
        PartitionsAssigned({0: -1, 1: -1}),
        PartitionsAssigned({0: 80}),
    ]
    assert filled.position(0) == N


def test_lost_partitions_are_not_saved(filled: Environment) -> None:
    evict = Do(lambda: filled.topic.evict(worker.source))
    worker: WorkerFixture = make_worker(filled, worker_config(**ONLY_AT_END), [100, 100, evict, Pause()])
    worker.run()
    assert worker.recorder.of_type(PartitionsReleased) == [PartitionsReleased([0], lost=True)]
    assert [entry[2] for entry in filled.calls("save")] == [N]
    assert [entry[1] for entry in filled.calls("commit")] == [{0: N}]
    assert filled.calls("seek") == [("seek", {0: None}), ("seek", {0: None})]
    filled.assert_complete()


def test_a_member_without_partitions_does_nothing(filled: Environment) -> None:
    owner = MemorySource(filled.topic)
    owner.poll(0)
    worker = make_worker(filled, script=[Do(lambda: owner.poll(0))] * 4)
    worker.run()
    assert filled.calls("save", "commit", "publish") == []


# Bad records.


def send_poison(env: Environment) -> None:
    env.send(0, vectors(50))
    env.send(0, [POISON, None])
    env.send(0, vectors(60, seed=1))
    env.send(0, [POISON])


@pytest.mark.parametrize("batch", [1, 13, 1000])
def test_stop_policy_saves_everything_before_the_bad_record_and_names_it(env: Environment, batch: int) -> None:
    send_poison(env)
    worker = make_worker(env, worker_config(bad_records="stop"), batch=batch)
    with pytest.raises(BadRecordError, match=r"partition 0 of readings, offset 50: 6 bytes .*wrong_length") as error:
        worker.run()
    assert "dead_letter_topic" in one_line_message(error.value)
    assert env.position() == 50
    newest = env.checkpoints.newest(0)
    assert newest is not None
    assert (newest.fold.stats.learned, dict(newest.fold.stats.rejected)) == (50, {})
    assert worker.recorder.of_type(RecordRejected) == []
    env.journal.clear()
    with pytest.raises(BadRecordError, match="offset 50"):  # again at every restart
        make_worker(env, worker_config(bad_records="stop")).run()
    assert env.calls("save") == []


@pytest.mark.parametrize("batch", [1, 13, 1000])
def test_skip_policy_counts_bad_records_and_continues(env: Environment, batch: int) -> None:
    send_poison(env)
    worker = make_worker(env, worker_config(bad_records="skip"), batch=batch)
    worker.run()
    assert [(event.partition, event.offset, event.reason) for event in worker.recorder.of_type(RecordRejected)] == [
        (0, 50, "wrong_length"),
        (0, 51, "no_value"),
        (0, 112, "wrong_length"),
    ]
    env.assert_complete()
    assert env.dead_letters == []


@pytest.mark.parametrize("batch", [1, 13, 1000])
def test_dead_letters_are_acknowledged_before_a_checkpoint_passes_them(env: Environment, batch: int) -> None:
    send_poison(env)
    make_worker(env, worker_config(bad_records="dead_letter"), batch=batch).run()
    assert env.dead_letters == [(0, 50, "wrong_length"), (0, 51, "no_value"), (0, 112, "wrong_length")]
    env.assert_complete()


def test_slow_dead_letter_flush_postpones_the_checkpoint_but_not_learning(env: Environment) -> None:
    send_poison(env)
    env.send(0, vectors(100, seed=3))
    seen: list[Any] = []

    def disconnect() -> None:
        worker.dead_letters.away = True

    def reconnect() -> None:
        seen.append((env.position(), dict(env.topic.committed)))
        worker.dead_letters.away = False

    script = [30, Do(disconnect), 40, 40, Do(reconnect), 40]
    worker: WorkerFixture = make_worker(env, worker_config(bad_records="dead_letter"), script)
    worker.run()
    assert seen == [(30, {0: 30})]
    postponed = worker.recorder.of_type(CheckpointPostponed)
    assert postponed == [CheckpointPostponed("2 dead letters are not acknowledged yet")] * 2
    assert worker.recorder.positions == {0: 213}
    env.assert_complete()


def test_a_refused_dead_letter_stops_the_worker_before_the_record(env: Environment) -> None:
    send_poison(env)
    worker = make_worker(env, worker_config(bad_records="dead_letter"), [40, 40])
    worker.dead_letters.refusal = SourceError("the dead-letter topic is not there")
    with pytest.raises(SourceError, match="not there"):
        worker.run()
    assert env.position() == 40
    assert env.journal[-1] == ("close",)


# Failures of the store, the broker and the topic.


def test_full_disk_postpones_checkpoints_and_commits(filled: Environment) -> None:
    worker = make_worker(filled, script=[50, Do(lambda: filled.store.fail_writes(4)), 50, 50, 50, 50, 50])
    worker.run()
    # The third and fourth fault hit the model and the checkpoint of the second iteration.
    postponed = worker.recorder.of_type(CheckpointPostponed)
    assert postponed == [CheckpointPostponed("cannot write: No space left on device")] * 4
    assert [entry[2] for entry in filled.calls("save")] == [50, 300]
    assert {entry[1][0] for entry in filled.calls("commit")} == {50, 300}
    filled.assert_complete()


def test_worker_leaves_the_group_when_the_disk_stays_full(filled: Environment) -> None:
    filled.store.fail_writes(100)
    worker = make_worker(filled, script=[50] * 6)
    worker.run()
    assert filled.calls("save", "publish") == []
    assert filled.topic.committed == {}
    assert filled.journal[-1] == ("close",)


def test_failed_publishing_is_retried(filled: Environment) -> None:
    faults: list[StreampcaError] = [StoreError("disk full"), DamagedFileError("damaged")]

    def writing_models_fails(name: str) -> None:
        if name == "write" and filled.journal[-1][0] == "save" and faults:  # after the checkpoint, the model
            raise faults.pop(0)

    worker = make_worker(filled, script=[100, 100, 100], hook=writing_models_fails)
    worker.run()
    assert worker.recorder.of_type(PublishFailed) == [PublishFailed("disk full"), PublishFailed("damaged")]
    assert [event.model.version for event in worker.recorder.of_type(ModelPublished)] == [N]
    assert worker.recorder.of_type(CheckpointPostponed) == []
    filled.assert_complete()


def test_unavailable_broker_postpones_checkpoints(filled: Environment) -> None:
    """The topic's ID cannot be checked, so the records may come from a replaced topic."""
    worker = make_worker(filled, script=[100, 100, 100], hook=broker_away_at_lookup(filled, 3))
    worker.run()
    assert worker.recorder.of_type(CheckpointPostponed) == [CheckpointPostponed("no broker answers")]
    assert [entry[2] for entry in filled.calls("save")] == [100, 300]
    filled.assert_complete()


def broker_away_at_lookup(env: Environment, number: int) -> Hook:
    """The broker is unavailable at one lookup of the topic's ID; number 1 is the one at the start."""
    lookups: list[str] = []

    def hook(name: str) -> None:
        if name == "topic_id":
            lookups.append(name)
            env.topic.away = len(lookups) == number
        elif name == "poll":
            env.topic.away = False

    return hook


def test_unavailable_broker_at_the_start_is_a_clear_error(filled: Environment) -> None:
    filled.topic.away = True
    worker = make_worker(filled)
    with pytest.raises(SourceError, match="no broker answers"):
        worker.run()
    assert worker.recorder.of_type(MemberStopping) == [MemberStopping("no broker answers")]
    assert filled.journal[-1] == ("close",)


def test_a_permanent_source_error_ends_the_worker_after_saving(filled: Environment) -> None:
    worker = make_worker(filled, worker_config(**ONLY_AT_END), [100, SourceError("not authorized")])
    with pytest.raises(SourceError, match="not authorized"):
        worker.run()
    assert filled.position() == 100
    assert filled.topic.committed == {0: 100}
    assert worker.recorder.of_type(MemberStopping) == [MemberStopping("not authorized")]


def test_an_unexpected_exception_saves_nothing_and_leaves_the_group(filled: Environment) -> None:
    worker = make_worker(filled, worker_config(**ONLY_AT_END), [100, ValueError("a bug")])
    with pytest.raises(ValueError, match="a bug"):
        worker.run()
    assert filled.calls("save", "commit", "publish") == []
    assert filled.journal[-1] == ("close",)
    assert worker.recorder.of_type(MemberStopping) == [MemberStopping("crashed")]


def test_a_topic_replaced_during_a_run_ends_the_worker_without_saving(filled: Environment) -> None:
    def replace_topic() -> None:
        filled.topic.create(1)
        filled.send(0, vectors(400, seed=5))

    worker = make_worker(filled, script=[100, 100, Do(replace_topic), 100])
    with pytest.raises(TopicReplacedError, match="deleted and created again") as error:
        worker.run()
    one_line_message(error.value)
    assert filled.position() == 200
    assert filled.topic.committed == {}  # deleted with the old topic; the worker commits nothing for the new one
    assert filled.journal[-1] == ("close",)


def test_a_topic_replaced_between_runs_is_refused_before_reading(filled: Environment) -> None:
    make_worker(filled).run()
    filled.topic.create(1)
    filled.send(0, vectors(400, seed=5))
    filled.journal.clear()
    with pytest.raises(TopicReplacedError, match="another store folder"):
        make_worker(filled).run()
    assert filled.calls("save", "commit", "seek", "publish") == []


def test_settings_that_differ_from_the_checkpoint_are_refused_by_name(filled: Environment) -> None:
    make_worker(filled).run()
    filled.journal.clear()
    with pytest.raises(SettingsError, match=r"components=2 \(now 1\)"):
        make_worker(filled, worker_config(fold_config(components=1))).run()
    assert filled.calls("save", "commit", "seek", "publish") == []


# Offsets that retention has removed.


@pytest.fixture
def trimmed(filled: Environment) -> Environment:
    """An environment learned up to 100 where retention has removed everything before 180."""
    run_until(filled, 100)
    filled.topic.trim(0, 180)
    return filled


def test_a_gap_stops_the_worker_and_names_the_setting(trimmed: Environment) -> None:
    with pytest.raises(OffsetGapError, match=r"offset 100 was removed.* 180.*on_offset_gap"):
        make_worker(trimmed, worker_config(offset_gap="fail")).run()
    assert trimmed.calls("save", "commit") == []


@pytest.mark.parametrize(("policy", "position"), [("earliest", 180), ("latest", N)])
def test_a_gap_is_skipped_by_policy_and_counted(trimmed: Environment, policy: str, position: int) -> None:
    worker = make_worker(trimmed, worker_config(offset_gap=policy))
    worker.run()
    assert worker.recorder.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 100, position)]
    assert trimmed.calls("seek")[1] == ("seek", {0: position})
    newest = trimmed.checkpoints.newest(0)
    assert newest is not None
    assert newest.fold.position == N
    assert newest.fold.stats.gap == position - 100
    assert newest.fold.stats.learned == 100 + N - position


def test_a_log_that_ends_before_the_checkpoint_is_an_error(filled: Environment) -> None:
    make_worker(filled).run()
    log = filled.topic.logs[0]
    del log.records[200:]
    log.end = 200
    with pytest.raises(OffsetGapError, match="lost data"):
        make_worker(filled, worker_config(offset_gap="earliest")).run()
    assert filled.position() == N


def test_records_removed_before_the_first_poll_are_no_gap(env: Environment) -> None:
    env.send(0, vectors(100))
    worker = make_worker(env, worker_config(offset_gap="fail"))
    original_poll = worker.source.poll
    out_of_range = iter([OutOfRange(0, 0, 40, 100)])

    def poll(timeout_s: float) -> Any:
        if worker.recorder.of_type(PartitionsAssigned) and (event := next(out_of_range, None)):
            env.topic.trim(0, 40)
            return [event]
        return original_poll(timeout_s)

    worker.source.poll = poll  # type: ignore[method-assign]
    worker.run()
    assert env.calls("seek") == [("seek", {0: None}), ("seek", {0: None})]
    newest = env.checkpoints.newest(0)
    assert newest is not None
    assert (newest.fold.stats.learned, newest.fold.stats.gap) == (60, 0)


def test_a_broker_lost_while_resolving_a_gap_is_asked_again(trimmed: Environment) -> None:
    worker = make_worker(trimmed, worker_config(offset_gap="earliest"), hook=broker_away_at_lookup(trimmed, 2))
    worker.run()
    assert [entry[1] for entry in trimmed.calls("seek")] == [{0: 100}, {0: 100}, {0: 180}]
    assert worker.recorder.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 100, 180)]


def test_a_replaced_topic_is_not_mistaken_for_a_gap(trimmed: Environment) -> None:
    def replace_topic() -> None:
        trimmed.topic.create(1)

    with pytest.raises(TopicReplacedError):
        make_worker(trimmed, worker_config(offset_gap="earliest"), [Do(replace_topic), 10]).run()
    assert trimmed.calls("save", "commit") == []
