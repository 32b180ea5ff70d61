"""The worker's metrics after scripted runs and events, as Prometheus reads them."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streampca.consumer_group import listener as events
from streampca.fold.fold import Fold
from streampca.pca.learning import BLOCK
from streampca.pca.state import Losses
from streampca.worker.metrics import BulkHistogram, WorkerMetrics
from tests.fold.streams import D, fold_config, fold_of, vectors
from tests.monitoring.prometheus import described
from tests.worker.environment import POISON, TOPIC, Environment, filled_with
from tests.worker.harness import WorkerFixture, make_worker, worker_config

NOW = 1_700_000_000.0


class Samples:
    """The samples of the metrics; all have the label `topic`."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        text = generate_latest(metrics.registry).decode()
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }
        assert {dict(labels)["topic"] for _, labels in self._samples} == {TOPIC}

    def __call__(self, name: str, **label_values: str) -> float | None:
        return self._samples.get((name, tuple(sorted({"topic": TOPIC, **label_values}.items()))))


def labels(partition: int) -> dict[str, str]:
    return {"partition": str(partition)}


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> WorkerMetrics:
    monkeypatch.setattr(time, "time", lambda: NOW)
    return WorkerMetrics(TOPIC)


def batch(fold: Fold, scores: list[Losses] | None = None, partition: int = 0) -> events.BatchLearned:
    return events.BatchLearned(partition, fold, 0, scores or [], 0.5, 0)


def test_metrics_after_a_run(metrics: WorkerMetrics) -> None:
    env = Environment(partitions=2)
    env.send(0, vectors(580), timestamp=int(NOW * 1000) - 90_000)
    env.send(1, [POISON, None, POISON])
    env.send(1, vectors(40, seed=1))
    worker = make_worker(env, worker_config(bad_records="skip"), [500])
    worker.add_listener(metrics)
    worker.run()
    now = Samples(metrics)
    assert now("streampca_messages_total", outcome="learned") == 620
    assert now("streampca_messages_total", outcome="rejected") == 3
    assert now("streampca_dead_letters_total", reason="wrong_length") == 2
    assert now("streampca_dead_letters_total", reason="no_value") == 1
    assert now("streampca_partitions_owned") == 2
    assert now("streampca_broker_connected") == 1
    assert now("streampca_loop_last_tick_timestamp_seconds") == NOW
    assert now("streampca_rebalances_total", event="assigned") == 1
    assert now("streampca_consumer_lag_messages", **labels(0)) == 0
    assert now("streampca_consumer_lag_messages", **labels(1)) == 0
    assert now("streampca_next_offset", **labels(0)) == 580
    assert now("streampca_next_offset", **labels(1)) == 43
    assert now("streampca_event_time_lag_seconds", **labels(0)) == pytest.approx(90)
    assert now("streampca_event_time_lag_seconds", **labels(1)) is None
    assert now("streampca_checkpoint_last_success_timestamp_seconds", **labels(0)) == NOW
    assert now("streampca_checkpoint_duration_seconds_count") == len(env.calls("save")) == 3
    assert now("streampca_published_version") == 620
    assert now("streampca_publish_duration_seconds_count") == len(env.models.versions()) == 2
    explained = env.models.newest().model.explained_variance_ratio.sum()
    assert now("streampca_explained_variance_ratio") == pytest.approx(explained)
    stats = env.newest().fold.stats
    assert now("streampca_loss_ewma", **labels(0)) == pytest.approx(stats.loss_ewma / stats.norm_ewma)
    assert now("streampca_prequential_loss_ratio_count") == stats.with_loss == 2 * BLOCK
    assert now("streampca_pinv_error", **labels(0)) == pytest.approx(0, abs=1e-9)
    assert now("streampca_shortened_messages", **labels(0)) == 0
    assert now("streampca_learn_seconds_total") > 0


def test_a_stalled_partition_is_shown_and_its_lag_grows(metrics: WorkerMetrics) -> None:
    fold = fold_of(vectors(300), fold_config(), [int(NOW * 1000)] * 300)
    metrics.notify(events.PartitionsAssigned({0: -1, 1: -1}))
    for partition in (0, 1):
        metrics.notify(batch(fold, partition=partition))
    metrics.notify(events.PartitionStalled(1, 500, "no registry"))
    now = Samples(metrics)
    assert [now("streampca_stalled", **labels(p)) for p in (0, 1)] == [0, 1]
    assert now("streampca_consumer_lag_messages", **labels(1)) == 500
    metrics.notify(events.PartitionResumed(1))
    assert Samples(metrics)("streampca_stalled", **labels(1)) == 0


def test_a_lost_broker_is_shown_while_the_lag_stays(metrics: WorkerMetrics) -> None:
    env = filled_with(100)
    worker: WorkerFixture = make_worker(
        env, script=[30, lambda: setattr(env.topic, "away", True), lambda: env.send(0, vectors(50)), None]
    )
    worker.add_listener(metrics)
    worker.run()
    now = Samples(metrics)
    assert now("streampca_broker_connected") == 0
    assert now("streampca_consumer_lag_messages", **labels(0)) == 70


