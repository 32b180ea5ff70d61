"""The worker's metrics, as Prometheus reads them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from streampca.consumer_group import events
from streampca.consumer_group.member import Member
from streampca.fold.fold import Fold
from streampca.pca.learning_config import SHORT_BLOCK
from streampca.pca.state import Losses
from streampca.sources.events import SourceStatus
from streampca.worker.log import WorkerLog
from streampca.worker.metrics import BulkHistogram, WorkerMetrics
from tests.fold.streams import fold_config, make_fold, vectors
from tests.members import make_member, notify
from tests.monitoring.prometheus import assert_includes, samples_in
from tests.worker.environment import POISON, TOPIC, Environment
from tests.worker.harness import make_worker, make_worker_config

Logs = list[dict[str, Any]]
MEMBER = SourceStatus(connected=True, member=True)
NOW = 1_700_000_000.0
SAVED = events.CheckpointSaved(0, make_fold(vectors(5), fold_config()), 0.1)


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


def test_a_run_is_counted_in_the_metrics(metrics: MeasuredMember) -> None:
    env = Environment(partitions=2)
    env.send(0, vectors(580), timestamp=int(NOW * 1000) - 90_000)
    env.send(1, [POISON, None, POISON])
    env.send(1, vectors(40, seed=1))
    make_worker(env, make_worker_config(on_bad_record="skip"), [500]).also_notify(metrics.notify).run()
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
            "streampca_prequential_loss_ratio_count": 2 * SHORT_BLOCK,
            'streampca_pinv_error{partition="0"}': pytest.approx(0, abs=1e-9),
            'streampca_clipped_messages{partition="0"}': 0,
        },
    )
    assert (len(env.calls("save")), len(env.models.versions()), stats.with_loss) == (3, 2, 2 * SHORT_BLOCK)
    assert 'streampca_event_time_lag_seconds{partition="1"}' not in now
    assert now["streampca_learn_seconds_total"] > 0


def test_a_stalled_partition_is_shown_and_its_lag_grows(metrics: MeasuredMember) -> None:
    fold = make_fold(vectors(300), fold_config(), [int(NOW * 1000)] * 300)
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
    make_worker(env, script=script).also_notify(metrics.notify).run()
    expected = {"streampca_broker_connected": 0, 'streampca_consumer_lag_messages{partition="0"}': 70}
    assert_includes(samples_in(metrics.registry, TOPIC), expected)


def test_missing_partitions_are_counted_until_partitions_are_released(metrics: MeasuredMember) -> None:
    counts = []
    released = events.PartitionsReleased([0], lost=False)
    for event in (events.PartitionsMissing({0: "x", 2**31: "y"}), events.PartitionsMissing({0: "x"}), released):
        metrics.notify(event)
        counts.append(samples_in(metrics.registry, TOPIC)["streampca_partitions_missing"])
    assert counts == [2, 1, 0]


@pytest.mark.parametrize("lost", [True, False])
def test_metrics_of_released_partitions_are_removed(metrics: MeasuredMember, lost: bool) -> None:
    fold = make_fold(vectors(300), fold_config(), [int(NOW * 1000)] * 300)
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
    metrics.notify(batch(make_fold(vectors(5), fold_config()), [Losses(norm * [0.05, 0.25, 1.0, 0, 0], norm)]))
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
    far = make_fold(vectors(34), fold_config(), [*[1000] * 32, 10**12, 1000])
    young = make_fold(vectors(5), fold_config())
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
    worker = make_worker(env, make_worker_config(env.fold_config), [7] * 8)
    worker.also_notify(metrics.notify, make_member(WorkerLog()).notify).run()
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
    fold = make_fold(V, fold_config(impute=True))
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
