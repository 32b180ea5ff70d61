"""The worker's log, in which every condition is logged once."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streampca.consumer_group import events
from streampca.consumer_group.member import Member
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.sources.events import SourceStatus
from streampca.stores.object_errors import explain_error
from streampca.worker.log import WorkerLog
from tests.example_models import numbered
from tests.fold.streams import fold_config, make_fold, vectors
from tests.in_memory import Step
from tests.members import make_member, notify
from tests.waiting import Clock
from tests.worker.environment import POISON, Environment, make_environment, make_filled_environment
from tests.worker.harness import make_worker, make_worker_config

Logs = list[dict[str, Any]]
MEMBER = SourceStatus(connected=True, member=True)
NOW = 1_700_000_000.0
SAVED = events.CheckpointSaved(0, make_fold(vectors(5), fold_config()), 0.1)


def run_logged(env: Environment, script: list[Step], **options: Any) -> None:
    make_worker(env, make_worker_config(env.fold_config, **options), script).also_notify(
        make_member(WorkerLog()).notify
    ).run()


def events_of(logs: Logs) -> list[str]:
    return [line["event"] for line in logs if line["log_level"] != "debug"]


def learned(lag: int, partition: int = 0) -> events.BatchLearned:
    return events.BatchLearned(partition, make_fold(vectors(5), fold_config()), 5, [], 0.1, lag)


def test_an_undisturbed_run_logs_a_few_lines(logs: Logs) -> None:
    run_logged(make_filled_environment(300, 300), [200, 200, 200], checkpoint_interval_s=1e9)
    assert events_of(logs) == ["partitions assigned", "caught up", "stopping", "model published"]
    assigned, *_, published = [line for line in logs if line["log_level"] == "info"]
    assert assigned["read_from"] == {"0": "earliest", "1": "earliest"}
    assert (published["version"], published["partitions"]) == (600, 2)
    assert 0 < published["explained_variance_ratio"] < 1
    assert 0 < published["loss_ewma"] < 1
    saved = [line for line in logs if line["event"] == "checkpoint saved"]
    assert [(line["log_level"], line["partition"], line["next_offset"]) for line in saved] == [
        ("debug", 0, 300),
        ("debug", 1, 300),
    ]


@pytest.mark.parametrize(
    ("ahead_s", "half_life_seconds", "lines"),
    [(3601, 600.0, 1), (3600, 600.0, 0), (86400, None, 0), (-86400, 600.0, 0)],
)
def test_a_clock_far_behind_the_records_is_logged_once_where_a_half_life_depends_on_it(
    logs: Logs, ahead_s: int, half_life_seconds: float | None, lines: int
) -> None:
    log = make_member(WorkerLog())
    model = replace(numbered(7, published_at=NOW), settings={"half_life_seconds": half_life_seconds})
    for _ in range(3):
        log.notify(events.ModelPublished(model, 0.1, event_time_ms=int(1000 * (NOW + ahead_s))))
    log.notify(events.ModelPublished(model, 0.1))  # no event time is known
    assert events_of(logs).count("records are ahead of the clock") == lines


def test_a_dimension_with_nearly_all_of_the_variance_is_logged_once_as_a_warning(logs: Logs) -> None:
    log = make_member(WorkerLog())
    alike = numbered(7)
    axes = np.eye(alike.model.dimensions)[: alike.model.n_components]
    variances = np.array([99.0] + [0.0] * (len(axes) - 1))
    model = replace(
        alike.model, components=axes, explained_variance=variances, total_variance=100.0, weight=100.0, scale=None
    )
    for published in (alike, replace(alike, model=model), replace(alike, model=model)):
        log.notify(events.ModelPublished(published, 0.1))
    [line] = [line for line in logs if line["event"] == "one dimension has most variance"]
    assert line["log_level"] == "warning"
    assert line["cause"].startswith("dimension 0 (counted from 0) has 99.00% of the total variance")


def test_errors_that_differ_only_in_file_or_count_are_logged_once_and_again_when_they_end(logs: Logs) -> None:
    log = make_member(WorkerLog())
    full = [f"cannot write /store/checkpoints/t/0/{n:020d}.npz: No space left on device" for n in (100, 200, 3000)]
    causes = [*full, *(f"{count} dead letters are not acknowledged yet" for count in (1, 12))]
    notify(log, *map(events.CheckpointPostponed, causes))
    assert [(line["log_level"], line["cause"][:12]) for line in logs] == [
        ("error", "cannot write"),
        ("error", "1 dead lette"),
    ]
    log.notify(SAVED)
    assert [line["after"] for line in logs if line["event"] == "checkpoint saved again"] == [causes[-1]]


def test_an_outage_of_the_object_store_is_logged_once_and_again_when_it_ends(logs: Logs) -> None:
    """However each request fails; a cause that does not end by itself is logged too."""
    log = make_member(WorkerLog())

    def failed(text: str) -> events.CheckpointPostponed:
        return events.CheckpointPostponed(str(explain_error("write", "s3://bucket", "a", OSError(text))))

    causes = ("status code: 503 <Code>SlowDown</Code>", "kind: Timeout", "HttpError", "status code: 500")
    notify(log, *map(failed, causes), SAVED)
    assert events_of(logs) == ["checkpoint postponed", "checkpoint saved again"]
    notify(log, failed("status code: 503"), failed("status code: 403 <Code>AccessDenied</Code>"))
    assert events_of(logs)[2:] == ["checkpoint postponed", "checkpoint postponed"]
    assert "no permission" in logs[-1]["cause"]


def test_failed_publishing_is_logged_once_while_checkpoints_are_saved(logs: Logs) -> None:
    """Saved checkpoints do not end the error of publishing."""
    notify(make_member(WorkerLog()), *[SAVED, events.PublishFailed("cannot write: No space left on device")] * 5)
    assert events_of(logs) == ["publishing failed"]


def test_rejected_records_are_logged_at_powers_of_ten(logs: Logs) -> None:
    run_logged(make_environment([POISON] * 120 + [None] * 3 + [b"?"]), [50], on_bad_record="skip")
    logged = [line for line in logs if line["event"] == "record rejected" and line["log_level"] == "warning"]
    assert [(line["reason"], line["count"], line["offset"]) for line in logged] == [
        ("wrong_length", 1, 0),
        ("wrong_length", 10, 9),
        ("wrong_length", 100, 99),
    ]
    assert len([line for line in logs if line["event"] == "record rejected"]) == 121
    assert logged[0]["message"].startswith("6 bytes")


@pytest.mark.parametrize(
    ("counts", "good", "warnings"),
    [([99], 0, 0), ([60, 40, 500], 0, 1), ([100], 0, 1), ([250], 1, 0), ([99, 1], 1, 0)],
)
def test_a_hundred_deletes_before_any_vector_are_one_warning(
    logs: Logs, counts: list[int], good: int, warnings: int
) -> None:
    """As with `field` at Debezium's `before` instead of `after`."""
    env = make_filled_environment(good)
    for count in counts:
        env.send(0, [None] * count)
    run_logged(env, [count for count in [good, *counts] if count])
    raised = [line for line in logs if line["log_level"] == "warning"]
    assert [line["event"] for line in raised] == ["no record has a vector"] * warnings
    assert all(line["skipped"] >= 100 and "correct field" in line["message"] for line in raised)


