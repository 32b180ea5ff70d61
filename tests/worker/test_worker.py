"""The worker's life on a stage in memory: what it saves and when, and what it does when things go wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

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
from streampca.sources.memory import Do, MemorySource, Pause
from streampca.stores.memory import Crash
from streampca.stream.record import Assigned, OutOfRange
from streampca.worker.listener import (
    BatchLearned,
    CheckpointPostponed,
    LoopTicked,
    ModelPublished,
    OffsetsSkipped,
    PartitionsAssigned,
    PartitionsReleased,
    PublishFailed,
    RecordRejected,
    WorkerStopping,
)
from tests.stream.streams import fold_config
from tests.worker.harness import POISON, Cast, Hook, On, Stage, cast, many, worker_config

NEVER: dict[str, Any] = {"checkpoint_interval_s": 1e9}  # but at the end
N = 300


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    assert stage.violations == []


@pytest.fixture
def full(stage: Stage) -> Stage:
    """One partition with N messages."""
    stage.send(0, many(N))
    return stage


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


# What it learns and where it goes on.


@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_it_learns_every_message_of_every_partition(batch: int) -> None:
    stage = Stage(partitions=3)
    for partition, n in enumerate((200, 10, 1)):
        stage.send(partition, many(n, seed=partition))
    worker = cast(stage, worker_config(checkpoint_interval_s=20.0), batch=batch)
    worker.run()
    assert worker.heard.of(PartitionsAssigned) == [PartitionsAssigned({0: -1, 1: -1, 2: -1})]
    assert stage.calls("seek") == [("seek", {0: None, 1: None, 2: None})]
    stage.assert_complete()


def test_a_checkpoint_is_made_in_the_order_that_the_guarantee_needs(full: Stage) -> None:
    worker = cast(full, worker_config(bad_records="dead_letter"), [100, 100, 100])
    worker.run()
    order = [entry for entry in full.journal if entry[0] in ("flush", "topic id", "save", "commit")]
    at_start, rounds = order[:1], order[1:]
    assert at_start == [("topic id",)]
    assert rounds == [
        entry
        for position in (100, 200, 300)
        for entry in [("flush",), ("topic id",), ("save", 0, position), ("commit", {0: position})]
    ]


def test_all_partitions_are_saved_behind_one_flush_and_one_look_at_the_topic() -> None:
    stage = Stage(partitions=2)
    for partition in (0, 1):
        stage.send(partition, many(50, seed=partition))
    cast(stage, script=[50]).run()
    names = [entry[0] for entry in stage.calls("flush", "topic id", "save", "commit")][1:]
    assert names == ["flush", "topic id", "save", "save", "commit"]


@pytest.mark.parametrize("committed", [{}, {0: 0}, {0: 17}, {0: N}])
def test_a_restart_goes_on_at_the_checkpoint_whatever_was_committed(full: Stage, committed: dict[int, int]) -> None:
    run_until(full, 150)
    full.topic.committed = dict(committed)
    cast(full).run()
    assert full.calls("seek") == [("seek", {0: 150})]
    full.assert_complete()


def run_until(stage: Stage, position: int) -> None:
    """A first worker that learns so far and is stopped; its journal is thrown away."""
    worker: Cast = cast(stage, script=[position, Do(lambda: worker.worker.stop("enough")), Pause()])
    worker.run()
    assert stage.position() == position
    stage.journal.clear()


def test_a_restart_with_nothing_new_writes_nothing(full: Stage) -> None:
    cast(full).run()
    full.journal.clear()
    cast(full).run()
    assert full.calls("save", "publish", "commit", "flush") == []
    assert full.calls("seek") == [("seek", {0: N})]


def test_offsets_without_records_are_passed_and_saved(stage: Stage) -> None:
    stage.send(0, many(30))
    stage.topic.skip(0, 5)
    cast(stage).run()
    assert stage.position() == 35
    stage.topic.skip(0, 5)
    cast(stage).run()
    assert stage.position() == 40
    stage.send(0, many(30, seed=2))
    cast(stage).run()
    assert stage.position() == 70
    stage.assert_complete()


def test_partitions_that_are_added_are_learned_from_their_start(full: Stage) -> None:
    def add() -> None:
        full.topic.add_partitions(3)
        full.send(1, many(80, seed=1))
        full.send(2, many(90, seed=2))

    cast(full, script=[100, Do(add)]).run()
    full.assert_complete()


# When it saves.


def test_it_saves_when_the_time_has_come_and_at_the_end(full: Stage) -> None:
    """The clock goes on by one second each time it is asked: once in every round, and when a save is done."""
    cast(full, worker_config(checkpoint_interval_s=4.5), [10] * 9).run()
    assert [entry[2] for entry in full.calls("save")] == [40, 90, N]  # the assignment took a round


def test_it_saves_when_many_messages_are_unsaved(full: Stage) -> None:
    cast(full, worker_config(checkpoint_messages=100, **NEVER), [30] * 10).run()
    assert [entry[2] for entry in full.calls("save")] == [120, 240, 300]


def test_what_has_not_moved_is_not_saved_again() -> None:
    stage = Stage(partitions=2)
    for partition in (0, 1):
        stage.send(partition, many(50, seed=partition))
    cast(stage, script=[50, Pause(), Do(lambda: stage.send(1, many(5, seed=9))), 10, Pause()]).run()
    assert stage.calls("save") == [("save", 0, 50), ("save", 1, 50), ("save", 1, 55)]
    assert stage.calls("commit") == [("commit", {0: 50, 1: 50}), ("commit", {1: 55})]


def test_told_to_stop_it_finishes_the_batch_saves_publishes_and_leaves(full: Stage) -> None:
    worker: Cast = cast(full, worker_config(**NEVER), [100, Do(lambda: worker.worker.stop("SIGTERM")), 50, 50])
    worker.run()
    assert full.position() == 150
    assert full.journal[-2:] == [("close",), ("publish", 150)]
    worker.worker.stop("a second signal")
    assert worker.heard.of(WorkerStopping) == [WorkerStopping("SIGTERM")]


def test_the_loop_ticks_in_every_round(full: Stage) -> None:
    worker = cast(full, script=[Pause()] * 20)
    ticks: list[LoopTicked] = []
    worker.add_listener(On(LoopTicked, ticks.append))
    worker.run()
    assert len(ticks) > 20


# The group.


def test_what_is_revoked_is_saved_before_it_is_granted_to_another(full: Stage) -> None:
    full.topic.add_partitions(2)
    full.send(1, many(90, seed=1))
    others: list[MemorySource] = []
    saved_when_granted: list[Any] = []

    def look() -> None:
        if any(isinstance(event, Assigned) for event in others[0].poll(0)):
            saved_when_granted.append((full.position(0), full.position(1), dict(full.topic.committed)))

    joins, looks = Do(lambda: others.append(MemorySource(full.topic))), Do(look)
    worker = cast(full, worker_config(**NEVER), [40, 40, joins, looks, 40, looks, 40, looks, 40, looks])
    worker.run()
    assert worker.heard.of(PartitionsReleased) == [PartitionsReleased([0, 1], lost=False)]
    assert saved_when_granted == [(80, 80, {0: 80, 1: 80})]
    assert worker.heard.of(PartitionsAssigned) == [PartitionsAssigned({0: -1, 1: -1}), PartitionsAssigned({0: 80})]
    assert full.position(0) == N


def test_what_is_lost_is_dropped_without_saving(full: Stage) -> None:
    worker: Cast = cast(full, worker_config(**NEVER), [100, 100, Do(lambda: full.topic.evict(worker.source)), Pause()])
    worker.run()
    assert worker.heard.of(PartitionsReleased) == [PartitionsReleased([0], lost=True)]
    assert [entry[2] for entry in full.calls("save")] == [N]
    assert [entry[1] for entry in full.calls("commit")] == [{0: N}]
    assert full.calls("seek") == [("seek", {0: None}), ("seek", {0: None})]
    full.assert_complete()


def test_a_member_without_partitions_does_nothing(full: Stage) -> None:
    owner = MemorySource(full.topic)
    worker = cast(full, script=[Do(lambda: owner.poll(0))] * 4)
    worker.run()
    assert full.calls("save", "commit", "publish") == []


# Bad records.


def poisoned(stage: Stage) -> None:
    stage.send(0, many(50))
    stage.send(0, [POISON, None])
    stage.send(0, many(60, seed=1))
    stage.send(0, [POISON])


@pytest.mark.parametrize("batch", [1, 13, 1000])
def test_stop_learns_and_saves_what_came_before_and_names_the_record(stage: Stage, batch: int) -> None:
    poisoned(stage)
    worker = cast(stage, worker_config(bad_records="stop"), batch=batch)
    with pytest.raises(BadRecordError, match=r"partition 0 of readings, offset 50: 6 bytes .*wrong_length") as refusal:
        worker.run()
    assert "dead_letter_topic" in one_line(refusal.value)
    assert stage.position() == 50
    newest = stage.checkpoints.newest(0)
    assert newest is not None
    assert (newest.fold.stats.learned, dict(newest.fold.stats.rejected)) == (50, {})
    assert worker.heard.of(RecordRejected) == []
    stage.journal.clear()
    with pytest.raises(BadRecordError, match="offset 50"):  # and again, until someone mends it
        cast(stage, worker_config(bad_records="stop")).run()
    assert stage.calls("save") == []


@pytest.mark.parametrize("batch", [1, 13, 1000])
def test_skip_counts_them_and_goes_on(stage: Stage, batch: int) -> None:
    poisoned(stage)
    worker = cast(stage, worker_config(bad_records="skip"), batch=batch)
    worker.run()
    assert [(event.partition, event.offset, event.reason) for event in worker.heard.of(RecordRejected)] == [
        (0, 50, "wrong_length"),
        (0, 51, "no_value"),
        (0, 112, "wrong_length"),
    ]
    stage.assert_complete()
    assert stage.letters == []


@pytest.mark.parametrize("batch", [1, 13, 1000])
def test_dead_letters_are_acknowledged_before_a_checkpoint_passes_them(stage: Stage, batch: int) -> None:
    poisoned(stage)
    cast(stage, worker_config(bad_records="dead_letter"), batch=batch).run()
    assert stage.letters == [(0, 50, "wrong_length"), (0, 51, "no_value"), (0, 112, "wrong_length")]
    stage.assert_complete()


def test_a_flush_that_takes_too_long_postpones_the_checkpoint_and_not_the_learning(stage: Stage) -> None:
    poisoned(stage)
    stage.send(0, many(100, seed=3))
    seen: list[Any] = []

    def go() -> None:
        worker.letters.away = True

    def come_back() -> None:
        seen.append((stage.position(), dict(stage.topic.committed)))
        worker.letters.away = False

    worker: Cast = cast(stage, worker_config(bad_records="dead_letter"), [30, Do(go), 40, 40, Do(come_back), 40])
    worker.run()
    assert seen == [(30, {0: 30})]
    assert worker.heard.of(CheckpointPostponed) == [CheckpointPostponed("2 dead letters are not acknowledged yet")] * 2
    assert worker.heard.positions == {0: 213}
    stage.assert_complete()


def test_a_dead_letter_that_is_refused_for_good_stops_the_worker_before_the_record(stage: Stage) -> None:
    poisoned(stage)
    worker = cast(stage, worker_config(bad_records="dead_letter"), [40, 40])
    worker.letters.refusal = SourceError("the dead-letter topic is not there")
    with pytest.raises(SourceError, match="not there"):
        worker.run()
    assert stage.position() == 40
    assert stage.journal[-1] == ("close",)


# A store, a broker, a topic that fail.


def test_a_full_disk_postpones_and_commits_stay_behind_until_there_is_room(full: Stage) -> None:
    worker = cast(full, script=[50, Do(lambda: full.files.fail_writes(4)), 50, 50, 50, 50, 50])
    worker.run()
    # The third and fourth fault hit the model and the checkpoint of the second round.
    assert worker.heard.of(CheckpointPostponed) == [CheckpointPostponed("cannot write: No space left on device")] * 4
    assert [entry[2] for entry in full.calls("save")] == [50, 300]
    assert {entry[1][0] for entry in full.calls("commit")} == {50, 300}
    full.assert_complete()


def test_when_one_of_two_checkpoints_cannot_be_written_only_the_other_is_committed() -> None:
    stage = Stage(partitions=2)
    for partition in (0, 1):
        stage.send(partition, many(50, seed=partition))
    failing = {"writes": 0}

    def second_write_fails(name: str) -> None:
        failing["writes"] += name == "write"
        if name == "write" and failing["writes"] == 2:
            raise StoreError("disk full")

    worker = cast(stage, script=[50], hook=second_write_fails)
    worker.run()
    assert stage.calls("save", "commit")[:2] == [("save", 0, 50), ("commit", {0: 50})]
    assert worker.heard.of(CheckpointPostponed) == [CheckpointPostponed("disk full")]
    stage.assert_complete()


def test_a_disk_that_is_full_is_not_tried_at_every_poll(full: Stage) -> None:
    full.files.fail_writes(100)
    worker = cast(full, worker_config(checkpoint_messages=20, **NEVER), [20] * 15)
    worker.run()
    assert len(worker.heard.of(CheckpointPostponed)) == 2  # when it was due, and on the way out


def test_after_trouble_the_number_of_messages_counts_again(full: Stage) -> None:
    full.files.fail_writes(1)
    cast(full, worker_config(checkpoint_messages=20, checkpoint_interval_s=6.5), [20] * 15).run()
    positions = [entry[2] for entry in full.calls("save")]
    assert positions[0] > 60
    assert positions[1:] == list(range(positions[0] + 20, N + 1, 20))


def test_a_disk_that_stays_full_ends_in_a_worker_that_leaves_in_order(full: Stage) -> None:
    full.files.fail_writes(100)
    worker = cast(full, script=[50] * 6)
    worker.run()
    assert full.calls("save", "publish") == []
    assert full.topic.committed == {}
    assert full.journal[-1] == ("close",)


def test_a_model_that_cannot_be_written_is_tried_again(full: Stage) -> None:
    faults: list[StreampcaError] = [StoreError("disk full"), DamagedFileError("damaged")]

    def writing_models_fails(name: str) -> None:
        if name == "write" and full.journal[-1][0] == "save" and faults:  # the checkpoint is written, comes the model
            raise faults.pop(0)

    worker = cast(full, script=[100, 100, 100], hook=writing_models_fails)
    worker.run()
    assert worker.heard.of(PublishFailed) == [PublishFailed("disk full"), PublishFailed("damaged")]
    assert [event.model.version for event in worker.heard.of(ModelPublished)] == [N]
    assert worker.heard.of(CheckpointPostponed) == []
    full.assert_complete()


def test_a_broker_that_is_away_postpones_checkpoints(full: Stage) -> None:
    """The topic's identity cannot be looked up, so what was read cannot be vouched for."""
    worker = cast(full, script=[100, 100, 100], hook=away_at_look(full, 3))
    worker.run()
    assert worker.heard.of(CheckpointPostponed) == [CheckpointPostponed("no broker answers")]
    assert [entry[2] for entry in full.calls("save")] == [100, 300]
    full.assert_complete()


