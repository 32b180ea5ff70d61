"""The publisher: the merged model, its version, the signs of its components, and which worker publishes."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from streampca.consumer_group.listener import ModelPublished, PartitionsAssigned
from streampca.errors import SettingsError, TopicReplacedError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel, encode
from streampca.pca.arrays import F64
from streampca.pca.axes import model_of
from streampca.pca.jackknife import jackknife
from streampca.pca.learning import BLOCK
from streampca.pca.merge import grouped, pooled
from streampca.pca.model import Model
from streampca.sources.memory import Do, MemorySource, Pause, Step
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.worker.publisher import Publisher, is_due
from tests.fold.streams import D, checkpoint_of, covariance, fold_config, fold_of, vectors
from tests.worker.environment import Environment
from tests.worker.harness import WorkerFixture, make_worker, worker_config

CONFIG = fold_config()
EXACT = fold_config(components=D)
HOUR_MS = 3600 * 1000


class PublisherFixture:
    """A publisher and its stores, without a worker."""

    def __init__(self, fold_config: FoldConfig = CONFIG) -> None:
        self.fold_config, self.store = fold_config, MemoryStore()
        self.checkpoints, self.models = Checkpoints(self.store, "readings"), Models(self.store, "readings")
        self.now = 1234.5
        self.publisher = Publisher(self.checkpoints, self.models, fold_config, lambda: self.now)
        self.p_values: F64 | None = None  # of the last version

    def save(self, partition: int, fold: Fold) -> None:
        self.checkpoints.save(checkpoint_of(fold, self.fold_config, partition))

    def publish(self) -> PublishedModel:
        published = self.publisher.publish()
        assert published is not None
        model, self.p_values = published
        newest = self.models.newest()
        assert newest is not None
        assert encode(newest) == encode(model)
        return model


@pytest.fixture
def fixture() -> PublisherFixture:
    return PublisherFixture()


def covariance_of(model: Model) -> Any:
    """The covariance matrix of a model that has all components."""
    return model.components.T * model.explained_variance @ model.components


def test_no_model_before_two_messages(fixture: PublisherFixture) -> None:
    assert fixture.publisher.publish() is None
    fixture.save(0, fold_of(vectors(1), CONFIG))
    fixture.save(1, Fold.empty(CONFIG.learning).skip(7))
    assert fixture.publisher.publish() is None
    assert fixture.models.versions() == []
    fixture.save(2, fold_of(vectors(1, seed=1), CONFIG))
    assert fixture.publish().version == 2


def test_the_version_is_the_number_of_learned_messages(fixture: PublisherFixture) -> None:
    folds = [fold_of(vectors(n, seed=n), CONFIG).reject(["no_value"] * n) for n in (300, 7, 90)]
    for partition, fold in enumerate(folds):
        fixture.save(partition, fold)
    model = fixture.publish()
    assert (model.version, model.rejected) == (397, 397)
    assert model.positions == {0: 300, 1: 7, 2: 90}
    assert (model.topic, model.topic_id, model.published_at) == ("readings", "id-1", 1234.5)
    assert model.settings == CONFIG.as_dict()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_checkpoints_in_memory_give_the_same_bytes_as_those_on_disk(dtype: str) -> None:
    config = fold_config(dtype=dtype)
    on_disk, in_memory = PublisherFixture(config), PublisherFixture(config)
    checkpoints = [checkpoint_of(fold_of(vectors(300 + n, seed=n), config), config, n) for n in range(5)]
    for fixture in (on_disk, in_memory):
        for checkpoint in checkpoints:
            fixture.checkpoints.save(checkpoint)
    in_memory.checkpoints.newest = lambda _: pytest.fail("read from disk")  # type: ignore[method-assign]
    published = in_memory.publisher.publish(checkpoints)
    assert published is not None
    assert published.model.subspace_error is not None
    assert encode(published.model) == encode(on_disk.publish())


def test_a_checkpoint_in_memory_does_not_hide_a_newer_one(fixture: PublisherFixture) -> None:
    older, newer = (checkpoint_of(fold_of(vectors(n), CONFIG), CONFIG, 0) for n in (100, 200))
    for checkpoint in (older, newer):
        fixture.checkpoints.save(checkpoint)
    published = fixture.publisher.publish([older])
    assert published is not None
    assert published.model.positions == {0: 200}


def test_the_model_is_the_merge_of_the_folds(fixture: PublisherFixture) -> None:
    folds = [fold_of(vectors(n, seed=n), CONFIG) for n in (300, 7, 90)]
    for partition, fold in enumerate(folds):
        fixture.save(partition, fold)
    config = CONFIG.learning
    groups = grouped([fold.provisional(config) for fold in folds], config.columns)
    state = pooled(groups, config.columns, config.components, config.dtype)
    expected, found = model_of(state, config.components), fixture.publish().model
    np.testing.assert_array_equal(found.components, expected.components)
    np.testing.assert_array_equal(found.explained_variance, expected.explained_variance)
    np.testing.assert_array_equal(found.mean, expected.mean)
    assert (found.weight, found.total_variance) == (expected.weight, expected.total_variance)


def test_the_model_holds_the_loss_of_each_partition_that_has_one(fixture: PublisherFixture) -> None:
    folds = {partition: fold_of(vectors(n, seed=n), CONFIG) for partition, n in ((0, 900), (1, 3), (12, 500))}
    for partition, fold in folds.items():
        fixture.save(partition, fold)
    stats = {partition: folds[partition].stats for partition in (0, 12)}
    expected = {partition: each.loss_ewma / each.norm_ewma for partition, each in stats.items()}
    assert fixture.publish().partition_losses == expected


def test_the_model_holds_its_sampling_error_from_four_partitions_with_messages_on(fixture: PublisherFixture) -> None:
    folds = [fold_of(vectors(n, seed=n), CONFIG) for n in (300, 107, 190, 250)]
    for partition, fold in enumerate(folds[:3]):
        fixture.save(partition, fold)
    fixture.save(3, Fold.empty(CONFIG.learning).skip(7))
    few = fixture.publish()
    assert (few.subspace_error, few.axis_errors) == (None, None)
    fixture.save(4, folds[3])
    states = [fold.provisional(CONFIG.learning) for fold in folds]
    expected, model = jackknife(states, CONFIG.learning.components, CONFIG.learning.columns), fixture.publish()
    assert expected is not None
    assert model.subspace_error == expected.subspace
    assert model.axis_errors == expected.axes.tolist()


@pytest.mark.parametrize("counts", [(2,), (1, 1), (19, 3), (300, 7, 90), (84, 148)])
def test_with_all_components_the_model_has_the_covariance_of_all_messages(counts: tuple[int, ...]) -> None:
    fixture, parts = PublisherFixture(EXACT), [vectors(n, seed=n + 10) + i for i, n in enumerate(counts)]
    for partition, V in enumerate(parts):
        fixture.save(partition, fold_of(V, EXACT))
    model, everything = fixture.publish().model, np.vstack(parts)
    np.testing.assert_allclose(covariance_of(model), covariance(everything), atol=1e-9)
    np.testing.assert_allclose(model.mean, everything.mean(axis=0), atol=1e-12)
    assert model.total_variance == pytest.approx(np.trace(covariance(everything)), abs=1e-12)
    assert model.weight == pytest.approx(sum(counts))


def test_folds_are_decayed_to_a_common_time_before_merging() -> None:
    """A partition without messages for two half-lives has a quarter of the weight."""
    config = fold_config(components=D, half_life_seconds=10.0)
    fixture, parts = PublisherFixture(config), [vectors(200, seed=1), vectors(200, seed=2) + 1]
    fixture.now = 2e9
    for partition, (V, stamp) in enumerate(zip(parts, (10**12, 10**12 + 20_000), strict=True)):
        fixture.save(partition, fold_of(V, config, [stamp] * 200))
    model = fixture.publish().model
    weights = np.repeat([0.25, 1.0], 200)
    np.testing.assert_allclose(covariance_of(model), covariance(np.vstack(parts), weights), atol=1e-9)
    assert model.weight == pytest.approx(250)


def test_a_partition_whose_clock_is_ahead_does_not_silence_the_others() -> None:
    """It counts as current; a partition that has been idle for two half-lives still fades."""
    config = fold_config(components=D, half_life_seconds=10.0)
    fixture, parts = PublisherFixture(config), [vectors(200, seed=i) + i for i in range(3)]
    fixture.now = 1e9
    for partition, (V, stamp) in enumerate(zip(parts, (10**12, 10**12 + HOUR_MS, 10**12 - 20_000), strict=True)):
        fixture.save(partition, fold_of(V, config, [stamp] * 200))
    model = fixture.publish().model
    weights = np.repeat([1.0, 1.0, 0.25], 200)
    np.testing.assert_allclose(covariance_of(model), covariance(np.vstack(parts), weights), atol=1e-9)
    assert model.weight == pytest.approx(450)


def test_a_partition_without_timestamps_keeps_its_weight() -> None:
    config = fold_config(components=D, half_life_seconds=10.0)
    fixture, parts = PublisherFixture(config), [vectors(200, seed=1), vectors(200, seed=2)]
    fixture.save(0, fold_of(parts[0], config))
    fixture.save(1, fold_of(parts[1], config, [10**12] * 200))
    np.testing.assert_allclose(covariance_of(fixture.publish().model), covariance(np.vstack(parts)), atol=1e-9)


def test_losses_average_all_scored_messages(fixture: PublisherFixture) -> None:
    folds = [fold_of(vectors(n, seed=n), CONFIG) for n in (600, 7, 300)]
    for partition, fold in enumerate(folds):
        fixture.save(partition, fold)
    all_stats, model = [fold.stats for fold in folds], fixture.publish()
    scored = sum(t.with_loss for t in all_stats)
    assert scored == 2 * BLOCK + BLOCK
    loss, norm = (sum(t.with_loss * getattr(t, name) for t in all_stats) / scored for name in ("loss", "norm"))
    assert model.loss == pytest.approx(loss)
    assert model.loss_ratio == pytest.approx(loss / norm)
    ewma = [sum(t.with_loss * getattr(t, name) for t in all_stats) for name in ("loss_ewma", "norm_ewma")]
    assert model.loss_ewma == pytest.approx(ewma[0] / ewma[1])


def test_no_loss_before_the_first_scored_message(fixture: PublisherFixture) -> None:
    fixture.save(0, fold_of(vectors(15), CONFIG))
    model = fixture.publish()
    assert (model.loss, model.loss_ratio, model.loss_ewma) == (None, None, None)


def test_identical_messages_give_a_model_with_zero_loss(fixture: PublisherFixture) -> None:
    fixture.save(0, fold_of(np.ones((300, D)), CONFIG))
    model = fixture.publish()
    assert model.model.explained_variance.tolist() == [0, 0]
    assert (model.loss, model.loss_ratio, model.loss_ewma) == (0, 0, 0)


def test_first_and_last_timestamps_over_all_partitions(fixture: PublisherFixture) -> None:
    fixture.save(0, fold_of(vectors(3), CONFIG, [500, 100, 300]))
    fixture.save(1, fold_of(vectors(3, seed=1), CONFIG))
    fixture.save(2, fold_of(vectors(2, seed=2), CONFIG, [900, -1]))
    model = fixture.publish()
    assert (model.first_timestamp_ms, model.last_timestamp_ms) == (100, 900)


def test_unknown_timestamps_stay_unknown(fixture: PublisherFixture) -> None:
    fixture.save(0, fold_of(vectors(3), CONFIG))
    model = fixture.publish()
    assert (model.first_timestamp_ms, model.last_timestamp_ms) == (-1, -1)


def test_checkpoints_are_read_one_at_a_time(fixture: PublisherFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(6):
        fixture.save(partition, fold_of(vectors(100 + partition), CONFIG))
    newest, held = fixture.checkpoints.newest, WeakSet[Fold]()

    def counted(partition: int, *, trusted: bool) -> Checkpoint | None:
        found = newest(partition, trusted=trusted)
        assert found is not None
        held.add(found.fold)
        assert len(held) <= 2
        return found

    monkeypatch.setattr(fixture.checkpoints, "newest", counted)
    assert fixture.publish().positions == {p: 100 + p for p in range(6)}


def test_the_version_never_decreases(fixture: PublisherFixture) -> None:
    """Not even when the newest checkpoint is damaged and the previous one has learned less."""
    for n in (100, 200):
        fixture.save(0, fold_of(vectors(n), CONFIG))
    assert fixture.publish().version == 200
    fixture.store.damage(f"checkpoints/readings/0/{200:020d}.npz")
    assert fixture.publisher.publish() is None
    assert fixture.models.versions() == [200]
    fixture.save(0, fold_of(vectors(250), CONFIG))
    assert fixture.publish().version == 250


def well_separated(n: int) -> Any:
    """Messages (n, D) with well-separated variances, so that the components keep their order."""
    return np.random.default_rng(4).standard_normal((n, D)) * [9, 4, 2, 1, 0.5]


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
def test_signs_follow_the_previous_version(fixture: PublisherFixture, signs: tuple[int, int]) -> None:
    fixture.save(0, fold_of(well_separated(100), CONFIG))
    first = fixture.publish()
    flipped = replace(first.model, components=first.model.components * np.array(signs)[:, None])
    fixture.models.save(replace(first, version=101, model=flipped))
    fixture.save(0, fold_of(well_separated(160), CONFIG))
    assert (np.sum(fixture.publish().model.components * flipped.components, axis=1) > 0.5).all()


def test_a_checkpoint_with_other_settings_is_not_merged(fixture: PublisherFixture) -> None:
    fixture.save(0, fold_of(vectors(100), CONFIG))
    other = fold_config(components=1)
    fixture.checkpoints.save(checkpoint_of(fold_of(vectors(100), other), other, partition=1))
    with pytest.raises(SettingsError, match="partition 1"):
        fixture.publisher.publish()


def test_checkpoints_of_a_replaced_topic_are_not_merged(fixture: PublisherFixture) -> None:
    fixture.save(0, fold_of(vectors(100), CONFIG))
    fixture.checkpoints.save(Checkpoint("readings", "id-2", 1, fold_of(vectors(100), CONFIG), CONFIG.as_dict()))
    with pytest.raises(TopicReplacedError):
        fixture.publisher.publish()


# Which worker publishes.


@pytest.fixture
def env() -> Iterator[Environment]:
    env = Environment(partitions=2, fold_config=EXACT)
    for partition in (0, 1):
        env.send(partition, vectors(150, seed=partition) + partition)
    yield env
    assert env.violations == []


def test_a_worker_publishes_the_model_of_all_partitions(env: Environment) -> None:
    worker = make_worker(env, script=[50, 50])
    worker.run()
    published = [event.model.version for event in worker.recorder.of_type(ModelPublished)]
    assert published == env.models.versions() == [100, 200, 300]
    newest = env.models.newest()
    assert newest is not None
    everything = np.vstack([vectors(150, seed=p) + p for p in (0, 1)])
    np.testing.assert_allclose(covariance_of(newest.model), covariance(everything), atol=1e-9)


def test_saves_then_publishes_then_commits(env: Environment) -> None:
    make_worker(env, script=[50]).run()
    names = [entry[0] for entry in env.calls("save", "commit", "publish")]
    assert names[:4] == ["save", "save", "publish", "commit"]


@pytest.mark.parametrize("lowest", [True, False])
def test_only_the_owner_of_the_lowest_partition_publishes(env: Environment, lowest: bool) -> None:
    """Of two members, the one that joined first owns partition 0."""
    members: list[MemorySource] = []

    def join_group() -> None:
        members.append(MemorySource(env.topic))
        members[0].poll(0)

    join = Do(join_group)
    rebalance: list[Step] = [Do(lambda: members[0].poll(0)), Pause()]
    if not lowest:
        join.act()
    worker = make_worker(env, worker_config(EXACT), [join, *rebalance * 4] if lowest else rebalance * 4)
    worker.run()
    assigned = worker.recorder.of_type(PartitionsAssigned)[-1].positions
    assert list(assigned) == [0 if lowest else 1]
    assert env.position(next(iter(assigned))) == 150
    assert bool(env.calls("publish")) is lowest


def test_a_stopping_worker_publishes_last(env: Environment) -> None:
    worker: WorkerFixture = make_worker(
        env, worker_config(EXACT, checkpoint_interval_s=1e9), [50, Do(lambda: worker.stop("SIGTERM")), Pause()]
    )
    worker.run()
    assert env.models.versions() == [100]
    assert env.journal[-1] == ("publish", 100)


def test_publishing_takes_a_tenth_of_the_time_at_most() -> None:
    """Counted from the start of a publication to the start of the next; one that was slow alone does not count."""
    assert is_due(5.0, [0.0])
    assert is_due(5.0, [0.5, 0.5])
    assert not is_due(5.0, [0.51, 0.52])
    assert is_due(5.0, [60.0, 0.5])
    assert is_due(60.0, [5.7, 5.8])


def test_a_worker_publishes_less_often_where_it_takes_long(env: Environment) -> None:
    """Checkpoints are saved as before, and the last model is that of all messages."""
    slow = itertools.count(step=10)
    worker = make_worker(env, script=[30] * 9, save_clock=lambda: float(next(slow)))
    worker.run()
    assert env.models.versions() == [60, 120, 300]
    assert len(env.calls("save")) == 10