def test_a_name_that_none_of_the_first_records_has_is_one_warning(logs: Logs) -> None:
    env = make_environment([json.dumps(dict.fromkeys("abcde", i % 7)).encode() for i in range(2100)])
    env.fold_config = fold_config(impute=True, components=1)
    codec = Codec("json", Judge.of(env.fold_config.learning), "a,b,c,d,dust")
    config = replace(make_worker_config(env.fold_config), codec=codec)
    make_worker(env, config, [500] * 5).also_notify(make_member(WorkerLog()).notify).run()
    raised = [line for line in logs if line["log_level"] == "warning"]
    assert [line["event"] for line in raised] == ["names without numbers"]
    assert "at dust: correct field" in raised[0]["message"]


def test_catching_up_is_logged_once_per_assignment(logs: Logs) -> None:
    """Partitions that are lost are a warning; those without any message do not count."""
    log = make_member(WorkerLog())
    log.notify(events.BatchLearned(0, make_fold(vectors(0), fold_config()), 0, [], 0.1, 0))
    assert logs == []
    notify(log, events.PartitionsAssigned({0: 0, 1: 7}), *map(learned, (5, 0, 3, 0)))
    assert events_of(logs) == ["partitions assigned"]
    notify(log, learned(0, partition=1), learned(4), learned(0))
    assert events_of(logs)[1:] == ["caught up"]
    assert (logs[-1]["partitions"], logs[-1]["learned"]) == (2, 10)
    released = events.PartitionsReleased([0, 1], lost=False)
    notify(log, released, events.PartitionsAssigned({1: 7}), learned(0, partition=1))
    assert events_of(logs)[2:] == ["partitions revoked", "partitions assigned", "caught up"]
    log.notify(events.PartitionsReleased([1, 0], lost=True))
    assert logs[-1] == {"event": "partitions lost", "log_level": "warning", "partitions": [0, 1]}