def away_at_look(stage: Stage, look: int) -> Hook:
    """The broker is away when the topic is looked at for that time, the first being at the start."""
    looks: list[str] = []

    def hook(name: str) -> None:
        if name == "topic_id":
            looks.append(name)
            stage.topic.away = len(looks) == look
        elif name == "poll":
            stage.topic.away = False

    return hook


def test_a_broker_that_is_away_at_the_start_is_a_clear_error(full: Stage) -> None:
    full.topic.away = True
    worker = cast(full)
    with pytest.raises(SourceError, match="no broker answers"):
        worker.run()
    assert worker.heard.of(WorkerStopping) == [WorkerStopping("no broker answers")]
    assert full.journal[-1] == ("close",)


def test_a_source_that_refuses_for_good_ends_it_after_saving(full: Stage) -> None:
    worker = cast(full, worker_config(**NEVER), [100, SourceError("not authorized")])
    with pytest.raises(SourceError, match="not authorized"):
        worker.run()
    assert full.position() == 100
    assert full.topic.committed == {0: 100}
    assert worker.heard.of(WorkerStopping) == [WorkerStopping("not authorized")]


def test_a_bug_saves_nothing_and_still_leaves_the_group(full: Stage) -> None:
    worker = cast(full, worker_config(**NEVER), [100, ValueError("a bug")])
    with pytest.raises(ValueError, match="a bug"):
        worker.run()
    assert full.calls("save", "commit", "publish") == []
    assert full.journal[-1] == ("close",)
    assert worker.heard.of(WorkerStopping) == [WorkerStopping("crashed")]


