"""The worker's log, in which every condition is logged once, and its metrics, as Prometheus reads them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from streampca.consumer_group import events
from streampca.consumer_group.member import Member
from streampca.fold.fold import Fold
from streampca.pca.learning import LEARN_BLOCK
from streampca.pca.state import Losses
from streampca.sources.events import SourceStatus
from streampca.stores.object_errors import store_error
from streampca.worker.listeners import BulkHistogram, WorkerLog, WorkerMetrics
from tests.fold.streams import fold_config, fold_of, vectors
from tests.in_memory import Step
from tests.members import member_of
from tests.monitoring.prometheus import assert_includes, samples_in
from tests.waiting import Clock
from tests.worker.environment import POISON, TOPIC, Environment, environment_of, filled_with, notify
from tests.worker.harness import make_worker, worker_config

Logs = list[dict[str, Any]]
MEMBER = SourceStatus(connected=True, member=True)
NOW = 1_700_000_000.0
SAVED = events.CheckpointSaved(0, fold_of(vectors(5), fold_config()), 0.1)


def run_logged(env: Environment, script: list[Step], **options: Any) -> None:
    make_worker(env, worker_config(env.fold_config, **options), script).add_listener(member_of(WorkerLog())).run()


def events_of(logs: Logs) -> list[str]:
    return [line["event"] for line in logs if line["log_level"] != "debug"]


def learned(lag: int, partition: int = 0) -> events.BatchLearned:
    return events.BatchLearned(partition, fold_of(vectors(5), fold_config()), 5, [], 0.1, lag)


def test_an_undisturbed_run_logs_a_few_lines(logs: Logs) -> None:
    run_logged(filled_with(300, 300), [200, 200, 200], checkpoint_interval_s=1e9)
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


def test_errors_that_differ_only_in_file_or_count_are_logged_once_and_again_when_they_end(logs: Logs) -> None:
    log = member_of(WorkerLog())
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
    log = member_of(WorkerLog())

    def failed(text: str) -> events.CheckpointPostponed:
        return events.CheckpointPostponed(str(store_error("write", "s3://bucket", "a", OSError(text))))

    causes = ("status code: 503 <Code>SlowDown</Code>", "kind: Timeout", "HttpError", "status code: 500")
    notify(log, *map(failed, causes), SAVED)
    assert events_of(logs) == ["checkpoint postponed", "checkpoint saved again"]
    notify(log, failed("status code: 503"), failed("status code: 403 <Code>AccessDenied</Code>"))
    assert events_of(logs)[2:] == ["checkpoint postponed", "checkpoint postponed"]
    assert "no permission" in logs[-1]["cause"]


def test_failed_publishing_is_logged_once_while_checkpoints_are_saved(logs: Logs) -> None:
    """Saved checkpoints do not end the error of publishing."""
    notify(member_of(WorkerLog()), *[SAVED, events.PublishFailed("cannot write: No space left on device")] * 5)
    assert events_of(logs) == ["publishing failed"]


def test_rejected_records_are_logged_at_powers_of_ten(logs: Logs) -> None:
    run_logged(environment_of([POISON] * 120 + [None] * 3 + [b"?"]), [50], on_bad_record="skip")
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
    env = filled_with(good)
    for count in counts:
        env.send(0, [None] * count)
    run_logged(env, [count for count in [good, *counts] if count])
    raised = [line for line in logs if line["log_level"] == "warning"]
    assert [line["event"] for line in raised] == ["no record has a vector"] * warnings
    assert all(line["skipped"] >= 100 and "correct field" in line["message"] for line in raised)


def test_catching_up_is_logged_once_per_assignment(logs: Logs) -> None:
    """Partitions that are lost are a warning; those without any message do not count."""
    log = member_of(WorkerLog())
    log.notify(events.BatchLearned(0, fold_of(vectors(0), fold_config()), 0, [], 0.1, 0))
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
    log, fold = TimedLog(), fold_of(vectors(500), fold_config())
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
        member_of(WorkerLog()),
        *[events.PartitionsAssigned({0: 5}), stalled, events.PartitionsReleased([0], lost=False)] * 2,
    )
    assert events_of(logs).count("decoding stalled") == 2


def test_the_last_line_has_the_saved_positions(logs: Logs) -> None:
    worker_log = WorkerLog()
    log = member_of(worker_log)
    released, rejected = events.PartitionsReleased([2], lost=False), events.RecordRejected(0, 6, "undecodable", "?")
    notify(log, events.PartitionsAssigned({0: 2, 1: 40, 2: 80, 3: -1}), learned(lag=0), SAVED, released, rejected)
    worker_log.ended(log.state)
    assert logs[-1].items() >= {
        "event": "worker ended", "learned": 5, "rejected": 1, "saved_up_to": {"0": SAVED.fold.position, "1": 40},
        "last_model": None,
    }.items()  # fmt: skip


# The metrics.


class MeasuredMember(Member):
    """A member with metrics."""

    def __init__(self) -> None:
        metrics = WorkerMetrics(TOPIC)
        self.registry = metrics.registry
        super().__init__([metrics], 600.0, lambda needs: False, lambda: 0.0, lambda: NOW)


@pytest.fixture
def metrics() -> MeasuredMember:
    return MeasuredMember()


def batch(fold: Fold, scores: list[Losses] | None = None, partition: int = 0) -> events.BatchLearned:
    return events.BatchLearned(partition, fold, 0, scores or [], 0.5, 0)


def test_metrics_after_a_run(metrics: MeasuredMember) -> None:
    env = Environment(partitions=2)
    env.send(0, vectors(580), timestamp=int(NOW * 1000) - 90_000)
    env.send(1, [POISON, None, POISON])
    env.send(1, vectors(40, seed=1))
    make_worker(env, worker_config(on_bad_record="skip"), [500]).add_listener(metrics).run()
    stats, newest = env.newest().fold.stats, env.models.newest().model
    now = samples_in(metrics.registry, TOPIC)
    assert_includes(
        now,
        {
            'streampca_messages_total{outcome="learned"}': 620,
            'streampca_messages_total{outcome="rejected"}': 2,
            'streampca_messages_total{outcome="skipped"}': 1,
            'streampca_records_rejected_total{reason="wrong_length"}': 2,
            'streampca_records_skipped_total{reason="no_value"}': 1,
            "streampca_partitions_owned": 2,
            "streampca_broker_connected": 1,
            "streampca_loop_last_tick_timestamp_seconds": NOW,
            'streampca_rebalances_total{event="assigned"}': 1,
            'streampca_consumer_lag_messages{partition="0"}': 0,
            'streampca_consumer_lag_messages{partition="1"}': 0,
            'streampca_next_offset{partition="0"}': 580,
            'streampca_next_offset{partition="1"}': 43,
            'streampca_event_time_lag_seconds{partition="0"}': pytest.approx(90),
            'streampca_checkpoint_last_success_timestamp_seconds{partition="0"}': NOW,
            "streampca_checkpoint_duration_seconds_count": 3,
            "streampca_published_version": 620,
            "streampca_publish_duration_seconds_count": 2,
            "streampca_explained_variance_ratio": pytest.approx(newest.explained_variance_ratio.sum()),
            'streampca_loss_ewma{partition="0"}': pytest.approx(stats.loss_ewma / stats.norm_ewma),
            "streampca_prequential_loss_ratio_count": 2 * LEARN_BLOCK,
            'streampca_pinv_error{partition="0"}': pytest.approx(0, abs=1e-9),
            'streampca_clipped_messages{partition="0"}': 0,
        },
    )
    assert (len(env.calls("save")), len(env.models.versions()), stats.with_loss) == (3, 2, 2 * LEARN_BLOCK)
    assert 'streampca_event_time_lag_seconds{partition="1"}' not in now
    assert now["streampca_learn_seconds_total"] > 0


def test_a_stalled_partition_is_shown_and_its_lag_grows(metrics: MeasuredMember) -> None:
    fold = fold_of(vectors(300), fold_config(), [int(NOW * 1000)] * 300)
    batches = [batch(fold, partition=partition) for partition in (0, 1)]
    notify(metrics, events.PartitionsAssigned({0: -1, 1: -1}), *batches, events.PartitionStalled(1, 500, "no registry"))
    assert_includes(
        samples_in(metrics.registry, TOPIC),
        {
            'streampca_stalled{partition="0"}': 0,
            'streampca_stalled{partition="1"}': 1,
            'streampca_consumer_lag_messages{partition="1"}': 500,
        },
    )
    metrics.notify(batches[1])
    assert samples_in(metrics.registry, TOPIC)['streampca_stalled{partition="1"}'] == 0


@pytest.mark.parametrize("env", [(100,)], indirect=True)
def test_a_lost_broker_is_shown_while_the_lag_stays(env: Environment, metrics: MeasuredMember) -> None:
    script = [30, lambda: setattr(env.topic, "away", True), lambda: env.send(0, vectors(50)), None]
    make_worker(env, script=script).add_listener(metrics).run()
    expected = {"streampca_broker_connected": 0, 'streampca_consumer_lag_messages{partition="0"}': 70}
    assert_includes(samples_in(metrics.registry, TOPIC), expected)


@pytest.mark.parametrize("lost", [True, False])
def test_metrics_of_released_partitions_are_removed(metrics: MeasuredMember, lost: bool) -> None:
    fold = fold_of(vectors(300), fold_config(), [int(NOW * 1000)] * 300)
    for partition in (0, 1):
        assigned, saved = events.PartitionsAssigned({partition: -1}), events.CheckpointSaved(partition, fold, 0.1)
        notify(metrics, assigned, batch(fold, partition=partition), saved)
    before, label = samples_in(metrics.registry, TOPIC), 'partition="0"'
    assert len([name for name in before if label in name]) == 9
    metrics.notify(events.PartitionsReleased([0], lost=lost))
    now, released = (
        samples_in(metrics.registry, TOPIC),
        f'streampca_rebalances_total{{event="{"lost" if lost else "revoked"}"}}',
    )
    assert now.keys() >= {name for name in before if label not in name}
    assert not [name for name in now if label in name]
    assert (now["streampca_partitions_owned"], now[released]) == (1, 1)
    metrics.notify(events.PartitionsReleased([7], lost=lost))  # it had no samples


def test_losses_are_counted_in_the_bucket_of_their_ratio(metrics: MeasuredMember) -> None:
    norm = np.array([2.0, 2.0, 2.0, 0.0, 1e-300])
    metrics.notify(batch(fold_of(vectors(5), fold_config()), [Losses(norm * [0.05, 0.25, 1.0, 0, 0], norm)]))
    assert_includes(
        samples_in(metrics.registry, TOPIC),
        {
            'streampca_prequential_loss_ratio_bucket{le="0.1"}': 2,
            'streampca_prequential_loss_ratio_bucket{le="0.3"}': 3,
            "streampca_prequential_loss_ratio_count": 4,  # a message equal to the mean has no ratio
            "streampca_prequential_loss_ratio_sum": pytest.approx(1.3),
        },
    )


def test_skipped_offsets_failures_and_future_timestamps_are_counted(metrics: MeasuredMember) -> None:
    far = fold_of(vectors(34), fold_config(), [*[1000] * 32, 10**12, 1000])
    young = fold_of(vectors(5), fold_config())
    notify(
        metrics, events.OffsetsSkipped(0, 100, 180), *[events.CheckpointPostponed("disk full")] * 2,
        events.PublishFailed("disk full"), batch(far), batch(young, partition=1), events.CheckpointSaved(1, young, 0.1),
    )  # fmt: skip
    now = samples_in(metrics.registry, TOPIC)
    assert_includes(
        now,
        {
            "streampca_offset_gap_messages_total": 80,
            "streampca_checkpoints_postponed_total": 2,
            "streampca_publish_failures_total": 1,
            'streampca_timestamps_ahead{partition="0"}': 1,
        },
    )
    # Before the first loss, and before the first factor.
    assert not {'streampca_loss_ewma{partition="1"}', 'streampca_pinv_error{partition="1"}'} & now.keys()


@pytest.mark.parametrize(
    ("unit", "per_s", "half_life_seconds"),
    [
        ("seconds", 1, 60.0), ("microseconds", 10**6, 60.0), ("nanoseconds", 10**9, 60.0),
        ("milliseconds", 1000, 60.0), ("seconds", 1, None),
    ],
)  # fmt: skip
def test_timestamps_in_another_unit_are_counted_and_logged_once_if_a_half_life_needs_them(
    metrics: MeasuredMember, logs: Logs, unit: str, per_s: int, half_life_seconds: float | None
) -> None:
    env = Environment(1, fold_config(half_life_seconds=half_life_seconds))
    for timestamp in (-1, int(NOW) * per_s, int(NOW + 1) * per_s, 50):
        env.send(0, vectors(10), timestamp=timestamp)
    make_worker(env, worker_config(env.fold_config), [7] * 8).add_listener(metrics).add_listener(
        member_of(WorkerLog())
    ).run()
    odd = 0 if half_life_seconds is None else 10 if unit == "milliseconds" else 30
    assert_includes(samples_in(metrics.registry, TOPIC), {"streampca_odd_timestamps_total": odd})
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["event"] for line in warnings] == ["timestamps outside 1990 to 2100"] * (odd > 0)
    if odd == 30:
        assert warnings[0]["cause"].startswith(f"half_life_seconds depends on {int(NOW) * per_s}, in milliseconds ")
        assert warnings[0]["cause"].endswith(f"; it may be a time in {unit}")
    env.assert_complete()


def test_missing_entries_of_vectors_are_shown(metrics: MeasuredMember) -> None:
    V = vectors(300)
    V[100:, 2] = np.nan
    fold = fold_of(V, fold_config(impute=True))
    metrics.notify(events.BatchLearned(1, fold, 300, [], 0.5, 0, incomplete=200))
    missing = pytest.approx(fold.state.missing.mean())
    expected = {"streampca_vectors_with_gaps_total": 200, 'streampca_missing_entries_ratio{partition="1"}': missing}
    assert_includes(samples_in(metrics.registry, TOPIC), expected)


BOUNDS = (0.001, 0.1, 0.5, 1.0)


@given(st.lists(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 2)), max_size=20), max_size=5))
def test_a_bulk_histogram_has_the_exposition_of_single_observations(batches: list[list[float]]) -> None:
    bulk, single = CollectorRegistry(), CollectorRegistry()
    bulk_histogram = BulkHistogram("ratio", "A share.", (), BOUNDS, bulk)
    single_histogram = Histogram("ratio", "A share.", buckets=BOUNDS, registry=single)
    for batch in batches:
        bulk_histogram.observe(np.array(batch))
        for value in batch:
            single_histogram.observe(value)
    text = generate_latest(bulk).decode()
    assert _comparable(text) == _comparable(generate_latest(single).decode())
    (total,) = [line for line in text.splitlines() if line.startswith("ratio_sum")]
    assert float(total.split()[1]) == pytest.approx(sum(sum(batch) for batch in batches))


def _comparable(text: str) -> list[str]:
    """The lines without the creation time, and without the sum, which depends on the order of addition."""
    return [line for line in text.splitlines() if "_created" not in line and not line.startswith("ratio_sum")]