def test_a_member_that_restores_in_steps_catches_up_only_when_all_are_read(logs: Logs) -> None:
    log = make_member(WorkerLog())
    notify(log, events.RestoreBegun(2), events.PartitionsAssigned({0: 0}), learned(0))
    assert events_of(logs) == ["partitions assigned"]
    notify(log, events.PartitionsAssigned({1: 7}), learned(0, partition=1))
    assert events_of(logs)[1:] == ["partitions assigned", "caught up"]


class TimedLog(Member):
    """A member with a log; its clock moves with the polls."""

    def __init__(self) -> None:
        self._time = Clock()
        super().__init__([WorkerLog()], 600.0, lambda needs: False, self._time)

    def poll_for_minutes(self, minutes: int = 1, status: SourceStatus = MEMBER) -> None:
        """Notify of four polls a minute, 15 s apart."""
        for _ in range(4 * minutes):
            self._time.now += 15
            self.notify(events.LoopTicked(status))


def test_elements_that_change_their_places_are_logged_once(logs: Logs) -> None:
    log = TimedLog()
    for _ in range(2):
        log.notify(events.ElementsReordered("name them"))
    [line] = [line for line in logs if line["event"] == "elements change their places"]
    assert line["message"] == "name them"


def test_progress_is_logged_once_a_minute(logs: Logs) -> None:
    log = TimedLog()
    notify(log, events.PartitionsAssigned({0: -1, 1: -1}), events.RecordRejected(0, 7, "undecodable", "?"))
    log.notify(events.RecordsSkipped(3, accepted_any=False))
    for _ in range(2):
        notify(log, *[learned(lag=40)] * 6, learned(lag=2, partition=1))
        log.poll_for_minutes()
    logged = [line for line in logs if line["event"] == "learning"]
    assert [(line["messages"], line["per_second"], line["lag"]) for line in logged] == [(35, 0.6, 42)] * 2
    assert logged[0].items() >= {"partitions": 2, "rejected": 1, "skipped": 3, "last_model": None}.items()


def test_the_logged_loss_is_the_recent_loss_ratio(logs: Logs) -> None:
    log, fold = TimedLog(), make_fold(vectors(500), fold_config())
    log.notify(events.BatchLearned(0, fold, 500, [], 0.1, 0))
    log.poll_for_minutes()
    assert logs[-1]["loss"] == pytest.approx(fold.stats.loss_ewma / fold.stats.norm_ewma, abs=1e-5)
    assert 0 < logs[-1]["loss"] < 1