def test_a_crash_in_a_write_costs_work_and_no_truth(full: Stage) -> None:
    worker = cast(full, script=[100, Do(full.files.crash_in_write), 100])
    with pytest.raises(Crash):
        worker.run()
    assert full.position() == 100
    cast(full).run()
    full.assert_complete()


def test_a_topic_replaced_while_it_is_read_ends_it_and_nothing_more_is_saved(full: Stage) -> None:
    def replace_topic() -> None:
        full.topic.create(1)
        full.send(0, many(400, seed=5))

    worker = cast(full, script=[100, 100, Do(replace_topic), 100])
    with pytest.raises(TopicReplacedError, match="deleted and created again") as refusal:
        worker.run()
    one_line(refusal.value)
    assert full.position() == 200
    assert full.topic.committed == {0: 200}
    assert full.journal[-1] == ("close",)


def test_a_topic_replaced_between_runs_is_refused_before_anything_is_read(full: Stage) -> None:
    cast(full).run()
    full.topic.create(1)
    full.send(0, many(400, seed=5))
    full.journal.clear()
    with pytest.raises(TopicReplacedError, match="another store folder"):
        cast(full).run()
    assert full.calls("save", "commit", "seek", "publish") == []


def test_other_settings_than_the_checkpoints_are_refused_by_name(full: Stage) -> None:
    cast(full).run()
    full.journal.clear()
    with pytest.raises(SettingsError, match=r"components=2 \(now 1\)"):
        cast(full, worker_config(fold_config(components=1))).run()
    assert full.calls("save", "commit", "seek", "publish") == []


