"""The worker's log: every condition is logged once."""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from streampca.consumer_group.listener import (
    BatchLearned,
    CheckpointPostponed,
    CheckpointSaved,
    PartitionResumed,
    PartitionsAssigned,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RecordRejected,
    SourcePolled,
)
from streampca.fold.events import SourceStatus
from streampca.sources.memory import Do, Pause, Step
from streampca.stores.object_errors import store_error
from streampca.worker.log import WorkerLog
from tests.fold.streams import fold_config, fold_of, vectors
from tests.waiting import Clock
from tests.worker.environment import POISON, Environment, filled_with
from tests.worker.harness import WorkerFixture, make_worker, worker_config

Logs = list[dict[str, Any]]


@pytest.fixture
def logs() -> Iterator[Logs]:
    with capture_logs() as logs:
        yield logs  # type: ignore[misc]  # mutable mappings, as dicts are


def run_logged(env: Environment, script: list[Step], **options: Any) -> None:
    worker: WorkerFixture = make_worker(env, worker_config(env.fold_config, **options), script)
    worker.add_listener(WorkerLog())
    worker.run()


def events(logs: Logs, *levels: str) -> list[str]:
    return [line["event"] for line in logs if line["log_level"] in (levels or ("info", "warning", "error"))]


def learned(lag: int, partition: int = 0) -> BatchLearned:
    return BatchLearned(partition, fold_of(vectors(5), fold_config()), 5, [], 0.1, lag)


def test_an_undisturbed_run_logs_a_few_lines(logs: Logs) -> None:
    env = filled_with(300, 300)
    run_logged(env, [200, 200, 200], checkpoint_interval_s=1e9)
    assert events(logs) == ["partitions assigned", "caught up", "stopping", "model published"]
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


def test_a_lasting_error_is_logged_once_and_again_when_it_ends(logs: Logs) -> None:
    env = filled_with(200)
    run_logged(env, [20, Do(lambda: env.store.fail_writes(6)), 20, 20, 20, 20, 20, 20, 20])
    errors = [line for line in logs if line["log_level"] == "error"]
    assert [line["event"] for line in errors] == ["checkpoint postponed"]
    assert errors[0]["cause"] == "cannot write: No space left on device"
    resolved = [line for line in logs if line["event"] == "checkpoint saved again"]
    assert [line["after"] for line in resolved] == ["cannot write: No space left on device"]


def test_errors_that_differ_only_in_file_or_count_are_logged_once(logs: Logs) -> None:
    listener = WorkerLog()
    for position in (100, 200, 3000):
        listener.notify(
            CheckpointPostponed(f"cannot write /store/checkpoints/t/0/{position:020d}.npz: No space left on device")
        )
    for count in (1, 12):
        listener.notify(CheckpointPostponed(f"{count} dead letters are not acknowledged yet"))
    assert [line["cause"][:12] for line in logs] == ["cannot write", "1 dead lette"]


def test_an_outage_of_the_object_store_is_logged_once_and_again_when_it_ends(logs: Logs) -> None:
    """However each request fails; a cause that does not end by itself is logged too."""
    listener, fold = WorkerLog(), fold_of(vectors(5), fold_config())

    def fail(text: str) -> None:
        listener.notify(CheckpointPostponed(str(store_error("write", "s3://bucket", "a", OSError(text)))))

    for text in (
        "status code: 503 <Code>SlowDown</Code>",
        "operation timed out",
        "HTTP error: reset",
        "status code: 500",
    ):
        fail(text)
    listener.notify(CheckpointSaved(0, fold, 0.1))
    assert events(logs) == ["checkpoint postponed", "checkpoint saved again"]
    fail("status code: 503")
    fail("status code: 403 <Code>AccessDenied</Code>")
    assert events(logs)[2:] == ["checkpoint postponed", "checkpoint postponed"]
    assert "no permission" in logs[-1]["cause"]


def test_failed_publishing_is_logged_once_while_checkpoints_are_saved(logs: Logs) -> None:
    """Saved checkpoints do not end the error of publishing."""
    listener, fold = WorkerLog(), fold_of(vectors(5), fold_config())
    for _ in range(5):
        listener.notify(CheckpointSaved(0, fold, 0.1))
        listener.notify(PublishFailed("cannot write: No space left on device"))
    assert events(logs) == ["publishing failed"]


def test_rejected_records_are_logged_at_powers_of_ten(logs: Logs) -> None:
    env = Environment()
    env.send(0, [POISON] * 120 + [None] * 3)
    run_logged(env, [50], bad_records="skip")
    logged = [line for line in logs if line["event"] == "record rejected" and line["log_level"] == "warning"]
    assert [(line["reason"], line["count"], line["offset"]) for line in logged] == [
        ("wrong_length", 1, 0),
        ("wrong_length", 10, 9),
        ("wrong_length", 100, 99),
        ("no_value", 1, 120),
    ]
    assert len([line for line in logs if line["event"] == "record rejected"]) == 123
    assert logged[0]["message"].startswith("6 bytes")