@pytest.mark.parametrize(
    ("status", "owned", "event"),
    [
        (MEMBER, True, "idle"),
        (MEMBER, False, "standing by"),
        (SourceStatus(connected=True, member=False), False, "waiting to join group"),
        (SourceStatus(connected=False, member=True), True, "waiting for broker"),
    ],
)
def test_the_reason_for_not_learning_is_logged_once(logs: Logs, status: SourceStatus, owned: bool, event: str) -> None:
    log = TimedLog()
    if owned:
        log.notify(events.PartitionsAssigned({0: 5}))
    log.poll_for_minutes(3, status)
    assert events_of(logs)[-1:] == [event]
    assert events_of(logs).count(event) == 1
    log.notify(learned(lag=0))
    if not owned:
        log.notify(events.PartitionsReleased([0], lost=False))
    log.poll_for_minutes(2, status)
    assert events_of(logs)[-2:] == ["learning", event]


def test_a_stalled_partition_is_logged_once_while_others_continue(logs: Logs) -> None:
    log = TimedLog()
    notify(log, events.PartitionsAssigned({0: 5, 1: 5}), learned(lag=0, partition=1))
    for lag in (10, 20, 30):
        notify(log, events.PartitionStalled(1, lag, "the registry does not answer"), learned(lag=0))
    log.poll_for_minutes()
    assert logs[-1]["lag"] == 30
    log.poll_for_minutes()
    assert events_of(logs)[-3:] == ["decoding stalled", "learning", "waiting for schema registry"]
    log.notify(learned(lag=0, partition=1))
    log.poll_for_minutes(2)
    assert events_of(logs)[-4:] == ["decoding resumed", "caught up", "learning", "idle"]


def test_a_partition_that_stalls_again_after_it_was_released_is_logged_again(logs: Logs) -> None:
    stalled = events.PartitionStalled(0, 10, "the registry does not answer")
    notify(
        make_member(WorkerLog()),
        *[events.PartitionsAssigned({0: 5}), stalled, events.PartitionsReleased([0], lost=False)] * 2,
    )
    assert events_of(logs).count("decoding stalled") == 2


def test_the_last_line_has_the_saved_positions(logs: Logs) -> None:
    worker_log = WorkerLog()
    log = make_member(worker_log)
    released, rejected = events.PartitionsReleased([2], lost=False), events.RecordRejected(0, 6, "undecodable", "?")
    notify(log, events.PartitionsAssigned({0: 2, 1: 40, 2: 80, 3: -1}), learned(lag=0), SAVED, released, rejected)
    worker_log.log_end(log.state)
    assert logs[-1].items() >= {
        "event": "worker ended", "learned": 5, "rejected": 1, "saved_up_to": {"0": SAVED.fold.position, "1": 40},
        "last_model": None,
    }.items()  # fmt: skip


def lefts(logs: Logs) -> list[tuple[int, int]]:
    """How many partitions were left, and how many restored, in each line about them."""
    return [(line["left"], line["restored"]) for line in logs if "left" in line]


def test_how_many_partitions_are_left_to_restore_is_logged_at_growing_intervals(logs: Logs) -> None:
    log = TimedLog()
    log.notify(events.RestoreBegun(100))
    assert lefts(logs) == []
    log.poll_for_minutes()
    assert lefts(logs) == [(100, 0), (100, 0), (100, 0)]
    log.notify(events.PartitionsAssigned(dict.fromkeys(range(60), 5)))
    log.poll_for_minutes(2)
    assert lefts(logs)[3:] == [(40, 60)] * 2
    assert "restoring partitions" in [line["event"] for line in logs if "lag" in line]
    log.notify(events.PartitionsAssigned(dict.fromkeys(range(60, 100), 5)))
    log.poll_for_minutes(2)
    assert len(lefts(logs)) == 5


@pytest.mark.parametrize(
    "event",
    [
        events.RestoreFailed("the store is away"),
        events.PartitionsMissing({0: "gone"}),
        events.PartitionsReleased([0], lost=False),
        events.PartitionsReleased([0], lost=True),
        events.PartitionsAssigned({0: 5}),
    ],
)
def test_nothing_is_logged_of_partitions_that_cannot_be_restored_or_need_not(
    logs: Logs, event: events.MemberEvent
) -> None:
    """What fails has a line of its own."""
    log = TimedLog()
    notify(log, events.RestoreBegun(1), event)
    log.poll_for_minutes(3)
    assert lefts(logs) == []