def test_when_all_checkpoints_are_damaged_it_does_not_start_afresh(full: Stage) -> None:
    cast(full).run()
    for name in full.files.names("checkpoints/readings/0"):
        full.files.damage(name)
    full.journal.clear()
    with pytest.raises(DamagedFileError, match="every checkpoint of partition 0"):
        cast(full).run()
    assert full.calls("save", "commit", "seek", "publish") == []


def test_a_damaged_newest_checkpoint_is_learned_again_from_the_one_before(full: Stage) -> None:
    cast(full, script=[100, 100, 100]).run()
    full.files.damage(full.files.names("checkpoints/readings/0")[-1])
    full.journal.clear()
    cast(full).run()
    assert full.calls("seek") == [("seek", {0: 200})]
    full.assert_complete()


def test_what_cannot_be_loaded_again_is_not_saved_and_says_so(full: Stage) -> None:
    worker = cast(full, script=[100, 100])

    def spoil(batch: BatchLearned) -> None:
        fold = worker.worker._folds[0]
        if fold.position == 200:
            worker.worker._folds[0] = replace(fold, state=replace(fold.state, mean=fold.state.mean * np.nan))

    worker.add_listener(On(BatchLearned, spoil))
    with pytest.raises(DamagedFileError, match=r"partition 0 cannot be saved: mean holds values that are not finite"):
        worker.run()
    assert full.position() == 100
    assert full.topic.committed == {0: 100}