def test_catching_up_is_logged_once_per_assignment(logs: Logs) -> None:
    listener = WorkerLog()
    listener.notify(PartitionsAssigned({0: 0, 1: 7}))
    for lag in (5, 0, 3, 0):
        listener.notify(learned(lag))
    assert events(logs) == ["partitions assigned"]
    listener.notify(learned(0, partition=1))
    listener.notify(learned(4))
    listener.notify(learned(0))
    assert events(logs)[1:] == ["caught up"]
    assert (logs[-1]["partitions"], logs[-1]["learned"]) == (2, 10)
    listener.notify(PartitionsReleased([0, 1], lost=False))
    listener.notify(PartitionsAssigned({1: 7}))
    listener.notify(learned(0, partition=1))
    assert events(logs)[2:] == ["partitions revoked", "partitions assigned", "caught up"]


def test_an_empty_partition_logs_no_catching_up(logs: Logs) -> None:
    fold = fold_of(vectors(0), fold_config())
    WorkerLog().notify(BatchLearned(0, fold, 0, [], 0.1, 0))
    assert logs == []


def test_losing_partitions_is_a_warning(logs: Logs) -> None:
    env = filled_with(100)
    worker: WorkerFixture = make_worker(
        env, worker_config(checkpoint_interval_s=1e9), [50, Do(lambda: env.topic.evict(worker.source)), Pause()]
    )
    worker.add_listener(WorkerLog())
    worker.run()
    [lost] = [line for line in logs if line["event"] == "partitions lost"]
    assert (lost["log_level"], lost["partitions"]) == ("warning", [0])


MEMBER = SourceStatus(connected=True, member=True)


def poll_for_a_minute(listener: WorkerLog, clock: Clock, status: SourceStatus = MEMBER) -> None:
    """Notify of four polls, 15 s apart."""
    for _ in range(4):
        clock.now += 15
        listener.notify(SourcePolled(status))


def test_progress_is_logged_once_a_minute(logs: Logs) -> None:
    clock = Clock()
    listener = WorkerLog(clock)
    listener.notify(PartitionsAssigned({0: -1, 1: -1}))
    listener.notify(RecordRejected(0, 7, "no_value", "?"))
    for _ in range(2):
        for _ in range(6):
            listener.notify(learned(lag=40))
        listener.notify(learned(lag=2, partition=1))
        poll_for_a_minute(listener, clock)
    logged = [line for line in logs if line["event"] == "learning"]
    assert [(line["messages"], line["per_second"], line["lag"]) for line in logged] == [(35, 0.6, 42)] * 2
    assert (logged[0]["partitions"], logged[0]["rejected"], logged[0]["last_model"]) == (2, 1, None)


def test_the_logged_loss_is_the_recent_loss_ratio(logs: Logs) -> None:
    clock = Clock()
    listener, fold = WorkerLog(clock), fold_of(vectors(500), fold_config())
    listener.notify(BatchLearned(0, fold, 500, [], 0.1, 0))
    poll_for_a_minute(listener, clock)
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
    clock = Clock()
    listener = WorkerLog(clock)
    if owned:
        listener.notify(PartitionsAssigned({0: 5}))
    for _ in range(3):
        poll_for_a_minute(listener, clock, status)
    assert events(logs)[-1:] == [event]
    assert events(logs).count(event) == 1
    listener.notify(learned(lag=0))
    if not owned:
        listener.notify(PartitionsReleased([0], lost=False))
    poll_for_a_minute(listener, clock, status)
    poll_for_a_minute(listener, clock, status)
    assert events(logs)[-2:] == ["learning", event]


def test_a_stalled_partition_is_logged_once_while_others_continue(logs: Logs) -> None:
    clock = Clock()
    listener = WorkerLog(clock)
    listener.notify(PartitionsAssigned({0: 5, 1: 5}))
    listener.notify(learned(lag=0, partition=1))
    for lag in (10, 20, 30):
        listener.notify(PartitionStalled(1, lag, "the registry does not answer"))
        listener.notify(learned(lag=0))
    poll_for_a_minute(listener, clock)
    assert logs[-1]["lag"] == 30
    poll_for_a_minute(listener, clock)
    assert events(logs)[-3:] == ["decoding stalled", "learning", "waiting for schema registry"]
    listener.notify(PartitionResumed(1))
    listener.notify(learned(lag=0, partition=1))
    poll_for_a_minute(listener, clock)
    poll_for_a_minute(listener, clock)
    assert events(logs)[-4:-2] == ["decoding resumed", "caught up"]
    assert events(logs)[-1] == "idle"


def test_the_last_line_has_the_saved_positions(logs: Logs) -> None:
    clock = Clock()
    listener, fold = WorkerLog(clock), fold_of(vectors(5), fold_config())
    listener.notify(PartitionsAssigned({0: 2, 1: 40, 2: 80, 3: -1}))
    listener.notify(learned(lag=0))
    listener.notify(CheckpointSaved(0, fold, 0.1))
    listener.notify(PartitionsReleased([2], lost=False))
    listener.notify(RecordRejected(0, 6, "no_value", "?"))
    listener.ended()
    last = logs[-1]
    assert (last["event"], last["learned"], last["rejected"]) == ("worker ended", 5, 1)
    assert (last["saved_up_to"], last["last_model"]) == ({"0": fold.position, "1": 40}, None)