@pytest.mark.parametrize("lost", [True, False])
def test_metrics_of_released_partitions_are_removed(metrics: WorkerMetrics, lost: bool) -> None:
    fold = fold_of(vectors(300), fold_config(), [int(NOW * 1000)] * 300)
    for partition in (0, 1):
        metrics.notify(events.PartitionsAssigned({partition: -1}))
        metrics.notify(batch(fold, partition=partition))
        metrics.notify(events.CheckpointSaved(partition, fold, 0.1))
    by_partition = [
        f.name for f in Samples(metrics).families.values() if any(s.labels.get("partition") == "0" for s in f.samples)
    ]
    assert len(by_partition) == 9
    metrics.notify(events.PartitionsReleased([0], lost=lost))
    now = Samples(metrics)
    for name in by_partition:
        assert now(name, **labels(0)) is None
        assert now(name, **labels(1)) is not None
    assert now("streampca_partitions_owned") == 1
    assert now("streampca_rebalances_total", event="lost" if lost else "revoked") == 1
    metrics.notify(events.PartitionsReleased([7], lost=lost))  # it had no samples


def test_losses_are_counted_in_the_bucket_of_their_ratio(metrics: WorkerMetrics) -> None:
    norm = np.array([2.0, 2.0, 2.0, 0.0, 1e-300])
    metrics.notify(batch(fold_of(vectors(5), fold_config()), [Losses(norm * [0.05, 0.25, 1.0, 0, 0], norm)]))
    now = Samples(metrics)
    assert now("streampca_prequential_loss_ratio_bucket", le="0.1") == 2
    assert now("streampca_prequential_loss_ratio_bucket", le="0.3") == 3
    assert now("streampca_prequential_loss_ratio_count") == 4  # a message equal to the mean has no ratio
    assert now("streampca_prequential_loss_ratio_sum") == pytest.approx(1.3)


def test_gaps_failures_and_future_timestamps_are_counted(metrics: WorkerMetrics) -> None:
    metrics.notify(events.OffsetsSkipped(0, 100, 180))
    metrics.notify(events.CheckpointPostponed("disk full"))
    metrics.notify(events.CheckpointPostponed("disk full"))
    metrics.notify(events.PublishFailed("disk full"))
    far = [*[1000] * 32, 10**12, 1000]
    metrics.notify(batch(fold_of(vectors(34), fold_config(), far)))
    now = Samples(metrics)
    assert now("streampca_offset_gap_messages_total") == 80
    assert now("streampca_checkpoints_postponed_total") == 2
    assert now("streampca_publish_failures_total") == 1
    assert now("streampca_timestamps_ahead", **labels(0)) == 1


def test_gaps_of_vectors_are_shown(metrics: WorkerMetrics) -> None:
    config = fold_config(impute=True)
    V = vectors(300)
    V[100:, 2] = np.nan
    fold = fold_of(V, config)
    metrics.notify(events.BatchLearned(1, fold, 300, [], 0.5, 0, gaps=200))
    now = Samples(metrics)
    assert now("streampca_vectors_with_gaps_total") == 200
    assert now("streampca_missing_entries_ratio", **labels(1)) == pytest.approx(fold.state.gaps.messages / D)


def test_there_is_no_loss_metric_before_the_first_loss(metrics: WorkerMetrics) -> None:
    metrics.notify(batch(fold_of(vectors(5), fold_config())))
    metrics.notify(events.CheckpointSaved(0, fold_of(vectors(5), fold_config()), 0.1))
    now = Samples(metrics)
    assert now("streampca_loss_ewma", **labels(0)) is None
    assert now("streampca_pinv_error", **labels(0)) is None


def test_described_lists_every_exposed_metric(metrics: WorkerMetrics) -> None:
    Gauge("process_things", "Not ours.", registry=metrics.registry)
    names = described(metrics.registry)
    assert not [name for name in names if name.startswith("process_")]
    assert names["streampca_messages_total"].startswith("Messages processed")
    assert names["streampca_consumer_lag_messages"] == "Consumer lag: messages behind the log's end."
    exposed = {f.name + ("_total" if f.type == "counter" else "") for f in Samples(metrics).families.values()}
    created = {name for name in exposed if name.endswith("_created")}  # the client's own addition
    assert set(names) == {name for name in exposed - created if not name.startswith("process_")}
    assert all(names.values())


BOUNDS = (0.001, 0.1, 0.5, 1.0)


@given(st.lists(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 2)), max_size=20), max_size=5))
def test_same_exposition_as_single_observations(batches: list[list[float]]) -> None:
    bulk, single = CollectorRegistry(), CollectorRegistry()
    bulk_histogram = BulkHistogram("ratio", "A share.", BOUNDS, bulk)
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