# Offsets that retention has removed.


@pytest.fixture
def trimmed(full: Stage) -> Stage:
    """Learned up to 100, and retention has removed everything before 180."""
    run_until(full, 100)
    full.topic.trim(0, 180)
    return full


def test_a_gap_stops_the_worker_and_says_what_to_set(trimmed: Stage) -> None:
    with pytest.raises(OffsetGapError, match=r"offset 100 was removed.* 180.*on_offset_gap"):
        cast(trimmed, worker_config(offset_gap="fail")).run()
    assert trimmed.calls("save", "commit") == []


@pytest.mark.parametrize(("policy", "position"), [("earliest", 180), ("latest", N)])
def test_a_gap_is_passed_as_set_and_counted(trimmed: Stage, policy: str, position: int) -> None:
    worker = cast(trimmed, worker_config(offset_gap=policy))
    worker.run()
    assert worker.heard.of(OffsetsSkipped) == [OffsetsSkipped(0, 100, position)]
    assert trimmed.calls("seek")[1] == ("seek", {0: position})
    newest = trimmed.checkpoints.newest(0)
    assert newest is not None
    assert newest.fold.position == N
    assert newest.fold.stats.gap == position - 100
    assert newest.fold.stats.learned == 100 + N - position


def test_a_log_that_ends_before_the_checkpoint_has_lost_data(full: Stage) -> None:
    cast(full).run()
    log = full.topic.logs[0]
    del log.records[200:]
    log.end = 200
    with pytest.raises(OffsetGapError, match="lost data"):
        cast(full, worker_config(offset_gap="earliest")).run()
    assert full.position() == N


