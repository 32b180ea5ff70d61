"""Log, metrics and status of `streampca transform`."""

from pathlib import Path

import pytest
import structlog

from streampca.consumer_group.listener import (
    BatchTransformed,
    LoopTicked,
    ModelAwaited,
    PartitionsAssigned,
    PartitionsReleased,
    RecordRejected,
    SourcePolled,
    TransactionEnded,
)
from streampca.consumer_group.status import StatusListener
from streampca.fold.events import SourceStatus
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import MemoryStore
from streampca.stores.process_status import ProcessStatus, ProcessStatuses, TransformStatus
from streampca.transform.listeners import TransformLog, TransformMetrics
from tests.transform.harness import Member, World
from tests.waiting import Clock
from tests.worker.harness import SynchronousExecutor

BATCH = BatchTransformed(0, 4, 3, 7, 5, 9)


def value(metrics: TransformMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"streampca_transform_{name}", {"topic": "t", **labels})


def test_records_count_when_their_transaction_is_committed() -> None:
    metrics = TransformMetrics("t")
    for event in (
        LoopTicked(), SourcePolled(SourceStatus(True, member=True)), PartitionsAssigned({0: -1, 1: 3}), BATCH,
        TransactionEnded("failed", 4, 0.0, "why"), BATCH, RecordRejected(0, 8, "undecodable", ""),
        TransactionEnded("committed", 5, 0.2),
    ):  # fmt: skip
        metrics.notify(event)
    counts = [value(metrics, "records_total", outcome=outcome) for outcome in ("read", "written", "rejected")]
    assert counts == [5, 3, 1]
    assert value(metrics, "transactions_total", outcome="failed") == 1
    assert value(metrics, "transactions_total", outcome="committed") == 1
    assert value(metrics, "lag_messages", partition="0") == 5
    assert value(metrics, "model_version") == 7
    assert value(metrics, "partitions_owned") == 2
    assert value(metrics, "broker_connected") == 1
    metrics.notify(PartitionsReleased([0, 1], lost=False))
    assert value(metrics, "lag_messages", partition="0") is None
    assert value(metrics, "partitions_owned") == 0


def test_partitions_that_are_read_again_count_once() -> None:
    world, metrics = World(5), TransformMetrics("t")
    member = Member(world, listener=metrics)
    member.transactions.failures = ["before", "after"]
    member.run()
    assert value(metrics, "partitions_owned") == 1
    assert value(metrics, "records_total", outcome="written") == 0  # committed, but it did not know
    assert value(metrics, "transactions_total", outcome="failed") == 2


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def status_listener(store: MemoryStore, clock: Clock) -> StatusListener:
    reports = ProcessStatuses(store, "t")
    return StatusListener(reports, "host-7", clock, clock, SynchronousExecutor(), output_topic="projected")


def reported(listener: StatusListener, store: MemoryStore, clock: Clock) -> ProcessStatus:
    """The report that is due within a minute."""
    clock.now += 61.0
    listener.notify(LoopTicked())
    (report,) = ProcessStatuses(store, "t").all()
    return report


def test_the_status_from_waiting_for_a_model_to_the_end(store: MemoryStore) -> None:
    clock = Clock(1000.0)
    with status_listener(store, clock) as listener:
        listener.notify(ModelAwaited("no model yet"))
        report = reported(listener, store, clock)
        assert (report.state, report.trouble, report.transform.awaits) == ("starting", None, "no model yet")
        assert report.transform.model_dump(exclude={"awaits"}) == {
            "output_topic": "projected", "model_version": None, "written": 0, "rejected": 0, "committed_at": None
        }  # fmt: skip
        connected = SourcePolled(SourceStatus(True, member=True))
        for event in (connected, PartitionsAssigned({0: -1, 1: 3}), BATCH, RecordRejected(0, 8, "undecodable", "")):
            listener.notify(event)
        clock.now += 1
        listener.notify(TransactionEnded("committed", 5, 0.2))
        committed_at = clock.now
        for event in (BATCH, TransactionEnded("failed", 4, 0.0, "fenced"), BATCH):
            listener.notify(event)
        report = reported(listener, store, clock)
        assert (report.state, report.trouble) == ("waiting", "fenced")
        assert report.transform == TransformStatus(
            output_topic="projected", model_version=7, awaits=None, written=3, rejected=1, committed_at=committed_at
        )
        assert [(p.position, p.lag) for p in report.partitions.values()] == [(9, 5), (3, None)]
        listener.notify(TransactionEnded("committed", 4, 0.1))
        listener.notify(BATCH)
        listener.notify(PartitionsReleased([0], lost=False))
        report = ProcessStatuses(store, "t").all()[0]
        assert (report.state, report.trouble, list(report.partitions)) == ("transforming", None, ["1"])
        assert report.transform.written == 6
    report = ProcessStatuses(store, "t").all()[0]
    assert (report.state, report.partitions, report.transform.written) == ("stopped", {}, 6)


def test_a_status_does_not_create_a_store(tmp_path: Path) -> None:
    reports = ProcessStatuses(DirectoryStore(tmp_path / "store"), "t")
    with StatusListener(reports, "host-7", output_topic="projected") as listener:
        listener.notify(ModelAwaited("there is no store"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store").mkdir()
    with StatusListener(reports, "host-7", output_topic="projected"):
        pass
    assert [report.state for report in reports.all()] == ["stopped"]


def test_failures_and_waiting_are_logged_once() -> None:
    clock = Clock(0.0)
    log = TransformLog(clock)
    with structlog.testing.capture_logs() as lines:
        for event in (
            ModelAwaited("none"), ModelAwaited("none"), PartitionsAssigned({0: -1}), BATCH,
            TransactionEnded("failed", 4, 0.0, "why"), TransactionEnded("failed", 4, 0.0, "why"),
            TransactionEnded("committed", 4, 0.1), BatchTransformed(0, 1, 1, 8, 0, 10),
        ):  # fmt: skip
            log.notify(event)
        clock.now = 61.0
        log.notify(SourcePolled(SourceStatus(True, member=True)))
        log.ended()
    events = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert events == [
        "waiting for model", "partitions assigned", "model in use", "transaction failed",
        "transactions committed again", "caught up", "transforming", "transform ended",
    ]  # fmt: skip
    assert lines[-2]["messages"] == 5
    assert lines[-1] == {"event": "transform ended", "log_level": "info", "committed": 4, "partitions": 1, "lag": 0,
                         "written": 4, "rejected": 0, "model": 8}  # fmt: skip