def test_a_gap_before_anything_was_read_is_none(stage: Stage) -> None:
    """Retention was quicker than the first poll."""
    stage.send(0, many(100))
    worker = cast(stage, worker_config(offset_gap="fail"))
    inner = worker.source.poll
    told = iter([OutOfRange(0, 0, 40, 100)])

    def poll(timeout_s: float) -> Any:
        if worker.heard.of(PartitionsAssigned) and (event := next(told, None)):
            stage.topic.trim(0, 40)
            return [event]
        return inner(timeout_s)

    worker.source.poll = poll  # type: ignore[method-assign]
    worker.run()
    assert stage.calls("seek") == [("seek", {0: None}), ("seek", {0: None})]
    newest = stage.checkpoints.newest(0)
    assert newest is not None
    assert (newest.fold.stats.learned, newest.fold.stats.gap) == (60, 0)


def test_a_broker_that_goes_away_again_during_a_gap_is_asked_once_more(trimmed: Stage) -> None:
    worker = cast(trimmed, worker_config(offset_gap="earliest"), hook=away_at_look(trimmed, 2))
    worker.run()
    assert [entry[1] for entry in trimmed.calls("seek")] == [{0: 100}, {0: 100}, {0: 180}]
    assert worker.heard.of(OffsetsSkipped) == [OffsetsSkipped(0, 100, 180)]


def test_a_topic_replaced_is_not_taken_for_a_gap(trimmed: Stage) -> None:
    def replace_topic() -> None:
        trimmed.topic.create(1)

    with pytest.raises(TopicReplacedError):
        cast(trimmed, worker_config(offset_gap="earliest"), [Do(replace_topic), 10]).run()
    assert trimmed.calls("save", "commit") == []


def test_every_error_that_ends_a_worker_is_one_that_a_person_can_mend() -> None:
    for kind in (BadRecordError, DamagedFileError, OffsetGapError, SettingsError, TopicReplacedError):
        assert issubclass(kind, StreampcaError)
